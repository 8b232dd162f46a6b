"""The state of a run, initialised in shards, and the pure train and evaluation steps.

    B: batch rows, A: accumulation steps
"""

import collections
import functools
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.heads.base import Batch, Head, Params, Sums
from bert_jax.model.dropout import dropout_rows
from bert_jax.model.layers import Names, Parameter, declared_parameters, path_names
from bert_jax.runtime.errors import Diverged
from bert_jax.sharding import BATCH_AXES, LEAST_SPLIT, UPDATE_AXES, Layout, tree_shardings
from bert_jax.train.optimizers import Schedule


@flax.struct.dataclass
class TrainState:
    """`step` counts finished updates (int32 scalar)."""

    step: jax.Array
    params: Any
    opt_state: Any


TrainStep = Callable[[TrainState, Batch], tuple[TrainState, dict[str, jax.Array]]]
EvalStep = Callable[[Params, Batch], dict[str, jax.Array]]

# Columns and rows of a bfloat16 tile: TPUs lay out the last two dims of an array in tiles.
_LANES, _SUBLANES = 128, 16


class StepInputs(NamedTuple):
    """Arguments of the train step that may differ between runs that share one compiled step."""

    seed: Any  # of dropout, uint32
    learning_rates: Any  # [segments of the schedule] float32


@functools.lru_cache(maxsize=8)  # tracing all layers takes seconds
def _boxed_shapes(objective: Head) -> Any:
    return jax.eval_shape(lambda: objective.init(jax.random.key(0)))


def parameters_of(objective: Head) -> dict[Names, Parameter]:
    """The declaration of each parameter, by path."""
    return declared_parameters(_boxed_shapes(objective))


def _boxed_state(params: Any, optimizer: optax.GradientTransformation) -> TrainState:
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))


def abstract_state(
    objective: Head, optimizer: optax.GradientTransformation, mesh: Mesh
) -> TrainState:
    """Shapes, dtypes and shardings of the state (jax.ShapeDtypeStruct leaves)."""
    boxed = jax.eval_shape(lambda p: _boxed_state(p, optimizer), _boxed_shapes(objective))
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        nn.meta.unbox(boxed),
        tree_shardings(mesh, boxed))


def make_init(
    objective: Head, optimizer: optax.GradientTransformation, mesh: Mesh
) -> Callable[[int], TrainState]:
    """The function from a seed to a fresh state, each shard initialised on its own device.

    The values do not depend on the mesh.
    """

    def init(seed: jax.Array) -> TrainState:
        return nn.meta.unbox(_boxed_state(objective.init(jax.random.key(seed)), optimizer))

    abstract = abstract_state(objective, optimizer, mesh)
    jitted = jax.jit(init, out_shardings=jax.tree.map(lambda x: x.sharding, abstract))
    return lambda seed: jitted(jnp.int32(seed))


def num_params(state: TrainState) -> int:
    """Number of parameters, including frozen ones and padding rows of the word table."""
    return sum(x.size for x in jax.tree.leaves(state.params))


