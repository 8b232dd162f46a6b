"""Masking for the masked LM: which positions, how many, replaced by what; rows are independent.

Rows look as in pre-training: [CLS] A [SEP] B [SEP] padding. There are `V` pieces; those from 40 on
continue words. The ids of the text are from `FIRST` to `V` - 1.
"""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.config.choices import MASKINGS
from bert_jax.rows.masking import MaskingRates, mask_rows
from bert_jax.rows.stateless import hash64
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


@dataclasses.dataclass
class Masked:
    """Masked rows and their labels."""

    ids: np.ndarray
    positions: np.ndarray
    labels: np.ndarray
    weights: np.ndarray

    def row(self, i):
        """Row `i`: its ids, and the positions and labels of the slots in use."""
        count = int(self.weights[i].sum())
        return self.ids[i], self.positions[i, :count], self.labels[i, :count]


def _mask(
    ids, candidates, lengths, *, keys=None, row_length=0, slots=20, vocab_size=V, **rates
):
    """Masks rows with these `MaskingRates`; `ids` stay as they are."""
    masked = ids.copy()
    vocab = Vocab((), PAD, PAD, CLS, SEP, MASK, np.arange(vocab_size) % V >= 40)
    labels = mask_rows(
        masked, candidates, np.asarray(lengths),
        hash64(np.arange(len(ids))) if keys is None else keys,
        rates=MaskingRates(**rates), row_length=row_length or ids.shape[1], slots=slots,
        vocab=vocab)
    return Masked(
        masked, labels['masked_lm_positions'], labels['masked_lm_ids'],
        labels['masked_lm_weights'])


def _one_word_a_piece(num_rows, width):
    """Rows [CLS] text [SEP] of words of one piece each."""
    ids = np.full((num_rows, width), FIRST, np.int32)
    ids[:, 0] = CLS
    ids[:, -1] = SEP
    return ids


@dataclasses.dataclass
class Batch:
    """Unmasked rows and how to mask them."""

    ids: np.ndarray
    candidates: np.ndarray
    lengths: np.ndarray
    keys: np.ndarray
    slots: int
    share: float

    def mask(self, masking):
        return _mask(
            self.ids, self.candidates, self.lengths, keys=self.keys, slots=self.slots,
            masked_lm_prob=self.share, masking=masking)

    def take(self, rows):
        """A batch of some of the rows."""
        return dataclasses.replace(
            self, ids=self.ids[rows], candidates=self.candidates[rows],
            lengths=self.lengths[rows], keys=self.keys[rows])

    def budget(self, row):
        """The most positions of a row that may be masked."""
        return min(self.slots, max(1, round(int(self.lengths[row]) * self.share)))


@st.composite
def _batches(draw):
    lengths = np.array(draw(st.lists(st.integers(4, 48), min_size=1, max_size=6)))
    padding = draw(st.integers(0, 15))  # of the longest row
    seed = draw(st.integers(0, 10**6))
    ids, candidates = _rows(lengths, lengths.max() + padding, seed)
    return Batch(
        ids, candidates, lengths,
        keys=hash64(seed, np.arange(len(lengths))),
        slots=min(draw(st.integers(1, 60)), ids.shape[1]),
        share=draw(st.floats(0.01, 0.9)))


def _words(ids, candidates):
    """The positions of each word: a piece and the continuations right after it."""
    words = []
    for i in np.flatnonzero(candidates):
        if words and words[-1][-1] == i - 1 and CONTINUES[ids[i]]:
            words[-1].append(int(i))
        else:
            words.append([int(i)])
    return words


_with_batches = given(_batches(), st.sampled_from(MASKINGS))


@settings(deadline=None, max_examples=200)
@_with_batches
def test_used_slots_come_first_and_hold_the_candidates_that_were_masked(batch, masking):
    masked = batch.mask(masking)
    shape = (len(batch.ids), batch.slots)
    assert (masked.positions.shape, masked.positions.dtype) == (shape, np.int32)
    assert (masked.labels.shape, masked.labels.dtype) == (shape, np.int32)
    assert (masked.weights.shape, masked.weights.dtype) == (shape, np.float32)
    for i in range(len(batch.ids)):
        ids, positions, labels = masked.row(i)
        count = len(positions)
        assert masked.weights[i].tolist() == [1] * count + [0] * (batch.slots - count)
        assert not masked.positions[i, count:].any()
        assert not masked.labels[i, count:].any()
        assert (np.diff(positions) > 0).all(), 'ascending, none twice'
        assert batch.candidates[i, positions].all(), 'neither special tokens nor padding'
        restored = ids.copy()
        restored[positions] = labels
        assert np.array_equal(restored, batch.ids[i])
        assert labels.tolist() == batch.ids[i, positions].tolist()


@settings(deadline=None, max_examples=200)
@_with_batches
def test_words_are_masked_whole_within_the_budget(batch, masking):
    masked = batch.mask(masking)
    for i in range(len(batch.ids)):
        _, positions, _ = masked.row(i)
        count = len(positions)
        budget = batch.budget(i)
        words = _words(batch.ids[i], batch.candidates[i])
        if masking == 'pieces' or all(len(word) > budget for word in words):
            assert count == min(budget, batch.candidates[i].sum())
            continue
        assert count <= budget
        for word in words:
            inside = set(positions.tolist()).intersection(word)
            assert inside in (set(), set(word))
            assert inside or len(word) > budget - count, 'passed over because it did not fit'


