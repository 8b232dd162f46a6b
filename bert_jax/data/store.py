"""Token stores: their files, checked against a manifest and mapped into memory."""

import contextlib
import ctypes
import dataclasses
import fcntl
import json
import mmap
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Self

import numpy as np

from bert_jax.data.digests import digests
from bert_jax.runtime import files
from bert_jax.runtime.errors import InputError, tell

FORMAT_VERSION = 2
MANIFEST = 'manifest.json'
_MAP_FIXED = 0x10  # Linux and macOS; Python's mmap module has no such argument
_MAP_FAILED = ctypes.c_void_p(-1).value


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
        found = digests([folder / name for name in entries])
        for (name, entry), digest in zip(entries.items(), found, strict=True):
            if digest != entry['md5']:
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
        limit = min(int(fraction * 2.0**64), 2**64 - 1)
        held_out = hashes < np.uint64(limit)
        by_hash = np.argsort(hashes)
        held_out[by_hash[:min_documents]] = True
        held_out[by_hash[len(by_hash) - min_documents:]] = False
        return self.documents[~held_out], self.documents[held_out]


class ArrayFiles(NamedTuple):
    """The files of an array of a store.

    Attributes:
      dtype: of the array.
      sizes: bytes by name, in order: at least one file, which may be empty.
    """

    dtype: str
    sizes: dict[str, int]


def array_files(manifest: Mapping[str, Any]) -> dict[str, ArrayFiles]:
    """The files of each array of a store."""
    num_documents = manifest['num_documents']
    num_used = num_documents - manifest['num_duplicates']
    piece_bytes = manifest['piece_bytes']

    def files_of(array: str, dtype: str, count: int) -> ArrayFiles:
        num_bytes = count * np.dtype(dtype).itemsize
        num_pieces = max(1, -(-num_bytes // piece_bytes))
        sizes = {}
        for piece in range(num_pieces):
            sizes[piece_name(array, piece)] = min(piece_bytes, num_bytes - piece * piece_bytes)
        return ArrayFiles(dtype, sizes)

    return {
        'tokens': files_of('tokens', manifest['dtype'], manifest['num_tokens']),
        'sentence_offsets': files_of('sentence_offsets', '<i8', manifest['num_sentences'] + 1),
        'document_offsets': files_of('document_offsets', '<i8', num_documents + 1),
        'document_hashes': files_of('document_hashes', '<u8', num_documents),
        'documents': files_of('documents', '<i8', num_used),
    }


def piece_name(array: str, piece: int) -> str:
    """The name of one of the files of an array."""
    return f'{array}-{piece:05}.bin'


def file_sizes(manifest: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of each file of a store."""
    sizes: dict[str, int] = {}
    for array in array_files(manifest).values():
        sizes |= array.sizes
    return sizes


def map_arrays(folder: files.Path, manifest: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The arrays of a store by name, each a read-only view of its files.

    Raises:
      OSError: a file cannot be opened or mapped.
    """
    return {name: _map_files(folder, array) for name, array in array_files(manifest).items()}


def _map_files(folder: files.Path, array: ArrayFiles) -> np.ndarray:
    """Maps the files of an array one after another.

    All but the last must hold a multiple of the system's page size.
    """
    total = sum(array.sizes.values())
    if not total:
        return np.zeros(0, array.dtype)
    # Reserves address space and maps the files over it; it is unmapped with the array.
    space = mmap.mmap(-1, total, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ)
    mapped = np.frombuffer(space, array.dtype)
    address = mapped.ctypes.data
    for name, size in array.sizes.items():
        _map_file(folder / name, address, size)
        address += size
    return mapped


def _map_file(path: files.Path, address: int, size: int) -> None:
    """Maps a file, to be read, over what is mapped at an address."""
    call = ctypes.CDLL(None, use_errno=True).mmap
    call.restype = ctypes.c_void_p
    call.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
    with open(path, 'rb') as file:
        flags = mmap.MAP_SHARED | _MAP_FIXED
        if call(address, size, mmap.PROT_READ, flags, file.fileno(), 0) == _MAP_FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), file.name)


def read_manifest(path: files.Path) -> dict[str, Any]:
    """The manifest of a finished store, on a disk or in a bucket.

    Raises:
      InputError: there is none, or it is damaged or of another version.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        version = manifest['format_version']
        if version == FORMAT_VERSION:
            _check_files(manifest)
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


def _check_files(manifest: Mapping[str, Any]) -> None:
    """Raises a ValueError if the files in a manifest are not those of its arrays."""
    written = {name: entry['bytes'] for name, entry in manifest['files'].items()}
    if written != file_sizes(manifest):
        raise ValueError('its files are not those of its arrays')


def damaged(path: files.Path, name: str) -> str:
    """The message for a file whose content is not what was written."""
    return f'{path / name} is damaged (its content is not that of the manifest): {remedy(path)}'


def remedy(path: files.Path) -> str:
    """What to do about a damaged store, for messages."""
    return f'delete {path} and it is built again'


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
