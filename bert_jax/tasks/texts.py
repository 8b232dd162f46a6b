"""Texts or pairs of texts with labels: examples, windows, scores and files of predictions.

GLUE, the tasks on the user's texts and tasks like them are `text_task` over `read_texts`.

    n: examples, L: labels, W: windows, T: tokens of all windows
"""

import csv
import dataclasses
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from ml_collections import ConfigDict

from bert_jax.data import table
from bert_jax.data.packing import Units
from bert_jax.data.pairs import TextWindows, text_windows
from bert_jax.heads import HEADS
from bert_jax.heads.classification import Classification
from bert_jax.inference.engine import Outputs
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.hosts import say
from bert_jax.tasks.labelled import (
    EvalSet,
    LabelledTask,
    Results,
    Tokenization,
    open_tokenization,
)
from bert_jax.tasks.labels import LabelParser, NumericLabels
from bert_jax.tasks.metrics import METRICS, of_each_class
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

    def take(self, rows: np.ndarray) -> Self:
        """Some of the examples."""
        texts = [[column[i] for i in rows] for column in self.texts]
        labels = None if self.labels is None else self.labels[rows]
        ids = [self.ids[i] for i in rows]
        return dataclasses.replace(self, texts=texts, labels=labels, ids=ids)


def read_texts(
    path: str, texts: Sequence[str], label: str | list[str],
    labels: NumericLabels | LabelParser | None, *,
    id_column: str = '', needs_ids: bool = False, headerless: Sequence[str] = (),
    max_malformed: float = 0.01, keep_empty: bool = True,
) -> TextExamples:
    """Examples of one file.

    Args:
      path: see `table.read_rows`.
      texts: column of the text, or of the two texts.
      label: column of the label; or a list of columns of 0 and 1, one for each label.
      labels: what the labels are; None: they are not read.
      id_column: of the examples' ids, or ''.
      needs_ids: whether this column must be there.
      headerless: all columns of labelled files that have no header.
      max_malformed: share of the rows that may be malformed; one always may, unless this is 0.
      keep_empty: whether examples with an empty text are kept, as benchmarks count them; else they
        are left out, as `predict` refuses them, and counted.

    Raises:
      InputError: a missing column, a label that `labels` refuses, an id that occurs twice, too many
        malformed rows, a file that is empty or cannot be read.
    """
    num_texts = len(texts)
    columns = list(texts)
    if labels is None:
        headerless = ()  # files without labels have a header
    elif isinstance(label, str):
        columns.append(label)
    else:
        columns += label

    def parse(cells: list[Any]) -> tuple[list[str], Any]:
        if labels is None:
            return table.texts_of(cells), None
        if isinstance(label, str):
            label_cell = cells[num_texts]
        else:
            label_cell = _marked_names(label, cells[num_texts:])
        return table.texts_of(cells[:num_texts]), labels.parse(label_cell)

    rows = table.read_table(
        path, columns, parse, id_column=id_column or None,
        optional=[] if needs_ids else [id_column], headerless=headerless,
        max_malformed=max_malformed)
    kept = [i for i, (row_texts, _) in enumerate(rows.values)
            if keep_empty or all(map(has_words, row_texts))]
    say_empty(path, len(rows.values) - len(kept), len(rows.values))
    kept_texts = [rows.values[i][0] for i in kept]
    kept_labels = [rows.values[i][1] for i in kept]
    return TextExamples(
        texts=[list(column) for column in zip(*kept_texts, strict=True)],
        labels=None if labels is None else labels.array(kept_labels),
        ids=[rows.ids[i] for i in kept], source=path)


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


def say_empty(path: str, num_empty: int, num_rows: int) -> None:
    """Says how many rows of a file are left out because a text of theirs is empty.

    Raises:
      InputError: all are.
    """
    if num_empty == num_rows:
        raise InputError(f'{path}: all {num_rows:,} rows have an empty text: is config.data.text '
                         'the right column?')
    if num_empty:
        say(f'{path}: {num_empty:,} of {num_rows:,} rows have an empty text; left out')


