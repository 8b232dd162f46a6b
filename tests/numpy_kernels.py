"""Models of whole runs in this process that begin with kernels that NumPy has drawn.

To compile a model's initialisation takes as long as half its train step, nearly all of it for
drawing, which is tested elsewhere (tests/model, tests/step).
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from bert_jax.step import step
from bert_jax.step.step import make_init


@pytest.fixture(scope='module')
def kernels_of_numpy():
    """Kernels are constants of the program that makes a run's first state, whatever its seed."""
    with mock.patch.object(step, 'make_init', make_init_with_constants):
        yield


def make_init_with_constants(head: Any, optimizer: Any, mesh: Any) -> Callable[[int], Any]:
    """In the place of `step.make_init`; one function, so that modules share what it makes."""
    init = make_init(head, optimizer, mesh)

    def with_constants(seed: int) -> Any:
        with mock.patch.object(nn.initializers, 'truncated_normal', Constants().kernel):
            return init(seed)

    return with_constants


class Constants:
    """Draws kernels, one after the other, for the thread that has made it."""

    def __init__(self):
        self._draw = np.random.default_rng(0)
        self._thread = threading.get_ident()
        self._of_flax = nn.initializers.truncated_normal

    def kernel(self, deviation: float) -> Callable[..., Any]:
        """In the place of flax's initializer: nothing beyond two standard deviations, as there."""
        if threading.get_ident() != self._thread:  # meanwhile a run compiles its step in another
            return self._of_flax(deviation)

        def drawn(_: Any, shape: Sequence[int], dtype: Any = np.float32) -> Any:
            return jnp.asarray(deviation * self._draw.standard_normal(shape).clip(-2, 2), dtype)

        return drawn
