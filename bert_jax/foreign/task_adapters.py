"""Adapters for several tasks in the files of one model, as jina-embeddings-v3 is published.

Its makers' code (Sturua et al., 2024) adds a low-rank product to each matrix and table X: the files
have `X.parametrizations.weight.original`, and two factors `...0.lora_A` and `...0.lora_B` with a
dim that counts the tasks. A model computes with the sum, or without a task with the original alone.

    T: tasks, R: rank, I: inputs, or rows of a table, O: outputs, or columns of a table
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path

TASKS = 'lora_adaptations'  # the field of config.json with their names
_ORIGINAL = '.parametrizations.weight.original'
_FACTOR = '.parametrizations.weight.0.lora_'


class Stored(Protocol):
    """A tensor in a file."""

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


class _Sum(NamedTuple):
    """A tensor to which the product of a task's factors is added."""

    original: Stored
    factors: tuple[Stored, Stored]  # in the order in which they are multiplied
    number: int  # of the task
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
            factor.read()[self.number].astype(np.float32) for factor in self.factors)
        return self.original.read().astype(np.float32) + first @ second * np.float32(self.scale)


def of_parametrization(name: str) -> tuple[str, str]:
    """The names of tensors of which a parametrization of PyTorch may compute this weight."""
    original = name.removesuffix('.weight') + _ORIGINAL
    return original, f'{original}0'  # one, or a direction beside lengths (weight_norm)


def of_task(
    tensors: Mapping[str, Stored], config: Mapping[str, Any], task: str, config_file: Path
) -> dict[str, Stored]:
    """The tensors of a model for one task, without factors; '': for none.

    Args:
      tensors: in the files, by name.
      config: the content of config.json.
      task: one of `config[TASKS]`, or ''.
      config_file: its path, for messages.

    Raises:
      InputError: there are no factors, some are missing, or do not fit their tensor.
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
            found[f'{module}.weight'] = _sum(module, tensors, config, task, config_file)
        else:
            found[f'{module}.weight'] = tensor
    return found


def _sum(
    module: str, tensors: Mapping[str, Stored], config: Mapping[str, Any], task: str,
    config_file: Path,
) -> _Sum:
    """The weight of a module with a task's product."""
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
        return _Sum(original, factors, tasks.index(task), config.get('lora_alpha', 1) / rank)
    raise InputError(f'{a.path}: {a.name} is {list(a.shape)} and {b.name} {list(b.shape)}, which '
                     f'by {config_file} ({len(tasks)} tasks, lora_rank={rank!r}) do not belong to '
                     f'{original.name}, {list(original.shape)}: download them again')
