"""Whole runs through the command line, as a user starts them."""

import json
import os
import random
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest

from tests.conftest import ROOT
from tests.tiny_runs import TINY, documents, saved

pytestmark = pytest.mark.slow

SYNTHETIC = (*TINY, '--config.task=synthetic')


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
    """A text file of 60 documents, and the arguments that read it."""
    folder = tmp_path_factory.mktemp('corpus')
    (folder / 'text.txt').write_text(documents(60))
    return (f'--config.data.source={folder}/text.txt', f'--config.data.dir={folder}/cache')


def result(process):
    last = process.stdout.strip().splitlines()[-1]
    assert last.startswith('result ')
    return json.loads(last.removeprefix('result '))


def assert_same_state(a, b):
    assert 'word_embeddings' in str(jax.tree.structure(saved(a)))
    jax.tree.map(np.testing.assert_array_equal, saved(a), saved(b))


def records(workdir, kind):
    lines = (workdir / 'metrics.jsonl').read_text().splitlines()
    return [r for r in map(json.loads, lines) if any(name.startswith(kind) for name in r)]


def start(*args, env=None):
    return subprocess.Popen(
        [sys.executable, '-m', 'bert_jax.main', *args], cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {'XLA_FLAGS': '--xla_force_host_platform_device_count=1'} | (env or {}),
    )


def wait_for(process, text):
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(f'{text!r} never came: {process.stderr.read()[-2000:]}')


def test_a_run_from_text_to_result(run_main, corpus, tmp_path):
    workdir = tmp_path / 'run'
    args = (*TINY, *corpus, '--config.train.steps=30', f'--workdir={workdir}')
    metrics = result(run_main(*args))
    assert metrics['step'] == 30
    assert metrics['eval/mlm_perplexity'] == pytest.approx(np.exp(metrics['eval/mlm_loss']))
    assert 0 <= metrics['eval/mlm_accuracy'] <= 1
    assert 0 <= metrics['eval/nsp_accuracy'] <= 1
    assert not records(workdir, 'gate/')
    steps = [r['step'] for r in records(workdir, 'train/')]
    assert steps == [5, 10, 15, 20, 25, 30]
    config = json.loads((workdir / 'config.json').read_text())
    assert config['model']['num_layers'] == 2
    assert config['model']['vocab_size'] == len((workdir / 'vocab.txt').read_text().split())
    assert (workdir / 'curves.png').read_bytes().startswith(b'\x89PNG')
    assert list(workdir.glob('events.out.tfevents.*'))
    assert (workdir / 'checkpoints' / '30').is_dir()
    # Started again, there is nothing left to train: the same result, and nothing is written over.
    again = run_main(*args)
    assert result(again) == metrics
    assert 'resuming at step 30' in again.stdout


def test_a_killed_run_ends_like_one_that_was_not(run_main, corpus, tmp_path):
    args = (*TINY, *corpus, '--config.train.steps=60')
    whole, killed = tmp_path / 'whole', tmp_path / 'killed'
    expected = result(run_main(*args, '--config.train.save_every=0', f'--workdir={whole}'))
    args += ('--config.train.save_every=7', f'--workdir={killed}')
    process = start(*args)
    wait_for(process, f'step      {random.randrange(15, 50, 5)}')
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (killed / 'checkpoints' / '60').exists()
    resumed = run_main(*args)
    assert 'resuming at step' in resumed.stdout
    assert result(resumed) == expected
    assert_same_state(whole, killed)
    restored = int(resumed.stdout.partition('resuming at step ')[2].split()[0])
    losses = [
        # The first line after the restart is a mean over fewer steps.
        [(r['step'], r['train/loss']) for r in records(d, 'train/')
         if not restored < r['step'] < restored + 5]
        for d in (whole, killed)
    ]
    assert losses[0] == losses[1]
    assert losses[0][-1][0] == 60


def test_sigterm_saves_and_says_so(run_main, tmp_path):
    args = (*SYNTHETIC, '--config.train.steps=100000', f'--workdir={tmp_path}')
    process = start(*args)
    wait_for(process, 'step      10')
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert 'the state is saved' in err
    step, _ = saved(tmp_path)
    assert step >= 10


