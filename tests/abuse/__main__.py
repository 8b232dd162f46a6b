"""Random damage: a command gives the undamaged result, or says in one line why it does not.

    python -m tests.abuse fuzz|careless --cases=2000 --seed=0

fuzz damages a file of a run, a token store or published weights and opens it through a command. The
command must give the result of the undamaged copy, bit for bit (the damage did not matter, or an
older checkpoint was read, which a line reports), or an error in one line. careless makes mistakes
in a table and in flags and opens the table for training, evaluation and prediction: each reads it
or refuses it in one line, training and evaluation hold out the same rows, prediction reads what
training reads, and every row is read or reported. Anything else is harm: a traceback, another
result, NaN, a hang, another file changed.

Config and vocabulary of published weights have no checksum in any format. Damage there that leaves
another valid model is counted separately, as no reader could notice it.

A case is a function of the seed and its number; `--only=N` runs one again and shows its output.
"""

import argparse
import collections
import contextlib
import csv
import functools
import hashlib
import io
import json
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np

from bert_jax.config.command_line import parse_command
from bert_jax.predict.__main__ import Texts
from bert_jax.runtime import process
from bert_jax.tasks.labelled import ScoredModel
from bert_jax.tasks.opening import open_task
from bert_jax.train.report import Report
from bert_jax.validation import check_used, complete, validate
from tests.abuse.commands import Answer, contents, make, open_command
from tests.conftest import ROOT
from tests.tiny_runs import saved

Outcome = tuple[int, str, str, str]  # number, group, what came of it, what was printed
_HANGS = 60  # seconds after which a command counts as hung


class Target(NamedTuple):
    """What is damaged and how it is opened; `made` is the folder that the command writes."""

    folder: str
    line: str
    made: str = 'new'


TARGETS = {
    'run, resumed': Target(
        'run', 'main @text --config.train.steps=6 --workdir={folder}/run', 'run'),
    'run, converted': Target('run', 'convert {folder}/run {folder}/new --to huggingface'),
    'fine-tuned run, resumed': Target(
        'cola', 'main @glue --config.train.steps=4 --workdir={folder}/cola', 'cola'),
    'fine-tuned run, evaluated': Target('cola', 'evaluate {folder}/cola'),
    'store': Target('cache', 'main @text --config.train.steps=1'),
    'Hugging Face folder': Target('hf', 'convert {folder}/hf {folder}/new --to bert_jax'),
    'TF1 checkpoint': Target('tf1', 'convert {folder}/tf1 {folder}/new --to huggingface'),
    'converted run': Target('own', 'convert {folder}/own {folder}/new --to huggingface'),
}


def convert_run(folder: Path) -> None:
    """Converts `run` to all formats, in the folders hf, tf1 and own."""
    for target, form in (('hf', 'huggingface'), ('tf1', 'tf1'), ('own', 'bert_jax')):
        answer = open_command(f'convert {{folder}}/run {{folder}}/{target} --to {form}', folder)
        assert answer.status == 0, answer.err


def _result(answer: Answer, made: Path) -> Any:
    """What was printed and written; checkpoints by their arrays, as file names are random."""
    said = [line for line in answer.out.splitlines() if line.startswith(('{', 'result '))]
    if not (made / 'checkpoints').exists():
        return said, contents(made)
    digest = hashlib.md5()
    for place, x in jax.tree_util.tree_leaves_with_path(saved(made)):
        digest.update(jax.tree_util.keystr(place).encode() + np.asarray(x).tobytes())
    return said, digest.hexdigest()


def _overwrite(rng: random.Random, data: bytes) -> bytes:
    """Overwrites a part with zeros, as a failing disk does, or with random bytes."""
    start = rng.randrange(len(data))
    size = rng.choice((len(data), rng.randint(1, 4096)))
    size = min(size, len(data) - start)
    return data[:start] + rng.choice((bytes(size), rng.randbytes(size))) + data[start + size:]


