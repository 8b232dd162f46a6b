"""Measurements of a text while its store is built: repeats and token frequencies."""

import math
from collections.abc import Sequence

import numpy as np

from bert_jax.rows.blocks import Block, bounds_of
from bert_jax.rows.stateless import hash64
from bert_jax.rows.store import TokenStore

COMPARED_TOKENS = 10  # first tokens by which sentences are compared
SAMPLED_SENTENCES = 1 << 18  # about so many are compared
NO_LIMIT = np.uint64(2**64 - 1)
# Odd numbers by which a sentence's first tokens are multiplied: the sum of the products, modulo
# 2**64, tells sentences apart.
_MULTIPLIERS = hash64(np.arange(COMPARED_TOKENS)) | np.uint64(1)


class SentenceSample:
    """Sentences by the hashes of their first ten tokens: those with the smallest hashes.

    So of several equal sentences all are in the sample or none, samples of parts of a text can be
    joined, and the sample does not depend on how the text was divided. Shorter sentences do not
    count.

    Attributes:
      limit: all sentences with a hash below it are in the sample, and no others.
    """

    def __init__(self, limit: np.uint64 = NO_LIMIT):
        self.limit = limit
        self._hashes: list[np.ndarray] = []
        self._documents: list[np.ndarray] = []
        self._size = 0

    def add(self, block: Block, first_document: int) -> None:
        """Adds the sentences of a block that are in the sample.

        Args:
          block: of the text.
          first_document: the number of its first document.
        """
        is_long = block.sentence_lengths >= COMPARED_TOKENS
        starts = bounds_of(block.sentence_lengths)[:-1][is_long]
        sums = np.zeros(len(starts), np.uint64)
        for place in range(COMPARED_TOKENS):
            sums += block.tokens[starts + place].astype(np.uint64) * _MULTIPLIERS[place]
        num_documents = len(block.document_lengths)
        documents = first_document + np.repeat(np.arange(num_documents), block.document_lengths)
        self.add_hashes(hash64(sums), documents[is_long].astype(np.uint32), NO_LIMIT)

    def add_hashes(self, hashes: np.ndarray, documents: np.ndarray, limit: np.uint64) -> None:
        """Adds the sentences of another sample.

        Args:
          hashes: uint64, of the sentences.
          documents: uint32, that they are in.
          limit: of the other sample.
        """
        self.limit = min(self.limit, limit)
        in_sample = hashes < self.limit
        self._hashes.append(hashes[in_sample])
        self._documents.append(documents[in_sample])
        self._size += len(self._hashes[-1])
        if self._size > 4 * SAMPLED_SENTENCES:
            self._thin()

    def _thin(self) -> None:
        """Lowers the limit so that about `SAMPLED_SENTENCES` are left."""
        hashes = np.concatenate([*self._hashes, np.zeros(0, np.uint64)])
        documents = np.concatenate([*self._documents, np.zeros(0, np.uint32)])
        if len(hashes) > SAMPLED_SENTENCES:
            self.limit = np.partition(hashes, SAMPLED_SENTENCES)[SAMPLED_SENTENCES]
        in_sample = hashes < self.limit
        self._hashes = [hashes[in_sample]]
        self._documents = [documents[in_sample]]
        self._size = len(self._hashes[0])

    def sentences(self) -> tuple[np.ndarray, np.ndarray]:
        """(Hashes, documents) of the sentences in the sample, in the order of the text."""
        self._thin()
        return self._hashes[0], self._documents[0]

    def repeated_share(self) -> float:
        """Share of the sentences that begin with the same ten tokens as an earlier one.

        Exact duplicates of documents are left out when a store is built; this finds near duplicates
        and repeated passages.
        """
        hashes, _ = self.sentences()
        ordered = np.sort(hashes)  # np.unique takes several times as long
        num_repeated = int((ordered[1:] == ordered[:-1]).sum())
        return num_repeated / max(len(ordered), 1)


def frequency_loss(stores: Sequence[tuple[TokenStore, float]], vocab_size: int) -> float:
    """Mean masked-LM loss, in nats, of always predicting the token frequencies: their entropy.

    Args:
      stores: (store, weight) pairs.
      vocab_size: the same for all stores.
    """
    shares = np.zeros(vocab_size)
    total = sum(weight for _, weight in stores)
    for store, weight in stores:
        counts = store.token_counts()
        shares += counts * (weight / total / max(counts.sum(), 1))
    shares = shares[shares > 0]
    return math.fsum(-shares * np.log(shares))
