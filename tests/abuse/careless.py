"""Careless input, at random: tables of one's own and flags, as people get them wrong.

A case writes a table, makes a few mistakes in it and in the flags, and opens it for training, for
evaluation and for prediction. Either it is refused in one line by all of them, or all read the same
texts, and every row is read or reported. Anything else is harm: a traceback, another answer from
another command, rows that vanish.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import gzip
import io
import json
import random
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from bert_jax.config.command_line import parse_command
from bert_jax.config.validation import check_used, validate
from bert_jax.predict.__main__ import Texts
from bert_jax.runtime import process
from bert_jax.tasks.labelled import ScoredModel
from bert_jax.tasks.opening import open_task
from tests.conftest import ROOT

WORDS = ['the', 'leader', 'was', 'john', 'smith', 'born', 'in', 'antwerp', 'who', 'when']
TEXTS = ('a text, with a comma', 'say "so"', "don't", '', ' ', 'x' * 400, 'naïve café', '你好',
         'two\nlines', 'a\ttab', 'NaN', '1.5', '\u200b', 'end\\', '#', '=1+1')
LABELS = (('yes', 'no'), ('1', '0'), ('1', '1.0'), ('nan', '2', '10'), ('a b', 'c,d'), ('true',))


def write_table(rng: random.Random, folder: Path) -> tuple[str, int]:
    """(name, number of rows) of a table with the columns text, other and label."""
    labels = rng.choice(LABELS)
    form = rng.choice(('csv', 'tsv', 'jsonl', 'json', 'CSV', 'csv.gz'))
    kind = form.lower().removesuffix('.gz')
    texts = [re.sub(r'[\t\n]', ' ', text) if kind == 'tsv' else text for text in TEXTS]
    rows = [{'text': rng.choice(texts) if rng.random() < 0.3 else ' '.join(rng.choices(WORDS, k=5)),
             'other': ' '.join(rng.choices(WORDS, k=3)), 'label': rng.choice(labels)}
            for _ in range(rng.randint(1, 30))]
    if kind in ('csv', 'tsv'):
        out = io.StringIO()
        writer = csv.DictWriter(out, ['text', 'other', 'label'], lineterminator='\n', **(
            {} if kind == 'csv' else {'delimiter': '\t', 'quoting': csv.QUOTE_NONE,
                                      'quotechar': None}))
        writer.writeheader()
        writer.writerows(rows)
        content = out.getvalue()
    else:
        content = json.dumps(rows) if kind == 'json' else ''.join(
            json.dumps(row) + '\n' for row in rows)
    data = content.encode()
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        data = rng.choice(MISTAKES)(rng, data)
    if form.endswith('gz'):
        data = gzip.compress(data)
    path = folder / f'own.{form}'
    path.write_bytes(data)
    return str(path), len(rows)


def _line(act: Callable[[random.Random, bytes], bytes]) -> Callable[[random.Random, bytes], bytes]:
    def mistake(rng: random.Random, data: bytes) -> bytes:
        lines = data.split(b'\n')
        i = rng.randrange(len(lines))
        lines[i] = act(rng, lines[i])
        return b'\n'.join(lines)

    return mistake


MISTAKES: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    _line(lambda rng, line: line + b','), _line(lambda rng, line: line.replace(b',', b';')),
    _line(lambda rng, line: b'"' + line), _line(lambda rng, line: line.replace(b'"', b'', 1)),
    _line(lambda rng, line: line[: len(line) // 2]), _line(lambda rng, line: b''),
    _line(lambda rng, line: line + b'\xff'), _line(lambda rng, line: line.upper()),
    _line(lambda rng, line: line + b'\r'), _line(lambda rng, line: line.replace(b'a', b'\0', 1)),
    lambda rng, data: data.partition(b"\n")[2],
    lambda rng, data: data[: rng.randrange(len(data) + 1)],
    lambda rng, data: data.replace(b'text', b'Text', 1), lambda rng, data: data + data,
    lambda rng, data: data.replace(b'text', b'label', 1),
    lambda rng, data: data.replace(b'\n', b'\r\n'), lambda rng, data: data.replace(b'\n', b'\r'),
    lambda rng, data: codecs.BOM_UTF8 + data, lambda rng, data: data.decode('latin-1').encode(
        'utf-16'), lambda rng, data: data.replace(b',', b';'), lambda rng, data: b'',
    lambda rng, data: data.replace(b'\n', b'\n\n'), lambda rng, data: b' ' + data,
)
FLAGS = (
    '--config.data.text=Text', '--config.data.text=', '--config.data.text=label',
    '--config.data.label=text', '--config.data.label=', '--config.data.label=missing',
    '--config.data.text_pair=other', '--config.data.text_pair=othr', '--config.data.id=text',
    '--config.data.id=other', '--config.data.held_out=0', '--config.data.held_out=0.9',
    '--config.data.held_out=1', '--config.data.max_malformed=0', '--config.data.max_seq_length=8',
    '--config.data.max_seq_length=0', '--config.data.eval_source=gs:/b/x',
    '--config.data.eval_source=missing.csv', '--config.data.choices=other', '--config.dta.text=x',
    '--config.classification.metrics=f1', '--config.classification.metrics=acuracy',
    '--config.classification.metrics=pearson', '--config.classification.multi_label=True',
    '--config.classification.separator=', '--config.classification.windows=mean',
    '--config.train.batch_size=7', '--config.train.steps=1 epoch', '--config.train.steps=none',
    '--config.seed=-1', '--config.data.lowercase=False', '--config.data.packing=False',
)


def attempt(act: Callable[[], list[str]]) -> tuple[str, list[str] | str]:
    """('read', texts), ('refused', the line) or ('HARM', what came)."""
    try:
        return 'read', act()
    except SystemExit as error:
        return 'refused', str(error)
    except Exception as error:
        line, status = process.answer(error)
        refused = status == 2 and '\n' not in line
        return ('refused' if refused else 'HARM'), f'{type(error).__name__}: {line}'


def case(seed: int, number: int, folder: Path) -> tuple[str, str, str]:
    """(the task, what came of it: read, refused or HARM..., what was printed)."""
    rng = random.Random(f'{seed} {number}')
    (folder / 'vocab.txt').write_text(
        '\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', '.', *WORDS]))
    path, num_rows = write_table(rng, folder)
    task = rng.choice(('classification', 'classification', 'regression'))
    more = [flag for flag in rng.sample(FLAGS, rng.choice((0, 0, 1, 1, 2)))
            if task == 'classification' or '.classification.' not in flag]
    argv = ['main', f'--config={ROOT}/configs/{task}.py', f'--config.data.source={path}',
            f'--config.data.vocab_file={folder}/vocab.txt', '--config.model.name=tiny', *more]
    counts: dict[str, int] = {}

    def opened(scored: ScoredModel | None) -> list[str]:
        config, _ = parse_command(argv, '')
        check_used(config)
        validate(config)
        from bert_jax.config import complete

        data = open_task(complete(config), scored)
        sizes = [len(s.units) for s in data.evaluated]
        counts['read'] = sizes[0] + (len(data.train) if data.train else 0)
        return [f'{data.evaluated[0].units.digest()}']

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        trained, line = attempt(lambda: opened(None))
        read_in_training = counts.get('read', 0)
        scored, scored_line = attempt(lambda: opened(ScoredModel()))
        column = next((flag.partition('text=')[2] for flag in more if 'data.text=' in flag), 'text')
        predicted, found = attempt(lambda: _predicted(path, column))
    everything = f'{argv}\ntrained: {trained} {line}\nscored: {scored} {scored_line}\n' \
                 f'predicted: {predicted} {str(found)[:300]}\n{said.getvalue()}'
    if 'HARM' in (trained, scored, predicted) or 'Traceback' in everything:
        return task, 'HARM: a fault of the program', everything
    if trained == scored == 'read' and line != scored_line:
        return task, 'HARM: training and evaluation hold out other rows', everything
    if trained == 'read' and predicted == 'refused' and column != 'label':
        return task, 'HARM: trained on and not predicted', everything
    windows = any('windows' in flag for flag in more)
    if trained == 'read' and not windows and isinstance(found, list):
        left_out = re.findall(r'(\d+) of \d+ rows left out', said.getvalue())
        reported = int(left_out[0]) if left_out else said.getvalue().count('; left out') // 2
        if read_in_training + reported < len(found) - 1:
            return task, f'HARM: {len(found)} rows, {read_in_training} read', everything
    return task, trained, everything


def _predicted(path: str, column: str) -> list[str]:
    return [str(text) for text in Texts([], path, [column] if column else []).read()]


def run(numbers: Iterable[int], seed: int) -> Iterator[tuple[int, str, str, str]]:
    """(number, the task, what came of it, what was printed) of each case."""
    for number in numbers:
        with tempfile.TemporaryDirectory() as folder:
            yield number, *case(seed, number, Path(folder))
