"""Windows of tokens over texts of words, in which every word is scored once.

    W: words, P: word pieces of all words, T: tokens of all windows
"""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from bert_jax.rows.sequences import Sequences, joined, make_sequences, ranges, tile
from bert_jax.text.frames import Frame


@dataclasses.dataclass(frozen=True)
class WordWindows:
    """The windows of all texts, in order.

    Attributes:
      sequences: [CLS] pieces [SEP] of each.
      word_T: [T] int32: at the first piece of a word that is scored in this window, the word's
        index among all words, else -1. Words follow each other in their order.
    """

    sequences: Sequences
    word_T: np.ndarray

    def of_words(self, values: np.ndarray) -> np.ndarray:
        """The values [W, ...] of words, from those of tokens [T, ...]."""
        return values[self.word_T >= 0]


def word_windows(
    texts: Sequence[Sequence[Sequence[int]]], *, max_length: int, frame: Frame, stand_in_id: int,
) -> WordWindows:
    """Windows of texts whose words are in pieces; every word is scored exactly once.

    A text is a sentence, or all sentences of a document one after the other. It is one window if it
    fits. A longer one is covered by windows of full length, evenly spaced and overlapping by at
    least half. Each word is scored in the window with the most context on the side where it has
    less: about a quarter of a window or more on both, or up to the end of the text. So nothing is
    dropped, and a word sees its document ("maximal document context" of paper section 5.3; all of
    it where it fits) for at most about twice the tokens of the text. (A window for every sentence,
    filled up with its neighbours, would give half a window on both sides, but cost `max_length`
    tokens a sentence: 6.5 times the text of the training file at 128, 26 times at 512.) A window
    may end inside a word, but starts at the beginning of one.

    The pieces of a word are those that it has in its text. A word that has none (BERT's tokenizer
    removes control characters) becomes [UNK], or [MASK] where there is no [UNK], so that it is
    scored like any other.

    Args:
      texts: for each text, the pieces of each word (`Tokenizer.encode_words`); one word or more.
      max_length: tokens of a window, [CLS] and [SEP] included.
      frame, stand_in_id: of the vocabulary.
    """
    ids_P, counts_W = _pieces(texts, stand_in_id)
    # Where each word's pieces begin; bounds of the texts, in pieces.
    first_W = np.cumsum(counts_W) - counts_W
    bounds = np.append(first_W, len(ids_P))[np.cumsum([0, *map(len, texts)])]
    _, starts, ends, cores = tile(bounds, max_length - frame.num_special(pair=False))
    # The window that scores a word is the last whose core begins before or at its first piece.
    window_W = np.searchsorted(cores, first_W, side='right') - 1
    used, window_W = np.unique(window_W, return_inverse=True)  # others: only tails of huge words
    starts = first_W[np.searchsorted(first_W, starts[used])]
    counts = ends[used] - starts
    sequences = make_sequences(
        (ids_P[ranges(starts, counts)], counts), None, max_length=max_length, frame=frame)
    # Each word's one place among the tokens, after the [CLS] of its window.
    text_W = sequences.offsets[window_W] + frame.num_before_single
    place_W = text_W + first_W - starts[window_W]
    word_T = np.full(len(sequences.ids), -1, np.int32)
    word_T[place_W] = np.arange(len(first_W))
    return WordWindows(sequences, word_T)


def _pieces(
    texts: Sequence[Sequence[Sequence[int]]], stand_in_id: int
) -> tuple[np.ndarray, np.ndarray]:
    """The pieces [P] of all words, and the number of pieces of each word [W], one or more."""
    of_words = itertools.chain.from_iterable(texts)
    return joined([pieces or [stand_in_id] for pieces in of_words])