def test_nan_stops_with_the_step_and_keeps_the_last_good_checkpoint(run_main, tmp_path):
    process = run_main(
        *SYNTHETIC, '--config.train.steps=40', '--config.train.save_every=1',
        '--config.optimizer.learning_rate=1', '--config.optimizer.warmup=0',
        '--config.optimizer.weight_decay=10',  # parameters grow ninefold each step
        '--config.optimizer.clip_norm=0.0', f'--workdir={tmp_path}', check=1,
    )
    message = process.stderr.strip().splitlines()[-1]
    assert message.startswith('error: step ')
    bad = int(message.removeprefix('error: step ').partition(':')[0])
    step, state = saved(tmp_path)
    assert step <= bad
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))


def test_two_hosts_of_four_devices_train_as_one_device(run_main, corpus, tmp_path):
    args = (*TINY, *corpus, '--config.train.steps=10', '--config.train.log_every=1')
    axes = ('--config.mesh.fsdp=2', '--config.mesh.tensor=2')
    one = run_main(*args, f'--workdir={tmp_path}/one')
    both = run_main(*args, *axes, f'--workdir={tmp_path}/both', hosts=2, devices=4)
    assert result(both) == pytest.approx(result(one), rel=1e-4)
    assert 'result {' not in both.stderr, 'the second host prints none'
    np.testing.assert_allclose(*(
        [r['train/loss'] for r in records(tmp_path / run, 'train/')] for run in ('one', 'both')
    ), rtol=2e-5)


def test_phases_switch_in_one_run(run_main, corpus, tmp_path):
    phases = (
        "({'steps': 6},"  # what a phase does not say is the run's
        " {'steps': 4, 'max_seq_length': 128, 'max_predictions_per_seq': 20, 'batch_size': 16,"
        " 'packed_rows': 15})"
    )
    process = run_main(
        *TINY, *corpus, f'--config.phases={phases}', '--config.train.steps=0',
        '--config.train.log_every=2', f'--workdir={tmp_path}',
    )
    assert 'phase length 32, batch 16: steps 0 to 6' in process.stdout
    assert 'phase length 128, batch 16 in 15 rows: steps 6 to 10' in process.stdout
    assert result(process)['step'] == 10


def test_warm_start_takes_the_parameters_alone_and_other_models_are_refused(run_main, tmp_path):
    first = (*SYNTHETIC, '--config.train.steps=3', f'--workdir={tmp_path}/first',
             '--config.model.initializer_range=0.5')
    process = run_main(*first)
    # A loss that is not that of guessing is told; one from a checkpoint may be any.
    assert 'warning: step 1: the loss is ' in process.stderr
    assert [r['step'] for r in records(tmp_path / 'first', 'gate/first_loss')] == [1]
    second = (*SYNTHETIC, f'--workdir={tmp_path}/second', '--config.train.steps=1',
              '--config.optimizer.warmup=1',
              '--config.optimizer.name=lamb', f'--config.init_checkpoint={tmp_path}/first')
    process = run_main(*second)
    assert f'parameters from run directory {tmp_path}/first, step 3' in process.stdout
    assert 'the loss is' not in process.stderr
    # A first step of a warm-up has learning rate 0, so these are the first run's parameters.
    (_, start), (_, end) = saved(tmp_path / 'first'), saved(tmp_path / 'second')
    jax.tree.map(np.testing.assert_array_equal, start['params'], end['params'])

    # A run of another architecture is refused there, and nothing is touched.
    before = sorted((tmp_path / 'first').rglob('*'))
    process = run_main(*first, '--config.model.num_layers=3', check=2)
    assert 'model.num_layers' in process.stderr
    assert sorted((tmp_path / 'first').rglob('*')) == before


def test_wikipedia_without_a_network_says_what_to_do(run_main, tmp_path):
    process = run_main(
        '--config=configs/large_pretrain.py', f'--workdir={tmp_path}',
        f'--config.data.tfds_dir={tmp_path}/data', check=2, env={'no_proxy': '*'},
    )
    lines = [line for line in process.stderr.splitlines() if line.startswith('error:')]
    assert len(lines) == 1
    assert 'wikipedia' in lines[0]
    assert '--config.data.source' in lines[0]
