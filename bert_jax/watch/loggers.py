"""Loggers besides metrics.jsonl: TensorBoard, Weights & Biases, Google Cloud Monitoring."""

import concurrent.futures
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from bert_jax.runtime import files, hosts
from bert_jax.runtime.errors import InputError, first_line, install, needing
from bert_jax.runtime.hashing import digest
from bert_jax.runtime.packages import without
from bert_jax.runtime.schema import why_not_allowed

_MONITORING_SECONDS = 30.0  # between requests; a series takes a point every five seconds
_MONITORED = ('goodput', 'step_seconds', 'step_seconds_deviation', 'data_wait', 'mfu')


class Logger(NamedTuple):
    """Receives metrics of steps, and is closed at the end. Both functions may raise any error."""

    write: Callable[[int, Mapping[str, float]], None]
    close: Callable[[], None]


class LoggedRun(NamedTuple):
    """The run whose metrics are logged.

    Attributes:
      workdir: the run directory.
      folder: where files of the run are written; a bucket's are uploaded from it.
      start_step: where training starts.
      config: as plain values.
    """

    workdir: files.Path
    folder: files.Path
    start_step: int
    config: Mapping[str, Any]


def tensorboard(run: LoggedRun) -> Logger:
    """Event files; TensorBoard hides what older files contain beyond the first step."""
    with without('torch'), without('google.cloud.storage'):
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.summary import scalar

    # Not its SummaryWriter: a full disk ends that one's thread, and the caller then hangs.
    events = EventsWriter(str(run.folder / 'events'))
    if run.start_step:
        events.write_event(Event(
            wall_time=time.time(), step=run.start_step + 1,
            session_log=SessionLog(status=SessionLog.START)))

    def write(step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            events.write_event(Event(wall_time=time.time(), step=step, summary=scalar(name, value)))
        events.flush()

    return Logger(write, events.close)


def wandb(run: LoggedRun) -> Logger:
    """Weights & Biases, set up by its own environment variables: WANDB_PROJECT, WANDB_MODE, ...

    The id there is a hash of the run directory's path, so a resumed run continues the same record.
    """
    with needing('config.train.loggers=wandb', package='wandb'):
        import wandb as library
    record = library.init(
        id=digest(os.fspath(run.workdir).encode())[:16], name=run.workdir.name,
        resume='allow', config=dict(run.config),
        dir=os.environ.get('WANDB_DIR') or tempfile.gettempdir())
    return Logger(lambda step, metrics: record.log(dict(metrics), step=step), record.finish)


def cloud_monitoring(run: LoggedRun) -> Logger:
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
        raise InputError('config.train.loggers: cloud_monitoring needs google-auth: '
                         f"{install('gcs')}") from None
    except google.auth.exceptions.DefaultCredentialsError as error:
        raise InputError('config.train.loggers: cloud_monitoring has no credentials '
                         f'({first_line(error)})') from None
    if not project:
        raise InputError('config.train.loggers: cloud_monitoring knows no project: set '
                         'GOOGLE_CLOUD_PROJECT')
    session = AuthorizedSession(credentials)
    url = f'https://monitoring.googleapis.com/v3/projects/{project}/timeSeries'
    resource = {
        'type': 'generic_task',
        'labels': {
            'project_id': project, 'location': 'global', 'namespace': 'bert_jax',
            'job': run.workdir.name, 'task_id': str(hosts.index()),
        },
    }

    def send(metrics: Mapping[str, float]) -> None:
        now = time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())
        series = [_monitoring_series(name, value, now, resource) for name, value in metrics.items()]
        session.post(url, timeout=20, json={'timeSeries': series}).raise_for_status()

    thread = concurrent.futures.ThreadPoolExecutor(1)
    request: concurrent.futures.Future[Any] = thread.submit(str)
    sent = -_MONITORING_SECONDS

    def write(step: int, metrics: Mapping[str, float]) -> None:
        nonlocal sent, request
        del step
        chosen = {}
        for name in _MONITORED:
            if f'train/{name}' in metrics:
                chosen[name] = metrics[f'train/{name}']
        if chosen and request.done() and time.monotonic() - sent >= _MONITORING_SECONDS:
            sent = time.monotonic()
            last = request
            request = thread.submit(send, chosen)
            last.result()  # raises the error of the last request

    return Logger(write, thread.shutdown)


def _monitoring_series(
    name: str, value: float, time_of_value: str, resource: Mapping[str, Any]
) -> dict[str, Any]:
    """One point of a series, as Cloud Monitoring's REST interface takes it."""
    point = {'interval': {'endTime': time_of_value}, 'value': {'doubleValue': value}}
    return {
        'metric': {'type': f'custom.googleapis.com/bert_jax/{name}'},
        'resource': resource,
        'points': [point],
    }


class LoggerKind(NamedTuple):
    """A kind of logger.

    Attributes:
      open: starts one for a run.
      on_every_host: whether every host of a run has one, rather than the first alone.
    """

    open: Callable[[LoggedRun], Logger]
    on_every_host: bool = False


# By name in `train.loggers`.
LOGGERS: Mapping[str, LoggerKind] = {
    'tensorboard': LoggerKind(tensorboard),
    'wandb': LoggerKind(wandb),
    'cloud_monitoring': LoggerKind(cloud_monitoring, on_every_host=True),
}


def logger_names(loggers: str) -> list[str]:
    """The names in `train.loggers`, which are comma-separated and may be empty.

    Raises:
      InputError: there is no such logger.
    """
    names = loggers.split(',')
    for name in names:
        why = why_not_allowed(name, (*LOGGERS, ''))
        if why:
            raise InputError(f'config.train.loggers={name!r} {why}')
    return names
