"""What a downstream task brings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from bert_jax.data.packing import Units
from bert_jax.files import Path
from bert_jax.model.layers import BertConfig
from bert_jax.model.objectives import Objective


@dataclasses.dataclass(frozen=True)
class EvalSet:
    """Examples that are predicted as a whole.

    Attributes:
      name: prefix of its metrics, empty for the main set.
      units: its examples.
      score: from outputs in the order of `units` ([n, ...] and [T, ...]) to metrics by name; None
        for a set without labels.
      write: writes prediction files into a directory, from the same outputs.
    """

    name: str
    units: Units
    score: Callable[[dict[str, np.ndarray]], dict[str, float]] | None
    write: Callable[[dict[str, np.ndarray], Path], None]


@dataclasses.dataclass(frozen=True)
class Downstream:
    """A downstream task with its data.

    Attributes:
      train: what is trained on.
      evaluated: sets scored during training.
      predicted: further sets, predicted at the end.
      metric: name of the metric that picks the best evaluation.
      head: what kind of head the model has, as `weights` names it.
      labels: their names by id.
      make_task: from the encoder to the task.
      frozen: top-level part of the parameters that is not trained, or empty.
    """

    train: Units
    evaluated: tuple[EvalSet, ...]
    predicted: tuple[EvalSet, ...]
    metric: str
    head: str
    labels: tuple[str, ...]
    make_task: Callable[[BertConfig], Objective]
    frozen: str = ''
