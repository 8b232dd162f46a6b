"""The attention kernel, interpreted, against plain attention; dropout's masks are bit-identical."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from bert_jax.model import dropout as drop
from bert_jax.model.attention_kernel import kernel_attention
from bert_jax.sharding import make_mesh
from tests.tiny_models import jit

pytestmark = pytest.mark.slow

LAYER = 3
kernel = functools.partial(kernel_attention, interpret=True)


def plain(qkv, bias, segments, rows, layer, *, rate):
    """Attention as XLA does it; scores and probabilities in float32."""
    qkv = qkv + bias.astype(qkv.dtype)
    q, k, v = (qkv[:, :, i].astype(jnp.float32) for i in range(3))
    scores = jnp.einsum('bqnd,bknd->bnqk', q, k) / 8
    same = segments[:, None, :, None] == segments[:, None, None, :]
    probs = jax.nn.softmax(jnp.where(same, scores, -jnp.inf), axis=-1)
    probs = drop.dropout(probs, rate, rows, drop.ATTENTION_PROBS, layer)
    return jnp.einsum('bnqk,bknd->bqnd', probs, v).astype(qkv.dtype)


def inputs(batch, length, heads, dtype=jnp.float32, packed=False, seed=0):
    rng = np.random.default_rng(seed)
    qkv = jnp.asarray(2 * rng.standard_normal((batch, length, 3, heads, 64)), dtype)
    bias = jnp.asarray(rng.standard_normal((3, heads, 64)), jnp.float32)
    d_out = jnp.asarray(rng.standard_normal((batch, length, heads, 64)), dtype)
    place = np.arange(length)
    if packed == 'short':  # up to three tokens each: numbers of several base-16 digits
        segments = np.broadcast_to(1 + place // 3, (batch, length))
    elif packed:  # sequences 1, 2, 3 of different lengths, then padding
        ends = np.sort(rng.integers(1, length, (batch, 3)), axis=1)
        segments = (place[None, :, None] < ends[:, None]).sum(axis=2)
        segments = np.where(segments, 4 - segments, 0)
    else:
        segments = place < rng.integers(length // 2, length, (batch, 1))
    rows = drop.dropout_rows(1, 2, jnp.arange(5, 5 + batch))
    return qkv, bias, jnp.asarray(segments, jnp.int32), rows, d_out


@functools.partial(jit, static_argnums=(0, 6))
def with_gradient(attend, qkv, bias, segments, rows, d_out, rate):
    out, vjp = jax.vjp(lambda x, b: attend(x, b, segments, rows, LAYER, rate=rate), qkv, bias)
    return out, *vjp(d_out)


@pytest.mark.parametrize('dtype, batch, length, heads, packed, rate, scale', [
    ('float32', 1, 384, 2, 'short', 0.0, 1),
    ('float32', 1, 128, 2, False, 0.1, 0),  # equal scores, so any wrong bit of the mask shows
    ('float32', 1, 128, 2, False, 0.1, 30),  # scores in the thousands overflow nothing
    ('float32', 2, 77, 4, True, 0.3, 1),
    ('float32', 1, 512, 4, True, 0.1, 1),  # both pairs of heads in a grid step
    ('float32', 1, 1100, 4, 'short', 0.1, 1),  # a pair in a step, two steps a row
    ('bfloat16', 1, 128, 2, True, 0.1, 1)])
def test_values_and_gradients_are_those_of_plain_attention(
    dtype, batch, length, heads, packed, rate, scale
):
    qkv, *args, d_out = inputs(batch, length, heads, dtype, packed)
    qkv = qkv.at[:, :, :2].multiply(scale)
    found = with_gradient(kernel, qkv, *args, d_out, rate)
    assert [x.dtype for x in found] == [dtype, dtype, 'float32']
    expected = with_gradient(plain, *(x.astype('float32') for x in (qkv, args[0])), *args[1:],
                             d_out.astype('float32'), rate)
    # Rounding errors, as of bfloat16, are relative to the scores, which reach 20 or thousands.
    tolerance = 0.02 if dtype == 'bfloat16' or scale > 1 else 1e-5
    for a, b in zip(found, expected, strict=True):
        a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
        assert np.abs(a - b).max() < tolerance * np.abs(b).max()


@pytest.mark.parametrize('data, tensor, inside', [(4, 2, False), (2, 2, True)])
def test_rows_and_heads_split_over_devices_change_nothing(data, tensor, inside):
    """Also inside a shard_map over the batch axes, as in the train step."""
    *args, d_out = inputs(4, 128, 4, packed=True)
    mesh = make_mesh(data, 1, tensor, jax.devices()[: data * tensor])
    split = functools.partial(kernel_attention, mesh=mesh, interpret=True)
    if inside:
        def of_own_rows(*args):
            out, d_qkv, d_bias = with_gradient.__wrapped__(split, *args, 0.2)
            return out, d_qkv, jax.lax.psum(d_bias, ('data', 'fsdp'))

        rows, whole = P(('data', 'fsdp')), P()
        found = jax.jit(jax.shard_map(
            of_own_rows, mesh=mesh, in_specs=(rows, whole, rows, rows, rows),
            out_specs=(rows, rows, whole), axis_names={'data', 'fsdp'}, check_vma=False,
        ))(*args, d_out)
    else:
        found = with_gradient(split, *args, d_out, 0.2)
    expected = with_gradient(plain, *args, d_out, 0.2)
    for a, b in zip(found, expected, strict=True):
        assert np.abs(a - b).max() < 1e-5 * np.abs(b).max()
