"""Acts on signals also while the main thread runs no Python.

Python runs handlers in the main thread, between bytecode instructions. There are none for minutes
while XLA compiles or waits for another host, and a garbage collector's callback may swallow the
exception that a handler raises.
"""

import functools
import os
import signal
import threading
from collections.abc import Callable, Collection


def call_in_thread(numbers: Collection[int], act: Callable[[], object]) -> Callable[[], None]:
    """Calls `act` in a thread of its own when the first of these signals arrives.

    Call it in the main thread. The signals need handlers too, without which they do what they do by
    default. A process has one such thread: a later call takes over from an earlier one.

    Returns:
      A function that ends this, and the thread where no signal has come.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    _separate_signals_of_forks()
    earlier = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_act_on_signal, args=(reading, numbers, act), daemon=True).start()

    def end() -> None:
        current = signal.set_wakeup_fd(earlier)
        if current != writing:  # a later call has taken over
            signal.set_wakeup_fd(current)
        os.close(writing)

    return end


def _act_on_signal(reading: int, numbers: Collection[int], act: Callable[[], object]) -> None:
    """Reads the pipe that receives the number of each signal, until its other end is closed."""
    has_acted = False
    with open(reading, 'rb', buffering=0) as arrived:
        number = arrived.read(1)
        while number:
            if number[0] in numbers and not has_acted:
                has_acted = True
                act()
            number = arrived.read(1)


@functools.cache
def _separate_signals_of_forks() -> None:
    """Forks of this process do not write their signals into its pipe."""
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
