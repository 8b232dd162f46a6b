"""What is seen of a text before training: repeats, and the loss of guessing by frequency."""

import types

import numpy as np
import pytest

from bert_jax.data import pretrain
from bert_jax.data.pretrain import frequency_loss, repeated_share


def store(documents):
    """A token store of lists of sentences."""
    sentences = [sentence for document in documents for sentence in document]
    return types.SimpleNamespace(
        tokens=np.concatenate(sentences).astype(np.uint16),
        sentence_offsets=np.cumsum([0, *map(len, sentences)]),
        document_offsets=np.cumsum([0, *map(len, documents)]),
    )


def document(seed, num=8, length=12):
    return np.random.default_rng(seed).integers(10, 5000, (num, length)).tolist()


def almost(original):
    """Another document by one sentence, so that it is no exact duplicate."""
    return [*original[:-1], original[-1][::-1]]


TEXT = [document(seed) for seed in range(40)]


@pytest.mark.parametrize(('documents', 'used', 'share'), [
    (TEXT, range(40), 0.0),
    ([*TEXT, *map(almost, TEXT[:20])], range(60), 20 * 7 / (60 * 8)),
    ([*TEXT, *map(almost, TEXT[:20])], range(40), 0.0),  # they are not trained on
    ([*TEXT, [[1, 2, 3]] * 100], range(41), 0.0),  # short ones are said again and again
    ([[[1, 2, 3]]], range(1), 0.0),
])
def test_repeated_share(documents, used, share, monkeypatch):
    monkeypatch.setattr(pretrain, '_CHUNK', 7)
    assert repeated_share(store(documents), np.array(used)) == pytest.approx(share)
    monkeypatch.setattr(pretrain, '_KEPT', 100)  # of so many they are a sample
    assert repeated_share(store(documents), np.array(used)) == pytest.approx(share, abs=0.12)


def test_frequency_loss():
    halves = store([[[0, 1] * 8]])
    assert frequency_loss([(halves, 1.0)], 4) == pytest.approx(np.log(2))
    # A mixture is by its weights, not by how long its texts are.
    one = store([[[2] * 1000]])
    p = np.array([0.375, 0.375, 0.25])
    assert frequency_loss([(halves, 3.0), (one, 1.0)], 4) == pytest.approx(-(p * np.log(p)).sum())
