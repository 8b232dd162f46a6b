"""What is measured of a text before training: repeats, and the loss of guessing by frequency."""

import numpy as np
import pytest

from bert_jax.rows import store_statistics
from bert_jax.rows.blocks import Block
from bert_jax.rows.store import described_file
from bert_jax.rows.store_statistics import SentenceSample, frequency_loss
from tests.rows.block_stores import write_store


def _block(documents):
    """A block of documents, each a list of sentences, each a list of ids."""
    sentences = [sentence for document in documents for sentence in document]
    return Block(
        tokens=np.concatenate(sentences).astype(np.uint16),
        sentence_lengths=np.array([*map(len, sentences)], np.uint32),
        document_lengths=np.array([*map(len, documents)], np.uint32),
        document_hashes=np.arange(len(documents), dtype=np.uint64))


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
    sample = _sample([documents], num_used)
    assert sample.repeated_share() == pytest.approx(share)
    monkeypatch.setattr(store_statistics, 'SAMPLED_SENTENCES', 100)
    assert _sample([documents], num_used).repeated_share() == pytest.approx(share, abs=0.12)


def _sample(parts, num_used):
    """The sample of the documents that are used, joined from the samples of parts of a text."""
    joined = SentenceSample()
    first = 0
    for documents in parts:
        sample = SentenceSample()
        sample.add(_block(documents), first)
        hashes, of_documents = sample.sentences()
        is_used = of_documents < num_used
        joined.add_hashes(hashes[is_used], of_documents[is_used], sample.limit)
        first += len(documents)
    return joined


@pytest.mark.parametrize('num_sampled', [10, 100, 10**6])
def test_a_sample_does_not_depend_on_parts(monkeypatch, num_sampled):
    monkeypatch.setattr(store_statistics, 'SAMPLED_SENTENCES', num_sampled)
    documents = [*TEXT, *ALMOST]
    whole, _ = _sample([documents], 60).sentences()
    in_parts, _ = _sample([documents[:7], documents[7:30], documents[30:]], 60).sentences()
    assert sorted(in_parts) == sorted(whole)
    assert len(whole) == pytest.approx(min(num_sampled, 480), abs=3)


def test_frequency_loss(tmp_path):
    halves = write_store(tmp_path / 'halves', [_block([[[0, 1] * 8]])], 4)
    one = write_store(tmp_path / 'one', [_block([[[2] * 1000]])], 4)
    for store, counts in ((halves, [8, 8, 0, 0]), (one, [0, 0, 1000, 0])):
        content = np.array(counts, '<i8').tobytes()
        (store.path / 'token_counts.bin').write_bytes(content)
        store.manifest['files']['token_counts.bin'] = described_file(content)
    assert frequency_loss([(halves, 1.0)], 4) == pytest.approx(np.log(2))
    # A mixture follows its weights, whatever the lengths of its texts.
    shares = np.array([0.375, 0.375, 0.25])
    entropy = -(shares * np.log(shares)).sum()
    assert frequency_loss([(halves, 3.0), (one, 1.0)], 4) == pytest.approx(entropy)
