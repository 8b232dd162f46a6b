"""The study of a sweep, without training: points are drawn once, and folders answer them."""

import json

import optuna
import pytest

import bert_jax
from bert_jax.runtime import folder_lock
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path
from bert_jax.tools.sweep import training
from bert_jax.tools.sweep.folder import Sweep
from bert_jax.tools.sweep.members import Member, grid_members
from bert_jax.tools.sweep.report import report
from bert_jax.tools.sweep.search import Choices, Range, read_search
from bert_jax.tools.sweep.study import SweepStudy, _JournalOfFiles

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
    dead = folder_lock.new_claim() | {'pid': 2**22 + 1}
    (sweep.run(run) / '.claim-1').write_text(json.dumps(dead))
    study = SweepStudy(sweep)
    assert study.begun() == [run]
    claim = sweep.claim(run)
    assert claim is not None
    claim.release()
    assert len(study.optuna.trials) == 4, 'it is still the same trial'


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
    assert sweep.members == []


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


@pytest.mark.parametrize('search, options, message', [
    ({'train.batch_size': ['8,16']}, {}, 'none may have a comma'),
    ({'train.batch_size': [0, 8]}, {}, 'search train.batch_size=0'),
    ({'train.batch_size': [8, 16]}, {'sampler': 'grid'}, 'must be one of tpe, random, qmc'),
    ({'train.batch_size': [8, 16]}, {'trials': 0}, 'trials=0 must be above 0'),
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
