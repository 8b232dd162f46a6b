"""A parameter of the model: its names here and in files, its dims, and the way between the two.

    V: vocabulary, P: positions, T: segment types, H: hidden_size, I: intermediate_size,
    N: heads, D: head_dim, U: half of hidden_size, L: labels; 2, 3 and 4 are themselves
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

Format = Literal['tf1', 'huggingface']


class Tensor(NamedTuple):
    """A parameter: its three names and its dims.

    Kernels are [in, out] here and in TF1, [out, in] in Hugging Face files and in what TF1 calls
    `output_weights`. In files, N and D are one dim, and `{part}` stands for query, key and value,
    which are one array here.

    Attributes:
      name: here.
      tf1, huggingface: in files.
      dims: of the array here; a comma stands between the dims that go in and those that come out.
    """

    name: str
    tf1: str
    huggingface: str
    dims: str

    def file_names(self, form: Format) -> tuple[str, ...]:
        """The one tensor in files of this form that this is made of, or the three."""
        name = getattr(self, form)
        parts = ('query', 'key', 'value') if '{part}' in name else ('',)
        return tuple(name.replace('{part}', part) for part in parts)

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Shape here; `sizes` by letter, see `sizes_of`."""
        return tuple(_size(dim, sizes) for dim in self.dims.replace(',', ''))

    def file_shape(self, form: Format, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Shape of each of `file_names`."""
        groups = self.dims.replace('3', '').split(',')
        shape = tuple(math.prod(_size(dim, sizes) for dim in group) for group in groups)
        return shape[::-1] if self._turned(form) else shape

    def from_files(
        self, form: Format, arrays: Sequence[np.ndarray], sizes: Mapping[str, int]
    ) -> np.ndarray:
        """The array here, float32 and contiguous, of the arrays in files."""
        dims = self.dims.replace(',', '')
        shape = tuple(_size(dim, sizes) for dim in dims if dim != '3')
        if self._turned(form):
            arrays = [_turn(x) for x in arrays]
        arrays = [x.reshape(shape) for x in arrays]
        if len(arrays) == 1:
            return np.ascontiguousarray(arrays[0], np.float32)
        return np.stack(arrays, axis=dims.index('3'), dtype=np.float32)

    def to_files(self, form: Format, array: np.ndarray) -> list[np.ndarray]:
        """The contiguous arrays in files of the array here; inverse of `from_files`."""
        dims = self.dims.replace(',', '')
        arrays = [array] if '3' not in dims else list(np.moveaxis(array, dims.index('3'), 0))
        num_in = len(self.dims.partition(',')[0].replace('3', '')) if ',' in self.dims else 0
        files = []
        for x in arrays:
            x = x.reshape(math.prod(x.shape[:num_in]), -1) if num_in else x.reshape(-1)
            files.append(_turn(x) if self._turned(form) else np.ascontiguousarray(x))
        return files

    def _turned(self, form: Format) -> bool:
        if form == 'huggingface':
            return self.name.endswith('/kernel')
        return self.tf1.endswith('output_weights')


def _turn(x: np.ndarray) -> np.ndarray:
    """A contiguous [B, A] of [A, B]. In strips it takes a third of the time of numpy's copy."""
    turned = np.empty(x.shape[::-1], x.dtype)
    for start in range(0, len(x), 16):
        turned[:, start : start + 16] = x[start : start + 16].T
    return turned


def _size(dim: str, sizes: Mapping[str, int]) -> int:
    return int(dim) if dim.isdigit() else sizes[dim]
