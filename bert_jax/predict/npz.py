"""An .npz that grows row by row."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Mapping
from types import TracebackType
from typing import IO

import numpy as np

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, in_bucket, open_whole


class GrowingNpz:
    """Writes an .npz with one float32 array that never is in memory as a whole.

    A context manager: the file appears at the end of the block, or not at all where the block is
    left by an exception.

    Attributes:
      others: further arrays that the file shall hold, by name.
    """

    def __init__(self, path: Path, name: str):
        """Begins the file at `path`; `name` is that of the growing array.

        Raises:
          InputError: the path does not end in .npz, or its folder cannot be written to.
        """
        if path.suffix != '.npz':
            raise InputError(f'--output={path} must end in .npz')
        self.others: Mapping[str, np.ndarray] = {}
        self._path, self._name = path, name
        self._shape: tuple[int, ...] = ()
        self._num_rows = 0
        try:
            place = None if in_bucket(path) else path.parent
            self._rows: IO[bytes] = tempfile.TemporaryFile(dir=place)  # noqa: SIM115
        except OSError as error:
            raise InputError(f'--output={path}: {path.parent}: {error.strerror}') from error

    def add(self, rows: np.ndarray) -> None:
        """Appends rows [n, ...]."""
        self._shape = rows.shape[1:]
        self._num_rows += len(rows)
        self._rows.write(np.ascontiguousarray(rows, '<f4').data)

    def __enter__(self) -> GrowingNpz:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del error, trace
        try:
            if kind is None:
                self._write()
        finally:
            self._rows.close()

    def _write(self) -> None:
        header = {'descr': '<f4', 'fortran_order': False, 'shape': (self._num_rows, *self._shape)}
        with open_whole(self._path) as whole, zipfile.ZipFile(whole, 'w') as archive:
            with archive.open(f'{self._name}.npy', 'w', force_zip64=True) as file:
                np.lib.format.write_array_header_2_0(file, header)
                self._rows.seek(0)
                while block := self._rows.read(1 << 20):
                    file.write(block)
            for name, array in self.others.items():
                with archive.open(f'{name}.npy', 'w', force_zip64=True) as file:
                    np.lib.format.write_array(file, array, allow_pickle=False)
