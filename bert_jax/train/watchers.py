"""The watchers of a run: each looks at it and never changes it."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bert_jax.step.step import Batch, TrainState
from bert_jax.watch.alarms import Alarms
from bert_jax.watch.goodput import Goodput
from bert_jax.watch.metrics_log import MetricsLog
from bert_jax.watch.profile import Profile
from bert_jax.watch.reference import Comparison
from bert_jax.watch.slowest import SlowestHosts
from bert_jax.watch.step_fingerprints import StepChecks, is_checked


@dataclasses.dataclass(eq=False)
class Watchers:
    """All that looks at the steps, the log lines and the evaluations of a run.

    Attributes:
      report: receives their records and warnings.
      goodput: accounts for their time.
      profile: traces some steps.
      slowest: compares the hosts.
      alarms: check every step's metrics.
      reference: compares the checked steps with those of a reference.
      verify: compares what the devices compute for a batch; see `verify.make_verify`.
      verify_every: so many steps; 0: never.
      on_evaluation: receives the step and the scores of each evaluation; raises Pruned to end the
        run.
    """

    report: MetricsLog
    goodput: Goodput
    profile: Profile
    slowest: SlowestHosts
    alarms: Alarms | None = None
    reference: Comparison | None = None
    verify: Callable[[TrainState, Batch], Any] | None = None
    verify_every: int = 0
    on_evaluation: Callable[[int, Mapping[str, float]], None] | None = None

    def __post_init__(self) -> None:
        self._checks = StepChecks()

    def before_step(
        self, number: int, state: TrainState, batch: Batch, in_flight: Sequence[Any]
    ) -> None:
        """Looks at a batch before it is trained on.

        Args:
          number: of the step that trains on it, from 1.
          state: before this step.
          batch: of the step.
          in_flight: results of the steps that may not be done yet.

        Raises:
          FaultyChip: `verify` found a device that computes wrongly.
          Interrupted: the run has to stop.
        """
        is_verified = self.verify_every > 0 and number % self.verify_every == 0
        if self.verify is not None and is_verified:
            with self.goodput.during('evaluation'):
                self.verify(state, batch)
        if is_checked(number):
            with self.goodput.during('evaluation'):
                self._checks.see(number, batch)
        with self.goodput.during('profile'):
            self.profile.before(number, in_flight)

    def after_first_step(self) -> None:
        """Compares the hosts from here on: the first step compiles."""
        self.slowest.begin()

    def after_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Writes the record of a step that is checked, and compares it.

        Args:
          step: number of the step.
          metrics: of the step, on the host.
        """
        record = self._checks.add(step, metrics)
        if record:
            self.report.write(step, record)
            if self.reference is not None:
                self.report.warn(self.reference.alarms(step, record))

    def slowest_since_log(self, num_steps: int) -> dict[str, float]:
        """The metrics of the slowest hosts since the last log line, which was so many steps ago."""
        return self.slowest.compare(num_steps)

    def after_log(
        self, step: int, steps: Sequence[Mapping[str, Any]], metrics: Mapping[str, float]
    ) -> None:
        """Looks at the steps of a log line.

        Args:
          step: the last of them.
          steps: the metrics of each.
          metrics: what is logged.
        """
        if self.alarms is not None:
            self.report.warn(self.alarms.trained(step, steps, metrics))

    def after_evaluation(self, step: int, scores: Mapping[str, float]) -> None:
        """Looks at the scores of held-out rows after a step.

        Raises:
          Pruned: the run is not worth going on with.
        """
        if self.alarms is not None:
            self.report.warn(self.alarms.measured('eval', step, scores))
        if self.on_evaluation is not None:
            self.on_evaluation(step, scores)

    def close(self) -> None:
        """Ends a trace, and compares the hosts a last time."""
        self.profile.close()
        self.slowest.compare(0)
