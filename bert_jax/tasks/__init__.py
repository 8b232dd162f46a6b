"""The tasks: a module each, which registers what it brings. Nothing else lists them."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping

from bert_jax.config import nearest
from bert_jax.runtime.errors import InputError
from bert_jax.tasks.base import KINDS, TaskKind


@functools.cache
def task_kinds() -> Mapping[str, TaskKind]:
    """All tasks by name."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f'{__name__}.{module.name}')
    return KINDS


def task_kind(task: str) -> TaskKind:
    """A task by name.

    Raises:
      InputError: there is none.
    """
    kinds = task_kinds()
    if task not in kinds:
        raise InputError(f'config.task={task!r} is unknown: {nearest(task, list(kinds))}')
    return kinds[task]
