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

from bert_jax.runtime import files
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path
from bert_jax.runtime.hosts import say
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
        self.folder = files.as_path(tempfile.mkdtemp(prefix='bert_jax_'))
        self._thread = concurrent.futures.ThreadPoolExecutor(1)
        self._last = time.monotonic()
        self._uploaded: dict[str, int] = {}  # by file: when it was changed

    def start(self, now: bool = False) -> None:
        """Starts an upload if the last was started a while ago, or `now`."""
        if now or time.monotonic() - self._last > _SECONDS_BETWEEN:
            self._last = time.monotonic()
            self._thread.submit(self._upload)

    def finish(self) -> bool:
        """Uploads all changed files and waits; whether that succeeded."""
        return self._thread.submit(self._upload).result()

    def _upload(self) -> bool:
        with only_warning(self._target):
            for path in [p for p in files.children(self.folder) if not p.name.startswith('.')]:
                changed = os.stat(path).st_mtime_ns
                if self._uploaded.get(path.name) != changed:
                    # Read at once: a file that grows while it is uploaded is refused.
                    files.write_whole(self._target / path.name, path.read_bytes())
                    self._uploaded[path.name] = changed
            return True
        return False

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


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records in a metrics.jsonl, without an incomplete last line of a killed process.

    Raises:
      InputError: another line is malformed.
    """
    lines = path.read_bytes().splitlines() if path.exists() else []
    records = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            good = type(record['step']) is int and all(
                type(value) in (int, float) for value in record.values())
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            good = False
        if good:
            records.append(record)
        elif number < len(lines):
            raise InputError(
                f'{path}, line {number} is no record of a step: put it right, or move the '
                'file away and the curves begin anew')
    return records


# Shown in other panels, or not useful as a curve.
_NOT_DRAWN = ('mlm_perplexity', 'lm_perplexity', 'tokens_per_second', 'data_wait',
              'step_seconds', 'step_seconds_deviation')


class Report:
    """The records of a run: `metrics.jsonl`, loggers, `curves.png` and log lines.

    A run directory in a bucket gets the files of a local folder at intervals.

    Attributes:
      records: all of the run, up to now.
      loggers: what else receives them.
      folder: where files are written; the run directory, or a folder that is uploaded there.
    """

    def __init__(self, workdir: Any, active: bool, start_step: int):
        """Cuts `metrics.jsonl` back to the step that the run starts from.

        Args:
          workdir: the run directory.
          active: whether this process writes and prints; one of a run does.
          start_step: where training starts.

        Raises:
          InputError: metrics.jsonl is malformed.
        """
        self.records: list[dict[str, Any]] = []
        self.loggers: list[Logger] = []
        self.folder = workdir
        self._active, self._drawn, self._unwritten = active, 0, b''
        self._uploads: Uploads | None = None
        if active:
            self.records = [
                r for r in read_records(workdir / 'metrics.jsonl') if r['step'] <= start_step]
            if files.in_bucket(workdir):
                self._uploads = Uploads(workdir)
                self.folder = self._uploads.folder
            path = self.folder / 'metrics.jsonl'
            files.write_whole(path, ''.join(json.dumps(record) + '\n' for record in self.records))
            self.flush()
            self._file = open(path, 'r+b', buffering=0)  # noqa: SIM115
            self._size = os.fstat(self._file.fileno()).st_size

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
            written = os.pwrite(self._file.fileno(), self._unwritten, self._size)
            if written < len(self._unwritten):
                os.ftruncate(self._file.fileno(), self._size)  # whole lines only
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._size += written
            self._unwritten = b''
        if self._uploads is not None:
            self._uploads.start()

    def evaluations(self, after: int) -> list[int]:
        """The recorded steps of evaluations after a step."""
        return [record['step'] for record in self.records if record['step'] > after
                and any(name.startswith('eval/') for name in record)]

    def flush(self) -> None:
        """Uploads all records and waits until that is done or has failed."""
        if self._uploads is not None:
            self._uploads.finish()

    def tell(self, alarms: Sequence[Alarm]) -> None:
        """Writes warnings of gates as records and prints them on standard error."""
        for alarm in alarms:
            self.write(alarm.step, {f'gate/{alarm.name}': alarm.value})
            if self._active:
                print(f'warning: {alarm.line}', file=sys.stderr, flush=True)

    def draw(self) -> None:
        """Draws `curves.png` if there are new records: a panel for each metric."""
        recorded = [key.partition('/')[2] for record in self.records for key in record
                    if key.startswith(('train/', 'eval/'))]
        names = [name for name in dict.fromkeys(recorded) if name not in _NOT_DRAWN]
        if not names or self._drawn == len(self.records):
            return
        from matplotlib.figure import Figure

        self._drawn = len(self.records)
        columns = min(4, len(names))
        rows = -(-len(names) // columns)
        figure = Figure(figsize=(4 * columns, 3 * rows))
        for place, name in enumerate(names, 1):
            axis = figure.add_subplot(rows, columns, place)
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
        with only_warning(self.folder), files.open_whole(self.folder / 'curves.png') as file:
            figure.savefig(file, dpi=100, format='png')
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


class Goodput:
    """A stopwatch that counts time by cause; `goodput.json` keeps it across restarts.

    Attributes:
      seconds: by cause, 'step' or one of `_CAUSES`; see `now`.
      cause: the present one.
    """

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
        self.clock, self.cause, self._since, self._written = clock, 'start', began, began
        self.seconds = dict.fromkeys(('step', *_CAUSES), 0.0)
        self._away = 0.0  # seconds without a running process
        self._marks = {0: 0.0}  # by step saved: seconds of the steps up to it
        self._path: Any = None
        if active:
            # Only statistics: a damaged file is no reason to stop the run.
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError,
                                     OverflowError, RecursionError):
                self._continue(files.as_path(workdir) / 'goodput.json', start_step)
            self._path = files.as_path(folder or workdir) / 'goodput.json'

    def _continue(self, path: Path, start_step: int) -> None:
        old = json.loads(path.read_text())
        seconds = {cause: float(old['seconds'].get(cause, 0.0)) for cause in self.seconds}
        marks = {0: 0.0} | {int(step): float(value) for step, value in old['marks'].items()}
        away = old['away'] + max(self._since - old['at'], 0.0)
        if not all(map(math.isfinite, (away, *seconds.values(), *marks.values()))):
            raise ValueError('not finite')
        marks = {step: value for step, value in marks.items() if step <= start_step}
        kept = max(marks.values())
        seconds['lost'] += seconds['step'] - kept
        self.seconds, self._away, self._marks = seconds | {'step': kept}, away, marks

    def enter(self, cause: str) -> None:
        """Counts time for `cause` from now on: 'step', or one of `_CAUSES`."""
        now = self.clock()
        self.seconds[self.cause] += max(now - self._since, 0.0)
        self.cause, self._since = cause, now

    def now(self) -> dict[str, float]:
        """Seconds by cause until now."""
        self.enter(self.cause)
        return dict(self.seconds)

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
        """Notes that the state of a step is saved: steps up to it cannot be lost."""
        self._marks[step] = self.now()['step']
        for old in list(self._marks)[1:-_KEPT_MARKS]:
            del self._marks[old]
        self.write()

    def write(self, at_most_every: float = 0.0) -> None:
        """Writes the file, unless it was written at most so many seconds ago."""
        seconds = self.now()
        if self._path is None or self._since - self._written < at_most_every:
            return
        self._written = self._since
        with only_warning(self._path):
            files.write_whole(self._path, json.dumps({
                'seconds': seconds, 'away': self._away, 'at': self._since, 'marks': self._marks}))

    def metrics(self) -> dict[str, float]:
        """Goodput and seconds by cause, for a record."""
        self.write(at_most_every=1.0)  # after a kill, time is known up to the last write
        return {'train/goodput': self._share('step'),
                **{f'time/{cause}': seconds for cause, seconds in self.seconds.items()}}

    def _share(self, cause: str) -> float:
        return self.seconds[cause] / max(sum(self.seconds.values()), 1e-9)

    def line(self) -> str:
        """A summary in one line."""
        total = sum(self.now().values())
        parts = [f'{name} {self._share(name):.1%}' for name in _CAUSES
                 if self._share(name) >= 0.0005]
        away = f'; {duration(self._away)} not running' if self._away >= 1 else ''
        return (f"goodput {self._share('step'):.1%} of {duration(total)} "
                f"({', '.join(parts)}){away}")


class Profile:
    """A trace of a range of steps, in `plugins/profile/` of the run directory.

    It covers the host's devices; all hosts compute alike, so one host is enough. A run that resumes
    within the range traces the rest of it.
    """

    def __init__(self, steps: tuple[int, int] | None, workdir: Any):
        """`steps`: the first and the last; None if this host traces none."""
        self._first, self._last = steps or (0, -1)
        self._workdir = workdir
        self._folder = ''  # while it traces

    def before(self, step: int, results: Any) -> None:
        """Starts or ends the trace before a step, after waiting for the last results."""
        within = self._first <= step <= self._last
        if within == bool(self._folder):
            return
        jax.block_until_ready(results)
        if within:  # jax writes to disks only
            bucket = files.in_bucket(self._workdir)
            self._folder = tempfile.mkdtemp() if bucket else str(self._workdir)
            jax.profiler.start_trace(self._folder)
        else:
            self.close()

    def close(self) -> None:
        """Ends a running trace."""
        if not self._folder:
            return
        jax.profiler.stop_trace()
        folder, self._folder = pathlib.Path(self._folder), ''
        if files.in_bucket(self._workdir):
            for file in filter(pathlib.Path.is_file, folder.rglob('*')):
                files.upload(file, self._workdir / file.relative_to(folder).as_posix())
            shutil.rmtree(folder)
        say(f'profile: tensorboard --logdir {self._workdir}')
