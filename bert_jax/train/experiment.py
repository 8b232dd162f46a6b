"""A run from its config to its result.

`open_run` reads weights and data, `train_run` restores or initialises the state, and `train` is the
loop: steps, log lines, evaluations, checkpoints.
"""

import concurrent.futures
import dataclasses
import itertools
import json
import math
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax.config.fields import flat_fields
from bert_jax.config.phases import parse_duration, parse_trace
from bert_jax.heads.base import Head
from bert_jax.runtime import files, hosts
from bert_jax.runtime.errors import Diverged, Stopped
from bert_jax.runtime.hosts import say
from bert_jax.runtime.process import STARTED, find_chip, keep_compiled, made_by, versions
from bert_jax.tasks.opening import open_task
from bert_jax.train import workdirs
from bert_jax.train.checkpoint import Best, Checkpoints
from bert_jax.train.gates import Gates
from bert_jax.train.program import Program, build_program, check_memory, numbers_of, open_mesh
from bert_jax.train.report import Goodput, Profile, Report, count, duration
from bert_jax.train.step import Batch, Phase, TrainState, TrainStep, make_verify, num_params
from bert_jax.weights import load_weights
from bert_jax.weights.run_directory import (
    describe_run,
    read_description,
    saved_steps,
    step_to_read,
)
from bert_jax.weights.warm_start import warm_start

# The plateau gate arms after 25 % of training, clamped to these numbers of steps.
_SETTLED, _SETTLED_LEAST = 20_000, 1_000
# Step metrics that are not sums over the batch.
_OF_A_STEP = ('loss', 'grad_norm', 'learning_rate')
# Paths may differ between hosts; `identity` compares the contents.
_PLACES = ('data.vocab_file', 'data.add_tokens', 'data.dir', 'data.local_dir', 'data.tfds_dir')


def open_run(config: ConfigDict, workdirs: Sequence[files.Path]) -> Program:
    """Reads the weights and data that a config names, and builds its program.

    Args:
      config: as read from the config file and the command line.
      workdirs: of the runs that share the program; these differ only in seed and learning rate.

    Raises:
      InputError: bad configuration or data.
    """
    published = None
    if config.init_checkpoint:
        # A run that has begun restores its parameters and stores the model's description.
        all_begun = all(saved_steps(workdir / 'checkpoints') for workdir in workdirs)
        if all_begun:
            published = read_description(workdirs[0])
        else:
            say(f'training starts from the weights of {config.init_checkpoint}')
            published = load_weights(config.init_checkpoint)
    config = config_lib.complete(config, published)
    mesh = open_mesh(config, jax.devices())
    say(f'devices: {jax.device_count()} x {jax.devices()[0].device_kind}, mesh '
        + ' x '.join(f'{name} {size}' for name, size in mesh.shape.items()))
    keep_compiled(files.as_path(config.data.dir) / 'compiled')
    return build_program(config, mesh, open_task(config), published)


