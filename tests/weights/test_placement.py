"""Warm start: what matches, what begins fresh, what is refused."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from bert_jax.runtime.errors import InputError
from bert_jax.weights import load_weights
from bert_jax.weights.warm_start import place

RECORDED = Path(__file__).parents[1] / 'fixtures' / 'huggingface'
POSITIONS = 'bert/embeddings/position_embeddings'
WORDS = 'bert/embeddings/word_embeddings'
KERNEL, BIAS = 'classifier/kernel', 'classifier/bias'


def weights_of(name):
    return load_weights(RECORDED / name)


def shapes_of(weights, changes=()):
    """Shapes of the target: those of `weights` with some changed, added or (None) left out."""
    shapes = {name: x.shape for name, x in weights.params.items()}
    shapes |= dict(changes)
    return {name: shape for name, shape in shapes.items() if shape is not None}


def test_the_same_model_matches_whole():
    weights = weights_of('pretraining')
    found = place(weights, shapes_of(weights), head='pretraining', model=weights.model)
    assert found.params.keys() == weights.params.keys()
    assert all(found.params[name] is x for name, x in weights.params.items())
    assert (found.fresh, found.unused, found.notes) == ((), (), ())
    assert found.report() == [f'38 of 38 parameters from {weights.source}']


def test_a_new_head_on_a_pretrained_encoder():
    weights = weights_of('pretraining')
    shapes = {name: x.shape for name, x in weights.params.items() if name.startswith('bert/')}
    shapes |= {KERNEL: (8, 3), BIAS: (3,)}
    found = place(weights, shapes, head='classification', labels=('a', 'b', 'c'))
    assert found.fresh == (KERNEL, BIAS)
    assert len(found.params) == 31
    assert set(found.unused) == {name for name in weights.params if name.startswith('cls/')}
    assert found.report() == [
        f'31 of 33 parameters from {weights.source}', 'starts fresh: classifier/...',
        'left unused: cls/predictions/..., cls/seq_relationship/...',
    ]


def test_a_pooler_may_begin_fresh():
    weights = weights_of('masked_lm')
    pooler = {'bert/pooler/dense/kernel': (8, 8), 'bert/pooler/dense/bias': (8,)}
    assert set(place(weights, shapes_of(weights) | pooler).fresh) == set(pooler)


def test_another_number_of_labels():
    weights = weights_of('classification')
    shapes = shapes_of(weights) | {KERNEL: (8, 2), BIAS: (2,)}
    found = place(weights, shapes, head='classification')
    assert found.fresh == (KERNEL, BIAS) and found.unused == (KERNEL, BIAS)
    assert found.notes == ('classifier: 3 labels there, 2 here; it starts fresh',)


@pytest.mark.parametrize('labels, order', [
    ((), [0, 1, 2]),
    (('negative', 'neutral', 'positive'), [0, 1, 2]),
    (('neutral', 'positive', 'negative'), [1, 2, 0]),
    (('a', 'b', 'c'), None),
])
def test_labels_keep_their_meaning(labels, order):
    weights = weights_of('classification')
    found = place(weights, shapes_of(weights), head='classification', labels=labels)
    if order is None:
        assert KERNEL in found.fresh and 'a, b, c here' in found.notes[0]
        return
    np.testing.assert_array_equal(found.params[KERNEL], weights.params[KERNEL][:, order])
    np.testing.assert_array_equal(found.params[BIAS], weights.params[BIAS][order])
    assert bool(found.notes) == (order != [0, 1, 2])
    assert found.fresh == () and found.unused == ()


def test_a_classifier_of_another_head_begins_fresh():
    """Multiple choice and regression both have one output."""
    weights = weights_of('multiple_choice')
    found = place(weights, shapes_of(weights), head='regression')
    assert found.fresh == (KERNEL, BIAS)
    assert found.notes == (
        'classifier: it is of multiple_choice there, of regression here; it starts fresh',)


@pytest.mark.parametrize('rows, kept', [(6, 6), (10, 10), (16, 10)])
def test_position_tables_of_another_length(rows, kept):
    weights = weights_of('base')
    found = place(weights, shapes_of(weights) | {POSITIONS: (rows, 8)})
    np.testing.assert_array_equal(found.params[POSITIONS], weights.params[POSITIONS][:kept])
    assert found.fresh == ()
    assert len(found.notes) == (rows != 10)
    if rows == 16:
        assert found.notes == (
            'position_embeddings: 10 rows there, 16 here; the rest start fresh',)


def test_what_computes_otherwise_is_noted():
    weights = weights_of('base')
    model = weights.model | {'hidden_act': 'gelu_tanh', 'layer_norm_eps': 1e-12}
    assert place(weights, shapes_of(weights), model=model).notes == (
        'hidden_act is gelu_erf there and gelu_tanh here',
        'layer_norm_eps is 1e-05 there and 1e-12 here',
    )


def test_what_the_files_have_besides_is_unused():
    weights = dataclasses.replace(weights_of('base'), unused=('sop.weight',))
    assert place(weights, shapes_of(weights)).report()[1] == 'left unused: sop.weight'


LAYER = 'bert/encoder/layer_1/intermediate/dense/kernel'
REFUSED = {
    'width': ({LAYER: (8, 32)}, [LAYER, '[8, 12]', '[8, 32]', 'intermediate_size=12']),
    'heads': ({'bert/encoder/layer_0/attention/self/qkv/kernel': (8, 3, 4, 2)},
              ['qkv/kernel', '[8, 3, 2, 4]', '[8, 3, 4, 2]', 'num_heads=2']),
    'more layers': ({'bert/encoder/layer_2/output/dense/bias': (8,)},
                    ['bert/encoder/layer_2/output/dense/bias', 'num_layers=2']),
    'fewer layers': ({LAYER: None}, ['2 layers', 'num_layers=2']),
    'vocabulary': ({WORDS: (50, 8)}, ['vocabulary of 50 tokens', 'embedding of 40 rows',
                                      'vocab.txt']),
    'smaller vocabulary': ({WORDS: (30, 8)}, ['vocabulary of 30 tokens', 'embedding of 40 rows',
                                              'vocab_size=40']),
    'types': ({'bert/embeddings/token_type_embeddings': (3, 8)},
              ['token_type_embeddings', 'type_vocab_size=2']),
}


@pytest.mark.parametrize('name', REFUSED)
def test_another_encoder_is_refused_in_one_line(name):
    change, words = REFUSED[name]
    weights = weights_of('base')
    with pytest.raises(InputError) as error:
        place(weights, shapes_of(weights, change))
    message = str(error.value)
    assert '\n' not in message and weights.source in message
    for word in words:
        assert word in message
