"""The training loop. It does not know the task."""

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from bert_jax.heads.base import Head
from bert_jax.runtime import hosts
from bert_jax.runtime.errors import Diverged, Stopped
from bert_jax.runtime.hosts import say
from bert_jax.train.checkpoint import Best, Checkpoints
from bert_jax.train.checks import StepChecks, is_checked
from bert_jax.train.gates import Gates
from bert_jax.train.goodput import Goodput
from bert_jax.train.profile import Profile
from bert_jax.train.reference import Comparison
from bert_jax.train.report import Report
from bert_jax.train.step import Batch, TrainState, TrainStep
from bert_jax.train.step_log import log_line, log_metrics
from bert_jax.train.task import Phase

# An evaluation that is due less than this share of its interval before the last step is skipped:
# epochs are seldom a whole number of steps.
_SHORTEST_LAST_INTERVAL = 0.1


@dataclasses.dataclass(frozen=True)
class Intervals:
    """Numbers of steps between what a run repeats.

    Attributes:
      log, evaluate, save: 0: only at the end.
      verify: 0: never.
    """

    log: int = 0
    evaluate: int = 0
    save: int = 0
    verify: int = 0


@dataclasses.dataclass(eq=False)
class Trainer:
    """Trains a state through the phases of a run.

    If several things are due at a step, the order is log, evaluate, save, so that a run that
    resumes from the checkpoint has all records up to it. At the last step the state is saved before
    the evaluation, which may fail.

    Attributes:
      head: makes metrics of sums.
      state: fresh or restored; after `run`, that of the last step.
      phases: in order, contiguous from step 0.
      train_steps: of each phase; takes the state, which is donated, and a batch.
      intervals: when to log, evaluate, save and verify.
      checkpoints: saves the state.
      report: receives metrics.
      goodput: accounts for the time.
      profile: traces some steps.
      should_stop: polled with the step after each one; returns the same on all processes.
      best: keeps the parameters of the best evaluation.
      gates: check every step's metrics.
      reference: compares the checked steps with those of a reference.
      verify: compares what the devices compute for a batch; see `verify.make_verify`.
      patience: the run ends after so many evaluations without a new best; 0: it does not.
      save_seconds: the state is also saved if the last time is so long ago (on several hosts, at
        log lines, where they wait for each other anyway); 0: it is not.
      peak_flops: of all devices together, for MFU; 0: unknown.
      step: the number of steps done.
    """

    head: Head
    state: TrainState
    phases: Sequence[Phase]
    train_steps: Sequence[TrainStep]
    intervals: Intervals
    checkpoints: Checkpoints
    report: Report
    goodput: Goodput
    profile: Profile
    should_stop: Callable[[int], bool]
    best: Best | None = None
    gates: Gates | None = None
    reference: Comparison | None = None
    verify: Callable[[TrainState, Batch], Any] | None = None
    patience: int = 0
    save_seconds: float = 0.0
    peak_flops: float = 0.0

    def __post_init__(self) -> None:
        self.step = self._start = int(self.state.step)
        self._last_step = self.phases[-1].end
        self._began = time.perf_counter()
        self._saved_at = time.monotonic()
        self._scores: dict[str, float] = {}  # of the last evaluation
        # Metrics of the steps since the last log line: steps run ahead of this process, which
        # waits for those in flight only where it needs their metrics.
        self._in_flight: list[dict[str, jax.Array]] = []
        self._fetched: list[dict[str, np.ndarray]] = []
        self._checks = StepChecks()
        # Seconds by cause at the last log line, and after each step since.
        self._times: list[dict[str, float]] = []

    def run(self) -> dict[str, float]:
        """Trains from `state` to the end.

        Returns:
          The metrics of the last evaluation.

        Raises:
          Diverged: a loss, gradient norm, parameter, moment or metric is not finite (the remaining
            checkpoints are good), or `verify` found a faulty device.
          Stopped: `should_stop` returned True; the state is saved.
        """
        try:
            for phase, train_step in zip(self.phases, self.train_steps, strict=True):
                if self.step < phase.end and not self._is_exhausted():
                    self._train_phase(phase, train_step)
            if not self._scores:  # no step was left to train
                self.evaluate(self.phases[-1])
        except Diverged as error:
            kept = self.checkpoints.set_aside(error.step)
            raise Diverged(f'{error}; {kept}', error.step) from None
        self.checkpoints.finish()
        return self._scores

    def _train_phase(self, phase: Phase, train_step: TrainStep) -> None:
        """Trains to the end of a phase, or until the run is exhausted."""
        if self.step == phase.start:
            say(f'phase {phase.name}: steps {phase.start:,} to {phase.end:,}')
        self.goodput.enter('start' if self.step == self._start else 'data')
        batches = phase.batches(self.step - phase.start)
        cause = 'compile'  # the first step compiles
        for batch in itertools.islice(batches, phase.end - self.step):
            self._verify_if_due(batch)
            if is_checked(self.step + 1):
                with self.goodput.during('evaluation'):
                    self._checks.see(self.step + 1, batch)
            self._do_step(train_step, batch, cause)
            cause = 'step'
            goes_on = self._do_what_is_due(phase)
            if not goes_on:
                break
            self.goodput.enter('data')
        self.goodput.enter('step')

    def _verify_if_due(self, batch: Batch) -> None:
        every = self.intervals.verify
        if self.verify is not None and every and (self.step + 1) % every == 0:
            with self.goodput.during('evaluation'):
                self.verify(self.state, batch)

    def _do_step(self, train_step: TrainStep, batch: Batch, cause: str) -> None:
        """Dispatches a step; its time counts for `cause`."""
        number = self.step + 1
        with self.goodput.during('profile'):
            self.profile.before(number, self._in_flight)
        self.goodput.enter(cause)
        with (jax.profiler.StepTraceAnnotation('train', step_num=number),
              jax.transfer_guard('disallow')):
            self.state, metrics = train_step(self.state, batch)
        self.goodput.enter('step')
        self.step = number
        self._in_flight.append(metrics)
        # At most two in flight: more gain nothing, and hundreds make virtual devices abort.
        jax.block_until_ready([metrics['loss'] for metrics in self._in_flight[-3:-2]])
        if number == self._start + 1:  # the first log line's speed excludes it
            jax.block_until_ready(metrics['loss'])
            say(f'first step done in {time.perf_counter() - self._began:.1f} s')
        self._times.append(self.goodput.now())

    def _do_what_is_due(self, phase: Phase) -> bool:
        """Logs, evaluates and saves what is due after a step; returns whether training goes on.

        Raises:
          Stopped: `should_stop` asked for it; the state is saved.
        """
        is_last = self.step == self._last_step
        stopping = self.should_stop(self.step)
        evaluating = self._is_due(self.intervals.evaluate)
        saving = self._is_due(self.intervals.save) or stopping or self._is_save_late()
        if self._is_due(self.intervals.log) or self.step == phase.end or stopping:
            self.log(phase)
            self.checkpoints.check()
        if saving or evaluating:
            self._fetch_metrics()  # what has diverged is neither saved nor evaluated
        if is_last:
            self.save()  # first, because the evaluation may fail
        exhausted = False
        if evaluating and not self._is_just_before_the_last():
            self.evaluate(phase)
            exhausted = self._is_exhausted()
        if not is_last and (saving or exhausted):
            self.save()
        if exhausted:
            say(f'no better evaluation in {self.patience}: ended at step {self.step:,}')
            return False
        if stopping and not is_last:
            raise Stopped(f'stopped at step {self.step:,}; the state is saved')
        return True

    def _is_due(self, every: int) -> bool:
        """Whether something is due that is done every so many steps, and after the last."""
        return self.step == self._last_step or (every > 0 and self.step % every == 0)

    def _is_just_before_the_last(self) -> bool:
        """Whether the last evaluation follows so soon that this one tells little."""
        left = self._last_step - self.step
        return 0 < left < self.intervals.evaluate * _SHORTEST_LAST_INTERVAL

    def _is_save_late(self) -> bool:
        """Whether the last save is long ago; the same on all hosts."""
        if not self.save_seconds:
            return False
        if hosts.count() > 1 and not self._is_due(self.intervals.log):
            return False
        waited = time.monotonic() - self._saved_at
        return hosts.share('save', lambda: str(waited >= self.save_seconds)) == str(True)

    def _is_exhausted(self) -> bool:
        """Whether the best evaluation is `patience` evaluations ago; the same on all hosts."""
        if self.best is None or not self.patience:
            return False
        since = len(self.report.evaluations(after=self.best.step()))
        # The first host has the records.
        return int(hosts.share('patience', lambda: str(since))) >= self.patience

    def _fetch_metrics(self) -> None:
        """Waits for all steps, checks that losses and gradients are finite, records checked steps.

        Raises:
          Diverged: one is not.
        """
        first = self.step - len(self._in_flight)
        for before, metrics in enumerate(jax.device_get(self._in_flight), first):
            if not (np.isfinite(metrics['loss']) and np.isfinite(metrics['grad_norm'])):
                raise Diverged(
                    f"step {before + 1}: loss {metrics['loss']}, gradient norm "
                    f"{metrics['grad_norm']}: stopped. {self._remedy(before)}", before)
            self._fetched.append(metrics)
            self._record_check(before + 1, self._checks.add(before + 1, metrics))
        self._in_flight.clear()

    def _record_check(self, step: int, record: dict[str, float]) -> None:
        """Writes the record of a checked step, {} for all others, and compares it."""
        if not record:
            return
        self.report.write(step, record)
        if self.reference is not None:
            self.report.warn(self.reference.alarms(step, record))

    def _remedy(self, steps_before: int) -> str:
        if steps_before == self._start:
            return ('No step was done before, so no learning rate is the cause: look at the '
                    'parameters that it starts from, and at the data')
        return 'Lower config.optimizer.learning_rate or lengthen config.optimizer.warmup'

    def log(self, phase: Phase) -> None:
        """Writes the record and the line of the steps since the last one."""
        self._fetch_metrics()
        times = [*self._times, self.goodput.now()]
        metrics = log_metrics(self.head, self._fetched, times, phase, self.peak_flops)
        record = {f'train/{name}': value for name, value in metrics.items()}
        self.report.write(self.step, record | self.goodput.metrics())
        line = log_line(self.head, metrics, self._last_step - self.step)
        say(f'step {self.step:>7,}/{self._last_step:,}  {line}')
        if self.gates is not None:
            self.report.warn(self.gates.trained(self.step, self._fetched, metrics))
        self._fetched.clear()
        self._times = [self.goodput.now()]

    def evaluate(self, phase: Phase) -> None:
        """Evaluates the parameters, and keeps them if they are the best."""
        with self.goodput.during('evaluation'):
            self._scores = phase.evaluate(self.state.params)
            for name, value in self._scores.items():
                if not math.isfinite(value):
                    raise Diverged(
                        f'step {self.step}: the evaluation gives {name} {value}: stopped. '
                        'Lower config.optimizer.learning_rate', self.step)
            # A resumed run may have recorded this evaluation before it stopped.
            if self.step not in self.report.evaluations(after=self.step - 1):
                self._record_scores()
            if self.best is not None:
                self.best.offer(self.step, self._scores, self.state.params)

    def _record_scores(self) -> None:
        record = {f'eval/{name}': value for name, value in self._scores.items()}
        self.report.write(self.step, record)
        shown = '  '.join(f'{name} {value:.4f}' for name, value in self._scores.items())
        say(f'step {self.step:>7,}  held out: {shown}')
        if self.gates is not None:
            self.report.warn(self.gates.measured('eval', self.step, self._scores))
        self.report.draw(least_age=60.0)  # it takes half a second

    def save(self) -> None:
        """Saves the state and what is recorded so far."""
        self._saved_at = time.monotonic()
        with self.goodput.during('save'):
            self.goodput.mark(self.step)
            self.report.flush()
            self.checkpoints.save(self.step, self.state)
