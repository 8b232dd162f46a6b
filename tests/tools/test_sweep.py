"""Sweeps: the grid, whole sweeps of tiny runs, and going on after a signal."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from bert_jax.errors import InputError
from bert_jax.tools.sweep import grid_members, visible_devices
from tests.conftest import ROOT

TINY = (
    '--config=configs/tiny_pretrain.py', '--config.task=synthetic', '--config.model.hidden_size=16',
    '--config.model.num_heads=2', '--config.data.vocab_size=100', '--config.data.max_seq_length=16',
    '--config.data.max_predictions_per_seq=2', '--config.train.batch_size=4',
    '--config.train.eval_batch_size=64', '--config.train.eval_every=0',
    '--config.optimizer.warmup=1',
)


def test_the_grid_is_all_combinations():
    members = grid_members(['optimizer.learning_rate=1e-4,2e-4', 'train.batch_size=16,32'], 2)
    assert len(members) == len(set(members)) == 8
    assert members[0].name == 'optimizer.learning_rate=1e-4,train.batch_size=16,seed=0'
    assert len({member.group for member in members}) == 4


def test_a_member_stays_in_the_folder_of_its_sweep():
    (member,) = grid_members(['init_checkpoint=../../elsewhere'], 0)
    assert '/' not in member.name and member.settings == (
        ('init_checkpoint', '../../elsewhere'),)


def test_devices_are_those_that_the_environment_leaves(monkeypatch):
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
    assert visible_devices(2) == ['0', '1']
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '5,7')
    assert visible_devices(2) == ['5', '7']
    with pytest.raises(InputError, match='leaves 2 visible'):
        visible_devices(4)


@pytest.mark.parametrize('grid,message', [
    (['optimizer.learning_rat=1'], "did you mean 'optimizer.learning_rate'"),
    (['seed'], 'FIELD=VALUE'),
    (['seed=1,,2'], 'FIELD=VALUE'),
    (['seed=1', 'seed=2'], 'twice'),
    (['seed=1,2,1'], 'has a value twice'),
])
def test_a_grid_that_cannot_be_is_refused(grid, message):
    with pytest.raises(InputError, match=message):
        grid_members(grid, 0)


def start(workdir, *args):
    return subprocess.Popen(
        [sys.executable, '-m', 'bert_jax.tools.sweep', f'--workdir={workdir}', *TINY, *args],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {'XLA_FLAGS': '--xla_force_host_platform_device_count=1'},
    )


def test_a_sweep_stopped_by_a_signal_goes_on_and_reports(tmp_path):
    workdir = tmp_path / 'sweep'
    args = ('--config.train.steps=60', '--config.train.save_every=5',
            '--grid', 'optimizer.learning_rate=1e-3,1e-2', '--restarts=1', '--parallel=2')
    process = start(workdir, *args)
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and not list(workdir.glob('runs/*/checkpoints/5')):
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 143, err
    assert 'the same command goes on' in out
    done = {path: path.stat().st_mtime_ns for path in workdir.glob('runs/*/sweep_result.json')}
    assert len(done) < 2

    out, err = start(workdir, *args).communicate(timeout=480)
    assert not done or f'{len(done)} of 2 runs are finished already' in out, err
    other = start(workdir, *args, '--config.optimizer.weight_decay=0.1')
    assert 'holds a sweep of --config=configs' in other.communicate(timeout=60)[1]
    assert other.returncode == 2
    for path, written in done.items():
        assert path.stat().st_mtime_ns == written, 'a finished run was run again'
    results = json.loads((workdir / 'results.json').read_text())
    assert len(results['runs']) == 2 and len(results['groups']) == 2
    values = {name: run['eval/mlm_accuracy'] for name, run in results['runs'].items()}
    assert results['best'] == max(values.values()) == values[results['winner']]
    for group in results['groups']:
        rate = group['settings']['optimizer.learning_rate']
        own = [value for name, value in values.items() if f'={rate},' in name]
        assert [group['mean']] == own
    assert results['winner'] in (workdir / 'table.md').read_text()
    assert (workdir / 'sweep.png').stat().st_size > 1000
    winner = workdir / 'winner'
    assert winner.resolve().name == results['winner'] and any((winner / 'checkpoints').iterdir())
    assert len(list(workdir.glob('runs/*/checkpoints'))) == 1, 'beaten runs keep their logs only'


def test_a_config_that_cannot_work_ends_the_sweep_with_its_message(tmp_path):
    process = start(tmp_path, '--config.train.steps=5', '--config.model.num_heads=3')
    out, err = process.communicate(timeout=240)
    assert process.returncode == 2
    assert 'num_heads=3' in err
