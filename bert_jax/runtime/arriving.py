"""Items that come at a pace of their own, such as the lines of a pipe.

A `PAUSE` among them says that no more are there at the moment.
"""

import dataclasses
import math
import os
import select
import stat
import time
from collections.abc import Iterable, Iterator
from typing import Any

WAIT_SECONDS = 0.1  # that an item waits for others, unless the user says otherwise
_BLOCK_BYTES = 1 << 16


class Pause:
    """Among items: none has come for a while, so those before it are to be finished."""


PAUSE = Pause()


@dataclasses.dataclass(frozen=True)
class Arriving:
    """Items with their pace.

    Attributes:
      items: the items; `PAUSE` where none has come for so long.
      wait: seconds that an item waits for others; inf: until there are enough.
    """

    items: Iterable[Any]
    wait: float = math.inf

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


def is_live(descriptor: int) -> bool:
    """Whether an open file may have more to read later: a pipe, a terminal, a socket."""
    return not stat.S_ISREG(os.fstat(descriptor).st_mode)


class LiveFile:
    """A pipe, terminal or socket that is read line by line.

    Nothing else may read it, and it is not closed here.
    """

    def __init__(self, descriptor: int):
        """`descriptor`: of the open file."""
        self._descriptor = descriptor
        self._read = bytearray()
        self._searched = 0  # bytes of it that have no line end
        self._is_at_end = False

    def has_line(self, seconds: float) -> bool:
        """Whether a whole line, or the end, is there within so many seconds."""
        until = time.monotonic() + seconds
        while not self._is_at_end and self._line_end() < 0:
            left = max(0.0, until - time.monotonic())
            ready, _, _ = select.select([self._descriptor], [], [], left)
            if not ready:
                return False
            self._read_more()
        return True

    def readline(self, most: int) -> bytes:
        """The next line, with its end, or its first `most` bytes; b'' at the end of the file."""
        while not self._is_at_end and self._line_end() < 0 and len(self._read) < most:
            self._read_more()
        end = self._line_end() + 1 or len(self._read)
        line = bytes(self._read[: min(end, most)])
        del self._read[: len(line)]
        self._searched = 0
        return line

    def _line_end(self) -> int:
        """The place of the first line end in what was read; -1: there is none."""
        found = self._read.find(b'\n', self._searched)
        if found < 0:
            self._searched = len(self._read)
        return found

    def _read_more(self) -> None:
        block = os.read(self._descriptor, _BLOCK_BYTES)
        self._is_at_end = not block
        self._read += block
