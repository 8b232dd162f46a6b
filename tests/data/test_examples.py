"""Rows by index, mixtures and batches: the same on any host and from any first step."""

import numpy as np
import pytest

pytest.importorskip('tensorflow')  # makes the batches

from bert_jax.data import examples as examples_lib
from tests.data.stores import assert_same, check_batch, make_examples, random_store


class _Part:
    """A part whose rows hold its name and the index that was asked for."""

    def __init__(self, name, num_examples, num_frozen=7):
        self.spec = examples_lib.pretrain_spec(2, 1)
        self.name, self.num_examples, self.num_frozen = name, num_examples, num_frozen

    def rows(self, row_ids, frozen=False):
        batch = examples_lib.empty_rows(self.spec, len(row_ids))
        batch['input_ids'][:] = np.stack([np.full(len(row_ids), self.name), row_ids], axis=1)
        batch['next_sentence_labels'][:] = frozen
        return batch


class _Records:
    max_seq_length, max_predictions_per_seq = 8, 3

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


def test_each_part_of_a_mixture_takes_its_next_rows_in_every_block():
    mixture = _mixture()
    ids = mixture.rows(np.arange(5000))['input_ids']
    for part, count in enumerate((500, 333, 167)):
        inner = ids[ids[:, 0] == part, 1].reshape(5, count)  # each block takes the part's next rows
        assert (np.sort(inner) == np.arange(5 * count).reshape(5, count)).all()
    assert np.diff(np.flatnonzero(np.diff(ids[:, 0]))).max() < 30  # no part comes in long runs
    assert not np.array_equal(ids[:1000, 0], ids[1000:2000, 0])
    # An epoch covers every part. The second sets its length: 900 rows, 333 in a block of 1,000.
    assert mixture.num_examples == 2703
    for part, size in enumerate((500, 900, 200)):
        assert set(range(size)) <= set(ids[:3000][ids[:3000, 0] == part, 1].tolist())


def test_every_part_of_a_mixture_has_rows_however_small_its_weight():
    mixture = examples_lib.Mixture([_Part(i, 5) for i in range(4)], (1, 1e-4, 1e-5, 1e-4), 0)
    ids = mixture.rows(np.arange(1000))['input_ids']
    assert np.bincount(ids[:, 0]).tolist() == [997, 1, 1, 1]


@pytest.mark.parametrize('frozen', [False, True])
@pytest.mark.parametrize('make', [_mixture, _records, _pairs])
def test_a_row_depends_on_its_index_alone(make, frozen):
    used = make()
    n = used.num_frozen if frozen else 3000  # more than an epoch
    whole = used.rows(np.arange(n), frozen)
    check_batch(used.spec, whole)
    for some in (np.arange(990, 1010), np.array([2999]), np.array([5, 2100, 7, 1003])):
        for examples in (used, make()):  # the second one starts in the middle
            assert_same(examples.rows(some % n, frozen), {k: x[some % n] for k, x in whole.items()})
    other = make(seed=1).rows(np.arange(3000))
    assert not np.array_equal(other['input_ids'], whole['input_ids'])


def test_frozen_rows_are_those_of_all_parts_in_a_fixed_shuffle():
    parts = [_Part(0, 50, 7), _Part(1, 60, 1), _Part(2, 9, 4)]
    mixture = examples_lib.Mixture(parts, [1.0] * 3, 0)
    assert mixture.num_frozen == 12
    batch = mixture.rows(np.arange(12), frozen=True)
    expected = [[p.name, i] for p in parts for i in range(p.num_frozen)]
    rows = batch['input_ids'].tolist()
    assert sorted(rows) == expected != rows and batch['next_sentence_labels'].all()
    assert mixture.rows(np.array([8, 6]), frozen=True)['input_ids'].tolist() == [rows[8], rows[6]]


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


def _global(make, examples, hosts, **more):
    """Global batches of 16 rows, joined from those of the hosts; each has every `hosts`-th row."""
    parts = [make(examples, batch_size=16, local=np.arange(host, 16, hosts), **more)
             for host in range(hosts)]
    return [{name: np.stack([part[name] for part in batch], 1).reshape(-1, *x.shape[1:])
             for name, x in batch[0].items()} for batch in zip(*parts, strict=True)]


@pytest.mark.parametrize(('hosts', 'first_step', 'num_steps', 'rows_a_call'), [
    (1, 3, 150, 2048), (2, 5, 131, 100), (8, 5, 131, 100), (1, 1234, 6, 2048),
    (2, 1239, 1, 2048), (2, 7, 0, 2048), (1, 2, 3, 10),  # fewer rows in a call than in a batch
])
def test_batches_are_the_rows_of_their_steps(
    examples, hosts, first_step, num_steps, rows_a_call, monkeypatch
):
    monkeypatch.setattr(examples_lib, '_ROWS_A_CALL', rows_a_call)
    assert 20 * examples.num_examples < 1234 * 16  # many epochs in
    batches = _global(
        examples_lib.train_batches, examples, hosts, first_step=first_step, num_steps=num_steps)
    assert len(batches) == num_steps
    for step, batch in enumerate(batches, first_step):
        check_batch(examples.spec, batch)
        assert_same(batch, examples.rows(step * 16 + np.arange(16)))


def test_bad_rows_stop_the_run(examples):
    class Broken:
        spec = examples.spec

        def rows(self, row_ids):
            if row_ids.max() >= 10_000:
                raise KeyError('damaged')
            return examples.rows(row_ids)

    with pytest.raises(KeyError, match='damaged'):
        list(examples_lib.train_batches(
            Broken(), batch_size=16, local=np.arange(16), first_step=0, num_steps=1000))


@pytest.mark.parametrize(('hosts', 'num_examples'), [
    (1, 133), (2, 133), (8, 133), (8, 5), (2, 64), (1, 0),
])
def test_evaluation_sees_every_example_once(examples, hosts, num_examples):
    batches = _global(examples_lib.eval_batches, examples, hosts, num_examples=num_examples)
    assert len(batches) == -(-num_examples // 16)
    expected = examples.rows(np.arange(num_examples), frozen=True)
    for i, batch in enumerate(batches):
        check_batch(examples.spec, batch)
        for name, x in expected.items():
            real = x[i * 16:(i + 1) * 16]
            np.testing.assert_array_equal(batch[name][: len(real)], real)
            assert not batch[name][len(real):].any()  # padding rows, without weight
