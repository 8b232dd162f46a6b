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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.sharding import NamedSharding, PartitionSpec

from bert_jax.heads.base import Batch, Head, Params, inputs_of, mean_vectors
from bert_jax.heads.masked_lm_loss import masked_lm_logits
from bert_jax.heads.pretraining import Predictions, Pretraining
from bert_jax.model.attention import gather_positions
from bert_jax.model.encoder import Bert, Encoder
from bert_jax.model.layers import ModelConfig
from bert_jax.rows.packing import Plan, Planner, Shape, Units, packed_batch, unpack
from bert_jax.runtime import hosts
from bert_jax.runtime.arriving import Pause
from bert_jax.runtime.on_cpu import compiler_options
from bert_jax.runtime.pace import Pace
from bert_jax.runtime.pauses import calling, pause
from bert_jax.sharding import Layout, Mesh, local_rows, to_global

Outputs = dict[str, np.ndarray]
# From parameters and a packed batch to arrays [R, K, ...] by unit or [R, S, ...] by token. Each
# function is compiled once, so callers pass the same (or an equal) object each time.
Function = Callable[[Params, Batch], dict[str, jax.Array]]

# The most tokens of a step per device: more are no faster, and leave the caches of a CPU.
_CPU_TOKENS = 1 << 11
_ACCELERATOR_TOKENS = 1 << 13

Chunk = TypeVar('Chunk')
Made = TypeVar('Made')


@dataclasses.dataclass(frozen=True)
class _Prepared(Generic[Made]):
    """A chunk that is ready to be computed.

    Attributes:
      made: what the caller's `prepare` made of it besides its units.
      units: None if there is nothing to compute.
      steps: the plan of each step and its number in that plan.
    """

    made: Made
    units: Units | None
    steps: Sequence[tuple[Plan, int]]


