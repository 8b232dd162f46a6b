"""The TPU kernel of attention for windows and for rows longer than a grid step holds.

A row is cut into chunks. A grid step of the forward pass computes the queries of one chunk, and one
of the backward pass the gradients of the keys and values of one chunk. There are two cases:

- With a window, a chunk visits itself and a margin before and behind it, in one grid step. Its
  blocks of 128 tokens visit only the tokens that their windows reach, so a row costs its length
  times its window.
- Without, a chunk visits all chunks of its row, one in each grid step. It skips those with which it
  shares no sequence, if the sequences of a packed row are numbered in order. Sums over visits stay
  in VMEM: those of a chunk, and in the backward pass the gradients of all queries of a row.

Layout, spare lanes and order of work are those of `attention_tpu`. As there, the maximum of
scores is not subtracted unless a sum is outside 2^-100 to 2^100; then the chunk is computed again,
with its keys and values read again if it visits other chunks.

    B: batch rows, S: sequence, E: chunk and margins, C: chunk, Q: queries, K: keys, H: hidden_size,
    T: tiles of heads, N: heads of a tile, D: head_dim, L: lanes, M: marks of a token, which are the
    number of its sequence and, with dropout, its hash as a key
"""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bert_jax.kernels.attention_tiles import (
    KEY,
    LANES,
    OUTSIDE_MARK,
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
    only_head,
    overlap,
    rotated_back,
    rotation,
    scaled_with_bias,
    sequence_ranges,
    softmax_means,
    spare_lanes,
    sum_of_lines,
    with_spare_lanes,
)

_MOST_OF_CHUNK = 1024
_MOST_OF_CHUNK_IN_SMALL_VMEM = 512
# The longest chunk that leaves room for two tiles of heads if it visits all chunks of a row.
_CHUNK_OF_TWO_TILES = 512
# The most queries of a unit that visits a whole chunk; with a window, units are blocks of 128.
_MOST_QUERIES = 256
_LEAST_MARGIN = 64
# What is added to scores outside the window; and the maximum of scores before the first visit.
_OUT_OF_REACH = -(2.0**20)
_LOWEST = -1e30
# If log2 of a query's sum is between this and its negative, no exponential left float32's range.
_SAFE_EXPONENT = 100.0
# The VMEM that the kernels may take; a chip that has less gives all of it.
_VMEM_BYTES = 48 << 20
# How many units a stage is behind the previous one (`overlap`).
_LAG = 2


def _margin(reach: int) -> int:
    """Tokens before and behind a chunk that it visits: a power of two, which divides chunks."""
    if not reach:
        return 0
    return max(_LEAST_MARGIN, 1 << (reach - 1).bit_length())


def _chunk(length: int, settings: Settings) -> int:
    """Tokens of each chunk of a row: as few chunks as possible, and equal ones."""
    most = _MOST_OF_CHUNK if settings.has_large_vmem else _MOST_OF_CHUNK_IN_SMALL_VMEM
    num_chunks = math.ceil(length / most)
    multiple = max(LANES, _margin(settings.reach))
    return math.ceil(length / num_chunks / multiple) * multiple


def padded_length(length: int, settings: Settings) -> int:
    """The length that rows are padded to: that of whole chunks."""
    chunk = _chunk(length, settings)
    return math.ceil(length / chunk) * chunk


class Limits(NamedTuple):
    """The longest rows and the widest windows, in tokens, whose work fits into VMEM."""

    length: int
    window: int


def limits(has_large_vmem: bool) -> Limits:
    """The limits of a chip with 16 MiB of VMEM, or if `has_large_vmem` with more."""
    return Limits(8192, 2048) if has_large_vmem else Limits(2048, 512)


