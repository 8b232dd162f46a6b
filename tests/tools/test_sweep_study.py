"""The study of a sweep, without training: points are drawn once, and folders answer them."""

import json
import subprocess
from types import SimpleNamespace

import matplotlib
import optuna
import pytest
from sqlalchemy import exc

import bert_jax
from bert_jax.config.command_line import config_file, load_config
from bert_jax.runtime import folder_lock
from bert_jax.runtime.errors import InputError, Unavailable
from bert_jax.runtime.files import as_path
from bert_jax.tools.report import page
from bert_jax.tools.sweep import __main__ as sweep_command
from bert_jax.tools.sweep import training
from bert_jax.tools.sweep.database import open_database
from bert_jax.tools.sweep.folder import Sweep
from bert_jax.tools.sweep.members import Member, grid_members, member_config
from bert_jax.tools.sweep.plots import draw_plots, plots_in
from bert_jax.tools.sweep.report import report
from bert_jax.tools.sweep.search import Choices, Range, read_search
from bert_jax.tools.sweep.study import SweepStudy, _JournalOfFiles
from tests.conftest import ROOT, wait_until
from tests.programs import python

GRID = ['optimizer.learning_rate=1e-3,1e-2', 'train.batch_size=8,16']
SEARCH = ['train.batch_size=8,16', 'optimizer.learning_rate=1e-4..1e-2:log']


def grid_sweep(path, restarts=2):
    return opened(Sweep(as_path(path), 'glue.py:cola', [], grid_members(GRID, restarts)))


def search_sweep(path, trials=6, sampler='random', restarts=0, entries=SEARCH):
    search = read_search(entries, trials, sampler, restarts)
    return opened(Sweep(as_path(path), 'glue.py:cola', [], (), search=search))


def opened(sweep):
    sweep.open('glue.py:cola', [])
    return sweep


def finish(sweep, member, score=0.5):
    (sweep.run(member)).mkdir(exist_ok=True)
    sweep.finish(member, 'eval/accuracy', {'eval/accuracy': score, 'eval/loss': 1 - score})


def finish_all(sweep, study):
    """Ends all points; those that were trained for it."""
    trained = []
    point = study.ask()
    while point is not None:
        for member in sweep.runs_of(point):
            if not sweep.has_ended(member):
                trained.append(member)
                finish(sweep, member, score=float(dict(point)['optimizer.learning_rate']))
        study.settle()
        point = study.ask()
    return trained


def states(study):
    return [trial.state.name for trial in study.optuna.trials]


def test_points_of_a_grid_are_enqueued_once_by_two_processes(tmp_path):
    sweep = grid_sweep(tmp_path)
    first, second = SweepStudy(sweep), SweepStudy(sweep)
    asked = [first.ask(), second.ask(), first.ask(), second.ask()]
    assert first.ask() is None
    assert set(asked) == {member.without('seed') for member in sweep.grid}
    # Those that share a compiled step follow one another.
    assert [dict(point)['train.batch_size'] for point in asked] == ['8', '8', '16', '16']
    assert set(first.begun()) == set(second.begun()) == set(sweep.grid)


def test_the_value_of_a_trial_is_the_mean_of_its_seeds(tmp_path):
    sweep = grid_sweep(tmp_path)
    study = SweepStudy(sweep)
    members = sweep.runs_of(study.ask())
    finish(sweep, members[0], score=0.25)
    study.settle()
    assert states(study)[0] == 'RUNNING'
    finish(sweep, members[1], score=0.75)
    SweepStudy(sweep).settle()  # another process
    trial = study.optuna.trials[0]
    assert trial.value == 0.5
    assert trial.user_attrs['runs'] == [member.name for member in members]


def test_finished_runs_of_a_sweep_without_a_study_answer_their_points(tmp_path):
    sweep = grid_sweep(tmp_path)
    for member in sweep.grid[:3]:
        finish(sweep, member)
    study = SweepStudy(sweep)
    assert set(finish_all(sweep, study)) == set(sweep.grid[3:])
    assert states(study) == ['COMPLETE'] * 4
    assert study.is_over()


