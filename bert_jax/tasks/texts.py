"""Texts or pairs of texts with labels: examples, windows, scores and files of predictions.

GLUE, the tasks on the user's texts and tasks like them are `text_task` over `read_texts`.

    n: examples, L: labels, W: windows, T: tokens of all windows
"""

import csv
import dataclasses
import io
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from ml_collections import ConfigDict

from bert_jax.answers.engine import Outputs
from bert_jax.heads import HEADS
from bert_jax.heads.classification import Classification
from bert_jax.rows import table
from bert_jax.rows.packing import Units
from bert_jax.rows.sequences import TextWindows, text_windows
from bert_jax.runtime.errors import InputError, visible
from bert_jax.runtime.hosts import say
from bert_jax.tasks.labelled import (
    EvalSet,
    LabelledTask,
    Results,
    Tokenization,
    open_tokenization,
    warn_of_cut,
)
from bert_jax.tasks.labels import LabelParser, NumericLabels
from bert_jax.tasks.metrics import METRICS, most_frequent, of_each_class, scores_of_one_answer
from bert_jax.text.library import Unsplittable
from bert_jax.text.wordpiece import has_words


@dataclasses.dataclass(frozen=True)
class TextExamples:
    """n examples, in the order of the file.

    Attributes:
      texts: columns of n strings: one for single texts, two for pairs; for multiple choice, the
        contexts and then each choice.
      labels: [n] int32 ids or float32 numbers, or [n, L] float32 of 0 and 1; None: there are none.
      ids: from the file's column of ids, or the row in the file from 0.
      source: file or data set, for messages.
    """

    texts: Sequence[Sequence[str]]
    labels: Any
    ids: list[str]
    source: str

    def __len__(self) -> int:
        return len(self.ids)

    def wholes(self) -> list[str]:
        """The texts of each example, joined."""
        return ['\n'.join(texts) for texts in zip(*self.texts, strict=True)]

    def take(self, rows: np.ndarray) -> Self:
        """Some of the examples."""
        texts: list[list[str]] = []
        for column in self.texts:
            texts.append([column[i] for i in rows])
        labels = self.labels
        if labels is not None:
            labels = labels[rows]
        ids = [self.ids[i] for i in rows]
        return dataclasses.replace(self, texts=texts, labels=labels, ids=ids)


@dataclasses.dataclass(frozen=True)
class TextColumns:
    """Where a file has its texts, labels and ids.

    Attributes:
      texts: column of the text, or of the two texts.
      label: column of the label; or a list of columns of 0 and 1, one for each label.
      id: column of the examples' ids, or ''.
      needs_ids: whether this column must be there.
      headerless: all columns of labelled files that have no header.
    """

    texts: Sequence[str]
    label: str | list[str]
    id: str = ''
    needs_ids: bool = False
    headerless: Sequence[str] = ()


def read_texts(
    path: str, columns: TextColumns, labels: NumericLabels | LabelParser | None, *,
    max_malformed: float = 0.01, keep_empty: bool = True,
) -> TextExamples:
    """Examples of one file.

    Args:
      path: see `table.read_rows`.
      columns: of the file.
      labels: what the labels are; None: they are not read.
      max_malformed: share of the rows that may be malformed; one always may, unless this is 0.
      keep_empty: whether examples with an empty text are kept, as benchmarks count them, and one
        without a label is malformed; else both are left out, and counted, as `predict` refuses
        empty texts.

    Raises:
      InputError: a missing column, a label that `labels` refuses, an id that occurs twice, too many
        malformed rows, a file that is empty or cannot be read.
    """
    parser = _RowParser(columns, labels, needs_label=keep_empty)
    rows = table.read_table(
        path, parser.columns, parser.parse, id_column=columns.id or None,
        optional=parser.optional, headerless=parser.headerless, max_malformed=max_malformed)
    kept: list[_TextRow] = []
    kept_ids: list[str] = []
    num_empty = 0
    empty_columns: set[str] = set()
    for row, row_id in zip(rows.values, rows.ids, strict=True):
        if not keep_empty and not all(map(has_words, row.texts)):
            num_empty += 1
            empty_columns.update(
                column for column, text in zip(columns.texts, row.texts, strict=True)
                if not has_words(text))
        elif row.has_label:
            kept.append(row)
            kept_ids.append(row_id)
    num_unlabelled = len(rows.values) - len(kept) - num_empty
    say_left_out(
        path, len(rows.values), num_empty, num_unlabelled,
        sorted(empty_columns) if len(columns.texts) > 2 else ())

    by_column = zip(*[row.texts for row in kept], strict=True)
    label_array = None
    if labels is not None:
        label_array = labels.array([row.label for row in kept])
        _check_not_secret(path, label_array)
    return TextExamples(list(map(list, by_column)), label_array, kept_ids, path)


