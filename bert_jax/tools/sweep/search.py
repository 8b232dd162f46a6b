"""The space of a sweep's search: ranges and choices of fields, as --search gives them."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bert_jax.config.fields import FIELDS
from bert_jax.config.suggestions import suggest_field
from bert_jax.runtime.errors import InputError
from bert_jax.tools.sweep.members import MOST_RUNS, Member, Settings

SAMPLERS = ('tpe', 'random', 'qmc')
_FORM = 'write FIELD=LOW..HIGH, FIELD=LOW..HIGH:log or FIELD=VALUE,VALUE'


class Range(NamedTuple):
    """Numbers from `low` to `high`, on a logarithmic scale if `log`; whole ones if `whole`."""

    low: float
    high: float
    log: bool
    whole: bool

    def text(self, value: float) -> str:
        """A number as it is written in a setting: four digits, so that a folder can be read."""
        if self.whole:
            return str(round(value))
        return f'{value:.4g}'

    def rounded(self, value: float) -> float:
        """The number that `text` writes, within the range."""
        if self.whole:
            return value
        return min(max(float(self.text(value)), self.low), self.high)

    def place(self, value: float) -> float:
        """Where a number is between the ends, from 0 to 1."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return (value - low) / (high - low)

    def holds(self, text: str) -> bool:
        """Whether a setting is one of its numbers."""
        try:
            return self.low <= float(text) <= self.high
        except ValueError:
            return False


class Choices(NamedTuple):
    """Values as they are written on the command line."""

    values: tuple[str, ...]

    def holds(self, text: str) -> bool:
        """Whether a setting is one of them."""
        return text in self.values


Axis = Range | Choices


@dataclasses.dataclass(frozen=True)
class Search:
    """Points that are drawn.

    Attributes:
      space: what each field is drawn from; in the order of the fields' names, as folders have it.
      trials: number of points.
      sampler: one of SAMPLERS.
      restarts: number of seeds of each point; 0: the config's seed alone.
    """

    space: Mapping[str, Axis]
    trials: int
    sampler: str = 'tpe'
    restarts: int = 0

    def runs_of(self, point: Settings) -> list[Member]:
        """The runs of a point, one for each seed."""
        if not self.restarts:
            return [Member(point)]
        return [Member((*point, ('seed', str(seed)))) for seed in range(self.restarts)]

    def holds(self, point: Settings) -> bool:
        """Whether the settings are a point of the space."""
        if [field for field, _ in point] != list(self.space):
            return False
        return all(self.space[field].holds(value) for field, value in point)

    def examples(self) -> list[Member]:
        """Points with every choice and both ends of every range, to check before any is run."""
        ends: dict[str, list[str]] = {}
        for field, axis in self.space.items():
            if isinstance(axis, Range):
                ends[field] = [axis.text(axis.low), axis.text(axis.high)]
            else:
                ends[field] = list(axis.values)
        first = {field: values[0] for field, values in ends.items()}
        members = []
        for field, values in ends.items():
            for value in values:
                members.append(Member(tuple((first | {field: value}).items())))
        return members


def read_search(
    entries: Sequence[str], trials: int, sampler: str = 'tpe', restarts: int = 0
) -> Search:
    """The search of entries 'FIELD=LOW..HIGH', 'FIELD=LOW..HIGH:log' or 'FIELD=VALUE,VALUE'.

    Raises:
      InputError: an entry has another form, names no field of the config, or has a field or value
        twice; or the points are too many.
    """
    space: dict[str, Axis] = {}
    for entry in entries:
        field, _, text = entry.partition('=')
        if field not in FIELDS:
            raise InputError(f'--search {field} is not a field: {suggest_field(field)}')
        if field == 'seed':
            raise InputError('--search seed: seeds are no better or worse; --restarts=N gives '
                             'each point N of them')
        if field in space:
            raise InputError(f'--search {entry} has a field twice')
        space[field] = _axis(field, text)
    if trials * max(restarts, 1) > MOST_RUNS:
        raise InputError(f'--trials={trials} with --restarts={restarts} are more than '
                         f'{MOST_RUNS:,} runs')
    return Search(dict(sorted(space.items())), trials, sampler, restarts)


def _axis(field: str, text: str) -> Axis:
    """The range or the choices of a field."""
    if '..' in text and ',' not in text and '/' not in text:
        return _range(field, text)
    values = tuple(text.split(','))
    if not all(values):
        raise InputError(f'--search {field}={text}: {_FORM}')
    if len(set(values)) < len(values):
        raise InputError(f'--search {field}={text} has a value twice')
    return Choices(values)


def _range(field: str, text: str) -> Range:
    bounds, colon, scale = text.partition(':')
    low, _, high = bounds.partition('..')
    try:
        found = Range(float(low), float(high), bool(colon), _is_whole(field, low, high))
    except ValueError:
        raise InputError(f'--search {field}={text}: {_FORM}') from None
    if scale not in ('', 'log') or (colon and not scale):
        raise InputError(f'--search {field}={text}: {_FORM}')
    is_finite = math.isfinite(found.low) and math.isfinite(found.high)
    if not is_finite or found.low >= found.high:
        raise InputError(f'--search {field}={text}: the first number must be below the second')
    if found.log and found.low <= 0:
        raise InputError(f'--search {field}={text}: a logarithmic scale begins above 0')
    if found.whole and found.log and found.low < 1:
        raise InputError(f'--search {field}={text}: a logarithmic scale of whole numbers begins '
                         'at 1')
    return found


def _is_whole(field: str, low: str, high: str) -> bool:
    """Whether a range is one of whole numbers: both bounds are, and the field is no fraction."""
    is_fraction = isinstance(FIELDS[field].default, float)
    return not is_fraction and low.strip('+-').isdigit() and high.strip('+-').isdigit()
