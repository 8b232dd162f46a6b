"""Sweeps: the grid, members in one process and in one program, sharing a folder, going on."""

import contextlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import jax
import numpy as np
import pytest

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path
from bert_jax.runtime.lease import Claim
from bert_jax.tools.sweep import (
    Folder,
    Worker,
    grid_members,
    main,
    member_config,
    merged,
    read_sweep,
    worker_environment,
)
from bert_jax.train import experiment
from bert_jax.train.report import Report
from tests.conftest import ROOT

pytestmark = pytest.mark.slow

GRID = ['optimizer.learning_rate=1e-3,1e-2']


def test_the_grid_is_all_combinations():
    members = grid_members(['optimizer.learning_rate=1e-4,2e-4', 'train.batch_size=16,32'], 2)
    assert len(members) == len(set(members)) == 8
    assert members[0].name == 'optimizer.learning_rate=1e-4,train.batch_size=16,seed=0'
    assert len({member.without('seed') for member in members}) == 4


def test_a_member_stays_in_the_folder_of_its_sweep():
    (member,) = grid_members(['init_checkpoint=../../elsewhere'], 0)
    assert '/' not in member.name and member.settings == (
        ('init_checkpoint', '../../elsewhere'),)


@pytest.mark.parametrize('kind, names, share, environment', [
    ('gpu', ['5', '7'], (1, 2, 1), {'CUDA_VISIBLE_DEVICES': '7'}),
    ('gpu', ['0'], (1, 2, 0), {'XLA_PYTHON_CLIENT_MEM_FRACTION': '0.45'}),
    ('tpu', list('0123'), (1, 2, 2), {
        'TPU_VISIBLE_CHIPS': '2,3', 'TPU_CHIPS_PER_PROCESS_BOUNDS': '1,2,1',
        'TPU_PROCESS_BOUNDS': '1,1,1', 'TPU_WORKER_HOSTNAMES': 'localhost'}),
    ('tpu', list('0123'), (0, 1, 0), {'TPU_CHIPS_PER_PROCESS_BOUNDS': '2,2,1'}),
    ('cpu', list('0123'), (3, 4, 1), {
        'XLA_FLAGS': '--other --xla_force_host_platform_device_count=1'}),
])
def test_a_worker_sees_its_own_chips_only(monkeypatch, kind, names, share, environment):
    monkeypatch.setattr('bert_jax.runtime.hosts.chips', lambda: (kind, names))
    monkeypatch.setenv('XLA_FLAGS', '--other --xla_force_host_platform_device_count=4')
    assert environment.items() <= worker_environment(*share).items()


@pytest.mark.parametrize('names, share', [(['0', '1'], (0, 2, 2)), (list('0123'), (0, 1, 3))])
def test_chips_that_are_not_there_or_cannot_be_divided_so(monkeypatch, names, share):
    monkeypatch.setattr('bert_jax.runtime.hosts.chips', lambda: ('tpu', names))
    with pytest.raises(InputError, match=f'--chips={share[2]}: this machine has {len(names)}'):
        worker_environment(*share)


@pytest.mark.parametrize('grid,message', [
    (['optimizer.learning_rat=1'], "did you mean 'optimizer.learning_rate'"),
    (['seed'], 'FIELD=VALUE'),
    (['seed=1,,2'], 'FIELD=VALUE'),
    (['seed=1', 'seed=2'], 'twice'),
    (['seed=1,2,1'], 'has a value twice'),
    ([], 'nothing varies'),
])
def test_a_grid_that_cannot_be_is_refused(grid, message):
    with pytest.raises(InputError, match=message):
        grid_members(grid, 0)


@pytest.mark.parametrize('name,members,steps', [
    ('glue.py:rte', 8, {'3 epochs'}), ('squad.py:v2', 18, {'2 epochs', '3 epochs', '4 epochs'}),
    ('swag.py', 18, {'2 epochs', '3 epochs', '4 epochs'}),
    ('conll.py', 18, {'2 epochs', '3 epochs', '4 epochs'}),
])
def test_grids_of_the_paper(name, members, steps):
    config, grid = read_sweep(f'{ROOT}/configs/sweeps/{name}')
    assert config == f'{ROOT}/configs/{name}'
    from_weights = ['--config.init_checkpoint=DIR']
    configs = [member_config(config, from_weights, member) for member in grid_members(grid, 0)]
    assert len(configs) == members
    assert {c.train.steps for c in configs} == steps
    assert {c.train.batch_size for c in configs} == {16, 32}


def test_settings_of_the_command_line_go_before_those_of_the_file():
    assert read_sweep(f'{ROOT}/configs/glue.py:rte') == (f'{ROOT}/configs/glue.py:rte', [])
    assert merged(['a=1,2', 'b=1'], ['b=3', 'c=4']) == ['a=1,2', 'b=3', 'c=4']


# Members as they are trained.

