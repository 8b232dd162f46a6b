"""Whole runs as a user starts them: on a disk, in a bucket, on two hosts."""

import json
import os
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest

from bert_jax.runtime import files
from bert_jax.weights import load_weights
from tests.conftest import ROOT, wait_until, xla_flags
from tests.tiny_runs import TINY, documents, saved

pytestmark = pytest.mark.slow

PHASES = (
    "({'steps': 15, 'causal': True},"  # fields that a phase does not set are the run's
    " {'steps': 10, 'max_seq_length': 128, 'max_predictions_per_seq': 20, 'packed_rows': 12,"
    "  'masked_lm_prob': 0.1})")
LAST = 25


def program(args, hosts=1, devices=1):
    """Arguments of subprocess that run the program on `hosts` hosts of `devices` devices each."""
    launcher = [ROOT / 'launch' / 'local_hosts.sh', str(hosts)] if hosts > 1 else []
    return {
        'args': [*launcher, sys.executable, '-m', 'bert_jax.main', *args], 'cwd': ROOT,
        'text': True, 'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE,
        'env': os.environ | {'XLA_FLAGS': xla_flags(devices)},
    }


def run_main(*args, **how):
    process = subprocess.run(**program(args, **how), timeout=600)
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-4000:]
    return process


def result(process):
    last = process.stdout.strip().splitlines()[-1]
    assert last.startswith('result ')
    return json.loads(last.removeprefix('result '))


def records(workdir, kind):
    lines = (workdir / 'metrics.jsonl').read_text().splitlines()
    return [r for r in map(json.loads, lines) if any(name.startswith(kind) for name in r)]


def wait_for(process, text):
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(f'{text!r} never came: {process.stderr.read()[-2000:]}')


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    """(arguments, run directory, process) of a run of two phases that nothing interrupted."""
    folder = tmp_path_factory.mktemp('whole')
    (folder / 'text.txt').write_text(documents(60))
    args = (*TINY, f'--config.data.source={folder}/text.txt', f'--config.data.dir={folder}/cache',
            f'--config.phases={PHASES}', '--config.train.steps=0',
            '--config.optimizer.average=60%', '--config.optimizer.decay_from=80%')
    process = run_main(*args, '--config.train.save_every=0', f'--workdir={folder}/run')
    return args, folder / 'run', process


def test_a_run_from_text_to_result(whole):
    args, workdir, process = whole
    assert 'phase length 32, batch 16, causal True: steps 0 to 15' in process.stdout
    assert 'batch 16 in 12 rows, masked_lm_prob 0.1: steps 15 to 25' in process.stdout
    metrics = result(process)
    assert metrics['step'] == LAST
    assert metrics['eval/mlm_perplexity'] == pytest.approx(np.exp(metrics['eval/mlm_loss']))
    assert metrics['eval/standard_mlm_loss'] > 0  # on BERT's masks, whatever the phase masks
    assert 0 <= metrics['eval/mlm_accuracy'] <= 1 and 0 <= metrics['eval/nsp_accuracy'] <= 1
    assert not records(workdir, 'gate/')
    trained = records(workdir, 'train/')
    assert [r['step'] for r in trained] == list(range(5, LAST + 1, 5))
    losses = [[name for name in r if name in ('train/lm_loss', 'train/mlm_loss', 'train/nsp_loss')]
              for r in trained]
    assert losses == 3 * [['train/lm_loss']] + 2 * [['train/mlm_loss', 'train/nsp_loss']]
    config = json.loads((workdir / 'config.json').read_text())
    assert config['model']['num_layers'] == 2
    assert config['model']['vocab_size'] == len((workdir / 'vocab.txt').read_text().split())
    assert (workdir / 'curves.png').read_bytes().startswith(b'\x89PNG')
    assert list(workdir.glob('events.out.tfevents.*'))
    # Started again, it has nothing left to train and gives the same result.
    again = run_main(*args, '--config.train.save_every=0', f'--workdir={workdir}')
    assert result(again) == metrics
    assert f'resuming at step {LAST}' in again.stdout


def test_a_killed_run_ends_like_one_that_was_not(whole, tmp_path):
    args, workdir, process = whole
    expected = result(process)
    args = (*args, '--config.train.save_every=4', f'--workdir={tmp_path}')
    process = subprocess.Popen(**program(args))
    wait_for(process, 'step      10')
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / 'checkpoints' / str(LAST)).exists()
    resumed = run_main(*args)
    assert result(resumed) == expected
    jax.tree.map(np.testing.assert_array_equal, saved(workdir), saved(tmp_path))
    restored = int(resumed.stdout.partition('resuming at step ')[2].split()[0])
    whole, parts = (  # the first line after the restart is a mean over fewer steps
        [(r['step'], r['train/loss']) for r in records(d, 'train/')
         if not restored < r['step'] < restored + 5] for d in (workdir, tmp_path))
    assert whole == parts and whole[-1][0] == LAST


def test_a_run_in_a_bucket_that_is_killed_in_the_middle_of_a_save(
    bucket, bucket_server, monkeypatch
):
    files.write_whole(f'{bucket}/text.txt', documents(60))
    run = files.as_path(f'{bucket}/runs/one')
    args = (
        *TINY, f'--config.data.source={bucket}/*.txt', f'--config.data.dir={bucket}/data',
        '--config.model.num_layers=1', '--config.train.steps=21', '--config.train.save_every=7',
        '--config.train.log_every=1', f'--workdir={run}',
    )
    commit = 'name=runs/one/checkpoints/14/commit_success.txt'  # the last write of a save
    monkeypatch.setattr(bucket_server, 'faults', {commit: 503})
    process = subprocess.Popen(**program(args))
    wait_until(lambda: process.poll() is not None or any(
        commit in request for request in bucket_server.requests))
    process.kill()
    _, told = process.communicate()
    assert process.returncode == -signal.SIGKILL, told
    bucket_server.faults = {}
    assert bucket_server.names(f'{run}/checkpoints/14/default/')
    assert load_weights(run).source.endswith('step 7')

    resumed = run_main(*args)
    assert 'resuming at step 7 ' in resumed.stdout
    assert result(resumed)['step'] == 21
    assert [r['step'] for r in records(run, 'train/loss')] == list(range(1, 22))
    names = [name.removeprefix(f'{run}/') for name in bucket_server.names(f'{run}/')]
    assert {'config.json', 'vocab.txt', 'curves.png', 'metrics.jsonl'} <= set(names)
    assert sum(name.startswith('events.out.tfevents.') for name in names) == 2
    steps = {name.split('/')[1] for name in names if name.startswith('checkpoints/')}
    assert steps == {'14', '21'}  # the oldest was deleted
    assert not any(name.endswith('.tmp') for name in names)


def test_sigterm_saves_and_says_so(tmp_path):
    process = subprocess.Popen(**program([
        *TINY, '--config.task=synthetic', '--config.train.steps=100000', f'--workdir={tmp_path}']))
    wait_for(process, 'step      10')
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert 'the state is saved' in err
    assert saved(tmp_path)[0] >= 10


def test_hosts_train_as_one_device(whole, tmp_path):
    args, workdir, one = whole
    both = run_main(*args, *(f'--config.mesh.{axis}=2' for axis in ('data', 'fsdp', 'tensor')),
                    f'--workdir={tmp_path}', hosts=2, devices=4)
    assert result(both) == pytest.approx(result(one), rel=1e-4)
    assert 'result {' not in both.stderr, 'only the first host prints one'
    np.testing.assert_allclose(*(
        [r['train/loss'] for r in records(run, 'train/')] for run in (workdir, tmp_path)
    ), rtol=2e-5)
