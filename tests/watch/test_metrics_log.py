"""What a run writes: records, which are cut back when it resumes, curves, loggers, goodput."""

import contextlib
import dataclasses
import json
import os
import resource
import shutil
import signal
import sys
from typing import Any
from unittest import mock

import pytest

from bert_jax.runtime import buckets, files
from bert_jax.runtime.errors import InputError
from bert_jax.watch import loggers
from bert_jax.watch import metrics_log as report_module
from bert_jax.watch.goodput import Goodput
from bert_jax.watch.metrics_log import MetricsLog
from tests.conftest import wait_until


def read(workdir):
    lines = (workdir / 'metrics.jsonl').read_text().splitlines()
    return [json.loads(line) for line in lines]


def steps_in(workdir):
    return [record['step'] for record in read(workdir)]


def write_records(workdir, steps, tail=''):
    lines = [f'{{"step": {step}, "train/loss": {step}.5}}\n' for step in steps]
    (workdir / 'metrics.jsonl').write_text(''.join(lines) + tail)


@pytest.mark.parametrize('tail', [
    pytest.param('', id='whole'),
    pytest.param('{"step": 5, "train/lo', id='cut off'),
    pytest.param('\0\0\0', id='zeros'),
])
@pytest.mark.parametrize('start, kept', [
    (0, []),
    (2, [1, 2]),
    (3, [1, 2, 3]),
    (9, [1, 2, 3, 4]),
])
def test_records_are_cut_back_to_the_step_resumed_from(tmp_path, tail, start, kept):
    write_records(tmp_path, steps=(1, 2, 3, 4), tail=tail)
    report = MetricsLog(tmp_path, True, start)
    assert steps_in(tmp_path) == kept
    report.write(start + 1, {'train/loss': 0.25})
    assert read(tmp_path)[-1] == {'step': start + 1, 'train/loss': 0.25}  # at once
    assert steps_in(tmp_path) == [*kept, start + 1]
    assert [record['step'] for record in report.records] == [*kept, start + 1]
    report.close()
    assert not list(tmp_path.glob('*.tmp'))


def test_other_processes_write_and_say_nothing(tmp_path, capsys):
    report = MetricsLog(tmp_path, False, 0)
    goodput = Goodput(tmp_path, False, 0, 0.0)
    report.write(1, {'train/loss': 1.0})
    report.draw()
    goodput.mark(3)
    report.close()
    assert not list(tmp_path.iterdir())
    assert not capsys.readouterr().out


def test_a_bucket_gets_the_records_in_batches(bucket, bucket_name, bucket_server):
    workdir = files.as_path(bucket) / 'run'
    upload = f'POST /upload/storage/v1/b/{bucket_name}/o'

    def num_uploads():
        return sum(request.startswith(upload) for request in bucket_server.requests)

    report = MetricsLog(workdir, True, 0)
    report.open_loggers(['tensorboard'], {})
    before = num_uploads()
    for step in range(1, 101):
        report.write(step, {'train/mlm_loss': 1.0})
    assert num_uploads() == before
    assert read(workdir) == []
    report.flush()
    assert steps_in(workdir) == list(range(1, 101))
    report.write(101, {'eval/mlm_loss': 1.0})
    report.close()
    assert steps_in(workdir) == list(range(1, 102))


def test_a_bucket_gets_records_events_and_curves(bucket):
    workdir = files.as_path(bucket) / 'run'
    report = MetricsLog(workdir, True, 0)
    report.open_loggers(['tensorboard'], {})
    report.write(100, {'train/mlm_loss': 1.0})
    report.write(101, {'eval/mlm_loss': 1.0})
    report.draw()
    report.close()
    kinds = {path.name.partition('.')[0]: path for path in workdir.iterdir()}
    assert set(kinds) == {'metrics', 'events', 'curves'}
    assert b'eval/mlm_loss' in kinds['events'].read_bytes()
    assert kinds['curves'].read_bytes().startswith(b'\x89PNG')


def test_curves_are_not_drawn_before_their_time(bucket):
    workdir = files.as_path(bucket) / 'run'
    report = MetricsLog(workdir, True, 0)
    report.write(101, {'eval/mlm_loss': 1.0})
    report.draw(least_age=60.0)
    assert not (report.folder / 'curves.png').exists(), 'the run is not a minute old'
    report.close()


