"""Sweeps: the grid, members that share a process, processes that share a folder, resuming."""

import contextlib
import errno
import io
import json
import os
import signal
import subprocess
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from bert_jax import run_setup
from bert_jax.run.model import read_run
from bert_jax.runtime import folder_lock
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path
from bert_jax.runtime.folder_lock import Claim
from bert_jax.runtime.stopping import Guard
from bert_jax.text.vocab import SPECIAL_TOKENS
from bert_jax.text.vocab_files import write_vocab
from bert_jax.tools.sweep import __main__ as sweep_command
from bert_jax.tools.sweep import training
from bert_jax.tools.sweep.folder import Sweep
from bert_jax.tools.sweep.members import grid_members, member_config, read_sweep
from bert_jax.tools.sweep.report import markdown_table, report
from bert_jax.tools.sweep.study import SweepStudy
from bert_jax.train import experiment
from bert_jax.watch.metrics_log import MetricsLog
from tests.conftest import ROOT, wait_until, xla_flags
from tests.programs import python
from tests.shared_steps import shared_steps
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


def test_a_member_with_a_path_stays_in_the_folder_of_its_sweep():
    (member,) = grid_members(['init_checkpoint=../../elsewhere'], 0)
    assert '/' not in member.name
    assert member.settings == (('init_checkpoint', '../../elsewhere'),)


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


@pytest.mark.parametrize('name, num_members, steps', [
    ('glue.py:rte', 8, {'3 epochs'}),
    ('squad.py:v2', 18, {'2 epochs', '3 epochs', '4 epochs'}),
    ('swag.py', 18, {'2 epochs', '3 epochs', '4 epochs'}),
    ('conll.py', 18, {'2 epochs', '3 epochs', '4 epochs'}),
])
def test_grids_of_the_paper(name, num_members, steps):
    config, grid = read_sweep(f'{ROOT}/configs/sweeps/{name}')
    assert config == f'{ROOT}/configs/{name}'
    from_weights = ['--config.init_checkpoint=DIR']
    configs = [member_config(config, from_weights, member) for member in grid_members(grid, 0)]
    assert len(configs) == num_members
    assert {config.train.steps for config in configs} == steps
    assert {config.train.batch_size for config in configs} == {16, 32}


def test_settings_of_the_command_line_override_those_of_the_file(tmp_path):
    (tmp_path / 'sweep.py').write_text("CONFIG, GRID = '../x.py', ['a=1,2', 'b=1']")
    config, grid = read_sweep(f'{tmp_path}/sweep.py:y', ['b=3', 'c=4'])
    assert config == f'{tmp_path.parent}/x.py:y'
    assert grid == ['a=1,2', 'b=3', 'c=4']


def test_cells_of_a_table_do_not_divide_it():
    assert markdown_table(['a', 'b'], [['x|y', '1\n2\x1b[31m']]) == [
        '| a | b |', '| --- | --- |', '| x\\|y | 1 2\\x1b[31m |']


def test_a_grid_with_too_many_runs_is_refused():
    with pytest.raises(InputError, match='--restarts=10001 is above 10,000'):
        grid_members([], 10_001)
    with pytest.raises(InputError, match='the grid has 20,000 runs, more than 10,000'):
        grid_members(['train.batch_size=8,16'], 10_000)


@pytest.mark.parametrize('grid, fault', [('3', 'GRID=3 is no list'), ('[1]', r'GRID\[0\]=1 must')])
def test_a_sweep_file_whose_grid_is_none_is_refused(grid, fault, tmp_path):
    (tmp_path / 's.py').write_text(f"CONFIG = 'a.py'\nGRID = {grid}\n")
    with pytest.raises(InputError, match=fault):
        read_sweep(str(tmp_path / 's.py'))


def test_a_config_has_no_grid_of_its_own():
    assert read_sweep(CONFIG, ['b=3']) == (CONFIG, ['b=3'])


def test_a_file_that_ends_the_program_does_not_end_the_command(tmp_path):
    (tmp_path / 'ends.py').write_text('raise SystemExit(0)')
    assert read_sweep(f'{tmp_path}/ends.py') == (f'{tmp_path}/ends.py', [])


