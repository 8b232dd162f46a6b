"""`bert_jax_inference`: values that would make other predictions, or none, are refused by name."""

import json
import math
import shutil

import pytest
from run_model import RECORDED

from bert_jax.weights import load_weights
from bert_jax.weights.inference_settings import INFERENCE, read_inference
from bert_jax.weights.run_directory import write_run
from tests.refusals import refused

WRONG = {
    'max_seq_length': ('128', 0, -5, 2, 1.5, True, 10**30, [128], {}),
    'doc_stride': (0, -1, '64', 2.0, True, [1]),
    'max_query_length': (0, 'x', 1e300),
    'null_threshold': ('0', math.nan, math.inf, [], True),
    'windows': ('all', 1, ['mean'], {}),
    'num_texts': (0, -2, '2', 'two'),
    'features': ('every', 4),
    'pool': ('median', ['mean']),
    'normalize': ('yes', [], 3),
}
CASES = [(name, value) for name, values in WRONG.items() for value in values]


@pytest.mark.parametrize('name, value', CASES, ids=str)
def test_a_value_that_a_setting_cannot_have_is_refused(name, value):
    with refused('config.json: here', f'{name}={value!r}'):
        read_inference({name: value}, 'config.json: here')


@pytest.mark.parametrize('settings', [[], 'x', 3, True, ''], ids=repr)
def test_settings_are_an_object(settings):
    with refused('here', 'is no JSON object'):
        read_inference(settings, 'here')


def test_null_is_not_said_and_what_is_unknown_is_kept():
    assert read_inference(None, 'here') == {}
    settings = {'doc_stride': None, 'null_threshold': -3, 'normalize': True, 'of_later': [1, {}]}
    assert read_inference(settings, 'here') == {
        'null_threshold': -3, 'normalize': True, 'of_later': [1, {}]}


@pytest.mark.parametrize('kind', ['huggingface', 'run'])
def test_models_are_refused_by_them(kind, tmp_path):
    key = INFERENCE
    shutil.copytree(RECORDED / 'classification', tmp_path / 'huggingface')
    if kind == 'run':
        write_run(tmp_path / 'run', load_weights(tmp_path / 'huggingface'))
        key = 'inference'
    file = tmp_path / kind / 'config.json'
    config = json.loads(file.read_text())
    config.pop('digest', None)
    file.write_text(json.dumps(config | {key: {'doc_stride': 0}}))
    with refused(f'{file}: {key}: doc_stride=0 must be a whole number from 1'):
        load_weights(tmp_path / kind)
