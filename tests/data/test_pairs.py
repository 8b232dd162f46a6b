"""Token sequences of texts and pairs equal what is built one example and one token at a time."""

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bert_jax.data.pairs import joined, make_sequences, truncated_lengths
from tests.data.stores import truncated

CLS, SEP = 101, 102
texts = st.lists(st.integers(1000, 2000), max_size=12)


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 50))
@example(5, 5, 5)
@example(3, 9, 6)
def test_kept_lengths_are_those_of_one_token_at_a_time(a, b, budget):
    a_kept, b_kept = truncated_lengths(np.array([a]), np.array([b]), budget)
    assert (a_kept[0], b_kept[0]) == truncated(a, b, budget)


@settings(deadline=None)
@given(st.lists(st.tuples(texts, texts), max_size=6), st.integers(3, 20), st.booleans(),
       st.sampled_from([np.uint16, np.int32, np.int64]))
@example([([], [])], 3, False, np.int32)
def test_sequences_of_pairs_and_single_texts(pairs, max_length, single, dtype):
    a, b = ((ids.astype(dtype), counts.astype(np.int32)) for ids, counts in (
        joined([pair[i] for pair in pairs]) for i in (0, 1)))
    sequences = make_sequences(
        a, None if single else b, max_length=max_length, cls_id=CLS, sep_id=SEP)
    want = []
    for a, b in pairs:
        if single:
            want.append(([CLS, *a[:max_length - 2], SEP], min(len(a) + 2, max_length)))
            continue
        a_kept, b_kept = truncated(len(a), len(b), max_length - 3)
        want.append(([CLS, *a[:a_kept], SEP, *b[:b_kept], SEP], a_kept + 2))
    parts = np.split(sequences.ids, sequences.offsets[1:-1]) if len(sequences) else []
    assert [part.tolist() for part in parts] == [ids for ids, _ in want]
    assert sequences.first_lengths.tolist() == [first for _, first in want]
    assert (sequences.ids.dtype, sequences.offsets.dtype) == (np.int32, np.int64)
    assert sequences.lengths.tolist() == [len(ids) for ids, _ in want]
