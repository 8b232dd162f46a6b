"""The records of a run: metrics.jsonl, and what is made of them."""

import concurrent.futures
import contextlib
import errno
import json
import math
import os
import shutil
import tempfile
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bert_jax.run.layout import CURVES, RECORDS
from bert_jax.runtime import files
from bert_jax.runtime.errors import InputError, tell
from bert_jax.runtime.schema import NUMBER, count
from bert_jax.watch.alarms import Alarm
from bert_jax.watch.curves import curves
from bert_jax.watch.loggers import LOGGERS, LoggedRun, Logger

_SECONDS_BETWEEN_UPLOADS = 30.0
_LAST_UPLOADS_SECONDS = 120.0
_SECONDS_BETWEEN_WARNINGS = 60.0
_warned: dict[str, float] = {}  # by place: when
_STEP = count(10**15, least=0)


@contextlib.contextmanager
def only_warning(place: object) -> Iterator[None]:
    """Turns an error into a warning, at most one a minute per place, so that training goes on."""
    try:
        yield
    except Exception as error:  # of many libraries
        now = time.monotonic()
        if now - _warned.get(str(place), -math.inf) > _SECONDS_BETWEEN_WARNINGS:
            _warned[str(place)] = now
            reason = ' '.join(str(error).split())[:200] or type(error).__name__
            tell(f'warning: {place} takes no records at present ({reason}); trying again later')


