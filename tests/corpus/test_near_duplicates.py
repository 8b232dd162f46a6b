"""Near-duplicates: which documents are found, whatever their length, parts and passes."""

import hashlib

import numpy as np
import pytest

from bert_jax.corpus import document_blocks, near_duplicates
from bert_jax.corpus.near_duplicates import NUM_KEYS, signatures

VOCAB = 30_000


def _joined(documents):
    """(Tokens of all documents, their bounds)."""
    lengths = [len(document) for document in documents]
    return np.concatenate([[], *documents]).astype(np.uint16), np.cumsum([0, *lengths])


def _found(parts, threshold=0.8, **options):
    """Which documents of the parts, each a list of documents, are left out."""
    made = [signatures(*_joined(documents), threshold) for documents in parts]
    return near_duplicates.near_duplicates(
        [part.bounds for part in made],
        lambda number, rows: (made[number].keys[rows], made[number].documents[rows]),
        np.concatenate([part.sketches for part in made]), threshold, **options)


def _random(num, length, seed=0):
    return list(np.random.default_rng(seed).integers(1, VOCAB, (num, length)))


def _jaccard(document, other):
    """The similarity, by sets of runs."""
    def runs_of(tokens):
        return {tuple(tokens[i : i + 5]) for i in range(max(1, len(tokens) - 4))}

    own, others = runs_of(document.tolist()), runs_of(other.tolist())
    return len(own & others) / len(own | others)


def _with_new_end(documents, share):
    """Copies of documents of which the last tokens are others."""
    rng = np.random.default_rng(1)
    copies = []
    for document in documents:
        copy = document.copy()
        num_new = round(len(copy) * share)
        copy[len(copy) - num_new :] = rng.integers(1, VOCAB, num_new)
        copies.append(copy)
    return copies


@pytest.mark.parametrize('length', [20, 60, 400, 3000])
@pytest.mark.parametrize(('threshold', 'share', 'least', 'most'), [
    pytest.param(0.8, 0.0, 1.0, 1.0, id='copies'),
    pytest.param(0.8, 0.05, 0.9, 1.0, id='above the threshold'),
    pytest.param(0.8, 0.35, 0.0, 0.1, id='below the threshold'),
    pytest.param(0.5, 0.2, 0.8, 1.0, id='above a lower threshold'),
    pytest.param(0.5, 0.6, 0.0, 0.1, id='below a lower threshold'),
    pytest.param(0.9, 0.2, 0.0, 0.1, id='below a higher threshold'),
])
def test_copies_with_a_new_end(length, threshold, share, least, most):
    documents = _random(300, length)
    copies = _with_new_end(documents, share)
    found = _found([documents, copies], threshold)
    assert not found[:300].any()
    assert least <= found[300:].mean() <= most


@pytest.mark.parametrize('length', [7, 30, 100, 1000])
def test_bins_are_equal_with_the_probability_of_the_similarity(length):
    documents = _random(400, length)
    copies = _with_new_end(documents, 0.2)
    expected = np.mean([_jaccard(*pair) for pair in zip(documents, copies, strict=True)])
    first = signatures(*_joined(documents), 0.8).sketches
    second = signatures(*_joined(copies), 0.8).sketches
    # Half of the bits of unequal bins are equal.
    share_unequal = np.bitwise_count(first ^ second).sum(axis=1).mean() / 128
    assert 1 - 2 * share_unequal == pytest.approx(expected, abs=0.02)


def test_short_documents_are_similar_only_if_they_are_equal():
    short = [np.array(tokens) for tokens in (
        [1], [2], [1, 1], [1, 2], [2, 1], [1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4, 5],
        [0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0, 0])]
    found = _found([short, short])
    assert found.tolist() == [False] * len(short) + [True] * len(short)


def test_a_document_does_not_depend_on_those_beside_it(monkeypatch):
    documents = [*_random(5, 3), *_random(5, 12), *_random(3, 700), *_random(4, 1)]
    together = signatures(*_joined(documents), 0.8)
    monkeypatch.setattr(document_blocks, '_TOKENS_AT_ONCE', 10)
    for number, document in enumerate(documents):
        alone = signatures(*_joined([document]), 0.8)
        np.testing.assert_array_equal(alone.sketches[0], together.sketches[number])
        own = together.keys[together.documents == number]
        np.testing.assert_array_equal(alone.keys, own)


@pytest.fixture(name='mixed', scope='module')
def _mixed():
    """Documents of which many are similar to others, in the order of a text."""
    documents = _random(60, 80)
    documents += _with_new_end(documents[:40], 0.03) + _with_new_end(documents[20:50], 0.06)
    order = np.random.default_rng(2).permutation(len(documents))
    return [documents[index] for index in order]


@pytest.mark.parametrize('bounds', [(0, 130), (0, 1, 129, 130), (0, 50, 50, 130)])
@pytest.mark.parametrize('keys_at_once', [1, 100, 10**6])
def test_parts_and_passes_change_nothing(mixed, bounds, keys_at_once):
    whole = _found([mixed])
    assert 50 < whole.sum() <= 70
    parts = [mixed[first:last] for first, last in zip(bounds, bounds[1:], strict=False)]
    np.testing.assert_array_equal(_found(parts, keys_at_once=keys_at_once), whole)


def test_passes_bound_what_is_read_at_once(mixed):
    made = signatures(*_joined(mixed), 0.8)
    read = []

    def rows_of(number, rows):
        read.append(rows)
        return made.keys[rows], made.documents[rows]

    near_duplicates.near_duplicates([made.bounds], rows_of, made.sketches, 0.8, keys_at_once=100)
    assert max(rows.stop - rows.start for rows in read) <= 100
    assert read[0].start == 0
    assert [rows.start for rows in read[1:]] == [rows.stop for rows in read[:-1]]
    assert read[-1].stop == len(mixed) * NUM_KEYS


def test_a_chain_leaves_its_first():
    first, = _random(1, 400)
    second, = _with_new_end([first], 0.04)
    third, = _with_new_end([second[::-1]], 0.04)  # reversed: the other end changes
    assert _found([[first, second, third[::-1]]]).tolist() == [False, True, True]


def test_signatures_are_the_same_everywhere():
    tokens = np.arange(10_000) ** 3 % VOCAB
    bounds = np.array([0, 1, 4, 50, 400, 10_000])
    found = hashlib.sha256()
    for array in signatures(tokens.astype(np.uint16), bounds, 0.8):
        found.update(array.tobytes())
    assert found.hexdigest()[:16] == '1274826d34b139a2'