def test_records_in_a_bucket_are_cut_back_to_the_step_resumed_from(bucket):
    workdir = files.as_path(bucket) / 'run'
    first = MetricsLog(workdir, True, 0)
    for step in range(1, 102):
        first.write(step, {'train/mlm_loss': 1.0})
    first.close()
    again = MetricsLog(workdir, True, 50)
    assert steps_in(workdir) == list(range(1, 51))
    again.write(51, {'train/mlm_loss': 1.0})
    again.close()
    assert steps_in(workdir) == list(range(1, 52))


def test_a_bucket_gets_of_records_and_events_only_what_is_new(bucket, bucket_name, bucket_server):
    workdir = files.as_path(bucket) / 'run'
    report = MetricsLog(workdir, True, 0)
    report.open_loggers(['tensorboard'], {})
    for step in range(1, 501):
        report.write(step, {'train/mlm_loss': 1.0})
    report.flush()
    before = bucket_server.received[bucket_name]
    report.write(501, {'train/mlm_loss': 1.0})
    report.flush()
    assert bucket_server.received[bucket_name] - before < 3000  # of 70,000
    report.close()
    assert steps_in(workdir) == list(range(1, 502))
    (events,) = workdir.glob('events.*')
    assert events.read_bytes().count(b'train/mlm_loss') == 501
    assert not [path for path in workdir.iterdir() if path.name.startswith('.')]


class Killed(BaseException):
    """Ends a process in the midst of an upload."""


# The requests of an append, in order.
REQUESTS = ['GET an object', 'upload', 'join', 'delete']
# By method of gcsfs: the requests that it makes here, by their first argument.
GCSFS = {
    'call': {'GET': 'GET an object', 'POST': 'join'},
    'pipe_file': {'': 'upload'},
    'rm_file': {'': 'delete'},
}


def killing(bucket_name, method, requests, fatal_request, is_after, done):
    """A method that ends the process before or after a request, and adds others to `done`.

    Requests to other buckets, which threads of tests before may still make, are left alone.
    """
    def call(first, *args, **options):
        if bucket_name not in '/'.join(map(str, (first, *args))).split('/'):
            return method(first, *args, **options)
        request = requests.get(first) or requests['']
        is_fatal = request == fatal_request
        if is_fatal and not is_after:
            raise Killed
        result = method(first, *args, **options)
        done.append(request)
        if is_fatal:
            raise Killed
        return result

    return call


@pytest.mark.parametrize('is_after', [False, True], ids=['before it', 'after it'])
@pytest.mark.parametrize('fatal_request', REQUESTS)
def test_a_kill_while_records_are_uploaded_loses_and_doubles_none(
    bucket, bucket_name, monkeypatch, fatal_request, is_after
):
    workdir = files.as_path(bucket) / 'run'
    killed = MetricsLog(workdir, True, 0)
    for step in (1, 2):
        killed.write(step, {'train/mlm_loss': 1.0})
    killed.flush()
    killed.write(3, {'train/mlm_loss': 1.0})
    done = []
    with monkeypatch.context() as patch:
        for name, requests in GCSFS.items():
            method = getattr(buckets.file_system(), name)
            patch.setattr(buckets.file_system(), name, killing(
                bucket_name, method, requests, fatal_request, is_after, done))
        with pytest.raises(Killed):
            killed.flush()
    assert done == REQUESTS[:REQUESTS.index(fatal_request) + is_after]
    assert steps_in(workdir) == ([1, 2, 3] if 'join' in done else [1, 2])

    resumed = MetricsLog(workdir, True, 2)
    assert steps_in(workdir) == [1, 2]
    for step in (3, 4):
        resumed.write(step, {'train/mlm_loss': 1.0})
        resumed.flush()
    resumed.close()
    assert steps_in(workdir) == [1, 2, 3, 4]
    assert not [path for path in workdir.iterdir() if path.name.startswith('.')]


