"""Measures how fast this program is on this machine.

    python -m bert_jax.tools.bench
    python -m bert_jax.tools.bench --only=store,rows --text='wiki/*.txt.gz' --vocab_file=vocab.txt
    python -m bert_jax.tools.bench --only=step --model=base --batch_size=8 --json=step.json \\
        --peer='PEER_VENV/bin/python benchmarks/huggingface_pretrain.py'

first_step  seconds from the command to the first finished step of configs/tiny_pretrain.py
store       raw text -> token store with exact ids: MB/s, tokens/s, peak memory
rows        token store -> masked, batched rows out of tf.data: rows/s
step        the train step that bert_jax.main runs, on random rows: sequences/s, tokens/s, FLOP/s,
            MFU where the chip is known; needs no TensorFlow

A figure is the median of --repeats measurements, shown with their spread.
Exit status: 0 done, 2 bad flags or input, 1 anything else.
"""

from __future__ import annotations

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import math
import platform
import resource
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from bert_jax import config as config_lib
from bert_jax.model.flops import train_flops
from bert_jax.runtime.errors import InputError, nearest
from bert_jax.runtime.files import check_new_file, write_whole
from bert_jax.runtime.process import error_boundary, peak_flops
from bert_jax.tasks.pretrain import PretrainTask, open_data
from bert_jax.train.program import build_program, open_mesh
from bert_jax.train.sharding import local_rows, to_global
from bert_jax.train.step import init_state, num_params

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'numpy', 'tensorflow', 'tensorflow-text')
_NUM_BATCHES = 4  # different ones, placed on the device beforehand and taken in turn
_STEPS_IN_FLIGHT = 2  # as in training: see train/loop.py
_VOCAB_SIZE, _VOCAB_SAMPLE_BYTES = 8000, 10_000_000
_DOCS_BYTES = 50_000_000  # Python's documentation is repeated up to this size
_WARM_UP_BATCHES = 64


class Figure(NamedTuple):
    """One measured quantity: its values, one a repeat, in a unit."""

    name: str
    values: Sequence[float]
    unit: str


class Result(NamedTuple):
    """The figures of one benchmark and what they were measured on."""

    benchmark: str
    settings: Mapping[str, Any]
    figures: Sequence[Figure]


def say(line: str) -> None:
    print(line, flush=True)