def train_run(
    program: Program, workdir: files.Path, should_stop: Callable[[int], bool], *,
    began: float = STARTED, watch: Callable[[Callable[[], str], files.Path], None] | None = None,
) -> dict[str, float]:
    """Trains a run from its start or its newest checkpoint, and evaluates it.

    Args:
      program: from `open_run`.
      workdir: the run directory.
      should_stop: polled with the step; True: save and stop.
      began: start of the run, in seconds since the epoch.
      watch: `Guard.watch`, to end a run that hangs.

    Returns:
      The final held-out metrics as `eval/...`, with `step`. If the run keeps its best evaluation:
      the step and metrics of that one, and the final metrics as `last/...`.

    Raises:
      InputError: bad configuration or data.
      Diverged, Stopped: see `train`.
    """
    published, program = program.published, dataclasses.replace(program, published=None)
    config, task, mesh, phases = program.config, program.task, program.mesh, program.phases
    objective = program.objective
    ends = list(itertools.accumulate(phase['steps'] for phase in phases))
    total = ends[-1]
    traced_steps, traced_hosts = parse_trace(config.train.profile, 'train.profile', total) or (
        None, ())
    resolved = resolve(config, phases, task.vocab_size) | {
        'head': task.head, 'labels': list(task.labels), 'metric': task.metric,
        'inference': dict(task.inference), 'identity': task.identity(),
    }
    # What it starts from is perhaps of a run that trains further or is made anew.
    if config.init_checkpoint and (
            path := step_to_read(files.as_path(config.init_checkpoint))) is not None:
        manifest = path / 'default' / 'manifest.ocdbt'  # differs for each save
        if manifest.exists():
            resolved |= {'init_step': int(path.name),
                         'init_saved': zlib.crc32(manifest.read_bytes())}
    resolved['model']['attention'] = objective.config.attention  # must be the same on all hosts
    fields = flat_fields(resolved)
    hosts.agree('the run', {f'version of {name}': x for name, x in versions().items()} | {
        name: value for name, value in fields.items() if name not in _PLACES})
    workdirs.check_resumable(workdir, resolved, task.vocab_path, comparable=task.keeps_best)
    workdirs.check_shared(workdir)
    resolved['guessing'] = dict(task.guessing)  # for whoever shows the results
    resolved['made'] = made_by()

    def steps_of(field: str) -> int:
        return parse_duration(
            flat_fields(config)[field], field, batch_size=phases[0]['batch_size'],
            num_examples=task.num_examples, total=total)

    # Compile while the state is restored or initialised, which takes about as long.
    compiler = concurrent.futures.ThreadPoolExecutor(1)
    checkpoints = Checkpoints(workdir / 'checkpoints', config.train.keep_checkpoints,
                              steps_of('train.save_every'))
    begun = checkpoints.latest_step() or 0
    left = [number for number, end in enumerate(ends) if end > begun]
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
    report.guessing = task.guessing
    report.phases = ends
    report.open_loggers(config.train.loggers.split(','), fields)
    goodput = Goodput(workdir, hosts.first(), start, began, folder=report.folder)
    profile = Profile(traced_steps if hosts.index() in traced_hosts else None, workdir)
    if watch is not None:
        watch(lambda: goodput.cause, workdir)
    with goodput.during('compile'):
        first_fits.result()
    best = Best(workdir / 'best', task.metric) if task.keeps_best else None
    if best is not None and best.step():
        best.restore(program.state.params)  # fails now rather than after the training

    gates = task.gates(
        objective, phases, fresh=start == 0 and not config.init_checkpoint,
        settled=max(min(total // 4, _SETTLED), _SETTLED_LEAST, steps_of('optimizer.warmup')))
    if hosts.first():
        describe_run(workdir, resolved, task.vocab_path)
    hosts.agree('the step to start from', {'step': start})
    say(f"model {config.model.name or 'as published'}: {count(num_params(state))} parameters; "
        f'{total:,} steps')
    numbers, chip = numbers_of(program), find_chip(jax.devices()[0].device_kind)
    # Later phases are compiled while the first is trained.
    others_fit = compiler.submit(check_memory, program, left)

    def stop_or_fail(step: int) -> bool:
        if others_fit.done():
            others_fit.result()  # raises an InputError if a phase does not fit
        return should_stop(step)

    try:
        state, metrics = train(
            objective, lambda state, batch: program.train_step(state, numbers, batch), state,
            [task.phase(objective, program.eval_step, phases, number, mesh)
             for number in range(len(phases))],
            {name: steps_of(f'train.{name}_every') for name in ('log', 'eval', 'save', 'verify')},
            checkpoints, report, goodput, profile, stop_or_fail, best=best, gates=gates,
            verify=make_verify(objective, mesh, seed=config.seed,
                               accumulation_steps=config.train.accumulation_steps),
            patience=config.train.patience, save_seconds=60 * config.train.save_minutes,
            peak_flops=chip.peak_flops * jax.device_count())
        result = {'step': int(state.step)} | {f'eval/{k}': v for k, v in metrics.items()}
        if best is not None:
            step, params = best.restore(program.state.params)
            best_metrics = best.metrics() or {}
            result = {'step': step, **{f'last/{k}': v for k, v in metrics.items()},
                      **{f'eval/{k}': v for k, v in best_metrics.items()}}
            resolved['inference'] |= task.finish(params, best_metrics, workdir)
            if hosts.first():
                describe_run(workdir, resolved, task.vocab_path)
    finally:
        compiler.shutdown(wait=False, cancel_futures=True)
        with goodput.during('save'):
            checkpoints.close()
            if best is not None:
                best.close()
        profile.close()
        goodput.write()
        say(goodput.line())
        report.draw()
        report.close()
    return result


def train(
    objective: Head, train_step: TrainStep, state: TrainState, phases: Sequence[Phase],
    every: Mapping[str, int], checkpoints: Checkpoints, report: Report, goodput: Goodput,
    profile: Profile, should_stop: Callable[[int], bool], *, best: Best | None = None,
    gates: Gates | None = None, verify: Callable[[TrainState, Batch], Any] | None = None,
    patience: int = 0, save_seconds: float = 0.0, peak_flops: float = 0.0,
) -> tuple[TrainState, dict[str, float]]:
    """The training loop: trains a state through the phases of a run. It does not know the task.

    If several things are due at a step, the order is log, evaluate, save, so that a run that
    resumes from the checkpoint has all records up to it. At the last step the state is saved before
    the evaluation, which may fail. An evaluation that is due less than a tenth of its interval
    before the last step is skipped: epochs are seldom a whole number of steps.

    Args:
      objective: makes metrics of sums.
      train_step: takes the state, which is donated, and a batch.
      state: fresh or restored.
      phases: in order, contiguous from step 0.
      every: numbers of steps between log lines, evaluations and checkpoints ('log', 'eval', 'save';
        0: only at the end) and between comparisons of the devices ('verify'; 0: never).
      checkpoints: saves the state.
      report: receives metrics.
      goodput: accounts for the time.
      profile: traces some steps.
      should_stop: polled after each step; returns the same on all processes.
      best: keeps the parameters of the best evaluation.
      gates: check every step's metrics.
      verify: compares what the devices compute for a batch; see `step.make_verify`.
      patience: the run ends after so many evaluations without a new best; 0: it does not.
      save_seconds: the state is also saved if the last time is so long ago (on several hosts, at
        log lines, where they wait for each other anyway); 0: it is not.
      peak_flops: of all devices together, for MFU; 0: unknown.

    Returns:
      The last state, and the metrics of the last evaluation.

    Raises:
      Diverged: a loss, gradient norm, parameter, moment or metric is not finite (the remaining
        checkpoints are good), or `verify` found a faulty device.
      Stopped: `should_stop` returned True; the state is saved.
    """
    start = step = int(state.step)
    last, began, saved_at = phases[-1].end, time.perf_counter(), time.monotonic()
    evaluated: dict[str, float] = {}  # metrics of the last evaluation
    in_flight: list[dict[str, jax.Array]] = []  # metrics of steps not waited for
    done: list[dict[str, np.ndarray]] = []  # of the other steps since the last log line
    times: list[dict[str, float]] = []  # seconds by cause at that log line, then after each step

    def is_due(kind: str) -> bool:
        return step == last or (every[kind] > 0 and step % every[kind] == 0)

    def fetch() -> None:
        """Waits for all steps, and checks that they are finite."""
        for number, metrics in enumerate(jax.device_get(in_flight), step - len(in_flight)):
            if not (np.isfinite(metrics['loss']) and np.isfinite(metrics['grad_norm'])):
                raise Diverged(
                    f"step {number + 1}: loss {metrics['loss']}, gradient norm "
                    f"{metrics['grad_norm']}: stopped. " + (
                        'No step was done before, so no learning rate is the cause: look at the '
                        'parameters that it starts from, and at the data' if number == start else
                        'Lower config.optimizer.learning_rate or lengthen config.optimizer.warmup'
                    ), number)
            done.append(metrics)
        in_flight.clear()

    def log(phase: Phase) -> None:
        """Writes the record and the line of the steps since the last one."""
        fetch()
        metrics = log_metrics(objective, done, [*times, goodput.now()], phase, peak_flops)
        report.write(step, {
            **{f'train/{name}': value for name, value in metrics.items()}, **goodput.metrics()})
        say(f'step {step:>7,}/{last:,}  {log_line(objective, metrics, last - step)}')
        if gates is not None:
            report.warn(gates.trained(step, done, metrics))
        done.clear()
        times[:] = [goodput.now()]

    def evaluate(phase: Phase) -> None:
        nonlocal evaluated
        with goodput.during('evaluation'):
            evaluated = phase.evaluate(state.params)
            for name, value in evaluated.items():
                if not math.isfinite(value):
                    raise Diverged(
                        f'step {step}: the evaluation gives {name} {value}: stopped. '
                        'Lower config.optimizer.learning_rate', step)
            # A resumed run may have recorded this evaluation before it stopped.
            if step not in report.evaluations(after=step - 1):
                report.write(step, {f'eval/{name}': value for name, value in evaluated.items()})
                say(f'step {step:>7,}  held out: ' + '  '.join(
                    f'{name} {value:.4f}' for name, value in evaluated.items()))
                if gates is not None:
                    report.warn(gates.measured('eval', step, evaluated))
                report.draw(least_age=60.0)  # it takes half a second
            if best is not None:
                best.offer(step, evaluated, state.params)

    def save() -> None:
        nonlocal saved_at
        saved_at = time.monotonic()
        with goodput.during('save'):
            goodput.mark(step)
            report.flush()
            checkpoints.save(step, state)

    def is_late() -> bool:
        """Whether the last save is long ago; the same on all hosts."""
        if not save_seconds or (hosts.count() > 1 and not is_due('log')):
            return False
        waited = time.monotonic() - saved_at
        return hosts.share('save', lambda: str(waited >= save_seconds)) == str(True)

    def is_exhausted() -> bool:
        """Whether the best evaluation is `patience` evaluations ago."""
        if best is None or not patience:
            return False
        since = len(report.evaluations(after=best.step()))
        # The first host has the records.
        return int(hosts.share('patience', lambda: str(since))) >= patience

    try:
        for phase in phases:
            if step >= phase.end or is_exhausted():
                continue
            if step == phase.start:
                say(f'phase {phase.name}: steps {phase.start:,} to {phase.end:,}')
            cause = 'compile'
            goodput.enter('start' if step == start else 'data')
            for batch in itertools.islice(phase.batches(step - phase.start), phase.end - step):
                if verify is not None and every['verify'] and (step + 1) % every['verify'] == 0:
                    with goodput.during('evaluation'):
                        verify(state, batch)
                with goodput.during('profile'):
                    profile.before(step + 1, in_flight)
                goodput.enter(cause)
                with (jax.profiler.StepTraceAnnotation('train', step_num=step + 1),
                      jax.transfer_guard('disallow')):
                    state, metrics = train_step(state, batch)
                goodput.enter('step')
                cause = 'step'
                step += 1
                in_flight.append(metrics)
                # At most two in flight: more gain nothing, and hundreds make virtual devices abort.
                jax.block_until_ready([metrics['loss'] for metrics in in_flight[-3:-2]])
                if step == start + 1:  # the first log line's speed excludes it
                    jax.block_until_ready(metrics['loss'])
                    say(f'first step done in {time.perf_counter() - began:.1f} s')
                times.append(goodput.now())

                stopping, ending = should_stop(step), False
                evaluating, saving = is_due('eval'), is_due('save') or stopping or is_late()
                if is_due('log') or step == phase.end or stopping:
                    log(phase)
                    checkpoints.check()
                if saving or evaluating:
                    fetch()
                if saving and step == last:
                    save()
                if evaluating and (step == last or last - step >= every['eval'] / 10):
                    evaluate(phase)
                    ending = is_exhausted()
                if (saving or ending) and step != last:
                    save()
                if ending:
                    say(f'no better evaluation in {patience}: ended at step {step:,}')
                    break
                if stopping and step != last:
                    raise Stopped(f'stopped at step {step:,}; the state is saved')
                goodput.enter('data')
            goodput.enter('step')
        if not evaluated:  # no step was left to train
            evaluate(phases[-1])
    except Diverged as error:
        kept = checkpoints.set_aside(error.step)
        raise Diverged(f'{error}; {kept}', error.step) from None
    checkpoints.finish()
    return state, evaluated


def log_metrics(
    objective: Head, steps: Sequence[Mapping[str, Any]], times: Sequence[Mapping[str, float]],
    phase: Phase, peak_flops: float,
) -> dict[str, float]:
    """Mean metrics of the steps of a log line, and their speed.

    Args:
      objective: makes metrics of sums.
      steps: metrics of each step.
      times: seconds by cause at the last log line (or after a run's first step, which compiles),
        after each step since, and now.
      phase: of the steps.
      peak_flops: of all devices together; 0: unknown.
    """
    sums = {name: float(sum(np.float64(s[name]) for s in steps))
            for name in steps[0] if name not in _OF_A_STEP}
    metrics = {
        'loss': float(np.mean([s['loss'] for s in steps])), **objective.score(sums),
        'grad_norm': float(np.mean([s['grad_norm'] for s in steps])),
        'learning_rate': float(steps[-1]['learning_rate']),
    }
    busy = [seconds['step'] + seconds['data'] for seconds in times]
    each = np.diff(busy[:-1])
    if len(each):
        seconds = max(busy[-1] - busy[0], 1e-9)
        sequences = len(each) / seconds * phase.batch_size
        tokens = sum(float(s.get('tokens', 0)) for s in steps) / len(steps)
        metrics |= {
            'sequences_per_second': sequences,
            'tokens_per_second': tokens * len(each) / seconds,
            'data_wait': (times[-1]['data'] - times[0]['data']) / seconds,
            'step_seconds': seconds / len(each),
            # The first two steps after a log line are only dispatched, not waited for.
            'step_seconds_deviation': float(np.std(each[2:])) if len(each) > 2 else 0.0,
        }
        if peak_flops:
            metrics['mfu'] = sequences * phase.flops_per_sequence / peak_flops
    return metrics


def log_line(objective: Head, metrics: Mapping[str, float], steps_left: int) -> str:
    """The log line for a record, without the step."""
    parts = [f"loss {metrics['loss']:.4f}"]
    for name, title in objective.shown.items():
        if name in metrics:
            form = '.1%' if name.endswith('accuracy') else '.4f'
            parts.append(f'{title} {metrics[name]:{form}}')
    parts.append(f"lr {metrics['learning_rate']:.2e}")
    if 'step_seconds' in metrics:
        parts += [f"{count(metrics['sequences_per_second'])} seq/s",
                  f"{count(metrics['tokens_per_second'])} tok/s"]
        if 'mfu' in metrics:
            parts.append(f"mfu {metrics['mfu']:.1%}")
        parts += [f"wait {metrics['data_wait']:.0%}",
                  f"eta {duration(math.ceil(steps_left * metrics['step_seconds']))}"]
    return '  '.join(parts)


def resolve(config: ConfigDict, phases: list[dict[str, Any]], vocab_size: int) -> dict[str, Any]:
    """The config as plain values with everything filled in, as written to `config.json`."""
    resolved = json.loads(config.to_json_best_effort())
    resolved['model'] |= config_lib.model_sizes(config)
    resolved['model']['vocab_size'] = config.model.vocab_size or vocab_size
    resolved['phases'] = phases
    resolved['train']['steps'] = sum(phase['steps'] for phase in phases)
    return resolved
