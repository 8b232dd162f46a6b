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
from collections.abc import Sequence

import numpy as np

from bert_jax.config import default_config
from bert_jax.config.command_line import Parser
from bert_jax.data.corpus import open_source
from bert_jax.data.examples import train_batches
from bert_jax.data.store_building import build_store
from bert_jax.runtime.files import Path, as_path, check_new_file
from bert_jax.runtime.hosts import say
from bert_jax.runtime.process import error_boundary
from bert_jax.tasks.pretrain import TextData
from bert_jax.text import load_tokenizer
from bert_jax.tools.bench import Result, figure, report
from bert_jax.validation import complete

_WARM_UP_BATCHES = 64


def store(o: argparse.Namespace, folder: Path) -> Result:
    """Builds the token store in `folder` `--repeats` times, and leaves the last one there.

    The time includes making the tokenizer and comparing its characters with the exact one's.
    """
    seconds = []
    for _ in range(o.repeats):
        shutil.rmtree(folder, ignore_errors=True)
        started = time.perf_counter()
        tokenizer = load_tokenizer(o.vocab_file, o.lowercase)
        manifest = build_store(open_source(o.text), tokenizer, folder, False).manifest
        seconds.append(time.perf_counter() - started)
        say(f"store: {manifest['text_bytes'] / 1e6:.1f} MB in {seconds[-1]:.1f} s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak *= 1 if sys.platform == 'darwin' else 1024
    counts = {name: manifest[name] for name in ('text_bytes', 'num_tokens', 'num_documents')}
    return {'settings': {'text': o.text} | counts, 'figures': [
        figure('raw text', [counts['text_bytes'] / 1e6 / x for x in seconds], 'MB/s'),
        figure('tokens', [counts['num_tokens'] / x for x in seconds], 'tokens/s'),
        figure('peak memory', [peak / 1e9], 'GB'),
    ]}


def rows(o: argparse.Namespace, folder: Path) -> Result:
    """Measures masked batches from the input pipeline, which reads the token store in `folder`."""
    say(f'rows: {o.repeats} windows of {o.rows_seconds:g} s, after warm-up')
    config = default_config()
    config.data.update(source=o.text, vocab_file=o.vocab_file, lowercase=o.lowercase,
                       dir=str(folder), held_out=0.0)
    examples = TextData(complete(config)).training(o.seq, o.predictions)
    size = o.rows_batch_size
    batches = train_batches(
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
    settings = {'text': o.text, 'batch_size': size, 'seq': o.seq, 'predictions': o.predictions,
                'rows_an_epoch': examples.num_examples, 'window_seconds': o.rows_seconds}
    return {'settings': settings, 'figures': [
        figure(f'masked rows of {o.seq}, batch {size}', rates, 'rows/s')]}


def main(argv: Sequence[str]) -> None:
    with error_boundary():
        p = Parser('python -m benchmarks.data', __doc__)
        p.add_argument('--text', required=True, help='a source as in config.data.source')
        p.add_argument('--vocab_file', required=True)
        p.add_argument('--nolowercase', dest='lowercase', action='store_false',
                       help='the vocabulary is cased')
        p.add_argument('--json', default='', help='also write everything to this file')
        p.add_argument('--repeats', type=int, default=4)
        p.add_argument('--rows_batch_size', type=int, default=256)
        p.add_argument('--rows_seconds', type=float, default=3.0, help='of a measurement')
        p.add_argument('--seq', type=int, default=128, help='tokens a row')
        p.add_argument('--predictions', type=int, default=20, help='masked positions a row')
        o = p.parse_args(argv[1:])
        if o.json:
            check_new_file(o.json, '--json', unless='hardware')
        with tempfile.TemporaryDirectory(prefix='bert_jax_bench_') as named:
            report([{'benchmark': measure.__name__} | measure(o, as_path(named) / 'data')
                    for measure in (store, rows)], o.json, argv[1:])  # `rows` reads the store


if __name__ == '__main__':
    main(sys.argv)
