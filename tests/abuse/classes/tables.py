"""Makes mistakes in a table and in flags, and opens the table as three commands do.

Each of training, evaluation and prediction reads it or refuses it in one line, training and
evaluation hold out the same rows, prediction reads what training reads, and every row is read or
reported.
"""

import contextlib
import csv
import dataclasses
import io
import json
import random
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.completion import complete
from bert_jax.config.command_line import parse_command
from bert_jax.predict.inputs import SingleText, open_source
from bert_jax.runtime import process
from bert_jax.tasks.handles import ScoredModel
from bert_jax.validation import check_used, validate
from tests.abuse.classes.case import Case
from tests.abuse.fuzz import cut, flip, overwrite
from tests.conftest import ROOT
from tests.opening import open_task

WORDS = ['the', 'leader', 'was', 'john', 'smith', 'born', 'in', 'antwerp', 'who', 'when']
_TEXTS = ('a text, with a comma', 'say "so"', "don't", '', ' ', 'x' * 400, 'naïve café', '你好',
          'two\nlines', 'a\ttab', 'NaN', '1.5', '\u200b', 'end\\', '#', '=1+1')
_NUMBERS = (('1', '0'), ('1', '1.0', '10'))
_LABELS = (*_NUMBERS, ('yes', 'no'), ('nan', '2'), ('a b', 'c,d'))


def _another_line_end(rng: random.Random, data: bytes) -> bytes:
    return data.replace(b'\n', rng.choice((b'\r\n', b'\r', b'\n\n')))


def _another_encoding(rng: random.Random, data: bytes) -> bytes:
    return data.decode('latin-1').encode(rng.choice(('utf-16', 'utf-8-sig')))


# Each is made in one line or in the whole file.
_MISTAKES: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    flip,
    overwrite,
    cut,
    lambda rng, data: data + b',',
    lambda rng, data: data.replace(b',', b';'),
    lambda rng, data: b'"' + data,
    lambda rng, data: data.replace(b'"', b'', 1),
    lambda rng, data: b'',
    lambda rng, data: data.upper(),
    lambda rng, data: data + data,
    lambda rng, data: data.partition(b'\n')[2],
    lambda rng, data: data.replace(b'text', b'label'),
    _another_line_end,
    _another_encoding,
)
_FLAGS = (
    'data.text=Text', 'data.text=', 'data.text=label', 'data.label=text', 'data.label=missing',
    'data.text_pair=other', 'data.text_pair=othr', 'data.id=other', 'data.held_out=0.9',
    'data.held_out=1', 'data.max_malformed=0', 'data.max_seq_length=8', 'dta.text=x',
    'data.eval_source=missing.csv', 'classification.metrics=f1', 'train.steps=1 epoch',
    'classification.multi_label=True', 'classification.windows=mean', 'data.packing=False',
)


def _draw_rows(rng: random.Random, labels: Sequence[str]) -> list[dict[str, str]]:
    sentences = [' '.join(rng.choices(WORDS, k=5)) for _ in range(40)]
    texts = [*_TEXTS, *sentences]
    rows = []
    for _ in range(rng.randint(5, 40)):
        rows.append({
            'text': rng.choice(texts), 'other': rng.choice(sentences), 'label': rng.choice(labels)})
    return rows


def _as_csv(rows: Sequence[dict[str, str]]) -> bytes:
    file = io.StringIO()
    writer = csv.DictWriter(file, rows[0], lineterminator='\n', quoting=csv.QUOTE_ALL)
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue().encode()


def _as_jsonl(rows: Sequence[dict[str, str]]) -> bytes:
    return ''.join(json.dumps(row) + '\n' for row in rows).encode()


def make_mistake(rng: random.Random, data: bytes) -> bytes:
    """Makes a mistake in a line, or sometimes in the whole file."""
    mistake = rng.choice(_MISTAKES)
    lines = data.split(b'\n')
    number = rng.randrange(len(lines))
    if rng.random() < 0.9 and lines[number]:
        lines[number] = mistake(rng, lines[number])
        return b'\n'.join(lines)
    return mistake(rng, data) if data else data


def _write_table(rng: random.Random, folder: Path, labels: Sequence[str]) -> Path:
    """A table with the columns text, other and label, and up to two mistakes."""
    form = rng.choice(('csv', 'jsonl'))
    rows = _draw_rows(rng, labels)
    data = _as_csv(rows) if form == 'csv' else _as_jsonl(rows)
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        data = make_mistake(rng, data)
    path = folder / f'own.{form}'
    path.write_bytes(data)
    return path


def _draw_flags(rng: random.Random, task: str) -> list[str]:
    """Up to two settings, none of another task's section."""
    flags = rng.sample(_FLAGS, rng.choice((0, 0, 1, 1, 2)))
    if task == 'classification':
        return flags
    return [flag for flag in flags if not flag.startswith('classification.')]


