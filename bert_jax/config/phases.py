"""The phases of a run, and durations given in steps, epochs, examples or percent."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from bert_jax.config.fields import flat_fields
from bert_jax.runtime.errors import InputError, nearest

_MOST = 1e12  # of any unit; float64 counts exactly up to there
_MAX_TRACED = 100  # viewers cannot open much longer traces

# Options of a phase's rows. A run's record has them only for the phases that state them.
PHASE_ROWS = ('masked_lm_prob', 'masking', 'source', 'causal')
# Fields of a phase, and the config field that each defaults to.
PHASE_FIELDS = {
    'steps': 'train.steps', 'batch_size': 'train.batch_size',
    'max_seq_length': 'data.max_seq_length',
    'max_predictions_per_seq': 'data.max_predictions_per_seq',
    'packed_rows': 'train.packed_rows',
    'learning_rate': 'optimizer.learning_rate', 'warmup': 'optimizer.warmup',
    **{name: f'data.{name}' for name in PHASE_ROWS}, 'causal': 'model.causal',
}


def prediction_slots(max_seq_length: int, masked_lm_prob: float) -> int:
    """The fewest slots that hold the masked positions of every row of this length.

    The original's recipes have 20 for 128 tokens, which is this, and 80 for 512, where 77 suffice.
    """
    wanted = math.ceil(round(max_seq_length * masked_lm_prob, 6))  # 0.15 * 20 is above 3
    return max(1, min(wanted, max_seq_length - 2))


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
    match = re.fullmatch(
        r'([0-9]+(?:_[0-9]+)*(?:\.[0-9]*)?(?:e[0-9]+)?)\s*(%|epochs?|examples?|steps?|)',
        str(value).strip())
    if match is None or isinstance(value, bool):
        raise InputError(f"config.{field}={value!r} is not a duration: write steps (1000), '10%', "
                         "'3 epochs' or '5000 examples'")
    amount, unit = float(match[1]), match[2].rstrip('s')
    if amount > _MOST:
        raise InputError(f'config.{field}={value!r} is more than any run: at most {_MOST:,.0f}')
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


def parse_trace(
    value: str, field: str, total: int | None = None
) -> tuple[tuple[int, int], tuple[int, ...]] | None:
    """(First and last step, both included; hosts) of a trace such as '100..110@0,3'; None for ''.

    Args:
      value: the range; without hosts, host 0 traces.
      field: the config field, for messages.
      total: steps of the whole run, if known.

    Raises:
      InputError: not a range, too long, or beyond the end of the run.
    """
    if not value:
        return None
    match = re.fullmatch(r'([0-9]+)\.\.([0-9]+)(?:@([0-9]+(?:,[0-9]+)*))?', str(value))
    first, last = (int(match[1]), int(match[2])) if match else (0, 0)
    if not match or not 1 <= first <= last < first + _MAX_TRACED:
        raise InputError(
            f"config.{field}={value!r}: write the first and the last step, such as '100..110', or "
            f"'100..110@0,3' on the hosts 0 and 3, at most {_MAX_TRACED} steps")
    if total is not None and first > total:
        raise InputError(f'config.{field}={value!r}: the run has {total:,} steps')
    return (first, last), tuple(map(int, (match[3] or '0').split(',')))


def check_phases(given: Any) -> None:
    """Checks the structure of phases, not their values.

    Raises:
      InputError: they are not a list of dicts of known fields.
    """
    if not isinstance(given, (tuple, list)) or not all(isinstance(p, Mapping) for p in given):
        raise InputError(f'config.phases={given!r} must be a tuple of phases, such as '
                         "({'steps': 1000, 'max_seq_length': 128},)")
    for i, phase in enumerate(given):
        for key in set(phase) - set(PHASE_FIELDS):
            raise InputError(f'config.phases[{i}].{key} is not a field: '
                             + nearest(str(key), list(PHASE_FIELDS)))


def phases(config: ConfigDict, num_examples: int | None = None) -> list[dict[str, Any]]:
    """The run's phases with every field filled in, `steps` and `warmup` as numbers of steps.

    Without `phases` in the config there is one, of `train.steps`. If the phases have steps and
    `train.steps` is set too, they are scaled to add up to it, for a short trial of a long recipe:
    `train.steps=100` of the paper's recipe is 90 + 10 steps.

    Args:
      config: a whole config.
      num_examples: examples an epoch (of the first phase), for durations in epochs.

    Raises:
      InputError: the steps are not set, or too few for the phases; or a phase has a `warmup` but no
        `learning_rate`.
    """
    values = flat_fields(config)
    defaults = {field: values[path] for field, path in PHASE_FIELDS.items()
                if field not in PHASE_ROWS}
    defaults |= {'steps': 0, 'learning_rate': None, 'warmup': None}
    filled = [defaults | dict(phase) for phase in config.phases or [{}]]
    for phase in filled:
        if not phase['max_predictions_per_seq']:
            phase['max_predictions_per_seq'] = prediction_slots(
                phase['max_seq_length'], phase.get('masked_lm_prob', config.data.masked_lm_prob))

    def steps_of(value: int | str, i: int, field: str, total: int | None) -> int:
        return parse_duration(value, field, batch_size=filled[i]['batch_size'],
                              num_examples=num_examples, total=total)

    total = steps_of(config.train.steps, 0, 'train.steps', None)
    counts = [steps_of(part['steps'], i, f'phases[{i}].steps', total)
              for i, part in enumerate(filled)]
    unstated = [i for i, count in enumerate(counts) if count == 0]
    if len(unstated) > 1 or (unstated and total <= sum(counts)):
        where = f'phases[{unstated[0]}].steps' if config.phases else 'train.steps'
        raise InputError(f'config.{where} is not set: say how many steps to train')
    if unstated:
        counts[unstated[0]] = total - sum(counts)
    elif total:
        if total < len(counts):
            raise InputError(f'config.train.steps={total} is less than one step for each of the '
                             f'{len(counts)} phases')
        ends = [round(total * sum(counts[: i + 1]) / sum(counts)) for i in range(len(counts))]
        # Every phase keeps at least one step.
        ends = [min(max(end, i + 1), total - (len(ends) - 1 - i)) for i, end in enumerate(ends)]
        counts = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    for i, phase in enumerate(filled):
        phase['steps'] = counts[i]
        if phase['learning_rate'] is not None:
            warmup = config.optimizer.warmup if phase['warmup'] is None else phase['warmup']
            phase['warmup'] = steps_of(warmup, i, f'phases[{i}].warmup', counts[i])
        elif phase['warmup'] is not None:
            raise InputError(
                f'config.phases[{i}].warmup is used only where the phase states its own '
                'learning_rate: set both, or optimizer.warmup')
    return filled


def batches_of(
    phases: Sequence[dict[str, Any]], number: int, skip_steps: Sequence[int] = (), step: int = 0
) -> Iterator[tuple[int, int]]:
    """The batches of a phase, chosen so that no two steps of one sequence length share rows.

    Args:
      phases: of the run.
      number: of the phase, from 0.
      skip_steps: steps of the run, from 1, that get other batches.
      step: the first wanted step of the phase, from 0.

    Yields:
      (first batch, number of consecutive ones), for the steps in order.
    """
    size, length = phases[number]['batch_size'], phases[number]['max_seq_length']
    rows = begin = largest = 0
    for i, phase in enumerate(phases):
        if phase['max_seq_length'] == length:
            first = -(-rows // phase['batch_size'])
            rows = (first + phase['steps']) * phase['batch_size']
            largest = max(largest, phase['batch_size'])
            begin = first if i == number else begin
    before, end = sum(phase['steps'] for phase in phases[:number]), phases[number]['steps']
    for i, skipped in enumerate(sorted(skip_steps)):
        skipped -= 1 + before
        if step <= skipped < end:
            if step < skipped:
                yield begin + step, skipped - step
            # Behind the planned rows, each skipped step has room for two of the largest batches,
            # because the phases' batch sizes may differ.
            yield -(-(rows + 2 * i * largest) // size), 1
            step = skipped + 1
    if step < end:
        yield begin + step, end - step
