"""Measures how fast the train step of bert_jax.main is on this machine, on random rows.

    python -m bert_jax.tools.bench --model=base --batch_size=8 --json=step.json

It prints sequences/s, tokens/s, FLOP/s and, where the chip is known, MFU; it needs no TensorFlow. A
figure is the median of --repeats measurements, shown with their spread. benchmarks/in_turn.py
compares the step with another program's; benchmarks/data.py measures the way from text to rows.
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
from typing import Any

import jax

from bert_jax.config import default_config
from bert_jax.config.command_line import Parser, at_least
from bert_jax.data.examples import train_batches
from bert_jax.model.flops import train_flops
from bert_jax.run_setup import open_mesh
from bert_jax.runtime.chips import find_chip
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import check_new_file, write_whole
from bert_jax.runtime.hosts import say
from bert_jax.runtime.process import error_boundary
from bert_jax.runtime.provenance import processor, versions
from bert_jax.sharding import local_rows, to_global
from bert_jax.tasks.pretrain import PretrainTask
from bert_jax.tools.preflight.report import grid
from bert_jax.train.program import build_program, step_inputs
from bert_jax.train.step import num_params
from bert_jax.validation import complete

Result = dict[str, Any]
_NUM_BATCHES = 4  # different batches, put on the device beforehand and used in turn
_STEPS_IN_FLIGHT = 2  # as in training: see train/experiment.py


def figure(name: str, values: Sequence[float], unit: str) -> Result:
    """One measured quantity: its values, one per repeat, with their unit."""
    return {'name': name, 'unit': unit, 'median': statistics.median(values), 'min': min(values),
            'max': max(values), 'values': list(values)}


def step(o: argparse.Namespace) -> Result:
    """Times the train step of bert_jax.main on random full rows.

    Raises:
      InputError: the options cannot work.
    """
    config = default_config('synthetic')
    config.seed = o.seed
    config.model.update(name=o.model, dtype=o.dtype, vocab_size=o.vocab_size,
                        max_position_embeddings=max(512, o.seq))
    config.data.update(max_seq_length=o.seq, max_predictions_per_seq=o.predictions)
    # The number of steps only affects the learning rate.
    config.train.update(steps=10_000, batch_size=o.batch_size, eval_batch_size=o.batch_size)
    config = complete(config)
    mesh, task = open_mesh(config, jax.devices()), PretrainTask(config)
    program = build_program(config, mesh, task)
    numbers = step_inputs(program)
    m, state = program.head.config, program.init(config.seed)
    local = local_rows(mesh, o.batch_size)
    batches = [
        to_global(mesh, batch, o.batch_size, local)
        for batch in train_batches(
            task.data.training(o.seq, o.predictions), batch_size=o.batch_size, local=local,
            first_step=0, num_steps=_NUM_BATCHES)]
    last: list[dict[str, Any]] = []  # metrics of the last step of each measurement

    def seconds(steps: int) -> float:
        """Seconds of further steps; the device is drained only before and after them."""
        nonlocal state
        jax.block_until_ready((state, batches))
        started = time.perf_counter()
        in_flight: list[Any] = []
        for i in range(steps):
            state, metrics = program.train_step(state, numbers, batches[i % _NUM_BATCHES])
            in_flight.append(metrics)
            if len(in_flight) > _STEPS_IN_FLIGHT:
                jax.block_until_ready(in_flight.pop(0)['loss'])
        jax.block_until_ready(state)
        result = time.perf_counter() - started
        last.append(jax.device_get(in_flight[-1]))
        if not math.isfinite(last[-1]['loss']):
            raise RuntimeError(f"the loss is {last[-1]['loss']}")
        return result

    parameters = num_params(state)
    say(f'step: compiling {o.model} ({parameters:,} parameters, {m.dtype}, '
        f'batch {o.batch_size} x {o.seq})')
    first_call = seconds(1)
    if o.warmup:
        seconds(o.warmup)
    rates: list[float] = []
    for i in range(o.repeats):
        rates.append(o.steps * o.batch_size / seconds(o.steps))
        say(f'step: run {i + 1} of {o.repeats}: {rates[-1]:.2f} sequences/s')
    flops, tokens_per_step = train_flops(m, o.seq, o.predictions), int(last[-1]['tokens'])
    figures = [
        figure(f'{o.model}, {m.dtype}', rates, 'sequences/s'),
        figure('tokens', [rate * tokens_per_step / o.batch_size for rate in rates], 'tokens/s'),
        figure('model FLOPs', [rate * flops / 1e9 for rate in rates], 'GFLOP/s'),
    ]
    if peak := find_chip(jax.devices()[0].device_kind).peak_flops:
        peak *= jax.device_count()
        figures.append(
            figure('MFU, of the bf16 peak', [100 * rate * flops / peak for rate in rates], '%'))
    figures.append(figure('compilation and first call', [first_call], 's'))
    given = ('model', 'batch_size', 'seq', 'predictions', 'steps', 'warmup', 'seed')
    return {'figures': figures, 'settings': {name: getattr(o, name) for name in given} | {
        'layers': m.num_layers, 'hidden': m.hidden_size, 'heads': m.num_heads,
        'vocab_size': m.vocab_size, 'dtype': m.dtype, 'parameters': parameters,
        'flops_per_sequence': flops, 'tokens_per_step': tokens_per_step,
        'losses': [float(metrics['loss']) for metrics in last],
    }}


def table(results: Sequence[Result]) -> str:
    """The text table: benchmark, figure, median, spread and unit in columns."""
    def number(value: float) -> str:
        return f'{value:,.0f}' if abs(value) >= 1000 else f'{value:.4g}'

    lines = [['benchmark', 'figure', 'median', 'min - max', 'unit']]
    for result in results:
        for f in result['figures']:
            spread = f"{number(f['min'])} - {number(f['max'])}" if len(f['values']) > 1 else ''
            lines.append([result['benchmark'], f['name'], number(f['median']), spread, f['unit']])
    return grid(lines)


_NUMBERS = (  # flag, default, least value, help
    ('repeats', 4, 1, 'measurements of each'),
    ('seed', 0, 0, 'of everything random'),
    ('batch_size', 8, 1, 'sequences a step, over all devices'),
    ('seq', 128, 8, 'tokens a sequence'),
    ('predictions', 20, 1, 'masked positions a sequence'),
    ('vocab_size', 30522, 104, 'pieces in the vocabulary'),
    ('warmup', 2, 0, 'steps before the first measurement'),
    ('steps', 10, 1, 'steps a measurement'),
)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The parsed flags.

    Raises:
      InputError: the flags cannot work.
    """
    p = Parser('python -m bert_jax.tools.bench', __doc__)
    p.add_argument('--json', default='', help='also write everything to this file')
    p.add_argument('--model', default='base', help='size, as config.model.name (base)')
    p.add_argument('--dtype', default='auto', choices=['auto', 'float32', 'bfloat16'],
                   help='of the computation; auto is float32 on CPUs, else bfloat16')
    for name, default, least, what in _NUMBERS:
        p.add_argument(f'--{name}', type=at_least(least), default=default, metavar='N',
                       help=f'{what} ({default})')
    o = p.parse_args(arguments)
    if o.predictions > o.seq - 2:
        raise InputError(f'--predictions={o.predictions} must be at most --seq - 2 = {o.seq - 2}')
    return o


def report(results: Sequence[Result], path: str, command: Sequence[str]) -> None:
    """Prints the table and, if a path is given, writes the JSON."""
    hardware = {
        'cpu': processor(),
        'cores': len(os.sched_getaffinity(0)) if sys.platform == 'linux' else os.cpu_count(),
        'device_kind': jax.devices()[0].device_kind, 'num_devices': jax.device_count(),
    }
    if path:
        write_whole(path, json.dumps({
            'date': datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds'),
            'command': list(command), 'hardware': hardware,
            'versions': {'python': platform.python_version(), **versions()}, 'results': results,
        }, indent=2) + '\n')
    print(f"\n{hardware['cpu']}, {hardware['cores']} cores; {hardware['num_devices']} x "
          f"{hardware['device_kind']}; jax {jax.__version__}\n\n{table(results)}")


def main(argv: Sequence[str]) -> None:
    """Parses flags, measures, prints the table and writes the JSON."""
    with error_boundary():
        o = parse(argv[1:])
        if o.json:
            check_new_file(o.json, '--json', unless='hardware')
        report([{'benchmark': 'step'} | step(o)], o.json, argv[1:])


if __name__ == '__main__':
    main(sys.argv)
