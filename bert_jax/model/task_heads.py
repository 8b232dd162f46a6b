"""Encoders with one extra layer for a downstream task (paper section 4, figure 4).

Rows may be packed (see `Bert`): K sequences a row, found by `cls_positions`.

The ablations of section 5.1: of a `causal` encoder, a sequence's vector is that of its last token,
which alone has seen the rest. With `bilstm`, a fresh BiLSTM stands between encoder and head, and a
sequence's vector is what its two directions end with.

    B: batch rows, S: sequence, H: hidden_size, K: sequences a row, L: labels
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.model import dropout as drop
from bert_jax.model.attention import gather_positions
from bert_jax.model.bilstm import BiLstm
from bert_jax.model.encoder import Bert
from bert_jax.model.layers import Dense, ModelConfig


def _bilstm(config: ModelConfig) -> BiLstm | None:
    return BiLstm(config, config.hidden_size // 2) if config.bilstm else None


def _encode(
    bert: Bert, bilstm: BiLstm | None, batch: Mapping[str, jax.Array], rows_Bx2: jax.Array | None
) -> jax.Array:
    """Hidden states [B, S, H] of all tokens."""
    x_BxSxH = bert(
        batch['input_ids'], batch['input_mask'], batch['segment_ids'], rows_Bx2,
        batch.get('position_ids'), batch.get('cls_positions'),
    )['sequence_output']
    return x_BxSxH if bilstm is None else bilstm(x_BxSxH, batch['input_mask'])


def last_tokens(numbers_BxS: jax.Array, num: int) -> jax.Array:
    """Where sequences 1 to `num` of packed rows end [B, K]; 0 where there is no such."""
    own_BxKxS = numbers_BxS[:, None, :] == jnp.arange(1, num + 1)[:, None]
    return jnp.max(jnp.where(own_BxKxS, jnp.arange(numbers_BxS.shape[1]), 0), axis=2)


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
        self.bilstm = _bilstm(c)
        self.classifier = Dense(c, (c.hidden_size,), (self.num_labels,), ('embed',), (None,))

    def __call__(
        self, batch: Mapping[str, jax.Array], rows_Bx2: jax.Array | None = None
    ) -> jax.Array:
        pooled = self._pooled(batch, rows_Bx2)
        pooled = drop.dropout(pooled, self.config.classifier_dropout, rows_Bx2, drop.CLASSIFIER)
        return self.classifier.logits(pooled)

    def _pooled(
        self, batch: Mapping[str, jax.Array], rows_Bx2: jax.Array | None
    ) -> jax.Array:
        """[B, H] or [B, K, H]; the last layer is computed at [CLS], or the last token, alone."""
        inputs = batch['input_ids'], batch['input_mask'], batch['segment_ids'], rows_Bx2
        packed = 'cls_positions' in batch
        first_BxK = (
            batch['cls_positions'] if packed else jnp.zeros((len(batch['input_ids']), 1), jnp.int32)
        )
        last_BxK = last_tokens(batch['input_mask'], first_BxK.shape[1])
        if self.bilstm is None:
            among_BxK = jnp.broadcast_to(jnp.arange(first_BxK.shape[1]), first_BxK.shape)
            read_BxK = last_BxK if self.config.causal else first_BxK
            pooled_BxKxH = self.bert(
                *inputs, batch.get('position_ids'), among_BxK, read_BxK)['pooled_output']
        else:
            x_BxSxH = _encode(self.bert, self.bilstm, batch, rows_Bx2)
            forward_BxSxU, backward_BxSxU = jnp.split(x_BxSxH, 2, axis=-1)
            pooled_BxKxH = self.bert.pooler(jnp.concatenate([
                gather_positions(forward_BxSxU, last_BxK),
                gather_positions(backward_BxSxU, first_BxK),
            ], axis=-1))
        return pooled_BxKxH if packed else pooled_BxKxH[:, 0]


class BertForTokenClassification(nn.Module):
    """Logits [B, S, L] float32 of a dense layer on every token's last hidden state."""

    config: ModelConfig
    num_labels: int

    def setup(self) -> None:
        c = self.config
        self.bert = Bert(c, pooled=False)
        self.bilstm = _bilstm(c)
        self.classifier = Dense(c, (c.hidden_size,), (self.num_labels,), ('embed',), (None,))

    def __call__(
        self, batch: Mapping[str, jax.Array], rows_Bx2: jax.Array | None = None
    ) -> jax.Array:
        x_BxSxH = _encode(self.bert, self.bilstm, batch, rows_Bx2)
        x_BxSxH = drop.dropout(x_BxSxH, self.config.classifier_dropout, rows_Bx2, drop.CLASSIFIER)
        return self.classifier.logits(x_BxSxH)


class SpanHead(nn.Module):
    """`squad`: start and end scores of each token."""

    config: ModelConfig

    def setup(self) -> None:
        c = self.config
        self.squad = Dense(c, (c.hidden_size,), (2,), ('embed',), (None,))

    def __call__(self, x_BxSxH: jax.Array) -> jax.Array:
        return self.squad.logits(x_BxSxH)


class BertForQuestionAnswering(nn.Module):
    """Start and end logits [B, S, 2] float32 of every token; no dropout before them."""

    config: ModelConfig

    def setup(self) -> None:
        self.bert = Bert(self.config, pooled=False)
        self.bilstm = _bilstm(self.config)
        self.cls = SpanHead(self.config)

    def __call__(
        self, batch: Mapping[str, jax.Array], rows_Bx2: jax.Array | None = None
    ) -> jax.Array:
        return self.cls(_encode(self.bert, self.bilstm, batch, rows_Bx2))
