"""The ablations of section 5.1: no next sentence, left-to-right attention, a BiLSTM on top.

(Left-to-right logits beside transformers': tests/foreign/test_parity.py.)
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.heads import HEADS
from bert_jax.heads.base import inputs_of
from bert_jax.heads.pretraining import Pretraining
from bert_jax.heads.tokens import BertFeatureTagger, FeatureTagging
from bert_jax.model.encoder import Bert
from bert_jax.model.layers import ModelConfig
from tests.tiny_models import jit, random_like

CONFIG = ModelConfig(vocab_size=50, num_layers=2, hidden_size=8, num_heads=2, intermediate_size=8,
                     max_position_embeddings=16)
CAUSAL = dataclasses.replace(CONFIG, causal=True)

# Two sequences in one row, and the same ones alone.
LENGTHS = (5, 7)
IDS = np.random.default_rng(0).integers(4, 50, sum(LENGTHS))


def packed(ids=IDS):
    """A row of 14 with both sequences."""
    numbers = np.repeat([1, 2, 0], [*LENGTHS, 2])
    positions = np.concatenate([np.arange(5), np.arange(7), np.zeros(2, int)])
    return {
        'input_ids': jnp.pad(ids, (0, 2))[None], 'sequence_ids': numbers[None],
        'segment_ids': np.zeros_like(numbers[None]), 'position_ids': positions[None],
        'cls_positions': np.array([[0, 5]])}


def alone(ids):
    """One of them, not packed, in a padded row of 14."""
    row = np.pad(ids, (0, 14 - len(ids)))[None]
    mask = (row > 0).astype(int)
    return {'input_ids': row, 'sequence_ids': mask, 'segment_ids': np.zeros_like(row),
            'position_ids': mask * np.arange(14), 'cls_positions': np.zeros((1, 2), int)}


def params_of(head):
    """Random parameters: to compile their initialisation would take longer than the tests."""
    return random_like(jax.eval_shape(head.init, jax.random.key(0)), 2, 0.4)


def test_a_later_token_changes_no_earlier_output():
    params = params_of(Pretraining(CAUSAL))['bert']
    later = IDS.copy()
    later[8] = 7

    @jit
    def encode(ids):
        return Bert(CAUSAL).apply({'params': params}, *inputs_of(packed(ids), None))

    before, after = jax.device_get((encode(IDS), encode(later)))
    for a, b in zip((*before['layers'], before['embedding_output']),
                    (*after['layers'], after['embedding_output']), strict=True):
        np.testing.assert_array_equal(a[0, :8], b[0, :8])
    same = (before['layers'][-1] == after['layers'][-1]).all(axis=-1)[0]
    assert same.tolist() == [True] * 8 + [False] * 4 + [True] * 2  # the sequence ends at 12


def test_a_left_to_right_model_is_the_same_at_wanted_positions():
    params = params_of(Pretraining(CAUSAL))['bert']
    inputs = inputs_of(packed(), None)
    wanted = jnp.array([[9, 3, 11]])
    all_positions, some = jax.device_get(jit(lambda: [
        Bert(CAUSAL).apply({'params': params}, *inputs, wanted_BxP=at)
        for at in (None, wanted)])())
    np.testing.assert_allclose(
        some['sequence_output'], all_positions['sequence_output'][:, wanted[0]], atol=1e-5)


def pretraining_batch():
    rng = np.random.default_rng(1)
    batch = {
        'input_ids': rng.integers(4, 50, (3, 10)),
        'segment_ids': np.zeros((3, 10), np.int32),
        'sequence_ids': np.array([[1] * 10, [1] * 6 + [0] * 4, [1] * 4 + [2] * 5 + [0]]),
        'masked_lm_positions': np.array([[3, 7], [2, 0], [0, 0]]),
        'masked_lm_ids': rng.integers(4, 50, (3, 2)),
        'masked_lm_weights': np.array([[1, 1], [1, 0], [0, 0]], np.float32),
        'next_sentence_labels': np.array([1, 0, 0]),
        'example_weights': np.array([1, 1, 0], np.float32),
    }
    return {name: jnp.asarray(x) for name, x in batch.items()}


def next_token_loss(head, params, batch):
    """Sum of the negative log-likelihoods of all next tokens of the unmasked rows, in float64."""
    original = np.array(batch['input_ids'])
    for row, slot in ((0, 0), (0, 1), (1, 0)):  # the slots in use
        position = batch['masked_lm_positions'][row, slot]
        original[row, position] = batch['masked_lm_ids'][row, slot]

    @jit
    def logits(ids):
        unmasked = batch | {'input_ids': ids, 'masked_lm_weights': jnp.zeros((3, 2))}
        hidden, table, bias = head.outputs(params, unmasked)['mlm_output']
        return (hidden @ table.T + bias)[..., :50]

    found = np.asarray(logits(jnp.asarray(original)), np.float64)
    log_p = found - np.log(np.exp(found).sum(-1, keepdims=True))
    total = 0.0
    for row, first, end in SEQUENCES:
        for position in range(first, end - 1):
            total -= log_p[row, position, original[row, position + 1]]
    return total


# Row, first position and end; the last two are packed.
SEQUENCES = ((0, 0, 10), (1, 0, 6), (2, 0, 4), (2, 4, 9))


@pytest.fixture(scope='module')
def left_to_right():
    """(A left-to-right model's head, its parameters, a batch, its loss and sums)."""
    head = Pretraining(CAUSAL, next_sentence=False)
    params = params_of(head)
    batch = pretraining_batch()
    loss, sums = jit(lambda: head.loss(params, batch, head.totals(batch), None))()
    return head, params, batch, loss, sums


def test_a_left_to_right_model_predicts_every_next_token_of_the_unmasked_row(left_to_right):
    head, params, batch, loss, sums = left_to_right
    expected = next_token_loss(head, params, batch)
    assert float(sums['lm_count']) == 9 + 5 + 3 + 4
    np.testing.assert_allclose([sums['lm_loss'], loss], [expected, expected / 21], rtol=1e-5)
    assert set(head.score(sums)) == {'lm_loss', 'lm_perplexity', 'lm_accuracy'}


def test_a_left_to_right_phase_has_the_loss_of_a_left_to_right_model(left_to_right):
    _, params, batch, loss, sums = left_to_right
    head = Pretraining(CONFIG)
    marked = batch | {'causal_loss_mask': batch['example_weights']}
    of_phase = jit(lambda: head.loss(params, marked, head.totals(marked), None))()
    jax.tree.map(np.testing.assert_array_equal, of_phase, (loss, sums))
    unmarked = jax.eval_shape(lambda: head.loss(params, batch, head.totals(batch), None))
    assert 'lm_loss' not in unmarked[1]


def test_a_left_to_right_model_takes_more_flops():
    plain = Pretraining(CONFIG, next_sentence=False)
    assert Pretraining(CAUSAL, next_sentence=False).flops(10, 2) > plain.flops(10, 2)


@pytest.mark.parametrize('next_sentence', [True, False])
def test_without_next_sentence_its_head_and_the_pooler_get_no_gradient(next_sentence):
    batch = pretraining_batch()
    params = params_of(Pretraining(CONFIG))
    head = Pretraining(CONFIG, next_sentence=next_sentence)

    def loss(params):
        return head.loss(params, batch, head.totals(batch), None)[0]

    def has_gradient(part):
        return any(x.any() for x in jax.tree.leaves(part))

    grad = jax.device_get(jit(jax.grad(loss))(params))
    assert has_gradient(grad['cls']['predictions'])
    assert has_gradient(grad['cls']['seq_relationship']) == next_sentence
    assert has_gradient(grad['bert']['pooler']) == next_sentence


NO_WORDS = {'mlm_count': 0.0, 'mlm_loss': 0.0, 'mlm_correct': 0.0}
PAIRS = {'rows': 10.0, 'nsp_loss': 5.0, 'nsp_correct': 8.0}


def test_metrics_are_means_over_words_and_over_pairs():
    words = {'mlm_count': 4.0, 'mlm_loss': 8.0, 'mlm_correct': 1.0}
    assert Pretraining(CONFIG).score(words | PAIRS | {'nsp_random': 7.0}) == pytest.approx({
        'mlm_loss': 2.0,
        'mlm_perplexity': np.exp(2.0),
        'mlm_accuracy': 0.25,
        'nsp_loss': 0.5,
        'nsp_accuracy': 0.8,
        'nsp_majority': 0.7,
    })


def test_metrics_over_no_word_are_left_out():
    assert Pretraining(CONFIG).score(NO_WORDS | PAIRS | {'nsp_random': 1.0}) == pytest.approx({
        'nsp_loss': 0.5, 'nsp_accuracy': 0.8, 'nsp_majority': 0.9})
    no_words = {'lm_count': 0.0, 'lm_loss': 0.0, 'lm_correct': 0.0, 'rows': 10.0}
    assert Pretraining(CONFIG).score(no_words) == {}


def test_metrics_over_no_pair_are_left_out():
    no_pairs = {'rows': 0.0, 'nsp_loss': 0.0, 'nsp_correct': 0.0, 'nsp_random': 0.0}
    assert Pretraining(CONFIG).score(NO_WORDS | no_pairs) == {}


class SmallTagger(FeatureTagging):
    module = property(lambda self: BertFeatureTagger(self.config, 3, 'last', units=5))


@pytest.mark.parametrize(('kind', 'causal', 'bilstm'), [
    ('classification', True, False), ('classification', True, True),
    ('question_answering', False, True), ('token_classification', True, False),
    ('feature_tagger', False, True)])
def test_a_packed_sequence_is_computed_as_if_alone(kind, causal, bilstm):
    config = dataclasses.replace(CONFIG, num_layers=1, causal=causal, bilstm=bilstm)
    head_class = SmallTagger if kind == 'feature_tagger' else HEADS[kind]
    head = head_class(config, 2 if kind == 'question_answering' else 3)
    params = params_of(head)
    assert any('bilstm' in name for name in params) == bilstm
    last_changed = IDS.copy()
    last_changed[4] = 7 if IDS[4] != 7 else 8  # the last token of the first sequence
    rows = packed(), packed(last_changed), alone(IDS[:5]), alone(IDS[5:])
    batch = jax.tree.map(lambda *x: np.concatenate(x), *rows)
    outputs = jax.device_get(jit(head.outputs)(params, batch))
    of_sequences = kind == 'classification'  # one output per sequence, else one per token
    lengths = (1, 1) if of_sequences else LENGTHS
    for together, changed, first, second in outputs.values():
        own = np.concatenate([first[: lengths[0]], second[: lengths[1]]])
        np.testing.assert_allclose(together[: len(own)], own, atol=2e-5)
        # The change moves the output of its sequence, or of its token; those of earlier tokens only
        # if the model is not left-to-right.
        moved = np.abs(together - changed) > 1e-5
        assert moved[lengths[0] - 1].any() and not moved[lengths[0]:].any()
        if not of_sequences:
            assert moved[0].any() == (bilstm or not causal)
