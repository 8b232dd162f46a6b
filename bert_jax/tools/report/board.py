"""The board: a Markdown table of recipes of pre-training, with their cost and downstream scores."""

import dataclasses
import itertools
import os
import re
import statistics
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bert_jax.config.fields import pretraining_kind
from bert_jax.heads import HEADS
from bert_jax.model.layers import ModelConfig
from bert_jax.run.model import read_description
from bert_jax.runtime.chips import find_chip
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path, read_fields
from bert_jax.runtime.schema import NUMBER, TEXT, MapOf
from bert_jax.step.step import num_unpadded
from bert_jax.tools.report.groups import Group, grouped, is_setting
from bert_jax.tools.report.runs import RunRecords
from bert_jax.tools.sweep.report import markdown_table
from bert_jax.watch.metrics_log import short_number

# In which the fine-tunings of several pre-trainings with the same settings may differ; the board
# takes the last evaluation, however many there were.
_NOT_SETTINGS = ('seed', 'init_', 'data.vocab_file', 'train.eval_every')
_TABLE = {'parts': MapOf(TEXT), 'source': TEXT, 'scale': TEXT}  # of what tools.paper writes

ScoresBySeed = dict[int, float]  # by the number of the pre-training in its group


@dataclasses.dataclass(frozen=True)
class FineTuning:
    """A finished fine-tuning of a pre-training.

    Attributes:
      task: its name.
      settings: text that is equal for fine-tunings with the same settings.
      seed: the number of the pre-training in its group.
      score: at the last evaluation, as a percentage.
    """

    task: str
    settings: str
    seed: int
    score: float


@dataclasses.dataclass(frozen=True, order=True)
class Recipe:
    """A row of the board; rows are in the order of these fields.

    Attributes:
      num_params: of the model with its pre-training heads.
      flops: of one pre-training.
      cells: of the row.
    """

    num_params: int
    flops: float
    cells: list[str]


def board(runs: Sequence[RunRecords]) -> str:
    """The Markdown of a board of recipes, from runs of pre-training and of fine-tuning.

    Raises:
      InputError: none of the runs is a finished pre-training.
    """
    groups = grouped(filter(_is_finished_pretraining, runs))
    if not groups:
        raise InputError('--board: none of the runs is a finished pre-training')
    path = as_path(__file__).parent / 'board.toml'
    definitions = tomllib.loads(path.read_text(encoding='utf-8'))
    scores_of_groups = [_downstream_scores(group.runs, runs) for group in groups]
    tasks = sorted(set(itertools.chain(*scores_of_groups)))
    recipes: list[Recipe] = []
    for group, scores in zip(groups, scores_of_groups, strict=True):
        recipes.append(_recipe(group, scores, tasks, definitions['share_of_peak']))
    rows = [recipe.cells for recipe in sorted(recipes)]
    for name, fields in definitions['published'].items():
        rows.append(_published_row(name, fields, tasks))
    heading = [*definitions['columns'], *tasks, 'seeds', 'commit', 'repeated by']
    return '\n'.join([definitions['text'], *markdown_table(heading, rows), ''])


def _is_finished_pretraining(run: RunRecords) -> bool:
    return run.finished and bool(run.scores) and _is_pretraining(run)


def _is_pretraining(run: RunRecords) -> bool:
    return pretraining_kind(run.fields.get('task', '')) == 'pretrain'


def _downstream_scores(
    pretrained: Sequence[RunRecords], runs: Iterable[RunRecords]
) -> dict[str, ScoresBySeed]:
    """Scores of the fine-tunings of a group, by task, with the settings that are best over all.

    Args:
      pretrained: the runs of the group.
      runs: all runs, among them fine-tunings of the group's.
    """
    by_task: dict[str, list[FineTuning]] = {}
    for fine_tuning in _fine_tunings(pretrained, runs):
        by_task.setdefault(fine_tuning.task, []).append(fine_tuning)
    return {task: _best_scores(fine_tunings) for task, fine_tunings in by_task.items()}


def _fine_tunings(
    pretrained: Sequence[RunRecords], runs: Iterable[RunRecords]
) -> Iterator[FineTuning]:
    """The finished runs that started from one of the pre-trainings."""
    seeds = {os.path.abspath(run.folder): seed for seed, run in enumerate(pretrained)}
    for run in runs:
        if _is_pretraining(run):
            continue
        start = os.path.abspath(run.fields.get('init_checkpoint') or '/')
        is_scored = bool(run.evaluations) and f'eval/{run.metric}' in run.evaluations[-1]
        if start in seeds and run.finished and is_scored:
            task = str(run.fields['task'])
            yield FineTuning(task, _settings_text(run), seeds[start], _last_score(run, task))


def _settings_text(run: RunRecords) -> str:
    """Text that is equal for fine-tunings with the same settings."""
    settings: list[tuple[str, Any]] = []
    for name, value in run.fields.items():
        if is_setting(name, run) and not name.startswith(_NOT_SETTINGS):
            settings.append((name, value))
    return str(sorted(settings))


