"""Benchmarks of the data half, and the figures and tables of all benchmarks."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
import re
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.runtime.errors import InputError

_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'numpy', 'tensorflow', 'tensorflow-text')


@dataclasses.dataclass(frozen=True)
class Figure:
    """One measured quantity.

    Attributes:
      name: what was measured.
      values: one a repeat.
      unit: of the values.
      goal: what this project aims at, for orientation; empty: nothing.
    """

    name: str
    values: Sequence[float]
    unit: str
    goal: str = ''

    @property
    def median(self) -> float:
        return statistics.median(self.values)


@dataclasses.dataclass(frozen=True)
class Result:
    """The figures of one benchmark and what they were measured on."""

    benchmark: str
    settings: Mapping[str, Any]
    figures: Sequence[Figure]


def table(results: Sequence[Result]) -> str:
    """Benchmark, figure, median, spread, unit and goal in columns."""
    rows = [('benchmark', 'figure', 'median', 'min - max', 'unit', 'goal')]
    for result in results:
        for figure in result.figures:
            low, high = _number(min(figure.values)), _number(max(figure.values))
            spread = f'{low} - {high}' if len(figure.values) > 1 else ''
            rows.append((
                result.benchmark, figure.name, _number(figure.median), spread, figure.unit,
                figure.goal,
            ))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    rows.insert(1, tuple('-' * width for width in widths))  # type: ignore[arg-type]
    numbers = (2, 3)
    return '\n'.join(
        '  '.join(
            cell.rjust(width) if i in numbers else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def record(results: Sequence[Result], seed: int, command: Sequence[str]) -> dict[str, Any]:
    """Everything about a run of the benchmarks, for JSON."""
    return {
        'date': datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds'),
        'seed': seed,
        'command': list(command),
        'hardware': hardware(),
        'versions': {'python': platform.python_version()} | {
            name: version for name in _PACKAGES if (version := _version(name))
        },
        'results': [
            {
                'benchmark': result.benchmark,
                'settings': dict(result.settings),
                'figures': [
                    {
                        'name': figure.name, 'unit': figure.unit, 'goal': figure.goal,
                        'median': figure.median, 'min': min(figure.values),
                        'max': max(figure.values), 'values': list(figure.values),
                    }
                    for figure in result.figures
                ],
            }
            for result in results
        ],
    }


def hardware() -> dict[str, Any]:
    """The processor, how many of its cores may be used, and jax's devices."""
    import jax  # late: it takes hold of the accelerator, which child processes may need before

    return {
        'cpu': _cpu_model(),
        'cores': num_cores(),
        'device_kind': jax.devices()[0].device_kind,
        'num_devices': jax.device_count(),
    }


