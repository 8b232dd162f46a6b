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

import importlib.util
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

from absl import flags, logging

from bert_jax.runtime import files
from bert_jax.runtime.errors import InputError, nearest
from bert_jax.runtime.faults import error_boundary
from bert_jax.runtime.files import as_path, write_whole
from bert_jax.runtime.outputs import check_new_file
from bert_jax.tools import bench_data
from bert_jax.tools.bench_report import Result, record, table

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
        from bert_jax.tools import bench_step

        if 'first_step' in names:
            results.append(bench_step.first_step(f.repeats, f.seed, folder / 'first', say))
        if 'step' in names:
            options = bench_step.StepOptions(
                model=f.model, batch_size=f.batch_size, seq=f.seq, predictions=f.predictions,
                vocab_size=f.vocab_size, dtype=f.dtype, warmup=f.warmup, steps=f.steps, seed=f.seed,
            )
            results.append(bench_step.step(options, f.peer, f.repeats, say))
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
