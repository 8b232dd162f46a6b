"""What a token store says of its text before anything is trained on it.

    S: sentences
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from bert_jax.data.pretrain import Tokens
from bert_jax.data.stateless import hash64

_COMPARED = 10  # tokens that a sentence must have, and by which it is known
_KEPT = 1 << 18  # sentences that are compared, more or less
_CHUNK = 1 << 22
_COUNTED = 1 << 23  # tokens


def repeated_share(store: Tokens, documents: np.ndarray) -> float:
    """Share of the sentences whose first ten tokens an earlier sentence has.

    Whole documents that are there twice are left out when a store is built. This sees those that
    are almost alike, and parts of them. Of a large store some sentences are looked at, chosen by
    their first tokens, so that of several alike all are or none.

    Args:
      store: of which text.
      documents: [k] indices of those that are used.
    """
    used = np.zeros(len(store.document_offsets) - 1, bool)
    used[documents] = True
    num_sentences = len(store.sentence_offsets) - 1
    every = max(1, num_sentences // _KEPT)
    found = []
    for begin in range(0, num_sentences, _CHUNK):
        offsets = np.asarray(store.sentence_offsets[begin : begin + _CHUNK + 1])
        sentence = np.flatnonzero(np.diff(offsets) >= _COMPARED)
        starts = offsets[sentence]
        key = hash64(store.tokens[starts], store.tokens[starts + 1])
        chosen = np.flatnonzero(key % np.uint64(every) == 0)
        document = np.searchsorted(store.document_offsets, begin + sentence[chosen], 'right') - 1
        chosen = chosen[used[document]]
        starts, key = starts[chosen], key[chosen]
        for i in range(2, _COMPARED):
            key = hash64(key, store.tokens[starts + i])
        found.append(key)
    keys = np.sort(np.concatenate(found))  # np.unique takes several times as long
    return int((keys[1:] == keys[:-1]).sum()) / max(len(keys), 1)


def frequency_loss(stores: Sequence[tuple[Tokens, float]], vocab_size: int) -> float:
    """Mean masked-LM loss of guessing each token as often as it occurs: the entropy, in nats.

    Args:
      stores: with the weight of each.
      vocab_size: of all of them.
    """
    shares = np.zeros(vocab_size)
    total = sum(weight for _, weight in stores)
    for store, weight in stores:
        counts = np.bincount(store.tokens[:_COUNTED], minlength=vocab_size)
        shares += counts * (weight / total / max(counts.sum(), 1))
    shares = shares[shares > 0]
    return math.fsum(-shares * np.log(shares))
