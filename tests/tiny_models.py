"""Small models for tests: quick to compile, with random parameters."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bert_jax.train.step import StepInputs, abstract_state, make_train_step

# Halves the compilation time; the programs run only for moments.
jit = functools.partial(jax.jit, compiler_options={'xla_backend_optimization_level': 0})


def random_like(shapes: Any, seed: int = 0, scale: float = 1.0) -> Any:
    """A tree of normally distributed float32 arrays with these shapes."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda x: jnp.asarray(scale * rng.standard_normal(x.shape), jnp.float32),
        nn.meta.unbox(shapes))


def fixed_step(objective, optimizer, schedule, mesh, *, seed=0, **how):
    """The train step of one seed and schedule: (state, batch) -> (state, metrics)."""
    step = make_train_step(objective, lambda _: (optimizer, schedule),
                           abstract_state(objective, optimizer, mesh), mesh, **how)
    numbers = StepInputs(np.uint32(seed), np.zeros(0, np.float32))
    return jax.jit(lambda state, batch: step(state, numbers, batch), donate_argnums=0)
