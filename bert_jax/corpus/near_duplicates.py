"""Near-duplicates among documents: MinHash signatures and locality-sensitive hashing.

Two documents are similar if they have many runs of five tokens in common: their similarity is the
Jaccard index of the two sets of runs (Broder, 1997). Each part of a text gives the signatures of
its documents. All of them together then tell which documents are similar to an earlier one: the
pairs are found by equal keys, without comparing all with all, and checked by their sketches.

Everything is a function of the token ids alone, so parts can be made on any machine, in any order.

    D: documents, K: bins of a signature, R: bins of a key
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np

from bert_jax.corpus.document_blocks import document_blocks
from bert_jax.rows.stateless import hash64

# Raise it when the signatures of a document change: those of older rules are not comparable.
VERSION = 1
NUM_KEYS = 12  # of a document
SKETCH_WORDS = 2

_RUN = 5  # tokens
_SKETCH_BITS = 64 * SKETCH_WORDS
_RECALL = 0.85  # of pairs at the threshold, share that has an equal key
_FEWEST_BINS = 3  # of a key: with fewer, unlike documents have equal keys
_LEADING_BITS = 10
_EMPTY = np.uint32(0xFFFFFFFF)
_VALUES = 0x7FFFFFFF  # of bins, 31 bits
_STEP = 0x9E3779B1
_U64 = np.uint64
_MULTIPLIER = 0x9E3779B97F4A7C15  # of the polynomial over a run's tokens
# Purposes of hashes.
_DONORS = 1
_KEYS = 2


class Signatures(NamedTuple):
    """The signatures of a part's documents, which `near_duplicates` compares.

    Attributes:
      keys: uint64 [D * NUM_KEYS], ascending. Documents with an equal key are probably similar.
      documents: uint32 [D * NUM_KEYS], the document of each key, counted from the part's first;
        ascending where keys are equal.
      sketches: uint64 [D, SKETCH_WORDS]; the share of equal bits estimates the similarity of two
        documents.
    """

    keys: np.ndarray
    documents: np.ndarray
    sketches: np.ndarray

    @classmethod
    def joined(cls, stretches: Sequence[Self]) -> Self:
        """The signatures of a part, from those of stretches of it, in order."""
        keys = [np.zeros(0, _U64)]
        documents = [np.zeros(0, np.uint32)]
        sketches = [np.zeros((0, SKETCH_WORDS), _U64)]
        num_documents = 0
        for stretch in stretches:
            keys.append(stretch.keys)
            documents.append(stretch.documents + np.uint32(num_documents))
            sketches.append(stretch.sketches)
            num_documents += len(stretch.sketches)
        all_keys = np.concatenate(keys)
        order = np.argsort(all_keys, kind='stable')
        return cls(all_keys[order], np.concatenate(documents)[order], np.concatenate(sketches))

    @property
    def bounds(self) -> np.ndarray:
        """Where the keys with each value of their leading bits begin, int64, and where all end."""
        values = np.arange(1 << _LEADING_BITS, dtype=_U64)
        starts = np.searchsorted(self.keys, values << _U64(64 - _LEADING_BITS))
        return np.append(starts, len(self.keys))


def signatures(tokens: np.ndarray, token_bounds: np.ndarray, threshold: float) -> Signatures:
    """The signatures of documents.

    Args:
      tokens: of all documents, one after the other.
      token_bounds: [D + 1]; document d is tokens[token_bounds[d] : token_bounds[d + 1]]. None is
        empty.
      threshold: from what similarity on documents are near-duplicates.
    """
    num_bins = _bins_of_key(threshold)
    num_documents = len(token_bounds) - 1
    keys = np.empty((num_documents, NUM_KEYS), _U64)
    sketches = np.empty((num_documents, SKETCH_WORDS), _U64)
    for first, last in document_blocks(token_bounds):
        bounds = token_bounds[first : last + 1] - token_bounds[first]
        block = tokens[token_bounds[first] : token_bounds[last]]
        bins = _signature(block, bounds, _SKETCH_BITS + NUM_KEYS * num_bins)
        sketches[first:last] = _sketches(bins[:, :_SKETCH_BITS])
        keys[first:last] = _keys(bins[:, _SKETCH_BITS:], num_bins)
    order = np.argsort(keys, axis=None, kind='stable')
    return Signatures(keys.ravel()[order], (order // NUM_KEYS).astype(np.uint32), sketches)


def _bins_of_key(threshold: float) -> int:
    """How many bins of two signatures are equal where a key is: R.

    A bin is equal with a probability of the similarity s, and one of the keys at least with
    1 - (1 - s ** R) ** NUM_KEYS. R is the largest for which most pairs at the threshold are found.
    """
    num_bins = _FEWEST_BINS
    while 1 - (1 - threshold ** (num_bins + 1)) ** NUM_KEYS >= _RECALL:
        num_bins += 1
    return num_bins


def _signature(tokens: np.ndarray, bounds: np.ndarray, num_bins: int) -> np.ndarray:
    """A signature of each document, uint32 [D, K]: a bin is equal with probability of the Jaccard.

    One permutation instead of K (Li et al., 2012): a hash chooses a bin and a value, and the least
    value of a bin counts. Bins that no run of a document falls into take the value of another one
    (Shrivastava, 2017), which is what makes short documents comparable.

    Args:
      tokens, bounds: of the documents.
      num_bins: K.
    """
    num_documents = len(bounds) - 1
    hashes = _run_hashes(tokens, bounds)
    first_bins = np.repeat(np.arange(num_documents) * num_bins, np.diff(bounds))
    bins = ((hashes >> _U64(32)) * _U64(num_bins)) >> _U64(32)
    values = (hashes & _U64(_VALUES)).astype(np.uint32)
    signature = np.full((num_documents, num_bins), _EMPTY)
    np.minimum.at(signature.ravel(), first_bins + bins.astype(np.int64), values)
    _fill_empty(signature)
    return signature


def _run_hashes(tokens: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Hashes, uint64, of the runs of tokens that begin at each token.

    Where none begins, near the end of a document, it is that of the document's first run. A
    document shorter than a run is one.

    Args:
      tokens, bounds: of the documents.
    """
    starts = bounds[:-1]
    lengths = np.diff(bounds)
    padded = np.concatenate([tokens, np.zeros(_RUN - 1, tokens.dtype)]).astype(_U64)
    sums = padded[: len(tokens)].copy()
    for place in range(1, _RUN):
        sums *= _U64(_MULTIPLIER)
        sums += padded[place : place + len(tokens)]
    for length in range(1, _RUN):
        short = starts[lengths == length]
        # Other than any longer run, even one that begins with zeros.
        sums[short] = hash64(length, *(padded[short + place] for place in range(length)))
    for from_end in range(1, _RUN):
        has_run_before = lengths > from_end
        sums[(bounds[1:] - from_end)[has_run_before]] = sums[starts[has_run_before]]
    return _mixed(sums)


