"""Data sets of each task with the mistakes that files have, as commands read them."""

import csv
import io
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bert_jax.completion import complete
from bert_jax.config.command_line import parse_command
from bert_jax.predict.inputs import Parts, SingleText, open_source
from bert_jax.tasks.handles import ScoredModel
from bert_jax.validation import check_used, validate
from tests.abuse.classes.case import NASTY, Case, write
from tests.abuse.classes.foreign import spoil
from tests.abuse.classes.tables import WORDS, make_mistake
from tests.conftest import ROOT
from tests.opening import open_task

_VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, float('nan'), 10**30, '', ' ', 'x', 'a\x00b', '\ud800', [], {}, ['a'],
    [['a']], [None],
    {'a': 1}, 'x' * 3000, '\ufeff', '\u200b', *NASTY[:12])


def _sentence(rng: random.Random) -> str:
    return ' '.join(rng.choices(WORDS, k=rng.randint(1, 9)))


def _lines(rows: Sequence[Any]) -> bytes:
    return ''.join(json.dumps(row) + '\n' for row in rows).encode()


def _csv(rows: Sequence[dict[str, Any]], delimiter: str = ',') -> bytes:
    file = io.StringIO()
    writer = csv.DictWriter(file, rows[0], lineterminator='\n', delimiter=delimiter,
                            extrasaction='ignore')
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue().encode('utf-8', 'replace')


def _spoil_rows(rng: random.Random, rows: list[Any]) -> list[Any]:
    """The rows, some values of which are others."""
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        number = rng.randrange(len(rows))
        rows[number], _ = spoil(rng, rows[number])
    if rng.random() < 0.1:
        key = rng.choice(sorted(rows[0])) if isinstance(rows[0], dict) and rows[0] else ''
        value = rng.choice(_VALUES)
        rows = [row | {key: value} if isinstance(row, dict) else row for row in rows]
    return rows


def _table(rng: random.Random, rows: list[Any]) -> tuple[bytes, str]:
    """(A file of rows, its ending), with mistakes in values, lines or bytes."""
    rows = _spoil_rows(rng, rows)
    ending = rng.choice(('.jsonl', '.jsonl', '.json', '.csv', '.tsv'))
    if ending == '.jsonl':
        data = _lines(rows)
    elif ending == '.json':
        data = json.dumps(rng.choice((rows, rows, {'data': rows}, {'rows': rows, 'x': 1},
                                      [rows]))).encode()
    else:
        flat = [row for row in rows if isinstance(row, dict)] or [{'a': 1}]
        data = _csv(flat, ',' if ending == '.csv' else '\t')
    for _ in range(rng.choice((0, 0, 1))):
        data = make_mistake(rng, data)
    return data, ending


def _tagging(rng: random.Random) -> tuple[bytes, str, list[str]]:
    tags = rng.choice((('O', 'B-PER', 'I-PER'), ('O', 'I-LOC', 'I-PER'), ('NOUN', 'VERB'),
                       (0, 1, 2), ('O',)))
    sentences = []
    for _ in range(30):
        words = rng.choices(WORDS, k=rng.randint(1, 7))
        sentences.append([(word, rng.choice(tags)) for word in words])
    if rng.random() < 0.5:
        rows: list[Any] = []
        for sentence in sentences:
            words, tags_of_words = zip(*sentence, strict=True)
            rows.append({'tokens': list(words), 'tags': list(tags_of_words)})
        data, ending = _table(rng, rows)
        return data, ending, []
    separator = rng.choice((' ', '\t', '  ', ' X X '))
    lines = []
    for sentence in sentences:
        lines += [f'{word}{separator}{tag}' for word, tag in sentence] + ['']
    for _ in range(rng.choice((1, 1, 2, 5))):
        number = rng.randrange(len(lines))
        lines[number] = rng.choice((
            'word', ' ', '\tO', 'O\t', 'a b c d e', '-DOCSTART- -X- O O', '# comment', 'a\x00 O',
            '\ufeffa O', 'a ' + 'x' * 3000,
            'x' * 3000 + ' O', 'a B-', 'a -PER', 'a B-\x1b[31m', 'a  ', '\u200b O', 'a nan',
            *NASTY[:6]))
    text = rng.choice(('\n', '\n', '\r\n')).join(lines)
    data = text.encode(rng.choice(('utf-8', 'utf-8', 'utf-8-sig', 'utf-16')), 'replace')
    if rng.random() < 0.2:
        data = make_mistake(rng, data)
    if rng.random() < 0.25:
        return _conllu(rng, sentences), '.conllu', []
    return data, rng.choice(('.txt', '.conll', '.tsv', '.bio')), []


