"""Stops a run on all hosts at the same place: on a signal, a failed host or a hang.

SIGTERM, SIGHUP (a terminal that is gone) or Ctrl-C on any host stops all of them after the same
step, or between the same two batches of an evaluation. A host that fails, or whose heartbeat stops,
ends the others with its message and status: otherwise their devices would wait for it for ever. If
no host finishes a step, every host writes its stacks and the run ends.

The hosts communicate through jax's coordination service: each posts its state every half second;
host 0 reads all states and posts a verdict, which all read. jax's `reached_preemption_sync_point`
also agrees on a step, but does not name the host that failed.
"""

import contextlib
import faulthandler
import math
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

import jax

from bert_jax.runtime import hosts, signals
from bert_jax.runtime.errors import Stopped, first_line, visible
from bert_jax.runtime.files import Path, remove_temporary_folders, write_whole
from bert_jax.runtime.host_failures import (
    SILENCE_SECONDS,
    Failure,
    HostState,
    Judge,
    StepTimes,
    Verdict,
)
from bert_jax.runtime.long_work import is_at_long_work

# Causes of `Goodput` under which a step must end; compilation and evaluation have no limit, nor has
# waiting for data while the host is at `long_work`.
_WATCHED = ('step', 'data', 'profile', 'save')
_TURN_SECONDS = 0.5  # between two reports
_UNANSWERED_SECONDS = 45.0  # of host 0; jax would abort after about 75, without a name
_PATIENCE_SECONDS = 10.0  # that the main thread gets to handle a signal before the first step
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_BEFORE = 'stopped before the first step; start again and it goes on where it was'
_REPORTS_KEY = 'bert_jax/live/'  # followed by the host
_VERDICT_KEY = 'bert_jax/verdict/'


