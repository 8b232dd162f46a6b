"""What the attention kernels share.

The kernels of all chips share the settings, the custom gradient and the ranges of sequences in a
block; those of TPUs also the layout of heads in tiles, the order of work, masks and rotation.

A tile of a TPU has 128 lanes. The heads that share one, two of 64 dims or four of 32, are a tile of
heads; a head of 128 dims is one by itself. The lanes of a tile that a head leaves free are its
spare lanes; they hold the mask (`spare_lanes`).

    S: sequence (Q queries, K keys), H: hidden_size, N: heads of a tile, D: head_dim, L: lanes
"""

import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bert_jax.kernels import dropout as drop
from bert_jax.kernels import rotary

# The sublanes and lanes of a tile of a TPU.
SUBLANES = 8
LANES = 128
HEAD_DIMS = (32, 64, 128)
# Sequence numbers of tokens that pad a row for the kernels, and of the margins before and behind
# it; no other token has them, so none attends to these.
PADDING_MARK = -1
OUTSIDE_MARK = -2
# The parts of the projection's output [B, S, 3, N, D].
QUERY, KEY, VALUE = range(3)
PARTS = (QUERY, KEY, VALUE)
# The lanes that hold one base-16 digit of a sequence's number.
_DIGIT_LANES = 16
# Tokens of a block of the kernel that rotates queries and keys.
_MOST_ROTATED = 256


def named_with_grid(name: str, grid: tuple[int, ...]) -> str:
    """A kernel's name that ends with its grid, which `grid_in_name` reads to count cycles."""
    return f"{name}_grid_{'x'.join(map(str, grid))}"


def grid_in_name(text: str) -> tuple[int, ...] | None:
    """The grid in a kernel's name, which may stand within a text; None if there is none."""
    match = re.search(r'_grid_(\d+(?:x\d+)+)', text)
    return tuple(map(int, match[1].split('x'))) if match else None


class Settings(NamedTuple):
    """What the kernels are made for.

    Attributes:
      head_dim: one of `HEAD_DIMS`.
      rate: of dropout on the probabilities.
      reach: the greatest distance of two tokens that attend to each other; 0: any distance.
      rotary_base: of rotary positions (`rotary.rotated`); 0: there are none.
      on_gpu: whether the chip is a GPU and not a TPU.
      has_large_vmem: whether a TPU has more than 16 MiB of VMEM.
      interpret: whether Pallas interprets the kernel without the chip, for tests.
      rotary_factor: multiplies the wavelengths of rotary positions.
    """

    head_dim: int
    rate: float
    reach: int = 0
    rotary_base: float = 0.0
    on_gpu: bool = False
    has_large_vmem: bool = True
    interpret: bool = False
    rotary_factor: float = 1.0


def attention_of_passes(
    forward: Callable[..., Any], backward: Callable[..., Any]
) -> Callable[..., jax.Array]:
    """Makes one differentiable function of a forward and a backward pass (`jax.custom_vjp`).

    Its arguments are queries, keys and values without bias, their bias, the marks of tokens, the
    dropout hashes of queries, or None, and the settings; it returns context vectors.

    Args:
      forward: takes the same arguments; returns context vectors, and the residuals for `backward`.
      backward: takes the settings, the residuals and the gradient of context vectors; returns the
        gradients of queries, keys and values and of their bias.
    """
    @functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
    def attention(
        qkv: jax.Array, bias: jax.Array, marks: jax.Array, query_hashes: jax.Array | None,
        settings: Settings,
    ) -> jax.Array:
        context: jax.Array = forward(qkv, bias, marks, query_hashes, settings)[0]
        return context

    def vjp(settings: Settings, residuals: Any, d_context: jax.Array) -> tuple[Any, ...]:
        return *backward(settings, residuals, d_context), None, None

    attention.defvjp(forward, vjp)
    return attention


