"""References: what the checked steps of a recipe are like, and where a run leaves that.

A reference holds the checked steps (`watch.step_fingerprints`) of runs that differ only in their
seed. It is a JSON file, shipped in `references/` by the recipe's name, or anybody's own.
`tools.report` makes one (`--reference`) and compares a run with one afterwards (`--against`);
`train.reference` compares a run while it trains.

A run with one of the seeds must have the same batches; any run must have the same learning rates,
and losses and gradient norms within the band of the seeds.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bert_jax.config.fields import CHANGES_RESULT, field_of, pretraining_kind
from bert_jax.run.changes import Change, compare, number_phases
from bert_jax.runtime.errors import InputError, nearest
from bert_jax.runtime.files import Path, as_path, children, read_json
from bert_jax.watch.alarms import Alarm
from bert_jax.watch.step_fingerprints import (
    BATCH,
    GRADIENT,
    LEARNING_RATE,
    LOSS,
    is_whole,
    steps_since_check,
)

CHECKED = (BATCH, LEARNING_RATE, LOSS, GRADIENT)
_ENDING = '.json'
_VOCABULARY = 'identity.vocabulary'  # the digest of a text's content follows from it
# By chance, values leave the band at this share of the checked steps, if seeds are normally
# distributed.
_CHANCE = 1e-3
_SAME_RATE = 1e-4  # relative difference of learning rates that versions of jax round differently


class Band(NamedTuple):
    """Where the seeds of a reference say that a metric of another run lies."""

    mean: float
    half_width: float

    def holds(self, value: float) -> bool:
        """Whether a value lies within."""
        return abs(value - self.mean) <= self.half_width

    def __str__(self) -> str:
        return f'{self.mean:.4g} +- {self.half_width:.2g}'


class Departure(NamedTuple):
    """Where a run leaves its reference, for the first time in what is compared.

    Attributes:
      step: the step.
      name: what is compared, one of `CHECKED`.
      line: what it is, with the settings that may be the cause.
    """

    step: int
    name: str
    line: str


@dataclasses.dataclass(frozen=True, eq=False)
class Reference:
    """The checked steps of runs of a recipe.

    Attributes:
      name: of the file, for messages.
      fields: of their config.json that change what comes out, without the seed.
      seeds: of the runs.
      steps: that all of them have checked, ascending.
      values: by a name of `CHECKED`, a list for each seed of the values at `steps`.
    """

    name: str
    fields: Mapping[str, Any]
    seeds: Sequence[int]
    steps: Sequence[int]
    values: Mapping[str, Sequence[Sequence[float]]]

    def at(self, step: int, name: str) -> list[float]:
        """A value of each seed at a step."""
        index = self.steps.index(step)
        return [of_seed[index] for of_seed in self.values[name]]

    def band(self, step: int, name: str) -> Band:
        """The band of a metric at a step.

        It is an interval of Student's t for the next value. The deviation of the seeds, relative to
        their mean, is estimated from all checked steps that are means over as many steps as this.
        """
        mean = statistics.fmean(self.at(step, name))
        return Band(mean, mean * self._relative_half_width(steps_since_check(step), name))

    def _relative_half_width(self, window: int, name: str) -> float:
        """Half the band's width over its mean, at steps whose values are means of `window`."""
        from scipy import stats

        variances: list[float] = []
        for step in self.steps:
            if steps_since_check(step) == window:
                values = self.at(step, name)
                variances.append(statistics.variance(values) / statistics.fmean(values) ** 2)
        freedom = len(variances) * (len(self.seeds) - 1)
        quantile = float(stats.t.ppf(1 - _CHANCE / 2, freedom))
        of_next = 1 + 1 / len(self.seeds)  # the mean is estimated, too
        return quantile * math.sqrt(statistics.fmean(variances) * of_next)


