"""Arguments of the Python API that cannot be meant are an InputError, as its docstring promises."""

import dataclasses
import inspect
import math

import numpy as np
import pytest

from bert_jax.predict import InputError, load
from bert_jax.predict.api import Model
from tests.predict.tiny import RECORDED, pretraining_weights, recorded

NOT_TEXTS = [None, 5, 'one text', b'bytes', {'a': 1}, object()]
NOT_LENGTHS = ['5', 0, -1, 2.5, None, True, math.nan, [3]]
NOT_LAYERS = [(), [], '1', '-1', None, (0,), (1,), (-99,), ('a',), (True,), (1.5,), {'a': 1}, 3]
NOT_WINDOWS = ['last', '', 5, True, ('mean',)]
WRONG = {
    ('pretraining', 'fill_mask'): {'texts': NOT_TEXTS, 'top_k': NOT_LENGTHS},
    ('pretraining', 'score'): {'texts': NOT_TEXTS},
    ('pretraining', 'next_sentence'): {'pairs': NOT_TEXTS},
    ('pretraining', 'features'): {'texts': NOT_TEXTS, 'layers': NOT_LAYERS},
    ('pretraining', 'vectors'): {
        'texts': NOT_TEXTS, 'layer': ['1', 0, 7, None, True, (-1,)], 'windows': NOT_WINDOWS,
        'pool': ['sum', '', 5, True, ['mean']], 'normalize': ['no', 1, 0.5],
    },
    ('pretraining', 'warm_up'): {'command': ['sing', '', 5]},
    ('classification', 'classify'): {'texts': NOT_TEXTS, 'windows': NOT_WINDOWS},
    ('question_answering', 'answer'): {
        'questions': NOT_TEXTS, 'max_answer_length': NOT_LENGTHS,
        'null_threshold': [math.nan, '0', True, [0.0]],
    },
    ('token_classification', 'tag'): {'texts': NOT_TEXTS},
}
GOOD = {'texts': ['a cat'], 'pairs': [('a', 'cat')], 'questions': [('a', 'cat')]}


@pytest.fixture(scope='module')
def pretraining(tmp_path_factory):
    return Model(pretraining_weights(tmp_path_factory.mktemp('tiny')))


@pytest.mark.parametrize(('head', 'name'), WRONG)
def test_what_cannot_be_meant_is_refused(head, name, pretraining):
    model = pretraining if head == 'pretraining' else recorded(head)[0]
    function = getattr(model, name)
    for argument, values in WRONG[head, name].items():
        for value in values:
            given = {x: GOOD[x] for x in inspect.signature(function).parameters if x in GOOD}
            with pytest.raises(InputError) as error:
                function(**(given | {argument: value}))
            assert '\n' not in str(error.value), (argument, value)


def test_every_argument_of_the_api_is_in_the_table():
    public = {name for name, function in inspect.getmembers(Model, inspect.isfunction)
              if not name.startswith(('_', 'iter_')) and name in vars(Model)}
    assert public == {name for _, name in WRONG}
    for _, name in WRONG:
        parameters = set(inspect.signature(getattr(Model, name)).parameters) - {'self'}
        tested = set().union(*(x for (_, other), x in WRONG.items() if other == name))
        assert parameters - tested <= {'texts'}, name


def test_numbers_of_numpy_are_numbers(pretraining):
    (found,) = pretraining.fill_mask(['a [MASK]'], np.int64(2))
    assert len(found['predictions']) == 2
    (found,) = pretraining.features(['a cat'], np.array([-1, -2]))
    assert found['values'].shape[1] == 2


@pytest.mark.parametrize('given', [
    {'path': None}, {'path': 5}, {'path': RECORDED / 'classification', 'dtype': 'float16'},
    {'path': RECORDED / 'classification', 'dtype': 32},
    {'path': RECORDED / 'classification', 'vocab_file': 5}, {'path': ''},
])
def test_a_model_that_cannot_be_loaded(given):
    with pytest.raises(InputError):
        load(**given)


def test_a_model_is_served_no_positions_that_its_pre_training_never_saw(pretraining):
    weights = dataclasses.replace(pretraining.weights, inference={'max_seq_length': 8})
    model = Model(weights)
    assert model.max_length == 8
