"""How a vocabulary splits a text: into how many pieces, and what it does not know.

    W: distinct words, P: pieces of all of them
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from bert_jax.text.tokenizer import Tokenizer, joined


class Fit(NamedTuple):
    """How a vocabulary splits a text.

    Attributes:
      pieces_a_word: the mean over words, its *fertility*; 1 if each word is a piece.
      whole_words: share of the words that are one piece.
      characters_a_piece: the mean, white space aside.
      unknown: share of the pieces that are [UNK].
      used: share of the vocabulary that occurs in the text.
    """

    pieces_a_word: float
    whole_words: float
    characters_a_piece: float
    unknown: float
    used: float


def fit_of(tokenizer: Tokenizer, words: Mapping[str, int]) -> Fit:
    """How a vocabulary splits words.

    Args:
      tokenizer: of the vocabulary.
      words: runs of characters between white space, with their counts; at least one.
    """
    vocab = tokenizer.vocab
    count_W = np.fromiter(words.values(), np.int64, len(words))
    id_P, num_pieces_W = joined(tokenizer.encode_words(list(words)))
    word_P = np.repeat(np.arange(len(words)), num_pieces_W)
    is_unknown_P = np.zeros(len(id_P), bool)
    if vocab.unk_id is not None:
        is_unknown_P = id_P == vocab.unk_id
    is_whole_W = num_pieces_W == 1
    is_whole_W[word_P[is_unknown_P]] = False

    num_words = int(count_W.sum())
    num_pieces = max(int(count_W @ num_pieces_W), 1)
    num_characters = sum(len(word) * count for word, count in words.items())
    return Fit(
        pieces_a_word=num_pieces / num_words,
        whole_words=float(count_W[is_whole_W].sum() / num_words),
        characters_a_piece=num_characters / num_pieces,
        unknown=float(count_W[word_P[is_unknown_P]].sum() / num_pieces),
        used=len(np.unique(id_P)) / len(vocab))
