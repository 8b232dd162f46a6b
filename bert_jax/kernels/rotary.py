"""Rotary positions (Su et al., 2021): queries and keys are rotated by their position in the row.

The dims i and i + D / 2 of a head are the coordinates of a point in the plane, which is rotated by
the angle position * base^(-2 i / D) / factor. So the product of a query and a key depends on the
distance of their positions, not on where in a row their sequence is packed. A factor above 1 lets a
longer text take up no larger angles (position interpolation, Chen et al., 2023).

    B: batch rows, S: sequence, N: heads, D: head_dim
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_WHOLE_TURN = 2**32  # in the units of `phases`


def rotated(
    x_BxSxNxD: jax.Array, base: float, factor: float, positions_BxS: jax.Array | None = None
) -> jax.Array:
    """Queries or keys [B, S, N, D], rotated in float32 and rounded to the dtype of `x`.

    Args:
      x_BxSxNxD: queries or keys; D is even.
      base: the wavelengths, in tokens, go from 2 pi to nearly 2 pi times this.
      factor: multiplies all wavelengths.
      positions_BxS: positions of these tokens in their rows; default: 0, 1, 2, ...
    """
    length, _, head_dim = x_BxSxNxD.shape[1:]
    positions = lax.iota(jnp.int32, length) if positions_BxS is None else positions_BxS
    radians = angles(positions, head_dim, base, factor)
    cos, sin = (x[..., None, :] for x in (jnp.cos(radians), jnp.sin(radians)))  # for all heads
    first, second = jnp.split(x_BxSxNxD.astype(jnp.float32), 2, axis=-1)
    halves = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(halves, axis=-1).astype(x_BxSxNxD.dtype)


def angles(positions: jax.Array, head_dim: int, base: float, factor: float) -> jax.Array:
    """The angles, in radians without whole turns, of positions [...]: [..., D / 2] float32."""
    scale = 2 * math.pi / _WHOLE_TURN
    return phases(positions, head_dim, base, factor).astype(jnp.float32) * scale


def phases(positions: jax.Array, head_dim: int, base: float, factor: float = 1.0) -> jax.Array:
    """The angles of positions [...] as [..., D / 2] int32, of which 2^32 are a whole turn.

    Products of integers drop whole turns without rounding. A product in float32 is 5e-4 off at
    position 8,192, differently at each position, so that equal distances would give other products.
    """
    exponents = np.arange(head_dim // 2) / (head_dim // 2)
    turns_a_token = float(base) ** -exponents / (2 * math.pi * factor) % 1
    steps = np.round(turns_a_token * _WHOLE_TURN).astype(np.int64).astype(np.int32)  # modulo 2^32
    return positions[..., None].astype(jnp.int32) * steps
