"""Texts or pairs of texts with labels: examples, windows, scores and files of predictions.

GLUE and tasks like it are `text_task` over `read_texts`. The tasks on the user's files are here:
`classification`, with one or several labels per example, and `regression`.

    n: examples, L: labels, W: windows, T: tokens of all windows
"""

import contextlib
import csv
import dataclasses
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from ml_collections import ConfigDict

from bert_jax.data import table
from bert_jax.data.packing import Units
from bert_jax.data.pairs import TextWindows, text_windows
from bert_jax.heads import HEADS
from bert_jax.heads.classification import Classification
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.hosts import say
from bert_jax.tasks import labelled, several_labels
from bert_jax.tasks.labelled import EvalSet, LabelledTask, ScoredModel
from bert_jax.tasks.metrics import METRICS, check_metrics, of_each_class
from bert_jax.text.wordpiece import has_words


class NumericLabels(NamedTuple):
    """Labels that are numbers, float32; values outside [low, high] are refused."""

    low: float = -3e38
    high: float = 3e38

    def parse(self, cell: Any) -> float:
        """The number in a cell; raises InputError, Malformed."""
        try:
            number = float(table.label_of(cell))
        except ValueError:
            number = math.nan
        if not self.low <= number <= self.high:
            limits = f' from {self.low:g} to {self.high:g}' if self != NumericLabels() else ''
            comma = ', with a point instead of the comma' * (',' in str(cell))
            raise InputError(f"score '{cell}' is not a number{limits}; mend it{comma}")
        return number

    def array(self, numbers: Sequence[float]) -> np.ndarray:
        """All numbers of a file, [n] float32."""
        return np.array(numbers, np.float32)


class LabelParser:
    """Labels that are names: int32 ids [n], or float32 indicators [n, L] if an example has several.

    Attributes:
      names: in the order of their ids. If empty, they are taken from the first file, the training
        file: numbers sorted by size, other names alphabetically.
      only: whether other names are refused.
      several: whether an example has any number of labels.
      numbered: names of labels that are numbers in the file.
      separator: between several names in a cell; empty: `find_form` finds it.
      places: with several labels, whether a cell has a place of 0 or 1 for each of `numbered`.
      met: all names in the file that was read last.
      unseen: names that only later files have. Their ids come after those of `names`, so that no
        prediction equals them and each counts as an error.
    """

    def __init__(
        self, names: Sequence[str] = (), *, only: bool = False, several: bool = False,
        separator: str = '',
    ):
        self.names, self.only = tuple(names), only
        self.several, self.separator, self.places = several, separator, False
        self.numbered: Sequence[str] = ()
        self.met: set[str] = set()
        self.unseen: set[str] = set()

    def find_form(self, path: str, cells: Sequence[Any]) -> None:
        """Finds how cells hold several labels, unless an earlier file told, and says so.

        Raises:
          InputError: they hold places of 0 and 1 without names for these, or several characters may
            separate the labels.
        """
        is_first = not self.met
        if is_first and (places := several_labels.num_places(cells, len(self.numbered))):
            if places != len(self.numbered):
                raise InputError(
                    f'{path}: its labels are lists of {places} places of 0 and 1 (multi-hot): name '
                    f'the label of each place, config.data.label_names=NAME,NAME,... '
                    f'({len(self.numbered)} are named)')
            self.places = True
            say(f'{path}: its labels are places of 0 and 1 (multi-hot), in the order of '
                'config.data.label_names')
        elif not self.separator and not self.places:
            self.separator = several_labels.find_separator(
                path, cells, {*self.names, *self.numbered})
            if self.separator:
                say(f'{path}: labels are separated by {self.separator!r} '
                    '(config.classification.separator)')

    def parse(self, cell: Any) -> list[str]:
        """The names in a cell; raises InputError, Malformed."""
        if self.places:
            return several_labels.names_of_places(cell, self.numbered)
        if self.several:
            labels = several_labels.split_labels(cell, self.separator)
            return [table.named(label, self.numbered) for label in labels]
        if isinstance(cell, list) or _is_list(cell):
            raise InputError('a list of labels: set --config.classification.multi_label=True to '
                             'train on several at once')
        name = table.named(table.label_of(cell), self.numbered)
        if self.only and name not in self.names:
            raise InputError(f"unknown label '{name}'; known are {', '.join(self.names)}: mend it")
        return [name]

    def array(self, labels: Sequence[list[str]]) -> np.ndarray:
        """The labels of all examples of a file, [n] int32 or [n, L] float32; updates the names."""
        spelt = labelled.as_known(
            {name for names in labels for name in names}, self.names or self.numbered)
        labels = [[spelt.get(name, name) for name in names] for names in labels]
        self.met = {name for names in labels for name in names}
        known = set(self.numbered)
        others = self.met - known if self.met & known or not known else set()  # else all unseen
        self.names = self.names or (*self.numbered, *_in_order(others))
        unseen = self.met - set(self.names)
        self.unseen |= unseen
        ids = {name: i for i, name in enumerate([*self.names, *sorted(unseen)])}
        if not self.several:
            return np.array([ids[name] for (name,) in labels], np.int32)
        indicators = np.zeros((len(labels), len(ids)), np.float32)
        for row, names in zip(indicators, labels, strict=True):
            row[[ids[name] for name in names]] = 1.0
        return indicators


