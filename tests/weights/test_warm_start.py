"""Warm start: what matches, what starts fresh, rows of new words, what is refused."""

import dataclasses

import numpy as np
import pytest

from bert_jax.foreign import load_weights
from bert_jax.foreign.families import FAMILIES, shared_layers
from bert_jax.runtime.errors import InputError
from bert_jax.text.vocab import SPECIAL_TOKENS
from bert_jax.text.vocab_files import write_vocab
from bert_jax.weights.parameters import Weights
from bert_jax.weights.warm_start import extended, place
from tests.foreign.run_model import RECORDED
from tests.foreign.test_family_files import random_weights

POSITIONS = 'bert/embeddings/position_embeddings'
WORDS = 'bert/embeddings/word_embeddings'
KERNEL = 'classifier/kernel'
BIAS = 'classifier/bias'


def shapes_of(weights, changes=()):
    """Shapes of the target: those of `weights` with some changed, added or (None) left out."""
    shapes = {name: x.shape for name, x in weights.params.items()}
    shapes |= dict(changes)
    return {name: shape for name, shape in shapes.items() if shape is not None}


def test_the_same_model_matches_whole():
    weights = load_weights(RECORDED / 'pretraining')
    found = place(weights, shapes_of(weights), head='pretraining', model=weights.model)
    assert found.params == weights.params  # the very arrays
    assert (found.fresh, found.unused, found.notes) == ((), (), ())
    assert found.report(weights) == [f'38 of 38 parameters from {weights.source}']


def test_a_new_head_on_a_pretrained_encoder():
    weights = dataclasses.replace(load_weights(RECORDED / 'pretraining'), unused=('sop.weight',))
    shapes = {name: x.shape for name, x in weights.params.items() if name.startswith('bert/')}
    shapes |= {KERNEL: (8, 3), BIAS: (3,)}
    found = place(weights, shapes, head='classification', labels=('a', 'b', 'c'))
    assert found.fresh == (KERNEL, BIAS) and len(found.params) == 31
    assert set(found.unused) == {
        'sop.weight', *(name for name in weights.params if name.startswith('cls/'))}
    assert found.report(weights) == [
        f'31 of 33 parameters from {weights.source}', 'starts fresh: classifier/...',
        'left unused: cls/predictions/..., cls/seq_relationship/..., sop.weight']


def test_a_classifier_of_other_labels_starts_fresh():
    weights = load_weights(RECORDED / 'classification')
    found = place(weights, shapes_of(weights), head='classification', labels=('a', 'b', 'c'))
    assert KERNEL in found.fresh and 'a, b, c here' in found.notes[0]


def test_a_classifier_whose_labels_are_only_numbers_gets_names():
    weights = dataclasses.replace(
        load_weights(RECORDED / 'classification'), labels=('LABEL_0', 'LABEL_1', 'LABEL_2'))
    shapes = shapes_of(weights)
    found = place(weights, shapes, head='classification', labels=('a', 'b', 'c'))
    assert found.params[KERNEL] is weights.params[KERNEL]
    assert found.notes == ('classifier: LABEL_0, LABEL_1, ... there are a, b, c here',)
    # Without training nobody would correct a wrong order.
    found = place(weights, shapes, head='classification', labels=('a', 'b', 'c'), whole=True)
    assert KERNEL in found.fresh


@pytest.mark.parametrize('labels, order', [
    pytest.param((), [0, 1, 2], id='none'),
    pytest.param(('negative', 'neutral', 'positive'), [0, 1, 2], id='same order'),
    pytest.param(('neutral', 'positive', 'negative'), [1, 2, 0], id='another order'),
])
def test_labels_keep_their_meaning(labels, order):
    weights = load_weights(RECORDED / 'classification')
    found = place(weights, shapes_of(weights), head='classification', labels=labels)
    np.testing.assert_array_equal(found.params[KERNEL], weights.params[KERNEL][:, order])
    np.testing.assert_array_equal(found.params[BIAS], weights.params[BIAS][order])
    assert bool(found.notes) == (order != [0, 1, 2])
    assert found.fresh == () and found.unused == ()


@pytest.mark.parametrize(('name', 'head', 'num', 'note'), [
    ('classification', 'classification', 2, '3 labels there, 2 here'),
    # Both have one output.
    ('multiple_choice', 'regression', 1, 'it is of multiple_choice there, of regression here')])
