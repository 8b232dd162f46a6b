"""Counter-based dropout and draws: hashes of (seed, step, row, site, layer, element).

They are computed where they are used; there is no generator state and no stored mask. So masks do
not depend on the mesh, rematerialisation, gradient accumulation or restarts, and XLA fuses their
computation into neighbouring operations.

The indices along each dim are hashed thoroughly, once (`index_hashes`). The hash of an element
combines those of its indices, and is mixed with one multiplication (`kept`), so the bits of an
element cost only four operations. Tests find no correlation between pairs of elements, nor among
the four corners of a rectangle.

A head whose loss is random draws in the same way: `uniform` and `gumbel` make numbers from the
dropout keys that `Head.loss` receives, at the site `HEAD`. In an evaluation it receives no keys,
and takes those of `keys_from_content`.

    B: batch rows, L: lines of an array, which are its last dim but one
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax

from bert_jax.runtime.hashing import FIRST_MULTIPLIER, GOLDEN_RATIO, SECOND_MULTIPLIER, mix

_U = jnp.uint32
# Further multipliers, from the same search as those of `runtime.hashing`.
_ROW_MULTIPLIER = 0xED5AD4BB
_LAYER_MULTIPLIER = 0xAC4C1B51
_SITE_MULTIPLIER = 0x632BE5AB
# 1 - 2^18 - 2^20 + 2^24 + 2^27 + 2^29 - 2^31, modulo 2^32. A TPU v4 multiplies by shifts and
# additions; a search found no fewer terms that keep the corners of rectangles independent.
_ELEMENT_MULTIPLIER = 0xA8EC0001

# Where in the model dropout is applied, and the site of a head's own draws; each has its own masks.
EMBEDDINGS, ATTENTION_PROBS, ATTENTION_OUTPUT, FFN_OUTPUT, CLASSIFIER, HEAD, POOLER = range(7)
# Dropout on the inputs of adapters, by the dense layers that these are added to.
QKV_ADAPTER, ATTENTION_OUTPUT_ADAPTER, INTERMEDIATE_ADAPTER, FFN_OUTPUT_ADAPTER = range(7, 11)
_UNIFORM_BITS = 23  # a float32 has 24: the last is for the 0.5 that keeps draws off 0 and 1


# Outside of a program it is one program, and not one for each operation; inside, `inline` makes the
# program the same as without jit.
@functools.partial(jax.jit, inline=True)
def dropout_keys(seed: jax.Array | int, step: jax.Array | int, rows_B: jax.Array) -> jax.Array:
    """Dropout keys [B, 2] uint32: two random numbers for each row, the same on any mesh.

    Args:
      seed: the run's seed; may be traced.
      step: the train step; may be traced.
      rows_B: index of each row in the *global* batch.
    """
    start = mix(jnp.asarray(seed).astype(_U) ^ _U(GOLDEN_RATIO))
    start = mix(start ^ jnp.asarray(step).astype(_U))
    low_B = mix(start ^ (rows_B.astype(_U) * _U(GOLDEN_RATIO)))
    high_B = mix(low_B ^ mix(start ^ _U(_ROW_MULTIPLIER)))
    return jnp.stack([low_B, high_B], axis=-1)


def keys_from_content(input_ids_BxS: jax.Array) -> jax.Array:
    """Keys [B, 2] uint32 for the draws of an evaluation, which has no dropout keys.

    They follow from the token ids of a row alone, so its draws do not depend on the step, the batch
    and the mesh. (They depend on the padding: a row that is padded further has other keys.)
    """
    positions_S = jnp.arange(input_ids_BxS.shape[1], dtype=_U) * _U(GOLDEN_RATIO)
    mixed_BxS = mix(input_ids_BxS.astype(_U) ^ mix(positions_S))
    return dropout_keys(0, 0, jnp.sum(mixed_BxS, axis=1, dtype=_U))


def keys_of_further_model(dropout_keys_Bx2: jax.Array | None, number: int) -> jax.Array | None:
    """Keys [B, 2] uint32 for another model in the same head, so that its masks are other ones.

    Args:
      dropout_keys_Bx2: keys from `dropout_keys`; None: there is no dropout.
      number: of the model: 1, 2, ...; the first model, 0, takes the keys themselves.
    """
    if dropout_keys_Bx2 is None:
        return None
    return mix(dropout_keys_Bx2 ^ mix(_U(number) * _U(GOLDEN_RATIO)))


# Jitted so that it is traced once for each shape and not in each layer, which would take seconds;
# `inline` makes the program the same as without jit.
@functools.partial(jax.jit, static_argnames=('sizes', 'site'), inline=True)
def index_hashes(
    dropout_keys_Bx2: jax.Array, sizes: tuple[int, ...], site: int, layer: jax.Array | int = 0,
    lines_BxL: jax.Array | None = None,
) -> list[jax.Array]:
    """Hashes of the indices along each dim: int32 [B, size] for each of `sizes`.

    The hash of an element, which `kept` takes, is `(line ^ other) + column`, of the hashes of its
    indices.

    Args:
      dropout_keys_Bx2: keys from `dropout_keys`.
      sizes: the numbers of columns (the last dim), of lines, and of other indices if there are
        any.
      site: one of the constants above.
      layer: index of the encoder layer; may be traced.
      lines_BxL: indices of the lines; default: 0, 1, 2, ...
    """
    of_site = _U(site * _SITE_MULTIPLIER & 0xFFFFFFFF)
    of_layer_and_site = mix(jnp.asarray(layer).astype(_U) * _U(_LAYER_MULTIPLIER) + of_site)
    first_key_Bx1 = mix(dropout_keys_Bx2[:, :1] ^ of_layer_and_site)
    second_key_Bx1 = mix(dropout_keys_Bx2[:, 1:] + of_layer_and_site)
    hashed = []
    for dim, size in enumerate(sizes):
        index = jnp.arange(size, dtype=_U)
        if dim == 1 and lines_BxL is not None:
            index = lines_BxL.astype(_U)
        hashed.append(_hash(index + _U(dim << 30), first_key_Bx1, second_key_Bx1))
    return hashed


def _hash(index: jax.Array, first_key: jax.Array, second_key: jax.Array) -> jax.Array:
    """Hashes of indices (uint32) as int32.

    The second key enters between the rounds: with one 32-bit key, two rows could get shifted copies
    of the same mask.
    """
    h = index * _U(GOLDEN_RATIO) + first_key
    h = (h ^ (h >> 16)) * _U(FIRST_MULTIPLIER)
    h = (h ^ (h >> 15) ^ second_key) * _U(SECOND_MULTIPLIER)
    return lax.bitcast_convert_type(h ^ (h >> 16), jnp.int32)


def kept(element_hashes: jax.Array, rate: float) -> jax.Array:
    """Which elements dropout at this rate keeps (bool), by their hashes (int32, of any shape).

    The kernels call it on blocks, so it uses only operations that a TPU's vector unit has.
    """
    # Signed: a TPU's vector unit has no unsigned comparison.
    bits = element_hashes ^ lax.shift_right_logical(element_hashes, jnp.int32(16))
    bits = bits * jnp.int32(_ELEMENT_MULTIPLIER - 2**32)
    num_dropped = min(round(rate * 2**32), 2**32 - 1)  # of all 2^32 values
    return bits >= jnp.int32(num_dropped - 2**31)


def dropout(
    x: jax.Array, rate: float, dropout_keys_Bx2: jax.Array | None, site: int,
    layer: jax.Array | int = 0, lines_BxL: jax.Array | None = None,
) -> jax.Array:
    """`x` with a share `rate` of its elements zeroed and the rest scaled by 1 / (1 - rate).

    Args:
      x: [B, ..., lines, columns], or [B, columns].
      rate: share dropped, below 1.
      dropout_keys_Bx2: keys from `dropout_keys`, or None: return `x` unchanged.
      site: one of the constants above.
      layer: index of the encoder layer; may be traced.
      lines_BxL: indices of the lines of `x` in a larger array; `x` then gets its part of that
        array's mask.
    """
    if dropout_keys_Bx2 is None or rate == 0.0:
        return x
    shape = x.shape[1:]
    if len(shape) == 1:
        shape = (1, *shape)
    *others, lines, columns = shape
    ones = [1] * len(others)
    sizes = (columns, lines, math.prod(others))
    # Without the barrier, XLA would fuse the hashing of indices and repeat it for each element.
    column, line, other = lax.optimization_barrier(
        index_hashes(dropout_keys_Bx2, sizes, site, layer, lines_BxL))
    other = other.reshape(-1, *others, 1, 1)
    line = line.reshape(-1, *ones, lines, 1)
    column = column.reshape(-1, *ones, 1, columns)
    if others:
        line = line ^ other
    return scaled(x, kept(line + column, rate).reshape(x.shape), rate)


def scaled(x: jax.Array, keep: jax.Array, rate: float) -> jax.Array:
    """`x` with 0 where `keep` is false, and scaled by 1 / (1 - rate) where it is true."""
    # In float32: 1 / 0.9 is 1.109 in bfloat16.
    larger = (x.astype(jnp.float32) * (1.0 / (1.0 - rate))).astype(x.dtype)
    return jnp.where(keep, larger, jnp.zeros((), x.dtype))


def uniform(
    dropout_keys_Bx2: jax.Array, shape: tuple[int, ...], site: int, layer: jax.Array | int = 0,
    lines_BxL: jax.Array | None = None,
) -> jax.Array:
    """Draws [B, *shape] float32 from the uniform distribution on (0, 1), the ends excluded.

    Args:
      dropout_keys_Bx2: keys from `dropout_keys` or `keys_from_content`.
      shape: of a row's draws: (lines, columns) or (columns,).
      site: one of the constants above; a head's own is `HEAD`.
      layer: a number that tells the draws of one site apart; may be traced.
      lines_BxL: indices of the lines in a larger array, of which this is then a part.
    """
    lines = shape[0] if len(shape) == 2 else 1
    column, line = lax.optimization_barrier(
        index_hashes(dropout_keys_Bx2, (shape[-1], lines), site, layer, lines_BxL))
    element_hashes = line[:, :, None] + column[:, None, :]
    # Mixed thoroughly, unlike `kept`: a draw needs all of its bits, a mask only the highest.
    bits = mix(lax.bitcast_convert_type(element_hashes, _U)) >> _U(32 - _UNIFORM_BITS)
    draws = (bits.astype(jnp.float32) + 0.5) * 2.0**-_UNIFORM_BITS
    return draws.reshape(-1, *shape)


def gumbel(
    dropout_keys_Bx2: jax.Array, shape: tuple[int, ...], site: int, layer: jax.Array | int = 0,
    lines_BxL: jax.Array | None = None,
) -> jax.Array:
    """Draws [B, *shape] float32 from the standard Gumbel distribution; arguments as of `uniform`.

    `jnp.argmax(logits + gumbel(...), -1)` is a draw from the softmax of the logits (Gumbel, 1954).
    """
    return -jnp.log(-jnp.log(uniform(dropout_keys_Bx2, shape, site, layer, lines_BxL)))


# Old names, for config files of users (docs/stability.md).
dropout_rows = dropout_keys
rows_of = keys_from_content
rows_of_another = keys_of_further_model
