"""What the training loop knows of a task, and all it knows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import jax

from bert_jax.data.spec import BatchSpec

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

    def batch_spec(self, max_seq_length: int, max_predictions_per_seq: int) -> BatchSpec:
        """Features that `loss` reads."""
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

    def flops(self, max_seq_length: int, max_predictions_per_seq: int) -> float:
        """FLOPs of training on one row."""
        ...
