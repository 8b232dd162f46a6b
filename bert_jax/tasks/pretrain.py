"""Pre-training: masked LM and next sentence prediction (paper section 3.1).

    B: batch rows, S: sequence, P: masked positions a row
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.model.flops import train_flops
from bert_jax.model.heads import (
    BertForPreTraining,
    cross_entropy,
    masked_lm_loss,
    mlm_chunks,
)
from bert_jax.model.layers import ModelConfig
from bert_jax.tasks.base import Params, Sums

# Masked-LM logits are computed in parts of at most so many bytes a device; a CPU has little cache.
CHUNK_BYTES, CHUNK_BYTES_ON_CPU = 1 << 30, 16 << 20


@dataclasses.dataclass(frozen=True)
class Pretraining:
    """The loss is the mean MLM loss over masked positions plus the mean NSP loss over rows.

    Both means are over the global batch. (google-research/bert on TPUs averages per core first,
    which weights positions by how many others their core holds.)
    """

    config: ModelConfig
    next_sentence: bool = True
    name: str = 'pretrain'

    def init(self, rng: jax.Array) -> Params:
        ones_1x8 = jnp.ones((1, 8), jnp.int32)
        positions = jnp.zeros((1, 1), jnp.int32)
        model = BertForPreTraining(self.config)
        return model.init(rng, ones_1x8, ones_1x8, ones_1x8, positions)['params']

    def totals(self, batch: Mapping[str, jax.Array]) -> Mapping[str, jax.Array]:
        return {
            'masked': jnp.maximum(jnp.sum(batch['masked_lm_weights']), 1.0),
            'rows': jnp.maximum(jnp.sum(batch['example_weights']), 1.0),
        }

    def outputs(
        self, params: Params, batch: Mapping[str, jax.Array], rows_Bx2: jax.Array | None = None
    ) -> dict[str, Any]:
        """What `BertForPreTraining` returns."""
        outputs: Any = BertForPreTraining(self.config).apply(
            {'params': params},
            batch['input_ids'], batch['input_mask'], batch['segment_ids'],
            batch['masked_lm_positions'], rows_Bx2,
        )
        return outputs

    def loss(
        self,
        params: Params,
        batch: Mapping[str, jax.Array],
        totals: Mapping[str, jax.Array],
        rows_Bx2: jax.Array | None,
    ) -> tuple[jax.Array, Sums]:
        outputs = self.outputs(params, batch, rows_Bx2)
        weights_BxP = batch['masked_lm_weights']
        c = self.config
        num_rows, num_slots = weights_BxP.shape
        chunks = mlm_chunks(
            -(-num_rows // c.layout.batch_shards), num_slots, c.padded_vocab_size,
            CHUNK_BYTES_ON_CPU if c.layout.on_cpu else CHUNK_BYTES,
        )
        mlm_loss, mlm_correct = masked_lm_loss(
            outputs['mlm_output'], batch['masked_lm_ids'], weights_BxP, chunks, c.layout
        )
        sums = {
            'mlm_loss': mlm_loss,
            'mlm_correct': mlm_correct,
            'mlm_count': jnp.sum(weights_BxP),
            'rows': jnp.sum(batch['example_weights']),
            'tokens': jnp.sum(batch['input_mask'].astype(jnp.float32)),
        }
        loss = sums['mlm_loss'] / totals['masked']
        if self.next_sentence:
            weights_B = batch['example_weights']
            nsp_B, nsp_correct_B = cross_entropy(
                outputs['nsp_logits'], batch['next_sentence_labels']
            )
            sums['nsp_loss'] = jnp.sum(nsp_B * weights_B)
            sums['nsp_correct'] = jnp.sum(nsp_correct_B * weights_B)
            loss = loss + sums['nsp_loss'] / totals['rows']
        return loss, sums

    def score(self, sums: Mapping[str, float]) -> dict[str, float]:
        masked, rows = max(sums['mlm_count'], 1.0), max(sums['rows'], 1.0)
        mlm_loss = sums['mlm_loss'] / masked
        metrics = {
            'mlm_loss': mlm_loss,
            'mlm_perplexity': math.exp(min(mlm_loss, 700.0)),
            'mlm_accuracy': sums['mlm_correct'] / masked,
        }
        if self.next_sentence:
            metrics['nsp_loss'] = sums['nsp_loss'] / rows
            metrics['nsp_accuracy'] = sums['nsp_correct'] / rows
        return metrics

    def flops(self, max_seq_length: int, max_predictions_per_seq: int) -> float:
        """FLOPs of training on one row."""
        return train_flops(self.config, max_seq_length, max_predictions_per_seq)
