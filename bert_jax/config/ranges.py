"""What a number may be: of fields of the config, and of what config files of models say."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers from `least` to `most`; NaN and infinity are in none.

    Attributes:
      least: the smallest.
      most: the greatest.
      whole: whether they are whole.
      open: of '(', ')' and '()' the ends that do not belong to it.
    """

    least: float
    most: float
    whole: bool = False
    open: str = ''

    def fault(self, value: Any) -> str:
        """What a value must be and is not; '' of a good one."""
        if isinstance(value, bool) or not isinstance(value, int if self.whole else (int, float)):
            return str(self) if self.whole else f'a number {self}'
        low = self.least < value if '(' in self.open else self.least <= value
        high = value < self.most if ')' in self.open else value <= self.most
        return '' if low and high else str(self)

    def __str__(self) -> str:
        kind, most = 'a whole number ' if self.whole else '', _shown(self.most)
        below = ')' in self.open
        if self.least == (1 if self.whole else 0) and (self.whole or '(' in self.open):
            return f"{kind}above 0, {'below' if below else 'at most'} {most}"
        return f"{kind}from {_shown(self.least)} to {'below ' if below else ''}{most}"


def _shown(number: float) -> str:
    return f'{number:,}' if isinstance(number, int) else f'{number:g}'


def count(most: float, least: float = 1) -> Range:
    """Whole numbers."""
    return Range(least, most, whole=True)
