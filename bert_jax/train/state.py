"""The state of a run: step, parameters, optimizer moments; born sharded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jax.sharding import Mesh

from bert_jax.heads.base import Head
from bert_jax.model.layers import Names, Parameter, declared_parameters
from bert_jax.train.sharding import tree_shardings


@flax.struct.dataclass
class TrainState:
    """`step` counts finished updates (int32 scalar)."""

    step: jax.Array
    params: Any
    opt_state: Any


@functools.lru_cache(maxsize=8)  # tracing all layers takes seconds
def _boxed_shapes(objective: Head) -> Any:
    return jax.eval_shape(lambda: objective.init(jax.random.key(0)))


def parameters_of(objective: Head) -> dict[Names, Parameter]:
    """What each parameter declares to optimizers, by path."""
    return declared_parameters(_boxed_shapes(objective))


def _boxed_state(params: Any, optimizer: optax.GradientTransformation) -> TrainState:
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))


def abstract_state(
    objective: Head, optimizer: optax.GradientTransformation, mesh: Mesh
) -> TrainState:
    """Shapes, dtypes and shardings of the state (jax.ShapeDtypeStruct leaves); nothing is run."""
    boxed = jax.eval_shape(lambda p: _boxed_state(p, optimizer), _boxed_shapes(objective))
    return jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        nn.meta.unbox(boxed),
        tree_shardings(mesh, boxed),
    )


def make_init(
    objective: Head, optimizer: optax.GradientTransformation, mesh: Mesh
) -> Callable[[int], TrainState]:
    """From a seed to a fresh state; see `init_state`."""
    shardings = jax.tree.map(lambda x: x.sharding, abstract_state(objective, optimizer, mesh))

    def init(seed: jax.Array) -> TrainState:
        return nn.meta.unbox(_boxed_state(objective.init(jax.random.key(seed)), optimizer))

    jitted = jax.jit(init, out_shardings=shardings)
    return lambda seed: jitted(jnp.int32(seed))


def init_state(
    objective: Head, optimizer: optax.GradientTransformation, mesh: Mesh, seed: int
) -> TrainState:
    """A fresh state, computed straight into its shards; it does not depend on the mesh."""
    return make_init(objective, optimizer, mesh)(seed)


def num_params(state: TrainState) -> int:
    """Number of trained parameters, padding rows of the word table included."""
    return sum(x.size for x in jax.tree.leaves(state.params))
