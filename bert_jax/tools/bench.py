"""Measures how fast this program is on this machine.

    python -m bert_jax.tools.bench
    python -m bert_jax.tools.bench --only=store,rows --text='wiki/*.txt.gz' --vocab_file=vocab.txt
    python -m bert_jax.tools.bench --only=step --model=base --batch_size=8 --json=step.json \\
        --peer='PEER_VENV/bin/python benchmarks/huggingface_pretrain.py'

store       raw text -> token store with exact ids: MB/s, tokens/s, peak memory
rows        token store -> masked, batched rows out of tf.data: rows/s
first_step  seconds from the command to the first finished step of configs/tiny_pretrain.py
step        the train step that bert_jax.main runs, on random rows: sequences/s, tokens/s, FLOP/s,
            MFU where the chip is known; needs no TensorFlow

A figure is the median of --repeats measurements, shown with their spread. Goals are this project's
own, for orientation: two cores for the data and the first step, BERT-Base for the ratio to a peer.
Exit status: 0 done, 2 bad flags or input, 1 anything else.
"""

from __future__ import annotations

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import dataclasses
import importlib.util
import json
import math
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from absl import flags, logging

from bert_jax import config as config_lib
from bert_jax.model.flops import train_flops
from bert_jax.runtime import files
from bert_jax.runtime.errors import InputError, nearest
from bert_jax.runtime.files import as_path, check_new_file, write_whole
from bert_jax.runtime.process import error_boundary, peak_flops
from bert_jax.tasks.pretrain import PretrainTask
from bert_jax.tools import bench_data
from bert_jax.tools.bench_data import Figure, Result, check_ended_well, last_line, record, table
from bert_jax.train.program import build_program, open_mesh
from bert_jax.train.sharding import local_rows, to_global
from bert_jax.train.step import init_state, num_params

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


# In the order they run: `step` takes hold of the accelerator, so it comes last.
BENCHMARKS = ('store', 'rows', 'first_step', 'step')
_NEED_TENSORFLOW = ('store', 'rows', 'first_step')


def define_flags() -> flags.FlagValues:
    """The flags, apart from absl's global ones: importing this file changes nothing."""
    f = flags.FlagValues()
    flags.DEFINE_boolean('help', False, 'Show this help.', flag_values=f)
    flags.DEFINE_list(
        'only', [], 'Which to run, of store,rows,first_step,step. Default: all that can run here.',
        flag_values=f,
    )
    flags.DEFINE_integer('repeats', 4, 'Measurements of each.', lower_bound=1, flag_values=f)
    flags.DEFINE_integer('seed', 0, 'Of all that is random.', lower_bound=0, flag_values=f)
    flags.DEFINE_string('json', '', 'Also write everything to this file.', flag_values=f)

    flags.DEFINE_string(
        'text', '', 'store, rows: a source as in config.data.source, such as a glob of files. '
        "Default: Python's documentation.", flag_values=f,
    )
    flags.DEFINE_string(
        'vocab_file', '', 'store, rows: its vocabulary. Default: one of 8,000 pieces, trained.',
        flag_values=f,
    )
    flags.DEFINE_boolean(
        'lowercase', True, 'store, rows: whether the vocabulary is uncased. Default: it is.',
        flag_values=f,
    )
    flags.DEFINE_integer(
        'rows_batch_size', 256, 'rows: rows of a batch.', lower_bound=1, flag_values=f
    )
    flags.DEFINE_float(
        'rows_seconds', 3.0, 'rows: length of a measurement.', lower_bound=0.01, flag_values=f
    )

    flags.DEFINE_string('model', 'base', 'step: model size, as config.model.name.', flag_values=f)
    flags.DEFINE_integer(
        'batch_size', 8, 'step: sequences a step, over all devices.', lower_bound=1, flag_values=f
    )
    flags.DEFINE_integer('seq', 128, 'step, rows: tokens a sequence.', lower_bound=8, flag_values=f)
    flags.DEFINE_integer(
        'predictions', 20, 'step, rows: masked positions a sequence.', lower_bound=1, flag_values=f
    )
    flags.DEFINE_integer(
        'vocab_size', 30522, 'step: pieces in the vocabulary.', lower_bound=104, flag_values=f
    )
    flags.DEFINE_enum(
        'dtype', 'auto', ['auto', 'float32', 'bfloat16'],
        'step: of the computation; auto is float32 on CPUs, else bfloat16.', flag_values=f,
    )
    flags.DEFINE_integer(
        'warmup', 2, 'step: steps before the first measurement.', lower_bound=0, flag_values=f
    )
    flags.DEFINE_integer('steps', 10, 'step: steps a measurement.', lower_bound=1, flag_values=f)
    flags.DEFINE_string(
        'peer', '', 'step: a command to compare with, run in turn (A-B-B-A) on the same sizes; '
        'see benchmarks/README.md. It has its own processes, so any Python can run it.',
        flag_values=f,
    )
    return f


