"""Token stores in memory in which every token has an id of its own: `FIRST` + its index.

So a row, with its labels put back, shows which tokens of the store it holds.
"""

import dataclasses
import functools
import hashlib

import numpy as np

from bert_jax.rows.examples import Feature
from bert_jax.rows.pairs import RowOptions
from bert_jax.rows.text_rows import WholeTextRows
from bert_jax.text.vocab import Vocab

CLS, SEP, MASK, FIRST = 1, 2, 3, 4


@dataclasses.dataclass
class Store:
    tokens: np.ndarray
    sentence_offsets: np.ndarray
    document_offsets: np.ndarray

    @functools.cached_property
    def document_of(self):
        """The document of each token."""
        starts = self.sentence_offsets[self.document_offsets]
        return np.repeat(np.arange(len(starts) - 1), np.diff(starts))


def make_store(documents):
    """A store with the given sentence lengths of each document."""
    lengths = np.concatenate(documents)
    return Store(
        np.arange(lengths.sum(), dtype=np.uint32) + FIRST,
        np.concatenate([[0], np.cumsum(lengths)]),
        np.concatenate([[0], np.cumsum([len(d) for d in documents])]),
    )


def random_store(num_documents, seed=0, most_sentences=25, most_tokens=20):
    rng = np.random.default_rng(seed)
    return make_store([
        rng.integers(1, most_tokens + 1, rng.integers(1, most_sentences + 1))
        for _ in range(num_documents)])


def vocab(size, cls_id=CLS, sep_id=SEP, mask_id=MASK):
    """A vocabulary of `size` pieces, none of which continues a word."""
    return Vocab((), 0, 0, cls_id, sep_id, mask_id, np.zeros(size, bool))


def make_examples(store, documents=None, seed=3, **options):
    options = {'max_seq_length': 64, **options}
    options.setdefault('max_predictions_per_seq', min(10, options['max_seq_length'] - 2))
    if documents is None:
        documents = np.arange(len(store.document_offsets) - 1)
    return WholeTextRows(
        store, documents, RowOptions(**options), vocab(len(store.tokens) + FIRST), seed)


def truncated(a, b, room):
    """Lengths that google-research/bert keeps: it shortens the longer one until both fit."""
    while a + b > room:
        a, b = (a - 1, b) if a > b else (a, b - 1)
    return a, b


def restored(batch):
    """`input_ids` with the labels put back at the masked positions."""
    ids = batch['input_ids'].copy()
    rows, slots = np.nonzero(batch['masked_lm_weights'])
    ids[rows, batch['masked_lm_positions'][rows, slots]] = batch['masked_lm_ids'][rows, slots]
    return ids


def check_batch(spec, batch):
    """Asserts that a batch has the features of its spec."""
    assert {name: Feature(x.shape[1:], x.dtype.type) for name, x in batch.items()} == dict(spec)


def assert_same(batch, other):
    assert set(batch) == set(other)
    for name in batch:
        assert batch[name].dtype == other[name].dtype, name
        np.testing.assert_array_equal(batch[name], other[name], err_msg=name)


def change_last_byte(path):
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def digest(*batches):
    """A digest of all features; `sequence_ids` counts under its earlier name, `input_mask`."""
    found = hashlib.sha256()
    for batch in batches:
        named = {name.replace('sequence_ids', 'input_mask'): x for name, x in batch.items()}
        for name in sorted(named):
            found.update(name.encode() + named[name].tobytes())
    return found.hexdigest()[:16]
