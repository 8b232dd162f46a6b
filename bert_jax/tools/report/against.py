"""A run beside the reference of its recipe, in words; and a reference, made of runs."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bert_jax.run.changes import compare
from bert_jax.run.layout import RECORDS
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.provenance import hardware, versions
from bert_jax.tools.report.runs import RunRecords
from bert_jax.watch.reference import (
    CHECKED,
    Comparison,
    Departure,
    Reference,
    compared_fields,
)
from bert_jax.watch.step_fingerprints import BATCH, LOSS, NUM_STEPS, is_whole


def checked_steps(run: RunRecords) -> dict[int, Mapping[str, float]]:
    """The records of the checked steps of a run, by step.

    Raises:
      InputError: it has none, or one is damaged.
    """
    result: dict[int, Mapping[str, float]] = {}
    for record in run.records:
        if BATCH not in record:
            continue
        for name in (*CHECKED, NUM_STEPS):
            if name not in record:
                raise InputError(f"{run.folder / RECORDS}: the record of step "
                                 f"{record['step']} has {BATCH}, but no {name}: remove its line")
        result[record['step']] = record
    if not result:
        raise InputError(f'{run.folder} has no records of checked steps: it has done no step yet, '
                         'or an earlier version trained it')
    return result


class Compared(NamedTuple):
    """The result of comparing a run with a reference.

    Attributes:
      lines: that say it.
      leaves: whether the run leaves the reference.
    """

    lines: list[str]
    leaves: bool


def against(run: RunRecords, reference: Reference) -> Compared:
    """Compares a run, finished or not, with a reference of its recipe.

    Raises:
      InputError: there is no step to compare.
    """
    checked = checked_steps(run)
    common = [step for step in reference.steps if step in checked]
    if not common:
        raise InputError(f'{run.folder} and {reference.name} have no checked step in common')
    comparison = Comparison(reference, compared_fields(run.fields))
    departures: list[Departure] = []
    for step in common:
        departures += comparison.departures(step, checked[step])
    left = {departure.name for departure in departures}
    agreeing = f'{len(common)} checked steps, up to step {common[-1]:,}'
    lines = [f'{run.name}, seed {comparison.seed}: {agreeing}, compared with {reference.name} '
             f'(seeds {_listed(reference.seeds)})']
    if not comparison.has_same_rows:
        lines.append(f'seed {comparison.seed} is none of the reference, so its rows are others: '
                     'not compared')
    elif BATCH not in left:
        lines.append('same data')
    lines += [departure.line for departure in departures]
    if LOSS not in left:
        lines.append(_loss(comparison, checked, common))
    return Compared(lines, bool(departures))


def _loss(
    comparison: Comparison, checked: Mapping[int, Mapping[str, float]], common: Sequence[int]
) -> str:
    """The loss at the last step that can be compared."""
    whole = [step for step in common if is_whole(step, checked[step])]
    if not whole:
        return 'no loss can be compared: the run resumed between all checked steps'
    step = whole[-1]
    reference = comparison.reference
    band = reference.band(step, LOSS)
    said = f'loss {checked[step][LOSS]:.4f} at step {step:,}, reference {band}'
    if comparison.has_same_rows:
        index = reference.seeds.index(comparison.seed)
        largest = 0.0  # difference
        for each in whole:
            difference = abs(checked[each][LOSS] - reference.at(each, LOSS)[index])
            largest = max(largest, difference)
        said += (f'; its seed {comparison.seed}: {reference.at(step, LOSS)[index]:.4f}, all losses '
                 f'within {largest:.2g}')
    return said


def reference_of(runs: Sequence[RunRecords]) -> str:
    """The content of a reference file, of runs that differ in nothing but their seed.

    It goes as far as the shortest of them.

    Raises:
      InputError: they differ in something else, are fewer than two, or resumed between checked
        steps.
    """
    fields = []
    seeds = []
    for run in runs:
        of_run = compared_fields(run.fields)
        seeds.append(of_run.pop('seed', None))
        fields.append(of_run)
    if len(set(seeds)) < 2 or len(set(seeds)) < len(seeds):
        raise InputError(f'the runs have the seeds {_listed(seeds)}: a reference needs two or '
                         'more runs, each with another seed')
    for run, of_run in zip(runs, fields, strict=True):
        changes = [change.name for change in compare(fields[0], of_run)]
        if changes:
            raise InputError(f'{run.folder} and {runs[0].folder} differ in {_listed(changes)}: '
                             'runs of a reference differ in their seed alone')
    checked = list(map(checked_steps, runs))
    common = set(checked[0]).intersection(*checked)
    steps = [step for step in checked[0] if step in common]
    for run, records in zip(runs, checked, strict=True):
        for step in steps:
            if not is_whole(step, records[step]):
                raise InputError(
                    f'{run.folder} resumed from a step that is not checked, before step {step:,}: '
                    'train it anew, or give a run that did not stop there')
    content: dict[str, Any] = {
        'made': {'versions': versions(), 'hardware': hardware()},
        'fields': fields[0], 'seeds': seeds, 'steps': steps,
    }
    for name in CHECKED:
        content[name] = []  # a list for each run
        for records in checked:
            content[name].append([records[step][name] for step in steps])
    return json.dumps(content, indent=1) + '\n'


def _listed(values: Sequence[Any]) -> str:
    return ', '.join(map(str, values))
