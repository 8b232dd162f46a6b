"""What training asks of a model: its parameters, its loss and its metrics.

The step and the loop know this alone. `heads.base.Head` has it for all heads.
"""

from collections.abc import Hashable, Mapping
from typing import Any, ClassVar, Protocol

import jax

from bert_jax.model.layers import ModelConfig

Params = Any
Batch = Mapping[str, jax.Array]
Keys = jax.Array | None  # dropout keys [B, 2] (`kernels.dropout.dropout_keys`); None: no dropout
Outputs = Mapping[str, Any]
Sums = Mapping[str, jax.Array]  # metric sums and counts; they add up over batches and hosts


class Trainable(Hashable, Protocol):
    """A model with a head.

    Losses and metrics are sums with counts, divided once: `totals` gives the divisors of the whole
    global batch before any of it is computed, so that a step gives the same result in parts and on
    many devices.

    Attributes:
      loss_spans_batch: whether the loss of an example depends on the other examples of its batch.
      shown: metrics of `score` that log lines show, with their short names there.
      config: of the encoder.
    """

    loss_spans_batch: ClassVar[bool]
    shown: ClassVar[Mapping[str, str]]

    @property
    def config(self) -> ModelConfig:
        """See the class."""

    def init(self, rng: jax.Array) -> Params:
        """Fresh parameters, as `layers.Parameter`s."""

    def outputs(self, params: Params, batch: Batch, dropout_keys_Bx2: Keys = None) -> Outputs:
        """The head's outputs for a batch, by name."""

    def totals(self, batch: Batch) -> Sums:
        """Divisors of the losses of this batch."""

    def loss(
        self, params: Params, batch: Batch, totals: Sums, dropout_keys_Bx2: Keys
    ) -> tuple[jax.Array, Sums]:
        """The batch's share of the loss, a scalar float32, and metric sums.

        The batch may be a part of the global one, whose divisors `totals` are.
        """

    def loss_of(self, outputs: Outputs, batch: Batch, totals: Sums) -> tuple[jax.Array, Sums]:
        """The loss of `outputs`; see `loss`."""

    def score(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Metrics by name, from sums over batches."""
