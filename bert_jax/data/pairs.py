"""Texts -> token sequences [CLS] A [SEP] or [CLS] A [SEP] B [SEP], cut or in windows, in numpy.

    n: texts or sequences, T: tokens of all of them, W: windows, L: labels
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.text.tokenizer import Tokens
from bert_jax.text.tokenizer import joined as joined
from bert_jax.text.vocab import Frame

Encode = Callable[[Sequence[str]], Tokens]  # without [CLS] and [SEP]


@dataclasses.dataclass(frozen=True)
class Sequences:
    """n token sequences, one after the other.

    Attributes:
      ids: [T] int32, with [CLS] and [SEP].
      offsets: [n + 1] int64; sequence i is ids[offsets[i] : offsets[i + 1]].
      first_lengths: [n] int64, tokens of segment 0 ([CLS] A and the [SEP] before B); the rest is
        segment 1.
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
    b_half = budget // 2
    a_half = budget - b_half
    fits = a_n + b_n <= budget
    a_is_short = a_n <= a_half
    b_is_short = ~a_is_short & (b_n <= b_half)
    cases = [fits, a_is_short, b_is_short]
    a_kept = np.select(cases, [a_n, a_n, budget - b_n], a_half)
    b_kept = np.select(cases, [b_n, budget - a_n, b_n], b_half)
    return a_kept, b_kept


def make_sequences(
    a: Tokens, b: Tokens | None, *, max_length: int, frame: Frame
) -> Sequences:
    """Sequences of single texts or of pairs, cut at their ends to `max_length`.

    Args:
      a: (ids [T], tokens of each text [n]) of the first texts.
      b: the same for the second texts; None: single texts.
      max_length: tokens of a sequence, [CLS] and [SEP] included.
      frame: of the vocabulary (`Vocab.frame`).
    """
    second = _empty_texts(a) if b is None else b
    num_special = frame.num_special(pair=b is not None)
    a_counts = a[1].astype(np.int64)
    b_counts = second[1].astype(np.int64)
    a_kept, b_kept = truncated_lengths(a_counts, b_counts, max_length - num_special)
    offsets = np.concatenate([[0], np.cumsum(a_kept + b_kept + num_special)])
    begins = offsets[:-1]
    num_before_b = 2 if b is None else 1 + frame.num_separators
    first_lengths = a_kept + num_before_b
    ids = np.full(offsets[-1], frame.sep_id, np.int32)
    ids[begins] = frame.cls_id
    ids[ranges(begins + 1, a_kept)] = a[0][ranges(_starts(a_counts), a_kept)]
    ids[ranges(begins + first_lengths, b_kept)] = second[0][ranges(_starts(b_counts), b_kept)]
    is_cut = a_kept + b_kept < a_counts + b_counts
    return Sequences(ids, offsets, first_lengths, num_cut=int(is_cut.sum()))


def _empty_texts(a: Tokens) -> Tokens:
    """As many texts as in `a`, without tokens."""
    return a[0][:0], np.zeros_like(a[1])


