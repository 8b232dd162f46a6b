"""The figures of the paper's tables: chosen settings, means, differences, guessing."""

import dataclasses
import statistics
from collections.abc import Sequence

import pytest
from scipy import stats

from bert_jax.tools.paper.cells import differences, is_guessing, make_cell, mean_of_columns
from bert_jax.tools.paper.record import _mean_of_tasks
from bert_jax.tools.paper.tables import COLUMNS
from bert_jax.tools.sweep.report import summary
from tests.tools.paper_plans import finish, plan


def finish_runs(table, row, rate, seed, **scores):
    """Ends the run of a row on MRPC with this rate, from this seed of its pre-training."""
    part = table.parts_of(row, 'mrpc')[seed]
    for member in part.sweep.members:
        if dict(member.settings)['optimizer.learning_rate'] == rate:
            finish(part.sweep, member, **scores)


@pytest.fixture
def table(tmp_path):
    """Table 5 with two seeds of Base, of which one is not fine-tuned with the better rate."""
    table = plan('5', tmp_path, 'mrpc', 'mrpc_f1', seeds=2)
    base = table.rows[0]
    finish_runs(table, base, '1e-3', 0, eval_f1=0.81, eval_accuracy=0.68, last_f1=0.80,
                last_accuracy=0.70)
    finish_runs(table, base, '1e-3', 1, eval_f1=0.82, eval_accuracy=0.70, last_f1=0.70,
                last_accuracy=0.66)
    finish_runs(table, base, '3e-4', 0, eval_f1=0.95, eval_accuracy=0.90, last_f1=0.90,
                last_accuracy=0.90)
    return table


def test_settings_with_fewer_runs_do_not_compete(table):
    accuracy = make_cell(table, table.rows[0], 'mrpc')
    assert accuracy['settings'] == {'optimizer.learning_rate': '1e-3'}
    assert accuracy['seeds'] == [0, 1]


def test_figures_are_of_the_last_evaluation(table):
    accuracy, f1 = (make_cell(table, table.rows[0], column) for column in ('mrpc', 'mrpc_f1'))
    assert accuracy['values'] == pytest.approx([70, 66])
    assert f1['values'] == pytest.approx([80, 70])


def test_columns_of_a_task_share_the_settings_that_its_first_metric_chooses(table):
    # A better F1 and a worse accuracy.
    finish_runs(table, table.rows[0], '3e-4', 1, eval_f1=0.7, eval_accuracy=0.2, last_f1=0.7,
                last_accuracy=0.2)
    accuracy, f1 = (make_cell(table, table.rows[0], column) for column in ('mrpc', 'mrpc_f1'))
    assert accuracy['settings'] == f1['settings'] == {'optimizer.learning_rate': '3e-4'}
    assert accuracy['values'] == pytest.approx([90, 20])
    assert f1['values'] == pytest.approx([90, 70])


@pytest.mark.parametrize(('title', 'seeds'), [('Base', [0, 0, 0]), ('not pre-trained', [0, 1, 2])])
def test_restarts_of_one_model_are_no_seeds_of_pre_training(title, seeds, tmp_path):
    table = plan('5', tmp_path, 'mrpc', restarts=3)
    (row,) = (row for row in table.rows if row.title == title)
    (part,) = table.parts_of(row, 'mrpc')
    for member in part.sweep.members:
        finish(part.sweep, member, eval_f1=0.8, eval_accuracy=0.7)
    assert make_cell(table, row, 'mrpc')['seeds'] == seeds


def test_rows_with_pre_training_have_its_perplexity(tmp_path):
    table = plan('5', tmp_path, 'mrpc', restarts=3)
    sweep = table.pretraining('base').sweep
    finish(sweep, sweep.members[0], 'eval/mlm_accuracy', eval_mlm_accuracy=0.2,
           eval_mlm_perplexity=9.0)
    by_title = {row.title: row for row in table.rows}
    assert make_cell(table, by_title['Base'], 'ppl')['values'] == [9.0]
    assert make_cell(table, by_title['not pre-trained'], 'ppl') is None


