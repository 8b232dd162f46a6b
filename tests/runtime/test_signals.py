"""Signals are acted on in a thread, once, whatever the main thread does."""

import signal
import threading
import time

from bert_jax.runtime import signals
from tests.conftest import run_python


def test_the_first_of_these_signals_is_acted_on_once():
    acted = []
    arrived = threading.Event()

    def act():
        acted.append(threading.current_thread())
        arrived.set()

    earlier = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    end = signals.call_in_thread([signal.SIGUSR1], act)
    try:
        signal.raise_signal(signal.SIGUSR1)
        assert arrived.wait(10)
        signal.raise_signal(signal.SIGUSR1)
        time.sleep(0.05)
    finally:
        end()
        signal.signal(signal.SIGUSR1, earlier)
    assert len(acted) == 1 and acted[0] is not threading.main_thread()
    acted[0].join(10)  # ends with the pipe
    assert not acted[0].is_alive()


def wakeup_fd():
    current = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(current)
    return current


def test_a_later_call_takes_over_and_gives_back():
    before = wakeup_fd()
    end_first = signals.call_in_thread([signal.SIGUSR1], lambda: None)
    of_first = wakeup_fd()
    end_second = signals.call_in_thread([signal.SIGUSR1], lambda: None)
    assert wakeup_fd() not in (before, of_first)
    end_second()
    assert wakeup_fd() == of_first
    end_first()
    assert wakeup_fd() == before


def test_a_second_signal_prints_nothing_while_a_command_ends():
    ended = run_python('-c', """
import os, signal, time
from bert_jax.runtime.process import error_boundary

with error_boundary():
    try:
        signal.raise_signal(signal.SIGTERM)
    finally:
        time.sleep(0.2)
        signal.signal(signal.SIGHUP, lambda number, frame: None)
        signal.raise_signal(signal.SIGHUP)
""")
    assert (ended.returncode, ended.stderr) == (143, 'error: stopped\n')


def test_a_host_ends_though_its_terminal_is_gone():
    ended = run_python('-c', """
import os
from bert_jax.runtime import stopping

reading, writing = os.pipe()
os.close(reading)
os.dup2(writing, 2)
stopping._leave(7, 'somebody reads this no more')
""")
    assert ended.returncode == 7
