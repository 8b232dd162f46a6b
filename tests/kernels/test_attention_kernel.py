"""The entry to the attention kernels of TPUs and GPUs; both are tested in files of their own."""


import jax
import numpy as np
import pytest

from tests.kernels.plain_attention import LAYER, attention_with_gradient
from tests.kernels.test_attention_tpu import inputs, kernel

pytestmark = pytest.mark.slow


def test_vmap_on_a_gpu_changes_nothing():
    """Of models whose weights differ, as in an ensemble, and of gradients of each example."""
    qkv, bias, segments, rows, d_out = inputs(2, 30, 2, packed=True, dim=32)

    def of_one(qkv, bias, segments, rows, d_out):
        def context_of(qkv, bias):
            return kernel(
                qkv[None], bias, segments[None], rows[None], LAYER, rate=0.1, on_gpu=True)[0]

        context, pull = jax.vjp(context_of, qkv, bias)
        return context, *pull(d_out)

    biases = np.stack([bias, 2 * bias])
    found = jax.jit(jax.vmap(of_one))(qkv, biases, segments, rows, d_out)
    for one in range(2):
        own = slice(one, one + 1)
        context, d_qkv, d_bias = attention_with_gradient(
            qkv[own], biases[one], segments[own], rows[own], d_out[own], 0.1)
        for a, b in zip(found, (context[0], d_qkv[0], d_bias), strict=True):
            assert np.abs(a[one] - b).max() < 1e-5 * np.abs(b).max()