class _Grid:
    """The grid (rows, groups of tiles, chunks, visits) and the blocks of a grid step.

    The visits of a chunk are successive grid steps, and so are the chunks of a group of tiles.

    Attributes:
      shape: of the grid.
      length: tokens of a row.
      chunk: tokens of a chunk.
      margin: tokens before and behind a chunk that it visits; 0: it visits all chunks.
      heads: heads of a tile.
      tiles: tiles of heads in a grid step.
      num_chunks: chunks of a row.
      reach: the greatest distance of two tokens that attend to each other; 0: any distance.
      dtype: of queries, keys and values.
    """

    def __init__(self, qkv_BxSx3H: Any, settings: Settings) -> None:
        batch, self.length, hidden3 = qkv_BxSx3H.shape
        self.dtype = qkv_BxSx3H.dtype
        self.reach = settings.reach
        self.margin = _margin(settings.reach)
        self.chunk = _chunk(self.length, settings)
        self.heads = LANES // settings.head_dim
        all_tiles = hidden3 // (3 * LANES)
        has_room = self.margin or (
            settings.has_large_vmem and self.chunk <= _CHUNK_OF_TWO_TILES)
        self.tiles = math.gcd(all_tiles, 2 if has_room else 1)
        self.num_chunks = self.length // self.chunk
        num_visits = 1 if self.margin else self.num_chunks
        self.shape = (batch, all_tiles // self.tiles, self.num_chunks, num_visits)

    @property
    def visits_all(self) -> bool:
        """Whether a chunk visits all chunks, one in each grid step."""
        return not self.margin

    @property
    def padded(self) -> int:
        """Tokens of a row with margins."""
        return self.length + 2 * self.margin

    @property
    def summed_queries(self) -> int:
        """Queries whose gradients are still summed, because chunks to come may visit them."""
        if self.visits_all:
            return self.length
        return self.chunk + 2 * self.margin

    def own(self, part: int = 0) -> pl.BlockSpec:
        """A chunk's own block of an array [B, S, H], or of a part of [B, S, 3H]."""
        groups = self.shape[1]
        return pl.BlockSpec(
            (1, self.chunk, self.tiles * LANES), lambda i, j, c, v: (i, c, part * groups + j))

    def visited(self, part: int = 0) -> tuple[pl.BlockSpec, ...]:
        """What a chunk visits, as blocks like `own`: a chunk; or a margin, itself and a margin."""
        groups = self.shape[1]
        width = self.tiles * LANES
        if self.visits_all:
            return (pl.BlockSpec(
                (1, self.chunk, width), lambda i, j, c, v: (i, v, part * groups + j)),)
        size = self.margin
        step = self.chunk // size
        last = self.length // size - 1
        before = pl.BlockSpec(
            (1, size, width),
            lambda i, j, c, v: (i, jnp.maximum(c * step - 1, 0), part * groups + j))
        behind = pl.BlockSpec(
            (1, size, width),
            lambda i, j, c, v: (i, jnp.minimum((c + 1) * step, last), part * groups + j))
        return before, self.own(part), behind

    def marks(self, marks_BxMxS: jax.Array) -> pl.BlockSpec:
        """The block of all marks of a row."""
        return pl.BlockSpec((1, *marks_BxMxS.shape[1:]), lambda i, j, c, v: (i, 0, 0))

    def scalars(self, length: int) -> pl.BlockSpec:
        """The block of a whole row in an array [B, T, N, length]: a number for each query."""
        return pl.BlockSpec(
            (1, self.tiles, self.heads, length), lambda i, j, c, v: (i, j, 0, 0))

    @property
    def ranges(self) -> pl.BlockSpec | None:
        """The block of a row's sequence ranges [B, chunks, 2], in SMEM; None with a window."""
        if not self.visits_all:
            return None
        return pl.BlockSpec(
            (1, self.num_chunks, 2), lambda i, j, c, v: (i, 0, 0), memory_space=pltpu.SMEM)

    def units(self, *, own_are_queries: bool) -> list['_Unit']:
        """A grid step's work, in order; the chunk's own tokens are queries, or else keys."""
        if self.visits_all:
            size = math.gcd(self.chunk, _MOST_QUERIES)
            all_keys = slice(0, self.chunk)
            blocks = [
                (all_keys, slice(start, start + size)) for start in range(0, self.chunk, size)]
        else:
            blocks = []
            for start in range(0, self.chunk, LANES):
                own = slice(start, start + LANES)
                visited = slice(start, start + LANES + 2 * self.margin)
                blocks.append((visited, own) if own_are_queries else (own, visited))
        return [
            _Unit(tile, head, keys, queries)
            for tile, (keys, queries), head in itertools.product(
                range(self.tiles), blocks, range(self.heads))]

    def scratch_shapes(self, unit: '_Unit', num_buffered: int) -> list[Any]:
        """The arrays of `_Scratch`."""
        shape = unit.keys.stop - unit.keys.start, unit.queries.stop - unit.queries.start
        of_row = self.padded, LANES
        band = (SUBLANES, LANES) if self.visits_all else shape
        return [
            pltpu.VMEM(of_row, self.dtype),
            pltpu.VMEM(of_row, self.dtype),
            pltpu.VMEM(of_row, jnp.int32),
            pltpu.VMEM(band, jnp.float32),
            pltpu.VMEM((num_buffered, _LAG + 1, *shape), self.dtype),
        ]


class _Unit(NamedTuple):
    """The smallest piece of a grid step's work: some queries and keys of one head.

    Attributes:
      tile: of the grid step's tiles.
      head: of the tile.
      keys, queries: slices of the grid step's blocks.
    """

    tile: int
    head: int
    keys: slice
    queries: slice

    @property
    def lanes(self) -> slice:
        return slice(self.tile * LANES, (self.tile + 1) * LANES)

    @property
    def is_first_of_tile(self) -> bool:
        return self.head == 0 and self.keys.start == 0 and self.queries.start == 0


class _Step(NamedTuple):
    """The indices of a grid step, and what follows from them; traced."""

    row: Any
    group: Any
    chunk: Any
    visit: Any
    grid: _Grid

    @property
    def visited_start(self) -> Any:
        """The first token that is visited, counted from the first margin of the row."""
        index = self.visit if self.grid.visits_all else self.chunk
        return pl.multiple_of(index * self.grid.chunk, LANES)

    @property
    def own_start(self) -> Any:
        """The first token of the chunk, counted from the first margin of the row."""
        start = self.chunk * self.grid.chunk + self.grid.margin
        return pl.multiple_of(start, _LEAST_MARGIN)

    @property
    def chunk_start(self) -> Any:
        """The first token of the chunk, counted from the row's first."""
        return pl.multiple_of(self.chunk * self.grid.chunk, LANES)

    def shares_sequence(self, ranges_ref: Any) -> Any:
        """Whether the ranges of this chunk's sequences and of the visited chunk's overlap."""
        first, last = ranges_ref[0, self.chunk, 0], ranges_ref[0, self.chunk, 1]
        is_before = ranges_ref[0, self.visit, 1] < first
        is_behind = ranges_ref[0, self.visit, 0] > last
        return jnp.logical_not(is_before | is_behind)

    def lanes(self, part: int) -> Any:
        """The lanes of this step's tiles in a part (queries, keys or values) of [B, S, 3H]."""
        width = self.grid.tiles * LANES
        first = (part * self.grid.shape[1] + self.group) * width
        return pl.ds(pl.multiple_of(first, LANES), width)

    @property
    def is_first_of_row(self) -> Any:
        return (self.group == 0) & (self.chunk == 0) & (self.visit == 0)

    @property
    def is_first_of_group(self) -> Any:
        return (self.chunk == 0) & (self.visit == 0)

    @property
    def is_first_visit(self) -> Any:
        return self.visit == 0

    @property
    def is_last_visit(self) -> Any:
        return self.visit == self.grid.shape[3] - 1

    @property
    def is_last_of_group(self) -> Any:
        return self.is_last_visit & (self.chunk == self.grid.shape[2] - 1)

    @property
    def is_last_group(self) -> Any:
        return self.group == self.grid.shape[1] - 1


def _ranges(marks_BxMxS: jax.Array, grid: _Grid) -> jax.Array | None:
    """The least and greatest sequence number in each chunk [B, chunks, 2]; None with a window."""
    if not grid.visits_all:
        return None
    return sequence_ranges(marks_BxMxS[:, 0], grid.chunk)


def _this_step(grid: _Grid) -> _Step:
    row, group, chunk, visit = (pl.program_id(axis) for axis in range(4))
    return _Step(row, group, chunk, visit, grid)


class _Scratch(NamedTuple):
    """A grid step's working memory. `prepare` writes all but the last for all steps of a row.

    Attributes:
      spare_queries, spare_keys: the spare lanes of queries and keys, [S + margins, L].
      key_hashes: dropout hashes of keys, each in all lanes, [S + margins, L] int32.
      band: what is added to the scores of a unit [K, Q]: 0 within the window, else -2^20.
      buffer: what one stage of a unit hands to the next, [arrays, slots, K, Q].
    """

    spare_queries: Any
    spare_keys: Any
    key_hashes: Any
    band: Any
    buffer: Any

    def prepare(self, step: _Step, marks_ref: Any) -> None:
        """Writes what all heads of a row share."""
        pl.when(step.is_first_of_row)(functools.partial(self._prepare, step.grid, marks_ref))

    def _prepare(self, grid: _Grid, marks_ref: Any) -> None:
        has_dropout = marks_ref.shape[1] > 1

        def block(index: jax.Array, _: None) -> None:
            tokens = pl.ds(pl.multiple_of(index * LANES, LANES), LANES)
            queries_LxL, keys_LxL = spare_lanes(
                marks_ref[0, pl.ds(0, 1), tokens], self.spare_keys.dtype)
            self.spare_queries[tokens] = queries_LxL.T
            self.spare_keys[tokens] = keys_LxL.T
            if has_dropout:
                self.key_hashes[tokens] = column(marks_ref[0, pl.ds(1, 1), tokens])

        lax.fori_loop(0, grid.padded // LANES, block, None)
        if grid.visits_all:
            return
        shape = self.band.shape
        keys_have_margins = shape[0] > shape[1]
        first_query = grid.margin if keys_have_margins else -grid.margin
        self.band[...] = _band(shape, first_query, grid.reach)


class _ForwardInputs(NamedTuple):
    """The forward kernel's inputs: arrays; or their block specs; or, in the kernel, references.

    Keys and values are those that a chunk visits, in one or three pieces.
    """

    queries: Any
    keys: Any
    values: Any
    marks: Any
    query_hashes: Any  # None without dropout
    ranges: Any  # None with a window
    qkv: Any  # [B, S, 3H], not in VMEM


def _forward(  # type: ignore[no-untyped-def]
    qkv_BxSx3H, bias_3H, marks_BxMxS, query_hashes_BxTxNxS, settings
):
    """Context [B, S, H], and the residuals."""
    qkv = scaled_with_bias(qkv_BxSx3H, bias_3H, settings)
    batch, length, hidden3 = qkv.shape
    grid = _Grid(qkv, settings)
    margins = ((0, 0), (0, 0), (grid.margin, grid.margin))
    marks_BxMxE = jnp.pad(marks_BxMxS, margins, constant_values=OUTSIDE_MARK)
    inputs = _ForwardInputs(
        queries=grid.own(QUERY),
        keys=grid.visited(KEY),
        values=grid.visited(VALUE),
        marks=grid.marks(marks_BxMxE),
        query_hashes=None if query_hashes_BxTxNxS is None else grid.scalars(length),
        ranges=grid.ranges,
        qkv=pl.BlockSpec(memory_space=pl.ANY))
    pieces = len(inputs.keys)
    context_BxSxH, log_sums_BxTxNxS = pl.pallas_call(
        functools.partial(_forward_kernel, grid=grid, settings=settings),
        name=named_with_grid('attention_forward_blocks', grid.shape),
        grid=grid.shape,
        in_specs=[inputs],
        out_specs=[grid.own(), grid.scalars(length)],
        out_shape=[
            jax.ShapeDtypeStruct((batch, length, hidden3 // 3), qkv.dtype),
            jax.ShapeDtypeStruct(
                (batch, hidden3 // (3 * LANES), grid.heads, length), jnp.float32),
        ],
        scratch_shapes=_forward_scratch_shapes(grid),
        compiler_params=_COMPILER_PARAMS,
        interpret=settings.interpret,
    )(_ForwardInputs(
        qkv, (qkv,) * pieces, (qkv,) * pieces, marks_BxMxE, query_hashes_BxTxNxS,
        _ranges(marks_BxMxE, grid), qkv))
    residuals = qkv, marks_BxMxE, query_hashes_BxTxNxS, log_sums_BxTxNxS, context_BxSxH
    return context_BxSxH, residuals


def _forward_scratch_shapes(grid: _Grid) -> list[Any]:
    """The arrays of `_Scratch` and `_Sums`."""
    unit = grid.units(own_are_queries=True)[0]
    sums = pltpu.VMEM((grid.tiles, grid.heads, grid.chunk), jnp.float32)
    return [
        *grid.scratch_shapes(unit, num_buffered=1),
        pltpu.VMEM((grid.tiles, LANES, grid.chunk), jnp.float32),
        sums,
        sums,
        pltpu.VMEM((2, grid.chunk, grid.tiles * LANES), grid.dtype),
        pltpu.SemaphoreType.DMA((2,)),
    ]


_COMPILER_PARAMS = pltpu.CompilerParams(
    dimension_semantics=('parallel', 'arbitrary', 'arbitrary', 'arbitrary'),
    vmem_limit_bytes=_VMEM_BYTES)


def _forward_kernel(
    inputs: _ForwardInputs, context_ref: Any, log_sums_ref: Any, *scratch_refs: Any,
    grid: _Grid, settings: Settings,
) -> None:
    step = _this_step(grid)
    scratch = _Scratch(*scratch_refs[:5])
    scratch.prepare(step, inputs.marks)
    sums = _Sums(*scratch_refs[5:])
    if grid.visits_all:
        pl.when(step.is_first_visit)(sums.clear)
    forward = _ForwardStep(inputs, context_ref, log_sums_ref, scratch, sums, step, settings)
    if grid.visits_all:
        pl.when(step.shares_sequence(inputs.ranges))(forward.run)
        pl.when(step.is_last_visit)(forward.finish)
    else:
        forward.run()
    pl.when(step.is_last_visit)(forward.check)


class _Sums(NamedTuple):
    """Sums over the visits of a chunk so far, as running softmax needs them; and what repeats need.

    Attributes:
      context: sums of exponentials times values [tiles, L, C].
      highest: what is subtracted from scores before `exp2` [tiles, N, C]: 0, or if the chunk is
        computed again the maximum of scores so far.
      exponentials: sums of exponentials [tiles, N, C].
      keys_and_values: those of a chunk that is visited again [2, C, lanes].
      semaphores: those of the copies of `keys_and_values`.
    """

    context: Any
    highest: Any
    exponentials: Any
    keys_and_values: Any
    semaphores: Any

    def clear(self) -> None:
        """Before the first visit."""
        self.context[...] = jnp.zeros_like(self.context)
        self.highest[...] = jnp.zeros_like(self.highest)
        self.exponentials[...] = jnp.zeros_like(self.exponentials)


class _ForwardStep:
    """A grid step of the forward pass: the stages of its units."""

    def __init__(
        self, inputs: _ForwardInputs, context_ref: Any, log_sums_ref: Any, scratch: _Scratch,
        sums: _Sums, step: _Step, settings: Settings,
    ) -> None:
        self._inputs = inputs
        self._context_ref = context_ref
        self._log_sums_ref = log_sums_ref
        self._scratch = scratch
        self._sums = sums
        self._step = step
        self._settings = settings
        self._units = step.grid.units(own_are_queries=True)
        self._values_LxE: dict[int, jax.Array] = {}  # transposed, by tile
        self._contexts_DxQ: dict[int, jax.Array] = {}  # of the latest tile, by head

    def run(self) -> None:
        """Computes the step as a pipeline."""
        overlap(self._units, [self._load, self._scores, self._softmax, self._sum], _LAG)

    def _load(self, unit: _Unit) -> tuple[jax.Array, jax.Array]:
        """Keys [K, L] and queries [Q, L] with their spare lanes: their product is the scores."""
        head_dim = self._settings.head_dim
        if unit.is_first_of_tile:
            self._values_LxE[unit.tile] = _tokens(self._inputs.values, unit.tile).T
        first_key = self._step.visited_start + unit.keys.start
        first_query = self._step.own_start + unit.queries.start
        keys = with_spare_lanes(
            _tokens(self._inputs.keys, unit.tile, unit.keys),
            self._scratch.spare_keys[_part(first_key, unit.keys)],
            unit.head, head_dim)
        queries = with_spare_lanes(
            self._inputs.queries[0, unit.queries, unit.lanes],
            self._scratch.spare_queries[_part(first_query, unit.queries)],
            unit.head, head_dim)
        return keys, queries

    def _scores(self, unit: _Unit, operands: tuple[jax.Array, jax.Array]) -> jax.Array:
        scores_KxQ = dot(*operands, 1, 1)
        if self._step.grid.visits_all:
            return scores_KxQ
        return scores_KxQ + self._scratch.band[...]

    def _softmax(self, unit: _Unit, scores_KxQ: jax.Array) -> tuple[int, jax.Array]:
        """Buffers exponentials after dropout; returns their slot, and sums [1, Q] before it."""
        slot = self._units.index(unit) % (_LAG + 1)
        exp_KxQ = jnp.exp2(scores_KxQ)
        sum_1xQ = jnp.sum(exp_KxQ, axis=0, keepdims=True)
        if self._step.grid.visits_all:
            self._sums.exponentials[unit.tile, pl.ds(unit.head, 1), unit.queries] += sum_1xQ
        else:
            self._log_sums_ref[self._query_index(unit)] = jnp.log2(sum_1xQ)
        first_key = self._step.visited_start + unit.keys.start
        query_hashes_1xQ = None
        if self._settings.rate:
            query_hashes_1xQ = self._inputs.query_hashes[self._query_index(unit)]
        dropped_KxQ = self._dropped(exp_KxQ, query_hashes_1xQ, _part(first_key, unit.keys))
        self._scratch.buffer[0, slot] = dropped_KxQ.astype(self._step.grid.dtype)
        return slot, sum_1xQ

    def _dropped(self, probs_KxQ: jax.Array, query_hashes_1xQ: Any, keys: Any) -> jax.Array:
        """`probs` with zeros where dropout drops them, not scaled by 1 / (1 - rate)."""
        if not self._settings.rate:
            return probs_KxQ
        kept_KxQ = kept_probabilities(
            query_hashes_1xQ, self._scratch.key_hashes[keys], self._settings.rate)
        return jnp.where(kept_KxQ, probs_KxQ, 0.0)

    def _query_index(self, unit: _Unit) -> tuple[Any, ...]:
        """The index that selects a unit's queries, [1, Q], in an array [1, tiles, N, S]."""
        first = self._step.chunk_start + unit.queries.start
        return 0, unit.tile, pl.ds(unit.head, 1), _columns(first, unit.queries)

    def _sum(self, unit: _Unit, softmax: tuple[int, jax.Array]) -> None:
        """Adds to the context of a chunk; with a window, which takes one visit, writes it."""
        slot, sum_1xQ = softmax
        dims = dims_of(unit.head, self._settings.head_dim)
        values_DxK = self._values_LxE[unit.tile][dims, unit.keys]
        sums_DxQ = dot(values_DxK, self._scratch.buffer[0, slot], 1, 0)
        if self._step.grid.visits_all:
            self._sums.context[unit.tile, dims, unit.queries] += sums_DxQ
            return
        self._contexts_DxQ[unit.head] = sums_DxQ * self._scale(sum_1xQ)
        heads = range(self._step.grid.heads)
        if unit.head == heads[-1]:
            context_LxQ = jnp.concatenate([self._contexts_DxQ[head] for head in heads])
            context_QxL = context_LxQ.astype(self._step.grid.dtype).T
            self._context_ref[0, unit.queries, unit.lanes] = context_QxL

    def _scale(self, sum_1xQ: jax.Array) -> jax.Array:
        """The factor that makes sums of exponentials times values the context."""
        return 1.0 / (sum_1xQ * (1.0 - self._settings.rate))

    def finish(self) -> None:
        """Writes the context of a chunk after its last visit."""
        lax.fori_loop(0, self._step.grid.tiles, self._finish, None)

    def _finish(self, tile: jax.Array, _: None) -> None:
        grid = self._step.grid
        queries = pl.ds(self._step.chunk_start, grid.chunk)
        contexts_DxC = []
        for head in range(grid.heads):
            head_index = tile, pl.ds(head, 1)
            sum_1xC = self._sums.exponentials[head_index]
            log_sum_1xC = self._sums.highest[head_index] + jnp.log2(sum_1xC)
            self._log_sums_ref[0, *head_index, queries] = log_sum_1xC
            dims = dims_of(head, self._settings.head_dim)
            contexts_DxC.append(self._sums.context[tile, dims] * self._scale(sum_1xC))
        context_CxL = jnp.concatenate(contexts_DxC).astype(grid.dtype).T
        self._context_ref[0, :, _lanes(tile)] = context_CxL

    def check(self) -> None:
        """Computes the chunk again if its exponents may have left the range of float32."""
        queries = pl.ds(self._step.chunk_start, self._step.grid.chunk)
        largest_exponent = jnp.max(jnp.abs(self._log_sums_ref[0, :, :, queries]))
        # Negated, so that it is true of NaN.
        pl.when(jnp.logical_not(largest_exponent < _SAFE_EXPONENT))(self._run_safely)

    def _run_safely(self) -> None:
        """Computes the chunk with the maximum subtracted; rare, so loops are good enough."""
        self._sums.clear()
        self._sums.highest[...] = jnp.full_like(self._sums.highest, _LOWEST)
        grid = self._step.grid
        if grid.visits_all:
            lax.fori_loop(0, grid.num_chunks, self._visit_again, None)
        else:
            lax.fori_loop(0, grid.tiles, self._visit_margins, None)
        self.finish()

    def _visit_margins(self, tile: jax.Array, _: None) -> None:
        """Visits a chunk and its margins, whose keys and values are in VMEM already."""
        keys_ExL = _tokens(self._inputs.keys, tile)
        values_ExL = _tokens(self._inputs.values, tile)
        self._visit_safely(tile, keys_ExL, values_ExL, self._step.visited_start)

    def _visit_again(self, chunk: jax.Array, _: None) -> None:
        """Reads the keys and values of a chunk of the row, and visits it."""
        grid = self._step.grid
        start = pl.multiple_of(chunk * grid.chunk, LANES)
        copies = []
        for part in (KEY, VALUE):
            source = self._inputs.qkv.at[
                self._step.row, pl.ds(start, grid.chunk), self._step.lanes(part)]
            target = self._sums.keys_and_values.at[part - 1]
            semaphore = self._sums.semaphores.at[part - 1]
            copies.append(pltpu.make_async_copy(source, target, semaphore))
        for copy in copies:
            copy.start()
        _wait(copies)

        def visit(tile: jax.Array, _: None) -> None:
            keys_CxL = self._sums.keys_and_values[0, :, _lanes(tile)]
            values_CxL = self._sums.keys_and_values[1, :, _lanes(tile)]
            self._visit_safely(tile, keys_CxL, values_CxL, start)

        lax.fori_loop(0, grid.tiles, visit, None)

    def _visit_safely(
        self, tile: jax.Array, keys_KxL: jax.Array, values_KxL: jax.Array, first_key: Any
    ) -> None:
        """Adds the sums of a tile's queries over these keys, with the maximum subtracted."""
        grid = self._step.grid
        keys = pl.ds(first_key, keys_KxL.shape[0])
        head_dim = self._settings.head_dim
        values_LxK = values_KxL.T

        def block(index: jax.Array, _: None) -> None:
            start = pl.multiple_of(index * LANES, LANES)
            for head in range(grid.heads):
                queries = pl.ds(start, LANES)
                spare = self._scratch.spare_queries[pl.ds(
                    pl.multiple_of(self._step.own_start + start, _LEAST_MARGIN), LANES)]
                query_LxL = self._inputs.queries[0, queries, _lanes(tile)]
                scores_KxL = dot(
                    with_spare_lanes(keys_KxL, self._scratch.spare_keys[keys], head, head_dim),
                    with_spare_lanes(query_LxL, spare, head, head_dim), 1, 1)
                if not grid.visits_all:
                    scores_KxL += _band(scores_KxL.shape, start + grid.margin, grid.reach)
                query_hashes_1xL = None
                if self._settings.rate:
                    tokens = pl.ds(pl.multiple_of(self._step.chunk_start + start, LANES), LANES)
                    query_hashes_1xL = self._inputs.query_hashes[0, tile, pl.ds(head, 1), tokens]
                self._add_safely(
                    (tile, head, queries), scores_KxL, values_LxK[dims_of(head, head_dim)],
                    functools.partial(self._dropped, query_hashes_1xQ=query_hashes_1xL, keys=keys))

        lax.fori_loop(0, grid.chunk // LANES, block, None)

    def _add_safely(
        self, place: tuple[jax.Array, int, Any], scores_KxQ: jax.Array, values_DxK: jax.Array,
        drop: Callable[[jax.Array], jax.Array],
    ) -> None:
        """Adds to the sums of a head's queries, after scaling these to the new maximum."""
        tile, head, queries = place
        query_index = tile, pl.ds(head, 1), queries
        sums = self._sums
        before_1xQ = sums.highest[query_index]
        highest_1xQ = jnp.maximum(before_1xQ, jnp.max(scores_KxQ, axis=0, keepdims=True))
        factor_1xQ = jnp.exp2(before_1xQ - highest_1xQ)
        exp_KxQ = jnp.exp2(scores_KxQ - highest_1xQ)
        sums.highest[query_index] = highest_1xQ
        sum_1xQ = jnp.sum(exp_KxQ, axis=0, keepdims=True)
        sums.exponentials[query_index] = sums.exponentials[query_index] * factor_1xQ + sum_1xQ
        context_DxQ = dot(values_DxK, drop(exp_KxQ).astype(values_DxK.dtype), 1, 0)
        dims = dims_of(head, self._settings.head_dim)
        sums.context[tile, dims, queries] = (
            sums.context[tile, dims, queries] * factor_1xQ + context_DxQ)


def _band(shape: tuple[int, ...], first_query: Any, reach: int) -> jax.Array:
    """What is added to scores [K, Q]: 0 within the window, else -2^20.

    Args:
      shape: of the scores.
      first_query: tokens from the first key to the first query; may be traced and negative.
      reach: the greatest distance of a key within the window.
    """
    ahead = lax.broadcasted_iota(jnp.int32, shape, 0) - first_query
    ahead -= lax.broadcasted_iota(jnp.int32, shape, 1)
    return jnp.where(jnp.abs(ahead) <= reach, 0.0, _OUT_OF_REACH)


def _part(start: Any, tokens: slice) -> Any:
    """The slice of as many tokens as another has, from a traced start, a multiple of 64."""
    return pl.ds(pl.multiple_of(start, _LEAST_MARGIN), tokens.stop - tokens.start)


def _columns(start: Any, tokens: slice) -> Any:
    """As `_part`, of the lanes of an array, where the start is a multiple of 128."""
    return pl.ds(pl.multiple_of(start, LANES), tokens.stop - tokens.start)


def _tokens(pieces: tuple[Any, ...], tile: Any, tokens: slice | None = None) -> jax.Array:
    """Some tokens (None: all) of a tile [S, L], from the pieces that a chunk visits, in order."""
    found = []
    start = 0
    for piece in pieces:
        size = piece.shape[1]
        first, last = 0, size
        if tokens is not None:
            first = max(tokens.start - start, 0)
            last = min(tokens.stop - start, size)
        if first < last:
            found.append(piece[0, first:last, _lanes(tile)])
        start += size
    if len(found) == 1:
        return found[0]
    return jnp.concatenate(found)


class _BackwardInputs(NamedTuple):
    """The backward kernel's inputs: arrays; or their block specs; or, in the kernel, references.

    Queries, contexts and their gradients are those that a chunk visits, in one or three pieces.
    """

    keys: Any
    values: Any
    queries: Any
    d_context: Any
    context: Any
    log_sums: Any
    marks: Any
    query_hashes: Any  # None without dropout
    ranges: Any  # None with a window
    rotation: Any  # None without rotary positions


def _backward(settings, residuals, d_context):  # type: ignore[no-untyped-def]
    """Gradients of the projection's output [B, S, 3H] and of its bias [3H].

    The kernel writes the bias gradient as sums [B, 3, 8, H] over every eighth token of a row.
    """
    qkv, marks, query_hashes, log_sums, context = residuals
    batch, length, hidden3 = qkv.shape
    grid = _Grid(qkv, settings)
    margins = ((0, 0), (0, 0), (0, 0), (grid.margin, grid.margin))
    log_sums = jnp.pad(log_sums, margins)
    if query_hashes is not None:
        query_hashes = jnp.pad(query_hashes, margins)
    angles = None
    if settings.rotary_base:
        angles = jnp.pad(rotation(length, settings), margins[1:])
    inputs = _BackwardInputs(
        keys=grid.own(KEY),
        values=grid.own(VALUE),
        queries=grid.visited(QUERY),
        d_context=grid.visited(),
        context=grid.visited(),
        log_sums=grid.scalars(grid.padded),
        marks=grid.marks(marks),
        query_hashes=None if query_hashes is None else grid.scalars(grid.padded),
        ranges=grid.ranges,
        rotation=None)
    if angles is not None:
        inputs = inputs._replace(rotation=pl.BlockSpec(
            angles.shape, lambda i, j, c, v: (0, 0, 0), pipeline_mode=pl.Buffered(1)))
    pieces = len(inputs.queries)
    d_qkv, d_bias_Bx3x8xH = pl.pallas_call(
        functools.partial(_backward_kernel, grid=grid, settings=settings),
        name=named_with_grid('attention_backward_blocks', grid.shape),
        grid=grid.shape,
        in_specs=[inputs],
        out_specs=[
            pl.BlockSpec(memory_space=pl.ANY),
            pl.BlockSpec((1, 3, SUBLANES, grid.tiles * LANES), lambda i, j, c, v: (i, 0, 0, j)),
        ],
        out_shape=[
            jax.ShapeDtypeStruct(qkv.shape, qkv.dtype),
            jax.ShapeDtypeStruct((batch, 3, SUBLANES, hidden3 // 3), jnp.float32),
        ],
        scratch_shapes=_backward_scratch_shapes(grid),
        compiler_params=_COMPILER_PARAMS,
        interpret=settings.interpret,
    )(_BackwardInputs(
        qkv, qkv, (qkv,) * pieces, (d_context,) * pieces, (context,) * pieces, log_sums, marks,
        query_hashes, _ranges(marks, grid), angles))
    return d_qkv, jnp.sum(d_bias_Bx3x8xH, axis=(0, 2)).reshape(-1)


# What `attention_tpu.attention_on_tpu` calls for rows padded to `padded_length`.
attention = attention_of_passes(_forward, _backward)


def _backward_scratch_shapes(grid: _Grid) -> list[Any]:
    """The arrays of `_Scratch`, and those of `_Gradients` that are not outputs."""
    unit = grid.units(own_are_queries=False)[0]
    width = grid.tiles * LANES
    return [
        *grid.scratch_shapes(unit, num_buffered=2),
        pltpu.VMEM((grid.tiles, LANES, grid.summed_queries), jnp.float32),
        pltpu.VMEM((2, grid.tiles, LANES, grid.chunk), jnp.float32),
        pltpu.VMEM((grid.padded, width), grid.dtype),
        pltpu.VMEM((2, grid.chunk, width), grid.dtype),
        pltpu.SemaphoreType.DMA((3,)),
    ]


class _Gradients(NamedTuple):
    """Where the backward pass collects gradients.

    Attributes:
      d_qkv: the output [B, S, 3H], not in VMEM.
      d_bias: the block [1, 3, 8, lanes] of sums over tokens.
      queries: sums for the queries that a chunk visits [tiles, L, E], or of a row [tiles, L, S].
      keys_and_values: sums for the keys and values of a chunk [2, tiles, L, C].
      copied_queries: finished gradients of a row [S + margins, lanes], copied to the output.
      copied_keys_and_values: finished gradients of a chunk [2, C, lanes], likewise.
      semaphores: those of the copies of the three parts.
    """

    d_qkv: Any
    d_bias: Any
    queries: Any
    keys_and_values: Any
    copied_queries: Any
    copied_keys_and_values: Any
    semaphores: Any


def _backward_kernel(
    inputs: _BackwardInputs, d_qkv_ref: Any, d_bias_ref: Any, *scratch_refs: Any, grid: _Grid,
    settings: Settings,
) -> None:
    step = _this_step(grid)
    scratch = _Scratch(*scratch_refs[:5])
    scratch.prepare(step, inputs.marks)
    gradients = _Gradients(d_qkv_ref, d_bias_ref, *scratch_refs[5:])
    output = _Output(gradients, inputs.rotation, step, settings)
    output.clear()
    backward = _BackwardStep(inputs, gradients, scratch, step, settings)
    if grid.visits_all:
        pl.when(step.shares_sequence(inputs.ranges))(backward.run)
    else:
        backward.run()
    pl.when(step.is_last_visit)(output.write_keys_and_values)
    if not grid.visits_all:
        output.write_visited_queries()
    pl.when(step.is_last_of_group)(output.write_queries)


class _BackwardStep:
    """A grid step of the backward pass: the stages of its units."""

    def __init__(
        self, inputs: _BackwardInputs, gradients: _Gradients, scratch: _Scratch, step: _Step,
        settings: Settings,
    ) -> None:
        self._inputs = inputs
        self._gradients = gradients
        self._scratch = scratch
        self._step = step
        self._settings = settings
        self._units = step.grid.units(own_are_queries=False)
        # By tile: queries, keys and the context's gradient [L, S]; and `softmax_means` [8, S], with
        # a head's in its sublane.
        self._transposed: dict[int, tuple[jax.Array, jax.Array, jax.Array]] = {}
        self._means_8xE: dict[int, jax.Array] = {}

    def run(self) -> None:
        """Computes the step as a pipeline."""
        overlap(
            self._units, [self._load, self._products, self._softmax, self._differentiate], _LAG)

    def _load(self, unit: _Unit) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Keys [K, L], queries [Q, L] and the context's gradient [Q, L], with spare lanes."""
        head_dim = self._settings.head_dim
        if unit.is_first_of_tile:
            d_context_ExL = _tokens(self._inputs.d_context, unit.tile)
            self._transposed[unit.tile] = (
                _tokens(self._inputs.queries, unit.tile).T,
                self._inputs.keys[0, :, unit.lanes].T,
                d_context_ExL.T)
            context_ExL = _tokens(self._inputs.context, unit.tile)
            self._means_8xE[unit.tile] = softmax_means(
                d_context_ExL, context_ExL, head_dim, self._settings.rate)
        first_key = self._step.own_start + unit.keys.start
        first_query = self._step.visited_start + unit.queries.start
        keys = with_spare_lanes(
            self._inputs.keys[0, unit.keys, unit.lanes],
            self._scratch.spare_keys[_part(first_key, unit.keys)],
            unit.head, head_dim)
        queries = with_spare_lanes(
            _tokens(self._inputs.queries, unit.tile, unit.queries),
            self._scratch.spare_queries[_part(first_query, unit.queries)],
            unit.head, head_dim)
        d_context = _tokens(self._inputs.d_context, unit.tile, unit.queries)
        return keys, queries, only_head(d_context, unit.head, head_dim)

    def _products(
        self, unit: _Unit, operands: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        """Scores [K, Q], and the gradients of dropped probabilities [K, Q]."""
        keys, queries, d_context_QxL = operands
        scores_KxQ = dot(keys, queries, 1, 1)
        if not self._step.grid.visits_all:
            scores_KxQ += self._scratch.band[...]
        values_KxL = self._inputs.values[0, unit.keys, unit.lanes]
        return scores_KxQ, dot(values_KxL, d_context_QxL, 1, 1)

    def _softmax(self, unit: _Unit, products: tuple[jax.Array, jax.Array]) -> int:
        """Buffers dropped probabilities and the gradients of scores; returns their slot.

        Both are without the factor 1 / (1 - rate), which is applied when they are written.
        """
        scores_KxQ, d_dropped_KxQ = products
        dtype = self._step.grid.dtype
        slot = self._units.index(unit) % (_LAG + 1)
        first_query = self._step.visited_start + unit.queries.start
        query_index = 0, unit.tile, pl.ds(unit.head, 1), _columns(first_query, unit.queries)
        probs_KxQ = jnp.exp2(scores_KxQ - self._inputs.log_sums[query_index])
        dropped_KxQ = probs_KxQ
        if self._settings.rate:
            first_key = self._step.own_start + unit.keys.start
            key_hashes_KxL = self._scratch.key_hashes[_part(first_key, unit.keys)]
            kept_KxQ = kept_probabilities(
                self._inputs.query_hashes[query_index], key_hashes_KxL, self._settings.rate)
            dropped_KxQ = jnp.where(kept_KxQ, probs_KxQ, 0.0)
        mean_1xQ = self._means_8xE[unit.tile][unit.head : unit.head + 1, unit.queries]
        self._scratch.buffer[0, slot] = dropped_KxQ.astype(dtype)
        d_scores_KxQ = dropped_KxQ * d_dropped_KxQ - probs_KxQ * mean_1xQ
        self._scratch.buffer[1, slot] = d_scores_KxQ.astype(dtype)
        return slot

    def _differentiate(self, unit: _Unit, slot: int) -> None:
        """Adds a unit's share to the gradients of its keys, values and queries."""
        dims = dims_of(unit.head, self._settings.head_dim)
        queries_DxE, keys_DxC, d_context_DxE = (x[dims] for x in self._transposed[unit.tile])
        dropped_KxQ = self._scratch.buffer[0, slot]
        d_scores_KxQ = self._scratch.buffer[1, slot]
        d_keys_DxK = dot(queries_DxE[:, unit.queries], d_scores_KxQ, 1, 1)
        d_values_DxK = dot(d_context_DxE[:, unit.queries], dropped_KxQ, 1, 1)
        sums = self._gradients.keys_and_values
        place = unit.tile, dims, unit.keys
        if self._step.grid.visits_all:
            d_keys_DxK += sums[0, *place]
            d_values_DxK += sums[1, *place]
        sums[0, *place] = d_keys_DxK
        sums[1, *place] = d_values_DxK
        self._add_queries(unit, dot(keys_DxC[:, unit.keys], d_scores_KxQ, 1, 0))

    def _add_queries(self, unit: _Unit, gradient_DxQ: jax.Array) -> None:
        """Adds a unit's share of the gradients of its queries."""
        sums = self._gradients.queries
        dims = dims_of(unit.head, self._settings.head_dim)
        grid = self._step.grid
        if grid.visits_all:
            first = self._step.visited_start + unit.queries.start
            sums[unit.tile, dims, _columns(first, unit.queries)] += gradient_DxQ
            return
        # No unit of this head before this one visits the last 128 of its queries.
        others = 2 * grid.margin
        start = unit.queries.start
        sums[unit.tile, dims, start : start + others] += gradient_DxQ[:, :others]
        sums[unit.tile, dims, start + others : unit.queries.stop] = gradient_DxQ[:, others:]


class _Output:
    """Clears sums of gradients before they are needed, and copies them to the output after."""

    def __init__(
        self, gradients: _Gradients, rotation_ref: Any, step: _Step, settings: Settings
    ) -> None:
        self._gradients = gradients
        self._rotation_ref = rotation_ref
        self._step = step
        self._settings = settings

    def clear(self) -> None:
        """At the first visit of a chunk, and at the first of a row."""
        pl.when(self._step.is_first_of_group)(self._clear_row)
        if self._step.grid.visits_all:
            pl.when(self._step.is_first_visit)(self._clear_chunk)
        else:
            self._carry()

    def _clear_chunk(self) -> None:
        sums = self._gradients.keys_and_values
        sums[...] = jnp.zeros_like(sums)

    def _clear_row(self) -> None:
        sums = self._gradients.queries
        self._gradients.d_bias[...] = jnp.zeros_like(self._gradients.d_bias)

        def block(index: jax.Array, _: None) -> None:
            tokens = pl.ds(pl.multiple_of(index * LANES, LANES), LANES)
            sums[:, :, tokens] = jnp.zeros((*sums.shape[:2], LANES), jnp.float32)

        if self._step.grid.visits_all:
            lax.fori_loop(0, sums.shape[2] // LANES, block, None)

    def _carry(self) -> None:
        """Begins with the sums of the queries that the chunk before visited behind its own end."""
        grid = self._step.grid
        sums = self._gradients.queries
        shared = 2 * grid.margin
        carried = sums[:, :, grid.chunk : grid.chunk + shared]
        sums[:, :, 0:shared] = jnp.where(self._step.chunk == 0, 0.0, carried)

    def write_keys_and_values(self) -> None:
        """After the last visit of a chunk; the copy proceeds while the next chunk computes."""
        step = self._step
        tokens = pl.ds(step.chunk_start, step.grid.chunk)
        copied = self._gradients.copied_keys_and_values
        copies = [
            self._copy(copied.at[part - 1], part, tokens) for part in (KEY, VALUE)]
        pl.when(jnp.logical_not((step.group == 0) & (step.chunk == 0)))(
            functools.partial(_wait, copies))
        for part in (KEY, VALUE):
            for tile in range(step.grid.tiles):
                gradient_LxC = self._gradients.keys_and_values[part - 1, tile]
                angles = self._angles_of_keys() if part == KEY else None
                copied[part - 1, :, _lanes(tile)] = self._finished(gradient_LxC, part, tile, angles)
        for copy in copies:
            copy.start()
        pl.when(step.is_last_of_group & step.is_last_group)(functools.partial(_wait, copies))

    def _angles_of_keys(self) -> jax.Array | None:
        """Cosines and sines for the tokens of this chunk [2, D/2, C]; None without rotation."""
        if self._rotation_ref is None:
            return None
        grid = self._step.grid
        visited = pl.ds(self._step.chunk_start, grid.chunk + 2 * grid.margin)
        return self._rotation_ref[:, :, visited][:, :, grid.margin : grid.margin + grid.chunk]

    def write_visited_queries(self) -> None:
        """Writes the queries that no later chunk visits, for `write_queries` to copy."""
        step = self._step
        grid = step.grid
        pl.when((step.group > 0) & (step.chunk == 0))(self._copy_of_queries().wait)
        self._write_queries(0, grid.chunk, step.visited_start)

        def write_last() -> None:
            self._write_queries(grid.chunk, 2 * grid.margin, grid.length)

        pl.when(step.is_last_of_group)(write_last)

    def write_queries(self) -> None:
        """After a row's last chunk."""
        step = self._step
        grid = step.grid
        copy = self._copy_of_queries()

        def chunk(index: jax.Array, _: None) -> None:
            start = pl.multiple_of(index * grid.chunk, LANES)
            self._write_queries(start, grid.chunk, start)

        if grid.visits_all:
            pl.when(step.group > 0)(copy.wait)
            lax.fori_loop(0, grid.num_chunks, chunk, None)
        copy.start()
        pl.when(step.is_last_group)(copy.wait)

    def _copy_of_queries(self) -> Any:
        """The copy of a row's gradients of queries, without margins, to the output."""
        grid = self._step.grid
        own = pl.ds(grid.margin, grid.length)
        return self._copy(self._gradients.copied_queries.at[own], QUERY, pl.ds(0, grid.length))

    def _write_queries(self, start: Any, size: int, first: Any) -> None:
        """Writes the sums from `start` on to the row's queries from `first` on, margins counted."""
        summed = pl.ds(start, size)
        tokens = pl.ds(first, size)
        for tile in range(self._step.grid.tiles):
            gradient_LxS = self._gradients.queries[tile, :, summed]
            angles = None
            if self._rotation_ref is not None:
                angles = self._rotation_ref[:, :, tokens]
            self._gradients.copied_queries[tokens, _lanes(tile)] = self._finished(
                gradient_LxS, QUERY, tile, angles)

    def _copy(self, source: Any, part: int, tokens: Any) -> Any:
        """The copy of a part's gradients of this grid step's heads to the output."""
        target = self._gradients.d_qkv.at[self._step.row, tokens, self._step.lanes(part)]
        return pltpu.make_async_copy(source, target, self._gradients.semaphores.at[part])

    def _finished(
        self, gradient_LxC: jax.Array, part: int, tile: int, angles: Any
    ) -> jax.Array:
        """The gradients of a part of the projection's output [C, L], also added to the bias's.

        Args:
          gradient_LxC: the sums.
          part: queries, keys or values.
          tile: of heads.
          angles: cosines and sines [2, D/2, C] by which this part was rotated, or None.
        """
        scale = gradient_scale(part, self._settings.head_dim) / (1.0 - self._settings.rate)
        gradient_LxC = gradient_LxC * scale
        if angles is not None:
            gradient_LxC = rotated_back(gradient_LxC, angles)
        gradient_CxL = gradient_LxC.astype(self._step.grid.dtype).T
        self._gradients.d_bias[0, part, :, _lanes(tile)] += sum_of_lines(gradient_CxL)
        return gradient_CxL


def _lanes(tile: jax.Array | int) -> Any:
    """The lanes of a tile, whose index may be traced."""
    first: Any = tile * LANES
    return pl.ds(pl.multiple_of(first, LANES), LANES)


def _wait(copies: list[Any]) -> None:
    for copy in copies:
        copy.wait()