def _flip(rng: random.Random, data: bytes) -> bytes:
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1:]


_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 7, 0.3, 1e-3, 10**9, 10**30, 1e300, '', 'x', '3', [], {}, [1],
    {'a': 1}, float('nan'), '../..')


def _replace(rng: random.Random, data: bytes) -> bytes:
    """Replaces a value in JSON by another one; other files stay as they are."""
    places = list(re.finditer(rb'": ?("[^"]*"|[^][{}," \n]+)', data))
    if not places:
        return data
    place = rng.choice(places)
    value = json.dumps(rng.choice(_VALUES)).encode()
    return data[:place.start(1)] + value + data[place.end(1):]


def _damage(rng: random.Random, folder: Path) -> tuple[str, str]:
    """Damages one file; returns (its path in the folder, how)."""
    paths = sorted(p for p in folder.rglob('*') if p.is_file() and p.stat().st_size
                   and not p.name.startswith('events.out.') and p.suffix not in ('.png', '.lock'))
    # Draws a kind of file first, or most would be the many small files of checkpoints.
    by_kind = collections.defaultdict(list)
    for path in paths:
        by_kind[re.sub(r'[0-9a-f]{16,}|\d+', '#', str(path.relative_to(folder)))].append(path)
    path = rng.choice(by_kind[rng.choice(sorted(by_kind))])
    before = after = path.read_bytes()
    how = ''
    while after == before:
        how = rng.choice(('flip', 'cut', 'overwrite', 'overwrite', 'swap', 'replace', 'replace'))
        after = {
            'flip': _flip, 'overwrite': _overwrite, 'replace': _replace,
            'cut': lambda rng, data: data[:rng.randrange(len(data))],
            'swap': lambda rng, data: rng.choice(paths).read_bytes(),
        }[how](rng, before)
    path.unlink()  # so that no other link to the file changes
    path.write_bytes(after)
    return str(path.relative_to(folder)), how


def _judge(target: Target, name: str, answer: Answer, before: dict[str, str], expected: Any,
           folder: Path) -> str:
    if answer.harm:
        return f'HARM: {answer.harm}'
    after = contents(folder)
    damaged = '/'.join([target.folder, *name.split('/')[:2]])  # of a checkpoint, all of it
    for path, digest in before.items():
        kept = '/checkpoints/' in path and path in after and not path.startswith(damaged)
        written = path.startswith(f'{target.made}/') and not kept
        if after.get(path) != digest and not written:
            return f'HARM: changed {path}'
    if answer.status:
        return 'refused'
    if _result(answer, folder / target.made) != expected:
        unchecked = target.folder in ('hf', 'tf1') and name.endswith(('.json', '.txt'))
        return 'another model' if unchecked else 'HARM: another result'
    return 'older checkpoint' if 'moved to' in answer.out + answer.err else 'same result'


def fuzz(numbers: Iterable[int], seed: int, things: Path, folder: Path,
         names: Sequence[str] = tuple(TARGETS)) -> Iterator[Outcome]:
    """For each number, damages a new copy of `things`, made in `folder`."""
    def copy() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(things, folder, symlinks=True)

    @functools.cache
    def expected(target: Target) -> Any:
        copy()
        answer = open_command(target.line, folder)
        assert answer.status == 0, answer.err
        return _result(answer, folder / target.made)

    with mock.patch.object(Report, 'draw'):
        for number in numbers:
            rng, group = random.Random(f'{seed} {number}'), names[number % len(names)]
            target = TARGETS[group]
            wanted = expected(target)
            copy()
            name, how = _damage(rng, folder / target.folder)
            before = contents(folder)
            answer = open_command(target.line, folder, seconds=_HANGS)
            outcome = _judge(target, name, answer, before, wanted, folder)
            yield number, group, outcome, f'{how} {name}\n{answer.out}\n{answer.err}'