# So many numbers that are all -1 are no scores; a few may be.
_FEWEST_SECRET = 5


def _check_not_secret(path: str, labels: np.ndarray) -> None:
    """Refuses `_FEWEST_SECRET` numbers [n] or more that are all -1: the labels are secret."""
    if len(labels) >= _FEWEST_SECRET and (labels == -1).all():
        raise InputError(f"{path}: all labels are -1{table.hint_of_secret('-1')}")


class _TextRow(NamedTuple):
    """The texts of a row, and its label as `labels` parses it.

    Attributes:
      texts: one or two.
      label: None: it is not read, or missing.
      has_label: whether it is not missing.
    """

    texts: list[str]
    label: Any
    has_label: bool = True


class _RowParser:
    """Makes texts and labels of the cells of rows.

    Attributes:
      columns: of the file that are read, besides that of the ids.
      optional: the column that may be missing, if one may.
      headerless: all columns of a file that has no header.
    """

    def __init__(
        self, columns: TextColumns, labels: NumericLabels | LabelParser | None, *, needs_label: bool
    ):
        """Finds the columns that are read.

        Args:
          columns, labels: as for `read_texts`.
          needs_label: whether a row without a label is malformed.
        """
        self._needs_label = needs_label
        self._num_texts = len(columns.texts)
        self._label = columns.label
        self._labels = labels
        self.columns = list(columns.texts)
        self.optional: list[str] = []
        if not columns.needs_ids:
            self.optional.append(columns.id)
        self.headerless: Sequence[str] = columns.headerless
        if labels is None:
            self.headerless = ()  # files without labels have a header
        elif isinstance(columns.label, str):
            self.columns.append(columns.label)
        else:
            self.columns += columns.label

    def parse(self, cells: list[Any]) -> _TextRow:
        """The texts and the label of a row; raises Malformed, or what `labels` raises."""
        if self._labels is None:
            return _TextRow(table.texts_of(cells), None)
        if isinstance(self._label, str):
            label_cell = cells[self._num_texts]
        else:
            label_cell = _marked_names(self._label, cells[self._num_texts :])
        texts = table.texts_of(cells[: self._num_texts])
        try:
            return _TextRow(texts, self._labels.parse(label_cell))
        except table.NoLabel:
            if self._needs_label:
                raise
            return _TextRow(texts, None, has_label=False)


def _marked_names(names: Sequence[str], cells: Sequence[Any]) -> list[str]:
    """The labels of an example whose table has a column of 0 and 1 for each.

    Raises:
      Malformed: a cell is something else.
    """
    marked: list[str] = []
    for name, cell in zip(names, cells, strict=True):
        text = table.label_text(cell).lower()
        if text in ('1', '1.0', 'true'):
            marked.append(name)
        elif text not in ('', '0', '0.0', 'false'):
            raise table.Malformed(f"'{name}' is {text!r}, where 0 or 1 is wanted")
    return marked


def say_left_out(
    path: str, num_rows: int, num_empty: int, num_unlabelled: int, columns: Sequence[str] = ()
) -> None:
    """Says how many rows of a file are left out because they lack a text or their label.

    Args:
      path: the file.
      num_rows: of the file.
      num_empty: those in which a text is empty.
      num_unlabelled: others, whose label is empty, null or NaN.
      columns: those in which a text is empty, if it is known.

    Raises:
      InputError: these are all.
    """
    where = f" in {', '.join(columns)}" if columns else ''
    if num_empty == num_rows:
        raise InputError(f'{path}: all {num_rows:,} rows have an empty text{where}: is '
                         'config.data.text the right column?')
    if num_empty + num_unlabelled == num_rows:
        raise InputError(f'{path}: all {num_rows - num_empty:,} rows with a text have no label: is '
                         'config.data.label the right column?')
    if num_empty:
        say(f'{path}: {num_empty:,} of {num_rows:,} rows have an empty text{where}; left out')
    if num_unlabelled:
        say(f'{path}: {num_unlabelled:,} of {num_rows:,} rows have no label; left out')


