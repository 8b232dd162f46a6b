"""The exceptions that a user is meant to read."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


class InputError(ValueError):
    """Bad input or configuration: one line that names the place, the value and the remedy.

    Commands print it on standard error without a traceback and exit with
    status 2. Anything else that escapes is a defect of this program and keeps its traceback.
    """


class Unavailable(RuntimeError):
    """A network or bucket does not answer: one line, exit status 1; launchers try again."""


class Diverged(RuntimeError):
    """A loss, a parameter or a metric is not finite any more, or a chip computes wrongly.

    Attributes:
      step: whose parameters are no good.
    """

    def __init__(self, message: str, step: int):
        super().__init__(message)
        self.step = step


class Stopped(BaseException):
    """The run was asked to stop (SIGTERM, Ctrl-C); what there was to save is saved.

    Like KeyboardInterrupt no Exception, so that nothing on its way takes it for a fault.
    """


def nearest(word: str, choices: Sequence[str]) -> str:
    """"did you mean 'x'?" for the most similar choice; where none is similar, all of them."""
    close = difflib.get_close_matches(str(word), choices, 1, 0.5)
    return f'did you mean {close[0]!r}?' if close else 'choose from ' + ', '.join(choices)