def _fuzz_all(numbers: Iterable[int], seed: int, folder: Path) -> Iterator[Outcome]:
    (folder / 'case').mkdir()  # runs hold paths: they are made where the cases are
    make(folder / 'case')
    convert_run(folder / 'case')
    (folder / 'case').rename(folder / 'things')
    yield from fuzz(numbers, seed, folder / 'things', folder / 'case')


WORDS = ['the', 'leader', 'was', 'john', 'smith', 'born', 'in', 'antwerp', 'who', 'when']
_TEXTS = ('a text, with a comma', 'say "so"', "don't", '', ' ', 'x' * 400, 'naïve café', '你好',
          'two\nlines', 'a\ttab', 'NaN', '1.5', '\u200b', 'end\\', '#', '=1+1')
_LABELS = (('1', '0'), ('1', '1.0', '10'), ('yes', 'no'), ('nan', '2'), ('a b', 'c,d'))
# Each is made in one line or in the whole file.
_MISTAKES: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    _flip, _overwrite, lambda rng, data: data[: rng.randrange(len(data))],
    lambda rng, data: data + b',', lambda rng, data: data.replace(b',', b';'),
    lambda rng, data: b'"' + data, lambda rng, data: data.replace(b'"', b'', 1),
    lambda rng, data: b'', lambda rng, data: data.upper(), lambda rng, data: data + data,
    lambda rng, data: data.partition(b'\n')[2], lambda rng, data: data.replace(b'text', b'label'),
    lambda rng, data: data.replace(b'\n', rng.choice((b'\r\n', b'\r', b'\n\n'))),
    lambda rng, data: data.decode('latin-1').encode(rng.choice(('utf-16', 'utf-8-sig'))),
)
_FLAGS = (
    'data.text=Text', 'data.text=', 'data.text=label', 'data.label=text', 'data.label=missing',
    'data.text_pair=other', 'data.text_pair=othr', 'data.id=other', 'data.held_out=0.9',
    'data.held_out=1', 'data.max_malformed=0', 'data.max_seq_length=8', 'dta.text=x',
    'data.eval_source=missing.csv', 'classification.metrics=f1', 'train.steps=1 epoch',
    'classification.multi_label=True', 'classification.windows=mean', 'data.packing=False',
)


def _write_table(rng: random.Random, folder: Path, labels: tuple[str, ...]) -> Path:
    """A table with the columns text, other and label, and up to two mistakes."""
    form = rng.choice(('csv', 'jsonl'))
    texts = [*_TEXTS, *(' '.join(rng.choices(WORDS, k=5)) for _ in range(40))]
    rows = [{'text': rng.choice(texts), 'other': rng.choice(texts[len(_TEXTS):]),
             'label': rng.choice(labels)} for _ in range(rng.randint(5, 40))]
    file = io.StringIO()
    if form == 'csv':
        writer = csv.DictWriter(file, rows[0], lineterminator='\n', quoting=csv.QUOTE_ALL)
        writer.writeheader()
        writer.writerows(rows)
    else:
        file.writelines(json.dumps(row) + '\n' for row in rows)
    data = file.getvalue().encode()
    for _ in range(rng.choice((0, 0, 1, 1, 2))):
        mistake, lines = rng.choice(_MISTAKES), data.split(b'\n')
        number = rng.randrange(len(lines))
        if rng.random() < 0.9 and lines[number]:
            lines[number] = mistake(rng, lines[number])
            data = b'\n'.join(lines)
        elif data:
            data = mistake(rng, data)
    path = folder / f'own.{form}'
    path.write_bytes(data)
    return path


def _attempt(act: Callable[[], Any]) -> tuple[str, Any]:
    """('read', the result), ('refused', the line) or ('HARM', the message)."""
    try:
        return 'read', act()
    except Exception as error:
        line, status = process.describe_error(error)
        return ('refused' if status == 2 and '\n' not in line else 'HARM'), line


