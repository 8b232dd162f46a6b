"""The figures of a table, from the results of its runs, and whether their differences are chance.

A cell is a JSON object:
  `paper`: the paper's figure, or None; `dev`: a published figure of the dev set, or None.
  `parts`: the folders of the parts that it comes from.
  `guessing`: the score of guessing, or None; absent if not known so far.
With finished runs also:
  `runs`, `mean`, `deviation`: of all runs with the chosen settings.
  `values`: the figure of each run; `seeds`: the seed of each run's pre-training, or without
    pre-training, of its fine-tuning.
  `settings`: those that were chosen.
  `interval`: in a table of the user's models, of the mean at 95 %.
"""

import dataclasses
import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bert_jax.run.description import read_run_fields
from bert_jax.run.layout import is_described
from bert_jax.run.ranking import loss_of
from bert_jax.runtime.files import Path
from bert_jax.tools.paper.plan import Part, Plan
from bert_jax.tools.paper.tables import COLUMNS, Column, Row
from bert_jax.tools.sweep.members import Settings
from bert_jax.tools.sweep.report import summary

Cell = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class ScoredRun:
    """A finished run of a row and a column.

    Attributes:
      settings: its settings in the grid, without the seed.
      first_metric: the task's first metric, which chooses the settings.
      loss: its evaluation's, which chooses between settings with the same metric.
      score: the column's metric.
      seed: of its pre-training, or without one, of its fine-tuning.
      path: its run directory.
    """

    settings: Settings
    first_metric: float
    loss: float
    score: float
    seed: int
    path: Path


def make_cell(plan: Plan, row: Row, column: str) -> Cell | None:
    """A row's figure in a column; None if it has none there.

    It is of the settings with the best mean of the task's first metric on the dev set. They are
    the same for all columns of a task, so that a row's figures are of the same models. Only
    settings with the most finished runs compete: losing the worst seed makes none better.
    """
    parts = plan.parts_of(row, column)
    if not parts:
        return None
    cell: Cell = {
        'paper': row.figures.get(column),
        'dev': row.dev.get(column),
        'parts': [part.name for part in parts]}
    has_seeds_of_finetuning = row.scratch or plan.table.of_models
    runs = _scored_runs(COLUMNS[column], parts, has_seeds_of_finetuning)
    if not runs:
        return cell
    cell |= _guessing(COLUMNS[column], runs)
    chosen = _runs_with_best_settings(runs)
    scale = _scale(COLUMNS[column])
    values = [scale * run.score for run in chosen]
    cell |= summary(values)
    cell['values'] = values
    cell['seeds'] = [run.seed for run in chosen]
    cell['settings'] = dict(chosen[0].settings)
    if plan.table.of_models and len(values) > 1:
        cell['interval'] = _interval(values)
    return cell


def _interval(values: Sequence[float]) -> list[float]:
    """The ends of the 95 % interval of the mean of some seeds (Student's t)."""
    from scipy import stats

    num = len(values)
    mean = statistics.fmean(values)
    half = float(stats.t.ppf(0.975, num - 1)) * statistics.stdev(values) / num ** 0.5
    return [mean - half, mean + half]


def _scored_runs(
    column: Column, parts: Sequence[Part], has_seeds_of_finetuning: bool
) -> list[ScoredRun]:
    """The finished runs that have a column's metric and the task's first one.

    Args:
      column: of the table.
      parts: whose runs they are.
      has_seeds_of_finetuning: whether there is no pre-training here whose seeds count.
    """
    runs = []
    for number, part in enumerate(parts):
        for member in part.sweep.members:
            result = part.sweep.result(member)
            if result is None:
                continue
            first_metric = _last_value(result, result['metric'])
            score = _last_value(result, column.metric)
            if first_metric is None or score is None:
                continue
            seed = number  # a fine-tuning has a part for each seed of its pre-training
            if has_seeds_of_finetuning or not column.task:
                seed = int(dict(member.settings)['seed'])
            runs.append(ScoredRun(
                settings=member.without('seed'),
                first_metric=first_metric,
                loss=loss_of(result, result['metric']),
                score=score,
                seed=seed,
                path=part.sweep.run(member)))
    return runs


def _last_value(result: Mapping[str, Any], metric: str) -> float | None:
    """A metric at the last evaluation, or None.

    Not of the best evaluation: runs are compared after equally many epochs. If pre-training masks
    in another way, it is the metric under BERT's masking.
    """
    last = metric.replace('eval/', 'last/')
    standard = metric.replace('eval/', 'eval/standard_')
    if any(name.startswith('last/') for name in result):
        return result.get(last)  # missing where it is undefined
    return result.get(standard, result.get(metric))


def _scale(column: Column) -> int:
    """The factor of a metric in the table, which shows fractions as percentages."""
    is_perplexity = not column.task
    is_percentage = column.task.startswith('squad')
    if is_perplexity or is_percentage:
        return 1
    return 100


