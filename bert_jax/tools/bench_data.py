"""Benchmarks of the data half: raw text -> token store, and token store -> batches.

Each measurement is a process of its own, so that peak memory is that of the work alone and the
process that measures the train step never loads TensorFlow. This file run as a module is that
process: it takes a JSON request as its argument and prints its answer as the last line.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.runtime.errors import InputError
from bert_jax.tools.bench_report import Figure, Result, check_ended_well, last_line

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
    from bert_jax.data.store import build_store
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
