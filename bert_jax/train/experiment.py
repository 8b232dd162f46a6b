"""Builds mesh, task, data, state and steps from a config, and trains."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import importlib.metadata
import json
from collections.abc import Callable, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from bert_jax import config as config_lib
from bert_jax.config.phases import parse_duration, parse_trace
from bert_jax.runtime import files, hosts
from bert_jax.runtime.files import Path
from bert_jax.runtime.hosts import say
from bert_jax.runtime.process import STARTED, huge_pages_note, keep_compiled, peak_flops
from bert_jax.tasks.opening import open_task
from bert_jax.train.checkpoint import Best, Checkpoints
from bert_jax.train.loggers import open_loggers
from bert_jax.train.loop import Cadence, train
from bert_jax.train.program import (
    Program,
    build_program,
    check_memory,
    compile_training,
    numbers_of,
    open_mesh,
    phases_left,
)
from bert_jax.train.report import Goodput, Profile, Report, count
from bert_jax.train.run_directory import (
    check_run_directory,
    check_shared,
    describe_run,
    flat_fields,
)
from bert_jax.train.step import (
    Batch,
    TrainState,
    check_devices,
    make_verify,
    num_params,
)
from bert_jax.weights import load_weights
from bert_jax.weights.run_directory import is_begun, read_description
from bert_jax.weights.warm_start import warm_start

# The plateau gate arms after 25 % of training, clamped to these numbers of steps.
_SETTLED, _SETTLED_LEAST = 20_000, 1_000
_PLACES = ('vocab_file', 'add_tokens', 'dir', 'local_dir', 'tfds_dir')


def versions() -> dict[str, str]:
    """Installed versions of this package, jax, jaxlib, flax and optax."""
    result = {}
    for name in ('bert-jax', 'jax', 'jaxlib', 'flax', 'optax'):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            result[f'version of {name}'] = importlib.metadata.version(name)
    return result


@dataclasses.dataclass(frozen=True)
class Opened:
    """A run's program, weights and data, which runs that differ in seed and rate can share.

    Attributes:
      config: completed.
      published: the weights of `init_checkpoint`, or only their description if all runs have begun.
      program: with the task and the mesh.
    """

    config: ConfigDict
    published: Any
    program: Program


def open_run(config: ConfigDict, workdirs: Sequence[Path]) -> Opened:
    """Reads the weights and data that a config names, and builds its program.

    Args:
      config: as read from the config file and the command line.
      workdirs: of the runs.

    Raises:
      InputError: bad configuration or data.
    """
    published = None
    if config.init_checkpoint:
        # A run that has begun restores its parameters and knows the model's description.
        all_begun = all(is_begun(workdir) for workdir in workdirs)
        published = (
            read_description(workdirs[0]) if all_begun else load_weights(config.init_checkpoint)
        )
    config = config_lib.complete(config, published)
    mesh = open_mesh(config, jax.devices())
    say(f'devices: {jax.device_count()} x {jax.devices()[0].device_kind}, mesh '
        + ' x '.join(f'{name} {size}' for name, size in mesh.shape.items()))
    if jax.default_backend() == 'cpu' and (note := huge_pages_note()):
        say(note)

    keep_compiled(files.as_path(config.data.dir) / 'compiled')
    return Opened(config, published, build_program(config, mesh, open_task(config)))


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
      Diverged, Stopped: see `train.loop.train`.
    """
    return train_run(
        open_run(config, [workdir]), workdir, should_stop, began=STARTED, watch=watch)


