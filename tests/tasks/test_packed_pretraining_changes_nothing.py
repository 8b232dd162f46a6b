"""Packed pre-training has the losses, scores and gradients of the same pairs unpacked."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from bert_jax.data.masking import MaskingRates
from bert_jax.data.packing import PackedExamples
from bert_jax.heads.pretraining import Pretraining
from bert_jax.train.sharding import Layout, make_mesh, to_global
from bert_jax.train.step import init_state, make_train_step
from tests.data.test_pretrain import _examples, _random_store
from tests.tasks.test_packing_changes_nothing import CONFIG, one_device

BATCH, ROWS = 40, 32


@functools.cache
def batches():
    """(unpacked, packed) rows of one step."""
    store = _random_store(80, most_sentences=6, most_tokens=12)
    store.tokens %= CONFIG.vocab_size
    examples = _examples(store, masking=MaskingRates(random_rate=0.0))
    packed = PackedExamples(examples, BATCH, ROWS)
    return examples.rows(BATCH + np.arange(BATCH)), packed.rows(ROWS + np.arange(ROWS))


def test_loss_scores_and_gradients_are_those_of_a_row_each():
    task = Pretraining(CONFIG)
    params = nn.meta.unbox(jax.jit(task.init)(jax.random.key(0)))

    @jax.jit
    def results(batch):
        (value, sums), grads = jax.value_and_grad(
            lambda params: task.loss(params, batch, task.totals(batch), None), has_aux=True
        )(params)
        return value, sums, grads

    unpacked, packed = batches()
    assert packed['input_mask'].max() > 1
    (value, sums, grads), others = results(unpacked), results(packed)
    assert sums['rows'] == BATCH and sums['mlm_count'] > 2 * BATCH
    np.testing.assert_allclose(task.score(sums)['nsp_loss'], task.score(others[1])['nsp_loss'],
                               rtol=1e-5)
    for one, other in zip(
        jax.tree.leaves((value, sums, grads)), jax.tree.leaves(others), strict=True
    ):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize('parts', [1, 2])
def test_a_step_on_eight_devices_is_that_of_one_with_dropout_on(parts):
    results = []
    for mesh, parts_here in ((make_mesh(4, 2, 1), parts), (one_device(), 1)):
        task = Pretraining(dataclasses.replace(CONFIG, layout=Layout(mesh)))
        optimizer = optax.sgd(0.1)
        step = make_train_step(
            task, optimizer, lambda count: jnp.float32(0.1), mesh, seed=0, clip_norm=1.0,
            accumulation_steps=parts_here)
        batch = to_global(mesh, batches()[1], ROWS, range(ROWS))
        state, metrics = step(init_state(task, optimizer, mesh, 0), batch)
        results.append(jax.device_get((metrics, state.params)))
    for sharded, whole in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(sharded, whole, rtol=2e-5, atol=1e-6)
