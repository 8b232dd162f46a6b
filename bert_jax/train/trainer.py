"""The training loop. It does not know the task."""

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

import jax
import numpy as np

from bert_jax.runtime import hosts
from bert_jax.runtime.errors import Diverged, Stopped
from bert_jax.runtime.hosts import say
from bert_jax.runtime.pauses import Interrupted, interruptible, pause
from bert_jax.step.step import Batch, StepInputs, TrainState
from bert_jax.train.outputs import RunOutputs
from bert_jax.train.phase import Phase
from bert_jax.train.step_log import log_line, log_metrics
from bert_jax.train.watchers import Watchers

# An evaluation that is due less than this share of its interval before the last step is skipped:
# epochs are seldom a whole number of steps.
_SHORTEST_LAST_INTERVAL = 0.1


@dataclasses.dataclass(frozen=True)
class Intervals:
    """How often a run logs, evaluates and saves, in steps.

    Attributes:
      log, evaluate, save: 0: only at the end.
      save_seconds: the state is also saved if the last save is so many seconds ago (on several
        hosts, at log lines, where they wait for each other anyway); 0: it is not.
    """

    log: int = 0
    evaluate: int = 0
    save: int = 0
    save_seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class Control:
    """Decides, while a run trains, whether it goes on.

    Attributes:
      should_stop: polled with the step after each one, and between the batches of an evaluation;
        returns the same on all processes.
      should_leave: polled where a process waits; see `Guard.should_leave`.
      check_lock: raises an error if another process has taken the run over; called before this
        one writes what could harm the other's files.
    """

    should_stop: Callable[[int], bool]
    should_leave: Callable[[bool], bool] = lambda is_over: False
    check_lock: Callable[[], None] = lambda: None


