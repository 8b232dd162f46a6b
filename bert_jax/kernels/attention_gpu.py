"""Self-attention on GPUs, fused into one kernel for each of the forward and backward passes.

The kernels read queries, keys and values in the layout of their projection, `[B, S, 3, N, D]`, and
write context vectors `[B, S, N, D]` and the gradient of the projection's output, so nothing is
transposed in memory. Scores and probabilities are never stored: a program visits the row in blocks
and keeps running sums of softmax (Dao et al., 2022, FlashAttention), and the backward pass computes
them again from the logarithm of each query's sum. Dropout uses the masks of `kernels.dropout`, bit
for bit.

A program of the forward pass computes the context of one block of queries of a head. One of the
backward pass computes the gradients of one block of tokens: those of its keys and values, for which
it visits queries, and those of its queries, for which it visits keys. If a block is a whole row,
both come from the same scores.

A token sees (attends to) the tokens of its own sequence within half a window, and these see it. So
one function masks a block of scores, whether its first dim is queries or keys, and a block visits
the same blocks in both passes: those from the first to the last that shares a sequence with it and
is in reach.

The kernels are written in Pallas and compiled by Triton. jax 0.11 warns that a later version will
have this backend elsewhere; where it is missing, `attention_check.failing_attention` says so, and
attention is left to XLA.

    B: batch rows, S: sequence (Q queries, K keys), N: heads, D: head_dim, M: marks of a token,
    which are the number of its sequence and, with dropout, its hash as a key, O: own tokens of a
    program, V: tokens that it visits at a time, G: blocks of a row
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from bert_jax.kernels import dropout as drop
from bert_jax.kernels.attention_tiles import (
    KEY,
    PADDING_MARK,
    QUERY,
    VALUE,
    Settings,
    attention_of_passes,
    dot,
    query_scale,
    sequence_ranges,
)
from bert_jax.kernels.rotary import rotated

# The score of a key that a query does not see: its exponential is 0 beside that of the query with
# its own token's key.
# A power of two: its product with a scale is exact, so the difference from the highest score is 0
# even if the compiler rounds only once, and not a large number whose exponential is infinite.
_UNSEEN = -(2.0**100)
# The smallest block that a GPU's matrix units take.
_LEAST_BLOCK = 16


class _Blocks(NamedTuple):
    """How a kernel divides its work, and how Triton compiles a program of it.

    Attributes:
      own: tokens whose results a program computes.
      visited: tokens that it visits at a time; a divisor of `own`.
      num_warps: warps of a program, of 32 threads each.
      num_stages: blocks in the pipeline of reads: those read ahead, and the one in use.
    """

    own: int
    visited: int
    num_warps: int = 4
    num_stages: int = 2


# The fastest that were tried on an H200 (docs/log/speed.md). A larger block is read less often, but
# the registers of eight warps leave room for fewer programs beside each other.
_BLOCK = 64
_WHOLE_ROW = 128  # the longest row whose backward pass is one block, of eight warps


def _forward_blocks(length: int) -> _Blocks:
    block = min(length, _BLOCK)
    return _Blocks(block, block)


def _backward_blocks(length: int, head_dim: int) -> _Blocks:
    """A whole row if its scores and their gradients fit into registers, else blocks of 64."""
    if length <= _BLOCK:
        return _Blocks(length, length)
    if head_dim == 128:  # sums of gradients take twice the registers
        return _Blocks(_BLOCK, _BLOCK)
    if length <= _WHOLE_ROW:
        return _Blocks(length, length, num_warps=8)
    return _Blocks(_BLOCK, _BLOCK, num_stages=3)


def padded_length(length: int) -> int:
    """The length that rows are padded to: a power of two, or for long rows whole blocks."""
    if length <= _WHOLE_ROW:
        return max(_LEAST_BLOCK, 1 << (length - 1).bit_length())
    return length + -length % _BLOCK


def attention_on_gpu(
    qkv_BxSx3xNxD: jax.Array,
    bias_3xNxD: jax.Array,
    marks_BxMxS: jax.Array,
    query_hashes_BxNxS: jax.Array | None,
    *,
    settings: Settings,
) -> jax.Array:
    """Context vectors [B, S, N, D] of one device's rows and heads.

    Args:
      qkv_BxSx3xNxD: queries, keys and values, without bias.
      bias_3xNxD: their bias, float32.
      marks_BxMxS: sequence numbers of tokens, and with dropout their hashes as keys; int32.
      query_hashes_BxNxS: dropout hashes of queries, int32, or None.
      settings: of the kernels.
    """
    length = qkv_BxSx3xNxD.shape[1]
    if settings.rotary_base:
        qkv_BxSx3xNxD = _with_bias_and_rotated(qkv_BxSx3xNxD, bias_3xNxD, settings)
        bias_3xNxD = jnp.zeros_like(bias_3xNxD)
    missing = padded_length(length) - length
    if missing:
        last_dim = ((0, 0), (0, 0), (0, missing))
        qkv_BxSx3xNxD = jnp.pad(qkv_BxSx3xNxD, ((0, 0), (0, missing), (0, 0), (0, 0), (0, 0)))
        marks_BxMxS = jnp.pad(marks_BxMxS, last_dim, constant_values=PADDING_MARK)
        if query_hashes_BxNxS is not None:
            query_hashes_BxNxS = jnp.pad(query_hashes_BxNxS, last_dim)
    context_BxSxNxD = _attention(
        qkv_BxSx3xNxD, bias_3xNxD, marks_BxMxS, query_hashes_BxNxS, settings)
    return context_BxSxNxD[:, :length]


def _with_bias_and_rotated(
    qkv_BxSx3xNxD: jax.Array, bias_3xNxD: jax.Array, settings: Settings
) -> jax.Array:
    """Queries, keys and values with bias, queries and keys rotated by their positions."""
    qkv_BxSx3xNxD = _with_bias(qkv_BxSx3xNxD, bias_3xNxD)
    base, factor = settings.rotary_base, settings.rotary_factor
    queries_BxSxNxD = rotated(qkv_BxSx3xNxD[:, :, QUERY], base, factor)
    keys_BxSxNxD = rotated(qkv_BxSx3xNxD[:, :, KEY], base, factor)
    return jnp.stack([queries_BxSxNxD, keys_BxSxNxD, qkv_BxSx3xNxD[:, :, VALUE]], axis=2)


def _with_bias(qkv_BxSx3xNxD: jax.Array, bias_3xNxD: jax.Array) -> jax.Array:
    # With one feature dim, XLA lets the product that makes `qkv` add the bias.
    qkv_BxSxF = qkv_BxSx3xNxD.reshape(*qkv_BxSx3xNxD.shape[:2], -1)
    qkv_BxSxF = qkv_BxSxF + bias_3xNxD.reshape(-1).astype(qkv_BxSxF.dtype)
    return qkv_BxSxF.reshape(qkv_BxSx3xNxD.shape)


def _visited_ranges(segments_BxS: jax.Array, blocks: _Blocks, reach: int) -> jax.Array:
    """The first block that each program visits and the end of the last [B, G, 2], int32.

    They hold every token that one of its own tokens sees. If the sequences of a row are not
    numbered in order, they also hold blocks without such tokens, whose scores are all masked.

    Args:
      segments_BxS: sequence numbers of tokens.
      blocks: of the kernel.
      reach: the greatest distance of two tokens that see each other; 0: any distance.
    """
    own_BxGx2 = sequence_ranges(segments_BxS, blocks.own)
    visited_BxVx2 = sequence_ranges(segments_BxS, blocks.visited)
    least, greatest = 0, 1
    starts_before = own_BxGx2[:, :, None, least] <= visited_BxVx2[:, None, :, greatest]
    ends_behind = own_BxGx2[:, :, None, greatest] >= visited_BxVx2[:, None, :, least]
    meets_BxGxV = starts_before & ends_behind
    num_visited = visited_BxVx2.shape[1]
    if reach:
        own_start_Gx1 = jnp.arange(own_BxGx2.shape[1])[:, None] * blocks.own
        visited_start_V = jnp.arange(num_visited) * blocks.visited
        meets_BxGxV &= visited_start_V + blocks.visited + reach > own_start_Gx1
        meets_BxGxV &= visited_start_V < own_start_Gx1 + blocks.own + reach
    first_BxG = jnp.argmax(meets_BxGxV, axis=2)
    end_BxG = num_visited - jnp.argmax(meets_BxGxV[:, :, ::-1], axis=2)
    return jnp.stack([first_BxG, end_BxG], axis=-1).astype(jnp.int32)


class _Residuals(NamedTuple):
    """What the backward pass needs of the forward pass.

    Attributes:
      qkv: queries, keys and values, with bias [B, S, 3, N, D].
      marks: marks of tokens [B, M, S] int32.
      query_hashes: dropout hashes of queries [B, N, S] int32, or None.
      log_sums: log2 of softmax's denominators [B, N, S] float32.
      context: context vectors [B, S, N, D], or None if a block is a whole row.
    """

    qkv: jax.Array
    marks: jax.Array
    query_hashes: jax.Array | None
    log_sums: jax.Array
    context: jax.Array | None


class _Inputs(NamedTuple):
    """What both kernels read: arrays; or their block specs; or, in a kernel, one head of a row."""

    queries: Any  # [S, D]
    keys: Any
    values: Any
    marks: Any  # [M, S]
    query_hashes: Any  # [S], or None without dropout
    ranges: Any  # [2]: the blocks that a program visits


class _Gradients(NamedTuple):
    """What the backward kernel reads besides `_Inputs`; likewise arrays, specs or references."""

    d_context: Any  # [S, D]
    log_sums: Any  # [S]
    means: Any  # [S], or None if a block is a whole row


class _Grid:
    """The grid (blocks of a row, heads, rows) and what a program can read and writes."""

    def __init__(self, qkv_BxSx3xNxD: jax.Array, blocks: _Blocks) -> None:
        batch, self._length, _, num_heads, self._head_dim = qkv_BxSx3xNxD.shape
        self._own = blocks.own
        self.shape = (self._length // blocks.own, num_heads, batch)

    def part(self, index: int) -> pl.BlockSpec:
        """A head of a part of queries, keys and values."""
        return pl.BlockSpec(
            (None, self._length, None, None, self._head_dim),
            lambda i, head, row: (row, 0, index, head, 0))

    @property
    def head(self) -> pl.BlockSpec:
        """A head of an array [B, S, N, D]."""
        return pl.BlockSpec(
            (None, self._length, None, self._head_dim), lambda i, head, row: (row, 0, head, 0))

    @property
    def line(self) -> pl.BlockSpec:
        """A head of an array [B, N, S]."""
        return pl.BlockSpec((None, None, self._length), lambda i, head, row: (row, head, 0))

    @property
    def own_head(self) -> pl.BlockSpec:
        """The program's own tokens of a head of an array [B, S, N, D]."""
        return pl.BlockSpec(
            (None, self._own, None, self._head_dim), lambda i, head, row: (row, i, head, 0))

    @property
    def own_parts(self) -> pl.BlockSpec:
        """The program's own tokens of a head of all parts."""
        return pl.BlockSpec(
            (None, self._own, 3, None, self._head_dim), lambda i, head, row: (row, i, 0, head, 0))

    @property
    def own_line(self) -> pl.BlockSpec:
        """The program's own tokens of a head of an array [B, N, S]."""
        return pl.BlockSpec((None, None, self._own), lambda i, head, row: (row, head, i))

    @property
    def own_bias(self) -> pl.BlockSpec:
        """The program's own sums of a head of an array [B, G, 3, N, D]."""
        return pl.BlockSpec(
            (None, None, 3, None, self._head_dim), lambda i, head, row: (row, i, 0, head, 0))

    def inputs(self, num_marks: int, has_dropout: bool) -> _Inputs:
        """The blocks of `_Inputs`."""
        return _Inputs(
            queries=self.part(QUERY),
            keys=self.part(KEY),
            values=self.part(VALUE),
            marks=pl.BlockSpec((None, num_marks, self._length), lambda i, head, row: (row, 0, 0)),
            query_hashes=self.line if has_dropout else None,
            ranges=pl.BlockSpec((None, None, 2), lambda i, head, row: (row, i, 0)))


