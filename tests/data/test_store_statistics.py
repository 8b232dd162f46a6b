"""What is measured of a text before training: repeats, and the loss of guessing by frequency."""

import numpy as np
import pytest

from bert_jax.data import store_statistics
from bert_jax.data.store_statistics import frequency_loss, repeated_share
from tests.data import stores


def _text(documents):
    """A token store of documents, each a list of sentences, each a list of ids."""
    sentences = [sentence for document in documents for sentence in document]
    return stores.Store(
        tokens=np.concatenate(sentences).astype(np.uint16),
        sentence_offsets=np.cumsum([0, *map(len, sentences)]),
        document_offsets=np.cumsum([0, *map(len, documents)]))


# 40 documents of 8 sentences of 12 tokens.
TEXT = np.random.default_rng(0).integers(10, 5000, (40, 8, 12)).tolist()
# Copies of which one sentence differs, so that they are no exact duplicates.
ALMOST = [[*document[:-1], document[-1][::-1]] for document in TEXT[:20]]
SHORT = [[1, 2, 3]]


@pytest.mark.parametrize(('documents', 'num_used', 'share'), [
    pytest.param(TEXT, 40, 0.0, id='nothing repeats'),
    pytest.param([*TEXT, *ALMOST], 60, 20 * 7 / (60 * 8), id='near duplicates'),
    pytest.param([*TEXT, *ALMOST], 40, 0.0, id='near duplicates that are not used'),
    pytest.param([*TEXT, SHORT * 100], 41, 0.0, id='short sentences do not count'),
    pytest.param([SHORT], 1, 0.0, id='short sentences alone'),
])
def test_repeated_share(documents, num_used, share, monkeypatch):
    store = _text(documents)
    used = np.arange(num_used)
    monkeypatch.setattr(store_statistics, '_SENTENCES_AT_ONCE', 7)
    assert repeated_share(store, used) == pytest.approx(share)
    monkeypatch.setattr(store_statistics, '_SAMPLED_SENTENCES', 100)
    assert repeated_share(store, used) == pytest.approx(share, abs=0.12)


def test_frequency_loss():
    halves = _text([[[0, 1] * 8]])
    one = _text([[[2] * 1000]])
    assert frequency_loss([(halves, 1.0)], 4) == pytest.approx(np.log(2))
    # A mixture follows its weights, whatever the lengths of its texts.
    shares = np.array([0.375, 0.375, 0.25])
    entropy = -(shares * np.log(shares)).sum()
    assert frequency_loss([(halves, 3.0), (one, 1.0)], 4) == pytest.approx(entropy)
