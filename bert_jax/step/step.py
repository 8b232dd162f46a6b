"""The state of a run, initialised in shards, and the pure train and evaluation steps."""

import collections
import functools
import math
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.kernels.dropout import dropout_keys
from bert_jax.model.layers import Names, Parameter, declared_parameters, path_names
from bert_jax.model.trainable import Batch, Params, Trainable
from bert_jax.runtime.on_cpu import compiler_options
from bert_jax.runtime.pauses import calling, pause
from bert_jax.sharding import LEAST_SPLIT, Layout, tree_shardings
from bert_jax.step.gradients import global_gradient
from bert_jax.step.schedules import Schedule

# The TPU compiler makes reduce-scatters asynchronous only in parts that it fuses with computation.
_ASYNC_SUMS = {
    'xla_tpu_decompose_every_reduce_scatters_hlos': True,
    'xla_enable_async_reduce_scatter_fusion': True,
    'xla_tpu_enable_async_collective_fusion_fuse_reduce_scatter': True,
}
# These fusions take more of the on-chip memory than it gives by default, where there is more.
_LARGE_VMEM = {'xla_tpu_scoped_vmem_limit_kib': 32768}


@flax.struct.dataclass
class TrainState:
    """`step` counts finished updates (int32 scalar)."""

    step: jax.Array
    params: Any
    opt_state: Any


class StepInputs(NamedTuple):
    """Arguments of the train step that may differ between runs that share one compiled step."""

    seed: Any  # of dropout, uint32
    learning_rates: Any  # [segments of the schedule] float32


TrainStep = Callable[[TrainState, StepInputs, Batch], tuple[TrainState, dict[str, jax.Array]]]
EvalStep = Callable[[Params, Batch], dict[str, jax.Array]]


@functools.lru_cache(maxsize=8)  # tracing all layers takes seconds
def _boxed_shapes(head: Trainable) -> Any:
    return jax.eval_shape(lambda: head.init(jax.random.key(0)))


def parameters_of(head: Trainable) -> dict[Names, Parameter]:
    """The declaration of each parameter, by path."""
    return declared_parameters(_boxed_shapes(head))


def _boxed_state(params: Any, optimizer: optax.GradientTransformation) -> TrainState:
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))


def abstract_state(
    head: Trainable, optimizer: optax.GradientTransformation, mesh: Mesh
) -> TrainState:
    """Shapes, dtypes and shardings of the state (jax.ShapeDtypeStruct leaves)."""
    boxed = jax.eval_shape(lambda p: _boxed_state(p, optimizer), _boxed_shapes(head))
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        nn.meta.unbox(boxed),
        tree_shardings(mesh, boxed))


def make_init(
    head: Trainable, optimizer: optax.GradientTransformation, mesh: Mesh
) -> Callable[[int], TrainState]:
    """The function from a seed to a fresh state, each shard initialised on its own device.

    The values do not depend on the mesh.
    """

    def init(seed: jax.Array) -> TrainState:
        return nn.meta.unbox(_boxed_state(head.init(jax.random.key(seed)), optimizer))

    abstract = abstract_state(head, optimizer, mesh)
    jitted = jax.jit(init, out_shardings=jax.tree.map(lambda x: x.sharding, abstract))
    return lambda seed: jitted(jnp.int32(seed))


def num_unpadded(head: Trainable, without: Collection[Names] = ()) -> int:
    """Number of a head's parameters, with the encoder's, without padding of the vocabulary.

    Args:
      head: whose.
      without: the paths of parameters that do not count.
    """
    vocab_size = head.config.vocab_size
    total = 0
    for path, parameter in parameters_of(head).items():
        if path in without:
            continue
        sizes = zip(parameter.names, parameter.value.shape, strict=True)
        total += math.prod(vocab_size if name == 'vocab' else size for name, size in sizes)
    return total


def global_norm(tree: Any) -> jax.Array:
    """The Euclidean norm of all elements of a tree.

    The squares of small arrays of one shape are added first: Base has 120 small arrays, and for
    each a TPU takes far longer to start a sum than to compute it.
    """
    squares: dict[Any, jax.Array] = {}
    for i, x in enumerate(jax.tree.leaves(tree)):
        key = x.shape if x.size < LEAST_SPLIT else i
        squares[key] = squares.get(key, 0) + jnp.square(x)
    return jnp.sqrt(sum(map(jnp.sum, squares.values())))


