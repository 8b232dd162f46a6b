"""Benchmarks of the train step, alone or against a peer, and of the first step of a run."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from bert_jax import config as config_lib
from bert_jax.model.flops import train_flops
from bert_jax.runtime.chips import peak_flops
from bert_jax.runtime.errors import InputError
from bert_jax.tasks.pretrain import PretrainTask
from bert_jax.tools.bench_report import Figure, Result, check_ended_well, last_line
from bert_jax.train.program import build_program, open_mesh
from bert_jax.train.sharding import local_rows, to_global
from bert_jax.train.state import init_state, num_params

_ROOT = Path(__file__).resolve().parents[2]
_NUM_BATCHES = 4  # different ones, placed on the device beforehand and taken in turn
_STEPS_IN_FLIGHT = 2  # as in training: see train/loop.py


@dataclasses.dataclass(frozen=True)
class StepOptions:
    """What to train and for how long: see the flags of the same names in bench.py."""

    model: str = 'base'
    batch_size: int = 8
    seq: int = 128
    predictions: int = 20
    vocab_size: int = 30522
    dtype: str = 'auto'
    warmup: int = 2
    steps: int = 10
    seed: int = 0


class StepRun:
    """The train step of `bert_jax.main` on random full-length rows, ready to be timed."""

    def __init__(self, options: StepOptions):
        """Builds it as `experiment.run` does.

        Raises:
          InputError: options that cannot work.
        """
        self.options = o = options
        config = config_lib.default_config()
        config.task = 'synthetic'
        config.seed = o.seed
        config.model.name = o.model
        config.model.dtype = o.dtype
        config.model.vocab_size = o.vocab_size
        config.model.max_position_embeddings = max(512, o.seq)
        config.data.max_seq_length = o.seq
        config.data.max_predictions_per_seq = o.predictions
        config.train.steps = 10_000  # only the learning rate depends on it
        config.train.batch_size = config.train.eval_batch_size = o.batch_size
        config = config_lib.complete(config)
        mesh = open_mesh(config, jax.devices())
        task = PretrainTask(config)
        built = build_program(config, mesh, task)
        self.model, data = built.bert, task.data
        self._train_step = built.train_step
        self._state = init_state(built.objective, built.optimizer, mesh, config.seed)
        local = local_rows(mesh, o.batch_size)
        self._batches = [
            to_global(mesh, batch, o.batch_size, local)
            for batch in data.train_batches(
                data.training(o.seq, o.predictions), batch_size=o.batch_size, local=local,
                first_step=0, num_steps=_NUM_BATCHES,
            )
        ]
        self._done = 0
        self.flops_per_sequence = train_flops(self.model, o.seq, o.predictions)
        self.num_params = num_params(self._state)
        self.losses: list[float] = []  # of the last step of each call
        self.tokens_per_step = 0

    def seconds(self, steps: int) -> float:
        """Time of so many further steps, without waiting for the device but at both ends."""
        jax.block_until_ready((self._state, self._batches))
        started = time.perf_counter()
        in_flight: list[Any] = []
        for _ in range(steps):
            batch = self._batches[self._done % _NUM_BATCHES]
            self._state, metrics = self._train_step(self._state, batch)
            self._done += 1
            in_flight.append(metrics['loss'])
            if len(in_flight) > _STEPS_IN_FLIGHT:
                in_flight.pop(0).block_until_ready()
        jax.block_until_ready(self._state)
        seconds = time.perf_counter() - started
        self.losses.append(float(metrics['loss']))
        self.tokens_per_step = int(metrics['tokens'])
        if not math.isfinite(self.losses[-1]):
            raise RuntimeError(f'the loss is {self.losses[-1]} after {self._done} steps')
        return seconds

    def sizes(self) -> dict[str, int | str]:
        """What a peer is told."""
        o, m = self.options, self.model
        return {
            'layers': m.num_layers, 'hidden': m.hidden_size, 'heads': m.num_heads,
            'vocab_size': m.vocab_size, 'batch_size': o.batch_size, 'seq': o.seq,
            'predictions': o.predictions, 'dtype': m.dtype, 'steps': o.steps, 'warmup': o.warmup,
        }


def step(options: StepOptions, peer: str, repeats: int, say: Callable[[str], None]) -> Result:
    """Times the train step, and a peer in turn with it (A-B-B-A) where one is given.

    Args:
      options: what to train.
      peer: a command, or empty. It is given --layers, --hidden, --heads, --vocab_size,
        --batch_size, --seq, --predictions, --dtype, --steps and --warmup, and prints a JSON object
        with `sequences_per_second` as its last line.
      repeats: timings of each.
      say: takes progress lines.

    Raises:
      InputError: options that cannot work, or a peer that does not run.
    """
    if peer and jax.default_backend() != 'cpu':
        raise InputError(
            f'--peer compares on CPUs, and this is a {jax.default_backend()}: set JAX_PLATFORMS=cpu'
        )
    run = StepRun(options)
    say(f'step: compiling {options.model} ({run.num_params:,} parameters, {run.model.dtype}, '
        f'batch {options.batch_size} x {options.seq})')
    first_call = run.seconds(1)
    if options.warmup:
        run.seconds(options.warmup)
    ours: list[float] = []
    theirs: list[float] = []
    answer: dict[str, Any] = {}

    def time_ours() -> None:
        ours.append(options.steps * options.batch_size / run.seconds(options.steps))
        say(f'step: run {len(ours)} of {repeats}: {ours[-1]:.2f} sequences/s')

    def time_peer() -> None:
        answer.update(run_peer(peer, run.sizes()))
        theirs.append(float(answer['sequences_per_second']))
        say(f'step: peer {len(theirs)} of {repeats}: {theirs[-1]:.2f} sequences/s')

    for i in range(repeats):
        turns = [time_ours, time_peer] if peer else [time_ours]
        for turn in turns if i % 2 == 0 else turns[::-1]:
            turn()

    settings = dataclasses.asdict(options) | {
        'dtype': run.model.dtype, 'num_layers': run.model.num_layers,
        'hidden_size': run.model.hidden_size, 'num_heads': run.model.num_heads,
        'parameters': run.num_params, 'flops_per_sequence': run.flops_per_sequence,
        'tokens_per_step': run.tokens_per_step, 'losses': run.losses,
    }
    return Result('step', settings | ({'peer': {'command': peer, **answer}} if peer else {}),
                  _step_figures(run, ours, theirs, first_call))


def _step_figures(
    run: StepRun, ours: list[float], theirs: list[float], first_call: float
) -> list[Figure]:
    tokens = run.tokens_per_step / run.options.batch_size
    flops = [rate * run.flops_per_sequence for rate in ours]
    figures = [
        Figure(f'{run.options.model}, {run.model.dtype}', ours, 'sequences/s'),
        Figure('tokens', [rate * tokens for rate in ours], 'tokens/s'),
        Figure('model FLOPs', [rate / 1e9 for rate in flops], 'GFLOP/s'),
    ]
    if peak := peak_flops(jax.devices()[0].device_kind):
        peak *= jax.device_count()
        figures.append(Figure('MFU, of the bf16 peak', [100 * f / peak for f in flops], '%'))
    figures.append(Figure('compilation and first call', [first_call], 's'))
    if theirs:
        goal = '>= 1.3' if run.options.model == 'base' else ''
        figures += [
            Figure('peer', theirs, 'sequences/s'),
            # Of neighbours in time: what else the machine does cancels out.
            Figure('ours / peer', [a / b for a, b in zip(ours, theirs)], 'x', goal),
        ]
    return figures


def run_peer(peer: str, sizes: Mapping[str, int | str]) -> dict[str, Any]:
    """Runs the peer once, with sizes as flags; gives the JSON object that it prints last.

    Raises:
      InputError: it does not run, or prints no such object.
    """
    command = [*shlex.split(peer), *(f'--{name}={value}' for name, value in sizes.items())]
    try:
        process = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise InputError(f'--peer={peer!r} cannot be run: {error.strerror}') from error
    if process.returncode:
        raise InputError(
            f'--peer={peer!r} ended with status {process.returncode}: '
            + (last_line(process.stderr) or 'it gave no reason')
        )
    try:
        answer = json.loads(last_line(process.stdout))
        float(answer['sequences_per_second'])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f'--peer={peer!r} did not end its output with a JSON object that has '
            f'sequences_per_second, but with {last_line(process.stdout)[:80]!r}'
        ) from error
    return answer


def first_step(repeats: int, seed: int, folder: Path, say: Callable[[str], None]) -> Result:
    """Seconds from the command to the first finished step of configs/tiny_pretrain.py.

    A run that is not counted makes the vocabulary and the token store first. Each run is ended
    after its first step.

    Raises:
      InputError: the configs are not beside the package.
    """
    config = _ROOT / 'configs' / 'tiny_pretrain.py'
    if not config.exists():
        raise InputError(f'first_step runs {config}, which is not there: use a checkout')
    times = []
    for i in range(-1, repeats):
        command = [
            sys.executable, '-m', 'bert_jax.main', f'--config={config}', f'--config.seed={seed}',
            f'--config.data.dir={folder}', f'--workdir={folder / f"run{i + 1}"}',
        ]
        seconds = _seconds_to_first_step(command)
        if i < 0:
            say(f'first_step: {seconds:.1f} s with the text still to tokenize (not counted)')
        else:
            times.append(seconds)
            say(f'first_step: run {i + 1} of {repeats}: {seconds:.1f} s')
    return Result('first_step', {'config': config.name}, [
        Figure('command to first step, tiny', times, 's', '<= 20'),
    ])


def _seconds_to_first_step(command: list[str]) -> float:
    with tempfile.TemporaryFile('w+') as errors:
        started = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=_ROOT, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith('first step done'):
                    return time.perf_counter() - started
            status = process.wait()
            errors.seek(0)
            check_ended_well(status, errors.read(), 'bert_jax.main')
            raise RuntimeError("bert_jax.main ended without the line 'first step done'")
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
