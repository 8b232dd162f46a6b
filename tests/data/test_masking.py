"""Masking for the masked LM: which positions, how many, replaced by what; rows are independent.

Rows look as in pre-training: [CLS] A [SEP] B [SEP] padding. There are `V` pieces; those from 40 on
continue words. The ids of the text are from `FIRST` to `V` - 1.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.config.choices import MASKINGS
from bert_jax.data.masking import MaskingRates, mask_rows
from bert_jax.data.stateless import hash64
from bert_jax.text.vocab import Vocab

PAD, CLS, SEP, MASK, FIRST = 0, 1, 2, 3, 4
V = 60
CONTINUES = np.arange(V) >= 40


def _rows(lengths, width, seed=0):
    """Ids [n, S] of rows with these lengths, and which of them may be masked."""
    rng = np.random.default_rng(seed)
    lengths = np.asarray(lengths)
    columns = np.arange(width)
    ids = rng.integers(FIRST, V, (len(lengths), width)).astype(np.int32)
    middle = 1 + rng.integers(0, np.maximum(lengths - 2, 1))  # position of the first [SEP]
    ids[:, 0] = CLS
    ids[columns == middle[:, None]] = SEP
    ids[columns == lengths[:, None] - 1] = SEP
    ids[columns >= lengths[:, None]] = PAD
    return ids, ids >= FIRST


def _mask(ids, candidates, lengths, keys=None, slots=20, vocab_size=V, rates=None, **more):
    """The masked ids and the positions, ids and weights of the labels; `ids` stay as they are."""
    masked = ids.copy()
    vocab = Vocab((), PAD, PAD, CLS, SEP, MASK, np.arange(vocab_size) % V >= 40)
    labels = mask_rows(
        masked, candidates, np.asarray(lengths),
        hash64(np.arange(len(ids))) if keys is None else keys,
        rates=rates or MaskingRates(**more), slots=slots, vocab=vocab,
    )
    return masked, labels['masked_lm_positions'], labels['masked_lm_ids'], (
        labels['masked_lm_weights'])


batches = st.tuples(
    st.lists(st.integers(4, 48), min_size=1, max_size=6),  # lengths
    st.integers(0, 15),  # padding of the longest row
    st.integers(0, 10**6),  # seed of the text
    st.integers(1, 60),  # slots, cut to the row's width
    st.floats(0.01, 0.9),  # masked_lm_prob
)


def _words(ids, candidates):
    """The positions of each word: a piece and the continuations right after it."""
    words = []
    for i in np.flatnonzero(candidates):
        if words and words[-1][-1] == i - 1 and CONTINUES[ids[i]]:
            words[-1].append(int(i))
        else:
            words.append([int(i)])
    return words


@settings(deadline=None, max_examples=200)
@given(batches, st.sampled_from(MASKINGS), st.data())
def test_masked_rows(batch, masking, data):
    lengths, padding, seed, slots, share = batch
    lengths = np.array(lengths)
    ids, candidates = _rows(lengths, lengths.max() + padding, seed)
    slots = min(slots, ids.shape[1])
    keys = hash64(seed, np.arange(len(lengths)))
    rates = MaskingRates(masked_lm_prob=share, masking=masking)
    whole = _mask(ids, candidates, lengths, keys, slots, rates=rates)
    masked, positions, labels, weights = whole
    assert positions.shape == labels.shape == weights.shape == (len(ids), slots)
    assert (positions.dtype, labels.dtype, weights.dtype) == (np.int32, np.int32, np.float32)
    for i, length in enumerate(lengths.tolist()):
        count = int(weights[i].sum())
        assert weights[i].tolist() == [1] * count + [0] * (slots - count)
        assert not positions[i, count:].any() and not labels[i, count:].any()
        used = positions[i, :count]
        assert (np.diff(used) > 0).all()  # ascending, none twice
        assert candidates[i, used].all()  # neither special tokens nor padding
        assert labels[i, :count].tolist() == ids[i, used].tolist()
        restored = masked[i].copy()
        restored[used] = labels[i, :count]
        assert np.array_equal(restored, ids[i])
        budget = min(slots, max(1, round(length * share)))
        words = _words(ids[i], candidates[i])
        if masking == 'pieces' or all(len(word) > budget for word in words):
            assert count == min(budget, candidates[i].sum())
            continue
        for word in words:  # words are masked whole within the budget
            inside = set(used.tolist()).intersection(word)
            assert count <= budget and inside in (set(), set(word))
            assert inside or len(word) > budget - count  # passed over because it did not fit
    # Rows do not depend on their neighbours.
    some = data.draw(st.lists(st.integers(0, len(ids) - 1), min_size=1, max_size=8))
    part = _mask(ids[some], candidates[some], lengths[some], keys[some], slots, rates=rates)
    assert all(np.array_equal(x[some], y) for x, y in zip(whole, part, strict=True))


@pytest.mark.parametrize('masking', MASKINGS)
def test_rows_of_words_longer_than_the_slots_have_masks_all_the_same(masking):
    n, width, slots = 300, 32, 5
    ids = np.full((n, width), V - 1, np.int32)
    ids[:, 0], ids[:, -1] = CLS, SEP
    ids[:, 1] = FIRST  # one word of 30 pieces
    _, positions, _, weights = _mask(ids, ids >= FIRST, [width] * n, slots=slots, masking=masking)
    assert (weights == 1).all()
    where = np.bincount(positions.ravel(), minlength=width)[1:-1]  # any part of the word
    assert where == pytest.approx([n * slots / 30] * 30, rel=0.5)


@pytest.mark.parametrize(('masking', 'shares'), [
    ('ngrams', [6 / 11, 3 / 11, 2 / 11]),  # 1/n, normalised
    ('spans', [0.2 * 0.8 ** n / (1 - 0.8 ** 10) for n in range(10)]),
])
def test_runs_of_words_have_the_lengths_of_their_papers(masking, shares):
    n, width, budget = 400, 2002, 60
    ids = np.full((n, width), FIRST, np.int32)  # one word a piece
    ids[:, 0], ids[:, -1] = CLS, SEP
    more = {'slots': budget, 'vocab_size': 10**6, 'masking': masking}
    masked, positions, *_ = _mask(ids, ids >= FIRST, [width] * n, **more)
    assert (np.diff(positions) > 0).all()  # every row uses all its slots
    # A run of adjacent masked positions is mostly one draw, because few positions are masked.
    breaks = np.diff(positions, axis=1) > 1
    ends = np.flatnonzero(np.pad(breaks, ((0, 0), (0, 1)), constant_values=True).ravel())
    lengths = np.bincount(np.diff(ends, prepend=-1), minlength=len(shares) + 1)
    found = lengths[1: len(shares) + 1] / lengths.sum()
    assert found == pytest.approx(shares, abs=0.03)
    where = np.bincount(positions.ravel() // 100, minlength=20)[:20]  # evenly over the row
    assert where == pytest.approx([n * budget / 20] * 20, rel=0.15)
    # All positions of a span are replaced alike; those of an n-gram are drawn one by one.
    same = masked[np.arange(n)[:, None], positions] == MASK
    inside = ~breaks
    agree = (same[:, 1:] == same[:, :-1])[inside].mean()
    expected = 1 if masking == 'spans' else 0.8 ** 2 + 0.2 ** 2
    assert agree == pytest.approx(expected, abs=0.06)


@pytest.mark.parametrize(('mask_rate', 'same_rate', 'random_rate'), [  # as in the paper's table 8
    (0.8, 0.1, 0.1), (1, 0, 0), (0.8, 0, 0.2), (0.8, 0.2, 0), (0, 0.2, 0.8), (0, 0, 1), (0, 1, 0),
])
def test_shares_of_the_replacements(mask_rate, same_rate, random_rate):
    n, width, vocab_size = 3000, 66, 10_000  # a random piece is seldom the original
    ids, candidates = _rows([width] * n, width)
    masked, positions, labels, _ = _mask(
        ids, candidates, [width] * n, slots=10, vocab_size=vocab_size,
        mask_rate=mask_rate, random_rate=random_rate)
    after = np.take_along_axis(masked, positions, axis=1)
    is_mask, is_same = after == MASK, after == labels
    is_random = ~is_mask & ~is_same
    for what, rate in ((is_mask, mask_rate), (is_same, same_rate), (is_random, random_rate)):
        tolerance = 4.5 * np.sqrt(rate * (1 - rate) / what.size) + 0.0005
        assert what.mean() == pytest.approx(rate, abs=tolerance)
        by_slot = what.mean(axis=0)  # the same in every slot
        assert by_slot == pytest.approx([rate] * 10, abs=4.5 * np.sqrt(0.25 / n))


@pytest.mark.parametrize('masking', ['words', 'ngrams', 'spans'])
def test_a_segments_first_word_is_masked_about_as_often_as_others(masking):
    """With spans taken forwards only, it would be masked in 0.195 of rows, inner words in 0.160."""
    n, width = 20_000, 64
    ids = np.full((n, width), FIRST, np.int32)
    ids[:, 0], ids[:, 30], ids[:, -1] = CLS, SEP, SEP
    _, positions, _, weights = _mask(ids, ids >= FIRST, [width] * n, slots=12, masking=masking)
    rate = np.bincount(positions[weights > 0], minlength=width) / n
    inside = rate[10:25].mean()
    for place in (1, 31, 29, 62):  # first and last words of the segments
        assert rate[place] == pytest.approx(inside, rel=0.12)
