"""Attention within each sequence against its formula, and the choice of the implementation."""

import dataclasses
import functools
from unittest import mock

import jax
import numpy as np
import pytest

from bert_jax.config.bert_config import COMPUTATION
from bert_jax.heads.pretraining import Pretraining
from bert_jax.model.attention import attend, choose
from bert_jax.model.attention_kernel import MAX_LENGTH
from bert_jax.model.layers import ModelConfig
from bert_jax.runtime.errors import InputError
from bert_jax.sharding import Layout, make_mesh

B, S, N, D = 3, 12, 2, 4
SEGMENTS = np.array([[1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 0, 0], [1] * 12, [1] * 7 + [0] * 5], np.int32)
QKV = np.random.default_rng(0).normal(size=(B, S, 3, N, D)).astype(np.float32)
# Tests subtract it from QKV and `attend` adds it again, which is exact to 1.2e-7.
BIAS = np.random.default_rng(1).integers(-4, 5, QKV.shape[2:]) / np.float32(4)
WANTED = np.array([[0, 5, 9], [11, 0, 0], [6, 2, 1]], np.int32)


def config(name):
    return ModelConfig(vocab_size=8, num_layers=1, hidden_size=N * D, num_heads=N,
                       intermediate_size=8, attention=name, attention_dropout=0.5)


def alone(qkv_Sx3xNxD):
    """Attention of one sequence by the formula (Vaswani et al., 2017, equation 1), in float64."""
    q, k, v = np.moveaxis(qkv_Sx3xNxD.astype(np.float64), 1, 0)
    scores = np.exp(np.einsum('QND,KND->NQK', q, k) / np.sqrt(D))
    return np.einsum('NQK,KND->QND', scores / scores.sum(-1, keepdims=True), v)


def test_each_sequence_is_computed_as_if_alone():
    """By XLA. test_attention_kernel.py tests the kernel; test_transformers.py, probabilities."""
    of = functools.partial(attend, QKV - BIAS, BIAS, SEGMENTS, None, 0, config=config('auto'))
    context = of()
    for row in range(B):
        for number in range(1, SEGMENTS[row].max() + 1):
            at = SEGMENTS[row] == number
            np.testing.assert_allclose(context[row, at], alone(QKV[row, at]), atol=1e-6)
    wanted = of(wanted_BxP=WANTED)
    np.testing.assert_allclose(wanted, context[np.arange(B)[:, None], WANTED], atol=1e-6)


def on(platform, **changes):
    """A config on a mesh of one mock device of a platform."""
    devices = np.array([mock.Mock(platform=platform)]).reshape(1, 1, 1)
    mesh = mock.Mock(devices=devices, shape={'data': 1, 'fsdp': 1, 'tensor': 1})
    return dataclasses.replace(
        config('auto'), **{'hidden_size': 128, 'dtype': 'bfloat16'} | changes, layout=Layout(mesh))


@pytest.mark.parametrize('platform, asked, changes, length, drops, chosen', [
    ('tpu', 'auto', {}, 512, True, 'kernel'), ('tpu', 'auto', {}, 64, True, 'xla'),
    ('tpu', 'auto', {}, MAX_LENGTH + 1, True, 'xla'),
    ('tpu', 'auto', {'causal': True}, 512, False, 'xla'), ('tpu', 'xla', {}, 512, False, 'xla'),
    ('tpu', 'kernel', {'num_heads': 64, 'hidden_size': 4096}, 77, True, 'kernel'),
    ('cpu', 'auto', {}, 512, False, 'xla'), ('gpu', 'auto', {}, 512, True, 'xla'),
    ('gpu', 'auto', {}, 512, False, 'cudnn'), ('gpu', 'cudnn', {}, 64, False, 'cudnn'),
    ('gpu', 'auto', {}, 63, False, 'xla'), ('gpu', 'auto', {'causal': True}, 512, False, 'xla'),
    # An implementation that is asked for but cannot be used is refused.
    ('gpu', 'kernel', {}, 512, True, 'it is for TPUs, and this is a gpu'),
    ('tpu', 'kernel', {'causal': True}, 512, True, 'it has no left-to'),
    ('tpu', 'kernel', {'dtype': 'float32'}, 128, True, 'it is for bfloat16, and this is float32'),
    ('tpu', 'kernel', {'num_heads': 3, 'hidden_size': 192}, 128, True, '.* a device has 3'),
    ('tpu', 'kernel', {'num_heads': 4}, 128, True, '.* these have 32'),
    ('tpu', 'kernel', {}, MAX_LENGTH + 1, True, f'.* these have {MAX_LENGTH + 1}'),
    ('cpu', 'cudnn', {}, 512, False, 'it is for GPUs'),
    ('gpu', 'cudnn', {'causal': True}, 512, False, 'it has no left-to'),
    ('gpu', 'cudnn', {}, 512, True, 'it has no dropout, and config.model.attention_dropout=0.5'),
])
def test_an_implementation_is_chosen_or_refused(platform, asked, changes, length, drops, chosen):
    c = on(platform, attention=asked, **changes)
    if chosen in COMPUTATION['attention']:
        assert choose(c, length, drops) == chosen
    else:
        with pytest.raises(InputError, match=f'attention={asked!r} cannot be: {chosen}'):
            choose(c, length, drops)


def test_sequences_are_kept_apart_with_cudnn(monkeypatch):
    """Tests the mask given to cuDNN; XLA computes the product here."""
    product = jax.nn.dot_product_attention
    monkeypatch.setattr(jax.nn, 'dot_product_attention', lambda *args, implementation, **kwargs:
                        product(*args, **kwargs, implementation='xla'))
    monkeypatch.setattr('bert_jax.model.attention.why_unsupported', lambda *_: '')
    found, wanted = (attend(QKV - BIAS, BIAS, SEGMENTS, None, 0, config=config(name))
                     for name in ('cudnn', 'xla'))
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_parameters_are_made_without_the_kernel(monkeypatch):
    """The kernel splits rows over the mesh, but initialisation traces an input of one row."""
    monkeypatch.setattr('bert_jax.model.attention.why_unsupported', lambda *_: '')
    mesh = make_mesh(8, 1, 1)
    asked = dataclasses.replace(config('kernel'), layout=Layout(mesh))
    params = jax.eval_shape(Pretraining(asked).init, jax.random.key(0))
    assert set(params) == {'bert', 'cls'}
