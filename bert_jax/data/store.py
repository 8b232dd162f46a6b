"""Token stores: their files, mapped into memory, and how they are built, by one process or several.

A store under construction grows in a folder beside its final place, with a journal that says how
much of its files is valid, so that a killed build resumes where it stopped and gives the same
bytes. One process can read, check and hash about as much text as eight cores can tokenize. With
more cores, several processes build parts of the store, which are then joined in order.
"""

import base64
import contextlib
import ctypes
import dataclasses
import fcntl
import hashlib
import itertools
import json
import mmap
import os
import pickle
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any, NamedTuple, Self

import numpy as np

from bert_jax.runtime import files
from bert_jax.runtime.errors import InputError, tell
from bert_jax.runtime.packages import has_tensorflow, loading_tensorflow
from bert_jax.runtime.pool import process_pool


@contextlib.contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """Holds a lock on a file (made if missing); if the process dies, the lock is released too."""
    with open(path, 'w') as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell(f'waiting for another process, which has {path}')
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def disk_faults(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Makes OSErrors that name no file, as of a full disk, name the folder that the block fills."""
    try:
        yield
    except OSError as error:
        if error.errno and not error.filename:
            error.filename = os.fspath(folder)
        raise


_REMEMBERED = '~/.cache/bert_jax/digests.json'
_MAX_REMEMBERED = 100_000  # files, the ones hashed last
# File times are coarse: a file could change twice within one tick.
_SETTLED_SECONDS = 2.0
_BUCKET_THREADS = 32


def digests(paths: Sequence[str | os.PathLike[str]]) -> list[str]:
    """The MD5 of each file, in hexadecimal digits; hashed only if the file changed since last time.

    Args:
      paths: all on disk, or all in buckets, whose listings have digests (see `object_digest`).

    Raises:
      OSError: a file is missing or cannot be read.
    """
    names = [os.fspath(path) for path in paths]
    if names and files.in_bucket(names[0]):
        with futures.ThreadPoolExecutor(_BUCKET_THREADS) as pool:
            return list(pool.map(lambda name: object_digest(files.find(name)[0]), names))
    place = files.as_path(_REMEMBERED)
    known: dict[str, str] = {}
    with contextlib.suppress(OSError, ValueError, TypeError):  # missing or damaged
        known = dict(json.loads(place.read_text()))
    new: dict[str, str] = {}

    def state_of(name: str) -> str:
        """A file's real path, with what changes when its content does."""
        stat = os.stat(name)
        return f'{os.path.realpath(name)} {stat.st_size} {stat.st_mtime_ns} {stat.st_ino}'

    def digest(name: str) -> str:
        state = state_of(name)
        if state in known:
            return known[state]
        with open(name, 'rb', buffering=0) as file:
            content = hashlib.file_digest(
                file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        # The digest of a file that changed meanwhile must not be remembered.
        if state_of(name) == state and time.time() - os.stat(name).st_mtime > _SETTLED_SECONDS:
            new[state] = content
        return content

    with futures.ThreadPoolExecutor() as pool:
        result = list(pool.map(digest, names))
    if new:
        with contextlib.suppress(OSError):  # an unwritable home costs time, not the run
            place.parent.mkdir(parents=True, exist_ok=True)
            files.write_whole(
                place, json.dumps(dict([*known.items(), *new.items()][-_MAX_REMEMBERED:])))
    return result


def object_digest(found: files.Found) -> str:
    """The digest of an object in a bucket, from its listing: MD5, or else CRC32C and size."""
    if len(found.checksum) == 24:
        return base64.b64decode(found.checksum).hex()
    # An object that was uploaded in pieces has no MD5.
    return f'crc32c {found.checksum} of {found.size} bytes'


def name_of(identity: Any) -> str:
    """16 hexadecimal digits that change with a value that JSON can hold."""
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]


class Document(NamedTuple):
    """A document's text."""

    text: bytes  # UTF-8; paragraphs or sentences separated by newlines
    split: bool  # True: paragraphs, to be split into sentences; False: one sentence a line


class Unit(NamedTuple):
    """A file or shard of a source, which can be read by itself."""

    name: str
    num_bytes: int  # of text, estimated for compressed files; 0 where unknown


@dataclasses.dataclass
class Source:
    """Documents in a fixed order, in units.

    Attributes:
      spec: the user's name for it.
      units: its units, in order.
      read: gives the documents of a unit, always the same in the same order; raises an InputError
        that names the file and the place of unreadable content.
      fingerprint: gives a digest of the content, independent of its path.
      outline: a summary, made without reading the text, which hosts compare.
      takes_all_cores: whether reading a unit keeps all cores busy, with processes of its own.
    """

    spec: str
    units: Sequence[Unit]
    read: Callable[[Unit], Iterator[Document]]
    fingerprint: Callable[[], str]
    outline: str = ''
    takes_all_cores: bool = False


PIECE_BYTES = 512 << 20  # bytes of a file; a multiple of every system's page size

_MAP_FIXED = 0x10  # Linux and macOS; Python's mmap module has no such argument
_MAP_FAILED = ctypes.c_void_p(-1).value
FORMAT_VERSION = 2
MANIFEST = 'manifest.json'


@dataclasses.dataclass(frozen=True)
class TokenStore:
    """Token ids with the bounds of sentences and documents. No sentence or document is empty.

    Attributes:
      path: the store's directory.
      manifest: what it was built from and how much is in it.
      tokens: uint16 or uint32 [T], all documents one after the other, without special tokens.
      sentence_offsets: int64 [S + 1]; sentence s is tokens[offsets[s] : offsets[s + 1]].
      document_offsets: int64 [D + 1]; document d is the sentences offsets[d] to offsets[d + 1] - 1.
      document_hashes: uint64 [D], of the token ids.
      documents: int64 [K], ascending indices of the documents to use, without exact duplicates.
    """

    path: files.Path
    manifest: dict[str, Any]
    tokens: np.ndarray
    sentence_offsets: np.ndarray
    document_offsets: np.ndarray
    document_hashes: np.ndarray
    documents: np.ndarray

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Maps a finished store after comparing its files' sizes and digests with its manifest.

        Raises:
          InputError: there is none, or a file differs from the manifest.
        """
        folder = files.as_path(path)
        manifest = read_manifest(folder)
        entries = manifest['files']
        for name, entry in entries.items():
            file = folder / name
            if not file.exists() or os.path.getsize(file) != entry['bytes']:
                raise InputError(f"{file} is missing or has not the {entry['bytes']} bytes of the "
                                 f'manifest: {remedy(folder)}')
        for name, digest in zip(entries, digests([folder / name for name in entries]), strict=True):
            if digest != entries[name]['md5']:
                raise InputError(damaged(folder, name))
        return cls(folder, manifest, **map_arrays(folder, manifest))

    @property
    def fingerprint(self) -> str:
        """Identity of the store: text, vocabulary and options."""
        return self.manifest['fingerprint']

    def split_held_out(self, fraction: float, min_documents: int = 2) -> tuple[np.ndarray, ...]:
        """Splits the documents by their hashes: by their content, not their place.

        A document's side depends on its own text only (but for `min_documents`), so a corpus can
        grow without any document changing sides.

        Args:
          fraction: share of the documents to hold out; 0 holds out none.
          min_documents: at least so many on each side.

        Returns:
          (training, held-out) document indices, int64, ascending.

        Raises:
          InputError: too few documents.
        """
        if fraction <= 0:
            return self.documents, self.documents[:0]
        if len(self.documents) < 2 * min_documents:
            raise InputError(
                f"data source '{self.manifest['source']}' has {len(self.documents)} different "
                f'documents, too few to hold some out ({2 * min_documents} are needed): separate '
                'documents by a blank line, add text, or set --config.data.eval_source')
        hashes = self.document_hashes[self.documents]
        held_out = hashes < np.uint64(min(int(fraction * 2.0**64), 2**64 - 1))
        by_hash = np.argsort(hashes)
        held_out[by_hash[:min_documents]] = True
        held_out[by_hash[len(by_hash) - min_documents:]] = False
        return self.documents[~held_out], self.documents[held_out]


def array_files(manifest: dict[str, Any]) -> dict[str, tuple[str, dict[str, int]]]:
    """(dtype, bytes by file) of each array of a store: at least one file, which may be empty."""
    documents, piece_bytes = manifest['num_documents'], manifest['piece_bytes']
    result = {}
    for array, dtype, count in (
        ('tokens', manifest['dtype'], manifest['num_tokens']),
        ('sentence_offsets', '<i8', manifest['num_sentences'] + 1),
        ('document_offsets', '<i8', documents + 1),
        ('document_hashes', '<u8', documents),
        ('documents', '<i8', documents - manifest['num_duplicates']),
    ):
        num_bytes = count * np.dtype(dtype).itemsize
        result[array] = dtype, {f'{array}-{i:05}.bin': min(piece_bytes, num_bytes - i * piece_bytes)
                                for i in range(max(1, -(-num_bytes // piece_bytes)))}
    return result


def file_sizes(manifest: dict[str, Any]) -> dict[str, int]:
    """Bytes of each file of a store."""
    return {name: size for _, pieces in array_files(manifest).values()
            for name, size in pieces.items()}


def map_arrays(folder: files.Path, manifest: dict[str, Any]) -> dict[str, np.ndarray]:
    """The arrays of a store by name, each a read-only view of its files.

    Raises:
      OSError: a file cannot be opened or mapped.
    """
    return {array: _map_files(folder, pieces, dtype)
            for array, (dtype, pieces) in array_files(manifest).items()}


def _map_files(folder: files.Path, sizes: dict[str, int], dtype: str) -> np.ndarray:
    """Maps files one after another as one array.

    Args:
      folder: where they are.
      sizes: bytes by name; all but the last are a multiple of the system's page size.
      dtype: of the array.
    """
    total = sum(sizes.values())
    if not total:
        return np.zeros(0, dtype)
    # Reserves address space and maps the files over it; it is unmapped with the array.
    space = mmap.mmap(-1, total, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ)
    array = np.frombuffer(space, dtype)
    call = ctypes.CDLL(None, use_errno=True).mmap
    call.restype = ctypes.c_void_p
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
    address = array.ctypes.data
    for name, size in sizes.items():
        with open(folder / name, 'rb') as file:
            flags = mmap.MAP_SHARED | _MAP_FIXED
            if call(address, size, mmap.PROT_READ, flags, file.fileno(), 0) == _MAP_FAILED:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), file.name)
        address += size
    return array


def read_manifest(path: files.Path) -> dict[str, Any]:
    """The manifest of a finished store, on a disk or in a bucket.

    Raises:
      InputError: there is none, or it is damaged or of another version.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        version = manifest['format_version']
        if version == FORMAT_VERSION and file_sizes(manifest) != {
                name: entry['bytes'] for name, entry in manifest['files'].items()}:
            raise ValueError('its files are not those of its arrays')
    except FileNotFoundError:
        raise InputError(
            f'{path} is not a finished token store (no {MANIFEST}): {remedy(path)}') from None
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError,
            RecursionError) as error:
        raise InputError(f'{path / MANIFEST} is damaged ({error}): {remedy(path)}') from None
    if version != FORMAT_VERSION:
        raise InputError(f'{path} has format version {version}, this program reads '
                         f'{FORMAT_VERSION}: {remedy(path)}')
    return manifest