def _guessing(column: Column, runs: Iterable[ScoredRun]) -> Cell:
    """`guessing` of a cell, from the first run that has written its config."""
    metric = column.metric.removeprefix('eval/')
    for run in runs:
        if is_described(run.path):
            score = read_run_fields(run.path).get(f'guessing.{metric}')
            if score is not None:
                score *= _scale(column)
            return {'guessing': score}
    return {}


def _runs_with_best_settings(runs: Iterable[ScoredRun]) -> list[ScoredRun]:
    """The runs of the best settings, among the settings that have the most runs."""
    groups: dict[Settings, list[ScoredRun]] = {}
    for run in runs:
        groups.setdefault(run.settings, []).append(run)
    most = max(map(len, groups.values()))
    competing = [group for group in groups.values() if len(group) == most]
    return max(competing, key=_mean_rank)


def _mean_rank(runs: Sequence[ScoredRun]) -> tuple[float, float]:
    """The mean of the first metric; and of the loss, less of which is better."""
    metric = statistics.fmean([run.first_metric for run in runs])
    return metric, -statistics.fmean([run.loss for run in runs])


def _means_by_seed(cell: Cell) -> dict[int, float]:
    """The mean of a cell's runs, by seed."""
    by_seed: dict[int, list[float]] = {}
    for seed, value in zip(cell.get('seeds', ()), cell.get('values', ()), strict=True):
        by_seed.setdefault(seed, []).append(value)
    means: dict[int, float] = {}
    for seed in sorted(by_seed):
        means[seed] = statistics.fmean(by_seed[seed])
    return means


def mean_of_columns(columns: Iterable[Mapping[str, Cell]]) -> dict[str, Cell]:
    """The mean over columns of each row, with a value for each seed that all columns have.

    Args:
      columns: cells by row, of each column.
    """
    columns = list(columns)
    result = {}
    for row in dict.fromkeys(itertools.chain(*columns)):
        cells = [column.get(row, {}) for column in columns]
        result[row] = _mean_cell(cells)
    return result


def _mean_cell(cells: Sequence[Cell]) -> Cell:
    """The mean of a row's cells, seed by seed."""
    result: Cell = {'paper': None, 'dev': None}
    means_of_cells = list(map(_means_by_seed, cells))
    seeds = sorted(set.intersection(*map(set, means_of_cells)))
    if not seeds:
        return result
    values = []
    for seed in seeds:
        of_seed = [means[seed] for means in means_of_cells]
        values.append(statistics.fmean(of_seed))
    result |= summary(values)
    result['values'] = values
    result['seeds'] = seeds
    return result


def differences(cells: Mapping[str, Cell]) -> dict[str, list[float]]:
    """Each row's difference from the first, and the ends of its interval.

    Samples are the means by seed of pre-training. The intervals, of Tukey's honestly significant
    difference, hold for all rows together at 95 %. They pool the deviation, which the two seeds of
    one row estimate too badly. Rows with a single seed are left out; if the first is one of them,
    there are no differences.
    """
    from scipy import stats

    samples = {}
    for row, cell in cells.items():
        means = list(_means_by_seed(cell).values())
        if len(means) > 1:
            samples[row] = means
    if len(samples) < 2:
        return {}
    first = next(iter(cells))
    if first not in samples:
        return {}
    with np.errstate(all='ignore'):  # where no row has a deviation, there is no interval
        test = stats.tukey_hsd(*samples.values())  # statistic: differences of means
        bounds = test.confidence_interval()
    result = {}
    for number, row in enumerate(samples):
        low = float(bounds.low[number, 0])
        high = float(bounds.high[number, 0])
        if row != first and low < high:
            result[row] = [float(test.statistic[number, 0]), low, high]
    return result


def is_guessing(column: Column, cells: Iterable[Cell]) -> bool:
    """Whether no row is better than guessing by more than three standard errors.

    The errors follow from the deviation pooled over rows. With single seeds: whether no row is
    better at all.
    """
    compared = [cell for cell in cells if cell.get('guessing') is not None]
    if not compared:
        return False
    margin = 1e-6 + 3 * _pooled_deviation(compared)
    is_lower_better = column.metric.endswith('perplexity')
    for cell in compared:
        gain = cell['mean'] - cell['guessing']
        if is_lower_better:
            gain = -gain
        num_seeds = len(_means_by_seed(cell))
        is_within_chance = gain <= margin / num_seeds ** 0.5
        if not is_within_chance:
            return False
    return True


def _pooled_deviation(cells: Iterable[Cell]) -> float:
    """The root of the cells' mean variance; 0 if all are of single runs."""
    variances: list[float] = []
    for cell in cells:
        if cell['deviation'] is not None:
            variances.append(cell['deviation'] ** 2)
    if not variances:
        return 0.0
    return statistics.fmean(variances) ** 0.5
