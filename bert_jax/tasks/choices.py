"""Multiple choice: SWAG (BERT paper section 4.4), CODAH in its style, or the user's file.

Each choice is a sequence with one score; the loss is a softmax over the choices of a question. Of
SWAG (Zellers et al., 2018) and its like, a file's ending tells its format:
- `.csv`: SWAG's, with quoting; `sent1` is the context, `sent2` begins all four endings.
- `.jsonl`: `startphrase` (both in one), `choices` and `answer`.
- `.tsv`: CODAH's (Chen et al., 2019), no header: category, prompt, four endings, answer.
Where context and beginning come in one string, it is the context.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bert_jax.data.pairs import Encode, Sequences, make_sequences
from bert_jax.heads.classification import MultipleChoice
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, as_path, children
from bert_jax.tasks.labelled import (
    EvalSet,
    LabelledData,
    LabelledTask,
    Outputs,
    ScoredModel,
    one_source,
    open_tokenization,
    own_files,
    share_of,
)
from bert_jax.tasks.metrics import accuracy
from bert_jax.tasks.packing import Units
from bert_jax.tasks.table import (
    Malformed,
    find_file,
    find_files,
    format_of,
    label_ids,
    label_of,
    read_table,
    row_ids,
    texts_of,
)
from bert_jax.tasks.texts import write_predictions

NUM_CHOICES = 4
DEV_SHARE = 0.2

_ENDINGS = [f'ending{i}' for i in range(NUM_CHOICES)]
_CODAH = ['category', 'prompt', *_ENDINGS, 'label']
_FORMATS = ('csv', 'jsonl', 'tsv')
_STEMS = {'train': ['train'], 'dev': ['val', 'dev'], 'test': ['test']}

# Context, endings, label ('' where labels are not read), id.
_Question = tuple[str, list[str], str, Any]


@dataclasses.dataclass(frozen=True)
class ChoiceExamples:
    """n questions, in the order of the file.

    Attributes:
      context: first segments.
      endings: second segments, of each question as many (SWAG's are four).
      labels: [n] int32, the right endings; None: a test split.
      ids: the unnamed first column of SWAG's CSV, the user's column, or the row from 0.
      source: the file, for messages.
    """

    context: list[str]
    endings: list[list[str]]
    labels: np.ndarray | None
    ids: list[str]
    source: str

    def __len__(self) -> int:
        return len(self.context)

    @property
    def num_choices(self) -> int:
        """Endings of a question."""
        return len(self.endings[0])

    def take(self, rows: Sequence[int] | np.ndarray) -> ChoiceExamples:
        """Some of the questions."""
        return dataclasses.replace(
            self, context=[self.context[i] for i in rows],
            endings=[self.endings[i] for i in rows],
            labels=None if self.labels is None else self.labels[rows],
            ids=[self.ids[i] for i in rows],
        )


def read_swag(source: str, split: str, *, max_malformed: float = 0.01) -> ChoiceExamples:
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
        path = find_file(source, _STEMS[split], _FORMATS)
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
) -> ChoiceExamples:
    """All questions of one file.

    Args:
      path: `.csv`, `.jsonl` or `.tsv`, plain or `.gz`.
      labelled: whether to read labels.
      max_malformed: share of the rows that may be malformed; one always may, unless this is 0.

    Raises:
      InputError: a missing column, an unknown label, an id that occurs twice, too many malformed
        rows, a file that is empty or cannot be read.
    """
    form = format_of(path)
    columns, num_cells = {
        'csv': (['sent1', *_ENDINGS, 'label', 'sent2', ''], NUM_CHOICES),
        'tsv': (['prompt', *_ENDINGS, 'label'], NUM_CHOICES),
        'json': (['startphrase', 'choices', 'answer'], 1),
    }[form]
    if not labelled:
        del columns[1 + num_cells]

    def parse(cells: list[Any]) -> _Question:
        label = label_of(cells[1 + num_cells]) if labelled else ''
        endings = cells[1] if form == 'json' else cells[1 : 1 + NUM_CHOICES]
        if not isinstance(endings, list) or len(endings) != NUM_CHOICES:
            raise Malformed(f'there are not {NUM_CHOICES} endings')
        context, *endings = texts_of([cells[0], *endings])
        beginning, row_id = cells[-2:] if form == 'csv' else ('', None)
        if beginning:
            endings = [f'{beginning} {ending}' for ending in endings]
        return context, endings, label, row_id

    return _examples(
        path, columns, parse, lambda _: list(map(str, range(NUM_CHOICES))), labelled=labelled,
        max_malformed=max_malformed, optional=[''],
        headerless=_CODAH if form == 'tsv' else (),
    )


def read_choices(
    path: str, *, text: str, choices: Sequence[str], label: str, id_column: str = '',
    max_malformed: float = 0.01,
) -> ChoiceExamples:
    """All questions of a user's file.

    Args:
      path: see `table.read_rows`.
      text: column of what comes before the choices.
      choices: their columns; or one, of JSON, that holds a list of them, as long in each row.
      label: column that tells which is right: the name of its column, or its place from 0.
      id_column: of the questions' ids; empty: their rows.
      max_malformed: as of `read_swag_file`.

    Raises:
      InputError: a missing column, an unknown label, too many malformed rows, a file that is empty
        or cannot be read.
    """
    num = 0 if len(choices) == 1 else len(choices)  # as many as the first row has

    def parse(cells: list[Any]) -> _Question:
        nonlocal num
        context, *endings = cells[: 1 + len(choices)]
        if len(choices) == 1 and isinstance(endings[0], list):
            (endings,) = endings
        num = num or len(endings)
        context, *endings = texts_of([context, *endings])
        if len(endings) != num or num < 2:
            raise Malformed(f'choices: {len(endings)}, where {max(num, 2)} are wanted')
        return (context, endings, label_of(cells[1 + len(choices)]),
                cells[-1] if id_column else None)

    def known(labels: Sequence[str]) -> Sequence[str]:
        # Columns may be called 1, 2, 3: then a number is a name, whatever numbers this file has.
        places = list(map(str, range(num)))
        return choices if set(choices) & set(places) or set(labels) <= set(choices) else places

    columns = [text, *choices, label, *([id_column] if id_column else [])]
    return _examples(path, columns, parse, known, max_malformed=max_malformed)


def _examples(
    path: str, columns: Sequence[str], parse: Callable[[list[Any]], _Question],
    known: Callable[[Sequence[str]], Sequence[str]], *, labelled: bool = True, **how: Any,
) -> ChoiceExamples:
    """The questions of a file; `known` gives the names of the choices from all labels."""
    rows = read_table(path, columns, parse, **how)
    contexts, endings, labels, ids = map(list, zip(*rows.values, strict=True))
    return ChoiceExamples(
        context=contexts, endings=endings,
        labels=label_ids(rows, labels, known(labels)) if labelled else None,
        ids=row_ids(rows, ids), source=path,
    )


def part(examples: ChoiceExamples, split: str, dev_share: float = DEV_SHARE) -> ChoiceExamples:
    """The train or dev part of a set that has no splits.

    A hash of the context decides, so that a question stays on its side when others come or go, and
    questions with one context are on one side. CODAH's authors too score on a fifth.

    Args:
      examples: all of them.
      split: train | dev.
      dev_share: about this share of the contexts is dev.
    """
    assert split in ('train', 'dev'), split
    return examples.take([i for i, context in enumerate(examples.context)
                          if (share_of(context) < dev_share) == (split == 'dev')])


def choice_sequences(
    examples: ChoiceExamples, encode: Encode, max_length: int, cls_id: int, sep_id: int
) -> Sequences:
    """[CLS] context [SEP] ending [SEP] of each ending, a question's one after another.

    As in section 4.4 of the BERT paper.
    """
    contexts = [context for context in examples.context
                for _ in range(examples.num_choices)]
    endings = [ending for endings in examples.endings for ending in endings]
    return make_sequences(
        encode(contexts), encode(endings), max_length=max_length, cls_id=cls_id,
        sep_id=sep_id,
    )


def _undivided(source: str) -> str:
    """The file that is a set without splits: `source` or the only one in it; '' if none is."""
    if as_path(source).is_file():
        return source
    stems = [stem for names in _STEMS.values() for stem in names]
    if not as_path(source).is_dir() or find_files(source, stems, _FORMATS):
        return ''
    endings = tuple(f'.{ending}' for ending in _FORMATS)
    files = [p for p in children(source) if p.name.removesuffix('.gz').endswith(endings)]
    return str(files[0]) if len(files) == 1 else ''


def open_swag(config: ConfigDict, scored: ScoredModel | None = None) -> LabelledTask:
    """SWAG or a set in its style: trained on train and scored on dev, which `read_swag` reads."""
    eval_source, max_malformed = config.data.eval_source, config.data.max_malformed

    def read(split: str) -> ChoiceExamples:
        if split == 'dev' and eval_source:
            return read_swag_file(str(as_path(eval_source)), max_malformed=max_malformed)
        source = one_source(config, 'a folder of SWAG files, or one file in its style')
        if eval_source and as_path(source).is_file():  # all of it
            return read_swag_file(source, max_malformed=max_malformed)
        return read_swag(source, split, max_malformed=max_malformed)

    dev = read('dev')
    return _task(config, read('train') if scored is None else None, dev)


def open_choices(config: ConfigDict, scored: ScoredModel | None = None) -> LabelledTask:
    """Multiple choice on the user's file, columns by name."""
    d = config.data
    choices = [name.strip() for name in d.choices.split(',') if name.strip()]
    if not choices:
        raise InputError(
            "config.data.choices='': name the columns of the choices, between commas, or the one "
            'of JSON lines that holds a list of them'
        )
    read = functools.partial(
        read_choices, text=d.text, choices=choices, label=d.label, id_column=d.id,
        max_malformed=d.max_malformed)
    return _task(config, *own_files(
        config, read, lambda examples: examples.context, meaning='a .csv, .tsv or .jsonl file',
        what='questions', training=scored is None,
    ))


def _task(config: ConfigDict, train: ChoiceExamples | None, dev: ChoiceExamples) -> LabelledTask:
    if train is not None and train.num_choices != dev.num_choices:
        raise InputError(
            f'{dev.source} has {dev.num_choices} choices a question, {train.source} '
            f'{train.num_choices}: there must be as many'
        )
    t = open_tokenization(config)

    def units(examples: ChoiceExamples) -> Units:
        assert examples.labels is not None
        sequences = choice_sequences(examples, t.encode, t.max_length, **t.vocab.ends)
        return Units(sequences, examples.num_choices, labels={'labels': examples.labels})

    dev_units = units(dev)

    def score(outputs: Outputs) -> dict[str, float]:
        logits, labels = outputs['logits'], dev_units.labels['labels']
        return {'accuracy': accuracy(logits.argmax(axis=-1), labels),
                'loss': MultipleChoice.mean_loss(logits, labels)}

    def write(outputs: Outputs, folder: Path) -> None:
        predictions = outputs['logits'].argmax(axis=-1)
        write_predictions(
            folder / 'dev_predictions.tsv', config.data.id, dev.ids, map(str, predictions))

    return LabelledTask(config, t, LabelledData(
        train=None if train is None else units(train),
        evaluated=(EvalSet('', dev_units, score, write),), metric='accuracy',
        head='multiple_choice', objective={'num_outputs': dev.num_choices},
    ))
