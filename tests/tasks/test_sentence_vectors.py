"""The loss and the metric of configs/sentence_vectors.py where texts recur.

Expected values are loops over texts, in which a rival that is equal to a text or its partner is
left out, as sentence-transformers' batches without duplicates have none.
"""

import jax
import numpy as np
import pytest
import scipy.special

from bert_jax.rows.sequences import Sequences
from tests.configs import module_of

RECIPE = module_of('sentence_vectors')
FOUND_PARTNER = jax.jit(RECIPE.found_partner)

ROWS = {
    'partners recur': [('q1', 'yes'), ('q2', 'no'), ('q3', 'yes'), ('q4', 'no'), ('q5', 'yes')],
    'a text has two partners': [('q1', 'a'), ('q1', 'b'), ('q2', 'c')],
    'pairs in both orders': [('a', 'b'), ('b', 'a'), ('c', 'd')],
    'a text is its own partner': [('a', 'a'), ('b', 'c'), ('a', 'd')],
    'a hard negative is the partner of another': [('q1', 'a', 'b'), ('q2', 'b', 'c')],
    'a hard negative is the partner': [('q1', 'a', 'a'), ('q2', 'b', 'q2'), ('q3', 'c', 'd')],
    'nothing recurs': [('a', 'b', 'c'), ('d', 'e', 'f'), ('g', 'h', 'i')],
}


def ids_of(rows):
    texts = sorted({text for row in rows for text in row})
    return np.array([[texts.index(text) for text in row] for row in rows], np.int32)


def vectors_of(rows, seed=0):
    """Vectors [n, T, 8] of length 1, equal for equal texts."""
    ids = ids_of(rows)
    table = np.random.default_rng(seed).normal(size=(ids.max() + 1, 8))
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    return table[ids].astype(np.float32)


def right_answers(rows, number):
    """The partners of all texts that are equal to that of a row."""
    return {row[1] for row in rows if row[0] == rows[number][0]}


def expected_loss(rows, vectors, number):
    """Cross-entropy of a row's partner among the rivals that are neither right nor the text."""
    scores = [vectors[number, 0] @ vectors[number, 1]]
    for other, row in enumerate(rows):
        for column, text in enumerate(row[1:], 1):
            is_partner_of_equal = column == 1 and row[0] == rows[number][0]
            if text not in rows[number][:2] and not is_partner_of_equal:
                scores.append(vectors[number, 0] @ vectors[other, column])
    scores = np.array(scores, np.float64) / 0.05
    return scipy.special.logsumexp(scores) - scores[0]


def padded(array):
    """An array of all rows of a batch with six places, of which the last are empty."""
    return np.pad(array, [(0, 6 - len(array)), *[(0, 0)] * (array.ndim - 1)])


@pytest.mark.parametrize('name', ROWS)
def test_equal_texts_are_no_rivals_in_the_loss(name):
    rows = ROWS[name]
    vectors = vectors_of(rows)
    weights = padded(np.ones(len(rows), np.float32))
    losses, _ = FOUND_PARTNER(
        padded(vectors), {'text_ids': padded(ids_of(rows)), 'unit_weights': weights})
    expected = [expected_loss(rows, vectors, number) for number in range(len(rows))]
    np.testing.assert_allclose(losses[: len(rows)], expected, rtol=1e-4, atol=1e-5)
    assert RECIPE.mean_loss(ids_of(rows), vectors) == pytest.approx(np.mean(expected), rel=1e-5)
    assert np.isfinite(losses).all()


@pytest.mark.parametrize('name', ROWS)
def test_any_right_answer_is_found(name):
    rows = ROWS[name]
    candidates = {text for row in rows for text in row[1:]}
    for seed in range(5):
        vectors = vectors_of(rows, seed)
        vector_of = {
            text: vectors[n, t] for n, row in enumerate(rows) for t, text in enumerate(row)}
        found = []
        for number, row in enumerate(rows):
            right = right_answers(rows, number)
            scores = {}
            for text in (candidates - {row[0]}) | right:
                scores[text] = vector_of[text] @ vectors[number, 0]
            found.append(max(scores, key=scores.__getitem__) in right)
        assert RECIPE.share_found(ids_of(rows), vectors) == pytest.approx(np.mean(found))


def test_a_few_answers_to_many_questions_are_all_found():
    """Each question is nearest to its answer, which 49 others have too."""
    answers = np.eye(8, dtype=np.float32)
    number = np.arange(400) % 8
    vectors = np.stack([answers[number], answers[number]], axis=1)
    ids = np.stack([100 + np.arange(400), number], axis=1)
    assert RECIPE.share_found(ids, vectors) == 1.0


def test_texts_of_the_same_tokens_are_equal():
    ids = np.array([5, 6, 5, 6, 7, 5, 6, 7], np.int32)
    sequences = Sequences.of_segments(ids, np.array([0, 2, 4, 5, 8]), np.ones(4, np.int64))
    np.testing.assert_array_equal(RECIPE.text_ids(sequences, 2), [[0, 0], [1, 2]])
