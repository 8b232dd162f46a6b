"""Token sequences of texts and pairs equal what is built one example and one token at a time."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bert_jax.data.pairs import make_sequences, truncated_lengths

CLS, SEP = 101, 102
texts = st.lists(st.integers(1000, 2000), max_size=12)


def truncate_seq_pair(a, b, max_length):
    """The rule of google-research/bert: one token at a time off the end of the longer one."""
    a, b = list(a), list(b)
    while len(a) + len(b) > max_length:
        (a if len(a) > len(b) else b).pop()
    return a, b


def joined(texts, dtype=np.int32):
    """Texts of token ids as an encoder gives them."""
    return (
        np.array([token for text in texts for token in text], dtype),
        np.array([len(text) for text in texts], np.int64),
    )


def as_lists(sequences):
    """(ids, tokens of segment 0) of each sequence."""
    parts = np.split(sequences.ids, sequences.offsets[1:-1]) if len(sequences) else []
    return [(p.tolist(), int(n)) for p, n in zip(parts, sequences.first_lengths, strict=True)]


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 50))
@example(5, 5, 5)
@example(3, 9, 6)
def test_kept_lengths_are_those_of_one_token_at_a_time(a, b, budget):
    a_kept, b_kept = truncated_lengths(np.array([a]), np.array([b]), budget)
    want_a, want_b = truncate_seq_pair(range(a), range(b), budget)
    assert (a_kept[0], b_kept[0]) == (len(want_a), len(want_b))


@settings(deadline=None)
@given(st.lists(st.tuples(texts, texts), max_size=6), st.integers(3, 20))
@example([([], [])], 3)
def test_pairs(pairs, max_length):
    sequences = make_sequences(
        joined([a for a, _ in pairs]), joined([b for _, b in pairs]), max_length=max_length,
        cls_id=CLS, sep_id=SEP,
    )
    want = []
    for a, b in pairs:
        a, b = truncate_seq_pair(a, b, max_length - 3)
        want.append(([CLS, *a, SEP, *b, SEP], len(a) + 2))
    assert as_lists(sequences) == want
    assert sequences.ids.dtype == np.int32
    assert sequences.offsets.dtype == np.int64
    assert sequences.lengths.tolist() == [len(ids) for ids, _ in want]


@settings(deadline=None)
@given(st.lists(texts, max_size=6), st.integers(2, 20))
def test_single_texts(texts, max_length):
    sequences = make_sequences(
        joined(texts), None, max_length=max_length, cls_id=CLS, sep_id=SEP
    )
    want = [[CLS, *text[:max_length - 2], SEP] for text in texts]
    assert as_lists(sequences) == [(ids, len(ids)) for ids in want]


@pytest.mark.parametrize('dtype', [np.uint16, np.int64])
def test_the_encoders_types_do_not_matter(dtype):
    a = joined([[1, 2], [], [3]], dtype)
    b = (np.array([4, 5, 6], dtype), np.array([0, 1, 2], np.int32))
    sequences = make_sequences(a, b, max_length=5, cls_id=CLS, sep_id=SEP)
    assert as_lists(sequences) == [
        ([CLS, 1, 2, SEP, SEP], 4), ([CLS, SEP, 4, SEP], 2), ([CLS, 3, SEP, 5, SEP], 3)
    ]