def test_a_trial_whose_process_is_gone_is_left_to_the_next(tmp_path):
    sweep = grid_sweep(tmp_path, restarts=0)
    point = SweepStudy(sweep).ask()
    (run,) = sweep.runs_of(point)
    (sweep.run(run)).mkdir()
    dead_claim(sweep.run(run))
    study = SweepStudy(sweep)
    assert study.begun() == [run]
    claim = sweep.claim(run)
    assert claim is not None
    claim.release()
    assert len(study.optuna.trials) == 4, 'it is still the same trial'


WORKER = """
import sys, time
from unittest import mock
from bert_jax.runtime.files import as_path
from bert_jax.tools.sweep import training
from bert_jax.tools.sweep.folder import Sweep
from bert_jax.tools.sweep.members import grid_members

def train(self, member, claim):
    log = open(self.sweep.run(member) / 'trained.txt', 'a', buffering=1)
    log.write(f'{sys.argv[1]} begins\\n')
    time.sleep(3600 if sys.argv[1] == 'hangs' else 0.2)
    log.write(f'{sys.argv[1]} ends\\n')
    self.sweep.finish(member, 'eval/accuracy', {'eval/accuracy': 0.5})

sweep = Sweep(as_path(sys.argv[2]), 'glue.py:cola', [], grid_members(sys.argv[3:], 2))
with (mock.patch.multiple(training, WAIT_SECONDS=0.1),
      mock.patch.multiple(training._Worker, _train=train, _open_program=lambda *_: None)):
    training.work_until_done(sweep, lambda step: False)
"""


@pytest.mark.slow
def test_of_two_processes_one_is_killed_and_every_run_is_finished_once(tmp_path):
    sweep = grid_sweep(tmp_path)

    def start(kind):
        command = [*python(), '-c', WORKER, kind, str(tmp_path), *GRID]
        return subprocess.Popen(command, cwd=ROOT)

    def trained(kind, what):
        logs = {path.parent.name: path.read_text().splitlines()
                for path in tmp_path.glob('runs/*/trained.txt')}
        return [name for name, lines in logs.items() for line in lines if line == f'{kind} {what}']

    killed = start('hangs')
    wait_until(lambda: trained('hangs', 'begins'))
    other = start('ends')
    wait_until(lambda: trained('ends', 'ends'))
    killed.kill()
    killed.wait()
    assert other.wait(timeout=240) == 0
    (lost,) = trained('hangs', 'begins')
    begun = [*trained('hangs', 'begins'), *trained('ends', 'begins')]
    ended = [*trained('hangs', 'ends'), *trained('ends', 'ends')]
    names = {member.name for member in sweep.grid}
    assert len(ended) == 8 and set(ended) == names, 'all are finished, none twice'
    assert sorted(begun) == sorted([*names, lost]), 'only what was lost was begun again'
    assert states(SweepStudy(sweep)) == ['COMPLETE'] * 4


def test_what_a_process_was_drawing_when_it_died_is_enqueued_again(tmp_path):
    sweep = grid_sweep(tmp_path, restarts=0)
    study = SweepStudy(sweep)
    study.optuna.ask()  # pops a trial, and gives it no values
    assert not study.begun()
    assert len(finish_all(sweep, SweepStudy(sweep))) == 4
    assert sorted(states(study)) == ['COMPLETE'] * 4 + ['FAIL']


def test_a_failed_run_is_tried_again_by_the_next_command_only(tmp_path):
    sweep = grid_sweep(tmp_path, restarts=0)
    study = SweepStudy(sweep)
    (failing,) = sweep.runs_of(study.ask())
    sweep.run(failing).mkdir()
    sweep.fail(failing)
    assert failing not in finish_all(sweep, study)
    assert study.is_over() and SweepStudy(sweep).is_over()
    again = grid_sweep(tmp_path, restarts=0)
    assert finish_all(again, SweepStudy(again)) == [failing]


