"""Multiple choice: SWAG (Zellers et al., 2018), CODAH (Chen et al., 2019) in its style, your own.

Of SWAG and its like, a file's ending tells its format:
- `.csv`: SWAG's own, with quoting; `sent1` is the context, `sent2` begins all four endings.
- `.jsonl`: `startphrase` (both in one), `choices` and `answer`.
- `.tsv`: CODAH's, no header: category, prompt, four endings, answer.
Where context and beginning come in one string, it is the context and the endings stand alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.data.pairs import Encode, Sequences, make_sequences
from bert_jax.labelled import tabular
from bert_jax.labelled.split import share_of
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path, children

NUM_CHOICES = 4
DEV_SHARE = 0.2

_ENDINGS = [f'ending{i}' for i in range(NUM_CHOICES)]
_CODAH = ['category', 'prompt', *_ENDINGS, 'label']
_FORMATS = ('csv', 'jsonl', 'tsv')
_STEMS = {'train': ['train'], 'dev': ['val', 'dev'], 'test': ['test']}


@dataclasses.dataclass(frozen=True)
class SwagExamples:
    """n questions, in the order of the file.

    Attributes:
      context: first segments.
      beginnings: what all endings of a question begin with; may be ''.
      endings: of each question as many: SWAG's are four.
      labels: [n] int32, the right endings; None: a test split.
      ids: the unnamed first column of SWAG's CSV, or the place in the file from 0.
      num_skipped: malformed rows that were left out.
      source: the file, for messages.
    """

    context: list[str]
    beginnings: list[str]
    endings: list[list[str]]
    labels: np.ndarray | None
    ids: list[str]
    num_skipped: int
    source: str

    def __len__(self) -> int:
        return len(self.context)

    @property
    def num_choices(self) -> int:
        """Endings of a question."""
        return len(self.endings[0])

    def take(self, rows: Sequence[int] | np.ndarray) -> SwagExamples:
        """Some of the questions."""
        return dataclasses.replace(
            self, context=[self.context[i] for i in rows],
            beginnings=[self.beginnings[i] for i in rows],
            endings=[self.endings[i] for i in rows],
            labels=None if self.labels is None else self.labels[rows],
            ids=[self.ids[i] for i in rows],
        )


def read_swag(source: str, split: str, *, max_malformed: float = 0.01) -> SwagExamples:
    """Questions of a split.

    Args:
      source: a folder with `train`, `val` or `dev`, and `test` files; or one file, or a folder with
        one, whose questions are divided by `part`.
      split: train | dev | test.
      max_malformed: see `read_swag_file`.

    Raises:
      InputError: an unknown split, no such folder or file, or what `read_swag_file` finds.
    """
    if split not in _STEMS:
        raise InputError(f"'{split}' is no split; they are {', '.join(_STEMS)}")
    path = _undivided(source)
    if not path:
        path = tabular.find_file(source, _STEMS[split], _FORMATS)
        return read_swag_file(path, labelled=split != 'test', max_malformed=max_malformed)
    if split == 'test':
        raise InputError(f"{path} is one file, which is divided into train and dev: no 'test'")
    examples = part(read_swag_file(path, max_malformed=max_malformed), split)
    if not len(examples):
        raise InputError(
            f'{path} is too small to be divided: no question is {split}; name a folder with '
            'train.csv and val.csv'
        )
    return examples


def read_swag_file(
    path: str, *, labelled: bool = True, max_malformed: float = 0.01
) -> SwagExamples:
    """All questions of one file.

    Args:
      path: `.csv`, `.jsonl` or `.tsv`, plain or `.gz`.
      labelled: whether to read labels.
      max_malformed: share of the rows that may be malformed; one always may, unless this is 0.

    Raises:
      InputError: a missing column, an unknown label, an id that occurs twice, too many malformed
        rows, a file that is empty or cannot be read.
    """
    rejects = tabular.Rejects(path, max_malformed)
    lines, ids, texts, labels = [], [], [], []
    for line, row_id, context, beginning, endings, label in _rows(path, labelled, rejects):
        if labelled and not label:
            rejects.add(line, 'its label is empty')
        elif not isinstance(endings, list) or len(endings) != NUM_CHOICES:
            rejects.add(line, f'there are not {NUM_CHOICES} endings')
        elif not all(isinstance(text, str) for text in (context, *endings)):
            rejects.add(line, 'a text is not a string')
        else:
            lines.append(line)
            ids.append(row_id)
            texts.append((context, beginning, endings))
            labels.append(label)
    num_skipped = rejects.check(len(lines))
    names = tabular.row_ids(ids, lines, rejects)
    tabular.check_unique(path, lines, names)
    known = [str(i) for i in range(NUM_CHOICES)]
    return SwagExamples(
        context=[context for context, _, _ in texts],
        beginnings=[beginning for _, beginning, _ in texts],
        endings=[endings for _, _, endings in texts],
        labels=tabular.label_ids(path, lines, labels, known) if labelled else None,
        ids=names,
        num_skipped=num_skipped,
        source=path,
    )


def part(examples: SwagExamples, split: str, dev_share: float = DEV_SHARE) -> SwagExamples:
    """The train or dev part of a set that has no splits of its own.

    A hash of the context decides, so that a question stays on its side when others come or go, and
    questions with one context are on one side. CODAH's authors too score on a fifth.

    Args:
      examples: all of them.
      split: train | dev.
      dev_share: about this share of the contexts is dev.
    """
    assert split in ('train', 'dev'), split
    keep = [i for i in range(len(examples)) if
            (share_of(examples.context[i]) < dev_share) == (split == 'dev')]
    return examples.take(keep)


def read_choices(
    path: str, *, text: str, choices: Sequence[str], label: str, id_column: str = '',
    max_malformed: float = 0.01,
) -> SwagExamples:
    """All questions of your own file.

    Args:
      path: `.csv` with quoting, `.jsonl`, or TSV without; plain or `.gz`.
      text: column of what comes before the choices.
      choices: their columns; or one, of JSON lines, that holds a list of them, as long in each row.
      label: column that says which is right: the name of its column, or its place from 0.
      id_column: of what a question is called; empty: its place in the file.
      max_malformed: as of `read_swag_file`.

    Raises:
      InputError: a missing column, an unknown label, too many malformed rows, a file that is empty
        or cannot be read.
    """
    rejects = tabular.Rejects(path, max_malformed)
    num = 0 if len(choices) == 1 else len(choices)  # as many as the first row has
    lines, ids, texts, labels = [], [], [], []
    rows = tabular.read_rows(
        path, [*filter(None, [id_column]), text, *choices, label], own=True)
    for line, cells in rejects.filter(rows):
        row_id = cells.pop(0) if id_column else None
        context, *endings, right = cells
        if len(choices) == 1:
            endings = endings[0] if isinstance(endings[0], list) else endings
            num = num or len(endings)
        if not all(isinstance(x, str) for x in (context, *endings)):
            rejects.add(line, 'a text is not a string')
        elif len(endings) != num or num < 2:
            rejects.add(line, f'choices: {len(endings)}, where {max(num, 2)} are wanted')
        elif not (right := tabular.label_text(right)):
            rejects.add(line, 'its label is empty')
        else:
            lines.append(line)
            ids.append(row_id)
            texts.append((context, endings))
            labels.append(right)
    num_skipped = rejects.check(len(lines))
    names = tabular.row_ids(ids, lines, rejects)
    tabular.check_unique(path, lines, names)
    places = [str(i) for i in range(num)]
    # Columns may be called 1, 2, 3: then a number is a name, whatever numbers this file has.
    by_name = set(choices) & set(places) or set(labels) <= set(choices)
    known = choices if by_name else places
    return SwagExamples(
        context=[context for context, _ in texts], beginnings=[''] * len(texts),
        endings=[endings for _, endings in texts],
        labels=tabular.label_ids(path, lines, labels, known),
        ids=names, num_skipped=num_skipped,
        source=path,
    )


def swag_sequences(
    examples: SwagExamples, encode: Encode, max_length: int, cls_id: int, sep_id: int
) -> Sequences:
    """[CLS] context [SEP] beginning + ending [SEP] of each ending, a question's one after another.

    As in section 4.4 of the BERT paper.
    """
    contexts = [context for context in examples.context
                for _ in range(examples.num_choices)]
    continuations = [
        f'{beginning} {ending}' if beginning else ending
        for beginning, endings in zip(examples.beginnings, examples.endings, strict=True)
        for ending in endings
    ]
    return make_sequences(
        encode(contexts), encode(continuations), max_length=max_length, cls_id=cls_id,
        sep_id=sep_id,
    )


def _rows(
    path: str, labelled: bool, rejects: tabular.Rejects
) -> Iterator[tuple[int, Any, Any, str, Any, str]]:
    """(line, id, context, beginning, endings, label) of each row, whatever the format."""
    if tabular.format_of(path) == 'json':
        fields = ['startphrase', 'choices', *['answer'][:labelled]]
        for line, (context, endings, *label) in rejects.filter(tabular.read_rows(path, fields)):
            yield line, None, context, '', endings, tabular.label_text(*label or [''])
        return
    label_column = ['label'][:labelled]
    if tabular.format_of(path) == 'csv':
        columns = ['', 'sent1', 'sent2', *_ENDINGS, *label_column]
        rows = tabular.read_rows(path, columns, optional=[''])
        for line, (row_id, context, beginning, *rest) in rejects.filter(rows):
            yield line, row_id, context, beginning, rest[:4], tabular.label_text(*rest[4:] or [''])
        return
    columns = ['prompt', *_ENDINGS, *label_column]
    rows = tabular.read_rows(path, columns, headerless=_CODAH)
    for line, (context, *rest) in rejects.filter(rows):
        yield line, None, context, '', rest[:4], tabular.label_text(*rest[4:] or [''])


def _undivided(source: str) -> str:
    """The file that is a set without splits: `source` or the only one in it; '' if none is."""
    if as_path(source).is_file():
        return source
    stems = [stem for names in _STEMS.values() for stem in names]
    if not as_path(source).is_dir() or tabular.find_files(source, stems, _FORMATS):
        return ''
    endings = tuple(f'.{ending}' for ending in _FORMATS)
    found = [p for p in children(source) if p.name.removesuffix('.gz').endswith(endings)]
    return str(found[0]) if len(found) == 1 else ''