@pytest.mark.parametrize('fault', [
    pytest.param('/b/{}/.*/compose', id='cannot join'),
    pytest.param('/upload/.*/b/{}/', id='takes nothing'),
    pytest.param('DELETE .*/b/{}/', id='deletes nothing'),
])
def test_records_that_cannot_be_appended_come_whole(
        bucket, bucket_name, bucket_server, monkeypatch, fault):
    workdir = files.as_path(bucket) / 'run'
    report = MetricsLog(workdir, True, 0)
    report.write(1, {'train/mlm_loss': 1.0})
    report.flush()
    monkeypatch.setattr(bucket_server, 'faults', {fault.format(bucket_name): 403})
    for step in (2, 3):
        report.write(step, {'train/mlm_loss': 1.0})
        report.flush()
    bucket_server.faults.clear()
    report.close()
    assert steps_in(workdir) == [1, 2, 3]


def test_a_record_that_is_written_in_part_is_uploaded_when_it_is_whole(bucket):
    workdir = files.as_path(bucket) / 'run'
    report = MetricsLog(workdir, True, 0)
    report.write(1, {'train/mlm_loss': 1.0})
    local = report.folder / 'metrics.jsonl'
    whole = os.stat(local).st_size
    with open(local, 'ab') as file:
        file.write(b'{"step": 2, "tra')  # which a full disk cuts off again
    report.flush()
    assert steps_in(workdir) == [1]
    os.truncate(local, whole)
    report.write(3, {'train/mlm_loss': 1.0})
    report.close()
    assert steps_in(workdir) == [1, 3]


@dataclasses.dataclass
class RefusedReport:
    """A report with a record of step 1, which the bucket of its run has not taken."""

    report: MetricsLog
    workdir: Any
    warning: str


@pytest.fixture
def refused(bucket, bucket_name, bucket_server, monkeypatch, capsys):
    monkeypatch.setattr(report_module, '_LAST_UPLOADS_SECONDS', 0.0)
    workdir = files.as_path(bucket) / 'run'
    report = MetricsLog(workdir, True, 0)
    goodput = Goodput(workdir, True, 0, 0.0, folder=report.folder)
    monkeypatch.setattr(bucket_server, 'faults', {f'/b/{bucket_name}/o': 403})
    report.write(1, {'train/mlm_loss': 1.0})
    goodput.mark(1)
    report.flush()
    yield RefusedReport(report, workdir, capsys.readouterr().err)
    shutil.rmtree(report.folder, ignore_errors=True)


def test_a_bucket_that_refuses_records_is_a_warning(refused):
    warning = f'warning: {refused.workdir} takes no records at present (Forbidden'
    assert warning in refused.warning
    refused.report.close()


def test_a_bucket_that_refuses_records_for_a_while_gets_them_later(
    refused, bucket_server, capsys
):
    bucket_server.faults.clear()
    refused.report.close()
    message = f'are in {refused.report.folder} of this machine'
    assert message not in capsys.readouterr().err
    assert steps_in(refused.workdir) == [1]


def test_records_that_a_bucket_refuses_stay_on_the_machine(refused, capsys):
    refused.report.close()
    message = f'are in {refused.report.folder} of this machine'
    assert message in capsys.readouterr().err
    assert steps_in(refused.report.folder) == [1]


def test_a_file_that_grows_while_it_is_uploaded_arrives(bucket):
    workdir = files.as_path(bucket) / 'run'
    report = MetricsLog(workdir, True, 0)
    events = report.folder / 'events.big'
    early, late = os.urandom(6 << 20), os.urandom(1 << 20)
    events.write_bytes(early)
    file_system = buckets.file_system()
    pipe_file = file_system.pipe_file

    def grow_and_pipe(path, data, **options):
        # Threads of tests before this one may write to their buckets meanwhile.
        if path == str(workdir / 'events.big'):
            events.write_bytes(early + late)
        return pipe_file(path, data, **options)

    with mock.patch.object(file_system, 'pipe_file', grow_and_pipe):
        assert report.flush()
    assert (workdir / 'events.big').read_bytes() == early
    report.close()
    assert (workdir / 'events.big').read_bytes() == early + late


