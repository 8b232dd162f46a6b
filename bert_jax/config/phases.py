"""The phases of a run: what each leaves out, its number of steps, and the batches of its steps."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from bert_jax.config.durations import parse_duration
from bert_jax.config.fields import flat_fields
from bert_jax.runtime.errors import InputError, nearest

# Options of a phase's rows.
ROW_OPTIONS = ('masked_lm_prob', 'masking', 'source')
# Options of its model, which then computes something else with the same parameters.
MODEL_OPTIONS = ('rotary_base',)
# What a run's record has only for the phases that state it.
PHASE_OPTIONS = (*ROW_OPTIONS, *MODEL_OPTIONS, 'causal', 'decay_from')
# Fields of a phase, and the config field that each defaults to.
PHASE_FIELDS = {
    'steps': 'train.steps',
    'batch_size': 'train.batch_size',
    'max_seq_length': 'data.max_seq_length',
    'max_predictions_per_seq': 'data.max_predictions_per_seq',
    'packed_rows': 'train.packed_rows',
    'learning_rate': 'optimizer.learning_rate',
    'warmup': 'optimizer.warmup',
    'decay_from': 'optimizer.decay_from',
    'masked_lm_prob': 'data.masked_lm_prob',
    'masking': 'data.masking',
    'source': 'data.source',
    'causal': 'model.causal',
    'rotary_base': 'model.rotary_base',
}


def prediction_slots(max_seq_length: int, masked_lm_prob: float) -> int:
    """The fewest slots that hold the masked positions of every row of this length.

    The original's recipes have 20 for 128 tokens, which is this, and 80 for 512, where 77 suffice.
    """
    wanted = math.ceil(round(max_seq_length * masked_lm_prob, 6))  # 0.15 * 20 is above 3
    return max(1, min(wanted, max_seq_length - 2))


def check_phases(given: Any) -> None:
    """Checks the structure of phases, not their values.

    Raises:
      InputError: they are not a list of dicts of known fields.
    """
    is_list = isinstance(given, (tuple, list))
    if not is_list or not all(isinstance(phase, Mapping) for phase in given):
        raise InputError(f'config.phases={given!r} must be a tuple of phases, such as '
                         "({'steps': 1000, 'max_seq_length': 128},)")
    for i, phase in enumerate(given):
        for key in set(phase) - set(PHASE_FIELDS):
            raise InputError(f'config.phases[{i}].{key} is not a field: '
                             + nearest(str(key), list(PHASE_FIELDS)))


def check_skip_steps(skipped: Any) -> None:
    """Checks that `train.skip_steps` is a list of different steps, counted from 1.

    Raises:
      InputError: it is something else.
    """
    is_list = isinstance(skipped, (tuple, list))
    if is_list:
        are_steps = all(type(step) is int and step > 0 for step in skipped)
        are_different = len(set(map(str, skipped))) == len(skipped)
    if not is_list or not are_steps or not are_different:
        raise InputError(
            f'config.train.skip_steps={skipped!r} must be a tuple of different steps, counted '
            'from 1, such as (1234,)')


def phases(config: ConfigDict, num_examples: int | None = None) -> list[dict[str, Any]]:
    """The run's phases with every field filled in, `steps` and `warmup` as numbers of steps.

    Without `phases` in the config there is one, of `train.steps`. If the phases have steps and
    `train.steps` is set too, they are scaled to add up to it, for a short trial of a long recipe:
    `train.steps=100` of the paper's recipe is 90 + 10 steps.

    Args:
      config: a whole config.
      num_examples: examples an epoch (of the first phase), for durations in epochs.

    Raises:
      InputError: the steps are not set, or too few for the phases; or a phase has a `warmup` or
        `decay_from` but no `learning_rate`.
    """
    filled = _fill_in(config)
    total = _num_steps(config.train.steps, 'train.steps', filled[0], num_examples, None)
    stated = []
    for i, phase in enumerate(filled):
        field = f'phases[{i}].steps'
        stated.append(_num_steps(phase['steps'], field, phase, num_examples, total))
    counts = _complete_counts(stated, total, are_phases=bool(config.phases))
    for i, phase in enumerate(filled):
        _check_schedule(phase, i)
        phase['steps'] = counts[i]
        phase['warmup'] = _warmup_steps(
            phase, f'phases[{i}].warmup', config.optimizer.warmup, num_examples)
    return filled


def _fill_in(config: ConfigDict) -> list[dict[str, Any]]:
    """The phases with what they leave out; steps and warm-ups as stated."""
    values = flat_fields(config)
    defaults = {}
    for name, path in PHASE_FIELDS.items():
        if name not in PHASE_OPTIONS:
            defaults[name] = values[path]
    defaults |= {'steps': 0, 'learning_rate': None, 'warmup': None}
    filled = [defaults | _stated(phase) for phase in config.phases or [{}]]
    for phase in filled:
        if not phase['max_predictions_per_seq']:
            masked_lm_prob = phase.get('masked_lm_prob', config.data.masked_lm_prob)
            phase['max_predictions_per_seq'] = prediction_slots(
                phase['max_seq_length'], masked_lm_prob)
    return filled


def _stated(phase: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a phase states; one that is None is not stated."""
    stated = dict(phase)
    for name in PHASE_OPTIONS:
        if stated.get(name) is None:
            stated.pop(name, None)
    return stated


