"""Cycles of a compiled step, by instruction and by part of the model."""

import collections
import dataclasses
from typing import Any, NamedTuple

from bert_jax.runtime.chips import Chip
from bert_jax.tools.preflight.hlo import CompiledText, Instruction, scope_of
from bert_jax.tools.preflight.schedules import Schedule
from bert_jax.tools.preflight.topology import num_cores


class ScheduledCycles(NamedTuple):
    """Cycles of an instruction, and the resource that it waits for most; `?` if unknown."""

    cycles: float
    waits_for: str


def scheduled_cycles(
    text: CompiledText, instruction: Instruction, estimate: int | None,
    schedule: Schedule | None, chip: Chip,
) -> ScheduledCycles:
    """Cycles of an instruction by its schedule and its bytes.

    A core issues a bundle per cycle while the bytes of other iterations of the loop move: the
    longer of the two times counts, plus one iteration of the shorter. A matrix product takes at
    least its FLOPs at the peak rate: a v5e issues them up to a fifth faster than it computes them.
    Without a schedule, or if it has inner loops of unknown length, the compiler's `estimate`
    counts. (Loops within the attention kernels, for scores that float32's exponents cannot hold and
    for what all heads of a row share, are ignored.) With neither a schedule nor an estimate, the
    bytes count.
    """
    moving = text.bytes_moved(instruction) / chip.bandwidth * chip.clock
    if schedule is None:
        if estimate is None:
            return ScheduledCycles(moving, 'memory')
        return ScheduledCycles(estimate, '?')
    outside_loops, in_loop, in_inner_loops = schedule.bundles
    if in_inner_loops and estimate is not None:
        return ScheduledCycles(estimate, '?')
    trips = text.trips(instruction, num_cores(chip.name))
    busy: float = outside_loops + in_loop * trips
    unit = schedule.unit
    multiplying = min(text.product(instruction) / chip.cycle_flops, estimate or 0)
    if multiplying > busy:
        busy = multiplying
        unit = 'MXU'
    cycles = max(busy, moving) + min(busy, moving) / trips
    return ScheduledCycles(cycles, 'memory' if moving > busy else unit)


@dataclasses.dataclass
class ScopeCycles:
    """Cycles per sequence of a part of the model in a pass.

    Attributes:
      scope: the part.
      pass_name: forward, backward, forward again, or update.
      estimated: by the compiler's estimates.
      scheduled: by its schedules.
      waits: `scheduled` by the resource that instructions wait for.
    """

    scope: str
    pass_name: str
    estimated: float = 0.0
    scheduled: float = 0.0
    waits: dict[str, float] = dataclasses.field(
        default_factory=lambda: collections.defaultdict(float))

    def record(self) -> dict[str, Any]:
        waits_for = max(self.waits, key=lambda resource: self.waits[resource])
        return {
            'scope': self.scope, 'pass': self.pass_name,
            'cycles_per_sequence': self.estimated,
            'scheduled_cycles_per_sequence': self.scheduled,
            'waits_for': waits_for,
        }


@dataclasses.dataclass(frozen=True)
class StepCycles:
    """Cycles of a step.

    Attributes:
      scopes: by part of the model, most cycles first.
      seconds: of one run of each instruction by its schedule, by its name.
    """

    scopes: list[ScopeCycles]
    seconds: dict[str, float]


def step_cycles(
    text: CompiledText, schedules: dict[str, Schedule], chip: Chip, runs_per_sequence: float
) -> StepCycles:
    """Adds up the cycles of a step's instructions.

    Args:
      text: of the step.
      schedules: of its instructions, by name, as the compiler wrote them.
      chip: what it runs on.
      runs_per_sequence: number of devices, each of which runs the step, over the batch size.
    """
    schedules = text.schedules(schedules)
    scopes: dict[tuple[str, str], ScopeCycles] = {}
    seconds: dict[str, float] = {}
    for instruction, estimate in text.timed():
        schedule = schedules.get(instruction.name)
        found = scheduled_cycles(text, instruction, estimate, schedule, chip)
        seconds[instruction.name] = found.cycles / chip.clock
        key = scope_of(instruction.op_name)
        scope = scopes.setdefault(key, ScopeCycles(*key))
        runs = instruction.times * runs_per_sequence
        scope.estimated += runs * (found.cycles if estimate is None else estimate)
        scope.scheduled += runs * found.cycles
        scope.waits[found.waits_for] += runs * found.cycles
    ordered = sorted(scopes.values(), key=lambda scope: -scope.estimated)
    return StepCycles(ordered, seconds)
