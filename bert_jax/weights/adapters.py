"""The adapter of stored weights: its parameters, the kernels with one, and merging the two.

    I: inputs, M: matrices of a kernel, or those of them that have an adapter, R: rank, O: outputs
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from bert_jax.config.adapters import TARGETS, AdapterOptions
from bert_jax.heads.tensors import Tensor

_MODULE = re.compile(r'bert/encoder/layer_\d+/(.*)/kernel')
_IN_ADAPTER = re.compile(r'(bert/encoder/.*)/adapter/(?:a|b|magnitude)')


@dataclasses.dataclass(frozen=True, eq=False)
class AdapterWeights:
    """An adapter as it is stored.

    Attributes:
      options: its kind, rank, scale and target matrices.
      params: its arrays by our names; none of kind 'bitfit', whose biases are among the model's.
      base: the model without the adapter, as `init_checkpoint` named it; '' if it is not known.
    """

    options: AdapterOptions
    params: Mapping[str, np.ndarray]
    base: str = ''


class AdaptedKernel(NamedTuple):
    """A kernel that has an adapter, or several for its matrices, such as query, key and value.

    Attributes:
      name: the name of its dense layer, such as 'bert/encoder/layer_0/output/dense'.
      kernel: the parameter.
      targets: what each of its matrices is called in `adapter.targets` (`TARGETS`).
      adapted: the indices of those that have an adapter.
    """

    name: str
    kernel: Tensor
    targets: tuple[str, ...]
    adapted: tuple[int, ...]

    @property
    def is_one_matrix(self) -> bool:
        """Whether the kernel is one matrix, so that its shape has no dim that counts matrices."""
        return len(self.targets) == 1

    def shapes(
        self, options: AdapterOptions, sizes: Mapping[str, int]
    ) -> dict[str, tuple[int, ...]]:
        """The shape of each parameter of its adapter, by name."""
        shape = self.kernel.shape(sizes)
        num_in = len(self.kernel.in_dims)
        separate = () if self.is_one_matrix else (len(self.adapted),)
        columns = (*separate, *shape[num_in + len(separate) :])
        shapes = {
            'a': (*shape[:num_in], *separate, options.rank), 'b': (options.rank, *columns)}
        if options.kind == 'dora':
            shapes['magnitude'] = columns
        return {f'{self.name}/adapter/{leaf}': shape for leaf, shape in shapes.items()}


def is_of_adapter(name: str) -> bool:
    """Whether a parameter is one of an adapter."""
    return _IN_ADAPTER.fullmatch(name) is not None


def adapted_kernels(every: list[Tensor], options: AdapterOptions) -> list[AdaptedKernel]:
    """The kernels that have adapters, of all parameters of a model (`parameters.tensors`)."""
    found = []
    for tensor in every:
        module = _MODULE.fullmatch(tensor.name)
        targets = TARGETS.get(module[1], ()) if module else ()
        if tensor.num_fused and len(targets) == 1:  # several products of one input
            targets *= tensor.num_fused
        adapted = options.adapted(targets)
        if adapted:
            name = tensor.name.removesuffix('/kernel')
            found.append(AdaptedKernel(name, tensor, targets, adapted))
    return found


def column_lengths(matrices_IxMxO: np.ndarray) -> np.ndarray:
    """The length [M, O] of each column of matrices, which kind 'dora' trains as a parameter."""
    return np.linalg.norm(matrices_IxMxO, axis=0)


def with_adapter(
    kernel: np.ndarray, adapted: AdaptedKernel, options: AdapterOptions,
    params: Mapping[str, np.ndarray],
) -> np.ndarray:
    """The kernel with its adapter merged into it, so that it computes the same without; float32."""
    a, b = (params[f'{adapted.name}/adapter/{leaf}'] for leaf in ('a', 'b'))
    num_inputs = math.prod(kernel.shape[: len(adapted.kernel.in_dims)])
    num_adapted = len(adapted.adapted)
    a_IxMxR = a.reshape(num_inputs, num_adapted, -1).astype(np.float64)
    b_RxMxO = b.reshape(options.rank, num_adapted, -1).astype(np.float64)
    kernel_IxMxO = kernel.reshape(num_inputs, len(adapted.targets), -1).astype(np.float64)
    which = list(adapted.adapted)
    changed_IxMxO = kernel_IxMxO[:, which] + options.scale * np.einsum(
        'IMR,RMO->IMO', a_IxMxR, b_RxMxO)
    if options.kind == 'dora':
        magnitude_MxO = params[f'{adapted.name}/adapter/magnitude'].reshape(num_adapted, -1)
        changed_IxMxO *= magnitude_MxO / column_lengths(changed_IxMxO)
    kernel_IxMxO[:, which] = changed_IxMxO
    return kernel_IxMxO.reshape(kernel.shape).astype(np.float32)


def merged(
    params: Mapping[str, np.ndarray], adapter: AdapterWeights, every: list[Tensor]
) -> dict[str, np.ndarray]:
    """`Weights.params` with the adapter merged into them, so that they compute the same without.

    Args:
      params: of the model.
      adapter: of the model.
      every: all parameters that the model can have (`parameters.tensors`).
    """
    result = dict(params)
    for adapted in adapted_kernels(every, adapter.options):
        name = adapted.kernel.name
        result[name] = with_adapter(result[name], adapted, adapter.options, adapter.params)
    return result


def first_magnitudes(
    params: Mapping[str, np.ndarray], options: AdapterOptions, every: list[Tensor]
) -> dict[str, np.ndarray]:
    """The lengths of the columns of kernels, with which 'dora' starts, by our names.

    Args:
      params: of the model, perhaps with those of an adapter, which are left out.
      options: of the adapter.
      every: as for `merged`.
    """
    found: dict[str, np.ndarray] = {}
    for adapted in adapted_kernels(every, options):
        name = f'{adapted.name}/adapter/magnitude'
        if options.kind != 'dora' or name in params:
            continue
        kernel = params[adapted.kernel.name]
        num_in = len(adapted.kernel.in_dims)
        matrices_IxMxO = kernel.reshape(
            math.prod(kernel.shape[:num_in]), len(adapted.targets), -1)
        lengths_MxO = column_lengths(matrices_IxMxO[:, list(adapted.adapted)])
        separate = () if adapted.is_one_matrix else (len(adapted.adapted),)
        found[name] = lengths_MxO.reshape(*separate, *kernel.shape[num_in + len(separate) :])
    return found