@settings(deadline=None, max_examples=200)
@given(_batches(), st.sampled_from(MASKINGS), st.data())
def test_rows_do_not_depend_on_their_neighbours(batch, masking, data):
    rows = data.draw(st.lists(st.integers(0, len(batch.ids) - 1), min_size=1, max_size=8))
    whole = batch.mask(masking)
    part = batch.take(rows).mask(masking)
    for name in ('ids', 'positions', 'labels', 'weights'):
        np.testing.assert_array_equal(getattr(whole, name)[rows], getattr(part, name))


@pytest.mark.parametrize('masking', MASKINGS)
def test_rows_of_words_longer_than_the_slots_have_masks_all_the_same(masking):
    num_rows, width, slots = 300, 32, 5
    ids = np.full((num_rows, width), V - 1, np.int32)
    ids[:, 0] = CLS
    ids[:, 1] = FIRST  # one word of 30 pieces
    ids[:, -1] = SEP
    masked = _mask(ids, ids >= FIRST, [width] * num_rows, slots=slots, masking=masking)
    assert (masked.weights == 1).all()
    at_each = np.bincount(masked.positions.ravel(), minlength=width)[1:-1]
    assert at_each == pytest.approx([num_rows * slots / 30] * 30, rel=0.5), 'any part of the word'


@pytest.mark.parametrize(('masking', 'shares'), [
    ('ngrams', [6 / 11, 3 / 11, 2 / 11]),  # 1/n, normalised
    ('spans', [0.2 * 0.8 ** n / (1 - 0.8 ** 10) for n in range(10)]),
])
def test_runs_of_words_have_the_lengths_of_their_papers(masking, shares):
    num_rows, width, slots = 400, 2002, 60
    ids = _one_word_a_piece(num_rows, width)
    masked = _mask(
        ids, ids >= FIRST, [width] * num_rows, slots=slots, vocab_size=10**6, masking=masking)
    assert (np.diff(masked.positions) > 0).all()  # every row uses all its slots
    # A run of adjacent masked positions is mostly one draw, because few positions are masked.
    breaks = np.diff(masked.positions, axis=1) > 1
    ends = np.flatnonzero(np.pad(breaks, ((0, 0), (0, 1)), constant_values=True).ravel())
    num_runs = np.bincount(np.diff(ends, prepend=-1), minlength=len(shares) + 1)
    found = num_runs[1 : len(shares) + 1] / num_runs.sum()
    assert found == pytest.approx(shares, abs=0.03)
    by_place = np.bincount(masked.positions.ravel() // 100, minlength=20)[:20]
    assert by_place == pytest.approx([num_rows * slots / 20] * 20, rel=0.15), 'evenly over the row'


@pytest.mark.parametrize(('masking', 'agreement'), [
    pytest.param('ngrams', 0.8 ** 2 + 0.2 ** 2, id='those of an n-gram are drawn one by one'),
    pytest.param('spans', 1, id='all of a span are alike'),
])
def test_neighbours_are_replaced(masking, agreement):
    num_rows, width = 400, 2002
    ids = _one_word_a_piece(num_rows, width)
    masked = _mask(
        ids, ids >= FIRST, [width] * num_rows, slots=60, vocab_size=10**6, masking=masking)
    is_mask = np.take_along_axis(masked.ids, masked.positions, axis=1) == MASK
    adjacent = np.diff(masked.positions, axis=1) == 1
    agree = (is_mask[:, 1:] == is_mask[:, :-1])[adjacent].mean()
    assert agree == pytest.approx(agreement, abs=0.06)


@pytest.mark.parametrize(('mask_rate', 'same_rate', 'random_rate'), [  # as in the paper's table 8
    (0.8, 0.1, 0.1), (1, 0, 0), (0.8, 0, 0.2), (0.8, 0.2, 0), (0, 0.2, 0.8), (0, 0, 1), (0, 1, 0),
])
def test_shares_of_the_replacements(mask_rate, same_rate, random_rate):
    num_rows, width, slots = 3000, 66, 10
    ids, candidates = _rows([width] * num_rows, width)
    masked = _mask(
        ids, candidates, [width] * num_rows, slots=slots,
        vocab_size=10_000,  # a random piece is seldom the original
        mask_rate=mask_rate, random_rate=random_rate)
    after = np.take_along_axis(masked.ids, masked.positions, axis=1)
    is_mask = after == MASK
    is_same = after == masked.labels
    is_random = ~is_mask & ~is_same
    for found, rate in ((is_mask, mask_rate), (is_same, same_rate), (is_random, random_rate)):
        tolerance = 4.5 * np.sqrt(rate * (1 - rate) / found.size) + 0.0005
        assert found.mean() == pytest.approx(rate, abs=tolerance)
        of_a_slot = 4.5 * np.sqrt(0.25 / num_rows)
        assert found.mean(axis=0) == pytest.approx([rate] * slots, abs=of_a_slot)


@pytest.mark.parametrize('masking', ['words', 'ngrams', 'spans'])
def test_a_segments_first_word_is_masked_about_as_often_as_others(masking):
    """With spans taken forwards only, it would be masked in 0.195 of rows, inner words in 0.160."""
    num_rows, width = 20_000, 64
    ids = _one_word_a_piece(num_rows, width)
    ids[:, 30] = SEP
    masked = _mask(ids, ids >= FIRST, [width] * num_rows, slots=12, masking=masking)
    used = masked.positions[masked.weights > 0]
    rate = np.bincount(used, minlength=width) / num_rows
    inside = rate[10:25].mean()
    for place in (1, 31, 29, 62):  # first and last words of the segments
        assert rate[place] == pytest.approx(inside, rel=0.12)
