"""Attention within each sequence against its formula, and the choice of the implementation."""

import dataclasses
from unittest import mock

import jax
import numpy as np
import pytest

from bert_jax.heads.pretraining import Pretraining
from bert_jax.kernels.attention_blocks import limits
from bert_jax.kernels.rotary import phases
from bert_jax.model.attention import attend, attend_where_wanted, choose
from bert_jax.model.layers import ModelConfig
from bert_jax.runtime.errors import InputError
from bert_jax.sharding import Layout, make_mesh

B, S, N, D = 3, 12, 2, 4
MAX_LENGTH, MAX_WINDOW = limits(has_large_vmem=True)
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
    """By XLA. test_attention_tpu.py tests the kernel; test_transformers.py, probabilities."""
    context = everywhere(config('auto'), BIAS)
    for row in range(B):
        for number in range(1, SEGMENTS[row].max() + 1):
            at = SEGMENTS[row] == number
            np.testing.assert_allclose(context[row, at], alone(QKV[row, at]), atol=1e-6)
    np.testing.assert_allclose(
        where_wanted(config('auto')), context[np.arange(B)[:, None], WANTED], atol=1e-6)


def everywhere(options, bias=None):
    qkv = QKV if bias is None else QKV - bias
    compute = jax.jit(lambda qkv, bias: attend(qkv, bias, SEGMENTS, None, 0, config=options))
    return np.asarray(compute(qkv, bias))


def where_wanted(options):
    queries, keys, values = np.moveaxis(QKV, 2, 0)
    queries = queries[np.arange(B)[:, None], WANTED]
    return jax.jit(lambda *projections: attend_where_wanted(
        *projections, SEGMENTS, None, 0, WANTED, config=options))(queries, keys, values)