def help_text(f: Any) -> str:
    """What this is, and the flags in the order of their definition."""
    lines = [__doc__ or '', 'Flags, with their defaults:']
    for name in f:
        flag = f[name]
        if name not in ('help', 'flagfile', 'undefok'):  # absl adds the last two
            default = '' if flag.default in ('', []) else flag.default
            shown = f'--[no]{name}' if flag.boolean else f'--{name}={default}'
            lines.append(textwrap.fill(
                flag.help, 100, initial_indent=f'  {shown:<24}', subsequent_indent=' ' * 26
            ))
    return '\n'.join(lines)


def chosen(only: Sequence[str]) -> list[str]:
    """The benchmarks to run, in their order.

    Raises:
      InputError: one that is unknown, or that cannot run here.
    """
    for name in only:
        if name not in BENCHMARKS:
            raise InputError(f'--only={name} is not a benchmark: {nearest(name, BENCHMARKS)}')
    names = [name for name in BENCHMARKS if not only or name in only]
    if all(importlib.util.find_spec(p) for p in ('tensorflow', 'tensorflow_text')):
        return names
    blocked = [name for name in names if name in _NEED_TENSORFLOW]
    if only and blocked:
        raise InputError(
            f'--only={blocked[0]} needs tensorflow and tensorflow-text: install them, or run '
            '--only=step'
        )
    if blocked:
        say(f"TensorFlow is not installed: left out {', '.join(blocked)}")
    return [name for name in names if name not in blocked]


def say(line: str) -> None:
    print(line, flush=True)


def run(f: Any, folder: Path) -> list[Result]:
    """Runs the chosen benchmarks.

    Args:
      f: flags, as `define_flags` has them.
      folder: a scratch directory.
    """
    if f.predictions > f.seq - 2:
        raise InputError(f'--predictions={f.predictions} must be at most --seq - 2 = {f.seq - 2}')
    names = chosen(f.only)
    if f.peer and 'step' not in names:
        raise InputError('--peer is for the benchmark step, which --only leaves out')
    results = []
    if 'store' in names or 'rows' in names:
        text = bench_data.prepare_text(f.text, f.vocab_file, f.lowercase, folder, say)
        data = folder / 'data'
        if 'store' in names:
            results.append(bench_data.store(text, data, f.repeats, say))
        if 'rows' in names:
            results.append(bench_data.rows(
                text, data, f.rows_batch_size, f.seq, f.predictions, f.repeats, f.rows_seconds,
                f.seed, say,
            ))
    if 'first_step' in names or 'step' in names:

        if 'first_step' in names:
            results.append(first_step(f.repeats, f.seed, folder / 'first', say))
        if 'step' in names:
            options = StepOptions(
                model=f.model, batch_size=f.batch_size, seq=f.seq, predictions=f.predictions,
                vocab_size=f.vocab_size, dtype=f.dtype, warmup=f.warmup, steps=f.steps, seed=f.seed,
            )
            results.append(step(options, f.peer, f.repeats, say))
    return results


def _is_benchmark(path: files.Path) -> bool:
    """Whether a file is what an earlier run has written: that may be written anew."""
    try:
        return 'hardware' in json.loads(path.read_bytes())
    except (OSError, ValueError, TypeError):
        return False


def _check_peer(peer: str) -> None:
    try:
        command = shlex.split(peer)
    except ValueError as error:
        raise InputError(f'--peer={peer!r} is no command ({error})') from None
    if command and shutil.which(command[0]) is None:
        raise InputError(f'--peer={peer!r} cannot be run: there is no program {command[0]}')


def main(argv: Sequence[str]) -> None:
    """Parses flags, runs, prints the table and writes the JSON."""
    f: Any = define_flags()
    with error_boundary():
        try:
            rest = f(argv)
        except flags.Error as error:
            raise InputError(' '.join(str(error).split())) from error
        if f.help:
            print(help_text(f))
            return
        if len(rest) > 1:
            raise InputError(f'unexpected argument {rest[1]!r}: flags are written --NAME=VALUE')
        if f.json and not _is_benchmark(as_path(f.json)):
            check_new_file(f.json, '--json')
        _check_peer(f.peer)
        logging.set_verbosity(logging.ERROR)
        with tempfile.TemporaryDirectory(prefix='bert_jax_bench_') as folder:
            results = run(f, Path(folder))
        whole = record(results, f.seed, list(argv)[1:])
        if f.json:
            write_whole(f.json, json.dumps(whole, indent=2) + '\n')
        hardware = whole['hardware']
        print(f"\n{hardware['cpu']}, {hardware['cores']} cores; {hardware['num_devices']} x "
              f"{hardware['device_kind']}; jax {whole['versions']['jax']}\n\n{table(results)}")


if __name__ == '__main__':
    # As an exception, so that child processes and the scratch directory go as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main(sys.argv)
