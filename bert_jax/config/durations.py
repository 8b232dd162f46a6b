"""Durations and ranges of steps, as config fields spell them."""

import math
import re
from typing import NamedTuple

from bert_jax.runtime.errors import InputError

ANY_NUMBER = 10**9  # of examples and steps, before they are known
_MAX_AMOUNT = 1e12  # of any unit; float64 counts exactly up to there
_MAX_TRACED = 100  # viewers cannot open much longer traces
_DURATION = re.compile(
    r'(?P<amount>[0-9]+(_[0-9]+)*(\.[0-9]*)?(e[0-9]+)?)\s*(?P<unit>%|epochs?|examples?|steps?|)')
_TRACE = re.compile(r'(?P<first>[0-9]+)\.\.(?P<last>[0-9]+)(@(?P<hosts>[0-9]+(,[0-9]+)*))?')


def parse_duration(
    value: int | str, field: str, *, batch_size: int, num_examples: int | None, total: int | None
) -> int:
    """The number of steps of a duration.

    Args:
      value: a number of steps, or a string such as '10%', '3 epochs', '5000 examples'.
      field: the config field, for messages.
      batch_size: examples a step.
      num_examples: examples an epoch; None if epochs are not allowed.
      total: steps of the whole run; None if '%' is not allowed.

    Raises:
      InputError: not a duration, or a unit that is not allowed here.
    """
    match = _DURATION.fullmatch(str(value).strip())
    if match is None or isinstance(value, bool):
        raise InputError(f"config.{field}={value!r} is not a duration: write steps (1000), '10%', "
                         "'3 epochs' or '5000 examples'")
    amount = float(match['amount'])
    unit = match['unit'].rstrip('s')
    if amount > _MAX_AMOUNT:
        raise InputError(
            f'config.{field}={value!r} is more than any run: at most {_MAX_AMOUNT:,.0f}')
    if unit == 'example':
        return max(1, math.ceil(amount / batch_size))
    if unit == 'epoch' and num_examples is not None:
        return max(1, round(num_examples * amount / batch_size))
    if unit == '%' and total is not None:
        return round(total * amount / 100)
    if unit in ('epoch', '%') or amount != int(amount):
        raise InputError(f"config.{field}={value!r}: '%' is of train.steps, epochs are of the "
                         'data: write a whole number of steps here')
    return int(amount)


def check_duration(field: str, value: int | str) -> None:
    """Checks that a duration has a unit that its field can have.

    Raises:
      InputError: it is none, or has another unit.
    """
    num_examples: int | None = ANY_NUMBER
    total: int | None = ANY_NUMBER
    if field.endswith('warmup'):
        num_examples = None  # not in epochs
    if field == 'train.steps':
        total = None  # not in percent
    parse_duration(value, field, batch_size=1, num_examples=num_examples, total=total)


def check_decay_from(field: str, value: int | str) -> None:
    """Checks where a decay begins: at the start, at the peak, or after a duration.

    Raises:
      InputError: it is something else.
    """
    if value not in ('start', 'peak'):
        check_duration(field, value)


class Trace(NamedTuple):
    """Steps of a run of which some hosts write a trace.

    Attributes:
      steps: the first and the last, both included.
      hosts: by their indices.
    """

    steps: tuple[int, int]
    hosts: tuple[int, ...]


def parse_trace(value: str, field: str, total: int | None = None) -> Trace | None:
    """A trace such as '100..110@0,3', or None for ''.

    Args:
      value: the steps; without hosts, host 0 traces.
      field: the config field, for messages.
      total: steps of the whole run, if known.

    Raises:
      InputError: not a range, too long, or beyond the end of the run.
    """
    if not value:
        return None
    trace = _read_trace(str(value))
    if trace is None or not _is_short(*trace.steps):
        raise InputError(
            f"config.{field}={value!r}: write the first and the last step, such as '100..110', or "
            f"'100..110@0,3' on the hosts 0 and 3, at most {_MAX_TRACED} steps")
    if total is not None and trace.steps[0] > total:
        raise InputError(f'config.{field}={value!r}: the run has {total:,} steps')
    return trace


def _read_trace(value: str) -> Trace | None:
    match = _TRACE.fullmatch(value)
    if match is None:
        return None
    steps = (int(match['first']), int(match['last']))
    hosts = match['hosts'] or '0'
    return Trace(steps, tuple(map(int, hosts.split(','))))


def _is_short(first: int, last: int) -> bool:
    return 1 <= first <= last < first + _MAX_TRACED
