"""Batches: the same from any number of hosts and from any first step; every example once."""

import dataclasses

import numpy as np
import pytest

pytest.importorskip('tensorflow')

from bert_jax.data import pipeline
from bert_jax.data.examples import check_batch, plain_batches
from bert_jax.data.pretrain import PretrainExamples, Recipe, SpecialIds


@dataclasses.dataclass
class _Store:
    tokens: np.ndarray
    sentence_offsets: np.ndarray
    document_offsets: np.ndarray


@pytest.fixture(scope='module')
def examples():
    rng = np.random.default_rng(0)
    sentences = rng.integers(1, 20, 600)
    store = _Store(
        rng.integers(5, 200, sentences.sum()).astype(np.uint16),
        np.concatenate([[0], np.cumsum(sentences)]), np.arange(0, 601, 15),
    )
    special = SpecialIds(200, 2, 3, 4, np.zeros(200, bool))
    return PretrainExamples(
        store, np.arange(40), Recipe(max_seq_length=32, max_predictions_per_seq=5), special, 0)


def _locals(batch_size, hosts):
    """Rows of each host: every so-manieth, as on a torus that hosts lie on in tiles."""
    return [np.arange(host, batch_size, hosts) for host in range(hosts)]


def _global(hosts_batches):
    """Batches of the whole mesh from those of each host."""
    return [
        {name: np.stack([part[name] for part in parts], 1).reshape(-1, *parts[0][name].shape[1:])
         for name in parts[0]}
        for parts in zip(*hosts_batches, strict=True)  # every host has as many batches
    ]


def _train(examples, hosts, first_step, num_steps, batch_size=16):
    return _global([
        list(pipeline.train_batches(
            examples, batch_size=batch_size, local=local, first_step=first_step,
            num_steps=num_steps))
        for local in _locals(batch_size, hosts)
    ])


def _assert_same(batches, others):
    assert len(batches) == len(others)
    for batch, other in zip(batches, others, strict=True):
        assert set(batch) == set(other)
        for name in batch:
            assert batch[name].dtype == other[name].dtype
            np.testing.assert_array_equal(batch[name], other[name], err_msg=name)


def test_batches_are_the_rows_of_their_step(examples):
    batches = _train(examples, 1, 3, 150)
    for batch in batches:
        check_batch(examples.spec, batch)
        assert len(batch['input_ids']) == 16
    _assert_same(batches, list(plain_batches(examples, 16, np.arange(16), range(3, 153))))


@pytest.mark.parametrize('hosts', [2, 8])
def test_any_number_of_hosts_makes_the_same_batches(examples, hosts, monkeypatch):
    monkeypatch.setattr(pipeline, '_ROWS_A_CALL', 100)  # many calls, and a part of one at the end
    _assert_same(_train(examples, hosts, 5, 131), _train(examples, 1, 5, 131))


def test_any_step_is_a_start(examples):
    whole = _train(examples, 1, 0, 1240)
    assert 20 * examples.num_examples < 1234 * 16  # many epochs in
    _assert_same(_train(examples, 1, 1234, 6), whole[1234:])
    _assert_same(_train(examples, 2, 1239, 1), whole[1239:])
    assert len({batch['input_ids'].tobytes() for batch in whole}) == 1240


@pytest.mark.parametrize('num_steps', [0, 1, 129])
def test_as_many_batches_as_steps(examples, num_steps):
    assert len(_train(examples, 2, 7, num_steps)) == num_steps


def test_large_local_batches(examples, monkeypatch):
    monkeypatch.setattr(pipeline, '_ROWS_A_CALL', 10)  # fewer than a batch has
    _assert_same(_train(examples, 1, 2, 3), list(plain_batches(
        examples, 16, np.arange(16), range(2, 5))))


def test_bad_rows_stop_the_run(examples):
    class Broken:
        spec = examples.spec

        def rows(self, row_ids):
            if row_ids.max() >= 10_000:
                raise KeyError('damaged')
            return examples.rows(row_ids)

    batches = pipeline.train_batches(
        Broken(), batch_size=16, local=np.arange(16), first_step=0, num_steps=1000)
    with pytest.raises(Exception, match='damaged'):
        list(batches)


@pytest.mark.parametrize(('hosts', 'num_examples'), [
    (1, 133), (2, 133), (8, 133), (8, 5), (2, 64), (1, 0),
])
def test_evaluation_sees_every_example_once(examples, hosts, num_examples):
    batches = _global([
        list(pipeline.eval_batches(
            examples, batch_size=16, local=local, num_examples=num_examples))
        for local in _locals(16, hosts)
    ])
    assert len(batches) == -(-num_examples // 16)
    for batch in batches:
        check_batch(examples.spec, batch)
        assert len(batch['input_ids']) == 16
    if not batches:
        return
    rows = {name: np.concatenate([b[name] for b in batches]) for name in examples.spec}
    expected = examples.frozen_rows(np.arange(num_examples))
    for name in rows:
        np.testing.assert_array_equal(rows[name][:num_examples], expected[name])
        assert not rows[name][num_examples:].any()  # filled up, without weight
    assert rows['example_weights'].sum() == num_examples
