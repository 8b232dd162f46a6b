"""Pre-training heads and losses (paper section 3.1).

    B: batch rows, S: sequence, P: masked positions a row, K: sequences a row, H: hidden_size,
    V: padded vocabulary
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from bert_jax.model.attention import gather_positions
from bert_jax.model.encoder import Bert
from bert_jax.model.layers import Dense, LayerNorm, ModelConfig, gelu, parameter
from bert_jax.train.sharding import Layout

PADDING_LOGIT = -1e30


class Predictions(nn.Module):
    """The masked-LM head up to its output layer, which is tied to the word embeddings.

    Returns (hidden [B, P, H] in the compute dtype, bias [V] float32).
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, x_BxPxH: jax.Array) -> tuple[jax.Array, jax.Array]:
        c = self.config
        bias_V = self.param(
            'output_bias', parameter(nn.initializers.zeros, 'vocab', decays=False),
            (c.padded_vocab_size,),
        )
        # Rows past the vocabulary can never be predicted, and get no gradient.
        padding_V = jnp.arange(c.padded_vocab_size) >= c.vocab_size
        hidden = Transform(c, name='transform')(x_BxPxH)
        return hidden, jnp.where(padding_V, PADDING_LOGIT, bias_V)


class Transform(nn.Module):
    """Dense -> gelu -> LayerNorm before the output layer."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x_BxPxH: jax.Array) -> jax.Array:
        c = self.config
        dense = Dense(c, (c.hidden_size,), (c.hidden_size,), ('embed',), (None,), name='dense')
        return LayerNorm(c, name='LayerNorm')(gelu(dense(x_BxPxH), c.hidden_act))


class PretrainingHeads(nn.Module):
    """`predictions` (masked LM) and `seq_relationship` (next sentence)."""

    config: ModelConfig

    def setup(self) -> None:
        c = self.config
        self.predictions = Predictions(c)
        self.seq_relationship = Dense(c, (c.hidden_size,), (2,), ('embed',), (None,))


class BertForPreTraining(nn.Module):
    """Encoder with masked-LM and next-sentence heads.

    Args:
      everywhere: whether `sequence_output` is of all positions. Else it is of [CLS] and of the
        masked ones, which the losses need, and the last layer is computed there alone.

    Returns a dict: `nsp_logits` [B, 2] float32, or [B, K, 2] of packed rows (see `Bert`); what
    `masked_lm_logits` and `masked_lm_loss` take as `output`: `mlm_output`, (hidden [B, P, H], word
    embeddings [V, H], bias [V]); and all that `Bert` returns.
    """

    config: ModelConfig
    everywhere: bool = True

    def setup(self) -> None:
        self.bert = Bert(self.config)
        self.cls = PretrainingHeads(self.config)

    def __call__(
        self,
        input_ids_BxS: jax.Array,
        input_mask_BxS: jax.Array,
        segment_ids_BxS: jax.Array,
        masked_lm_positions_BxP: jax.Array | None,
        rows_Bx2: jax.Array | None = None,
        position_ids_BxS: jax.Array | None = None,
        cls_positions_BxK: jax.Array | None = None,
    ) -> dict[str, Any]:
        """See the class; without positions, `mlm_output` is of all of them in order."""
        c = self.config
        inputs = (input_ids_BxS, input_mask_BxS, segment_ids_BxS, rows_Bx2, position_ids_BxS)
        if masked_lm_positions_BxP is None:
            outputs = self.bert(*inputs, cls_positions_BxK)
            masked_BxPxH = outputs['sequence_output']
        elif self.everywhere:
            outputs = self.bert(*inputs, cls_positions_BxK)
            masked_BxPxH = gather_positions(outputs['sequence_output'], masked_lm_positions_BxP)
        else:
            among_BxK, first_BxK = None, jnp.zeros((len(input_ids_BxS), 1), jnp.int32)
            if cls_positions_BxK is not None:
                first_BxK = cls_positions_BxK
                among_BxK = jnp.broadcast_to(jnp.arange(first_BxK.shape[1]), first_BxK.shape)
            wanted = jnp.concatenate([first_BxK, masked_lm_positions_BxP], axis=1)
            outputs = self.bert(*inputs, among_BxK, wanted)
            masked_BxPxH = outputs['sequence_output'][:, first_BxK.shape[1]:]
        hidden_BxPxH, bias_V = self.cls.predictions(masked_BxPxH)
        table_VxH = c.layout(
            self.bert.embeddings.word_embeddings.astype(c.dtype), 'vocab', None
        )
        return outputs | {
            'mlm_output': (hidden_BxPxH, table_VxH, bias_V),
            'nsp_logits': self.cls.seq_relationship.logits(outputs['pooled_output']),
        }


MlmOutput = tuple[jax.Array, jax.Array, jax.Array]


def masked_lm_logits(output: MlmOutput) -> jax.Array:
    """Logits [..., V] float32 of hidden [..., H]; padding rows of V are at -1e30."""
    hidden, table_VxH, bias_V = output
    logits = jnp.einsum('...H,VH->...V', hidden, table_VxH, preferred_element_type=jnp.float32)
    return logits + bias_V


def cross_entropy(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Negative log-likelihood and whether the label has the highest logit.

    Args:
      logits: [..., V] float32.
      labels: [...] int32.

    Returns:
      (loss [...] float32, correct [...] float32 of 0 and 1).
    """
    log_z = jax.nn.logsumexp(logits, axis=-1)
    label_logit = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    # Equality with the maximum, which is at hand, instead of an argmax over the vocabulary.
    correct = (label_logit >= jnp.max(logits, axis=-1)).astype(jnp.float32)
    return log_z - label_logit, correct


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def masked_lm_loss(
    output: MlmOutput, labels_BxP: jax.Array, weights_BxP: jax.Array, chunks: int, layout: Layout
) -> tuple[jax.Array, jax.Array]:
    """Sums of cross entropy and of correct predictions over the masked positions.

    The logits of all positions at once would be the largest array of the step, several times read
    and written. They are computed `chunks` times a part of the slots, and the gradient of a part
    right behind it, while it is in cache: nothing of [B, P, V] is kept for the backward pass,
    which only scales.

    Args:
      output: `mlm_output` of `BertForPreTraining`.
      labels_BxP: ids to predict.
      weights_BxP: 1 on used slots, 0 on empty ones.
      chunks: parts that the slots are computed in, see `mlm_chunks`.
      layout: of activations on the mesh.
    """
    sums, _ = _loss_and_gradients(output, labels_BxP, weights_BxP, chunks, layout, False)
    return sums