def _compiler_params(blocks: _Blocks) -> Any:
    # Not at the top: it may be absent in a later jax, where everything else works without it.
    from jax.experimental.pallas import triton

    return triton.CompilerParams(
        num_warps=blocks.num_warps, num_stages=blocks.num_stages)


def _forward(  # type: ignore[no-untyped-def]
    qkv_BxSx3xNxD, bias_3xNxD, marks_BxMxS, query_hashes_BxNxS, settings
):
    """Context [B, S, N, D], and the residuals."""
    batch, length, _, num_heads, head_dim = qkv_BxSx3xNxD.shape
    qkv = _with_bias(qkv_BxSx3xNxD, bias_3xNxD)
    blocks = _forward_blocks(length)
    grid = _Grid(qkv, blocks)
    ranges_BxGx2 = _visited_ranges(marks_BxMxS[:, 0], blocks, settings.reach)
    context_BxSxNxD, log_sums_BxNxS = pl.pallas_call(
        functools.partial(_forward_kernel, blocks=blocks, settings=settings),
        name='attention_forward',
        grid=grid.shape,
        in_specs=[grid.inputs(marks_BxMxS.shape[1], query_hashes_BxNxS is not None)],
        out_specs=[grid.own_head, grid.own_line],
        out_shape=[
            jax.ShapeDtypeStruct((batch, length, num_heads, head_dim), qkv.dtype),
            jax.ShapeDtypeStruct((batch, num_heads, length), jnp.float32),
        ],
        compiler_params=_compiler_params(blocks),
        interpret=settings.interpret,
    )(_Inputs(qkv, qkv, qkv, marks_BxMxS, query_hashes_BxNxS, ranges_BxGx2))
    has_one_block = _backward_blocks(length, head_dim).own == length
    residuals = _Residuals(
        qkv, marks_BxMxS, query_hashes_BxNxS, log_sums_BxNxS,
        None if has_one_block else context_BxSxNxD)
    return context_BxSxNxD, residuals


