"""The training loop. Everything it calls is passed in; it does not know the task."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from bert_jax.heads.base import Head
from bert_jax.runtime import hosts
from bert_jax.runtime.errors import Diverged, Stopped
from bert_jax.train.checkpoint import Best, Checkpoints
from bert_jax.train.gates import Gates
from bert_jax.train.report import Goodput, Profile, Report, Window, count, duration, means
from bert_jax.train.step import Batch, TrainState, TrainStep


@dataclasses.dataclass(frozen=True)
class Phase:
    """A part of the run with one batch shape.

    Attributes:
      start: first step.
      steps: number of steps.
      batch_size: rows of a global batch.
      batches: from a step of the phase to an iterator of device batches from there on.
      evaluate: from parameters to metrics of the held-out rows.
      flops_per_row: training FLOPs of a row.
      name: for messages.
    """

    start: int
    steps: int
    batch_size: int
    batches: Callable[[int], Iterator[Batch]]
    evaluate: Callable[[Any], dict[str, float]]
    flops_per_row: float
    name: str

    @property
    def end(self) -> int:
        return self.start + self.steps


@dataclasses.dataclass(frozen=True)
class Cadence:
    """Steps between log lines, evaluations and checkpoints (0: at the end only).

    `verify_every` is the number of steps between comparisons of the devices (0: never), `patience`
    the number of evaluations without a better one after which the run ends (0: it does not).

    The last but one evaluation is skipped if it is less than a tenth of `eval_every` before the
    end: epochs are seldom a whole number of steps.
    """

    log_every: int
    eval_every: int
    save_every: int
    verify_every: int = 0
    patience: int = 0


def train(
    objective: Head,
    train_step: TrainStep,
    state: TrainState,
    phases: Sequence[Phase],
    cadence: Cadence,
    checkpoints: Checkpoints,
    report: Report,
    goodput: Goodput,
    profile: Profile,
    best: Best | None = None,
    gates: Gates | None = None,
    verify: Callable[[TrainState, Batch], None] | None = None,
    *,
    peak_flops: float | None,
    should_stop: Callable[[int], bool],
) -> tuple[TrainState, dict[str, float]]:
    """Trains from the state's step to the end of the last phase.

    If several are due at a step, the order is log, evaluate, save: so a run that resumes from the
    checkpoint has all records up to it. At the last step the state is saved before the evaluation,
    which may fail.

    Args:
      objective: makes metrics of sums.
      train_step: takes the state, which is donated, and a batch.
      state: fresh or restored.
      phases: in order, contiguous from step 0.
      cadence: when to log, evaluate and save.
      checkpoints: saves the state.
      report: receives metrics.
      goodput: accounts for the time.
      profile: traces some steps.
      best: keeps the parameters of the best evaluation.
      gates: check every step's metrics.
      verify: compares what the devices compute of a batch; see `step.check_devices`.
      peak_flops: of all devices together, if known, for MFU.
      should_stop: polled after each step; returns the same on all processes.

    Returns:
      (The state after the last step, the metrics of the last evaluation).

    Raises:
      Diverged: a loss, parameter or metric is not finite; the checkpoints kept are good.
      Stopped: `should_stop` returned True; the state is saved.
    """
    try:
        state, metrics = _train(
            objective, train_step, state, phases, cadence, checkpoints, report, goodput, profile,
            best, gates, verify, peak_flops, should_stop,
        )
    except Diverged as error:
        kept = checkpoints.set_aside(error.step)
        raise Diverged(f'{error}; {kept}', error.step) from None
    checkpoints.finish()
    return state, metrics


def _train(
    objective: Head, train_step: TrainStep, state: TrainState, phases: Sequence[Phase],
    cadence: Cadence, checkpoints: Checkpoints, report: Report, goodput: Goodput,
    profile: Profile, best: Best | None, gates: Gates | None,
    verify: Callable[[TrainState, Batch], None] | None, peak_flops: float | None,
    should_stop: Callable[[int], bool],
) -> tuple[TrainState, dict[str, float]]:
    start = step = int(state.step)
    last = phases[-1].end
    metrics: dict[str, float] = {}
    step_metrics: dict[str, jax.Array] = {}
    first_of_run = True

    def evaluate(phase: Phase) -> dict[str, float]:
        with goodput.during('evaluation'):
            metrics = phase.evaluate(state.params)
            for name, value in metrics.items():
                if not math.isfinite(value):
                    raise Diverged(f'step {step}: the evaluation gives {name} {value}: stopped. '
                                   'Lower config.optimizer.learning_rate', step)
            if not report.has_evaluation(step):  # else it was recorded before the resume
                report.write(step, {f'eval/{name}': value for name, value in metrics.items()})
                report.say(f'step {step:>7,}  held out: ' + '  '.join(
                    f'{name} {value:.4f}' for name, value in metrics.items()))
                if gates is not None:
                    report.tell(gates.evaluated(step, metrics))
                report.draw()
            if best is not None:
                best.offer(step, metrics, state.params)
        return metrics

    def save() -> None:
        with goodput.during('save'):
            goodput.mark(step)
            report.flush()
            checkpoints.save(step, state)

    def exhausted() -> bool:
        """Whether the best evaluation is `patience` evaluations ago."""
        if best is None or not cadence.patience:
            return False
        since = report.evaluations_since(best.step())  # the first host has the records
        return int(hosts.share('patience', lambda: str(since))) >= cadence.patience

    for phase in phases:
        if step >= phase.end or exhausted():
            continue
        if step == phase.start:
            report.say(f'phase {phase.name}: steps {phase.start:,} to {phase.end:,}')
        batches = phase.batches(step - phase.start)
        window = Window(step, start)
        step_seconds: list[float] = []  # since the last log line, with their wait for data
        begun = time.perf_counter()
        timed = before = goodput.now()  # start of the time that the next log line covers
        compiled = False
        while step < phase.end:
            goodput.enter('start' if first_of_run else 'data')
            batch = next(batches)
            if verify and cadence.verify_every and (step + 1) % cadence.verify_every == 0:
                with goodput.during('evaluation'):
                    verify(state, batch)
            with goodput.during('profile'):
                profile.before(step + 1, step_metrics)
            goodput.enter('step' if compiled else 'compile')
            with (jax.profiler.StepTraceAnnotation('train', step_num=step + 1),
                  jax.transfer_guard('disallow')):
                state, step_metrics = train_step(state, batch)
            goodput.enter('step')
            compiled = True
            window.add(step_metrics)
            step += 1
            if first_of_run:
                # The first log line's speed leaves out the first step.
                jax.block_until_ready(step_metrics['loss'])
                report.say(f'first step done in {time.perf_counter() - begun:.1f} s')
                first_of_run = False
                timed = before = goodput.now()
            else:
                now = goodput.now()
                step_seconds.append(now['step'] - before['step'] + now['data'] - before['data'])
                before = now
            with goodput.during('profile'):
                if message := profile.after(step, step_metrics):
                    report.say(message)
            stopping = should_stop(step)
            ends = step == phase.end

            def due(every: int, step: int = step) -> bool:
                return step == last or (every > 0 and step % every == 0)

            if due(cadence.log_every) or ends or stopping:
                steps = window.take()
                now = goodput.now()
                waited = now['data'] - timed['data']
                logged = _log(
                    objective, report, phase, step, last, steps, step_seconds,
                    now['step'] - timed['step'] + waited, waited, peak_flops, goodput,
                )
                if gates is not None:
                    report.tell(gates.trained(step, steps, logged))
                timed, before, step_seconds = now, now, []
                checkpoints.check()
            soon = step != last and last - step < cadence.eval_every / 10
            saving, ending = due(cadence.save_every) or stopping, False
            if saving or due(cadence.eval_every):
                window.fetch()
            if saving and step == last:
                save()
            if due(cadence.eval_every) and not soon:
                metrics = evaluate(phase)
                ending = exhausted()
            if (saving or ending) and step != last:
                save()
            if ending:
                report.say(f'no better evaluation in {cadence.patience}: ended at step {step:,}')
                return state, metrics
            if stopping:
                if step == last:  # it ends by itself
                    break
                raise Stopped(f'stopped at step {step:,}; the state is saved')
    if not metrics:  # nothing was left to train
        metrics = evaluate(phases[-1])
    return state, metrics


def _log(
    objective: Head, report: Report, phase: Phase, step: int, last: int, steps: list[Any],
    step_seconds: list[float], seconds: float, waited: float, peak_flops: float | None,
    goodput: Goodput,
) -> dict[str, float]:
    metrics = means(objective, steps)
    if timed_steps := len(step_seconds):
        seconds = max(seconds, 1e-9)
        per_second = timed_steps * phase.batch_size / seconds
        tokens = sum(float(s.get('tokens', 0)) for s in steps) / len(steps) * timed_steps / seconds
        metrics |= {
            'sequences_per_second': per_second,
            'tokens_per_second': tokens,
            'data_wait': waited / seconds,
            'step_seconds': seconds / timed_steps,
            # The first two after a line are only dispatched, not waited for.
            'step_seconds_deviation': float(np.std(step_seconds[2:] or [0.0])),
        }
        if peak_flops:
            metrics['mfu'] = per_second * phase.flops_per_row / peak_flops
    report.write(step, {
        **{f'train/{name}': value for name, value in metrics.items()}, **goodput.metrics()})
    parts = [f'step {step:>7,}/{last:,}', f"loss {metrics['loss']:.4f}"]
    for name, title in objective.shown.items():
        if name in metrics:
            share = name.endswith('accuracy')
            parts.append(f'{title} ' + (f'{100 * metrics[name]:.1f}%' if share
                                        else f'{metrics[name]:.4f}'))
    parts.append(f"lr {metrics['learning_rate']:.2e}")
    if timed_steps:
        parts += [
            f"{count(metrics['sequences_per_second'])} seq/s",
            f"{count(metrics['tokens_per_second'])} tok/s",
        ]
        if 'mfu' in metrics:
            parts.append(f"mfu {100 * metrics['mfu']:.1f}%")
        left = (last - step) * seconds / timed_steps
        parts += [f"wait {100 * metrics['data_wait']:.0f}%", f'eta {duration(math.ceil(left))}']
    report.say('  '.join(parts))
    return metrics
