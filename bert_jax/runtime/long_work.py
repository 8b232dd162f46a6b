"""Work of this process that may take any time, so that waiting for it is no hang.

Between two batches a host may plan an epoch or read a large part of a store, for minutes where the
text is large. The watchdog of `runtime.stopping` cannot tell that from a hang by itself.
"""

import contextlib
import threading
from collections.abc import Iterator

_lock = threading.Lock()
_num_going_on = 0


@contextlib.contextmanager
def long_work() -> Iterator[None]:
    """While the block runs, in any thread, a run that waits for data does not count as hung.

    It is also a decorator: `pool.submit(long_work()(function), argument)`.
    """
    _count(1)
    try:
        yield
    finally:
        _count(-1)


def is_at_long_work() -> bool:
    """Whether a block of `long_work` runs in this process."""
    return _num_going_on > 0


def _count(change: int) -> None:
    global _num_going_on
    with _lock:
        _num_going_on += change
