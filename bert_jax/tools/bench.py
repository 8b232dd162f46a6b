"""Measures how fast the train step of bert_jax.main is on this machine, on random rows.

    python -m bert_jax.tools.bench --model=base --batch_size=8 --json=step.json

It prints sequences/s, tokens/s, FLOP/s and, where the chip is known, MFU; it needs no TensorFlow. A
figure is the median of --repeats measurements, shown with their spread. --kernels also profiles
three steps and lists the kernels that take longest. benchmarks/in_turn.py compares the step with
another program's; benchmarks/data.py measures the way from text to rows.
Exit status: 0 done, 2 bad flags or input, 1 anything else.
"""

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import argparse
import datetime
import json
import math
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from bert_jax.completion import complete
from bert_jax.config import ConfigDict, default_config
from bert_jax.config.command_line import Parser, at_least
from bert_jax.model.flops import train_flops
from bert_jax.rows.examples import train_batches
from bert_jax.run_setup import open_mesh
from bert_jax.runtime.chips import find_chip
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import check_new_file, write_whole
from bert_jax.runtime.hosts import say
from bert_jax.runtime.process import error_boundary
from bert_jax.runtime.provenance import processor, versions
from bert_jax.sharding import local_rows, to_global
from bert_jax.step.step import num_unpadded
from bert_jax.tasks.pretrain import PretrainTask
from bert_jax.tools.kernel_times import kernel_table, trace_kernels
from bert_jax.tools.preflight.report import grid
from bert_jax.train.program import Program, build_program, step_inputs

Result = dict[str, Any]
_NUM_BATCHES = 4  # different batches, put on the device beforehand and used in turn
_STEPS_IN_FLIGHT = 2  # as in training: see train/trainer.py
_STEPS_PROFILED = 3


def figure(name: str, values: Sequence[float], unit: str) -> Result:
    """One measured quantity: its values, one per repeat, with their unit."""
    return {
        'name': name, 'unit': unit, 'median': statistics.median(values), 'min': min(values),
        'max': max(values), 'values': list(values),
    }


def step(options: argparse.Namespace, timer: '_StepTimer') -> Result:
    """Times the train step of bert_jax.main on random full rows.

    Args:
      options: parsed flags.
      timer: of `open_timer`.
    """
    model = timer.program.head.config
    num_parameters = num_unpadded(timer.program.head)
    say(f'step: compiling {options.model} ({num_parameters:,} parameters, {model.dtype}, '
        f'batch {options.batch_size} x {options.seq})')
    first_call = timer.seconds(1)
    if options.warmup:
        timer.seconds(options.warmup)
    rates = []
    for number in range(1, options.repeats + 1):
        rate = options.steps * options.batch_size / timer.seconds(options.steps)
        say(f'step: run {number} of {options.repeats}: {rate:.2f} sequences/s')
        rates.append(rate)
    flops = train_flops(model, options.seq, options.predictions)
    tokens_per_step = int(timer.metrics[-1]['tokens'])
    figures = [
        figure(f'{options.model}, {model.dtype}', rates, 'sequences/s'),
        figure('tokens', [rate * tokens_per_step / options.batch_size for rate in rates],
               'tokens/s'),
        figure('model FLOPs', [rate * flops / 1e9 for rate in rates], 'GFLOP/s'),
        *_utilization(rates, flops),
        figure('compilation and first call', [first_call], 's'),
    ]
    return {'figures': figures, 'settings': {
        'model': options.model, 'batch_size': options.batch_size, 'seq': options.seq,
        'predictions': options.predictions, 'steps': options.steps, 'warmup': options.warmup,
        'seed': options.seed,
        'layers': model.num_layers, 'hidden': model.hidden_size, 'heads': model.num_heads,
        'vocab_size': model.vocab_size, 'dtype': model.dtype, 'parameters': num_parameters,
        'flops_per_sequence': flops, 'tokens_per_step': tokens_per_step,
        'losses': [float(metrics['loss']) for metrics in timer.metrics],
    }}


class _StepTimer:
    """Runs train steps and measures how long they take.

    Attributes:
      program: of the step.
      state: after the steps so far.
      metrics: of the last step of each measurement.
    """

    def __init__(self, program: Program, batches: Sequence[Any]):
        self.program = program
        self.state = program.init(program.config.seed)
        self.metrics: list[dict[str, Any]] = []
        self._inputs = step_inputs(program)
        self._batches = batches

    def seconds(self, steps: int) -> float:
        """Seconds of further steps; the device is drained only before and after them."""
        jax.block_until_ready((self.state, self._batches))
        started = time.perf_counter()
        in_flight: list[Any] = []
        for number in range(steps):
            batch = self._batches[number % len(self._batches)]
            self.state, metrics = self.program.steps[0].train(self.state, self._inputs, batch)
            in_flight.append(metrics)
            if len(in_flight) > _STEPS_IN_FLIGHT:
                jax.block_until_ready(in_flight.pop(0)['loss'])
        jax.block_until_ready(self.state)
        result = time.perf_counter() - started
        last = jax.device_get(in_flight[-1])
        if not math.isfinite(last['loss']):
            raise RuntimeError(f"the loss is {last['loss']}")
        self.metrics.append(last)
        return result


