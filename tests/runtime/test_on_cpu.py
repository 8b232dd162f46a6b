"""What makes XLA faster on CPUs."""

import jax
import jax.numpy as jnp
import pytest

from bert_jax.runtime import on_cpu
from tests import tiny_runs


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


def test_what_fails_for_another_reason_is_said(monkeypatch):
    monkeypatch.setattr(jax, 'local_devices', lambda **_: [])
    with pytest.raises(IndexError):
        on_cpu.compiler_options.__wrapped__()


def test_the_options_are_found_where_a_run_is_shown_one_device():
    with tiny_runs.one_device():
        found = on_cpu.compiler_options.__wrapped__()
    assert found == on_cpu.compiler_options.__wrapped__()
