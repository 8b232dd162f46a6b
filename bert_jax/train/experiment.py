"""A run from its config to its result.

`open_run` reads weights and data, `train_run` restores or initialises the state, `Trainer` is the
training loop: steps, log lines, evaluations, checkpoints.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax.config.phases import parse_duration, parse_trace
from bert_jax.heads.base import Head
from bert_jax.runtime import files, hosts
from bert_jax.runtime.errors import Diverged, Stopped
from bert_jax.runtime.files import Path
from bert_jax.runtime.hosts import say
from bert_jax.runtime.process import STARTED, find_chip, keep_compiled, versions
from bert_jax.tasks.opening import open_task
from bert_jax.train import run_directory
from bert_jax.train.checkpoint import Best, Checkpoints
from bert_jax.train.gates import Gates
from bert_jax.train.loggers import open_loggers
from bert_jax.train.program import Program, build_program, check_memory, numbers_of, open_mesh
from bert_jax.train.report import Goodput, Profile, Report, count, duration
from bert_jax.train.step import Batch, Phase, TrainState, TrainStep, make_verify, num_params
from bert_jax.weights import load_weights
from bert_jax.weights.run_directory import is_begun, read_description
from bert_jax.weights.warm_start import warm_start

# The plateau gate arms after 25 % of training, clamped to these numbers of steps.
_SETTLED, _SETTLED_LEAST = 20_000, 1_000
# Metrics of a step that are no sums over its batch.
_OF_A_STEP = ('loss', 'grad_norm', 'learning_rate')
# Paths may differ between hosts; `identity` compares the contents.
_PLACES = ('data.vocab_file', 'data.add_tokens', 'data.dir', 'data.local_dir', 'data.tfds_dir')


def open_run(config: ConfigDict, workdirs: Sequence[Path]) -> Program:
    """Reads the weights and data that a config names, and builds its program.

    Args:
      config: as read from the config file and the command line.
      workdirs: of the runs that share the program; they differ in seed and learning rate only.

    Raises:
      InputError: bad configuration or data.
    """
    published = None
    if config.init_checkpoint:
        # A run that has begun restores its parameters and knows the model's description.
        all_begun = all(is_begun(workdir) for workdir in workdirs)
        published = (
            read_description(workdirs[0]) if all_begun else load_weights(config.init_checkpoint))
    config = config_lib.complete(config, published)
    mesh = open_mesh(config, jax.devices())
    say(f'devices: {jax.device_count()} x {jax.devices()[0].device_kind}, mesh '
        + ' x '.join(f'{name} {size}' for name, size in mesh.shape.items()))
    keep_compiled(files.as_path(config.data.dir) / 'compiled')
    program = build_program(config, mesh, open_task(config))
    return dataclasses.replace(program, published=published)


def run(
    config: ConfigDict, workdir: Path, should_stop: Callable[[int], bool],
    watch: Callable[[Callable[[], str], Path], None] | None = None,
) -> dict[str, float]:
    """Trains a run, or resumes it, and evaluates it.

    Args:
      config: as read from the config file and the command line.
      workdir: the run directory; a run in it resumes from its newest checkpoint.
      should_stop: polled with the step; True: save and stop.
      watch: `Guard.watch`, to end a run that hangs.

    Returns:
      The final held-out metrics, with `step`. If the run keeps its best evaluation: the metrics of
      that one, and the final ones as `last/...`.

    Raises:
      InputError: bad configuration or data.
      Diverged, Stopped: see `Trainer.train`.
    """
    return train_run(
        open_run(config, [workdir]), workdir, should_stop, began=STARTED, watch=watch)


def train_run(
    program: Program, workdir: Path, should_stop: Callable[[int], bool], *, began: float,
    watch: Callable[[Callable[[], str], Path], None] | None = None,
) -> dict[str, float]:
    """Restores or starts a run, trains it to its end and evaluates it; see `run`.

    Args:
      program: from `open_run`.
      workdir: see `run`.
      should_stop: see `run`.
      began: start of the run, in seconds since the epoch.
      watch: see `run`.
    """
    published, program = program.published, dataclasses.replace(program, published=None)
    config, task, mesh, phases = program.config, program.task, program.mesh, program.phases
    objective = program.objective
    total = sum(phase['steps'] for phase in phases)
    traced_steps, traced_hosts = parse_trace(config.train.profile, 'train.profile', total) or (
        None, ())
    resolved = resolve(config, phases, task.vocab_size) | {
        'head': task.head, 'labels': list(task.labels), 'metric': task.metric,
        'inference': dict(task.inference), 'identity': task.identity(),
    }
    resolved['model']['attention'] = objective.config.attention  # must be the same on all hosts
    fields = run_directory.flat_fields(resolved)
    hosts.agree('the run', {f'version of {name}': x for name, x in versions().items()} | {
        name: value for name, value in fields.items() if name not in _PLACES})
    run_directory.check_run_directory(
        workdir, resolved, task.vocab_path, comparable=task.keeps_best)
    run_directory.check_shared(workdir)

    # Compile while the state is restored or initialised, which takes about as long.
    compiler = concurrent.futures.ThreadPoolExecutor(1)
    checkpoints = Checkpoints(workdir / 'checkpoints', config.train.keep_checkpoints)
    left = program.phases_left(checkpoints.latest_step() or 0)
    first_fits = compiler.submit(check_memory, program, left[:1], ['train'])
    state = checkpoints.restore(program.state)
    if state is None:
        state = program.init(config.seed)
        if published is not None:
            state = dataclasses.replace(state, params=warm_start(
                published, state.params, objective.config, head=task.head, labels=task.labels,
                vocab_file=task.vocab_path))
    else:
        say(f'resuming at step {int(state.step):,} from {workdir}')
    published = None  # frees its memory, unless the caller keeps it for the next run
    start = int(state.step)
    report = Report(workdir, hosts.first(), start)
    report.loggers = open_loggers(
        config.train.loggers.split(','), workdir, report.folder, start, fields)
    goodput = Goodput(workdir, hosts.first(), start, began, folder=report.folder)
    profile = Profile(traced_steps if hosts.index() in traced_hosts else None, workdir)
    if watch is not None:
        watch(lambda: goodput.cause, workdir)
    with goodput.during('compile'):
        first_fits.result()
    best = Best(workdir / 'best', task.metric) if task.keeps_best else None
    if best is not None and best.metrics() is not None:
        best.restore(program.state.params)  # fails now rather than after the training

    def steps_of(field: str) -> int:
        return parse_duration(
            config_lib.fields(config)[field], field, batch_size=phases[0]['batch_size'],
            num_examples=task.num_examples, total=total)

    every = {name: steps_of(f'train.{name}_every') for name in ('log', 'eval', 'save', 'verify')}
    gates = task.gates(
        objective, phases, fresh=start == 0 and not config.init_checkpoint,
        settled=max(min(total // 4, _SETTLED), _SETTLED_LEAST, steps_of('optimizer.warmup')))
    run_directory.describe_run(workdir, resolved, task.vocab_path)
    hosts.agree('the step to start from', {'step': start})
    say(f"model {config.model.name or 'as published'}: {count(num_params(state))} parameters; "
        f'{total:,} steps')
    numbers, chip = numbers_of(program), find_chip(jax.devices()[0].device_kind)
    # Later phases are compiled while the first is trained.
    others_fit = compiler.submit(check_memory, program, left)

    def stop_or_fail(step: int) -> bool:
        if others_fit.done():
            others_fit.result()  # raises what a phase does not fit into
        return should_stop(step)

    trainer = Trainer(
        objective, lambda state, batch: program.train_step(state, numbers, batch), state,
        [task.phase(objective, program.eval_step, phases, number, mesh)
         for number in range(len(phases))],
        every, checkpoints, report, goodput, profile, stop_or_fail, best=best, gates=gates,
        verify=make_verify(objective, mesh, seed=config.seed,
                           accumulation_steps=config.train.accumulation_steps),
        patience=config.train.patience, peak_flops=chip.peak_flops * jax.device_count())
    del state  # donated to the first step
    try:
        metrics = trainer.train()
        result = {'step': trainer.step} | {f'eval/{k}': v for k, v in metrics.items()}
        if best is not None:
            step, params = best.restore(program.state.params)
            best_metrics = best.metrics() or {}
            result = {'step': step, **{f'last/{k}': v for k, v in metrics.items()},
                      **{f'eval/{k}': v for k, v in best_metrics.items()}}
            if settled := task.finish(params, best_metrics, workdir):
                resolved['inference'] |= settled
                run_directory.describe_run(workdir, resolved, task.vocab_path)
    finally:
        compiler.shutdown(wait=False, cancel_futures=True)
        profile.close()
        with goodput.during('save'):
            checkpoints.close()
            if best is not None:
                best.close()
        goodput.write()
        say(goodput.line())
        report.draw()
        report.close()
    return result


def resolve(config: ConfigDict, phases: list[dict[str, Any]], vocab_size: int) -> dict[str, Any]:
    """The config as plain values with everything filled in, as written to `config.json`."""
    resolved = json.loads(config.to_json_best_effort())
    resolved['model'] |= config_lib.model_sizes(config)
    resolved['model']['vocab_size'] = config.model.vocab_size or vocab_size
    resolved['phases'] = phases
    resolved['train']['steps'] = sum(phase['steps'] for phase in phases)
    return resolved


class Trainer:
    """Trains a state through the phases of a run. It does not know the task.

    Attributes:
      state: after the last step.
      step: finished updates.
    """

    def __init__(
        self, objective: Head, train_step: TrainStep, state: TrainState, phases: Sequence[Phase],
        every: Mapping[str, int], checkpoints: Checkpoints, report: Report, goodput: Goodput,
        profile: Profile, should_stop: Callable[[int], bool], *, best: Best | None = None,
        gates: Gates | None = None, verify: Callable[[TrainState, Batch], Any] | None = None,
        patience: int = 0, peak_flops: float | None = None,
    ):
        """Takes a fresh or restored state.

        Args:
          objective: makes metrics of sums.
          train_step: takes the state, which is donated, and a batch.
          state: where training starts.
          phases: in order, contiguous from step 0.
          every: steps between log lines, evaluations, checkpoints ('log', 'eval', 'save'; 0: at the
            end only) and comparisons of the devices ('verify'; 0: never).
          checkpoints: saves the state.
          report: receives metrics.
          goodput: accounts for the time.
          profile: traces some steps.
          should_stop: polled after each step; returns the same on all processes.
          best: keeps the parameters of the best evaluation.
          gates: check every step's metrics.
          verify: compares what the devices compute of a batch; see `step.make_verify`.
          patience: evaluations without a better one after which the run ends (0: it does not).
          peak_flops: of all devices together, if known, for MFU.
        """
        self._objective, self._train_step, self.state = objective, train_step, state
        self._phases, self._last, self._every = phases, phases[-1].end, every
        self._checkpoints, self._report, self._goodput = checkpoints, report, goodput
        self._profile, self._should_stop, self._best = profile, should_stop, best
        self._gates, self._verify = gates, verify
        self._patience, self._peak_flops = patience, peak_flops
        self._start = self.step = int(state.step)
        self._metrics: dict[str, float] = {}  # of the last evaluation
        self._on_device: list[dict[str, jax.Array]] = []  # metrics of steps not waited for
        self._fetched: list[dict[str, np.ndarray]] = []  # of the other steps since the log line

    def train(self) -> dict[str, float]:
        """Trains to the end of the last phase.

        Returns:
          The metrics of the last evaluation.

        Raises:
          Diverged: a loss, parameter or metric is not finite; the checkpoints kept are good.
          Stopped: `should_stop` returned True; the state is saved.
        """
        try:
            for phase in self._phases:
                if self.step < phase.end and not self._exhausted():
                    self._train_phase(phase)
            if not self._metrics:  # nothing was left to train
                self._evaluate(self._phases[-1])
        except Diverged as error:
            kept = self._checkpoints.set_aside(error.step)
            raise Diverged(f'{error}; {kept}', error.step) from None
        self._checkpoints.finish()
        return self._metrics

    def _train_phase(self, phase: Phase) -> None:
        """Trains to the end of a phase, or until evaluations do not get better.

        If several are due at a step, the order is log, evaluate, save: so a run that resumes from
        the checkpoint has all records up to it. At the last step the state is saved before the
        evaluation, which may fail. The last but one evaluation is skipped if it is less than a
        tenth of its interval before the end: epochs are seldom a whole number of steps.
        """
        goodput = self._goodput
        if self.step == phase.start:
            say(f'phase {phase.name}: steps {phase.start:,} to {phase.end:,}')
        batches = phase.batches(self.step - phase.start)
        begun, compiled = time.perf_counter(), False
        self._restart_clock()
        while self.step < phase.end:
            is_first = self.step == self._start
            with goodput.during('start' if is_first else 'data'):
                batch = next(batches)
            if self._verify and self._every['verify'] and (
                    (self.step + 1) % self._every['verify'] == 0):
                with goodput.during('evaluation'):
                    self._verify(self.state, batch)
            with goodput.during('profile'):
                self._profile.before(self.step + 1, self._on_device)
            goodput.enter('step' if compiled else 'compile')
            with (jax.profiler.StepTraceAnnotation('train', step_num=self.step + 1),
                  jax.transfer_guard('disallow')):
                self.state, metrics = self._train_step(self.state, batch)
            goodput.enter('step')
            compiled = True
            self.step += 1
            self._on_device.append(metrics)
            # At most two steps in flight: more gain nothing, and hundreds abort on virtual devices.
            jax.block_until_ready([metrics['loss'] for metrics in self._on_device[-3:-2]])
            if is_first:  # the first log line's speed leaves it out
                jax.block_until_ready(metrics['loss'])
                say(f'first step done in {time.perf_counter() - begun:.1f} s')
                self._restart_clock()
            else:
                self._clock.append(self._busy_seconds())

            step, last, stopping = self.step, self._last, self._should_stop(self.step)
            evaluating, saving = self._is_due('eval'), self._is_due('save') or stopping
            if self._is_due('log') or step == phase.end or stopping:
                self._log(phase)
                self._checkpoints.check()
            if saving or evaluating:
                self._fetch()
            if saving and step == last:
                self._save()
            ending = False
            if evaluating and (step == last or last - step >= self._every['eval'] / 10):
                self._evaluate(phase)
                ending = self._exhausted()
            if (saving or ending) and step != last:
                self._save()
            if ending:
                say(f'no better evaluation in {self._patience}: ended at step {step:,}')
                return
            if stopping and step != last:
                raise Stopped(f'stopped at step {step:,}; the state is saved')

    def _is_due(self, kind: str) -> bool:
        every = self._every[kind]
        return self.step == self._last or (every > 0 and self.step % every == 0)

    def _busy_seconds(self) -> float:
        """Seconds of steps and of waiting for their data, until now."""
        seconds = self._goodput.now()
        return seconds['step'] + seconds['data']

    def _restart_clock(self) -> None:
        """Begins the time that the next log line covers."""
        self._clock = [self._busy_seconds()]  # then, and after each step
        self._waited = self._goodput.seconds['data']

    def _fetch(self) -> None:
        """Waits for all steps.

        Raises:
          Diverged: the loss or gradient of a step is not finite.
        """
        before = self.step - len(self._on_device)
        for step, metrics in enumerate(jax.device_get(self._on_device), before):
            if not (np.isfinite(metrics['loss']) and np.isfinite(metrics['grad_norm'])):
                raise Diverged(
                    f"step {step + 1}: loss {metrics['loss']}, gradient norm "
                    f"{metrics['grad_norm']}: stopped. " + (
                        'No step was done before, so no learning rate is the cause: look at the '
                        'parameters that it starts from, and at the data'
                        if step == self._start else
                        'Lower config.optimizer.learning_rate or lengthen config.optimizer.warmup'
                    ), step)
            self._fetched.append(metrics)
        self._on_device.clear()

    def _log(self, phase: Phase) -> None:
        """Writes the record and the line of the steps since the last one."""
        self._fetch()
        steps, self._fetched = self._fetched, []
        sums = {name: float(sum(np.float64(s[name]) for s in steps))
                for name in steps[0] if name not in _OF_A_STEP}
        metrics = {
            'loss': float(np.mean([s['loss'] for s in steps])),
            **self._objective.score(sums),
            'grad_norm': float(np.mean([s['grad_norm'] for s in steps])),
            'learning_rate': float(steps[-1]['learning_rate']),
        }
        seconds = max(self._busy_seconds() - self._clock[0], 1e-9)
        waited = self._goodput.seconds['data'] - self._waited
        each = np.diff(self._clock)
        if len(each):
            per_second = len(each) / seconds
            tokens = sum(float(s.get('tokens', 0)) for s in steps) / len(steps)
            metrics |= {
                'sequences_per_second': per_second * phase.batch_size,
                'tokens_per_second': tokens * per_second,
                'data_wait': waited / seconds,
                'step_seconds': 1 / per_second,
                # The first two after a line are only dispatched, not waited for.
                'step_seconds_deviation': float(np.std(each[2:])) if len(each) > 2 else 0.0,
            }
            if self._peak_flops:
                metrics['mfu'] = (
                    per_second * phase.batch_size * phase.flops_per_row / self._peak_flops)
        self._report.write(self.step, {
            **{f'train/{name}': value for name, value in metrics.items()},
            **self._goodput.metrics()})
        parts = [f'step {self.step:>7,}/{self._last:,}', f"loss {metrics['loss']:.4f}"]
        for name, title in self._objective.shown.items():
            if name in metrics:
                form = '.1%' if name.endswith('accuracy') else '.4f'
                parts.append(f'{title} {metrics[name]:{form}}')
        parts.append(f"lr {metrics['learning_rate']:.2e}")
        if len(each):
            parts += [f"{count(metrics['sequences_per_second'])} seq/s",
                      f"{count(metrics['tokens_per_second'])} tok/s"]
            if 'mfu' in metrics:
                parts.append(f"mfu {metrics['mfu']:.1%}")
            left = math.ceil((self._last - self.step) * metrics['step_seconds'])
            parts += [f"wait {metrics['data_wait']:.0%}", f'eta {duration(left)}']
        say('  '.join(parts))
        if self._gates is not None:
            self._report.tell(self._gates.trained(self.step, steps, metrics))
        self._restart_clock()

    def _evaluate(self, phase: Phase) -> None:
        with self._goodput.during('evaluation'):
            self._metrics = metrics = phase.evaluate(self.state.params)
            for name, value in metrics.items():
                if not math.isfinite(value):
                    raise Diverged(
                        f'step {self.step}: the evaluation gives {name} {value}: stopped. '
                        'Lower config.optimizer.learning_rate', self.step)
            # After a resume, the last evaluation before it may be recorded already.
            if self.step not in self._report.evaluations(after=self.step - 1):
                self._report.write(self.step, {f'eval/{k}': v for k, v in metrics.items()})
                say(f'step {self.step:>7,}  held out: ' + '  '.join(
                    f'{name} {value:.4f}' for name, value in metrics.items()))
                if self._gates is not None:
                    self._report.tell(self._gates.measured('eval', self.step, metrics))
                self._report.draw()
            if self._best is not None:
                self._best.offer(self.step, metrics, self.state.params)

    def _save(self) -> None:
        with self._goodput.during('save'):
            self._goodput.mark(self.step)
            self._report.flush()
            self._checkpoints.save(self.step, self.state)

    def _exhausted(self) -> bool:
        """Whether the best evaluation is `patience` evaluations ago."""
        if self._best is None or not self._patience:
            return False
        since = len(self._report.evaluations(after=self._best.step()))
        # The first host has the records.
        return int(hosts.share('patience', lambda: str(since))) >= self._patience
