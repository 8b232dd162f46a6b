"""Stops a run on all hosts at the same step: on a signal, a failed host or a hang.

SIGTERM, SIGHUP (a terminal that is gone) or Ctrl-C on any host stops all of them after the same
step. A host that fails, or whose heartbeat stops, ends the others with its message and status:
otherwise their devices would wait for it for ever. If no host finishes a step, every host writes
its stacks and the run ends.

The hosts communicate through jax's coordination service: each posts its state every half second;
host 0 reads all states and posts a verdict, which all read. jax's `reached_preemption_sync_point`
also agrees on a step, but does not name the host that failed.
"""

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
from bert_jax.runtime.errors import Stopped, first_line
from bert_jax.runtime.files import Path, write_whole

# A host without a heartbeat for this long counts as dead: in training, and before its first step.
SILENCE_SECONDS, SILENCE_AT_START_SECONDS = 30.0, 300.0
# A run counts as hung after this long without a step, or the time of this many usual steps if that
# is longer.
STILL_SECONDS, _STILL_STEPS = 600.0, 20
_WATCHED = ('step', 'data', 'profile')  # compilation, evaluation and saves have no time limit
_PATIENCE_SECONDS = 10.0  # that the main thread gets to handle a signal before the first step
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_BEFORE = 'stopped before the first step; start again and it goes on where it was'
# The report of a host that has not posted one.
_SILENT: dict[str, Any] = {'beat': 0, 'step': None, 'asked': False, 'bound': None, 'fault': None,
                           'still': 0.0, 'usual': 0.0}


