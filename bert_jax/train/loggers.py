"""Where metrics go beside metrics.jsonl: TensorBoard, Weights & Biases, Google Cloud Monitoring."""

import concurrent.futures
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from bert_jax.runtime import files, hosts
from bert_jax.runtime.errors import InputError, first_line, needing
from bert_jax.runtime.packages import without

_MONITORING_SECONDS = 30.0  # between requests; a series takes a point every five seconds
_MONITORED = ('goodput', 'step_seconds', 'step_seconds_deviation', 'data_wait', 'mfu')


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
    session = AuthorizedSession(credentials)
    url = f'https://monitoring.googleapis.com/v3/projects/{project}/timeSeries'
    resource = {
        'type': 'generic_task',
        'labels': {
            'project_id': project, 'location': 'global', 'namespace': 'bert_jax',
            'job': workdir.name, 'task_id': str(hosts.index()),
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
        chosen = {name: metrics[f'train/{name}'] for name in _MONITORED
                  if f'train/{name}' in metrics}
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