def _last_score(run: RunRecords, task: str) -> float:
    """The score of a fine-tuning at the last evaluation, as a percentage."""
    score = run.evaluations[-1][f'eval/{run.metric}']
    if task.startswith('squad'):
        return score
    return 100 * score


def _best_scores(fine_tunings: Iterable[FineTuning]) -> ScoresBySeed:
    """The mean score by pre-training, with the best of the settings that have the most runs."""
    by_settings: dict[str, list[FineTuning]] = {}
    for fine_tuning in fine_tunings:
        by_settings.setdefault(fine_tuning.settings, []).append(fine_tuning)
    by_seed: dict[int, list[float]] = {}
    for fine_tuning in max(by_settings.values(), key=_num_runs_and_mean):
        by_seed.setdefault(fine_tuning.seed, []).append(fine_tuning.score)
    return {seed: statistics.fmean(scores) for seed, scores in by_seed.items()}


def _num_runs_and_mean(fine_tunings: Sequence[FineTuning]) -> tuple[int, float]:
    scores = [fine_tuning.score for fine_tuning in fine_tunings]
    return len(scores), statistics.fmean(scores)


def _recipe(
    group: Group, scores: Mapping[str, ScoresBySeed], tasks: Sequence[str], share_of_peak: float
) -> Recipe:
    """The row of a group of pre-trainings.

    Args:
      group: the pre-trainings.
      scores: of their fine-tunings, by task.
      tasks: those that the board has.
      share_of_peak: of a chip's FLOPs that training is assumed to reach.
    """
    run = group.runs[0]
    model = ModelConfig(**read_description(run.folder).model)
    num_params = run.fields.get('parameters')
    if not num_params:  # older runs do not say it
        num_params = num_unpadded(HEADS[run.head](model))
    _, flops = run.work_at(run.fields['train.steps'])
    command = str(run.fields.get('made.command', ''))
    shown_command = ''
    if command:
        shown_command = f'`{command}`'
    losses = group.scores('standard_mlm_loss') or group.scores('mlm_loss')
    samples = [losses, _means_over_tasks(scores, tasks, len(group.runs))]
    for task in tasks:
        samples.append(list(scores.get(task, {}).values()))
    return Recipe(num_params, flops, [
        _recipe_name(run, command) or group.name,
        f'{model.num_layers}/{model.hidden_size}',
        short_number(num_params),
        f'{flops:.2g}',
        _chip_hours(run, flops, share_of_peak),
        *map(_with_interval, samples),
        str(len(group.runs)),
        str(run.fields.get('made.commit', '')),
        shown_command])


def _chip_hours(run: RunRecords, flops: float, share_of_peak: float) -> str:
    """Hours of a v5e chip: those that preflight counted, or an estimate from the FLOPs."""
    counted = run.folder / 'preflight.json'
    if counted.exists():
        hours = read_fields(counted, {'chip_hours': NUMBER}, 'delete it').get('chip_hours')
        if hours is not None:
            return f'{hours:.3g}'
    hours = flops / share_of_peak / find_chip('v5e').peak_flops / 3600
    return f'≈ {hours:.2g}'


def _recipe_name(run: RunRecords, command: str) -> str:
    """The recipe of a run, as the table of tools.paper names it or by the config; '' if unknown."""
    part = run.folder.parent.parent
    if part.parent.name == 'parts':
        for path in part.parent.parent.glob('*.json'):
            table = read_fields(path, _TABLE, 'delete it, it is written again')
            title = (table.get('parts') or {}).get(part.name)
            if title:
                return _name_in_table(title, table)
    config = re.search(r'--config[= ]\S*?([^/\s]+\.py\S*)', command)
    if not config:
        return ''
    return config[1]


def _name_in_table(title: str, table: Mapping[str, Any]) -> str:
    """The recipe of a pre-training by its title in a table, with the table's scale."""
    name = title.removeprefix('pre-training ')
    is_users_own = not table.get('source')
    if is_users_own:  # its names have the scale already
        return name
    return f'{name},{table.get("scale")}'


def _means_over_tasks(
    scores: Mapping[str, ScoresBySeed], tasks: Sequence[str], num_seeds: int
) -> list[float]:
    """The mean over tasks, for each pre-training that has a score in all of them."""
    if not tasks:
        return []
    means = []
    for seed in range(num_seeds):
        task_scores = [scores[task][seed] for task in tasks if seed in scores.get(task, ())]
        if len(task_scores) == len(tasks):
            means.append(statistics.fmean(task_scores))
    return means


def _with_interval(values: Sequence[float]) -> str:
    """The mean of the values, and half the width of Student's 95 % interval; '' without values."""
    from scipy import stats

    if not values:
        return ''
    if len(values) == 1:
        return f'{values[0]:.2f}'
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
    return f'{statistics.fmean(values):.2f} ± {half:.2f}'


def _published_row(name: str, fields: Mapping[str, Any], tasks: Sequence[str]) -> list[str]:
    """The row of a published model, from its fields in board.toml."""
    scores = [str(fields['scores'].get(task, '')) for task in tasks]
    unknown = [''] * 4  # FLOPs, chip-hours, LM loss, mean
    return [name, fields['model'], fields['parameters'], *unknown, *scores, '', '',
            fields['source']]
