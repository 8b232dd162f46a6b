"""Spans: where the answer begins and ends (paper sections 4.2 and 4.3).

    R: rows, K: units (windows) a row, S: row length
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.model.heads import cross_entropy
from bert_jax.model.layers import ModelConfig
from bert_jax.model.task_heads import BertForQuestionAnswering
from bert_jax.tasks.base import Params, Sums, example_batch

_ELSEWHERE = -1e30  # score of tokens outside a window


@dataclasses.dataclass(frozen=True)
class QuestionAnswering:
    """Mean of the cross-entropies of start and end over the tokens of the window.

    A window without an answer has it at [CLS]. (google-research/bert's softmax also runs over the
    padding of the window, which here is not there.)
    """

    config: ModelConfig
    name: str = 'question answering'

    @property
    def _model(self) -> BertForQuestionAnswering:
        return BertForQuestionAnswering(self.config)

    def init(self, rng: jax.Array) -> Params:
        return self._model.init(rng, example_batch())['params']

    def totals(self, batch: Mapping[str, jax.Array]) -> Mapping[str, jax.Array]:
        return {'units': jnp.maximum(jnp.sum(batch['unit_weights']), 1.0)}

    def outputs(
        self, params: Params, batch: Mapping[str, jax.Array], rows_Bx2: jax.Array | None = None
    ) -> dict[str, jax.Array]:
        """`start_logits` and `end_logits` [R, S]."""
        logits: Any = self._model.apply({'params': params}, batch, rows_Bx2)
        return {'start_logits': logits[..., 0], 'end_logits': logits[..., 1]}

    def loss(
        self, params: Params, batch: Mapping[str, jax.Array], totals: Mapping[str, jax.Array],
        rows_Bx2: jax.Array | None,
    ) -> tuple[jax.Array, Sums]:
        outputs = self.outputs(params, batch, rows_Bx2)
        weights_RxK = batch['unit_weights']
        numbers_K = jnp.arange(1, weights_RxK.shape[1] + 1)
        own_RxKxS = batch['input_mask'][:, None, :] == numbers_K[None, :, None]

        def span_loss(logits_RxS: jax.Array, positions_RxK: jax.Array) -> tuple[jax.Array, ...]:
            logits_RxKxS = jnp.where(own_RxKxS, logits_RxS[:, None, :], _ELSEWHERE)
            return cross_entropy(logits_RxKxS, positions_RxK)

        start_RxK, start_right = span_loss(outputs['start_logits'], batch['start_positions'])
        end_RxK, end_right = span_loss(outputs['end_logits'], batch['end_positions'])
        sums = {
            'units': jnp.sum(weights_RxK),
            'tokens': jnp.sum((batch['input_mask'] > 0).astype(jnp.float32)),
            'correct': jnp.sum(start_right * end_right * weights_RxK),
            'loss_sum': jnp.sum((start_RxK + end_RxK) * 0.5 * weights_RxK),
        }
        return sums['loss_sum'] / totals['units'], sums

    def score(self, sums: Mapping[str, float]) -> dict[str, float]:
        return {'accuracy': sums['correct'] / max(sums['units'], 1.0)}  # both ends right