def first_step(o: argparse.Namespace, folder: Path) -> Result:
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
    for i in range(-1, o.repeats):
        command = [
            sys.executable, '-m', 'bert_jax.main', f'--config={config}', f'--config.seed={o.seed}',
            f'--config.data.dir={folder}', f'--workdir={folder / f"run{i + 1}"}',
        ]
        seconds = _seconds_to_first_step(command)
        if i < 0:
            say(f'first_step: {seconds:.1f} s with the text still to tokenize (not counted)')
        else:
            times.append(seconds)
            say(f'first_step: run {i + 1} of {o.repeats}: {seconds:.1f} s')
    return Result('first_step', {'config': config.name}, [
        Figure('command to first step, tiny', times, 's'),
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
            errors.seek(0)
            raise InputError(f'bert_jax.main ended with status {process.wait()}: '
                             + (_last_line(errors.read()) or 'it gave no reason'))
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def prepare_text(o: argparse.Namespace, folder: Path) -> tuple[str, str, str]:
    """The text to measure on: the source given, else Python's documentation.

    The documentation is written to one file beforehand (parsing Python would be measured otherwise)
    and repeated up to 50 MB. Without a vocabulary, one of 8,000 pieces is trained.

    Returns:
      (source, vocabulary file, name of the source for people).

    Raises:
      InputError: the text or the vocabulary cannot be read.
    """
    from bert_jax.data.corpus import open_source, sample_texts
    from bert_jax.text import load_tokenizer
    from bert_jax.text.training import train_wordpiece
    from bert_jax.text.vocab import write_vocab

    source, name, vocab_file = o.text, o.text, o.vocab_file
    if not source:
        say("text: collecting Python's documentation")
        docs = open_source('docs:python')
        # A docstring may hold a NUL, which a text file may not.
        texts = [document.text.replace(b'\0', b'')
                 for unit in docs.units() for document in docs.read(unit)]
        size = sum(map(len, texts))
        repeats = max(1, round(_DOCS_BYTES / size))
        (folder / 'docs.txt').write_bytes(b'\n\n'.join(texts * repeats) + b'\n')
        source = f'text:{folder}/docs.txt'
        name = f'docs:python, {size / 1e6:.1f} MB {repeats} times'
    if not vocab_file:
        say(f'text: training a vocabulary of {_VOCAB_SIZE:,} pieces')
        sample = sample_texts(open_source(source), _VOCAB_SAMPLE_BYTES)
        vocab_file = str(folder / 'vocab.txt')
        write_vocab(Path(vocab_file), train_wordpiece(sample, _VOCAB_SIZE, o.lowercase))
    load_tokenizer(vocab_file, o.lowercase)
    open_source(source)
    return source, vocab_file, name


def store(o: argparse.Namespace, text: tuple[str, str, str], folder: Path) -> Result:
    """Builds the token store in `folder` again and again; the last one is left there.

    Everything counts: the tokenizer, and finding out which characters it can trust TF-Text with.
    """
    from bert_jax.data.corpus import open_source
    from bert_jax.data.store_build import build_store
    from bert_jax.text import load_tokenizer

    source, vocab_file, name = text
    seconds = []
    for i in range(o.repeats):
        shutil.rmtree(folder, ignore_errors=True)
        started = time.perf_counter()
        tokenizer = load_tokenizer(vocab_file, o.lowercase)
        manifest = build_store(open_source(source), tokenizer, folder, False).manifest
        seconds.append(time.perf_counter() - started)
        say(f"store: run {i + 1} of {o.repeats}: {manifest['text_bytes'] / 1e6:.1f} MB in "
            f'{seconds[-1]:.1f} s')
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak *= 1 if sys.platform == 'darwin' else 1024
    settings = {'text': name, 'vocab_file': Path(vocab_file).name,
                **{key: manifest[key] for key in ('text_bytes', 'num_tokens', 'num_documents')}}
    return Result('store', settings, [
        Figure('raw text', [manifest['text_bytes'] / 1e6 / x for x in seconds], 'MB/s'),
        Figure('tokens', [manifest['num_tokens'] / x for x in seconds], 'tokens/s'),
        Figure('peak memory', [peak / 1e9], 'GB'),
    ])


def rows(o: argparse.Namespace, text: tuple[str, str, str], folder: Path) -> Result:
    """Masked batches out of the tf.data pipeline, from the token store in `folder`."""
    source, vocab_file, name = text
    say(f'rows: {o.repeats} windows of {o.rows_seconds:g} s, after warm-up')
    config = config_lib.default_config()
    config.seed = o.seed
    config.data.update(source=source, vocab_file=vocab_file, lowercase=o.lowercase,
                       dir=str(folder), held_out=0.0)
    data = open_data(config_lib.complete(config))
    examples = data.training(o.seq, o.predictions)
    size = o.rows_batch_size
    batches = data.train_batches(
        examples, batch_size=size, local=np.arange(size), first_step=0, num_steps=10**9)
    for _ in range(_WARM_UP_BATCHES):
        next(batches)
    rates = []
    for _ in range(o.repeats):
        started, made = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - started) < o.rows_seconds:
            next(batches)
            made += size
        rates.append(made / elapsed)
    settings = {'text': name, 'batch_size': size, 'seq': o.seq, 'predictions': o.predictions,
                'rows_an_epoch': examples.num_examples, 'window_seconds': o.rows_seconds}
    return Result('rows', settings, [
        Figure(f'masked rows of {o.seq}, batch {size}', rates, 'rows/s')])


class StepRun:
    """The train step of `bert_jax.main` on random full-length rows, ready to be timed."""

    def __init__(self, o: argparse.Namespace):
        """Builds it as `experiment.run` does.

        Raises:
          InputError: options that cannot work.
        """
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


def step(o: argparse.Namespace) -> Result:
    """Times the train step, and a peer in turn with it (A-B-B-A) where one is given.

    The peer is a command. It is given --layers, --hidden, --heads, --vocab_size, --batch_size,
    --seq, --predictions, --dtype, --steps and --warmup, and prints a JSON object with
    `sequences_per_second` as its last line.

    Raises:
      InputError: options that cannot work, or a peer that does not run.
    """
    if o.peer and jax.default_backend() != 'cpu':
        raise InputError(
            f'--peer compares on CPUs, and this is a {jax.default_backend()}: set JAX_PLATFORMS=cpu'
        )
    run = StepRun(o)
    m = run.model
    say(f'step: compiling {o.model} ({run.num_params:,} parameters, {m.dtype}, '
        f'batch {o.batch_size} x {o.seq})')
    first_call = run.seconds(1)
    if o.warmup:
        run.seconds(o.warmup)
    ours: list[float] = []
    theirs: list[float] = []
    sizes = {
        'layers': m.num_layers, 'hidden': m.hidden_size, 'heads': m.num_heads,
        'vocab_size': m.vocab_size, 'batch_size': o.batch_size, 'seq': o.seq,
        'predictions': o.predictions, 'dtype': m.dtype, 'steps': o.steps, 'warmup': o.warmup,
    }
    answer: dict[str, Any] = {}

    def time_ours() -> None:
        ours.append(o.steps * o.batch_size / run.seconds(o.steps))
        say(f'step: run {len(ours)} of {o.repeats}: {ours[-1]:.2f} sequences/s')

    def time_peer() -> None:
        answer.update(run_peer(o.peer, sizes))
        theirs.append(float(answer['sequences_per_second']))
        say(f'step: peer {len(theirs)} of {o.repeats}: {theirs[-1]:.2f} sequences/s')

    for i in range(o.repeats):
        turns = [time_ours, time_peer] if o.peer else [time_ours]
        for turn in turns if i % 2 == 0 else turns[::-1]:
            turn()

    settings = sizes | {
        'model': o.model, 'seed': o.seed, 'parameters': run.num_params,
        'flops_per_sequence': run.flops_per_sequence, 'tokens_per_step': run.tokens_per_step,
        'losses': run.losses,
    } | ({'peer': {'command': o.peer, **answer}} if o.peer else {})
    tokens = run.tokens_per_step / o.batch_size
    flops = [rate * run.flops_per_sequence for rate in ours]
    figures = [
        Figure(f'{o.model}, {m.dtype}', ours, 'sequences/s'),
        Figure('tokens', [rate * tokens for rate in ours], 'tokens/s'),
        Figure('model FLOPs', [rate / 1e9 for rate in flops], 'GFLOP/s'),
    ]
    if peak := peak_flops(jax.devices()[0].device_kind):
        peak *= jax.device_count()
        figures.append(Figure('MFU, of the bf16 peak', [100 * f / peak for f in flops], '%'))
    figures.append(Figure('compilation and first call', [first_call], 's'))
    if theirs:
        # Ratios of neighbours in time: what else the machine does cancels out.
        figures += [Figure('peer', theirs, 'sequences/s'),
                    Figure('ours / peer', [a / b for a, b in zip(ours, theirs)], 'x')]
    return Result('step', settings, figures)


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
            + (_last_line(process.stderr) or 'it gave no reason')
        )
    try:
        answer = json.loads(_last_line(process.stdout))
        float(answer['sequences_per_second'])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f'--peer={peer!r} did not end its output with a JSON object that has '
            f'sequences_per_second, but with {_last_line(process.stdout)[:80]!r}'
        ) from error
    return answer


