"""Some units of a source -> their part of a token store, through tf.data and TF-Text.

A part's files grow in a directory of their own, with a journal that says how far they are good, so
a killed build goes on where it was and gives the same bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np
import tensorflow as tf

from bert_jax.data.corpus import Source, Unit
from bert_jax.data.store import JOURNAL, Part, token_dtype
from bert_jax.data.tokenize import FastTokenizer, split_sentences
from bert_jax.runtime import files

_BATCH_BYTES = 1 << 20
_BATCH_DOCUMENTS = 10_000
_JOURNAL_SECONDS = 5.0


class PartBuilder:
    """Builds parts of one store in this process."""

    def __init__(self, source: Source, tokenizer: Any, num_threads: int):
        self._source, self._units = source, source.units()
        self._fast = FastTokenizer(tokenizer)
        self._num_threads = num_threads
        self._dtype = token_dtype(tokenizer)

    def build(self, part: Part, report: Callable[[int], None]) -> dict[str, int]:
        """Builds a part, from where a former build ended.

        Args:
          part: which; its folder holds `tokens.bin`, `sentence_ends.bin`, `document_ends.bin` and
            `document_hashes.bin` afterwards, the ends counted from the part's beginning.
          report: takes the bytes of text that are done.

        Returns:
          How many `tokens`, `sentences`, `documents` and `bytes` of text are in it.

        Raises:
          InputError: unreadable text.
        """
        growing = _Growing(files.as_path(part.folder), part, self._dtype)
        try:
            saved = time.monotonic()
            for batch in self._tokenized_batches(part, growing.state):
                growing.append(*batch)
                report(growing.state['bytes'])
                if time.monotonic() - saved > _JOURNAL_SECONDS:
                    growing.save()
                    saved = time.monotonic()
            growing.state |= {'unit': part.last, 'done': 0}
            growing.save()
        finally:
            growing.close()
        return growing.state

    def _tokenized_batches(
        self, part: Part, state: dict[str, int]
    ) -> Iterator[tuple[np.ndarray, ...]]:
        """The arguments of `_Growing.append`, in order, tokenized in parallel."""
        batches = _text_batches(
            self._source, self._units, range(state['unit'], part.last), state['done']
        )
        end = np.array([], object), True, 0, 0, 0
        failure: list[BaseException] = []

        def read() -> tuple[Any, ...]:
            try:
                return next(batches, end)
            except Exception as error:
                failure.append(error)
                return end

        types = [tf.string, tf.bool, tf.int64, tf.int64, tf.int64]

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
            ids, tokens_per_line = self._fast(lines.flat_values)
            return ids, tokens_per_line, lines.row_lengths(), unit, done, num_bytes

        # Not `Dataset.from_generator`: with Python 3.11 it sets glibc's M_MMAP_THRESHOLD for the
        # whole process to 128 kB, so that every larger buffer, of XLA too, is mapped and faulted in
        # anew.
        data = tf.data.Dataset.from_tensors(0).repeat().map(text).take_while(is_text)
        # AUTOTUNE is slow to find out that all processors should work.
        data = data.map(tokenize, num_parallel_calls=self._num_threads + 1, deterministic=True)
        yield from data.prefetch(2).as_numpy_iterator()
        if failure:
            raise failure[0]


class _Growing:
    """The growing files of a part, and how far they are."""

    def __init__(self, folder: files.Path, part: Part, dtype: np.dtype):
        self._folder, self._dtype = folder, dtype
        # The unit being read and how many of its documents are done, then what is in the files.
        self.state = {
            'unit': part.first, 'done': 0, 'tokens': 0, 'sentences': 0, 'documents': 0, 'bytes': 0,
        }
        fresh = dict(self.state)
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
            self.state = {key: int(json.loads((folder / JOURNAL).read_text())[key])
                          for key in fresh}
            if any(
                not (folder / name).exists() or os.path.getsize(folder / name) < size
                for name, size in self._sizes().items()
            ):  # a machine that lost power may have lost the files' ends
                self.state = fresh
        if self.state == fresh:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        self._files: dict[str, BinaryIO] = {}
        for name, size in self._sizes().items():
            self._files[name] = file = open(folder / name, 'ab')  # noqa: SIM115 (closed by `close`)
            file.truncate(size)

    def _sizes(self) -> dict[str, int]:
        """Bytes that each file must have by the state."""
        state = self.state
        return {
            'tokens.bin': self._dtype.itemsize * state['tokens'],
            'sentence_ends.bin': 8 * state['sentences'],
            'document_ends.bin': 8 * state['documents'],
            'document_hashes.bin': 8 * state['documents'],
        }

    def append(
        self, ids: np.ndarray, tokens_per_line: np.ndarray, lines_per_document: np.ndarray,
        unit: np.ndarray, done: np.ndarray, num_bytes: np.ndarray,
    ) -> None:
        """Adds a batch: ids [N], tokens of each of n lines [n], lines of m documents [m]."""
        state = self.state
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
        self._files['sentence_ends.bin'].write(sentence_ends.astype('<i8').tobytes())
        self._files['document_ends.bin'].write(document_ends.astype('<i8').tobytes())
        self._files['document_hashes.bin'].write(hashes)
        state['tokens'] += len(ids)
        state['sentences'] += len(sentence_ends)
        state['documents'] += len(document_ends)
        state['bytes'] += int(num_bytes)
        state['unit'], state['done'] = int(unit), int(done)

    def save(self) -> None:
        """Makes what is in the files good."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        files.write_whole(self._folder / JOURNAL, json.dumps(self.state))

    def close(self) -> None:
        for file in self._files.values():
            with contextlib.suppress(OSError):  # the first write has reported a full disk
                file.close()


def _text_batches(
    source: Source, units: list[Unit], indices: range, done: int
) -> Iterator[tuple[Any, ...]]:
    """(texts, split, unit, documents of the unit done after it, bytes), about 1 MiB each."""

    def batch() -> tuple[Any, ...]:
        return np.array(texts, object), split, unit_index, done, num_bytes

    for unit_index in indices:
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


def _split_lines(texts: tf.Tensor) -> tf.RaggedTensor:
    """[n] string -> [n, (lines)] string: one sentence a line."""
    return tf.strings.split(texts, '\n')
