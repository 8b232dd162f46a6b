"""Texts -> token sequences, framed as `Frame` says, cut or in windows, in numpy.

    n: texts or sequences, T: tokens of all of them, W: windows, L: labels
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.config.choices import GOOGLE, LONGEST_FIRST
from bert_jax.runtime.errors import InputError
from bert_jax.text.frames import Frame, Special
from bert_jax.text.tokenizer import Tokens
from bert_jax.text.tokenizer import joined as joined

Encode = Callable[[Sequence[str]], Tokens]  # without [CLS] and [SEP]


@dataclasses.dataclass(frozen=True)
class Sequences:
    """n token sequences, one after the other.

    Attributes:
      ids: [T] int32, with the special tokens.
      offsets: [n + 1] int64; sequence i is ids[offsets[i] : offsets[i + 1]].
      first_lengths: [n] int64, tokens before the second text ([CLS] A and the [SEP] before B); of a
        single text all.
      types: [T] int8, the token types.
      num_cut: how many were cut to fit.
    """

    ids: np.ndarray
    offsets: np.ndarray
    first_lengths: np.ndarray
    types: np.ndarray
    num_cut: int = 0

    @classmethod
    def of_segments(
        cls, ids: np.ndarray, offsets: np.ndarray, first_lengths: np.ndarray
    ) -> 'Sequences':
        """Sequences whose tokens have type 1 from the second text on, as in BERT."""
        place_T = ranges(np.zeros_like(first_lengths), np.diff(offsets))
        types = place_T >= np.repeat(first_lengths, np.diff(offsets))
        return cls(ids, offsets, first_lengths, types.astype(np.int8))

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


def _longest_first_lengths(
    a_n: np.ndarray, b_n: np.ndarray, budget: int
) -> tuple[np.ndarray, np.ndarray]:
    """`truncated_lengths` of transformers' `longest_first`.

    If both are cut, the one that was longer keeps the odd token; of equal ones it is the second.
    """
    half = budget // 2
    a_half = np.where(a_n > b_n, budget - half, half)
    fits = a_n + b_n <= budget
    a_is_short = a_n <= a_half
    b_is_short = ~a_is_short & (b_n <= budget - a_half)
    cases = [fits, a_is_short, b_is_short]
    a_kept = np.select(cases, [a_n, a_n, budget - b_n], a_half)
    b_kept = np.select(cases, [b_n, budget - a_n, b_n], budget - a_half)
    return a_kept, b_kept


def _only_one_cut(
    a_n: np.ndarray, b_n: np.ndarray, budget: int, truncation: str
) -> tuple[np.ndarray, np.ndarray]:
    """`truncated_lengths` of transformers' `only_first` and `only_second`.

    Raises:
      InputError: nothing would be left of the text that is to be cut.
    """
    excess = np.maximum(a_n + b_n - budget, 0)
    a_kept = a_n
    b_kept = b_n
    if truncation == 'only_first':
        a_kept = a_n - excess
    else:
        b_kept = b_n - excess
    cut = np.minimum(a_kept, b_kept)
    is_lost = (excess > 0) & (cut < 1)
    if is_lost.any():
        other = b_n if truncation == 'only_first' else a_n
        raise InputError(
            f'truncation={truncation!r} leaves nothing of {int(is_lost.sum())} of {len(a_n)} '
            f'texts: the other text of such a pair has up to {int(other[is_lost].max())} tokens, '
            f'and there is room for {budget}; cut them by longest_first, or take longer sequences')
    return a_kept, b_kept


def kept_lengths(
    a_n: np.ndarray, b_n: np.ndarray, budget: int, truncation: str
) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of tokens [n] of the texts of pairs to keep.

    Args:
      a_n, b_n: [n] lengths.
      budget: the most tokens that A and B may have together.
      truncation: one of `config.choices.TRUNCATIONS`.

    Raises:
      InputError: nothing would be left of the text that is to be cut.
    """
    if truncation == GOOGLE:
        return truncated_lengths(a_n, b_n, budget)
    if truncation == LONGEST_FIRST:
        return _longest_first_lengths(a_n, b_n, budget)
    return _only_one_cut(a_n, b_n, budget, truncation)


def make_sequences(
    a: Tokens, b: Tokens | None, *, max_length: int, frame: Frame
) -> Sequences:
    """Sequences of single texts or of pairs, cut to `max_length`.

    Args:
      a: (ids [T], tokens of each text [n]) of the first texts.
      b: the same for the second texts; None: single texts.
      max_length: tokens of a sequence, the special ones included.
      frame: of the vocabulary (`Vocab.frame`), or of the model.

    Raises:
      InputError: there is no room, nothing would be left of a text, or a sequence would have no
        tokens.
    """
    texts = [_Texts.of(a)]
    room = max_length - frame.num_special(pair=b is not None)
    if room < 0:
        raise InputError(f'sequences of {max_length} tokens have no room for {max_length - room} '
                         'special tokens: take longer ones')
    if b is None:
        kept = [np.minimum(texts[0].counts, room)]
    else:
        texts.append(_Texts.of(b))
        kept = list(kept_lengths(texts[0].counts, texts[1].counts, room, frame.truncation))
    return _framed(texts, kept, frame)


class _Texts(NamedTuple):
    """The tokens [T] of n texts, where each begins and how many it has."""

    ids: np.ndarray
    starts: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, tokens: Tokens) -> '_Texts':
        ids, counts = tokens
        counts = counts.astype(np.int64)
        return cls(ids, _starts(counts), counts)

    def parts(self, kept: np.ndarray, cuts_start: bool) -> np.ndarray:
        """The ids of the first or the last tokens of each text, as many as are kept [n]."""
        starts = self.starts
        if cuts_start:
            starts = starts + self.counts - kept
        return self.ids[ranges(starts, kept)]


def _framed(texts: Sequence[_Texts], kept: Sequence[np.ndarray], frame: Frame) -> Sequences:
    """The sequences of n texts, or pairs, of which so many tokens [n] are kept."""
    is_pair = len(texts) == 2
    num_kept = np.sum(kept, axis=0)
    lengths = num_kept + frame.num_special(pair=is_pair)
    if not lengths.all():
        raise InputError(f'a text has no tokens ({int((lengths == 0).sum())} of {len(lengths)}), '
                         'and the tokenizer adds none to it: leave such texts out')
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.empty(offsets[-1], np.int32)
    types = np.empty(offsets[-1], np.int8)
    first_lengths = lengths
    place = offsets[:-1].copy()  # of the next part in each sequence
    for part in frame.template(pair=is_pair):
        if isinstance(part, Special):
            ids[place] = part.id
            types[place] = part.type
            place += 1
            continue
        if part.number == 1:
            first_lengths = place - offsets[:-1]
        of_text = ranges(place, kept[part.number])
        ids[of_text] = texts[part.number].parts(kept[part.number], frame.cuts_start)
        types[of_text] = part.type
        place += kept[part.number]
    is_cut = num_kept < np.sum([text.counts for text in texts], axis=0)
    return Sequences(ids, offsets, first_lengths, types, num_cut=int(is_cut.sum()))


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
