"""One long array in files of a bounded size: written piece after piece, mapped as one.

Files of a bounded size are copied side by side, and again one by one where a copy was cut off. In
memory they stand next to each other, so that the array is one.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from typing import Any, BinaryIO

import numpy as np

from bert_jax.runtime import files

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
            with contextlib.suppress(OSError):  # a full disk was told by `sync`
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
