"""A label for each word: named entities (paper section 5.3).

    R: rows, S: row length, L: labels
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.model.bilstm import BertFeatureTagger
from bert_jax.model.heads import cross_entropy
from bert_jax.model.layers import ModelConfig
from bert_jax.model.task_heads import BertForTokenClassification
from bert_jax.tasks.base import Params, Sums, example_batch


@dataclasses.dataclass(frozen=True)
class Tagging:
    """Cross-entropy at the first piece of each word (`token_weights` 1), mean over words.

    Attributes:
      config: the encoder.
      num_labels: of the classifier.
      features: empty: fine-tuned; else which layers of a frozen encoder a BiLSTM reads.
    """

    config: ModelConfig
    num_labels: int
    features: str = ''
    name: str = 'tagging'

    @property
    def _model(self) -> BertForTokenClassification | BertFeatureTagger:
        if self.features:
            return BertFeatureTagger(self.config, self.num_labels, self.features)
        return BertForTokenClassification(self.config, self.num_labels)

    def init(self, rng: jax.Array) -> Params:
        return self._model.init(rng, example_batch())['params']

    def totals(self, batch: Mapping[str, jax.Array]) -> Mapping[str, jax.Array]:
        return {'words': jnp.maximum(jnp.sum(batch['token_weights']), 1.0)}

    def outputs(
        self, params: Params, batch: Mapping[str, jax.Array], rows_Bx2: jax.Array | None = None
    ) -> dict[str, jax.Array]:
        """`logits` [R, S, L] of every token."""
        logits: Any = self._model.apply({'params': params}, batch, rows_Bx2)
        return {'logits': logits}

    def loss(
        self, params: Params, batch: Mapping[str, jax.Array], totals: Mapping[str, jax.Array],
        rows_Bx2: jax.Array | None,
    ) -> tuple[jax.Array, Sums]:
        losses_RxS, correct_RxS = cross_entropy(
            self.outputs(params, batch, rows_Bx2)['logits'], batch['token_labels']
        )
        weights_RxS = batch['token_weights']
        sums = {
            'words': jnp.sum(weights_RxS),
            'tokens': jnp.sum((batch['input_mask'] > 0).astype(jnp.float32)),
            'correct': jnp.sum(correct_RxS * weights_RxS),
            'loss_sum': jnp.sum(losses_RxS * weights_RxS),
        }
        return sums['loss_sum'] / totals['words'], sums

    def score(self, sums: Mapping[str, float]) -> dict[str, float]:
        return {'accuracy': sums['correct'] / max(sums['words'], 1.0)}  # of words