def test_a_larger_grid_is_another_study_of_the_same_runs(tmp_path):
    sweep = grid_sweep(tmp_path, restarts=0)
    finish_all(sweep, SweepStudy(sweep))
    members = grid_members([*GRID[:1], 'train.batch_size=8,16,32'], 0)
    larger = opened(Sweep(as_path(tmp_path), 'glue.py:cola', [], members))
    assert len(finish_all(larger, SweepStudy(larger))) == 2


@pytest.mark.parametrize('sampler', ['tpe', 'random', 'qmc'])
def test_a_search_draws_so_many_points_in_its_space(sampler, tmp_path):
    sweep = search_sweep(tmp_path, sampler=sampler, restarts=2)
    trained = finish_all(sweep, SweepStudy(sweep))
    points = {member.without('seed') for member in trained}
    assert len(trained) == 2 * len(points) == len(sweep.members)
    for point in points:
        assert 1e-4 <= float(dict(point)['optimizer.learning_rate']) <= 1e-2
        assert dict(point)['train.batch_size'] in ('8', '16')
    study = SweepStudy(sweep).optuna
    assert len(study.trials) == 6
    # What the study has is what was trained.
    best = dict(Member.of_folder(study.best_trial.user_attrs['runs'][0]).settings)
    assert float(best['optimizer.learning_rate']) == study.best_params['optimizer.learning_rate']


def test_two_processes_draw_different_points_and_not_one_too_many(tmp_path):
    sweep = search_sweep(tmp_path)
    first, second = SweepStudy(sweep), SweepStudy(sweep)
    points = [first.ask(), second.ask(), first.ask(), second.ask(), first.ask(), second.ask()]
    assert first.ask() is None and second.ask() is None
    assert len(set(points)) == 6


def test_draws_are_the_same_in_another_folder(tmp_path):
    folders = []
    for name in ('a', 'b'):
        sweep = search_sweep(tmp_path / name, sampler='tpe')
        finish_all(sweep, SweepStudy(sweep))
        folders.append([member.name for member in sweep.members])
    assert folders[0] == folders[1]


def test_a_lost_study_is_made_anew_from_the_runs(tmp_path):
    sweep = search_sweep(tmp_path)
    finish_all(sweep, SweepStudy(sweep))
    (tmp_path / 'study.journal').write_text('{"op_code":\n')
    with pytest.raises(InputError, match=r'study\.journal cannot be read .*: delete it'):
        SweepStudy(sweep)
    (tmp_path / 'study.journal').unlink()
    more = search_sweep(tmp_path, trials=8)
    study = SweepStudy(more)
    assert len(finish_all(more, study)) == 2
    assert states(study) == ['COMPLETE'] * 8


def test_a_folder_that_cannot_append_has_a_file_for_each_entry(tmp_path):
    sweep = search_sweep(tmp_path)
    journals = [_JournalOfFiles(as_path(tmp_path) / 'journal') for _ in range(2)]
    (tmp_path / 'journal').mkdir()
    studies = [
        optuna.create_study(
            storage=optuna.storages.JournalStorage(journal), study_name='a', load_if_exists=True)
        for journal in journals]
    for study in studies:
        study.enqueue_trial({'x': 1.0})
    asked = [study.ask({'x': optuna.distributions.FloatDistribution(0, 2)}) for study in studies]
    assert [trial.number for trial in asked] == [0, 1]
    late = optuna.load_study(study_name='a', storage=optuna.storages.JournalStorage(
        _JournalOfFiles(as_path(tmp_path) / 'journal')))
    assert late.get_trials() == studies[0].get_trials() == studies[1].get_trials()
    assert sweep.members == []


