"""The chunks of an epoch: as a loop over documents cuts them, and made while others are read."""

import itertools

import numpy as np
import pytest

from bert_jax.data import pretrain as plans_lib
from bert_jax.data.pretrain import EpochPlans, PretrainExamples, Recipe
from bert_jax.data.stateless import below, hash64, uniform
from tests.data import stores
from tests.data.stores import assert_same, vocab


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


def _plans(store, **recipe):
    first, last = (store.document_offsets[store.documents + i] for i in (0, 1))
    recipe = Recipe(**{'max_seq_length': 64, 'short_seq_prob': 0.2, **recipe})
    return EpochPlans(store.sentence_offsets, first, last, recipe, 5), recipe


def _cut_one_by_one(store, epoch, recipe, seed=5):
    """The chunks pass by pass, each document by itself, searching all sentences for each end."""
    documents = []
    for own, document in enumerate(store.documents):
        draw = hash64(seed, epoch, 101, own)
        target = recipe.max_tokens
        if uniform(draw) < recipe.short_seq_prob:
            target = 2 + int(below(hash64(draw, 1), target - 1))
        start, limit = store.document_offsets[document:document + 2].tolist()
        chunks = []
        while start < limit:
            end = int(np.searchsorted(
                store.sentence_offsets, store.sentence_offsets[start] + target))
            end = split = min(end, limit)
            is_random = False
            if recipe.next_sentence:
                draw = hash64(seed, epoch, 102, own, start)
                split = start + 1 + int(below(draw, max(end - start - 1, 1)))
                is_random = end - start == 1 or bool(
                    uniform(hash64(draw, 103)) < recipe.random_next_prob)
            chunks.append((start, split, end, own, is_random, target))
            start = split if is_random else end
        documents.append(chunks)
    return [c for a_pass in itertools.zip_longest(*documents) for c in a_pass if c]


@pytest.mark.parametrize(('few', 'rest', 'block'), [
    (1 << 9, 1 << 22, 1 << 13),  # as it is: so few documents are all cut at once
    (0, 0, 7),  # pass by pass to the end, in blocks
    (11, 300, 5),  # both
])
@pytest.mark.parametrize('recipe', [{}, {'random_next_prob': 0.0}, {'next_sentence': False}])
def test_chunks_are_those_of_a_loop(monkeypatch, few, rest, block, recipe):
    for name, value in {'_FEW': few, '_REST': rest, '_BLOCK': block}.items():
        monkeypatch.setattr(plans_lib, name, value)
    store = _Store()
    plans, full = _plans(store, **recipe)
    for epoch in (0, 3):
        expected = _cut_one_by_one(store, epoch, full)
        assert len(plans.plan(epoch).result()) == len(expected)
        found = plans.chunks(epoch, np.arange(len(expected)))
        for x, column in zip(found, zip(*expected, strict=True), strict=True):
            np.testing.assert_array_equal(x, column)
        some = np.array([7, 0, len(expected) - 1, 7])
        for x, whole in zip(plans.chunks(epoch, some), found, strict=True):
            np.testing.assert_array_equal(x, whole[some])
    # In the background the very same.
    ahead, _ = _plans(store, **recipe)
    ahead.plan(3, in_background=True)
    np.testing.assert_array_equal(ahead.chunks(3, some)[0], found[0][some])


def _examples(seed=3, **recipe):
    store = _Store()
    recipe = Recipe(**{'max_seq_length': 64, 'max_predictions_per_seq': 10, **recipe})
    return PretrainExamples(store, store.documents, recipe, vocab(5000, 101, 102, 103), seed)


@pytest.mark.parametrize(('recipe', 'digest'), [
    ({}, 'bff0bc295e46dc4a'),
    ({'num_maskings': 2, 'min_sentences': 3}, 'f52beabfbdfb1d02'),
    ({'next_sentence': False, 'max_seq_length': 512}, 'f685377875822039'),
])
def test_rows_are_those_of_the_first_version(recipe, digest):
    """Recorded before plans were made small: runs go on with the rows that they began with."""
    examples = _examples(**recipe)
    assert digest == stores.digest(
        examples.rows(np.arange(2 * examples.num_examples + 9)),
        examples.rows(np.arange(examples.num_frozen), frozen=True))


def test_a_plan_is_four_bytes_a_chunk_and_two_are_kept():
    plans, _ = _plans(_Store())
    first, *others = [plans.plan(epoch) for epoch in range(3)]
    for plan in (first, *others):
        starts = plan.result()
        assert starts.nbytes == 4 * len(starts)
    assert [plans.plan(1), plans.plan(2)] == others
    assert plans.plan(0) is not first  # made again


def test_the_next_plan_is_made_while_rows_are_read(monkeypatch):
    n = _examples().num_examples
    ahead, plan = [], EpochPlans.plan

    def recorded(self, epoch, in_background=False):
        ahead.extend([epoch] * in_background)
        return plan(self, epoch, in_background)

    monkeypatch.setattr(EpochPlans, 'plan', recorded)
    examples = _examples()
    examples.rows(np.arange(n // 4))
    assert not ahead  # an epoch that has only begun may be the last
    examples.rows(np.arange(n // 4, n))
    assert ahead == [1]
    assert_same(examples.rows(np.arange(n, n + 5)), _examples().rows(np.arange(n, n + 5)))


def test_a_plan_that_failed_is_heard_of():
    store = _Store()
    plans = EpochPlans(store.sentence_offsets, np.array([0]), np.array([9]), None, 5)
    with pytest.raises(AttributeError):
        plans.plan(4, in_background=True).result()