def sequence_ranges(segments_BxS: jax.Array, size: int) -> jax.Array:
    """The least and greatest sequence number in each block of `size` tokens: int32 [B, G, 2].

    Padding, which stands behind the sequences of a row, counts as the greatest number of all.
    """
    numbers_BxS = jnp.where(segments_BxS > 0, segments_BxS, jnp.iinfo(jnp.int32).max)
    numbers_BxGxC = numbers_BxS.reshape(-1, segments_BxS.shape[1] // size, size)
    return jnp.stack([numbers_BxGxC.min(axis=2), numbers_BxGxC.max(axis=2)], axis=-1)


def query_scale(head_dim: int) -> float:
    """The factor of queries with which `exp2(scores)` are the exponentials of softmax."""
    return float(head_dim**-0.5 * math.log2(math.e))


def gradient_scale(part: int, head_dim: int) -> float:
    """The factor of a part's gradients, which follow from queries scaled by `query_scale`."""
    return float({QUERY: head_dim**-0.5, KEY: math.log(2), VALUE: 1.0}[part])


def dot(a: jax.Array, b: jax.Array, a_dim: int, b_dim: int) -> jax.Array:
    """The product of two matrices, summed over these dims of theirs in float32."""
    dims = (((a_dim,), (b_dim,)), ((), ()))
    return lax.dot_general(a, b, dims, preferred_element_type=jnp.float32)


def dims_of(head: int, head_dim: int) -> slice:
    """The dims of a head among those of its tile."""
    return slice(head * head_dim, (head + 1) * head_dim)


def with_spare_lanes(
    tile_SxL: jax.Array, spare_SxL: jax.Array, head: int, head_dim: int
) -> jax.Array:
    """A head's own lanes of `tile`, and in all other lanes those of `spare`: [S, L].

    A head of 128 dims leaves no lanes free, so `spare` follows it: [S, 2L].
    """
    if head_dim == LANES:
        return jnp.concatenate([tile_SxL, spare_SxL], axis=1)
    lane_1xL = lax.broadcasted_iota(jnp.int32, (1, LANES), 1)
    if head == 0:
        is_of_head_1xL = lane_1xL < head_dim
    else:
        is_of_head_1xL = lane_1xL >= head * head_dim
        if (head + 1) * head_dim < LANES:
            is_of_head_1xL &= lane_1xL < (head + 1) * head_dim
    if tile_SxL.dtype == jnp.float32:
        return jnp.where(is_of_head_1xL, tile_SxL, spare_SxL)
    # As 32-bit words of two bfloat16 each: to select bfloat16, the vector unit would unpack them.
    tile_words = pltpu.bitcast(tile_SxL, jnp.int32)
    spare_words = pltpu.bitcast(spare_SxL, jnp.int32)
    return pltpu.bitcast(jnp.where(is_of_head_1xL, tile_words, spare_words), tile_SxL.dtype)


def with_spare_lanes_transposed(
    tile_LxS: jax.Array, spare_LxS: jax.Array, head: int, head_dim: int
) -> jax.Array:
    """`with_spare_lanes` of transposed arrays, where it costs nothing: [L, S], or [2L, S]."""
    if head_dim == LANES:
        return jnp.concatenate([tile_LxS, spare_LxS])
    dims = dims_of(head, head_dim)
    parts = [tile_LxS[dims]]
    if dims.start > 0:
        parts.insert(0, spare_LxS[: dims.start])
    if dims.stop < LANES:
        parts.append(spare_LxS[dims.stop :])
    return jnp.concatenate(parts)


def only_head(tile_SxL: jax.Array, head: int, head_dim: int) -> jax.Array:
    """`tile` with zeros in the lanes of other heads: [S, L]."""
    if head_dim == LANES:
        return tile_SxL
    return with_spare_lanes(tile_SxL, jnp.zeros_like(tile_SxL), head, head_dim)


def only_head_transposed(tile_LxS: jax.Array, head: int, head_dim: int) -> jax.Array:
    """`only_head` of a transposed array: [L, S]."""
    if head_dim == LANES:
        return tile_LxS
    return with_spare_lanes_transposed(tile_LxS, jnp.zeros_like(tile_LxS), head, head_dim)


def column(row_1xS: jax.Array) -> jax.Array:
    """A row [1, S] as a column that is repeated in every lane: [S, 128]."""
    return jnp.broadcast_to(row_1xS, (LANES, row_1xS.shape[1])).T


def spare_lanes(segments_1xS: jax.Array, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """(The spare lanes of queries, those of keys), transposed: both [L, S].

    They make the product of queries and keys a masked one. Each of the four base-16 digits of a
    sequence's number has 16 lanes, in both halves of a tile. A key has 1 in the lane of the digit's
    value, and 0 in the others. A query has 0 where a key of its sequence has 1, and -2^20 in the
    others. So their product is 0 within a sequence, and at most -2^20 between sequences.
    """
    value_16xS = lax.broadcasted_iota(jnp.int32, (_DIGIT_LANES, segments_1xS.shape[1]), 0)
    queries = []
    keys = []
    for shift in (0, 4, 8, 12):
        same_16xS = (segments_1xS >> shift & 15) == value_16xS
        queries.append(jnp.where(same_16xS, 0.0, -(2.0**20)))
        keys.append(jnp.where(same_16xS, 1.0, 0.0))
    return jnp.concatenate(queries * 2).astype(dtype), jnp.concatenate(keys * 2).astype(dtype)


def kept_probabilities(
    query_hashes_1xQ: jax.Array, key_hashes_KxL: jax.Array, rate: float
) -> jax.Array:
    """Which probabilities dropout keeps: bool [K, Q].

    Args:
      query_hashes_1xQ: dropout hashes of queries.
      key_hashes_KxL: dropout hashes of keys, each in all lanes (`column`).
      rate: of dropout.
    """
    num_tiles = query_hashes_1xQ.shape[1] // LANES
    column_KxQ = jnp.concatenate([key_hashes_KxL] * num_tiles, axis=1)
    return drop.kept(query_hashes_1xQ + column_KxQ, rate)


def softmax_means(
    d_context_SxL: jax.Array, context_SxL: jax.Array, head_dim: int, rate: float
) -> jax.Array:
    """What the gradient of softmax subtracts for each query of a tile: [8, S], a sublane a head.

    FlashAttention (Dao et al., 2022) calls it D: the query's context times the context's gradient,
    summed over the head's dims. (It is the mean of the gradients of the query's probabilities,
    weighted by these.) The matrix unit sums it here, so that no score has to wait for all others.
    """
    product_SxL = d_context_SxL.astype(jnp.float32)
    product_SxL *= context_SxL.astype(jnp.float32)
    line_8xL = lax.broadcasted_iota(jnp.int32, (SUBLANES, LANES), 0)
    lane_8xL = lax.broadcasted_iota(jnp.int32, (SUBLANES, LANES), 1)
    is_of_head_8xL = lax.div(lane_8xL, head_dim) == line_8xL
    return dot(jnp.where(is_of_head_8xL, 1.0 - rate, 0.0), product_SxL, 1, 1)


def sum_of_lines(x_SxL: jax.Array) -> jax.Array:
    """The sums [8, L] over every eighth token, in float32; the sum of these is over all tokens."""
    lines_xx8xL = x_SxL.astype(jnp.float32).reshape(-1, SUBLANES, LANES)
    return jnp.sum(lines_xx8xL, axis=0)


def overlap(units: Sequence[Any], stages: Sequence[Callable[..., Any]], lag: int) -> None:
    """Runs every stage of every unit in the order of a software pipeline.

    The compiler's scheduler looks for independent work only nearby, and this order puts it there.

    Args:
      units: of a grid step.
      stages: the first takes a unit; each other takes a unit and what the previous returned for it.
      lag: how many units a stage is behind the previous one; at least 1.
    """
    results: dict[int, Any] = {}  # of the latest stage, by a unit's index
    for time in range(len(units) + lag * (len(stages) - 1)):
        for number, stage in enumerate(stages):
            index = time - number * lag
            if not 0 <= index < len(units):
                continue
            if number == 0:
                results[index] = stage(units[index])
            else:
                results[index] = stage(units[index], results.pop(index))


def scaled_with_bias(
    qkv_BxSx3H: jax.Array, bias_3H: jax.Array, settings: Settings
) -> jax.Array:
    """Queries, keys and values [B, S, 3H] with bias; queries scaled; queries and keys rotated.

    All this is in float32, so that they are rounded to the dtype of `qkv` only once.

    Args:
      qkv_BxSx3H: without bias; S is a multiple of 128.
      bias_3H: float32.
      settings: what the kernels are made for; nothing is rotated if `rotary_base` is 0.
    """
    hidden3 = qkv_BxSx3H.shape[2]
    scale_3H = jnp.where(jnp.arange(hidden3) < hidden3 // 3, query_scale(settings.head_dim), 1.0)
    if settings.rotary_base:
        return _scaled_and_rotated(qkv_BxSx3H, bias_3H, scale_3H, settings)
    return ((qkv_BxSx3H.astype(jnp.float32) + bias_3H) * scale_3H).astype(qkv_BxSx3H.dtype)


def rotation(length: int, settings: Settings) -> jax.Array:
    """Cosines and sines of rotary positions: [2, D/2, S] float32."""
    angles_DxS = rotary.angles(
        jnp.arange(length), settings.head_dim, settings.rotary_base, settings.rotary_factor).T
    return jnp.stack([jnp.cos(angles_DxS), jnp.sin(angles_DxS)])


def rotated_back(tile_LxS: jax.Array, rotation_2xDxS: Any) -> jax.Array:
    """The gradient of what `rotation` rotated, from that of the result: [L, S], a tile of heads."""
    cos, sin = rotation_2xDxS[0], rotation_2xDxS[1]
    half = cos.shape[0]
    parts = []
    for start in range(0, tile_LxS.shape[0], 2 * half):
        first = tile_LxS[start : start + half]
        second = tile_LxS[start + half : start + 2 * half]
        parts += [first * cos + second * sin, second * cos - first * sin]
    return jnp.concatenate(parts)


def _scaled_and_rotated(
    qkv_BxSx3H: jax.Array, bias_3H: jax.Array, scale_3H: jax.Array, settings: Settings
) -> jax.Array:
    """`scaled_with_bias` where queries and keys are rotated.

    This is a kernel, which is bound by memory, so rotating costs it no time. XLA would read a table
    of cosines and sines as large as queries and keys, once for each row.
    """
    batch, length, hidden3 = qkv_BxSx3H.shape
    block = math.gcd(length, _MOST_ROTATED)
    grid = length // block, batch  # the angles of a block stay while rows change
    head_dim = settings.head_dim
    angles = rotation(length, settings)
    sign = jnp.where(jnp.arange(LANES) % head_dim < head_dim // 2, -1.0, 1.0)
    # [S, L]: lane i of a head has the angle of dim i mod D/2.
    cos_sin = jnp.tile(angles.swapaxes(1, 2), (1, 1, 2 * LANES // head_dim))
    cos_sin = cos_sin * jnp.stack([jnp.ones(LANES), sign])[:, None]
    columns = pl.BlockSpec((1, hidden3), lambda i, j: (0, 0))
    rows = pl.BlockSpec((1, block, hidden3), lambda i, j: (j, i, 0))
    rotated: jax.Array = pl.pallas_call(
        functools.partial(_rotation_kernel, half=head_dim // 2),
        name=named_with_grid('attention_rotation', grid),
        grid=grid,
        in_specs=[rows, columns, columns, pl.BlockSpec((2, block, LANES), lambda i, j: (0, i, 0))],
        out_specs=rows,
        out_shape=jax.ShapeDtypeStruct(qkv_BxSx3H.shape, qkv_BxSx3H.dtype),
        compiler_params=pltpu.CompilerParams(dimension_semantics=('parallel', 'parallel')),
        interpret=settings.interpret,
    )(qkv_BxSx3H, bias_3H[None], scale_3H[None], cos_sin)
    return rotated


def _rotation_kernel(
    x_ref: Any, bias_ref: Any, scale_ref: Any, cos_sin_ref: Any, y_ref: Any, *, half: int
) -> None:
    num_lanes = x_ref.shape[2]
    lane_1xL = lax.broadcasted_iota(jnp.int32, (1, LANES), 1)
    is_first_half_1xL = lane_1xL % (2 * half) < half
    for start in range(0, num_lanes, LANES):
        lanes = slice(start, start + LANES)
        x_SxL = x_ref[0, :, lanes].astype(jnp.float32) + bias_ref[:, lanes]
        x_SxL *= scale_ref[:, lanes]
        if start < num_lanes // 3 * 2:  # queries and keys
            other_SxL = pltpu.roll(x_SxL, half, 1)
            if 2 * half < LANES:
                from_above = pltpu.roll(x_SxL, LANES - half, 1)
                other_SxL = jnp.where(is_first_half_1xL, from_above, other_SxL)
            x_SxL = x_SxL * cos_sin_ref[0] + other_SxL * cos_sin_ref[1]
        y_ref[0, :, lanes] = x_SxL.astype(y_ref.dtype)