def _mixed(values: np.ndarray) -> np.ndarray:
    """`values` with every bit spread over all bits, in place (MurmurHash3's finaliser)."""
    values ^= values >> _U64(33)
    values *= _U64(0xFF51AFD7ED558CCD)
    values ^= values >> _U64(33)
    values *= _U64(0xC4CEB9FE1A85EC53)
    values ^= values >> _U64(33)
    return values


def _fill_empty(signature: np.ndarray) -> None:
    """Fills empty bins from others of the same document.

    In each round a bin looks at the bin that its place and the round determine. So the bins of two
    documents stay equal with the same probability: both take the value of the same run, or not.

    Args:
      signature: uint32 [D, K], changed in place; each document has some value.
    """
    num_bins = signature.shape[1]
    places = np.arange(num_bins)
    documents = np.flatnonzero((signature == _EMPTY).any(axis=1))
    number = 0
    while len(documents):
        number += 1
        donors = hash64(_DONORS, number, places) % _U64(num_bins)
        bins = signature[documents]
        values = np.take(bins, donors.astype(np.int64), axis=1)
        is_taken = (bins == _EMPTY) & (values != _EMPTY)
        # Values taken in different rounds are not equal.
        values += np.uint32(number * _STEP & _VALUES)
        values &= np.uint32(_VALUES)
        bins = np.where(is_taken, values, bins)
        signature[documents] = bins
        documents = documents[(bins == _EMPTY).any(axis=1)]


def _sketches(bins: np.ndarray) -> np.ndarray:
    """One bit of each bin, uint64 [D, SKETCH_WORDS], from uint32 [D, 64 * SKETCH_WORDS].

    Two unequal bins have equal bits half of the time (b-bit MinHash, Li and Koenig, 2010).
    """
    packed = np.packbits((bins & np.uint32(1)).astype(bool), axis=1, bitorder='little')
    return packed.view('<u8').astype(_U64)


def _keys(bins: np.ndarray, num_bins: int) -> np.ndarray:
    """Keys, uint64 [D, NUM_KEYS], of R bins each, from uint32 [D, NUM_KEYS * R].

    The number of a key is part of it, so that one never equals another of a document.
    """
    numbers = np.arange(NUM_KEYS, dtype=_U64)
    grouped = bins.reshape(len(bins), NUM_KEYS, num_bins)
    return hash64(_KEYS, numbers, *(grouped[:, :, place] for place in range(num_bins)))