def text_task(
    config: ConfigDict, *, head: str, labels: Sequence[str], metrics: Sequence[str],
    train: TextExamples | None, sets: Mapping[str, TextExamples | None], windows: str = 'first',
    id_column: str = '', loss: Mapping[str, Any] | None = None,
) -> LabelledTask:
    """A task on texts.

    Args:
      config: of the run.
      head: 'classification', 'multi_label' or 'regression'.
      labels: names by id; empty for a regression.
      metrics: names in `metrics.METRICS`; the first picks the best evaluation.
      train: examples to train on, or None.
      sets: examples by split, which names the file of predictions; None: the split is missing. Sets
        with labels are scored, the others predicted at the end. The metrics of sets after the first
        are prefixed with the split (less `dev_`).
      windows: one of `config.choices.WINDOWS`, for predictions; training texts are cut.
      id_column: the user's column of ids; empty: predictions are numbered by row.
      loss: arguments of the head besides the number of labels.
    """
    tokenization = open_tokenization(config)
    max_length = config.data.max_seq_length
    train_units = None
    if train is not None:
        cut = _tokenized(train, tokenization, 'first', max_length)
        train_units = _units(train, cut, len(labels))
    text_sets = [
        TextSet(
            split=split, examples=examples,
            windows=_tokenized(examples, tokenization, windows, max_length), head=HEADS[head],
            labels=labels, metrics=metrics, id_column=id_column)
        for split, examples in sets.items() if examples]
    main_split = next(iter(sets))
    evaluated = [x.eval_set(main_split) for x in text_sets if x.examples.labels is not None]
    predicted = [x.eval_set(main_split) for x in text_sets if x.examples.labels is None]
    main = text_sets[0].examples
    inference: dict[str, Any] = {'num_texts': len(main.texts)}
    if windows != 'first':
        inference['windows'] = windows
    return LabelledTask(
        config, tokenization, train=train_units, evaluated=tuple(evaluated),
        predicted=tuple(predicted), metric=metrics[0], head=head, labels=tuple(labels),
        majority_baseline=_majority_baseline(head, metrics, train, main),
        arguments={'num_outputs': len(labels) or 1, **(loss or {})}, inference=inference)


def _tokenized(
    examples: TextExamples, tokenization: Tokenization, windows: str, max_length: int
) -> TextWindows:
    """The windows (one of WINDOWS) of all examples."""
    columns = [tokenization.encode(column) for column in examples.texts]
    second = columns[1] if len(columns) == 2 else None
    return text_windows(
        columns[0], second, windows, max_length=max_length, **tokenization.tokenizer.vocab.ends)


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
    head: str, metrics: Sequence[str], train: TextExamples | None, main: TextExamples
) -> dict[str, float]:
    """Metrics of the main set if all examples get one answer; empty if nothing is trained.

    The answer is the most frequent label; of any number of labels, none; for numbers, any constant.
    """
    truth = main.labels
    if train is None or train.labels is None or truth is None:
        return {}
    answer = np.zeros_like(truth)
    if head == 'classification':
        answer[:] = np.bincount(train.labels).argmax()
    return {name: METRICS[name].compute(answer, truth) for name in metrics}


