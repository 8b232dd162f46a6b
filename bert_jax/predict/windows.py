"""Parts of a text that is longer than the model takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def around(length: int, position: int, size: int) -> int:
    """Where the window of `size` tokens begins that has `position` in its middle.

    Near an end of the text it is moved, so that it is full where the text is long enough.
    """
    return max(0, min(position - size // 2, length - size))


def sliding(length: int, size: int, stride: int) -> list[tuple[int, int]]:
    """(begin, tokens) of windows that cover the text, as google-research/bert's run_squad."""
    windows = []
    begin = 0
    while begin < length:
        tokens = min(size, length - begin)
        windows.append((begin, tokens))
        if begin + tokens == length:
            break
        begin += min(tokens, stride)
    return windows


def with_most_context(windows: Sequence[tuple[int, int]], length: int) -> np.ndarray:
    """[length] int64: for each token the window in which it has most context ("max context").

    As in the original that is the smaller one of the tokens before and after it, with a little
    preference for longer windows; the first of equal ones.
    """
    scores = np.full((len(windows), length), -1.0)
    for i, (begin, tokens) in enumerate(windows):
        before = np.arange(tokens)
        scores[i, begin : begin + tokens] = np.minimum(before, before[::-1]) + 0.01 * tokens
    return scores.argmax(axis=0)