def test_two_sweeps_share_a_database_and_each_has_its_own_study(tmp_path):
    url = f'sqlite:///{tmp_path}/study.db'
    sweeps = [pruning_sweep(tmp_path / name, '', trials=3) for name in ('a', 'b')]
    for sweep in sweeps:
        sweep.storage = url
        first, second = SweepStudy(sweep), SweepStudy(sweep)  # two processes
        assert len({first.ask(), second.ask()}) == 2
        for member in first.begun():
            evaluate(sweep, member, [0.1, 0.2])
            finish(sweep, member)
        assert len(finish_all(sweep, second)) == 1
        assert first.is_over()
        assert [trial.value for trial in first.optuna.trials[:2]] == [0.5, 0.5]
        assert first.optuna.trials[0].intermediate_values == {1: 0.1, 2: 0.2}
    assert len(optuna.get_all_study_names(url)) == 2
    (tmp_path / 'study.db').unlink()
    anew = SweepStudy(sweeps[0])
    assert finish_all(sweeps[0], anew) == []
    assert states(anew) == ['COMPLETE'] * 3


@pytest.mark.parametrize('url, message', [
    ('sqlite:///{folder}/none/a.db', 'unable to open database file'),
    ('sqlite:///{folder}/text.db', 'file is not a database'),
    ('sqlite:///{folder}/\0', 'cannot be opened'),
    ('mysql+pymysql://me:secret@host/db', r'me:\*\*\*@host/db needs pymysql, which is not'),
    ('nosuch://me:secret@host/db', "--storage='nosuch'... is not the URL of a database"),
])
def test_a_database_that_cannot_be_opened_is_refused(url, message, tmp_path):
    (tmp_path / 'text.db').write_text('no database\n' * 100)
    with pytest.raises(InputError, match=message) as refused:
        open_database(url.format(folder=tmp_path))
    assert 'secret' not in str(refused.value)


@pytest.fixture
def database_down(monkeypatch):
    """The URL of a database whose server does not answer, as there are no drivers here."""
    def refuse(*args, **kwargs):
        raise exc.OperationalError('', None, ConnectionError('connection refused'))

    monkeypatch.setattr(optuna.storages, 'RDBStorage', refuse)
    return 'postgresql://me:secret@host/db'


def test_a_study_whose_database_is_down_is_unavailable(tmp_path, database_down):
    sweep = search_sweep(tmp_path)
    sweep.storage = database_down
    with pytest.raises(Unavailable, match=r'=postgresql://me:\*\*\*@host/db does not answer'):
        SweepStudy(sweep)


def test_a_study_whose_database_cannot_be_opened_is_no_damaged_journal(tmp_path):
    sweep = search_sweep(tmp_path / 'sweep')
    sweep.storage = f'sqlite:///{tmp_path}/none/a.db'
    with pytest.raises(InputError, match='^--storage=sqlite:///.* cannot be opened: '):
        SweepStudy(sweep)


def test_a_damaged_study_in_a_database_is_said_to_be_there(tmp_path, monkeypatch):
    def fail(**kwargs):
        raise KeyError('x')

    sweep = search_sweep(tmp_path)
    sweep.storage = f'sqlite:///{tmp_path}/a.db'
    monkeypatch.setattr(optuna, 'create_study', fail)
    with pytest.raises(InputError, match=r'^the study sweep-\S+ in sqlite:///.* cannot be read'):
        SweepStudy(sweep)


@pytest.mark.parametrize('way', ['command', 'function'])
def test_a_database_that_is_down_at_the_end_costs_the_plots_alone(
    way, tmp_path, database_down, monkeypatch, capsys
):
    def work(sweep, *args):
        for member in sweep.search.examples():
            finish(sweep, member)
        return True

    folder = tmp_path / 'sweep'
    if way == 'function':
        monkeypatch.setattr(training, 'work_until_done', work)
        with pytest.raises(Unavailable, match='does not answer'):
            bert_jax.sweep('classification', {'train.batch_size': [8, 16]}, folder,
                           {'data.source': 'train.csv'}, trials=2, storage=database_down)
    else:
        monkeypatch.setattr(
            sweep_command, '_open', lambda sweep: sweep.open(str(sweep.config), sweep.overrides))
        monkeypatch.setattr(
            sweep_command, 'run_workers', lambda *args: 0 if work(args[-1].args[0]) else 1)
        with pytest.raises(SystemExit) as ended:
            sweep_command.main([
                '--config=classification', '--config.data.source=train.csv', '--trials=2',
                '--search=train.batch_size=8,16', f'--workdir={folder}',
                f'--storage={database_down}'])
        assert ended.value.code == 1
        assert '@host/db does not answer: ' in capsys.readouterr().err
    assert 'train.batch_size 8' in (folder / 'table.md').read_text()
    assert json.loads((folder / 'results.json').read_text())['groups']


