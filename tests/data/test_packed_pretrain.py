"""Packed pre-training rows: the pairs of each step as they are unpacked, in fewer rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.data.examples import Mixture, SyntheticExamples, check_batch
from bert_jax.data.masking import MaskingRates
from bert_jax.data.packing import PackedExamples
from bert_jax.runtime.errors import InputError
from tests.data.test_pretrain import _examples, _random_store

BATCH = 48


@pytest.fixture(scope='module')
def examples():
    """Of short documents: a pair fills about half a row."""
    return _examples(_random_store(150, most_sentences=6, most_tokens=12), short_seq_prob=0.3,
                     masking=MaskingRates(masked_lm_prob=0.15))


def unpacked(batch):
    """The pairs in packed rows, each as (ids, segments, [(position, label)], is_random)."""
    pairs = []
    for r, numbers in enumerate(batch['sequence_ids']):
        for k in range(numbers.max()):
            here = np.flatnonzero(numbers == k + 1)
            assert (np.diff(here) == 1).all() and here[0] == batch['cls_positions'][r, k]
            assert (batch['position_ids'][r, here] == np.arange(len(here))).all()
            assert batch['example_weights'][r, k] == 1
            used = (batch['masked_lm_weights'][r] == 1) & np.isin(
                batch['masked_lm_positions'][r], here)
            pairs.append((
                batch['input_ids'][r, here].tolist(), batch['segment_ids'][r, here].tolist(),
                list(zip((batch['masked_lm_positions'][r, used] - here[0]).tolist(),
                         batch['masked_lm_ids'][r, used].tolist(), strict=True)),
                int(batch['next_sentence_labels'][r, k]),
            ))
        assert (batch['example_weights'][r] > 0).sum() == numbers.max()
        # Every used slot is of some pair, and the slots stand in order.
        used = batch['masked_lm_weights'][r] == 1
        assert (numbers[batch['masked_lm_positions'][r, used]] > 0).all()
        assert (np.diff(batch['masked_lm_positions'][r, used]) > 0).all()
        assert not used[used.sum():].any()
    return pairs


def plain(batch):
    pairs = []
    for i, length in enumerate(batch['sequence_ids'].sum(axis=1)):
        used = batch['masked_lm_weights'][i] == 1
        pairs.append((
            batch['input_ids'][i, :length].tolist(), batch['segment_ids'][i, :length].tolist(),
            list(zip(batch['masked_lm_positions'][i, used].tolist(),
                     batch['masked_lm_ids'][i, used].tolist(), strict=True)),
            int(batch['next_sentence_labels'][i]),
        ))
    return pairs


@pytest.mark.parametrize('step', [0, 1, 5, 40])
def test_a_step_has_the_pairs_that_it_has_unpacked(examples, step):
    packed = PackedExamples(examples, BATCH, 40)
    batch = packed.rows(step * 40 + np.arange(40))
    check_batch(packed.spec, batch)
    expected = plain(examples.rows(step * BATCH + np.arange(BATCH)))
    assert sorted(unpacked(batch)) == sorted(expected)
    assert (batch['sequence_ids'].max(axis=1) > 1).sum() > 5  # rows that are shared


@pytest.fixture(scope='module')
def whole(examples):
    packed = PackedExamples(examples, BATCH, 40)
    return packed, packed.rows(np.arange(40 * 12))


@settings(max_examples=30, deadline=None)
@given(row_ids=st.lists(st.integers(0, 40 * 12 - 1), min_size=1, max_size=60, unique=True))
def test_a_row_depends_on_its_number_alone(whole, row_ids):
    packed, whole = whole
    row_ids = np.sort(row_ids)
    together = packed.rows(row_ids)
    for name, x in together.items():
        np.testing.assert_array_equal(x, whole[name][row_ids], err_msg=name)


def test_large_steps_are_packed_in_groups(examples):
    packed = PackedExamples(examples, 3000, 2800)
    batch = packed.rows(2800 + np.arange(2800))
    assert sorted(unpacked(batch)) == sorted(plain(examples.rows(3000 + np.arange(3000))))
    share = packed.rows(2800 + np.arange(1000, 1400))  # of one host
    for name, x in share.items():
        np.testing.assert_array_equal(x, batch[name][1000:1400], err_msg=name)


def test_sources_may_be_mixed(examples):
    other = _examples(_random_store(40, seed=1), seed=9)
    mixture = Mixture([examples, other], [2.0, 1.0], 0)
    batch = PackedExamples(mixture, BATCH, 46).rows(np.arange(46))
    assert sorted(unpacked(batch)) == sorted(plain(mixture.rows(np.arange(BATCH))))


def test_rows_that_are_too_few_are_refused_with_a_number_that_is_enough(examples):
    with pytest.raises(InputError, match='packed_rows=8 are too few: the 48 sequences') as error:
        PackedExamples(examples, BATCH, 8)
    enough = int(str(error.value).split('Set it to ')[1].split()[0])
    assert 8 < enough < BATCH
    PackedExamples(examples, BATCH, enough)
    full = SyntheticExamples(vocab_size=50, max_seq_length=16, max_predictions_per_seq=2)
    with pytest.raises(InputError, match='tokens. Set it to 0 for'):
        PackedExamples(full, 8, 7)


def test_a_step_that_needs_more_rows_says_so(examples):
    packed = PackedExamples(examples, BATCH, 40)
    needed = max(int(packed.rows(s * 40 + np.arange(40))['sequence_ids'].any(axis=1).sum())
                 for s in range(12))
    packed.num_rows = needed - 1
    packed._first_row = np.array([0, needed - 1])
    with pytest.raises(InputError, match='too few for step'):
        packed.rows(np.arange(12 * (needed - 1)))
