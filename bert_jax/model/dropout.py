"""Dropout from a counter: a hash of (seed, step, row, site, layer, element), computed in place.

No generator state and no stored bits, so the masks depend neither on the mesh, nor on scanning,
rematerialisation, gradient accumulation or a restart, and XLA fuses them into their neighbours.

    B: batch rows
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

_U = jnp.uint32
# Odd multipliers of integer hashes found by search for low bias (Wellons, hash-prospector).
_M1, _M2, _M3, _M4 = 0x7FEB352D, 0x846CA68B, 0xED5AD4BB, 0xAC4C1B51
_GOLDEN = 0x9E3779B9

# Where dropout is used; each place draws masks of its own.
EMBEDDINGS, ATTENTION_PROBS, ATTENTION_OUTPUT, FFN_OUTPUT, CLASSIFIER = range(5)


def _mix(x: jax.Array) -> jax.Array:
    """A bijection of uint32 that spreads every input bit."""
    x = x ^ (x >> 16)
    x = x * _U(_M1)
    x = x ^ (x >> 15)
    x = x * _U(_M2)
    return x ^ (x >> 16)


def dropout_rows(seed: jax.Array | int, step: jax.Array | int, rows_B: jax.Array) -> jax.Array:
    """Keys [B, 2] uint32, one pair a row of the *global* batch, for `dropout`.

    Args:
      seed: the run's seed; may be traced (sweeps are vmapped over it).
      step: the train step.
      rows_B: index of each row in the global batch.
    """
    start = _mix(jnp.asarray(seed).astype(_U) ^ _U(_GOLDEN))
    start = _mix(start ^ jnp.asarray(step).astype(_U))
    low_B = _mix(start ^ (rows_B.astype(_U) * _U(_GOLDEN)))
    high_B = _mix(low_B ^ _mix(start ^ _U(_M3)))
    return jnp.stack([low_B, high_B], axis=-1)


def dropout(
    x: jax.Array, rate: float, rows_Bx2: jax.Array | None, site: int, layer: jax.Array | int = 0
) -> jax.Array:
    """`x` with a share `rate` of its elements zeroed and the rest scaled by 1 / (1 - rate).

    Args:
      x: [B, ...]; a row may have up to 2**32 elements.
      rate: share dropped, below 1.
      rows_Bx2: keys from `dropout_rows`, or None: return `x` unchanged.
      site: one of the constants above.
      layer: index of the encoder layer; may be traced (scanned layers).
    """
    if rows_Bx2 is None or rate == 0.0:
        return x
    place = _mix(jnp.asarray(layer).astype(_U) * _U(_M4) + _U(site * 0x632BE5AB & 0xFFFFFFFF))
    shape = (x.shape[0],) + (1,) * (x.ndim - 1)
    key0 = _mix(rows_Bx2[:, 0] ^ place).reshape(shape)
    key1 = _mix(rows_Bx2[:, 1] + place).reshape(shape)
    element = jnp.zeros(x.shape, _U)
    stride = 1
    for dim in reversed(range(1, x.ndim)):
        element = element + lax.broadcasted_iota(_U, x.shape, dim) * _U(stride)
        stride *= x.shape[dim]
    # The second key goes in between the rounds: with one 32-bit key, two rows could draw shifted
    # copies of the same sequence.
    h = element * _U(_GOLDEN) + key0
    h = (h ^ (h >> 16)) * _U(_M1)
    h = (h ^ (h >> 15) ^ key1) * _U(_M2)
    h = h ^ (h >> 16)
    keep = h >= _U(min(round(rate * 2**32), 2**32 - 1))
    return jnp.where(keep, x * jnp.asarray(1.0 / (1.0 - rate), x.dtype), jnp.zeros((), x.dtype))