@dataclasses.dataclass(frozen=True)
class TextHead:
    """The head that predicts something of a text: its labels, its loss and its metrics.

    Attributes:
      name: 'classification', 'multi_label' or 'regression'.
      labels: names by id; empty for a regression.
      metrics: names in `metrics.METRICS`; the first picks the best evaluation.
      loss: arguments of the head besides the number of labels.
    """

    name: str
    labels: Sequence[str]
    metrics: Sequence[str]
    loss: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def kind(self) -> type[Classification]:
        """The class that makes predictions of logits."""
        return HEADS[self.name]

    @property
    def arguments(self) -> dict[str, Any]:
        """All arguments of the head."""
        return {'num_outputs': len(self.labels) or 1, **self.loss}

    def compute_metrics(self, predictions: np.ndarray, truth: np.ndarray) -> dict[str, float]:
        """The metrics by name."""
        return {name: METRICS[name].compute(predictions, truth) for name in self.metrics}


def text_task(
    config: ConfigDict, *, head: TextHead, train: TextExamples | None,
    sets: Mapping[str, TextExamples | None], windows: str = 'first', id_column: str = '',
    keep_all: bool = True,
) -> LabelledTask:
    """A task on texts.

    Args:
      config: of the run.
      head: what is predicted.
      train: examples to train on, or None.
      sets: examples by split, which names the file of predictions; None: the split is missing. Sets
        with labels are scored, the others predicted at the end. The metrics of sets after the first
        are prefixed with the split (less `dev_`).
      windows: one of `config.choices.WINDOWS`, for predictions; training texts are cut.
      id_column: the user's column of ids; empty: predictions are numbered by row.
      keep_all: whether a text that cannot be split is an error, as in benchmarks; else it is left
        out and counted.

    Raises:
      InputError: there is no vocabulary, or texts cannot be split.
    """
    tokenization = open_tokenization(config)
    max_length = config.data.max_seq_length
    train_units = None
    if train is not None:
        train, cut = _kept_windows(train, tokenization, 'first', max_length, keep_all)
        train_units = _units(train, cut, len(head.labels))

    main_split = next(iter(sets))
    evaluated: list[EvalSet] = []
    predicted: list[EvalSet] = []
    for split, examples in sets.items():
        if not examples:
            continue
        examples, tokenized = _kept_windows(
            examples, tokenization, windows, max_length, keep_all)
        text_set = TextSet(split, examples, tokenized, head, id_column)
        text_set.say_undefined_areas()
        eval_set = text_set.eval_set(main_split)
        if examples.labels is None:
            predicted.append(eval_set)
        else:
            evaluated.append(eval_set)

    read_units = train_units or [*evaluated, *predicted][0].units
    warn_of_cut(read_units.sequences, max_length)
    main = next(filter(None, sets.values()))
    inference: dict[str, Any] = {'num_texts': len(main.texts)}
    if windows != 'first':
        inference['windows'] = windows
    return LabelledTask(
        config, tokenization, train=train_units, evaluated=tuple(evaluated),
        predicted=tuple(predicted), metric=head.metrics[0], head=head.name,
        labels=tuple(head.labels), majority_baseline=_majority_baseline(head, train, main),
        arguments=head.arguments, inference=inference)


def _kept_windows(
    examples: TextExamples, tokenization: Tokenization, windows: str, max_length: int,
    keep_all: bool,
) -> tuple[TextExamples, TextWindows]:
    """(The examples that are kept, their windows); see `text_task`."""
    try:
        return examples, _tokenized(examples, tokenization, windows, max_length)
    except Unsplittable:
        if keep_all:
            raise
    kept = _splittable(examples, tokenization)
    return kept, _tokenized(kept, tokenization, windows, max_length)


def _splittable(examples: TextExamples, tokenization: Tokenization) -> TextExamples:
    """The examples whose texts the tokenizer can split; the others are counted.

    Raises:
      InputError: it can split none.
    """
    failed: set[int] = set()
    reason = ''
    for texts in examples.texts:
        try:
            tokenization.encode(texts)
        except Unsplittable as error:
            failed.update(error.places)
            reason = str(error)
    if len(failed) == len(examples):
        raise InputError(f'{examples.source}: none of its texts can be split: {reason}')
    say(f'warning: {examples.source}: {len(failed):,} of {len(examples):,} rows have a text that '
        f'cannot be split ({reason}); left out')
    others = [row for row in range(len(examples)) if row not in failed]
    return examples.take(np.array(others))