@dataclasses.dataclass(eq=False)
class Trainer:
    """Trains a state through the phases of a run.

    If several things are due at a step, the order is log, evaluate, save, so that a run that
    resumes from the checkpoint has all records up to it. At the last step the state is saved before
    the evaluation, which may fail. A stop does not wait for an evaluation: the state is saved, and
    the run that resumes from it begins with that evaluation.

    Attributes:
      state: fresh or restored; after `run`, that of the last step.
      inputs: of every train step, on the devices.
      phases: in order, contiguous from step 0.
      intervals: when to log, evaluate and save.
      outputs: receive the state, the best parameters, metrics and the use of time.
      watchers: look at the run.
      control: decides whether the run goes on.
      patience: the run ends after so many evaluations without a new best; 0: it does not.
      peak_flops: of all devices together, for MFU; 0: unknown.
      step: the number of steps done.
    """

    state: TrainState
    inputs: StepInputs
    phases: Sequence[Phase]
    intervals: Intervals
    outputs: RunOutputs
    watchers: Watchers
    control: Control
    patience: int = 0
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
            self._train()
        except Diverged as error:
            kept = self.outputs.checkpoints.set_aside(error.step)
            raise type(error)(f'{error}; {kept}', error.step) from None
        self.outputs.checkpoints.finish()
        return self._scores

    def _train(self) -> None:
        """Trains to the end, or until the run has to stop."""
        try:
            with interruptible(self._has_to_stop, self._has_to_leave):
                self._finish_evaluation()
                for phase in self.phases:
                    if self.step < phase.end and not self._is_exhausted():
                        self._train_phase(phase)
                if not self._scores:  # no step was left to train
                    self.evaluate(self.phases[-1])
        except Interrupted:
            self._save_and_stop()

    def _has_to_stop(self) -> bool:
        """Whether the run has to stop here; raises SaveFailed if a save has failed."""
        self.outputs.checkpoints.check()
        if self.step == self._start:  # a signal ends the run at once: nothing needs saving
            return False
        return self.control.should_stop(self.step)

    def _has_to_leave(self, is_over: bool) -> bool:
        """Whether the run has to stop while it waits."""
        self.outputs.checkpoints.check()
        if self.step == self._start:
            return False
        return self.control.should_leave(is_over)

    def _save_and_stop(self) -> NoReturn:
        """Saves the state, with the records up to it, and raises Stopped."""
        if self._in_flight or self._fetched:
            self.log(self._phase_of_step())
        self.save()
        raise Stopped(f'stopped at step {self.step:,}; the state is saved')

    def _phase_of_step(self) -> Phase:
        """The phase of the last step."""
        return next(phase for phase in self.phases if self.step <= phase.end)

    def _train_phase(self, phase: Phase) -> None:
        """Trains to the end of a phase, or until the run is exhausted."""
        if self.step == phase.start:
            say(f'phase {phase.rows.name}: steps {phase.start:,} to {phase.end:,}')
        self.outputs.goodput.enter('start' if self.step == self._start else 'data')
        batches = phase.rows.batches(self.step - phase.start)
        cause = 'compile'  # the first step compiles
        for batch in itertools.islice(batches, phase.end - self.step):
            self.watchers.before_step(self.step + 1, self.state, batch, self._in_flight)
            self._do_step(phase, batch, cause)
            cause = 'step'
            goes_on = self._do_what_is_due(phase)
            if not goes_on:
                break
            self.outputs.goodput.enter('data')
        self.outputs.goodput.enter('step')

    def _do_step(self, phase: Phase, batch: Batch, cause: str) -> None:
        """Dispatches a step; its time counts for `cause`."""
        number = self.step + 1
        self.outputs.goodput.enter(cause)
        with (jax.profiler.StepTraceAnnotation('train', step_num=number),
              jax.transfer_guard('disallow')):
            self.state, metrics = phase.steps.train(self.state, self.inputs, batch)
        self.outputs.goodput.enter('step')
        self.step = number
        self._in_flight.append(metrics)
        # At most two in flight: more gain nothing, and hundreds make virtual devices abort.
        jax.block_until_ready([metrics['loss'] for metrics in self._in_flight[-3:-2]])
        if number == self._start + 1:  # the first log line's speed excludes it
            jax.block_until_ready(metrics['loss'])
            say(f'first step done in {time.perf_counter() - self._began:.1f} s')
            self.watchers.after_first_step()
        self._times.append(self.outputs.goodput.now())

    def _do_what_is_due(self, phase: Phase) -> bool:
        """Logs, evaluates and saves what is due after a step; returns whether training goes on.

        Raises:
          Interrupted: the run has to stop.
          SaveFailed: a save in the background has failed.
        """
        is_last = self.step == self._last_step
        pause()
        evaluating = self._is_evaluation_due()
        saving = self._is_due(self.intervals.save) or self._is_save_late()
        if self._is_due(self.intervals.log) or self.step == phase.end:
            self.log(phase)
        if saving or evaluating:
            self._fetch_metrics()  # what has diverged is neither saved nor evaluated
        if is_last:
            self.save()  # first, because the evaluation may fail
        exhausted = False
        if evaluating:
            self.evaluate(phase)
            exhausted = self._is_exhausted()
        if not is_last and (saving or exhausted):
            self.save()
        if exhausted:
            say(f'no better evaluation in {self.patience}: ended at step {self.step:,}')
            return False
        return True

    def _finish_evaluation(self) -> None:
        """Evaluates the state that the run resumes from, if the run was stopped before it could."""
        if not self.step or not self._is_evaluation_due():
            return
        # The first host has the records.
        if hosts.share_json('evaluated', self._is_evaluated):
            return
        self.evaluate(self._phase_of_step())

    def _is_evaluation_due(self) -> bool:
        return self._is_due(self.intervals.evaluate) and not self._is_just_before_the_last()

    def _is_evaluated(self) -> bool:
        """Whether there is a record of an evaluation of this step."""
        return self.step in self.outputs.report.evaluations(after=self.step - 1)

    def _is_due(self, every: int) -> bool:
        """Whether something is due now that is done every `every` steps, and after the last."""
        return self.step == self._last_step or (every > 0 and self.step % every == 0)

    def _is_just_before_the_last(self) -> bool:
        """Whether the last evaluation follows so soon that this one tells little."""
        left = self._last_step - self.step
        return 0 < left < self.intervals.evaluate * _SHORTEST_LAST_INTERVAL

    def _is_save_late(self) -> bool:
        """Whether the last save is long ago; the same on all hosts."""
        if not self.intervals.save_seconds:
            return False
        if hosts.count() > 1 and not self._is_due(self.intervals.log):
            return False
        waited = time.monotonic() - self._saved_at
        return hosts.share_json('save', lambda: waited >= self.intervals.save_seconds)

    def _is_exhausted(self) -> bool:
        """Whether the best evaluation is `patience` evaluations ago; the same on all hosts."""
        if self.outputs.best is None or not self.patience:
            return False
        since = len(self.outputs.report.evaluations(after=self.outputs.best.step()))
        # The first host has the records.
        return hosts.share_json('patience', lambda: since) >= self.patience

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
            self.watchers.after_step(before + 1, metrics)
        self._in_flight.clear()

    def _remedy(self, steps_before: int) -> str:
        if steps_before == self._start:
            return ('No step was done before, so no learning rate is the cause: look at the '
                    'parameters that it starts from, and at the data')
        return 'Lower config.optimizer.learning_rate or lengthen config.optimizer.warmup'

    def log(self, phase: Phase) -> None:
        """Writes the record and the line of the steps since the last one."""
        self._fetch_metrics()
        times = [*self._times, self.outputs.goodput.now()]
        metrics = log_metrics(phase, self._fetched, times, self.peak_flops)
        metrics |= self.watchers.slowest_since_log(len(self._fetched))
        record = {f'train/{name}': value for name, value in metrics.items()}
        self.outputs.report.write(self.step, record | self.outputs.goodput.metrics())
        line = log_line(phase.steps.head, metrics, self._last_step - self.step)
        say(f'step {self.step:>7,}/{self._last_step:,}  {line}')
        self.watchers.after_log(self.step, self._fetched, metrics)
        self._fetched.clear()
        self._times = [self.outputs.goodput.now()]

    def evaluate(self, phase: Phase) -> None:
        """Evaluates the parameters, and keeps them if they are the best."""
        with self.outputs.goodput.during('evaluation'):
            scores = phase.rows.scores(phase.steps, self.state.params)
            pause()
            for name, value in scores.items():
                if not math.isfinite(value):
                    raise Diverged(
                        f'step {self.step}: the evaluation gives {name} {value}: stopped. '
                        'Lower config.optimizer.learning_rate', self.step)
            self._scores = scores
            if self.outputs.best is not None:
                self.control.check_lock()
                with self.outputs.goodput.during('save'):
                    self.outputs.best.offer(self.step, self._scores, self.state.params)
            # Last, as an evaluation that is recorded is not repeated. A resumed run may have
            # recorded it before it stopped.
            if not self._is_evaluated():
                self._record_scores()

    def _record_scores(self) -> None:
        record = {f'eval/{name}': value for name, value in self._scores.items()}
        self.outputs.report.write(self.step, record)
        shown = '  '.join(f'{name} {value:.4f}' for name, value in self._scores.items())
        say(f'step {self.step:>7,}  held out: {shown}')
        self.watchers.after_evaluation(self.step, self._scores)
        self.outputs.report.draw(least_age=60.0)  # it takes half a second

    def save(self) -> None:
        """Saves the state and what is recorded so far."""
        self._saved_at = time.monotonic()
        self.control.check_lock()
        with self.outputs.goodput.during('save'):
            self.outputs.goodput.mark(self.step)
            self.outputs.report.flush()
            self.outputs.checkpoints.save(self.step, self.state)
