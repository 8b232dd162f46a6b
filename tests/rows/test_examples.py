"""Rows by index, mixtures and batches: the same on any host and from any first step."""

import threading

import numpy as np
import pytest

pytest.importorskip('tensorflow')  # makes the batches

from bert_jax.rows import examples as examples_lib
from tests.rows.stores import assert_same, check_batch, make_examples, random_store


class _Part:
    """A part whose rows hold its name and the index that was asked for."""

    def __init__(self, name, num_examples, num_frozen=7):
        self.spec = examples_lib.pretrain_spec(2, 1)
        self.name = name
        self.num_examples = num_examples
        self.num_frozen = num_frozen

    def rows(self, row_ids, frozen=False, width=None):
        batch = examples_lib.empty_rows(self.spec, len(row_ids))
        batch['input_ids'][:] = np.stack([np.full(len(row_ids), self.name), row_ids], axis=1)
        batch['next_sentence_labels'][:] = frozen
        return batch


class _Records:
    """101 records, each with its index in all `input_ids`."""

    max_seq_length = 8
    max_predictions_per_seq = 3

    def __len__(self):
        return 101

    def read(self, indices):
        batch = examples_lib.empty_rows(examples_lib.pretrain_spec(8, 3), len(indices))
        del batch['example_weights']
        batch['input_ids'] += indices[:, None].astype(np.int32)
        for name in ('masked_lm_positions', 'masked_lm_ids', 'masked_lm_weights'):
            batch[name] += 1
        return batch


def _mixture(seed=0):
    return examples_lib.Mixture([_Part(0, 500), _Part(1, 900), _Part(2, 200)], (3, 2, 1), seed)


def _records(seed=5):
    return examples_lib.RecordExamples(_Records(), seed)


def _pairs(seed=3):
    return make_examples(random_store(60), seed=seed)


@pytest.fixture(scope='module')
def mixed_ids():
    """`input_ids` of five blocks: the part of each row, and its index there."""
    return _mixture().rows(np.arange(5000))['input_ids']


def test_each_part_of_a_mixture_takes_its_next_rows_in_every_block(mixed_ids):
    for part, count in enumerate((500, 333, 167)):
        index = mixed_ids[mixed_ids[:, 0] == part, 1].reshape(5, count)
        assert (np.sort(index) == np.arange(5 * count).reshape(5, count)).all()


def test_the_parts_of_a_mixture_are_shuffled_in_every_block(mixed_ids):
    changes = np.flatnonzero(np.diff(mixed_ids[:, 0]))
    assert np.diff(changes).max() < 30  # no part comes in long runs
    assert not np.array_equal(mixed_ids[:1000, 0], mixed_ids[1000:2000, 0])


def test_an_epoch_of_a_mixture_covers_every_part(mixed_ids):
    # The second part sets the length of the epoch: 900 rows, 333 in a block of 1,000.
    assert _mixture().num_examples == 2703
    for part, size in enumerate((500, 900, 200)):
        epoch = mixed_ids[:3000]
        assert set(range(size)) <= set(epoch[epoch[:, 0] == part, 1].tolist())


def test_how_often_an_epoch_of_a_mixture_has_each_part(mixed_ids):
    mixture = _mixture()
    drawn = np.bincount(mixed_ids[: mixture.num_examples, 0])
    expected = drawn / (500, 900, 200)
    np.testing.assert_allclose(mixture.times_an_epoch(), expected, rtol=0.02)


def test_every_part_of_a_mixture_has_rows_however_small_its_weight():
    mixture = examples_lib.Mixture([_Part(i, 5) for i in range(4)], (1, 1e-4, 1e-5, 1e-4), 0)
    ids = mixture.rows(np.arange(1000))['input_ids']
    assert np.bincount(ids[:, 0]).tolist() == [997, 1, 1, 1]


@pytest.mark.parametrize('frozen', [False, True])
@pytest.mark.parametrize('make', [_mixture, _records, _pairs])
def test_a_row_depends_on_its_index_alone(make, frozen):
    used = make()
    size = used.num_frozen if frozen else 3000  # more than an epoch
    whole = used.rows(np.arange(size), frozen)
    check_batch(used.spec, whole)
    for some in (np.arange(990, 1010), np.array([2999]), np.array([5, 2100, 7, 1003])):
        row_ids = some % size
        expected = {name: values[row_ids] for name, values in whole.items()}
        assert_same(used.rows(row_ids, frozen), expected)
        assert_same(make().rows(row_ids, frozen), expected)  # which starts in the middle
    other = make(seed=1).rows(np.arange(3000))
    assert not np.array_equal(other['input_ids'], whole['input_ids'])


