"""Loggers: Weights & Biases and Cloud Monitoring get what metrics.jsonl gets."""

import time

import google.auth
import pytest
import requests
from google.auth.credentials import AnonymousCredentials

from bert_jax.runtime.errors import InputError
from bert_jax.train import loggers
from bert_jax.train.report import Report


@pytest.fixture
def monitoring(monkeypatch):
    """Requests that a stand-in for Cloud Monitoring received, and the status that it answers."""
    received, status = [], [200]

    class Session:
        def __init__(self, credentials):
            assert isinstance(credentials, AnonymousCredentials)

        def post(self, url, *, json, timeout):
            received.append((url, json['timeSeries']))
            response = requests.Response()
            response.status_code = status[0]
            return response

    monkeypatch.setattr('google.auth.transport.requests.AuthorizedSession', Session)
    monkeypatch.setattr(google.auth, 'default', lambda scopes: (AnonymousCredentials(), 'project'))
    return received, status


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
    received, status = monitoring
    monkeypatch.setattr(loggers, '_MONITORING_SECONDS', 0.0)
    status[0] = 503
    report = Report(tmp_path, True, 0)
    report.loggers = loggers.open_loggers(['cloud_monitoring'], tmp_path, tmp_path, 0, {})
    for step in (1, 2, 3):
        report.write(step, {'train/goodput': 0.5})
        while len(received) < step:
            time.sleep(0.01)
        time.sleep(0.1)
    report.close()
    assert len(received) == 3 and 'warning: a logger' in capsys.readouterr().err
    assert [record['step'] for record in report.records] == [1, 2, 3]


def test_weights_and_biases_get_every_record(tmp_path, monkeypatch):
    wandb = pytest.importorskip('wandb', reason='wandb is not installed')
    monkeypatch.setenv('WANDB_MODE', 'offline')
    monkeypatch.setenv('WANDB_DIR', str(tmp_path))
    logger = loggers.open_loggers(['wandb'], tmp_path / 'run', tmp_path, 0, {'seed': 3})[0]
    logger.write(10, {'train/loss': 3.0})
    logger.write(11, {'train/loss': 2.0})  # which completes step 10
    assert wandb.run.summary['train/loss'] == 3.0 and wandb.run.config['seed'] == 3
    identity = wandb.run.id
    logger.close()
    logger = loggers.open_loggers(['wandb'], tmp_path / 'run', tmp_path, 10, {'seed': 3})[0]
    assert wandb.run.id == identity
    logger.close()


def test_what_is_not_installed_or_not_known_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(google.auth, 'default', lambda scopes: (AnonymousCredentials(), None))
    with pytest.raises(InputError, match='GOOGLE_CLOUD_PROJECT'):
        loggers.cloud_monitoring(tmp_path)
    monkeypatch.setitem(__import__('sys').modules, 'wandb', None)
    with pytest.raises(InputError, match='pip install wandb'):
        loggers.wandb(tmp_path, {})
