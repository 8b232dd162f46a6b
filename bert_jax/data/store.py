"""A token store: its files, mapped into memory, its digests, and locks on the disk it lies on."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import dataclasses
import errno
import fcntl
import hashlib
import json
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np

from bert_jax.runtime import files
from bert_jax.runtime.errors import InputError

_Item = TypeVar('_Item')
_Result = TypeVar('_Result')

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_WRITABLE = (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR, errno.EEXIST)


@contextlib.contextmanager
def locked(path: str | os.PathLike[str], waiting_for: str = '') -> Iterator[None]:
    """Holds a lock that the system gives back when the process ends, however it ends.

    Args:
      path: a file on a disk, made where there is none.
      waiting_for: printed on standard error if another process holds it.
    """
    with open(path, 'w') as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting_for:
                print(f'waiting for another process {waiting_for}', file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def fsync_folder(path: str | os.PathLike[str]) -> None:
    """Makes what was renamed or made in a folder survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def disk_faults(what: str, folder: str | os.PathLike[str], field: str) -> Iterator[None]:
    """Turns faults of a full or read-only disk into one line that names the place.

    Args:
      what: is written.
      folder: where to.
      field: of the config, names another place.

    Raises:
      InputError: in place of such an OSError.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise InputError(
                f'no space left for {what} in {folder}: free some (it goes on where it was), or '
                f'set --config.{field} to a larger disk'
            ) from error
        if error.errno in _NOT_WRITABLE:
            raise InputError(
                f'{folder} cannot be written ({error.strerror}): set --config.{field} to a '
                'directory that can'
            ) from error
        raise


def in_threads(
    work: Callable[[_Item, Callable[[], None]], _Result], items: Sequence[_Item], num_threads: int
) -> list[_Result]:
    """Work on many items side by side; the first fault, or a signal here, ends all.

    Args:
      work: of an item and a function to call between short pieces of the work: it raises where
        there is no reason to go on.
      items: what to work on.
      num_threads: at once.

    Returns:
      The results, in order.
    """
    stop = threading.Event()

    def check() -> None:
        if stop.is_set():
            raise futures.CancelledError

    with futures.ThreadPoolExecutor(max(1, min(num_threads, len(items)))) as pool:
        tasks: list[futures.Future[Any]] = [pool.submit(work, item, check) for item in items]
        try:
            for task in futures.as_completed(tasks):
                task.result()
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    return [task.result() for task in tasks]


_REMEMBERED = '~/.cache/bert_jax/digests.json'
_MAX_REMEMBERED = 100_000  # files, the ones asked for last
_BLOCK_BYTES = 4 << 20
# Disks keep time in steps: a file could change twice in one of them.
_SETTLED_SECONDS = 2.0
_BUCKET_THREADS = 32


def new_digest() -> Any:
    """A hash object for content that passes by."""
    return hashlib.md5(usedforsecurity=False)


def digests(paths: Sequence[str | os.PathLike[str]]) -> list[str]:
    """The digest of each file's content, as hexadecimal digits; hashed only where not known.

    Raises:
      OSError: a file is missing or cannot be read.
    """
    names = [os.fspath(path) for path in paths]
    distant = [name for name in names if files.in_bucket(name)]
    result = dict(zip(distant, in_threads(_of_object, distant, _BUCKET_THREADS), strict=True))
    local = [name for name in names if not files.in_bucket(name)]
    known = _read_remembered() if local else {}
    states = {name: _state(name) for name in local}
    for name, (place, *state) in states.items():
        if known.get(place, [])[:-1] == state:
            result[name] = known[place][-1]
    unknown = [name for name in states if name not in result]
    if unknown:
        hashed = in_threads(_of_file, unknown, os.cpu_count() or 1)
        result |= zip(unknown, hashed, strict=True)
        _remember({
            states[name][0]: [*states[name][1:], result[name]] for name in unknown
            # One that changed while it was read is another one by now.
            if _state(name) == states[name]
            and time.time() - states[name][2] / 1e9 > _SETTLED_SECONDS
        })
    return [result[name] for name in names]


def _state(name: str) -> tuple[str, int, int, int]:
    """A file's real path, and what changes with its content."""
    stat = os.stat(name)
    return os.path.realpath(name), stat.st_size, stat.st_mtime_ns, stat.st_ino


