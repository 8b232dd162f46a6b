"""Ready-made records by index, and mixtures of sets of rows."""

import numpy as np
import pytest

from bert_jax.data.examples import Mixture, RecordExamples, check_batch, empty_rows, pretrain_spec
from bert_jax.runtime.errors import InputError


class _Part:
    """Rows that say which part they are of and which number was asked for."""

    def __init__(self, name, num_examples, num_frozen=7):
        self.spec = pretrain_spec(2, 1)
        self.name, self.num_examples, self.num_frozen = name, num_examples, num_frozen

    def rows(self, row_ids, frozen=False):
        batch = empty_rows(self.spec, len(row_ids))
        batch['input_ids'][:] = np.stack([np.full(len(row_ids), self.name), row_ids], axis=1)
        batch['next_sentence_labels'][:] = frozen
        return batch

    def frozen_rows(self, row_ids):
        return self.rows(row_ids, frozen=True)


def _mixture(*weights, seed=0, sizes=(500, 900, 200)):
    parts = [_Part(i, sizes[i]) for i in range(len(weights))]
    return Mixture(parts, weights, seed)


@pytest.mark.parametrize(('weights', 'counts'), [
    ((3, 1), [750, 250]), ((0.7, 0.3), [700, 300]), ((1, 1, 1), [334, 333, 333]),
    ((1e-9, 1), [1, 999]), ((5,), [1000]), ((0.0004, 0.9996), [1, 999]),
])
def test_every_thousand_has_the_weights(weights, counts):
    mixture = _mixture(*weights)
    for block in (0, 1, 77):
        parts = mixture.rows(np.arange(1000) + 1000 * block)['input_ids'][:, 0]
        assert sorted(np.bincount(parts, minlength=len(counts))) == sorted(counts)
        if len(set(weights)) > 1:
            assert np.bincount(parts).tolist() == counts


def test_parts_go_on_through_their_own_rows():
    ids = _mixture(3, 2, 1).rows(np.arange(5000))['input_ids']
    for part, count in enumerate((500, 333, 167)):
        inner = ids[ids[:, 0] == part, 1]
        for block in range(5):  # each thousand goes on where the one before ended
            assert sorted(inner[block * count:(block + 1) * count]) == list(
                range(block * count, (block + 1) * count))
    # Parts alternate; no part comes in long runs.
    runs = np.diff(np.flatnonzero(np.diff(ids[:, 0])))
    assert runs.max() < 30


def test_mixed_rows_depend_on_their_number_alone():
    mixture = _mixture(3, 2, 1)
    whole = mixture.rows(np.arange(3000))
    check_batch(mixture.spec, whole)
    for some in (np.arange(990, 1010), np.array([2999]), np.array([5, 2100, 7, 1003])):
        again = _mixture(3, 2, 1).rows(some)
        assert all(np.array_equal(again[name], whole[name][some]) for name in whole)
    other = _mixture(3, 2, 1, seed=1).rows(np.arange(1000))
    assert not np.array_equal(other['input_ids'], whole['input_ids'][:1000])
    blocks = whole['input_ids'][:, 0].reshape(3, 1000)
    assert not np.array_equal(blocks[0], blocks[1])


def test_an_epoch_of_a_mixture_sees_all_of_every_part():
    mixture = _mixture(3, 2, 1)
    assert mixture.num_examples == 2703  # the second part's 900 rows, 333 of every thousand
    # Counted in whole thousands, in whose order a part's rows are shuffled.
    ids = mixture.rows(np.arange(-(-mixture.num_examples // 1000) * 1000))['input_ids']
    for part, size in enumerate((500, 900, 200)):
        assert set(range(size)) <= set(ids[ids[:, 0] == part, 1].tolist())


def test_frozen_rows_are_those_of_all_parts_in_a_fixed_shuffle():
    parts = [_Part(0, 50, 7), _Part(1, 60, 1), _Part(2, 9, 4)]
    mixture = Mixture(parts, [1.0] * 3, 0)
    assert mixture.num_frozen == 12
    batch = mixture.frozen_rows(np.arange(12))
    expected = [[p.name, i] for p in parts for i in range(p.num_frozen)]
    rows = batch['input_ids'].tolist()
    assert sorted(rows) == expected != rows and batch['next_sentence_labels'].all()
    assert mixture.frozen_rows(np.array([8, 6]))['input_ids'].tolist() == [rows[8], rows[6]]


class _Records:
    max_seq_length, max_predictions_per_seq = 8, 3

    def __init__(self, size):
        self._size = size

    def __len__(self):
        return self._size

    def read(self, indices):
        assert indices.min() >= 0 and indices.max() < self._size
        batch = empty_rows(pretrain_spec(8, 3), len(indices))
        del batch['example_weights']
        batch['input_ids'] += indices[:, None].astype(np.int32)
        for name in ('masked_lm_positions', 'masked_lm_ids', 'masked_lm_weights'):
            batch[name] += 1
        return batch


def test_records_are_read_once_an_epoch_in_an_order_of_its_own():
    examples = RecordExamples(_Records(101), seed=5)
    assert examples.num_examples == examples.num_frozen == 101
    orders = examples.rows(np.arange(101 * 4))['input_ids'][:, 0].reshape(4, 101)
    assert (np.sort(orders) == np.arange(101)).all()
    assert len(np.unique(orders, axis=0)) == 4
    assert not any(np.array_equal(order, np.arange(101)) for order in orders)
    other = RecordExamples(_Records(101), seed=6).rows(np.arange(101))['input_ids'][:, 0]
    assert not np.array_equal(other, orders[0])


def test_records_depend_on_their_number_alone():
    examples = RecordExamples(_Records(101), seed=5)
    whole = examples.rows(np.arange(303))
    check_batch(examples.spec, whole)
    for some in (np.arange(95, 110), np.array([300, 0, 150]), np.array([7])):
        again = RecordExamples(_Records(101), seed=5).rows(some)
        assert all(np.array_equal(again[name], whole[name][some]) for name in whole)


def test_frozen_records_keep_the_files_order():
    examples = RecordExamples(_Records(9), seed=5)
    batch = examples.frozen_rows(np.arange(2, 9))
    check_batch(examples.spec, batch)
    assert batch['input_ids'][:, 0].tolist() == list(range(2, 9))
    assert (batch['example_weights'] == 1).all()


def test_slots_that_records_lack_are_empty():
    examples = RecordExamples(_Records(9), seed=5, slots=5)
    batch = examples.rows(np.arange(9))
    check_batch(examples.spec, batch)
    assert (batch['masked_lm_weights'] == [1, 1, 1, 0, 0]).all()
    assert (batch['masked_lm_positions'] == [1, 1, 1, 0, 0]).all()


def test_records_with_too_many_predictions():
    with pytest.raises(InputError, match=r'a\.tfrecord has 3 .*max_predictions_per_seq=2') as error:
        RecordExamples(_Records(9), seed=5, slots=2, name='a.tfrecord')
    assert 'set that to 3' in str(error.value)
