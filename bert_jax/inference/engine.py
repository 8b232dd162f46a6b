"""Inference on packed rows: the engine, from tokenized units to outputs, and its functions.

Units are packed into rows of a few shapes, and rows into steps on all devices of a mesh. The host
tokenizes and packs the next steps while the devices compute.

A function computes a packed batch (`data.packing`). The functions of the encoder and of the
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
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from bert_jax.data.packing import Plan, Units, pack_whole, packed_batch, plan_once, unpack
from bert_jax.heads.base import Batch, Params, inputs_of, mean_vectors
from bert_jax.heads.masked_lm_loss import masked_lm_logits
from bert_jax.heads.pretraining import Predictions, Pretraining
from bert_jax.model.attention import gather_positions
from bert_jax.model.encoder import Bert
from bert_jax.model.layers import ModelConfig
from bert_jax.runtime import hosts
from bert_jax.sharding import Layout, Mesh, local_rows, to_global

Outputs = dict[str, np.ndarray]
# From parameters and a packed batch to arrays [R, K, ...] by unit or [R, S, ...] by token. Each
# function is compiled once, so callers pass the same (or an equal) object each time.
Function = Callable[[Params, Batch], dict[str, jax.Array]]

# The most tokens of a step per device; more are not faster.
_CPU_TOKENS = 1 << 12
_ACCELERATOR_TOKENS = 1 << 13
_ROW_STEP = 64  # row lengths are multiples of it
_SHARED_ROWS = (256, 512)  # lengths of rows that several units share
# A new shape is compiled if the compiled ones cost more than this factor of its own cost plus this
# share of a full step's.
_NEW_SHAPE, _NEW_SHAPE_STEPS = 1.05, 0.5
_STEP_COST = 1 / 16  # fixed cost of any step, as a share of a full one

Chunk = TypeVar('Chunk')
Made = TypeVar('Made')


class Shape(NamedTuple):
    """The shape of a compiled program: R, S and K."""

    rows: int
    row_length: int
    units_a_row: int


def _ahead(items: Iterable[Made]) -> Iterator[Made]:
    """Yields the items, each only after the next one has been started."""
    waiting: collections.deque[Made] = collections.deque()
    for item in items:
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
        self._mesh, self._token_cost, self._max_steps = mesh, token_cost, max_steps
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
        started = shown = time.monotonic()

        def report(share: float) -> None:
            nonlocal shown
            now = time.monotonic()
            if now - shown > 10:
                shown = now
                left = datetime.timedelta(seconds=round((now - started) * (1 / share - 1)))
                hosts.say(f'predicting: {share:.0%}  eta {left}')

        ((_, outputs),) = self.stream(function, params, [units], lambda x: (None, x), report=report)
        return outputs

    def stream(
        self, function: Function, params: Params, chunks: Iterable[Chunk],
        prepare: Callable[[Chunk], tuple[Made, Units | None]], *,
        report: Callable[[float], None] = lambda share: None,
    ) -> Iterator[tuple[Made, Outputs]]:
        """Yields outputs chunk by chunk, in order, with a few chunks in memory.

        Args:
          function: computes packed batches.
          params: on the mesh.
          chunks: taken one by one in the caller's thread, a few ahead.
          prepare: makes (anything, units) of a chunk, for example by tokenizing, in another thread.
            The first is yielded with the outputs; the second is None if the chunk has no units.
          report: called after each step with the finished share of the chunk's steps.

        Raises:
          The exceptions of `chunks` and `prepare`.
        """
        compiled = self._compiled(function)
        pool = concurrent.futures.ThreadPoolExecutor(1, 'units')

        def ready(chunk: Chunk) -> tuple[Made, Units | None, Plan | None]:
            made, units = prepare(chunk)
            return made, units, self._plan(function, units) if units else None

        def steps() -> Iterator[tuple[Made, Units | None, Plan | None, int, Any]]:
            futures = (pool.submit(ready, chunk) for chunk in chunks)
            for made, units, plan in (future.result() for future in _ahead(futures)):
                if not units or not plan:
                    yield made, None, None, 0, None
                    continue
                for step in range(len(plan.units)):
                    yield made, units, plan, step, compiled(params, self._batch(units, plan, step))

        collected: Outputs = {}
        try:
            # Wait for a step only after the next is dispatched: devices always have work.
            for made, units, plan, step, outputs in _ahead(steps()):
                if units and plan:
                    unpack(units, plan, step, jax.device_get(outputs), collected)
                    report((step + 1) / len(plan.units))
                if plan is None or step == len(plan.units) - 1:
                    yield made, collected
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
        lengths, used = units.lengths, frozenset(self._used[function])
        longest = int(lengths.max())
        full = self.tokens_a_step * self._token_cost(_SHARED_ROWS[0])
        result: list[tuple[float, Shape, np.ndarray]] = []
        fitting = {shape.row_length for shape in used} | set(_SHARED_ROWS)
        fitting = {s for s in fitting if s >= longest} | {-(-longest // _ROW_STEP) * _ROW_STEP}
        for row_length in sorted(fitting if lengths.sum() > _ROW_STEP else {_ROW_STEP}):
            rows_n = pack_whole(lengths, row_length)
            num_rows, units_a_row = int(rows_n.max()) + 1, int(np.bincount(rows_n).max())
            # Rows of a step: spread evenly over the fewest steps, and a multiple of the shards.
            most = max(1, self._device_tokens // row_length) * self._shards
            num_steps = -(-num_rows // most)
            even = -(-num_rows // (num_steps * self._shards)) * self._shards
            new = Shape(even, row_length, 1 << (units_a_row - 1).bit_length())
            known = {s for s in used if s.row_length == row_length and s.units_a_row >= units_a_row}
            for shape in sorted({new, *known}):
                work = shape.rows * row_length * self._token_cost(row_length)
                cost = -(-num_rows // shape.rows) * (work + _STEP_COST * full)
                if shape not in used:
                    cost = cost * _NEW_SHAPE + _NEW_SHAPE_STEPS * full
                result.append((cost, shape, rows_n))
        _, shape, rows_n = min(result, key=lambda candidate: candidate[:2])
        self._used[function].add(shape)
        plan = plan_once(
            lengths, rows_n, row_length=shape.row_length, rows_a_step=shape.rows,
            units_a_row=shape.units_a_row)
        return dataclasses.replace(plan, units=plan.units[: self._max_steps])


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
    among_RxK = jnp.broadcast_to(jnp.arange(cls_RxK.shape[1]), cls_RxK.shape)
    x = _encode(config, params, batch, cls_positions_BxK=among_RxK, wanted_BxP=cls_RxK)
    head = Pretraining(config)
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
