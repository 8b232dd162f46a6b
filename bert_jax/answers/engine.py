"""Inference on packed rows: the engine, from tokenized units to outputs, and its functions.

Units are packed into rows of a few shapes, and rows into steps on all devices of a mesh. The host
tokenizes and packs the next steps while the devices compute.

A function computes a packed batch (`rows.packing`). The functions of the encoder and of the
pre-training heads are here; the engine takes them as `bound(masked_lm_top, config, 5)`. The
function of another head is its method `outputs`.

    R: rows, S: row length, K: units a row, H: hidden_size, V: padded vocabulary, n: units of a set,
    T: their tokens
"""

import collections
import concurrent.futures
import dataclasses
import datetime
import functools
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from bert_jax.heads.base import Batch, Params, inputs_of, mean_vectors
from bert_jax.heads.masked_lm_loss import masked_lm_logits
from bert_jax.heads.pretraining import Predictions, Pretraining
from bert_jax.model.attention import gather_positions
from bert_jax.model.encoder import Bert
from bert_jax.model.layers import ModelConfig
from bert_jax.rows.packing import Plan, Units, pack_whole, packed_batch, plan_once, unpack
from bert_jax.runtime import hosts
from bert_jax.runtime.arriving import Pause
from bert_jax.runtime.pauses import calling, pause
from bert_jax.sharding import Layout, Mesh, local_rows, to_global

Outputs = dict[str, np.ndarray]
# From parameters and a packed batch to arrays [R, K, ...] by unit or [R, S, ...] by token. Each
# function is compiled once, so callers pass the same (or an equal) object each time.
Function = Callable[[Params, Batch], dict[str, jax.Array]]

# The most tokens of a step per device: more are no faster, and leave the caches of a CPU.
_CPU_TOKENS = 1 << 11
_ACCELERATOR_TOKENS = 1 << 13
_ROW_STEP = 64  # row lengths are multiples of it
_SHARED_ROWS = (256, 512)  # lengths of rows that several units share
# A new shape is compiled if the compiled ones cost more than this factor of its own cost plus this
# share of a full step's.
_NEW_SHAPE = 1.05
_NEW_SHAPE_STEPS = 0.5
_STEP_COST = 1 / 16  # fixed cost of any step, as a share of a full one

Chunk = TypeVar('Chunk')
Made = TypeVar('Made')


class Shape(NamedTuple):
    """The shape of a compiled program: R, S and K."""

    rows: int
    row_length: int
    units_a_row: int


class _Packing(NamedTuple):
    """A way to compute a set of units: what its steps cost, their shape, and units' rows [n]."""

    cost: float
    shape: Shape
    rows_n: np.ndarray


@dataclasses.dataclass(frozen=True)
class _Prepared(Generic[Made]):
    """A chunk that is ready to be computed.

    Attributes:
      made: what the caller's `prepare` made of it beside its units.
      units, plan: None if there is nothing to compute.
    """

    made: Made
    units: Units | None
    plan: Plan | None


@dataclasses.dataclass(frozen=True)
class _Step(Generic[Made]):
    """A step that has been dispatched.

    Attributes:
      chunk: what it computes a part of.
      number: of the step in the chunk's plan.
      is_last: whether the chunk has no further step.
      outputs: arrays that the devices may still be computing; None if there is nothing to compute.
    """

    chunk: _Prepared[Made]
    number: int = 0
    is_last: bool = True
    outputs: Any = None


class _Progress:
    """Prints how much of a set is predicted, every ten seconds."""

    def __init__(self) -> None:
        self._started = self._printed = time.monotonic()

    def report(self, share: float) -> None:
        """Takes the share of the set that is finished."""
        now = time.monotonic()
        if now - self._printed <= 10:
            return
        self._printed = now
        seconds_left = (now - self._started) * (1 / share - 1)
        eta = datetime.timedelta(seconds=round(seconds_left))
        hosts.say(f'predicting: {share:.0%}  eta {eta}')


def _one_behind(items: Iterable[Made | Pause]) -> Iterator[Made | Pause]:
    """Yields the items, each only after the next one has been started, or before a pause."""
    waiting: collections.deque[Made] = collections.deque()
    for item in items:
        if isinstance(item, Pause):
            yield from waiting
            waiting.clear()
            yield item
            continue
        waiting.append(item)
        if len(waiting) > 1:
            yield waiting.popleft()
    yield from waiting