def model_options(phase: Mapping[str, Any]) -> dict[str, Any]:
    """The options of its model that a phase states."""
    return {name: phase[name] for name in MODEL_OPTIONS if name in phase}


def _check_schedule(phase: Mapping[str, Any], number: int) -> None:
    """Refuses parts of a schedule in a phase that does not start its own."""
    if phase['learning_rate'] is not None:
        return
    for name in ('warmup', 'decay_from'):
        if phase.get(name) is not None:  # `warmup` is None where it is not stated
            raise InputError(
                f'config.phases[{number}].{name} is used only where the phase states its own '
                f'learning_rate: set both, or optimizer.{name}')


def _num_steps(
    value: int | str, field: str, phase: Mapping[str, Any], num_examples: int | None,
    total: int | None,
) -> int:
    """The steps of a duration within a phase."""
    return parse_duration(
        value, field, batch_size=phase['batch_size'], num_examples=num_examples, total=total)


def _warmup_steps(
    phase: Mapping[str, Any], field: str, default: int | str, num_examples: int | None
) -> int | None:
    """The steps of the warm-up of a phase that has its own schedule."""
    if phase['learning_rate'] is None:
        return None
    warmup = phase['warmup']
    if warmup is None:
        warmup = default
    return _num_steps(warmup, field, phase, num_examples, phase['steps'])


def _complete_counts(stated: Sequence[int], total: int, *, are_phases: bool) -> Sequence[int]:
    """The number of steps of each phase.

    Args:
      stated: of each phase; 0 for the one that takes the rest of `total`.
      total: `train.steps`; 0: the sum of the phases.
      are_phases: whether the config has phases, for messages.
    """
    unstated = [i for i, count in enumerate(stated) if count == 0]
    if not unstated and not total:
        return stated
    if not unstated:
        return _scaled(stated, total)
    if len(unstated) > 1 or total <= sum(stated):
        field = f'phases[{unstated[0]}].steps' if are_phases else 'train.steps'
        raise InputError(f'config.{field} is not set: say how many steps to train')
    counts = list(stated)
    counts[unstated[0]] = total - sum(stated)
    return counts


def _scaled(counts: Sequence[int], total: int) -> list[int]:
    """Numbers in about the same proportions that add up to `total`; each is at least 1."""
    num_phases = len(counts)
    if total < num_phases:
        raise InputError(f'config.train.steps={total} is less than one step for each of the '
                         f'{num_phases} phases')
    scaled = []
    start = 0
    for i, steps_so_far in enumerate(itertools.accumulate(counts)):
        end = round(total * steps_so_far / sum(counts))
        num_later_phases = num_phases - 1 - i
        end = min(max(end, i + 1), total - num_later_phases)
        scaled.append(end - start)
        start = end
    return scaled


@dataclasses.dataclass(frozen=True)
class _PlannedRows:
    """The rows that phases of one sequence length train on, without skipped steps.

    Attributes:
      first_batch: number of the first batch of the phase in question, in batches of its size.
      num_rows: of all these phases.
      largest_batch: batch size of the one with the largest.
    """

    first_batch: int
    num_rows: int
    largest_batch: int


def _plan_rows(phases: Sequence[dict[str, Any]], number: int) -> _PlannedRows:
    """Plans the rows of all phases that have the sequence length of phase `number`.

    A phase begins with the first batch of its size behind the rows of the phases before it.
    """
    num_rows = first_batch = largest_batch = 0
    for i, phase in enumerate(phases):
        if phase['max_seq_length'] != phases[number]['max_seq_length']:
            continue
        batch_size = phase['batch_size']
        first = _ceil_div(num_rows, batch_size)
        if i == number:
            first_batch = first
        num_rows = (first + phase['steps']) * batch_size
        largest_batch = max(largest_batch, batch_size)
    return _PlannedRows(first_batch, num_rows, largest_batch)


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
    planned = _plan_rows(phases, number)
    batch_size = phases[number]['batch_size']
    num_steps = phases[number]['steps']
    steps_before = sum(phase['steps'] for phase in phases[:number])
    for i, run_step in enumerate(sorted(skip_steps)):
        skipped = run_step - 1 - steps_before
        if not step <= skipped < num_steps:
            continue
        if step < skipped:
            yield planned.first_batch + step, skipped - step
        # Behind the planned rows, each skipped step has room for two of the largest batches,
        # because the phases' batch sizes may differ.
        first_row = planned.num_rows + 2 * i * planned.largest_batch
        yield _ceil_div(first_row, batch_size), 1
        step = skipped + 1
    if step < num_steps:
        yield planned.first_batch + step, num_steps - step


def _ceil_div(dividend: int, divisor: int) -> int:
    """The quotient of whole numbers, rounded up."""
    return (dividend + divisor - 1) // divisor
