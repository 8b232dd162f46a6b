"""The attention kernel, interpreted: plain attention's numbers and dropout's masks, bit for bit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model import dropout as drop
from bert_jax.model.attention_kernel import MAX_HEADS, MAX_LENGTH, kernel_attention, refusal
from bert_jax.train.sharding import make_mesh

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
    if packed:  # sequences 1, 2, 3 of different lengths, then padding
        ends = np.sort(rng.integers(1, length, (batch, 3)), axis=1)
        segments = (place[None, :, None] < ends[:, None]).sum(axis=2)
        segments = np.where(segments, 4 - segments, 0)
    else:
        segments = place < rng.integers(length // 2, length, (batch, 1))
    rows = drop.dropout_rows(1, 2, jnp.arange(5, 5 + batch))
    return qkv, bias, jnp.asarray(segments, jnp.int32), rows, d_out


# Half the time to compile.
@functools.partial(
    jax.jit, static_argnums=(0, 6), compiler_options={'xla_backend_optimization_level': 0}
)
def with_gradient(attend, qkv, bias, segments, rows, d_out, rate):
    out, vjp = jax.vjp(lambda x, b: attend(x, b, segments, rows, LAYER, rate=rate), qkv, bias)
    return out, *vjp(d_out)


@pytest.mark.parametrize('dtype, batch, length, heads, packed, rate', [
    ('float32', 1, 128, 2, False, 0.1),
    ('float32', 2, 77, 4, True, 0.3),
    ('float32', 1, 384, 2, True, 0.0),
    ('float32', 1, 512, 4, True, 0.1),  # two pairs of heads in a step
    ('bfloat16', 1, 128, 2, True, 0.1),
])
def test_values_and_gradients_are_those_of_plain_attention(
    dtype, batch, length, heads, packed, rate
):
    *args, d_out = inputs(batch, length, heads, dtype, packed)
    found = with_gradient(kernel, *args, d_out, rate)
    expected = with_gradient(plain, *args, d_out, rate)
    assert [x.dtype for x in found] == [dtype, dtype, 'float32']
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        a, b = np.asarray(a, np.float32), np.asarray(b, np.float32)
        tolerance = 1e-5 if dtype == 'float32' else 0.01  # two units in bfloat16's last place
        assert np.abs(a - b).max() < tolerance * np.abs(b).max()


def test_masks_are_those_of_dropout_bit_for_bit_forward_and_backward():
    """With equal scores, context is the mask times a matrix of ones and zeros."""
    length, rate = 128, 0.1
    rows = drop.dropout_rows(7, 8, jnp.arange(1))
    shape = (1, 2, length, length)
    mask = np.asarray(drop.dropout(jnp.ones(shape), rate, rows, drop.ATTENTION_PROBS, LAYER)) > 0
    for start in range(0, length, 64):
        part = slice(start, start + 64)
        values = jnp.broadcast_to(jnp.eye(length)[None, :, None, part], (1, length, 2, 64))
        qkv = jnp.stack([jnp.zeros_like(values), jnp.zeros_like(values), values], axis=2)
        segments = jnp.ones((1, length), jnp.int32)
        bias = jnp.zeros((3, 2, 64))
        out, d_qkv, _ = with_gradient(kernel, qkv, bias, segments, rows, values, rate)
        np.testing.assert_array_equal(out.transpose(0, 2, 1, 3) > 0, mask[..., part])
        np.testing.assert_array_equal(d_qkv[:, :, 2].transpose(0, 2, 3, 1) > 0, mask[:, :, part])


@pytest.mark.parametrize('data, tensor, inside', [(4, 2, False), (2, 2, True)])
def test_rows_and_heads_split_over_devices_change_nothing(data, tensor, inside):
    """Also where the batch's axes are the caller's already, as in the train step."""
    *args, d_out = inputs(4, 128, 4, packed=True)
    mesh = make_mesh(data, 1, tensor, jax.devices()[: data * tensor])
    split = functools.partial(kernel_attention, mesh=mesh, interpret=True)
    if inside:
        def of_own_rows(*args):
            out, d_qkv, d_bias = with_gradient.__wrapped__(split, *args, 0.2)
            return out, d_qkv, jax.lax.psum(d_bias, ('data', 'fsdp'))

        rows = jax.sharding.PartitionSpec(('data', 'fsdp'))
        run = jax.jit(jax.shard_map(
            of_own_rows, mesh=mesh, in_specs=(rows, jax.sharding.PartitionSpec(), *(rows,) * 3),
            out_specs=(rows, rows, jax.sharding.PartitionSpec()), axis_names={'data', 'fsdp'},
            check_vma=False,
        ))
        found = run(*args, d_out)
    else:
        found = with_gradient(split, *args, d_out, 0.2)
    expected = with_gradient(plain, *args, d_out, 0.2)
    for a, b in zip(found, expected, strict=True):
        assert np.abs(a - b).max() < 1e-5 * np.abs(b).max()


def test_large_scores_overflow_nothing():
    qkv, *args = inputs(1, 128, 2)
    qkv = qkv.at[:, :, :2].multiply(30)  # scores in the thousands
    found = with_gradient(kernel, qkv, *args, 0.1)
    expected = with_gradient(plain, qkv, *args, 0.1)
    for a, b in zip(found, expected, strict=True):
        assert np.abs(a - b).max() < 0.02 * np.abs(b).max()


@pytest.mark.parametrize('platform, dtype, length, heads, head_dim, said', [
    ('tpu', 'bfloat16', 512, 12, 64, None),
    ('tpu', 'bfloat16', 77, 2, 64, None),
    ('cpu', 'bfloat16', 128, 12, 64, 'cpu'),
    ('gpu', 'bfloat16', 128, 12, 64, 'gpu'),
    ('tpu', 'float32', 128, 12, 64, 'float32'),
    ('tpu', 'bfloat16', 128, 3, 64, '3'),
    ('tpu', 'bfloat16', 128, MAX_HEADS + 2, 64, str(MAX_HEADS + 2)),
    ('tpu', 'bfloat16', 128, 8, 32, '32'),
    ('tpu', 'bfloat16', MAX_LENGTH + 1, 12, 64, str(MAX_LENGTH + 1)),
])
def test_what_it_cannot_serve_it_says(platform, dtype, length, heads, head_dim, said):
    reason = refusal(platform, dtype, length, heads, head_dim)
    assert reason is None if said is None else said in reason
