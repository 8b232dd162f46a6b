"""How token stores are built, by one process or several.

A store under construction grows in a folder beside its final place, with a journal that says how
much of its files is valid, so that a killed build resumes where it stopped and gives the same
bytes. One process can read, check and hash about as much text as eight cores can tokenize. With
more cores, several processes build parts of the store, which are then joined in order.

    N: tokens, n: lines
"""

import dataclasses
import hashlib
import itertools
import json
import os
import pickle
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from bert_jax.data.digests import digests, name_of
from bert_jax.data.source import Source, TokenBatch, Unit
from bert_jax.data.store import (
    FORMAT_VERSION,
    MANIFEST,
    TokenStore,
    array_files,
    disk_faults,
    file_sizes,
    locked,
    map_arrays,
    piece_name,
)
from bert_jax.data.text_batches import text_batches
from bert_jax.runtime import files
from bert_jax.runtime.errors import InputError, tell
from bert_jax.runtime.packages import has_tensorflow, loading_tensorflow
from bert_jax.runtime.pool import process_pool

PIECE_BYTES = 512 << 20  # bytes of a file; a multiple of every system's page size
# Raise it when `split_sentences` changes: stores built by older rules are not reused.
_SPLITTER_VERSION = 2
_CORES_A_PROCESS = 8
_MIN_BYTES_A_PROCESS = 1 << 30  # a process takes seconds to start
_PART_BYTES = 256 << 20  # of text in a part, at least, where units are smaller
_WRITTEN_AT_ONCE = 8 << 20  # elements
_JOURNAL = 'journal.json'
_JOURNAL_SECONDS = 10.0
_MAX_16_BIT_VOCAB = 1 << 16


def store_fingerprint(source: Source, tokenizer: Any) -> str:
    """The name of a source's store; it changes with the content, the vocabulary and the rules."""
    return name_of([FORMAT_VERSION, _SPLITTER_VERSION, source.fingerprint(), tokenizer.fingerprint])


def build_store(
    source: Source, tokenizer: Any, cache_dir: str | os.PathLike[str], progress: bool = True,
    num_processes: int = 0,
) -> TokenStore:
    """The token store of a source: opened if it is complete, else built, or its build resumed.

    Args:
      source: where the text comes from.
      tokenizer: has `vocab` (with a length) and `fingerprint`.
      cache_dir: stores are in its folder `stores`.
      progress: whether to report on standard error.
      num_processes: that tokenize; 0: as many as are useful on this machine.

    Raises:
      InputError: unreadable text, no text at all, a damaged store, a full disk.
    """
    fingerprint = store_fingerprint(source, tokenizer)
    final = files.as_path(cache_dir) / 'stores' / fingerprint
    if final.exists():
        return TokenStore.open(final)
    with disk_faults(final.parent):
        final.parent.mkdir(parents=True, exist_ok=True)
        with locked(final.with_suffix('.lock')):
            if not final.exists():  # another process may have built it meanwhile
                building = final.with_suffix('.building')
                _build(source, tokenizer, building, fingerprint, progress, num_processes)
                os.rename(building, final)
    return TokenStore.open(final)


def _build(
    source: Source, tokenizer: Any, path: files.Path, fingerprint: str, progress: bool,
    num_processes: int,
) -> None:
    """Builds the whole store in a folder, from where an interrupted build ended."""
    num_bytes = sum(unit.num_bytes for unit in source.units)
    growing = _GrowingStore(path, tokenizer, total_bytes=num_bytes if progress else None)
    _append_text(growing, source, tokenizer, num_processes)
    if not growing.state.num_documents:
        raise InputError(f"data source '{source.spec}' holds no text")
    growing.add_documents()
    if store_fingerprint(source, tokenizer) != fingerprint:
        shutil.rmtree(path)
        raise InputError(f"data source '{source.spec}' changed while it was read: start again when "
                         'its files are complete')
    shutil.rmtree(path / 'parts', ignore_errors=True)
    manifest = {
        'format_version': FORMAT_VERSION,
        'fingerprint': fingerprint,
        'source': source.spec,
        'source_fingerprint': source.fingerprint(),
        'tokenizer_fingerprint': tokenizer.fingerprint,
        'vocab_size': len(tokenizer.vocab),
        **growing.state.sizes(),
        'files': _described_files(path),
    }
    files.write_whole(path / MANIFEST, json.dumps(manifest, indent=1))
    (path / _JOURNAL).unlink()
    if progress:
        tell(growing.state.summary())