def _of_file(name: str, check: Callable[[], None]) -> str:
    digest = new_digest()
    block = memoryview(bytearray(_BLOCK_BYTES))
    with open(name, 'rb', buffering=0) as file:
        while size := file.readinto(block):
            digest.update(block[:size])
            check()
    return digest.hexdigest()


def _of_object(name: str, check: Callable[[], None]) -> str:
    check()
    return object_digest(files.find(name)[0])


def object_digest(found: files.Found) -> str:
    """The digest of an object in a bucket, as its listing has it."""
    if len(found.checksum) == 24:
        return base64.b64decode(found.checksum).hex()
    # An object that was uploaded in pieces has no MD5.
    return f'crc32c {found.checksum} of {found.size} bytes'


def _read_remembered() -> dict[str, list[Any]]:
    """[size, time, inode, digest] by real path; whatever is not of that form is forgotten."""
    try:
        content = json.loads(files.as_path(_REMEMBERED).read_text())
        return {
            path: list(entry) for path, entry in content.items()
            if [type(value) for value in entry] == [int, int, int, str]
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _remember(entries: dict[str, list[Any]]) -> None:
    if not entries:
        return
    path = files.as_path(_REMEMBERED)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_suffix('.lock')):
            known = _read_remembered()
            kept = {place: known[place] for place in known if place not in entries} | entries
            files.write_whole(path, json.dumps(dict([*kept.items()][-_MAX_REMEMBERED:])))
    except OSError:
        pass  # a home that cannot be written costs time, not the run


PIECE_BYTES = 512 << 20  # a multiple of every system's page

_MAP_FIXED = 0x10  # Linux and macOS; Python's mmap module has no such argument
_MAP_FAILED = ctypes.c_void_p(-1).value


def piece_name(name: str, index: int) -> str:
    """The file of an array's piece."""
    return f'{name}-{index:05}.bin'


