"""Building a token store, by this process or by several.

Files grow in a folder beside the store's, with a journal that says how far they are good, so that a
killed build goes on where it was and gives the same bytes. One process reads, checks and hashes
about as much text as eight processors tokenize; more processors than that need more processes,
each of which builds parts of the store, to be joined in order.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import pickle
import shutil
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from bert_jax.data import store
from bert_jax.data.corpus import Source
from bert_jax.data.processes import process_pool
from bert_jax.data.store import TokenStore
from bert_jax.runtime import files
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.process import loading_tensorflow

_SPLITTER_VERSION = 1  # raise it when `split_sentences` changes: stores of old rules are not ours
_CORES_A_PROCESS = 8
_MIN_BYTES_A_PROCESS = 1 << 30  # a process takes seconds to start
_PART_BYTES = 256 << 20  # of text at least, where units are smaller
_BATCH_BYTES = 1 << 20
_BATCH_DOCUMENTS = 10_000
_WRITTEN_AT_ONCE = 8 << 20  # elements
_JOURNAL = 'journal.json'
_JOURNAL_SECONDS = 10.0


def num_cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == 'linux' else os.cpu_count() or 1


def store_fingerprint(source: Source, tokenizer: Any) -> str:
    """The name of a source's store: of its content, the vocabulary and the rules."""
    identity = [
        store.FORMAT_VERSION, _SPLITTER_VERSION, source.fingerprint(), tokenizer.fingerprint]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]


def build_store(
    source: Source, tokenizer: Any, cache_dir: str | os.PathLike[str], progress: bool = True,
    num_processes: int = 0, field: str = 'data.dir',
) -> TokenStore:
    """The token store of a source: opened if it is there, built or finished if not.

    Args:
      source: where the text comes from.
      tokenizer: has `vocab` (with a length) and `fingerprint`.
      cache_dir: stores are in its folder `stores`.
      progress: whether to report on standard error.
      num_processes: that tokenize; 0: as many as this machine has use for.
      field: of the config, names `cache_dir`.

    Raises:
      InputError: unreadable text, no text at all, a damaged store, a full disk.
    """
    fingerprint = store_fingerprint(source, tokenizer)
    final = files.as_path(cache_dir) / 'stores' / fingerprint
    if not final.exists():
        with store.disk_faults('the token store', final.parent, field):
            final.parent.mkdir(parents=True, exist_ok=True)
            waiting_for = f'that builds {final.name}' if progress else ''
            with store.locked(final.with_suffix('.lock'), waiting_for):
                if not final.exists():  # another process may have built it meanwhile
                    building = final.with_suffix('.building')
                    _build(source, tokenizer, building, fingerprint, progress, num_processes)
                    os.rename(building, final)
                    store.fsync(final.parent)
    return TokenStore.open(final)