def _is_list(cell: Any) -> bool:
    """Whether a text is a list, as JSON, pandas and NumPy write it."""
    if not isinstance(cell, str) or not cell.startswith('['):
        return False
    with contextlib.suppress(InputError):
        return bool(several_labels.parts_of_list(cell))
    return False


def _in_order(names: set[str]) -> tuple[str, ...]:
    """Sorts numbers by size, other names alphabetically; a set's own order varies by process."""
    with contextlib.suppress(ValueError):
        if not any(math.isnan(float(name)) for name in names):
            return tuple(sorted(names, key=lambda name: (float(name), name)))  # 1 and 1.0 are equal
    return tuple(sorted(names))


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
        return dataclasses.replace(
            self, texts=[[column[i] for i in rows] for column in self.texts],
            labels=None if self.labels is None else self.labels[rows],
            ids=[self.ids[i] for i in rows])


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
    n, columns = len(texts), [label] if isinstance(label, str) else label

    def parse(cells: list[Any]) -> tuple[list[str], Any]:
        marks = cells[n:] if isinstance(label, str) else [
            [name for name, cell in zip(columns, cells[n:]) if _marked(name, cell)]]
        return table.texts_of(cells[:n]), labels.parse(*marks) if labels else None

    rows = table.read_table(
        path, [*texts, *columns] if labels else texts, parse, id_column=id_column or None,
        optional=[] if needs_ids else [id_column], headerless=headerless if labels else (),
        max_malformed=max_malformed)
    kept = [i for i, (cells, _) in enumerate(rows.values)
            if keep_empty or all(map(has_words, cells))]
    say_empty(path, len(rows.values) - len(kept), len(rows.values))
    values = [rows.values[i] for i in kept]
    return TextExamples(
        texts=[[cells[i] for cells, _ in values] for i in range(n)],
        labels=labels.array([label for _, label in values]) if labels else None,
        ids=[rows.ids[i] for i in kept], source=path)


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


