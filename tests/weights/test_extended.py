"""Weights for a vocabulary with words more: rows at the mean of their old pieces."""

import dataclasses

import numpy as np
import pytest

from bert_jax.runtime.errors import InputError
from bert_jax.text.vocab import SPECIAL_TOKENS, write_vocab
from bert_jax.weights.formats import Weights
from bert_jax.weights.warm_start import extended

WORDS, BIAS = 'bert/embeddings/word_embeddings', 'cls/predictions/output_bias'
OLD = [*SPECIAL_TOKENS, '[unused0]', '[unused1]', 'cat', '##s', 'dog', '##ma']


def weights_of(folder, tokens=OLD, rows=None):
    rng = np.random.default_rng(0)
    rows = rows or len(tokens)
    params = {WORDS: rng.normal(size=(rows, 4)), BIAS: rng.normal(size=rows), 'other': np.ones(3)}
    path = folder / 'old.txt'
    write_vocab(path, tokens)
    return Weights(
        {name: x.astype(np.float32) for name, x in params.items()}, {'vocab_size': rows},
        'pretraining', (), path, True, (), 'these weights',
    )


def file_of(folder, tokens):
    write_vocab(folder / 'new.txt', tokens)
    return folder / 'new.txt'


def test_new_rows_start_at_the_mean_of_their_old_pieces(tmp_path):
    weights = weights_of(tmp_path)
    tokens = ['catma' if token == '[unused0]' else token for token in OLD] + ['dogs', 'zoo']
    found, notes = extended(weights, file_of(tmp_path, tokens))
    assert found.model['vocab_size'] == 13 and found.vocab_file == tmp_path / 'new.txt'
    assert found.params['other'] is weights.params['other']
    for name in (WORDS, BIAS):
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
    weights = weights_of(tmp_path, rows=rows)
    assert extended(weights, file_of(tmp_path, OLD)) == (weights, [])
    without = dataclasses.replace(weights, vocab_file=None)
    assert extended(without, file_of(tmp_path, ['zoo', *OLD])) == (without, [])


def test_rows_that_are_there_already_are_taken(tmp_path):
    """The run had more rows than tokens: the word table keeps its size."""
    found, _ = extended(weights_of(tmp_path, rows=14), file_of(tmp_path, [*OLD, 'dogs']))
    x = found.params[WORDS]
    assert len(x) == found.model['vocab_size'] == 14
    np.testing.assert_allclose(x[11], (x[9] + x[8]) / 2, rtol=1e-6)


def test_another_order_is_refused(tmp_path):
    other = [*OLD[:-4], 'dog', '##s', 'cat', '##ma']
    with pytest.raises(InputError, match="line 8 is 'dog', and 'cat' in .*old.txt, the vocabulary "
                                         'of these weights: leave config.data.vocab_file empty'):
        extended(weights_of(tmp_path), file_of(tmp_path, other))
