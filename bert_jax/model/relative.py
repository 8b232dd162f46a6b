"""Relative positions as of T5 (Raffel et al., 2020), as MPNet has them: added to attention scores.

Each head has a number for each of 32 buckets of distances. Half of them are for tokens before, half
for those behind; distances below 8 have buckets of their own, farther ones share them, in steps
that grow by the same factor, and the last is for all from 91 on.

    B: batch rows, N: heads, R: buckets, S: sequence, Q: queries, K: keys, P: wanted positions
"""

import math

import jax
import jax.numpy as jnp
from jax import lax

NUM_BUCKETS = 32
_NUM_EXACT = 8
_FURTHEST = 128  # where the bucket behind the last would begin
_NUM_STEPS = NUM_BUCKETS // 2 - _NUM_EXACT
# The least distances of the buckets for several, after the first of them.
_STEPS = tuple(
    math.ceil(_NUM_EXACT * (_FURTHEST / _NUM_EXACT) ** (i / _NUM_STEPS) - 1e-9)
    for i in range(1, _NUM_STEPS))


def relative_scores(table_RxN: jax.Array, length: int) -> jax.Array:
    """The numbers that are added to the scores of a row's tokens, [N, S, S] float32.

    A product with one-hot rows: exact, and its gradient needs no scatter.
    """
    one_hot_QxKxR = jax.nn.one_hot(_buckets(length), NUM_BUCKETS, dtype=jnp.float32)
    return jnp.einsum(
        'QKR,RN->NQK', one_hot_QxKxR, table_RxN.astype(jnp.float32),
        precision=lax.Precision.HIGHEST)


def scores_at(scores_NxSxS: jax.Array, wanted_BxP: jax.Array) -> jax.Array:
    """The scores of the queries at these positions, [B, N, P, S] float32."""
    one_hot_BxPxS = jax.nn.one_hot(wanted_BxP, scores_NxSxS.shape[1], dtype=jnp.float32)
    return jnp.einsum(
        'BPS,NSK->BNPK', one_hot_BxPxS, scores_NxSxS, precision=lax.Precision.HIGHEST)


def _buckets(length: int) -> jax.Array:
    """The bucket of each query and key, [S, S] int32."""
    places_QxK = lax.broadcasted_iota(jnp.int32, (length, length), 0)
    behind_QxK = lax.broadcasted_iota(jnp.int32, (length, length), 1) - places_QxK
    distance_QxK = jnp.abs(behind_QxK)
    bucket_QxK = jnp.minimum(distance_QxK, _NUM_EXACT)
    for step in _STEPS:
        bucket_QxK += (distance_QxK >= step).astype(jnp.int32)
    return bucket_QxK + jnp.where(behind_QxK > 0, NUM_BUCKETS // 2, 0)
