"""A run's records: metrics.jsonl, curves.png, goodput.json, log lines and profiles."""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import json
import math
import os
import pathlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from bert_jax.heads.base import Head
from bert_jax.runtime.errors import Diverged, InputError
from bert_jax.runtime.files import (
    Path,
    as_path,
    children,
    in_bucket,
    open_whole,
    write_whole,
)
from bert_jax.train.gates import Alarm
from bert_jax.train.loggers import Logger

# Objects cannot be appended to, so each upload is a whole file: megabytes for a long run.
_SECONDS_BETWEEN = 30.0
_LAST_UPLOADS_SECONDS = 120.0
_WARNING_SECONDS = 60.0
_warned: dict[str, float] = {}


@contextlib.contextmanager
def only_warning(place: object) -> Iterator[None]:
    """Turns an error of a record into a warning, at most one a minute; training goes on."""
    try:
        yield
    except Exception as error:  # of many libraries
        if time.monotonic() - _warned.get(str(place), -math.inf) > _WARNING_SECONDS:
            _warned[str(place)] = time.monotonic()
            reason = ' '.join(str(error).split())[:200] or type(error).__name__
            print(f'warning: {place} takes no records at present ({reason}); trying again later',
                  file=sys.stderr, flush=True)


class Uploads:
    """Uploads changed files of a local folder to a bucket, in a thread.

    Attributes:
      folder: the temporary local folder. Files whose names begin with a dot are not uploaded.
    """

    def __init__(self, target: Any):
        """`target`: the folder in a bucket."""
        self._target = target
        self.folder = as_path(tempfile.mkdtemp(prefix='bert_jax_'))
        self._thread = concurrent.futures.ThreadPoolExecutor(1)
        self._running: concurrent.futures.Future[bool] | None = None
        self._last = time.monotonic()
        self._uploaded: dict[str, int] = {}  # by file: when it was changed

    def start(self, now: bool = False) -> None:
        """Starts an upload if none is running and the last was a while ago, or `now`."""
        if self._running is not None and not self._running.done():
            return
        if now or time.monotonic() - self._last > _SECONDS_BETWEEN:
            self._last = time.monotonic()
            self._running = self._thread.submit(self._upload)

    def finish(self) -> bool:
        """Uploads all changed files and waits; whether that succeeded."""
        return self._thread.submit(self._upload).result()

    def _upload(self) -> bool:
        whole = False
        with only_warning(self._target):
            for path in children(self.folder):
                if path.name.startswith('.'):  # being written, and renamed any moment
                    continue
                changed = os.stat(path).st_mtime_ns
                if self._uploaded.get(path.name) != changed:
                    # Read at once: a file that grows while it is uploaded is refused.
                    write_whole(self._target / path.name, path.read_bytes())
                    self._uploaded[path.name] = changed
            whole = True
        return whole

    def close(self) -> None:
        """Uploads the rest; after two minutes of failures, prints where the files are."""
        deadline = time.monotonic() + _LAST_UPLOADS_SECONDS
        while not (whole := self.finish()) and time.monotonic() < deadline:
            time.sleep(5.0)
        self._thread.shutdown()
        if whole:
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            print(f'warning: the last records of {self._target} are in {self.folder} of this '
                  'machine', file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """'1:02:03' or '2:03'."""
    minutes, secs = divmod(int(max(seconds, 0) + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f'{hours}:{minutes:02}:{secs:02}' if hours else f'{minutes}:{secs:02}'


def count(number: float) -> str:
    """'950', '12.3k', '4.5M'."""
    for size, unit in ((1e9, 'G'), (1e6, 'M'), (1e4, 'k')):
        if number >= size:
            return f'{number / (1e3 if unit == "k" else size):.1f}{unit}'
    return f'{number:.0f}' if number >= 100 else f'{number:.3g}'


# Shown in other panels, or not useful as a curve.
_NOT_DRAWN = ('mlm_perplexity', 'lm_perplexity', 'tokens_per_second', 'data_wait',
              'step_seconds', 'step_seconds_deviation')


def _record(line: bytes) -> dict[str, Any] | None:
    """The record in a line of metrics.jsonl, or None if it is malformed."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    good = isinstance(record, dict) and type(record.get('step')) is int and all(
        type(value) in (int, float) for value in record.values())
    return record if good else None


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records in a metrics.jsonl, without an incomplete last line of a killed process.

    Raises:
      InputError: another line is malformed.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().splitlines()
    records = []
    for number, line in enumerate(lines, 1):
        record = _record(line)
        if record is None and number == len(lines):
            break
        if record is None:
            raise InputError(
                f'{path}, line {number} is no record of a step: put it right, or move the '
                'file away and the curves begin anew'
            )
        records.append(record)
    return records


class Report:
    """Writes the records of one run; processes other than the first have loggers at the most.

    In a bucket, records are uploaded in batches: every half minute, at evaluations, and before each
    save, so that a resume from a checkpoint finds all records up to it.

    Attributes:
      records: of the run so far.
      folder: files are written here; the run directory, or a folder that is uploaded there.
      loggers: receive every record; the caller adds them.
    """

    def __init__(self, workdir: Path, active: bool, start_step: int):
        """Opens the records and truncates `metrics.jsonl` to `start_step`.

        Later records of a killed run will be written again.
        """
        self._active = active
        self._drawn = 0  # records
        self.records: list[dict[str, Any]] = []
        self.loggers: list[Logger] = []
        self.folder = workdir
        self._uploads: Uploads | None = None
        if not active:
            return
        path = workdir / 'metrics.jsonl'
        self.records = [r for r in read_records(path) if r['step'] <= start_step]
        if in_bucket(workdir):
            self._uploads = Uploads(workdir)
            self.folder = self._uploads.folder
        path = self.folder / path.name
        write_whole(path, ''.join(json.dumps(record) + '\n' for record in self.records))
        self.flush()
        self._file = open(path, 'ab', buffering=0)  # noqa: SIM115
        self._unwritten = b''

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Adds one record to metrics.jsonl and to the loggers."""
        for logger in self.loggers:
            with only_warning(f'a logger of {self.folder}'):
                logger.write(step, metrics)
        if not self._active:
            return
        record = {'step': step, **{name: float(value) for name, value in metrics.items()}}
        self.records.append(record)
        self._unwritten += (json.dumps(record, allow_nan=False) + '\n').encode()
        with only_warning(self.folder):
            size = os.fstat(self._file.fileno()).st_size
            try:
                if self._file.write(self._unwritten) < len(self._unwritten):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                os.ftruncate(self._file.fileno(), size)  # whole lines only
                raise
            self._unwritten = b''
        if self._uploads is not None:
            self._uploads.start()

    def has_evaluation(self, step: int) -> bool:
        """Whether the records have an evaluation of a step."""
        return any(record['step'] == step and any(name.startswith('eval/') for name in record)
                   for record in self.records)

    def evaluations_since(self, step: int) -> int:
        """The number of evaluations after a step."""
        return sum(record['step'] > step and any(name.startswith('eval/') for name in record)
                   for record in self.records)

    def flush(self) -> None:
        """Uploads all records and waits until that is done or has failed."""
        if self._active and self._uploads is not None:
            self._uploads.finish()

    def say(self, line: str) -> None:
        """Prints a line, on the first host."""
        if self._active:
            print(line, flush=True)

    def tell(self, alarms: Sequence[Alarm]) -> None:
        """Writes warnings of gates as records and prints them on standard error."""
        for alarm in alarms:
            self.write(alarm.step, {f'gate/{alarm.name}': alarm.value})
            if self._active:
                print(f'warning: {alarm.line}', file=sys.stderr, flush=True)

    def draw(self) -> None:
        """Draws `curves.png` if there are new records: a panel for each metric."""
        if not self._active or self._drawn == len(self.records):
            return
        self._drawn = len(self.records)
        import matplotlib

        matplotlib.use('Agg')
        from matplotlib import pyplot as plt

        recorded = [key.partition('/')[2] for record in self.records for key in record
                    if key.startswith(('train/', 'eval/'))]
        names = [name for name in dict.fromkeys(recorded) if name not in _NOT_DRAWN]
        if not names:
            return
        columns = min(4, len(names))
        rows = -(-len(names) // columns)
        figure, axes = plt.subplots(rows, columns, figsize=(4 * columns, 3 * rows), squeeze=False)
        for axis in axes.flat[len(names):]:
            axis.set_axis_off()
        for axis, name in zip(axes.flat, names, strict=False):
            for kind, style in (('train', '-'), ('eval', 'o-')):
                points = [(r['step'], r[f'{kind}/{name}']) for r in self.records
                          if f'{kind}/{name}' in r]
                if points:
                    axis.plot(*zip(*points, strict=True), style, label=kind, markersize=3,
                              linewidth=1)
            axis.set_title(name.replace('_', ' '), fontsize=10)
            axis.set_xlabel('step', fontsize=8)
            axis.grid(alpha=0.3)
            axis.legend(fontsize=8)
        figure.tight_layout()
        with only_warning(self.folder), open_whole(self.folder / 'curves.png') as file:
            figure.savefig(file, dpi=100, format='png')
        plt.close(figure)
        if self._uploads is not None:
            self._uploads.start(now=True)

    def close(self) -> None:
        for logger in self.loggers:
            with only_warning(f'a logger of {self.folder}'):
                logger.close()
        if self._active:
            self._file.close()
            if self._uploads is not None:
                self._uploads.close()


# Causes of time beside productive steps. start: imports, data preparation, restoring. data: waiting
# for batches. lost: steps after the checkpoint that a run resumed from.
_CAUSES = ('start', 'compile', 'data', 'evaluation', 'save', 'profile', 'lost')
_KEPT_MARKS = 100
_FIELDS = {'seconds', 'away', 'at', 'marks'}  # of the file


class Goodput:
    """A stopwatch that counts time by cause; `goodput.json` keeps it across restarts."""

    def __init__(self, workdir: Any, active: bool, start_step: int, began: float,
                 clock: Callable[[], float] = time.time, folder: Any = None):
        """Continues from `goodput.json`.

        Args:
          workdir: the run directory.
          active: whether this process reads and writes the file.
          start_step: where training starts; steps beyond it were lost.
          began: start of this process, by `clock`.
          clock: returns seconds.
          folder: for writing, `Report.folder`; default: workdir.
        """
        self._path = as_path(workdir) / 'goodput.json' if active else None
        self.clock = clock
        self._cause, self._since = 'start', began
        self.seconds = dict.fromkeys(('step', *_CAUSES), 0.0)
        self._away = 0.0  # seconds without a running process
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
        if self._path is not None and folder is not None:
            self._path = folder / self._path.name

    def _read(self) -> dict[str, Any] | None:
        if self._path is None or not self._path.exists():
            return None
        try:
            old = json.loads(self._path.read_text())
            known = _is_ours(old)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            known = False
        # Only statistics: a damaged file is no reason to stop the run.
        return old if known else None

    def enter(self, cause: str) -> None:
        """Counts time for `cause` from now on: 'step', or one of `_CAUSES`."""
        now = self.clock()
        self.seconds[self._cause] += max(now - self._since, 0.0)
        self._cause, self._since = cause, now

    def cause(self) -> str:
        """The present cause."""
        return self._cause

    def now(self) -> dict[str, float]:
        """Seconds by cause until now."""
        self.enter(self._cause)
        return dict(self.seconds)

    @contextlib.contextmanager
    def during(self, cause: str) -> Iterator[None]:
        """Counts the time of the block for `cause`."""
        before = self._cause
        self.enter(cause)
        try:
            yield
        finally:
            self.enter(before)

    def mark(self, step: int) -> None:
        """Notes that the state of a step is saved: steps up to it cannot be lost."""
        self.enter(self._cause)
        self._marks[step] = self.seconds['step']
        for old in list(self._marks)[1:-_KEPT_MARKS]:
            del self._marks[old]
        self.write()

    def write(self, at_most_every: float = 0.0) -> None:
        """Writes the file, unless it was written at most so many seconds ago."""
        self.enter(self._cause)
        if self._path is None or self._since - self._written < at_most_every:
            return
        self._written = self._since
        with only_warning(self._path):
            write_whole(self._path, json.dumps({
                'seconds': self.seconds, 'away': self._away, 'at': self._since,
                'marks': self._marks,
            }))

    def metrics(self) -> dict[str, float]:
        """Goodput and seconds by cause, for a record."""
        self.write(at_most_every=1.0)  # after a kill, time is known up to the last write
        return {'train/goodput': self._share('step'),
                **{f'time/{cause}': seconds for cause, seconds in self.seconds.items()}}

    def _share(self, cause: str) -> float:
        return self.seconds[cause] / max(sum(self.seconds.values()), 1e-9)

    def line(self) -> str:
        """A summary in one line."""
        self.enter(self._cause)
        parts = [f'{name} {100 * self._share(name):.1f}%' for name in _CAUSES
                 if self._share(name) >= 0.0005]
        away = f'; {duration(self._away)} not running' if self._away >= 1 else ''
        return (f"goodput {100 * self._share('step'):.1f}% of "
                f"{duration(sum(self.seconds.values()))} ({', '.join(parts)}){away}")


def _is_ours(old: Any) -> bool:
    """Whether the content of goodput.json is valid."""
    numbers = [old['away'], old['at'], *old['seconds'].values(), *old['marks'].values()]
    return old.keys() == _FIELDS and all(map(str.isdecimal, old['marks'])) and all(
        type(number) in (int, float) and -1e18 < number < 1e18 for number in numbers)


class Profile:
    """A trace of a range of steps, in `plugins/profile/` of the run directory.

    It covers the host's devices; all hosts compute alike, so one host is enough. A run that resumes
    within the range traces the rest of it.
    """

    def __init__(self, steps: tuple[int, int] | None, workdir: Any, active: bool):
        self._steps = steps if active else None
        self._workdir = workdir
        self._target: str | None = None  # while it traces
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def before(self, step: int, last: Any) -> None:
        """Starts the trace if `step` is its first, after waiting for the `last` results."""
        if self._steps is None or self._target or not self._steps[0] <= step <= self._steps[1]:
            return
        jax.block_until_ready(last)
        if in_bucket(self._workdir):  # jax writes to disks only
            self._scratch = tempfile.TemporaryDirectory()
        self._target = self._scratch.name if self._scratch else str(self._workdir)
        jax.profiler.start_trace(self._target)

    def after(self, step: int, results: Any) -> str | None:
        """Ends the trace if `step` was its last; returns a message."""
        if not self._target or self._steps is None or step < self._steps[1]:
            return None
        jax.block_until_ready(results)
        return self.close()

    def close(self) -> str | None:
        """Ends a running trace; returns a message."""
        if not self._target:
            return None
        jax.profiler.stop_trace()
        self._steps = self._target = None
        if self._scratch:
            folder = pathlib.Path(self._scratch.name)
            for file in folder.rglob('*'):
                if file.is_file():
                    target = as_path(self._workdir) / file.relative_to(folder).as_posix()
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(file.read_bytes())
            self._scratch.cleanup()
        return f'profile: tensorboard --logdir {self._workdir}'


class Window:
    """Metrics of the steps since the last log line, checked for NaN as they are fetched."""

    def __init__(self, first_step: int, first_of_run: int):
        """`first_of_run`: the step that this process starts from."""
        self._first_of_run = first_of_run
        self._next_step = first_step + 1  # a step's number counts its own update
        self._on_device: list[dict[str, jax.Array]] = []
        self.fetched: list[dict[str, np.ndarray]] = []

    def add(self, metrics: dict[str, jax.Array]) -> None:
        self._on_device.append(metrics)
        # At most two steps in flight: more gain nothing, and hundreds abort on virtual CPU devices.
        if len(self._on_device) > 2:
            jax.block_until_ready(self._on_device[-3]['loss'])

    def fetch(self) -> None:
        """Waits for all steps.

        Raises:
          Diverged: the loss or gradient of a step is not finite.
        """
        for metrics in jax.device_get(self._on_device):
            if not (np.isfinite(metrics['loss']) and np.isfinite(metrics['grad_norm'])):
                before = self._next_step - 1
                raise Diverged(
                    f"step {self._next_step}: loss {metrics['loss']}, gradient norm "
                    f"{metrics['grad_norm']}: stopped. " + (
                        'No step was done before, so no learning rate is the cause: look at the '
                        'parameters that it starts from, and at the data'
                        if before == self._first_of_run else
                        'Lower config.optimizer.learning_rate or lengthen config.optimizer.warmup'
                    ), before)
            self._next_step += 1
            self.fetched.append(metrics)
        self._on_device.clear()

    def take(self) -> list[dict[str, np.ndarray]]:
        self.fetch()
        fetched, self.fetched = self.fetched, []
        return fetched


def means(objective: Head, steps: Sequence[dict[str, np.ndarray]]) -> dict[str, float]:
    """Metrics over several steps: `score` of the sums, and means of the step's own metrics."""
    not_summed = ('loss', 'grad_norm', 'learning_rate')
    sums = {
        name: float(sum(np.float64(s[name]) for s in steps))
        for name in steps[0] if name not in not_summed
    }
    return {
        'loss': float(np.mean([s['loss'] for s in steps])),
        **objective.score(sums),
        'grad_norm': float(np.mean([s['grad_norm'] for s in steps])),
        'learning_rate': float(steps[-1]['learning_rate']),
    }
