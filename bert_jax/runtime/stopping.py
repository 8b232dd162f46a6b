"""Stops a run on all hosts at the same step: on a signal, a failed host or a hang.

SIGTERM or Ctrl-C on any host stops all of them after the same step. A host that fails, or whose
heartbeat stops, ends the others with its message and status: their devices would wait for it for
ever. If no host finishes a step, every host writes its stacks and the run ends.

The hosts communicate through jax's coordination service: each posts its state every half second,
host 0 reads all states and posts a verdict, which all read. jax's `reached_preemption_sync_point`
also agrees on a step, but does not name the host that failed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from bert_jax.runtime import hosts
from bert_jax.runtime.errors import Stopped
from bert_jax.runtime.files import Path, write_whole

# A host without a heartbeat for this long counts as dead: in training, and before its first step.
SILENCE_SECONDS, SILENCE_AT_START_SECONDS = 30.0, 300.0
# A run hangs after this long without a step, or after this many usual steps if that is longer.
STILL_SECONDS, _STILL_STEPS = 600.0, 20
_WATCHED = ('step', 'data', 'profile')  # compilation, evaluation and saves have no time limit
_PATIENCE_SECONDS = 10.0  # for the main thread to handle a signal before the first step
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_BEFORE = 'stopped before the first step; start again and it goes on where it was'


class Guard:
    """Handles signals from `start` on, and monitors all hosts until `finish`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._asked = False  # a signal came to this host during training
        self._told = False  # one came to some host, as the verdict says
        self._step: int | None = None  # the last one polled; None before training
        self._bound: int | None = None  # first step at which this host can stop
        self._stop_at: int | None = None  # the step that the hosts agreed on
        self._fault: tuple[str, int] | None = None  # of this host
        self._beat = 0
        self._heard: dict[int, tuple[int, float]] = {}  # by host: heartbeat, time of its change
        self._verdict: dict[str, Any] = {
            'fault': None, 'hangs': False, 'asked': False, 'stop_at': None}
        self._finished = threading.Event()
        self._cause: Callable[[], str] = lambda: 'start'
        self._folder: Path | None = None  # for stacks
        self._moved = time.monotonic()  # time of the last poll
        self._seconds: deque[float] = deque([0.0], maxlen=99)  # of the last steps
        self._turn = 0.5 + hosts.count() / 1000
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts handling and monitoring; called in the main thread once the hosts have joined."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, self._handle)
        threading.Thread(target=self._end_if_not_handled, args=(reading,), daemon=True).start()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def watch(self, cause: Callable[[], str], folder: Path) -> None:
        """Ends the run from now on when no host finishes a step.

        Args:
          cause: returns the `Goodput` cause that the main thread is in.
          folder: receives `stacks-HOST.txt` of every host.
        """
        self._cause, self._folder = cause, folder

    def _handle(self, number: int, frame: object) -> None:
        del frame
        signal.signal(number, signal.SIG_DFL)  # a second one ends it at once
        self._asked = True
        if self._step is None:
            # If a garbage collector's callback swallows this, the first step stops the run.
            raise Stopped(_BEFORE)

    def _end_if_not_handled(self, reading: int) -> None:
        """Ends the process if the main thread does not handle a signal before the first step.

        Nothing needs saving then. Python runs handlers between bytecode instructions only, and
        compilation takes minutes without any.
        """
        while os.read(reading, 1)[0] not in _SIGNALS:
            pass
        if self._step is None:
            time.sleep(_PATIENCE_SECONDS)
        if self._step is None and not self._finished.is_set():
            self._end(_BEFORE, 143)

    def should_stop(self, step: int) -> bool:
        """Whether to save and stop after this step; the same on all hosts. Call it every step."""
        now = time.monotonic()
        self._seconds.append(now - self._moved)
        self._moved = now
        if hosts.count() == 1:
            self._step = step
            return self._asked
        with self._changed:
            self._step = step
            if self._told and self._bound is None:
                self._bound = step
            while self._bound is not None and step >= self._bound and self._stop_at is None:
                self._changed.wait(1.0)
            return self._stop_at is not None and step >= self._stop_at

    def fail(self, message: str, status: int) -> None:
        """Ends all hosts with this one's message and status; does nothing on a single host."""
        if hosts.count() == 1:
            return
        self._fault = message, status
        time.sleep(4 * self._turn)  # host 0 serves the store: the others must read it first
        _leave(status)

    def stopped(self, message: str) -> None:
        """Ends this host after a stop; together with the others if all were training."""
        if self._stop_at is None:
            self.fail(message, 143)
        else:
            self.finish()

    def await_verdict(self) -> None:
        """Waits for the verdict: another host's end may have caused this host's error."""
        if hosts.count() > 1:
            time.sleep(SILENCE_SECONDS + 5)

    def finish(self) -> None:
        """Waits for all hosts, then stops monitoring."""
        hosts.barrier('finish')
        self._finished.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._finished.wait(self._turn):
            try:
                report = self._report()
                if hosts.count() > 1:
                    hosts.state().client.key_value_set(
                        f'bert_jax/live/{hosts.index()}', json.dumps(report), allow_overwrite=True)
                if hosts.first():
                    self._judge(report)
                else:
                    result = hosts.state().client.key_value_dir_get('bert_jax/verdict/')
                    self._verdict = json.loads(result[0][1]) if result else self._verdict
            except Exception as error:
                if not self._finished.is_set():
                    self._end(f'host 0 does not answer any more ({_first_line(error)})', 1)
                return
            self._obey()

    def _report(self) -> dict[str, Any]:
        self._beat += 1
        if self._cause() not in _WATCHED:
            self._moved = time.monotonic()
        return {
            'beat': self._beat, 'fault': self._fault, 'asked': self._asked, 'bound': self._bound,
            'step': self._step, 'still': time.monotonic() - self._moved,
            'usual': statistics.median(self._seconds),
        }

    def _judge(self, own: dict[str, Any]) -> None:
        """On host 0: makes the verdict from the reports of all hosts."""
        client, now = hosts.state().client, time.monotonic()
        reports = {0: own}
        if hosts.count() > 1:
            reports = {int(key.rpartition('/')[2]): json.loads(value)
                       for key, value in client.key_value_dir_get('bert_jax/live/')}
        verdict = dict(self._verdict)
        for host in range(hosts.count()):
            beat = reports.get(host, {}).get('beat', 0)
            if self._heard.get(host, (-1, 0.0))[0] != beat:
                self._heard[host] = beat, now
            report = reports.get(host, {})
            fault, silence = report.get('fault'), now - self._heard[host][1]
            if fault is None and silence > (
                    SILENCE_AT_START_SECONDS if report.get('step') is None else SILENCE_SECONDS):
                fault = f'has not been heard of for {silence:.0f} seconds', 1
            if fault is not None and verdict['fault'] is None:
                verdict['fault'] = [host, *fault]
        if len(reports) == hosts.count() and verdict['fault'] is None:
            still = min(report['still'] for report in reports.values())
            usual = max(report['usual'] for report in reports.values())
            if still > max(STILL_SECONDS, _STILL_STEPS * usual):
                last = min(reports, key=lambda host: reports[host]['step'] or 0)
                verdict['fault'] = [
                    last, f"at step {reports[last]['step']} no step was finished for {still:.0f} s "
                    f'(usually {usual:.2g} s): what each host did is in {self._folder}/'
                    'stacks-HOST.txt; start again and it goes on from the last checkpoint', 1]
                verdict['hangs'] = True
        verdict['asked'] |= any(one['asked'] for one in reports.values())
        bounds: list[Any] = [reports.get(host, {}).get('bound') for host in range(hosts.count())]
        if verdict['stop_at'] is None and None not in bounds:
            verdict['stop_at'] = max(bounds)
        self._verdict = verdict
        if hosts.count() > 1:
            client.key_value_set('bert_jax/verdict/0', json.dumps(verdict), allow_overwrite=True)

    def _obey(self) -> None:
        fault, hangs = self._verdict['fault'], self._verdict['hangs']
        if fault is not None and (hangs or fault[0] != hosts.index()):
            host, message, status = fault
            if hangs:
                self._write_stacks()
            if hosts.first():
                time.sleep(4 * self._turn)  # see `fail`
            if self._fault is not None:  # this host has reported its own fault
                _leave(self._fault[1])
            self._end(f'host {host}: {message}', status)
        with self._changed:
            self._told = self._verdict['asked']
            if self._told and self._bound is None and self._step is not None:
                self._bound = self._step + 1  # the main thread may have gone past the step polled
            self._stop_at = self._verdict['stop_at']
            self._changed.notify_all()

    def _write_stacks(self) -> None:
        with tempfile.TemporaryFile() as file, contextlib.suppress(Exception):  # of many libraries
            faulthandler.dump_traceback(file)
            file.seek(0)
            assert self._folder is not None
            write_whole(self._folder / f'stacks-{hosts.index()}.txt', file.read())

    def _end(self, message: str, status: int) -> None:
        sys.stderr.write(f'error: {message}\n')  # in one piece: other hosts write beside it
        _leave(status)


def _leave(status: int) -> None:
    """Ends the process without the barriers of an orderly exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
