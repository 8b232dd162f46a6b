"""What a run writes: records, which are cut back when it resumes, curves, loggers, goodput."""

import json
import os
import resource
import shutil
import signal
import sys
from unittest import mock

import pytest

from bert_jax.runtime import buckets, files
from bert_jax.runtime.errors import InputError
from bert_jax.train import loggers
from bert_jax.train import report as report_module
from bert_jax.train.goodput import Goodput
from bert_jax.train.report import Report
from tests.conftest import wait_until


def read(workdir):
    return [json.loads(line) for line in (workdir / 'metrics.jsonl').read_text().splitlines()]


def steps_in(workdir):
    return [record['step'] for record in read(workdir)]


@pytest.mark.parametrize('tail', ['', '{"step": 5, "train/lo', '\0\0\0'])
@pytest.mark.parametrize('start, kept', [(0, []), (2, [1, 2]), (3, [1, 2, 3]), (9, [1, 2, 3, 4])])
def test_records_are_cut_back_to_the_step_resumed_from(tmp_path, tail, start, kept):
    lines = ''.join(f'{{"step": {step}, "train/loss": {step}.5}}\n' for step in (1, 2, 3, 4))
    (tmp_path / 'metrics.jsonl').write_text(lines + tail)
    report = Report(tmp_path, True, start)
    assert steps_in(tmp_path) == kept
    report.write(start + 1, {'train/loss': 0.25})
    assert read(tmp_path)[-1] == {'step': start + 1, 'train/loss': 0.25}  # at once
    assert steps_in(tmp_path) == [r['step'] for r in report.records] == [*kept, start + 1]
    report.close()
    assert not list(tmp_path.glob('*.tmp'))


def test_other_processes_write_and_say_nothing(tmp_path, capsys):
    report, goodput = Report(tmp_path, False, 0), Goodput(tmp_path, False, 0, 0.0)
    report.write(1, {'train/loss': 1.0})
    report.draw()
    goodput.mark(3)
    report.close()
    assert not list(tmp_path.iterdir()) and not capsys.readouterr().out


def test_a_bucket_gets_the_records_in_batches(bucket, bucket_server):
    workdir = files.as_path(bucket) / 'run'
    post = f'POST /upload/storage/v1/b/{workdir.parts[2]}/o'

    def num_uploads():
        return sum(request.startswith(post) for request in bucket_server.requests)

    report = Report(workdir, True, 0)
    report.open_loggers(['tensorboard'], {})
    before = num_uploads()
    for step in range(1, 101):
        report.write(step, {'train/mlm_loss': 1.0})
    assert num_uploads() == before and read(workdir) == []
    report.flush()
    assert steps_in(workdir) == list(range(1, 101))
    report.write(101, {'eval/mlm_loss': 1.0})
    report.draw(least_age=60.0)
    assert not (report.folder / 'curves.png').exists(), 'the run is not a minute old'
    report.draw()
    report.close()
    assert len(read(workdir)) == 101
    kinds = {path.name.partition('.')[0]: path for path in workdir.iterdir()}
    assert set(kinds) == {'metrics', 'events', 'curves'}
    assert b'eval/mlm_loss' in kinds['events'].read_bytes()
    assert kinds['curves'].read_bytes().startswith(b'\x89PNG')

    again = Report(workdir, True, 50)
    assert steps_in(workdir) == list(range(1, 51))
    again.write(51, {'train/mlm_loss': 1.0})
    again.close()
    assert steps_in(workdir) == list(range(1, 52))


@pytest.mark.parametrize('recovers', [True, False])
def test_a_bucket_that_refuses_records_loses_none_and_the_run_goes_on(
        bucket, bucket_server, monkeypatch, capsys, recovers):
    monkeypatch.setattr(report_module, '_LAST_UPLOADS_SECONDS', 0.0)
    workdir = files.as_path(bucket) / 'run'
    report = Report(workdir, True, 0)
    goodput = Goodput(workdir, True, 0, 0.0, folder=report.folder)
    monkeypatch.setattr(bucket_server, 'faults', {'/o': 403})
    report.write(1, {'train/mlm_loss': 1.0})
    goodput.mark(1)
    report.flush()
    assert f'warning: {workdir} takes no records at present (Forbidden' in capsys.readouterr().err
    if recovers:
        bucket_server.faults.clear()
    report.close()
    assert (f'are in {report.folder} of this machine' in capsys.readouterr().err) != recovers
    assert steps_in(workdir if recovers else report.folder) == [1]
    shutil.rmtree(report.folder, ignore_errors=True)


def test_a_file_that_grows_while_it_is_uploaded_arrives(bucket, monkeypatch):
    workdir = files.as_path(bucket) / 'run'
    report = Report(workdir, True, 0)
    events = report.folder / 'events.big'
    events.write_bytes(bytes(6 << 20))
    file_system = type(buckets.file_system())
    pipe_file = file_system.pipe_file

    def grow(self, path, data, **how):
        with open(events, 'ab') as file:
            file.write(bytes(1 << 20))
        return pipe_file(self, path, data, **how)

    monkeypatch.setattr(file_system, 'pipe_file', grow)
    report.flush()
    monkeypatch.undo()
    assert (workdir / 'events.big').stat().length >= 6 << 20
    report.close()