def _tokenized(
    examples: TextExamples, tokenization: Tokenization, windows: str, max_length: int
) -> TextWindows:
    """The windows (one of WINDOWS) of all examples."""
    first = tokenization.encode(examples.texts[0])
    second = None
    if len(examples.texts) == 2:
        second = tokenization.encode(examples.texts[1])
    return text_windows(
        first, second, windows, max_length=max_length, frame=tokenization.frame)


def _units(examples: TextExamples, windows: TextWindows, num_labels: int) -> Units:
    """The windows as units, each with the label of its text."""
    labels = examples.labels
    if labels is None:
        return Units(windows.sequences)
    if labels.ndim == 2:
        # Labels that the model lacks count in the scores, but its outputs do not have them.
        labels = labels[:, :num_labels]
    return Units(windows.sequences, labels={'labels': labels[windows.text]})


def _majority_baseline(
    head: TextHead, train: TextExamples | None, main: TextExamples
) -> dict[str, float]:
    """Metrics of the main set if all examples get one answer; empty if nothing is trained.

    The answer is the most frequent label; of any number of labels, none; for numbers, any constant.
    """
    truth = main.labels
    if train is None or train.labels is None or truth is None:
        return {}
    answer = most_frequent(train.labels) if head.name == 'classification' else 0
    return scores_of_one_answer(answer, truth, head.compute_metrics)


def label_counts(labels: np.ndarray, num_names: int) -> np.ndarray:
    """How many examples have each label; of ids, there may be more than names."""
    if labels.ndim == 2:
        return labels.sum(axis=0).astype(int)
    return np.bincount(labels, minlength=num_names)


