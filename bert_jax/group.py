"""Trains runs that differ in seed and learning rate alone in one process: a group of a sweep.

They share the weights they start from, the tokenized data, and what is compiled. Where devices have
the room, several are computed in one program; else one after another, by a program that takes seed
and rate as arguments.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import IO, Any

import jax
from jax.sharding import NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from bert_jax.config import get_field
from bert_jax.runtime.errors import Diverged, Stopped
from bert_jax.runtime.files import Path
from bert_jax.train.experiment import Opened, begin, open_run
from bert_jax.train.loop import Alone, Run
from bert_jax.train.members import Slot, Together
from bert_jax.train.program import numbers_of
from bert_jax.train.sharding import Layout

# What runs of a group may differ in: numbers that a compiled step can be handed.
NUMBERS = ('seed', 'optimizer.learning_rate')

Result = dict[str, float]


@dataclasses.dataclass(frozen=True)
class GroupRun:
    """One run of a group.

    Attributes:
      config: as read from the config file and the command line.
      workdir: its run directory.
      log: receives what it says.
      should_stop: see `experiment.run`.
    """

    config: ConfigDict
    workdir: Path
    log: IO[str]
    should_stop: Callable[[int], bool]


class Group:
    """The runs of a group.

    Attributes:
      size: how many are trained together.
      metric: of the evaluation, the higher the better.
    """

    def __init__(self, config: ConfigDict, workdirs: Sequence[Path], together: int | None):
        """Reads weights and data.

        Args:
          config: of any of the runs.
          workdirs: of all.
          together: how many to train in one program at most; None: as many as accelerators have
            room for, and on CPUs, which gain nothing by it, one.

        Raises:
          InputError: bad configuration or data.
        """
        self._opened = open_run(config, workdirs)
        program, mesh = self._opened.program, self._opened.program.mesh
        self.metric = program.task.metric
        kept = jax.tree.map(lambda x: x.sharding, program.state)
        self._replicated = NamedSharding(mesh, PartitionSpec())
        self._step = jax.jit(
            lambda state, numbers, batch: program.update(numbers)(state, batch), donate_argnums=0,
            out_shardings=(kept, self._replicated),
        )
        if together is None:
            together = 1 if Layout(mesh).on_cpu else len(workdirs)
        if mesh.shape['tensor'] > 1:
            together = 1  # a run takes several devices
        self._together = self._fitting(min(together, len(workdirs)))
        self.size = 1 if self._together is None else min(self._together.size, len(workdirs))

    def _fitting(self, members: int) -> Together | None:
        """The program of so many runs, or of as many as there is room for; None: of one."""
        program = self._opened.program
        batch: Any = None
        while members > 1:
            together = Together(program.update, program.state, program.mesh, members)
            if batch is None:
                phase = program.task.phase(
                    program.objective, program.eval_step, program.phases, 0, program.mesh,
                    on_host=True,
                )
                batch = next(phase.batches(0))
            if together.fits(numbers_of(self._opened.config, program.phases), batch):
                return together
            members = together.size // 2 if together.size > program.mesh.size else 1
        return None

    def train(self, runs: Sequence[GroupRun]) -> list[Result | Diverged | Stopped]:
        """What each of at most `size` runs returns (see `experiment.run`), or what stopped it.

        Raises:
          InputError: bad configuration or data.
        """
        opened = [self._of(run) for run in runs]
        numbers = [numbers_of(one.config, one.program.phases) for one in opened]
        together = self._together
        held: list[Any] = [Alone(self._with(own)) if together is None else Slot()
                           for own in numbers]
        begun = [
            _logged(begin(
                one, run.workdir, state, run.should_stop, began=time.time(), shared=True,
                stacked=together is not None,
            ), run.log)
            for one, run, state in zip(opened, runs, held, strict=True)
        ]
        if together is not None:
            return together.train(begun, held, numbers)
        found: list[Result | Diverged | Stopped] = []
        for alone, run in zip(held, begun, strict=True):
            try:
                found.append(alone.drive(run))
            except (Diverged, Stopped) as fault:
                found.append(fault)
        return found

    def _of(self, run: GroupRun) -> Opened:
        """What the run needs: the group's, with its own numbers."""
        config = ConfigDict(self._opened.config.copy_and_resolve_references())
        with config.unlocked():
            config.update_from_flattened_dict({
                name: get_field(run.config, name) for name in NUMBERS})
        program = self._opened.program
        task = program.task.again(config)
        return Opened(config, self._opened.published, dataclasses.replace(program, task=task))

    def _with(self, numbers: Any) -> Callable[[Any, Any], Any]:
        own = jax.device_put(numbers, self._replicated)
        return lambda state, batch: self._step(state, own, batch)


def _logged(run: Run[Result], log: IO[str]) -> Run[Result]:
    """The same run, with what it prints going to its log."""
    metrics: Any = None
    try:
        while True:
            with contextlib.redirect_stdout(log):
                try:
                    batch = run.send(metrics)
                except StopIteration as end:
                    result: Result = end.value
                    return result
            metrics = yield batch
    finally:
        with contextlib.redirect_stdout(log):
            run.close()