def test_a_range_has_numbers_as_they_are_written():
    search = read_search(
        ['model.num_layers=2..6', 'model.hidden_dropout=0..1', 'train.steps=2 epochs,3 epochs',
         'optimizer.learning_rate=1e-5..1:log'], 3)
    assert search.space == {
        'model.hidden_dropout': Range(0, 1, log=False, whole=False),
        'model.num_layers': Range(2, 6, log=False, whole=True),
        'optimizer.learning_rate': Range(1e-5, 1, log=True, whole=False),
        'train.steps': Choices(('2 epochs', '3 epochs'))}
    rate = search.space['optimizer.learning_rate']
    assert rate.text(0.000123456) == '0.0001235'
    assert rate.rounded(0.999999) == 1
    assert rate.holds('1e-3') and not rate.holds('2') and not rate.holds('x')


@pytest.mark.parametrize('entry, message', [
    ('optimizer.learning_rat=1..2', "did you mean 'optimizer.learning_rate'"),
    ('optimizer.learning_rate=1e-3..', 'write FIELD=LOW..HIGH'),
    ('optimizer.learning_rate=1e-3..1e-2:lin', 'write FIELD=LOW..HIGH'),
    ('optimizer.learning_rate=1e-2..1e-3', 'the first number must be below the second'),
    ('optimizer.learning_rate=0..1e-3:log', 'begins above 0'),
    ('optimizer.learning_rate=1e-2..nan', 'the first number must be below'),
    ('train.batch_size=8,8', 'a value twice'),
    ('train.batch_size', 'write FIELD=LOW..HIGH'),
    ('seed=1,2', '--restarts=N'),
])
def test_an_invalid_search_is_refused(entry, message):
    with pytest.raises(InputError, match=message):
        read_search([entry], 5)


def test_a_search_with_too_many_runs_is_refused():
    with pytest.raises(InputError, match='more than 10,000 runs'):
        read_search(SEARCH, 5001, restarts=2)


def test_the_best_at_the_edge_is_said_with_the_direction(tmp_path, capsys):
    sweep = grid_sweep(tmp_path, restarts=0)
    finish_all(sweep, SweepStudy(sweep))  # the higher rate is the better one
    assert report(sweep) == 0
    shown = capsys.readouterr().out
    assert ('the best is at the edge of the grid: optimizer.learning_rate 1e-2 is the highest, '
            'try higher ones') in shown


@pytest.mark.parametrize('low, said', [(1e-5, False), (4.99e-4, True)])
def test_the_best_at_the_edge_of_a_range_is_said(low, said, tmp_path, capsys):
    entries = [f'optimizer.learning_rate={low}..1e-2:log']
    sweep = search_sweep(tmp_path, entries=entries)
    finish(sweep, Member((('optimizer.learning_rate', '0.0005'),)))
    assert report(sweep) == 0
    assert ('0.0005 is the lowest, try lower ones' in capsys.readouterr().out) == said


