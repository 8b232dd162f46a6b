"""Adapters for several tasks in the files of one model, as jina-embeddings-v3 is published.

Its makers' code (Sturua et al., 2024) adds the product of two low-rank factors to each matrix and
embedding table X. The files have `X.parametrizations.weight.original`, and the factors
`X.parametrizations.weight.0.lora_A` and `...lora_B`, whose first dim is the task. With a task, the
model computes with the sum; without, with the original alone.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path

TASKS = 'lora_adaptations'  # the field of config.json with the tasks' names
_ORIGINAL = '.parametrizations.weight.original'
_FACTOR = '.parametrizations.weight.0.lora_'


class Stored(Protocol):
    """A tensor in a file, or one made of tensors in files, which is read when it is needed."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dims; nothing is read."""

    @property
    def path(self) -> Path:
        """The file."""

    @property
    def name(self) -> str:
        """Its name there."""

    def read(self) -> np.ndarray:
        """The array as stored."""


class _WithProduct(NamedTuple):
    """A tensor to which the product of a task's factors is added.

    Attributes:
      original: the tensor without it.
      factors: of all tasks, in the order in which they are multiplied.
      task_index: the task's index in the factors' first dim.
      scale: multiplies the product.
    """

    original: Stored
    factors: tuple[Stored, Stored]
    task_index: int
    scale: float

    @property
    def shape(self) -> tuple[int, ...]:
        return self.original.shape

    @property
    def path(self) -> Path:
        return self.original.path

    @property
    def name(self) -> str:
        return self.original.name

    def read(self) -> np.ndarray:
        first, second = (
            factor.read()[self.task_index].astype(np.float32) for factor in self.factors)
        return self.original.read().astype(np.float32) + first @ second * np.float32(self.scale)


def parametrized_names(name: str) -> tuple[str, str]:
    """The names that a weight's tensor has in files if a parametrization of PyTorch computes it."""
    original = name.removesuffix('.weight') + _ORIGINAL
    return original, f'{original}0'  # the latter with weight_norm, which has two tensors


def tensors_for_task(
    tensors: Mapping[str, Stored], config: Mapping[str, Any], task: str, config_file: Path
) -> dict[str, Stored]:
    """The tensors of a model with the adapter of one task added.

    Args:
      tensors: those in the files, by name; the factors are not in the result.
      config: the content of config.json.
      task: one of `config[TASKS]`; '': the model without any of its adapters.
      config_file: the path of config.json, for messages.

    Raises:
      InputError: there are no factors, some are missing, or they do not fit their tensor.
    """
    if not config.get(TASKS):
        return dict(tensors)
    if task and not any(name.endswith(_ORIGINAL) for name in tensors):
        raise InputError(f'{config_file}: {TASKS} names {task!r}, and the files beside it hold no '
                         'adapter: download them again, or leave --adapter out')
    found: dict[str, Stored] = {}
    for name, tensor in tensors.items():
        module = name.removesuffix(_ORIGINAL)
        if module == name:
            if _FACTOR not in name:
                found[name] = tensor
        elif task:
            found[f'{module}.weight'] = _with_product(module, tensors, config, task, config_file)
        else:
            found[f'{module}.weight'] = tensor
    return found


def _with_product(
    module: str, tensors: Mapping[str, Stored], config: Mapping[str, Any], task: str,
    config_file: Path,
) -> _WithProduct:
    """The weight of a module with the product of a task's factors; arguments as above.

    Raises:
      InputError: a factor is missing, or does not fit the weight.
    """
    tasks = config[TASKS]
    original = tensors[module + _ORIGINAL]
    names = [f'{module}{_FACTOR}{letter}' for letter in 'AB']
    if not tensors.keys() >= set(names):
        raise InputError(f'{original.path} has no {names[0]} and {names[1]} beside '
                         f'{original.name}: download it again')
    a, b = (tensors[name] for name in names)
    rank = config.get('lora_rank')
    num_out, num_in = original.shape
    of_matrix = (len(tasks), rank, num_in), (len(tasks), num_out, rank)
    of_table = (len(tasks), num_out, rank), (len(tasks), rank, num_in)  # its rows are inputs
    if (a.shape, b.shape) in (of_matrix, of_table):
        factors = (b, a) if (a.shape, b.shape) == of_matrix else (a, b)
        scale = config.get('lora_alpha', 1) / rank
        return _WithProduct(original, factors, tasks.index(task), scale)
    raise InputError(f'{a.path}: {a.name} is {list(a.shape)} and {b.name} {list(b.shape)}, which '
                     f'by {config_file} ({len(tasks)} tasks, lora_rank={rank!r}) do not belong to '
                     f'{original.name}, {list(original.shape)}: download them again')
