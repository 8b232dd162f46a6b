"""The loss of masked words, in parts, each with its gradient while its logits are in cache.

    B: batch rows, P: slots (masked positions) a row, M: slots of a part, of all rows,
    H: size of a word's embedding, V: padded vocabulary
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from bert_jax.sharding import Layout

# Hidden states [..., H], word embeddings [V, H] and bias [V].
MlmOutput = tuple[jax.Array, jax.Array, jax.Array]
_HIGHEST = 80.0  # logits are clipped to this far above the label's: e^80 fits into float32


class MaskedLmSums(NamedTuple):
    """Sums over the masked positions: of cross entropies, and of correct predictions."""

    loss: jax.Array
    correct: jax.Array


def masked_lm_logits(output: MlmOutput) -> jax.Array:
    """Logits [..., V] float32 of hidden [..., H]; -1e30 for padding rows of V."""
    hidden, table_VxH, bias_V = output
    logits = jnp.einsum('...H,VH->...V', hidden, table_VxH.astype(hidden.dtype),
                        preferred_element_type=jnp.float32)
    return logits + bias_V


def mlm_chunks(rows: int, slots: int, vocab_size: int, limit_bytes: int) -> int:
    """The fewest equal parts of `slots` whose float32 logits for `rows` rows fit the limit."""
    for chunks in range(1, slots):
        if slots % chunks == 0 and rows * (slots // chunks) * vocab_size * 4 <= limit_bytes:
            return chunks
    return slots


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def masked_lm_loss(
    output: MlmOutput, labels_BxP: jax.Array, weights_BxP: jax.Array, chunks: int, layout: Layout
) -> MaskedLmSums:
    """Sums over the masked positions. Only that of the loss has a gradient.

    The logits of all positions would be the largest array of the step, read and written several
    times. So they are computed in `chunks` parts of the slots, each with its gradient while it is
    in cache. No [B, P, V] array is kept for the backward pass, which only scales the gradient. The
    loss is float32, and exact up to 80 nats a token. In the gradient, the probabilities of tokens
    other than the label are rounded to the compute dtype.

    Args:
      output: `mlm_output` of `BertForPreTraining`.
      labels_BxP: ids to predict.
      weights_BxP: 1 for used slots, 0 for empty ones.
      chunks: number of parts, from `mlm_chunks`.
      layout: of activations on the mesh.
    """
    hidden_BxPxH, table_VxH, bias_V = output

    def add_chunk(sums: Any, chunk: tuple[jax.Array, ...]) -> tuple[Any, None]:
        hidden_MxH, labels_M, weights_M = chunk
        losses = _losses((hidden_MxH, table_VxH, bias_V), labels_M, layout)
        return jax.tree.map(jnp.add, sums, losses.sums(weights_M)), None

    inputs = (hidden_BxPxH, labels_BxP, weights_BxP)
    sums, _ = _over_chunks(add_chunk, _zero_sums(), inputs, chunks)
    return sums


def _masked_lm_forward(
    output: MlmOutput, labels_BxP: jax.Array, weights_BxP: jax.Array, chunks: int, layout: Layout
) -> Any:
    """The sums; and residuals: the gradients of `output`, float32 or rounded, and its dtypes."""
    hidden_BxPxH, table_VxH, bias_V = output

    def add_chunk(carry: Any, chunk: tuple[jax.Array, ...]) -> tuple[Any, jax.Array]:
        hidden_MxH, labels_M, weights_M = chunk
        part: MlmOutput = (hidden_MxH, table_VxH, bias_V)
        losses = _losses(part, labels_M, layout)
        sums = losses.sums(weights_M)
        d_hidden_MxH, d_table_VxH, d_bias_V = _gradients(part, weights_M, losses)
        return jax.tree.map(jnp.add, carry, (sums, d_table_VxH, d_bias_V)), d_hidden_MxH

    start = (
        _zero_sums(),
        jnp.zeros(table_VxH.shape, jnp.float32),
        jnp.zeros(bias_V.shape, jnp.float32),
    )
    inputs = (hidden_BxPxH, labels_BxP, weights_BxP)
    carry, d_hidden = _over_chunks(add_chunk, start, inputs, chunks)
    sums, d_table_VxH, d_bias_V = carry
    d_hidden_BxPxH = _merge_chunks(d_hidden, hidden_BxPxH.shape, chunks)
    gradients = (d_hidden_BxPxH, d_table_VxH, d_bias_V)
    dtypes = jax.tree.map(lambda x: jnp.zeros((), x.dtype), output)
    return sums, (gradients, dtypes)


def _masked_lm_backward(chunks: int, layout: Layout, residuals: Any, cotangents: Any) -> Any:
    del chunks, layout
    gradients, dtypes = residuals
    scale = cotangents.loss  # the other sums have no gradient
    scaled = tuple(
        (gradient * scale).astype(like.dtype)
        for gradient, like in zip(gradients, dtypes, strict=True))
    return scaled, None, None


masked_lm_loss.defvjp(_masked_lm_forward, _masked_lm_backward)


def _zero_sums() -> MaskedLmSums:
    zero = jnp.zeros((), jnp.float32)
    return MaskedLmSums(*(zero for _ in MaskedLmSums._fields))


def _over_chunks(
    add_chunk: Callable[[Any, tuple[jax.Array, ...]], tuple[Any, Any]],
    start: Any,
    inputs: tuple[jax.Array, ...],
    chunks: int,
) -> tuple[Any, Any]:
    """`lax.scan` of `add_chunk` over parts [M, ...] of arrays [B, P, ...].

    One part is computed without a loop; what `add_chunk` gives for it has no leading dim then.
    """
    parts = tuple(_split_chunks(x, chunks) for x in inputs)
    if chunks == 1:
        return add_chunk(start, tuple(part[0] for part in parts))
    return lax.scan(add_chunk, start, parts)


def _split_chunks(x: jax.Array, chunks: int) -> jax.Array:
    """Parts [chunks, M, ...] of an array [B, P, ...].

    Rows and slots are one dim: a TPU would pad 20 slots to whole tiles.
    """
    batch, slots = x.shape[:2]
    x = x.reshape(batch, chunks, slots // chunks, *x.shape[2:]).swapaxes(0, 1)
    return x.reshape(chunks, batch * slots // chunks, *x.shape[3:])


def _merge_chunks(parts: jax.Array, shape: tuple[int, ...], chunks: int) -> jax.Array:
    """The inverse of `_split_chunks` for an array of this shape."""
    batch, slots = shape[:2]
    return parts.reshape(chunks, batch, slots // chunks, -1).swapaxes(0, 1).reshape(shape)


class _Losses(NamedTuple):
    """The losses of a part, and what their gradient needs.

    Attributes:
      exp_MxV: exponentials of the logits minus the label's.
      sum_M: of them.
      is_label_MxV: whether a word is the label.
      loss_M: cross entropy.
      correct_M: 1 where the label has the highest logit, else 0.
    """

    exp_MxV: jax.Array
    sum_M: jax.Array
    is_label_MxV: jax.Array
    loss_M: jax.Array
    correct_M: jax.Array

    def sums(self, weights_M: jax.Array) -> MaskedLmSums:
        """The sums over the positions of weight 1."""
        return MaskedLmSums(
            loss=jnp.sum(self.loss_M * weights_M),
            correct=jnp.sum(self.correct_M * weights_M))


def _losses(output: MlmOutput, labels_M: jax.Array, layout: Layout) -> _Losses:
    """The losses of a part, by a softmax over the words."""
    hidden_MxH, table_VxH, bias_V = output
    logits_MxV = layout(masked_lm_logits(output), 'batch', 'vocab')
    # Softmax is the same whatever is subtracted. The label's logit is known (up to rounding)
    # before the others, so a TPU sums exponentials within the product that computes logits.
    words_MxH = jnp.take(table_VxH, labels_M, axis=0).astype(hidden_MxH.dtype)
    shift_M = jnp.take(bias_V, labels_M) + jnp.einsum(
        'MH,MH->M', hidden_MxH, words_MxH, preferred_element_type=jnp.float32)
    exp_MxV = jnp.exp(jnp.minimum(logits_MxV - shift_M[:, None], _HIGHEST))
    sum_M = jnp.sum(exp_MxV, axis=-1)
    words_MxV = lax.broadcasted_iota(labels_M.dtype, exp_MxV.shape, 1)
    is_label_MxV = words_MxV == labels_M[:, None]
    label_logit_M = jnp.sum(jnp.where(is_label_MxV, logits_MxV, 0.0), axis=-1)
    loss_M = jnp.log(sum_M) + (shift_M - label_logit_M)
    correct_M = (label_logit_M >= jnp.max(logits_MxV, axis=-1)).astype(jnp.float32)
    return _Losses(exp_MxV, sum_M, is_label_MxV, loss_M, correct_M)


def _gradients(output: MlmOutput, weights_M: jax.Array, losses: _Losses) -> MlmOutput:
    """The gradients of the weighted sum of a part's losses.

    Those of hidden states [M, H] are in the compute dtype, those of the word embeddings [V, H] and
    of the bias [V] in float32.
    """
    hidden_MxH, table_VxH, _ = output
    dtype = hidden_MxH.dtype
    # The barrier makes XLA store this array, in the compute dtype, and not the logits.
    exp_MxV = lax.optimization_barrier(losses.exp_MxV.astype(dtype))
    d_label_M = jnp.expm1(-losses.loss_M) * weights_M  # p - 1, precise where p is about 1
    scale_M = weights_M / losses.sum_M
    d_logits_MxV = jnp.where(
        losses.is_label_MxV,
        d_label_M[:, None],
        exp_MxV.astype(jnp.float32) * scale_M[:, None],
    ).astype(dtype)
    # A product with ones, because a sum would be a separate pass over the array.
    ones_Mx8 = jnp.ones((len(weights_M), 8), dtype)
    d_bias_8xV = jnp.einsum('MV,ME->EV', d_logits_MxV, ones_Mx8, preferred_element_type=jnp.float32)
    d_bias_V, *_ = d_bias_8xV
    d_hidden_MxH = jnp.einsum('MV,VH->MH', d_logits_MxV, table_VxH.astype(dtype))
    d_table_VxH = jnp.einsum(
        'MV,MH->VH', d_logits_MxV, hidden_MxH, preferred_element_type=jnp.float32)
    return d_hidden_MxH, d_table_VxH, d_bias_V