def train_run(
    opened: Opened, workdir: Path, should_stop: Callable[[int], bool], *, began: float,
    watch: Callable[[Callable[[], str], Path], None] | None = None,
) -> dict[str, float]:
    """Restores or starts a run, trains it to its end and evaluates it; see `run`.

    Args:
      opened: of its config.
      workdir: see `run`.
      should_stop: see `run`.
      began: start of the run, in seconds since the epoch.
      watch: see `run`.
    """
    config, program = opened.config, opened.program
    task, mesh, published = program.task, program.mesh, opened.published
    phases, objective = program.phases, program.objective
    total = sum(phase['steps'] for phase in phases)
    traced = parse_trace(config.train.profile, 'train.profile', total)
    resolved = resolve(config, phases, task.vocab_size)
    resolved |= {
        'head': task.head, 'labels': list(task.labels), 'metric': task.metric,
        'inference': dict(task.inference),
    }
    resolved['model']['attention'] = program.bert.attention  # must be the same on all hosts
    resolved['identity'] = task.identity()
    hosts.agree('the run', versions() | flat_fields(
        {name: value for name, value in resolved.items() if name != 'data'}
        # Paths may differ between hosts; `identity` compares the contents.
        | {'data': {k: v for k, v in resolved['data'].items() if k not in _PLACES}}
    ))
    check_run_directory(workdir, resolved, task.vocab_path, comparable=task.keeps_best)
    check_shared(workdir)

    checkpoints = Checkpoints(workdir / 'checkpoints', config.train.keep_checkpoints)
    ahead = concurrent.futures.ThreadPoolExecutor(1)
    numbers = numbers_of(program, config)
    # Compile while the state is restored or initialised, which takes about as long.
    first = phases_left(program, checkpoints.latest_step() or 0)[:1]
    ahead.submit(compile_training, program, first)
    state = checkpoints.restore(program.state)
    if state is None:
        state = program.init(config.seed)
        if published is not None:
            params = warm_start(
                published, state.params, program.bert, head=task.head, labels=task.labels,
                vocab_file=task.vocab_path,
            )
            state = dataclasses.replace(state, params=params)
    else:
        say(f'resuming at step {int(state.step):,} from {workdir}')
    published = None  # frees its memory, unless the caller keeps it for the next run
    start = int(state.step)
    report = Report(workdir, hosts.first(), start)
    report.loggers = open_loggers(
        config.train.loggers.split(','), workdir, report.folder, start, flat_fields(resolved))
    goodput = Goodput(workdir, hosts.first(), start, began, folder=report.folder)
    if watch is not None:
        watch(goodput.cause, workdir)

    def steps_of(field: str) -> int:
        return parse_duration(
            config_lib.get_field(config, field), field, batch_size=phases[0]['batch_size'],
            num_examples=task.num_examples, total=total,
        )

    gates = task.gates(
        objective, phases, fresh=start == 0 and not config.init_checkpoint,
        settled=max(
            min(total // 4, _SETTLED), _SETTLED_LEAST, steps_of('optimizer.warmup')),
    )
    left = phases_left(program, start)
    with goodput.during('compile'):
        needed = check_memory(program, left[:1])
    if needed:
        say(f'compiled; the largest step of the first phase takes {needed / 1e9:.1f} GB a device')
    steps, traced_hosts = traced or (None, ())
    profile = Profile(steps, workdir, hosts.index() in traced_hosts)
    best = Best(workdir / 'best', task.metric) if task.keeps_best else None
    if best is not None and best.metrics() is not None:
        best.restore(program.state.params)  # fails now rather than after the training
    describe_run(workdir, resolved, task.vocab_path)
    hosts.agree('the step to start from', {'step': start})
    say(f"model {config.model.name or 'as published'}: {count(num_params(state))} parameters; "
        f'{total:,} steps')
    runs = [task.phase(objective, program.eval_step, phases, number, mesh)
            for number in range(len(phases))]
    checksums = make_verify(
        objective, mesh, seed=config.seed, accumulation_steps=program.accumulation_steps)

    def verify(state: TrainState, batch: Batch) -> None:
        if checksums is not None:
            check_devices(checksums(state, batch), mesh, int(state.step) + 1)

    peak = peak_flops(jax.devices()[0].device_kind)
    # Later phases are compiled while the first is trained.
    later = ahead.submit(check_memory, program, left[1:])

    def stop_or_fail(step: int) -> bool:
        if later.done():
            later.result()  # raises what a phase does not fit into
        return should_stop(step)

    try:
        state, metrics = train(
            objective, lambda state, batch: program.train_step(state, numbers, batch), state, runs,
            Cadence(
                steps_of('train.log_every'), steps_of('train.eval_every'),
                steps_of('train.save_every'), steps_of('train.verify_every'),
                config.train.patience,
            ),
            checkpoints, report, goodput, profile, best, gates, verify,
            peak_flops=peak * jax.device_count() if peak else None, should_stop=stop_or_fail,
        )
        step, result = int(state.step), {f'eval/{k}': v for k, v in metrics.items()}
        if best is not None:
            result = {f'last/{k}': v for k, v in metrics.items()}
            step, params = best.restore(program.state.params)
            metrics = best.metrics() or {}
            result |= {f'eval/{k}': v for k, v in metrics.items()}
            if settled := task.finish(params, metrics, workdir):
                resolved['inference'] |= settled
                describe_run(workdir, resolved, task.vocab_path)
    finally:
        ahead.shutdown(wait=False, cancel_futures=True)
        profile.close()
        with goodput.during('save'):
            checkpoints.close()
            if best is not None:
                best.close()
        goodput.write()
        report.say(goodput.line())
        report.draw()
        report.close()
    return {'step': step, **result}


def resolve(config: ConfigDict, phases: list[dict[str, Any]], vocab_size: int) -> dict[str, Any]:
    """The config as plain values with everything filled in, as written to `config.json`."""
    resolved = json.loads(config.to_json_best_effort())
    resolved['model'] |= config_lib.model_sizes(config)
    resolved['model']['vocab_size'] = config.model.vocab_size or vocab_size
    resolved['phases'] = phases
    resolved['train']['steps'] = sum(phase['steps'] for phase in phases)
    return resolved
