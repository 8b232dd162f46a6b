"""Texts -> token sequences [CLS] A [SEP] or [CLS] A [SEP] B [SEP], truncated, all in numpy.

    n: sequences, T: tokens of all of them
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import numpy as np

# Texts -> (ids of all of them [T] int32, tokens of each [n] int64), without [CLS] and [SEP].
Encode = Callable[[Sequence[str]], tuple[np.ndarray, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Sequences:
    """n token sequences, one after the other.

    Attributes:
      ids: [T] int32, with [CLS] and [SEP].
      offsets: [n + 1] int64; sequence i is ids[offsets[i] : offsets[i + 1]].
      first_lengths: [n] int64, tokens of segment 0 ([CLS] A [SEP]); the rest is segment 1.
      num_cut: how many were cut to fit.
    """

    ids: np.ndarray
    offsets: np.ndarray
    first_lengths: np.ndarray
    num_cut: int = 0

    def __len__(self) -> int:
        return len(self.first_lengths)

    @property
    def lengths(self) -> np.ndarray:
        """[n] int64: tokens of each sequence."""
        return np.diff(self.offsets)


def joined(ids: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of many texts as `make_sequences` takes them, and as `Encode` gives them."""
    counts = np.fromiter(map(len, ids), np.int64, len(ids))
    return np.fromiter(itertools.chain.from_iterable(ids), np.int32, int(counts.sum())), counts


def ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """[sum(counts)] int64: starts[i], starts[i] + 1, ... (counts[i] of them) for every i."""
    shifts = starts - (np.cumsum(counts) - counts)
    return np.arange(counts.sum()) + np.repeat(shifts, counts)


def truncated_lengths(
    a_n: np.ndarray, b_n: np.ndarray, budget: int
) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of tokens of A and B that stay: the longer one gives, B where they are equal.

    What `_truncate_seq_pair` of google-research/bert arrives at one token at a time.

    Args:
      a_n, b_n: [n] lengths.
      budget: tokens that a pair may have.
    """
    over = a_n + b_n > budget
    more, less = -(-budget // 2), budget // 2
    short_a = a_n <= more
    short_b = ~short_a & (b_n <= less)
    a_kept = np.select([~over, short_a, short_b], [a_n, a_n, budget - b_n], more)
    b_kept = np.select([~over, short_a, short_b], [b_n, budget - a_n, b_n], less)
    return a_kept, b_kept


def make_sequences(
    a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray] | None, *,
    max_length: int, cls_id: int, sep_id: int,
) -> Sequences:
    """Sequences of single texts or of pairs, cut at their ends to `max_length`.

    Args:
      a: (ids [T], tokens of each text [n]) of the first texts.
      b: the same of the second texts; None: single texts.
      max_length: tokens of a sequence, [CLS] and [SEP] included.
      cls_id, sep_id: of the vocabulary.
    """
    num_special = 2 if b is None else 3
    texts = a, b or (a[0][:0], np.zeros_like(a[1]))
    counts = [n.astype(np.int64) for _, n in texts]
    kept = truncated_lengths(counts[0], counts[1], max_length - num_special)
    first = kept[0] + 2
    offsets = np.concatenate([[0], np.cumsum(kept[0] + kept[1] + num_special)])
    ids = np.full(offsets[-1], sep_id, np.int32)
    ids[offsets[:-1]] = cls_id
    for (tokens, _), n, n_kept, begin in zip(texts, counts, kept, (1, first), strict=True):
        ids[ranges(offsets[:-1] + begin, n_kept)] = tokens[ranges(np.cumsum(n) - n, n_kept)]
    return Sequences(ids, offsets, first, int((kept[0] + kept[1] < counts[0] + counts[1]).sum()))
