"""Pre-training heads and losses (paper section 3.1).

    B: batch rows, S: sequence, P: masked positions a row, H: hidden_size, V: padded vocabulary
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from bert_jax.model.encoder import Bert
from bert_jax.model.layers import BertConfig, Dense, LayerNorm, gelu
from bert_jax.sharding import partitioned

PADDING_LOGIT = -1e30


def gather_positions(x_BxSxH: jax.Array, positions_BxP: jax.Array) -> jax.Array:
    """Rows [B, P, H] of the sequence at `positions`.

    As a product with one-hot rows: it costs under 0.1 % of the model, is exact, and its gradient
    is another product instead of a scatter.
    """
    one_hot_BxPxS = jax.nn.one_hot(positions_BxP, x_BxSxH.shape[1], dtype=x_BxSxH.dtype)
    return jnp.einsum('BPS,BSH->BPH', one_hot_BxPxS, x_BxSxH, precision=lax.Precision.HIGHEST)


class Predictions(nn.Module):
    """Masked-LM logits [B, P, V] float32 of the gathered positions; the output layer is tied."""

    config: BertConfig

    @nn.compact
    def __call__(self, x_BxPxH: jax.Array, word_embeddings_VxH: jax.Array) -> jax.Array:
        c = self.config
        x = Transform(c, name='transform')(x_BxPxH)
        bias_V = self.param(
            'output_bias', partitioned(nn.initializers.zeros, 'vocab'), (c.padded_vocab_size,)
        )
        logits = jnp.einsum(
            'BPH,VH->BPV', x, word_embeddings_VxH.astype(c.dtype),
            preferred_element_type=jnp.float32,
        )
        # Rows past the vocabulary can never be predicted, and get no gradient.
        padding_V = jnp.arange(c.padded_vocab_size) >= c.vocab_size
        logits = logits + jnp.where(padding_V, PADDING_LOGIT, bias_V)
        return c.layout(logits, 'batch', None, 'vocab')


class Transform(nn.Module):
    """Dense -> gelu -> LayerNorm before the output layer."""

    config: BertConfig

    @nn.compact
    def __call__(self, x_BxPxH: jax.Array) -> jax.Array:
        c = self.config
        dense = Dense(c, (c.hidden_size,), (c.hidden_size,), ('embed',), (None,), name='dense')
        return LayerNorm(c, name='LayerNorm')(gelu(dense(x_BxPxH), c.hidden_act))


class PretrainingHeads(nn.Module):
    """`predictions` (masked LM) and `seq_relationship` (next sentence)."""

    config: BertConfig

    def setup(self) -> None:
        c = self.config
        self.predictions = Predictions(c)
        self.seq_relationship = Dense(c, (c.hidden_size,), (2,), ('embed',), (None,))


class BertForPreTraining(nn.Module):
    """Encoder with masked-LM and next-sentence heads.

    Returns a dict: `mlm_logits` [B, P, V] float32, `nsp_logits` [B, 2] float32, and all that
    `Bert` returns.
    """

    config: BertConfig

    def setup(self) -> None:
        self.bert = Bert(self.config)
        self.cls = PretrainingHeads(self.config)

    def __call__(
        self,
        input_ids_BxS: jax.Array,
        input_mask_BxS: jax.Array,
        segment_ids_BxS: jax.Array,
        masked_lm_positions_BxP: jax.Array,
        rows_Bx2: jax.Array | None = None,
    ) -> dict[str, jax.Array]:
        outputs = self.bert(input_ids_BxS, input_mask_BxS, segment_ids_BxS, rows_Bx2)
        masked_BxPxH = gather_positions(outputs['sequence_output'], masked_lm_positions_BxP)
        word_embeddings = self.bert.embeddings.word_embeddings
        return outputs | {
            'mlm_logits': self.cls.predictions(masked_BxPxH, word_embeddings),
            'nsp_logits': self.cls.seq_relationship(outputs['pooled_output']).astype(jnp.float32),
        }


@jax.custom_vjp
def cross_entropy(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Negative log-likelihood and whether the label has the highest logit.

    The gradient is written out so that the backward pass reads the logits once and keeps nothing
    but them and one number a row.

    Args:
      logits: [..., V] float32.
      labels: [...] int32.

    Returns:
      (loss [...] float32, correct [...] float32 of 0 and 1).
    """
    return _cross_entropy_forward(logits, labels)[0]


def _cross_entropy_forward(logits, labels):
    highest = jnp.max(logits, axis=-1)
    log_z = jnp.log(jnp.sum(jnp.exp(logits - highest[..., None]), axis=-1)) + highest
    label_logit = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    # Equality with the maximum, which is at hand, instead of an argmax over the vocabulary.
    correct = (label_logit >= highest).astype(jnp.float32)
    return (log_z - label_logit, correct), (logits, labels, log_z)


def _cross_entropy_backward(residuals, gradients):
    logits, labels, log_z = residuals
    d_loss = gradients[0][..., None]
    probs = jnp.exp(logits - log_z[..., None])
    classes = lax.broadcasted_iota(labels.dtype, logits.shape, logits.ndim - 1)
    d_logits = (probs - (classes == labels[..., None]).astype(jnp.float32)) * d_loss
    return d_logits, None


cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward)
