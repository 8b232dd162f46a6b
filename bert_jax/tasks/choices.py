"""Multiple choice: SWAG (BERT paper section 4.4), CODAH in its style, or the user's file.

Each choice is a sequence with one score; the loss is softmax cross-entropy over the choices of a
question. For SWAG (Zellers et al., 2018) and data sets like it, the file name tells the format:
- `.csv`: SWAG's, with quoting; `sent1` is the context, `sent2` begins all four endings.
- `.jsonl`: `startphrase` (both in one), `choices` and `answer`.
- `.tsv`: CODAH's (Chen et al., 2019), no header: category, prompt, four endings, answer.
- `.parquet`: the columns of `.csv`, as in the Hugging Face hub's data set allenai/swag.
If context and beginning come as one string, all of it is the context.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from bert_jax.answers.engine import Outputs
from bert_jax.heads.classification import MultipleChoice
from bert_jax.rows import table
from bert_jax.rows.packing import Units
from bert_jax.rows.sequences import Encode, make_sequences
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, as_path, children
from bert_jax.runtime.hosts import say
from bert_jax.runtime.hub import split_of
from bert_jax.tasks.handles import ScoredModel
from bert_jax.tasks.labelled import EvalSet, LabelledTask, Results, open_tokenization, warn_of_cut
from bert_jax.tasks.metrics import accuracy
from bert_jax.tasks.sources import held_out, one_source, own_files, warn_of_trained_on
from bert_jax.tasks.texts import TextExamples, predictions_table, say_left_out
from bert_jax.text.frames import Frame
from bert_jax.text.wordpiece import has_words

DEV_SHARE = 0.2  # of a data set without splits; CODAH's authors also score on a fifth
_FORMATS = ('.csv', '.jsonl', '.tsv', '.parquet')
_SPLITS = ('train', 'val', 'dev', 'test')
# How unlikely it must be that no label is the first choice: below the first number a warning, below
# the second an error.
_IMPROBABLE = 0.01
_MOST_IMPROBABLE = 1e-6
_ENDINGS = ('ending0', 'ending1', 'ending2', 'ending3')


class ChoiceColumns(NamedTuple):
    """Where a file holds its questions.

    Attributes:
      text: column of what comes before the choices.
      choices: columns of the choices; or one JSON field with a list of them, equally long in all
        rows.
      label: column that tells the right choice: the name of its column, or its index from 0.
      id: column of the ids; '': an unnamed column, which may be missing. None: row numbers.
      beginning: column of the text that all choices of a question begin with; '': there is none.
      headerless: see `table.read_rows`.
    """

    text: str
    choices: Sequence[str]
    label: str
    id: str | None = None
    beginning: str = ''
    headerless: Sequence[str] = ()


_SWAG_PARQUET = ChoiceColumns(
    text='sent1', choices=_ENDINGS, label='label', beginning='sent2')
_SWAG: Mapping[str, ChoiceColumns] = {
    'csv': _SWAG_PARQUET._replace(id=''),
    'json': ChoiceColumns(text='startphrase', choices=('choices',), label='answer'),
    'tsv': ChoiceColumns(
        text='prompt', choices=_ENDINGS, label='label',
        headerless=('category', 'prompt', *_ENDINGS, 'label')),
    'parquet': _SWAG_PARQUET,
}


def read_swag(source: str, split: str, *, max_malformed: float = 0.01) -> TextExamples:
    """Questions of a split of SWAG or of a data set in its style.

    A data set without splits is divided by a hash of the context, so that a question stays in its
    split when others are added or removed, and questions that share a context are in one split.

    Args:
      source: a folder with `train` and `val` or `dev` files; or one file, or a folder with one; or
        `hf:datasets/allenai/swag`, or a path in it.
      split: train | dev.
      max_malformed: see `read_choices`.

    Raises:
      InputError: no such folder or file, or a fault that `read_choices` finds.
    """
    on_hub = split_of(source, 'regular/' + split.replace('dev', 'validation'))
    if on_hub:
        return read_swag_file(on_hub, max_malformed)
    path = source
    if not _is_one_file(source):
        path = _only_table(source)
    if not path:
        path = table.find_file(source, _names_of_split(split))
        return read_swag_file(path, max_malformed)
    whole = read_swag_file(path, max_malformed)
    out = held_out(whole.texts[0], DEV_SHARE, path)
    return whole.take(np.flatnonzero(out == (split == 'dev')))


def _is_one_file(source: str) -> bool:
    return source.startswith('hf:') or as_path(source).is_file()


def _names_of_split(split: str) -> list[str]:
    """The names that the file of train or dev may have."""
    stems = ['val', 'dev']
    if split == 'train':
        stems = ['train']
    return [f'{stem}{ending}' for stem in stems for ending in _FORMATS]


def _only_table(folder: str) -> str:
    """The only table of a folder without splits; '' for another folder."""
    tables: list[Path] = []
    for file in children(folder):
        if file.name.removesuffix('.gz').endswith(_FORMATS):
            tables.append(file)
    if len(tables) != 1 or tables[0].name.partition('.')[0] in _SPLITS:
        return ''
    return str(tables[0])


def read_swag_file(path: str, max_malformed: float = 0.01) -> TextExamples:
    """All questions of a file of SWAG or in its style; raises what `read_choices` raises."""
    columns = _SWAG.get(table.format_of(path), _SWAG['tsv'])
    return read_choices(path, columns, max_malformed)


def read_choices(
    path: str, columns: ChoiceColumns, max_malformed: float = 0.01, *, keep_empty: bool = True
) -> TextExamples:
    """All questions of a file.

    Args:
      path: see `table.read_rows`.
      columns: of the file.
      max_malformed: share of the rows that may be malformed; one always may, unless this is 0.
      keep_empty: whether questions with an empty text are kept, and one without a label is
        malformed; else both are left out, and counted.

    Raises:
      InputError: a missing column, an unknown label, an id that occurs twice, too many malformed
        rows, a file that is empty or cannot be read.
    """
    wanted = [columns.text, *columns.choices, columns.label]
    if columns.beginning:
        wanted.append(columns.beginning)
    parser = _QuestionParser(columns, needs_label=keep_empty)
    rows = table.read_table(
        path, wanted, parser.parse, id_column=columns.id, max_malformed=max_malformed,
        optional=[''], headerless=columns.headerless)
    if not keep_empty:
        rows = _without_empty(path, rows)
    questions: list[_Question] = rows.values
    labels = {question.label for question in questions}
    id_of = _label_ids(columns.choices, parser.num_choices, labels)
    contexts = []
    choices = []
    label_ids = []
    for line, question in zip(rows.lines, questions, strict=True):
        if question.label not in id_of:
            raise InputError(f"{path}, line {line}: unknown label '{question.label:.60}'; known "
                             f"are {', '.join(id_of)}: correct the cell"
                             f'{table.hint_of_secret(question.label)}')
        contexts.append(question.context)
        choices.append(question.choices)
        label_ids.append(id_of[question.label])
    if list(id_of) != list(columns.choices):
        _check_counted_from_0(path, label_ids, parser.num_choices, columns.choices)
    return TextExamples(
        [contexts, *zip(*choices, strict=True)], np.array(label_ids, np.int32), rows.ids, path)


def _check_counted_from_0(
    path: str, label_ids: Sequence[int], num_choices: int, columns: Sequence[str]
) -> None:
    """Warns if improbably no label is the first choice, as where they count from 1, without a last.

    Raises:
      InputError: it is too improbable, if choices are right equally often. (Where one of them
        always is, they are not.) Choices of a list have no columns' names, which would do for
        labels in their place, and are only warned of.
    """
    chance = (1 - 1 / num_choices) ** len(label_ids)
    if 0 in label_ids or chance >= _IMPROBABLE:
        return
    what = f'{path}: none of its {len(label_ids):,} labels is 0, which stands for the first choice'
    remedy = 'if they count from 1, write each as one less'
    has_names = len(columns) > 1
    if has_names and chance < _MOST_IMPROBABLE and len(set(label_ids)) > 1:
        raise InputError(f'{what}: {remedy}; else write the names of the columns in their place')
    say(f'warning: {what}: {remedy}')


def _without_empty(path: str, rows: table.Rows) -> table.Rows:
    """The rows that have all their texts and a label. Says how many rows are left out."""
    kept = table.Rows([], [], [])
    num_empty = 0
    num_unlabelled = 0
    for row_id, line, question in zip(rows.ids, rows.lines, rows.values, strict=True):
        if not all(map(has_words, [question.context, *question.choices])):
            num_empty += 1
        elif not question.label:
            num_unlabelled += 1
        else:
            kept.ids.append(row_id)
            kept.lines.append(line)
            kept.values.append(question)
    say_left_out(path, len(rows.values), num_empty, num_unlabelled)
    return kept


class _Question(NamedTuple):
    """A row of a file; its label is '' where it has none."""

    context: str
    choices: list[str]
    label: str


class _QuestionParser:
    """Makes questions of the cells of rows, which all have as many choices as the first.

    Attributes:
      num_choices: of a question; 0: not known yet.
    """

    def __init__(self, columns: ChoiceColumns, *, needs_label: bool):
        self._columns = columns
        self._needs_label = needs_label
        self._is_list = len(columns.choices) == 1
        self.num_choices = 0
        if not self._is_list:
            self.num_choices = len(columns.choices)

    def parse(self, cells: list[Any]) -> _Question:
        """The question of a row; raises Malformed."""
        num_columns = len(self._columns.choices)
        context = cells[0]
        choices = cells[1 : 1 + num_columns]
        label = cells[1 + num_columns]
        if self._is_list and isinstance(choices[0], list):
            (choices,) = choices
        if self.num_choices < 2:
            self.num_choices = len(choices)
        context, *choices = table.texts_of([context, *choices])
        if len(choices) != self.num_choices or self.num_choices < 2:
            raise table.Malformed(
                f'choices: {len(choices)}, where {max(self.num_choices, 2)} are wanted')
        if self._columns.beginning and cells[-1]:
            choices = [f'{cells[-1]} {choice}' for choice in choices]
        label_text = table.label_text(label)
        if self._needs_label:
            label_text = table.label_of(label)
        return _Question(context, choices, table.plain_number(label_text) or label_text)


def _label_ids(
    columns: Sequence[str], num_choices: int, labels: set[str]
) -> dict[str, int]:
    """{label: index of the choice}, where labels are names of columns or numbers.

    If columns are named 1, 2, 3, labels are names, not indices, whichever numbers this file has.

    Args:
      columns: of the choices.
      num_choices: of a question.
      labels: that the file has.
    """
    known: Sequence[str] = [str(i) for i in range(num_choices)]
    if set(columns) & set(known) or labels <= set(columns):
        known = columns
    return {label: i for i, label in enumerate(known)}


def choice_units(examples: TextExamples, encode: Encode, *, max_length: int, frame: Frame) -> Units:
    """[CLS] context [SEP] ending [SEP] for each ending, as in section 4.4 of the BERT paper."""
    contexts, *columns = examples.texts
    repeated: list[str] = []
    endings: list[str] = []
    for context, *of_question in zip(contexts, *columns, strict=True):
        repeated += [context] * len(of_question)
        endings += of_question
    sequences = make_sequences(
        encode(repeated), encode(endings), max_length=max_length, frame=frame)
    return Units(sequences, len(columns), labels={'labels': examples.labels})


def open_swag(config: ConfigDict, scored: ScoredModel | None = None) -> LabelledTask:
    """SWAG or a data set in its style, trained on train and scored on dev; see `read_swag`."""
    dev = _read_swag_split(config, 'dev')
    train = None
    if scored is None:
        train = _read_swag_split(config, 'train')
        if config.data.eval_source:
            warn_of_trained_on(config, train.wholes(), dev.wholes())
    return choice_task(config, train, dev)


def _read_swag_split(config: ConfigDict, split: str) -> TextExamples:
    max_malformed = config.data.max_malformed
    eval_source = config.data.eval_source
    if split == 'dev' and eval_source:
        return read_swag_file(str(as_path(eval_source)), max_malformed)
    source = one_source(config, 'a folder of SWAG files, or one file in its style')
    if eval_source and not split_of(source, 'any') and _is_one_file(source):
        return read_swag_file(source, max_malformed)  # nothing is held out of it
    return read_swag(source, split, max_malformed=max_malformed)


def open_choices(config: ConfigDict, scored: ScoredModel | None = None) -> LabelledTask:
    """Multiple choice on the user's files, whose columns the config names."""
    data = config.data
    choices = list(filter(None, map(str.strip, data.choices.split(','))))
    if not choices:
        raise InputError(
            "config.data.choices='': name the columns of the choices, between commas, or the one "
            'of JSON lines that holds a list of them')
    columns = ChoiceColumns(
        text=data.text or 'text', choices=choices, label=data.label or 'label', id=data.id or None)

    def read(path: str) -> TextExamples:
        return read_choices(path, columns, data.max_malformed, keep_empty=False)

    train, dev = own_files(
        config, scored, read, lambda examples: examples.texts[0], wholes=TextExamples.wholes)
    return choice_task(config, train, dev)