def _gradients(
    objective: Head, params: Params, batch: Batch, rows_Bx2: jax.Array, parts: int, mesh: Mesh,
    shardings: Any,
) -> tuple[Any, jax.Array, Sums]:
    """Gradient (sharded as the parameters), loss and sums of a global batch.

    Left to itself, the compiler would reduce a gradient for each use of a parameter, in each part
    of the batch. So the batch axes are manual here: once a step the parameters are gathered, each
    device sums gradients over its rows, and these sums are reduced and scattered.
    """
    totals = objective.totals(batch)
    if Layout(mesh).batch_shards == 1:
        return _in_parts(objective, params, batch, rows_Bx2, totals, parts, Layout(mesh))

    def batch_axes(sharding: NamedSharding) -> list[tuple[str, ...]]:
        """The batch axes that split each dim of a parameter."""
        dims = [(axes,) if isinstance(axes, str) else axes or () for axes in sharding.spec]
        return [tuple(axis for axis in axes if axis in BATCH_AXES and mesh.shape[axis] > 1)
                for axes in dims]

    def splits(sharding: NamedSharding) -> list[tuple[str, int]]:
        """Pairs (mesh axis, dim), in the order in which the dims of a parameter are split."""
        return [(axis, dim) for axis in UPDATE_AXES
                for dim, axes in enumerate(batch_axes(sharding)) if axis in axes]

    def flat(x: jax.Array) -> jax.Array:
        """Merges the dims after the first, if the last does not fill the lanes of a TPU."""
        kept = x.shape[-1] % _LANES == 0 or mesh.shape['tensor'] > 1
        return x if kept else x.reshape(len(x), -1)

    # One axis at a time: over two axes of a torus at once, TPUs would reduce whole arrays. Pieces
    # that are not whole tiles are gathered in a dim of their own, else padded arrays are summed.
    def gather(x: jax.Array, sharding: NamedSharding) -> jax.Array:
        for axis, dim in reversed(splits(sharding)):
            whole = jax.lax.all_gather(
                flat(x) if dim == 0 else x, axis, axis=dim, tiled=x.shape[dim] % _SUBLANES == 0)
            x = whole.reshape(*x.shape[:dim], -1, *x.shape[dim + 1:])
        return x

    def reduce(x: jax.Array, sharding: NamedSharding) -> jax.Array:
        for axis, dim in splits(sharding):
            wide = dim == 0 and len(x) >= _LANES * mesh.shape[axis]
            part = jax.lax.psum_scatter(
                flat(x) if wide else x, axis, scatter_dimension=dim, tiled=True)
            x = part.reshape(*x.shape[:dim], -1, *x.shape[dim + 1:])
            if part.ndim != x.ndim:  # else each of Adam's products with it would be laid out again
                x = jax.lax.optimization_barrier(x)
        scattered = {axis for axis, _ in splits(sharding)}
        return jax.lax.psum(x, tuple(
            axis for axis in BATCH_AXES if axis not in scattered and mesh.shape[axis] > 1))

    def of_own_rows(
        params: Params, batch: Batch, rows_Bx2: jax.Array, totals: Sums
    ) -> tuple[Any, jax.Array, Sums]:
        params = jax.tree.map(gather, params, shardings)
        grads, loss, sums = _in_parts(
            objective, params, batch, rows_Bx2, totals, parts, Layout(mesh))
        grads = jax.tree.map(reduce, grads, shardings)
        return grads, *jax.lax.psum((loss, sums), BATCH_AXES)

    rows, replicated = PartitionSpec(BATCH_AXES), PartitionSpec()
    split = jax.tree.map(lambda x: PartitionSpec(*batch_axes(x)), shardings)
    return jax.shard_map(
        of_own_rows, mesh=mesh, in_specs=(split, rows, rows, replicated),
        out_specs=(split, replicated, replicated), check_vma=False,
        # Including axes of size 1: with no automatic axis left, the compiler has least to do.
        axis_names={name for name, size in mesh.shape.items() if name in BATCH_AXES or size == 1},
    )(params, batch, rows_Bx2, totals)


def _in_parts(
    objective: Head, params: Params, batch: Batch, rows_Bx2: jax.Array, totals: Sums,
    parts: int, layout: Layout,
) -> tuple[Any, jax.Array, Sums]:
    """Gradient, loss and sums of these rows of a batch, accumulated over `parts` parts of them."""
    value_and_grad = jax.value_and_grad(objective.loss, has_aux=True)
    if parts == 1:
        (loss, sums), grads = value_and_grad(params, batch, totals, rows_Bx2)
        return grads, loss, sums
    if objective.compares:
        return _in_two_passes(objective, params, batch, rows_Bx2, totals, parts, layout)

    xs = _split((dict(batch), rows_Bx2), parts, layout)

    def add(carry: Any, part: tuple[Batch, jax.Array]) -> tuple[Any, None]:
        (loss, sums), grads = value_and_grad(params, part[0], totals, part[1])
        return jax.tree.map(jnp.add, carry, (grads, loss, sums)), None

    first = jax.tree.map(lambda x: x[0], xs)
    (loss, sums), grads = jax.eval_shape(value_and_grad, params, first[0], totals, first[1])
    zeros = jax.tree.map(jnp.zeros_like, (grads, loss, sums))
    (grads, loss, sums), _ = jax.lax.scan(add, zeros, xs)
    return grads, loss, sums


