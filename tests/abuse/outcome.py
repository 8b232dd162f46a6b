"""What comes of a case of random abuse."""

from typing import NamedTuple


class Outcome(NamedTuple):
    """What came of a case; `result` begins with HARM if a command did what none may do."""

    number: int
    group: str
    result: str
    printed: str
    seconds: float = 0.0
