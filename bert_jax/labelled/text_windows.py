"""Texts that are longer than a model takes: cut, or read in windows whose outputs are combined.

    n: texts, W: windows, T: tokens of all windows
"""

from __future__ import annotations

import dataclasses

import numpy as np

from bert_jax.data.pairs import Sequences, make_sequences
from bert_jax.labelled.squad_windows import ranges
from bert_jax.labelled.word_windows import tile

# How: the first window alone (the text is cut, as in the paper), the mean over the windows,
# weighted by their tokens, or the largest of each number.
WINDOWS = ('first', 'mean', 'max')

Tokens = tuple[np.ndarray, np.ndarray]  # ids of all texts, tokens of each


@dataclasses.dataclass(frozen=True)
class TextWindows:
    """Token sequences of texts, one or more each, in their order.

    Attributes:
      sequences: the W windows.
      text: [W] int64, the text of each, not decreasing; every text has one.
      how: one of WINDOWS.
    """

    sequences: Sequences
    text: np.ndarray
    how: str

    def combined(self, values: np.ndarray) -> np.ndarray:
        """[n, ...] a text from [W, ...] a window."""
        if len(self.text) == self.text[-1] + 1:
            return values
        starts = np.flatnonzero(np.diff(self.text, prepend=-1))
        if self.how == 'max':
            return np.maximum.reduceat(values, starts)
        weights = self.sequences.lengths.reshape(-1, *[1] * (values.ndim - 1))
        return np.add.reduceat(values * weights, starts) / np.add.reduceat(weights, starts)

    def combined_logits(self, head: str, logits: np.ndarray) -> np.ndarray:
        """The logits [n, L] of the combined probabilities; of a regression the combined values.

        Args:
          head: 'classification', 'multi_label' or 'regression'.
          logits: [W, L].
        """
        if head == 'regression' or len(self.text) == self.text[-1] + 1:
            return self.combined(logits)
        logits = logits.astype(np.float64)
        if head == 'multi_label':
            if self.how == 'max':  # the largest probability is that of the largest logit
                return self.combined(logits)
            no_WxL = np.logaddexp(0, logits)  # -log of the probability of its absence
            yes, no = (self.combined(np.exp(x)) for x in (logits - no_WxL, -no_WxL))
        else:
            yes = np.exp(logits - logits.max(axis=-1, keepdims=True))
            yes, no = self.combined(yes / yes.sum(axis=-1, keepdims=True)), np.ones(1)
        with np.errstate(divide='ignore'):  # a probability of 0
            return np.log(yes) - np.log(no)


def text_windows(
    a: Tokens, b: Tokens | None, how: str, *, max_length: int, cls_id: int, sep_id: int
) -> TextWindows:
    """Windows of single texts or of pairs.

    They are as many as needed, evenly spaced, and overlap by half (`word_windows.tile`). Of a pair
    the longer text is cut into windows, and the shorter one stands in each, half of it at most.

    Args:
      a, b, max_length, cls_id, sep_id: as of `make_sequences`.
      how: one of WINDOWS.
    """
    limits = {'max_length': max_length, 'cls_id': cls_id, 'sep_id': sep_id}
    if how == 'first':
        return TextWindows(make_sequences(a, b, **limits), np.arange(len(a[1])), how)
    if b is None:
        spans = np.append(0, np.cumsum(a[1]))
        tiles = tile(spans, max_length - 2)
        sequences = make_sequences(_part(a[0], tiles.starts, tiles.ends), None, **limits)
        return TextWindows(sequences, tiles.span, how)
    ids = np.concatenate([a[0], b[0]])
    a_n, b_n = a[1].astype(np.int64), b[1].astype(np.int64)
    a_starts, b_starts = np.cumsum(a_n) - a_n, len(a[0]) + np.cumsum(b_n) - b_n
    a_is_long = a_n > b_n
    long_n, short_n = np.maximum(a_n, b_n), np.minimum(a_n, b_n)
    kept = np.minimum(short_n, (max_length - 3) // 2)
    spans = np.append(0, np.cumsum(long_n))
    tiles = tile(spans, max_length - 3 - kept)
    text = tiles.span
    shifts = (np.where(a_is_long, a_starts, b_starts) - spans[:-1])[text]
    long = tiles.starts + shifts, tiles.ends + shifts
    short_starts = np.where(a_is_long, b_starts, a_starts)[text]
    short = short_starts, short_starts + kept[text]

    def parts(from_long: np.ndarray) -> Tokens:
        return _part(ids, *(np.where(from_long[text], x, y) for x, y in zip(long, short)))

    sequences = make_sequences(parts(a_is_long), parts(~a_is_long), **limits)
    return TextWindows(sequences, text, how)


def _part(ids: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> Tokens:
    return ids[ranges(starts, ends - starts)], ends - starts
