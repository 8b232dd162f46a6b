"""The entry to the attention kernels of TPUs and GPUs; both are tested in files of their own."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.kernels.test_attention_tpu import LAYER, inputs, kernel, plain

pytestmark = pytest.mark.slow


def test_vmap_on_a_gpu_changes_nothing():
    """Of models whose weights differ, as in an ensemble, and of gradients of each example."""
    qkv, bias, segments, rows, d_out = inputs(2, 30, 2, packed=True, dim=32)

    def of_one(attend, qkv, bias, segments, rows, d_out):
        def context_of(qkv, bias):
            return attend(qkv[None], bias, segments[None], rows[None], LAYER, rate=0.1)[0]

        context, pull = jax.vjp(context_of, qkv, bias)
        return context, *pull(d_out)

    args = qkv, jnp.stack([bias, 2 * bias]), segments, rows, d_out
    attend = functools.partial(kernel, on_gpu=True)
    found = jax.jit(jax.vmap(functools.partial(of_one, attend)))(*args)
    expected = jax.vmap(functools.partial(of_one, plain))(*args)
    for a, b in zip(found, expected, strict=True):
        assert np.abs(a - b).max() < 1e-5 * np.abs(b).max()
