"""Attention within windows in plain operations, in blocks: work and memory grow with the window.

A row is cut into blocks of queries. A block sees the keys of its own places and of a margin of half
a block on each side, so scores are [B, G, N, Q, 2Q] and not [B, N, S, S].

    B: batch rows, S: sequence, G: blocks of a row, Q: queries of a block, K: keys that it sees,
    N: heads, D: head_dim, F: any further dims
"""

import math

import jax
import jax.numpy as jnp
from jax import lax

from bert_jax.kernels import dropout as drop
from bert_jax.model.layers import ModelConfig

# Smaller blocks would leave matrix units empty.
_LEAST_MARGIN = 64
# Blocks pay if a row has so many times the keys that a block sees.
_LEAST_GAIN = 2
_OUTSIDE = -1  # the segment of places before and behind a row


def takes_blocks(config: ModelConfig, length: int) -> bool:
    """Whether blocks are less work than all scores of a row. Not if the length is symbolic."""
    if config.causal or config.relative_positions:
        return False
    if not config.local_attention or not isinstance(length, int):
        return False
    return length >= _LEAST_GAIN * 4 * _margin(config)


def _margin(config: ModelConfig) -> int:
    """How many places a block sees on each of its sides. The block itself has twice as many."""
    return max(config.local_attention // 2, _LEAST_MARGIN)


def local_attention(
    qkv: tuple[jax.Array, jax.Array, jax.Array], segments_BxS: jax.Array,
    dropout_keys_Bx2: jax.Array | None, layer: jax.Array | int, *, config: ModelConfig,
    masked_score: float,
) -> jax.Array:
    """Context vectors [B, S, N, D], with the dropout masks of all other implementations.

    Args:
      qkv: queries, keys and values, each [B, S, N, D].
      segments_BxS: sequence number of each token; a token sees those with its own number that are
        at most half a window away.
      dropout_keys_Bx2: keys of dropout on the probabilities, or None.
      layer: index of the layer, for dropout.
      config: has the window of this layer.
      masked_score: what is added to the scores of keys that a query does not see.
    """
    queries_BxSxNxD, keys_BxSxNxD, values_BxSxNxD = qkv
    length = queries_BxSxNxD.shape[1]
    margin = _margin(config)
    scores_BxGxNxQxK = jnp.einsum(
        'BGQND,BGKND->BGNQK', _blocks(queries_BxSxNxD, margin), _seen(keys_BxSxNxD, margin),
        preferred_element_type=jnp.float32)
    mask_BxGxQxK = jnp.where(_sees(segments_BxS, config), 0.0, masked_score)
    scores_BxGxNxQxK *= 1.0 / math.sqrt(config.head_dim)
    probs_BxGxNxQxK = jax.nn.softmax(scores_BxGxNxQxK + mask_BxGxQxK[:, :, None], axis=-1)
    probs_BxGxNxQxK = probs_BxGxNxQxK.astype(config.dtype)
    if dropout_keys_Bx2 is not None and config.attention_dropout:
        sizes = (length, length, config.num_heads)
        kept_BxGxNxQxK = _kept(dropout_keys_Bx2, sizes, layer, config)
        probs_BxGxNxQxK = drop.scaled(probs_BxGxNxQxK, kept_BxGxNxQxK, config.attention_dropout)
    context_BxGxQxNxD = jnp.einsum(
        'BGNQK,BGKND->BGQND', probs_BxGxNxQxK, _seen(values_BxSxNxD, margin))
    batch, _, _, num_heads, head_dim = context_BxGxQxNxD.shape
    return context_BxGxQxNxD.reshape(batch, -1, num_heads, head_dim)[:, :length]


def _sees(segments_BxS: jax.Array, config: ModelConfig) -> jax.Array:
    """Whether a query sees a key, [B, G, Q, K]."""
    margin = _margin(config)
    queries_BxGxQ = _blocks(segments_BxS, margin, _OUTSIDE)
    keys_BxGxK = _seen(segments_BxS, margin, _OUTSIDE)
    shape = queries_BxGxQ.shape[2], keys_BxGxK.shape[2]
    places_QxK = lax.broadcasted_iota(jnp.int32, shape, 0)
    distances_QxK = lax.broadcasted_iota(jnp.int32, shape, 1) - margin - places_QxK
    is_near_QxK = jnp.abs(distances_QxK) <= config.local_attention // 2
    return (queries_BxGxQ[..., :, None] == keys_BxGxK[..., None, :]) & is_near_QxK


def _kept(
    dropout_keys_Bx2: jax.Array, sizes: tuple[int, int, int], layer: jax.Array | int,
    config: ModelConfig,
) -> jax.Array:
    """Which probabilities dropout keeps [B, G, N, Q, K]: those of the mask [B, N, S, S]."""
    # Without the barrier, XLA would fuse the hashing of indices and repeat it for each element.
    column_BxS, line_BxS, head_BxN = lax.optimization_barrier(
        drop.index_hashes(dropout_keys_Bx2, sizes, drop.ATTENTION_PROBS, layer))
    margin = _margin(config)
    line_BxGx1xQ = _blocks(line_BxS, margin)[:, :, None]
    column_BxGxK = _seen(column_BxS, margin)
    line_BxGxNxQ = line_BxGx1xQ ^ head_BxN[:, None, :, None]
    return drop.kept(
        line_BxGxNxQ[..., None] + column_BxGxK[:, :, None, None], config.attention_dropout)


def _blocks(x_BxSxF: jax.Array, margin: int, fill: int = 0) -> jax.Array:
    """The blocks of queries [B, G, Q, ...]; `fill` follows the row's end."""
    batch, length, *rest = x_BxSxF.shape
    missing = -length % (2 * margin)
    x_BxSxF = _padded(x_BxSxF, 0, missing, fill)
    return x_BxSxF.reshape(batch, -1, 2 * margin, *rest)


def _seen(x_BxSxF: jax.Array, margin: int, fill: int = 0) -> jax.Array:
    """The part of a row that each block sees [B, G, K, ...]; `fill` is on both sides of it."""
    missing = -x_BxSxF.shape[1] % (2 * margin)
    shifted_BxGxQxF = _blocks(_padded(x_BxSxF, margin, missing + margin, fill), margin)
    return jnp.concatenate([shifted_BxGxQxF[:, :-1], shifted_BxGxQxF[:, 1:]], axis=2)


def _padded(x_BxSxF: jax.Array, before: int, behind: int, fill: int) -> jax.Array:
    widths = [(0, 0), (before, behind), *[(0, 0)] * (x_BxSxF.ndim - 2)]
    return jnp.pad(x_BxSxF, widths, constant_values=fill)