@pytest.fixture(scope='module')
def overrides(tmp_path_factory):
    """The flags that make a run one of a tiny model on a tiny task."""
    folder = write_cola(tmp_path_factory.mktemp('data'), train=32, dev=16)
    write_vocab(folder / 'vocab.txt', [*SPECIAL_TOKENS, *WORDS])
    settings = [
        'init_checkpoint=', 'model.name=tiny', 'model.num_layers=1', 'model.hidden_size=16',
        'model.num_heads=2', 'model.intermediate_size=32', 'model.attention_dropout=0',
        f'data.source={folder}', f'data.vocab_file={folder}/vocab.txt', f'data.dir={folder}/cache',
        'data.packing=False', 'data.max_seq_length=16', 'train.batch_size=8', 'train.steps=4',
        'train.eval_every=2', 'train.save_every=0', 'train.log_every=1',
    ]
    return [f'--config.{setting}' for setting in settings]


@pytest.fixture(autouse=True, scope='module')
def no_curves():
    """Drawing takes longer than these runs."""
    with mock.patch.object(MetricsLog, 'draw'):
        yield


def work(path, overrides, members=MEMBERS, should_stop=lambda step: False):
    """Works on a sweep in this process; (whether it was not stopped, the sweep)."""
    result = Sweep(as_path(path), CONFIG, overrides, members, keep=2)
    result.open(CONFIG, overrides)
    with one_device(), shared_steps():
        return training.work(result, should_stop), result


def losses(run):
    """(step, loss), (step, score), ... of a run."""
    found = []
    for line in Path(run, 'metrics.jsonl').read_text().splitlines():
        record = json.loads(line)
        for name in ('train/loss', 'eval/matthews'):
            if name in record:  # not in the records of checked steps
                found.append((record['step'], record[name]))
    return found


@pytest.fixture(scope='module')
def own(tmp_path_factory, overrides):
    """By member, its (result, run directory) when trained as a run of its own."""
    found = {}
    for member in (MEMBERS[1], MEMBERS[2]):  # which differ in rate and seed
        path = tmp_path_factory.mktemp('own') / 'run'
        config = member_config(CONFIG, overrides, member)
        with one_device(), shared_steps(), contextlib.redirect_stdout(io.StringIO()):
            program = run_setup.open_run(config, [as_path(path)])
            result = experiment.train_run(program, as_path(path), lambda step: False)
        found[member] = result, path
    return found


@pytest.fixture(scope='module')
def stopped_once(tmp_path_factory, overrides):
    """The path of a sweep that was stopped at step 3 of its second member."""
    path = tmp_path_factory.mktemp('sweep')
    polled = []

    def should_stop(step):
        polled.append(step)
        return polled.count(3) == 2

    finished, ours = work(path, overrides, should_stop=should_stop)
    assert not finished
    assert len(ours.unfinished()) == 3
    last_step, _ = losses(ours.run(MEMBERS[1]))[-1]
    assert last_step == 3
    return path


@pytest.fixture(scope='module')
def finished_sweep(stopped_once, overrides):
    """The same sweep, resumed and finished."""
    finished, ours = work(stopped_once, overrides)
    assert finished
    assert not ours.unfinished()
    return ours


def test_members_in_one_process_equal_separate_runs_bit_for_bit(finished_sweep, own):
    for member, (result, path) in own.items():
        assert losses(finished_sweep.run(member)) == losses(path)
        expected = {'metric': 'eval/matthews', **result}
        assert finished_sweep.result(member).items() >= expected.items()


def test_a_stopped_member_resumes(finished_sweep):
    log = (finished_sweep.run(MEMBERS[1]) / 'log.txt').read_text()
    assert 'resuming at step 3' in log
    assert 'result {' in log


def test_the_report_names_the_best_run(finished_sweep, capsys):
    assert report(finished_sweep) == 0
    path = Path(finished_sweep.path)
    results = json.loads((path / 'results.json').read_text())
    values = {name: run['eval/matthews'] for name, run in results['runs'].items()}
    assert results['best'] == max(values.values()) == values[results['winner']]
    assert (path / 'winner').resolve().name == results['winner']
    table = (path / 'table.md').read_text()
    assert results['winner'] in table + capsys.readouterr().out
    assert f"checkpoints of 2 runs are deleted; kept: {results['winner']}" in table


def test_the_report_has_the_mean_over_seeds(finished_sweep):
    assert report(finished_sweep) == 0
    results = json.loads((finished_sweep.path / 'results.json').read_text())
    assert len(results['groups']) == 2
    for group in results['groups']:
        rate = group['settings']['optimizer.learning_rate']
        values = [
            run['eval/matthews'] for name, run in results['runs'].items() if f'={rate},' in name]
        assert group['mean'] == pytest.approx(np.mean(values))