class _Attempt(NamedTuple):
    """What came of opening a table: read, refused or HARM, and the result or the error's line."""

    outcome: str
    result: Any


def _attempt(act: Callable[[], Any]) -> _Attempt:
    try:
        return _Attempt('read', act())
    except Exception as error:
        line, status = process.describe_error(error)
        is_refusal = status == 2 and '\n' not in line
        return _Attempt('refused' if is_refusal else 'HARM', line)


@dataclasses.dataclass(frozen=True)
class _Table:
    """A table that somebody made carelessly, and the flags with which it is opened."""

    task: str
    path: Path
    vocab_file: Path
    flags: Sequence[str]

    @property
    def column(self) -> str:
        """The column of the texts, as the flags name it."""
        for flag in self.flags:
            field, _, value = flag.partition('=')
            if field == 'data.text':
                return value
        return 'text'

    def open(self, scored: ScoredModel | None) -> tuple[str, int]:
        """(Digest of the examples that are scored, number of all examples).

        Args:
          scored: opens the table for evaluation; None: for training.
        """
        config, _ = parse_command([
            'main', f'--config={ROOT}/configs/{self.task}.py', f'--config.data.source={self.path}',
            f'--config.data.vocab_file={self.vocab_file}', '--config.model.name=tiny',
            *(f'--config.{flag}' for flag in self.flags)], '')
        check_used(config)
        validate(config)
        data = open_task(complete(config), scored)
        units = data.evaluated[0].units
        num_trained = len(data.train) if data.train else 0
        return units.digest(), len(units) + num_trained

    def texts(self, column: str) -> list[Any]:
        """The texts that prediction reads from a column; '': from the column that it finds."""
        return list(open_source([], str(self.path), [column] if column else []).texts(SingleText()))


def _make_table(rng: random.Random, folder: Path) -> _Table:
    vocab_file = folder / 'vocab.txt'
    vocab_file.write_text('\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', '.', *WORDS]))
    task = rng.choice(('classification', 'classification', 'regression'))
    labels = rng.choice(_NUMBERS if task == 'regression' else _LABELS)
    path = _write_table(rng, folder, labels)
    return _Table(task, path, vocab_file, _draw_flags(rng, task))


def _open_table(table: _Table) -> str:
    """Opens a table for training, evaluation and prediction, and compares what they read."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        trained = _attempt(lambda: table.open(None))
        scored = _attempt(lambda: table.open(ScoredModel()))
        column = table.column
        usual = re.search("its column '(.*)' is read for config.data.text", said.getvalue())
        if usual:
            column = usual[1]  # as somebody does who has read this line
        predicted = _attempt(lambda: table.texts(column))
    printed = (
        f'{table.flags}\ntrained: {trained.outcome} {trained.result}\n'
        f'scored: {scored.outcome} {scored.result}\n'
        f'predicted: {predicted.outcome} {str(predicted.result)[:300]!r}\n{said.getvalue()}')
    harm = _harm(trained, scored, predicted, printed)
    if not harm and trained.outcome == 'read':
        if predicted.outcome == 'refused' and column != 'label':
            harm = 'trained on and not predicted'
        elif predicted.outcome == 'read' and 'classification.windows=mean' not in table.flags:
            harm = _lost_rows(len(predicted.result), trained.result[1], said.getvalue())
    return f'HARM: {harm}\n{printed}' if harm else printed


def _harm(trained: _Attempt, scored: _Attempt, predicted: _Attempt, printed: str) -> str:
    """What no command may do, or ''."""
    outcomes = (trained.outcome, scored.outcome, predicted.outcome)
    if 'HARM' in outcomes or 'Traceback' in printed:
        return 'a fault of the program'
    if trained.outcome == scored.outcome == 'read' and trained.result[0] != scored.result[0]:
        return 'training and evaluation hold out other rows'
    return ''


def _lost_rows(num_texts: int, num_examples: int, said: str) -> str:
    """Says that rows were neither trained on nor reported, or ''.

    Args:
      num_texts: what prediction read.
      num_examples: what training read.
      said: what both printed.
    """
    left_out = re.search(r'(\d+) of \d+ rows left out', said)
    if left_out:
        reported = int(left_out[1])
    else:  # a line for each, printed by training and by evaluation
        reported = len(re.findall(r'line \d+: .*; left out', said)) // 2
    empty = re.search(r'(\d+) of \d+ rows have an empty text', said)
    if empty:
        reported += int(empty[1])
    if num_examples + reported < num_texts - 1:
        return f'{num_texts} rows, {num_examples} read'
    return ''


def draw(rng: random.Random, folder: Path, things: Path) -> Case:
    """A table with mistakes, opened for training, evaluation and prediction."""
    table = _make_table(rng, folder)
    return Case(
        done=f'{table.path.name} {table.flags}',
        act=lambda: print(_open_table(table), file=sys.stderr),
        check=lambda answer: ''.join(re.findall(r'^HARM: .*', answer.err, re.MULTILINE)))
