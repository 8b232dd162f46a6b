"""The attention kernels for TPUs, interpreted, against plain attention.

Dropout's masks are bit-identical.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.sharding import PartitionSpec as P

from bert_jax.kernels import attention_blocks, attention_tpu
from bert_jax.kernels import dropout as drop
from bert_jax.kernels.attention_kernel import kernel_attention
from bert_jax.kernels.attention_tiles import Settings
from bert_jax.sharding import make_mesh
from tests.kernels.plain_attention import LAYER, attention_with_gradient
from tests.tiny_models import jit

pytestmark = pytest.mark.slow

def kernel(
    qkv, *args, rate, window=0, rotary_base=0.0, rotary_factor=1.0, mesh=None, on_gpu=False,
    has_large_vmem=True
):
    settings = Settings(
        qkv.shape[-1], rate, window // 2, rotary_base, on_gpu, has_large_vmem, interpret=True,
        rotary_factor=rotary_factor)
    return kernel_attention(qkv, *args, settings=settings, mesh=mesh)


@functools.cache
def dropout_keys():
    return np.asarray(drop.dropout_keys(1, 2, jnp.arange(5, 25)))


def inputs(batch, length, heads, dtype=jnp.float32, packed=False, dim=64, scale=1.0):
    """NumPy arrays: what jax does outside of a program is a program for each operation.

    Args:
      batch, length, heads, dtype, dim: of the rows.
      packed: whether a row has several sequences: 'short', of up to three tokens.
      scale: of queries and keys.
    """
    rng = np.random.default_rng(0)
    qkv = 2 * rng.standard_normal((batch, length, 3, heads, dim))
    qkv[:, :, :2] *= scale
    qkv = qkv.astype(dtype)
    bias = rng.standard_normal((3, heads, dim)).astype(np.float32)
    d_out = rng.standard_normal((batch, length, heads, dim)).astype(dtype)
    place = np.arange(length)
    if packed == 'short':  # up to three tokens each: numbers of several base-16 digits
        segments = np.broadcast_to(1 + place // 3, (batch, length))
    elif packed:  # sequences 1, 2, 3 of different lengths, then padding
        ends = np.sort(rng.integers(1, length, (batch, 3)), axis=1)
        segments = (place[None, :, None] < ends[:, None]).sum(axis=2)
        segments = np.where(segments, 4 - segments, 0)
    else:
        segments = place < rng.integers(length // 2, length, (batch, 1))
    return qkv, bias, segments.astype(np.int32), dropout_keys()[:batch], d_out


def cut_into_chunks(monkeypatch, most):
    """Has rows of more tokens than this computed in chunks of at most so many."""
    monkeypatch.setattr(attention_tpu, '_LONGEST_ROW', most)
    monkeypatch.setattr(attention_blocks, '_MOST_OF_CHUNK', most)
    monkeypatch.setattr(attention_blocks, '_MOST_OF_CHUNK_IN_SMALL_VMEM', most)


@functools.partial(jit, static_argnums=(0, 6))
def attend_with_gradient(attend, qkv, bias, segments, rows, d_out, rate):
    out, vjp = jax.vjp(lambda x, b: attend(x, b, segments, rows, LAYER, rate=rate), qkv, bias)
    return out, *vjp(d_out)


def with_gradient(*args):
    """What attention returns, and the gradients of qkv and bias, as NumPy arrays."""
    return jax.device_get(attend_with_gradient(*args))


def assert_equal_to_plain(args, d_out, rate, tolerance=1e-5, has_large_vmem=True, **options):
    attend = functools.partial(kernel, has_large_vmem=has_large_vmem, **options)
    found = with_gradient(attend, *args, d_out, rate)
    expected = attention_with_gradient(*args, d_out, rate, **options)
    for a, b in zip(found, expected, strict=True):
        assert np.abs(a - b).max() < tolerance * np.abs(b).max()


@pytest.mark.parametrize('dtype, batch, length, heads, packed, rate, scale', [
    ('float32', 1, 384, 2, 'short', 0.0, 1),
    ('float32', 1, 128, 2, False, 0.1, 0),  # equal scores, so any wrong bit of the mask shows
    ('float32', 1, 128, 2, False, 0.1, 30),  # scores in the thousands overflow nothing
    ('float32', 1, 512, 4, True, 0.1, 1),
    ('bfloat16', 1, 128, 2, True, 0.1, 1)])
def test_values_and_gradients_are_those_of_plain_attention(
    dtype, batch, length, heads, packed, rate, scale
):
    qkv, *args, d_out = inputs(batch, length, heads, dtype, packed, scale=scale)
    found = with_gradient(kernel, qkv, *args, d_out, rate)
    assert [x.dtype for x in found] == [dtype, dtype, 'float32']
    expected = attention_with_gradient(qkv, *args, d_out, rate)
    # Rounding errors, as of bfloat16, are relative to the scores, which reach 20 or thousands.
    tolerance = 0.02 if dtype == 'bfloat16' or scale > 1 else 1e-5
    for a, b in zip(found, expected, strict=True):
        assert np.abs(a.astype(np.float32) - b).max() < tolerance * np.abs(b).max()


def test_units_that_are_several_behind_each_other(monkeypatch):
    """All rows are in one grid step, of which several units are in the buffer at once."""
    monkeypatch.setattr(attention_tpu, '_LEAST_STEPS', 1)
    *args, d_out = inputs(4, 77, 4, packed=True)
    assert_equal_to_plain(args, d_out, 0.3)


def test_small_vmem_takes_fewer_heads_at_once_and_changes_nothing(monkeypatch):
    """A grid step has one of two tiles of heads, and the kernel copies its gradients itself."""
    monkeypatch.setattr(attention_tpu, '_LONGEST_ROW_OF_TWO_TILES', 128)
    monkeypatch.setattr(attention_tpu, '_MOST_OUTPUT_IN_VMEM', 0)
    *args, d_out = inputs(1, 256, 4, packed='short')
    assert_equal_to_plain(args, d_out, 0.1, has_large_vmem=False)


@pytest.mark.parametrize('batch, length, tiles, dim, forward, backward', [
    # The TPU compiler refused these with four rows, of which the backward kernel keeps the output,
    (32, 1024, 3, 64, (32, 3), (32, 3)),
    (256, 512, 1, 32, (64, 1), (64, 1)),  # and with eight.
    (64, 128, 6, 64, (8, 1), (16, 1)),  # Base
    (64, 384, 6, 64, (32, 1), (64, 1)),
    # More rows in the forward kernel would save little and take twice as long to compile.
    (64, 256, 6, 64, (32, 1), (32, 1)),
    (512, 128, 1, 64, (16, 1), (16, 1)),
    (64, 512, 6, 64, (64, 1), (64, 1)),
    (64, 128, 8, 64, (8, 1), (16, 1)),  # Large
    (64, 512, 8, 64, (64, 1), (64, 1)),
    (64, 384, 12, 64, (64, 1), (64, 2)),  # A row is one step where it can be.
])
def test_grid_steps_fit_into_vmem(batch, length, tiles, dim, forward, backward):
    qkv = jax.ShapeDtypeStruct((batch, length, 3 * 128 * tiles), jnp.bfloat16)
    settings = Settings(dim, 0.1)
    assert attention_tpu._Grid(qkv, settings, is_backward=False).shape == forward
    assert attention_tpu._Grid(qkv, settings, is_backward=True).shape == backward


@pytest.mark.parametrize('data, tensor, inside', [(4, 2, False), (2, 2, True)])
def test_rows_and_heads_split_over_devices_change_nothing(data, tensor, inside):
    """Also inside a shard_map over the batch axes, as in the train step."""
    *args, d_out = inputs(4, 128, 4, packed=True)
    mesh = make_mesh(data, 1, tensor, jax.devices()[: data * tensor])
    split = functools.partial(kernel, mesh=mesh)
    if inside:
        def of_own_rows(*args):
            out, d_qkv, d_bias = attend_with_gradient.__wrapped__(split, *args, 0.2)
            return out, d_qkv, jax.lax.psum(d_bias, ('data', 'fsdp'))

        rows, whole = P(('data', 'fsdp')), P()
        found = jax.jit(jax.shard_map(
            of_own_rows, mesh=mesh, in_specs=(rows, whole, rows, rows, rows),
            out_specs=(rows, rows, whole), axis_names={'data', 'fsdp'}, check_vma=False,
        ))(*args, d_out)
    else:
        found = with_gradient(split, *args, d_out, 0.2)
    expected = attention_with_gradient(*args, d_out, 0.2)
    for a, b in zip(found, expected, strict=True):
        assert np.abs(a - b).max() < 1e-5 * np.abs(b).max()


@pytest.mark.parametrize('dim, heads, length', [(32, 4, 256), (64, 2, 100), (128, 1, 256)])
def test_heads_of_other_sizes_and_rotary_positions(dim, heads, length):
    *args, d_out = inputs(1, length, heads, packed=True, dim=dim)
    assert_equal_to_plain(args, d_out, 0.1, rotary_base=160_000.0, rotary_factor=1.5)


@pytest.mark.parametrize('dim, heads, length, window, rate, scale', [
    (64, 2, 128, 2, 0.1, 1),
    (64, 2, 256, 64, 0.0, 1),
    (64, 2, 300, 128, 0.1, 0),  # equal scores, so any wrong bit of the mask shows
    (64, 4, 500, 129, 0.1, 30),  # scores in the thousands: the maximum is subtracted
    (32, 4, 257, 100, 0.2, 1),
    (128, 1, 600, 300, 0.1, 1),
    (64, 2, 300, 599, 0.1, 1),  # everything but the ends of the row
    (64, 2, 128, 1000, 0.1, 1)])  # more than the row
def test_windows(monkeypatch, dim, heads, length, window, rate, scale):
    """In rows of several chunks."""
    cut_into_chunks(monkeypatch, 256)
    is_long = length > 300
    *args, d_out = inputs(1 + is_long, length, heads, packed=is_long, dim=dim, scale=scale)
    tolerance = 0.02 if scale > 1 else 1e-5
    assert_equal_to_plain(args, d_out, rate, tolerance, window=window, rotary_base=10_000.0)


@pytest.mark.parametrize('dim, heads, rate, packed, scale', [
    (64, 2, 0.1, True, 0),
    (64, 4, 0.0, 'short', 1),  # chunks that share no sequence
    (64, 2, 0.1, False, 30),
    (32, 4, 0.3, True, 1),
    (128, 1, 0.1, True, 1)])
def test_rows_of_several_chunks(monkeypatch, dim, heads, rate, packed, scale):
    cut_into_chunks(monkeypatch, 256)
    monkeypatch.setattr(attention_blocks, '_MOST_QUERIES', 128)
    *args, d_out = inputs(2, 650, heads, packed=packed, dim=dim, scale=scale)
    tolerance = 0.02 if scale > 1 else 1e-5
    assert_equal_to_plain(args, d_out, rate, tolerance, rotary_base=160_000.0)


def test_chunks_without_a_common_sequence_are_skipped(monkeypatch):
    """Not even NaN there changes anything."""
    cut_into_chunks(monkeypatch, 128)
    length, chunk = 384, 128
    qkv, bias, _, rows, d_out = inputs(1, length, 2)
    place = np.arange(length)
    segments = (1 + place // chunk - 3 * (place > 350))[None].astype(np.int32)
    with_nan = qkv.copy()
    with_nan[:, chunk : 2 * chunk] = np.nan
    found = with_gradient(kernel, with_nan, bias, segments, rows, d_out, 0.1)[:2]
    expected = with_gradient(kernel, qkv, bias, segments, rows, d_out, 0.1)[:2]
    for a, b in zip(found, expected, strict=True):
        assert np.isnan(a[:, chunk : 2 * chunk]).all()
        np.testing.assert_array_equal(a[:, :chunk], b[:, :chunk])
        np.testing.assert_array_equal(a[:, 2 * chunk :], b[:, 2 * chunk :])


@pytest.mark.parametrize('window', [0, 128])
def test_long_rows(window):
    """In chunks as they are by default."""
    *args, d_out = inputs(1, 1100, 2, packed=True)
    assert_equal_to_plain(args, d_out, 0.1, window=window, rotary_base=160_000.0)


def test_chunks_in_small_vmem_change_nothing(monkeypatch):
    cut_into_chunks(monkeypatch, 256)
    *args, d_out = inputs(1, 600, 2, packed=True)
    for window in (0, 64):
        assert_equal_to_plain(args, d_out, 0.1, window=window, has_large_vmem=False)


@pytest.mark.parametrize('length, window', [(300, 64), (600, 0)])
def test_chunks_in_bfloat16(monkeypatch, length, window):
    cut_into_chunks(monkeypatch, 256)
    qkv, *args, d_out = inputs(1, length, 2, 'bfloat16', packed=True)
    options = {'window': window, 'rotary_base': 10_000.0}
    found = with_gradient(functools.partial(kernel, **options), qkv, *args, d_out, 0.1)
    expected = attention_with_gradient(qkv, *args, d_out, 0.1, **options)
    for a, b in zip(found, expected, strict=True):
        assert np.abs(a.astype(np.float32) - b).max() < 0.02 * np.abs(b).max()


@pytest.mark.parametrize('length, window, has_large_vmem', [
    (200, 0, True), (200, 0, False), (700, 0, True), (700, 64, True)])
def test_blocks_lie_within_their_arrays(monkeypatch, length, window, has_large_vmem):
    """Others are moved into them where a kernel is interpreted, but not on a TPU."""
    cut_into_chunks(monkeypatch, 256)
    call_of = pl.pallas_call
    checked = []

    def checking_call(kernel, *, grid, in_specs, out_specs, out_shape, **options):
        call = call_of(kernel, grid=grid, in_specs=in_specs, out_specs=out_specs,
                       out_shape=out_shape, **options)

        def run(*arrays):
            every = zip(jax.tree.leaves((in_specs, out_specs)),
                        jax.tree.leaves((arrays, out_shape)), strict=True)
            for spec, array in every:
                if spec.block_shape is None:
                    continue  # the kernel copies parts of it
                for place in np.ndindex(*grid):
                    with jax.ensure_compile_time_eval():
                        begins = np.array(spec.index_map(*place)) * spec.block_shape
                    assert (begins >= 0).all()
                    assert (begins + spec.block_shape <= array.shape).all()
                checked.append(spec)
            return call(*arrays)

        return run

    monkeypatch.setattr(pl, 'pallas_call', checking_call)
    qkv, *args, d_out = inputs(3, length, 4, packed=True)
    attend = functools.partial(
        kernel, window=window, has_large_vmem=has_large_vmem, rotary_base=10_000.0)
    attend_with_gradient.eval_shape(attend, qkv, *args, d_out, 0.1)
    assert len(checked) > 10  # of both passes