def test_a_full_disk_loses_no_record(tmp_path, monkeypatch, capsys):
    report = Report(tmp_path, True, 0)
    report.write(1, {'train/loss': 1.0})
    resource.setrlimit(resource.RLIMIT_FSIZE, (
        os.stat(tmp_path / 'metrics.jsonl').st_size + 10, resource.RLIM_INFINITY))
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        report.write(2, {'train/loss': 2.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        signal.signal(signal.SIGXFSZ, before)
    assert steps_in(tmp_path) == [1]
    assert 'takes no records at present' in capsys.readouterr().err
    report.write(3, {'train/loss': 3.0})
    report.close()
    assert steps_in(tmp_path) == [1, 2, 3]


@pytest.fixture
def monitoring(monkeypatch):
    """Requests that a stand-in for Cloud Monitoring received, and what it answers."""
    auth = pytest.importorskip('google.auth')
    import requests

    received, response = [], requests.Response()
    response.status_code = 200

    def post(url, *, json, timeout):
        received.append((url, json['timeSeries']))
        return response

    monkeypatch.setattr('google.auth.transport.requests.AuthorizedSession',
                        lambda credentials: mock.Mock(post=post))
    monkeypatch.setattr(auth, 'default', lambda scopes: (None, 'project'))
    return received, response


def test_cloud_monitoring_gets_goodput_and_step_time_of_the_host(tmp_path, monitoring):
    received, _ = monitoring
    logger = loggers.cloud_monitoring(tmp_path / 'run')
    logger.write(10, {'eval/mlm_loss': 5.0})
    logger.write(10, {'train/goodput': 0.5, 'train/step_seconds': 0.25, 'train/loss': 3.0})
    logger.write(11, {'train/goodput': 0.6})  # within the half minute between requests
    logger.close()
    ((url, series),) = received
    assert url == 'https://monitoring.googleapis.com/v3/projects/project/timeSeries'
    assert {one['metric']['type'].rpartition('/')[2]: one['points'][0]['value']['doubleValue']
            for one in series} == {'goodput': 0.5, 'step_seconds': 0.25}
    assert {(one['resource']['labels']['job'], one['resource']['labels']['task_id'])
            for one in series} == {('run', '0')}


def test_a_logger_that_fails_is_a_warning(tmp_path, monitoring, monkeypatch, capsys):
    received, response = monitoring
    monkeypatch.setattr(loggers, '_MONITORING_SECONDS', 0.0)
    response.status_code = 503
    report = Report(tmp_path, True, 0)
    report.open_loggers(['cloud_monitoring'], {})
    for step in (1, 2, 3):  # it skips a record while it sends the one before
        wait_until(lambda step=step: (
            report.write(step, {'train/goodput': 0.5}) or len(received) >= step))
    report.close()
    assert 'warning: a logger' in capsys.readouterr().err
    assert {record['step'] for record in report.records} == {1, 2, 3}


def test_a_logger_says_which_package_or_setting_it_lacks(tmp_path, monkeypatch):
    auth = pytest.importorskip('google.auth')
    monkeypatch.setattr(auth, 'default', lambda scopes: (None, None))
    with pytest.raises(InputError, match='GOOGLE_CLOUD_PROJECT'):
        loggers.cloud_monitoring(tmp_path)
    monkeypatch.setitem(sys.modules, 'wandb', None)
    with pytest.raises(InputError, match='pip install wandb'):
        loggers.wandb(tmp_path, {})


def spend(goodput, **seconds):
    for cause, amount in seconds.items():
        goodput.enter(cause)
        goodput.clock.return_value += amount
    goodput.enter('step')


def test_steps_undone_by_kills_count_as_lost(tmp_path):
    clock = mock.Mock(return_value=10.0)
    first = Goodput(tmp_path, True, 0, 0.0, clock)  # start 10
    spend(first, step=100)
    first.mark(1000)
    spend(first, step=50)
    first.mark(1500)
    spend(first, step=30)
    first.write()  # at 190; killed

    clock.return_value = 250.0
    second = Goodput(tmp_path, True, 1500, 240.0, clock)  # start 10, after 50 away
    spend(second)
    assert second.now()['step'] == 150 and second.now()['lost'] == 30
    spend(second, step=7)
    second.write()  # at 257; killed before it saved

    clock.return_value = 300.0
    third = Goodput(tmp_path, True, 1000, 300.0, clock)  # the newest checkpoint was damaged
    times = {cause: seconds for cause, seconds in third.now().items() if seconds}
    assert times == {'step': 100, 'start': 20, 'lost': 87}
    assert third.metrics()['train/goodput'] == 100 / 207
    assert third.line() == 'goodput 48.3% of 3:27 (start 9.7%, lost 42.0%); 1:33 not running'


@pytest.mark.parametrize('content', [
    '{"seconds": {', 'null', '{"seconds": {}, "away": 0, "at": NaN, "marks": {}}',
])
def test_a_damaged_goodput_file_does_not_stop_a_run(tmp_path, content):
    (tmp_path / 'goodput.json').write_text(content)
    goodput = Goodput(tmp_path, True, 10, 0.0, lambda: 5.0)
    assert sum(goodput.now().values()) == 5
    goodput.write()
    assert json.loads((tmp_path / 'goodput.json').read_text())['seconds']['start'] == 5
