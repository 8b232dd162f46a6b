"""Sweeps: the grid, members that share a process, processes that share a folder, resuming."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from bert_jax import run_setup
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path
from bert_jax.runtime.lease import Claim
from bert_jax.runtime.stopping import Guard
from bert_jax.text.vocab import SPECIAL_TOKENS, write_vocab
from bert_jax.tools import sweep
from bert_jax.tools.sweep import Sweep, grid_members, member_config, read_sweep
from bert_jax.tools.workers import worker_environment
from bert_jax.train import experiment
from bert_jax.train.report import Report
from bert_jax.weights.run_directory import read_run
from tests.conftest import ROOT, wait_until, xla_flags
from tests.tiny_runs import TINY, WORDS, one_device, write_cola

pytestmark = pytest.mark.slow

GRID = ['optimizer.learning_rate=1e-3,1e-2']
CONFIG = f'{ROOT}/configs/glue.py:cola'
MEMBERS = grid_members(GRID, 2)


def test_the_grid_is_all_combinations():
    members = grid_members(['optimizer.learning_rate=1e-4,2e-4', 'train.batch_size=16,32'], 2)
    assert len(members) == len(set(members)) == 8
    assert members[0].name == 'optimizer.learning_rate=1e-4,train.batch_size=16,seed=0'
    assert len({member.without('seed') for member in members}) == 4
    (elsewhere,) = grid_members(['init_checkpoint=../../elsewhere'], 0)
    assert '/' not in elsewhere.name, 'it stays in the folder of its sweep'
    assert elsewhere.settings == (('init_checkpoint', '../../elsewhere'),)


@pytest.mark.parametrize('kind, chips, share, environment', [
    ('gpu', 2, (1, 2, 1), {'CUDA_VISIBLE_DEVICES': '1'}),
    ('tpu', 4, (1, 2, 2), {
        'TPU_VISIBLE_CHIPS': '2,3', 'TPU_CHIPS_PER_PROCESS_BOUNDS': '1,2,1',
        'TPU_PROCESS_BOUNDS': '1,1,1', 'TPU_WORKER_HOSTNAMES': 'localhost'}),
    ('tpu', 4, (0, 1, 0), {'TPU_CHIPS_PER_PROCESS_BOUNDS': '2,2,1'}),
    ('cpu', 4, (3, 4, 1), {'XLA_FLAGS': '--other --xla_force_host_platform_device_count=1'}),
    ('tpu', 2, (0, 2, 2), '--chips=2: this machine has 2'),
    ('tpu', 4, (0, 1, 3), '--chips=3: this machine has 4'),
])
def test_a_worker_sees_its_own_chips_only(monkeypatch, kind, chips, share, environment):
    monkeypatch.setattr('bert_jax.runtime.hosts.chips', lambda: (kind, list('0123'[:chips])))
    monkeypatch.setenv('XLA_FLAGS', '--other --xla_force_host_platform_device_count=4')
    if isinstance(environment, dict):
        assert environment.items() <= worker_environment(*share).items()
    else:
        with pytest.raises(InputError, match=environment):
            worker_environment(*share)


@pytest.mark.parametrize('grid,message', [
    (['optimizer.learning_rat=1'], "did you mean 'optimizer.learning_rate'"),
    (['seed'], 'FIELD=VALUE'),
    (['seed=1,,2'], 'FIELD=VALUE'),
    (['seed=1', 'seed=2'], 'twice'),
    (['seed=1,2,1'], 'twice'),
    ([], 'nothing varies'),
])
def test_an_invalid_grid_is_refused(grid, message):
    with pytest.raises(InputError, match=message):
        grid_members(grid, 0)


@pytest.mark.parametrize('name,members,steps', [
    ('glue.py:rte', 8, {'3 epochs'}),
    *((name, 18, {'2 epochs', '3 epochs', '4 epochs'})
      for name in ('squad.py:v2', 'swag.py', 'conll.py')),
])
def test_grids_of_the_paper(name, members, steps):
    config, grid = read_sweep(f'{ROOT}/configs/sweeps/{name}')
    assert config == f'{ROOT}/configs/{name}'
    from_weights = ['--config.init_checkpoint=DIR']
    configs = [member_config(config, from_weights, member) for member in grid_members(grid, 0)]
    assert len(configs) == members
    assert {c.train.steps for c in configs} == steps
    assert {c.train.batch_size for c in configs} == {16, 32}


def test_settings_of_the_command_line_override_those_of_the_file(tmp_path):
    assert read_sweep(CONFIG, ['b=3']) == (CONFIG, ['b=3'])
    (tmp_path / 'sweep.py').write_text("CONFIG, GRID = '../x.py', ['a=1,2', 'b=1']")
    assert read_sweep(f'{tmp_path}/sweep.py:y', ['b=3', 'c=4']) == (
        f'{tmp_path.parent}/x.py:y', ['a=1,2', 'b=3', 'c=4'])
    (tmp_path / 'ends.py').write_text('raise SystemExit(0)')  # the command must not end so, too
    assert read_sweep(f'{tmp_path}/ends.py') == (f'{tmp_path}/ends.py', [])


@pytest.fixture(scope='module')
def overrides(tmp_path_factory):
    """The flags that make a run one of a tiny model on a tiny task."""
    folder = write_cola(tmp_path_factory.mktemp('data'), train=32, dev=16)
    write_vocab(folder / 'vocab.txt', [*SPECIAL_TOKENS, *WORDS])
    return [f'--config.{setting}' for setting in (
        'init_checkpoint=', 'model.name=tiny', 'model.num_layers=1', 'model.hidden_size=16',
        'model.num_heads=2',
        'model.intermediate_size=32', f'data.source={folder}',
        f'data.vocab_file={folder}/vocab.txt', f'data.dir={folder}/cache', 'data.packing=False',
        'data.max_seq_length=16', 'train.batch_size=8', 'train.steps=4', 'train.eval_every=2',
        'train.save_every=0', 'train.log_every=1',
    )]


@pytest.fixture(autouse=True, scope='module')
def no_curves():
    """Drawing takes longer than these runs."""
    with mock.patch.object(Report, 'draw'):
        yield


def work(path, overrides, members=MEMBERS, should_stop=lambda step: False):
    """Works on a sweep in this process; (whether it was not stopped, the sweep)."""
    result = Sweep(as_path(path), CONFIG, overrides, members, 2)
    result.open(CONFIG, overrides)
    with one_device():
        return sweep.work(result, should_stop), result


def losses(run):
    """(step, loss), (step, score), ... of a run."""
    records = [json.loads(line) for line in Path(run, 'metrics.jsonl').read_text().splitlines()]
    return [(r['step'], r.get('train/loss', r.get('eval/matthews'))) for r in records]


@pytest.fixture(scope='module')
def own(tmp_path_factory, overrides):
    """By member, its (result, run directory) when trained as a run of its own."""
    found = {}
    for member in (MEMBERS[1], MEMBERS[2]):  # which differ in rate and seed
        path = tmp_path_factory.mktemp('own') / 'run'
        with one_device(), contextlib.redirect_stdout(io.StringIO()):
            program = run_setup.open_run(member_config(CONFIG, overrides, member), [as_path(path)])
            result = experiment.train_run(program, as_path(path), lambda step: False)
        found[member] = result, path
    return found


def test_members_in_one_process_can_be_stopped_and_resumed_and_equal_separate_runs(
    tmp_path, overrides, own, capsys
):
    polled = []
    finished, ours = work(tmp_path, overrides, should_stop=lambda step: (
        polled.append(step) or polled.count(3) == 2))  # at step 3 of the second member
    assert not finished and len(ours.unfinished()) == 3
    assert losses(ours.run(MEMBERS[1]))[-1][0] == 3
    finished, ours = work(tmp_path, overrides)
    assert finished and not ours.unfinished()
    for member, (result, path) in own.items():
        assert losses(ours.run(member)) == losses(path), 'bit for bit'
        assert ours.result(member).items() >= {'metric': 'eval/matthews', **result}.items()
    log = (ours.run(MEMBERS[1]) / 'log.txt').read_text()
    assert 'resuming at step 3' in log and 'result {' in log
    capsys.readouterr()

    assert ours.report() == 0
    results = json.loads((tmp_path / 'results.json').read_text())
    values = {name: run['eval/matthews'] for name, run in results['runs'].items()}
    assert results['best'] == max(values.values()) == values[results['winner']]
    for group in results['groups']:
        rate = group['settings']['optimizer.learning_rate']
        assert group['mean'] == pytest.approx(
            np.mean([value for name, value in values.items() if f'={rate},' in name]))
    assert results['winner'] in (tmp_path / 'table.md').read_text() + capsys.readouterr().out
    assert (tmp_path / 'winner').resolve().name == results['winner']
    assert len(list(tmp_path.glob('runs/*/best/*'))) == 2, 'beaten runs keep their logs only'
    assert (f"checkpoints of 2 runs are deleted; kept: {results['winner']}"
            in (tmp_path / 'table.md').read_text())
    with pytest.raises(InputError, match='its sweep deleted them.*winner'):
        read_run(ours.run(list(ours.results())[-1]))
    with pytest.raises(InputError, match=r'holds a sweep of --config=.*glue\.py:cola'):
        work(tmp_path, [*overrides, '--config.optimizer.weight_decay=0.1'])


def test_a_member_claimed_by_another_process_is_left_to_it_until_release(tmp_path, overrides, own):
    del own  # requested because it has compiled the programs
    run = tmp_path / 'runs' / MEMBERS[1].name
    run.mkdir(parents=True)
    other = Claim(run)
    assert other.attempt()
    finished, ours = work(tmp_path, overrides)
    assert finished and ours.unfinished() == [MEMBERS[1]]
    other.release()
    finished, ours = work(tmp_path, overrides)
    assert finished and not ours.unfinished()


def test_a_run_that_fails_is_named_and_the_others_go_on(tmp_path, overrides, capsys):
    train_run = experiment.train_run

    def failing(opened, *args, **kwargs):
        if opened.config.optimizer.learning_rate > 0.005:
            raise RuntimeError('the device is lost')
        return train_run(opened, *args, **kwargs)

    members = grid_members(['optimizer.learning_rate=1e-2,1e-3'], 0)
    with mock.patch.object(experiment, 'train_run', failing):
        finished, ours = work(tmp_path, overrides, members)
        assert finished and ours.report() == 1
    assert 'learning_rate=1e-2: failed (RuntimeError: the device is lost' in capsys.readouterr().err
    assert 'Traceback' in (ours.run(members[0]) / 'log.txt').read_text()
    assert list(ours.results()) == [members[1]]


@pytest.mark.parametrize('bad, message', [
    ('model.num_heads=3', 'num_heads=3'), ('data.source={folder}/none', 'no folder')])
def test_a_sweep_that_cannot_work_ends_with_its_message_and_may_be_changed(
    tmp_path, overrides, bad, message, capsys
):
    with mock.patch.object(Guard, 'start'), pytest.raises(SystemExit, match='2'):
        sweep.main([f'--config={CONFIG}', f'--workdir={tmp_path}/sweep', '--restarts=1', *overrides,
                    f'--config.{bad.format(folder=tmp_path)}'])
    assert message in capsys.readouterr().err
    Sweep(as_path(tmp_path / 'sweep'), CONFIG, overrides, MEMBERS).open(CONFIG, overrides)


def launch(path, config, *settings, devices=2):
    """Starts the command on virtual devices, with a worker process for each."""
    return subprocess.Popen(
        [sys.executable, '-m', 'bert_jax.tools.sweep', f'--workdir={path}', f'--config={config}',
         '--chips=1', '--grid', *GRID, *settings],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {'XLA_FLAGS': xla_flags(devices)})


def test_two_hosts_share_a_sweep_and_a_killed_worker_is_started_again(tmp_path, overrides, own):
    first = launch(tmp_path, CONFIG, '--restarts=2', *overrides)
    wait_until(lambda: any(path.stat().st_size for path in tmp_path.glob('runs/*/.claim-*')))
    claim = max(tmp_path.glob('runs/*/.claim-*'), key=lambda path: path.stat().st_size)
    victim = json.loads(claim.read_text())['pid']
    children = Path(f'/proc/{first.pid}/task/{first.pid}/children').read_text()
    workers = [int(pid) for pid in children.split()]
    second = launch(tmp_path, CONFIG, '--restarts=2', *overrides, devices=1)
    cores = sorted(core for pid in workers for core in os.sched_getaffinity(pid))
    allowed = sorted(os.sched_getaffinity(0))
    assert cores == allowed or len(allowed) == 1, 'the workers divide the cores among them'
    os.kill(victim, signal.SIGKILL)
    told = [process.communicate(timeout=240) for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], told
    assert f'worker {workers.index(victim)} ended with status -9: started again' in told[0][1]
    # Not bit for bit: a worker that goes on may have another number of cores, and XLA's products on
    # CPUs sum in an order that depends on it.
    for member, (_, path) in own.items():
        found, expected = losses(tmp_path / 'runs' / member.name), losses(path)
        assert found == [(step, pytest.approx(value, rel=1e-4)) for step, value in expected]
    assert '4 runs, ' in told[1][0] and 'hours of a process in all, on ' in told[1][0]


def test_a_signal_stops_all_processes_of_a_sweep(tmp_path):
    process = launch(tmp_path, 'configs/tiny_pretrain.py', *TINY[1:], '--config.task=synthetic',
                     '--config.train.steps=1000000', '--config.train.log_every=1')
    runs = [tmp_path / 'runs' / f'optimizer.learning_rate={rate}' for rate in ('1e-3', '1e-2')]
    wait_until(lambda: all((run / 'metrics.jsonl').exists() for run in runs))
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 143, err
    assert 'the same command goes on' in out
    assert all('stopped at step' in (run / 'log.txt').read_text() for run in runs)
    assert not list(tmp_path.glob('runs/*/.claim*'))
