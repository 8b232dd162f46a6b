"""A model's tensors in `flax_model.msgpack`, which transformers' Flax classes wrote.

Transformers 5 has no Flax classes any more, and so cannot read these files.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.serialization
import numpy as np

from bert_jax.runtime.errors import InputError, visible
from bert_jax.runtime.files import Path, check_no_pointer, local_copy

FLAX = 'flax_model.msgpack'
_DTYPES = ('float32', 'float16', 'bfloat16')
# The last part of a parameter's name in Flax, and in PyTorch.
_LAST_PARTS = {'kernel': 'weight', 'embedding': 'weight', 'scale': 'weight', 'bias': 'bias'}
# What Flax's reader, which checks nothing, may raise of a damaged or hostile file.
_DAMAGED = (ValueError, TypeError, KeyError, AttributeError, AssertionError, RecursionError,
            OverflowError, MemoryError, SyntaxError)


class FlaxTensor(NamedTuple):
    """A tensor of a Flax file, with PyTorch's name and order of dims."""

    array: np.ndarray
    path: Path
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dims."""
        return self.array.shape

    def read(self) -> np.ndarray:
        """The array as stored."""
        return self.array


def read_flax(path: Path) -> dict[str, FlaxTensor]:
    """The tensors in a file of transformers' Flax classes, by PyTorch's names.

    Kernels, which Flax has as [in, out], are transposed to PyTorch's [out, in] without a copy. The
    whole file is read into memory.

    Raises:
      InputError: it is damaged, or holds something else than float arrays.
    """
    content = local_copy(path).read_bytes()
    check_no_pointer(path, content)
    try:
        tree = flax.serialization.msgpack_restore(content)
    except _DAMAGED as error:
        raise InputError(f'{path} is not a complete Flax file ({type(error).__name__}: '
                         f'{error!s:.100}): download or copy it again') from None
    if not isinstance(tree, dict):
        raise InputError(f'{path} holds no parameters: download or copy it again')
    if isinstance(tree.get('params'), dict):  # the file has a whole state, with its parameters
        tree = tree['params']
    tensors: dict[str, FlaxTensor] = {}
    _add_tensors(tensors, tree, (), path)
    return tensors


def _add_tensors(
    tensors: dict[str, FlaxTensor], tree: Mapping[str, Any], above: tuple[str, ...], path: Path
) -> None:
    """Adds the arrays in a part of the tree to `tensors`, by PyTorch's names.

    Args:
      tensors: the dict to add to.
      tree: the part.
      above: the names that lead to it from the root.
      path: the file.

    Raises:
      InputError: a name is no text, or a value is no float array.
    """
    for name, value in tree.items():
        if not isinstance(name, str):
            raise InputError(f'{path} has the name {name!r:.100}, which is no text: download it '
                             'again')
        if isinstance(value, Mapping):
            _add_tensors(tensors, value, (*above, name), path)
            continue
        flax_name = '/'.join((*above, name))
        if not isinstance(value, np.ndarray):
            raise InputError(f'{path}: {visible(flax_name)} is not an array: download it again')
        if value.dtype.name not in _DTYPES:
            raise InputError(f'{path}: {visible(flax_name)} is of type {value.dtype.name}: save '
                             'it as float32')
        if name == 'kernel':
            value = value.T
        torch_name = '.'.join((*above, _LAST_PARTS.get(name, name)))
        tensors[torch_name] = FlaxTensor(value, path, torch_name)
