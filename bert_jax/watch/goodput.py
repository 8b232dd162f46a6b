"""The share of a run's time that is spent on training steps."""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from bert_jax.run.layout import GOODPUT
from bert_jax.runtime import files
from bert_jax.runtime.errors import InputError, tell
from bert_jax.runtime.files import read_fields
from bert_jax.runtime.schema import MapOf, Range
from bert_jax.watch.metrics_log import duration, only_warning

# Causes of time other than productive steps. start: imports, data preparation, restoring. data:
# waiting for batches. lost: steps after the checkpoint that a run resumed from.
_CAUSES = ('start', 'compile', 'data', 'evaluation', 'save', 'profile', 'lost')
_KEPT_SAVES = 100
_SECONDS = Range(0, 1e10)  # 300 years
_SCHEMA = {'seconds': MapOf(_SECONDS), 'away': _SECONDS, 'at': _SECONDS, 'marks': MapOf(_SECONDS)}


def _read(path: files.Path) -> dict[str, Any]:
    """The content of a goodput.json.

    These are only statistics, so a damaged file ends nothing: a note says what is wrong with it,
    and it is read as empty, as one that is missing.
    """
    try:
        if not path.exists():
            return {}
        content: dict[str, Any] = read_fields(path, _SCHEMA, 'its times are not counted')
    except (InputError, OSError) as error:
        tell(f'note: {error}')
        return {}
    return content


def read_seconds(path: files.Path) -> dict[str, float]:
    """Seconds by cause in a goodput.json; {} if they are not known."""
    seconds = _read(path).get('seconds') or {}
    return {cause: spent for cause, spent in seconds.items() if spent is not None}


