"""Texts -> token sequences [CLS] A [SEP] or [CLS] A [SEP] B [SEP], cut or in windows, in numpy.

    n: texts or sequences, T: tokens of all of them, W: windows, L: labels
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

Tokens = tuple[np.ndarray, np.ndarray]  # ids of all texts [T] int32, tokens of each [n] int64
Encode = Callable[[Sequence[str]], Tokens]  # without [CLS] and [SEP]

# What happens to a text that is too long for the model: 'first' cuts it, as in the paper; the
# others read it in windows and take the mean (weighted by tokens) or the maximum of their
# probabilities.
WINDOWS = ('first', 'mean', 'max')


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


def joined(ids: Sequence[Sequence[int]]) -> Tokens:
    """Joins the ids of many texts into the form that `Encode` gives and `make_sequences` takes."""
    counts = np.fromiter(map(len, ids), np.int64, len(ids))
    return np.fromiter(itertools.chain.from_iterable(ids), np.int32, int(counts.sum())), counts


def ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """[sum(counts)] int64: starts[i], starts[i] + 1, ... (counts[i] of them) for every i."""
    shifts = starts - (np.cumsum(counts) - counts)
    return np.arange(counts.sum()) + np.repeat(shifts, counts)


def truncated_lengths(
    a_n: np.ndarray, b_n: np.ndarray, budget: int
) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of tokens [n] of A and B to keep: the longer one is cut, B if they are equal.

    The result is that of google-research/bert's `_truncate_seq_pair`, which drops one token at a
    time.

    Args:
      a_n, b_n: [n] lengths.
      budget: the most tokens that A and B may have together.
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
      b: the same for the second texts; None: single texts.
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


class Tiles(NamedTuple):
    """Windows over spans; each place is scored in one of them.

    Attributes:
      span: [W] index of each window's span.
      starts: [W] its first place.
      ends: [W] the place after its last.
      cores: [W] where scoring in it begins; it ends where scoring in the next window begins.
    """

    span: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    cores: np.ndarray


def tile(spans: np.ndarray, size: int | np.ndarray) -> Tiles:
    """Covers each span with one window if it fits, else with evenly spaced ones.

    Neighbouring windows of a span overlap by half of `size` (rounded down) or more.

    Args:
      spans: [n + 1] bounds of the n spans, which follow each other.
      size: places that a window holds: one number, or [n] for each span.
    """
    begins, lengths = spans[:-1], np.diff(spans)
    size = np.broadcast_to(size, lengths.shape)
    over = np.maximum(lengths - size, 0)
    num = 1 + -(-over // ((size + 1) // 2))
    span = np.repeat(np.arange(len(lengths)), num)
    i = ranges(np.zeros_like(num), num)
    starts = begins[span] + i * over[span] // np.maximum(num[span] - 1, 1)
    ends = np.minimum(starts + size[span], spans[1:][span])
    # Scoring begins in the middle of the overlap with the window before.
    middles = (np.roll(ends, 1) + starts) // 2
    return Tiles(span, starts, ends, np.where(i == 0, starts, middles))


@dataclasses.dataclass(frozen=True)
class TextWindows:
    """Token sequences of n texts, one or more per text, in the order of the texts.

    Attributes:
      sequences: the W windows.
      text: [W] int64, the text of each window, not decreasing; every text has a window.
      how: one of WINDOWS.
    """

    sequences: Sequences
    text: np.ndarray
    how: str

    def combined(self, values: np.ndarray) -> np.ndarray:
        """Values per text [n, ...] from values per window [W, ...], combined as `how` says."""
        if len(self.text) == self.text[-1] + 1:
            return values
        starts = np.flatnonzero(np.diff(self.text, prepend=-1))
        if self.how == 'max':
            return np.maximum.reduceat(values, starts)
        weights = self.sequences.lengths.reshape(-1, *[1] * (values.ndim - 1))
        return np.add.reduceat(values * weights, starts) / np.add.reduceat(weights, starts)

    def combined_logits(self, head: Any, logits: np.ndarray) -> np.ndarray:
        """Logits [n, L] of the combined probabilities; for a regression, the combined values.

        Args:
          head: a class of `heads.classification`.
          logits: [W, L], of the windows.
        """
        if len(self.text) == self.text[-1] + 1:
            return self.combined(logits)
        return head.of_windows(logits, self.combined, self.how == 'max')


def text_windows(
    a: Tokens, b: Tokens | None, how: str, *, max_length: int, cls_id: int, sep_id: int
) -> TextWindows:
    """Windows of single texts or of pairs.

    They are spaced as `tile` says. In a pair, the longer text is cut into windows; the shorter one
    is repeated in each and fills at most half of it.

    Args:
      a, b, max_length, cls_id, sep_id: as for `make_sequences`.
      how: one of WINDOWS.
    """
    limits = {'max_length': max_length, 'cls_id': cls_id, 'sep_id': sep_id}
    if how == 'first':
        return TextWindows(make_sequences(a, b, **limits), np.arange(len(a[1])), how)
    second = (a[0][:0], np.zeros(len(a[1]), np.int64)) if b is None else b
    ids = np.concatenate([a[0], second[0]])
    a_n, b_n = a[1].astype(np.int64), second[1].astype(np.int64)
    a_starts, b_starts = np.cumsum(a_n) - a_n, len(a[0]) + np.cumsum(b_n) - b_n
    a_is_long = a_n > b_n
    budget = max_length - (2 if b is None else 3)
    kept = np.minimum(np.minimum(a_n, b_n), budget // 2)
    spans = np.append(0, np.cumsum(np.maximum(a_n, b_n)))
    tiles = tile(spans, budget - kept)
    text = tiles.span
    shifts = (np.where(a_is_long, a_starts, b_starts) - spans[:-1])[text]
    long = tiles.starts + shifts, tiles.ends + shifts
    short_starts = np.where(a_is_long, b_starts, a_starts)[text]
    short = short_starts, short_starts + kept[text]

    def parts(from_long: np.ndarray) -> Tokens:
        starts, ends = (np.where(from_long[text], x, y) for x, y in zip(long, short))
        return ids[ranges(starts, ends - starts)], ends - starts

    sequences = make_sequences(parts(a_is_long), None if b is None else parts(~a_is_long), **limits)
    num_cut = int((np.minimum(a_n, b_n) > kept).sum())  # shorter texts that were cut
    return TextWindows(dataclasses.replace(sequences, num_cut=num_cut), text, how)