def duration(seconds: float) -> str:
    """Seconds as '1:02:03' or '2:03'."""
    minutes, secs = divmod(int(max(seconds, 0) + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f'{hours}:{minutes:02}:{secs:02}'
    return f'{minutes}:{secs:02}'


def short_number(number: float) -> str:
    """A number as '950', '12.3k' or '4.5M'."""
    if number >= 1e9:
        return f'{number / 1e9:.1f}G'
    if number >= 1e6:
        return f'{number / 1e6:.1f}M'
    if number >= 1e4:
        return f'{number / 1e3:.1f}k'
    if number >= 100:
        return f'{number:.0f}'
    return f'{number:.3g}'


def read_records(path: files.Path) -> list[dict[str, Any]]:
    """The records in a metrics.jsonl, without an incomplete last line of a killed process.

    Raises:
      InputError: another line is malformed.
    """
    lines = files.read_bytes(path).splitlines() if path.exists() else []
    records = []
    for number, line in enumerate(lines, 1):
        record = _parse_record(line)
        if record is not None:
            records.append(record)
        elif number < len(lines):
            raise InputError(
                f'{path}, line {number} is not a valid record: correct it, or move the '
                'file away and the curves begin anew')
    return records


def _parse_record(line: bytes) -> dict[str, Any] | None:
    """A record of numbers with an integer `step`; None if the line is something else."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or record.get('step') not in _STEP:
        return None
    are_numbers = all(type(value) is float or value in NUMBER for value in record.values())
    return record if are_numbers else None


class _Sent(NamedTuple):
    """The state of a file in a bucket.

    Attributes:
      changed: when the file was last changed before it was sent.
      size: number of bytes that were sent.
    """

    changed: int
    size: int


class MetricsLog:
    """The records of a run: `metrics.jsonl`, loggers and `curves.png`.

    If the run directory is in a bucket, a thread uploads the files of a local folder at intervals:
    of the records and of event files, which grow in a long run, only what is new.

    Attributes:
      records: all of the run so far.
      loggers: these receive the records too.
      folder: where files are written; the run directory, or a folder that is uploaded there. Files
        whose names begin with a dot are not uploaded.
    """

    def __init__(
        self, workdir: Any, active: bool, start_step: int, *, phases: Sequence[int] = (),
        guessing: Mapping[str, float] = types.MappingProxyType({}),
    ):
        """Cuts `metrics.jsonl` back to the step that the run starts from.

        Args:
          workdir: the run directory.
          active: whether this process writes and prints; one of a run does.
          start_step: where training starts.
          phases, guessing: for `curves.png`: the last steps of phases, and the metrics of guessing.

        Raises:
          InputError: metrics.jsonl is malformed.
        """
        self.records: list[dict[str, Any]] = []
        self.loggers: list[Logger] = []
        self.folder = workdir
        self._phases = phases
        self._guessing = guessing
        self._workdir = workdir
        self._active = active
        self._start = start_step
        self._unwritten = b''  # lines that could not be written yet
        self._drawn = 0  # number of records in curves.png
        self._last_drawn = time.monotonic()
        self._thread = concurrent.futures.ThreadPoolExecutor(1)
        self._last_upload = time.monotonic()
        self._sent: dict[str, _Sent] = {}  # by file
        if active:
            records = read_records(workdir / RECORDS)
            self.records = [record for record in records if record['step'] <= start_step]
            if files.in_bucket(workdir):
                self.folder = files.as_path(tempfile.mkdtemp(prefix='bert_jax_'))
            path = self.folder / RECORDS
            files.write_whole(path, ''.join(json.dumps(record) + '\n' for record in self.records))
            self.flush()
            self._file = open(path, 'r+b', buffering=0)  # noqa: SIM115
            self._size = os.fstat(self._file.fileno()).st_size

    def open_loggers(self, names: Sequence[str], config: Mapping[str, Any]) -> None:
        """Opens loggers: all on the first host, on other hosts only those that log every host.

        Args:
          names: of `LOGGERS`.
          config: the run's, as plain values.

        Raises:
          InputError: a logger cannot be used here.
        """
        run = LoggedRun(self._workdir, self.folder, self._start, config)
        for name, kind in LOGGERS.items():
            if name in names and (self._active or kind.on_every_host):
                self.loggers.append(kind.open(run))

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
        self._start_upload(_SECONDS_BETWEEN_UPLOADS)

    def evaluations(self, after: int) -> list[int]:
        """The recorded steps of evaluations after a step."""
        steps = []
        for record in self.records:
            is_evaluation = any(name.startswith('eval/') for name in record)
            if is_evaluation and record['step'] > after:
                steps.append(record['step'])
        return steps

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
            for path in files.children(self.folder):
                if path.name.startswith('.'):  # temporary, and perhaps gone by now
                    continue
                changed = os.stat(path).st_mtime_ns
                sent = self._sent.get(path.name)
                if sent is None or sent.changed != changed:
                    size = _send(path, self._workdir / path.name, sent)
                    self._sent[path.name] = _Sent(changed, size)
            return True
        return False

    def warn(self, alarms: Sequence[Alarm]) -> None:
        """Writes warnings as records and prints them on standard error."""
        for alarm in alarms:
            self.write(alarm.step, {f'gate/{alarm.name}': alarm.value})
            if self._active:
                tell(f'warning: {alarm.line}')

    def draw(self, least_age: float = 0.0) -> None:
        """Draws `curves.png` if there are new records and it is `least_age` seconds old."""
        now = time.monotonic()
        if self._drawn == len(self.records) or now - self._last_drawn < least_age:
            return
        self._drawn = len(self.records)
        self._last_drawn = now
        with only_warning(self.folder / CURVES):
            figure = curves(self.records, self._phases, self._guessing)
            if figure is not None:
                with files.open_whole(self.folder / CURVES) as file:
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
        uploaded = self.flush()
        while not uploaded and time.monotonic() < deadline:
            time.sleep(5.0)
            uploaded = self.flush()
        self._thread.shutdown()
        if not uploaded:
            tell(f'warning: the last records of {self._workdir} are in {self.folder} of this '
                 'machine')
        elif self.folder is not self._workdir:
            shutil.rmtree(self.folder, ignore_errors=True)


def _send(path: files.Path, target: files.Path, sent: _Sent | None) -> int:
    """Makes an object equal to a local file, which may grow meanwhile.

    Args:
      path: the file.
      target: the object.
      sent: what the object has already; None: nothing, or something else.

    Returns:
      How many bytes the object has.
    """
    only_grows = path.name == RECORDS or path.name.startswith('events.')
    if only_grows and sent is not None:
        new = _settled(path, begin=sent.size)
        if not new or files.append(target, new, sent.size):
            return sent.size + len(new)
    content = _settled(path)
    files.write_whole(target, content)
    return len(content)


def _settled(path: files.Path, begin: int = 0) -> bytes:
    """The bytes of a file from `begin` on; whole lines of records, as a full disk cuts others."""
    with open(path, 'rb') as file:
        file.seek(begin)
        content = file.read()
    if path.name == RECORDS:
        return content[: content.rfind(b'\n') + 1]
    return content
