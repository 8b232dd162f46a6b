"""Multi-head self-attention with a fused query-key-value projection (paper section 3).

    B: batch rows, S: sequence (Q queries, K keys), P: wanted positions, H: hidden_size, N: heads,
    D: head_dim
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.model import dropout as drop
from bert_jax.model.layers import Dense, ModelConfig

MASKED_SCORE = -10000.0  # added to the scores of masked keys, as in google-research/bert


def attention_bias(input_mask_BxS: jax.Array) -> jax.Array:
    """Additive mask [B, 1, 1, K] float32: 0 on real keys, -10000 on padding.

    Padding queries still attend, as in the original; their outputs are never used.
    """
    return (1.0 - input_mask_BxS[:, None, None, :].astype(jnp.float32)) * MASKED_SCORE


def packed_attention_bias(sequence_BxS: jax.Array) -> jax.Array:
    """Additive mask [B, 1, Q, K] float32 of packed rows: 0 within a sequence, -10000 elsewhere.

    exp(-10000) is 0 in every precision, so a sequence is not touched by its neighbours.

    Args:
      sequence_BxS: number of the sequence that a token belongs to; 0 is padding, which attends
        to padding.
    """
    same_BxQxK = sequence_BxS[:, :, None] == sequence_BxS[:, None, :]
    return jnp.where(same_BxQxK, 0.0, MASKED_SCORE)[:, None]


def gather_positions(x_BxSxF: jax.Array, positions_BxP: jax.Array) -> jax.Array:
    """Rows [B, P, ...] of the sequence [B, S, ...] at `positions`.

    As a product with one-hot rows: it costs under 0.1 % of the model, is exact, and its gradient
    is another product instead of a scatter.
    """
    one_hot_BxPxS = jax.nn.one_hot(positions_BxP, x_BxSxF.shape[1], dtype=x_BxSxF.dtype)
    return jnp.einsum(
        'BPS,BS...->BP...', one_hot_BxPxS, x_BxSxF, precision=jax.lax.Precision.HIGHEST
    )


class SelfAttention(nn.Module):
    """Context vectors [B, S, N, D] of hidden states [B, S, H], or [B, P, N, D] where wanted."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self,
        x_BxSxH: jax.Array,
        bias_Bx1xQxK: jax.Array,
        rows_Bx2: jax.Array | None,
        layer: jax.Array | int,
        wanted_BxP: jax.Array | None = None,
    ) -> jax.Array:
        c = self.config
        qkv = Dense(
            c, (c.hidden_size,), (3, c.num_heads, c.head_dim), ('embed',), (None, 'heads', None),
            name='qkv',
        )(x_BxSxH)
        qkv = c.layout(qkv, 'batch', None, None, 'heads', None)
        q_BxSxNxD, k_BxSxNxD, v_BxSxNxD = (qkv[:, :, i] for i in range(3))
        if wanted_BxP is not None:
            q_BxSxNxD = gather_positions(q_BxSxNxD, wanted_BxP)
            if bias_Bx1xQxK.shape[2] > 1:
                bias_Bx1xQxK = gather_positions(bias_Bx1xQxK[:, 0], wanted_BxP)[:, None]
        scores = jnp.einsum(
            'BQND,BKND->BNQK', q_BxSxNxD, k_BxSxNxD, preferred_element_type=jnp.float32
        )
        scores = scores * (1.0 / math.sqrt(c.head_dim)) + bias_Bx1xQxK
        probs_BxNxQxK = jax.nn.softmax(scores, axis=-1).astype(c.dtype)
        probs_BxNxQxK = drop.dropout(
            probs_BxNxQxK, c.attention_dropout, rows_Bx2, drop.ATTENTION_PROBS, layer
        )
        return jnp.einsum('BNQK,BKND->BQND', probs_BxNxQxK, v_BxSxNxD)
