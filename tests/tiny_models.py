"""Small models for tests: quick to compile, with random parameters."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bert_jax.step.step import StepInputs, TrainState, abstract_state, make_train_step

# Halves the compilation time; the programs run only for moments.
jit = functools.partial(jax.jit, compiler_options={'xla_backend_optimization_level': 0})


def random_like(shapes: Any, seed: int = 0, scale: float = 1.0) -> Any:
    """A tree of normally distributed float32 arrays of NumPy with these shapes.

    Made by jax, they would be a program for each shape, and one more to split it over a mesh.
    """
    rng = np.random.default_rng(seed)

    def draw(x):
        return (scale * rng.standard_normal(x.shape)).astype(np.float32)

    return jax.tree.map(draw, nn.meta.unbox(shapes))


def drawn_params(head: Any, scale: float = 0.3) -> Any:
    """A head's parameters, drawn by NumPy: the scales of norms around 1, all others around 0."""
    def centred(path: Any, x: np.ndarray) -> np.ndarray:
        return np.float32(1.0) + x if path[-1].key == 'scale' else x

    drawn = random_like(jax.eval_shape(head.init, jax.random.key(0)), scale=scale)
    return jax.tree_util.tree_map_with_path(centred, drawn)


def drawn_state(head: Any, optimizer: Any, mesh: Any, scale: float = 0.3) -> TrainState:
    """The state before the first step with `drawn_params`.

    `make_init`, which has its own tests, takes as long to compile as the step of a tiny model.
    """
    shardings = jax.tree.map(lambda x: x.sharding, abstract_state(head, optimizer, mesh))
    return jax.jit(
        lambda params: TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params)),
        out_shardings=shardings)(drawn_params(head, scale))


def assert_close(found: Any, expected: Any, **tolerance: float) -> None:
    """Asserts that two trees have the same structure and close arrays.

    Args:
      found: a tree of arrays.
      expected: the same.
      tolerance: `rtol` and `atol` of `np.testing.assert_allclose`.
    """
    jax.tree.map(functools.partial(np.testing.assert_allclose, **tolerance), found, expected)


def fixed_step(head, optimizer, schedule, mesh, *, seed=0, **options):
    """The train step of one seed and schedule: (state, batch) -> (state, metrics).

    Args:
      head: what is trained; a task of `tests.train.toy` will do.
      optimizer: an optax optimizer.
      schedule: learning rate by step.
      mesh: the devices.
      seed: of dropout.
      options: of `make_train_step`.
    """
    def optimizer_and_schedule(_):
        return optimizer, schedule

    shapes = abstract_state(head, optimizer, mesh)
    step = make_train_step(head, optimizer_and_schedule, shapes, mesh, **options)
    inputs = StepInputs(np.uint32(seed), np.zeros(0, np.float32))

    def step_with_inputs(state, batch):
        return step(state, inputs, batch)

    return jax.jit(step_with_inputs, donate_argnums=0)
