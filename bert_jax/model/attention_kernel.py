"""Self-attention on TPUs, fused into one kernel for each of the forward and backward passes.

The forward kernel reads queries, keys and values in the layout of their projection, `[B, S, 3H]`,
and writes context vectors `[B, S, H]`. Scores and probabilities never leave the chip's on-chip
memory (VMEM); the backward kernel recomputes them. Two heads of 64 dims share the 128 lanes of a
tile. Dropout uses the masks of `model.dropout`, bit for bit, whatever the blocks and the mesh.

Scores are laid out as [keys, queries], so that the sums of softmax are taken over sublanes, by
adding whole registers, and not by the slow unit that moves data between lanes. Context and
gradients are computed as [head_dim, S], which halves the matrix unit's work, and are transposed
once for both heads of a pair.

The product of one head's queries and keys uses half of the lanes. The other half, the spare lanes,
holds the mask, so adding it to the scores costs nothing. The forward pass does not subtract the
maximum before it exponentiates: float32 has exponents from -126 to 127. If a sum is outside
2^-100 to 2^100, that range may have been too small, and the whole grid step is computed again with
the maximum subtracted.

The projection's bias is added in this module, so that the backward kernel sums its gradient while
the gradient of the projection's output is still on the chip. Summing that array separately would
cost as much as the projection.

Both passes are in one file because they share blocks, order of work and masks, and neither can be
checked without the other.

    B: batch rows, S: sequence (Q queries, K keys), H: hidden_size, N: heads, D: head_dim, L: lanes,
    M: marks of a token (its segment; its place for dropout), P: pairs of heads, G: groups of rows
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
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as Spec

from bert_jax.model import dropout as drop
from bert_jax.sharding import BATCH_AXES

# A tile of a TPU has so many sublanes and lanes.
SUBLANES = 8
LANES = 128
HEAD_DIM = 64
# Whole rows must fit in VMEM; every TPU has at least 16 MB.
MAX_LENGTH = 2048
# Most scores, rows x pairs x S^2, that a grid step has for each head of a pair; more for long rows.
_FORWARD_SCORES = 1 << 18
_BACKWARD_SCORES = 1 << 17
# Longer rows get shorter query blocks and single buffering, to save VMEM.
_LONG_ROW = 1024
# At longer rows, VMEM holds the work of one pair of heads a grid step.
_LONGEST_ROW_OF_TWO_PAIRS = 512
# The backward kernel's output block is whole rows if [S, 3H] has at most so many elements.
_MOST_OUTPUT_IN_VMEM = 512 * 3 * 1024
# Scales queries such that scores are exponents of 2.
_QUERY_SCALE = HEAD_DIM**-0.5 * math.log2(math.e)
# If log2 of a sum is within this, no exponent left the range of float32.
_SAFE_EXPONENT = 100.0


def kernel_attention(
    qkv_BxSx3xNxD: jax.Array,
    bias_3xNxD: jax.Array,
    segments_BxS: jax.Array,
    rows_Bx2: jax.Array | None,
    layer: jax.Array | int,
    *,
    rate: float,
    mesh: Mesh | None = None,
    interpret: bool = False,
) -> jax.Array:
    """Context vectors [B, S, N, D], in the dtype of `qkv`.

    D must be 64, N even on each device and S at most `MAX_LENGTH`;
    `attention.why_unsupported` checks this.

    Args:
      qkv_BxSx3xNxD: queries, keys and values, without bias.
      bias_3xNxD: their bias, float32.
      segments_BxS: number of the sequence that each token belongs to; 0 is padding. A token
        attends to the tokens with its own number.
      rows_Bx2: keys from `dropout_rows`, or None: no dropout.
      layer: index of the encoder layer; may be traced.
      rate: dropout rate of the attention probabilities.
      mesh: rows and heads are split over its axes if it has more than one device.
      interpret: run without a TPU, for tests.
    """
    length, _, num_heads = qkv_BxSx3xNxD.shape[1:4]
    marks = [segments_BxS.astype(jnp.int32)]
    lines_BxNxS = None
    if rows_Bx2 is None:
        rate = 0.0
    if rate:
        column_BxS, line_BxS, head_BxN = drop.places(
            rows_Bx2, (length, length, num_heads), drop.ATTENTION_PROBS, layer)
        marks.append(column_BxS)
        lines_BxNxS = head_BxN[:, :, None] ^ line_BxS[:, None]
    attend: Callable[..., jax.Array]
    attend = functools.partial(_on_one_device, rate=rate, interpret=interpret)
    if mesh is not None:
        attend = _split_over(mesh, attend)
    return attend(qkv_BxSx3xNxD, bias_3xNxD, jnp.stack(marks, axis=1), lines_BxNxS)


def _split_over(mesh: Mesh, attend: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """`attend` on each device's rows and heads: the compiler cannot partition a kernel.

    Axes over which a surrounding `shard_map` has split the arrays already are left out.
    """
    surrounding = jax.sharding.get_abstract_mesh()
    manual_axes = surrounding.manual_axes
    axes = [name for name in mesh.shape if name not in manual_axes]
    if math.prod(mesh.shape[name] for name in axes) == 1:
        return attend
    batch = tuple(name for name in BATCH_AXES if name in axes)
    heads = 'tensor' if 'tensor' in axes else None
    return jax.shard_map(
        attend,
        mesh=surrounding if manual_axes else mesh,
        in_specs=(
            Spec(batch, None, None, heads),
            Spec(None, heads),
            Spec(batch),
            Spec(batch, heads),
        ),
        out_specs=Spec(batch, None, heads),
        axis_names=set(axes),
        check_vma=False)


def _on_one_device(
    qkv_BxSx3xNxD: jax.Array,
    bias_3xNxD: jax.Array,
    marks_BxMxS: jax.Array,
    lines_BxNxS: jax.Array | None,
    *,
    rate: float,
    interpret: bool,
) -> jax.Array:
    """Brings the arrays into the kernels' shapes, with rows of whole tiles, and back."""
    batch, length, _, num_heads, head_dim = qkv_BxSx3xNxD.shape
    qkv_BxSx3H = qkv_BxSx3xNxD.reshape(batch, length, -1)
    missing = -length % LANES
    if missing:  # pad with tokens in a segment of their own, -1
        last_dim = ((0, 0), (0, 0), (0, missing))
        qkv_BxSx3H = jnp.pad(qkv_BxSx3H, ((0, 0), (0, missing), (0, 0)))
        marks_BxMxS = jnp.pad(marks_BxMxS, last_dim, constant_values=-1)
        if lines_BxNxS is not None:
            lines_BxNxS = jnp.pad(lines_BxNxS, last_dim)
    lines_BxPx2xS = None
    if lines_BxNxS is not None:
        lines_BxPx2xS = lines_BxNxS.reshape(batch, num_heads // 2, 2, -1)
    context_BxSxH = _attention(
        qkv_BxSx3H, bias_3xNxD.reshape(-1), marks_BxMxS, lines_BxPx2xS, rate, interpret)
    return context_BxSxH[:, :length].reshape(batch, length, num_heads, head_dim)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _attention(
    qkv_BxSx3H: jax.Array,
    bias_3H: jax.Array,
    marks_BxMxS: jax.Array,
    lines_BxPx2xS: jax.Array | None,
    rate: float,
    interpret: bool,
) -> jax.Array:
    return _forward(qkv_BxSx3H, bias_3H, marks_BxMxS, lines_BxPx2xS, rate, interpret)[0]


class _Residuals(NamedTuple):
    """What the backward pass needs of the forward pass.

    Attributes:
      qkv: scaled queries, keys and values, with bias [B, S, 3H].
      marks: [B, M, S] int32.
      lines: dropout's places of queries [B, P, 2, S] int32, or None.
      log_sums: log2 of softmax's denominators [B, P, 2, S] float32.
      context: [B, S, H].
    """

    qkv: jax.Array
    marks: jax.Array
    lines: jax.Array | None
    log_sums: jax.Array
    context: jax.Array


class _ForwardInputs(NamedTuple):
    """The forward kernel's inputs: arrays, or blocks of them, or their references in VMEM.

    Queries, keys and values are parts of one array.
    """

    queries: Any
    keys: Any
    values: Any
    marks: Any
    lines: Any


def _forward(  # type: ignore[no-untyped-def]
    qkv_BxSx3H, bias_3H, marks_BxMxS, lines_BxPx2xS, rate, interpret
):
    """Context [B, S, H], and the residuals."""
    batch, length, hidden3 = qkv_BxSx3H.shape
    hidden = hidden3 // 3
    # Bias and scale are applied in float32, so that queries are rounded only once.
    scale_3H = jnp.where(jnp.arange(hidden3) < hidden, _QUERY_SCALE, 1.0)
    qkv = ((qkv_BxSx3H.astype(jnp.float32) + bias_3H) * scale_3H).astype(qkv_BxSx3H.dtype)
    grid = _Grid(qkv, _FORWARD_SCORES, num_buffered=1)
    blocks = _ForwardInputs(
        *grid.queries_keys_values,
        marks=grid.marks(marks_BxMxS),
        lines=None if lines_BxPx2xS is None else grid.lines)
    context_BxSxH, log_sums_BxPx2xS = pl.pallas_call(
        functools.partial(_forward_kernel, rate=rate),
        name='attention_forward',
        grid=grid.shape,
        in_specs=[blocks],
        out_specs=[grid.lanes(0), grid.lines],
        out_shape=[
            jax.ShapeDtypeStruct((batch, length, hidden), qkv.dtype),
            jax.ShapeDtypeStruct((batch, hidden // LANES, 2, length), jnp.float32),
        ],
        scratch_shapes=grid.scratch_shapes,
        compiler_params=_COMPILER_PARAMS,
        interpret=interpret,
    )(_ForwardInputs(qkv, qkv, qkv, marks_BxMxS, lines_BxPx2xS))
    residuals = _Residuals(qkv, marks_BxMxS, lines_BxPx2xS, log_sums_BxPx2xS, context_BxSxH)
    return context_BxSxH, residuals


class _BackwardInputs(NamedTuple):
    """The backward kernel's inputs: arrays, or blocks of them, or their references in VMEM."""

    queries: Any
    keys: Any
    values: Any
    d_context: Any
    log_sums: Any
    marks: Any
    lines: Any  # None without dropout
    context: Any  # None for short rows, which are memory-bound already


def _backward(rate, interpret, residuals, d_context_BxSxH):  # type: ignore[no-untyped-def]
    """Gradients of the projection's output [B, S, 3H] and of its bias [3H].

    The kernel writes the bias gradient as partial sums [G, 3, 8, H], one for each group of rows and
    each sublane, that is, over every eighth token.
    """
    qkv, marks, lines, log_sums, context = residuals
    _, length, hidden3 = qkv.shape
    if length <= LANES:
        context = None
    grid = _Grid(qkv, _BACKWARD_SCORES, num_buffered=2)
    blocks = _BackwardInputs(
        *grid.queries_keys_values,
        d_context=grid.lanes(0),
        log_sums=grid.lines,
        marks=grid.marks(marks),
        lines=None if lines is None else grid.lines,
        context=None if context is None else grid.lanes(0))
    # If there is room, the output block is whole rows, which stay in VMEM until the last pair of
    # heads is written. Otherwise the kernel copies the results itself; at length 512 this would
    # make the backward pass 4 % slower, because waiting for copies splits the schedule.
    copied = length * hidden3 > _MOST_OUTPUT_IN_VMEM
    scratch_shapes = grid.scratch_shapes
    if copied:
        output = pl.BlockSpec(memory_space=pl.ANY)
        scratch_shapes = [*scratch_shapes, *grid.copied_shapes(qkv.dtype)]
    else:
        output = pl.BlockSpec((grid.rows, length, hidden3), lambda i, j: (i, 0, 0))
    d_qkv, d_bias_Gx3x8xH = pl.pallas_call(
        functools.partial(_backward_kernel, rate=rate),
        name='attention_backward',
        grid=grid.shape,
        in_specs=[blocks],
        out_specs=[
            output,
            pl.BlockSpec((1, 3, SUBLANES, grid.pairs * LANES), lambda i, j: (i, 0, 0, j)),
        ],
        out_shape=[
            jax.ShapeDtypeStruct(qkv.shape, qkv.dtype),
            jax.ShapeDtypeStruct((grid.shape[0], 3, SUBLANES, hidden3 // 3), jnp.float32),
        ],
        scratch_shapes=scratch_shapes,
        compiler_params=_COMPILER_PARAMS,
        interpret=interpret,
    )(_BackwardInputs(qkv, qkv, qkv, d_context_BxSxH, log_sums, marks, lines, context))
    return d_qkv, jnp.sum(d_bias_Gx3x8xH, axis=(0, 2)).reshape(-1), None, None


_attention.defvjp(_forward, _backward)


class _Unit(NamedTuple):
    """The smallest piece of a grid step's work: some queries of one head of one row."""

    row: Any  # an index within the block, perhaps traced, like `pair`
    pair: Any
    queries: Any  # a slice
    head: int  # of the pair: 0 or 1

    @property
    def lanes(self) -> Any:
        """The lanes of this unit's pair of heads."""
        return pl.ds(pl.multiple_of(self.pair * LANES, LANES), LANES)

    @property
    def line(self) -> tuple[Any, ...]:
        """The index that selects this unit's queries, [1, Q], in an array [rows, pairs, 2, S]."""
        return self.row, self.pair, pl.ds(self.head, 1), self.queries

    @property
    def is_first_of_pair(self) -> bool:
        """Whether no unit before this one has this row and pair."""
        return self.head == 0 and self.queries.start == 0


_COMPILER_PARAMS = pltpu.CompilerParams(dimension_semantics=('parallel', 'arbitrary'))


class _Grid:
    """The grid (groups of rows, groups of pairs of heads) and the blocks of a grid step.

    Attributes:
      rows: of a grid step.
      pairs: of heads in a grid step.
      shape: the number of groups of rows and of groups of pairs.
    """

    def __init__(self, qkv_BxSx3H: Any, most_scores: int, num_buffered: int) -> None:
        """Chooses a grid step's rows and pairs.

        More rows and pairs give the scheduler more independent work but need more VMEM.

        Args:
          qkv_BxSx3H: queries, keys and values, or their shape.
          most_scores: rows x pairs x S^2 is at most this, or rows is 1.
          num_buffered: how many arrays of the size of its probabilities a unit buffers for its
            next stage.
        """
        batch, length, hidden3 = qkv_BxSx3H.shape
        all_pairs = hidden3 // (3 * LANES)
        self.pairs = math.gcd(all_pairs, 2 if length <= _LONGEST_ROW_OF_TWO_PAIRS else 1)
        most_rows = max(1, most_scores // (self.pairs * length**2))
        self.rows = math.gcd(batch, most_rows)
        self.shape = (batch // self.rows, all_pairs // self.pairs)
        self._length = length
        self._dtype = qkv_BxSx3H.dtype
        self._num_buffered = num_buffered

    def lanes(self, first: int) -> pl.BlockSpec:
        """The block of a grid step's pairs of heads; `first` is the block index of step 0."""
        buffers = pl.Buffered(1 if self._length > _LONG_ROW else 2)
        return pl.BlockSpec(
            self._lanes_shape, lambda i, j: (i, 0, first + j), pipeline_mode=buffers)

    @property
    def _lanes_shape(self) -> tuple[int, int, int]:
        return self.rows, self._length, self.pairs * LANES

    @property
    def queries_keys_values(self) -> tuple[pl.BlockSpec, pl.BlockSpec, pl.BlockSpec]:
        """The three blocks of a grid step's pairs in an array [B, S, 3H]."""
        steps = self.shape[1]
        return self.lanes(0), self.lanes(steps), self.lanes(2 * steps)

    @property
    def lines(self) -> pl.BlockSpec:
        """The block of a grid step's pairs in an array [B, P, 2, S]."""
        return pl.BlockSpec(
            (self.rows, self.pairs, 2, self._length), lambda i, j: (i, j, 0, 0))

    def marks(self, marks_BxMxS: jax.Array) -> pl.BlockSpec:
        """The block of all marks of a grid step's rows."""
        return pl.BlockSpec((self.rows, *marks_BxMxS.shape[1:]), lambda i, j: (i, 0, 0))

    @property
    def scratch_shapes(self) -> list[Any]:
        """The arrays of `_Scratch`."""
        units = _units(self._lanes_shape)
        num_queries = units[0].queries.stop
        num_slots = _lag(units) + 1
        of_rows = (self.rows, self._length, LANES)
        return [
            pltpu.VMEM(of_rows, self._dtype),
            pltpu.VMEM(of_rows, self._dtype),
            pltpu.VMEM(of_rows, jnp.int32),
            pltpu.VMEM((self._num_buffered, num_slots, self._length, num_queries), self._dtype),
        ]

    def copied_shapes(self, dtype: Any) -> list[Any]:
        """The gradients that the backward kernel copies to its output, and their semaphores."""
        return [pltpu.VMEM((3, *self._lanes_shape), dtype), pltpu.SemaphoreType.DMA((3,))]


def grids(batch: int, length: int, hidden: int) -> dict[str, tuple[int, int]]:
    """The grids of both kernels, by kernel name, for queries [B, S, H] of one device."""
    padded = length + -length % LANES
    qkv = jax.ShapeDtypeStruct((batch, padded, 3 * hidden), jnp.bfloat16)
    return {
        'attention_forward': _Grid(qkv, _FORWARD_SCORES, num_buffered=1).shape,
        'attention_backward': _Grid(qkv, _BACKWARD_SCORES, num_buffered=2).shape,
    }


class _Scratch(NamedTuple):
    """A grid step's working memory.

    The first three are what all heads of a row share, which `prepare` writes.

    Attributes:
      spare_queries, spare_keys: what the spare lanes of queries and keys hold, [rows, S, L].
      key_places: dropout's places of keys as columns, [rows, S, L] int32.
      buffer: arrays [K, Q] between a unit's stages, [arrays, slots, S, Q].
    """

    spare_queries: Any
    spare_keys: Any
    key_places: Any
    buffer: Any

    def prepare(self, marks_ref: Any) -> None:
        """Writes the spare lanes, and dropout's places of keys, once for all heads of a row.

        Each of the four base-16 digits of a segment number has 16 lanes. A key has 1 in the lane of
        the digit's value, and 0 in the others. A query has 0 where a key of its segment has 1, and
        -2^20 in the others. So their product is 0 within a segment, and at most -2^20 between
        segments.
        """
        @pl.when(pl.program_id(1) == 0)
        def _() -> None:
            lane_1xL = lax.broadcasted_iota(jnp.int32, (1, LANES), 1) & HEAD_DIM - 1
            shift_1xL = lane_1xL >> 4 << 2  # bits below the digit of these 16 lanes
            for row in range(self.key_places.shape[0]):
                marks_MxS = marks_ref[row]
                same_SxL = _column(marks_MxS[:1]) >> shift_1xL & 15 == lane_1xL & 15
                spare_keys = jnp.where(same_SxL, 1.0, 0.0)
                self.spare_keys[row] = spare_keys.astype(self.spare_keys.dtype)
                spare_queries = jnp.where(same_SxL, 0.0, -(2.0**20))
                self.spare_queries[row] = spare_queries.astype(self.spare_queries.dtype)
                if marks_MxS.shape[0] > 1:
                    self.key_places[row] = _column(marks_MxS[1:2])

    def slot(self, index: int) -> int:
        """The slot of the buffer for the unit with this index."""
        return index % self.buffer.shape[1]


def _forward_kernel(
    inputs: _ForwardInputs, context_ref: Any, log_sums_ref: Any, *scratch_refs: Any, rate: float
) -> None:
    scratch = _Scratch(*scratch_refs)
    scratch.prepare(inputs.marks)
    step = _ForwardStep(inputs, context_ref, log_sums_ref, scratch, rate)
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
        rate: float,
    ) -> None:
        self._inputs = inputs
        self._context_ref = context_ref
        self._log_sums_ref = log_sums_ref
        self._scratch = scratch
        self._rate = rate
        self._dtype = inputs.queries.dtype
        self._units = _units(inputs.queries.shape)
        self._values_LxS: dict[Any, jax.Array] = {}  # transposed, by row and pair
        self._contexts_DxQ: dict[int, jax.Array] = {}  # of the latest pair, by head

    def run(self) -> None:
        """Computes the step as a pipeline, without subtracting the maximum of scores."""
        _overlap(self._units, [self._load, self._scores, self._softmax, self._write_context])

    def _load(self, unit: _Unit) -> tuple[jax.Array, jax.Array]:
        if unit.is_first_of_pair:
            values_SxL = self._inputs.values[unit.row, :, unit.lanes]
            self._values_LxS[unit.row, unit.pair] = values_SxL.T
        return self._operands(unit)

    def _operands(self, unit: _Unit) -> tuple[jax.Array, jax.Array]:
        """Keys [K, L] and queries [Q, L] with their spare lanes: their product is the scores."""
        keys = _joined(
            self._inputs.keys[unit.row, :, unit.lanes],
            self._scratch.spare_keys[unit.row],
            unit.head)
        queries = _joined(
            self._inputs.queries[unit.row, unit.queries, unit.lanes],
            self._scratch.spare_queries[unit.row, unit.queries],
            unit.head)
        return keys, queries

    def _scores(self, unit: _Unit, operands: tuple[jax.Array, jax.Array]) -> jax.Array:
        keys_KxL, queries_QxL = operands
        return _dot(keys_KxL, queries_QxL, 1, 1)

    def _softmax(self, unit: _Unit, scores_KxQ: jax.Array) -> tuple[int, jax.Array]:
        """Buffers exponentials; returns their slot, and 1 / (their sums x the share kept)."""
        slot = self._scratch.slot(self._units.index(unit))
        exp_KxQ = jnp.exp2(scores_KxQ)
        sum_1xQ = jnp.sum(exp_KxQ, axis=0, keepdims=True)
        self._log_sums_ref[unit.line] = jnp.log2(sum_1xQ)
        self._scratch.buffer[0, slot] = self._dropped(unit, exp_KxQ).astype(self._dtype)
        return slot, 1.0 / (sum_1xQ * (1.0 - self._rate))

    def _dropped(self, unit: _Unit, probs_KxQ: jax.Array) -> jax.Array:
        """Probabilities after dropout, not yet scaled by 1 / (1 - rate)."""
        if not self._rate:
            return probs_KxQ
        kept_KxQ = _kept(self._inputs.lines, self._scratch.key_places, unit, self._rate)
        return jnp.where(kept_KxQ, probs_KxQ, 0.0)

    def _write_context(self, unit: _Unit, softmax: tuple[int, jax.Array]) -> None:
        slot, scale_1xQ = softmax
        values_DxK = self._values_LxS[unit.row, unit.pair][_head(unit.head)]
        sums_DxQ = _dot(values_DxK, self._scratch.buffer[0, slot], 1, 0)
        self._contexts_DxQ[unit.head] = sums_DxQ * scale_1xQ
        if unit.head == 1:
            context_LxQ = jnp.concatenate([self._contexts_DxQ[0], self._contexts_DxQ[1]])
            context_QxL = context_LxQ.astype(self._dtype).T
            self._context_ref[unit.row, unit.queries, unit.lanes] = context_QxL

    def run_safely(self) -> None:
        """Computes the step again with the maximum subtracted; rare, so a loop is good enough."""
        rows, length, lanes = self._inputs.queries.shape
        pairs = lanes // LANES
        blocks = length // LANES

        def pair_of_heads(i: jax.Array, _: None) -> None:
            row = lax.div(i, pairs * blocks)
            rest = lax.rem(i, pairs * blocks)
            queries = pl.ds(pl.multiple_of(lax.rem(rest, blocks) * LANES, LANES), LANES)
            contexts_DxQ = []
            for head in range(2):
                unit = _Unit(row, lax.div(rest, blocks), queries, head)
                contexts_DxQ.append(self._safe_context(unit))
            context_LxQ = jnp.concatenate(contexts_DxQ)
            self._context_ref[row, queries, unit.lanes] = context_LxQ.astype(self._dtype).T

        lax.fori_loop(0, rows * pairs * blocks, pair_of_heads, None)

    def _safe_context(self, unit: _Unit) -> jax.Array:
        """The context [D, Q] of a unit, with the maximum of its scores subtracted."""
        scores_KxQ = _dot(*self._operands(unit), 1, 1)
        highest_1xQ = jnp.max(scores_KxQ, axis=0, keepdims=True)
        exp_KxQ = jnp.exp2(scores_KxQ - highest_1xQ)
        sum_1xQ = jnp.sum(exp_KxQ, axis=0, keepdims=True)
        self._log_sums_ref[unit.line] = highest_1xQ + jnp.log2(sum_1xQ)
        values_DxK = self._inputs.values[unit.row, :, unit.lanes].T[_head(unit.head)]
        dropped_KxQ = self._dropped(unit, exp_KxQ).astype(self._dtype)
        return _dot(values_DxK, dropped_KxQ, 1, 0) / (sum_1xQ * (1.0 - self._rate))


def _backward_kernel(
    inputs: _BackwardInputs, d_qkv_ref: Any, d_bias_ref: Any, *scratch_refs: Any, rate: float
) -> None:
    # A kernel that copies its results itself has two more entries.
    scratch = _Scratch(*scratch_refs[:4])
    copied_refs = scratch_refs[4:]
    scratch.prepare(inputs.marks)
    output = _GradientOutput(inputs.queries.shape, d_qkv_ref, *copied_refs)
    step = _BackwardStep(inputs, output, d_bias_ref, scratch, rate)
    step.run()
    output.copy()


# The parts of a projection's output.
_QUERY, _KEY, _VALUE = range(3)
_PARTS = (_QUERY, _KEY, _VALUE)
# What the gradients of scaled queries, of keys and of values are multiplied by.
_GRADIENT_SCALES = {_QUERY: HEAD_DIM**-0.5, _KEY: math.log(2), _VALUE: 1.0}


class _GradientOutput:
    """Where a grid step writes the gradients of its queries, keys and values.

    This is in the output block, or in VMEM of its own, from which they are copied to the output
    while the next step computes.

    Attributes:
      refs: the places [rows, S, lanes] of the three parts.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        d_qkv_ref: Any,
        copied_ref: Any = None,
        semaphores_ref: Any = None,
    ) -> None:
        """Divides the output.

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
            for part in _PARTS]
        self._copies = []
        if copied_ref is None:
            self.refs = [d_qkv_ref.at[:, :, lanes[part]] for part in _PARTS]
            return
        self.refs = [copied_ref.at[part] for part in _PARTS]
        group = pl.ds(pl.program_id(0) * rows, rows)
        for part in _PARTS:
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
        rate: float,
    ) -> None:
        self._inputs = inputs
        self._output = output
        self._d_bias_ref = d_bias_ref
        self._scratch = scratch
        self._rate = rate
        self._dtype = inputs.queries.dtype
        self._length = inputs.queries.shape[1]
        self._units = _units(inputs.queries.shape)
        # By row and pair: queries, keys and the context's gradient [L, S]; and means [8, S], one of
        # each head's queries in its line.
        self._transposed: dict[Any, tuple[jax.Array, jax.Array, jax.Array]] = {}
        self._means_8xS: dict[Any, jax.Array] = {}
        # Gradients of the latest pair, by part and head: [D, Q] of queries, else [D, S].
        self._gradients: dict[tuple[int, int], jax.Array] = {}

    def run(self) -> None:
        """Computes the step as a pipeline."""
        _overlap(self._units, [self._load, self._products, self._softmax, self._differentiate])

    def _load(self, unit: _Unit) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Keys [K, L], queries [Q, L] and the context's gradient [Q, L], with spare lanes."""
        queries_SxL = self._inputs.queries[unit.row, :, unit.lanes]
        keys_SxL = self._inputs.keys[unit.row, :, unit.lanes]
        d_context_SxL = self._inputs.d_context[unit.row, :, unit.lanes]
        if unit.is_first_of_pair:
            pair = unit.row, unit.pair
            self._transposed[pair] = (queries_SxL.T, keys_SxL.T, d_context_SxL.T)
            if self._length > LANES:
                self._means_8xS[pair] = self._means(unit, d_context_SxL)
        keys = _joined(keys_SxL, self._scratch.spare_keys[unit.row], unit.head)
        queries = _joined(
            queries_SxL[unit.queries],
            self._scratch.spare_queries[unit.row, unit.queries],
            unit.head)
        d_context = _joined(
            d_context_SxL[unit.queries],
            jnp.zeros_like(d_context_SxL[unit.queries]),
            unit.head)
        return keys, queries, d_context

    def _means(self, unit: _Unit, d_context_SxL: jax.Array) -> jax.Array:
        """What the gradient of softmax subtracts, for each query of a pair: [8, S].

        It is the product of the query's context with the context's gradient, summed over the head's
        dims. The matrix unit sums it here, so that no score has to wait for all the others.
        """
        product_SxL = d_context_SxL.astype(jnp.float32)
        product_SxL *= self._inputs.context[unit.row, :, unit.lanes].astype(jnp.float32)
        line_8xL = lax.broadcasted_iota(jnp.int32, (SUBLANES, LANES), 0)
        lane_8xL = lax.broadcasted_iota(jnp.int32, (SUBLANES, LANES), 1)
        is_of_head_8xL = lax.div(lane_8xL, HEAD_DIM) == line_8xL
        return _dot(jnp.where(is_of_head_8xL, 1.0 - self._rate, 0.0), product_SxL, 1, 1)

    def _products(
        self, unit: _Unit, operands: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        """Scores [K, Q], and the gradients of dropped probabilities [K, Q]."""
        keys_KxL, queries_QxL, d_context_QxL = operands
        scores_KxQ = _dot(keys_KxL, queries_QxL, 1, 1)
        values_KxL = self._inputs.values[unit.row, :, unit.lanes]
        return scores_KxQ, _dot(values_KxL, d_context_QxL, 1, 1)

    def _softmax(self, unit: _Unit, products: tuple[jax.Array, jax.Array]) -> int:
        """Buffers dropped probabilities and the gradients of scores; returns their slot.

        Both are without the factor 1 / (1 - rate), which `_write` applies.
        """
        scores_KxQ, d_dropped_KxQ = products
        slot = self._scratch.slot(self._units.index(unit))
        probs_KxQ = jnp.exp2(scores_KxQ - self._inputs.log_sums[unit.line])
        dropped_KxQ = probs_KxQ
        if self._rate:
            kept_KxQ = _kept(self._inputs.lines, self._scratch.key_places, unit, self._rate)
            dropped_KxQ = jnp.where(kept_KxQ, probs_KxQ, 0.0)
        d_probs_KxQ = dropped_KxQ * d_dropped_KxQ
        if self._length > LANES:
            means_8xS = self._means_8xS[unit.row, unit.pair]
            mean_1xQ = means_8xS[unit.head : unit.head + 1, unit.queries]
        else:
            mean_1xQ = jnp.sum(d_probs_KxQ, axis=0, keepdims=True)
        self._scratch.buffer[0, slot] = dropped_KxQ.astype(self._dtype)
        d_scores_KxQ = d_probs_KxQ - probs_KxQ * mean_1xQ
        self._scratch.buffer[1, slot] = d_scores_KxQ.astype(self._dtype)
        return slot

    def _differentiate(self, unit: _Unit, slot: int) -> None:
        """Computes the gradients of a head, and writes those of a pair after its second head."""
        if unit is self._units[0]:
            self._output.wait_for_previous_step()
        head = unit.head
        queries_DxS, keys_DxS, d_context_DxS = (
            x[_head(head)] for x in self._transposed[unit.row, unit.pair])
        buffer = self._scratch.buffer
        d_keys_DxS = _dot(queries_DxS[:, unit.queries], buffer[1, slot], 1, 1)
        d_values_DxS = _dot(d_context_DxS[:, unit.queries], buffer[0, slot], 1, 1)
        if unit.queries.start:  # sums over all queries
            d_keys_DxS += self._gradients[_KEY, head]
            d_values_DxS += self._gradients[_VALUE, head]
        self._gradients[_KEY, head] = d_keys_DxS
        self._gradients[_VALUE, head] = d_values_DxS
        self._gradients[_QUERY, head] = _dot(keys_DxS, buffer[1, slot], 1, 0)
        if head == 1:
            self._write(unit, unit.queries, _QUERY)
            if unit.queries.stop == self._length:
                self._write(unit, slice(0, self._length), _KEY)
                self._write(unit, slice(0, self._length), _VALUE)

    def _write(self, unit: _Unit, tokens: slice, part: int) -> None:
        """Writes a part's gradients of a pair of heads, and adds them to those of the bias."""
        scale = _GRADIENT_SCALES[part] / (1.0 - self._rate)
        pair_LxS = jnp.concatenate([self._gradients[part, 0], self._gradients[part, 1]]) * scale
        pair_SxL = pair_LxS.astype(self._dtype).T
        self._output.refs[part][unit.row, tokens, unit.lanes] = pair_SxL
        lines_xx8xL = pair_SxL.astype(jnp.float32).reshape(-1, SUBLANES, LANES)
        sum_8xL = jnp.sum(lines_xx8xL, axis=0)
        if unit.row or tokens.start:
            sum_8xL += self._d_bias_ref[0, part, :, unit.lanes]
        self._d_bias_ref[0, part, :, unit.lanes] = sum_8xL


def _units(shape: tuple[int, int, int]) -> list[_Unit]:
    """The units of a grid step with blocks [rows, S, lanes], in order."""
    rows, length, lanes = shape
    most_queries = 256 if length <= _LONG_ROW else LANES
    num_queries = math.gcd(length, most_queries)
    pairs = range(lanes // LANES)
    starts = range(0, length, num_queries)
    return [
        _Unit(row, pair, slice(start, start + num_queries), head)
        for row, pair, start, head in itertools.product(range(rows), pairs, starts, range(2))]


def _overlap(units: Sequence[_Unit], stages: Sequence[Callable[..., Any]]) -> None:
    """Runs every stage of every unit as a pipeline, each stage `_lag` units behind the previous.

    The compiler's scheduler looks for independent work only nearby, and this order puts it there.

    Args:
      units: of a grid step.
      stages: the first takes a unit; each other takes a unit and what the previous returned for it.
    """
    lag = _lag(units)
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


def _lag(units: Sequence[_Unit]) -> int:
    """How many units a stage is behind the previous one: 1 if a step has one row, to save VMEM."""
    has_several_rows = units[-1].row > 0
    if not has_several_rows:
        return 1
    return max(1, len(units) // 8)


def _kept(lines_ref: Any, key_places_ref: Any, unit: _Unit, rate: float) -> jax.Array:
    """Which probabilities dropout keeps: bool [K, Q]."""
    line_1xQ = lines_ref[unit.line]
    num_tiles = line_1xQ.shape[1] // LANES
    column_KxQ = jnp.concatenate([key_places_ref[unit.row]] * num_tiles, axis=1)
    return drop.kept(line_1xQ + column_KxQ, rate)


def _dot(a: jax.Array, b: jax.Array, a_dim: int, b_dim: int) -> jax.Array:
    """The product of two matrices over these dims, accumulated in float32."""
    dims = (((a_dim,), (b_dim,)), ((), ()))
    return lax.dot_general(a, b, dims, preferred_element_type=jnp.float32)


def _head(head: int) -> slice:
    """The dims of a head among those of its pair."""
    return slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)


def _joined(pair_SxL: jax.Array, spare_SxL: jax.Array, head: int) -> jax.Array:
    """The lanes of a head of `pair`, which holds both heads, and the other lanes of `spare`."""
    lane_1xL = lax.broadcasted_iota(jnp.int32, (1, LANES), 1)
    is_of_head_1xL = lane_1xL < HEAD_DIM if head == 0 else lane_1xL >= HEAD_DIM
    if pair_SxL.dtype == jnp.float32:
        return jnp.where(is_of_head_1xL, pair_SxL, spare_SxL)
    # As 32-bit words of two bfloat16 each: to select bfloat16, the vector unit would unpack them.
    pair_words = pltpu.bitcast(pair_SxL, jnp.int32)
    spare_words = pltpu.bitcast(spare_SxL, jnp.int32)
    return pltpu.bitcast(jnp.where(is_of_head_1xL, pair_words, spare_words), pair_SxL.dtype)


def _column(row_1xS: jax.Array) -> jax.Array:
    """A row [1, S] as a column that is repeated in every lane: [S, 128]."""
    return jnp.broadcast_to(row_1xS, (LANES, row_1xS.shape[1])).T