class Engine:
    """Runs functions over units, on all devices of a mesh.

    In a run of several processes, all call it with the same units, and each gets all outputs.
    """

    def __init__(
        self, mesh: Mesh, *, token_cost: Callable[[int], float], max_steps: int | None = None
    ):
        """Creates an engine; nothing is compiled yet.

        Args:
          mesh: its data and fsdp axes split the rows.
          token_cost: cost of a token in a row of a given length, to choose row lengths by
            (`model.flops.token_flops`).
          max_steps: steps of a set that are computed; the outputs of the rest are 0. None: all.
        """
        self._mesh = mesh
        self._token_cost = token_cost
        self._max_steps = max_steps
        layout = Layout(mesh)
        self._shards = layout.batch_shards
        # The most tokens of a step, padding included; but each device gets at least one row.
        self._device_tokens = _CPU_TOKENS if layout.on_cpu else _ACCELERATOR_TOKENS
        self.tokens_a_step = self._device_tokens * self._shards
        self._used: dict[Function, set[Shape]] = collections.defaultdict(set)
        # Every process needs all outputs; a single one just fetches them from its devices.
        whole = NamedSharding(mesh, PartitionSpec()) if jax.process_count() > 1 else None
        self._compiled = functools.cache(functools.partial(jax.jit, out_shardings=whole))

    def outputs(self, function: Function, params: Params, units: Units) -> Outputs:
        """Outputs of a set, in its order: [n, ...] by unit and [T, ...] by token.

        Prints the progress every ten seconds.
        """
        sets = self.stream(
            function, params, [units], lambda x: (None, x), report=_Progress().report)
        ((_, outputs),) = sets
        return outputs

    def stream(
        self, function: Function, params: Params, chunks: Iterable[Chunk | Pause],
        prepare: Callable[[Chunk], tuple[Made, Units | None]], *,
        report: Callable[[float], None] = lambda share: None,
    ) -> Iterator[tuple[Made, Outputs]]:
        """Yields outputs chunk by chunk, in order, with a few chunks in memory.

        Args:
          function: computes packed batches.
          params: on the mesh.
          chunks: taken one by one in the caller's thread, a few ahead. The outputs of those before
            a `PAUSE` are yielded before the next is taken.
          prepare: makes (anything, units) of a chunk, for example by tokenizing, in another thread.
            The first is yielded with the outputs; the second is None if the chunk has no units.
          report: called after each step with the finished share of the chunk's steps.

        Raises:
          The exceptions of `chunks` and `prepare`.
          Interrupted: a run that predicts has to stop.
        """
        compiled = self._compiled(function)
        pool = concurrent.futures.ThreadPoolExecutor(1, 'units')

        def ready(chunk: Chunk) -> _Prepared[Made]:
            made, units = prepare(chunk)
            plan = self._plan(function, units) if units else None
            return _Prepared(made, units, plan)

        def futures() -> Iterator[Future[_Prepared[Made]] | Pause]:
            for chunk in chunks:
                yield chunk if isinstance(chunk, Pause) else pool.submit(ready, chunk)

        def steps() -> Iterator[_Step[Made] | Pause]:
            for future in _one_behind(futures()):
                if isinstance(future, Pause):
                    yield future
                    continue
                prepared = future.result()
                units, plan = prepared.units, prepared.plan
                if not units or not plan:
                    yield _Step(prepared)
                    continue
                num_steps = len(plan.units)
                for step in range(num_steps):
                    pause()
                    compute = functools.partial(compiled, params, self._batch(units, plan, step))
                    outputs = compute() if step else calling(compute)  # the first compiles
                    yield _Step(prepared, step, step == num_steps - 1, outputs)

        collected: Outputs = {}
        try:
            # Wait for a step only after the next is dispatched: devices always have work.
            for step in _one_behind(steps()):
                if isinstance(step, Pause):
                    continue
                units, plan = step.chunk.units, step.chunk.plan
                if units and plan:
                    unpack(units, plan, step.number, jax.device_get(step.outputs), collected)
                    report((step.number + 1) / len(plan.units))
                if step.is_last:
                    yield step.chunk.made, collected
                    collected = {}
        finally:  # also if the caller stops early or an error occurs
            pool.shutdown(cancel_futures=True)

    def _batch(self, units: Units, plan: Plan, step: int) -> Mapping[str, Any]:
        num_rows = int(plan.num_rows[step])
        local = local_rows(self._mesh, num_rows)
        batch = packed_batch(units, plan, step, local)
        del batch['unit_index'], batch['unit_weights']  # only losses need them
        if self._mesh.size == 1:  # jax moves host arrays to the parameters' device
            return batch
        return to_global(self._mesh, batch, num_rows, local)

    def _plan(self, function: Function, units: Units) -> Plan:
        """Packs units, into a compiled shape unless a new one is clearly better."""
        lengths = units.lengths
        compiled = frozenset(self._used[function])
        packings: list[_Packing] = []
        for row_length in _row_lengths(lengths, compiled):
            packings += self._packings(lengths, row_length, compiled)
        best = min(packings, key=lambda packing: (packing.cost, packing.shape))
        self._used[function].add(best.shape)
        plan = plan_once(
            lengths, best.rows_n, row_length=best.shape.row_length, rows_a_step=best.shape.rows,
            units_a_row=best.shape.units_a_row)
        return dataclasses.replace(plan, units=plan.units[: self._max_steps])

    def _packings(
        self, lengths: np.ndarray, row_length: int, compiled: Collection[Shape]
    ) -> list[_Packing]:
        """The ways to compute units in rows of one length: in compiled shapes and in a new one."""
        rows_n = pack_whole(lengths, row_length)
        num_rows = int(rows_n.max()) + 1
        units_a_row = int(np.bincount(rows_n).max())
        shapes = {
            shape for shape in compiled
            if shape.row_length == row_length and shape.units_a_row >= units_a_row}
        shapes.add(Shape(self._rows_a_step(num_rows, row_length), row_length,
                         1 << (units_a_row - 1).bit_length()))
        return [
            _Packing(self._cost(shape, num_rows, shape in compiled), shape, rows_n)
            for shape in sorted(shapes)]

    def _rows_a_step(self, num_rows: int, row_length: int) -> int:
        """Rows of a step: spread evenly over the fewest steps, and a multiple of the shards."""
        most = max(1, self._device_tokens // row_length) * self._shards
        num_steps = math.ceil(num_rows / most)
        return math.ceil(num_rows / (num_steps * self._shards)) * self._shards

    def _cost(self, shape: Shape, num_rows: int, is_compiled: bool) -> float:
        """The cost of computing `num_rows` rows in a shape, in units of `token_cost`."""
        full_step = self.tokens_a_step * self._token_cost(_SHARED_ROWS[0])
        work = shape.rows * shape.row_length * self._token_cost(shape.row_length)
        num_steps = math.ceil(num_rows / shape.rows)
        cost = num_steps * (work + _STEP_COST * full_step)
        return cost if is_compiled else cost * _NEW_SHAPE + _NEW_SHAPE_STEPS * full_step


def _row_lengths(lengths: np.ndarray, compiled: Iterable[Shape]) -> list[int]:
    """Row lengths to choose from: that of the longest unit, shared ones, and compiled ones."""
    if lengths.sum() <= _ROW_STEP:
        return [_ROW_STEP]
    longest = int(lengths.max())
    known = {*_SHARED_ROWS, *(shape.row_length for shape in compiled)}
    fitting = {row_length for row_length in known if row_length >= longest}
    fitting.add(math.ceil(longest / _ROW_STEP) * _ROW_STEP)
    return sorted(fitting)


# Binds a function's first arguments; equal arguments give the same object.
bound: Callable[..., Function] = functools.cache(functools.partial)


def _encode(config: ModelConfig, params: Params, batch: Batch, **wanted: Any) -> Any:
    """What `Bert` returns for a packed batch."""
    bert = Bert(config, pooled='cls_positions_BxK' in wanted)
    return bert.apply({'params': params['bert']}, *inputs_of(batch, None), **wanted)


def predicted_tokens(config: ModelConfig, params: Params, x_RxKxH: jax.Array) -> jax.Array:
    """Masked-LM logits [R, K, V] from hidden states [R, K, H]."""
    output: Any = Predictions(config).apply({'params': params['cls']['predictions']}, x_RxKxH)
    table = params['bert']['embeddings']['word_embeddings'].astype(config.dtype)
    return masked_lm_logits((output[0], table, output[1]))


def _masked_lm(config: ModelConfig, params: Params, batch: Batch) -> jax.Array:
    """Logits [R, K, V] at `masked_positions`; the last layer computes only these."""
    x = _encode(config, params, batch, wanted_BxP=batch['masked_positions'])
    return predicted_tokens(config, params, x['sequence_output'])


def masked_lm_top(
    config: ModelConfig, num: int, params: Params, batch: Batch
) -> dict[str, jax.Array]:
    """`probabilities` and `ids` [R, K, num] of the likeliest tokens at `masked_positions`."""
    logits = _masked_lm(config, params, batch)
    probabilities, ids = jax.lax.top_k(jax.nn.softmax(logits), num)
    return {'probabilities': probabilities, 'ids': ids}


def masked_lm_log_probability(
    config: ModelConfig, params: Params, batch: Batch
) -> dict[str, jax.Array]:
    """`log_probability` [R, K] of the token `targets` at `masked_positions`."""
    logits = _masked_lm(config, params, batch)
    wanted = jnp.take_along_axis(logits, batch['targets'][..., None], axis=-1)[..., 0]
    return {'log_probability': wanted - jax.nn.logsumexp(logits, axis=-1)}


def next_sentence(config: ModelConfig, params: Params, batch: Batch) -> dict[str, jax.Array]:
    """`logits` [R, K, 2]; class 0: the second text follows. The last layer computes [CLS] only."""
    cls_RxK = batch['cls_positions']
    query_index_RxK = jnp.broadcast_to(jnp.arange(cls_RxK.shape[1]), cls_RxK.shape)
    head = Pretraining(config)
    x = _encode(
        head.module.config, params, batch, cls_positions_BxK=query_index_RxK, wanted_BxP=cls_RxK)
    return {'logits': head.apply_layer(params, 'cls/seq_relationship', x['pooled_output'])}


def hidden_states(
    config: ModelConfig, layers: tuple[int, ...], params: Params, batch: Batch
) -> dict[str, jax.Array]:
    """`values` [R, S, layers, H] float32.

    Args:
      config: of the model.
      layers: counted from the top: -1 is the last layer, -num_layers the first, and
        -num_layers - 1 the embeddings.
      params, batch: as for any `Function`.
    """
    outputs = _encode(config, params, batch)
    states = (outputs['embedding_output'], *outputs['layers'])
    return {'values': jnp.stack([states[i] for i in layers], axis=2).astype(jnp.float32)}


def vectors(
    config: ModelConfig, layer: int, pool: str, num_left_out: int, params: Params, batch: Batch
) -> dict[str, jax.Array]:
    """`vectors` [R, K, H] float32 of each unit.

    Args:
      config, layer, params, batch: as for `hidden_states`.
      pool: 'mean' or 'max' over all tokens, [CLS] and [SEP] among them, or 'cls'.
      num_left_out: tokens at the beginning of each unit that are not pooled.
    """
    x_RxSxH = hidden_states(config, (layer,), params, batch)['values'][:, :, 0]
    if pool == 'cls':
        return {'vectors': gather_positions(x_RxSxH, batch['cls_positions'])}
    mask_RxS = jnp.where(batch['position_ids'] >= num_left_out, batch['sequence_ids'], 0)
    if pool == 'mean':
        return {'vectors': mean_vectors(x_RxSxH, {**batch, 'sequence_ids': mask_RxS})}
    maxima_KxRxH = jax.lax.map(  # one unit of each row at a time: [R, K, S, H] would be large
        lambda k: jnp.max(jnp.where((mask_RxS == k)[..., None], x_RxSxH, -jnp.inf), axis=1),
        jnp.arange(1, batch['cls_positions'].shape[1] + 1))
    return {'vectors': maxima_KxRxH.swapaxes(0, 1)}