def test_the_function_returns_the_study(tmp_path, monkeypatch, capsys):
    def work(sweep, should_stop):
        return bool(finish_all(sweep, SweepStudy(sweep)))

    monkeypatch.setattr(training, 'work_until_done', work)
    study = bert_jax.sweep(
        'classification', {'optimizer.learning_rate': '1e-5..1e-4:log',
                           'train.batch_size': [8, 16]},
        tmp_path / 'sweep', {'data.source': 'train.csv'}, trials=3, sampler='random')
    assert len(study.trials) == 3
    assert study.best_value == study.best_params['optimizer.learning_rate']
    (run,) = study.best_trial.user_attrs['runs']
    assert (tmp_path / 'sweep' / 'winner').resolve().name == run
    assert f'best: {run}' in capsys.readouterr().out
    table = (tmp_path / 'sweep' / 'table.md').read_text()
    for name in ('history', 'slice'):
        assert f'](plots/{name}.png)' in table
        png = (tmp_path / 'sweep' / 'plots' / f'{name}.png').read_bytes()
        assert png.startswith(b'\x89PNG')


def test_plots_are_of_what_the_study_can_show(tmp_path):
    sweep = pruning_sweep(tmp_path, 'median', trials=5)
    study = SweepStudy(sweep)
    draw_plots(study.optuna, sweep.path, 'eval/accuracy')
    assert plots_in(sweep.path) == {}
    for number in range(5):
        for member in sweep.runs_of(study.ask()):
            evaluate(sweep, member, [0.1, 0.1 * number])
            finish(sweep, member, score=0.1 * number)
        study.settle()
    style = dict(matplotlib.rcParams)
    draw_plots(study.optuna, sweep.path, 'eval/accuracy')
    assert dict(matplotlib.rcParams) == style
    names = [path.name for path in plots_in(sweep.path).values()]
    assert names == ['history.png', 'importances.png', 'slice.png', 'evaluations.png']
    runs = [SimpleNamespace(folder=sweep.run(member)) for member in sweep.members]
    shown = page._sweep([SimpleNamespace(runs=runs[:2]), SimpleNamespace(runs=runs[2:])])
    assert shown.count('<img src="data:image/png;base64,') == 4
    assert page._sweep([SimpleNamespace(runs=[*runs, SimpleNamespace(folder=tmp_path)])]) == ''


def test_the_function_takes_a_config(tmp_path, monkeypatch):
    def work(sweep, should_stop):
        for member in sweep.search.examples():
            configs.append(member_config(sweep.config, sweep.overrides, member))
        return bool(finish_all(sweep, SweepStudy(sweep)))

    configs = []
    monkeypatch.setattr(training, 'work_until_done', work)
    config = load_config(config_file('classification'))
    config.data.source = 'train.csv'
    search = {'optimizer.learning_rate': '1e-5..1e-4'}
    bert_jax.sweep(config, search, tmp_path / 'sweep', trials=1)
    assert [found.optimizer.learning_rate for found in configs] == [1e-5, 1e-4]
    assert configs[0].data.source == 'train.csv'
    assert config.optimizer.learning_rate not in (1e-5, 1e-4), 'it stays as it is'
    config.data.source = 'other.csv'
    with pytest.raises(InputError, match='holds a sweep of --config=object '):
        bert_jax.sweep(config, search, tmp_path / 'sweep', trials=1)


@pytest.mark.parametrize('search, options, message', [
    ({'train.batch_size': ['8,16']}, {}, 'none may have a comma'),
    ({'train.batch_size': [0, 8]}, {}, 'search train.batch_size=0'),
    ({'train.batch_size': [8, 16]}, {'sampler': 'grid'}, 'must be one of tpe, random, qmc'),
    ({'train.batch_size': [8, 16]}, {'trials': 0}, 'trials=0 must be above 0'),
    ({'train.batch_size': [8, 16]}, {'storage': 'x'}, "--storage='x'... is not the URL"),
    ({'train.batch_size': [8, 16]}, {'prune': 'asha'}, 'one of median, hyperband, wilcoxon'),
    ({'train.batch_size': [8, 16]}, {'prune': 'hyperband', 'restarts': 2}, 'take --prune=median'),
    ({'train.eval_every': [0, 8]}, {'prune': 'median'}, 'config.train.eval_every is 0'),
])
def test_the_function_refuses_what_cannot_be_searched(search, options, message, tmp_path):
    with pytest.raises(InputError, match=message):
        bert_jax.sweep('classification', search, tmp_path / 'sweep', **options)
    assert not (tmp_path / 'sweep').exists()