class Guard:
    """Handles signals from `start` on, and monitors all hosts until `finish`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # of the verdict
        self._own = HostState()
        self._polls = 0  # by the main thread
        self._is_waiting = False  # the main thread, since its last poll
        self._verdict = Verdict()
        self._judge = Judge()  # works on host 0
        self._steps = StepTimes(time.monotonic())
        self._finished = threading.Event()
        self._cause: Callable[[], str] = lambda: 'start'
        self._fault: Callable[[], Exception | None] = lambda: None
        self._fault_seen = math.inf  # when
        self._seconds: Callable[[], dict[str, float]] = dict
        self._reports: dict[int, HostState] = {}
        self._folder: Path | None = None  # for stacks
        self._turn = _TURN_SECONDS
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._num_answers = 0  # of host 0
        self._handlers: dict[int, Any] = {}  # of each signal, before `start`
        self._end_calls: Callable[[], None] | None = None

    def start(self) -> None:
        """Starts handling and monitoring; call it in the main thread once the hosts have joined."""
        self._turn += hosts.count() / 1000
        self._end_calls = signals.call_in_thread(_SIGNALS, self._end_if_not_handled)
        for number in _SIGNALS:
            is_nohup = number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN
            if not is_nohup:
                self._handlers[number] = signal.signal(number, self._handle)
        self._thread.start()
        if not hosts.first():
            threading.Thread(target=self._watch_first, daemon=True).start()

    def watch(
        self, cause: Callable[[], str], folder: Path,
        fault: Callable[[], Exception | None] = lambda: None,
        seconds: Callable[[], dict[str, float]] = dict,
    ) -> None:
        """From now on, ends the run when no host finishes a step.

        Args:
          cause: returns the `Goodput` cause that the main thread is in.
          folder: receives `stacks-HOST.txt` of every host.
          fault: returns why the run must end, such as a save in the background that failed. The
            main thread raises it when it polls; this ends the run if it does not get there.
          seconds: returns the seconds by cause, for the other hosts. A thread calls it.
        """
        self._cause = cause
        self._folder = folder
        self._fault = fault
        self._seconds = seconds

    def reports(self) -> dict[int, HostState]:
        """The last report of each host; {} on other hosts than the first."""
        return self._reports

    def _handle(self, number: int, frame: object) -> None:
        del frame
        signal.signal(number, signal.SIG_DFL)  # a second signal ends the process at once
        self._own.was_signalled = True
        if self._own.step is None:
            # If a garbage collector's callback swallows this, the run stops after its first step.
            raise Stopped(_BEFORE)

    def _end_if_not_handled(self) -> None:
        """Ends the process if the main thread does not handle a signal before the first step.

        Nothing needs saving then.
        """
        if self._own.step is None:
            time.sleep(_PATIENCE_SECONDS)
        if self._own.step is None and not self._finished.is_set():
            _leave(143, _BEFORE)

    def should_stop(self, step: int) -> bool:
        """Whether to save and stop here; the same on all hosts.

        Call it after every step, and between the batches of work that takes long between two steps,
        such as an evaluation. All hosts have to call it equally often: they agree on the number of
        the call at which they stop.

        Args:
          step: the last step that was finished.
        """
        own = self._own
        if step != own.step:
            self._steps.finish(time.monotonic())
        with self._changed:
            own.step = step
            self._polls += 1
            if hosts.count() == 1:
                return own.was_signalled
            if self._verdict.must_stop and own.earliest_stop is None:
                own.earliest_stop = self._polls
            return self._stops_here()

    def should_leave(self, is_over: bool) -> bool:
        """Whether to save and stop while this host waits, or has just waited; for several hosts.

        They leave together if all wait since the same poll, that is between the same two batches
        or steps. Otherwise one of them already computes what needs all, and they stop at a poll.

        Args:
          is_over: what it waited for is here. Call it so after each wait, and with False in it.
        """
        with self._changed:
            self._is_waiting = not is_over
            return self._stops_here()

    def _stops_here(self) -> bool:
        """Whether the hosts stop at the last poll of this one, which waits for their decision.

        The caller has `_changed`.
        """
        own = self._own
        if own.earliest_stop is not None and self._polls >= own.earliest_stop:
            while self._verdict.stop_poll is None:
                self._changed.wait(1.0)
        return self._verdict.stop_poll is not None and self._polls >= self._verdict.stop_poll

    def fail(self, message: str, status: int, is_ours: bool = True) -> NoReturn:
        """Ends this process, and all hosts, with this one's message and status.

        Args:
          message: is printed.
          status: exit status; 143 after a stop: hosts that agreed on the step end by themselves.
          is_ours: False if another host's end may be the cause; its verdict is awaited first.
        """
        has_others = hosts.count() > 1
        if has_others and not is_ours:
            time.sleep(SILENCE_SECONDS + 5)
        with contextlib.suppress(OSError):
            sys.stderr.write(f'error: {visible(message)}\n')  # one write: other hosts may share it
        if has_others and status == 143 and self._verdict.stop_poll is not None:
            self.finish()
            with contextlib.suppress(Exception):
                jax.distributed.shutdown()  # together, before the first is gone
        elif has_others:
            self._own.failure = Failure(message, status)
            self._let_others_read()
            _leave(status)
        if status == 143:
            _leave(status)  # what is being compiled is not waited for
        sys.exit(status)

    def leave(self, message: str, status: int) -> NoReturn:
        """Ends this process, and all hosts, at once: threads that still write are not waited for.

        Args:
          message: is printed.
          status: exit status.
        """
        if hosts.count() > 1:
            self._own.failure = Failure(message, status)
            self._let_others_read()
        _leave(status, message)

    def finish(self) -> None:
        """Waits for all hosts, then stops monitoring and leaves signals to what handled them."""
        hosts.barrier('finish')
        self._finished.set()
        if self._thread.is_alive():
            self._thread.join()
        for number, handler in self._handlers.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, handler)
        if self._end_calls is not None:
            self._end_calls()
            self._end_calls = None

    def _watch(self) -> None:
        """Every half second, reports and obeys host 0's verdict."""
        while not self._finished.wait(self._turn):
            try:
                verdict = self._ask_verdict()
                self._num_answers += 1
            except Exception as error:
                if not self._finished.is_set():
                    _leave(1, f'host 0 does not answer any more ({first_line(error)})')
                return
            self._end_if_faulty()
            is_own_failure = verdict.failed_host == hosts.index() and not verdict.hangs
            if verdict.failure is not None and not is_own_failure:
                self._end(verdict, verdict.failure)
            with self._changed:
                self._verdict = verdict
                self._promise_to_stop()
                self._changed.notify_all()

    def _watch_first(self) -> None:
        """Ends this process if host 0 stands still, so that a request to it never returns.

        It counts its own turns: a process that was suspended, with all others, has had none.
        """
        turns = 0
        num_answers = self._num_answers
        while not self._finished.wait(self._turn):
            turns = 0 if self._num_answers > num_answers else turns + 1
            num_answers = self._num_answers
            if turns * self._turn > _UNANSWERED_SECONDS:
                _leave(1, f'host 0 has not answered for {_UNANSWERED_SECONDS:.0f} seconds')

    def _ask_verdict(self) -> Verdict:
        """Posts this host's report and returns the verdict, which host 0 makes and posts."""
        self._update_report()
        if hosts.count() == 1:
            return self._judge.judge({0: self._own}, time.monotonic(), self._folder)
        client = hosts.state().client
        client.key_value_set(
            f'{_REPORTS_KEY}{hosts.index()}', self._own.to_json(), allow_overwrite=True)
        if not hosts.first():
            posted = client.key_value_dir_get(_VERDICT_KEY)
            return Verdict.from_json(posted[0][1]) if posted else self._verdict
        reports = {host: HostState() for host in range(hosts.count())}
        for key, text in client.key_value_dir_get(_REPORTS_KEY):
            host = int(key.rpartition('/')[2])
            reports[host] = HostState.from_json(text)
        self._reports = reports
        verdict = self._judge.judge(reports, time.monotonic(), self._folder)
        client.key_value_set(f'{_VERDICT_KEY}0', verdict.to_json(), allow_overwrite=True)
        return verdict

    def _end_if_faulty(self) -> None:
        """Ends this process, and all hosts, if the main thread does not find a fault by itself."""
        fault = self._fault()
        now = time.monotonic()
        if fault is None:
            return
        self._fault_seen = min(self._fault_seen, now)
        if now - self._fault_seen > _PATIENCE_SECONDS and self._own.failure is None:
            self._own.failure = Failure(str(fault), status=1)
            if hosts.count() > 1:
                self._ask_verdict()
                self._let_others_read()
            _leave(1, str(fault))

    def _update_report(self) -> None:
        now = time.monotonic()
        cause = self._cause()
        waits_for_work = cause == 'data' and is_at_long_work()
        if cause not in _WATCHED or waits_for_work:
            self._steps.begin(now)
        self._own.beat += 1
        self._own.still_seconds = self._steps.still(now)
        self._own.usual_seconds = self._steps.usual
        self._own.cause = cause
        self._own.seconds = self._seconds()

    def _promise_to_stop(self) -> None:
        """Chooses this host's first poll to stop at, once the hosts have to and it is training."""
        own = self._own
        if self._verdict.must_stop and own.earliest_stop is None and own.step is not None:
            # The main thread may be past its last poll, unless it waits: then it asks before it
            # goes on.
            own.earliest_stop = self._polls + (0 if self._is_waiting else 1)

    def _end(self, verdict: Verdict, failure: Failure) -> NoReturn:
        """Ends this process because a host failed or all hang."""
        if verdict.hangs:
            self._write_stacks()
        if hosts.first():
            self._let_others_read()
        if self._own.failure is not None:
            _leave(self._own.failure.status)
        message = failure.message
        if verdict.failed_host is not None:
            message = f'host {verdict.failed_host}: {message}'
        _leave(failure.status, message)

    def _write_stacks(self) -> None:
        """Writes what each thread of this process is doing."""
        with tempfile.TemporaryFile() as file, contextlib.suppress(Exception):
            assert self._folder is not None
            faulthandler.dump_traceback(file)
            file.seek(0)
            write_whole(self._folder / f'stacks-{hosts.index()}.txt', file.read())

    def _let_others_read(self) -> None:
        """Waits until all have read what happened; host 0 serves the store that they read."""
        time.sleep(4 * self._turn)


def _leave(status: int, message: str = '') -> NoReturn:
    """Ends the process without the barriers of an orderly exit."""
    try:
        with contextlib.suppress(OSError, ValueError):  # of a terminal that is gone
            if message:
                sys.stderr.write(f'error: {visible(message)}\n')
            sys.stdout.flush()
            sys.stderr.flush()
        remove_temporary_folders()
    finally:
        os._exit(status)
