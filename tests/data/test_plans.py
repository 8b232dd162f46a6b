"""The chunks of an epoch: as a loop over documents cuts them, and made while others are read."""

import hashlib
import itertools
import threading

import numpy as np
import pytest

from bert_jax.data import pretrain as plans_lib
from bert_jax.data.pretrain import Chunks, EpochPlans, PretrainExamples, Recipe, SpecialIds
from bert_jax.data.stateless import below, hash64, uniform


class _Store:
    """Documents of one to a few hundred short sentences; every third one is not used."""

    def __init__(self, num_documents=90, seed=0):
        rng = np.random.default_rng(seed)
        sizes = np.maximum(1, rng.lognormal(2.5, 1.5, num_documents)).astype(int)
        lengths = rng.integers(1, 30, sizes.sum())
        self.document_offsets = np.concatenate([[0], np.cumsum(sizes)])
        self.sentence_offsets = np.concatenate([[0], np.cumsum(lengths)])
        self.tokens = np.arange(lengths.sum(), dtype=np.uint32) % 4000 + 200
        self.documents = np.flatnonzero(np.arange(num_documents) % 3)


def _plans(store, seed=5, max_tokens=61, short=0.2, random_next=0.5, next_sentence=True):
    first, last = (store.document_offsets[store.documents + i] for i in (0, 1))
    return EpochPlans(
        store.sentence_offsets, first, last, seed=seed, max_tokens=max_tokens,
        short_seq_prob=short, random_next_prob=random_next, next_sentence=next_sentence,
    )


def _cut_one_by_one(store, epoch, seed, max_tokens, short, random_next, next_sentence):
    """The chunks pass by pass, each document by itself, searching all sentences for each end."""
    documents = []
    for own, document in enumerate(store.documents):
        draw = hash64(seed, epoch, 101, own)
        target = max_tokens
        if uniform(draw) < short:
            target = 2 + int(below(hash64(draw, 1), max_tokens - 1))
        start, limit = store.document_offsets[document:document + 2].tolist()
        chunks = []
        while start < limit:
            end = int(np.searchsorted(
                store.sentence_offsets, store.sentence_offsets[start] + target))
            end = split = min(end, limit)
            is_random = False
            if next_sentence:
                draw = hash64(seed, epoch, 102, own, start)
                split = start + 1 + int(below(draw, max(end - start - 1, 1)))
                is_random = end - start == 1 or bool(uniform(hash64(draw, 103)) < random_next)
            chunks.append((start, split, end, own, is_random, target))
            start = split if is_random else end
        documents.append(chunks)
    return [c for a_pass in itertools.zip_longest(*documents) for c in a_pass if c]


@pytest.mark.parametrize(('few', 'rest', 'block'), [
    (1 << 9, 1 << 22, 1 << 13),  # as it is: so few documents are all cut at once
    (0, 0, 7),  # pass by pass to the end, in blocks
    (11, 300, 5),  # both
])
@pytest.mark.parametrize(('random_next', 'next_sentence'), [(0.5, True), (0.0, True), (0.5, False)])
def test_chunks_are_those_of_a_loop(monkeypatch, few, rest, block, random_next, next_sentence):
    for name, value in {'_FEW': few, '_REST': rest, '_BLOCK': block}.items():
        monkeypatch.setattr(plans_lib, name, value)
    store = _Store()
    plans = _plans(store, random_next=random_next, next_sentence=next_sentence)
    for epoch in (0, 3):
        expected = _cut_one_by_one(store, epoch, 5, 61, 0.2, random_next, next_sentence)
        assert plans.size(epoch) == len(expected)
        found = plans.chunks(epoch, np.arange(len(expected)))
        for name, column in zip(Chunks._fields, zip(*expected, strict=True), strict=True):
            np.testing.assert_array_equal(getattr(found, name), column, err_msg=name)
        some = np.array([7, 0, len(expected) - 1, 7])
        for x, whole in zip(plans.chunks(epoch, some), found, strict=True):
            np.testing.assert_array_equal(x, whole[some])
    # In the background the very same.
    ahead = _plans(store, random_next=random_next, next_sentence=next_sentence)
    ahead.prepare(3)
    np.testing.assert_array_equal(ahead.chunks(3, some).start, found.start[some])


def _examples(seed=3, **recipe):
    store = _Store()
    special = SpecialIds(5000, 101, 102, 103, np.zeros(5000, bool))
    recipe = Recipe(**{'max_seq_length': 64, 'max_predictions_per_seq': 10, **recipe})
    return PretrainExamples(store, store.documents, recipe, special, seed)


@pytest.mark.parametrize(('recipe', 'digest'), [
    ({}, 'bff0bc295e46dc4a'),
    ({'num_maskings': 2, 'min_sentences': 3}, 'f52beabfbdfb1d02'),
    ({'next_sentence': False, 'max_seq_length': 512}, 'f685377875822039'),
])
def test_rows_are_those_of_the_first_version(recipe, digest):
    """Recorded before plans were made small: runs go on with the rows that they began with."""
    examples = _examples(**recipe)
    found = hashlib.sha256()
    for rows in (examples.rows(np.arange(2 * examples.num_examples + 9)),
                 examples.frozen_rows(np.arange(examples.num_frozen))):
        for name in sorted(rows):
            found.update(name.encode() + rows[name].tobytes())
    assert found.hexdigest()[:16] == digest


def test_a_plan_is_four_bytes_a_chunk_and_two_are_kept():
    examples = _examples()
    for epoch in range(6):
        examples.rows(np.arange(examples.num_examples) + epoch * examples.num_examples)
        plans = [plan.result() for plan in examples._plans._plans.values()]
        assert len(plans) <= 2
        assert all(0.8 < plan.nbytes / (4 * examples.num_examples) < 1.25 for plan in plans)


def test_the_next_plan_is_made_while_rows_are_read(monkeypatch):
    n = _examples().num_examples
    expected = _examples().rows(np.arange(n, n + 5))
    make, go = EpochPlans._starts, threading.Event()
    made = []

    def slow(self, epoch, in_background):
        made.append((epoch, in_background))
        if in_background:
            assert go.wait(60)
        return make(self, epoch, in_background)

    monkeypatch.setattr(EpochPlans, '_starts', slow)
    examples = _examples()
    examples.rows(np.arange(n // 4))
    assert made == [(0, False)]  # an epoch that has only begun may be the last
    examples.rows(np.arange(n // 4, n))
    examples.rows(np.arange(n))  # plan 1 is in the making, and nothing waits for it
    got = []
    reader = threading.Thread(target=lambda: got.append(examples.rows(np.arange(n, n + 5))))
    reader.start()
    reader.join(0.2)
    assert reader.is_alive()  # the next epoch does
    go.set()
    reader.join(60)
    assert all(np.array_equal(got[0][name], x) for name, x in expected.items())
    assert made == [(0, False), (1, True)]


def test_a_plan_that_failed_is_heard_of(monkeypatch):
    plans = _plans(_Store())

    def fail(*_):
        raise MemoryError('no room')

    monkeypatch.setattr(EpochPlans, '_starts', fail)
    plans.prepare(4)
    with pytest.raises(MemoryError, match='no room'):
        plans.chunks(4, np.arange(3))