def _open_table(rng: random.Random, folder: Path) -> tuple[str, str, str]:
    (folder / 'vocab.txt').write_text(
        '\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', '.', *WORDS]))
    task = rng.choice(('classification', 'classification', 'regression'))
    path = _write_table(rng, folder, rng.choice(_LABELS[:2] if task == 'regression' else _LABELS))
    flags = [flag for flag in rng.sample(_FLAGS, rng.choice((0, 0, 1, 1, 2)))
             if not flag.startswith('classification.') or task == 'classification']
    column = next((flag.partition('=')[2] for flag in flags if 'data.text=' in flag), 'text')

    def opened(scored: ScoredModel | None) -> tuple[str, int]:
        config, _ = parse_command([
            'main', f'--config={ROOT}/configs/{task}.py', f'--config.data.source={path}',
            f'--config.data.vocab_file={folder}/vocab.txt', '--config.model.name=tiny',
            *(f'--config.{flag}' for flag in flags)], '')
        check_used(config)
        validate(config)
        data = open_task(complete(config), scored)
        units = data.evaluated[0].units
        return units.digest(), len(units) + (len(data.train) if data.train else 0)

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        trained, units = _attempt(lambda: opened(None))
        scored, again = _attempt(lambda: opened(ScoredModel()))
        usual = re.search("its column '(.*)' is read for config.data.text", said.getvalue())
        column = usual[1] if usual else column  # as somebody does who has read this line
        predicted, texts = _attempt(
            lambda: list(Texts([], str(path), [column] if column else []).read()))
    everything = f'{flags}\ntrained: {trained} {units}\nscored: {scored} {again}\n' \
                 f'predicted: {predicted} {str(texts)[:300]}\n{said.getvalue()}'
    harm = ''
    if 'HARM' in (trained, scored, predicted) or 'Traceback' in everything:
        harm = 'a fault of the program'
    elif trained == scored == 'read' and units[0] != again[0]:
        harm = 'training and evaluation hold out other rows'
    elif trained == 'read' and predicted == 'refused' and column != 'label':
        harm = 'trained on and not predicted'
    elif trained == predicted == 'read' and 'classification.windows=mean' not in flags:
        left_out = re.search(r'(\d+) of \d+ rows left out', said.getvalue())
        empty = re.search(r'(\d+) of \d+ rows have an empty text', said.getvalue())
        reported = int(left_out[1]) if left_out else len(
            re.findall(r'line \d+: .*; left out', said.getvalue())) // 2
        reported += int(empty[1]) if empty else 0
        if units[1] + reported < len(texts) - 1:
            harm = f'{len(texts)} rows, {units[1]} read'
    return task, f'HARM: {harm}' if harm else trained, everything


def careless(numbers: Iterable[int], seed: int, folder: Path) -> Iterator[Outcome]:
    """For each number, writes a table in `folder` and opens it."""
    for number in numbers:
        yield number, *_open_table(random.Random(f'{seed} {number}'), folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('what', choices=('fuzz', 'careless'))
    parser.add_argument('--cases', type=int, default=500)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--only', type=int, help='the number of one case')
    options = parser.parse_args()
    numbers = range(options.cases) if options.only is None else [options.only]
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    run = {'fuzz': _fuzz_all, 'careless': careless}[options.what]
    with tempfile.TemporaryDirectory() as folder:
        for number, group, outcome, printed in run(numbers, options.seed, Path(folder)):
            counts[group, outcome.partition(':')[0]] += 1
            print(f'{number} {group}: {outcome}', flush=True)
            if options.only is not None or outcome.startswith('HARM'):
                print(printed[-6000:], flush=True)
    for (group, outcome), count in sorted(counts.items()):
        print(f'{group}: {outcome}: {count}')
    return any(outcome == 'HARM' for _, outcome in counts)


if __name__ == '__main__':
    sys.exit(main())