def near_duplicates(
    bounds: Sequence[np.ndarray], read: Callable[[int, slice], tuple[np.ndarray, np.ndarray]],
    sketches: np.ndarray, threshold: float, keys_at_once: int = 1 << 26,
) -> np.ndarray:
    """Which documents are similar to an earlier one; these are to be left out.

    The earlier one may itself be left out, for a still earlier one. Of the documents that have a
    key, each is compared with the first and with the one before it. Nothing else is looked at, so
    no pass over the keys depends on another, and two documents that are only similar to the same
    later one both stay.

    Args:
      bounds: `Signatures.bounds` of each part, in the order of the text.
      read: gives (keys, documents) of a part, which are the rows `slice` of its `Signatures`.
      sketches: uint64 [D, SKETCH_WORDS], of all parts' documents in order; it may be mapped from a
        file.
      threshold: that of the signatures.
      keys_at_once: so many are in memory, in about 50 bytes each. Fewer mean more calls of `read`
        and the same result.

    Returns:
      bool [D], for the documents of all parts.
    """
    starts = np.stack(bounds)
    first_documents = np.concatenate([[0], np.cumsum(starts[:, -1] // NUM_KEYS)])
    left_out = np.zeros(len(sketches), bool)
    for first, last in _passes(np.diff(starts, axis=1).sum(axis=0), keys_at_once):
        keys = []
        documents = []
        for number, part in enumerate(bounds):
            part_keys, part_documents = read(number, slice(part[first], part[last]))
            keys.append(part_keys)
            documents.append(part_documents + first_documents[number])
        left_out[similar_to_earlier(
            np.concatenate(keys), np.concatenate(documents), sketches, threshold)] = True
    return left_out


def similar_to_earlier(
    keys: np.ndarray, documents: np.ndarray, sketches: np.ndarray, threshold: float
) -> np.ndarray:
    """Documents that are similar to an earlier one with the same key, int; some repeatedly.

    Args:
      keys: uint64 [n], all with each of their values.
      documents: int [n], with these keys; in the order of the text where keys are equal.
      sketches: uint64 [D, SKETCH_WORDS].
      threshold: that of the signatures.
    """
    found: list[np.ndarray] = []
    for later, earlier in _pairs(keys, documents):
        similar = _are_similar(sketches[later], sketches[earlier], threshold)
        found.append(later[similar])
    return np.concatenate(found)


def _passes(num_keys: np.ndarray, keys_at_once: int) -> Iterator[tuple[int, int]]:
    """(First, last (exclusive)) values of leading bits whose keys are compared together.

    Args:
      num_keys: with each value of the leading bits.
      keys_at_once: the most of a pass, unless a single value has more.
    """
    first = 0
    total = 0
    for value, num in enumerate(num_keys.tolist()):
        if value > first and total + num > keys_at_once:
            yield first, value
            first = value
            total = 0
        total += num
    yield first, len(num_keys)


def _pairs(keys: np.ndarray, documents: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(Later, earlier) documents that share a key: [n] and [n], twice.

    Args:
      keys, documents: in the order of the documents where keys are equal.
    """
    order = np.argsort(keys, kind='stable')  # quick: `keys` consists of runs that are sorted
    keys = keys[order]
    documents = documents[order]
    is_repeated = np.concatenate([[False], keys[1:] == keys[:-1]])
    repeated = np.flatnonzero(is_repeated)
    yield documents[repeated], documents[repeated - 1]
    starts = np.flatnonzero(~is_repeated)
    first_of_key = starts[np.searchsorted(starts, repeated) - 1]
    yield documents[repeated], documents[first_of_key]


def _are_similar(sketches: np.ndarray, others: np.ndarray, threshold: float) -> np.ndarray:
    """Whether documents may be as similar as the threshold, bool [n], by their sketches.

    Unequal bins have equal bits half of the time, so a similarity s is estimated as one minus twice
    the share of unequal bits, with a variance of (1 - s ** 2) over the number of bits. A pair at
    the threshold passes unless its estimate is lower by more than two standard deviations.
    """
    num_unequal = np.bitwise_count(sketches ^ others).sum(axis=1)
    deviation = math.sqrt((1 - threshold**2) / _SKETCH_BITS)
    least = threshold - 2 * deviation
    return 1 - 2 * num_unequal / _SKETCH_BITS >= least
