"""Building a token store, by this process or by several.

One process reads, checks and hashes about as much text as eight processors tokenize; more
processors than that need more processes.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import pickle
import shutil
import sys
import time
from collections.abc import Generator
from concurrent import futures
from typing import Any

import numpy as np

from bert_jax.data import store
from bert_jax.data.corpus import Source
from bert_jax.data.processes import process_pool
from bert_jax.data.store import (
    FORMAT_VERSION,
    JOURNAL,
    MANIFEST,
    Part,
    PieceWriter,
    TokenStore,
    digests,
    disk_faults,
    fsync_folder,
    locked,
    num_bytes_of,
    piece_names,
    token_dtype,
)
from bert_jax.runtime import files
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.process import loading_tensorflow

_CORES_A_PROCESS = 8
_MIN_BYTES_A_PROCESS = 1 << 30  # a process takes seconds to start


def num_cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == 'linux' else os.cpu_count() or 1


def choose_num_processes(num_bytes: int, num_parts: int) -> int:
    """The number of processes that is worth their start for so much text."""
    worth = num_bytes // _MIN_BYTES_A_PROCESS
    return max(1, min(num_cores() // _CORES_A_PROCESS, worth, num_parts))


@functools.lru_cache(maxsize=1)
def _builder(job: bytes) -> Any:
    """The `PartBuilder` of a process of the pool."""
    source, tokenizer, num_threads = pickle.loads(job)
    # TensorFlow would take threads for all processors in every process.
    os.environ.update(CUDA_VISIBLE_DEVICES='', TF_NUM_INTRAOP_THREADS=str(num_threads),
                      TF_NUM_INTEROP_THREADS=str(num_threads + 2))
    with loading_tensorflow(source.spec):
        from bert_jax.data.store_worker import PartBuilder

    return PartBuilder(source, tokenizer, num_threads)


def build_part(job: bytes, part: Part) -> dict[str, int]:
    """Runs `PartBuilder.build` in a process of the pool.

    Args:
      job: (source, tokenizer, threads of this process), pickled: the same for all parts.
      part: to build.

    Raises:
      InputError, OSError: see there.
    """
    return _builder(job).build(part, lambda num_bytes: None)


class Progress:
    """A line on standard error: how much of the text is done, how fast, how long yet."""

    def __init__(self, enabled: bool, total_bytes: int):
        self._enabled = enabled
        self._total = total_bytes  # 0 where unknown
        self._terminal = sys.stderr.isatty()
        self._shown = time.monotonic()

    def show(self, state: dict[str, Any]) -> None:
        """Reports now and then: often on a terminal, every ten seconds in a log."""
        now = time.monotonic()
        if not self._enabled or now - self._shown < (0.5 if self._terminal else 10):
            return
        self._shown = now
        rate = state['bytes'] / max(state['seconds'], 1e-3)
        line = f"token store: {state['bytes'] / 1e6:.0f} MB, {rate / 1e6:.1f} MB/s"
        if self._total:
            share = min(state['bytes'] / self._total, 0.99)
            left = max(self._total - state['bytes'], 0) / max(rate, 1)
            line = (
                f'token store: {share:.0%} of {self._total / 1e6:.0f} MB, {rate / 1e6:.1f} MB/s, '
                f'{left / 60:.0f} min {left % 60:.0f} s left'
            )
        print(f'\r{line}\033[K' if self._terminal else line, file=sys.stderr, flush=True,
              end='' if self._terminal else '\n')

    def end(self, manifest: dict[str, Any]) -> None:
        """A line about what was built."""
        if self._enabled:
            print(
                ('\r\033[K' if self._terminal else '')
                + f"token store: {manifest['num_tokens']} tokens, {manifest['num_sentences']} "
                f"sentences, {manifest['num_documents']} documents "
                f"({manifest['num_duplicates']} duplicates left out) from "
                f"{manifest['text_bytes'] / 1e6:.1f} MB in {manifest['seconds']} s",
                file=sys.stderr, flush=True,
            )


_SPLITTER_VERSION = 1  # raise it when `split_sentences` changes: stores of old rules are not ours
_PART_BYTES = 256 << 20  # of text at least, where units are smaller
_JOIN_BYTES = 64 << 20
_LOOK_SECONDS = 0.5


def store_fingerprint(source: Source, tokenizer: Any) -> str:
    """The name of a source's store: of its content, the vocabulary and the rules."""
    identity = [FORMAT_VERSION, _SPLITTER_VERSION, source.fingerprint(), tokenizer.fingerprint]
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
    if final.exists():
        return TokenStore.open(final)
    with disk_faults('the token store', final.parent, field):
        final.parent.mkdir(parents=True, exist_ok=True)
        lock = final.with_suffix('.lock')
        with locked(lock, f'that builds {final.name}' if progress else ''):
            if not final.exists():  # another process may have made it meanwhile
                building = final.with_suffix('.building')
                build = _Build(source, tokenizer, building, fingerprint, progress)
                build.run(num_processes)
                os.rename(building, final)
                fsync_folder(final.parent)
    return TokenStore.open(final)