@dataclasses.dataclass(frozen=True)
class _Step(Generic[Made]):
    """A step that has been dispatched.

    Attributes:
      chunk: what it computes a part of.
      number: of the step in the chunk.
      is_last: whether the chunk has no further step.
      outputs: arrays that the devices may still be computing; None if there is nothing to compute.
    """

    chunk: _Prepared[Made]
    number: int = 0
    is_last: bool = True
    outputs: Any = None


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
            (`model.flops.row_cost`).
          max_steps: steps of a set that are computed; the outputs of the rest are 0. None: all.
        """
        self._mesh = mesh
        self._max_steps = max_steps
        layout = Layout(mesh)
        self._planner = Planner(layout.batch_shards, token_cost)
        # The most tokens of a step, padding included; but each device gets at least one row.
        self._on_cpu = layout.on_cpu
        self._device_tokens = _CPU_TOKENS if layout.on_cpu else _ACCELERATOR_TOKENS
        self.tokens_a_step = self._device_tokens * layout.batch_shards
        self._used: dict[Function, set[Shape]] = collections.defaultdict(set)
        # Every process needs all outputs; a single one just fetches them from its devices.
        whole = NamedSharding(mesh, PartitionSpec()) if jax.process_count() > 1 else None
        self._compiled = functools.cache(functools.partial(
            jax.jit, out_shardings=whole,
            compiler_options=compiler_options() if layout.on_cpu else None))

    def outputs(self, function: Function, params: Params, units: Units) -> Outputs:
        """Outputs of a set, in its order: [n, ...] by unit and [T, ...] by token.

        Prints the progress every ten seconds.
        """
        pace = Pace(every=10)

        def report(share: float) -> None:
            if pace.is_due():
                eta = datetime.timedelta(seconds=round(pace.seconds_left(share, 1 - share)))
                hosts.say(f'predicting: {share:.0%}  eta {eta}')

        sets = self.stream(function, params, [units], lambda x: (None, x), report=report)
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
            return _Prepared(made, units, self._steps(function, units) if units else ())

        def futures() -> Iterator[Future[_Prepared[Made]] | Pause]:
            for chunk in chunks:
                yield chunk if isinstance(chunk, Pause) else pool.submit(ready, chunk)

        def steps() -> Iterator[_Step[Made] | Pause]:
            for future in _one_behind(futures()):
                if isinstance(future, Pause):
                    yield future
                    continue
                prepared = future.result()
                units = prepared.units
                if not units:
                    yield _Step(prepared)
                    continue
                last = len(prepared.steps) - 1
                for number, (plan, step) in enumerate(prepared.steps):
                    pause()
                    compute = functools.partial(compiled, params, self._batch(units, plan, step))
                    outputs = compute() if step else calling(compute)  # the first compiles
                    yield _Step(prepared, number, number == last, outputs)

        collected: Outputs = {}
        try:
            # Wait for a step only after the next is dispatched: devices always have work.
            for step in _one_behind(steps()):
                if isinstance(step, Pause):
                    continue
                units = step.chunk.units
                if units:
                    plan, number = step.chunk.steps[step.number]
                    unpack(units, plan, number, jax.device_get(step.outputs), collected)
                    report((step.number + 1) / len(step.chunk.steps))
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

    def _steps(self, function: Function, units: Units) -> list[tuple[Plan, int]]:
        """Packs units, into compiled shapes unless new ones are clearly better."""
        used = self._used[function]
        wanted = (units.lengths, self._device_tokens, frozenset(used))
        # Long rows cost a CPU much; other devices compute them in kernels that want long ones.
        plans = self._planner.by_length(*wanted) if self._on_cpu else [self._planner.once(*wanted)]
        steps = [(plan, step) for plan in plans for step in range(len(plan.units))]
        steps = steps[: self._max_steps]
        for plan, _ in steps:
            used.update(plan.shapes)
        return steps


# Binds a function's first arguments; equal arguments give the same object.
bound: Callable[..., Function] = functools.cache(functools.partial)


def _encode(config: ModelConfig, params: Params, batch: Batch, **wanted: Any) -> Any:
    """The outputs of `Bert` for a packed batch."""
    bert = Bert(config, pooled='cls_positions_BxK' in wanted)
    return bert.apply({'params': params['bert']}, *inputs_of(batch, None), **wanted)


def outputs_by_head(
    heads: tuple[Head, ...], params: tuple[Params, ...], batch: Batch
) -> dict[str, jax.Array]:
    """The outputs of several heads, from one pass of their encoder.

    Args:
      heads: whose modules are of one class, on encoders with the same options.
      params: of each head's model; all that is before the pooler is the same in all of them.
      batch: as for any `Function`.

    Returns:
      The outputs of head i by 'i/NAME'.
    """
    layers: list[Any] = []

    def once(compute: Any, args: Any, kwargs: Any, context: Any) -> Any:
        if not isinstance(context.module, Encoder) or context.method_name != '__call__':
            return compute(*args, **kwargs)
        if not layers:
            layers.append(compute(*args, **kwargs))
        return layers[0]

    outputs: dict[str, jax.Array] = {}
    with nn.intercept_methods(once):
        for i, (head, of_head) in enumerate(zip(heads, params, strict=True)):
            found = head.outputs(of_head, batch)
            outputs |= {f'{i}/{name}': x for name, x in found.items()}
    return outputs


def predicted_tokens(config: ModelConfig, params: Params, x_RxKxH: jax.Array) -> jax.Array:
    """Masked-LM logits [R, K, V] from hidden states [R, K, H]."""
    predictions = Predictions(config).bind({'params': params['cls']['predictions']})
    hidden, bias = predictions(x_RxKxH)
    table = predictions.output_table(params['bert']['embeddings']['word_embeddings'])
    return masked_lm_logits((hidden, table.astype(config.dtype), bias))


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


def first_left(batch: Batch, num_left_out: int) -> jax.Array:
    """The places [R, K] of each unit's first token behind those that are left out.

    That is its [CLS] if it has no more, as where a prompt fills it: behind it are other units.
    """
    places_RxK = batch['cls_positions'] + num_left_out
    position_ids_RxS = batch['position_ids']
    last = position_ids_RxS.shape[1] - 1
    found_RxK = jnp.take_along_axis(position_ids_RxS, jnp.minimum(places_RxK, last), axis=1)
    return jnp.where(found_RxK == num_left_out, places_RxK, batch['cls_positions'])


def vectors(
    config: ModelConfig, layer: int, pool: str, num_left_out: int, params: Params, batch: Batch
) -> dict[str, jax.Array]:
    """`vectors` [R, K, H] float32 of each unit.

    Args:
      config, layer, params, batch: as for `hidden_states`.
      pool: 'mean' or 'max' over all tokens, [CLS] and [SEP] among them, or 'cls'.
      num_left_out: tokens at the beginning of each unit that are not pooled; 'cls' is then the
        first token behind them.
    """
    x_RxSxH = hidden_states(config, (layer,), params, batch)['values'][:, :, 0]
    if pool == 'cls':
        firsts_RxK = first_left(batch, num_left_out)
        return {'vectors': gather_positions(x_RxSxH, firsts_RxK)}
    mask_RxS = jnp.where(batch['position_ids'] >= num_left_out, batch['sequence_ids'], 0)
    if pool == 'mean':
        return {'vectors': mean_vectors(x_RxSxH, {**batch, 'sequence_ids': mask_RxS})}
    maxima_KxRxH = jax.lax.map(  # one unit of each row at a time: [R, K, S, H] would be large
        lambda k: jnp.max(jnp.where((mask_RxS == k)[..., None], x_RxSxH, -jnp.inf), axis=1),
        jnp.arange(1, batch['cls_positions'].shape[1] + 1))
    return {'vectors': maxima_KxRxH.swapaxes(0, 1)}