def test_another_classifier_starts_fresh(name, head, num, note):
    weights = load_weights(RECORDED / name)
    found = place(weights, shapes_of(weights) | {KERNEL: (8, num), BIAS: (num,)}, head=head)
    assert found.fresh == (KERNEL, BIAS) == found.unused
    assert found.notes == (f'classifier: {note}; it starts fresh',)


@pytest.mark.parametrize('rows, kept', [(6, 6), (10, 10), (16, 10)])
def test_position_tables_of_another_length(rows, kept):
    weights = load_weights(RECORDED / 'base')
    found = place(weights, shapes_of(weights) | {POSITIONS: (rows, 8)})
    repeated = weights.params[POSITIONS][np.arange(rows) % kept]
    np.testing.assert_array_equal(found.params[POSITIONS], repeated)
    assert found.fresh == () and len(found.notes) == (rows != 10)
    assert ('10 rows there, 16 here; they are repeated' in ''.join(found.notes)) == (rows == 16)


def test_a_repeated_position_table_keeps_the_rows_before_the_first_position():
    weights = load_weights(RECORDED / 'base')
    weights = dataclasses.replace(weights, model=weights.model | {'first_position': 2})
    found = place(weights, shapes_of(weights, {POSITIONS: (20, 8)})).params[POSITIONS]
    rows = [0, 1, *range(2, 10), *range(2, 10), 2, 3]
    np.testing.assert_array_equal(found, weights.params[POSITIONS][rows])


LAYER = 'bert/encoder/layer_1/intermediate/dense/kernel'


@pytest.mark.parametrize('change, words', [
    pytest.param(
        {LAYER: (8, 32)}, fr'^{LAYER} is \[8, 12\] in .* \[8, 32\] in .*intermediate_size=12',
        id='width'),
    pytest.param(
        {'bert/encoder/layer_2/output/dense/bias': (8,)},
        'layer_2/output/dense/bias is missing in', id='more layers'),
    pytest.param(
        {LAYER: None}, 'has 2 layers, the config fewer: set --config.model.num_layers=2',
        id='fewer layers'),
    pytest.param(
        {WORDS: (50, 8)}, '^vocabulary of 50 tokens, embedding of 40 rows in .*vocab.txt',
        id='larger vocabulary'),
    pytest.param(
        {WORDS: (30, 8)}, '^vocabulary of 30 tokens, embedding of 40 rows in .*vocab_size=40',
        id='smaller vocabulary'),
])
def test_another_encoder_is_refused(change, words):
    weights = load_weights(RECORDED / 'base')
    with pytest.raises(InputError, match=words):
        place(weights, shapes_of(weights, change))


@pytest.mark.parametrize('name, there, here, shared', [
    ('ModernBERT', 'ForMaskedLM', 'ForSequenceClassification', True),
    ('ModernBERT', 'ForMaskedLM', 'ForTokenClassification', True),
    ('ModernBERT', 'ForTokenClassification', 'ForMaskedLM', True),
    ('ModernBERT', 'ForMultipleChoice', 'ForQuestionAnswering', True),
    ('BERT', 'ForPreTraining', 'ForSequenceClassification', True),
    ('BERT', 'ForMaskedLM', 'ForSequenceClassification', False),
    ('RoBERTa', 'Model', 'ForMultipleChoice', True),
    ('RoBERTa', 'Model', 'ForSequenceClassification', False),
    ('RoBERTa', 'ForSequenceClassification', 'ForMultipleChoice', False),
    ('DistilBERT', 'ForMultipleChoice', 'ForSequenceClassification', True),
    ('DistilBERT', 'ForMaskedLM', 'ForSequenceClassification', False),
    ('ELECTRA', 'ForSequenceClassification', 'ForMultipleChoice', False),
], ids=str)
def test_layers_that_have_one_name_in_transformers_are_shared(name, there, here, shared):
    """Those between the encoder and a head's last layer; see test_families.py for the proof."""
    family = next(family for family in FAMILIES if family.name == name)
    first, second = (family.architecture(family.model_types[family.model_type] + kind)
                     for kind in (there, here))
    weights = dataclasses.replace(
        random_weights(family, first, first.heads[0]), shared_layers=shared_layers)
    target = random_weights(family, second, second.heads[0])
    found = place(weights, shapes_of(target), head=target.head, labels=target.labels)
    before = ('bert/pooler/', 'cls/predictions/transform/')
    fresh = [x for x in found.fresh if x.startswith(before)]
    assert bool(fresh) != shared
    if name == 'ModernBERT' and 'ForMaskedLM' in (there, here):
        of_pooler = 'bert/pooler/dense/kernel'
        of_masked_lm = 'cls/predictions/transform/dense/kernel'
        if here == 'ForMaskedLM':
            of_pooler, of_masked_lm = of_masked_lm, of_pooler
        assert found.params[of_pooler] is weights.params[of_masked_lm]
        assert of_masked_lm not in found.unused
        assert 'transformers has one layer for both' in ''.join(found.notes)


