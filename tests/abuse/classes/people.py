"""Text from files that is written for people: labels, names, cards, tables, pages."""

import csv
import json
import random
import re
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path

import yaml

from bert_jax.runtime.files import as_path
from bert_jax.tasks.texts import _table, predictions_table
from bert_jax.tools.report.board import board
from bert_jax.tools.report.examples import Examples
from bert_jax.tools.report.groups import grouped
from bert_jax.tools.report.page import page
from bert_jax.tools.report.runs import RunRecords
from bert_jax.tools.sweep.report import markdown_table
from tests.abuse.classes.case import NASTY, Case, copy, is_clean, write
from tests.abuse.commands import Answer

_FORMULA = re.compile(r'\s*[=+@-]')
_SCRIPTS_OF_PAGE = 2  # its data and its program
_TAGS_OF_PAGE = ['script', 'img', 'iframe', 'object', 'embed', 'form']


class _Markup(HTMLParser):
    """Tags and attributes of a page that run something."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == 'script'
        if tag in _TAGS_OF_PAGE[1:]:
            self.found.append(tag)
        for name, value in attributes:
            if name.startswith('on') or (value or '').startswith('javascript:'):
                self.found.append(f'{name}={value}')


def _fault_of_page(text: str) -> str:
    """What a page holds that its program did not write, or ''."""
    markup = _Markup()
    markup.feed(text)
    if markup.found or markup.scripts > _SCRIPTS_OF_PAGE:
        return f'markup in the page: {markup.found} {markup.scripts}'
    return '' if is_clean(text) else 'control characters in the page'


def _fault_of_card(text: str) -> str:
    """What a model card holds that its program did not write, or ''."""
    parts = text.split('\n---\n')
    if not text.startswith('---\n') or len(parts) != 2:
        return f'{len(parts)} fences in the card'
    matter = yaml.safe_load(parts[0].removeprefix('---\n'))
    if set(matter) != {'library_name', 'tags'}:
        return f'front matter {matter}'
    if re.search(r'<(?!/?(a|br)\b)|\]\(javascript', parts[1]):
        return 'markup in the card'
    return '' if is_clean(text) else 'control characters in the card'


def _fault_of_table(text: str, cells: Sequence[str], delimiter: str) -> str:
    """How a table differs from its cells, or ''."""
    rows = list(csv.reader(text.splitlines(keepends=True), delimiter=delimiter))
    if len(rows) != len(cells) + 1:
        return f'{len(rows)} rows for {len(cells)} cells'
    for row in rows[1:]:
        for cell in row:
            if delimiter == ',' and _FORMULA.match(cell) and not re.fullmatch(r'-?[\d.e-]+', cell):
                return f'a formula: {cell!r:.60}'
    is_for_people = delimiter == ','
    return '' if not is_for_people or is_clean(text) else 'control characters in the table'


def _of_labels(rng: random.Random, folder: Path, things: Path) -> Case:
    """A classifier with odd labels is published."""
    copy(things, folder, 'hf_classification')
    path = folder / 'hf_classification' / 'config.json'
    config = json.loads(path.read_text())
    labels = rng.sample(NASTY, len(config['id2label']))
    config['id2label'] = {str(i): label for i, label in enumerate(labels)}
    config['label2id'] = {label: i for i, label in enumerate(labels)}
    write(path, config)

    def check(answer: Answer) -> str:
        if answer.status:
            return ''
        card = _fault_of_card((folder / 'new' / 'README.md').read_text())
        written = json.loads((folder / 'new' / 'config.json').read_text())
        if list(written['id2label'].values()) != labels:
            return f'labels changed: {written["id2label"]!r:.200}'
        return card

    act = rng.choice(('convert {folder}/hf_classification {folder}/new --to huggingface',
                      'predict classify --model {folder}/hf_classification "a b"'))
    return Case(done=f'labels {labels!r:.300}', act=act,
                check=check if act.startswith('convert') else lambda answer: '')


def _is_name(text: str) -> bool:
    """Whether a folder can be called so."""
    return 0 < len(text) < 200 and not re.search('[\0\ud800/]', text)


def _of_name(rng: random.Random, folder: Path, things: Path) -> Case:
    """A model in a folder with an odd name, or with odd names inside, is published."""
    name = rng.choice([text for text in NASTY if _is_name(text)])
    source = folder / f'm{name}'
    copy(things, folder, 'hf_pretraining')
    (folder / 'hf_pretraining').rename(source)

    def check(answer: Answer) -> str:
        if answer.status:
            return ''
        return _fault_of_card((folder / 'new' / 'README.md').read_text())

    return Case(done=f'name {name!r}', check=check,
                act=('convert', str(source), str(folder / 'new'), '--to', 'huggingface'))


def _of_card(rng: random.Random, folder: Path, things: Path) -> Case:
    """A card of one's own is added."""
    copy(things, folder, 'hf_pretraining')
    lines = rng.sample(NASTY, 4)
    fence = rng.choice(('---\n', '---\n', '--- \n', '', '\ufeff---\n', '---\r\n', '...\n'))
    content = (f'{fence}{rng.choice(("license: mit", *lines))}\n{lines[0]}: {lines[1]}\n'
               f'{rng.choice((fence, fence, ""))}{lines[2]}\n\n{lines[3]}\n')
    data = content.encode('utf-8', 'surrogatepass')
    if rng.random() < 0.15:
        data = rng.choice((content.encode('utf-16', 'surrogatepass'), bytes(3000), b'\xff' + data,
                           b''))
    write(folder / 'card.md', data)

    def check(answer: Answer) -> str:
        if answer.status:
            return ''
        text = (folder / 'new' / 'README.md').read_text()
        front = text.removeprefix('---\n').partition('\n---')[0]
        try:
            matter = yaml.safe_load(front)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            return f'front matter that is none: {error!r:.200}'
        if not isinstance(matter, dict) or matter.get('library_name') != 'transformers':
            return f'front matter {matter!r:.200}'
        return ''

    return Case(done=f'card {data!r:.300}', check=check,
                act='convert {folder}/hf_pretraining {folder}/new --to huggingface '
                    '--card={folder}/card.md')