def _described_files(folder: files.Path) -> dict[str, dict[str, Any]]:
    """Size and digest of each file of a store, by name, as they stand in the manifest."""
    paths = sorted(folder.glob('*.bin'))
    described = {}
    for path, digest in zip(paths, digests(paths), strict=True):
        described[path.name] = {'bytes': os.path.getsize(path), 'md5': digest}
    return described


@dataclasses.dataclass
class _State:
    """How much of a growing store is valid, and where in the source it continues.

    Attributes:
      unit: of the source, to continue in.
      done: how many of its documents are in the store.
      piece_bytes: the most bytes of a file.
      dtype: of the tokens.
      num_tokens, num_sentences, num_documents: in the store so far.
      num_duplicates: of these documents, left out of the store's `documents`.
      text_bytes: of text, in these documents.
      seconds: that the build took so far.
    """

    unit: int
    done: int
    piece_bytes: int
    dtype: str
    num_tokens: int = 0
    num_sentences: int = 0
    num_documents: int = 0
    num_duplicates: int = 0
    text_bytes: int = 0
    seconds: float = 0.0

    def resumed(self, journal: dict[str, Any]) -> Self:
        """The state that a journal holds; KeyError, ValueError or TypeError if it is damaged."""
        types = {name: type(value) for name, value in dataclasses.asdict(self).items()}
        return type(self)(**{name: kind(journal[name]) for name, kind in types.items()})

    def sizes(self) -> dict[str, Any]:
        """What of it stands in the manifest."""
        fields = dataclasses.asdict(self)
        del fields['unit']
        del fields['done']
        return fields

    def summary(self) -> str:
        """What a finished store holds, in a line."""
        return (
            f'token store: {self.num_tokens} tokens, {self.num_sentences} sentences, '
            f'{self.num_documents} documents ({self.num_duplicates} duplicates left out) '
            f'from {self.text_bytes / 1e6:.1f} MB in {self.seconds} s')


class _Tokenized(NamedTuple):
    """Documents to append to a store.

    Attributes:
      tokens: of all of them, one after the other.
      sentence_ends: where sentences end, in tokens, counted from the first appended.
      document_ends: where documents end, in sentences, counted from the first appended.
      hashes: uint64, of the tokens of each document.
    """

    tokens: np.ndarray
    sentence_ends: np.ndarray
    document_ends: np.ndarray
    hashes: np.ndarray


def _documents_of(batch: TokenBatch, dtype: str) -> _Tokenized:
    """The documents of a batch, without empty lines (as sentences) and empty documents.

    Args:
      batch: documents, tokenized line by line.
      dtype: of a store's tokens.
    """
    has_tokens = batch.num_tokens > 0
    # Numbers of tokens, and of lines with tokens, before each line and then before each document.
    tokens_before = np.concatenate([[0], np.cumsum(batch.num_tokens, dtype=np.int64)])
    sentences_before = np.concatenate([[0], np.cumsum(has_tokens)])
    first_lines = np.concatenate([[0], np.cumsum(batch.num_lines)])
    token_bounds = tokens_before[first_lines]
    sentence_bounds = sentences_before[first_lines]
    tokens = batch.ids.astype(dtype)
    return _Tokenized(
        tokens=tokens,
        sentence_ends=tokens_before[1:][has_tokens],
        document_ends=sentence_bounds[1:][np.diff(sentence_bounds) > 0],
        hashes=_document_hashes(tokens, token_bounds))