@contextlib.contextmanager
def full_disk(file, bytes_left):
    """Lets no file of this process grow longer than a file is, and a few bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (os.stat(file).st_size + bytes_left, hard))
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_loses_no_record(tmp_path, capsys):
    report = MetricsLog(tmp_path, True, 0)
    report.write(1, {'train/loss': 1.0})
    with full_disk(tmp_path / 'metrics.jsonl', bytes_left=10):
        report.write(2, {'train/loss': 2.0})
    assert steps_in(tmp_path) == [1]
    assert 'takes no records at present' in capsys.readouterr().err
    report.write(3, {'train/loss': 3.0})
    report.close()
    assert steps_in(tmp_path) == [1, 2, 3]


@dataclasses.dataclass
class Monitoring:
    """A stand-in for Cloud Monitoring: what it received, and with which status it answers."""

    received: list[tuple[str, list]]  # (URL, time series)
    response: Any


@pytest.fixture
def monitoring(monkeypatch):
    auth = pytest.importorskip('google.auth')
    import requests

    stand_in = Monitoring([], requests.Response())
    stand_in.response.status_code = 200

    def post(url, *, json, timeout):
        stand_in.received.append((url, json['timeSeries']))
        return stand_in.response

    monkeypatch.setattr(
        'google.auth.transport.requests.AuthorizedSession',
        lambda credentials: mock.Mock(post=post))
    monkeypatch.setattr(auth, 'default', lambda scopes: (None, 'project'))
    return stand_in


def logged(workdir):
    return loggers.LoggedRun(workdir, workdir, start_step=0, config={})


def test_cloud_monitoring_gets_goodput_and_step_time_of_the_host(tmp_path, monitoring):
    logger = loggers.cloud_monitoring(logged(tmp_path / 'run'))
    logger.write(10, {'eval/mlm_loss': 5.0})
    logger.write(10, {'train/goodput': 0.5, 'train/step_seconds': 0.25, 'train/loss': 3.0})
    logger.write(11, {'train/goodput': 0.6})  # within the half minute between requests
    logger.close()
    ((url, series),) = monitoring.received
    assert url == 'https://monitoring.googleapis.com/v3/projects/project/timeSeries'
    values = {}
    for one in series:
        name = one['metric']['type'].rpartition('/')[2]
        values[name] = one['points'][0]['value']['doubleValue']
        assert one['resource']['labels']['job'] == 'run'
        assert one['resource']['labels']['task_id'] == '0'
    assert values == {'goodput': 0.5, 'step_seconds': 0.25}


def test_a_logger_that_fails_is_a_warning(tmp_path, monitoring, monkeypatch, capsys):
    monkeypatch.setattr(loggers, '_MONITORING_SECONDS', 0.0)
    monitoring.response.status_code = 503
    report = MetricsLog(tmp_path, True, 0)
    report.open_loggers(['cloud_monitoring'], {})
    for step in (1, 2, 3):
        write_until_received(report, step, monitoring.received)
    report.close()
    assert 'warning: a logger' in capsys.readouterr().err
    assert {record['step'] for record in report.records} == {1, 2, 3}


def write_until_received(report, step, received):
    """Writes a step's record again and again: the logger skips one while it sends another."""
    def write_and_look():
        report.write(step, {'train/goodput': 0.5})
        return len(received) >= step

    wait_until(write_and_look)


def test_cloud_monitoring_says_that_it_needs_a_project(tmp_path, monkeypatch):
    auth = pytest.importorskip('google.auth')
    monkeypatch.setattr(auth, 'default', lambda scopes: (None, None))
    with pytest.raises(InputError, match='GOOGLE_CLOUD_PROJECT'):
        loggers.cloud_monitoring(logged(tmp_path))


def test_a_logger_says_which_package_it_needs(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, 'wandb', None)
    with pytest.raises(InputError, match='pip install wandb .*'):
        loggers.wandb(logged(tmp_path))


def spend(goodput, *, step):
    """Trains for some seconds."""
    goodput.enter('step')
    goodput.clock.return_value += step
    goodput.enter('step')


@pytest.fixture
def clock():
    return mock.Mock(return_value=0.0)


@pytest.fixture
def killed_at_190(tmp_path, clock):
    """The folder of a run that was killed after 180 seconds of steps, of which 150 are saved."""
    clock.return_value = 10.0  # it takes 10 seconds to start
    goodput = Goodput(tmp_path, True, 0, 0.0, clock)
    spend(goodput, step=100)
    goodput.mark(1000)
    spend(goodput, step=50)
    goodput.mark(1500)
    spend(goodput, step=30)
    goodput.write()
    return tmp_path


def resume_at_250(folder, clock):
    """Goodput of the process that goes on from step 1,500, after 50 seconds and 10 to start."""
    clock.return_value = 250.0
    goodput = Goodput(folder, True, 1500, 240.0, clock)
    goodput.enter('step')
    return goodput


