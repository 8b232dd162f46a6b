"""Encoders with one extra layer for a downstream task (paper section 4, figure 4).

Rows may be packed (see `Bert`): K sequences a row, found by `cls_positions`.

    B: batch rows, S: sequence, H: hidden_size, K: sequences a row, L: labels
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.model import dropout as drop
from bert_jax.model.encoder import Bert
from bert_jax.model.layers import Dense, ModelConfig


def _encode(
    bert: Bert, batch: Mapping[str, jax.Array], rows_Bx2: jax.Array | None
) -> dict[str, jax.Array]:
    return bert(
        batch['input_ids'], batch['input_mask'], batch['segment_ids'], rows_Bx2,
        batch.get('position_ids'), batch.get('cls_positions'),
    )


class BertForSequenceClassification(nn.Module):
    """Logits [B, L] float32 of a dense layer on the pooled vector; [B, K, L] from packed rows.

    With one label it is a regression. Multiple choice is this with one label and the choices'
    logits side by side.
    """

    config: ModelConfig
    num_labels: int

    def setup(self) -> None:
        c = self.config
        self.bert = Bert(c)
        self.classifier = Dense(c, (c.hidden_size,), (self.num_labels,), ('embed',), (None,))

    def __call__(
        self, batch: Mapping[str, jax.Array], rows_Bx2: jax.Array | None = None
    ) -> jax.Array:
        pooled = self._pooled(batch, rows_Bx2)
        pooled = drop.dropout(pooled, self.config.classifier_dropout, rows_Bx2, drop.CLASSIFIER)
        return self.classifier(pooled).astype(jnp.float32)

    def _pooled(
        self, batch: Mapping[str, jax.Array], rows_Bx2: jax.Array | None
    ) -> jax.Array:
        """[B, H] or [B, K, H]; the last layer is computed at [CLS] alone."""
        inputs = batch['input_ids'], batch['input_mask'], batch['segment_ids'], rows_Bx2
        cls_BxK = batch.get('cls_positions')
        if cls_BxK is None:
            first_Bx1 = jnp.zeros((len(batch['input_ids']), 1), jnp.int32)
            return self.bert(*inputs, batch.get('position_ids'), None, first_Bx1)['pooled_output']
        among_BxK = jnp.broadcast_to(jnp.arange(cls_BxK.shape[1]), cls_BxK.shape)
        return self.bert(*inputs, batch['position_ids'], among_BxK, cls_BxK)['pooled_output']


class BertForTokenClassification(nn.Module):
    """Logits [B, S, L] float32 of a dense layer on every token's last hidden state."""

    config: ModelConfig
    num_labels: int

    def setup(self) -> None:
        c = self.config
        self.bert = Bert(c, pooled=False)
        self.classifier = Dense(c, (c.hidden_size,), (self.num_labels,), ('embed',), (None,))

    def __call__(
        self, batch: Mapping[str, jax.Array], rows_Bx2: jax.Array | None = None
    ) -> jax.Array:
        x_BxSxH = _encode(self.bert, batch, rows_Bx2)['sequence_output']
        x_BxSxH = drop.dropout(x_BxSxH, self.config.classifier_dropout, rows_Bx2, drop.CLASSIFIER)
        return self.classifier(x_BxSxH).astype(jnp.float32)


class SpanHead(nn.Module):
    """`squad`: start and end scores of each token."""

    config: ModelConfig

    def setup(self) -> None:
        c = self.config
        self.squad = Dense(c, (c.hidden_size,), (2,), ('embed',), (None,))

    def __call__(self, x_BxSxH: jax.Array) -> jax.Array:
        return self.squad(x_BxSxH).astype(jnp.float32)


class BertForQuestionAnswering(nn.Module):
    """Start and end logits [B, S, 2] float32 of every token; no dropout before them."""

    config: ModelConfig

    def setup(self) -> None:
        self.bert = Bert(self.config, pooled=False)
        self.cls = SpanHead(self.config)

    def __call__(
        self, batch: Mapping[str, jax.Array], rows_Bx2: jax.Array | None = None
    ) -> jax.Array:
        return self.cls(_encode(self.bert, batch, rows_Bx2)['sequence_output'])