def open_timer(options: argparse.Namespace) -> _StepTimer:
    """The train step of the options' model, with batches that are on the device already.

    Raises:
      InputError: the options cannot work.
    """
    config = complete(_config(options))
    mesh = open_mesh(config, jax.devices())
    task = PretrainTask(config)
    program = build_program(config, mesh, task)
    local = local_rows(mesh, options.batch_size)
    host_batches = train_batches(
        task.data.training(options.seq, options.predictions), batch_size=options.batch_size,
        local=local, first_step=0, num_steps=_NUM_BATCHES)
    batches = [to_global(mesh, batch, options.batch_size, local) for batch in host_batches]
    return _StepTimer(program, batches)


def _config(options: argparse.Namespace) -> ConfigDict:
    config = default_config('synthetic')
    config.seed = options.seed
    config.model.update(
        name=options.model, dtype=options.dtype, vocab_size=options.vocab_size,
        max_position_embeddings=max(512, options.seq))
    config.data.update(
        max_seq_length=options.seq, max_predictions_per_seq=options.predictions)
    # The number of steps only affects the learning rate.
    config.train.update(
        steps=10_000, batch_size=options.batch_size, eval_batch_size=options.batch_size)
    return config


def _utilization(rates: Sequence[float], flops: float) -> list[Result]:
    """The MFU, where the chip's peak is known.

    Args:
      rates: in sequences/s.
      flops: of a sequence.
    """
    peak = find_chip(jax.devices()[0].device_kind).peak_flops * jax.device_count()
    if not peak:
        return []
    return [figure('MFU, of the bf16 peak', [100 * rate * flops / peak for rate in rates], '%')]


def table(results: Sequence[Result]) -> str:
    """The text table: benchmark, figure, median, spread and unit in columns."""
    rows = [['benchmark', 'figure', 'median', 'min - max', 'unit']]
    for result in results:
        for found in result['figures']:
            spread = ''
            if len(found['values']) > 1:
                spread = f"{_number(found['min'])} - {_number(found['max'])}"
            rows.append([
                result['benchmark'], found['name'], _number(found['median']), spread,
                found['unit']])
    return grid(rows)


def _number(value: float) -> str:
    return f'{value:,.0f}' if abs(value) >= 1000 else f'{value:.4g}'


class _NumberFlag(NamedTuple):
    """A flag with a whole number of at least `least`."""

    name: str
    default: int
    least: int
    help: str


_NUMBER_FLAGS = (
    _NumberFlag('repeats', 4, 1, 'measurements of each'),
    _NumberFlag('seed', 0, 0, 'of everything random'),
    _NumberFlag('batch_size', 8, 1, 'sequences a step, over all devices'),
    _NumberFlag('seq', 128, 8, 'tokens a sequence'),
    _NumberFlag('predictions', 20, 1, 'masked positions a sequence'),
    _NumberFlag('vocab_size', 30522, 104, 'pieces in the vocabulary'),
    _NumberFlag('warmup', 2, 0, 'steps before the first measurement'),
    _NumberFlag('steps', 10, 1, 'steps a measurement'),
    _NumberFlag('kernels', 0, 0, 'so many kernels that take longest are listed, by a profile'),
)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The parsed flags.

    Raises:
      InputError: the flags cannot work.
    """
    parser = Parser('python -m bert_jax.tools.bench', __doc__)
    parser.add_argument('--json', default='', help='also write everything to this file')
    parser.add_argument('--model', default='base', help='size, as config.model.name (base)')
    parser.add_argument('--dtype', default='auto', choices=['auto', 'float32', 'bfloat16'],
                        help='of the computation; auto is float32 on CPUs, else bfloat16')
    for flag in _NUMBER_FLAGS:
        parser.add_argument(
            f'--{flag.name}', type=at_least(flag.least), default=flag.default, metavar='N',
            help=f'{flag.help} ({flag.default})')
    options = parser.parse_args(arguments)
    most = options.seq - 2
    if options.predictions > most:
        raise InputError(
            f'--predictions={options.predictions} must be at most --seq - 2 = {most}')
    return options


def report(results: Sequence[Result], path: str, command: Sequence[str]) -> None:
    """Prints the table and, if a path is given, writes the JSON."""
    hardware = {
        'cpu': processor(), 'cores': _num_cores(),
        'device_kind': jax.devices()[0].device_kind, 'num_devices': jax.device_count(),
    }
    if path:
        record = {
            'date': datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds'),
            'command': list(command), 'hardware': hardware,
            'versions': {'python': platform.python_version(), **versions()},
            'results': results,
        }
        write_whole(path, json.dumps(record, indent=2) + '\n')
    print(f"\n{hardware['cpu']}, {hardware['cores']} cores; {hardware['num_devices']} x "
          f"{hardware['device_kind']}; jax {jax.__version__}\n\n{table(results)}")


def _num_cores() -> int | None:
    """The cores that this process may use."""
    if sys.platform == 'linux':
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def main(argv: Sequence[str]) -> None:
    """Parses flags, measures, prints the table and writes the JSON."""
    with error_boundary():
        options = parse(argv[1:])
        if options.json:
            check_new_file(options.json, '--json', unless='hardware')
        timer = open_timer(options)
        report([{'benchmark': 'step'} | step(options, timer)], options.json, argv[1:])
        if options.kernels:  # last, as a profiler may fail where the step does not
            kernels = trace_kernels(timer.seconds, _STEPS_PROFILED)
            print(f'\n{kernel_table(kernels, options.kernels)}')


if __name__ == '__main__':
    main(sys.argv)