def piece_names(name: str, num_bytes: int, piece_bytes: int) -> list[str]:
    """The files of an array of so many bytes; at least one, which may be empty."""
    return [piece_name(name, i) for i in range(max(1, -(-num_bytes // piece_bytes)))]


class PieceWriter:
    """An array's files while it grows."""

    def __init__(self, folder: files.Path, name: str, num_bytes: int):
        """Goes on behind the first `num_bytes`; what is there beyond them is dropped.

        Raises:
          ValueError: there are fewer.
        """
        self._folder, self._name = folder, name
        index, self._room = divmod(num_bytes, PIECE_BYTES)
        for i in range(index):
            if os.path.getsize(folder / piece_name(name, i)) != PIECE_BYTES:
                raise ValueError(f'{folder / piece_name(name, i)} is cut short')
        for later in folder.glob(f'{name}-*.bin'):
            if later.name > piece_name(name, index):
                later.unlink()
        self._open(index)
        if self._file.tell() < self._room:
            self._file.close()
            raise ValueError(f'{folder / piece_name(name, index)} is cut short')
        self._file.truncate(self._room)
        self._room = PIECE_BYTES - self._room

    def _open(self, index: int) -> None:
        self._index = index
        # Closed by `close`.
        self._file: BinaryIO = open(self._folder / piece_name(self._name, index), 'ab')  # noqa: SIM115

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data).cast('B')
        while len(view):
            if not self._room:
                self.close()
                self._open(self._index + 1)
                self._room = PIECE_BYTES
            part = view[:self._room]
            self._file.write(part)
            self._room -= len(part)
            view = view[len(part):]

    def sync(self) -> None:
        """Returns when what was written would survive a loss of power."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        try:
            self.sync()
        finally:
            with contextlib.suppress(OSError):  # `sync` has reported a full disk
                self._file.close()


def map_pieces(paths: list[str], sizes: list[int], dtype: str) -> np.ndarray:
    """One read-only array over files that follow each other; mapped until the process ends.

    Args:
      paths: the files, on a disk.
      sizes: their bytes; of all but the last a multiple of the system's page.
      dtype: of the elements.

    Raises:
      OSError: a file cannot be opened or mapped.
    """
    total = sum(sizes)
    if not total:
        return np.zeros(0, dtype)
    call = ctypes.CDLL(None, use_errno=True).mmap
    call.restype = ctypes.c_void_p
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]

    def map_at(address: int | None, size: int, access: int, flags: int, file: int) -> int:
        got = call(address, size, access, flags, file, 0)
        if got == _MAP_FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return got

    # Address space for all is reserved first, so that nothing else can come to lie in it.
    start = map_at(None, total, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
    offset = 0
    for path, size in zip(paths, sizes, strict=True):
        assert offset % mmap.PAGESIZE == 0, (path, offset)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            if size:
                map_at(start + offset, size, mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED,
                       descriptor)
        finally:
            os.close(descriptor)
        offset += size
    memory: Any = (ctypes.c_uint8 * total).from_address(start)
    array = np.frombuffer(memory, dtype)
    array.flags.writeable = False
    return array


FORMAT_VERSION = 2
MANIFEST = 'manifest.json'


class Part(NamedTuple):
    """A part of a store that one process builds."""

    first: int  # unit of the source
    last: int  # the unit after its last
    folder: str  # where its files grow


JOURNAL = 'journal.json'  # of a build, and of each part: how far its files are good


def num_bytes_of(part: Part) -> int:
    """Bytes of text that are done of a part that is being built, by its journal."""
    try:
        return int(json.loads((files.as_path(part.folder) / JOURNAL).read_text())['bytes'])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def token_dtype(tokenizer: Any) -> np.dtype:
    """16 bits a token where they are enough."""
    return np.dtype('<u2' if len(tokenizer.vocab) < 65_536 else '<u4')


@dataclasses.dataclass(frozen=True)
class TokenStore:
    """Token ids with the bounds of sentences and documents. No sentence or document is empty.

    Attributes:
      path: the store's directory.
      manifest: what it was built from and how much is in it.
      tokens: uint16 or uint32 [T], all documents one after the other, without special tokens.
      sentence_offsets: int64 [S+1], sentence s is tokens[sentence_offsets[s]:...[s+1]].
      document_offsets: int64 [D+1], document d is sentences document_offsets[d] to ...[d+1].
      document_hashes: uint64 [D], of the token ids.
      documents: int64 [K], indices of the documents to use, ascending.
    """

    path: files.Path
    manifest: dict[str, Any]
    tokens: np.ndarray
    sentence_offsets: np.ndarray
    document_offsets: np.ndarray
    document_hashes: np.ndarray
    documents: np.ndarray

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> TokenStore:
        """Maps a finished store whose files are what its manifest says, to the last byte.

        Raises:
          InputError: there is none, or a file is another one.
        """
        folder = files.as_path(path)
        manifest = read_manifest(folder)
        entries = manifest['files']
        for name, entry in entries.items():
            file = folder / name
            result = os.path.getsize(file) if file.exists() else -1
            if result != entry['bytes']:
                raise InputError(
                    f'{file} is missing: {remedy(folder)}' if result < 0 else
                    f"{file} has {result} bytes where the manifest says {entry['bytes']}: "
                    f'{remedy(folder)}'
                )
        for name, digest in zip(entries, digests([folder / name for name in entries]), strict=True):
            if digest != entries[name]['md5']:
                raise InputError(damaged(folder, name))
        arrays = {}
        for array, (dtype, count) in array_types(manifest).items():
            num_bytes = count * np.dtype(dtype).itemsize
            names = piece_names(array, num_bytes, manifest['piece_bytes'])
            sizes = [entries[name]['bytes'] if name in entries else -1 for name in names]
            if min(sizes) < 0 or sum(sizes) != num_bytes:
                raise InputError(
                    f'{folder / MANIFEST} is damaged (its files do not hold {count} {array}): '
                    f'{remedy(folder)}'
                )
            arrays[array] = map_pieces([str(folder / name) for name in names], sizes, dtype)
        return cls(folder, manifest, **arrays)

    @property
    def fingerprint(self) -> str:
        """Identity of the store: text, vocabulary and options."""
        return self.manifest['fingerprint']

    def split_held_out(
        self, fraction: float, min_documents: int = 2
    ) -> tuple[np.ndarray, np.ndarray]:
        """Splits the documents by their hashes: by what they say, not where they stand.

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
        none = self.documents[:0]
        if fraction <= 0:
            return self.documents, none
        if len(self.documents) < 2 * min_documents:
            raise InputError(
                f"data source '{self.manifest['source']}' has {len(self.documents)} different "
                f'documents, too few to hold some out ({2 * min_documents} are needed): separate '
                'documents by a blank line, add text, or set --config.data.eval_source'
            )
        hashes = self.document_hashes[self.documents]
        held_out = hashes < np.uint64(min(int(fraction * 2.0**64), 2**64 - 1))
        by_hash = np.argsort(hashes)
        held_out[by_hash[:min_documents]] = True
        held_out[by_hash[len(by_hash) - min_documents:]] = False
        return self.documents[~held_out], self.documents[held_out]


def array_types(manifest: dict[str, Any]) -> dict[str, tuple[str, int]]:
    """(dtype, number of elements) of each array of a store."""
    documents = manifest['num_documents']
    return {
        'tokens': (manifest['dtype'], manifest['num_tokens']),
        'sentence_offsets': ('<i8', manifest['num_sentences'] + 1),
        'document_offsets': ('<i8', documents + 1),
        'document_hashes': ('<u8', documents),
        'documents': ('<i8', documents - manifest['num_duplicates']),
    }


def read_manifest(path: files.Path) -> dict[str, Any]:
    """The manifest of a finished store, on a disk or in a bucket.

    Raises:
      InputError: there is none, or it is not one of this program.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        version = manifest.get('format_version')
        if version == FORMAT_VERSION:
            entries = manifest['files'].values()
            numbers = [manifest['piece_bytes'], *(entry['bytes'] for entry in entries)]
            numbers += [count for _, count in array_types(manifest).values()]
            if any('/' in name for name in manifest['files']):
                raise ValueError('a file is not in its folder')
            texts = [manifest['fingerprint'], manifest['source'],
                     *(entry['md5'] for entry in entries)]
            if not (all(type(number) is int and number >= 0 for number in numbers)
                    and all(isinstance(text, str) for text in texts)
                    and manifest['piece_bytes'] and manifest['dtype'] in ('<u2', '<u4')):
                raise ValueError('a value is of the wrong kind')
    except FileNotFoundError:
        raise InputError(
            f'{path} is not a finished token store (no {MANIFEST}): build it again'
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f'{path / MANIFEST} is damaged ({error}): {remedy(path)}') from None
    if version != FORMAT_VERSION:
        raise InputError(
            f'{path} has format version {version}, this program reads {FORMAT_VERSION}: '
            f'{remedy(path)}'
        )
    return manifest


def damaged(path: files.Path, name: str) -> str:
    """A message for a file that is not the one that was written."""
    return f'{path / name} is damaged (its content is not that of the manifest): {remedy(path)}'


def remedy(path: files.Path) -> str:
    return f'delete {path} and it is built again'