OUTPUT_BIAS = 'cls/predictions/output_bias'
OLD = [*SPECIAL_TOKENS, '[unused0]', '[unused1]', 'cat', '##s', 'dog', '##ma']


def small_weights(folder, tokens=OLD, rows=None):
    rng = np.random.default_rng(0)
    rows = rows or len(tokens)
    words = rng.normal(size=(rows, 4)).astype(np.float32)
    output_bias = rng.normal(size=rows).astype(np.float32)
    other = np.ones(3, np.float32)
    write_vocab(folder / 'old.txt', tokens)
    return Weights(
        params={WORDS: words, OUTPUT_BIAS: output_bias, 'other': other},
        model={'vocab_size': rows},
        head='pretraining',
        labels=(),
        vocab_file=folder / 'old.txt',
        lowercase=True,
        unused=(),
        source='these weights')


def file_of(folder, tokens):
    write_vocab(folder / 'new.txt', tokens)
    return folder / 'new.txt'


def test_new_rows_start_at_the_mean_of_their_old_pieces(tmp_path):
    weights = small_weights(tmp_path)
    tokens = ['catma' if token == '[unused0]' else token for token in OLD] + ['dogs', 'zoo']
    found, notes = extended(weights, file_of(tmp_path, tokens))
    assert found.model['vocab_size'] == 13 and found.vocab_file == tmp_path / 'new.txt'
    assert found.params['other'] is weights.params['other']
    for name in (WORDS, OUTPUT_BIAS):
        x = weights.params[name]
        new = found.params[name]
        kept = [i for i in range(11) if i != 5]
        np.testing.assert_array_equal(new[kept], x[kept])
        np.testing.assert_allclose(new[5], (x[7] + x[10]) / 2, rtol=1e-6)
        np.testing.assert_allclose(new[11], (x[9] + x[8]) / 2, rtol=1e-6)
        np.testing.assert_array_equal(new[12], x[1])
        assert new.dtype == np.float32
    assert notes[0].startswith('3 tokens that the weights do not know start at the mean')
    assert '1 had no pieces and start at the row of [UNK], such as zoo' in notes[1]


@pytest.mark.parametrize('rows', [11, 14])
def test_the_same_vocabulary_changes_nothing(tmp_path, rows):
    weights = small_weights(tmp_path, rows=rows)
    assert extended(weights, file_of(tmp_path, OLD)) == (weights, [])
    without = dataclasses.replace(weights, vocab_file=None)
    assert extended(without, file_of(tmp_path, ['zoo', *OLD])) == (without, [])


def test_new_words_take_rows_that_are_spare(tmp_path):
    """The run had more rows than tokens: the word table keeps its size."""
    found, _ = extended(small_weights(tmp_path, rows=14), file_of(tmp_path, [*OLD, 'dogs']))
    x = found.params[WORDS]
    assert len(x) == found.model['vocab_size'] == 14
    np.testing.assert_allclose(x[11], (x[9] + x[8]) / 2, rtol=1e-6)


def test_another_order_is_refused(tmp_path):
    other = [*OLD[:-4], 'dog', '##s', 'cat', '##ma']
    with pytest.raises(InputError, match="line 8 is 'dog', and 'cat' in .*old.txt, the vocabulary "
                                         'of these weights: leave config.data.vocab_file empty'):
        extended(small_weights(tmp_path), file_of(tmp_path, other))
