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
    rng = np.random.default_rng(0)
    is_word = np.arange(PADDED) < VOCAB
    hidden = rng.standard_normal((BATCH, SLOTS, HIDDEN)).astype(dtype)
    table = (rng.standard_normal((PADDED, HIDDEN)) * is_word[:, None]).astype(dtype)
    bias = np.where(is_word, rng.standard_normal(PADDED), PADDING_LOGIT).astype(np.float32)
    labels = rng.integers(0, VOCAB, (BATCH, SLOTS))
    used = np.arange(SLOTS) < np.array([[10], [7], [1], [0]])
    return (hidden, table, bias), labels, used.astype(np.float32)


def gradients(loss, dtype=jnp.float32):
    """(value, gradients) of 3 times a loss of the inputs."""
    output, labels, weights = inputs(dtype)
    compute = jit(jax.value_and_grad(lambda o: 3.0 * loss(o, labels, weights)))
    return jax.device_get(compute(output))


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
    assert not grads[0][weights == 0].any() and np.abs(grads[0][weights == 1]).min() > 0
    assert not grads[1][VOCAB:].any() and not grads[2][VOCAB:].any()


def test_gradients_in_bfloat16_are_close_to_float32(plain):
    loss, grads = gradients(chunked(2), jnp.bfloat16)
    assert [g.dtype for g in grads] == [jnp.bfloat16, jnp.bfloat16, jnp.float32]
    np.testing.assert_allclose(loss, plain[0], rtol=5e-3)
    for ours, theirs in zip(grads, plain[1], strict=True):
        error = np.linalg.norm(ours.astype(np.float32) - theirs) / np.linalg.norm(theirs)
        assert error < 0.02


def test_a_label_far_below_the_others_has_a_large_loss_and_finite_gradients():
    output, labels, weights = inputs()
    output[2][labels[0, 0]] -= 1000.0
    loss, grads = jit(jax.value_and_grad(lambda o: chunked(1)(o, labels, weights)))(output)
    assert 80 < loss < 1e4
    for grad in grads:
        assert np.isfinite(grad).all()


def test_correct_predictions_are_counted_where_the_weight_is_one():
    output, labels, weights = inputs()
    best = np.asarray(jit(masked_lm_logits)(output)).argmax(-1)
    labels = np.where(np.arange(SLOTS) < 5, best, (best + 1) % VOCAB)  # right in slots 0 to 4
    for correct in jit(lambda labels: [
            masked_lm_loss(output, labels, weights, chunks, Layout()).correct
            for chunks in (1, 2)])(labels):
        assert correct == 5 + 5 + 1 + 0


def test_a_tie_with_the_highest_logit_counts_as_correct_and_labels_give_their_own_loss():
    logits = np.array([[0.0, 2.0, 2.0], [0.0, 1.0, 5.0]], np.float32)
    loss, correct = jit(cross_entropy)(logits, np.array([2, 1]))
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
    ids = np.random.default_rng(0).integers(5, 40, (40, 8))
    batch = {'input_ids': ids, 'sequence_ids': np.ones_like(ids),
             'segment_ids': np.zeros_like(ids), 'cls_positions': np.zeros((40, 1), np.int32)}
    model = module(config, 2)
    params = random_like(jax.eval_shape(model.init, jax.random.key(1), batch), 0, 0.2)
    logits = np.asarray(jit(model.apply)(params, batch)).reshape(-1, 2)[:40]
    assert logits.dtype == np.float32
    rounded = logits.astype(jnp.bfloat16).astype(np.float32)
    assert len(np.unique(logits)) == 80 > len(np.unique(rounded))
