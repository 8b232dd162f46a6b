"""Which of several short sequences share a row.

    G: groups that are packed side by side, U: units a group
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_NOT = np.iinfo(np.int64).max


def pack(
    lengths_GxU: np.ndarray, row_length: int, limits: Sequence[tuple[np.ndarray, int]] = ()
) -> np.ndarray:
    """Rows [G, U] of the units of each group: best fit, longest first; all groups side by side.

    Args:
      lengths_GxU: tokens of each unit, none above `row_length`; 0 is no unit (its row is -1).
      row_length: tokens a row holds.
      limits: what else a unit takes, [G, U], and how much of it a row holds; an empty row has
        enough for any unit.
    """
    num_groups, size = lengths_GxU.shape
    order = np.argsort(-lengths_GxU, axis=1, kind='stable')
    groups = np.arange(num_groups)
    rows = np.full(lengths_GxU.shape, -1, np.int32)
    needs = [(lengths_GxU, row_length), *limits]
    # Room left in each row; rows are opened one by one, so that an unopened one fits worst.
    free = [np.full((num_groups, min(size, 8)), holds, np.int64) for _, holds in needs]
    for i in range(size):
        unit = order[:, i]
        taken = [need[groups, unit] for need, _ in needs]
        left = _left(free, taken)
        while (left == _NOT).all(axis=1).any():
            free = [
                np.pad(room, ((0, 0), (0, 8)), constant_values=holds)
                for room, (_, holds) in zip(free, needs, strict=True)
            ]
            left = _left(free, taken)
        best = np.argmin(left, axis=1)
        real = taken[0] > 0
        rows[groups[real], unit[real]] = best[real]
        for room, need in zip(free, taken, strict=True):
            room[groups[real], best[real]] -= need[real]
    return rows


def _left(free: list[np.ndarray], taken: list[np.ndarray]) -> np.ndarray:
    """Tokens [G, rows] that each row would have left, `_NOT` where the unit does not fit in."""
    left = free[0] - taken[0][:, None]
    for room, need in zip(free, taken, strict=True):
        left = np.where(room < need[:, None], _NOT, left)
    return left