def column_of(seeds, values):
    """A column in which row `a` has these values, and row `b` no run."""
    return {'a': {'values': values, 'seeds': seeds}, 'b': {'paper': None}}


def test_a_mean_of_columns_is_of_the_seeds_that_all_of_them_have():
    mean = mean_of_columns([
        column_of(seeds=[0, 0, 1, 2], values=[1, 3, 5, 100]),
        column_of(seeds=[1, 0], values=[10, 20])])
    assert mean['a']['values'] == [11.0, 7.5]
    assert mean['a']['runs'] == 2
    assert 'mean' not in mean['b']


def test_a_task_with_two_metrics_counts_once_in_the_mean():
    columns = {'superglue_cb': 2, 'superglue_cb_f1': 4, 'superglue_rte': 9, 'ppl': 1000}
    mean = _mean_of_tasks({
        name: column_of(seeds=[0], values=[value]) for name, value in columns.items()})
    assert mean['mean']['a']['values'] == [6.0]
    assert _mean_of_tasks({'ppl': {}, 'superglue_rte': {}}) == {}


def test_columns_without_a_common_seed_have_no_mean():
    of_seed_0 = column_of(seeds=[0], values=[1])
    of_seed_1 = column_of(seeds=[1], values=[1])
    assert 'mean' not in mean_of_columns([of_seed_0, of_seed_1])['a']
    assert 'mean' not in mean_of_columns([of_seed_0, {}])['a']


def cell_of(values):
    """A cell with a seed of pre-training for each value."""
    return {'paper': None, 'values': list(values), 'seeds': list(range(len(values)))}


FIRST_RUNS = (49, 51, 50.5)
OTHER_RUNS = (39, 41, 40)


def test_two_rows_differ_by_the_interval_of_student():
    found = differences({'first': cell_of(FIRST_RUNS), 'other': cell_of(OTHER_RUNS)})
    gain = statistics.fmean(OTHER_RUNS) - statistics.fmean(FIRST_RUNS)
    interval = stats.ttest_ind(OTHER_RUNS, FIRST_RUNS).confidence_interval()
    expected = (gain, interval.low, interval.high)
    assert found == {'other': pytest.approx(expected, rel=1e-3)}


def test_rows_without_several_seeds_have_no_difference():
    two_rows = {'first': cell_of(FIRST_RUNS), 'other': cell_of(OTHER_RUNS)}
    more_rows = two_rows | {'one run': cell_of([9]), 'no run': {}}
    assert differences(more_rows) == differences(two_rows)


def test_there_are_no_differences_from_a_single_run():
    assert not differences({'first': cell_of([49]), 'other': cell_of([39, 41])})


def test_restarts_of_three_models_are_three_runs():
    rows = {'first': cell_of(FIRST_RUNS), 'other': cell_of(OTHER_RUNS)}
    restarted = {'values': [], 'seeds': []}
    for seed, value in enumerate(FIRST_RUNS):
        restarted['values'] += [value] * 5
        restarted['seeds'] += [seed] * 5
    assert differences(rows | {'first': restarted}) == differences(rows)


@dataclasses.dataclass
class GuessingCase:
    """Accuracies of the runs of two rows, where guessing has 68.4."""

    name: str
    first: Sequence[float]
    second: Sequence[float]
    inconclusive: bool


@pytest.mark.parametrize('case', [
    GuessingCase('within the deviation of the seeds', first=(69.5, 70.6, 68.4),
                 second=(68.4, 68.4, 68.4), inconclusive=True),
    GuessingCase('one row is better', first=(69.5, 70.6, 68.4), second=(75.0, 74.0, 76.0),
                 inconclusive=False),
    GuessingCase('single runs, none better', first=(68.4,), second=(60.0,), inconclusive=True),
    GuessingCase('single runs, one better', first=(68.4,), second=(68.5,), inconclusive=False),
], ids=lambda case: case.name)
def test_rows_that_score_like_guessing_are_inconclusive(case):
    cells = [{'paper': None}]
    for values in (case.first, case.second):
        cells.append(cell_of(values) | summary(values) | {'guessing': 68.4})
    assert is_guessing(COLUMNS['mrpc'], cells) == case.inconclusive