def _document_hashes(tokens: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Hashes, uint64, of the tokens of each document that has some, from their bounds."""
    hashes = []
    for start, end in itertools.pairwise(bounds.tolist()):
        if end > start:
            hashes.append(hashlib.blake2b(tokens[start:end].data, digest_size=8).digest())
    return np.frombuffer(b''.join(hashes), '<u8')


class _GrowingStore:
    """The growing files of a store or part, and a journal of how much of them is valid.

    Attributes:
      folder: where they are.
      state: as in the journal.
    """

    def __init__(
        self, folder: files.Path, tokenizer: Any, unit: int = 0, done: int = 0,
        total_bytes: int | None = None,
    ):
        """Resumes from the folder's journal, or begins at a document of a unit.

        Args:
          folder: see above.
          tokenizer: gives the ids.
          unit, done: where to begin if there is nothing to resume.
          total_bytes: expected bytes of text, for progress reports; None: no reports.
        """
        self.folder = folder
        self._tokenizer = tokenizer
        self._total_bytes = total_bytes
        dtype = '<u2' if len(tokenizer.vocab) < _MAX_16_BIT_VOCAB else '<u4'
        fresh = _State(unit, done, PIECE_BYTES, dtype)
        try:
            journal = json.loads((folder / _JOURNAL).read_text())
            self.state = fresh.resumed(journal)
            self._cut()
        except (OSError, ValueError, KeyError, TypeError):
            # There is no journal, or a power failure cut files short of what it says.
            self.state = fresh
            self._begin()
        self._started = time.monotonic() - self.state.seconds
        self.save()

    def _begin(self) -> None:
        """Makes the files of an empty store, instead of any that are there."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        for name, size in file_sizes(self.state.sizes()).items():
            (self.folder / name).write_bytes(bytes(size))

    def _cut(self) -> None:
        """Cuts files to the journal's sizes; ValueError or OSError if they are too short."""
        sizes = file_sizes(self.state.sizes())
        for name, size in sizes.items():
            if os.path.getsize(self.folder / name) < size:
                raise ValueError(f'{name} is cut short')
            os.truncate(self.folder / name, size)
        for path in self.folder.glob('*.bin'):
            if path.name not in sizes:
                path.unlink()

    def _write(self, array: str, values: np.ndarray, base: int = 0) -> None:
        """Appends `values + base` to an array; `state` tells its size so far."""
        written_files = array_files(self.state.sizes())[array]
        size = sum(written_files.sizes.values())
        for begin in range(0, len(values), _WRITTEN_AT_ONCE):
            block = values[begin : begin + _WRITTEN_AT_ONCE] + base
            size = self._write_bytes(array, size, block.astype(written_files.dtype).tobytes())

    def _write_bytes(self, array: str, size: int, content: bytes) -> int:
        """Appends bytes to the files of an array that has `size` of them; its new size."""
        piece_bytes = self.state.piece_bytes
        rest = memoryview(content)
        while len(rest):
            piece, used = divmod(size, piece_bytes)
            with open(self.folder / piece_name(array, piece), 'ab') as file:
                written = file.write(rest[: piece_bytes - used])
            size += written
            rest = rest[written:]
        return size

    def _append(self, documents: _Tokenized, num_bytes: int) -> None:
        """Appends documents, made of so many bytes of text."""
        state = self.state
        self._write('tokens', documents.tokens)
        self._write('sentence_offsets', documents.sentence_ends, state.num_tokens)
        self._write('document_offsets', documents.document_ends, state.num_sentences)
        self._write('document_hashes', documents.hashes)
        state.num_tokens += len(documents.tokens)
        state.num_sentences += len(documents.sentence_ends)
        state.num_documents += len(documents.document_ends)
        state.num_duplicates = state.num_documents  # so `documents` counts as empty
        state.text_bytes += num_bytes

    def _continue_at(self, unit: int, done: int) -> None:
        self.state.unit = unit
        self.state.done = done

    def save(self, report: bool = False) -> None:
        """Makes the files' present content valid; `report` prints progress if that is wanted."""
        for path in self.folder.glob('*.bin'):
            with open(path, 'rb') as file:
                os.fsync(file.fileno())
        seconds = time.monotonic() - self._started
        self.state.seconds = round(seconds, 2)
        files.write_whole(self.folder / _JOURNAL, json.dumps(dataclasses.asdict(self.state)))
        if report and self._total_bytes is not None:
            tell(_progress(self.state.text_bytes, self._total_bytes, seconds))

    def read(self, source: Source, last: int, num_threads: int) -> None:
        """Tokenizes and appends the documents of the units before `last`."""
        state = self.state
        tokenize_batches = _load_tokenize_batches(source.spec)
        texts = text_batches(source, range(state.unit, last), state.done)
        saved = time.monotonic()
        for batch in tokenize_batches(texts, self._tokenizer, num_threads):
            place = batch.note
            self._append(_documents_of(batch, state.dtype), place.num_bytes)
            self._continue_at(place.unit, place.done)
            if time.monotonic() - saved > _JOURNAL_SECONDS:
                self.save(report=True)
                saved = time.monotonic()
        self._continue_at(last, 0)
        self.save()

    def join(self, folder: files.Path, last: int) -> None:
        """Appends a part that ends before unit `last`, and deletes it."""
        part = _GrowingStore(folder, self._tokenizer)
        arrays = map_arrays(folder, part.state.sizes())
        documents = _Tokenized(
            tokens=arrays['tokens'],
            sentence_ends=arrays['sentence_offsets'][1:],
            document_ends=arrays['document_offsets'][1:],
            hashes=arrays['document_hashes'])
        self._append(documents, part.state.text_bytes)
        self._continue_at(last, 0)
        self.save(report=True)
        shutil.rmtree(folder)

    def add_documents(self) -> None:
        """Writes `documents`: of exact duplicates, only the first."""
        state = self.state
        state.num_duplicates = state.num_documents
        self._cut()  # drops what a build killed here has written
        hashes = map_arrays(self.folder, state.sizes())['document_hashes']
        _, first_of_each = np.unique(hashes, return_index=True)
        self._write('documents', np.sort(first_of_each))
        state.num_duplicates -= len(first_of_each)
        self.save()


def _progress(num_bytes: int, total_bytes: int, seconds: float) -> str:
    """How far a build is and how long it will take, in a line."""
    rate = max(num_bytes, 1) / max(seconds, 1e-3)
    minutes = max(total_bytes - num_bytes, 0) / rate / 60
    share = min(num_bytes / max(total_bytes, 1), 0.99)
    return (
        f'token store: {num_bytes / 1e6:.0f} MB, {rate / 1e6:.1f} MB/s, '
        f'{share:.0%}, {minutes:.1f} min left')


def _load_tokenize_batches(spec: str) -> Callable[..., Iterator[TokenBatch]]:
    """`tokenize_batches` in TensorFlow, where it is installed, else that which needs none."""
    if not has_tensorflow():
        from bert_jax.data.tokenize_plain import tokenize_batches as without_tensorflow

        return without_tensorflow
    with loading_tensorflow(spec):  # nothing else in this process needs it
        from bert_jax.data.tokenize import tokenize_batches
    return tokenize_batches


def _append_text(
    growing: _GrowingStore, source: Source, tokenizer: Any, num_processes: int
) -> None:
    """Appends the text of a source that a store lacks, in so many processes; 0: as is useful."""
    cores = os.cpu_count() or 1
    if sys.platform == 'linux':
        cores = len(os.sched_getaffinity(0))
    if source.takes_all_cores:
        num_processes = 1
    elif not num_processes:
        num_processes = _useful_processes(source, cores)
    num_threads = -(-cores // num_processes)
    if num_processes > 1:
        _build_parts(growing, source, tokenizer, num_processes, num_threads)
    else:
        growing.read(source, len(source.units), num_threads)


def _useful_processes(source: Source, cores: int) -> int:
    """How many processes can share the work of tokenizing a source."""
    num_bytes = sum(unit.num_bytes for unit in source.units)
    most = min(cores // _CORES_A_PROCESS, num_bytes // _MIN_BYTES_A_PROCESS, len(source.units))
    return max(1, most)


class _Part(NamedTuple):
    """What one process builds.

    Attributes:
      folder: where its files grow.
      first, done: unit and document to begin at.
      last: unit to end before.
    """

    folder: files.Path
    first: int
    done: int
    last: int


def _parts(growing: _GrowingStore, units: Sequence[Unit]) -> Iterator[_Part]:
    """The parts of what a store lacks, each with about `_PART_BYTES` of text or more."""
    first = growing.state.unit
    done = growing.state.done
    num_bytes = 0
    for last, unit in enumerate(units[first:], first + 1):
        num_bytes += unit.num_bytes
        if num_bytes >= _PART_BYTES or last == len(units):
            folder = growing.folder / 'parts' / f'{first}.{done}-{last}'
            yield _Part(folder, first, done, last)
            first = last
            done = 0
            num_bytes = 0


def _build_parts(
    growing: _GrowingStore, source: Source, tokenizer: Any, num_processes: int, num_threads: int
) -> None:
    """Builds the missing parts in several processes and joins them in order."""
    job = pickle.dumps((source, tokenizer, num_threads))
    parts = list(_parts(growing, source.units))
    with process_pool(num_processes) as pool:
        tasks = [pool.submit(_build_part, job, part) for part in parts]
        for part, task in zip(parts, tasks, strict=True):
            task.result()
            growing.join(part.folder, part.last)


def _build_part(job: bytes, part: _Part) -> None:
    """Builds a part in a process of the pool.

    Args:
      job: (source, tokenizer, threads of this process), pickled, so that a failure to load them is
        raised by this function.
      part: what to build.
    """
    source, tokenizer, num_threads = pickle.loads(job)
    # Otherwise TensorFlow would start threads for all cores in every process.
    os.environ['CUDA_VISIBLE_DEVICES'] = ''
    os.environ['TF_NUM_INTRAOP_THREADS'] = str(num_threads)
    os.environ['TF_NUM_INTEROP_THREADS'] = str(num_threads + 2)
    growing = _GrowingStore(part.folder, tokenizer, part.first, part.done)
    growing.read(source, part.last, num_threads)
