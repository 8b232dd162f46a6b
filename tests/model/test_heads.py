"""Masked-LM loss in parts against plain cross entropy; accuracy; logits in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax.heads.base import cross_entropy
from bert_jax.heads.classification import BertForSequenceClassification
from bert_jax.heads.masked_lm_loss import masked_lm_logits, masked_lm_loss, mlm_chunks
from bert_jax.heads.pretraining import PADDING_LOGIT
from bert_jax.heads.tokens import BertForTokens
from bert_jax.model.layers import ModelConfig
from bert_jax.sharding import Layout
from tests.tiny_models import jit, random_like

BATCH, SLOTS, HIDDEN, VOCAB, PADDED = 4, 10, 16, 50, 64


def inputs(dtype=jnp.float32):
    """((hidden, table, bias), labels, weights): some slots are empty, in one row all."""
    keys = jax.random.split(jax.random.key(0), 4)
    hidden = jax.random.normal(keys[0], (BATCH, SLOTS, HIDDEN)).astype(dtype)
    table = jax.random.normal(keys[1], (PADDED, HIDDEN)).at[VOCAB:].set(0).astype(dtype)
    bias = jax.random.normal(keys[2], (PADDED,)).at[VOCAB:].set(PADDING_LOGIT)
    labels = jax.random.randint(keys[3], (BATCH, SLOTS), 0, VOCAB)
    used = np.arange(SLOTS) < np.array([[10], [7], [1], [0]])
    return (hidden, table, bias), labels, jnp.array(used, jnp.float32)


def gradients(loss, dtype=jnp.float32):
    """(value, gradients) of 3 times a loss of the inputs."""
    output, labels, weights = inputs(dtype)
    return jit(jax.value_and_grad(lambda o: 3.0 * loss(o, labels, weights)))(output)


def chunked(chunks):
    return lambda *inputs: masked_lm_loss(*inputs, chunks, Layout()).loss


@pytest.fixture(scope='module')
def plain():
    return gradients(lambda output, labels, weights: jnp.sum(weights * (
        optax.softmax_cross_entropy_with_integer_labels(masked_lm_logits(output), labels))))


@pytest.mark.parametrize('chunks', [1, 2, 5, 10])
def test_loss_and_gradients_are_those_of_plain_cross_entropy(plain, chunks):
    loss, grads = gradients(chunked(chunks))
    np.testing.assert_allclose(loss, plain[0], rtol=1e-6)
    for ours, theirs in zip(grads, plain[1], strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    weights = inputs()[2]
    assert not grads[0][weights == 0].any() and jnp.abs(grads[0][weights == 1]).min() > 0
    assert not grads[1][VOCAB:].any() and not grads[2][VOCAB:].any()


def test_gradients_in_bfloat16_are_close_to_float32(plain):
    loss, grads = gradients(chunked(2), jnp.bfloat16)
    assert [g.dtype for g in grads] == [jnp.bfloat16, jnp.bfloat16, jnp.float32]
    np.testing.assert_allclose(loss, plain[0], rtol=5e-3)
    for ours, theirs in zip(grads, plain[1], strict=True):
        error = jnp.linalg.norm(ours.astype(jnp.float32) - theirs) / jnp.linalg.norm(theirs)
        assert error < 0.02


def test_a_label_far_below_the_others_has_a_large_loss_and_finite_gradients():
    output, labels, weights = inputs()
    bias = output[2].at[labels[0, 0]].add(-1000.0)
    loss, (d_hidden, *_) = jax.value_and_grad(
        lambda hidden: chunked(1)((hidden, output[1], bias), labels, weights))(output[0])
    assert 80 < loss < 1e4 and jnp.isfinite(d_hidden).all()


def test_correct_predictions_are_counted_where_the_weight_is_one():
    output, labels, weights = inputs()
    best = masked_lm_logits(output).argmax(-1)
    labels = jnp.where(jnp.arange(SLOTS) < 5, best, (best + 1) % VOCAB)  # right in slots 0 to 4
    for chunks in (1, 2):
        sums = masked_lm_loss(output, labels, weights, chunks, Layout())
        assert sums.correct == 5 + 5 + 1 + 0


def test_a_tie_with_the_highest_logit_counts_as_correct_and_labels_give_their_own_loss():
    logits = jnp.array([[0.0, 2.0, 2.0], [0.0, 1.0, 5.0]])
    loss, correct = cross_entropy(logits, jnp.array([2, 1]))
    expected = [np.log(2 + np.exp(-2.0)), np.log(1 + np.exp(1.0) + np.exp(5.0)) - 1]
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    np.testing.assert_array_equal(correct, [1, 0])


@pytest.mark.parametrize('rows, slots, vocab, limit, chunks', [
    (2, 10, 100, 8000, 1), (2, 10, 100, 7999, 2),  # 2 x 10 x 100 x 4 bytes in all
    (2, 10, 100, 3999, 5), (2, 10, 100, 1, 10),  # 3 and 4 do not divide 10; a slot is not split
    (1024, 20, 30592, 1 << 30, 4)])
def test_logits_are_computed_in_the_fewest_parts_that_fit(rows, slots, vocab, limit, chunks):
    assert mlm_chunks(rows, slots, vocab, limit) == chunks


@pytest.mark.parametrize('module', [BertForSequenceClassification, BertForTokens])
def test_logits_are_not_rounded_to_bfloat16(module):
    config = ModelConfig(vocab_size=40, num_layers=1, hidden_size=32, num_heads=2,
                         intermediate_size=64, max_position_embeddings=64, dtype='bfloat16')
    ids = jax.random.randint(jax.random.key(0), (40, 8), 5, 40)
    batch = {'input_ids': ids, 'sequence_ids': jnp.ones_like(ids),
             'segment_ids': jnp.zeros_like(ids), 'cls_positions': jnp.zeros((40, 1), jnp.int32)}
    model = module(config, 2)
    params = random_like(jax.eval_shape(model.init, jax.random.key(1), batch), 0, 0.2)
    logits = np.asarray(jit(model.apply)(params, batch)).reshape(-1, 2)[:40]
    assert logits.dtype == np.float32
    rounded = logits.astype(jnp.bfloat16).astype(np.float32)
    assert len(np.unique(logits)) == 80 > len(np.unique(rounded))
