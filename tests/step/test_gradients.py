"""Large parameters and gradients travel in bfloat16, and the loss stays that of one device."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.heads.pretraining import Pretraining
from bert_jax.kernels.dropout import dropout_keys
from bert_jax.model.encoder import look_up
from bert_jax.model.layers import ModelConfig
from bert_jax.sharding import Layout, to_global, tree_shardings
from bert_jax.step.gradients import global_gradient, gradient_of_rows
from tests.tiny_models import assert_close, drawn_params, jit
from tests.train.toy import mesh

BATCH_SIZE = 16
ROUNDING = 2.0**-8  # the largest relative error of a number that is rounded to bfloat16

# Meshes with the batch whole or in two parts.
IN_BFLOAT16 = pytest.mark.parametrize(
    'axes, parts', [((8, 1, 1), 1), ((2, 2, 2), 2)], ids=str)


def rows_of_bert():
    """A batch, most of whose tokens are the same."""
    rng = np.random.default_rng(0)
    ids = rng.integers(5, 300, (BATCH_SIZE, 16), np.int32)
    ids[:, 2:12] = 7
    return {
        'input_ids': ids,
        'sequence_ids': np.ones_like(ids),
        'segment_ids': np.zeros_like(ids),
        'masked_lm_positions': np.tile(np.arange(4, dtype=np.int32), (BATCH_SIZE, 1)),
        'masked_lm_ids': ids[:, :4],
        'masked_lm_weights': np.ones((BATCH_SIZE, 4), np.float32),
        'next_sentence_labels': rng.integers(0, 2, BATCH_SIZE, np.int32),
        'example_weights': np.ones(BATCH_SIZE, np.float32),
    }


def small_bert(layout):
    return Pretraining(ModelConfig(
        vocab_size=300, num_layers=1, hidden_size=32, num_heads=4, intermediate_size=64,
        max_position_embeddings=16, layout=layout))


@functools.cache
def lowered_gradient(axes, message_dtype, parts=1):
    """The gradient of a small BERT in float32 with dropout, lowered, and its arguments."""
    on = mesh(*axes)
    head = small_bert(Layout(on))
    shardings = tree_shardings(on, jax.eval_shape(head.init, jax.random.key(0)))
    params = jax.device_put(drawn_params(head, scale=0.1), shardings)
    batch = to_global(on, rows_of_bert(), BATCH_SIZE, range(BATCH_SIZE))

    def gradient(params, batch):
        dropout_keys_Bx2 = dropout_keys(0, 0, jnp.arange(BATCH_SIZE, dtype=jnp.uint32))
        return global_gradient(
            head, params, batch, dropout_keys_Bx2, parts, on, shardings, message_dtype)

    return jit(gradient).lower(params, batch), (params, batch)


@functools.cache
def gradient_and_loss(axes, message_dtype, parts=1):
    """As numpy arrays."""
    lowered, arguments = lowered_gradient(axes, message_dtype, parts)
    grads, loss, _ = jax.device_get(lowered.compile()(*arguments))
    return grads, loss


@pytest.fixture(scope='module')
def alone():
    """(gradient, loss) on one device."""
    return gradient_and_loss((1, 1, 1), 'bfloat16')


@pytest.mark.slow
@IN_BFLOAT16
def test_the_loss_is_that_of_one_device(alone, axes, parts):
    _, loss = gradient_and_loss(axes, 'bfloat16', parts)
    np.testing.assert_allclose(loss, alone[1], rtol=1e-6)


@pytest.mark.slow
def test_one_device_rounds_its_parameters_too(alone):
    _, unrounded = gradient_and_loss((1, 1, 1), 'float32')
    assert 1e-6 < abs(alone[1] - unrounded) / unrounded < ROUNDING


@pytest.mark.slow
@IN_BFLOAT16
def test_gradients_differ_by_the_rounding_of_messages(alone, axes, parts):
    """Each array, by its norm, by that of two messages at most; biases, which are small, do not."""
    grads, _ = gradient_and_loss(axes, 'bfloat16', parts)

    def check(found, expected):
        assert found.dtype == np.float32
        error = np.linalg.norm(found - expected)
        most = 2 * ROUNDING if found.ndim >= 2 else 1e-5
        assert error <= most * np.linalg.norm(expected) + 1e-7

    jax.tree.map(check, grads, alone[0])


@pytest.mark.slow
def test_in_float32_gradients_are_those_of_one_device():
    expected, _ = gradient_and_loss((1, 1, 1), 'float32')
    found, _ = gradient_and_loss((2, 4, 1), 'float32')
    assert_close(found, expected, rtol=1e-5, atol=1e-6)


GATHERED = re.compile(r'stablehlo\.all_gather.*: \(tensor<[\dx]+x(\w+)>\)')
REDUCED = re.compile(r'stablehlo\.reduce_scatter"(?:.*\n)*?.*\}\) : \(tensor<[\dx]+x(\w+)>\)')


@pytest.mark.parametrize(('axes', 'message_dtype', 'name'), [
    ((8, 1, 1), 'bfloat16', 'bf16'), ((2, 4, 1), 'float32', 'f32')])
def test_messages_of_matrices_have_the_dtype(axes, message_dtype, name):
    lowered, _ = lowered_gradient(axes, message_dtype)
    text = lowered.as_text()
    assert set(GATHERED.findall(text)) == {name}
    assert set(REDUCED.findall(text)) == {name}


@pytest.mark.parametrize('dtype', [jnp.bfloat16, jnp.float32])
def test_the_gradient_of_a_row_is_summed_in_float32(dtype):
    """In bfloat16, a sum of ones would stay at 256."""
    table = jnp.zeros((8, 2), dtype)
    ids = jnp.full((64, 16), 5)
    gradient = jax.grad(lambda table: look_up(table, ids).sum())(table)
    assert gradient.dtype == dtype
    np.testing.assert_array_equal(gradient[5], [1024, 1024])
    assert not gradient[:5].any()


def test_rows_are_those_of_the_table_in_float32():
    table = jnp.arange(12, dtype=jnp.bfloat16).reshape(4, 3)
    rows = look_up(table, jnp.array([[3, 0]]))
    assert rows.dtype == jnp.float32
    np.testing.assert_array_equal(rows, [[[9, 10, 11], [0, 1, 2]]])


class CountedRows:
    """A head that notes of how many rows its losses are."""

    loss_spans_batch = False

    def __init__(self):
        self.rows = set()

    def loss(self, params, batch, totals, dropout_keys_Bx2):
        self.rows.add(len(dropout_keys_Bx2))
        return (params * batch['x']).sum(), {'rows': jnp.float32(len(dropout_keys_Bx2))}


@pytest.mark.parametrize(('parts', 'at_once'), [(1, 8), (4, 2)])
def test_no_more_rows_than_those_of_a_part_are_in_memory(parts, at_once):
    head = CountedRows()
    batch = {'x': jnp.arange(8.0)}
    grads, loss, sums = gradient_of_rows(
        head, jnp.float32(3.0), batch, jnp.zeros((8, 2), jnp.uint32), {}, parts, Layout())
    assert head.rows == {at_once}
    assert (grads, loss, sums) == (28, 84, {'rows': 8})