class Guard:
    """Handles signals from `start` on, and monitors all hosts until `finish`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # What this host reports. `asked`: a signal came; `step`: the last step polled, None before
        # training; `bound`: the first step at which it can stop.
        self._own: dict[str, Any] = dict(_SILENT)
        self._heard: dict[int, tuple[int, float]] = {}  # by host: heartbeat, time of its change
        # What host 0 concludes from all reports. `fault`: a failed host, its message and status;
        # `hangs`: whether all hang; `asked`: whether a host got a signal; `stop_at`: the stop step.
        self._verdict: dict[str, Any] = {
            'fault': None, 'hangs': False, 'asked': False, 'stop_at': None}
        self._finished = threading.Event()
        self._cause: Callable[[], str] = lambda: 'start'
        self._folder: Any = None  # for stacks
        self._moved = time.monotonic()  # time of the last poll
        self._seconds: deque[float] = deque([0.0], maxlen=99)  # of the last steps
        self._turn = 0.5
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        """Starts handling and monitoring; call it in the main thread once the hosts have joined."""
        self._turn += hosts.count() / 1000
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in _SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
                signal.signal(number, self._handle)
        threading.Thread(target=self._end_if_not_handled, args=(reading,), daemon=True).start()
        self._thread.start()

    def watch(self, cause: Callable[[], str], folder: Path) -> None:
        """From now on, ends the run when no host finishes a step.

        Args:
          cause: returns the `Goodput` cause that the main thread is in.
          folder: receives `stacks-HOST.txt` of every host.
        """
        self._cause, self._folder = cause, folder

    def _handle(self, number: int, frame: object) -> None:
        del frame
        signal.signal(number, signal.SIG_DFL)  # a second signal ends the process at once
        self._own['asked'] = True
        if self._own['step'] is None:
            # If a garbage collector's callback swallows this, the run stops after its first step.
            raise Stopped(_BEFORE)

    def _end_if_not_handled(self, reading: int) -> None:
        """Ends the process if the main thread does not handle a signal before the first step.

        Nothing needs saving then. Python runs handlers between bytecode instructions only, and
        compilation takes minutes without any.
        """
        while os.read(reading, 1)[0] not in _SIGNALS:
            pass
        if self._own['step'] is None:
            time.sleep(_PATIENCE_SECONDS)
        if self._own['step'] is None and not self._finished.is_set():
            _leave(143, _BEFORE)

    def should_stop(self, step: int) -> bool:
        """Whether to save and stop after this step; the same on all hosts. Call it every step."""
        now = time.monotonic()
        self._seconds.append(now - self._moved)
        self._moved = now
        with self._changed:
            self._own['step'] = step
            if hosts.count() == 1:
                return self._own['asked']
            if self._verdict['asked'] and self._own['bound'] is None:
                self._own['bound'] = step
            while self._own['bound'] is not None and step >= self._own['bound'] and (
                    self._verdict['stop_at'] is None):
                self._changed.wait(1.0)
            return self._verdict['stop_at'] is not None and step >= self._verdict['stop_at']

    def fail(self, message: str, status: int, is_ours: bool = True) -> None:
        """Ends this process, and all hosts, with this one's message and status.

        Args:
          message: is printed.
          status: exit status; 143 after a stop: hosts that agreed on the step end by themselves.
          is_ours: False if another host's end may be the cause; its verdict is awaited first.
        """
        several = hosts.count() > 1
        if several and not is_ours:
            time.sleep(SILENCE_SECONDS + 5)
        with contextlib.suppress(OSError):
            sys.stderr.write(f'error: {message}\n')  # one write: other hosts may share it
        if several and status == 143 and self._verdict['stop_at'] is not None:
            self.finish()
        elif several:
            self._own['fault'] = message, status
            time.sleep(4 * self._turn)  # host 0 serves the store, which the others must read first
            _leave(status)
        sys.exit(status)

    def finish(self) -> None:
        """Waits for all hosts, then stops monitoring."""
        hosts.barrier('finish')
        self._finished.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        """Every half second, reports and obeys host 0's verdict."""
        while not self._finished.wait(self._turn):
            try:
                verdict = self._ask_verdict()
            except Exception as error:
                if not self._finished.is_set():
                    _leave(1, f'host 0 does not answer any more ({first_line(error)})')
                return
            fault, hangs = verdict['fault'], verdict['hangs']
            if fault is not None and (hangs or fault[0] != hosts.index()):
                if hangs:
                    with tempfile.TemporaryFile() as file, contextlib.suppress(Exception):
                        faulthandler.dump_traceback(file)
                        file.seek(0)
                        write_whole(self._folder / f'stacks-{hosts.index()}.txt', file.read())
                if hosts.first():
                    time.sleep(4 * self._turn)  # see `fail`
                if self._own['fault'] is not None:
                    _leave(self._own['fault'][1])
                _leave(fault[2], f'host {fault[0]}: {fault[1]}')
            with self._changed:
                self._verdict = verdict
                if verdict['asked'] and self._own['bound'] is None and (
                        self._own['step'] is not None):
                    # The main thread may be past the step that it polled last.
                    self._own['bound'] = self._own['step'] + 1
                self._changed.notify_all()

    def _ask_verdict(self) -> dict[str, Any]:
        """Posts this host's report and returns the verdict, which host 0 makes and posts."""
        client, own, several = hosts.state().client, self._own, hosts.count() > 1
        if self._cause() not in _WATCHED:
            self._moved = time.monotonic()
        own |= {'beat': own['beat'] + 1, 'still': time.monotonic() - self._moved,
                'usual': statistics.median(self._seconds)}
        if several:
            client.key_value_set(f'bert_jax/live/{hosts.index()}', json.dumps(own),
                                 allow_overwrite=True)
        if not hosts.first():
            posted = client.key_value_dir_get('bert_jax/verdict/')
            return json.loads(posted[0][1]) if posted else self._verdict
        reports = {0: own}
        if several:
            reports = {host: _SILENT for host in range(hosts.count())} | {
                int(key.rpartition('/')[2]): json.loads(value)
                for key, value in client.key_value_dir_get('bert_jax/live/')}
        verdict = self._judge(reports)
        if several:
            client.key_value_set('bert_jax/verdict/0', json.dumps(verdict), allow_overwrite=True)
        return verdict

    def _judge(self, reports: dict[int, dict[str, Any]]) -> dict[str, Any]:
        """The verdict from the reports of all hosts."""
        verdict, now = dict(self._verdict), time.monotonic()
        for host, report in reports.items():
            if self._heard.get(host, (-1, 0.0))[0] != report['beat']:
                self._heard[host] = report['beat'], now
            fault, silence = report['fault'], now - self._heard[host][1]
            if fault is None and silence > (
                    SILENCE_AT_START_SECONDS if report['step'] is None else SILENCE_SECONDS):
                fault = f'has not been heard of for {silence:.0f} seconds', 1
            if fault is not None and verdict['fault'] is None:
                verdict['fault'] = [host, *fault]
        still = min(report['still'] for report in reports.values())
        usual = max(report['usual'] for report in reports.values())
        if verdict['fault'] is None and still > max(STILL_SECONDS, _STILL_STEPS * usual):
            last = min(reports, key=lambda host: reports[host]['step'] or 0)
            verdict['hangs'] = True
            verdict['fault'] = [
                last, f"at step {reports[last]['step']} no step was finished for {still:.0f} s "
                f'(usually {usual:.2g} s): what each host did is in {self._folder}/'
                'stacks-HOST.txt; start again and it goes on from the last checkpoint', 1]
        verdict['asked'] |= any(report['asked'] for report in reports.values())
        bounds = [report['bound'] for report in reports.values()]
        if verdict['stop_at'] is None and None not in bounds:
            verdict['stop_at'] = max(bounds)
        return verdict

def _leave(status: int, message: str = '') -> None:
    """Ends the process without the barriers of an orderly exit."""
    if message:
        sys.stderr.write(f'error: {message}\n')
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
