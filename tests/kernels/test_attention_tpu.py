"""The attention kernels for TPUs, interpreted, against plain attention.

Dropout's masks are bit-identical.
"""

import contextlib
import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec as P

from bert_jax.kernels import attention_blocks, attention_tpu
from bert_jax.kernels import dropout as drop
from bert_jax.kernels.attention_kernel import kernel_attention
from bert_jax.kernels.attention_tiles import Settings
from bert_jax.sharding import make_mesh
from tests.kernels.plain_attention import LAYER, attention_with_gradient
from tests.tiny_models import jit


def kernel(
    qkv, *args, rate, window=0, rotary_base=0.0, rotary_factor=1.0, mesh=None, on_gpu=False,
    has_large_vmem=True, interpret=True
):
    settings = Settings(
        qkv.shape[-1], rate, window // 2, rotary_base, on_gpu, has_large_vmem, interpret,
        rotary_factor)
    return kernel_attention(qkv, *args, settings=settings, mesh=mesh)


@functools.cache
def dropout_keys():
    return np.asarray(drop.dropout_keys(1, 2, np.arange(5, 25)))


def inputs(batch, length, heads, dtype=jnp.float32, packed=False, dim=64, scale=1.0):
    """NumPy arrays: what jax does outside of a program is a program for each operation.

    Args:
      batch, length, heads, dtype, dim: of the rows.
      packed: whether a row has several sequences: 'short', of up to three tokens; 'short, whole':
        of two rows the first.
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
    elif packed == 'short, whole':
        segments = np.stack([1 + place // 3, np.ones(length)])
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


@contextlib.contextmanager
def computed_once():
    """No grid step may be computed again with the maximum subtracted: scores are small."""
    def fail(step):
        step._context_ref[...] = jnp.full(step._context_ref.shape, jnp.nan, step._context_ref.dtype)

    with (mock.patch.object(attention_tpu._ForwardStep, 'run_safely', fail),
          mock.patch.object(attention_blocks._ForwardStep, '_run_safely', fail)):
        yield


# What an array of inputs is like: how it is packed, and the scale of queries and keys.
PACKED, SHORT = (True, 1), ('short', 1)
DIFFERENT_ROWS = ('short, whole', 1)  # the second visits chunks that the first does not
EQUAL = (True, 0)  # equal scores, so any wrong bit of dropout's mask shows
HUGE = (False, 30)  # scores in the thousands overflow nothing: the maximum is subtracted


def assert_equal_to_plain(
    kinds, batch, length, heads, rate, *, dim=64, dtype='float32', has_large_vmem=True, **options
):
    """Values and gradients for each kind of inputs, by one program."""
    attend = functools.partial(kernel, has_large_vmem=has_large_vmem, **options)
    for packed, scale in kinds:
        qkv, *args, d_out = inputs(batch, length, heads, dtype, packed, dim, scale)
        with contextlib.nullcontext() if HUGE in kinds else computed_once():
            found = with_gradient(attend, qkv, *args, d_out, rate)
        assert [x.dtype for x in found] == [dtype, dtype, 'float32']
        expected = attention_with_gradient(qkv, *args, d_out, rate, **options)
        # Rounding errors, as of bfloat16, are relative to the scores, which reach thousands.
        tolerance = 0.02 if dtype == 'bfloat16' or scale > 1 else 1e-5
        for a, b in zip(found, expected, strict=True):
            assert np.abs(a.astype(np.float32) - b).max() < tolerance * np.abs(b).max()


@pytest.mark.parametrize('kinds, length, heads, dim, rate, options', [
    ([EQUAL, HUGE, PACKED], 128, 2, 64, 0.1, {'window': 1000}),  # more than the row
    ([SHORT, HUGE], 384, 1, 128, 0.0, {'rotary_base': 160_000.0})])
def test_values_and_gradients_are_those_of_plain_attention(
    kinds, length, heads, dim, rate, options
):
    assert_equal_to_plain(kinds, 1, length, heads, rate, dim=dim, **options)


def test_four_heads_of_a_tile():
    assert_equal_to_plain(
        [PACKED], 1, 256, 4, 0.1, dim=32, rotary_base=160_000.0, rotary_factor=1.5)


def test_whole_rows_in_bfloat16():
    assert_equal_to_plain([PACKED], 1, 128, 2, 0.1, dtype='bfloat16')


def test_units_that_are_several_behind_each_other(monkeypatch):
    """All rows are in one grid step, of which several units are in the buffer at once."""
    monkeypatch.setattr(attention_tpu, '_LEAST_STEPS', 1)
    monkeypatch.setattr(attention_tpu, '_lag', lambda units: 2)  # as of twice as many
    assert_equal_to_plain([PACKED], 2, 77, 4, 0.3)


def test_small_vmem_takes_fewer_heads_at_once_and_changes_nothing(monkeypatch):
    """A grid step has one of two tiles of heads, and the kernel copies its gradients itself."""
    monkeypatch.setattr(attention_tpu, '_LONGEST_ROW_OF_TWO_TILES', 128)
    monkeypatch.setattr(attention_tpu, '_MOST_OUTPUT_IN_VMEM', 0)
    assert_equal_to_plain(
        [SHORT], 1, 384, 4, 0.1, has_large_vmem=False, rotary_base=10_000.0)


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
        attend = jax.jit(jax.shard_map(
            of_own_rows, mesh=mesh, in_specs=(rows, whole, rows, rows, rows),
            out_specs=(rows, rows, whole), axis_names={'data', 'fsdp'}, check_vma=False))
    else:
        def attend(*args):
            return with_gradient(split, *args, 0.2)

    with computed_once():
        found = attend(*args, d_out)
    expected = attention_with_gradient(*args, d_out, 0.2)
    for a, b in zip(found, expected, strict=True):
        assert np.abs(a - b).max() < 1e-5 * np.abs(b).max()


@pytest.mark.parametrize('kinds, chunk, dim, heads, length, window, rate', [
    ([PACKED], 128, 64, 4, 128, 2, 0.0),
    ([EQUAL, HUGE], 256, 64, 2, 500, 129, 0.1),
    ([PACKED], 128, 32, 4, 257, 100, 0.2),
    ([PACKED], 256, 128, 1, 600, 300, 0.1)])
def test_windows(monkeypatch, kinds, chunk, dim, heads, length, window, rate):
    """In rows of one or several chunks."""
    cut_into_chunks(monkeypatch, chunk)
    assert_equal_to_plain(
        kinds, 1 + (length == 600), length, heads, rate, dim=dim, window=window,
        rotary_base=10_000.0)


@pytest.mark.parametrize('kinds, length, dim, heads, rate, options', [
    ([EQUAL, HUGE], 500, 64, 4, 0.1, {}),
    ([PACKED, DIFFERENT_ROWS], 650, 32, 4, 0.3, {}),
    # Chunks that share no sequence; and a grid step has one of two tiles of heads.
    ([SHORT, HUGE], 650, 128, 2, 0.0, {'has_large_vmem': False})])
def test_rows_of_several_chunks(monkeypatch, kinds, length, dim, heads, rate, options):
    cut_into_chunks(monkeypatch, 256)
    monkeypatch.setattr(attention_blocks, '_MOST_QUERIES', 256 if dim == 32 else 128)
    assert_equal_to_plain(
        kinds, 1 + (dim == 32), length, heads, rate, dim=dim, rotary_base=160_000.0, **options)


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


def test_long_rows():
    """In chunks as they are by default."""
    assert_equal_to_plain([PACKED], 1, 1100, 1, 0.1, dim=128, rotary_base=160_000.0)


def test_windows_in_bfloat16(monkeypatch):
    cut_into_chunks(monkeypatch, 128)
    assert_equal_to_plain(
        [PACKED], 1, 300, 2, 0.1, dtype='bfloat16', window=64, rotary_base=10_000.0)


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('length, window, has_large_vmem', [
    (200, 0, True), (200, 0, False), (700, 0, True), (700, 64, True)])
def test_blocks_lie_within_their_arrays(monkeypatch, length, window, has_large_vmem, dtype):
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
    qkv, *args, d_out = inputs(2, length, 4, dtype, packed=True)
    attend = functools.partial(
        kernel, window=window, has_large_vmem=has_large_vmem, rotary_base=10_000.0)
    attend_with_gradient.eval_shape(attend, qkv, *args, d_out, 0.1)
    assert len(checked) > 10  # of both passes


@pytest.mark.parametrize('length', [128, 200])
def test_no_index_is_beyond_an_array_in_vmem(monkeypatch, length):
    """This interpreter, which is slower, refuses the index that the other moves into the array."""
    cut_into_chunks(monkeypatch, 128)
    qkv, *args, d_out = inputs(1, length, 2, packed=True)
    attend = functools.partial(kernel, interpret=pltpu.InterpretParams())
    for found in with_gradient(attend, qkv, *args, d_out, 0.1):
        assert np.isfinite(found).all()
