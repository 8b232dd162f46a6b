"""Documents -> token store on disk, through tf.data and TF-Text.

Built once for a text, vocabulary and set of options, under a name made of their fingerprints. Files
grow in a `.building` directory beside it; a journal says how far they are good, so a killed build
goes on where it was and gives the same bytes. When whole, the directory is renamed into place.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import itertools
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import tensorflow as tf

from bert_jax.data.corpus import Source, Unit
from bert_jax.data.progress import Progress
from bert_jax.data.token_store import FORMAT_VERSION, MANIFEST, TokenStore
from bert_jax.data.tokenize import FastTokenizer, split_sentences
from bert_jax.errors import InputError

_SPLITTER_VERSION = 1  # raise it when `split_sentences` changes: stores of old rules are not ours
_BATCH_BYTES = 1 << 20
_BATCH_DOCUMENTS = 10_000
_JOURNAL = 'journal.json'
_JOURNAL_SECONDS = 5.0


def build_store(
    source: Source, tokenizer: Any, cache_dir: Path | str, progress: bool = True
) -> TokenStore:
    """The token store of a source: opened if it is there, built or finished if not.

    Args:
      source: where the text comes from.
      tokenizer: has `vocab` (with a length) and `fingerprint`.
      cache_dir: stores are in its folder `stores`.
      progress: whether to report on standard error.

    Raises:
      InputError: unreadable text, no text at all, a damaged store, a full disk.
    """
    fingerprint = _fingerprint(source, tokenizer)
    final = Path(cache_dir).expanduser() / 'stores' / fingerprint
    if final.exists():
        return TokenStore.open(final)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with _lock(final.with_suffix('.lock'), progress):
            if not final.exists():  # another process may have made it meanwhile
                building = final.with_suffix('.building')
                _Build(source, tokenizer, building, fingerprint, progress).run()
                os.rename(building, final)
                _fsync_directory(final.parent)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InputError(
                f'no space left for the token store in {final.parent}: free some (it goes on where '
                'it was), or set --config.data.dir to a larger disk'
            ) from error
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR, errno.EEXIST):
            raise InputError(
                f'{final.parent} cannot be written ({error.strerror}): set --config.data.dir to a '
                'directory that can'
            ) from error
        raise
    return TokenStore.open(final)


def _fingerprint(source: Source, tokenizer: Any) -> str:
    identity = [FORMAT_VERSION, _SPLITTER_VERSION, source.fingerprint(), tokenizer.fingerprint]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]


@contextlib.contextmanager
def _lock(path: Path, progress: bool) -> Iterator[None]:
    """Holds a lock that the system gives back when the process ends, however it ends."""
    with open(path, 'w') as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if progress:
                print(f'waiting for another process that builds {path.stem}', file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fsync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Build:
    """One build: the growing files and how far they are."""

    def __init__(
        self, source: Source, tokenizer: Any, path: Path, fingerprint: str, progress: bool
    ):
        self._source = source
        self._tokenizer = tokenizer
        self._path = path
        self._dtype = np.dtype('<u2' if len(tokenizer.vocab) < 65_536 else '<u4')
        self._widths = {
            'tokens.bin': self._dtype.itemsize, 'sentence_offsets.bin': 8,
            'document_offsets.bin': 8, 'document_hashes.bin': 8,
        }
        self._files: dict[str, BinaryIO] = {}
        # How far the build is: the unit being read, how many of its documents are done, how many
        # tokens, sentences and documents are in the files, bytes of text, seconds of work.
        self._state: dict[str, Any] = {
            'unit': 0, 'done': 0, 'tokens': 0, 'sentences': 0, 'documents': 0, 'bytes': 0,
            'seconds': 0.0,
        }
        self._fingerprint = fingerprint
        self._source_fingerprint = source.fingerprint()
        self._progress = Progress(progress, sum(unit.num_bytes for unit in source.units()))

    def run(self) -> None:
        """Builds everything into the directory, from where a former build ended."""
        self._resume()
        try:
            started = time.monotonic() - self._state['seconds']
            saved = time.monotonic()
            for batch in _tokenized_batches(self._source, self._tokenizer, self._state):
                self._append(*batch)
                self._state['seconds'] = time.monotonic() - started
                self._progress.show(self._state)
                if time.monotonic() - saved > _JOURNAL_SECONDS:
                    self._save_journal()
                    saved = time.monotonic()
            self._save_journal()
        finally:
            for file in self._files.values():
                with contextlib.suppress(OSError):  # a full disk was reported by the first write
                    file.close()
        self._finish()

    def _sizes(self) -> dict[str, int]:
        """Bytes each file must have by the state."""
        s = self._state
        counts = (s['tokens'], s['sentences'] + 1, s['documents'] + 1, s['documents'])
        return {
            name: count * width
            for (name, width), count in zip(self._widths.items(), counts, strict=True)
        }

    def _resume(self) -> None:
        journal = self._path / _JOURNAL
        with contextlib.suppress(FileNotFoundError, ValueError):
            fresh, self._state = self._state, json.loads(journal.read_text())
            if any(
                not (self._path / name).exists() or (self._path / name).stat().st_size < size
                for name, size in self._sizes().items()
            ):  # a machine that lost power may have lost the files' ends
                self._state = fresh
        if not self._state['documents']:
            shutil.rmtree(self._path, ignore_errors=True)
            self._path.mkdir()
        for name, size in self._sizes().items():
            self._files[name] = file = open(self._path / name, 'ab')  # noqa: SIM115 (closed by run)
            file.truncate(size)  # a new file of offsets gets its first 0 by this

    def _append(
        self, ids: np.ndarray, tokens_per_line: np.ndarray, lines_per_document: np.ndarray,
        unit: np.ndarray, done: np.ndarray, num_bytes: np.ndarray,
    ) -> None:
        """Adds a batch: ids [N], tokens of each of n lines [n], lines of m documents [m]."""
        state = self._state
        # Counts of tokens and of lines that have any, before each line; then at document bounds.
        tokens_before = np.concatenate([[0], np.cumsum(tokens_per_line, dtype=np.int64)])
        lines_before = np.concatenate([[0], np.cumsum(tokens_per_line > 0)])
        bounds = np.concatenate([[0], np.cumsum(lines_per_document)])
        kept = np.diff(lines_before[bounds]) > 0
        sentence_ends = tokens_before[1:][tokens_per_line > 0] + state['tokens']
        document_ends = lines_before[bounds][1:][kept] + state['sentences']
        tokens = ids.astype(self._dtype).tobytes()
        token_bounds = (tokens_before[bounds] * self._dtype.itemsize).tolist()
        hashes = b''.join(
            hashlib.blake2b(tokens[start:end], digest_size=8).digest()
            for start, end in itertools.pairwise(token_bounds) if end > start
        )
        self._files['tokens.bin'].write(tokens)
        self._files['sentence_offsets.bin'].write(sentence_ends.astype('<i8').tobytes())
        self._files['document_offsets.bin'].write(document_ends.astype('<i8').tobytes())
        self._files['document_hashes.bin'].write(hashes)
        state['tokens'] += len(ids)
        state['sentences'] += len(sentence_ends)
        state['documents'] += len(document_ends)
        state['bytes'] += int(num_bytes)
        state['unit'], state['done'] = int(unit), int(done)

    def _save_journal(self) -> None:
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        _write_whole(self._path / _JOURNAL, self._state)

    def _finish(self) -> None:
        state = self._state
        if not state['documents']:
            raise InputError(f"data source '{self._source.spec}' holds no text")
        if self._source.fingerprint() != self._source_fingerprint:
            shutil.rmtree(self._path)
            raise InputError(
                f"data source '{self._source.spec}' changed while it was read: start again when "
                'its files are complete'
            )
        hashes = np.fromfile(self._path / 'document_hashes.bin', '<u8')
        documents = np.sort(np.unique(hashes, return_index=True)[1])
        with open(self._path / 'documents.npy', 'wb') as file:
            np.save(file, documents.astype('<i8'))
            file.flush()
            os.fsync(file.fileno())
        sizes = self._sizes()
        sizes['documents.npy'] = (self._path / 'documents.npy').stat().st_size
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
            'num_duplicates': len(hashes) - len(documents),
            'text_bytes': state['bytes'],
            'seconds': round(state['seconds'], 2),
            'megabytes_per_second': round(state['bytes'] / 1e6 / max(state['seconds'], 1e-3), 2),
            'files': sizes,
        }
        _write_whole(self._path / MANIFEST, manifest)
        (self._path / _JOURNAL).unlink()
        _fsync_directory(self._path)
        self._progress.end(manifest)


def _write_whole(path: Path, value: Any) -> None:
    """Writes a JSON file such that it is never seen half-written."""
    beside = path.with_suffix('.tmp')
    with open(beside, 'w') as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def _text_batches(source: Source, first_unit: int, done: int) -> Iterator[tuple[Any, ...]]:
    """(texts, split, unit, documents of the unit done after it, bytes), about 1 MiB each."""

    def batch() -> tuple[Any, ...]:
        return np.array(texts, object), split, unit_index, done, num_bytes

    units: list[Unit] = source.units()
    for unit_index in range(first_unit, len(units)):
        texts: list[bytes] = []
        num_bytes, split = 0, True
        for document in itertools.islice(source.read(units[unit_index]), done, None):
            if texts and (
                num_bytes >= _BATCH_BYTES or len(texts) >= _BATCH_DOCUMENTS
                or document.split != split
            ):
                yield batch()
                texts, num_bytes = [], 0
            texts.append(document.text)
            split = document.split
            num_bytes += len(document.text)
            done += 1
        if texts:
            yield batch()
        done = 0


def _tokenized_batches(
    source: Source, tokenizer: Any, state: dict[str, Any]
) -> Iterator[tuple[np.ndarray, ...]]:
    """The arguments of `_Build._append`, in order, tokenized in parallel."""
    batches = _text_batches(source, state['unit'], state['done'])
    end = np.array([], object), True, 0, 0, 0
    failure: list[BaseException] = []

    def read() -> tuple[Any, ...]:
        try:
            return next(batches, end)
        except Exception as error:
            failure.append(error)
            return end

    types = [tf.string, tf.bool, tf.int64, tf.int64, tf.int64]
    fast = FastTokenizer(tokenizer)

    # Rewriting these functions with AutoGraph would take a second, and change nothing.
    @tf.autograph.experimental.do_not_convert
    def text(_):  # type: ignore[no-untyped-def]
        texts, split, unit, done, num_bytes = tf.numpy_function(read, [], types)
        return tf.ensure_shape(texts, [None]), tf.ensure_shape(split, []), unit, done, num_bytes

    @tf.autograph.experimental.do_not_convert
    def is_text(texts, *_):  # type: ignore[no-untyped-def]
        return tf.size(texts) > 0

    @tf.autograph.experimental.do_not_convert
    def tokenize(texts, split, unit, done, num_bytes):  # type: ignore[no-untyped-def]
        lines = tf.cond(split, lambda: split_sentences(texts), lambda: _split_lines(texts))
        ids, tokens_per_line = fast(lines.flat_values)
        return ids, tokens_per_line, lines.row_lengths(), unit, done, num_bytes

    # Not `Dataset.from_generator`: with Python 3.11 it sets glibc's M_MMAP_THRESHOLD for the whole
    # process to 128 kB, so that every larger buffer, of XLA too, is mapped and faulted in anew.
    data = tf.data.Dataset.from_tensors(0).repeat().map(text).take_while(is_text)
    # AUTOTUNE is slow to find out that all processors should work.
    num_calls = (os.cpu_count() or 1) + 1
    data = data.map(tokenize, num_parallel_calls=num_calls, deterministic=True).prefetch(2)
    yield from data.as_numpy_iterator()
    if failure:
        raise failure[0]


def _split_lines(texts: tf.Tensor) -> tf.RaggedTensor:
    """[n] string -> [n, (lines)] string: one sentence a line."""
    return tf.strings.split(texts, '\n')
