"""The library's tokenizer: padded and packed rows of texts, pairs and choices."""

import numpy as np
import pytest

import bert_jax
from tests.api.recorded_models import model_and_batch, outputs
from tests.conftest import RECORDED

PAD, UNK, CLS, SEP, MASK, A, B, C = range(8)  # ids of the recorded models' vocabulary


def tokenizer(folder='base'):
    bert, _, _ = model_and_batch(folder)
    return bert.tokenizer


def test_texts_and_pairs_in_padded_rows():
    batch = tokenizer()(['a b', ('a', 'b c')], max_length=8)
    expected = {
        'input_ids': [[CLS, A, B, SEP, PAD, PAD, PAD, PAD], [CLS, A, SEP, B, C, SEP, PAD, PAD]],
        'attention_mask': [[1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 0, 0]],
        'token_type_ids': [[0] * 8, [0, 0, 0, 1, 1, 1, 0, 0]],
    }
    assert batch.keys() == expected.keys()
    for name, x in expected.items():
        np.testing.assert_array_equal(batch[name], x)
        assert batch[name].dtype == np.int32


def test_rows_are_as_long_as_the_longest_text():
    assert tokenizer()(['a', '', ('a', 'b c')])['input_ids'].shape == (3, 6)


def test_choices_have_a_dim_of_their_own():
    examples = [[('a', 'b'), ('a', 'c')], [('b', 'a'), ('b', 'b')]]
    batch = tokenizer()(examples, max_length=8)
    flat = tokenizer()([pair for choices in examples for pair in choices], max_length=8)
    for name, x in batch.items():
        assert x.shape == (2, 2, 8)
        np.testing.assert_array_equal(x.reshape(4, 8), flat[name])


def test_a_long_text_is_cut_and_said():
    with pytest.warns(UserWarning, match='1 of 2 texts are longer than 8 tokens: their ends'):
        batch = tokenizer()(['a b c a b c a b c', 'a'], max_length=8)
    np.testing.assert_array_equal(batch['input_ids'][0], [CLS, A, B, C, A, B, C, SEP])


@pytest.mark.slow
@pytest.mark.parametrize('folder', ['base', 'classification', 'token_classification'])
def test_packed_rows_give_what_padded_rows_give(folder):
    bert, _, _ = model_and_batch(folder)
    texts = ['a b', 'c', ('a', 'b c'), 'b b', 'a c b a']
    padded = bert.tokenizer(texts, max_length=10)
    expected = outputs(bert, padded)
    packed = bert.tokenizer.pack(texts, max_length=10)
    assert len(packed.batch['input_ids']) < len(texts)
    np.testing.assert_array_equal(packed.length, padded['attention_mask'].sum(1))
    for name, x in outputs(bert, packed.batch).items():
        if x.shape[1] == 10:
            for i in range(len(texts)):
                end = packed.start[i] + packed.length[i]
                np.testing.assert_allclose(
                    x[packed.row[i], packed.start[i]:end], expected[name][i, :packed.length[i]],
                    rtol=0, atol=1e-5)
        else:
            np.testing.assert_allclose(
                x[packed.row, packed.number], expected[name], rtol=0, atol=1e-5)


def test_the_tokenizer_below():
    pieces = tokenizer().pieces
    assert pieces.vocab.mask_id == MASK
    assert pieces.encode_with_places('b a').places == [(0, 1), (2, 3)]


REFUSED = [
    ('a text', {}, "texts='a text' is a single text: give a list"),
    ([], {}, 'texts is empty'),
    (['a', 5], {}, r'texts\[1\]=5 is no text'),
    (['a', ('a', 'b', 'c')], {}, r'texts\[1\].* is no text: give a string, or a pair'),
    ([['a', 'b'], ['a']], {}, r'texts\[1\] has 1 choices, and texts\[0\] has 2'),
    ([['a', 'b'], 'a'], {}, r'texts\[1\] has 0 choices'),
    (['a'], {'max_length': 11}, 'max_length=11 must be a whole number from 8 to 10'),
    (['a'], {'max_length': 'x'}, "max_length='x' must be"),
]


@pytest.mark.parametrize('texts, options, message', REFUSED)
def test_texts_that_are_refused(texts, options, message):
    with pytest.raises(bert_jax.InputError, match=message):
        tokenizer()(texts, **options)


def test_choices_are_not_packed():
    with pytest.raises(bert_jax.InputError, match='choices, which are not packed'):
        tokenizer().pack([['a', 'b']])


def test_a_vocabulary_of_another_file(tmp_path):
    """It takes the place of that beside the weights; there, it would have other ids."""
    vocab_file = tmp_path / 'other.txt'
    vocab_file.write_text((RECORDED / 'base' / 'vocab.txt').read_text())
    bert = bert_jax.from_pretrained(RECORDED / 'base', vocab_file=vocab_file)
    np.testing.assert_array_equal(
        bert.tokenizer(['a b'])['input_ids'], tokenizer()(['a b'])['input_ids'])
