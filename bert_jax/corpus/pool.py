"""Worker processes that never outlive the work."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import types
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

_given: Any = None  # in a worker


@contextlib.contextmanager
def process_pool(num_processes: int, for_workers: Any = None) -> Iterator[ProcessPoolExecutor]:
    """Worker processes that end with the block, and with this process however it ends.

    They load only what their tasks need. Tasks that still run when the block ends are abandoned. If
    a worker dies, waiting for a result raises `BrokenProcessPool`.

    Args:
      num_processes: of the pool.
      for_workers: what `given` returns in them. It may have arrays of `multiprocessing`.
    """
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(
        num_processes, multiprocessing.get_context('spawn'), initializer=_begin,
        initargs=(for_workers,))
    with _without_main():
        started = set(multiprocessing.active_children()) - before
        while len(started) < num_processes:
            pool.submit(os.getpid)  # starts a process where none is idle
            started = set(multiprocessing.active_children()) - before
    try:
        yield pool
    finally:
        for process in started:
            process.kill()
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Hides `__main__`, the running command, which a worker that starts would import."""
    command = sys.modules['__main__']
    sys.modules['__main__'] = types.ModuleType('__main__')
    try:
        yield
    finally:
        sys.modules['__main__'] = command


def given() -> Any:
    """The object that the pool of this process hands to its workers."""
    return _given


def _begin(for_workers: Any) -> None:
    """Sets up a worker: it ignores Ctrl-C and ends with its parent."""
    global _given
    _given = for_workers
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches this process through its parent
    parent: Any = multiprocessing.parent_process()

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
