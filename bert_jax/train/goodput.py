"""Where the time of a run goes, across its restarts, and whether it gets slower.

Goodput is the share of the time in which processes of the run were alive that went into steps that
count: a step whose work was lost by a kill, and was done again, does not. What the first host sees
is measured; the hosts keep step with each other.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from bert_jax.runtime.files import as_path, in_bucket, write_whole
from bert_jax.train.report import duration

# What a run does beside steps that count. Start: imports, preparation of the data, restoring. Data:
# waiting for batches. Lost: steps after the checkpoint from which the run went on.
_CAUSES = ('start', 'compile', 'data', 'evaluation', 'save', 'profile', 'lost')
_KEPT_MARKS = 100
_FIELDS = {'seconds', 'away', 'at', 'marks'}  # of the file


class Goodput:
    """A stopwatch that always runs for one cause; `goodput.json` carries it over restarts."""

    def __init__(self, workdir: Any, active: bool, start_step: int, began: float,
                 clock: Callable[[], float] = time.time):
        """Goes on from what the run directory says.

        Args:
          workdir: the run directory.
          active: whether this process reads and writes there.
          start_step: where training starts; steps beyond it were lost.
          began: when this process did, as `clock` tells the time.
          clock: seconds.
        """
        self._path = as_path(workdir) / 'goodput.json' if active else None
        # What a kill undid is known up to the last write; a bucket takes its time for one.
        self._write_seconds = 30.0 if in_bucket(workdir) else 1.0
        self.clock = clock
        self._cause, self._since = 'start', began
        self.seconds = dict.fromkeys(('step', *_CAUSES), 0.0)
        self._away = 0.0  # no process was alive, or none that is known of
        self._marks = {0: 0.0}  # by step saved: seconds of the steps up to it
        self._written = began
        old = self._read()
        if old:
            self.seconds |= {k: v for k, v in old['seconds'].items() if k in self.seconds}
            self._away = old['away'] + max(began - old['at'], 0.0)
            self._marks |= {int(step): seconds for step, seconds in old['marks'].items()}
            kept = max(seconds for step, seconds in self._marks.items() if step <= start_step)
            self._marks = {k: v for k, v in self._marks.items() if k <= start_step}
            self.seconds['lost'] += self.seconds['step'] - kept
            self.seconds['step'] = kept

    def _read(self) -> dict[str, Any] | None:
        if self._path is None or not self._path.exists():
            return None
        try:
            old = json.loads(self._path.read_text())
            known = _is_ours(old)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            known = False
        # It only reports: a file that is not as it should be is no reason to stop a run.
        return old if known else None

    def enter(self, cause: str) -> None:
        """From now on the time goes to `cause`: 'step', or one of those above."""
        now = self.clock()
        self.seconds[self._cause] += max(now - self._since, 0.0)
        self._cause, self._since = cause, now

    def now(self) -> dict[str, float]:
        """Seconds by cause until now."""
        self.enter(self._cause)
        return dict(self.seconds)

    @contextlib.contextmanager
    def during(self, cause: str) -> Iterator[None]:
        """The time goes to `cause` within the block."""
        before = self._cause
        self.enter(cause)
        try:
            yield
        finally:
            self.enter(before)

    def mark(self, step: int) -> None:
        """A state is saved: steps up to this one are not lost any more."""
        self.enter(self._cause)
        self._marks[step] = self.seconds['step']
        for old in list(self._marks)[1:-_KEPT_MARKS]:
            del self._marks[old]
        self.write()

    def write(self, at_most_every: float = 0.0) -> None:
        """Writes the file, unless it was written so many seconds ago or less."""
        self.enter(self._cause)
        if self._path is None or self._since - self._written < at_most_every:
            return
        self._written = self._since
        write_whole(self._path, json.dumps({
            'seconds': self.seconds, 'away': self._away, 'at': self._since, 'marks': self._marks,
        }))

    def metrics(self) -> dict[str, float]:
        """For a record: the share, and seconds by cause."""
        self.write(self._write_seconds)
        return {'train/goodput': self._share('step'),
                **{f'time/{cause}': seconds for cause, seconds in self.seconds.items()}}

    def _share(self, cause: str) -> float:
        return self.seconds[cause] / max(sum(self.seconds.values()), 1e-9)

    def line(self) -> str:
        """All of it on one line."""
        self.enter(self._cause)
        parts = [f'{name} {100 * self._share(name):.1f}%' for name in _CAUSES
                 if self._share(name) >= 0.0005]
        away = f'; {duration(self._away)} not running' if self._away >= 1 else ''
        return (f"goodput {100 * self._share('step'):.1f}% of "
                f"{duration(sum(self.seconds.values()))} ({', '.join(parts)}){away}")


def _is_ours(old: Any) -> bool:
    """Whether a file says what is written here."""
    numbers = [old['away'], old['at'], *old['seconds'].values(), *old['marks'].values()]
    return old.keys() == _FIELDS and all(map(str.isdecimal, old['marks'])) and all(
        type(number) in (int, float) and -1e18 < number < 1e18 for number in numbers)


class Pace:
    """Says when a phase has become slower than its own first hour in this process.

    The median of that hour's log lines, the first left out, is compared with the last ten minutes.
    """

    HOUR, RECENT, SLOWER = 3600.0, 600.0, 1.1

    def __init__(self, clock: Callable[[], float] = time.time):
        self._clock = clock
        self._began: float | None = None
        self._first_hour: list[tuple[float, float]] = []  # (seconds a step, share of waiting)
        self._recent: deque[tuple[float, int, float, float]] = deque()
        self._slow_since: tuple[float, int] | None = None  # (time, step)
        self._warned = -self.HOUR

    def add(self, step: int, steps: int, seconds: float, waited: float) -> str | None:
        """Takes the steps of a log line; gives a warning, at most one an hour.

        Args:
          step: the last of them.
          steps: how many.
          seconds: that they took, without evaluation and saving.
          waited: of these, for data.
        """
        now = self._clock()
        if self._began is None:
            self._began = now
            return None
        if now - self._began <= self.HOUR or not self._first_hour:
            self._first_hour.append((seconds / steps, waited / seconds))
            return None
        usual = statistics.median(pace for pace, _ in self._first_hour)
        if seconds / steps <= self.SLOWER * usual:
            self._slow_since = None
        elif self._slow_since is None:
            self._slow_since = now - seconds, step - steps
        self._recent.append((now, steps, seconds, waited))
        while now - self._recent[0][0] >= self.RECENT and len(self._recent) > 1:
            self._recent.popleft()
        _, counts, times, waits = zip(*self._recent, strict=True)
        pace = sum(times) / sum(counts)
        if (pace <= self.SLOWER * usual or self._slow_since is None
                or now - self._warned < self.HOUR):
            return None
        self._warned = now
        since, first = self._slow_since
        return (
            f'warning: a step takes {pace:.3g} s, in the first hour it took {usual:.3g} s: '
            f'{100 * (pace / usual - 1):.0f}% slower since '
            f"{time.strftime('%Y-%m-%d %H:%M', time.localtime(since))} (step {first:,}); "
            f'waiting for data is {100 * sum(waits) / sum(times):.0f}% of it, and was '
            f'{100 * statistics.median(wait for _, wait in self._first_hour):.0f}%'
        )
