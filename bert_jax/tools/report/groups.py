"""Groups of runs that differ only in their seed: their scores, curves and settings."""

import dataclasses
import itertools
import os
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bert_jax.config.fields import CHANGES_RESULT, field_of
from bert_jax.config.phases import PHASE_OPTIONS
from bert_jax.tools.report.runs import Point, RunRecords
from bert_jax.watch.metrics_log import short_number

# Digests, and what the row `phases` shows.
_NOT_SHOWN = (
    'identity.', 'vocabulary', 'train.steps', 'train.batch_size', 'train.packed_rows',
    'data.max_seq_length', 'data.max_predictions_per_seq')


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed.

    Attributes:
      name: what the runs' names have in common, or all of them.
      number: its place among the groups.
      runs: at least one.
    """

    name: str
    number: int
    runs: Sequence[RunRecords]

    def scores(self, name: str) -> list[float]:
        """A metric of each run that has it."""
        return [run.scores[name] for run in self.runs if name in run.scores]

    def curves(self) -> dict[str, list[list[float]]]:
        """The points of every `train/...` and `eval/...`, at the steps that all its runs have.

        A point is (step, tokens, FLOPs so far, mean, lowest and highest value).
        """
        result: dict[str, list[list[float]]] = {}
        runs = list(map(_points_by_step, self.runs))
        for name, step in runs[0]:
            if all((name, step) in run for run in runs):
                points = [run[name, step] for run in runs]
                result.setdefault(name, []).append(_mean_point(points))
        return result

    def phases(self) -> list[tuple[float, float, float, int]]:
        """(Steps, tokens, FLOPs, length of rows) where each phase but the first begins."""
        run = self.runs[0]
        phases = run.fields.get('phases') or ()
        begin = 0
        result = []
        for phase, following in itertools.pairwise(phases):
            begin += phase['steps']
            result.append((begin, *run.work_at(begin), following['max_seq_length']))
        return result

    def results(self) -> dict[str, str]:
        """Its cost, and its scores with their deviation over the seeds, as text by name."""
        run = self.runs[0]
        result = {}
        if run.scores:
            result['evaluation'] = self._evaluated_steps()
            tokens, flops = run.work_at(run.scores['step'])
            result['tokens'] = short_number(tokens)
            result['FLOPs'] = f'{flops:.2e}'
        for name in run.scores:
            if name != 'step':
                result[name] = mean_with_deviation(self.scores(name))
        result |= self._median('tokens_per_second', short_number)
        result |= self._median('mfu', '{:.1%}'.format)
        return result

    def _evaluated_steps(self) -> str:
        """Which evaluations the scores are of."""
        which = 'last'
        if self.runs[0].keeps_best:
            which = 'best'
        steps = sorted(set(self.scores('step')))
        numbers = ' or '.join(map('{:,.0f}'.format, steps))
        return f'{which}, step {numbers}'

    def _median(self, name: str, as_text: Callable[[float], str]) -> dict[str, str]:
        """The median of a metric of training, by its name; empty if no record has it."""
        key = f'train/{name}'
        values: list[float] = []
        for record in itertools.chain(*[run.records for run in self.runs]):
            if key in record:
                values.append(record[key])
        if not values:
            return {}
        return {name: as_text(statistics.median(values))}

    def settings(self) -> dict[str, str]:
        """The settings that the page compares, with the values of all runs, as text by name."""
        fields_of_runs = list(map(_fields_with_phases_text, self.runs))
        result = {}
        for name in fields_of_runs[0]:
            if is_setting(name, self.runs[0]) and not name.startswith(_NOT_SHOWN):
                values = [str(fields[name]) for fields in fields_of_runs]
                result[name] = ', '.join(dict.fromkeys(values))
        return result


def grouped(runs: Iterable[RunRecords]) -> list[Group]:
    """Groups finished runs by all settings, except the seed.

    A run that is not finished is a group by itself.
    """
    by_settings: dict[str, list[RunRecords]] = {}
    for run in runs:
        by_settings.setdefault(_group_key(run), []).append(run)
    groups: list[Group] = []
    for members in by_settings.values():
        taken = [group.name for group in groups]
        groups.append(Group(_group_name(members, taken), len(groups), members))
    return groups


def _group_key(run: RunRecords) -> str:
    """Text that is equal for runs of one group."""
    settings: list[tuple[str, Any]] = []
    for name, value in run.fields.items():
        if name != 'seed' and is_setting(name, run):
            settings.append((name, value))
    unfinished = ''
    if not run.finished:
        unfinished = run.name
    return f'{sorted(settings)} {unfinished}'


def _group_name(runs: Sequence[RunRecords], taken: Sequence[str]) -> str:
    """The common beginning of the names of runs; all names, if there is none or it is `taken`."""
    names = [run.name for run in runs]
    common = re.sub(r'[\W_]*(seed)?[\W_]*$', '', os.path.commonprefix(names))
    if len(names) == 1 or not common or common in taken:
        return ', '.join(names)
    return common


def is_setting(name: str, run: RunRecords) -> bool:
    """Whether a field says how a run was computed, and not only where, or how it was logged.

    Another way to compute the same (a mesh, accumulation) is a setting too: two runs of one seed
    are no two seeds.
    """
    role = field_of(name).role_of(run.fields.get('task', ''))
    return role in CHANGES_RESULT or role == 'compute'


def _points_by_step(run: RunRecords) -> dict[tuple[str, float], Point]:
    """The points of a run's curves, by the curve's name and the step."""
    result = {}
    for name, points in run.curves().items():
        for point in points:
            result[name, point.step] = point
    return result


def _mean_point(points: Sequence[Point]) -> list[float]:
    """Points of several runs as [step, tokens, FLOPs, mean, lowest and highest value]."""
    values = [point.value for point in points]
    means = map(statistics.fmean, zip(*points, strict=True))
    return [*means, min(values), max(values)]


def _fields_with_phases_text(run: RunRecords) -> dict[str, Any]:
    phases = run.fields.get('phases') or ()
    return {**run.fields, 'phases': ', '.join(map(_phase_text, phases))}


def _phase_text(phase: Mapping[str, Any]) -> str:
    """A phase as in '90 steps of 8 rows of 128', and the fields that only some phases have."""
    parts = [f'{phase["steps"]:,} steps of {phase["batch_size"]} rows of {phase["max_seq_length"]}']
    for name in PHASE_OPTIONS:
        if name in phase:
            parts.append(f'{name} {phase[name]}')
    return ', '.join(parts)


def mean_with_deviation(values: Sequence[float]) -> str:
    """The mean, and the standard deviation of several values; '' if there are none."""
    if not values:
        return ''
    mean = f'{statistics.fmean(values):.4f}'
    if len(values) == 1:
        return mean
    return f'{mean} ± {statistics.stdev(values):.4f}'