def _conllu(rng: random.Random, sentences: Sequence[Sequence[tuple[str, Any]]]) -> bytes:
    lines = []
    for sentence in sentences:
        lines.append('# text = x')
        for i, (word, tag) in enumerate(sentence, 1):
            lines.append(f'{i}\t{word}\t_\t{tag}' + '\t_' * 6)
        lines.append('')
    for _ in range(rng.choice((1, 2, 4))):
        number = rng.randrange(len(lines))
        lines[number] = rng.choice((
            '1-2\tzum\t_\t_\t_\t_\t_\t_\t_\t_', '1.1\tx\t_\t_', 'x',
            '0\ta\t_\tNOUN\t_\t_\t_\t_\t_\t_', '3-1\ta' + '\t_' * 8,
            '1-99999999999\ta' + '\t_' * 8, '-1\ta' + '\t_' * 8, '1\t\t_\tNOUN' + '\t_' * 6,
            '1\ta\t_\t_' + '\t_' * 6))
    return '\n'.join(lines).encode()


def _squad(rng: random.Random) -> tuple[bytes, str, list[str]]:
    paragraphs: list[Any] = []
    for number in range(8):
        context = ' '.join(_sentence(rng) for _ in range(3))
        words = context.split()
        answer = rng.choice(words)
        paragraphs.append({'context': context, 'qas': [{
            'id': str(number), 'question': _sentence(rng), 'is_impossible': False,
            'answers': [{'text': answer, 'answer_start': context.index(answer)}]}]})
    for _ in range(rng.choice((0, 1, 2, 4))):
        paragraph = rng.choice(paragraphs)
        question: Any = paragraph['qas'][0] if paragraph['qas'] else {}
        answer: Any = (question.get('answers') or [{}])[0] if isinstance(question, dict) else {}
        part, field, values = rng.choice((
            (answer, 'answer_start', (-1, 0, 5, 10**6, 2**63, 1.5, '3', None, [], float('nan'))),
            (answer, 'text', _VALUES),
            (question, 'answers', ([], None, [None], [{'text': ['a'], 'answer_start': [0]}])),
            (question, 'id', ('0', '', None, 3, '../x', '\x1b[31m', ['a'])),
            (question, 'question', _VALUES),
            (question, 'is_impossible', (True, None, 'x', 3)),
            (paragraph, 'context', _VALUES),
            (paragraph, 'qas', ([], None, [None])),
        ))
        if isinstance(part, dict):
            part[field] = rng.choice(values)
    version = rng.choice(('v1', 'v2'))
    if rng.random() < 0.4:
        rows: list[Any] = []
        for paragraph in paragraphs:
            questions: Any = paragraph['qas']
            question = questions[0] if questions and questions[0] else {}
            rows.append({
                'question': question.get('question'), 'context': paragraph['context'],
                'id': question.get('id'), 'answers': question.get('answers')})
        data, ending = _table(rng, rows)
        return data, ending, [version]
    root: Any = {'version': '1.1', 'data': [{'title': 'x', 'paragraphs': paragraphs}]}
    if rng.random() < 0.3:
        root, _ = spoil(rng, root)
    data = json.dumps(root).encode()
    if rng.random() < 0.2:
        data = make_mistake(rng, data)
    return data, '.json', [version]


def _choices(rng: random.Random) -> tuple[bytes, str, list[str]]:
    rows: list[Any] = []
    as_list = rng.random() < 0.4
    for _ in range(20):
        ends = [_sentence(rng) for _ in range(3)]
        row = {'text': _sentence(rng), 'label': rng.choice((0, 1, 2))}
        rows.append(row | ({'choices': ends} if as_list else dict(zip('abc', ends, strict=True))))
    data, ending = _table(rng, rows)
    named = 'choices' if as_list else rng.choice(('a,b,c', 'a,b,c', 'a,b,d', 'a', 'a,a', '', 'a;b'))
    return data, ending, [f'--config.data.choices={named}']


