"""How long a run takes: its steps, between two ends, and what else it does.

The steps of a TPU are counted twice (see `cycles`): by the compiler's schedules, with messages that
overlap computation, and by its estimates, without overlap. Of GPUs there is an estimate only, whose
messages overlap or do not.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bert_jax.config.durations import parse_duration
from bert_jax.train.program import Program

Record = dict[str, Any]

# What runs on TPUs have reached of the peak, as published: BERT-Large by LAMB in 76 minutes on
# 1,024 v3 chips (You et al., 2019), and the models of github.com/AI-Hypercomputer/maxtext (44 to
# 65 %).
PUBLISHED_SHARES = (0.28, 0.65)
# Until the first step: processes start and join, data is opened, a checkpoint is read. Assumed.
_START_SECONDS = 60.0
_COMPILE_SECONDS = 90.0  # of the first phase; the others are compiled beside its steps. Assumed.
# A save holds up the steps while the state is copied from the devices; it is written beside them.
_SAVE_SECONDS = 1.0
_COPIED_BYTES_PER_SECOND = 1e9  # of a device
_MOST_EVALUATED_ROWS = 65_536  # where a run takes all: held-out text is not read here
_FORWARD_SHARE = 1 / 3  # of the computation of a training step


class StepHours(NamedTuple):
    """The hours of all steps, at both ends, and what share of the peak these mean."""

    least: float
    most: float
    share_at_least: float
    share_at_most: float


def step_hours(phases: Sequence[Record]) -> StepHours:
    """The ends of the hours of some phases, which all fit."""
    most = sum(phase['hours'] for phase in phases)
    least = min(most, sum(_scheduled_seconds(phase) for phase in phases) / 3600)
    computed = sum(phase['mfu'] * phase['hours'] for phase in phases)  # hours at the peak
    return StepHours(least, most, computed / max(least, 1e-9), computed / max(most, 1e-9))


def _scheduled_seconds(phase: Record) -> float:
    """Seconds of a phase whose messages overlap computation, by schedules where there are any."""
    seconds = phase['seconds']
    computing = seconds.get('scheduled', seconds['compute'])
    result: float = phase['steps'] * (computing + seconds['waiting'])
    return result


def total_hours(phases: Sequence[Record], others: Mapping[str, float]) -> float:
    """The middle of the hours of the steps, and the other hours."""
    steps = step_hours(phases)
    return (steps.least + steps.most) / 2 + sum(others.values())


def other_hours(program: Program, phases: Sequence[Record]) -> dict[str, float]:
    """Hours of a run besides its steps, if nothing interrupts it.

    Args:
      program: of the run.
      phases: its records, which all fit.
    """
    train = program.config.train
    num_steps = program.num_steps

    def times(field: str, value: int | str) -> int:
        every = parse_duration(
            value, field, batch_size=phases[0]['batch_size'],
            num_examples=program.task.num_examples, total=num_steps)
        return num_steps // every if every else 0

    steps = step_hours(phases)
    num_saves = 1 + times('train.save_every', train.save_every)
    if train.save_minutes:
        num_saves += int((steps.least + steps.most) / 2 * 60 / train.save_minutes)
    kinds = phases[0]['bytes']
    state_bytes = kinds.get('parameters', 0) + kinds.get('optimizer', 0)
    last = phases[-1]
    num_evaluations = 1 + times('train.eval_every', train.eval_every)
    if getattr(program.task, 'standard_masking', None):  # each also with BERT's masks
        num_evaluations *= 2
    row_seconds = _FORWARD_SHARE * last['step_seconds'] / last['batch_size']
    seconds = {
        'start': _START_SECONDS,
        'compiling': _COMPILE_SECONDS,
        'saves': num_saves * (_SAVE_SECONDS + state_bytes / _COPIED_BYTES_PER_SECOND),
        'evaluations': num_evaluations * _evaluated_rows(program) * row_seconds,
    }
    return {name: value / 3600 for name, value in seconds.items()}


def _evaluated_rows(program: Program) -> int:
    """Rows, or examples of a downstream task, that an evaluation takes."""
    evaluated = getattr(program.task, 'evaluated', None)
    if evaluated is None:
        result: int = program.config.train.max_eval_examples or _MOST_EVALUATED_ROWS
        return result
    return sum(len(eval_set.units) for eval_set in evaluated)
