"""What a run writes while it trains: its state, its best parameters, and how it went."""

import dataclasses

from bert_jax.run.checkpoint import Best, Checkpoints
from bert_jax.runtime.errors import SaveFailed
from bert_jax.runtime.hosts import say
from bert_jax.watch.goodput import Goodput
from bert_jax.watch.metrics_log import MetricsLog


@dataclasses.dataclass(frozen=True)
class RunOutputs:
    """What a run writes into its folder.

    Attributes:
      checkpoints: of the state.
      best: the parameters of the best evaluation; None if the task does not keep them.
      report: metrics.
      goodput: the use of time.
    """

    checkpoints: Checkpoints
    best: Best | None
    report: MetricsLog
    goodput: Goodput

    def fault(self) -> SaveFailed | None:
        """The error of a save in the background, if one has failed; any thread may ask."""
        fault = self.checkpoints.fault()
        if fault is None and self.best is not None:
            fault = self.best.fault()
        return fault

    def finish_saves(self) -> None:
        """Waits for unfinished saves.

        Raises:
          SaveFailed: one cannot be finished.
        """
        with self.goodput.during('save'):
            self.checkpoints.close()
            if self.best is not None:
                self.best.close()

    def close_records(self) -> None:
        """Writes the records that are left, and says how the time was used."""
        self.goodput.write()
        say(self.goodput.line())
        self.report.draw()
        self.report.close()