def damaged(path: files.Path, name: str) -> str:
    """The message for a file whose content is not what was written."""
    return f'{path / name} is damaged (its content is not that of the manifest): {remedy(path)}'


def remedy(path: files.Path) -> str:
    """What to do about a damaged store, for messages."""
    return f'delete {path} and it is built again'


# Raise it when `split_sentences` changes: stores built by older rules are not reused.
_SPLITTER_VERSION = 2
_CORES_A_PROCESS = 8
_MIN_BYTES_A_PROCESS = 1 << 30  # a process takes seconds to start
_PART_BYTES = 256 << 20  # of text in a part, at least, where units are smaller
_BATCH_BYTES = 1 << 20
_BATCH_DOCUMENTS = 10_000
_WRITTEN_AT_ONCE = 8 << 20  # elements
_JOURNAL = 'journal.json'
_JOURNAL_SECONDS = 10.0


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
    if not final.exists():
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
    cores = len(os.sched_getaffinity(0)) if sys.platform == 'linux' else os.cpu_count() or 1
    wanted = min(cores // _CORES_A_PROCESS, num_bytes // _MIN_BYTES_A_PROCESS, len(source.units))
    num_processes = 1 if source.takes_all_cores else num_processes or max(1, wanted)
    num_threads = -(-cores // num_processes)
    growing = _Growing(path, tokenizer, total_bytes=num_bytes if progress else None)
    if num_processes > 1:
        _build_parts(growing, source, tokenizer, num_processes, num_threads)
    else:
        growing.read(source, len(source.units), num_threads)
    state = growing.state
    if not state['num_documents']:
        raise InputError(f"data source '{source.spec}' holds no text")
    growing.add_documents()
    if store_fingerprint(source, tokenizer) != fingerprint:
        shutil.rmtree(path)
        raise InputError(f"data source '{source.spec}' changed while it was read: start again when "
                         'its files are complete')
    shutil.rmtree(path / 'parts', ignore_errors=True)
    paths = sorted(path.glob('*.bin'))
    manifest = {
        'format_version': FORMAT_VERSION,
        'fingerprint': fingerprint,
        'source': source.spec,
        'source_fingerprint': source.fingerprint(),
        'tokenizer_fingerprint': tokenizer.fingerprint,
        'vocab_size': len(tokenizer.vocab),
        **{name: value for name, value in state.items() if name not in ('unit', 'done')},
        'files': {path.name: {'bytes': os.path.getsize(path), 'md5': digest}
                  for path, digest in zip(paths, digests(paths), strict=True)},
    }
    files.write_whole(path / MANIFEST, json.dumps(manifest, indent=1))
    (path / _JOURNAL).unlink()
    if progress:
        tell(
            f"token store: {state['num_tokens']} tokens, {state['num_sentences']} sentences, "
            f"{state['num_documents']} documents ({state['num_duplicates']} duplicates left out) "
            f"from {state['text_bytes'] / 1e6:.1f} MB in {state['seconds']} s")


class _Growing:
    """The growing files of a store or part, and a journal of how much of them is valid.

    Attributes:
      folder: where they are.
      state: the manifest so far, as in the journal, with the `unit` of the source to continue in
        and how many of its documents are `done`.
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
        self.folder, self._tokenizer, self._total_bytes = folder, tokenizer, total_bytes
        fresh: dict[str, Any] = {
            'unit': unit, 'done': done, 'piece_bytes': PIECE_BYTES,
            'dtype': '<u2' if len(tokenizer.vocab) < 65_536 else '<u4', 'num_tokens': 0,
            'num_sentences': 0, 'num_documents': 0, 'num_duplicates': 0, 'text_bytes': 0,
            'seconds': 0.0,
        }
        try:
            journal = json.loads((folder / _JOURNAL).read_text())
            self.state = {key: type(value)(journal[key]) for key, value in fresh.items()}
            self._cut()
        except (OSError, ValueError, KeyError, TypeError):
            # There is no journal, or a power failure cut files short of what it says.
            self.state = fresh
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            for name, size in file_sizes(self.state).items():
                (folder / name).write_bytes(bytes(size))
        self._started = time.monotonic() - self.state['seconds']
        self.save()

    def _cut(self) -> None:
        """Cuts files to the journal's sizes; ValueError or OSError if they are too short."""
        sizes = file_sizes(self.state)
        for name, size in sizes.items():
            if os.path.getsize(self.folder / name) < size:
                raise ValueError(f'{name} is cut short')
            os.truncate(self.folder / name, size)
        for path in self.folder.glob('*.bin'):
            if path.name not in sizes:
                path.unlink()

    def _write(self, array: str, values: np.ndarray, base: int = 0) -> None:
        """Appends `values + base` to an array; `state` tells its size so far."""
        dtype, pieces = array_files(self.state)[array]
        size, piece_bytes = sum(pieces.values()), self.state['piece_bytes']
        for i in range(0, len(values), _WRITTEN_AT_ONCE):
            data = memoryview((values[i:i + _WRITTEN_AT_ONCE] + base).astype(dtype).tobytes())
            while len(data):
                index, start = divmod(size, piece_bytes)
                with open(self.folder / f'{array}-{index:05}.bin', 'ab') as file:
                    written = file.write(data[:piece_bytes - start])
                size, data = size + written, data[written:]

    def _append(
        self, tokens: np.ndarray, sentence_ends: np.ndarray, document_ends: np.ndarray,
        hashes: np.ndarray, num_bytes: int,
    ) -> None:
        """Appends documents; ends count from the first token and sentence appended."""
        state = self.state
        self._write('tokens', tokens)
        self._write('sentence_offsets', sentence_ends, state['num_tokens'])
        self._write('document_offsets', document_ends, state['num_sentences'])
        self._write('document_hashes', hashes)
        state['num_tokens'] += len(tokens)
        state['num_sentences'] += len(sentence_ends)
        state['num_documents'] += len(document_ends)
        state['num_duplicates'] = state['num_documents']  # so `documents` counts as empty
        state['text_bytes'] += num_bytes

    def save(self, report: bool = False) -> None:
        """Makes the files' present content valid; `report` prints progress if that is wanted."""
        for path in self.folder.glob('*.bin'):
            with open(path, 'rb') as file:
                os.fsync(file.fileno())
        seconds = time.monotonic() - self._started
        self.state['seconds'] = round(seconds, 2)
        files.write_whole(self.folder / _JOURNAL, json.dumps(self.state))
        if report and self._total_bytes is not None:
            num_bytes = self.state['text_bytes']
            rate = max(num_bytes, 1) / max(seconds, 1e-3)
            minutes = max(self._total_bytes - num_bytes, 0) / rate / 60
            tell(f'token store: {num_bytes / 1e6:.0f} MB, {rate / 1e6:.1f} MB/s, '
                 f'{min(num_bytes / max(self._total_bytes, 1), 0.99):.0%}, {minutes:.1f} min left')

    def read(self, source: Source, last: int, num_threads: int) -> None:
        """Tokenizes and appends the documents of the units before `last`."""
        if has_tensorflow():
            with loading_tensorflow(source.spec):  # nothing else in this process needs it
                from bert_jax.data.tokenize import tokenize_batches
        else:
            from bert_jax.data.tokenize_plain import tokenize_batches

        saved, state = time.monotonic(), self.state
        batches = _text_batches(source, range(state['unit'], last), state['done'])
        for ids, num_tokens, num_lines, (unit, done, num_bytes) in tokenize_batches(
                batches, self._tokenizer, num_threads):
            # Numbers of tokens, and of lines with tokens, before each line and each document.
            tokens_before = np.concatenate([[0], np.cumsum(num_tokens, dtype=np.int64)])
            lines_before = np.concatenate([[0], np.cumsum(num_tokens > 0)])
            bounds = np.concatenate([[0], np.cumsum(num_lines)])
            token_bounds, line_bounds = tokens_before[bounds], lines_before[bounds]
            tokens = ids.astype(state['dtype'])
            hashes = [hashlib.blake2b(tokens[start:end].data, digest_size=8).digest()
                      for start, end in itertools.pairwise(token_bounds.tolist()) if end > start]
            self._append(
                tokens, tokens_before[1:][num_tokens > 0],
                line_bounds[1:][np.diff(line_bounds) > 0],
                np.frombuffer(b''.join(hashes), '<u8'), num_bytes)
            state |= {'unit': unit, 'done': done}
            if time.monotonic() - saved > _JOURNAL_SECONDS:
                self.save(report=True)
                saved = time.monotonic()
        state |= {'unit': last, 'done': 0}
        self.save()

    def join(self, folder: files.Path, last: int) -> None:
        """Appends a part that ends before unit `last`, and deletes it."""
        part = _Growing(folder, self._tokenizer)
        arrays = map_arrays(folder, part.state)
        self._append(
            arrays['tokens'], arrays['sentence_offsets'][1:], arrays['document_offsets'][1:],
            arrays['document_hashes'], part.state['text_bytes'])
        self.state |= {'unit': last, 'done': 0}
        self.save(report=True)
        shutil.rmtree(folder)

    def add_documents(self) -> None:
        """Writes `documents`: of exact duplicates, only the first."""
        state = self.state
        state['num_duplicates'] = state['num_documents']
        self._cut()  # drops what a build killed here has written
        hashes = map_arrays(self.folder, state)['document_hashes']
        documents = np.sort(np.unique(hashes, return_index=True)[1])
        self._write('documents', documents)
        state['num_duplicates'] -= len(documents)
        self.save()


def _text_batches(
    source: Source, indices: range, done: int
) -> Iterator[tuple[list[bytes], bool, tuple[int, int, int]]]:
    """(texts, split, (unit, its documents done after the batch, bytes)), about 1 MiB each."""
    for unit in indices:
        texts: list[bytes] = []
        num_bytes, split = 0, True
        for text, split in itertools.islice(source.read(source.units[unit]), done, None):
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
    """Builds the missing parts in several processes and joins them in order."""
    units, state = source.units, growing.state
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


def _build_part(job: bytes, folder: files.Path, first: int, done: int, last: int) -> None:
    """Builds a part in a process of the pool.

    Args:
      job: (source, tokenizer, threads of this process), pickled, so that a failure to load them is
        raised by this function.
      folder: where its files grow.
      first, done: unit and document to begin at.
      last: unit to end before.
    """
    source, tokenizer, num_threads = pickle.loads(job)
    # Otherwise TensorFlow would start threads for all cores in every process.
    os.environ.update(CUDA_VISIBLE_DEVICES='', TF_NUM_INTRAOP_THREADS=str(num_threads),
                      TF_NUM_INTEROP_THREADS=str(num_threads + 2))
    _Growing(folder, tokenizer, first, done).read(source, last, num_threads)