def _backward(settings, residuals, d_context_BxSxNxD):  # type: ignore[no-untyped-def]
    """Gradients of the projection's output [B, S, 3, N, D] and of its bias [3, N, D].

    The kernel writes the bias gradient as sums over the tokens of each block [B, G, 3, N, D].
    """
    qkv, marks, query_hashes, log_sums, context = residuals
    batch, length, _, num_heads, head_dim = qkv.shape
    blocks = _backward_blocks(length, head_dim)
    grid = _Grid(qkv, blocks)
    ranges_BxGx2 = _visited_ranges(marks[:, 0], blocks, settings.reach)
    means_BxNxS = None
    if context is not None:
        means_BxNxS = _means(d_context_BxSxNxD, context, settings.rate)
    d_qkv, d_bias_BxGx3xNxD = pl.pallas_call(
        functools.partial(_backward_kernel, blocks=blocks, settings=settings),
        name='attention_backward',
        grid=grid.shape,
        in_specs=[
            grid.inputs(marks.shape[1], query_hashes is not None),
            _Gradients(grid.head, grid.line, None if context is None else grid.line),
        ],
        out_specs=[grid.own_parts, grid.own_bias],
        out_shape=[
            jax.ShapeDtypeStruct(qkv.shape, qkv.dtype),
            jax.ShapeDtypeStruct((batch, grid.shape[0], 3, num_heads, head_dim), jnp.float32),
        ],
        compiler_params=_compiler_params(blocks),
        interpret=settings.interpret,
    )(
        _Inputs(qkv, qkv, qkv, marks, query_hashes, ranges_BxGx2),
        _Gradients(d_context_BxSxNxD, log_sums, means_BxNxS))
    return d_qkv, jnp.sum(d_bias_BxGx3xNxD, axis=(0, 1))