def test_frozen_rows_are_those_of_all_parts_in_a_fixed_shuffle():
    parts = [_Part(0, 50, 7), _Part(1, 60, 1), _Part(2, 9, 4)]
    mixture = examples_lib.Mixture(parts, [1.0] * 3, 0)
    assert mixture.num_frozen == 12
    batch = mixture.rows(np.arange(12), frozen=True)
    rows = batch['input_ids'].tolist()
    expected = []
    for part in parts:
        expected += [[part.name, index] for index in range(part.num_frozen)]
    assert sorted(rows) == expected
    assert rows != expected
    assert batch['next_sentence_labels'].all()
    some = mixture.rows(np.array([8, 6]), frozen=True)
    assert some['input_ids'].tolist() == [rows[8], rows[6]]


def test_records_are_read_once_an_epoch_in_an_order_of_its_own():
    examples = _records()
    assert examples.num_examples == examples.num_frozen == 101
    orders = examples.rows(np.arange(101 * 4))['input_ids'][:, 0].reshape(4, 101)
    assert (np.sort(orders) == np.arange(101)).all()
    assert len(np.unique([*orders, np.arange(101)], axis=0)) == 5
    frozen = examples.rows(np.arange(2, 9), frozen=True)
    assert frozen['input_ids'][:, 0].tolist() == list(range(2, 9))
    assert (frozen['example_weights'] == 1).all()


@pytest.fixture(scope='module')
def examples():
    return make_examples(
        random_store(40, most_sentences=30), max_seq_length=32, max_predictions_per_seq=5)


BATCH = 16


def _global(make, examples, num_hosts, **options):
    """Global batches, joined from those of the hosts; a host has every `num_hosts`-th row."""
    of_hosts = []
    for host in range(num_hosts):
        local = np.arange(host, BATCH, num_hosts)
        of_hosts.append(make(examples, batch_size=BATCH, local=local, **options))
    batches = []
    for parts in zip(*of_hosts, strict=True):
        batch = {}
        for name in parts[0]:
            rows = np.stack([part[name] for part in parts], axis=1)
            batch[name] = rows.reshape(-1, *rows.shape[2:])
        batches.append(batch)
    return batches


@pytest.mark.slow
@pytest.mark.parametrize(('num_hosts', 'first_step', 'num_steps', 'rows_a_call'), [
    (1, 3, 150, 2048),
    (2, 5, 131, 100),
    (8, 5, 131, 100),
    (1, 1234, 6, 2048),
    (2, 1239, 1, 2048),
    (2, 7, 0, 2048),
    pytest.param(1, 2, 3, 10, id='fewer rows in a call than in a batch'),
])
def test_batches_are_the_rows_of_their_steps(
    examples, num_hosts, first_step, num_steps, rows_a_call, monkeypatch
):
    monkeypatch.setattr(examples_lib, '_ROWS_A_CALL', rows_a_call)
    assert 20 * examples.num_examples < 1234 * BATCH  # many epochs in
    batches = _global(
        examples_lib.train_batches, examples, num_hosts, first_step=first_step,
        num_steps=num_steps)
    assert len(batches) == num_steps
    for step, batch in enumerate(batches, first_step):
        check_batch(examples.spec, batch)
        assert_same(batch, examples.rows(step * BATCH + np.arange(BATCH)))


def test_two_calls_are_made_while_the_batches_of_one_are_used():
    others = threading.Barrier(3)  # the calls 1 and 2, and the one who uses call 0

    def make(call):
        if call in (1, 2):
            others.wait(timeout=60)
        return {'call': np.array([call])}

    batches = examples_lib._prefetched(make, range(4))
    assert next(batches)['call'] == 0
    others.wait(timeout=60)
    assert [int(batch['call']) for batch in batches] == [1, 2, 3]


def test_bad_rows_stop_the_run(examples):
    class Broken:
        spec = examples.spec
        lanes = 1

        def rows(self, row_ids):
            if row_ids.max() >= 10_000:
                raise KeyError('damaged')
            return examples.rows(row_ids)

    with pytest.raises(KeyError, match='damaged'):
        list(examples_lib.train_batches(
            Broken(), batch_size=BATCH, local=np.arange(BATCH), first_step=0, num_steps=1000))


@pytest.mark.parametrize(('num_hosts', 'num_examples'), [
    (1, 133), (2, 133), (8, 133), (8, 5), (2, 64), (1, 0),
])
def test_evaluation_sees_every_example_once(examples, num_hosts, num_examples):
    batches = _global(
        examples_lib.eval_batches, examples, num_hosts, num_examples=num_examples)
    assert len(batches) == -(-num_examples // BATCH)
    expected = examples.rows(np.arange(num_examples), frozen=True)
    for number, batch in enumerate(batches):
        check_batch(examples.spec, batch)
        for name, values in expected.items():
            real = values[number * BATCH : (number + 1) * BATCH]
            np.testing.assert_array_equal(batch[name][: len(real)], real)
            assert not batch[name][len(real):].any(), 'padding rows, without weight'
