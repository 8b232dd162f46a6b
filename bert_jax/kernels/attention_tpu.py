"""Self-attention on TPUs, fused into one kernel for each of the forward and backward passes.

The forward kernel reads queries, keys and values in the layout of their projection, `[B, S, 3H]`,
and writes context vectors `[B, S, H]`. Scores and probabilities never leave the chip's on-chip
memory (VMEM); the backward kernel recomputes them. Heads share the 128 lanes of a tile: two of 64
dims, or four of 32. Dropout uses the masks of `kernels.dropout`, bit for bit, whatever the blocks
and the mesh.

Scores are laid out as [keys, queries], so that the sums of softmax are taken over sublanes, by
adding whole registers, and not by the slow unit that moves data between lanes. Context and
gradients are computed as [head_dim, S], which halves the matrix unit's work, and are transposed
once for all heads of a tile.

The product of one head's queries and keys uses some of the lanes. The others, the spare lanes, hold
the mask, so adding it to the scores costs nothing. (A head of 128 dims has 128 spare lanes behind
its own.)

The forward pass does not subtract the maximum before it exponentiates: float32 has exponents from
-126 to 127. If a sum is outside 2^-100 to 2^100, that range may have been too small, and the whole
grid step is computed again with the maximum subtracted.

The projection's bias is added in this module, so that the backward kernel sums its gradient while
the gradient of the projection's output is still on the chip. Summing that array separately would
cost as much as the projection.

A grid step holds whole rows. `attention_blocks` is for longer rows and for windows.

Rotary positions are applied with the bias: queries and keys are rotated before the kernels, and the
backward kernel rotates their gradients back.

Both passes are in one file because they share blocks, order of work and masks, and neither can be
checked without the other.

    B: batch rows, S: sequence (Q queries, K keys), H: hidden_size, N: heads, D: head_dim, L: lanes,
    M: marks of a token, which are the number of its sequence and, with dropout, its hash as a key,
    T: tiles of heads, G: groups of rows
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bert_jax.kernels import attention_blocks as blocks
from bert_jax.kernels.attention_tiles import (
    KEY,
    LANES,
    PADDING_MARK,
    PARTS,
    QUERY,
    SUBLANES,
    VALUE,
    Settings,
    attention_of_passes,
    column,
    dims_of,
    dot,
    gradient_scale,
    kept_probabilities,
    named_with_grid,
    only_head_transposed,
    overlap,
    rotated_back,
    rotation,
    scaled_with_bias,
    softmax_means,
    spare_lanes,
    sum_of_lines,
    with_spare_lanes,
    with_spare_lanes_transposed,
)

# The longest row of which a grid step holds the whole; `attention_blocks` takes longer ones.
_LONGEST_ROW = 1024
# A grid step has all tiles of heads of a row, up to this number of scores, heads x S^2 (compiling
# more takes minutes, and twice as many do not fit), and this number of bytes of queries, keys or
# values. A head of 128 dims counts twice: more of them at once were not tried. Of short rows, it
# has several, but the grid keeps this number of steps, so that fetching the first rows and writing
# the last takes little time.
_MOST_SCORES = 1 << 22
_MOST_OF_PART = 1 << 20
_LEAST_STEPS = 8
# If a step of the forward kernel would have fewer rows than this of up to 128 tokens, or fewer than
# two longer ones, it may have twice those bytes, for up to 24 % fewer bundles of instructions (384
# tokens on a v6e: 2 % more). Elsewhere this saves less, and compiling takes twice as long. (The
# backward kernel moves more bytes, the first of which would arrive too late.)
_ENOUGH_SHORT_ROWS = 16
# The bytes that the kernels may take of a large VMEM. XLA keeps them free in the whole program, so
# other operations have less.
_VMEM_BYTES = 32 << 20
# In small VMEM, a grid step has two tiles of heads, or one if rows are longer than this. The other
# two limit its scores for each head of a tile, rows x tiles x S^2; a long row may have more.
_LONGEST_ROW_OF_TWO_TILES = 512
_FORWARD_SCORES = 1 << 18
_BACKWARD_SCORES = 1 << 17
# The backward kernel's output block is whole rows if [S, 3H] has at most so many elements.
_MOST_OUTPUT_IN_VMEM = 512 * 3 * 1024
# The most queries of a unit.
_MOST_QUERIES = 256
# The most units that a stage is behind the previous one.
_MOST_LAG = 6
# If log2 of a query's sum is between this and its negative, no exponential left float32's range.
_SAFE_EXPONENT = 100.0


def attention_on_tpu(
    qkv_BxSx3xNxD: jax.Array,
    bias_3xNxD: jax.Array,
    marks_BxMxS: jax.Array,
    query_hashes_BxNxS: jax.Array | None,
    *,
    settings: Settings,
) -> jax.Array:
    """Context vectors [B, S, N, D] of one device's rows and heads.

    It pads rows to whole tiles, calls the kernels for rows of this length, and removes the padding.

    Args:
      qkv_BxSx3xNxD: queries, keys and values, without bias; N fills tiles of 128 lanes, and S and
        the window are within `attention_blocks.limits`.
      bias_3xNxD: their bias, float32.
      marks_BxMxS: sequence numbers of tokens, and with dropout their hashes as keys; int32.
      query_hashes_BxNxS: dropout hashes of queries, int32, or None.
      settings: of the kernels.
    """
    batch, length, _, num_heads, head_dim = qkv_BxSx3xNxD.shape
    attention: Callable[..., jax.Array] = _attention
    missing = -length % LANES
    if settings.reach or length + missing > _LONGEST_ROW:
        attention = blocks.attention
        missing = blocks.padded_length(length, settings) - length
    qkv_BxSx3H = qkv_BxSx3xNxD.reshape(batch, length, -1)
    if missing:
        last_dim = ((0, 0), (0, 0), (0, missing))
        qkv_BxSx3H = jnp.pad(qkv_BxSx3H, ((0, 0), (0, missing), (0, 0)))
        marks_BxMxS = jnp.pad(marks_BxMxS, last_dim, constant_values=PADDING_MARK)
        if query_hashes_BxNxS is not None:
            query_hashes_BxNxS = jnp.pad(query_hashes_BxNxS, last_dim)
    query_hashes_BxTxNxS = None
    if query_hashes_BxNxS is not None:
        heads = LANES // head_dim  # of a tile
        query_hashes_BxTxNxS = query_hashes_BxNxS.reshape(batch, num_heads // heads, heads, -1)
    context_BxSxH = attention(
        qkv_BxSx3H, bias_3xNxD.reshape(-1), marks_BxMxS, query_hashes_BxTxNxS, settings)
    return context_BxSxH[:, :length].reshape(batch, length, num_heads, head_dim)


class _Residuals(NamedTuple):
    """What the backward pass needs of the forward pass.

    Attributes:
      qkv: scaled queries, keys and values, with bias [B, S, 3H].
      marks: marks of tokens [B, M, S] int32.
      query_hashes: dropout hashes of queries [B, T, N, S] int32, or None.
      log_sums: log2 of softmax's denominators [B, T, N, S] float32.
      context: context vectors [B, S, H].
    """

    qkv: jax.Array
    marks: jax.Array
    query_hashes: jax.Array | None
    log_sums: jax.Array
    context: jax.Array


class _ForwardInputs(NamedTuple):
    """The forward kernel's inputs: arrays; or their block specs; or, in the kernel, references.

    Queries, keys and values are parts of one array.
    """

    queries: Any
    keys: Any
    values: Any
    marks: Any
    query_hashes: Any


def _forward(  # type: ignore[no-untyped-def]
    qkv_BxSx3H, bias_3H, marks_BxMxS, query_hashes_BxTxNxS, settings
):
    """Context [B, S, H], and the residuals."""
    batch, length, hidden3 = qkv_BxSx3H.shape
    hidden = hidden3 // 3
    heads = LANES // settings.head_dim
    qkv = scaled_with_bias(qkv_BxSx3H, bias_3H, settings)
    grid = _Grid(qkv, settings, is_backward=False)
    inputs = _ForwardInputs(
        *grid.queries_keys_values,
        marks=grid.marks(marks_BxMxS),
        query_hashes=None if query_hashes_BxTxNxS is None else grid.scalars)
    context_BxSxH, log_sums_BxTxNxS = pl.pallas_call(
        functools.partial(_forward_kernel, settings=settings),
        name=named_with_grid('attention_forward', grid.shape),
        grid=grid.shape,
        in_specs=[inputs],
        out_specs=[grid.lanes(0), grid.scalars],
        out_shape=[
            jax.ShapeDtypeStruct((batch, length, hidden), qkv.dtype),
            jax.ShapeDtypeStruct((batch, hidden // LANES, heads, length), jnp.float32),
        ],
        scratch_shapes=grid.scratch_shapes,
        compiler_params=_compiler_params(settings),
        interpret=settings.interpret,
    )(_ForwardInputs(qkv, qkv, qkv, marks_BxMxS, query_hashes_BxTxNxS))
    residuals = _Residuals(qkv, marks_BxMxS, query_hashes_BxTxNxS, log_sums_BxTxNxS, context_BxSxH)
    return context_BxSxH, residuals


class _BackwardInputs(NamedTuple):
    """The backward kernel's inputs: arrays; or their block specs; or, in the kernel, references."""

    queries: Any
    keys: Any
    values: Any
    d_context: Any
    log_sums: Any
    marks: Any
    query_hashes: Any  # None without dropout
    context: Any  # None for short rows, which are memory-bound already
    rotation: Any  # None without rotary positions