def _split(tree: Any, parts: int, layout: Layout) -> Any:
    """Rows [B, ...] as [A, B / A, ...]; a part has every A-th row, so devices keep their rows."""
    def split(x: jax.Array) -> jax.Array:
        x = x.reshape(x.shape[0] // parts, parts, *x.shape[1:]).swapaxes(0, 1)
        return layout(x, None, 'batch', *(None,) * (x.ndim - 2))

    return jax.tree.map(split, tree)


def _in_two_passes(
    objective: Any, params: Params, batch: Batch, rows_Bx2: jax.Array, totals: Sums, parts: int,
    layout: Layout,
) -> tuple[Any, jax.Array, Sums]:
    """`_in_parts` for a loss that compares all examples of the batch.

    It first computes all outputs, and then the gradients part by part, with a second forward pass
    (Gao et al., 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup").
    """
    def whole(x: jax.Array) -> jax.Array:
        return x.swapaxes(0, 1).reshape(-1, *x.shape[2:])

    xs = _split((dict(batch), rows_Bx2), parts, layout)
    outputs = jax.lax.map(lambda part: objective.outputs(params, *part), xs)
    (loss, sums), d_outputs = jax.value_and_grad(objective.loss_of, has_aux=True)(
        jax.tree.map(whole, outputs), batch, totals)

    def add(grads: Any, part: Any) -> tuple[Any, None]:
        rows, d_part = part
        _, pull = jax.vjp(lambda p: objective.outputs(p, *rows), params)
        return jax.tree.map(jnp.add, grads, pull(d_part)[0]), None

    grads, _ = jax.lax.scan(
        add, jax.tree.map(jnp.zeros_like, params), (xs, _split(d_outputs, parts, layout)))
    return grads, loss, sums


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


def make_train_step(
    objective: Head,
    optimizer_of: Callable[[Any], tuple[optax.GradientTransformation, Schedule]],
    abstract: TrainState,
    mesh: Mesh,
    *,
    clip_norm: float,
    frozen: Collection[Names] = (),
    accumulation_steps: int = 1,
) -> Callable[[TrainState, StepInputs, Batch], tuple[TrainState, dict[str, jax.Array]]]:
    """The jitted (state, numbers, batch) -> (state, metrics); the state is donated.

    Metrics: the objective's sums, `loss`, `grad_norm` (before clipping), `learning_rate`.

    Args:
      objective: what is trained.
      optimizer_of: a function from `StepInputs.learning_rates` to the optimizer and its schedule.
      abstract: shapes and shardings of the state.
      mesh: where it runs.
      clip_norm: largest global norm of the gradient of the global batch; 0: not clipped.
      frozen: parameters that are not trained and do not count in that norm.
      accumulation_steps: number of parts in which a batch is computed; the result is the same.
    """
    layout = Layout(mesh)
    # Output shardings are fixed: if they changed, the second step would be compiled again.
    kept = jax.tree.map(lambda x: x.sharding, abstract)

    def train_step(
        state: TrainState, numbers: StepInputs, batch: Batch
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        optimizer, schedule = optimizer_of(numbers.learning_rates)
        batch_size = next(iter(batch.values())).shape[0]
        rows_Bx2 = dropout_rows(numbers.seed, state.step, jnp.arange(batch_size, dtype=jnp.uint32))
        grads, loss, sums = _gradients(
            objective, state.params, batch, layout(rows_Bx2, 'batch', None), accumulation_steps,
            mesh, kept.params)
        grads = jax.tree_util.tree_map_with_path(
            lambda path, g: jnp.zeros_like(g) if path_names(path) in frozen else g, grads)
        norm = global_norm(grads)
        if clip_norm:
            scale = clip_norm / jnp.maximum(norm, clip_norm)
            grads = jax.tree.map(lambda g: g * scale, grads)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = dict(sums) | {
            'loss': loss, 'grad_norm': norm, 'learning_rate': schedule(state.step)}
        return TrainState(state.step + 1, params, opt_state), metrics

    replicated = NamedSharding(mesh, PartitionSpec())
    return jax.jit(train_step, donate_argnums=0, out_shardings=(kept, replicated))


def make_verify(
    objective: Head, mesh: Mesh, *, seed: int, accumulation_steps: int = 1,
) -> Callable[[TrainState, Batch], np.ndarray] | None:
    """Makes a function that computes the gradient of each device's rows on it and its neighbour.

    One program runs on the batch and on the batch shifted by one device's rows, so intact chips
    give the same bits. This costs two forward and backward passes; `docs/pods.md` lists errors that
    it cannot detect.

    Returns:
      A function from (state, batch) to checksums [2, batch shards] uint32, of the device that has
      the rows and of its neighbour; None if the batch has one shard. If some differ, it raises
      Diverged and names the suspects, a single one if both of that one's comparisons differ.
    """
    shards = Layout(mesh).batch_shards
    if shards == 1:
        return None
    rows, replicated = PartitionSpec(BATCH_AXES), PartitionSpec()

    def of_device(params: Params, own: tuple[Batch, jax.Array], totals: Sums) -> jax.Array:
        grads, loss, _ = _in_parts(
            objective, params, *own, totals, accumulation_steps, Layout(mesh))
        sums = [jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32).sum()
                for x in jax.tree.leaves((grads, loss))]
        return jnp.stack(sums).sum()[None]

    def checksums(state: TrainState, batch: Batch, moved_by: jax.Array) -> jax.Array:
        batch_size = next(iter(batch.values())).shape[0]
        rows_Bx2 = dropout_rows(seed, state.step, jnp.arange(batch_size, dtype=jnp.uint32))
        moved = jax.tree.map(lambda x: jnp.roll(x, moved_by, axis=0), (dict(batch), rows_Bx2))
        return jax.shard_map(
            of_device, mesh=mesh, in_specs=(replicated, rows, replicated), out_specs=rows,
            check_vma=False,
            axis_names={n for n, size in mesh.shape.items() if n in BATCH_AXES or size == 1},
        )(state.params, moved, objective.totals(batch))

    compute = jax.jit(checksums, out_shardings=NamedSharding(mesh, replicated))

    def compare(state: TrainState, batch: Batch) -> np.ndarray:
        rows_a_device = next(iter(batch.values())).shape[0] // shards
        ours = np.asarray(compute(state, batch, 0))
        neighbours = np.roll(compute(state, batch, rows_a_device), -1)
        differing = (ours != neighbours).astype(int)
        if differing.any():
            suspects = differing + np.roll(differing, 1)  # by its own rows, by its neighbour's
            named = ', '.join(
                f'{device} of host {device.process_index}' for device in
                mesh.devices.reshape(shards, -1)[suspects == suspects.max()].flat)
            step = int(state.step) + 1
            raise Diverged(
                f'step {step:,}: gradients of the same rows differ between neighbours: {named} '
                'computes wrongly. Go on without it, from a checkpoint of before', step)
        return np.stack([ours, neighbours])

    return compare


def make_eval_step(objective: Head, mesh: Mesh) -> EvalStep:
    """The jitted (params, batch) -> metric sums, without dropout."""

    def eval_step(params: Params, batch: Batch) -> dict[str, jax.Array]:
        _, sums = objective.loss(params, batch, objective.totals(batch), None)
        return dict(sums)

    return jax.jit(eval_step, out_shardings=NamedSharding(mesh, PartitionSpec()))


def evaluate(objective: Head, eval_step: EvalStep, params: Any, batches: Iterable[Batch]
             ) -> dict[str, float]:
    """The objective's metrics over all batches; rows of weight 0 do not count.

    Sums are accumulated in float64, so that the number of batches does not affect the result.
    """
    totals: dict[str, float] = collections.defaultdict(float)
    last: dict[str, jax.Array] = {}

    def add(sums: dict[str, jax.Array]) -> None:
        for name, value in jax.device_get(sums).items():
            totals[name] += float(value)

    for batch in batches:
        before, last = last, eval_step(params, batch)
        add(before)  # one batch late, so that the device always has work
    add(last)
    return objective.score(dict(totals))