def _marked(name: str, cell: Any) -> bool:
    """Whether a cell of the label's column says that the example has it; raises Malformed."""
    text = table.label_text(cell).lower()
    if text not in ('', '0', '0.0', 'false', '1', '1.0', 'true'):
        raise table.Malformed(f"'{name}' is {text!r}, where 0 or 1 is wanted")
    return text in ('1', '1.0', 'true')


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
      windows: one of WINDOWS, for predictions; training texts are cut.
      id_column: the user's column of ids; empty: predictions are numbered by row.
      loss: arguments of the head besides the number of labels.
    """
    t, decoding = labelled.open_tokenization(config), HEADS[head]

    def cut(examples: TextExamples, how: str) -> tuple[TextWindows, Units]:
        ids = list(map(t.encode, examples.texts))
        read = text_windows(ids[0], ids[1] if len(ids) == 2 else None, how,
                            max_length=config.data.max_seq_length, **t.tokenizer.vocab.ends)
        if examples.labels is None:
            return read, Units(read.sequences)
        # Labels that the model lacks count in the scores, but its outputs do not have them.
        known = examples.labels[:, : len(labels)] if head == 'multi_label' else examples.labels
        return read, Units(read.sequences, labels={'labels': known[read.text]})

    def eval_set(split: str, examples: TextExamples) -> EvalSet:
        read, units = cut(examples, windows)
        truth = examples.labels

        def results(outputs: labelled.Outputs) -> labelled.Results:
            logits = read.combined_logits(decoding, outputs['logits'])
            predictions = decoding.predictions(logits)
            files = {f'{split}_predictions.tsv': predictions_table(
                id_column, examples.ids, decoding.texts(predictions, labels))}
            if truth is None:
                return {}, files
            files |= _tables(split, id_column, examples, labels, decoding, logits)
            if truth.ndim == 1 and labels and len(set(predictions)) == 1 < len(set(truth)):
                say(f'warning: all predictions are {labels[predictions[0]]!r}')
            if truth.ndim == 2:  # labels that the model lacks are never predicted
                missing = truth.shape[1] - predictions.shape[1]
                predictions = np.pad(predictions, [(0, 0), (0, missing)])
            scores = {name: METRICS[name].compute(predictions, truth) for name in metrics}
            return scores | {'loss': decoding.mean_loss(logits, truth)}, files

        first = split == next(iter(sets))
        return EvalSet('' if first else f"{split.removeprefix('dev_')}_", units, results)

    there = [(split, examples) for split, examples in sets.items() if examples]
    majority_baseline, truth = {}, there[0][1].labels
    if train is not None and train.labels is not None and truth is not None:
        answer = np.zeros_like(truth)  # no label of several; for numbers, any constant
        if head == 'classification':
            answer[:] = np.bincount(train.labels).argmax()
        majority_baseline = {name: METRICS[name].compute(answer, truth) for name in metrics}
    return LabelledTask(
        config, t, train=None if train is None else cut(train, 'first')[1],
        evaluated=tuple(eval_set(*x) for x in there if x[1].labels is not None),
        predicted=tuple(eval_set(*x) for x in there if x[1].labels is None),
        metric=metrics[0], head=head, labels=tuple(labels), majority_baseline=majority_baseline,
        arguments={'num_outputs': len(labels) or 1, **(loss or {})},
        inference={'num_texts': len(there[0][1].texts)} | (
            {} if windows == 'first' else {'windows': windows}))


def predictions_table(id_column: str, ids: Sequence[str], values: Iterable[str]) -> str:
    """The content of a TSV of predictions: `index` (or the user's id column) and `prediction`.

    `index` is the row of the example in its file, from 0. A value that holds a TAB or a line end is
    quoted. `tools.glue_submission` reads such files.
    """
    return _table([id_column or 'index', 'prediction'], zip(ids, values, strict=True), '\t')


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]], delimiter: str = ',') -> str:
    content = io.StringIO()
    writer = csv.writer(content, delimiter=delimiter, lineterminator='\n')
    writer.writerow(header)
    writer.writerows([f'{x:.6g}' if type(x) is float else x for x in row] for row in rows)
    return content.getvalue()


def _tables(
    split: str, id_column: str, examples: TextExamples, labels: Sequence[str],
    decoding: type[Classification], logits: np.ndarray,
) -> dict[str, str]:
    """The content of the files that a scored split gets, by their names.

    `SPLIT_examples.csv`: texts, label, prediction, probabilities. `SPLIT_classes.csv`: each
    label's scores and, with one label per example, how often each label was predicted for it.
    """
    truth, predictions = examples.labels, decoding.predictions(logits)
    probabilities = [list(x.get('probabilities', {}).values())
                     for x in decoding.described(logits, labels)]
    names = [*labels, *['(not in training)'] * truth.size]
    files = {f'{split}_examples.csv': _table(
        [id_column or 'index', *('text', 'text_pair')[: len(examples.texts)], 'label', 'prediction',
         *(f'probability of {name}' for name in labels)],
        zip(examples.ids, *examples.texts, decoding.texts(truth, names),
            decoding.texts(predictions, labels), *zip(*probabilities), strict=True))}
    if labels:
        scores = of_each_class(predictions, truth, np.array(probabilities))
        counts = [np.bincount(predictions[truth == i], minlength=len(labels)).tolist()
                  for i in range(len(labels))] if truth.ndim == 1 else [[]] * len(labels)
        files[f'{split}_classes.csv'] = _table(
            ['label', 'count', 'precision', 'recall', 'f1', 'roc_auc',
             *(f'predicted {name}' for name in labels[: len(counts[0])])],
            [[name, *of, *row] for name, of, row in zip(labels, scores, counts, strict=True)])
    return files


# Names of columns that are read where there is no column of the default name, nor another of these.
_USUAL_TEXTS = ('text', 'sentence', 'review', 'comment', 'tweet', 'content', 'body', 'document')
_USUAL_LABELS = ('label', 'labels', 'class', 'category', 'sentiment', 'intent', 'target')
_USUAL_NUMBERS = (*_USUAL_LABELS, 'score', 'rating', 'similarity')
_USUAL_METRICS = {'classification': 'accuracy,macro_f1', 'regression': 'spearman,pearson',
                  'multi_label': 'micro_f1,macro_f1,accuracy'}


def open_own_texts(config: ConfigDict, scored: ScoredModel | None = None) -> LabelledTask:
    """Classification or regression of the user's texts; the training file determines the labels."""
    c, d = config[config.task], config.data
    several = config.task == 'classification' and c.multi_label
    head = 'multi_label' if several else config.task
    marks = [name.strip() for name in d.label.split(',')] if several and ',' in d.label else []
    names = LabelParser((scored.labels if scored else ()) or marks,
                  several=several, separator=c.separator if several else '')

    def read(path: str) -> TextExamples:
        text = table.column_or_usual(path, d.text, _USUAL_TEXTS, 'config.data.text')
        label = table.column_or_usual(
            path, d.label, _USUAL_NUMBERS if head == 'regression' else _USUAL_LABELS,
            'config.data.label')
        names.numbered = labelled.label_names(config, path, label)
        if several and not marks:
            names.find_form(path, [
                row.cells[0] for row in table.read_rows(path, [label]) if not row.fault])
        examples = read_texts(
            path, [text, d.text_pair] if d.text_pair else [text], marks or label,
            NumericLabels() if head == 'regression' else names, id_column=d.id, needs_ids=True,
            max_malformed=d.max_malformed, keep_empty=False)
        if head != 'regression' and len(names.names) < 2 - several:
            raise InputError(
                f"{path} has one label, {', '.join(names.names) or 'none'}: there is nothing to "
                'learn; is config.data.label the right column?')
        return examples

    train, dev = labelled.own_files(
        config, scored, read, lambda x: list(map('\n'.join, zip(x.texts[0], x.texts[-1]))))
    shown, loss = dev if train is None else train, {}
    labels = shown.labels
    if head == 'regression':
        say(f'numbers from {labels.min():g} to {labels.max():g}, mean {labels.mean():g}, deviation '
            f'{labels.std():g}')
    else:
        if names.unseen:
            labelled.check_labels_known(dev.source, names.met, names.names)
            say(f"note: {', '.join(sorted(names.unseen)[:10])} occur only in evaluation and count "
                'as errors')
        counts = (labels.sum(axis=0).astype(int) if several
                  else np.bincount(labels, minlength=len(names.names)))
        say('labels: ' + ', '.join(
            f'{name} {n:,} ({n / len(shown):.0%})' for name, n in zip(names.names, counts)))
        if sum(bool(re.fullmatch(r'-?[0-9]+\.[0-9]+', name)) for name in names.names) > 2:
            say('warning: each number is a class here: configs/regression.py predicts numbers')
        loss = {'class_weights': _class_weights(c.class_weights, names.names, counts),
                'label_smoothing': c.label_smoothing}
        loss = {name: value for name, value in loss.items() if value}
        if loss and several:
            raise InputError(
                f"config.classification: {', '.join(loss)} are for one label an example")
    metrics = check_metrics(
        [name.strip() for name in (c.metrics or _USUAL_METRICS[head]).split(',')], head,
        len(names.names), f'config.{config.task}.metrics')
    task = text_task(
        config, head=head, labels=names.names, metrics=metrics, train=train, sets={'dev': dev},
        windows=c.windows or 'first', id_column=d.id, loss=loss)
    units = task.train or task.evaluated[0].units
    say(f'{len(shown):,} examples of {np.median(units.lengths):.0f} tokens (half of them), at most '
        f'{units.lengths.max()}; {units.sequences.num_cut:,} are cut at '
        f'config.data.max_seq_length={d.max_seq_length}')
    return task


def _class_weights(text: str, names: Sequence[str], counts: np.ndarray) -> tuple[float, ...]:
    """The weights in `classification.class_weights`: 'balanced' (scikit-learn's), 'LABEL=2.5, ...'.

    Raises:
      InputError: neither of these, or an unknown label.
    """
    if text in ('', 'balanced'):
        if not text:
            return ()
        # A class that only held-out rows have is not trained, and its weight never used.
        n = counts[: len(names)]
        weights_of_all = n.sum() / (np.count_nonzero(n) * np.maximum(n, 1))
        return tuple(np.where(n > 0, weights_of_all, 1.0).tolist())
    weights = dict.fromkeys(names, 1.0)
    for part in text.split(','):
        name, _, value = (x.strip() for x in part.rpartition('='))
        if name not in weights or not re.fullmatch(r'[0-9]+(\.[0-9]+)?', value):
            raise InputError(f"config.classification.class_weights={text!r}: write 'balanced', or "
                             f"LABEL=NUMBER between commas; the labels are {', '.join(names)}")
        weights[name] = float(value)
    return tuple(weights.values())
