"""What makes XLA faster on CPUs."""

import resource

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.runtime import on_cpu


def test_attention_on_a_cpu_is_no_fusion_of_a_library():
    def attention(x):
        return jax.nn.softmax(x @ x.mT) @ x

    def is_fused(options):
        compiled = jax.jit(attention, compiler_options=options).lower(x).compile()
        return '__ynn_fusion' in compiled.as_text()

    x = jnp.ones((2, 4, 128, 32))
    if not is_fused(None):
        pytest.skip('this jax makes no such fusions')
    assert not is_fused(on_cpu.compiler_options())


def test_options_that_this_jax_has_not_got_are_left_out(monkeypatch):
    monkeypatch.setattr(on_cpu, '_NO_LIBRARY_FUSIONS', {'xla_no_such_option': ''})
    assert on_cpu.compiler_options.__wrapped__() is None


def test_memory_that_was_freed_is_used_again_without_a_fault():
    on_cpu.keep_memory.__wrapped__()
    num_pages = []
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        np.ones(1 << 24)  # 128 MB
        num_pages.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    assert num_pages[1] < 1000, num_pages


@pytest.mark.parametrize(('name', 'value'), [
    ('GLIBC_TUNABLES', 'glibc.malloc.mmap_max=9'), ('MALLOC_TRIM_THRESHOLD_', '9')])
def test_malloc_stays_as_the_environment_has_it(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(on_cpu.ctypes, 'CDLL', lambda name: pytest.fail('it was changed'))
    on_cpu.keep_memory.__wrapped__()