@dataclasses.dataclass(frozen=True)
class TextSet:
    """Texts that are predicted as a whole, with their scores and files.

    Attributes:
      split: begins the names of the files.
      examples: the n texts or pairs.
      windows: of their tokens.
      head: the class that makes predictions of logits.
      labels: names by id; empty for a regression.
      metrics: names in `metrics.METRICS`.
      id_column: the user's column of ids; empty: examples are numbered by row.
    """

    split: str
    examples: TextExamples
    windows: TextWindows
    head: type[Classification]
    labels: Sequence[str]
    metrics: Sequence[str]
    id_column: str

    def eval_set(self, main_split: str) -> EvalSet:
        """The set as part of a task, in which the metrics of the main split have no prefix."""
        prefix = f"{self.split.removeprefix('dev_')}_"
        if self.split == main_split:
            prefix = ''
        units = _units(self.examples, self.windows, len(self.labels))
        return EvalSet(prefix, units, self.results)

    def results(self, outputs: Outputs) -> Results:
        """Metrics, if there are labels, and the content of files by name."""
        logits = self.windows.combined_logits(self.head, outputs['logits'])
        predictions = self.head.predictions(logits)
        texts = self.head.texts(predictions, self.labels)
        files = {
            f'{self.split}_predictions.tsv': predictions_table(
                self.id_column, self.examples.ids, texts)}
        if self.examples.labels is None:
            return {}, files
        self._warn_of_one_prediction(predictions)
        described = self.head.described(logits, self.labels)
        probabilities = [list(x.get('probabilities', {}).values()) for x in described]
        files[f'{self.split}_examples.csv'] = self._examples_table(texts, probabilities)
        if self.labels:
            files[f'{self.split}_classes.csv'] = self._classes_table(predictions, probabilities)
        return self._scores(logits, predictions), files

    def _scores(self, logits: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
        truth = self.examples.labels
        if truth.ndim == 2:  # labels that the model lacks are never predicted
            num_missing = truth.shape[1] - predictions.shape[1]
            predictions = np.pad(predictions, [(0, 0), (0, num_missing)])
        scores = {name: METRICS[name].compute(predictions, truth) for name in self.metrics}
        return scores | {'loss': self.head.mean_loss(logits, truth)}

    def _warn_of_one_prediction(self, predictions: np.ndarray) -> None:
        """Warns if all examples of a classification are predicted alike and are not."""
        truth = self.examples.labels
        if not self.labels or truth.ndim == 2:
            return
        if len(np.unique(predictions)) == 1 and len(np.unique(truth)) > 1:
            say(f'warning: all predictions are {self.labels[predictions[0]]!r}')

    def _examples_table(
        self, predictions: Sequence[str], probabilities: Sequence[Sequence[float]]
    ) -> str:
        """Texts, label, prediction and the labels' probabilities of each example."""
        examples = self.examples
        # A label that only evaluation has is the id of no label of the model.
        names = [*self.labels, *['(not in training)'] * examples.labels.size]
        truth = self.head.texts(examples.labels, names)
        header = [
            self.id_column or 'index', *('text', 'text_pair')[: len(examples.texts)], 'label',
            'prediction', *[f'probability of {name}' for name in self.labels]]
        columns = zip(
            examples.ids, zip(*examples.texts, strict=True), truth, predictions, probabilities,
            strict=True)
        rows = [[row_id, *texts, label, prediction, *shares]
                for row_id, texts, label, prediction, shares in columns]
        return _table(header, rows)

    def _classes_table(
        self, predictions: np.ndarray, probabilities: Sequence[Sequence[float]]
    ) -> str:
        """Each label's scores and, with one label an example, how often each was predicted."""
        truth = self.examples.labels
        header = ['label', 'count', 'precision', 'recall', 'f1', 'roc_auc']
        scores = of_each_class(predictions, truth, np.array(probabilities))
        rows: list[list[Any]] = [
            [name, *row] for name, row in zip(self.labels, scores, strict=True)]
        if truth.ndim == 1:
            header += [f'predicted {name}' for name in self.labels]
            for i, row in enumerate(rows):
                counts = np.bincount(predictions[truth == i], minlength=len(self.labels))
                row += counts.tolist()
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
    writer.writerow(header)
    writer.writerows([_shown(value) for value in row] for row in rows)
    return content.getvalue()


def _shown(value: Any) -> Any:
    return f'{value:.6g}' if type(value) is float else value
