"""One label, score or choice a unit: GLUE (paper section 4.1) and SWAG (section 4.4).

    R: rows, K: units a row, C: choices a unit, L: labels
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.model.heads import cross_entropy
from bert_jax.model.layers import ModelConfig
from bert_jax.model.task_heads import BertForSequenceClassification
from bert_jax.tasks.base import Params, Sums, example_batch


@dataclasses.dataclass(frozen=True)
class Classification:
    """Cross-entropy over labels or over choices; squared error where there is one label.

    Attributes:
      config: the encoder.
      num_labels: of the classifier; 1 for a regression and for multiple choice.
      choices: sequences a unit; above 1 the softmax is over them.
    """

    config: ModelConfig
    num_labels: int
    choices: int = 1
    name: str = 'classification'

    @property
    def regression(self) -> bool:
        """Whether the label is a number."""
        return self.num_labels == 1 and self.choices == 1

    @property
    def _model(self) -> BertForSequenceClassification:
        return BertForSequenceClassification(self.config, self.num_labels)

    def init(self, rng: jax.Array) -> Params:
        return self._model.init(rng, example_batch())['params']

    def totals(self, batch: Mapping[str, jax.Array]) -> Mapping[str, jax.Array]:
        return {'units': jnp.maximum(jnp.sum(batch['unit_weights']), 1.0)}

    def outputs(
        self, params: Params, batch: Mapping[str, jax.Array], rows_Bx2: jax.Array | None = None
    ) -> dict[str, jax.Array]:
        """`logits` [R, K, L], or [R, K, C] over choices, or [R, K, 1] of a regression."""
        logits: Any = self._model.apply({'params': params}, batch, rows_Bx2)
        if self.choices > 1:
            logits = logits.reshape(logits.shape[0], -1, self.choices)
        return {'logits': logits}

    def loss(
        self, params: Params, batch: Mapping[str, jax.Array], totals: Mapping[str, jax.Array],
        rows_Bx2: jax.Array | None,
    ) -> tuple[jax.Array, Sums]:
        logits = self.outputs(params, batch, rows_Bx2)['logits']
        weights_RxK = batch['unit_weights']
        sums = {
            'units': jnp.sum(weights_RxK),
            'tokens': jnp.sum((batch['input_mask'] > 0).astype(jnp.float32)),
        }
        if self.regression:
            losses_RxK = jnp.square(logits[..., 0] - batch['labels'])
        else:
            losses_RxK, correct_RxK = cross_entropy(logits, batch['labels'])
            sums['correct'] = jnp.sum(correct_RxK * weights_RxK)
        sums['loss_sum'] = jnp.sum(losses_RxK * weights_RxK)
        return sums['loss_sum'] / totals['units'], sums

    def score(self, sums: Mapping[str, float]) -> dict[str, float]:
        units = max(sums['units'], 1.0)
        if self.regression:
            return {'squared_error': sums['loss_sum'] / units}
        return {'accuracy': sums['correct'] / units}
