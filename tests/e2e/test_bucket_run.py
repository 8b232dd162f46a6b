"""A run whose text, data and run directory are in a bucket, killed in the middle of a save."""

import json
import signal
import time

import pytest

from bert_jax.runtime import files
from bert_jax.weights import load_weights
from tests.e2e.test_runs import result, start
from tests.tiny_runs import TINY, documents

pytestmark = pytest.mark.slow


def test_a_run_in_a_bucket(run_main, bucket, bucket_server, monkeypatch):
    files.write_whole(f'{bucket}/text.txt', documents(60))
    run = files.as_path(f'{bucket}/runs/one')
    args = (
        *TINY, f'--config.data.source={bucket}/*.txt', f'--config.data.dir={bucket}/data',
        '--config.model.num_layers=1', '--config.train.steps=21', '--config.train.save_every=7',
        '--config.train.log_every=1', f'--workdir={run}',
    )
    commit = 'name=runs/one/checkpoints/14/commit_success.txt'  # the last write of a save
    monkeypatch.setattr(bucket_server, 'faults', {commit: 503})
    process = start(*args)
    deadline = time.monotonic() + 300
    while not any(commit in request for request in bucket_server.requests):
        time.sleep(0.02)
        if process.poll() is not None or time.monotonic() > deadline:
            break
    process.kill()
    _, told = process.communicate()
    assert process.returncode == -signal.SIGKILL, told
    bucket_server.faults = {}
    assert bucket_server.names(f'{run}/checkpoints/14/default/')
    assert load_weights(run).source.endswith('step 7')

    resumed = run_main(*args)
    assert 'resuming at step 7 ' in resumed.stdout
    assert result(resumed)['step'] == 21
    records = [json.loads(line) for line in (run / 'metrics.jsonl').read_text().splitlines()]
    assert [r['step'] for r in records if 'train/loss' in r] == list(range(1, 22))
    names = [name.removeprefix(f'{run}/') for name in bucket_server.names(f'{run}/')]
    assert {'config.json', 'vocab.txt', 'curves.png', 'metrics.jsonl'} <= set(names)
    assert sum(name.startswith('events.out.tfevents.') for name in names) == 2
    steps = {name.split('/')[1] for name in names if name.startswith('checkpoints/')}
    assert steps == {'14', '21'}  # the oldest was deleted
    assert not any(name.endswith('.tmp') for name in names)