def choice_task(
    config: ConfigDict, train: TextExamples | None, dev: TextExamples
) -> LabelledTask:
    """A task on questions with choices, scored by accuracy.

    Args:
      config: of the run.
      train, dev: to train on, or None, and to score.

    Raises:
      InputError: their questions have other numbers of choices.
    """
    num_choices = len(dev.texts) - 1
    if train is not None and len(train.texts) - 1 != num_choices:
        raise InputError(f'{dev.source} has {num_choices} choices a question, {train.source} '
                         f'{len(train.texts) - 1}: there must be as many')
    tokenization = open_tokenization(config)

    def units(examples: TextExamples) -> Units:
        return choice_units(
            examples, tokenization.encode, max_length=config.data.max_seq_length,
            frame=tokenization.frame)

    train_units = None
    if train is not None:
        train_units = units(train)
    dev_units = units(dev)
    warn_of_cut((train_units or dev_units).sequences, config.data.max_seq_length)
    scored_set = ChoiceSet(dev, config.data.id)
    return LabelledTask(
        config, tokenization, train=train_units,
        evaluated=(EvalSet('', dev_units, scored_set.results),), metric='accuracy',
        head='multiple_choice', arguments={'num_outputs': num_choices},
        majority_baseline={'accuracy': 1 / num_choices})


@dataclasses.dataclass(frozen=True)
class ChoiceSet:
    """Questions that are scored, with the file of their predictions.

    Attributes:
      examples: the questions.
      id_column: the user's column of ids; empty: they are numbered by row.
    """

    examples: TextExamples
    id_column: str

    def results(self, outputs: Outputs) -> Results:
        """Scores, and the content of the file of predictions."""
        logits = outputs['logits']
        labels = self.examples.labels
        predictions = logits.argmax(axis=-1)
        scores = {'accuracy': accuracy(predictions, labels),
                  'loss': MultipleChoice.mean_loss(logits, labels)}
        content = predictions_table(self.id_column, self.examples.ids, map(str, predictions))
        return scores, {'dev_predictions.tsv': content}