def test_steps_undone_by_a_kill_count_as_lost(killed_at_190, clock):
    times = resume_at_250(killed_at_190, clock).now()
    assert times['step'] == 150
    assert times['lost'] == 30


def test_what_this_process_spent_is_told_without_what_those_before_it_did(killed_at_190, clock):
    goodput = resume_at_250(killed_at_190, clock)
    clock.return_value = 257.0
    for _ in range(2):  # asking changes nothing
        spent = goodput.of_this_process()
        assert {cause: seconds for cause, seconds in spent.items() if seconds} == {
            'start': 10, 'step': 7}


def test_steps_undone_because_of_a_damaged_checkpoint_count_as_lost(killed_at_190, clock):
    second = resume_at_250(killed_at_190, clock)
    spend(second, step=7)
    second.write()  # at 257; killed before it saved

    clock.return_value = 300.0
    third = Goodput(killed_at_190, True, 1000, 300.0, clock)  # the checkpoint of 1,500 is damaged
    times = {cause: seconds for cause, seconds in third.now().items() if seconds}
    assert times == {'step': 100, 'start': 20, 'lost': 87}
    assert third.metrics()['train/goodput'] == 100 / 207
    assert third.line() == 'goodput 48.3% of 3:27 (start 9.7%, lost 42.0%); 1:33 not running'


@pytest.mark.parametrize('content', [
    pytest.param('{"seconds": {', id='cut off'),
    pytest.param('null', id='null'),
    pytest.param('{"seconds": {}, "away": 0, "at": NaN, "marks": {}}', id='not a number'),
])
def test_a_damaged_goodput_file_does_not_stop_a_run(tmp_path, content):
    (tmp_path / 'goodput.json').write_text(content)
    goodput = Goodput(tmp_path, True, 10, 0.0, lambda: 5.0)
    assert sum(goodput.now().values()) == 5
    goodput.write()
    assert json.loads((tmp_path / 'goodput.json').read_text())['seconds']['start'] == 5


# What a hand, or a number that is no loss any more, puts into the files of a run.
_NO_POINTS = ('Infinity', '-Infinity', 'NaN', '1e308', '-1e308', f'1{"0" * 400}')


@pytest.mark.parametrize('value', _NO_POINTS, ids=lambda value: value[:9])
@pytest.mark.parametrize('others', [(), ('2.0', '1.5')], ids=['alone', 'among others'])
def test_no_value_of_a_record_ends_a_run_that_draws_it(tmp_path, value, others):
    values = [*others, value]
    lines = [f'{{"step": {i}, "eval/loss": {x}}}\n' for i, x in enumerate(values, 1)]
    (tmp_path / 'metrics.jsonl').write_text(''.join(lines))
    report = MetricsLog(tmp_path, True, len(values))
    report.draw()
    report.close()
    assert (tmp_path / 'curves.png').exists() == bool(others)


def test_a_picture_that_cannot_be_drawn_is_a_warning(tmp_path, monkeypatch, capsys):
    report = MetricsLog(tmp_path, True, 0)
    report.write(1, {'eval/loss': 1.0})
    monkeypatch.setattr(report_module, 'curves', mock.Mock(side_effect=ValueError('no axis')))
    report.draw()
    report.close()
    assert 'curves.png takes no records at present (no axis)' in capsys.readouterr().err


@pytest.mark.parametrize('content', [
    '{"seconds": {"step": 1e308, "data": 1e308}, "away": 0, "at": 0, "marks": {}}',
    '{"seconds": {"step": -5}, "away": 0, "at": 0, "marks": {}}',
    '{"seconds": {}, "away": 0, "at": -1e300, "marks": {}}',
    '{"seconds": {}, "away": NaN, "at": 0, "marks": {}}',
    '{"seconds": [], "away": 0, "at": 0, "marks": {}}',
    '[]', '', '{"seconds": {}, "away": 0, "at": 0, "marks": {"1": Infinity}}',
])
def test_no_content_of_goodput_json_ends_a_run(tmp_path, content):
    (tmp_path / 'goodput.json').write_text(content)
    goodput = Goodput(tmp_path, True, 10, 5.0, lambda: 7.0)
    assert goodput.now() == dict.fromkeys(goodput.seconds, 0.0) | {'start': 2.0}
    assert goodput.line().startswith('goodput 0.0% of 0:02')
