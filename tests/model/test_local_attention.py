"""Attention in blocks, by XLA, against all scores of a row with a mask."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.kernels import dropout as drop
from bert_jax.model import attention
from bert_jax.model.attention import attend, attend_where_wanted
from bert_jax.model.layers import ModelConfig
from bert_jax.model.local_attention import takes_blocks

N, D = 2, 8
LAYER = 3


def config(window, dropout=0.1):
    return ModelConfig(
        vocab_size=8, num_layers=1, hidden_size=N * D, num_heads=N, intermediate_size=8,
        attention='xla', attention_dropout=dropout, local_attention=window, positions='rotary')


def inputs(length, batch=2, seed=0):
    rng = np.random.default_rng(seed)
    ends = np.sort(rng.integers(1, length, (batch, 3)), axis=1)
    segments = (np.arange(length)[None, :, None] < ends[:, None]).sum(axis=2)
    return (
        jnp.asarray(rng.standard_normal((batch, length, 3, N, D)), jnp.float32),
        jnp.asarray(rng.standard_normal((3, N, D)), jnp.float32),
        jnp.asarray(segments, jnp.int32),
        drop.dropout_keys(1, 2, np.arange(5, 5 + batch)),
        jnp.asarray(rng.standard_normal((batch, length, N, D)), jnp.float32))


def with_gradient(config, qkv, bias, segments, rows, d_out):
    """Jitted anew at each call, which sees what a test has replaced."""
    def run(qkv, bias, d_out):
        out, vjp = jax.vjp(
            lambda x, b: attend(x, b, segments, rows, LAYER, config=config), qkv, bias)
        return out, *vjp(d_out)

    return jax.jit(run)(qkv, bias, d_out)


@pytest.mark.slow
@pytest.mark.parametrize('length, window, dropout', [
    (512, 128, 0.1), (513, 2, 0.0), (1200, 150, 0.5), (600, 1, 0.1)])
def test_blocks_change_nothing(monkeypatch, length, window, dropout):
    """Values, gradients and dropout's masks are those of a mask on all scores of a row."""
    args = inputs(length)
    its_config = config(window, dropout)
    assert takes_blocks(its_config, length)
    found = with_gradient(its_config, *args)
    monkeypatch.setattr(attention, 'takes_blocks', lambda *_: False)
    expected = with_gradient(its_config, *args)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6 * np.abs(b).max())


def test_wanted_positions_are_those_of_the_blocks():
    wanted = np.array([[0, 5, 599], [255, 256, 257]], np.int32)
    at_wanted = np.arange(2)[:, None], wanted

    @jax.jit
    def both(qkv, bias, segments, rows):
        whole = attend(qkv, bias, segments, rows, LAYER, config=config(100))
        queries, keys, values = jnp.moveaxis(qkv + bias, 2, 0)
        found = attend_where_wanted(
            queries[at_wanted], keys, values, segments, rows, LAYER, wanted, config=config(100))
        return found, whole[at_wanted]

    found, expected = both(*inputs(600)[:4])
    np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.parametrize('window, keys, arrays', [
    (128, 256, 6),  # the scores of windows
    (0, 512, 10)])  # of 512 queries at once, that is, of 512 keys in the mean
def test_a_row_needs_no_memory_for_all_its_scores(window, keys, arrays):
    """In arrays of [N, S, keys] float32; all scores would be 8,192 keys."""
    length = 8192
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in inputs(128, batch=1)]
    shapes[0] = jax.ShapeDtypeStruct((1, length, 3, N, D), jnp.float32)
    shapes[2] = jax.ShapeDtypeStruct((1, length), jnp.int32)
    shapes[4] = jax.ShapeDtypeStruct((1, length, N, D), jnp.float32)
    compiled = jax.jit(functools.partial(with_gradient, config(window))).lower(*shapes).compile()
    found = compiled.memory_analysis().temp_size_in_bytes
    assert found < 1.1 * arrays * N * length * keys * 4  # newer compilers keep a little more


@pytest.mark.slow
@pytest.mark.parametrize('window, causal', [(0, False), (0, True), (64, True)])
def test_long_rows_in_blocks_of_queries_change_nothing(monkeypatch, window, causal):
    args = inputs(150)
    its_config = dataclasses.replace(config(window), causal=causal)
    expected = with_gradient(its_config, *args)
    monkeypatch.setattr(attention, '_LONGEST_AT_ONCE', 149)
    monkeypatch.setattr(attention, '_QUERIES_AT_ONCE', 64)
    found = with_gradient(its_config, *args)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6 * np.abs(b).max())


@pytest.mark.parametrize('length, changes, takes', [
    (8192, {}, True),
    (511, {}, False),  # hardly fewer scores
    (8192, {'local_attention': 0}, False),
    (8192, {'local_attention': 4096}, False),
    (8192, {'causal': True}, False)])
def test_blocks_are_taken_where_they_are_less_work(length, changes, takes):
    assert takes_blocks(dataclasses.replace(config(128), **changes), length) == takes
