"""What a task brings to a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from bert_jax.heads.base import Head
from bert_jax.model.layers import ModelConfig
from bert_jax.runtime.files import Path
from bert_jax.train.gates import Gates
from bert_jax.train.loop import Phase
from bert_jax.train.sharding import Mesh
from bert_jax.train.step import Batch, EvalStep


class Task(Protocol):
    """What a task brings to a run: data, loss, evaluation, files."""

    name: str
    vocab_size: int
    vocab_path: Path | None
    head: str  # one of `heads.HEADS`
    labels: tuple[str, ...]
    metric: str  # of the evaluation, the higher the better; sweeps go by it
    frozen: str  # top-level part of the parameters that is not trained
    keeps_best: bool  # whether the parameters of the best evaluation are kept
    inference: Mapping[str, Any]  # how predictions are made, for config.json

    @property
    def num_examples(self) -> int | None:
        """Rows an epoch, or None where no duration asks for it."""

    def identity(self) -> dict[str, str]:
        """What all hosts must have read alike, by name: digests of content, and counts."""

    def objective(self, bert: ModelConfig) -> Head:
        """What is trained, on an encoder."""

    def batch_shapes(self, phase: dict[str, Any], mesh: Mesh) -> dict[str, Batch]:
        """Shapes and shardings of a phase's batches for `train` and for `evaluation`.

        Empty where rows are packed into many shapes as they come.
        """

    def phase(
        self, objective: Any, eval_step: EvalStep, phases: Sequence[dict[str, Any]], number: int,
        mesh: Mesh,
    ) -> Phase:
        """Of the run's phases the one of this number, from 0."""

    def gates(
        self, objective: Any, phases: Sequence[dict[str, Any]], *, fresh: bool, settled: int
    ) -> Gates | None:
        """What looks whether the run goes wrong, if its task has such.

        Args:
          objective: of the run.
          phases: of the run.
          fresh: whether it starts here and now, from random parameters.
          settled: step by which a run has learnt something.
        """

    def with_seed(self, seed: int) -> Task:
        """The task of a run that differs in its seed (and rate) only, on the same data."""

    def finish(self, params: Any, metrics: dict[str, float], workdir: Path) -> dict[str, Any]:
        """Writes what else belongs into the run directory, of the best evaluation.

        Returns:
          What the evaluation has settled of `inference`.
        """


@dataclasses.dataclass(frozen=True)
class ScoredModel:
    """What a task has to know of a model that is only scored, not trained.

    Attributes:
      labels: of its head, by id; empty where it has none, or where the task's own are meant.
      inference: how its predictions are made (`Weights.inference`).
    """

    labels: tuple[str, ...] = ()
    inference: Mapping[str, Any] = dataclasses.field(default_factory=dict)
