"""Kernels of a step in traces of jax's profiler."""

import jax
import jax.numpy as jnp
import pytest
from jax.profiler import ProfileData

from bert_jax.tools.kernel_times import kernel_table, sum_kernels, trace_kernels

# Two steps on a GPU, whose plane also has a line of names that are no kernels; and a host thread.
GPU_TRACE = """
planes {
  name: "/device:GPU:0"
  event_metadata { key: 1 value { id: 1 name: "gemm" } }
  event_metadata { key: 2 value { id: 2 name: "softmax" } }
  event_metadata { key: 3 value { id: 3 name: "train_step" } }
  lines { name: "Stream #13(Compute)"
    events { metadata_id: 1 duration_ps: 4000000000 }
    events { metadata_id: 1 duration_ps: 2000000000 }
    events { metadata_id: 2 duration_ps: 2000000000 } }
  lines { name: "XLA Modules" events { metadata_id: 3 duration_ps: 9000000000 } }
}
planes { name: "/host:CPU"
  event_metadata { key: 1 value { id: 1 name: "launch" } }
  lines { name: "python" events { metadata_id: 1 duration_ps: 9000000000 } } }
"""


@pytest.fixture
def kernels():
    serialized = ProfileData.text_proto_to_serialized_xspace(GPU_TRACE)
    return sum_kernels([ProfileData.from_serialized_xspace(serialized)], num_steps=2)


def test_kernels_of_a_gpu_are_what_its_streams_ran(kernels):
    found = [(kernel.name, kernel.calls, kernel.milliseconds) for kernel in kernels]
    assert found == [('gemm', 1, 3), ('softmax', 0.5, 1)]


def test_the_table_has_the_longest_and_the_sum_of_all(kernels):
    *_, longest, whole = kernel_table(kernels, 1).splitlines()
    assert longest.split() == ['gemm', '3.000', '75.0', '1']
    assert whole.split() == ['all', '4.000', '100.0', '1.5']


def test_operations_of_a_cpu_are_found_in_a_trace():
    x = jnp.ones((64, 64))
    product = jax.jit(lambda x: jnp.sin(x @ x))
    product(x).block_until_ready()

    def run(num_steps):
        for _ in range(num_steps):
            product(x).block_until_ready()

    kernels = trace_kernels(run, 2)
    (sine,) = [kernel for kernel in kernels if 'sin' in kernel.name]  # sin.1, or wrapped_sine
    assert sine.calls == 1
