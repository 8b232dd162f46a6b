"""A batch of 128 rows, whose examples are compared with each other, in parts and on 8 devices."""

import dataclasses
import functools

import jax
import numpy as np
import optax
import pytest

from bert_jax.heads.retrieval import Retrieval, ScoredPairs
from bert_jax.kernels.dropout import dropout_keys
from bert_jax.model.layers import ModelConfig
from bert_jax.rows.packing import Plan, Units, packed_batch
from bert_jax.rows.sequences import Sequences
from bert_jax.sharding import Layout, make_mesh, to_global
from bert_jax.step.gradients import global_gradient
from bert_jax.step.step import abstract_state
from tests.tiny_models import assert_close, random_like

NUM_PAIRS = 128
CONFIG = ModelConfig(
    vocab_size=50, num_layers=1, hidden_size=16, num_heads=2, intermediate_size=16,
    max_position_embeddings=16, hidden_dropout=0.2, attention_dropout=0.2)
HEADS = {
    'retrieval': Retrieval(CONFIG, learn_temperature=True),
    'scored pairs': ScoredPairs(CONFIG),
}


@functools.cache
def rows_of_pairs():
    """The global batch: a pair a row, of texts of four tokens."""
    rng = np.random.default_rng(0)
    sequences = Sequences.of_segments(
        rng.integers(0, 50, 8 * NUM_PAIRS).astype(np.int32), np.arange(0, 8 * NUM_PAIRS + 1, 4),
        np.full(2 * NUM_PAIRS, 4))
    units = Units(sequences, 2, labels={
        'text_ids': rng.integers(0, 94, (NUM_PAIRS, 2)).astype(np.int32),
        'labels': rng.random(NUM_PAIRS).astype(np.float32)})
    plan = Plan.row_each(units.lengths, np.arange(NUM_PAIRS)[None])
    return packed_batch(units, plan, 0, np.arange(NUM_PAIRS))


def gradient(name, num_devices, parts):
    """(gradient, loss) of the batch with dropout, on so many devices, in so many parts of each."""
    mesh = make_mesh(num_devices, 1, 1, jax.devices()[:num_devices])
    head = HEADS[name]
    head = dataclasses.replace(
        head, config=dataclasses.replace(head.config, layout=Layout(mesh)))
    shardings = jax.tree.map(
        lambda x: x.sharding, abstract_state(head, optax.sgd(1.0), mesh).params)
    params = random_like(jax.eval_shape(head.init, jax.random.key(0)), scale=0.3)
    keys = dropout_keys(7, 3, np.arange(NUM_PAIRS))

    @jax.jit
    def compute(params, batch, keys):
        grads, loss, _ = global_gradient(
            head, params, batch, keys, parts, mesh, shardings, 'float32')
        return grads, loss

    batch = to_global(mesh, rows_of_pairs(), NUM_PAIRS, np.arange(NUM_PAIRS))
    return jax.device_get(compute(jax.device_put(params, shardings), batch, keys))


@pytest.mark.parametrize('name, splits', [
    ('retrieval', [(1, 16), (8, 4)]), ('scored pairs', [(8, 4)])])
def test_parts_of_a_large_batch_give_the_gradient_of_the_whole(name, splits):
    """Dropout is on, and equal in both passes: else the gradients would differ by far more."""
    whole = gradient(name, 1, 1)
    assert max(np.abs(x).max() for x in jax.tree.leaves(whole[0])) > 1e-3
    for num_devices, parts in splits:
        assert_close(gradient(name, num_devices, parts), whole, rtol=1e-6, atol=1e-6)
