"""The ablations of section 5.1: no next sentence, left-to-right attention, a BiLSTM on top.

(Left-to-right logits beside transformers': tests/weights/test_parity.py.)
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

pytestmark = pytest.mark.slow

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
        'input_ids': np.pad(ids, (0, 2))[None], 'sequence_ids': numbers[None],
        'segment_ids': np.zeros_like(numbers[None]), 'position_ids': positions[None],
        'cls_positions': np.array([[0, 5]])}


def alone(ids):
    """One of them, not packed, in a padded row of 9."""
    row = np.pad(ids, (0, 9 - len(ids)))[None]
    return {'input_ids': row, 'sequence_ids': (row > 0).astype(np.int32),
            'segment_ids': np.zeros_like(row), 'cls_positions': np.zeros((1, 1), np.int32)}


def params_of(objective):
    """Random parameters: to compile their initialisation would take longer than the tests."""
    return random_like(jax.eval_shape(objective.init, jax.random.key(0)), 2, 0.4)


def test_a_later_token_changes_no_earlier_output():
    params = params_of(Pretraining(CAUSAL))['bert']
    later = IDS.copy()
    later[8] = 7

    some = jnp.array([[9, 3, 11]])
    before, after, wanted = jit(lambda: [
        Bert(CAUSAL).apply({'params': params}, *inputs_of(batch, None), wanted_BxP=at)
        for batch, at in ((packed(), None), (packed(later), None), (packed(), some))])()
    for a, b in zip((*before['layers'], before['embedding_output']),
                    (*after['layers'], after['embedding_output']), strict=True):
        np.testing.assert_array_equal(a[0, :8], b[0, :8])
    same = (before['layers'][-1] == after['layers'][-1]).all(axis=-1)[0]
    assert same.tolist() == [True] * 8 + [False] * 4 + [True] * 2  # the sequence ends at 12
    np.testing.assert_allclose(
        wanted['sequence_output'], before['sequence_output'][:, some[0]], atol=1e-5)


def pretraining_batch():
    rng = np.random.default_rng(1)
    return {name: jnp.asarray(x) for name, x in {
        'input_ids': rng.integers(4, 50, (3, 10)), 'segment_ids': np.zeros((3, 10), np.int32),
        'sequence_ids': np.array([[1] * 10, [1] * 6 + [0] * 4, [1] * 4 + [2] * 5 + [0]]),
        'masked_lm_positions': np.array([[3, 7], [2, 0], [0, 0]]),
        'masked_lm_ids': rng.integers(4, 50, (3, 2)),
        'masked_lm_weights': np.array([[1, 1], [1, 0], [0, 0]], np.float32),
        'next_sentence_labels': np.array([1, 0, 0]),
        'example_weights': np.array([1, 1, 0], np.float32)}.items()}


def test_a_left_to_right_model_or_phase_predicts_every_next_token_of_the_unmasked_row():
    objective, batch = Pretraining(CAUSAL, next_sentence=False), pretraining_batch()
    params = params_of(objective)
    original = np.array(batch['input_ids'])
    for row, slot in ((0, 0), (0, 1), (1, 0)):
        original[row, batch['masked_lm_positions'][row, slot]] = batch['masked_lm_ids'][row, slot]

    @jit
    def logits(ids):
        unmasked = batch | {'input_ids': ids, 'masked_lm_weights': jnp.zeros((3, 2))}
        hidden, table, bias = objective.outputs(params, unmasked)['mlm_output']
        return (hidden @ table.T + bias)[..., :50]

    said = np.asarray(logits(jnp.asarray(original)), np.float64)
    log_p = said - np.log(np.exp(said).sum(-1, keepdims=True))
    expected = -sum(
        log_p[row, at, original[row, at + 1]]
        for row, first, end in ((0, 0, 10), (1, 0, 6), (2, 0, 4), (2, 4, 9))  # the last two packed
        for at in range(first, end - 1))
    loss, sums = jit(lambda: objective.loss(params, batch, objective.totals(batch), None))()
    assert float(sums['lm_count']) == 9 + 5 + 3 + 4
    np.testing.assert_allclose([sums['lm_loss'], loss], [expected, expected / 21], rtol=1e-5)
    assert set(objective.score(sums)) == {'lm_loss', 'lm_perplexity', 'lm_accuracy'}
    other, marked = Pretraining(CONFIG), batch | {'causal_loss_mask': batch['example_weights']}
    of_phase = jit(lambda: other.loss(params, marked, other.totals(marked), None))()
    jax.tree.map(np.testing.assert_array_equal, of_phase, (loss, sums))
    assert 'lm_loss' not in other.loss(params, batch, other.totals(batch), None)[1]
    assert objective.flops(10, 2) > Pretraining(CONFIG, next_sentence=False).flops(10, 2)


def test_without_next_sentence_its_head_and_the_pooler_get_no_gradient():
    batch = pretraining_batch()
    params = params_of(Pretraining(CONFIG))

    for said in (True, False):
        objective = Pretraining(CONFIG, next_sentence=said)
        grad = jit(jax.grad(
            lambda p: objective.loss(p, batch, objective.totals(batch), None)[0]))(params)  # noqa: B023
        found = [any(x.any() for x in jax.tree.leaves(part))
                 for part in (grad['cls']['predictions'], grad['cls']['seq_relationship'],
                              grad['bert']['pooler'])]
        assert found == [True, said, said]


@pytest.mark.parametrize(('sums', 'metrics'), [
    ({'mlm_count': 4.0, 'mlm_loss': 8.0, 'mlm_correct': 1.0, 'rows': 10.0, 'nsp_loss': 5.0,
      'nsp_correct': 8.0, 'nsp_random': 7.0},
     {'mlm_loss': 2.0, 'mlm_perplexity': np.exp(2.0), 'mlm_accuracy': 0.25, 'nsp_loss': 0.5,
      'nsp_accuracy': 0.8, 'nsp_majority': 0.7}),
    ({'mlm_count': 0.0, 'mlm_loss': 0.0, 'mlm_correct': 0.0, 'rows': 10.0, 'nsp_loss': 5.0,
      'nsp_correct': 8.0, 'nsp_random': 1.0},
     {'nsp_loss': 0.5, 'nsp_accuracy': 0.8, 'nsp_majority': 0.9}),
    ({'mlm_count': 0.0, 'mlm_loss': 0.0, 'mlm_correct': 0.0, 'rows': 0.0, 'nsp_loss': 0.0,
      'nsp_correct': 0.0, 'nsp_random': 0.0}, {}),
    ({'lm_count': 0.0, 'lm_loss': 0.0, 'lm_correct': 0.0, 'rows': 10.0}, {}),
])
def test_a_metric_over_nothing_is_left_out(sums, metrics):
    assert Pretraining(CONFIG).score(sums) == pytest.approx(metrics)


class SmallTagger(FeatureTagging):
    module = property(lambda self: BertFeatureTagger(self.config, 3, 'last', units=5))


@pytest.mark.parametrize(('head', 'causal', 'bilstm'), [
    ('classification', True, False), ('classification', True, True),
    ('question_answering', False, True), ('token_classification', True, False),
    ('feature_tagger', False, True)])
def test_a_packed_sequence_is_computed_as_if_alone(head, causal, bilstm):
    config = dataclasses.replace(CONFIG, num_layers=1, causal=causal, bilstm=bilstm)
    objective = (HEADS | {'feature_tagger': SmallTagger})[head](
        config, 2 if head == 'question_answering' else 3)
    params = params_of(objective)
    assert any('bilstm' in name for name in params) == bilstm
    last = IDS.copy()
    last[4] = 7 if IDS[4] != 7 else 8
    batches = packed(), packed(last), alone(IDS[:5]), alone(IDS[5:])
    outputs = jit(lambda: [objective.outputs(params, batch) for batch in batches])()
    whole = head == 'classification'  # one output per sequence, else one per token
    lengths = (1, 1) if whole else LENGTHS
    for name in outputs[0]:
        together, changed, first, second = (found[name][0] for found in outputs)
        own = np.concatenate([first[: lengths[0]], second[: lengths[1]]])
        np.testing.assert_allclose(together[: len(own)], own, atol=2e-5)
        # The last token of the first sequence is changed. This changes the output of the sequence,
        # or of that token; those of earlier tokens only if the model is not left-to-right.
        moved = np.abs(together - changed) > 1e-5
        assert moved[lengths[0] - 1].any() and not moved[lengths[0]:].any()
        if not whole:
            assert moved[0].any() == (bilstm or not causal)