def _build(
    source: Source, tokenizer: Any, path: files.Path, fingerprint: str, progress: bool,
    num_processes: int,
) -> None:
    """Builds everything into a folder, from where a former build ended."""
    units = source.units()
    num_bytes = sum(unit.num_bytes for unit in units)
    if source.takes_all_cores:
        num_processes = 1
    num_processes = num_processes or max(1, min(
        num_cores() // _CORES_A_PROCESS, num_bytes // _MIN_BYTES_A_PROCESS, len(units)))
    num_threads = -(-num_cores() // num_processes)
    growing = _Growing(path, tokenizer, total_bytes=num_bytes if progress else None)
    if num_processes > 1:
        _build_parts(growing, source, tokenizer, num_processes, num_threads)
    else:
        growing.read(source, len(units), num_threads)
    state = growing.state
    if not state['num_documents']:
        raise InputError(f"data source '{source.spec}' holds no text")
    growing.add_documents()
    if store_fingerprint(source, tokenizer) != fingerprint:
        shutil.rmtree(path)
        raise InputError(
            f"data source '{source.spec}' changed while it was read: start again when its files "
            'are complete'
        )
    shutil.rmtree(path / 'parts', ignore_errors=True)
    paths = sorted(path.glob('*.bin'))
    manifest = {
        'format_version': store.FORMAT_VERSION,
        'fingerprint': fingerprint,
        'source': source.spec,
        'source_fingerprint': source.fingerprint(),
        'tokenizer_fingerprint': tokenizer.fingerprint,
        'vocab_size': len(tokenizer.vocab),
        **{name: value for name, value in state.items() if name not in ('unit', 'done')},
        'files': {
            path.name: {'bytes': os.path.getsize(path), 'md5': digest}
            for path, digest in zip(paths, store.digests(paths), strict=True)
        },
    }
    files.write_whole(path / store.MANIFEST, json.dumps(manifest, indent=1))
    (path / _JOURNAL).unlink()
    store.fsync(path)
    if progress:
        print(
            f"token store: {state['num_tokens']} tokens, {state['num_sentences']} sentences, "
            f"{state['num_documents']} documents ({state['num_duplicates']} duplicates left out) "
            f"from {state['text_bytes'] / 1e6:.1f} MB in {state['seconds']} s",
            file=sys.stderr, flush=True,
        )


class _Growing:
    """The growing files of a store, or of a part of one, and a journal of how far they are good.

    Attributes:
      folder: where they are.
      state: the manifest in the making, as in the journal, with the `unit` of the source to read on
        in and how many of its documents are `done`.
    """

    def __init__(
        self, folder: files.Path, tokenizer: Any, unit: int = 0, done: int = 0,
        total_bytes: int | None = None,
    ):
        """Goes on with what is in the folder, or begins at a document of a unit.

        Args:
          folder: see above.
          tokenizer: gives the ids.
          unit, done: where to begin.
          total_bytes: of text, to report progress of (0: unknown); None: no reports.
        """
        self.folder, self._tokenizer, self._total_bytes = folder, tokenizer, total_bytes
        self._unsynced: set[files.Path] = set()
        fresh: dict[str, Any] = {
            'unit': unit, 'done': done, 'piece_bytes': store.PIECE_BYTES,
            'dtype': '<u2' if len(tokenizer.vocab) < 65_536 else '<u4', 'num_tokens': 0,
            'num_sentences': 0, 'num_documents': 0, 'num_duplicates': 0, 'text_bytes': 0,
            'seconds': 0.0,
        }
        try:
            journal = json.loads((folder / _JOURNAL).read_text())
            self.state = {key: type(value)(journal[key]) for key, value in fresh.items()}
            self._cut()
        except (OSError, ValueError, KeyError, TypeError):
            # No journal, or a machine that lost power lost the ends of files.
            self.state = fresh
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            for name, size in self._sizes().items():
                (folder / name).write_bytes(bytes(size))
        self._started = time.monotonic() - self.state['seconds']
        self.save()

    def _sizes(self) -> dict[str, int]:
        """Bytes of each file, by the state."""
        return {name: size for _, pieces in store.array_files(self.state).values()
                for name, size in pieces.items()}

    def _cut(self) -> None:
        """Drops what is beyond the journal; ValueError or OSError if there is less than it says."""
        sizes = self._sizes()
        for name, size in sizes.items():
            if os.path.getsize(self.folder / name) < size:
                raise ValueError(f'{name} is cut short')
            os.truncate(self.folder / name, size)
        for path in self.folder.glob('*.bin'):
            if path.name not in sizes:
                path.unlink()

    def _write(self, array: str, values: np.ndarray, base: int = 0) -> None:
        """Appends `base` + `values` to an array, whose size is that of the state."""
        dtype, pieces = store.array_files(self.state)[array]
        size, piece_bytes = sum(pieces.values()), self.state['piece_bytes']
        for i in range(0, len(values), _WRITTEN_AT_ONCE):
            data = memoryview((values[i:i + _WRITTEN_AT_ONCE] + base).astype(dtype).tobytes())
            while len(data):
                index, start = divmod(size, piece_bytes)
                path = self.folder / f'{array}-{index:05}.bin'
                with open(path, 'ab') as file:
                    written = file.write(data[:piece_bytes - start])
                self._unsynced.add(path)
                size += written
                data = data[written:]

    def _append(
        self, tokens: np.ndarray, sentence_ends: np.ndarray, document_ends: np.ndarray,
        hashes: np.ndarray, num_bytes: int,
    ) -> None:
        """Adds documents; ends count from the first token and sentence that is added."""
        state = self.state
        self._write('tokens', tokens)
        self._write('sentence_offsets', sentence_ends, state['num_tokens'])
        self._write('document_offsets', document_ends, state['num_sentences'])
        self._write('document_hashes', hashes)
        state['num_tokens'] += len(tokens)
        state['num_sentences'] += len(sentence_ends)
        state['num_documents'] += len(document_ends)
        state['num_duplicates'] = state['num_documents']  # none is in `documents` yet
        state['text_bytes'] += num_bytes

    def save(self) -> None:
        """Makes what is in the files good."""
        while self._unsynced:
            store.fsync(self._unsynced.pop())
        self.state['seconds'] = round(time.monotonic() - self._started, 2)
        files.write_whole(self.folder / _JOURNAL, json.dumps(self.state))

    def report(self) -> None:
        """Prints how much of the text is done, how fast, how long yet."""
        if self._total_bytes is None:
            return
        num_bytes = self.state['text_bytes']
        rate = num_bytes / max(self.state['seconds'], 1e-3)
        line = f'token store: {num_bytes / 1e6:.0f} MB, {rate / 1e6:.1f} MB/s'
        if self._total_bytes:
            minutes = max(self._total_bytes - num_bytes, 0) / max(rate, 1) / 60
            line += f', {min(num_bytes / self._total_bytes, 0.99):.0%}, {minutes:.1f} min left'
        print(line, file=sys.stderr, flush=True)

    def read(self, source: Source, last: int, num_threads: int) -> None:
        """Adds the documents of the units before `last`."""
        with loading_tensorflow(source.spec):  # nothing else in this process needs it
            from bert_jax.data.tokenize import tokenize_batches

        saved, state = time.monotonic(), self.state
        batches = _text_batches(source, range(state['unit'], last), state['done'])
        for ids, num_tokens, num_lines, (unit, done, num_bytes) in tokenize_batches(
                batches, self._tokenizer, num_threads):
            # Counts of tokens and of lines that have any, before each line and document.
            tokens_before = np.concatenate([[0], np.cumsum(num_tokens, dtype=np.int64)])
            lines_before = np.concatenate([[0], np.cumsum(num_tokens > 0)])
            bounds = np.concatenate([[0], np.cumsum(num_lines)])
            token_bounds, line_bounds = tokens_before[bounds], lines_before[bounds]
            tokens = ids.astype(state['dtype'])
            hashes = [
                hashlib.blake2b(tokens[start:end].data, digest_size=8).digest()
                for start, end in itertools.pairwise(token_bounds.tolist()) if end > start
            ]
            self._append(
                tokens, tokens_before[1:][num_tokens > 0],
                line_bounds[1:][np.diff(line_bounds) > 0],
                np.frombuffer(b''.join(hashes), '<u8'), num_bytes,
            )
            state |= {'unit': unit, 'done': done}
            if time.monotonic() - saved > _JOURNAL_SECONDS:
                self.save()
                self.report()
                saved = time.monotonic()
        state |= {'unit': last, 'done': 0}
        self.save()

    def join(self, folder: files.Path, last: int) -> None:
        """Adds a part, of the units before `last`, and deletes it."""
        part = _Growing(folder, self._tokenizer)
        arrays = store.map_arrays(folder, part.state)
        self._append(
            arrays['tokens'], arrays['sentence_offsets'][1:], arrays['document_offsets'][1:],
            arrays['document_hashes'], part.state['text_bytes'],
        )
        self.state |= {'unit': last, 'done': 0}
        self.save()
        shutil.rmtree(folder)

    def add_documents(self) -> None:
        """Writes the indices of the documents without exact duplicates."""
        state = self.state
        state['num_duplicates'] = state['num_documents']
        self._cut()  # a build that was killed here has written some
        hashes = store.map_arrays(self.folder, state)['document_hashes']
        documents = np.sort(np.unique(hashes, return_index=True)[1])
        self._write('documents', documents)
        state['num_duplicates'] -= len(documents)
        self.save()


def _text_batches(
    source: Source, indices: range, done: int
) -> Iterator[tuple[list[bytes], bool, tuple[int, int, int]]]:
    """(texts, split, (unit, documents of it that are done then, bytes)), about 1 MiB each."""
    units = source.units()
    for unit in indices:
        texts: list[bytes] = []
        num_bytes, split = 0, True
        for text, split in itertools.islice(source.read(units[unit]), done, None):
            texts.append(text)
            num_bytes += len(text)
            done += 1
            if num_bytes >= _BATCH_BYTES or len(texts) >= _BATCH_DOCUMENTS:
                yield texts, split, (unit, done, num_bytes)
                texts, num_bytes = [], 0
        if texts:
            yield texts, split, (unit, done, num_bytes)
        done = 0


def _build_parts(
    growing: _Growing, source: Source, tokenizer: Any, num_processes: int, num_threads: int
) -> None:
    """Builds what is missing, by several processes at once."""
    units, state = source.units(), growing.state
    job = pickle.dumps((source, tokenizer, num_threads))
    parts = []
    with process_pool(num_processes) as pool:
        first, done, num_bytes = state['unit'], state['done'], 0
        for last, unit in enumerate(units[first:], first + 1):
            num_bytes += unit.num_bytes
            if num_bytes >= _PART_BYTES or last == len(units):
                folder = growing.folder / 'parts' / f'{first}.{done}-{last}'
                parts.append((
                    folder, last, pool.submit(_build_part, job, folder, first, done, last)))
                first, done, num_bytes = last, 0, 0
        for folder, last, task in parts:
            task.result()
            growing.join(folder, last)
            growing.report()


def _build_part(job: bytes, folder: files.Path, first: int, done: int, last: int) -> None:
    """Builds a part in a process of the pool.

    Args:
      job: (source, tokenizer, threads of this process), pickled, so that what cannot be loaded here
        is an error of this function.
      folder: where its files grow.
      first, done: unit and document to begin at.
      last: unit to end before.
    """
    source, tokenizer, num_threads = pickle.loads(job)
    # TensorFlow would take threads for all processors in every process.
    os.environ.update(CUDA_VISIBLE_DEVICES='', TF_NUM_INTRAOP_THREADS=str(num_threads),
                      TF_NUM_INTEROP_THREADS=str(num_threads + 2))
    _Growing(folder, tokenizer, first, done).read(source, last, num_threads)
