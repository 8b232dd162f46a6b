"""Models of transformers, with what they computed there (tests/fixtures/record_huggingface.py)."""

from pathlib import Path

import numpy as np
import pytest
from run_model import INPUTS, outputs, real

from bert_jax.weights import load_weights
from bert_jax.weights.huggingface import write_huggingface

RECORDED = sorted((Path(__file__).parents[1] / 'fixtures' / 'huggingface').iterdir())
HEADS = {
    'base': '', 'base_bfloat16': '', 'pretraining': 'pretraining', 'masked_lm': 'pretraining',
    'classification': 'classification', 'regression': 'regression',
    'multiple_choice': 'multiple_choice', 'token_classification': 'token_classification',
    'question_answering': 'question_answering',
}
TANH = {'base_bfloat16', 'pretraining', 'multiple_choice', 'question_answering'}


def test_every_head_is_recorded():
    assert {path.name for path in RECORDED} == set(HEADS)


@pytest.mark.parametrize('scan_layers', [False, True], ids=['unrolled', 'scanned'])
@pytest.mark.parametrize('folder', RECORDED, ids=lambda path: path.name)
def test_outputs_are_those_of_transformers(folder, scan_layers):
    weights = load_weights(folder)
    assert weights.head == HEADS[folder.name]
    assert weights.model['hidden_act'] == (
        'gelu_tanh' if folder.name in TANH else 'gelu_erf')
    assert weights.unused == ()
    recorded = dict(np.load(folder / 'recorded.npz'))
    inputs = {name: recorded.pop(name) for name in INPUTS}
    ours = real(outputs(weights, inputs, scan_layers), inputs)
    recorded = real(recorded, inputs)
    assert recorded
    for name, theirs in recorded.items():
        assert np.std(theirs) > 0.01, name  # constant outputs would show nothing
        np.testing.assert_allclose(ours[name], theirs, rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.parametrize('folder', RECORDED, ids=lambda path: path.name)
def test_what_is_written_is_what_was_read(folder, tmp_path):
    weights = load_weights(folder)
    write_huggingface(tmp_path / 'out', weights)
    again = load_weights(tmp_path / 'out')
    assert again.params.keys() == weights.params.keys()
    for name, x in weights.params.items():
        assert again.params[name].dtype == x.dtype == np.float32
        np.testing.assert_array_equal(again.params[name], x, err_msg=name)
    for field in ('model', 'head', 'labels', 'lowercase', 'unused'):
        assert getattr(again, field) == getattr(weights, field)
    assert again.vocab_file.read_bytes() == weights.vocab_file.read_bytes()


def test_labels_come_in_the_order_of_their_ids():
    folder = RECORDED[0].parent
    assert load_weights(folder / 'classification').labels == ('negative', 'neutral', 'positive')
    assert load_weights(folder / 'token_classification').labels == (
        'O', 'B-PER', 'I-PER', 'B-LOC', 'I-LOC')
    assert load_weights(folder / 'regression').labels == ()


def test_the_epsilon_comes_from_the_config():
    assert load_weights(RECORDED[0].parent / 'base').model['layer_norm_eps'] == 1e-5
