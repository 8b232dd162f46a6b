"""Measures the way from text to masked rows on this machine.

    python -m benchmarks.data --text='wiki/*.txt.gz' --vocab_file=vocab.txt --json=data.json

store  raw text -> token store with exact ids: MB/s, tokens/s, peak memory
rows   token store -> masked, batched rows: rows/s
"""

import os

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import argparse
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.completion import complete
from bert_jax.config import default_config
from bert_jax.config.command_line import Parser
from bert_jax.corpus.preparing import prepare
from bert_jax.corpus.sources import open_source
from bert_jax.corpus.store_building import build_store
from bert_jax.rows.examples import train_batches
from bert_jax.runtime.files import Path, as_path, check_new_file
from bert_jax.runtime.hosts import say
from bert_jax.runtime.process import error_boundary
from bert_jax.tasks.pretrain_data import TextData
from bert_jax.text.kinds import load_tokenizer
from bert_jax.tools.bench import Result, figure, report

_WARM_UP_BATCHES = 64


def store(options: argparse.Namespace, folder: Path) -> Result:
    """Builds the token store in `folder` `--repeats` times, and leaves the last one there.

    The time includes making the tokenizer and comparing its characters with the exact one's.
    """
    seconds = []
    for _ in range(options.repeats):
        shutil.rmtree(folder, ignore_errors=True)
        started = time.perf_counter()
        tokenizer = load_tokenizer(options.vocab_file, options.lowercase)
        manifest = build_store(open_source(options.text), tokenizer, folder, False).manifest
        seconds.append(time.perf_counter() - started)
        say(f"store: {manifest['text_bytes'] / 1e6:.1f} MB in {seconds[-1]:.1f} s")
    megabytes = manifest['text_bytes'] / 1e6
    num_tokens = manifest['num_tokens']
    return {
        'settings': {
            'text': options.text, 'text_bytes': manifest['text_bytes'], 'num_tokens': num_tokens,
            'num_documents': manifest['num_documents'],
        },
        'figures': [
            figure('raw text', [megabytes / taken for taken in seconds], 'MB/s'),
            figure('tokens', [num_tokens / taken for taken in seconds], 'tokens/s'),
            figure('peak memory', [peak_memory() / 1e9], 'GB'),
        ],
    }


def peak_memory() -> int:
    """The most bytes that this process has used."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == 'darwin' else 1024 * peak


def rows(options: argparse.Namespace, folder: Path) -> Result:
    """Measures masked batches from the input pipeline, which reads the token store in `folder`."""
    say(f'rows: {options.repeats} windows of {options.rows_seconds:g} s, after warm-up')
    config = default_config()
    config.data.update(
        source=options.text, vocab_file=options.vocab_file, lowercase=options.lowercase,
        dir=str(folder), held_out=0.0)
    completed = complete(config)
    data = TextData(completed, prepare(completed))
    examples = data.training(options.seq, options.predictions)
    size = options.rows_batch_size
    batches = train_batches(
        examples, batch_size=size, local=np.arange(size), first_step=0, num_steps=10**9)
    for _ in range(_WARM_UP_BATCHES):
        next(batches)
    rates = [rows_per_second(batches, size, options.rows_seconds) for _ in range(options.repeats)]
    return {
        'settings': {
            'text': options.text, 'batch_size': size, 'seq': options.seq,
            'predictions': options.predictions, 'rows_an_epoch': examples.num_examples,
            'window_seconds': options.rows_seconds,
        },
        'figures': [figure(f'masked rows of {options.seq}, batch {size}', rates, 'rows/s')],
    }


def rows_per_second(batches: Iterator[Any], batch_size: int, window: float) -> float:
    """Takes batches for `window` seconds."""
    started = time.perf_counter()
    elapsed = 0.0
    made = 0
    while elapsed < window:
        next(batches)
        made += batch_size
        elapsed = time.perf_counter() - started
    return made / elapsed


def main(argv: Sequence[str]) -> None:
    with error_boundary():
        parser = Parser('python -m benchmarks.data', __doc__)
        parser.add_argument('--text', required=True, help='a source as in config.data.source')
        parser.add_argument('--vocab_file', required=True)
        parser.add_argument('--nolowercase', dest='lowercase', action='store_false',
                            help='the vocabulary is cased')
        parser.add_argument('--json', default='', help='also write everything to this file')
        parser.add_argument('--repeats', type=int, default=4)
        parser.add_argument('--rows_batch_size', type=int, default=256)
        parser.add_argument('--rows_seconds', type=float, default=3.0, help='of a measurement')
        parser.add_argument('--seq', type=int, default=128, help='tokens a row')
        parser.add_argument('--predictions', type=int, default=20, help='masked positions a row')
        options = parser.parse_args(argv[1:])
        if options.json:
            check_new_file(options.json, '--json', unless='hardware')
        with tempfile.TemporaryDirectory(prefix='bert_jax_bench_') as named:
            folder = as_path(named) / 'data'
            results = [
                {'benchmark': 'store'} | store(options, folder),
                {'benchmark': 'rows'} | rows(options, folder),  # reads the store
            ]
            report(results, options.json, argv[1:])


if __name__ == '__main__':
    main(sys.argv)