def _last_line(text: str) -> str:
    """The last line that is not empty: of a failed program's standard error, its reason."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), '')


def table(results: Sequence[Result]) -> str:
    """Benchmark, figure, median, spread and unit in columns."""
    def number(value: float) -> str:
        return f'{value:,.0f}' if abs(value) >= 1000 else f'{value:.4g}'

    lines = [f"{'benchmark':10}  {'figure':34} {'median':>10}  {'min - max':>23}  unit"]
    for result in results:
        for name, values, unit in result.figures:
            spread = f'{number(min(values))} - {number(max(values))}' if len(values) > 1 else ''
            lines.append(f'{result.benchmark:10}  {name:34} '
                         f'{number(statistics.median(values)):>10}  {spread:>23}  {unit}')
    return '\n'.join([lines[0], '-' * max(map(len, lines)), *lines[1:]])


def record(results: Sequence[Result], seed: int, command: Sequence[str]) -> dict[str, Any]:
    """Everything about a run of the benchmarks, for JSON."""
    versions = {'python': platform.python_version()}
    for name in _PACKAGES:
        if importlib.util.find_spec(name.replace('-', '_')):
            versions[name] = importlib.metadata.version(name)
    return {
        'date': datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds'),
        'seed': seed, 'command': list(command),
        'hardware': {
            'cpu': _cpu_model(), 'cores': len(os.sched_getaffinity(0)),
            'device_kind': jax.devices()[0].device_kind, 'num_devices': jax.device_count(),
        },
        'versions': versions,
        'results': [{
            'benchmark': result.benchmark, 'settings': dict(result.settings),
            'figures': [{
                'name': name, 'unit': unit, 'median': statistics.median(values),
                'min': min(values), 'max': max(values), 'values': list(values),
            } for name, values, unit in result.figures],
        } for result in results],
    }


def _cpu_model() -> str:
    path = Path('/proc/cpuinfo')
    lines = path.read_text(errors='replace').splitlines() if path.exists() else []
    names = [line.partition(':')[2].strip() for line in lines if line.startswith('model name')]
    return names[0] if names else platform.machine()


# In the order they run: `first_step` needs the accelerator before this process takes it.
BENCHMARKS = ('first_step', 'store', 'rows', 'step')


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise InputError(message)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The flags.

    Raises:
      InputError: flags that cannot be.
    """
    def at_least(kind: Callable[[str], Any], least: float) -> Callable[[str], Any]:
        def read(text: str) -> Any:
            if (value := kind(text)) < least:
                raise argparse.ArgumentTypeError(f'{text} is less than {least}')
            return value

        return read

    p = _Parser(prog='python -m bert_jax.tools.bench', description=__doc__, allow_abbrev=False,
                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--only', default='', metavar='A,B', help='which to run; all that can run here')
    for name, kind, least, default, what in (
        ('repeats', int, 1, 4, 'measurements of each'),
        ('seed', int, 0, 0, 'of all that is random'),
        ('rows_batch_size', int, 1, 256, 'rows: rows of a batch'),
        ('rows_seconds', float, 0.01, 3.0, 'rows: length of a measurement'),
        ('batch_size', int, 1, 8, 'step: sequences a step, over all devices'),
        ('seq', int, 8, 128, 'step, rows: tokens a sequence'),
        ('predictions', int, 1, 20, 'step, rows: masked positions a sequence'),
        ('vocab_size', int, 104, 30522, 'step: pieces in the vocabulary'),
        ('warmup', int, 0, 2, 'step: steps before the first measurement'),
        ('steps', int, 1, 10, 'step: steps a measurement'),
    ):
        p.add_argument(f'--{name}', type=at_least(kind, least), default=default, metavar='N',
                       help=f'{what} ({default})')
    for name, text, what in (
        ('json', '', 'also write everything to this file'),
        ('text', '', "store, rows: a source as in config.data.source (Python's documentation)"),
        ('vocab_file', '', 'store, rows: its vocabulary (one of 8,000 pieces, trained)'),
        ('model', 'base', 'step: size, as config.model.name (base)'),
        ('peer', '', 'step: a command to compare with, run in turn (A-B-B-A) on the same sizes; '
                     'see benchmarks/README.md. It has its own processes: any Python can run it'),
    ):
        p.add_argument(f'--{name}', default=text, help=what)
    p.add_argument('--nolowercase', dest='lowercase', action='store_false',
                   help='store, rows: the vocabulary is cased')
    p.add_argument('--dtype', default='auto', choices=['auto', 'float32', 'bfloat16'],
                   help='step: of the computation; auto is float32 on CPUs, else bfloat16')
    o = p.parse_args(arguments)
    o.only = o.only.split(',') if o.only else []
    for name in o.only:
        if name not in BENCHMARKS:
            raise InputError(f'--only={name} is not a benchmark: {nearest(name, BENCHMARKS)}')
    if o.predictions > o.seq - 2:
        raise InputError(f'--predictions={o.predictions} must be at most --seq - 2 = {o.seq - 2}')
    if o.peer and o.only and 'step' not in o.only:
        raise InputError('--peer is for the benchmark step, which --only leaves out')
    try:
        command = shlex.split(o.peer)
    except ValueError as error:
        raise InputError(f'--peer={o.peer!r} is no command ({error})') from None
    if command and shutil.which(command[0]) is None:
        raise InputError(f'--peer={o.peer!r} cannot be run: there is no program {command[0]}')
    return o


def run(o: argparse.Namespace, folder: Path) -> list[Result]:
    """Runs the chosen benchmarks, with `folder` as scratch.

    Raises:
      InputError: one cannot run here.
    """
    names = [name for name in BENCHMARKS if not o.only or name in o.only]
    if not all(importlib.util.find_spec(p) for p in ('tensorflow', 'tensorflow_text')):
        blocked = [name for name in names if name != 'step']
        if o.only and blocked:
            raise InputError(f'--only={blocked[0]} needs tensorflow and tensorflow-text: install '
                             'them, or run --only=step')
        if blocked:
            say(f"TensorFlow is not installed: left out {', '.join(blocked)}")
        names = ['step']
    results = []
    text = prepare_text(o, folder) if {'store', 'rows'} & {*names} else None
    for name in names:
        if name == 'first_step':
            results.append(first_step(o, folder / 'first'))
        elif name == 'step':
            results.append(step(o))
        else:
            assert text is not None
            results.append({'store': store, 'rows': rows}[name](o, text, folder / 'data'))
    return results


def main(argv: Sequence[str]) -> None:
    """Parses flags, runs, prints the table and writes the JSON."""
    with error_boundary():
        o = parse(argv[1:])
        if o.json:
            check_new_file(o.json, '--json', unless='hardware')
        with tempfile.TemporaryDirectory(prefix='bert_jax_bench_') as folder:
            results = run(o, Path(folder))
        whole = record(results, o.seed, argv[1:])
        if o.json:
            write_whole(o.json, json.dumps(whole, indent=2) + '\n')
        hardware = whole['hardware']
        print(f"\n{hardware['cpu']}, {hardware['cores']} cores; {hardware['num_devices']} x "
              f"{hardware['device_kind']}; jax {whole['versions']['jax']}\n\n{table(results)}")


if __name__ == '__main__':
    # As an exception, so that child processes and the scratch directory go as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main(sys.argv)
