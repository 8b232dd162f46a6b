"""A model's parameters in file formats: their names, shapes and arrays.

Kernels are [in, out] here and in TF1, [out, in] in PyTorch's files and in TF1's `output_weights`.
In files, several in dims or out dims are one dim. Query, key and value are fused here, and so are
the two products of a gated layer; in files they are one tensor or several.

    V: vocabulary, P: positions, T: segment types, E: columns of the tables, H: hidden_size,
    I: intermediate_size, N: heads, G: heads of keys and values, D: head_dim, U: half of
    hidden_size, L: labels, M: between the layers of a masked-LM head with two
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

Dim = str | int  # a letter (see above), or the size of a dim that all models share


class Form(NamedTuple):
    """How the files of a format hold a parameter.

    Attributes:
      names: of the tensors: several where what is fused here is apart.
      is_transposed: whether they are [out, in].
      is_flat: whether several in dims or out dims are one dim there.
      is_swapped: whether what is fused here is one tensor there in the opposite order.
    """

    names: tuple[str, ...]
    is_transposed: bool = False
    is_flat: bool = True
    is_swapped: bool = False


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A parameter: its name here and in TF1's files, and its dims.

    Attributes:
      name: in this package.
      tf1: in files of google-research/bert; `{part}` stands for query, key and value.
      out_dims: of a kernel; of a table, those of a row; all dims of a vector.
      in_dims: of a kernel; of a table, the one that counts rows; () of a vector.
      num_fused: size of a dim between in dims and out dims: 3 of query, key and value, 2 of the
        products of a gated layer (the activated one first); 0: there is none.
    """

    name: str
    tf1: str
    out_dims: tuple[Dim, ...]
    in_dims: tuple[Dim, ...] = ()
    num_fused: int = 0

    def in_run(self) -> Form:
        """Its form in run directories: as it is here."""
        return Form((self.name,), is_flat=False)

    def in_tf1(self) -> Form:
        """Its form in files of google-research/bert."""
        names = tuple(self.tf1.replace('{part}', part) for part in ('query', 'key', 'value'))
        if '{part}' not in self.tf1:
            names = (self.tf1,)
        return Form(names, is_transposed=self.tf1.endswith('output_weights'))

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Its shape here; `sizes` of dims by letter (`weights.parameters.sizes_of`)."""
        fused = [self.num_fused] if self.num_fused else []
        return (*_sizes(self.in_dims, sizes), *fused, *_sizes(self.out_dims, sizes))

    def shape_in(self, form: Form, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of each tensor that `form` names."""
        if not form.is_flat:
            return self.shape(sizes)
        num_out = math.prod(_sizes(self.out_dims, sizes))
        if self.num_fused and len(form.names) == 1:
            num_out *= self.num_fused
        if not self.in_dims:
            return (num_out,)
        shape = (math.prod(_sizes(self.in_dims, sizes)), num_out)
        return shape[::-1] if form.is_transposed else shape

    def from_files(
        self, form: Form, arrays: Sequence[np.ndarray], sizes: Mapping[str, int]
    ) -> np.ndarray:
        """Converts the arrays that `form` names to the array here, float32 and contiguous."""
        if form.is_transposed:
            arrays = [array.T for array in arrays]
        if len(arrays) == 1:
            array = arrays[0].reshape(self.shape(sizes))
            if form.is_swapped:
                array = np.flip(array, axis=len(self.in_dims))
            return np.ascontiguousarray(array, np.float32)
        shape = _sizes(self.in_dims, sizes) + _sizes(self.out_dims, sizes)
        parts = [array.reshape(shape) for array in arrays]
        return np.stack(parts, axis=len(self.in_dims), dtype=np.float32)

    def to_files(self, form: Form, array: np.ndarray) -> list[np.ndarray]:
        """The inverse of `from_files`; the arrays are contiguous."""
        parts: Sequence[np.ndarray] = [array]
        if form.is_swapped:
            parts = [np.flip(array, axis=len(self.in_dims))]
        elif len(form.names) > 1:
            parts = list(np.moveaxis(array, len(self.in_dims), 0))
        files = []
        for part in parts:
            if self.in_dims:
                num_in = math.prod(part.shape[: len(self.in_dims)])
                part = part.reshape(num_in, -1)
            else:
                part = part.reshape(-1)
            if form.is_transposed:
                part = part.T
            files.append(np.ascontiguousarray(part))
        return files


def _sizes(dims: Sequence[Dim], sizes: Mapping[str, int]) -> list[int]:
    return [dim if isinstance(dim, int) else sizes[dim] for dim in dims]


def dense(
    name: str, in_dims: tuple[Dim, ...], out_dims: tuple[Dim, ...], *, num_fused: int = 0
) -> tuple[Tensor, Tensor]:
    """Kernel and bias of a `Dense`."""
    folder, _, leaf = name.rpartition('/')
    in_files = f'{folder}/{{part}}' if leaf == 'qkv' else name
    kernel = Tensor(f'{name}/kernel', f'{in_files}/kernel', out_dims, in_dims, num_fused)
    bias = Tensor(f'{name}/bias', f'{in_files}/bias', out_dims, num_fused=num_fused)
    return kernel, bias


def output_layer(name: str, num_outputs: Dim, *, tf1: str) -> tuple[Tensor, Tensor]:
    """Kernel and bias of a head's last layer.

    Args:
      name: in this package.
      num_outputs: the out dim.
      tf1: what stands before `output_weights` and `output_bias`.
    """
    kernel = Tensor(f'{name}/kernel', f'{tf1}output_weights', (num_outputs,), ('H',))
    bias = Tensor(f'{name}/bias', f'{tf1}output_bias', (num_outputs,))
    return kernel, bias


def layer_norm(name: str, size: Dim = 'H') -> tuple[Tensor, Tensor]:
    """Scale and bias of a `LayerNorm`."""
    scale = Tensor(f'{name}/scale', f'{name}/gamma', (size,))
    bias = Tensor(f'{name}/bias', f'{name}/beta', (size,))
    return scale, bias


def table(name: str, num_rows: Dim) -> Tensor:
    """A table of embeddings."""
    return Tensor(name, name, ('E',), (num_rows,))


class Part(NamedTuple):
    """Parameters that exist together, or not at all: those whose names begin with `prefix`.

    Attributes:
      prefix: of their names.
      tensors: all that some model has; its options may leave some out
        (`weights.parameters.tensors`).
    """

    prefix: str
    tensors: tuple[Tensor, ...]


POOLER = Part('bert/pooler/', (
    *dense('bert/pooler/dense', ('H',), ('H',)),
    *layer_norm('bert/pooler/LayerNorm')))
