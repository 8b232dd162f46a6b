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
    a: tuple[np.ndarray, np.ndarray],
    b: tuple[np.ndarray, np.ndarray] | None,
    *,
    max_length: int,
    cls_id: int,
    sep_id: int,
) -> Sequences:
    """Sequences of single texts or of pairs, cut at their ends to `max_length`.

    Args:
      a: (ids [T], tokens of each text [n]) of the first texts.
      b: the same of the second texts; None: single texts.
      max_length: tokens of a sequence, [CLS] and [SEP] included.
      cls_id, sep_id: of the vocabulary.
    """
    a_ids, a_n = a
    a_n = a_n.astype(np.int64)
    if b is None:
        a_kept = np.minimum(a_n, max_length - 2)
        lengths = first = a_kept + 2
        cut = a_kept < a_n
    else:
        b_ids, b_n = b
        b_n = b_n.astype(np.int64)
        a_kept, b_kept = truncated_lengths(a_n, b_n, max_length - 3)
        first = a_kept + 2
        lengths = first + b_kept + 1
        cut = (a_kept < a_n) | (b_kept < b_n)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.full(offsets[-1], sep_id, np.int32)
    starts = offsets[:-1]
    ids[starts] = cls_id
    _copy(ids, starts + 1, a_ids, a_n, a_kept)
    if b is not None:
        _copy(ids, starts + first, b_ids, b_n, b_kept)
    return Sequences(ids, offsets, first, int(cut.sum()))


def _copy(
    target: np.ndarray, starts: np.ndarray, source: np.ndarray, counts: np.ndarray,
    kept: np.ndarray,
) -> None:
    """Copies the first `kept[i]` tokens of text i to `target[starts[i]:]`, for all i."""
    within = np.arange(kept.sum()) - np.repeat(np.cumsum(kept) - kept, kept)
    source_starts = np.cumsum(counts) - counts
    target[np.repeat(starts, kept) + within] = source[np.repeat(source_starts, kept) + within]