class _Build:
    """One build: the growing files and how far they are."""

    def __init__(
        self, source: Source, tokenizer: Any, path: files.Path, fingerprint: str, progress: bool
    ):
        self._source, self._tokenizer, self._path = source, tokenizer, path
        self._dtype = token_dtype(tokenizer)
        self._units = source.units()
        # How far the build is: units that are joined, how many tokens, sentences and documents are
        # in the files, bytes of text, seconds of work.
        self._state: dict[str, Any] = {
            'unit': 0, 'tokens': 0, 'sentences': 0, 'documents': 0, 'bytes': 0, 'seconds': 0.0,
        }
        self._writers: dict[str, PieceWriter] = {}
        self._fingerprint = fingerprint
        self._source_fingerprint = source.fingerprint()
        self._progress = Progress(progress, sum(unit.num_bytes for unit in self._units))
        self._in_parts: dict[Part, int] = {}  # bytes of text, of parts that are not joined yet

    def run(self, num_processes: int) -> None:
        """Builds everything into the directory, from where a former build ended."""
        self._resume()
        try:
            self._started = time.monotonic() - self._state['seconds']
            parts = self._parts()
            # A generator that an exception leaves behind would end its processes some time.
            with contextlib.closing(self._built(parts, num_processes)) as built:
                for part, counts in zip(parts, built):
                    self._join(part, counts)
            documents = self._documents()
        finally:
            for writer in self._writers.values():
                writer.close()
        self._finish(documents)

    def _parts(self) -> list[Part]:
        """The remaining units, in parts that are large enough to be worth their start."""
        parts, first, num_bytes = [], self._state['unit'], 0
        for i in range(first, len(self._units)):
            num_bytes += self._units[i].num_bytes
            if num_bytes >= _PART_BYTES or i + 1 == len(self._units):
                parts.append(Part(first, i + 1, str(self._path / f'units-{first}-{i + 1}')))
                first, num_bytes = i + 1, 0
        return parts

    def _built(
        self, parts: list[Part], num_processes: int
    ) -> Generator[dict[str, int], None, None]:
        """The counts of each part, in order."""
        if not parts:
            return
        num_bytes = sum(unit.num_bytes for unit in self._units[parts[0].first:])
        if self._source.takes_all_cores:
            num_processes = 1
        num_processes = (
            num_processes or choose_num_processes(num_bytes, len(parts)))
        num_threads = -(-num_cores() // num_processes)
        if num_processes > 1:
            job = pickle.dumps((self._source, self._tokenizer, num_threads))
            with process_pool(num_processes) as pool:
                waiting = {part: pool.submit(build_part, job, part) for part in parts}
                for part in parts:
                    while not futures.wait([waiting[part]], timeout=_LOOK_SECONDS).done:
                        for other in waiting:
                            self._report(other, num_bytes_of(other))
                    yield waiting.pop(part).result()
            return
        with loading_tensorflow(self._source.spec):  # nobody else here needs it
            from bert_jax.data.store_worker import PartBuilder

        builder = PartBuilder(self._source, self._tokenizer, num_threads)
        for part in parts:
            yield builder.build(part, functools.partial(self._report, part))

    def _report(self, part: Part, num_bytes: int) -> None:
        self._in_parts[part] = num_bytes
        self._state['seconds'] = time.monotonic() - self._started
        done = self._state['bytes'] + sum(self._in_parts.values())
        self._progress.show({**self._state, 'bytes': done})

    def _sizes(self) -> dict[str, int]:
        """Bytes of each array that grows, by the state."""
        s = self._state
        return {
            'tokens': self._dtype.itemsize * s['tokens'],
            'sentence_offsets': 8 * (s['sentences'] + 1),
            'document_offsets': 8 * (s['documents'] + 1),
            'document_hashes': 8 * s['documents'],
        }

    def _resume(self) -> None:
        fresh = dict(self._state)
        try:
            state = json.loads((self._path / JOURNAL).read_text())
            self._state = {key: type(fresh[key])(state[key]) for key in fresh}
            self._open()
        except (OSError, ValueError, KeyError, TypeError):
            # No journal, or a machine that lost power lost what it tells of. Parts are good still.
            self._state = fresh
            self._path.mkdir(exist_ok=True)
            for path in self._path.glob('*.bin'):
                path.unlink()
            self._open()
            for name in ('sentence_offsets', 'document_offsets'):
                self._writers[name].write(bytes(8))

    def _open(self) -> None:
        fresh = self._state['unit'] == 0
        for name, size in self._sizes().items():
            self._writers[name] = PieceWriter(self._path, name, 0 if fresh else size)

    def _join(self, part: Part, counts: dict[str, int]) -> None:
        """Adds a part's files to the store's, and deletes them."""
        folder, state, writers = files.as_path(part.folder), self._state, self._writers
        for name, array, dtype, base in (
            ('tokens.bin', 'tokens', self._dtype, 0),
            ('sentence_ends.bin', 'sentence_offsets', np.dtype('<i8'), state['tokens']),
            ('document_ends.bin', 'document_offsets', np.dtype('<i8'), state['sentences']),
            ('document_hashes.bin', 'document_hashes', np.dtype('<u8'), 0),
        ):
            with open(folder / name, 'rb') as file:
                while len(values := np.fromfile(file, dtype, _JOIN_BYTES // dtype.itemsize)):
                    writers[array].write((values + base if base else values).data)
        self._in_parts.pop(part, None)
        state['unit'] = part.last
        for key in ('tokens', 'sentences', 'documents', 'bytes'):
            state[key] += counts[key]
        state['seconds'] = time.monotonic() - self._started
        for writer in writers.values():
            writer.sync()
        files.write_whole(self._path / JOURNAL, json.dumps(state))
        shutil.rmtree(folder)

    def _documents(self) -> np.ndarray:
        """Indices of the documents without exact duplicates, written as an array of their own."""
        if not self._state['documents']:
            raise InputError(f"data source '{self._source.spec}' holds no text")
        for writer in self._writers.values():
            writer.sync()
        names = piece_names(
            'document_hashes', 8 * self._state['documents'], store.PIECE_BYTES)
        hashes = np.concatenate([np.fromfile(self._path / name, '<u8') for name in names])
        documents = np.sort(np.unique(hashes, return_index=True)[1]).astype('<i8')
        self._writers['documents'] = PieceWriter(self._path, 'documents', 0)
        self._writers['documents'].write(documents.data)
        return documents

    def _finish(self, documents: np.ndarray) -> None:
        state = self._state
        if self._source.fingerprint() != self._source_fingerprint:
            shutil.rmtree(self._path)
            raise InputError(
                f"data source '{self._source.spec}' changed while it was read: start again when "
                'its files are complete'
            )
        for left in self._path.glob('units-*'):  # joined, but not deleted any more
            shutil.rmtree(left)
        for left in self._path.glob('.*.tmp'):  # by a build that was killed while it wrote
            left.unlink()
        paths = sorted(self._path.glob('*.bin'))
        manifest = {
            'format_version': FORMAT_VERSION,
            'fingerprint': self._fingerprint,
            'source': self._source.spec,
            'source_fingerprint': self._source_fingerprint,
            'tokenizer_fingerprint': self._tokenizer.fingerprint,
            'vocab_size': len(self._tokenizer.vocab),
            'dtype': self._dtype.str,
            'num_tokens': state['tokens'],
            'num_sentences': state['sentences'],
            'num_documents': state['documents'],
            'num_duplicates': state['documents'] - len(documents),
            'text_bytes': state['bytes'],
            'seconds': round(state['seconds'], 2),
            'megabytes_per_second': round(state['bytes'] / 1e6 / max(state['seconds'], 1e-3), 2),
            'piece_bytes': store.PIECE_BYTES,
            'files': {
                path.name: {'bytes': os.path.getsize(path), 'md5': digest}
                for path, digest in zip(paths, digests(paths), strict=True)
            },
        }
        files.write_whole(self._path / MANIFEST, json.dumps(manifest, indent=1))
        (self._path / JOURNAL).unlink()
        fsync_folder(self._path)
        self._progress.end(manifest)