class Comparison:
    """The comparison of a run with a reference.

    Attributes:
      reference: of the recipe.
      seed: of the run.
      changes: the settings in which the run differs, apart from its seed.
    """

    def __init__(self, reference: Reference, fields: Mapping[str, Any]):
        """Compares the settings.

        Args:
          reference: of the recipe.
          fields: of the run, from `compared_fields`.

        Raises:
          InputError: the reference is of another task.
        """
        task = fields.get('task', '')
        expected = reference.fields['task']
        if _kind(task) != _kind(expected):
            raise InputError(f'the run has the task {task!r}, the reference {reference.name} '
                             f'{expected!r}: name a reference of the same task')
        self.reference = reference
        self.seed: Any = fields.get('seed')
        self.changes = [
            change for change in compare(reference.fields, fields) if change.name != 'seed']
        self._left: set[str] = set()

    @property
    def has_same_rows(self) -> bool:
        """Whether the reference says which rows a run of this seed has."""
        return self.seed in self.reference.seeds

    def departures(self, step: int, record: Mapping[str, float]) -> list[Departure]:
        """The values of a checked step that are the first of their name to leave the reference.

        Args:
          step: the step.
          record: its record in metrics.jsonl; other records have no departures.
        """
        if BATCH not in record or step not in self.reference.steps:
            return []
        found = []
        for name in CHECKED:
            if name in self._left:
                continue
            difference = self._difference(step, name, record)
            if difference:
                self._left.add(name)
                found.append(Departure(step, name, f'step {step:,}: {difference}'))
        return found

    def _difference(self, step: int, name: str, record: Mapping[str, float]) -> str:
        """How a value of a checked step differs from the reference; '' if it does not."""
        value = record[name]
        if name == BATCH:
            return self._difference_of_batch(step, value)
        if name == LEARNING_RATE:
            expected = self.reference.at(step, name)[0]
            if math.isclose(value, expected, rel_tol=_SAME_RATE):
                return ''
            said = f'learning rate {value:.5g}, reference {expected:.5g}'
            return said + self._because(name)
        if not is_whole(step, record):
            return ''
        band = self.reference.band(step, name)
        if band.holds(value):
            return ''
        title = 'loss' if name == LOSS else 'gradient norm'
        return f'{title} {value:.4g}, reference {band}{self._because(name)}'

    def _difference_of_batch(self, step: int, digest: float) -> str:
        if not self.has_same_rows:
            return ''
        index = self.reference.seeds.index(self.seed)
        expected = self.reference.at(step, BATCH)[index]
        if digest == expected:
            return ''
        return 'the batch differs' + self._because(BATCH)

    def _because(self, name: str) -> str:
        """The settings that differ from the reference's and may be why a value does."""
        if name in (LOSS, GRADIENT) and BATCH in self._left:
            return ' (of other rows)'
        names = [change.name for change in self.changes]
        reasons: list[str] = []
        for change in self.changes:
            follows = _VOCABULARY in names and change.name.startswith('identity.content')
            if _matters(change.name, name) and not follows:
                reasons.append(_shown(change))
        if name == BATCH and not pretraining_kind(self.reference.fields['task']):
            reasons.append('another mesh or train.accumulation_steps, for which labelled examples '
                           'are packed')
        if reasons:
            return ': ' + '; '.join(reasons)
        return ', and no setting that it depends on'

    def alarms(self, step: int, record: Mapping[str, float]) -> list[Alarm]:
        """The departures of a step, as warnings of a run that trains."""
        result = []
        for departure in self.departures(step, record):
            line = f'the run leaves its reference {self.reference.name}: {departure.line}'
            result.append(Alarm('reference', step, record[departure.name], line))
        return result


def _kind(task: str) -> str:
    """One name for all tasks whose losses are alike, as those of pre-training on text are."""
    return pretraining_kind(task) or task


def _matters(field: str, name: str) -> bool:
    """Whether another value of a field can be why a checked value differs."""
    is_of_optimizer = field.startswith('optimizer.')
    is_of_schedule = field.endswith(('.steps', '.batch_size', '.learning_rate', '.warmup'))
    if name == LEARNING_RATE:
        return is_of_optimizer or is_of_schedule
    if name == BATCH:
        is_of_rows = field_of(field).role == 'data' or field.startswith('phases.')
        return is_of_rows or field in ('task', 'train.batch_size')
    return True


def _shown(change: Change) -> str:
    """A setting that differs, as a warning shows it; of a digest, only its name."""
    if change.name == _VOCABULARY:
        return 'another vocabulary (compare data.vocab_file)'
    if change.name.startswith('identity.'):
        return f'differing {change.name.removeprefix("identity.")}'
    return f'{change.name}={change.now!r}, reference {change.before!r}'


def compared_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a run's config.json, by dotted name, that change its results."""
    result = {}
    for name, value in number_phases(fields).items():
        if name == 'vocabulary':  # `identity` has it
            continue
        if field_of(name).role_of(fields.get('task', '')) in CHANGES_RESULT:
            result[name] = value
    return result


def find_reference(named: str) -> Path:
    """The file of a reference: one that is shipped, by its name, or a path that ends in .json.

    Raises:
      InputError: no such reference is shipped.
    """
    if named.endswith(_ENDING):
        return as_path(named)
    folder = as_path(__file__).parent / 'references'
    shipped = sorted(path.name.removesuffix(_ENDING) for path in children(folder))
    if named not in shipped:
        raise InputError(f'there is no reference {named!r}: {nearest(named, shipped)}, or name a '
                         f'file that ends in {_ENDING}')
    return folder / f'{named}{_ENDING}'


def reference_of(reference: str) -> Reference | None:
    """The reference that `train.reference` names; None if it is empty.

    Raises:
      InputError: as of `read_reference`.
    """
    return read_reference(reference) if reference else None


def read_reference(named: str) -> Reference:
    """The reference of this name or path.

    Raises:
      InputError: there is none, or the file holds something else.
    """
    path = find_reference(named)
    content = read_json(path, 'tools.report --reference makes it of runs')
    try:
        reference = Reference(
            name=named, fields=dict(content['fields']), seeds=content['seeds'],
            steps=content['steps'], values={name: content[name] for name in CHECKED})
        is_complete = _is_complete(reference)
    except (KeyError, TypeError, ValueError):
        is_complete = False
    if not is_complete:
        raise InputError(f'{path} is not a reference: tools.report --reference makes one of runs')
    return reference


def _is_complete(reference: Reference) -> bool:
    """Whether it has a task, two seeds or more, and a number of each at every step."""
    integers = [*reference.seeds, *reference.steps]
    if 'task' not in reference.fields or not all(type(value) is int for value in integers):
        return False
    if len(reference.seeds) < 2:
        return False
    for values in reference.values.values():
        if len(values) != len(reference.seeds):
            return False
        for of_seed in values:
            if len(of_seed) != len(reference.steps):
                return False
            if not all(type(value) in (int, float) for value in of_seed):
                return False
    return True