def _without_frozen(grads: Any, frozen: Collection[Names]) -> Any:
    """The gradients, with zeros for parameters that are not trained."""
    def zero_if_frozen(path: Any, gradient: jax.Array) -> jax.Array:
        if path_names(path) in frozen:
            return jnp.zeros_like(gradient)
        return gradient

    return jax.tree_util.tree_map_with_path(zero_if_frozen, grads)


def make_train_step(
    head: Trainable,
    optimizer_of: Callable[[Any], tuple[optax.GradientTransformation, Schedule]],
    abstract: TrainState,
    mesh: Mesh,
    *,
    clip_norm: float,
    frozen: Collection[Names] = (),
    accumulation_steps: int = 1,
    message_dtype: str = 'float32',
    async_sums: bool = False,
) -> TrainStep:
    """The jitted (state, inputs, batch) -> (state, metrics); the state is donated.

    Metrics: the head's sums, `loss`, `grad_norm` (before clipping), `learning_rate`.

    Args:
      head: what is trained.
      optimizer_of: a function from `StepInputs.learning_rates` to the optimizer and its schedule.
      abstract: shapes and shardings of the state.
      mesh: where it runs.
      clip_norm: largest global norm of the gradient of the global batch; 0: not clipped.
      frozen: parameters that are not trained and do not count in that norm.
      accumulation_steps: number of parts in which a batch is computed; the result is the same.
      message_dtype: see `global_gradient`.
      async_sums: on TPUs, gradients are summed while others are computed.
    """
    layout = Layout(mesh)
    # Output shardings are fixed: if they changed, the second step would be compiled again.
    kept = jax.tree.map(lambda x: x.sharding, abstract)

    def train_step(
        state: TrainState, inputs: StepInputs, batch: Batch
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        optimizer, schedule = optimizer_of(inputs.learning_rates)
        batch_size = next(iter(batch.values())).shape[0]
        rows_B = jnp.arange(batch_size, dtype=jnp.uint32)
        dropout_keys_Bx2 = dropout_keys(inputs.seed, state.step, rows_B)
        grads, loss, sums = global_gradient(
            head, state.params, batch, layout(dropout_keys_Bx2, 'batch', None), accumulation_steps,
            mesh, kept.params, message_dtype)
        grads = _without_frozen(grads, frozen)
        norm = global_norm(grads)
        if clip_norm:
            scale = clip_norm / jnp.maximum(norm, clip_norm)
            grads = jax.tree.map(lambda g: g * scale, grads)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = dict(sums)
        metrics['loss'] = loss
        metrics['grad_norm'] = norm
        metrics['learning_rate'] = schedule(state.step)
        return TrainState(state.step + 1, params, opt_state), metrics

    replicated = NamedSharding(mesh, PartitionSpec())
    options = None
    if async_sums and layout.platform == 'tpu':
        options = _ASYNC_SUMS | (_LARGE_VMEM if layout.has_large_vmem else {})
    return jax.jit(
        train_step, donate_argnums=0, out_shardings=(kept, replicated), compiler_options=options)


def make_eval_step(head: Trainable, mesh: Mesh) -> EvalStep:
    """The jitted (params, batch) -> metric sums, without dropout.

    It cannot be called inside another `jax.jit`: on CPUs it has options of the compiler.
    """

    def eval_step(params: Params, batch: Batch) -> dict[str, jax.Array]:
        _, sums = head.loss(params, batch, head.totals(batch), None)
        return dict(sums)

    return jax.jit(
        eval_step, out_shardings=NamedSharding(mesh, PartitionSpec()),
        compiler_options=compiler_options() if Layout(mesh).on_cpu else None)


def evaluate(
    head: Trainable, eval_step: EvalStep, params: Any, batches: Iterable[Batch]
) -> dict[str, float]:
    """The head's metrics over all batches; rows of weight 0 do not count.

    Sums are accumulated in float64, so that the number of batches does not affect the result.

    Raises:
      Interrupted: the run has to stop.
    """
    totals: dict[str, float] = collections.defaultdict(float)
    last: dict[str, jax.Array] = {}

    def add(sums: dict[str, jax.Array]) -> None:
        for name, value in jax.device_get(sums).items():
            totals[name] += float(value)

    for batch in batches:
        pause()
        before = last
        if not before:
            last = calling(functools.partial(eval_step, params, batch))  # the first compiles
        else:
            last = eval_step(params, batch)
        add(before)  # one batch late, so that the device always has work
    add(last)
    return head.score(dict(totals))