class Goodput:
    """A stopwatch that counts time by cause; `goodput.json` keeps it across restarts.

    Attributes:
      seconds: by cause, 'step' or one of `_CAUSES`; see `now`.
      cause: the current one.
    """

    def __init__(
        self, workdir: Any, active: bool, start_step: int, began: float,
        clock: Callable[[], float] = time.time, folder: Any = None,
    ):
        """Continues from `goodput.json`.

        Args:
          workdir: the run directory.
          active: whether this process reads and writes the file.
          start_step: where training starts; steps beyond it were lost.
          began: start of this process, by `clock`.
          clock: returns seconds.
          folder: where to write (`MetricsLog.folder`); default: workdir.
        """
        self.clock = clock
        self.cause = 'start'
        self.seconds = dict.fromkeys(('step', *_CAUSES), 0.0)
        self._counted_until = began  # `seconds` has the time up to here
        self._written_at = began
        self._seconds_away = 0.0  # without a running process
        self._saved_step_seconds = {0: 0.0}  # by step saved: of the steps up to it
        # By cause: seconds of the slowest host between two log lines, by host.
        self._slowest: dict[str, dict[int, float]] = {}
        self._lock = threading.Lock()
        self._path: Any = None
        if active:
            self._continue_from(files.as_path(workdir) / GOODPUT, start_step, began)
            self._path = files.as_path(folder or workdir) / GOODPUT
        self._seconds_before = dict(self.seconds)  # of earlier processes

    def _continue_from(self, path: Any, start_step: int, began: float) -> None:
        """Takes over the times of an earlier process, if the file has them all.

        Its steps after `start_step` are done again, so their time counts as lost.
        """
        old = _read(path)
        if any(old.get(name) is None for name in _SCHEMA):
            return
        seconds = {cause: old['seconds'].get(cause) or 0.0 for cause in self.seconds}
        seconds_away = old['away'] + max(began - old['at'], 0.0)
        saved = {0: 0.0}
        for step, spent in old['marks'].items():
            if step.isascii() and step.isdigit() and spent is not None:
                saved[int(step)] = spent
        kept = {step: spent for step, spent in saved.items() if step <= start_step}
        kept_seconds = min(max(kept.values()), seconds['step'])
        seconds['lost'] += seconds['step'] - kept_seconds
        seconds['step'] = kept_seconds
        self.seconds = seconds
        self._seconds_away = seconds_away
        self._saved_step_seconds = kept

    def enter(self, cause: str) -> None:
        """Counts time for `cause` from now on: 'step', or one of `_CAUSES`."""
        with self._lock:
            now = self.clock()
            self.seconds[self.cause] += max(now - self._counted_until, 0.0)
            self.cause = cause
            self._counted_until = now

    def now(self) -> dict[str, float]:
        """Seconds by cause until now."""
        self.enter(self.cause)
        return dict(self.seconds)

    def of_this_process(self) -> dict[str, float]:
        """Seconds by cause since this process started; any thread may ask."""
        with self._lock:
            seconds = dict(self.seconds)
            seconds[self.cause] += max(self.clock() - self._counted_until, 0.0)
        return {cause: spent - self._seconds_before[cause] for cause, spent in seconds.items()}

    def count_waiting(self, cause: str, host: int, seconds: float, longer: float) -> None:
        """Counts as `cause` how much longer another host took for it than this one.

        This host waited for the other in a step.

        Args:
          cause: what it took so long for.
          host: which took longest.
          seconds: that it took.
          longer: how much longer than this host.
        """
        by_host = self._slowest.setdefault(cause, {})
        by_host[host] = by_host.get(host, 0.0) + seconds
        with self._lock:
            moved = min(max(longer, 0.0), self.seconds['step'])
            self.seconds['step'] -= moved
            self.seconds[cause] += moved

    @contextlib.contextmanager
    def during(self, cause: str) -> Iterator[None]:
        """Counts the time of the block for `cause`."""
        before = self.cause
        self.enter(cause)
        try:
            yield
        finally:
            self.enter(before)

    def mark(self, step: int) -> None:
        """Notes that the state of a step is saved, so that steps up to it cannot be lost."""
        self._saved_step_seconds[step] = self.now()['step']
        for old in list(self._saved_step_seconds)[1:-_KEPT_SAVES]:
            del self._saved_step_seconds[old]
        self.write()

    def write(self, at_most_every: float = 0.0) -> None:
        """Writes the file, unless it was written less than `at_most_every` seconds ago."""
        seconds = self.now()
        now = self._counted_until
        if self._path is None or now - self._written_at < at_most_every:
            return
        self._written_at = now
        content = {
            'seconds': seconds,
            'away': self._seconds_away,
            'at': now,
            'marks': self._saved_step_seconds,
            'slowest_host': {cause: self._slowest_host(cause) for cause in self._slowest},
        }
        with only_warning(self._path):
            files.write_whole(self._path, json.dumps(content))

    def metrics(self) -> dict[str, float]:
        """Goodput and seconds by cause, for a record."""
        self.write(at_most_every=1.0)  # after a kill, time is known up to the last write
        times = {f'time/{cause}': seconds for cause, seconds in self.seconds.items()}
        return {'train/goodput': self._share('step'), **times}

    def _share(self, cause: str) -> float:
        return self.seconds[cause] / max(sum(self.seconds.values()), 1e-9)

    def _slowest_host(self, cause: str) -> int:
        """The host that the others waited for longest."""
        by_host = self._slowest[cause]
        return max(by_host, key=lambda host: by_host[host])

    def _shown_host(self, cause: str) -> str:
        return f' (host {self._slowest_host(cause)})' if cause in self._slowest else ''

    def line(self) -> str:
        """A summary in one line."""
        total = sum(self.now().values())
        others = []
        for cause in _CAUSES:
            share = self._share(cause)
            if share >= 0.0005:  # 0.1% when rounded
                others.append(f'{cause} {share:.1%}{self._shown_host(cause)}')
        line = f"goodput {self._share('step'):.1%} of {duration(total)} ({', '.join(others)})"
        if self._seconds_away >= 1:
            line += f'; {duration(self._seconds_away)} not running'
        return line
