"""Tiny runs for the tests: their flags, text and tables, and what they have saved."""

import contextlib
import itertools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
import orbax.checkpoint as ocp

from bert_jax.runtime.files import in_bucket

TINY = (
    '--config=configs/tiny_pretrain.py',
    '--config.model.num_layers=1',
    '--config.model.hidden_size=32',
    '--config.model.num_heads=2',
    '--config.data.vocab_size=300',
    '--config.data.max_seq_length=32',
    '--config.data.max_predictions_per_seq=5',
    '--config.data.held_out=0.2',
    '--config.train.batch_size=16',
    '--config.train.eval_batch_size=16',
    '--config.train.log_every=5',
    '--config.train.eval_every=0',
)
WORDS = [''.join(letters) for letters in itertools.product('bdfgk', 'aeiou', 'lmnrst')]


def sentence(rng: random.Random, least: int = 3, most: int = 9) -> str:
    """`least` to `most` random words."""
    return ' '.join(rng.choices(WORDS, k=rng.randint(least, most)))


def documents(count: int, sentences: int = 7) -> str:
    """Text of `count` documents of `sentences` sentences each."""
    rng = random.Random(0)
    return '\n\n'.join(paragraph(rng, sentences) for _ in range(count))


def paragraph(rng: random.Random, sentences: int) -> str:
    """This many sentences, each with a capital and a full stop."""
    return ' '.join(f'{sentence(rng).capitalize()}.' for _ in range(sentences))


def write_table(file: Path, *rows: Sequence[Any]) -> None:
    """Writes a .tsv file."""
    lines = ['\t'.join(map(str, row)) + '\n' for row in rows]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(''.join(lines))


def write_cola(folder: Path, train: int = 50, dev: int = 20, test: int = 7) -> Path:
    """Writes a GLUE folder with these numbers of rows in the splits of CoLA, and returns it."""
    rng = random.Random(1)
    for split, count in (('train', train), ('dev', dev)):
        rows = [('x', i % 2, '', sentence(rng)) for i in range(count)]
        write_table(folder / 'CoLA' / f'{split}.tsv', *rows)
    rows = [(i, sentence(rng)) for i in range(test)]
    write_table(folder / 'CoLA' / 'test.tsv', ('index', 'sentence'), *rows)
    return folder


def one_device() -> contextlib.ExitStack:
    """Makes jax show only one device until the returned stack is closed."""
    return first_devices(1)


def first_devices(count: int) -> contextlib.ExitStack:
    """Makes jax show only so many devices until the returned stack is closed."""
    first = jax.devices()[:count]
    patches = contextlib.ExitStack()
    patches.enter_context(mock.patch.object(jax, 'devices', lambda *_, **__: first))
    patches.enter_context(mock.patch.object(jax, 'local_devices', lambda *_, **__: first))
    patches.enter_context(mock.patch.object(jax, 'device_count', lambda *_, **__: count))
    return patches


def saved(workdir: Path, part: str = 'checkpoints') -> tuple[int, Any]:
    """(step, tree) of the newest checkpoint of a run."""
    folder = workdir / part
    manager = ocp.CheckpointManager(folder if in_bucket(folder) else folder.absolute())
    step = manager.latest_step()
    tree = manager.restore(step, args=ocp.args.StandardRestore())
    manager.close()
    return step, jax.tree.map(np.asarray, tree)
