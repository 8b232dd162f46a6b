"""Records of a run, its pictures and what is drawn of them."""

import json
import random
from pathlib import Path
from typing import Any

from bert_jax.runtime.files import as_path
from bert_jax.tools.report.board import board
from bert_jax.tools.report.examples import Examples
from bert_jax.tools.report.groups import grouped
from bert_jax.tools.report.page import page
from bert_jax.tools.report.runs import RunRecords
from bert_jax.watch.goodput import Goodput
from bert_jax.watch.metrics_log import MetricsLog
from tests.abuse.classes.case import NASTY, Case, copy, in_words

_NUMBERS = (
    float('nan'), float('inf'), float('-inf'), 1e308, -1e308, 5e-324, 0, -0.0, 10**30, 10**400, -1,
    None, True, '1', '', [], {}, '\x1b[31m', [1, 2])
_KEYS = (
    'step', 'train/loss', 'eval/mlm_loss', 'eval/mlm_accuracy', 'time/step', 'data/x', 'checks',
    'train/learning_rate', 'loss', 'eval/', '/', '')


def _spoil_records(rng: random.Random, path: Path) -> str:
    records: list[Any] = [json.loads(line) for line in path.read_text().splitlines()]
    done = []
    for _ in range(rng.choice((1, 1, 2, 5))):
        how = rng.choice(('value', 'value', 'key', 'order', 'repeat', 'many', 'drop', 'all'))
        done.append(how)
        record = rng.choice(records) if records else {}
        if not isinstance(record, dict):
            continue
        if how == 'value':
            record[rng.choice(_KEYS + tuple(record))] = rng.choice(_NUMBERS)
        elif how == 'key':
            record[rng.choice(NASTY)] = rng.choice(_NUMBERS)
        elif how == 'order':
            rng.shuffle(records)
        elif how == 'repeat':
            records += records
        elif how == 'many':
            for step in range(4, 3004):
                records.append({'step': step, 'train/loss': rng.choice((1.0, 1e300))})
        elif how == 'drop':
            records = records[: rng.randrange(len(records) + 1)]
        else:
            key = rng.choice(_KEYS)
            value = rng.choice(_NUMBERS)
            records = [record | {key: value} for record in records if isinstance(record, dict)]
    path.write_text(''.join(json.dumps(record) + '\n' for record in records))
    return f'{path.name} {done}'


def _spoil_place(rng: random.Random, folder: Path) -> str:
    """Puts something else where a run writes or reads a record."""
    name = rng.choice(('curves.png', 'metrics.jsonl', 'goodput.json', 'dev_examples.csv', 'best',
                       'preflight.json', 'config.json', 'events.out.tfevents.1.x'))
    path = folder / name
    how = rng.choice(('folder', 'empty', 'zeros', 'dangling', 'loop', 'text', 'read-only'))
    if path.is_dir():
        return f'{name} is a folder already'
    if path.exists() and how != 'read-only':
        path.unlink()
    if how == 'folder':
        path.mkdir()
    elif how == 'dangling':
        path.symlink_to('nowhere')
    elif how == 'loop':
        path.symlink_to(name)
    elif how == 'read-only':
        path.touch()
        path.chmod(0o400)
    else:
        path.write_bytes({'empty': b'', 'zeros': bytes(5000), 'text': b'x\n'}[how])
    return f'{name} {how}'


def _resume(folder: Path) -> None:
    report = MetricsLog(as_path(folder), True, 4)
    report.write(5, {'train/loss': 1.0, 'eval/mlm_accuracy': 0.5})
    report.draw()
    report.close()
    goodput = Goodput(as_path(folder), True, 4, 10.0)
    goodput.write()
    print(goodput.line())


def _write_page(folder: Path) -> None:
    runs = [RunRecords(as_path(folder), 'run')]
    (folder.parent / 'new').write_text(page(grouped(runs), [Examples()], ''), encoding='utf-8')
    board(runs)


def draw(rng: random.Random, folder: Path, things: Path) -> Case:
    """A run whose records hold odd numbers, or whose files are something else."""
    name = rng.choice(('run', 'cola'))
    copy(things, folder, name)
    if rng.random() < 0.7:
        done = _spoil_records(rng, folder / name / 'metrics.jsonl')
    else:
        done = _spoil_place(rng, folder / name)
    act = rng.choice((_resume, _write_page))
    return Case(done=f'{done}, {in_words(act)}', act=lambda: act(folder / name), made=('new', name))
