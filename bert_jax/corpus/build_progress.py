"""How far the shares of a store are, and how long they will still take.

Sizes of units are estimates where files are compressed. So what is left is computed from the units
that have been read: how much text they held, compared with their estimates.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

from bert_jax.corpus.source import Unit
from bert_jax.runtime.errors import counted, tell
from bert_jax.runtime.joining import elapsed
from bert_jax.runtime.pace import Pace

_REPORT_SECONDS = 10.0
_LEAST_SECONDS_OF_A_RATE = 3.0


class Read(NamedTuple):
    """How much has been read, in bytes.

    Attributes:
      text: all of it.
      text_of_units: of units that were read to their end.
      estimate_of_units: of these units, what was estimated before.
      skipped: the estimates of units that an earlier start has read.
      shares_taken: from earlier stores, which have them; a number.
    """

    text: int = 0
    text_of_units: int = 0
    estimate_of_units: int = 0
    skipped: int = 0
    shares_taken: int = 0

    def plus(self, more: 'Read') -> Self:
        """Both together."""
        return type(self)(*(a + b for a, b in zip(self, more, strict=True)))


class UnitsRead:
    """Notes what is read of some units, which are read one after the other."""

    def __init__(self, units: Sequence[Unit], first: int, start: int, note: Callable[[Read], None]):
        """Begins.

        Args:
          units: of a source.
          first: the first of them that is to be read.
          start: the one with which reading begins: those before it have been read earlier.
          note: gets what was read.
        """
        self._units = units
        self._unit = start
        self._text = 0  # of this unit
        self._note = note
        self._note(Read(skipped=self._estimate(first, start)))

    def _estimate(self, first: int, last: int) -> int:
        return sum(unit.num_bytes for unit in self._units[first:last])

    def add(self, unit: int, num_bytes: int) -> None:
        """Notes so much more text, of which the last is in a unit."""
        self._text += num_bytes
        self._add(unit, num_bytes)

    def end(self, last: int) -> None:
        """Notes that all units before `last` are read."""
        self._add(last, 0)

    def _add(self, unit: int, num_bytes: int) -> None:
        if unit == self._unit:
            self._note(Read(text=num_bytes))
            return
        # A batch may have text of several units: it is counted to those that are whole.
        self._note(Read(num_bytes, self._text, self._estimate(self._unit, unit)))
        self._unit = unit
        self._text = 0


class Progress:
    """Reports from time to time how far some shares are."""

    def __init__(self, num_shares: int, num_bytes: int, reports: bool):
        """Begins.

        Args:
          num_shares: that are to be made.
          num_bytes: of text in them, estimated.
          reports: whether it says anything.
        """
        self._num_shares = num_shares
        self._num_bytes = num_bytes
        self._reports = reports
        self._num_done = 0
        self._read = Read()
        self._pace = Pace(_REPORT_SECONDS)
        self._first_text = 0

    def add_done(self) -> None:
        """Notes that one more share is done."""
        self._num_done += 1

    def tell_taken(self) -> None:
        """Says how many shares other stores had, if there are any."""
        if self._reports and self._read.shares_taken:
            tell(f'token store: {self._read.shares_taken:,} of '
                 f"{counted(self._num_shares, 'share')} taken from earlier stores in the same "
                 'place, which have the same files')

    def add(self, more: Read) -> None:
        """Notes that more was read."""
        self.set(self._read.plus(more))

    def set(self, read: Read) -> None:
        """Notes what has been read until now."""
        self._read = read
        if read.text and not self._first_text:
            # The first text comes after seconds of loading and compiling.
            self._pace.measure_from_now()
            self._first_text = read.text
        if self._reports and self._pace.is_due():
            tell(self._line())

    def _line(self) -> str:
        parts = [f"token store: {self._num_done:,} of {counted(self._num_shares, 'share')} done"]
        left = self._left()
        if left is not None:
            parts.append(f'{self._read.text / max(self._read.text + left, 1.0):.0%}')
        if self._first_text and self._pace.seconds > _LEAST_SECONDS_OF_A_RATE:
            done = max(self._read.text - self._first_text, 1)
            parts.append(f'{done / self._pace.seconds / 1e6:.1f} MB/s')
            if left is not None:
                parts.append(f'{elapsed(self._pace.seconds_left(done, left))} left')
        return ', '.join(parts)

    def _left(self) -> float | None:
        """Bytes of text that are to be read; None if nothing is known of them."""
        read = self._read
        ratio = 1.0
        if read.estimate_of_units and read.text_of_units:
            ratio = read.text_of_units / read.estimate_of_units
        of_units = ratio * (self._num_bytes - read.skipped - read.estimate_of_units)
        left = of_units - (read.text - read.text_of_units)
        return left if left > 0 else None
