"""A run's records: metrics.jsonl, loggers, curves.png, goodput.json and profiles."""

import concurrent.futures
import contextlib
import errno
import json
import math
import os
import pathlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from bert_jax.runtime import files, hosts
from bert_jax.runtime.errors import InputError, first_line, needing, tell
from bert_jax.runtime.packages import without
from bert_jax.train.gates import Alarm

# Objects in buckets cannot be appended to, so each upload is a whole file: megabytes in a long run.
_SECONDS_BETWEEN = 30.0
_LAST_UPLOADS_SECONDS = 120.0
_WARNING_SECONDS = 60.0
_MONITORING_SECONDS = 30.0  # between requests; a series takes a point every five seconds
_MONITORED = ('goodput', 'step_seconds', 'step_seconds_deviation', 'data_wait', 'mfu')
_warned: dict[str, float] = {}


@contextlib.contextmanager
def only_warning(place: object) -> Iterator[None]:
    """Turns an error into a warning, at most one a minute per place, so that training goes on."""
    try:
        yield
    except Exception as error:  # of many libraries
        if time.monotonic() - _warned.get(str(place), -math.inf) > _WARNING_SECONDS:
            _warned[str(place)] = time.monotonic()
            reason = ' '.join(str(error).split())[:200] or type(error).__name__
            tell(f'warning: {place} takes no records at present ({reason}); trying again later')