def _of_page(rng: random.Random, folder: Path, things: Path) -> Case:
    """A run with odd names and settings is reported."""
    copy(things, folder, 'run')
    path = folder / 'run' / 'config.json'
    config = json.loads(path.read_text())
    config.pop('digest', None)
    texts = rng.sample(NASTY, 6)
    config['data'] |= {'source': texts[0], 'text': texts[1]}
    config['task'] = rng.choice((config['task'], texts[2]))
    config['labels'] = texts[3:]
    config['made'] = {texts[4]: texts[5]}
    write(path, config)
    with (folder / 'run' / 'metrics.jsonl').open('a') as file:
        file.write(json.dumps({'step': 4, f'eval/{texts[2]}': 0.5, texts[3]: 1.0}) + '\n')

    def write_page() -> None:
        runs = [RunRecords(as_path(folder / 'run'), texts[0]),
                RunRecords(as_path(folder / 'run'), 'b')]
        groups = grouped(runs)
        made = page(groups, [Examples()] * len(groups), texts[1])
        (folder / 'new').write_bytes(made.encode('utf-8', 'replace'))
        print(board(runs[:1]) and 'drawn')

    def check(answer: Answer) -> str:
        if answer.status:
            return ''
        return _fault_of_page((folder / 'new').read_text())

    return Case(done=f'page {texts!r:.400}', act=write_page, check=check)


def _of_table(rng: random.Random, folder: Path, things: Path) -> Case:
    """Predictions and examples with odd texts are written."""
    cells = [rng.choice(NASTY).encode('utf-8', 'replace').decode() for _ in range(5)]
    delimiter = rng.choice((',', '\t'))

    def write_table() -> None:
        if delimiter == '\t':
            text = predictions_table('index', [str(i) for i in range(5)], cells)
        else:
            text = _table(('text', 'label'), [(cell, cell) for cell in cells])
        (folder / 'new').write_bytes(text.encode())

    def check(answer: Answer) -> str:
        if answer.status:
            return 'a text was refused'
        return _fault_of_table((folder / 'new').read_bytes().decode(), cells, delimiter)

    return Case(done=f'cells {cells!r:.400}', act=write_table, check=check)


def _of_sweep(rng: random.Random, folder: Path, things: Path) -> Case:
    """A Markdown table of odd settings."""
    cells = rng.sample([text for text in NASTY if text != '\ud800'], 3)

    def check(answer: Answer) -> str:
        lines = answer.out.rstrip('\n').split('\n')
        if len(lines) != 4 or len({len(re.findall(r'(?<!\\)\|', line)) for line in lines}) > 1:
            return f'a broken table: {answer.out!r:.300}'
        return ''

    return Case(done=f'{cells!r:.300}', check=check, act=lambda: print('\n'.join(markdown_table(
        ('a', 'b'), [(cells[0], cells[1]), (cells[2], 'x')]))))


def _of_prediction(rng: random.Random, folder: Path, things: Path) -> Case:
    """Odd texts are predicted for: a line of JSON for each."""
    command = rng.choice(('fill-mask', 'features', 'next-sentence', 'score'))
    texts = [text for text in rng.sample(NASTY, 4) if '\n' not in text and '\r' not in text]
    stdin = ''.join(f'{text} [MASK]\t{text}\n' for text in texts).encode('utf-8', 'surrogatepass')

    def check(answer: Answer) -> str:
        if answer.status not in (0, 3):
            return '' if answer.status == 2 else 'not predicted'
        lines = answer.out.splitlines()
        for line in lines:
            json.loads(line)
        return ''

    return Case(done=f'{command} {stdin!r:.300}', stdin=stdin, check=check,
                act=('predict', command, '--model', f'{things}/hf_pretraining'))


_KINDS: tuple[Callable[[random.Random, Path, Path], Case], ...] = (
    _of_labels, _of_name, _of_card, _of_page, _of_page, _of_table, _of_sweep, _of_prediction)


def draw(rng: random.Random, folder: Path, things: Path) -> Case:
    """Odd text where something is written for people."""
    return rng.choice(_KINDS)(rng, folder, things)