def test_what_a_killed_process_left_to_be_done_is_done(finished_sweep):
    """It was killed after the result of its run, and before the link."""
    path = Path(finished_sweep.path)
    claim = finished_sweep.run(MEMBERS[0]) / '.claim-1'
    claim.write_text(json.dumps(folder_lock.new_claim() | {'pid': 2**22 + 1}))
    (path / 'winner').unlink()
    assert report(finished_sweep) == 0
    assert (path / 'winner').is_symlink()
    assert not claim.exists()


def test_beaten_runs_keep_their_logs_only(finished_sweep):
    assert len(list(finished_sweep.path.glob('runs/*/best/*'))) == 2
    *_, worst = finished_sweep.results()
    with pytest.raises(InputError, match='its sweep deleted them.*winner'):
        read_run(finished_sweep.run(worst))


def test_a_begun_sweep_keeps_its_settings(finished_sweep, overrides):
    other = [*overrides, '--config.optimizer.weight_decay=0.1']
    with pytest.raises(InputError, match=r'holds a sweep of --config=.*glue\.py:cola'):
        work(finished_sweep.path, other)


def test_a_member_claimed_by_another_process_is_left_to_it_until_release(tmp_path, overrides):
    run = tmp_path / 'runs' / MEMBERS[1].name
    run.mkdir(parents=True)
    other = Claim(run)
    assert other.attempt()
    members = MEMBERS[1:3]
    finished, ours = work(tmp_path, overrides, members)
    assert finished
    assert ours.unfinished() == [MEMBERS[1]]
    other.release()
    finished, ours = work(tmp_path, overrides, members)
    assert finished
    assert not ours.unfinished()


def test_a_run_that_fails_is_named_and_the_others_go_on(tmp_path, overrides, capsys):
    train_run = experiment.train_run

    def failing(opened, *args, **kwargs):
        if opened.config.optimizer.learning_rate > 0.005:
            raise RuntimeError('the device is lost')
        return train_run(opened, *args, **kwargs)

    members = grid_members(['optimizer.learning_rate=1e-2,1e-3'], 0)
    with mock.patch.object(experiment, 'train_run', failing):
        finished, ours = work(tmp_path, overrides, members)
        assert finished
        assert report(ours) == 1
    assert 'learning_rate=1e-2: failed (RuntimeError: the device is lost' in capsys.readouterr().err
    assert 'Traceback' in (ours.run(members[0]) / 'log.txt').read_text()
    assert list(ours.results()) == [members[1]]


def test_a_full_disk_ends_a_sweep_at_its_first_run_in_one_line(tmp_path, overrides, capsys):
    def filling(*args, **kwargs):
        raise RuntimeError('a writer failed') from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    arguments = [f'--config={CONFIG}', f'--workdir={tmp_path}/sweep', '--restarts=2', *overrides]
    worker = mock.patch.multiple(training._Worker, _open_program=mock.DEFAULT,
                                 _own_program=mock.DEFAULT)
    with (mock.patch.object(Guard, 'start'), mock.patch.object(experiment, 'train_run', filling),
          worker, pytest.raises(SystemExit, match='1')):
        sweep_command.main(arguments)
    assert capsys.readouterr().err == (
        f'error: the disk of {tmp_path}/sweep is full (No space left on device): free some space '
        'and start again\n')
    assert not list(tmp_path.rglob('sweep_failed.json'))


def test_a_pruned_run_ends_at_its_evaluation_and_is_trained_whole_without_pruning(
    tmp_path, overrides, own, capsys
):
    pruned, other = MEMBERS[1:3]

    def why_pruned(self, member, metric, scores):
        return 'it is behind' if (member, len(scores)) == (pruned, 1) else ''

    ours = Sweep(as_path(tmp_path), CONFIG, overrides, [pruned, other], prune='median')
    ours.open(CONFIG, overrides)
    with (mock.patch.object(SweepStudy, 'why_pruned', why_pruned), one_device(), shared_steps()):
        assert training.work(ours, lambda step: False)
    run = ours.run(pruned)
    assert losses(run)[-1][0] == 2
    assert 'pruned: step 2: it is behind' in (run / 'log.txt').read_text()
    assert not (run / 'checkpoints').exists() and not (run / 'best').exists()
    assert report(ours) == 0
    shown = capsys.readouterr().out
    assert f'{pruned.name}: step 2: it is behind' in shown
    assert f'pruned: {pruned.name}' in shown
    work(tmp_path, overrides, [pruned, other])
    assert losses(run) == losses(own[pruned][1])


