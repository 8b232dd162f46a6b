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

LANES, SUBLANES = 128, 8  # of a tile
HEAD_DIM = 64
# Whole rows must fit in VMEM; every TPU has at least 16 MB.
MAX_LENGTH = 2048
# Most scores, rows x pairs x S^2, that a grid step has for each head of a pair; more for long rows.
_FORWARD_SCORES, _BACKWARD_SCORES = 1 << 18, 1 << 17
_LONG = 1024  # longer rows get shorter query blocks and single buffering, to save VMEM


def kernel_attention(
    qkv_BxSx3xNxD: jax.Array, bias_3xNxD: jax.Array, segments_BxS: jax.Array,
    rows_Bx2: jax.Array | None, layer: jax.Array | int, *, rate: float, mesh: Mesh | None = None,
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
    elif rate:
        column, line, head = drop.places(
            rows_Bx2, (length, length, num_heads), drop.ATTENTION_PROBS, layer)
        marks.append(column)
        lines_BxNxS = head[:, :, None] ^ line[:, None]
    attend = functools.partial(_on_one_device, rate=rate, interpret=interpret)
    # The compiler cannot partition a kernel over devices, so `shard_map` does.
    taken = jax.sharding.get_abstract_mesh().manual_axes
    axes = {name: size for name, size in mesh.shape.items() if name not in taken} if mesh else {}
    if math.prod(axes.values()) > 1:
        batch = tuple(name for name in BATCH_AXES if name in axes)
        heads = 'tensor' if 'tensor' in axes else None
        attend = jax.shard_map(
            attend, mesh=jax.sharding.get_abstract_mesh() if taken else mesh,
            in_specs=(
                Spec(batch, None, None, heads), Spec(None, heads), Spec(batch), Spec(batch, heads)),
            out_specs=Spec(batch, None, heads), axis_names=set(axes), check_vma=False)
    return attend(qkv_BxSx3xNxD, bias_3xNxD, jnp.stack(marks, axis=1), lines_BxNxS)


def _on_one_device(
    qkv_BxSx3xNxD: jax.Array, bias_3xNxD: jax.Array, marks_BxMxS: jax.Array,
    lines_BxNxS: jax.Array | None, *, rate: float, interpret: bool,
) -> jax.Array:
    batch, length, _, num_heads, head_dim = qkv_BxSx3xNxD.shape
    qkv_BxSx3H = qkv_BxSx3xNxD.reshape(batch, length, -1)
    more = -length % LANES
    if more:  # pad to whole tiles with tokens in a segment of their own, -1
        pad = ((0, 0), (0, 0), (0, more))
        qkv_BxSx3H = jnp.pad(qkv_BxSx3H, ((0, 0), (0, more), (0, 0)))
        marks_BxMxS = jnp.pad(marks_BxMxS, pad, constant_values=-1)
        lines_BxNxS = None if lines_BxNxS is None else jnp.pad(lines_BxNxS, pad)
    if lines_BxNxS is not None:
        lines_BxNxS = lines_BxNxS.reshape(batch, num_heads // 2, 2, -1)
    context_BxSxH = _attention(
        qkv_BxSx3H, bias_3xNxD.reshape(-1), marks_BxMxS, lines_BxNxS, rate, interpret)
    return context_BxSxH[:, :length].reshape(batch, length, num_heads, head_dim)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _attention(
    qkv_BxSx3H: jax.Array, bias_3H: jax.Array, marks_BxMxS: jax.Array,
    lines_BxPx2xS: jax.Array | None, rate: float, interpret: bool,
) -> jax.Array:
    return _forward(qkv_BxSx3H, bias_3H, marks_BxMxS, lines_BxPx2xS, rate, interpret)[0]


def _forward(qkv_BxSx3H, bias_3H, marks, lines, rate, interpret):  # type: ignore[no-untyped-def]
    """Context [B, S, H]; and residuals, among them log2 of softmax's denominators [B, P, 2, S]."""
    batch, length, hidden3 = qkv_BxSx3H.shape
    hidden = hidden3 // 3
    # Bias and scale are applied in float32, so that queries are rounded only once.
    scale_3H = jnp.where(jnp.arange(hidden3) < hidden, _SCALE, 1.0)
    qkv = ((qkv_BxSx3H.astype(jnp.float32) + bias_3H) * scale_3H).astype(qkv_BxSx3H.dtype)
    shapes = _Shapes(qkv, _FORWARD_SCORES, arrays=1)
    of_lines = [] if lines is None else [lines]
    context_BxSxH, lse_BxPx2xS = pl.pallas_call(
        functools.partial(_forward_kernel, rate=rate),
        name='attention_forward',
        in_specs=[*shapes.qkv, shapes.marks(marks), *[shapes.of_pair] * len(of_lines)],
        out_specs=[shapes.lanes(0), shapes.of_pair],
        out_shape=[
            jax.ShapeDtypeStruct((batch, length, hidden), qkv.dtype),
            jax.ShapeDtypeStruct((batch, hidden // LANES, 2, length), jnp.float32),
        ],
        **shapes.of_call, interpret=interpret,
    )(*[qkv] * 3, marks, *of_lines)
    return context_BxSxH, (qkv, marks, lines, lse_BxPx2xS, context_BxSxH)


def _backward(rate, interpret, residuals, d_context_BxSxH):  # type: ignore[no-untyped-def]
    """Gradients of the projection's output [B, S, 3H] and of its bias [3H].

    The kernel writes the bias gradient as partial sums [G, 3, 8, H], one for each group of rows and
    each sublane, that is, over every eighth token.
    """
    qkv, marks, lines, lse, context = residuals
    _, length, hidden3 = qkv.shape
    shapes = _Shapes(qkv, _BACKWARD_SCORES, arrays=2)
    of_lines = [] if lines is None else [lines]
    of_context = [context] if length > LANES else []  # short rows are memory-bound already
    # If there is room, the output block is whole rows, which stay in VMEM until the last pair of
    # heads is written. Otherwise the kernel copies the results itself; at length 512 this would
    # make the backward pass 4 % slower, because waiting for copies splits the schedule.
    out = pl.BlockSpec((shapes.rows, length, hidden3), lambda i, j: (i, 0, 0))
    if copied := length * hidden3 > 512 * 3 * 1024:
        out = pl.BlockSpec(memory_space=pl.ANY)
        shapes.of_call['scratch_shapes'] += [
            pltpu.VMEM((3, shapes.rows, length, shapes.pairs * LANES), qkv.dtype),
            pltpu.SemaphoreType.DMA((3,))]
    d_qkv, d_bias_Gx3x8xH = pl.pallas_call(
        functools.partial(_backward_kernel, rate=rate, copied=copied),
        name='attention_backward',
        in_specs=[
            *shapes.qkv, shapes.lanes(0), shapes.of_pair, shapes.marks(marks),
            *[shapes.of_pair] * len(of_lines), *[shapes.lanes(0)] * len(of_context),
        ],
        out_specs=[
            out,
            pl.BlockSpec((1, 3, SUBLANES, shapes.pairs * LANES), lambda i, j: (i, 0, 0, j)),
        ],
        out_shape=[
            jax.ShapeDtypeStruct(qkv.shape, qkv.dtype),
            jax.ShapeDtypeStruct(
                (shapes.of_call['grid'][0], 3, SUBLANES, hidden3 // 3), jnp.float32),
        ],
        **shapes.of_call, interpret=interpret,
    )(*[qkv] * 3, d_context_BxSxH, lse, marks, *of_lines, *of_context)
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
        return pl.ds(pl.multiple_of(self.pair * LANES, LANES), LANES)

    @property
    def line(self) -> tuple[Any, ...]:
        """The index that selects this unit's queries, [1, Q], in an array [rows, pairs, 2, S]."""
        return self.row, self.pair, pl.ds(self.head, 1), self.queries


class _Shapes:
    """The grid (groups of rows, groups of pairs of heads) and the blocks of a grid step."""

    def __init__(self, qkv_BxSx3H: Any, scores: int, arrays: int) -> None:
        """Chooses a grid step's rows and pairs: rows x pairs x S^2 is up to `scores`, or rows is 1.

        More rows and pairs give the scheduler more independent work but need more VMEM. `arrays` is
        how many arrays of the size of its probabilities a unit buffers for its next stage.
        """
        batch, length, hidden3 = qkv_BxSx3H.shape
        dtype = qkv_BxSx3H.dtype
        all_pairs = hidden3 // (3 * LANES)
        self.pairs = math.gcd(all_pairs, 2 if length <= 512 else 1)  # longer: 16 MB hold one
        self.rows = math.gcd(batch, max(1, scores // (self.pairs * length**2)))
        self.length = length
        steps = all_pairs // self.pairs
        self.qkv = [self.lanes(part * steps) for part in range(3)]
        self.of_pair = pl.BlockSpec((self.rows, self.pairs, 2, length), lambda i, j: (i, j, 0, 0))
        units = _units((self.rows, length, self.pairs * LANES))
        self.of_call: dict[str, Any] = {
            'grid': (batch // self.rows, steps),
            'scratch_shapes': [
                pltpu.VMEM((self.rows, length, LANES), dtype),  # spare lanes of queries
                pltpu.VMEM((self.rows, length, LANES), dtype),  # and of keys
                pltpu.VMEM((self.rows, length, LANES), jnp.int32),  # places of the keys
                pltpu.VMEM((arrays, _lag(units) + 1, length, units[0].queries.stop), dtype),
            ],
            'compiler_params': pltpu.CompilerParams(
                dimension_semantics=('parallel', 'arbitrary')),
        }

    def lanes(self, first: int) -> pl.BlockSpec:
        """The block of a grid step's pairs of heads; `first` is the block index of step 0."""
        shape = (self.rows, self.length, self.pairs * LANES)
        buffers = pl.Buffered(1 if self.length > _LONG else 2)
        return pl.BlockSpec(shape, lambda i, j: (i, 0, first + j), pipeline_mode=buffers)

    def marks(self, marks_BxMxS: jax.Array) -> pl.BlockSpec:
        """The block of all marks of a grid step's rows."""
        return pl.BlockSpec((self.rows, *marks_BxMxS.shape[1:]), lambda i, j: (i, 0, 0))


def grids(batch: int, length: int, hidden: int) -> dict[str, tuple[int, int]]:
    """The grids of both kernels, by kernel name, for queries [B, S, H] of one device."""
    qkv = jax.ShapeDtypeStruct((batch, length + -length % LANES, 3 * hidden), jnp.bfloat16)
    return {name: _Shapes(qkv, scores, arrays=1).of_call['grid'] for name, scores in (
        ('attention_forward', _FORWARD_SCORES), ('attention_backward', _BACKWARD_SCORES))}


def _prepare(marks_ref: Any, of_queries: Any, of_keys: Any, places: Any) -> None:
    """Writes what all heads of a row share: spare lanes, and dropout places of keys as columns.

    Each of the four base-16 digits of a segment number has 16 lanes. A key has 1 in the lane of the
    digit's value, and 0 in the others. A query has 0 where a key of its segment has 1, and -2^20 in
    the others. So their product is 0 within a segment, and at most -2^20 between segments.
    """
    @pl.when(pl.program_id(1) == 0)
    def _() -> None:
        lane_1xL = lax.broadcasted_iota(jnp.int32, (1, LANES), 1) & HEAD_DIM - 1
        shift_1xL = lane_1xL >> 4 << 2  # bits below the digit of these 16 lanes
        for r in range(places.shape[0]):
            marks = marks_ref[r]
            same_SxL = _column(marks[:1]) >> shift_1xL & 15 == lane_1xL & 15
            of_keys[r] = jnp.where(same_SxL, 1.0, 0.0).astype(of_keys.dtype)
            of_queries[r] = jnp.where(same_SxL, 0.0, -(2.0**20)).astype(of_queries.dtype)
            if marks.shape[0] > 1:
                places[r] = _column(marks[1:2])


def _forward_kernel(
    q_ref: Any, k_ref: Any, v_ref: Any, marks_ref: Any, *refs: Any, rate: float
) -> None:
    *lines_ref, o_ref, lse_ref, of_queries, of_keys, places, buffer = refs
    _prepare(marks_ref, of_queries, of_keys, places)
    dtype, length = q_ref.dtype, q_ref.shape[1]
    units = _units(q_ref.shape)
    transposed: dict[Any, jax.Array] = {}
    context: dict[int, jax.Array] = {}

    def operands(u: _Unit) -> tuple[jax.Array, jax.Array]:
        return (_joined(k_ref[u.row, :, u.lanes], of_keys[u.row], u.head),
                _joined(q_ref[u.row, u.queries, u.lanes], of_queries[u.row, u.queries], u.head))

    def prepare(u: _Unit) -> tuple[jax.Array, jax.Array]:
        if u.head == 0 and u.queries.start == 0:
            transposed[u.row, u.pair] = v_ref[u.row, :, u.lanes].T
        return operands(u)

    def softmax(u: _Unit, s_KxQ: jax.Array) -> tuple[int, jax.Array]:
        slot, p_KxQ = units.index(u) % buffer.shape[1], jnp.exp2(s_KxQ)
        sum_1xQ = jnp.sum(p_KxQ, axis=0, keepdims=True)
        lse_ref[u.line] = jnp.log2(sum_1xQ)
        buffer[0, slot] = dropped(u, p_KxQ).astype(dtype)
        return slot, 1.0 / (sum_1xQ * (1.0 - rate))

    def dropped(u: _Unit, p_KxQ: jax.Array) -> jax.Array:
        return jnp.where(_kept(lines_ref[0], places, u, rate), p_KxQ, 0.0) if rate else p_KxQ

    def output(u: _Unit, found: Any) -> None:
        slot, inverse_1xQ = found
        context[u.head] = _dot(
            transposed[u.row, u.pair][_head(u.head)], buffer[0, slot], 1, 0) * inverse_1xQ
        if u.head == 1:
            o_LxQ = jnp.concatenate([context[0], context[1]])
            o_ref[u.row, u.queries, u.lanes] = o_LxQ.astype(dtype).T

    _overlap(units, [prepare, lambda u, x: _dot(x[0], x[1], 1, 1), softmax, output])

    @pl.when(jnp.logical_not(jnp.max(jnp.abs(lse_ref[...])) < 100.0))
    def _() -> None:
        """Computes the step again with the maximum subtracted; rare, so a loop is good enough."""
        pairs, blocks = q_ref.shape[2] // LANES, length // LANES

        def pair_of_heads(i: jax.Array, _: None) -> None:
            row, rest = lax.div(i, pairs * blocks), lax.rem(i, pairs * blocks)
            queries = pl.ds(pl.multiple_of(lax.rem(rest, blocks) * LANES, LANES), LANES)
            parts = []
            for head in range(2):
                u = _Unit(row, lax.div(rest, blocks), queries, head)
                s_KxQ = _dot(*operands(u), 1, 1)
                highest_1xQ = jnp.max(s_KxQ, axis=0, keepdims=True)
                p_KxQ = jnp.exp2(s_KxQ - highest_1xQ)
                sum_1xQ = jnp.sum(p_KxQ, axis=0, keepdims=True)
                lse_ref[u.line] = highest_1xQ + jnp.log2(sum_1xQ)
                v_DxK = v_ref[u.row, :, u.lanes].T[_head(head)]
                parts.append(_dot(v_DxK, dropped(u, p_KxQ).astype(dtype), 1, 0)
                             / (sum_1xQ * (1.0 - rate)))
            o_ref[row, queries, u.lanes] = jnp.concatenate(parts).astype(dtype).T

        lax.fori_loop(0, q_ref.shape[0] * pairs * blocks, pair_of_heads, None)


def _backward_kernel(
    q_ref: Any, k_ref: Any, v_ref: Any, do_ref: Any, lse_ref: Any, marks_ref: Any, *refs: Any,
    rate: float, copied: bool,
) -> None:
    *more_refs, d_ref, sums_ref, of_queries, of_keys, places, buffer, written, sent = (
        refs if copied else (*refs, None, None))
    _prepare(marks_ref, of_queries, of_keys, places)
    dtype, length = q_ref.dtype, q_ref.shape[1]
    units = _units(q_ref.shape)
    means: dict[Any, jax.Array] = {}
    transposed: dict[Any, tuple[jax.Array, ...]] = {}
    result: dict[Any, jax.Array] = {}  # gradients of the latest pair

    def prepare(u: _Unit) -> tuple[jax.Array, ...]:
        q, k, do = (ref[u.row, :, u.lanes] for ref in (q_ref, k_ref, do_ref))
        if u.head == 0 and u.queries.start == 0:
            transposed[u.row, u.pair] = q.T, k.T, do.T
            if length > LANES:
                # The gradient of softmax subtracts one number for each query: the product of its
                # context with the context's gradient, summed over the head's dims. The matrix unit
                # sums it here, so that no score has to wait for all the others.
                product_SxL = (do.astype(jnp.float32)
                               * more_refs[-1][u.row, :, u.lanes].astype(jnp.float32))
                line, lane = (lax.broadcasted_iota(jnp.int32, (SUBLANES, LANES), d) for d in (0, 1))
                of_head_8xL = jnp.where(lax.div(lane, HEAD_DIM) == line, 1.0 - rate, 0.0)
                means[u.row, u.pair] = _dot(of_head_8xL, product_SxL, 1, 1)
        return (_joined(k, of_keys[u.row], u.head),
                _joined(q[u.queries], of_queries[u.row, u.queries], u.head),
                _joined(do[u.queries], jnp.zeros_like(do[u.queries]), u.head))

    def products(u: _Unit, three: Any) -> tuple[jax.Array, jax.Array]:
        k, q, do = three
        return _dot(k, q, 1, 1), _dot(v_ref[u.row, :, u.lanes], do, 1, 1)

    def softmax(u: _Unit, both: Any) -> int:
        s_KxQ, dp_KxQ = both
        slot = units.index(u) % buffer.shape[1]
        p_KxQ = kept_KxQ = jnp.exp2(s_KxQ - lse_ref[u.line])
        if rate:
            kept_KxQ = jnp.where(_kept(more_refs[0], places, u, rate), p_KxQ, 0.0)
        # Without the factor 1 / (1 - rate), which `write` applies to the gradients.
        ds_KxQ = kept_KxQ * dp_KxQ
        mean_1xQ = (means[u.row, u.pair][u.head : u.head + 1, u.queries] if length > LANES
                    else jnp.sum(ds_KxQ, axis=0, keepdims=True))
        buffer[0, slot] = kept_KxQ.astype(dtype)
        buffer[1, slot] = (ds_KxQ - p_KxQ * mean_1xQ).astype(dtype)
        return slot

    def gradients(u: _Unit, slot: int) -> None:
        h = u.head
        if copied and u is units[0]:  # the previous step's copies may be under way
            pl.when(pl.program_id(1) > 0)(wait)
        q_LxS, k_LxS, do_LxS = (x[_head(h)] for x in transposed[u.row, u.pair])
        dk_DxK = _dot(q_LxS[:, u.queries], buffer[1, slot], 1, 1)
        dv_DxK = _dot(do_LxS[:, u.queries], buffer[0, slot], 1, 1)
        if u.queries.start:
            dk_DxK += result['k', h]
            dv_DxK += result['v', h]
        result['k', h] = dk_DxK
        result['v', h] = dv_DxK
        result['q', h] = _dot(k_LxS, buffer[1, slot], 1, 0)
        if h == 1:
            write(u, u.queries, 0, 'q')
            if u.queries.stop == length:
                write(u, slice(0, length), 1, 'k')
                write(u, slice(0, length), 2, 'v')

    def write(u: _Unit, part: slice, which: int, name: str) -> None:
        scale = {'q': HEAD_DIM**-0.5, 'k': math.log(2), 'v': 1.0}[name] / (1.0 - rate)
        x_LxS = jnp.concatenate([result[name, 0], result[name, 1]]) * scale
        x_SxL = x_LxS.astype(dtype).T
        found[which][u.row, part, u.lanes] = x_SxL
        sum_8xL = jnp.sum(x_SxL.astype(jnp.float32).reshape(-1, SUBLANES, LANES), axis=0)
        if u.row or part.start:
            sum_8xL += sums_ref[0, which, :, u.lanes]
        sums_ref[0, which, :, u.lanes] = sum_8xL

    rows, _, width = q_ref.shape
    steps, step = pl.num_programs(1), pl.program_id(1)
    lanes = [pl.ds(pl.multiple_of((which * steps + step) * width, width), width)
             for which in range(3)]
    found, copies = [d_ref.at[:, :, part] for part in lanes], []
    if copied:
        group = pl.ds(pl.program_id(0) * rows, rows)
        found = [written.at[which] for which in range(3)]
        copies = [pltpu.make_async_copy(found[which], d_ref.at[group, :, part], sent.at[which])
                  for which, part in enumerate(lanes)]

    def wait() -> None:
        for copy in copies:
            copy.wait()

    _overlap(units, [prepare, products, softmax, gradients])
    for copy in copies:
        copy.start()
    if copied:
        pl.when(step == steps - 1)(wait)


_SCALE = HEAD_DIM**-0.5 * math.log2(math.e)  # of queries; scores are exponents of 2


def _units(shape: tuple[int, ...]) -> list[_Unit]:
    """The units of a grid step with blocks [rows, S, L], in order."""
    rows, length, lanes = shape
    step = math.gcd(length, 256 if length <= _LONG else LANES)  # queries of a unit
    return [
        _Unit(row, pair, slice(start, start + step), head)
        for row in range(rows) for pair in range(lanes // LANES)
        for start in range(0, length, step) for head in range(2)]


def _overlap(units: Sequence[_Unit], stages: Sequence[Callable[..., Any]]) -> None:
    """Runs every stage of every unit as a pipeline, each stage `_lag` units behind the previous.

    The compiler's scheduler looks for independent work only nearby, and this order puts it there.
    """
    lag = _lag(units)
    result: dict[int, Any] = {}
    for t in range(len(units) + lag * (len(stages) - 1)):
        for n, stage in enumerate(stages):
            i = t - n * lag
            if 0 <= i < len(units):
                result[i] = stage(units[i], result.pop(i)) if n else stage(units[i])


def _lag(units: Sequence[_Unit]) -> int:
    """How many units a stage is behind the previous one: 1 if a step has one row, to save VMEM."""
    return max(1, len(units) // 8) if units[-1].row else 1


def _kept(lines_ref: Any, places: Any, u: _Unit, rate: float) -> jax.Array:
    """Which probabilities dropout keeps: bool [K, Q]."""
    line_1xQ = lines_ref[u.line]
    column_KxQ = jnp.concatenate([places[u.row]] * (line_1xQ.shape[1] // LANES), axis=1)
    return drop.kept(line_1xQ + column_KxQ, rate)


def _dot(a: jax.Array, b: jax.Array, a_dim: int, b_dim: int) -> jax.Array:
    dims = (((a_dim,), (b_dim,)), ((), ()))
    return lax.dot_general(a, b, dims, preferred_element_type=jnp.float32)


def _head(h: int) -> slice:
    return slice(h * HEAD_DIM, (h + 1) * HEAD_DIM)


def _joined(x_SxL: jax.Array, spare_SxL: jax.Array, h: int) -> jax.Array:
    """The lanes of head `h` of `x`, which holds a pair of heads, and the other lanes of `spare`."""
    lane = lax.broadcasted_iota(jnp.int32, (1, LANES), 1)
    mine = lane < HEAD_DIM if h == 0 else lane >= HEAD_DIM
    if x_SxL.dtype == jnp.float32:
        return jnp.where(mine, x_SxL, spare_SxL)
    # As 32-bit words of two bfloat16 each: to select bfloat16, the vector unit would unpack them.
    x, spare = (pltpu.bitcast(y, jnp.int32) for y in (x_SxL, spare_SxL))
    return pltpu.bitcast(jnp.where(mine, x, spare), x_SxL.dtype)


def _column(row_1xS: jax.Array) -> jax.Array:
    """A row [1, S] as a column that is repeated in every lane: [S, 128]."""
    return jnp.broadcast_to(row_1xS, (LANES, row_1xS.shape[1])).T
