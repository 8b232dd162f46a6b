"""The attention kernels for GPUs, interpreted, against plain attention.

Dropout's masks are bit-identical. Blocks are small, so that short rows have several.
"""

import functools

import jax
import numpy as np
import pytest

from bert_jax.kernels import attention_gpu
from bert_jax.sharding import make_mesh
from tests.kernels.plain_attention import attention_with_gradient
from tests.kernels.test_attention_tpu import inputs, kernel, with_gradient

on_gpu = functools.partial(kernel, on_gpu=True)


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(attention_gpu, '_WHOLE_ROW', 32)
    monkeypatch.setattr(attention_gpu, '_BLOCK', 16)


def assert_equal_to_plain(qkv, args, d_out, rate, tolerance, **options):
    """Values, gradients of the projection and of its bias, relative to the largest."""
    found = with_gradient(functools.partial(on_gpu, **options), qkv, *args, d_out, rate)
    expected = attention_with_gradient(qkv, *args, d_out, rate, **options)
    assert [x.dtype for x in found] == [qkv.dtype, qkv.dtype, 'float32']
    for a, b in zip(found, expected, strict=True):
        assert np.abs(np.asarray(a, np.float32) - b).max() < tolerance * np.abs(b).max()


@pytest.mark.parametrize('dtype, length, dim, packed, rate, scale, options', [
    ('float32', 30, 32, True, 0.1, 1, {}),  # a block is a whole row
    ('float32', 70, 128, False, 0.1, 0, {}),  # equal scores, so any wrong bit of the mask shows
    ('float32', 70, 64, 'short', 0.0, 30, {}),  # scores in the thousands overflow nothing
    ('float32', 90, 64, True, 0.2, 1, {
        'window': 17, 'rotary_base': 10_000.0, 'rotary_factor': 1.5}),
    ('bfloat16', 90, 64, True, 0.1, 1, {}),
])
def test_values_and_gradients_are_those_of_plain_attention(
    small_blocks, dtype, length, dim, packed, rate, scale, options
):
    qkv, *args, d_out = inputs(2, length, 2, dtype, packed, dim=dim, scale=scale)
    # Rounding errors, as of bfloat16, are relative to the scores, which reach thousands.
    tolerance = 0.02 if dtype == 'bfloat16' or scale > 1 else 1e-5
    assert_equal_to_plain(qkv, args, d_out, rate, tolerance, **options)


def test_rows_and_heads_split_over_devices_change_nothing(small_blocks):
    qkv, *args, d_out = inputs(2, 32, 2, packed=True, dim=32)
    mesh = make_mesh(2, 1, 2, jax.devices()[:4])
    found = with_gradient(functools.partial(on_gpu, mesh=mesh), qkv, *args, d_out, 0.2)
    expected = attention_with_gradient(qkv, *args, d_out, 0.2)
    for a, b in zip(found, expected, strict=True):
        assert np.abs(a - b).max() < 1e-5 * np.abs(b).max()


def test_blocks_without_a_common_sequence_or_out_of_reach_are_skipped():
    place = np.arange(128)
    numbers = 1 + (place >= 40) + (place >= 96)
    numbers[120:] = 0
    segments = np.stack([numbers, np.ones(128)]).astype(np.int32)
    blocks = attention_gpu._Blocks(own=32, visited=16)
    ranges_of_windows = jax.jit(lambda segments: [
        attention_gpu._visited_ranges(segments, blocks, window) for window in (0, 16)])
    (of_packed, of_whole), of_windows = ranges_of_windows(segments)
    np.testing.assert_array_equal(of_packed, [[0, 3], [0, 6], [2, 6], [6, 8]])
    np.testing.assert_array_equal(of_whole, [[0, 8]] * 4)
    of_packed, of_whole = of_windows
    np.testing.assert_array_equal(of_packed, [[0, 3], [1, 5], [3, 6], [6, 8]])
    np.testing.assert_array_equal(of_whole, [[0, 3], [1, 5], [3, 7], [5, 8]])
