"""Where metrics go beside `metrics.jsonl`: TensorBoard, Weights & Biases, Cloud Monitoring."""

from __future__ import annotations

import concurrent.futures
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from bert_jax.runtime import hosts
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path
from bert_jax.runtime.process import without

_MONITORING_SECONDS = 30.0  # between requests; a series takes a point every five seconds
_MONITORED = ('goodput', 'step_seconds', 'step_seconds_deviation', 'data_wait', 'mfu')
_FIELD = 'config.train.loggers'


class Logger(NamedTuple):
    """Takes the metrics of a step, and is closed at the end. Both may raise any error."""

    write: Callable[[int, Mapping[str, float]], None]
    close: Callable[[], None]


def open_loggers(
    names: Sequence[str], workdir: Path, folder: Path, start_step: int, config: Mapping[str, Any],
) -> list[Logger]:
    """The loggers of this host: all on the first, on the others those that log every host.

    Args:
      names: of `config.fields.LOGGERS`.
      workdir: the run directory.
      folder: receives files; `workdir`, or a folder that is uploaded there.
      start_step: where training starts.
      config: the run's, as plain values.

    Raises:
      InputError: a logger cannot be used here.
    """
    opened = [cloud_monitoring(workdir)] if 'cloud_monitoring' in names else []
    if hosts.first() and 'tensorboard' in names:
        opened.append(tensorboard(folder, start_step))
    if hosts.first() and 'wandb' in names:
        opened.append(wandb(workdir, config))
    return opened


def tensorboard(folder: Path, start_step: int) -> Logger:
    """Event files; TensorBoard hides what older files hold beyond `start_step`."""
    with without('torch'), without('google.cloud.storage'):
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.summary import scalar

    # Not its SummaryWriter, whose thread dies of a full disk, after which the caller hangs.
    events = EventsWriter(str(folder / 'events'))
    if start_step:
        events.write_event(Event(
            wall_time=time.time(), step=start_step + 1,
            session_log=SessionLog(status=SessionLog.START)))

    def write(step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            events.write_event(Event(
                wall_time=time.time(), step=step, summary=scalar(name, value)))
        events.flush()

    return Logger(write, events.close)


def wandb(workdir: Path, config: Mapping[str, Any]) -> Logger:
    """Weights & Biases, set up by its own variables: WANDB_PROJECT, WANDB_MODE, ...

    The id follows from the run directory, so a resumed run goes on there.
    """
    try:
        import wandb as library
    except ModuleNotFoundError:
        raise InputError(f'{_FIELD}: wandb is not installed: pip install wandb') from None
    run = library.init(
        id=hashlib.sha256(os.fspath(workdir).encode()).hexdigest()[:16], name=workdir.name,
        resume='allow', config=dict(config),
        dir=os.environ.get('WANDB_DIR') or tempfile.gettempdir())
    return Logger(lambda step, metrics: run.log(dict(metrics), step=step), run.finish)


def cloud_monitoring(workdir: Path) -> Logger:
    """Every host's goodput and step time in Google Cloud Monitoring, sent by a thread.

    The series are `custom.googleapis.com/bert_jax/NAME` of a `generic_task` whose job is the run
    and whose task_id is the host.
    """
    try:
        import google.auth
        from google.auth.transport.requests import AuthorizedSession

        credentials, project = google.auth.default(
            scopes=['https://www.googleapis.com/auth/monitoring.write'])
    except ModuleNotFoundError:
        raise InputError(f"{_FIELD}: cloud_monitoring needs google-auth: pip install "
                         "'google-auth[requests]'") from None
    except google.auth.exceptions.DefaultCredentialsError as error:
        raise InputError(f'{_FIELD}: cloud_monitoring has no credentials '
                         f'({" ".join(str(error).split())[:200]})') from None
    if not project:
        raise InputError(f'{_FIELD}: cloud_monitoring knows no project: set GOOGLE_CLOUD_PROJECT')
    session, thread = AuthorizedSession(credentials), concurrent.futures.ThreadPoolExecutor(1)
    resource: Any = {'type': 'generic_task', 'labels': {
        'project_id': project, 'location': 'global', 'namespace': 'bert_jax',
        'job': workdir.name, 'task_id': str(hosts.index())}}
    sent, request = -_MONITORING_SECONDS, concurrent.futures.Future[None]()
    request.set_result(None)

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
            last.result()  # raises what became of it

    return Logger(write, thread.shutdown)