def test_of_points_with_one_score_the_edge_is_that_of_the_best_run(tmp_path, capsys):
    members = grid_members(['optimizer.learning_rate=1e-4,1e-3,1e-2'], 0)
    sweep = opened(Sweep(as_path(tmp_path), 'glue.py:cola', [], members))
    for member, loss in zip(members, (0.9, 0.1, 0.9), strict=True):
        sweep.run(member).mkdir()
        sweep.finish(member, 'eval/accuracy', {'eval/accuracy': 0.5, 'eval/loss': loss})
    assert report(sweep) == 0
    assert 'at the edge' not in capsys.readouterr().out


def evaluate(sweep, member, scores):
    """Writes the records of a run's evaluations."""
    run = sweep.run(member)
    run.mkdir(exist_ok=True)
    records = [{'step': 10 * place, 'eval/accuracy': score}
               for place, score in enumerate(scores, 1)]
    (run / 'metrics.jsonl').write_text(''.join(json.dumps(record) + '\n' for record in records))


def pruning_sweep(path, prune, restarts=0, trials=8):
    search = read_search(SEARCH, trials, 'random', restarts)
    return opened(Sweep(as_path(path), 'glue.py:cola', [], (), search=search, prune=prune))


def finish_three(sweep, study):
    """Trains three points, all of whose evaluations are good."""
    for _ in range(3):
        for member in sweep.runs_of(study.ask()):
            assert first_pruned(sweep, study, member, [0.6, 0.7, 0.8, 0.85, 0.9]) == (0, '')
            finish(sweep, member, score=0.9)
        study.settle()


def first_pruned(sweep, study, member, scores):
    """(Number of the evaluations after which a run is pruned, why); (0, '') if it is not."""
    for place in range(1, len(scores) + 1):
        evaluate(sweep, member, scores[:place])
        why = study.why_pruned(member, 'eval/accuracy', scores[:place])
        if why:
            return place, why
    return 0, ''


@pytest.mark.parametrize('prune, scores, place', [
    ('median', [0.7, 0.65, 0.5], 3),  # the best so far is compared
    ('median', [0.5, 0.7, 0.8], 1),
    ('median', [0.6, 0.7, 0.9], 0),
    ('median', [None, 0.6], 2),
    ('hyperband', [0.1, 0.1, 0.1, 0.1], 1),
    ('hyperband', [0.7, 0.8, 0.9, 0.9], 0),
    ('wilcoxon', [0.5, 0.6, 0.7, 0.75], 4),  # it needs four to be sure
    ('wilcoxon', [0.5, 0.8, 0.9, 0.9], 0),
    ('', [0.1, 0.1, 0.1, 0.1], 0),
])
def test_a_run_that_is_behind_is_pruned(prune, scores, place, tmp_path):
    sweep = pruning_sweep(tmp_path, prune)
    study = SweepStudy(sweep)
    finish_three(sweep, study)
    (member,) = sweep.runs_of(study.ask())
    at, why = first_pruned(sweep, study, member, scores)
    if prune == 'hyperband' and place:  # its brackets differ in where they begin to prune
        at = min(at, place)
    assert at == place
    assert (f'pruned by --prune={prune}' in why) == bool(place)


def test_pruning_looks_at_the_mean_of_the_seeds(tmp_path):
    sweep = pruning_sweep(tmp_path, 'median', restarts=2)
    study = SweepStudy(sweep)
    finish_three(sweep, study)
    first, second = sweep.runs_of(study.ask())
    assert first_pruned(sweep, study, first, [0.8, 0.9, 0.9]) == (0, '')
    place, why = first_pruned(sweep, study, second, [0.5, 0.3, 0.3])
    assert place == 2  # the first mean, 0.65, is above the median, 0.6
    assert why == ('evaluation 2 gives eval/accuracy 0.6000 (the mean of 2 seeds), where the best '
                   'point had 0.7000: pruned by --prune=median')