@dataclasses.dataclass(frozen=True)
class TextSet:
    """Texts that are predicted as a whole, with their scores and files.

    Attributes:
      split: begins the names of the files.
      examples: the n texts or pairs.
      windows: of their tokens.
      head: what is predicted.
      id_column: the user's column of ids; empty: examples are numbered by row.
    """

    split: str
    examples: TextExamples
    windows: TextWindows
    head: TextHead
    id_column: str

    def eval_set(self, main_split: str) -> EvalSet:
        """The set as part of a task, in which the metrics of the main split have no prefix."""
        prefix = ''
        if self.split != main_split:
            prefix = f"{self.split.removeprefix('dev_')}_"
        units = _units(self.examples, self.windows, len(self.head.labels))
        return EvalSet(prefix, units, self.results, self.remarks)

    def results(self, outputs: Outputs) -> Results:
        """Metrics, if there are labels, and the content of files by name."""
        logits = self._logits(outputs)
        predictions = self.head.kind.predictions(logits)
        texts = self.head.kind.texts(predictions, self.head.labels)
        files = {
            f'{self.split}_predictions.tsv': predictions_table(
                self.id_column, self.examples.ids, texts)}
        if self.examples.labels is None:
            return {}, files
        probabilities = self._probabilities(logits)
        files[f'{self.split}_examples.csv'] = self._examples_table(texts, probabilities)
        if self.head.labels:
            files[f'{self.split}_classes.csv'] = self._classes_table(predictions, probabilities)
        return self._scores(logits, predictions), files

    def _logits(self, outputs: Outputs) -> np.ndarray:
        """The logits of texts, from those of their windows."""
        return self.windows.combined_logits(self.head.kind, outputs['logits'])

    def _probabilities(self, logits: np.ndarray) -> list[list[float]]:
        """The probabilities of each example's labels; none for a regression."""
        probabilities: list[list[float]] = []
        for described in self.head.kind.described(logits, self.head.labels):
            by_label = described.get('probabilities', {})
            probabilities.append(list(by_label.values()))
        return probabilities

    def _scores(self, logits: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
        truth = self.examples.labels
        if truth.ndim == 2:  # labels that the model lacks are never predicted
            num_missing = truth.shape[1] - predictions.shape[1]
            predictions = np.pad(predictions, [(0, 0), (0, num_missing)])
        scores = self.head.compute_metrics(predictions, truth)
        scores['loss'] = self.head.kind.mean_loss(logits, truth)
        return scores

    def remarks(self, outputs: Outputs) -> list[str]:
        """A warning if all examples of a classification get one label, but do not have one."""
        truth = self.examples.labels
        if not self.head.labels or truth is None or truth.ndim == 2:
            return []
        predictions = self.head.kind.predictions(self._logits(outputs))
        if len(np.unique(predictions)) > 1 or len(np.unique(truth)) == 1:
            return []
        return [f'warning: all predictions are {self.head.labels[predictions[0]]!r}']

    def say_undefined_areas(self) -> None:
        """Says which labels have no ROC-AUC, because none of the examples has them, or all do."""
        truth = self.examples.labels
        if not self.head.labels or truth is None:
            return
        counts = label_counts(truth, len(self.head.labels))
        undefined: list[str] = []
        for name, count in zip(self.head.labels, counts):
            if count in (0, len(truth)):
                undefined.append(name)
        if undefined:
            more = f' and {len(undefined) - 10} further' if len(undefined) > 10 else ''
            say(f"note: none or all of the {len(truth):,} scored examples have the label "
                f"{', '.join(undefined[:10])}{more}: its ROC-AUC is undefined, and empty in "
                f'{self.split}_classes.csv')

    def _examples_table(
        self, predictions: Sequence[str], probabilities: Sequence[Sequence[float]]
    ) -> str:
        """Texts, label, prediction and the labels' probabilities of each example."""
        examples = self.examples
        names = list(self.head.labels)
        if names:  # a regression has none
            # A label that only evaluation has is the id of no label of the model.
            num_missing = label_counts(examples.labels, len(names)).size - len(names)
            names += ['(not in training)'] * num_missing
        truth = self.head.kind.texts(examples.labels, names)
        header = [self.id_column or 'index', 'text']
        if len(examples.texts) == 2:
            header.append('text_pair')
        header += ['label', 'prediction']
        header += [f'probability of {name}' for name in self.head.labels]
        columns = zip(
            examples.ids, zip(*examples.texts, strict=True), truth, predictions, probabilities,
            strict=True)
        rows: list[list[Any]] = []
        for row_id, texts, label, prediction, shares in columns:
            rows.append([row_id, *texts, label, prediction, *shares])
        return _table(header, rows)

    def _classes_table(
        self, predictions: np.ndarray, probabilities: Sequence[Sequence[float]]
    ) -> str:
        """Each label's scores and, with one label an example, how often each was predicted."""
        truth = self.examples.labels
        header = ['label', 'count', 'precision', 'recall', 'f1', 'roc_auc']
        scores = of_each_class(predictions, truth, np.array(probabilities))
        labels = self.head.labels
        if truth.ndim == 1:
            header += [f'predicted {name}' for name in labels]
        rows: list[list[Any]] = []
        for i, (name, scores_of_label) in enumerate(zip(labels, scores, strict=True)):
            row = [name, *scores_of_label]
            if truth.ndim == 1:
                counts = np.bincount(predictions[truth == i], minlength=len(labels))
                row += counts.tolist()
            rows.append(row)
        return _table(header, rows)


def predictions_table(id_column: str, ids: Sequence[str], values: Iterable[str]) -> str:
    """The content of a TSV of predictions: `index` (or the user's id column) and `prediction`.

    `index` is the row of the example in its file, from 0. A value that holds a TAB or a line end is
    quoted. `tools.glue_submission` reads such files.
    """
    rows = zip(ids, values, strict=True)
    return _table([id_column or 'index', 'prediction'], rows, delimiter='\t')


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]], delimiter: str = ',') -> str:
    content = io.StringIO()
    writer = csv.writer(content, delimiter=delimiter, lineterminator='\n')
    for row in itertools.chain([header], rows):
        writer.writerow([_shown(value, delimiter) for value in row])
    return content.getvalue()


def _shown(value: Any, delimiter: str) -> Any:
    """A value as it stands in a table.

    An undefined number is empty. A .csv is for people: characters that move a terminal's cursor are
    written out. Spreadsheets run a text as a formula if it begins like one, also after white space,
    so it gets an apostrophe before it, which they do not show. A .tsv is for programs, and has what
    the model said.
    """
    if type(value) is float:
        return '' if math.isnan(value) else f'{value:.6g}'
    if delimiter != ',' or not isinstance(value, str):
        return value
    is_formula = value.lstrip().startswith(('=', '+', '-', '@'))
    if is_formula and not re.fullmatch(r'[+-]?[\d.]+', value):
        return f"'{visible(value)}"
    return visible(value)