def duration(seconds: float) -> str:
    """Seconds as '1:02:03' or '2:03'."""
    minutes, secs = divmod(int(max(seconds, 0) + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f'{hours}:{minutes:02}:{secs:02}' if hours else f'{minutes}:{secs:02}'


def count(number: float) -> str:
    """A number as '950', '12.3k' or '4.5M'."""
    for size, unit in ((1e9, 'G'), (1e6, 'M'), (1e4, 'k')):
        if number >= size:
            return f'{number / (1e3 if unit == "k" else size):.1f}{unit}'
    return f'{number:.0f}' if number >= 100 else f'{number:.3g}'


def read_records(path: files.Path) -> list[dict[str, Any]]:
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
                f'{path}, line {number} is not a valid record: correct it, or move the '
                'file away and the curves begin anew')
    return records


# Shown in other panels, or not useful as a curve.
_NOT_DRAWN = ('mlm_perplexity', 'standard_mlm_perplexity', 'lm_perplexity', 'nsp_majority',
              'tokens_per_second', 'data_wait', 'goodput', 'step_seconds', 'step_seconds_deviation')


class Logger(NamedTuple):
    """Receives metrics of steps, and is closed at the end. Both functions may raise any error."""

    write: Callable[[int, Mapping[str, float]], None]
    close: Callable[[], None]


def tensorboard(folder: files.Path, start_step: int) -> Logger:
    """Event files; TensorBoard hides what older files contain beyond `start_step`."""
    with without('torch'), without('google.cloud.storage'):
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.summary import scalar

    # Not its SummaryWriter: a full disk ends that one's thread, and the caller then hangs.
    events = EventsWriter(str(folder / 'events'))
    if start_step:
        events.write_event(Event(
            wall_time=time.time(), step=start_step + 1,
            session_log=SessionLog(status=SessionLog.START)))

    def write(step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            events.write_event(Event(wall_time=time.time(), step=step, summary=scalar(name, value)))
        events.flush()

    return Logger(write, events.close)


def wandb(workdir: files.Path, config: Mapping[str, Any]) -> Logger:
    """Weights & Biases, set up by its own environment variables: WANDB_PROJECT, WANDB_MODE, ...

    The id there is a hash of the run directory's path, so a resumed run continues the same record.
    """
    with needing('config.train.loggers=wandb'):
        import wandb as library
    run = library.init(
        id=files.digest(os.fspath(workdir).encode())[:16], name=workdir.name,
        resume='allow', config=dict(config),
        dir=os.environ.get('WANDB_DIR') or tempfile.gettempdir())
    return Logger(lambda step, metrics: run.log(dict(metrics), step=step), run.finish)


def cloud_monitoring(workdir: files.Path) -> Logger:
    """Every host's goodput and step time in Google Cloud Monitoring, sent by a thread.

    The series are `custom.googleapis.com/bert_jax/NAME` of a `generic_task` whose job is the run
    and whose task_id is the host.

    Raises:
      InputError: google-auth, credentials or a project are missing.
    """
    try:
        import google.auth
        from google.auth.transport.requests import AuthorizedSession

        credentials, project = google.auth.default(
            scopes=['https://www.googleapis.com/auth/monitoring.write'])
    except ImportError:
        raise InputError("config.train.loggers: cloud_monitoring needs google-auth: pip install "
                         "'google-auth[requests]'") from None
    except google.auth.exceptions.DefaultCredentialsError as error:
        raise InputError('config.train.loggers: cloud_monitoring has no credentials '
                         f'({first_line(error)})') from None
    if not project:
        raise InputError('config.train.loggers: cloud_monitoring knows no project: set '
                         'GOOGLE_CLOUD_PROJECT')
    session, thread = AuthorizedSession(credentials), concurrent.futures.ThreadPoolExecutor(1)
    resource: Any = {'type': 'generic_task', 'labels': {
        'project_id': project, 'location': 'global', 'namespace': 'bert_jax',
        'job': workdir.name, 'task_id': str(hosts.index())}}
    sent = -_MONITORING_SECONDS
    request: concurrent.futures.Future[Any] = thread.submit(str)

    def send(metrics: Mapping[str, float]) -> None:
        now = time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())
        url = f'https://monitoring.googleapis.com/v3/projects/{project}/timeSeries'
        session.post(url, timeout=20, json={
            'timeSeries': [{
                'metric': {'type': f'custom.googleapis.com/bert_jax/{name}'},
                'resource': resource,
                'points': [{'interval': {'endTime': now}, 'value': {'doubleValue': value}}],
            } for name, value in metrics.items()]}).raise_for_status()

    def write(step: int, metrics: Mapping[str, float]) -> None:
        nonlocal sent, request
        del step
        chosen = {name: metrics[f'train/{name}'] for name in _MONITORED
                  if f'train/{name}' in metrics}
        if chosen and request.done() and time.monotonic() - sent >= _MONITORING_SECONDS:
            last, sent = request, time.monotonic()
            request = thread.submit(send, chosen)
            last.result()  # raises the error of the last request

    return Logger(write, thread.shutdown)


class Report:
    """The records of a run: `metrics.jsonl`, loggers and `curves.png`.

    If the run directory is in a bucket, a thread uploads the files of a local folder at intervals.

    Attributes:
      records: all of the run so far.
      loggers: these receive the records too.
      phases, guessing: for `curves.png`: the last steps of phases, and the metrics of guessing.
      folder: where files are written; the run directory, or a folder that is uploaded there. Files
        whose names begin with a dot are not uploaded.
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
        self.phases: Sequence[int] = ()
        self.guessing: Mapping[str, float] = {}
        self.folder = self._workdir = workdir
        self._active, self._start, self._drawn, self._unwritten = active, start_step, 0, b''
        self._thread = concurrent.futures.ThreadPoolExecutor(1)
        self._last_upload = self._last_drawn = time.monotonic()
        self._uploaded: dict[str, int] = {}  # by file: when it was last changed
        if active:
            self.records = [
                r for r in read_records(workdir / 'metrics.jsonl') if r['step'] <= start_step]
            if files.in_bucket(workdir):
                self.folder = files.as_path(tempfile.mkdtemp(prefix='bert_jax_'))
            path = self.folder / 'metrics.jsonl'
            files.write_whole(path, ''.join(json.dumps(record) + '\n' for record in self.records))
            self.flush()
            self._file = open(path, 'r+b', buffering=0)  # noqa: SIM115
            self._size = os.fstat(self._file.fileno()).st_size

    def open_loggers(self, names: Sequence[str], config: Mapping[str, Any]) -> None:
        """Opens loggers: all on the first host, on other hosts only those that log every host.

        Args:
          names: from `config.fields.LOGGERS`.
          config: the run's, as plain values.

        Raises:
          InputError: a logger cannot be used here.
        """
        if 'cloud_monitoring' in names:
            self.loggers.append(cloud_monitoring(self._workdir))
        if self._active and 'tensorboard' in names:
            self.loggers.append(tensorboard(self.folder, self._start))
        if self._active and 'wandb' in names:
            self.loggers.append(wandb(self._workdir, config))

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Adds one record to metrics.jsonl and to the loggers; failed writes become warnings."""
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
        self._start_upload(_SECONDS_BETWEEN)

    def evaluations(self, after: int) -> list[int]:
        """The recorded steps of evaluations after a step."""
        return [record['step'] for record in self.records if record['step'] > after
                and any(name.startswith('eval/') for name in record)]

    def flush(self) -> bool:
        """Uploads all records and waits until that is done; returns False if it failed."""
        upload = self._start_upload()
        return upload is None or upload.result()

    def _start_upload(self, after: float = 0.0) -> concurrent.futures.Future[bool] | None:
        """Starts an upload to the bucket if the last one began at least `after` seconds ago."""
        if self.folder is self._workdir or time.monotonic() - self._last_upload < after:
            return None
        self._last_upload = time.monotonic()
        return self._thread.submit(self._upload)

    def _upload(self) -> bool:
        with only_warning(self._workdir):
            for path in [p for p in files.children(self.folder) if not p.name.startswith('.')]:
                changed = os.stat(path).st_mtime_ns
                if self._uploaded.get(path.name) != changed:
                    # Read at once: a file that grows while it is uploaded is refused.
                    files.write_whole(self._workdir / path.name, path.read_bytes())
                    self._uploaded[path.name] = changed
            return True
        return False

    def warn(self, alarms: Sequence[Alarm]) -> None:
        """Writes the gates' warnings as records and prints them on standard error."""
        for alarm in alarms:
            self.write(alarm.step, {f'gate/{alarm.name}': alarm.value})
            if self._active:
                tell(f'warning: {alarm.line}')

    def draw(self, least_age: float = 0.0) -> None:
        """Draws `curves.png` if there are new records and it is `least_age` seconds old.

        Metrics of evaluations have large panels, the others a row below. The y-axis leaves out the
        often steep first tenth. Dotted lines separate phases; dashed lines show guessing.
        """
        series: dict[str, dict[str, list[tuple[int, float]]]] = {}
        for record in self.records:
            for kind, _, name in (key.partition('/') for key in record):
                if kind in ('train', 'eval') and name not in _NOT_DRAWN:
                    series.setdefault(name, {}).setdefault(kind, []).append(
                        (record['step'], record[f'{kind}/{name}']))
        now, number = time.monotonic(), len(self.records)
        if not series or self._drawn == number or now - self._last_drawn < least_age:
            return
        from matplotlib.figure import Figure

        self._drawn, self._last_drawn, last = number, now, self.records[-1]['step']
        main = [name for name in series if 'eval' in series[name]] or [*series][:1]
        rest = [name for name in series if name not in main]
        rows_of = (-(-len(main) // 3), 1)
        heights = (3 * rows_of[0], 1.8)
        figure = Figure(figsize=(12, sum(heights)))
        parts: Any = figure.subfigures(2, 1, height_ratios=heights)
        for part, names, rows, height in zip(parts, (main, rest), rows_of, heights, strict=True):
            columns = -(-len(names) // rows)
            # Margins by hand: `layout='constrained'` takes as long as all the rest.
            part.subplots_adjust(0.05, 0.35 / height, 0.98, 1 - 0.3 / height, 0.05 * columns, 0.3)
            for place, name in enumerate(names, 1):
                axis = part.add_subplot(rows, columns, place)
                for kind, points in series[name].items():
                    axis.plot(*zip(*points, strict=True), 'C0-' if kind == 'train' else 'C1o-',
                              label=kind, markersize=3, linewidth=1)
                for step in self.phases:
                    if step < last:
                        axis.axvline(step, color='gray', linestyle=':', linewidth=1)
                if name in self.guessing:
                    axis.axhline(self.guessing[name], color='gray', linestyle='--', linewidth=1)
                late = [value for points in series[name].values() for step, value in points
                        if step >= last / 10]
                if late and (margin := 0.05 * (max(late) - min(late))):
                    axis.set_ylim(min(late) - margin, max(late) + margin)
                axis.set_title(name.replace('_', ' '), fontsize=10)
                axis.grid(alpha=0.3)
                axis.tick_params(labelsize=8)
        parts[0].axes[0].legend(fontsize=8)
        with only_warning(self.folder), files.open_whole(self.folder / 'curves.png') as file:
            figure.savefig(file, dpi=100, format='png')
        self._start_upload()

    def close(self) -> None:
        """Uploads the rest; if that fails for two minutes, prints where the files are."""
        for logger in self.loggers:
            with only_warning(f'a logger of {self.folder}'):
                logger.close()
        if self._active:
            self._file.close()
        deadline = time.monotonic() + _LAST_UPLOADS_SECONDS
        while not (whole := self.flush()) and time.monotonic() < deadline:
            time.sleep(5.0)
        self._thread.shutdown()
        if not whole:
            tell(f'warning: the last records of {self._workdir} are in {self.folder} of this '
                 'machine')
        elif self.folder is not self._workdir:
            shutil.rmtree(self.folder, ignore_errors=True)


# Causes of time other than productive steps. start: imports, data preparation, restoring. data:
# waiting for batches. lost: steps after the checkpoint that a run resumed from.
_CAUSES = ('start', 'compile', 'data', 'evaluation', 'save', 'profile', 'lost')
_KEPT_MARKS = 100


class Goodput:
    """A stopwatch that counts time by cause; `goodput.json` keeps it across restarts.

    Attributes:
      seconds: by cause, 'step' or one of `_CAUSES`; see `now`.
      cause: the current one.
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
          folder: where to write (`Report.folder`); default: workdir.
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
                old = json.loads((files.as_path(workdir) / 'goodput.json').read_text())
                seconds = {cause: float(old['seconds'].get(cause, 0.0)) for cause in self.seconds}
                marks = {0: 0.0} | {int(step): float(x) for step, x in old['marks'].items()}
                away = old['away'] + max(began - old['at'], 0.0)
                if all(map(math.isfinite, (away, *seconds.values(), *marks.values()))):
                    self._marks = {step: x for step, x in marks.items() if step <= start_step}
                    kept = max(self._marks.values())
                    seconds['lost'] += seconds['step'] - kept
                    self.seconds, self._away = seconds | {'step': kept}, away
            self._path = files.as_path(folder or workdir) / 'goodput.json'

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
        """Notes that the state of a step is saved, so that steps up to it cannot be lost."""
        self._marks[step] = self.now()['step']
        for old in list(self._marks)[1:-_KEPT_MARKS]:
            del self._marks[old]
        self.write()

    def write(self, at_most_every: float = 0.0) -> None:
        """Writes the file, unless it was written less than `at_most_every` seconds ago."""
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
        """`steps`: the first and the last to trace; None if this host traces none."""
        self._first, self._last = steps or (0, -1)
        self._workdir, self._folder = workdir, ''  # the folder while a trace runs, otherwise ''

    def before(self, step: int, results: Any) -> None:
        """Starts or ends the trace before a step, after waiting for the last results."""
        within = self._first <= step <= self._last
        if within == bool(self._folder):
            return
        jax.block_until_ready(results)
        if within:  # jax can write only to disks
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
        hosts.say(f'profile: tensorboard --logdir {self._workdir}')
