"""`bert_jax_inference`: values that would make other predictions, or none, are refused by name."""

import dataclasses
import json
import math
import shutil

import pytest

from bert_jax.completion import complete
from bert_jax.config import finetuning_config
from bert_jax.foreign import load_weights
from bert_jax.run.model import write_run
from bert_jax.text.frames import Frame, Special, Text
from bert_jax.text.vocab import SPECIAL_TOKENS, Vocab
from bert_jax.weights.inference_settings import INFERENCE, frame_of, read_inference
from tests.foreign.run_model import RECORDED
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
    'truncation': ('', 'longest', 1),
    'token_types': ('', 'bert', 0),
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


@pytest.mark.parametrize(('inference', 'stated', 'expected'), [
    (None, '', ('longest_first', 'template')),  # of a folder of transformers
    ({}, '', ('google', 'segments')),  # of a run that does not say it
    ({'truncation': 'only_first', 'token_types': 'zeros'}, '', ('only_first', 'zeros')),
    (None, 'google', ('google', 'template')),
])
def test_a_run_makes_sequences_as_what_it_starts_from(inference, stated, expected):
    weights = load_weights(RECORDED / 'classification')
    if inference is not None:
        weights = dataclasses.replace(weights, inference=inference)
    config = finetuning_config('classification', 'any')
    config.model.name = ''
    config.data.truncation = stated
    data = complete(config, weights).data
    assert (data.truncation, data.token_types) == expected


def test_a_template_with_more_types_than_the_model_has_is_refused():
    vocab = Vocab.from_tokens(SPECIAL_TOKENS)
    frame = Frame((Special(2), Text(0, 3)), (Special(2), Text(0), Text(1, 1)))
    vocab = dataclasses.replace(vocab, template=frame)
    for inference in ({}, {'token_types': 'zeros'}):
        frame_of(vocab, inference, 2, 'it')
    frame_of(vocab, {'token_types': 'template'}, 1, 'it')  # types make no difference
    with refused('it has type_vocab_size=2', 'the type 3'):
        frame_of(vocab, {'token_types': 'template'}, 2, 'it')
