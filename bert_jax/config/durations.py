"""Durations of the config: steps, shares of a run, epochs, examples; and ranges of steps."""

from __future__ import annotations

import math
import re

from bert_jax.runtime.errors import InputError

_UNITS = ('%', 'epochs', 'examples', 'steps')
_MOST = 1e12  # of any unit; what counts steps is exact up to there
_MAX_TRACED = 100  # a viewer does not open a trace of many more


def parse_duration(
    value: int | str, field: str, *, batch_size: int, num_examples: int | None, total: int | None
) -> int:
    """Steps meant by a duration.

    Args:
      value: a number of steps, or a string such as '10%', '3 epochs', '5000 examples'.
      field: the config field, for messages.
      batch_size: examples a step.
      num_examples: examples an epoch, or None where that is not known yet.
      total: steps of the whole run, or None where '%' makes no sense.

    Raises:
      InputError: not a duration, or a unit that cannot be used here.
    """
    text = str(value).strip()
    match = re.fullmatch(r'([0-9]+(?:_[0-9]+)*(?:\.[0-9]*)?(?:e[0-9]+)?)\s*([a-z%]*)', text)
    unit = match[2] if match else '?'
    unit = {'': 'steps', 'step': 'steps', 'epoch': 'epochs', 'example': 'examples'}.get(unit, unit)
    if match is None or unit not in _UNITS or isinstance(value, bool):
        raise InputError(
            f"config.{field}={value!r} is not a duration: write steps (1000), '10%', '3 epochs' "
            "or '5000 examples'"
        )
    amount = float(match[1])
    if amount > _MOST:
        raise InputError(f'config.{field}={value!r} is more than any run: at most {_MOST:,.0f}')
    if unit == '%':
        if total is None:
            raise InputError(f"config.{field}={value!r}: '%' is of train.steps and cannot be here")
        return round(total * amount / 100)
    if unit == 'epochs':
        if num_examples is None:
            raise InputError(f'config.{field}={value!r}: epochs cannot be used here, write steps')
        return max(1, round(num_examples * amount / batch_size))
    if unit == 'examples':
        return max(1, math.ceil(amount / batch_size))
    if amount != int(amount):
        raise InputError(f'config.{field}={value!r}: a number of steps is whole')
    return int(amount)


def parse_steps(value: str, field: str, total: int | None = None) -> tuple[int, int] | None:
    """First and last step of a range such as '100..110', both included; None for ''.

    Args:
      value: the range.
      field: the config field, for messages.
      total: steps of the whole run, where they are known.

    Raises:
      InputError: not a range, a long one, or one that begins behind the run.
    """
    if not value:
        return None
    match = re.fullmatch(r'([0-9]+)\.\.([0-9]+)', str(value))
    first, last = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= first <= last < first + _MAX_TRACED:
        raise InputError(
            f"config.{field}={value!r}: write the first and the last step, such as '100..110', "
            f'at most {_MAX_TRACED} of them'
        )
    if total is not None and first > total:
        raise InputError(f'config.{field}={value!r}: the run has {total:,} steps')
    return first, last
