"""A phase of a run, as the trainer drives it: plain data whose parts are made elsewhere."""

import dataclasses
from collections.abc import Iterator
from typing import Protocol

from bert_jax.heads.base import Head
from bert_jax.model.trainable import Batch, Params
from bert_jax.step.step import EvalStep, TrainStep


@dataclasses.dataclass(frozen=True)
class PhaseSteps:
    """The steps of a phase. Phases whose models have the same options share them.

    Attributes:
      head: the program's, with the options that the phase states for its model.
      train: the jitted step (`step.make_train_step`).
      evaluation: the jitted step (`step.make_eval_step`).
    """

    head: Head
    train: TrainStep
    evaluation: EvalStep


class Rows(Protocol):
    """The rows that a task trains on and evaluates in a phase, on the devices of the run.

    Attributes:
      name: of the phase, for messages.
      flops_per_sequence: training FLOPs of a step, divided by the phase's `batch_size`.
    """

    @property
    def name(self) -> str: ...

    @property
    def flops_per_sequence(self) -> float: ...

    def batches(self, first_step: int) -> Iterator[Batch]:
        """The batches of the phase's steps, from this one (counted from 0) to the last."""

    def scores(self, steps: PhaseSteps, params: Params) -> dict[str, float]:
        """Metrics of the held-out rows.

        Raises:
          Interrupted: the run has to stop.
        """


@dataclasses.dataclass(frozen=True)
class Phase:
    """A part of the run with one batch shape.

    Attributes:
      start, end: its steps, counted from 0 in the run; the end is exclusive.
      batch_size: sequences or units of a global batch; packed, they fill fewer rows.
      rows: what it is trained and evaluated on.
      steps: what trains and evaluates it.
    """

    start: int
    end: int
    batch_size: int
    rows: Rows
    steps: PhaseSteps
