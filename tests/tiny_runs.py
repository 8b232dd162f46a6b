"""Tiny runs for the tests: text and rows to make them from, and what they have saved."""

import contextlib
import random
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
import orbax.checkpoint as ocp

TINY = (
    '--config=configs/tiny_pretrain.py', '--config.model.hidden_size=32',
    '--config.model.num_heads=2', '--config.data.vocab_size=300', '--config.data.max_seq_length=32',
    '--config.data.max_predictions_per_seq=5', '--config.data.held_out=0.2',
    '--config.train.batch_size=16', '--config.train.eval_batch_size=16',
    '--config.train.log_every=5', '--config.train.eval_every=0',
)
WORDS = [a + b + c for a in 'bdfgk' for b in 'aeiou' for c in 'lmnrst']


def sentence(rng: random.Random, least: int = 3, most: int = 9) -> str:
    return ' '.join(rng.choices(WORDS, k=rng.randint(least, most)))


def documents(count: int, sentences: int = 7) -> str:
    """Text of so many documents."""
    rng = random.Random(0)
    return '\n\n'.join(
        ' '.join(f'{sentence(rng).capitalize()}.' for _ in range(sentences))
        for _ in range(count))


def write_cola(folder: Path, train: int = 50, dev: int = 20, test: int = 7) -> Path:
    """Writes a GLUE folder with so many rows of CoLA in its splits; the folder."""
    rng = random.Random(1)
    (folder / 'CoLA').mkdir(parents=True)
    for split, count in (('train', train), ('dev', dev)):
        rows = [f'x\t{i % 2}\t\t{sentence(rng)}' for i in range(count)]
        (folder / 'CoLA' / f'{split}.tsv').write_text('\n'.join(rows) + '\n')
    rows = [f'{i}\t{sentence(rng)}' for i in range(test)]
    (folder / 'CoLA' / 'test.tsv').write_text('\n'.join(['index\tsentence', *rows]) + '\n')
    return folder


def one_device() -> contextlib.ExitStack:
    """jax as a machine with one device has it."""
    first = jax.devices()[:1]
    patches = contextlib.ExitStack()
    for name, value in (('devices', first), ('local_devices', first), ('device_count', 1)):
        patches.enter_context(mock.patch.object(jax, name, lambda *_, value=value: value))
    return patches


def saved(workdir: Path, part: str = 'checkpoints') -> tuple[int, Any]:
    """(step, tree) of the newest checkpoint of a run."""
    manager = ocp.CheckpointManager((workdir / part).absolute())
    step = manager.latest_step()
    tree = manager.restore(step, args=ocp.args.StandardRestore())
    manager.close()
    return step, jax.tree.map(np.asarray, tree)
