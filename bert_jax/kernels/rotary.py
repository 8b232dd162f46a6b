"""Rotary positions (Su et al., 2021): queries and keys are turned by their place in the row.

The dims i and i + D / 2 of a head are a point, which is turned by place * base^(-2 i / D) / factor.
With a factor above 1, texts that are longer turn it as far (Chen et al., 2023). So the
product of a query and a key depends on the distance of their places, not on where in a row their
sequence is packed.

    B: batch rows, S: sequence, N: heads, D: head_dim
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_TURN = 2**32  # in the units of phases


def rotated(
    x_BxSxNxD: jax.Array, base: float, factor: float, places_BxS: jax.Array | None = None
) -> jax.Array:
    """Queries or keys, turned; computed in float32, in the dtype of `x`.

    Args:
      x_BxSxNxD: D is even.
      base: the wavelengths, in tokens, go from 2 pi to nearly 2 pi times this.
      factor: by which all wavelengths are longer.
      places_BxS: of the queries in their rows; default: 0, 1, 2, ...
    """
    length, _, head_dim = x_BxSxNxD.shape[1:]
    places = lax.iota(jnp.int32, length) if places_BxS is None else places_BxS
    turns = angles(places, head_dim, base, factor)
    cos, sin = (x[..., None, :] for x in (jnp.cos(turns), jnp.sin(turns)))  # of all heads
    first, second = jnp.split(x_BxSxNxD.astype(jnp.float32), 2, axis=-1)
    turned = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(turned, axis=-1).astype(x_BxSxNxD.dtype)


def angles(places: jax.Array, head_dim: int, base: float, factor: float) -> jax.Array:
    """The angles of places [...], [..., D / 2] float32, without whole turns."""
    return phases(places, head_dim, base, factor).astype(jnp.float32) * (2 * math.pi / _TURN)


def phases(places: jax.Array, head_dim: int, base: float, factor: float = 1.0) -> jax.Array:
    """The angles of places [...], [..., D / 2] int32: 2^32 are a whole turn.

    Products of integers leave out whole turns without rounding. A product in float32 is 5e-4 off at
    place 8,192, differently at each place, so that a distance would not be the same everywhere.
    """
    exponents = np.arange(head_dim // 2) / (head_dim // 2)
    turns_a_token = float(base) ** -exponents / (2 * math.pi * factor) % 1
    steps = np.round(turns_a_token * _TURN).astype(np.int64).astype(np.int32)  # modulo 2^32
    return places[..., None].astype(jnp.int32) * steps