def rotated_and_windowed(qkv_Sx3xNxD, base, factor, window):
    """Attention of one sequence to half a window on each side, its dims as complex numbers."""
    places = np.arange(len(qkv_Sx3xNxD))
    distances = places[:, None] - places
    q, k, v = np.moveaxis(qkv_Sx3xNxD.astype(np.float64), 1, 0)
    q, k = (x[..., : D // 2] + 1j * x[..., D // 2 :] for x in (q, k))
    turns = np.exp(1j * distances[..., None] * base ** (-2 / D * np.arange(D // 2)) / factor)
    scores = np.exp(np.einsum('QND,KND,QKD->NQK', q, k.conj(), turns).real / np.sqrt(D))
    if window:
        scores *= abs(distances) <= window / 2
    return np.einsum('NQK,KND->QND', scores / scores.sum(-1, keepdims=True), v)


@pytest.mark.parametrize('window', [0, 4, 5])
def test_rotary_positions_and_windows_are_those_of_the_formula(window):
    options = dataclasses.replace(
        config('xla'), positions='rotary', rotary_base=50.0, rotary_factor=1.5,
        local_attention=window)
    context = everywhere(options)
    for row in range(B):
        for number in range(1, SEGMENTS[row].max() + 1):
            at = SEGMENTS[row] == number
            expected = rotated_and_windowed(QKV[row, at], 50.0, 1.5, window)
            np.testing.assert_allclose(context[row, at], expected, atol=2e-6)
    np.testing.assert_allclose(
        where_wanted(options), context[np.arange(B)[:, None], WANTED], atol=1e-6)


def test_angles_are_exact_far_from_the_beginning():
    """Products in float32 are off by 5e-4 there."""
    base, length, head_dim = 160_000.0, 8192, 64
    exact = np.arange(length)[:, None] * base ** -(np.arange(head_dim // 2) / (head_dim // 2))
    found = np.asarray(phases(np.arange(length), head_dim, base), np.float64) * 2 * np.pi / 2**32
    assert abs(np.exp(1j * found) - np.exp(1j * exact)).max() < 1e-5


def on(platform, **changes):
    """A config on a mesh of one mock device of a platform, perhaps with its version."""
    device = mock.Mock(platform=platform.split()[0], device_kind=f'TPU {platform.split()[-1]}')
    devices = np.array([device]).reshape(1, 1, 1)
    mesh = mock.Mock(devices=devices, shape={'data': 1, 'fsdp': 1, 'tensor': 1})
    return dataclasses.replace(
        config('auto'), **{'hidden_size': 128, 'dtype': 'bfloat16'} | changes, layout=Layout(mesh))


@dataclasses.dataclass(frozen=True)
class Choice:
    """What `model.attention` asks for on a platform, and what is chosen or said."""

    platform: str
    asked: str
    length: int = 512
    drops: bool = True
    changes: dict = dataclasses.field(default_factory=dict)  # of the config
    chosen: str = ''
    refused: str = ''  # a regular expression for the message

    def __str__(self):
        changes = ' '.join(f'{name}={value}' for name, value in self.changes.items())
        dropout = 'with' if self.drops else 'without'
        return f'{self.asked} on {self.platform} length {self.length} {dropout} dropout {changes}'


@pytest.mark.parametrize('case', [
    Choice('tpu', 'auto', chosen='kernel'),
    Choice('tpu', 'auto', length=64, chosen='xla'),
    Choice('tpu', 'auto', changes={'positions': 'rotary'}, chosen='kernel'),
    Choice('tpu', 'auto', changes={  # as EuroBERT and UltraBERT
        'positions': 'rotary', 'rotary_factor': 2.0, 'num_kv_heads': 1, 'local_attention': 128},
        chosen='kernel'),
    Choice('tpu', 'auto', changes={'relative_positions': True}, chosen='xla'),
    Choice('tpu', 'auto', length=MAX_LENGTH, changes={'local_attention': 128}, chosen='kernel'),
    Choice('tpu', 'auto', changes={'local_attention': MAX_WINDOW + 2}, chosen='xla'),
    Choice('tpu', 'auto', changes={'num_heads': 4}, chosen='kernel'),
    Choice('tpu', 'auto', changes={'num_heads': 1}, chosen='kernel'),
    Choice('tpu', 'auto', length=MAX_LENGTH + 1, chosen='xla'),
    Choice('tpu v4', 'auto', length=2048, chosen='kernel'),
    Choice('tpu v4', 'auto', length=2049, chosen='xla'),
    Choice('tpu v4', 'auto', changes={'local_attention': 514}, chosen='xla'),
    Choice('tpu', 'auto', drops=False, changes={'causal': True}, chosen='xla'),
    Choice('tpu', 'xla', drops=False, chosen='xla'),
    Choice('tpu', 'kernel', length=77, changes={'num_heads': 64, 'hidden_size': 4096},
           chosen='kernel'),
    Choice('cpu', 'auto', drops=False, chosen='xla'),
    Choice('gpu', 'auto', chosen='kernel'),
    Choice('gpu', 'auto', length=64, changes={'local_attention': 4096, 'num_heads': 1},
           chosen='kernel'),
    Choice('gpu', 'auto', changes={'num_heads': 8}, chosen='xla'),
    Choice('gpu', 'auto', changes={'dtype': 'float32'}, chosen='xla'),
    Choice('gpu', 'auto', drops=False, chosen='cudnn'),
    Choice('gpu', 'cudnn', length=64, drops=False, chosen='cudnn'),
    Choice('gpu', 'auto', length=63, drops=False, chosen='xla'),
    Choice('gpu', 'kernel', length=63, chosen='kernel'),
    Choice('gpu', 'auto', drops=False, changes={'causal': True}, chosen='xla'),
], ids=str)
def test_an_implementation_is_chosen(case):
    config = on(case.platform, attention=case.asked, **case.changes)
    assert choose(config, case.length, case.drops) == case.chosen


@pytest.mark.parametrize('case', [
    Choice('cpu', 'kernel', refused='it is for TPUs and GPUs, and this is a cpu'),
    Choice('gpu', 'kernel', changes={'num_heads': 8}, refused='.* these have 16'),
    Choice('gpu', 'kernel', changes={'local_attention': 1}, refused='.* these have 1'),
    Choice('tpu', 'kernel', changes={'causal': True}, refused='it has no left-to'),
    Choice('tpu', 'kernel', changes={'local_attention': 1}, refused='.* these have 1'),
    Choice('tpu', 'kernel', length=128, changes={'dtype': 'float32'},
           refused='it is for bfloat16, and this is float32'),
    Choice('tpu', 'kernel', length=128, changes={'num_heads': 3, 'hidden_size': 192},
           refused='.* a device has 3'),
    Choice('tpu', 'kernel', length=128, changes={'num_heads': 8}, refused='.* these have 16'),
    Choice('tpu', 'kernel', changes={'num_heads': 2, 'hidden_size': 64},
           refused='.* of 32 dims by 4, and a device has 2'),
    Choice('tpu', 'kernel', length=MAX_LENGTH + 1, refused=f'.* these have {MAX_LENGTH + 1}'),
    Choice('cpu', 'cudnn', drops=False, refused='it is for GPUs'),
    Choice('gpu', 'cudnn', drops=False, changes={'causal': True}, refused='it has no left-to'),
    Choice('gpu', 'cudnn', refused='it has no dropout, and config.model.attention_dropout=0.5'),
], ids=str)
def test_an_implementation_that_is_asked_for_but_cannot_be_used_is_refused(case):
    config = on(case.platform, attention=case.asked, **case.changes)
    with pytest.raises(InputError, match=f'attention={case.asked!r} cannot be: {case.refused}'):
        choose(config, case.length, case.drops)


def test_sequences_are_kept_apart_with_cudnn(monkeypatch):
    """Tests the mask given to cuDNN; XLA computes the product here."""
    product = jax.nn.dot_product_attention

    def by_xla(*args, implementation, **kwargs):
        assert implementation == 'cudnn'
        return product(*args, **kwargs, implementation='xla')

    monkeypatch.setattr(jax.nn, 'dot_product_attention', by_xla)
    monkeypatch.setattr('bert_jax.model.attention.why_unsupported', lambda *_: '')
    found = everywhere(config('cudnn'), BIAS)
    expected = everywhere(config('xla'), BIAS)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_parameters_are_made_without_the_kernel(monkeypatch):
    """The kernel splits rows over the mesh, but initialisation traces an input of one row."""
    monkeypatch.setattr('bert_jax.model.attention.why_unsupported', lambda *_: '')
    mesh = make_mesh(8, 1, 1)
    asked = dataclasses.replace(config('kernel'), layout=Layout(mesh))
    params = jax.eval_shape(Pretraining(asked).init, jax.random.key(0))
    assert set(params) == {'bert', 'cls'}