@pytest.mark.parametrize('bad, message', [
    ('model.num_heads=3', 'num_heads=3'),
    ('data.source={folder}/none', 'no folder'),
])
def test_a_sweep_that_cannot_work_ends_with_its_message_and_may_be_changed(
    tmp_path, overrides, bad, message, capsys
):
    arguments = [
        f'--config={CONFIG}', f'--workdir={tmp_path}/sweep', '--restarts=1', *overrides,
        f'--config.{bad.format(folder=tmp_path)}',
    ]
    with mock.patch.object(Guard, 'start'), pytest.raises(SystemExit, match='2'):
        sweep_command.main(arguments)
    assert message in capsys.readouterr().err
    Sweep(as_path(tmp_path / 'sweep'), CONFIG, overrides, MEMBERS).open(CONFIG, overrides)


def launch(path, config, *settings, devices=2, command=('tests.tools.quickly', 'sweep')):
    """Starts the command on virtual devices, with a worker process for each."""
    command = [
        *python(), '-m', *command, f'--workdir={path}', f'--config={config}',
        '--chips=1', '--grid', *GRID, *settings,
    ]
    return subprocess.Popen(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {'XLA_FLAGS': xla_flags(devices)})


def workers_of(path):
    """The process ids of a sweep's workers, by number."""
    found = {}
    for process in Path('/proc').glob('[0-9]*'):
        with contextlib.suppress(OSError):  # it has ended
            words = (process / 'cmdline').read_text().rstrip('\0').split('\0')
            if f'--workdir={path}' in words and words[-1].startswith('--worker='):
                found[int(words[-1].removeprefix('--worker='))] = int(process.name)
    return found


def size_of(path):
    return path.stat().st_size


def test_two_hosts_share_a_sweep_and_a_killed_worker_is_started_again(tmp_path, overrides, own):
    first = launch(tmp_path, CONFIG, '--restarts=2', *overrides)
    wait_until(lambda: any(map(size_of, tmp_path.glob('runs/*/.claim-*'))))
    claim = max(tmp_path.glob('runs/*/.claim-*'), key=size_of)
    victim = json.loads(claim.read_text())['pid']
    workers = workers_of(tmp_path)
    assert workers.keys() == {0, 1}
    second = launch(tmp_path, CONFIG, '--restarts=2', *overrides, devices=1)
    cores = sorted(core for pid in workers.values() for core in os.sched_getaffinity(pid))
    allowed = sorted(os.sched_getaffinity(0))
    assert cores == allowed or len(allowed) == 1, 'the workers divide the cores among them'
    os.kill(victim, signal.SIGKILL)
    started_again = set()
    wait_until(lambda: started_again.update(workers_of(tmp_path).items() - workers.items())
               or started_again)
    ((killed, _),) = started_again
    first_out, first_err = first.communicate(timeout=240)
    second_out, second_err = second.communicate(timeout=240)
    assert first.returncode == 0, (first_out, first_err)
    assert second.returncode == 0, (second_out, second_err)
    assert f'worker {killed} ended with status -9: started again' in first_err
    # Not bit for bit: a worker that goes on may have another number of cores, and XLA's products on
    # CPUs sum in an order that depends on it.
    for member, (_, path) in own.items():
        found = losses(tmp_path / 'runs' / member.name)
        assert found == [
            (step, pytest.approx(value, rel=1e-4)) for step, value in losses(path)]
    assert '4 runs, ' in second_out
    assert 'hours of a process in all, on ' in second_out


def test_a_signal_stops_all_processes_of_a_sweep(tmp_path):
    process = launch(tmp_path, 'configs/tiny_pretrain.py', *TINY[1:], '--config.task=synthetic',
                     '--config.model.hidden_dropout=0', '--config.model.attention_dropout=0',
                     '--config.train.steps=1000000', '--config.train.log_every=1',
                     command=['bert_jax.tools.sweep'])
    runs = [tmp_path / 'runs' / f'optimizer.learning_rate={rate}' for rate in ('1e-3', '1e-2')]
    wait_until(lambda: all((run / 'metrics.jsonl').exists() for run in runs))
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 143, err
    assert 'the same command goes on' in out
    assert all('stopped at step' in (run / 'log.txt').read_text() for run in runs)
    assert not list(tmp_path.glob('runs/*/.claim*'))