_attention = attention_of_passes(_forward, _backward)


def _means(
    d_context_BxSxNxD: jax.Array, context_BxSxNxD: jax.Array, rate: float
) -> jax.Array:
    """What the gradient of softmax subtracts for each query: [B, N, S] float32.

    FlashAttention (Dao et al., 2022) calls it D. As all gradients of scores within the kernel, it
    lacks the factor 1 / (1 - rate).
    """
    product_BxSxNxD = d_context_BxSxNxD.astype(jnp.float32) * context_BxSxNxD.astype(jnp.float32)
    return jnp.sum(product_BxSxNxD * (1.0 - rate), axis=-1).swapaxes(1, 2)


def _own_tokens(blocks: _Blocks) -> Any:
    return pl.ds(pl.program_id(0) * blocks.own, blocks.own)


def _scores(
    inputs: _Inputs, own_OxD: jax.Array, visited_VxD: jax.Array, own: Any, visited: Any, reach: int
) -> jax.Array:
    """The products [O, V] of queries and keys, in either order, not scaled; `_UNSEEN` if masked.

    Args:
      inputs: of the kernel; their sequence numbers are read.
      own_OxD, visited_VxD: queries and keys, or keys and queries.
      own, visited: the slices of their tokens.
      reach: the greatest distance of two tokens that see each other; 0: any distance.
    """
    sees_OxV = inputs.marks[0, own][:, None] == inputs.marks[0, visited][None, :]
    if reach:
        own_place_O = own.start + lax.iota(jnp.int32, own.size)
        visited_place_V = visited.start + lax.iota(jnp.int32, visited.size)
        sees_OxV &= jnp.abs(own_place_O[:, None] - visited_place_V[None, :]) <= reach
    return jnp.where(sees_OxV, dot(own_OxD, visited_VxD, 1, 1), _UNSEEN)


