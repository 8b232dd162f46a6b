"""A head of one's own: of pairs of texts, which second one belongs to the first."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.heads.base import Batch, Head, Keys, Losses, Outputs, among_examples, cross_entropy
from bert_jax.model.attention import gather_positions
from bert_jax.model.encoder import Bert
from bert_jax.model.layers import ModelConfig


class Vectors(nn.Module):
    """Unit vectors [R, K, 2, H] of both texts of each pair."""

    config: ModelConfig

    @nn.compact
    def __call__(self, batch: Batch, rows_Bx2: Keys = None) -> jax.Array:
        outputs = Bert(self.config, pooled=False, name='bert')(
            batch['input_ids'], batch['sequence_ids'], batch['segment_ids'], rows_Bx2,
            batch['position_ids'])
        x = gather_positions(outputs['sequence_output'], batch['cls_positions'])
        x = x.astype(jnp.float32)
        x = x / jnp.linalg.norm(x, axis=-1, keepdims=True)
        return x.reshape(x.shape[0], -1, 2, x.shape[-1])


@dataclasses.dataclass(frozen=True)
class Contrastive(Head):
    """Cross-entropy of the cosines of a first text with all second ones (van den Oord, 2018)."""

    name = 'contrastive'
    compares = True
    sequences = 2

    temperature: float = 0.05

    @property
    def module(self) -> nn.Module:
        return Vectors(self.config)

    def losses(self, outputs: Outputs, batch: Batch) -> Losses:
        first_NxH, second_NxH = outputs['logits'][:, 0], outputs['logits'][:, 1]
        scores_NxN = first_NxH @ second_NxH.T / self.temperature
        return cross_entropy(
            among_examples(scores_NxN, batch), jnp.arange(len(scores_NxN)))
