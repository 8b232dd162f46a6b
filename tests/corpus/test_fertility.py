"""How a vocabulary splits a text, compared with the package `tokenizers` on the same vocabulary."""

import random
from collections import Counter

import pytest

from bert_jax.corpus.fertility import fit_of
from bert_jax.corpus.wordpiece_training import train_wordpiece
from bert_jax.text.vocab import Vocab
from bert_jax.text.wordpiece import WordPieceTokenizer
from tests.small_hindi import sentence


def test_a_vocabulary_fits_as_the_package_tokenizers_counts():
    tokenizers = pytest.importorskip('tokenizers')
    rng = random.Random(0)
    words = ' '.join(sentence(rng) for _ in range(300)).split() + ['\u4e16', 'Zürich']
    tokens = train_wordpiece(words[:-2], 250, lowercase=False)
    fit = fit_of(WordPieceTokenizer(Vocab.from_tokens(tokens), lowercase=False), Counter(words))

    theirs = tokenizers.BertWordPieceTokenizer(
        {token: i for i, token in enumerate(tokens)}, lowercase=False, strip_accents=False)
    pieces = [theirs.encode(word, add_special_tokens=False).tokens for word in words]
    flat = [piece for of_word in pieces for piece in of_word]
    whole = [of_word for of_word in pieces if len(of_word) == 1 and of_word != ['[UNK]']]
    assert flat.count('[UNK]') >= 2
    assert fit.pieces_a_word == pytest.approx(len(flat) / len(words))
    assert fit.whole_words == pytest.approx(len(whole) / len(words))
    assert fit.characters_a_piece == pytest.approx(sum(map(len, words)) / len(flat))
    assert fit.unknown == pytest.approx(flat.count('[UNK]') / len(flat))
    assert fit.used == pytest.approx(len(set(flat)) / len(tokens))
