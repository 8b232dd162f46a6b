"""A token store: its files, mapped into memory; digests of files, and locks on a disk."""

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
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any, TypeVar

import numpy as np

from bert_jax.runtime import files
from bert_jax.runtime.errors import InputError

_Item = TypeVar('_Item')
_Result = TypeVar('_Result')

# Of a disk that is full or cannot be written.
_DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR,
                errno.EEXIST)


@contextlib.contextmanager
def locked(path: str | os.PathLike[str], waiting_for: str = '') -> Iterator[None]:
    """Holds a lock on a file, which the system releases when the process ends, however it ends.

    Args:
      path: a file on a disk; created if missing.
      waiting_for: printed on standard error if another process holds the lock.
    """
    with open(path, 'w') as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting_for:
                print(f'waiting for another process {waiting_for}', file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def fsync(path: str | os.PathLike[str]) -> None:
    """Makes a file's content, or the names in a folder, survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def disk_faults(what: str, folder: str | os.PathLike[str], field: str) -> Iterator[None]:
    """Turns errors of a full or read-only disk into one line.

    Args:
      what: the block writes.
      folder: it is written to.
      field: of the config, which names another folder.

    Raises:
      InputError: in place of such an OSError.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_FAULTS:
            raise
        raise InputError(
            f'{what} cannot be written to {folder} ({error.strerror}): make room (it goes on where '
            f'it was), or set --config.{field} to another disk'
        ) from error


def in_threads(
    work: Callable[[_Item, Callable[[], None]], _Result], items: Sequence[_Item], num_threads: int
) -> list[_Result]:
    """The results of `work` on each item, in order; the first error, or a signal, ends all.

    Args:
      work: of an item and a function to call now and then, which raises if another item failed.
      items: what to work on.
      num_threads: at most.
    """
    faults: list[BaseException] = []

    def check() -> None:
        if faults:
            raise faults[0]

    def run(item: _Item) -> _Result:
        check()
        try:
            return work(item, check)
        except BaseException as error:
            faults.append(error)
            raise

    with futures.ThreadPoolExecutor(max(1, min(num_threads, len(items)))) as pool:
        try:
            return list(pool.map(run, items))
        except BaseException as error:
            faults.append(error)
            raise


_REMEMBERED = '~/.cache/bert_jax/digests.json'
_MAX_REMEMBERED = 100_000  # files, the ones asked for last
_BLOCK_BYTES = 4 << 20
# The clock of a disk has steps: a file could change twice within one.
_SETTLED_SECONDS = 2.0
_BUCKET_THREADS = 32


def new_digest() -> Any:
    """A hash object, as for the digests of files."""
    return hashlib.md5(usedforsecurity=False)


def digests(paths: Sequence[str | os.PathLike[str]]) -> list[str]:
    """The MD5 of each file, in hexadecimal digits; hashed only if the file changed since last time.

    Args:
      paths: all on disks, or all in buckets, whose listings have digests.

    Raises:
      OSError: a file is missing or cannot be read.
    """
    names = [os.fspath(path) for path in paths]
    if names and files.in_bucket(names[0]):
        return in_threads(
            lambda name, _: object_digest(files.find(name)[0]), names, _BUCKET_THREADS)
    place = files.as_path(_REMEMBERED)
    known: dict[str, str] = {}
    with contextlib.suppress(OSError, ValueError, TypeError):  # missing or damaged
        known = dict(json.loads(place.read_text()))
    new: dict[str, str] = {}

    def digest(name: str, check: Callable[[], None]) -> str:
        state = _state(name)
        if state in known:
            return known[state]
        content = new_digest()
        with open(name, 'rb', buffering=0) as file:
            while block := file.read(_BLOCK_BYTES):
                check()
                content.update(block)
        # A file that changed meanwhile has another content by now.
        if _state(name) == state and time.time() - os.stat(name).st_mtime > _SETTLED_SECONDS:
            new[state] = content.hexdigest()
        return content.hexdigest()

    result = in_threads(digest, names, os.cpu_count() or 1)
    if new:
        with contextlib.suppress(OSError):  # a home that cannot be written costs time, not the run
            place.parent.mkdir(parents=True, exist_ok=True)
            files.write_whole(
                place, json.dumps(dict([*known.items(), *new.items()][-_MAX_REMEMBERED:])))
    return result


def _state(name: str) -> str:
    """A file's real path, and what changes with its content."""
    stat = os.stat(name)
    return f'{os.path.realpath(name)} {stat.st_size} {stat.st_mtime_ns} {stat.st_ino}'


def object_digest(found: files.Found) -> str:
    """The digest of an object in a bucket, from its listing."""
    if len(found.checksum) == 24:
        return base64.b64decode(found.checksum).hex()
    # An object that was uploaded in pieces has no MD5.
    return f'crc32c {found.checksum} of {found.size} bytes'


PIECE_BYTES = 512 << 20  # a multiple of every system's page

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
          InputError: there is none, or a file differs from the manifest.
        """
        folder = files.as_path(path)
        manifest = read_manifest(folder)
        entries = manifest['files']
        for name, entry in entries.items():
            file = folder / name
            if not file.exists() or os.path.getsize(file) != entry['bytes']:
                raise InputError(
                    f"{file} is missing or has not the {entry['bytes']} bytes of the manifest: "
                    f'{remedy(folder)}'
                )
        for name, digest in zip(entries, digests([folder / name for name in entries]), strict=True):
            if digest != entries[name]['md5']:
                raise InputError(damaged(folder, name))
        return cls(folder, manifest, **map_arrays(folder, manifest))

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
        if fraction <= 0:
            return self.documents, self.documents[:0]
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
        result[array] = dtype, {
            f'{array}-{i:05}.bin': min(piece_bytes, num_bytes - i * piece_bytes)
            for i in range(max(1, -(-num_bytes // piece_bytes)))
        }
    return result


def map_arrays(folder: files.Path, manifest: dict[str, Any]) -> dict[str, np.ndarray]:
    """The arrays of a store by name, each a read-only view of its files.

    Raises:
      OSError: a file cannot be opened or mapped.
    """
    return {array: _map_files(folder, pieces, dtype)
            for array, (dtype, pieces) in array_files(manifest).items()}


def _map_files(folder: files.Path, sizes: dict[str, int], dtype: str) -> np.ndarray:
    """Maps files (bytes by name; of all but the last a multiple of the system's page)."""
    total = sum(sizes.values())
    if not total:
        return np.zeros(0, dtype)
    # Address space for all files, which are then mapped over it; unmapped with the array.
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
        if version == FORMAT_VERSION:
            sizes: dict[str, int] = {}
            for _, pieces in array_files(manifest).values():
                sizes |= pieces
            if sizes != {name: entry['bytes'] for name, entry in manifest['files'].items()}:
                raise ValueError('its files are not those of its arrays')
    except FileNotFoundError:
        raise InputError(
            f'{path} is not a finished token store (no {MANIFEST}): build it again'
        ) from None
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError,
            RecursionError) as error:
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