def test_a_pruned_point_is_over_also_for_its_other_seeds_and_the_next_process(tmp_path, capsys):
    sweep = pruning_sweep(tmp_path, 'median', restarts=2, trials=4)
    study = SweepStudy(sweep)
    finish_three(sweep, study)
    first, second = sweep.runs_of(study.ask())
    evaluate(sweep, first, [0.1])
    (sweep.run(first) / 'checkpoints' / '10').mkdir(parents=True)
    why = study.why_pruned(first, 'eval/accuracy', [0.1])
    sweep.end_early(first, 'eval/accuracy', why)
    study.settle()
    assert states(study) == ['COMPLETE'] * 3 + ['PRUNED']
    assert study.optuna.trials[3].value == 0.1
    assert sweep.has_ended(second)
    assert not (sweep.run(first) / 'checkpoints').exists()
    again = pruning_sweep(tmp_path, 'median', restarts=2, trials=4)
    assert SweepStudy(again).is_over()
    assert report(again) == 0
    assert f'pruned: {first.name}, {second.name}' in capsys.readouterr().out
    assert json.loads((tmp_path / 'results.json').read_text())['pruned'][first.name] == why
    unpruned = pruning_sweep(tmp_path, '', restarts=2, trials=4)
    assert set(finish_all(unpruned, SweepStudy(unpruned))) == {first, second}


def dead_claim(run):
    """Writes the claim of a process that has ended."""
    dead = folder_lock.new_claim() | {'pid': 2**22 + 1}
    (run / '.claim-1').write_text(json.dumps(dead))


def test_what_a_process_that_died_on_a_pruned_run_has_left_is_deleted(tmp_path):
    sweep = pruning_sweep(tmp_path, 'median', restarts=2, trials=4)
    first, second = sweep.search.runs_of(sweep.search.examples()[0].settings)
    sweep.end_early(first, 'eval/accuracy', 'because')
    (sweep.run(second) / 'checkpoints' / '10').mkdir(parents=True)
    dead_claim(sweep.run(second))
    sweep.settle()
    assert [path.name for path in sweep.run(second).iterdir()] == ['sweep_pruned.json']


def test_a_run_that_was_pruned_meanwhile_is_not_claimed(tmp_path):
    sweep = pruning_sweep(tmp_path, 'median')
    (member, *_) = sweep.search.examples()
    sweep.end_early(member, 'eval/accuracy', 'because')
    assert sweep.claim(member) is None
    assert folder_lock.claims_in(sweep.run(member)) == []
    sweep.prune = ''
    claim = sweep.claim(member)
    assert claim is not None
    claim.release()


def test_hyperband_is_refused_for_seeds_of_a_grid(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        sweep_command.main([
            '--config=classification', '--config.data.source=train.csv', '--prune=hyperband',
            '--grid=train.batch_size=8,16', '--grid=seed=0,1,2', f'--workdir={tmp_path}/sweep'])
    assert ended.value.code == 2
    assert 'a point has 3 seeds here: take --prune=median' in capsys.readouterr().err


def test_a_study_that_is_made_anew_has_the_evaluations_and_what_was_pruned(tmp_path):
    sweep = pruning_sweep(tmp_path, 'median', trials=4)
    study = SweepStudy(sweep)
    finish_three(sweep, study)
    (member,) = sweep.runs_of(study.ask())
    evaluate(sweep, member, [0.1])
    sweep.end_early(member, 'eval/accuracy', 'because')
    study.settle()
    before = study.optuna.trials
    (tmp_path / 'study.journal').unlink()
    anew = SweepStudy(sweep)
    assert finish_all(sweep, anew) == []

    def known(trials):
        return sorted((trial.state.name, *trial.intermediate_values.values(), trial.value)
                      for trial in trials)

    assert known(anew.optuna.trials) == known(before)