def _dropped(x_OxV: jax.Array, own_O: Any, visited_V: Any, rate: float) -> jax.Array:
    """`x` with zeros where dropout drops it, not scaled by 1 / (1 - rate).

    Args:
      x_OxV: probabilities, or their gradients.
      own_O, visited_V: dropout hashes of queries and keys, in either order; None without dropout.
      rate: of dropout.
    """
    if not rate:
        return x_OxV
    return jnp.where(drop.kept(own_O[:, None] + visited_V[None, :], rate), x_OxV, 0.0)


def _key_hashes(inputs: _Inputs, tokens: Any) -> Any:
    """Dropout hashes of keys, or None without dropout."""
    return None if inputs.query_hashes is None else inputs.marks[1, tokens]


def _query_hashes(inputs: _Inputs, tokens: Any) -> Any:
    """Dropout hashes of queries, or None without dropout."""
    return None if inputs.query_hashes is None else inputs.query_hashes[tokens]


def _forward_kernel(
    inputs: _Inputs, context_ref: Any, log_sums_ref: Any, *, blocks: _Blocks, settings: Settings
) -> None:
    own = _own_tokens(blocks)
    queries_OxD = inputs.queries[own, :]
    hashes_O = _query_hashes(inputs, own)
    scale = query_scale(settings.head_dim)  # to exponents of 2

    def visit(
        index: jax.Array, carry: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        context_OxD, highest_O, sum_O = carry
        visited = pl.ds(index * blocks.visited, blocks.visited)
        scores_OxV = _scores(
            inputs, queries_OxD, inputs.keys[visited, :], own, visited, settings.reach)
        new_highest_O = jnp.maximum(highest_O, jnp.max(scores_OxV, axis=1) * scale)
        exp_OxV = jnp.exp2(scores_OxV * scale - new_highest_O[:, None])
        fading_O = jnp.exp2(highest_O - new_highest_O)
        sum_O = sum_O * fading_O + jnp.sum(exp_OxV, axis=1)
        dropped_OxV = _dropped(exp_OxV, hashes_O, _key_hashes(inputs, visited), settings.rate)
        values_VxD = inputs.values[visited, :]
        context_OxD = context_OxD * fading_O[:, None]
        context_OxD += dot(dropped_OxV.astype(values_VxD.dtype), values_VxD, 1, 0)
        return context_OxD, new_highest_O, sum_O

    start = (
        jnp.zeros(queries_OxD.shape, jnp.float32),
        jnp.full(blocks.own, _UNSEEN, jnp.float32),
        jnp.zeros(blocks.own, jnp.float32))
    context_OxD, highest_O, sum_O = lax.fori_loop(
        inputs.ranges[0], inputs.ranges[1], visit, start)
    context_OxD *= (1.0 / (sum_O * (1.0 - settings.rate)))[:, None]
    context_ref[...] = context_OxD.astype(context_ref.dtype)
    log_sums_ref[...] = highest_O + jnp.log(sum_O) * math.log2(math.e)


def _backward_kernel(
    inputs: _Inputs, gradients: _Gradients, d_qkv_ref: Any, d_bias_ref: Any, *, blocks: _Blocks,
    settings: Settings,
) -> None:
    step = _BackwardStep(inputs, gradients, d_qkv_ref, d_bias_ref, blocks, settings)
    if gradients.means is None:
        step.run_for_whole_row()
        return
    step.run_for_keys_and_values()
    step.run_for_queries()


class _Side(NamedTuple):
    """What the backward pass reads of T tokens, as queries or as keys.

    Attributes:
      tokens: their slice of the row.
      x: queries or keys [T, D]; queries times keys are scores.
      y: gradients of context vectors, or values [T, D]; gradients times values are the gradients
        of probabilities after dropout.
      dropout_hashes: [T], or None without dropout.
    """

    tokens: Any
    x: jax.Array
    y: jax.Array
    dropout_hashes: jax.Array | None


class _BackwardStep:
    """A program of the backward pass.

    Gradients of scores and of values are without the factor 1 / (1 - rate), which `_write` applies.
    """

    def __init__(
        self,
        inputs: _Inputs,
        gradients: _Gradients,
        d_qkv_ref: Any,
        d_bias_ref: Any,
        blocks: _Blocks,
        settings: Settings,
    ) -> None:
        self._inputs = inputs
        self._gradients = gradients
        self._d_qkv_ref = d_qkv_ref
        self._d_bias_ref = d_bias_ref
        self._visited_size = blocks.visited
        self._own = _own_tokens(blocks)
        self._settings = settings
        self._dtype = inputs.queries.dtype

    def run_for_whole_row(self) -> None:
        """All gradients of a row that is one block, whose scores [Q, K] are computed once."""
        queries = self._queries(self._own)
        keys = self._keys(self._own)
        log_sums_Q = self._gradients.log_sums[self._own]
        probs_QxK, dropped_QxK, d_probs_QxK = self._probs(queries, keys, log_sums_Q[:, None])
        self._write(VALUE, self._dot(dropped_QxK, queries.y, 0))
        means_Q = jnp.sum(probs_QxK * d_probs_QxK, axis=1)
        d_scores_QxK = probs_QxK * (d_probs_QxK - means_Q[:, None])
        self._write(QUERY, self._dot(d_scores_QxK, keys.x, 1))
        self._write(KEY, self._dot(d_scores_QxK, queries.x, 0))

    def run_for_keys_and_values(self) -> None:
        """The gradients of the program's own keys and values, visiting queries."""
        keys = self._keys(self._own)

        def visit(
            tokens: Any, sums: tuple[jax.Array, jax.Array]
        ) -> tuple[jax.Array, jax.Array]:
            d_keys_OxD, d_values_OxD = sums
            queries = self._queries(tokens)
            log_sums_V = self._gradients.log_sums[tokens]
            probs_OxV, dropped_OxV, d_probs_OxV = self._probs(keys, queries, log_sums_V[None, :])
            d_values_OxD += self._dot(dropped_OxV, queries.y, 1)
            d_scores_OxV = probs_OxV * (d_probs_OxV - self._gradients.means[tokens][None, :])
            d_keys_OxD += self._dot(d_scores_OxV, queries.x, 1)
            return d_keys_OxD, d_values_OxD

        zeros_OxD = jnp.zeros(keys.x.shape, jnp.float32)
        d_keys_OxD, d_values_OxD = self._over_visited(visit, (zeros_OxD, zeros_OxD))
        self._write(KEY, d_keys_OxD)
        self._write(VALUE, d_values_OxD)

    def run_for_queries(self) -> None:
        """The gradients of the program's own queries, visiting keys."""
        queries = self._queries(self._own)
        log_sums_O = self._gradients.log_sums[self._own]
        means_O = self._gradients.means[self._own]

        def visit(tokens: Any, d_queries_OxD: jax.Array) -> jax.Array:
            keys = self._keys(tokens)
            probs_OxV, _, d_probs_OxV = self._probs(queries, keys, log_sums_O[:, None])
            d_scores_OxV = probs_OxV * (d_probs_OxV - means_O[:, None])
            return d_queries_OxD + self._dot(d_scores_OxV, keys.x, 1)

        zeros_OxD = jnp.zeros(queries.x.shape, jnp.float32)
        self._write(QUERY, self._over_visited(visit, zeros_OxD))

    def _queries(self, tokens: Any) -> _Side:
        return _Side(
            tokens, self._inputs.queries[tokens, :], self._gradients.d_context[tokens, :],
            _query_hashes(self._inputs, tokens))

    def _keys(self, tokens: Any) -> _Side:
        return _Side(
            tokens, self._inputs.keys[tokens, :], self._inputs.values[tokens, :],
            _key_hashes(self._inputs, tokens))

    def _probs(
        self, own: _Side, visited: _Side, log_sums: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Probabilities, those after dropout, and the gradients of the former; all [O, V].

        Args:
          own, visited: queries and keys, or keys and queries.
          log_sums: of the queries [O, 1] or [1, V].
        """
        scores_OxV = _scores(
            self._inputs, own.x, visited.x, own.tokens, visited.tokens, self._settings.reach)
        probs_OxV = jnp.exp2(scores_OxV * query_scale(self._settings.head_dim) - log_sums)
        rate = self._settings.rate
        dropped_OxV = _dropped(probs_OxV, own.dropout_hashes, visited.dropout_hashes, rate)
        d_dropped_OxV = dot(own.y, visited.y, 1, 1)
        d_probs_OxV = _dropped(d_dropped_OxV, own.dropout_hashes, visited.dropout_hashes, rate)
        return probs_OxV, dropped_OxV, d_probs_OxV

    def _dot(self, x_OxV: jax.Array, y: jax.Array, x_dim: int) -> jax.Array:
        """The product of `x`, rounded to the inputs' dtype, and `y`, over one dim and tokens."""
        return dot(x_OxV.astype(self._dtype), y, x_dim, 0)

    def _over_visited(self, visit: Callable[[Any, Any], Any], start: Any) -> Any:
        """Calls `visit` for each block that the program visits; its result is the next carry."""
        size = self._visited_size

        def visit_block(index: jax.Array, carry: Any) -> Any:
            return visit(pl.ds(index * size, size), carry)

        return lax.fori_loop(self._inputs.ranges[0], self._inputs.ranges[1], visit_block, start)

    def _write(self, part: int, gradient_OxD: jax.Array) -> None:
        """Writes the gradients of a part, and their sum for the bias."""
        scale = 1.0 if part == VALUE else self._settings.head_dim**-0.5
        gradient_OxD *= scale / (1.0 - self._settings.rate)
        rounded_OxD = gradient_OxD.astype(self._dtype)
        self._d_qkv_ref[:, part, :] = rounded_OxD
        self._d_bias_ref[part, :] = _sum_of_tokens(rounded_OxD, part)


def _sum_of_tokens(gradient_OxD: jax.Array, part: int) -> jax.Array:
    """The gradient of a part's bias [D], float32."""
    num_tokens, head_dim = gradient_OxD.shape
    if part == KEY:  # the bias of keys adds the same to all scores of a query: softmax ignores it
        return jnp.zeros(head_dim, jnp.float32)
    # By the matrix units: these numbers are spread over threads, which would have to exchange them.
    shares = jnp.full((_LEAST_BLOCK, num_tokens), 1 / _LEAST_BLOCK, gradient_OxD.dtype)
    return jnp.sum(dot(shares, gradient_OxD, 1, 0), axis=0)
