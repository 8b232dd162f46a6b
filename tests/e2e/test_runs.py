"""Whole runs as a user starts them: on a disk, in a bucket, on two hosts."""

import dataclasses
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
import pytest

from bert_jax.foreign import load_weights
from bert_jax.runtime import files
from tests.conftest import ROOT, wait_until, xla_flags
from tests.programs import python
from tests.tiny_runs import TINY, documents, saved

pytestmark = pytest.mark.slow

PHASES = (
    "({'steps': 15, 'causal': True},"  # fields that a phase does not set are the run's
    " {'steps': 10, 'max_seq_length': 128, 'max_predictions_per_seq': 20, 'packed_rows': 12,"
    "  'masked_lm_prob': 0.1})")
LAST = 25
# The program without curves, which take it a second.
WITHOUT_CURVES = """
import sys
from bert_jax import main
from bert_jax.watch import metrics_log
metrics_log.curves = lambda *_: None
main.main(sys.argv)
"""


def program(args, hosts=1, devices=1, draws=True):
    """Arguments of subprocess that run the program on `hosts` hosts of `devices` devices each."""
    command = [*python(), *(('-m', 'bert_jax.main') if draws else ('-c', WITHOUT_CURVES)), *args]
    if hosts > 1:
        command = [ROOT / 'launch' / 'local_hosts.sh', str(hosts), *command]
    return {
        'args': command,
        'cwd': ROOT,
        'env': os.environ | {'XLA_FLAGS': xla_flags(devices)},
        'text': True,
        'stdout': subprocess.PIPE,
        'stderr': subprocess.PIPE,
    }


def run_main(*args, **options):
    """The process of a run that must succeed; `options` are those of `program`."""
    process = subprocess.run(**program(args, **options), timeout=600)
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-4000:]
    return process


def result(process):
    last_line = process.stdout.strip().splitlines()[-1]
    assert last_line.startswith('result ')
    return json.loads(last_line.removeprefix('result '))


def records(workdir, prefix):
    """The records that have a metric of this prefix."""
    found = []
    for line in (workdir / 'metrics.jsonl').read_text().splitlines():
        record = json.loads(line)
        if any(name.startswith(prefix) for name in record):
            found.append(record)
    return found


def losses(workdir):
    """(step, training loss) of each log line."""
    return [(record['step'], record['train/loss']) for record in records(workdir, 'train/')]


def wait_for_line(process, text):
    """Returns when the process prints a line with this text."""
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(f'{text!r} never came: {process.stderr.read()[-2000:]}')


@dataclasses.dataclass
class WholeRun:
    """A run of two phases that nothing interrupted."""

    args: tuple[str, ...]  # without those of place and saving
    workdir: Path
    process: subprocess.CompletedProcess


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp('whole')
    (folder / 'text.txt').write_text(documents(60))
    args = (
        *TINY, f'--config.data.source={folder}/text.txt',
        f'--config.data.dir={folder}/cache',
        f'--config.phases={PHASES}', '--config.train.steps=0',
        '--config.optimizer.average=60%', '--config.optimizer.decay_from=80%',
        '--config.train.log_every=1',
    )
    process = run_main(*args, '--config.train.save_every=0', f'--workdir={folder}/run')
    return WholeRun(args, folder / 'run', process)


def test_a_run_says_what_its_phases_are(whole):
    said = whole.process.stdout
    assert 'phase length 32, batch 16, causal True: steps 0 to 15' in said
    assert 'batch 16 in 12 rows, masked_lm_prob 0.1: steps 15 to 25' in said


def test_a_run_ends_with_its_scores(whole):
    metrics = result(whole.process)
    assert metrics['step'] == LAST
    assert metrics['eval/mlm_perplexity'] == pytest.approx(np.exp(metrics['eval/mlm_loss']))
    assert metrics['eval/standard_mlm_loss'] > 0  # on BERT's masks, whatever the phase masks
    assert 0 <= metrics['eval/mlm_accuracy'] <= 1
    assert 0 <= metrics['eval/nsp_accuracy'] <= 1


def test_a_good_run_raises_no_alarm(whole):
    assert not records(whole.workdir, 'gate/')


def test_a_run_records_the_losses_of_each_phase(whole):
    trained = records(whole.workdir, 'train/')
    assert [record['step'] for record in trained] == list(range(1, LAST + 1))
    possible = {'train/lm_loss', 'train/mlm_loss', 'train/nsp_loss'}
    of_causal_phase = {'train/lm_loss'}
    of_masked_phase = {'train/mlm_loss', 'train/nsp_loss'}
    found = [possible & set(record) for record in trained]
    assert found == 15 * [of_causal_phase] + 10 * [of_masked_phase]