def num_cores() -> int:
    """Cores this process may run on (all of them, unless it was pinned)."""
    if hasattr(os, 'sched_getaffinity'):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def last_line(text: str) -> str:
    """The last line that says something: of a failed program's standard error, its reason."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ''


def check_ended_well(status: int, stderr: str, what: str) -> None:
    """Refuses the result of a child process that failed.

    Raises:
      InputError: it ended with a fault of the user's.
      RuntimeError: it ended with any other.
    """
    if status == 2:
        raise InputError(last_line(stderr).removeprefix('error: ') or f'{what} ended with status 2')
    if status:
        raise RuntimeError(f'{what} ended with status {status}:\n{stderr[-4000:]}')


def _number(value: float) -> str:
    """Four digits that mean something: 0.1234, 12.34, 123,456."""
    if abs(value) >= 1000:
        return f'{value:,.0f}'
    return f'{value:.4g}'


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ''


def _cpu_model() -> str:
    path = Path('/proc/cpuinfo')
    if path.exists():
        for line in path.read_text(errors='replace').splitlines():
            if line.startswith('model name'):
                return line.partition(':')[2].strip()
    return platform.processor() or platform.machine()


_ROOT = Path(__file__).resolve().parents[2]
_TRAINED_VOCAB_SIZE = 8000
_VOCAB_SAMPLE_BYTES = 10_000_000
_DOCS_BYTES = 50_000_000  # Python's documentation is repeated up to this size
_WARM_UP_BATCHES = 64


@dataclasses.dataclass(frozen=True)
class Text:
    """A data source, with the vocabulary that it is tokenized with."""

    source: str
    vocab_file: str
    lowercase: bool
    name: str


def prepare_text(
    glob: str, vocab_file: str, lowercase: bool, folder: Path, say: Callable[[str], None]
) -> Text:
    """The text to measure on: the files given, else Python's documentation.

    Args:
      glob: the files' source string; empty: `docs:python`, written to one file beforehand (parsing
        Python would be measured otherwise) and repeated up to 50 MB.
      vocab_file: empty: one of 8,000 pieces is trained on the text.
      lowercase: whether the vocabulary is.
      folder: for what is made.
      say: takes progress lines.

    Raises:
      InputError: the text or the vocabulary cannot be read.
    """
    from bert_jax.data.corpus import open_source, sample_texts
    from bert_jax.text import load_tokenizer
    from bert_jax.text.training import train_wordpiece
    from bert_jax.text.vocab import write_vocab

    if not glob:
        say("text: collecting Python's documentation")
        source = open_source('docs:python')
        # A docstring may hold a NUL, which a text file may not.
        texts = [
            document.text.replace(b'\0', b'')
            for unit in source.units() for document in source.read(unit)
        ]
        size = sum(map(len, texts))
        repeats = max(1, round(_DOCS_BYTES / size))
        path = folder / 'docs.txt'
        path.write_bytes(b'\n\n'.join(texts * repeats) + b'\n')
        glob, name = f'text:{path}', f'docs:python, {size / 1e6:.1f} MB {repeats} times'
    else:
        name = glob
    if not vocab_file:
        say(f'text: training a vocabulary of {_TRAINED_VOCAB_SIZE:,} pieces')
        tokens = train_wordpiece(
            sample_texts(open_source(glob), _VOCAB_SAMPLE_BYTES), _TRAINED_VOCAB_SIZE, lowercase
        )
        vocab_file = str(folder / 'vocab.txt')
        write_vocab(Path(vocab_file), tokens)
    load_tokenizer(vocab_file, lowercase)
    open_source(glob)
    return Text(glob, vocab_file, lowercase, name)


def store(text: Text, folder: Path, repeats: int, say: Callable[[str], None]) -> Result:
    """Builds the token store of `text` in `folder` again and again; the last one is left there."""
    answers = []
    for i in range(repeats):
        shutil.rmtree(folder, ignore_errors=True)
        answer = _ask('store', text, folder)
        answers.append(answer)
        say(f"store: run {i + 1} of {repeats}: {answer['bytes'] / 1e6:.1f} MB in "
            f"{answer['seconds']:.1f} s, {answer['peak_bytes'] / 1e9:.2f} GB")
    last = answers[-1]
    settings = {
        'text': text.name, 'vocab_file': Path(text.vocab_file).name,
        'text_bytes': last['bytes'], 'tokens': last['tokens'], 'documents': last['documents'],
        'process_seconds': [a['process_seconds'] for a in answers],
    }
    return Result('store', settings, [
        Figure('raw text', [a['bytes'] / 1e6 / a['seconds'] for a in answers], 'MB/s', '>= 20'),
        Figure('tokens', [a['tokens'] / a['seconds'] for a in answers], 'tokens/s'),
        Figure('peak memory', [a['peak_bytes'] / 1e9 for a in answers], 'GB', '< 2'),
    ])


def rows(
    text: Text, folder: Path, batch_size: int, seq: int, predictions: int, repeats: int,
    seconds: float, seed: int, say: Callable[[str], None],
) -> Result:
    """Masked batches out of the tf.data pipeline, from the token store in `folder` (or a new one).

    Args:
      text: the text of the store.
      folder: of the store.
      batch_size: rows of a batch.
      seq: tokens of a row.
      predictions: masked positions a row at most.
      repeats: windows to measure.
      seconds: length of a window.
      seed: of pairs, masks and order.
      say: takes progress lines.
    """
    say(f'rows: {repeats} windows of {seconds:g} s, after warm-up')
    answer = _ask(
        'rows', text, folder, batch_size=batch_size, seq=seq, predictions=predictions,
        repeats=repeats, seconds=seconds, seed=seed,
    )
    settings = {
        'text': text.name, 'batch_size': batch_size, 'seq': seq, 'predictions': predictions,
        'rows_an_epoch': answer['rows_an_epoch'], 'window_seconds': seconds,
    }
    name = f'masked rows of {seq}, batch {batch_size}'
    return Result('rows', settings, [Figure(name, answer['rates'], 'rows/s', '>= 150,000')])


def _ask(what: str, text: Text, folder: Path, **options: Any) -> dict[str, Any]:
    """Runs a measurement in a fresh process."""
    request = {'what': what, 'folder': str(folder), **dataclasses.asdict(text), **options}
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get('PYTHONPATH')]))
    started = time.perf_counter()
    process = subprocess.run(
        [sys.executable, '-m', 'bert_jax.tools.bench_data', json.dumps(request)],
        # Nothing here computes on a device; the accelerator stays free.
        env=os.environ | {'PYTHONPATH': path, 'JAX_PLATFORMS': 'cpu', 'TF_CPP_MIN_LOG_LEVEL': '3'},
        capture_output=True, text=True,
    )
    check_ended_well(process.returncode, process.stderr, f'the process that measures {what}')
    answer = json.loads(last_line(process.stdout))
    return answer | {'process_seconds': time.perf_counter() - started}


def _measure_store(request: dict[str, Any]) -> dict[str, Any]:
    from bert_jax.data.corpus import open_source
    from bert_jax.data.store_build import build_store
    from bert_jax.text import load_tokenizer

    # From here on everything counts: the tokenizer, and finding out which characters it can trust
    # TF-Text with. Only the imports above do not.
    started = time.perf_counter()
    tokenizer = load_tokenizer(request['vocab_file'], request['lowercase'])
    built = build_store(open_source(request['source']), tokenizer, request['folder'], False)
    return {
        'seconds': time.perf_counter() - started,
        'bytes': built.manifest['text_bytes'],
        'tokens': built.manifest['num_tokens'],
        'documents': built.manifest['num_documents'],
        'peak_bytes': _peak_bytes(),
    }


def _measure_rows(request: dict[str, Any]) -> dict[str, Any]:
    from bert_jax.config import complete, default_config
    from bert_jax.tasks.pretrain import open_data

    config = default_config()
    config.seed = request['seed']
    config.data.source = request['source']
    config.data.vocab_file = request['vocab_file']
    config.data.lowercase = request['lowercase']
    config.data.dir = request['folder']
    config.data.held_out = 0.0
    data = open_data(complete(config))
    examples = data.training(request['seq'], request['predictions'])
    size = request['batch_size']
    batches = data.train_batches(
        examples, batch_size=size, local=np.arange(size), first_step=0, num_steps=10**9
    )
    for _ in range(_WARM_UP_BATCHES):
        next(batches)
    rates = []
    for _ in range(request['repeats']):
        started, made = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - started) < request['seconds']:
            next(batches)
            made += size
        rates.append(made / elapsed)
    return {'rates': rates, 'rows_an_epoch': examples.num_examples}


def _peak_bytes() -> int:
    """Peak resident memory of this process.

    `ru_maxrss` alone would do were it not inherited through exec on Linux: a child of a large
    process reports its parent's size. /proc tells of this program only.
    """
    status = Path('/proc/self/status')
    if status.exists() and (found := re.search(r'VmHWM:\s+(\d+) kB', status.read_text())):
        return 1024 * int(found[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == 'darwin' else 1024 * peak


def _main() -> None:
    request = json.loads(sys.argv[1])
    try:
        answer = {'store': _measure_store, 'rows': _measure_rows}[request['what']](request)
    except InputError as error:
        print(f'error: {error}', file=sys.stderr)
        sys.exit(2)
    print(json.dumps(answer), flush=True)
    os._exit(0)  # the pipeline's threads are at work on batches that nobody will read


if __name__ == '__main__':
    _main()