def _starts(counts: np.ndarray) -> np.ndarray:
    """[n]: where each text begins among the tokens of all, from the tokens of each."""
    return np.cumsum(counts) - counts


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
    lengths = np.diff(spans)
    size = np.broadcast_to(size, lengths.shape)
    excess = np.maximum(lengths - size, 0)
    num_windows = 1 + -(-excess // ((size + 1) // 2))
    span = np.repeat(np.arange(len(lengths)), num_windows)
    number = ranges(np.zeros_like(num_windows), num_windows)  # of the window in its span
    num_steps = np.maximum(num_windows[span] - 1, 1)
    starts = spans[:-1][span] + number * excess[span] // num_steps
    ends = np.minimum(starts + size[span], spans[1:][span])
    # Scoring begins in the middle of the overlap with the window before.
    middles = (np.roll(ends, 1) + starts) // 2
    return Tiles(span, starts, ends, np.where(number == 0, starts, middles))


@dataclasses.dataclass(frozen=True)
class TextWindows:
    """Token sequences of n texts, one or more per text, in the order of the texts.

    Attributes:
      sequences: the W windows.
      text: [W] int64, the text of each window, not decreasing; every text has a window.
      how: one of `config.choices.WINDOWS`.
    """

    sequences: Sequences
    text: np.ndarray
    how: str

    def combined(self, values: np.ndarray) -> np.ndarray:
        """Values per text [n, ...] from values per window [W, ...], combined as `how` says."""
        if self._one_window_each:
            return values
        starts = np.flatnonzero(np.diff(self.text, prepend=-1))
        if self.how == 'max':
            return np.maximum.reduceat(values, starts)
        further_dims = range(1, values.ndim)
        weights = np.expand_dims(self.sequences.lengths, tuple(further_dims))
        return np.add.reduceat(values * weights, starts) / np.add.reduceat(weights, starts)

    def combined_logits(self, head: Any, logits: np.ndarray) -> np.ndarray:
        """Logits of texts, from those of windows: of the combined probabilities.

        Args:
          head: a class of `heads.classification`; for a regression, the values are combined.
          logits: [W, L] of the windows.

        Returns:
          [n, L] of the texts.
        """
        if self._one_window_each:
            return self.combined(logits)
        return head.of_windows(logits, self.combined, self.how == 'max')

    @property
    def _one_window_each(self) -> bool:
        return len(self.text) == self.text[-1] + 1


def text_windows(
    a: Tokens, b: Tokens | None, how: str, *, max_length: int, frame: Frame
) -> TextWindows:
    """Windows of single texts or of pairs.

    They are spaced as `tile` says. In a pair, the longer text is cut into windows; the shorter one
    is repeated in each and fills at most half of it.

    Args:
      a, b, max_length, frame: as for `make_sequences`.
      how: one of `config.choices.WINDOWS`.
    """
    if how == 'first':
        sequences = make_sequences(a, b, max_length=max_length, frame=frame)
        return TextWindows(sequences, np.arange(len(a[1])), how)
    second = _empty_texts(a) if b is None else b
    ids = np.concatenate([a[0], second[0]])
    windows = _pair_windows(
        _spans_of(a[1], first=0), _spans_of(second[1], first=len(a[0])),
        room=max_length - frame.num_special(pair=b is not None))
    of_b = None
    if b is not None:
        of_b = windows.b.tokens(ids)
    sequences = make_sequences(
        windows.a.tokens(ids), of_b, max_length=max_length, frame=frame)
    sequences = dataclasses.replace(sequences, num_cut=windows.num_cut)
    return TextWindows(sequences, windows.text, how)


class _Spans(NamedTuple):
    """Spans of a flat array of tokens, each with the place after its last token as its end."""

    starts: np.ndarray
    ends: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        return self.ends - self.starts

    def tokens(self, ids: np.ndarray) -> Tokens:
        """The tokens of the spans, as texts."""
        return ids[ranges(self.starts, self.lengths)], self.lengths


def _spans_of(counts: np.ndarray, first: int) -> _Spans:
    """The spans of texts with these numbers of tokens, one after the other from `first` on."""
    counts = counts.astype(np.int64)
    starts = first + _starts(counts)
    return _Spans(starts, starts + counts)


def _choose(from_first: np.ndarray, first: _Spans, second: _Spans) -> _Spans:
    """The spans of `first` where `from_first`, else those of `second`."""
    return _Spans(
        np.where(from_first, first.starts, second.starts),
        np.where(from_first, first.ends, second.ends))


class _PairWindows(NamedTuple):
    """Windows of pairs of texts.

    Attributes:
      text: [W] the pair of each window.
      a, b: the spans of the windows' tokens in the first and the second texts.
      num_cut: pairs whose shorter text was cut.
    """

    text: np.ndarray
    a: _Spans
    b: _Spans
    num_cut: int


def _pair_windows(a: _Spans, b: _Spans, room: int) -> _PairWindows:
    """Cuts the longer text of each pair into windows; each gets the start of the shorter one.

    Args:
      a, b: spans of the n first and second texts.
      room: the most tokens in a window.
    """
    a_is_longer = a.lengths > b.lengths
    longer = _choose(a_is_longer, a, b)
    shorter = _choose(a_is_longer, b, a)
    shorter_kept = np.minimum(shorter.lengths, room // 2)
    bounds = np.append(0, np.cumsum(longer.lengths))  # the longer texts, one after the other
    tiles = tile(bounds, room - shorter_kept)
    text = tiles.span
    shift = (longer.starts - bounds[:-1])[text]
    long_windows = _Spans(tiles.starts + shift, tiles.ends + shift)
    short_starts = shorter.starts[text]
    short_windows = _Spans(short_starts, short_starts + shorter_kept[text])
    return _PairWindows(
        text=text,
        a=_choose(a_is_longer[text], long_windows, short_windows),
        b=_choose(a_is_longer[text], short_windows, long_windows),
        num_cut=int((shorter.lengths > shorter_kept).sum()))