def test_a_run_directory_has_config_vocabulary_curves_and_events(whole):
    config = json.loads((whole.workdir / 'config.json').read_text())
    assert config['model']['num_layers'] == 1
    vocabulary = (whole.workdir / 'vocab.txt').read_text().split()
    assert config['model']['vocab_size'] == len(vocabulary)
    assert (whole.workdir / 'curves.png').read_bytes().startswith(b'\x89PNG')
    assert list(whole.workdir.glob('events.out.tfevents.*'))


@dataclasses.dataclass
class BucketRun:
    """The run in a bucket, killed in the middle of a save of step 14, and then resumed."""

    folder: Any
    source_when_killed: str  # of the weights that could be loaded then
    objects_of_killed_save: list[str]
    resumed: subprocess.CompletedProcess
    names: list[str]  # of its objects at the end


@pytest.fixture(scope='module')
def bucket_run(whole, bucket_server):
    bucket = bucket_server.make_bucket('killed-in-a-save')
    files.write_whole(f'{bucket}/text.txt', documents(60))
    folder = files.as_path(f'{bucket}/runs/one')
    args = (
        *whole.args, f'--config.data.source={bucket}/*.txt', f'--config.data.dir={bucket}/data',
        '--config.train.save_every=7', f'--workdir={folder}',
    )
    run_until_commit(bucket_server, args)
    source = load_weights(folder).source
    objects = bucket_server.names(f'{folder}/checkpoints/14/default/')
    resumed = run_main(*args)
    names = [name.removeprefix(f'{folder}/') for name in bucket_server.names(f'{folder}/')]
    return BucketRun(folder, source, objects, resumed, names)


def run_until_commit(bucket_server, args):
    """Starts a run and kills it when it tries the last write of the save of step 14."""
    commit = 'name=runs/one/checkpoints/14/commit_success.txt'

    def has_tried_or_ended():
        tried = any(commit in request for request in bucket_server.requests)
        return tried or process.poll() is not None

    with mock.patch.object(bucket_server, 'faults', {commit: 503}):
        process = subprocess.Popen(**program(args))
        wait_until(has_tried_or_ended)
        process.kill()
        _, error = process.communicate()
    assert process.returncode == -signal.SIGKILL, error


def test_a_save_that_a_kill_interrupts_is_not_loaded(bucket_run):
    assert bucket_run.objects_of_killed_save
    assert bucket_run.source_when_killed.endswith('step 7')


def test_a_run_in_a_bucket_resumes_from_the_last_whole_save(bucket_run):
    assert 'resuming at step 7 ' in bucket_run.resumed.stdout


def test_a_run_killed_in_a_bucket_ends_like_one_that_was_not(whole, bucket_run):
    """Its last checkpoint is the same, too: step, parameters, their average and moments."""
    assert result(bucket_run.resumed) == result(whole.process)
    assert losses(bucket_run.folder) == losses(whole.workdir)
    found, expected = saved(bucket_run.folder), saved(whole.workdir)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_a_run_in_a_bucket_has_its_files_and_its_newest_checkpoints(bucket_run):
    names = bucket_run.names
    assert {'config.json', 'vocab.txt', 'curves.png', 'metrics.jsonl'} <= set(names)
    events = [name for name in names if name.startswith('events.out.tfevents.')]
    assert len(events) == 2
    steps = {name.split('/')[1] for name in names if name.startswith('checkpoints/')}
    assert steps == {'21', '25'}  # older ones were deleted
    assert not [name for name in names if name.endswith('.tmp')]


def test_sigterm_saves_and_says_so(tmp_path):
    args = (
        *TINY, '--config.task=synthetic', '--config.train.steps=100000', f'--workdir={tmp_path}')
    process = subprocess.Popen(**program(args, draws=False))
    wait_for_line(process, 'step      10')
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=600)
    assert process.returncode == 143
    assert 'the state is saved' in error
    step, _ = saved(tmp_path)
    assert step >= 10


def test_hosts_train_as_one_device(whole, tmp_path):
    both = run_main(
        *whole.args, '--config.mesh.fsdp=2', '--config.mesh.tensor=2', f'--workdir={tmp_path}',
        hosts=2, devices=2, draws=False)
    assert result(both) == pytest.approx(result(whole.process), rel=1e-4)
    assert 'result {' not in both.stderr, 'only the first host prints one'
    np.testing.assert_allclose(losses(tmp_path), losses(whole.workdir), rtol=2e-5)
    for check, of_one in zip(records(tmp_path, 'check/'), records(whole.workdir, 'check/')):
        assert check['step'] == of_one['step']
        assert check['check/batch'] == of_one['check/batch']