def _backward(settings, residuals, d_context_BxSxH):  # type: ignore[no-untyped-def]
    """Gradients of the projection's output [B, S, 3H] and of its bias [3H].

    The kernel writes the bias gradient as partial sums [G, 3, 8, H], one for each group of rows and
    each sublane, that is, over every eighth token.
    """
    qkv, marks, query_hashes, log_sums, context = residuals
    _, length, hidden3 = qkv.shape
    if length <= LANES:
        context = None
    grid = _Grid(qkv, settings, is_backward=True)
    inputs = _BackwardInputs(
        *grid.queries_keys_values,
        d_context=grid.lanes(0),
        log_sums=grid.scalars,
        marks=grid.marks(marks),
        query_hashes=None if query_hashes is None else grid.scalars,
        context=None if context is None else grid.lanes(0),
        rotation=None)
    rotation_2xDxS = None
    if settings.rotary_base:
        rotation_2xDxS = rotation(length, settings)
        inputs = inputs._replace(
            rotation=pl.BlockSpec(rotation_2xDxS.shape, lambda i, j: (0, 0, 0)))
    # If there is room, the output block is whole rows, which stay in VMEM until the last tile of
    # heads is written. Otherwise the kernel copies the results itself; at length 512 this would
    # make the backward pass 4 % slower, because waiting for copies splits the schedule.
    copied = grid.shape[1] > 1 and length * hidden3 > _MOST_OUTPUT_IN_VMEM
    scratch_shapes = grid.scratch_shapes
    if copied:
        output = pl.BlockSpec(memory_space=pl.ANY)
        scratch_shapes = [*scratch_shapes, *grid.copied_shapes(qkv.dtype)]
    else:
        output = pl.BlockSpec((grid.rows, length, hidden3), lambda i, j: (i, 0, 0))
    d_qkv, d_bias_Gx3x8xH = pl.pallas_call(
        functools.partial(_backward_kernel, settings=settings),
        name=named_with_grid('attention_backward', grid.shape),
        grid=grid.shape,
        in_specs=[inputs],
        out_specs=[
            output,
            pl.BlockSpec((1, 3, SUBLANES, grid.tiles * LANES), lambda i, j: (i, 0, 0, j)),
        ],
        out_shape=[
            jax.ShapeDtypeStruct(qkv.shape, qkv.dtype),
            jax.ShapeDtypeStruct((grid.shape[0], 3, SUBLANES, hidden3 // 3), jnp.float32),
        ],
        scratch_shapes=scratch_shapes,
        compiler_params=_compiler_params(settings),
        interpret=settings.interpret,
    )(_BackwardInputs(
        qkv, qkv, qkv, d_context_BxSxH, log_sums, marks, query_hashes, context, rotation_2xDxS))
    return d_qkv, jnp.sum(d_bias_Gx3x8xH, axis=(0, 2)).reshape(-1)


_attention = attention_of_passes(_forward, _backward)


class _Unit(NamedTuple):
    """The smallest piece of a grid step's work: some queries of one head of one row."""

    row: Any  # an index within the block, perhaps traced, like `tile`
    tile: Any
    queries: Any  # a slice
    head: int  # of the tile

    @property
    def lanes(self) -> Any:
        """The lanes of this unit's tile of heads."""
        return pl.ds(pl.multiple_of(self.tile * LANES, LANES), LANES)

    @property
    def query_index(self) -> tuple[Any, ...]:
        """The index that selects this unit's queries, [1, Q], in an array [rows, tiles, N, S]."""
        return self.row, self.tile, pl.ds(self.head, 1), self.queries

    @property
    def is_first_of_tile(self) -> bool:
        """Whether no unit before this one has this row and tile."""
        return self.head == 0 and self.queries.start == 0


def _compiler_params(settings: Settings) -> pltpu.CompilerParams:
    return pltpu.CompilerParams(
        dimension_semantics=('parallel', 'arbitrary'),
        vmem_limit_bytes=_VMEM_BYTES if settings.has_large_vmem else None)


class _Grid:
    """The grid (groups of rows, groups of tiles of heads) and the blocks of a grid step.

    Attributes:
      rows: of a grid step.
      tiles: of heads in a grid step.
      shape: the number of groups of rows and of groups of tiles.
    """

    def __init__(self, qkv_BxSx3H: Any, settings: Settings, *, is_backward: bool) -> None:
        """Chooses a grid step's rows and tiles.

        More rows and tiles give the scheduler more independent work but need more VMEM. All tiles
        of a row in one step save a seventh to a third of the cycles of a pipeline that fills and
        empties for every two tiles.

        Args:
          qkv_BxSx3H: queries, keys and values, or their shape.
          settings: of the kernels.
          is_backward: whether the grid is the backward kernel's.
        """
        batch, length, hidden3 = qkv_BxSx3H.shape
        all_tiles = hidden3 // (3 * LANES)
        if settings.has_large_vmem:
            heads = max(2, LANES // settings.head_dim)  # of a tile
            most_by_scores = _MOST_SCORES // (heads * length**2)
            most_by_part = _MOST_OF_PART // (length * LANES * qkv_BxSx3H.dtype.itemsize)
            enough_tiles = all_tiles * (_ENOUGH_SHORT_ROWS if length <= LANES else 2)
            if not is_backward and min(most_by_part, most_by_scores) < enough_tiles:
                most_by_part *= 2
            most_tiles = min(most_by_part, most_by_scores)
            self.tiles = _largest_divisor(all_tiles, most_tiles)
            # One row if its tiles take several steps, during which the backward kernel keeps its
            # output, which is whole rows.
            most_rows = most_tiles // all_tiles
            self.rows = _power_of_two(batch, min(most_rows, batch // _LEAST_STEPS))
        else:
            self.tiles = math.gcd(all_tiles, 2 if length <= _LONGEST_ROW_OF_TWO_TILES else 1)
            most_scores = _BACKWARD_SCORES if is_backward else _FORWARD_SCORES
            self.rows = _power_of_two(batch, most_scores // (self.tiles * length**2))
        self.shape = (batch // self.rows, all_tiles // self.tiles)
        self._length = length
        self._dtype = qkv_BxSx3H.dtype
        self._head_dim = settings.head_dim
        self._is_backward = is_backward

    def lanes(self, first: int) -> pl.BlockSpec:
        """The block of a grid step's tiles of heads; `first` is the block index of step 0."""
        return pl.BlockSpec(self._lanes_shape, lambda i, j: (i, 0, first + j))

    @property
    def _lanes_shape(self) -> tuple[int, int, int]:
        return self.rows, self._length, self.tiles * LANES

    @property
    def queries_keys_values(self) -> tuple[pl.BlockSpec, pl.BlockSpec, pl.BlockSpec]:
        """The three blocks of a grid step's tiles in an array [B, S, 3H]."""
        steps = self.shape[1]
        return self.lanes(0), self.lanes(steps), self.lanes(2 * steps)

    @property
    def scalars(self) -> pl.BlockSpec:
        """The block of a grid step's tiles in an array [B, T, N, S]: a number for each query."""
        heads = LANES // self._head_dim
        return pl.BlockSpec(
            (self.rows, self.tiles, heads, self._length), lambda i, j: (i, j, 0, 0))

    def marks(self, marks_BxMxS: jax.Array) -> pl.BlockSpec:
        """The block of all marks of a grid step's rows."""
        return pl.BlockSpec((self.rows, *marks_BxMxS.shape[1:]), lambda i, j: (i, 0, 0))

    @property
    def scratch_shapes(self) -> list[Any]:
        """The arrays of `_Scratch`."""
        units = _units(self._lanes_shape, self._head_dim)
        num_queries = units[0].queries.stop
        num_slots = _lag(units) + 1
        num_buffered = 2 if self._is_backward else 1
        keys = (self.rows, self._length, LANES)
        queries = (self.rows, LANES, self._length) if self._is_backward else keys
        return [
            pltpu.VMEM(queries, self._dtype),
            pltpu.VMEM(keys, self._dtype),
            pltpu.VMEM(keys, jnp.int32),
            pltpu.VMEM((num_buffered, num_slots, self._length, num_queries), self._dtype),
        ]

    def copied_shapes(self, dtype: Any) -> list[Any]:
        """The gradients that the backward kernel copies to its output, and their semaphores."""
        return [pltpu.VMEM((3, *self._lanes_shape), dtype), pltpu.SemaphoreType.DMA((3,))]


def _largest_divisor(number: int, most: int) -> int:
    """The largest divisor of `number` that is at most `most`; at least 1."""
    for divisor in range(min(number, most), 1, -1):
        if number % divisor == 0:
            return divisor
    return 1


def _power_of_two(number: int, most: int) -> int:
    """The largest power of two that divides `number` and is at most `most`; at least 1."""
    power = 1
    while number % (2 * power) == 0 and 2 * power <= most:
        power *= 2
    return power


class _Scratch(NamedTuple):
    """A grid step's working memory.

    All heads of a row share the first three, which `prepare` writes.

    Attributes:
      spare_queries: the spare lanes of queries: in the forward pass [rows, S, L], in the backward
        pass [rows, L, S].
      spare_keys: the spare lanes of keys, [rows, S, L].
      key_hashes: dropout hashes of keys, each in all lanes, [rows, S, L] int32.
      buffer: what one stage of a unit hands to the next, [arrays, slots, K, Q].
    """

    spare_queries: Any
    spare_keys: Any
    key_hashes: Any
    buffer: Any

    def prepare(self, marks_ref: Any, *, is_backward: bool) -> None:
        """Writes the spare lanes and the dropout hashes of keys, once for all heads of a row."""
        @pl.when(pl.program_id(1) == 0)
        def _() -> None:
            for row in range(self.key_hashes.shape[0]):
                marks_MxS = marks_ref[row]
                queries_LxS, keys_LxS = spare_lanes(marks_MxS[:1], self.spare_keys.dtype)
                self.spare_queries[row] = queries_LxS if is_backward else queries_LxS.T
                self.spare_keys[row] = keys_LxS.T
                if marks_MxS.shape[0] > 1:
                    self.key_hashes[row] = column(marks_MxS[1:2])

    def slot(self, index: int) -> int:
        """The slot of the buffer for the unit with this index."""
        return index % self.buffer.shape[1]


def _forward_kernel(
    inputs: _ForwardInputs, context_ref: Any, log_sums_ref: Any, *scratch_refs: Any,
    settings: Settings,
) -> None:
    scratch = _Scratch(*scratch_refs)
    scratch.prepare(inputs.marks, is_backward=False)
    step = _ForwardStep(inputs, context_ref, log_sums_ref, scratch, settings)
    step.run()
    largest_exponent = jnp.max(jnp.abs(log_sums_ref[...]))
    # Negated, so that it is true of NaN.
    pl.when(jnp.logical_not(largest_exponent < _SAFE_EXPONENT))(step.run_safely)


class _ForwardStep:
    """A grid step of the forward pass: the stages of its units."""

    def __init__(
        self,
        inputs: _ForwardInputs,
        context_ref: Any,
        log_sums_ref: Any,
        scratch: _Scratch,
        settings: Settings,
    ) -> None:
        self._inputs = inputs
        self._context_ref = context_ref
        self._log_sums_ref = log_sums_ref
        self._scratch = scratch
        self._rate = settings.rate
        self._head_dim = settings.head_dim
        self._heads = range(LANES // settings.head_dim)  # of a tile
        self._dtype = inputs.queries.dtype
        self._units = _units(inputs.queries.shape, settings.head_dim)
        self._values_LxS: dict[Any, jax.Array] = {}  # transposed, by row and tile
        self._contexts_DxQ: dict[int, jax.Array] = {}  # of the latest tile, by head

    def run(self) -> None:
        """Computes the step as a pipeline, without subtracting the maximum of scores."""
        overlap(
            self._units,
            [self._load, self._scores, self._softmax, self._write_context],
            _lag(self._units))

    def _load(self, unit: _Unit) -> tuple[jax.Array, jax.Array]:
        if unit.is_first_of_tile:
            values_SxL = self._inputs.values[unit.row, :, unit.lanes]
            self._values_LxS[unit.row, unit.tile] = values_SxL.T
        return self._operands(unit)

    def _operands(self, unit: _Unit) -> tuple[jax.Array, jax.Array]:
        """Keys [K, L] and queries [Q, L] with their spare lanes: their product is the scores."""
        keys = with_spare_lanes(
            self._inputs.keys[unit.row, :, unit.lanes],
            self._scratch.spare_keys[unit.row],
            unit.head,
            self._head_dim)
        queries = with_spare_lanes(
            self._inputs.queries[unit.row, unit.queries, unit.lanes],
            self._scratch.spare_queries[unit.row, unit.queries],
            unit.head,
            self._head_dim)
        return keys, queries

    def _scores(self, unit: _Unit, operands: tuple[jax.Array, jax.Array]) -> jax.Array:
        keys_KxL, queries_QxL = operands
        return dot(keys_KxL, queries_QxL, 1, 1)

    def _softmax(self, unit: _Unit, scores_KxQ: jax.Array) -> tuple[int, jax.Array]:
        """Buffers exponentials after dropout; returns their slot, and the scale of their products.

        The scale [1, Q] is 1 / (sum of a query's exponentials x (1 - rate)).
        """
        slot = self._scratch.slot(self._units.index(unit))
        exp_KxQ = jnp.exp2(scores_KxQ)
        sum_1xQ = jnp.sum(exp_KxQ, axis=0, keepdims=True)
        self._log_sums_ref[unit.query_index] = jnp.log2(sum_1xQ)
        self._scratch.buffer[0, slot] = self._dropped(unit, exp_KxQ).astype(self._dtype)
        return slot, 1.0 / (sum_1xQ * (1.0 - self._rate))

    def _dropped(self, unit: _Unit, probs_KxQ: jax.Array) -> jax.Array:
        """`probs` with zeros where dropout drops them, not scaled by 1 / (1 - rate)."""
        if not self._rate:
            return probs_KxQ
        kept_KxQ = kept_probabilities(
            self._inputs.query_hashes[unit.query_index], self._scratch.key_hashes[unit.row],
            self._rate)
        return jnp.where(kept_KxQ, probs_KxQ, 0.0)

    def _write_context(self, unit: _Unit, softmax: tuple[int, jax.Array]) -> None:
        slot, scale_1xQ = softmax
        values_DxK = self._values_LxS[unit.row, unit.tile][dims_of(unit.head, self._head_dim)]
        sums_DxQ = dot(values_DxK, self._scratch.buffer[0, slot], 1, 0)
        self._contexts_DxQ[unit.head] = sums_DxQ * scale_1xQ
        if unit.head == self._heads[-1]:
            context_LxQ = jnp.concatenate([self._contexts_DxQ[head] for head in self._heads])
            context_QxL = context_LxQ.astype(self._dtype).T
            self._context_ref[unit.row, unit.queries, unit.lanes] = context_QxL

    def run_safely(self) -> None:
        """Computes the step again with the maximum subtracted; rare, so a loop is good enough."""
        rows, length, lanes = self._inputs.queries.shape
        tiles = lanes // LANES
        blocks = length // LANES

        def tile_of_heads(i: jax.Array, _: None) -> None:
            row = lax.div(i, tiles * blocks)
            rest = lax.rem(i, tiles * blocks)
            queries = pl.ds(pl.multiple_of(lax.rem(rest, blocks) * LANES, LANES), LANES)
            contexts_DxQ = []
            for head in self._heads:
                unit = _Unit(row, lax.div(rest, blocks), queries, head)
                contexts_DxQ.append(self._safe_context(unit))
            context_LxQ = jnp.concatenate(contexts_DxQ)
            self._context_ref[row, queries, unit.lanes] = context_LxQ.astype(self._dtype).T

        lax.fori_loop(0, rows * tiles * blocks, tile_of_heads, None)

    def _safe_context(self, unit: _Unit) -> jax.Array:
        """The context [D, Q] of a unit, with the maximum of its scores subtracted."""
        scores_KxQ = dot(*self._operands(unit), 1, 1)
        highest_1xQ = jnp.max(scores_KxQ, axis=0, keepdims=True)
        exp_KxQ = jnp.exp2(scores_KxQ - highest_1xQ)
        sum_1xQ = jnp.sum(exp_KxQ, axis=0, keepdims=True)
        self._log_sums_ref[unit.query_index] = highest_1xQ + jnp.log2(sum_1xQ)
        values_LxK = self._inputs.values[unit.row, :, unit.lanes].T
        values_DxK = values_LxK[dims_of(unit.head, self._head_dim)]
        dropped_KxQ = self._dropped(unit, exp_KxQ).astype(self._dtype)
        return dot(values_DxK, dropped_KxQ, 1, 0) / (sum_1xQ * (1.0 - self._rate))


def _backward_kernel(
    inputs: _BackwardInputs, d_qkv_ref: Any, d_bias_ref: Any, *scratch_refs: Any,
    settings: Settings,
) -> None:
    # A kernel that copies its results itself has two more entries.
    scratch = _Scratch(*scratch_refs[:4])
    copied_refs = scratch_refs[4:]
    scratch.prepare(inputs.marks, is_backward=True)
    output = _GradientOutput(inputs.queries.shape, d_qkv_ref, *copied_refs)
    step = _BackwardStep(inputs, output, d_bias_ref, scratch, settings)
    step.run()
    output.copy()


class _GradientOutput:
    """Where a grid step writes the gradients of its queries, keys and values.

    It writes them into the output block, or into scratch in VMEM, from which they are copied to the
    output while the next step computes.

    Attributes:
      refs: references [rows, S, lanes] to write the three parts to.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        d_qkv_ref: Any,
        copied_ref: Any = None,
        semaphores_ref: Any = None,
    ) -> None:
        """Finds the references, and prepares the copies if there are any.

        Args:
          shape: [rows, S, lanes] of a part.
          d_qkv_ref: the output: the block [rows, S, 3H], or [B, S, 3H] if the results are copied.
          copied_ref: VMEM for the three parts [3, rows, S, lanes]; None: nothing is copied.
          semaphores_ref: of the three copies.
        """
        rows, _, width = shape
        self._steps = pl.num_programs(1)
        self._step = pl.program_id(1)
        lanes = [
            pl.ds(pl.multiple_of((part * self._steps + self._step) * width, width), width)
            for part in PARTS]
        self._copies = []
        if copied_ref is None:
            self.refs = [d_qkv_ref.at[:, :, lanes[part]] for part in PARTS]
            return
        self.refs = [copied_ref.at[part] for part in PARTS]
        group = pl.ds(pl.program_id(0) * rows, rows)
        for part in PARTS:
            target = d_qkv_ref.at[group, :, lanes[part]]
            copy = pltpu.make_async_copy(self.refs[part], target, semaphores_ref.at[part])
            self._copies.append(copy)

    def wait_for_previous_step(self) -> None:
        """Waits for the previous step's copies, whose sources this step writes over."""
        if self._copies:
            pl.when(pl.program_id(1) > 0)(self._wait)

    def copy(self) -> None:
        """Starts the copies, and after the last step of these rows waits for them."""
        for copy in self._copies:
            copy.start()
        if self._copies:
            pl.when(self._step == self._steps - 1)(self._wait)

    def _wait(self) -> None:
        for copy in self._copies:
            copy.wait()


class _BackwardStep:
    """A grid step of the backward pass: the stages of its units."""

    def __init__(
        self,
        inputs: _BackwardInputs,
        output: _GradientOutput,
        d_bias_ref: Any,
        scratch: _Scratch,
        settings: Settings,
    ) -> None:
        self._inputs = inputs
        self._output = output
        self._d_bias_ref = d_bias_ref
        self._scratch = scratch
        self._rate = settings.rate
        self._head_dim = settings.head_dim
        self._heads = range(LANES // settings.head_dim)  # of a tile
        self._dtype = inputs.queries.dtype
        self._length = inputs.queries.shape[1]
        self._units = _units(inputs.queries.shape, settings.head_dim)
        # By row and tile: queries, keys and the context's gradient [L, S]; and `softmax_means`
        # [8, S], with a head's in its sublane.
        self._transposed: dict[Any, tuple[jax.Array, jax.Array, jax.Array]] = {}
        self._means_8xS: dict[Any, jax.Array] = {}
        # Gradients of the latest tile, by part and head: of queries [D, Q], of the others [D, S].
        self._gradients: dict[tuple[int, int], jax.Array] = {}

    def run(self) -> None:
        """Computes the step as a pipeline."""
        overlap(
            self._units,
            [self._load, self._products, self._softmax, self._differentiate],
            _lag(self._units))

    def _load(self, unit: _Unit) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Keys [K, L], queries [L, Q] and the context's gradient [L, Q], with spare lanes."""
        keys_SxL = self._inputs.keys[unit.row, :, unit.lanes]
        tile = unit.row, unit.tile
        if unit.is_first_of_tile:
            queries_SxL = self._inputs.queries[unit.row, :, unit.lanes]
            d_context_SxL = self._inputs.d_context[unit.row, :, unit.lanes]
            self._transposed[tile] = (queries_SxL.T, keys_SxL.T, d_context_SxL.T)
            if self._length > LANES:
                context_SxL = self._inputs.context[unit.row, :, unit.lanes]
                self._means_8xS[tile] = softmax_means(
                    d_context_SxL, context_SxL, self._head_dim, self._rate)
        keys = with_spare_lanes(
            keys_SxL, self._scratch.spare_keys[unit.row], unit.head, self._head_dim)
        queries_LxS, _, d_context_LxS = self._transposed[tile]
        queries = with_spare_lanes_transposed(
            queries_LxS[:, unit.queries],
            self._scratch.spare_queries[unit.row, :, unit.queries],
            unit.head,
            self._head_dim)
        d_context = only_head_transposed(d_context_LxS[:, unit.queries], unit.head, self._head_dim)
        return keys, queries, d_context

    def _products(
        self, unit: _Unit, operands: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        """Scores [K, Q], and the gradients of dropped probabilities [K, Q]."""
        keys_KxL, queries_LxQ, d_context_LxQ = operands
        scores_KxQ = dot(keys_KxL, queries_LxQ, 1, 0)
        values_KxL = self._inputs.values[unit.row, :, unit.lanes]
        return scores_KxQ, dot(values_KxL, d_context_LxQ, 1, 0)

    def _softmax(self, unit: _Unit, products: tuple[jax.Array, jax.Array]) -> int:
        """Buffers dropped probabilities and the gradients of scores; returns their slot.

        Both are without the factor 1 / (1 - rate), which `_write` applies.
        """
        scores_KxQ, d_dropped_KxQ = products
        slot = self._scratch.slot(self._units.index(unit))
        probs_KxQ = jnp.exp2(scores_KxQ - self._inputs.log_sums[unit.query_index])
        dropped_KxQ = probs_KxQ
        if self._rate:
            kept_KxQ = kept_probabilities(
                self._inputs.query_hashes[unit.query_index], self._scratch.key_hashes[unit.row],
                self._rate)
            dropped_KxQ = jnp.where(kept_KxQ, probs_KxQ, 0.0)
        d_probs_KxQ = dropped_KxQ * d_dropped_KxQ
        if self._length > LANES:
            means_8xS = self._means_8xS[unit.row, unit.tile]
            mean_1xQ = means_8xS[unit.head : unit.head + 1, unit.queries]
        else:
            mean_1xQ = jnp.sum(d_probs_KxQ, axis=0, keepdims=True)
        self._scratch.buffer[0, slot] = dropped_KxQ.astype(self._dtype)
        d_scores_KxQ = d_probs_KxQ - probs_KxQ * mean_1xQ
        self._scratch.buffer[1, slot] = d_scores_KxQ.astype(self._dtype)
        return slot

    def _differentiate(self, unit: _Unit, slot: int) -> None:
        """Computes the gradients of a head, and writes those of a tile after its last head."""
        if unit is self._units[0]:
            self._output.wait_for_previous_step()
        head = unit.head
        queries_DxS, keys_DxS, d_context_DxS = (
            x[dims_of(head, self._head_dim)] for x in self._transposed[unit.row, unit.tile])
        buffer = self._scratch.buffer
        d_keys_DxS = dot(queries_DxS[:, unit.queries], buffer[1, slot], 1, 1)
        d_values_DxS = dot(d_context_DxS[:, unit.queries], buffer[0, slot], 1, 1)
        if unit.queries.start:  # sums over all queries
            d_keys_DxS += self._gradients[KEY, head]
            d_values_DxS += self._gradients[VALUE, head]
        self._gradients[KEY, head] = d_keys_DxS
        self._gradients[VALUE, head] = d_values_DxS
        self._gradients[QUERY, head] = dot(keys_DxS, buffer[1, slot], 1, 0)
        if head == self._heads[-1]:
            self._write(unit, unit.queries, QUERY)
            if unit.queries.stop == self._length:
                self._write(unit, slice(0, self._length), KEY)
                self._write(unit, slice(0, self._length), VALUE)

    def _write(self, unit: _Unit, tokens: slice, part: int) -> None:
        """Writes a part's gradients of a tile of heads, and adds them to those of the bias."""
        scale = gradient_scale(part, self._head_dim) / (1.0 - self._rate)
        tile_LxS = jnp.concatenate([self._gradients[part, head] for head in self._heads]) * scale
        if self._inputs.rotation is not None and part != VALUE:
            tile_LxS = rotated_back(tile_LxS, self._inputs.rotation[:, :, tokens])
        tile_SxL = tile_LxS.astype(self._dtype).T
        self._output.refs[part][unit.row, tokens, unit.lanes] = tile_SxL
        sum_8xL = sum_of_lines(tile_SxL)
        if unit.row or tokens.start:
            sum_8xL += self._d_bias_ref[0, part, :, unit.lanes]
        self._d_bias_ref[0, part, :, unit.lanes] = sum_8xL


def _units(shape: tuple[int, int, int], head_dim: int) -> list[_Unit]:
    """The units of a grid step with blocks [rows, S, lanes], in order."""
    rows, length, lanes = shape
    num_queries = math.gcd(length, _MOST_QUERIES)
    tiles = range(lanes // LANES)
    heads = range(LANES // head_dim)
    starts = range(0, length, num_queries)
    return [
        _Unit(row, tile, slice(start, start + num_queries), head)
        for row, tile, start, head in itertools.product(range(rows), tiles, starts, heads)]


def _lag(units: Sequence[_Unit]) -> int:
    """How many units a stage is behind the previous one; only 1 for one row, to save VMEM."""
    has_several_rows = units[-1].row > 0
    if not has_several_rows:
        return 1
    return min(_MOST_LAG, max(1, len(units) // 8))
