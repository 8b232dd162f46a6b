"""A model's parameters in file formats: their names, shapes and arrays.

Kernels are [in, out] here and in TF1, [out, in] in Hugging Face files and in TF1's
`output_weights`. In files, several in dims or out dims are one dim, and query, key and value, which
are fused here, are three tensors.

    V: vocabulary, P: positions, T: segment types, H: hidden_size, I: intermediate_size, N: heads,
    D: head_dim, U: half of hidden_size, L: labels
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.config.bert_config import Format

Dim = str | int  # a letter (see above), or the size of a dim that all models share


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A parameter: its name here and in the two file formats, and its dims.

    Attributes:
      name: in this package.
      tf1, huggingface: names in files of these formats; `{part}` stands for query, key and value.
      out_dims: of a kernel; of a table, those of a row; all dims of a vector.
      in_dims: of a kernel; of a table, the one that counts rows; () of a vector.
      fused_qkv: whether a dim between in dims and out dims is that of query, key and value.
    """

    name: str
    tf1: str
    huggingface: str
    out_dims: tuple[Dim, ...]
    in_dims: tuple[Dim, ...] = ()
    fused_qkv: bool = False

    def file_names(self, format: Format) -> tuple[str, ...]:
        """The names in files of this format: three where query, key and value are apart, or one."""
        name = self.name if format == 'bert_jax' else getattr(self, format)
        if '{part}' not in name:
            return (name,)
        return tuple(name.replace('{part}', part) for part in ('query', 'key', 'value'))

    def shape(self, format: Format, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Shape of each of `file_names`; `sizes` of dims by letter (`weights.formats.sizes_of`)."""
        in_sizes = _sizes(self.in_dims, sizes)
        out_sizes = _sizes(self.out_dims, sizes)
        if format == 'bert_jax':
            fused = [3] if self.fused_qkv else []
            return (*in_sizes, *fused, *out_sizes)
        if not in_sizes:
            return (math.prod(out_sizes),)
        shape = (math.prod(in_sizes), math.prod(out_sizes))
        return shape[::-1] if self.is_transposed(format) else shape

    def from_files(
        self, format: Format, arrays: Sequence[np.ndarray], sizes: Mapping[str, int]
    ) -> np.ndarray:
        """Converts the arrays of `file_names` to the array here, float32 and contiguous."""
        shape = _sizes(self.in_dims, sizes) + _sizes(self.out_dims, sizes)
        parts = []
        for array in arrays:
            if self.is_transposed(format):
                array = array.T
            parts.append(array.reshape(shape))
        if self.fused_qkv:
            return np.stack(parts, axis=len(self.in_dims), dtype=np.float32)
        return np.ascontiguousarray(parts[0], np.float32)

    def to_files(self, format: Format, array: np.ndarray) -> list[np.ndarray]:
        """The inverse of `from_files`; the arrays are contiguous."""
        parts: Sequence[np.ndarray] = [array]
        if self.fused_qkv:
            parts = list(np.moveaxis(array, len(self.in_dims), 0))
        files = []
        for part in parts:
            if self.in_dims:
                num_in = math.prod(part.shape[: len(self.in_dims)])
                part = part.reshape(num_in, -1)
            else:
                part = part.reshape(-1)
            if self.is_transposed(format):
                part = part.T
            files.append(np.ascontiguousarray(part))
        return files

    def is_transposed(self, format: Format) -> bool:
        """Whether files of this format hold [out, in]."""
        if format == 'huggingface':
            return self.name.endswith('/kernel')
        return self.tf1.endswith('output_weights')


def _sizes(dims: Sequence[Dim], sizes: Mapping[str, int]) -> list[int]:
    return [dim if isinstance(dim, int) else sizes[dim] for dim in dims]


def dense(
    name: str, in_dims: tuple[Dim, ...], out_dims: tuple[Dim, ...], *, fused_qkv: bool = False
) -> tuple[Tensor, Tensor]:
    """Kernel and bias of a `Dense`."""
    in_files = name
    if fused_qkv:
        folder, _, leaf = name.rpartition('/')
        assert leaf == 'qkv', name
        in_files = f'{folder}/{{part}}'
    dotted = _dotted(in_files)
    kernel = Tensor(
        f'{name}/kernel', f'{in_files}/kernel', f'{dotted}.weight', out_dims, in_dims, fused_qkv)
    bias = Tensor(
        f'{name}/bias', f'{in_files}/bias', f'{dotted}.bias', out_dims, fused_qkv=fused_qkv)
    return kernel, bias


def output_layer(
    name: str, num_outputs: Dim, *, tf1: str, huggingface: str
) -> tuple[Tensor, Tensor]:
    """Kernel and bias of a head's last layer.

    Args:
      name: in this package.
      num_outputs: the out dim.
      tf1: what stands before `output_weights` and `output_bias`.
      huggingface: what stands before `.weight` and `.bias`.
    """
    kernel = Tensor(
        f'{name}/kernel', f'{tf1}output_weights', f'{huggingface}.weight', (num_outputs,), ('H',))
    bias = Tensor(f'{name}/bias', f'{tf1}output_bias', f'{huggingface}.bias', (num_outputs,))
    return kernel, bias


def layer_norm(name: str) -> tuple[Tensor, Tensor]:
    """Scale and bias of a `LayerNorm`."""
    dotted = _dotted(name)
    scale = Tensor(f'{name}/scale', f'{name}/gamma', f'{dotted}.weight', ('H',))
    bias = Tensor(f'{name}/bias', f'{name}/beta', f'{dotted}.bias', ('H',))
    return scale, bias


def table(name: str, num_rows: Dim) -> Tensor:
    """A table of embeddings."""
    return Tensor(name, name, f'{_dotted(name)}.weight', ('H',), (num_rows,))


def _dotted(name: str) -> str:
    """A module's name in PyTorch."""
    return name.replace('layer_', 'layer.').replace('/', '.')


class Part(NamedTuple):
    """Parameters that exist together, or not at all: those whose names begin with `prefix`."""

    prefix: str
    tensors: tuple[Tensor, ...]


POOLER = Part('bert/pooler/', dense('bert/pooler/dense', ('H',), ('H',)))
