"""Lines about a long work: when the next one is due, and how long the work will still take."""

import time


class Pace:
    """The clock of a long work."""

    def __init__(self, every: float):
        """Begins now, and counts as a line.

        Args:
          every: seconds between two lines, at least.
        """
        self._every = every
        self._begun = self._told = time.monotonic()

    def measure_from_now(self) -> None:
        """Leaves what came before out of the rate, as loading and compiling."""
        self._begun = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long the work has been measured."""
        return time.monotonic() - self._begun

    def is_due(self) -> bool:
        """Whether the last line is long enough ago; if so, counts one as printed now."""
        now = time.monotonic()
        if now - self._told < self._every:
            return False
        self._told = now
        return True

    def seconds_left(self, done: float, left: float) -> float:
        """How long the rest takes at the rate so far.

        Args:
          done: what was done since the work is measured, in any unit; above 0.
          left: what is left, in the same unit.
        """
        return self.seconds * left / done
