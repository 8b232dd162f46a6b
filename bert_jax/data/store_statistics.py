"""What is measured of a token store before training: repeats and token frequencies."""

import math
from collections.abc import Sequence

import numpy as np

from bert_jax.data.stateless import hash64
from bert_jax.data.store import TokenStore

_COMPARED_TOKENS = 10  # first tokens by which sentences are compared
_SAMPLED_SENTENCES = 1 << 18  # about so many are compared
_SENTENCES_AT_ONCE = 1 << 22  # read at a time
_COUNTED_TOKENS = 1 << 23  # of a store, from its start


def repeated_share(store: TokenStore, documents: np.ndarray) -> float:
    """Share of the sentences that begin with the same ten tokens as an earlier one.

    Exact duplicates of documents are left out when a store is built; this finds near duplicates and
    repeated passages. Shorter sentences do not count. In a large store only a sample is compared:
    sentences are chosen by their first two tokens, so that of several equal ones all are or none.

    Args:
      store: the token store.
      documents: [k] indices of the documents that are used.
    """
    is_used = np.zeros(len(store.document_offsets) - 1, bool)
    is_used[documents] = True
    num_sentences = len(store.sentence_offsets) - 1
    hashes = []
    for begin in range(0, num_sentences, _SENTENCES_AT_ONCE):
        end = min(begin + _SENTENCES_AT_ONCE, num_sentences)
        hashes.append(_hashes_of_sample(store, is_used, begin, end))
    ordered = np.sort(np.concatenate(hashes))  # np.unique takes several times as long
    num_repeated = int((ordered[1:] == ordered[:-1]).sum())
    return num_repeated / max(len(ordered), 1)


def _hashes_of_sample(
    store: TokenStore, is_used: np.ndarray, begin: int, end: int
) -> np.ndarray:
    """Hashes of the first tokens of the sentences in the sample, uint64, among begin .. end - 1.

    Args:
      store: the token store.
      is_used: bool, whether a document is used, for each of the store.
      begin, end: the first sentence to look at, and the one after the last.
    """
    num_sentences = len(store.sentence_offsets) - 1
    one_of = max(1, num_sentences // _SAMPLED_SENTENCES)
    offsets = np.asarray(store.sentence_offsets[begin : end + 1])
    long_enough = np.flatnonzero(np.diff(offsets) >= _COMPARED_TOKENS)
    starts = offsets[long_enough]
    first_two = hash64(store.tokens[starts], store.tokens[starts + 1])
    sampled = np.flatnonzero(first_two % np.uint64(one_of) == 0)
    sentence = begin + long_enough[sampled]
    document = np.searchsorted(store.document_offsets, sentence, 'right') - 1
    sampled = sampled[is_used[document]]
    further = [store.tokens[starts[sampled] + i] for i in range(2, _COMPARED_TOKENS)]
    return hash64(first_two[sampled], *further)


def frequency_loss(stores: Sequence[tuple[TokenStore, float]], vocab_size: int) -> float:
    """Mean masked-LM loss, in nats, of always predicting the token frequencies: their entropy.

    Args:
      stores: (store, weight) pairs.
      vocab_size: the same for all stores.
    """
    shares = np.zeros(vocab_size)
    total = sum(weight for _, weight in stores)
    for store, weight in stores:
        counts = np.bincount(store.tokens[:_COUNTED_TOKENS], minlength=vocab_size)
        shares += counts * (weight / total / max(counts.sum(), 1))
    shares = shares[shares > 0]
    return math.fsum(-shares * np.log(shares))
