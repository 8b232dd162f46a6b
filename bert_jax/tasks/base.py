"""What the training loop knows of a task, and all it knows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.data.packing import Units
from bert_jax.files import Path
from bert_jax.model.layers import ModelConfig

Params = Any
Sums = Mapping[str, jax.Array]  # metric sums and counts; they add up over batches and hosts


class Task(Protocol):
    """A model with its loss and its score.

    Losses and metrics are sums with counts, divided once: `totals` gives the divisors of a whole
    global batch before any of it is computed, so that a step computed in parts, or on many
    devices, is the same step.
    """

    @property
    def name(self) -> str:
        """For messages."""
        ...

    def init(self, rng: jax.Array) -> Params:
        """Parameters with flax's partitioning metadata."""
        ...

    def totals(self, batch: Mapping[str, jax.Array]) -> Mapping[str, jax.Array]:
        """Divisors of the loss over this batch."""
        ...

    def loss(
        self,
        params: Params,
        batch: Mapping[str, jax.Array],
        totals: Mapping[str, jax.Array],
        rows_Bx2: jax.Array | None,
    ) -> tuple[jax.Array, Sums]:
        """The batch's share of the loss, and metric sums.

        Args:
          params: unboxed parameters.
          batch: features [B, ...].
          totals: divisors, from the whole batch that this one is a part of.
          rows_Bx2: dropout keys (`model.dropout.dropout_rows`), or None: no dropout.
        """
        ...

    def score(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Metrics by name from summed sums."""
        ...


class DownstreamTask(Task, Protocol):
    """A task that is scored by its predictions, which a scorer compares with the whole set."""

    def outputs(
        self, params: Params, batch: Mapping[str, jax.Array], rows_Bx2: jax.Array | None = None
    ) -> dict[str, jax.Array]:
        """Logits [R, K, ...] a unit or [R, S, ...] a token: numbers whose mean over several
        models is a prediction."""
        ...


def example_batch() -> dict[str, jax.Array]:
    """The smallest packed batch: one row of eight tokens, for initialising a model."""
    ones_1x8 = jnp.ones((1, 8), jnp.int32)
    return {
        'input_ids': ones_1x8, 'input_mask': ones_1x8, 'segment_ids': ones_1x8,
        'position_ids': ones_1x8, 'cls_positions': jnp.zeros((1, 1), jnp.int32),
    }


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
    make_task: Callable[[ModelConfig], DownstreamTask]
    frozen: str = ''