WORDS = [a + b + c for a in 'bdfgk' for b in 'aeiou' for c in 'lmnrst']


@pytest.fixture(scope='module')
def overrides(tmp_path_factory):
    """Of runs on a tiny task, of one program each."""
    folder = tmp_path_factory.mktemp('data')
    rng = random.Random(1)
    (folder / 'CoLA').mkdir()
    for split, count in (('train', 32), ('dev', 16)):
        (folder / 'CoLA' / f'{split}.tsv').write_text(''.join(
            f"x\t{i % 2}\t\t{' '.join(rng.choices(WORDS, k=5))}\n" for i in range(count)))
    (folder / 'vocab.txt').write_text(
        '\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *WORDS]))
    return [f'--config.{setting}' for setting in (
        'model.name=tiny', 'model.num_layers=1', 'model.hidden_size=16', 'model.num_heads=2',
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


CONFIG = f'{ROOT}/configs/glue.py:cola'
MEMBERS = grid_members(GRID, 2)


@contextlib.contextmanager
def few_devices(count):
    """jax as a machine with so many devices has it."""
    first = jax.devices()[:count]
    with contextlib.ExitStack() as patches:
        for name, value in (('devices', first), ('local_devices', first), ('device_count', count)):
            patches.enter_context(mock.patch.object(jax, name, lambda *_, value=value: value))
        yield


class StopAt:
    """Asks to stop when a step is reached for the so manieth time, and from then on."""

    def __init__(self, step, times):
        self._step, self._left = step, times

    def __call__(self, step):
        self._left -= step == self._step
        return self._left <= 0


def work(path, overrides, keep=1, waits=True, should_stop=lambda step: False):
    """A process's part in a sweep, in this one."""
    folder = Folder(as_path(path), MEMBERS, keep)
    folder.open(CONFIG, overrides)
    finished = Worker(CONFIG, overrides, folder, should_stop, waits=waits).work()
    return finished, folder


def losses(run):
    """(step, loss), (step, score), ... of a run."""
    records = [json.loads(line) for line in Path(run, 'metrics.jsonl').read_text().splitlines()]
    return [(r['step'], r.get('train/loss', r.get('eval/matthews'))) for r in records]


@pytest.fixture(scope='module')
def own(tmp_path_factory, overrides):
    """By member, what it is as a run of its own: the result, and its run directory."""
    found = {}
    for member in (MEMBERS[1], MEMBERS[2]):  # that differ in both
        path = tmp_path_factory.mktemp('own') / 'run'
        with few_devices(1), contextlib.redirect_stdout(io.StringIO()):
            result = experiment.run(
                member_config(CONFIG, overrides, member), as_path(path), lambda step: False)
        found[member] = result, path
    return found


def test_members_one_after_another_are_stopped_continued_and_what_they_are_alone(
    tmp_path, overrides, own, capsys
):
    with few_devices(1):
        finished, folder = work(tmp_path, overrides, keep=2, should_stop=StopAt(3, 2))
        assert not finished and len(folder.unfinished()) == 3
        assert losses(folder.run(MEMBERS[1]))[-1][0] == 3
        first = (folder.run(MEMBERS[0]) / 'sweep_result.json').stat().mtime
        finished, folder = work(tmp_path, overrides, keep=2)
        assert finished and not folder.unfinished()
        assert (folder.run(MEMBERS[0]) / 'sweep_result.json').stat().mtime == first
    for member, (result, path) in own.items():
        assert losses(folder.run(member)) == losses(path), 'bit for bit'
        assert folder.result(member).items() >= {'metric': 'eval/matthews', **result}.items()
    assert 'resuming at step 3' in (folder.run(MEMBERS[1]) / 'log.txt').read_text()
    assert 'result {' in (folder.run(MEMBERS[1]) / 'log.txt').read_text()
    capsys.readouterr()

    assert folder.report() == 0
    results = json.loads((tmp_path / 'results.json').read_text())
    values = {name: run['eval/matthews'] for name, run in results['runs'].items()}
    assert results['best'] == max(values.values()) == values[results['winner']]
    for group in results['groups']:
        rate = group['settings']['optimizer.learning_rate']
        assert group['mean'] == pytest.approx(
            np.mean([value for name, value in values.items() if f'={rate},' in name]))
    assert results['winner'] in (tmp_path / 'table.md').read_text() + capsys.readouterr().out
    assert (tmp_path / 'sweep.png').stat().st_size > 1000
    assert (tmp_path / 'winner').resolve().name == results['winner']
    assert len(list(tmp_path.glob('runs/*/best/*'))) == 2, 'beaten runs keep their logs only'
    with pytest.raises(InputError, match=r'holds a sweep of --config=.*glue\.py:cola'):
        work(tmp_path, [*overrides, '--config.optimizer.weight_decay=0.1'])


def test_what_another_process_has_is_left_to_it_until_it_dies(tmp_path, overrides, own):
    del own  # it has compiled
    folder = Folder(as_path(tmp_path), MEMBERS, 1)
    folder.open(CONFIG, overrides)
    folder.run(MEMBERS[1]).mkdir()
    other = Claim(folder.run(MEMBERS[1]))
    assert other.attempt()
    with few_devices(1):
        finished, folder = work(tmp_path, overrides, waits=False)
        assert finished and folder.unfinished() == [MEMBERS[1]]
        other.release()
        finished, folder = work(tmp_path, overrides)
    assert finished and not folder.unfinished()


def test_a_run_that_fails_is_named_and_the_others_go_on(tmp_path, overrides, capsys):
    train_run = experiment.train_run

    def failing(opened, *args, **kwargs):
        if opened.config.optimizer.learning_rate > 0.005:
            raise RuntimeError('the device is lost')
        return train_run(opened, *args, **kwargs)

    members = grid_members(['optimizer.learning_rate=1e-2,1e-3'], 0)
    with (few_devices(1), mock.patch(f'{__name__}.MEMBERS', members),
          mock.patch.object(experiment, 'train_run', failing)):
        finished, folder = work(tmp_path, overrides)
        assert finished and folder.report() == 1
    assert 'learning_rate=1e-2: failed (RuntimeError: the device is lost' in capsys.readouterr().err
    assert 'Traceback' in (folder.run(members[0]) / 'log.txt').read_text()
    assert folder.ranking() == [members[1]]


def test_a_config_that_cannot_work_ends_the_sweep_with_its_message(tmp_path, capsys):
    with mock.patch('bert_jax.tools.sweep.Guard') as guard:
        guard().should_stop.return_value = False
        try:
            status = main([f'--config={CONFIG}', f'--workdir={tmp_path}', '--restarts=1',
                           '--config.model.name=tiny', '--config.model.num_heads=3'])
        except SystemExit as end:
            status = end.code
    assert status == 2
    assert 'num_heads=3' in capsys.readouterr().err


def test_a_sweep_that_fails_before_its_first_run_leaves_nothing(tmp_path, overrides, capsys):
    source = tmp_path / 'empty.txt'
    source.write_text('')
    with mock.patch('bert_jax.tools.sweep.Guard') as guard:
        guard().should_stop.return_value = False
        with pytest.raises(SystemExit, match='2'):
            main([f'--config={CONFIG}', f'--workdir={tmp_path}/sweep', '--restarts=1', *overrides,
                  f'--config.data.source={source}'])
    assert 'empty.txt' in capsys.readouterr().err
    assert not (tmp_path / 'sweep').exists()


def launch(path, *arguments, devices=1):
    return subprocess.Popen(
        [sys.executable, '-m', 'bert_jax.tools.sweep', f'--workdir={path}', '--grid', *GRID,
         *arguments], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {'XLA_FLAGS': f'--xla_force_host_platform_device_count={devices}'})


def wait_for(condition):
    deadline = time.monotonic() + 240
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.1)


def test_two_hosts_share_a_sweep_and_a_killed_worker_costs_a_start(tmp_path, overrides, own):
    arguments = (f'--config={CONFIG}', '--restarts=2', '--chips=1', *overrides)
    first, second = (launch(tmp_path, *arguments, devices=2) for _ in range(2))
    children = Path(f'/proc/{first.pid}/task/{first.pid}/children')
    wait_for(lambda: len(list(tmp_path.glob('runs/*/.claim-*'))) == 4)
    os.kill(int(children.read_text().split()[0]), signal.SIGKILL)
    told = [process.communicate(timeout=240) for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], told
    assert 'worker 0 ended with status -9: started again' in told[0][1]
    for member, (_, path) in own.items():
        assert losses(tmp_path / 'runs' / member.name) == losses(path), 'bit for bit'
    assert '4 runs, ' in told[1][0] and 'hours of a process in all, on ' in told[1][0]


def test_a_signal_stops_all_processes_of_a_sweep(tmp_path):
    """As a program, of two processes, on random batches."""
    settings = (
        'task=synthetic', 'model.num_layers=1', 'model.hidden_size=16', 'model.num_heads=2',
        'data.vocab_size=100', 'data.max_seq_length=16', 'data.max_predictions_per_seq=2',
        'train.batch_size=4', 'train.steps=1000000', 'train.eval_every=0', 'train.log_every=1',
        'train.eval_batch_size=8',
    )
    process = launch(tmp_path, '--config=configs/tiny_pretrain.py', '--parallel=2',
                     *(f'--config.{setting}' for setting in settings))
    runs = [tmp_path / 'runs' / f'optimizer.learning_rate={rate}' for rate in ('1e-3', '1e-2')]
    wait_for(lambda: all((run / 'metrics.jsonl').exists() for run in runs))
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 143, err
    assert 'the same command goes on' in out
    assert all('stopped at step' in (run / 'log.txt').read_text() for run in runs)
    assert not list(tmp_path.glob('runs/*/.claim*'))
