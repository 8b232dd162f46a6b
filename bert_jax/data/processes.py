"""A pool of fresh processes, for what reads text: token stores, MediaWiki dumps, documentation."""

from __future__ import annotations

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


@contextlib.contextmanager
def process_pool(num_processes: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that end with the block, and with this process however it ends.

    They load what their tasks need and nothing else. What a task is doing when the block is left is
    given up. A process that dies raises `BrokenProcessPool` in whoever waits for a result.
    """
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(
        num_processes, multiprocessing.get_context('spawn'), initializer=_begin)
    # A process would load the command that runs here.
    command = sys.modules['__main__']
    sys.modules['__main__'] = types.ModuleType('__main__')
    try:
        while len(started := set(multiprocessing.active_children()) - before) < num_processes:
            pool.submit(os.getpid)  # starts a process where none is idle
    finally:
        sys.modules['__main__'] = command
    try:
        yield pool
    finally:
        for process in started:
            process.kill()
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches this process through its parent
    parent: Any = multiprocessing.parent_process()

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