def mlm_chunks(rows: int, slots: int, vocab_size: int, limit_bytes: int) -> int:
    """The fewest equal parts of `slots` whose float32 logits for `rows` rows fit the limit."""
    for chunks in range(1, slots):
        if slots % chunks == 0 and rows * (slots // chunks) * vocab_size * 4 <= limit_bytes:
            return chunks
    return slots


def _loss_and_gradients(output, labels_BxP, weights_BxP, chunks, layout, with_gradients):
    hidden_BxPxH, table_VxH, bias_V = output
    batch, slots, _ = hidden_BxPxH.shape

    def part(carry, chunk):
        hidden_MxH, labels_M, weights_M = chunk  # M: B * P / chunks
        logits_MxV = layout(masked_lm_logits((hidden_MxH, table_VxH, bias_V)), 'batch', 'vocab')
        loss_M, correct_M = cross_entropy(logits_MxV, labels_M)
        sums = (jnp.sum(loss_M * weights_M), jnp.sum(correct_M * weights_M))
        if not with_gradients:
            return jax.tree.map(jnp.add, carry, sums), None
        label_logit = jnp.take_along_axis(logits_MxV, labels_M[:, None], axis=-1)
        log_z = loss_M[:, None] + label_logit
        classes = lax.broadcasted_iota(labels_M.dtype, logits_MxV.shape, 1)
        right_MxV = (classes == labels_M[:, None]).astype(jnp.float32)
        d_logits = (jnp.exp(logits_MxV - log_z) - right_MxV) * weights_M[:, None]
        d_bias = jnp.sum(d_logits, axis=0)
        d_logits = d_logits.astype(hidden_MxH.dtype)
        d_hidden_MxH = jnp.einsum('MV,VH->MH', d_logits, table_VxH)
        d_table = jnp.einsum(
            'MV,MH->VH', d_logits, hidden_MxH, preferred_element_type=jnp.float32
        )
        return jax.tree.map(jnp.add, carry, (*sums, d_table, d_bias)), d_hidden_MxH

    # Rows and slots as one dim: 20 slots would be padded to whole tiles of a TPU.
    def split(x):
        x = x.reshape(batch, chunks, slots // chunks, *x.shape[2:]).swapaxes(0, 1)
        return x.reshape(chunks, batch * slots // chunks, *x.shape[3:])

    zero = jnp.zeros((), jnp.float32)
    start: tuple[jax.Array, ...] = (zero, zero)
    if with_gradients:
        start += (jnp.zeros(table_VxH.shape, jnp.float32), jnp.zeros(bias_V.shape, jnp.float32))
    inputs = jax.tree.map(split, (hidden_BxPxH, labels_BxP, weights_BxP))
    if chunks == 1:
        carry, d_hidden = part(start, jax.tree.map(lambda x: x[0], inputs))
    else:
        carry, d_hidden = lax.scan(part, start, inputs)
    if with_gradients:
        d_hidden = d_hidden.reshape(chunks, batch, slots // chunks, -1)
        d_hidden = d_hidden.swapaxes(0, 1).reshape(hidden_BxPxH.shape)
    sums = carry[:2]
    return sums, (d_hidden, *carry[2:]) if with_gradients else None


def _masked_lm_forward(output, labels_BxP, weights_BxP, chunks, layout):
    sums, gradients = _loss_and_gradients(output, labels_BxP, weights_BxP, chunks, layout, True)
    return sums, (gradients, jax.tree.map(lambda x: jnp.zeros((), x.dtype), output))


def _masked_lm_backward(chunks, layout, residuals, cotangents):
    del chunks, layout
    gradients, like = residuals
    scale = cotangents[0]  # correctness has no gradient
    scaled = tuple(
        (g * scale.astype(g.dtype)).astype(x.dtype) for g, x in zip(gradients, like, strict=True)
    )
    return scaled, None, None


masked_lm_loss.defvjp(_masked_lm_forward, _masked_lm_backward)
