"""The interface of a task to training. A program is built of any `Task` and never learns which."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Self

from bert_jax.heads.base import Head
from bert_jax.model.layers import ModelConfig
from bert_jax.runtime.files import Path
from bert_jax.sharding import Mesh
from bert_jax.train.phase import Rows
from bert_jax.watch.alarms import Alarms


class Task(Protocol):
    """The data of a run, its loss, and what its evaluation and results are.

    Attributes:
      head: the name of the head that the model has: in `heads.HEADS`, or a config file's own.
      labels: names of the head's outputs by id, if they have any.
      metric: name of the metric that picks the best evaluation.
      frozen: a pattern like `optimizer.frozen`, of further parameters that are never trained.
      keeps_best: whether the parameters of the best evaluation are kept. Such a run is short and
        compared with others, so nothing that affects its result may change when it resumes.
      vocab_size: number of pieces.
      vocab_path: the vocabulary's file; None if there is no text.
      inference: how predictions are made, for config.json.
      majority_baseline: metrics of guessing without a look at the text, for comparison.
      num_examples: examples an epoch; None if not known, or if nothing is trained.
    """

    head: str
    labels: tuple[str, ...]
    metric: str
    frozen: str
    keeps_best: bool
    vocab_size: int
    vocab_path: Path | None

    @property
    def inference(self) -> Mapping[str, Any]: ...

    @property
    def majority_baseline(self) -> Mapping[str, float]: ...

    @property
    def num_examples(self) -> int | None: ...

    def with_seed(self, seed: int) -> Self:
        """The task of a run that differs in its seed only, on the same data."""

    def identity(self) -> dict[str, str]:
        """Digests of content and counts by name, which must be equal on all hosts."""

    def make_head(self, model_config: ModelConfig) -> Head:
        """The head with its loss, on an encoder."""

    def batch_shapes(
        self, model_config: ModelConfig, phase: dict[str, Any], mesh: Mesh
    ) -> dict[str, Any]:
        """Shapes of the largest batch of a phase, for `train` and, if all have one, `evaluation`.

        Args:
          model_config: of the encoder.
          phase: one of `config.phases.phases`.
          mesh: the devices that share a batch.
        """

    def rows(
        self, head: Head, phases: Sequence[dict[str, Any]], number: int, mesh: Mesh
    ) -> Rows:
        """The rows that are trained on and evaluated in a phase.

        Args:
          head: from `make_head`, with the phase's options.
          phases: of the run.
          number: of the phase, from 0.
          mesh: the devices.
        """

    @property
    def make_alarms(self) -> Callable[..., Alarms] | None:
        """Makes early warnings from (head, phases, fresh=, settled=).

        None for a run that is short and soon has scores.
        """

    @property
    def write_results(self) -> Callable[..., dict[str, Any]] | None:
        """Writes the files that a finished run leaves beside its checkpoints.

        From (head, mesh, params, metrics, workdir) to what is added to `inference`. None if the
        checkpoints are all there is.
        """