def _texts(rng: random.Random) -> tuple[bytes, str, list[str]]:
    pair = rng.random() < 0.5
    rows: list[Any] = []
    multi = rng.random() < 0.4
    for _ in range(25):
        label: Any = rng.choice(('yes', 'no', 'maybe'))
        if multi:
            label = rng.choice((['a'], ['a', 'b'], [], 'a,b', 'a|b', [0, 1, 1], '', '[1, 0, 0]'))
        row = {'text': _sentence(rng), 'label': label}
        rows.append(row | ({'other': _sentence(rng)} if pair else {}))
    data, ending = _table(rng, rows)
    flags = ['--config.data.text_pair=other'] if pair else []
    if multi:
        flags.append('--config.classification.multi_label=True')
        flags += rng.choice(([], ['--config.data.label_names=a,b,c'], ['--config.data.label=a,b'],
                             ['--config.classification.separator=,']))
    flags += rng.choice(([], [], ['--config.data.id=id'], ['--config.data.label_names=yes,no'],
                         ['--config.data.label_names=x' + 'x' * 300]))
    return data, ending, flags


def _numbers(rng: random.Random) -> tuple[bytes, str, list[str]]:
    rows: list[Any] = [{'text': _sentence(rng),
                        'label': rng.choice((1, 2.5, -3, '4', '1,5', 'nan', 'inf', '1e400', '',
                                             None))
                        if rng.random() < 0.3 else rng.random()} for _ in range(25)]
    data, ending = _table(rng, rows)
    return data, ending, []


def _glue(rng: random.Random) -> tuple[bytes, str, list[str]]:
    rows = ['\t'.join(['x', rng.choice('01'), '', _sentence(rng)]) for _ in range(30)]
    data = '\n'.join(rows).encode()
    for _ in range(rng.choice((1, 2, 4))):
        data = make_mistake(rng, data)
    return data, '.tsv', []


_TASKS: dict[str, Callable[[random.Random], tuple[bytes, str, list[str]]]] = {
    'tagging': _tagging, 'squad': _squad, 'multiple_choice': _choices, 'classification': _texts,
    'regression': _numbers, 'sentence_vectors': _texts, 'glue': _glue}


def _open(line: Sequence[str], scored: bool) -> None:
    config, _ = parse_command(['main', *line], '')
    check_used(config)
    validate(config)
    task: Any = open_task(complete(config), ScoredModel() if scored else None)
    print(task.vocab_size)


def _predict(source: Path, columns: list[str]) -> None:
    form = Parts() if len(columns) > 1 else SingleText()
    print(len(list(open_source([], str(source), columns).texts(form))))


def draw(rng: random.Random, folder: Path, things: Path) -> Case:
    """A data set with mistakes, and training, evaluation or prediction that reads it."""
    name = rng.choice(sorted(_TASKS))
    data, ending, flags = _TASKS[name](rng)
    version = flags.pop(0) if name == 'squad' else ''
    source = folder / f'own{ending}'
    if name == 'glue':
        source = folder / 'glue'
        write(source / 'CoLA' / 'train.tsv', data)
        write(source / 'CoLA' / 'dev.tsv', (things / 'glue/CoLA/dev.tsv').read_bytes())
        version = 'cola'
    else:
        write(source, data)
    config = f'{ROOT}/configs/{name}.py' + (f':{version}' if version else '')
    line = [f'--config={config}', f'--config.data.source={source}', '--config.model.name=tiny',
            '--config.init_checkpoint=', f'--config.data.vocab_file={things}/run/vocab.txt', *flags]
    if rng.random() < 0.3 and name != 'glue':
        line.append(f'--config.data.eval_source={source}')
    done = f'{name} {ending} {flags} {data[:200]!r}'
    if rng.random() < 0.2 and name not in ('glue', 'squad'):
        columns = rng.choice((['text'], ['text', 'other'], ['x'], ['label'], ['tokens']))
        return Case(done=done, act=lambda: _predict(source, columns))
    scored = rng.random() < 0.2
    return Case(done=done, act=lambda: _open(line, scored))
