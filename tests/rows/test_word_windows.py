"""Windows that score every word once, in its own text and with context on both sides."""

import dataclasses
import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.rows.word_windows import word_windows
from bert_jax.tasks.tagging import read_tagged
from bert_jax.text.frames import berts_frame
from bert_jax.text.vocab_files import read_vocab
from bert_jax.text.wordpiece import WordPieceTokenizer

UNK, CLS, SEP, FIRST_PIECE = 100, 101, 102, 1000
PIECES_OF_WORDS = st.lists(st.sampled_from([1, 1, 1, 2, 3, 0, 9]), min_size=1, max_size=60)


@settings(deadline=None)
@given(st.lists(PIECES_OF_WORDS, min_size=1, max_size=6), st.integers(3, 70))
def test_every_word_is_scored_once_in_windows_of_its_own_text(texts, max_length):
    expected = Pieces.of(texts)
    windows = word_windows(
        expected.texts, max_length=max_length, frame=berts_frame(CLS, SEP), stand_in_id=UNK)
    sequences, word_T = windows.sequences, windows.word_T
    np.testing.assert_array_equal(sequences.first_lengths, sequences.lengths)
    np.testing.assert_array_equal(word_T[word_T >= 0], np.arange(len(expected.first)))
    for begin, end in itertools.pairwise(sequences.offsets):
        check_window(sequences.ids[begin:end], word_T[begin:end], expected, max_length)


@dataclasses.dataclass(frozen=True)
class Pieces:
    """Texts whose pieces tell to which word they belong.

    Attributes:
      texts: the pieces of each word.
      ids: the pieces of all words.
      first: of each word, the index of its first piece among `ids`.
      bounds: where each text begins in `ids`, and the end of the last.
    """

    texts: list[list[list[int]]]
    ids: list[int]
    first: np.ndarray
    bounds: np.ndarray

    @classmethod
    def of(cls, texts):
        """Texts whose words have these numbers of pieces; one without any is [UNK]."""
        made, ids, first, bounds = [], [], [], [0]
        for counts in texts:
            words = []
            for count in counts:
                first.append(len(ids))
                words.append([FIRST_PIECE * len(first) + i for i in range(count)])
                ids += words[-1] or [UNK]
            made.append(words)
            bounds.append(len(ids))
        return cls(made, ids, np.array(first), np.array(bounds))


def check_window(ids, words, expected, max_length):
    """Checks the tokens of a window, and the words that are scored at them (else -1)."""
    assert len(ids) <= max_length
    assert ids[0] == CLS and ids[-1] == SEP and words[0] == words[-1] == -1
    here = np.flatnonzero(words >= 0)
    assert len(here), 'every window scores a word'
    (shift,) = set(expected.first[words[here]] - here)
    low = shift + 1
    high = shift + len(ids) - 1
    assert list(ids[1:-1]) == expected.ids[low:high] and low in expected.first
    text = np.searchsorted(expected.bounds, low, 'right')
    begin, end = expected.bounds[text - 1:text + 1]
    assert begin <= low < high <= end, 'a window is of one text'
    # Context on each side: a quarter of the window, less the loss by rounding and whole words.
    quarter = (max_length - 2) // 4 - 10
    scored_at = expected.first[words[here]]
    assert (scored_at - low >= np.minimum(quarter, scored_at - begin)).all()
    assert (high - 1 - scored_at >= np.minimum(quarter, end - 1 - scored_at)).all()


def test_no_word_of_a_real_file_is_lost(shared_data):
    sentences = read_tagged(str(shared_data / 'conll2003' / 'eng.testa.gz')).sentences
    documents = itertools.groupby(sentences, key=lambda sentence: sentence.document)
    texts = [[word for sentence in of_document for word in sentence.words]
             for _, of_document in documents]
    tokenizer = WordPieceTokenizer(
        read_vocab(shared_data / 'vocab/bert-base-cased-vocab.txt'), lowercase=False)
    ids = [tokenizer.encode(word) for text in texts for word in text]
    windows = word_windows(
        [tokenizer.encode_words(words) for words in texts], max_length=512,
        frame=tokenizer.vocab.frame, stand_in_id=tokenizer.vocab.unk_id)
    sequences = windows.sequences
    assert windows.of_words(windows.word_T).tolist() == list(range(51362))
    assert windows.of_words(sequences.ids).tolist() == [word[0] for word in ids]
    assert sequences.lengths.max() <= 512
    assert len(sequences.ids) < 1.35 * sum(map(len, ids))
