"""Texts or pairs of texts with a label each: examples, windows, scores and files of predictions.

GLUE and tasks like it are `text_task` over `read_texts`. The tasks on the user's files are here:
`classification`, with one label an example or several, and `regression`.

    n: examples, L: labels, W: windows, T: tokens of all windows
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bert_jax.data.packing import Units
from bert_jax.data.pairs import WINDOWS, TextWindows, text_windows
from bert_jax.heads import HEADS
from bert_jax.runtime.errors import InputError, nearest
from bert_jax.runtime.files import Path, write_whole
from bert_jax.runtime.hosts import say
from bert_jax.tasks.labelled import (
    EvalSet,
    LabelledData,
    LabelledTask,
    Outputs,
    ScoredModel,
    Tokenization,
    check_labels_known,
    open_tokenization,
    own_files,
)
from bert_jax.tasks.metrics import METRICS, check_metrics
from bert_jax.tasks.table import (
    Rows,
    label_ids,
    label_of,
    label_text,
    read_table,
    row_ids,
    texts_of,
)

# From the rows of a file and the label in each, to labels as arrays [n, ...].
Convert = Callable[[Rows, Sequence[Any]], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Columns:
    """Names of a file's columns.

    Attributes:
      texts: of the text or the two texts.
      label: of the label.
      id: of the examples' ids; a file may lack it, unless `read_texts` needs it.
      headerless: all columns of labelled files that have no header.
    """

    texts: tuple[str, ...]
    label: str
    id: str = ''
    headerless: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class TextExamples:
    """n examples, in the order of the file.

    Attributes:
      text_a: the text, or the first of a pair.
      text_b: the second; None: single texts.
      labels: [n] int32 ids, float32 numbers, or [n, L] float32 of 0 and 1; None: there are none.
      ids: from the file's column of ids, or the row in the file from 0.
      source: file or data set, for messages.
    """

    text_a: list[str]
    text_b: list[str] | None
    labels: np.ndarray | None
    ids: list[str]
    source: str

    def __len__(self) -> int:
        return len(self.text_a)

    def labelled(self) -> np.ndarray:
        """The labels of examples that are to be trained on or scored.

        Raises:
          InputError: they have none.
        """
        if self.labels is None:
            raise InputError(
                f'{self.source} has no labels: it can be predicted, not trained on or scored'
            )
        return self.labels

    def take(self, rows: np.ndarray) -> TextExamples:
        """Some of the examples."""
        return dataclasses.replace(
            self, text_a=[self.text_a[i] for i in rows],
            text_b=None if self.text_b is None else [self.text_b[i] for i in rows],
            labels=None if self.labels is None else self.labels[rows],
            ids=[self.ids[i] for i in rows],
        )


def read_texts(
    path: str, columns: Columns, convert: Convert | None, *, max_malformed: float = 0.01,
    needs_ids: bool = False,
) -> TextExamples:
    """Examples of one file.

    Args:
      path: see `table.read_rows`.
      columns: names of its columns.
      convert: makes arrays of labels; None: labels are not read.
      max_malformed: share of the rows that may be malformed; one always may, unless this is 0.
      needs_ids: whether the column of ids must be there.

    Raises:
      InputError: a missing column, what `convert` refuses, an id that occurs twice, too many
        malformed rows, a file that is empty or cannot be read.
    """
    id_column = [columns.id] if columns.id else []
    label_column = [columns.label] if convert else []
    n = len(columns.texts)

    def parse(cells: list[Any]) -> tuple[list[str], Any, Any]:
        label = cells[n] if convert else None
        if convert and not isinstance(label, list):
            # An example of a multi-label task may have none.
            label = label_text(label) if getattr(convert, 'several', False) else label_of(label)
        return texts_of(cells[:n]), label, cells[-1] if id_column else None

    rows = read_table(
        path, [*columns.texts, *label_column, *id_column], parse, max_malformed=max_malformed,
        optional=[] if needs_ids else id_column, headerless=columns.headerless if convert else (),
    )
    ids = row_ids(rows, [row_id for _, _, row_id in rows.values])
    return TextExamples(
        text_a=[texts[0] for texts, _, _ in rows.values],
        text_b=[texts[1] for texts, _, _ in rows.values] if n == 2 else None,
        labels=convert(rows, [label for _, label, _ in rows.values]) if convert else None,
        ids=ids, source=path,
    )


def known_names(known: Sequence[str]) -> Convert:
    """Names to ids; one that is not known is an error."""
    return lambda rows, labels: label_ids(rows, labels, known)


def numbers(low: float = -math.inf, high: float = math.inf) -> Convert:
    """Numbers as they are, refused outside of [low, high]."""
    def convert(rows: Rows, labels: Sequence[Any]) -> np.ndarray:
        values = np.empty(len(labels), np.float32)
        for i, label in enumerate(labels):
            try:
                values[i] = float(label)
            except (TypeError, ValueError):
                values[i] = np.nan
            if not (low <= values[i] <= high and np.isfinite(values[i])):
                wanted = f'a number from {low:g} to {high:g}' if high < math.inf else 'a number'
                raise InputError(f"{rows.place(i)}: score '{label}' is not {wanted}; mend it")
        return values

    return convert


class LearntNames:
    """Names of labels that the training file decides, unless they are known from a trained model.

    Attributes:
      several: whether an example has any number of labels: a list in JSON lines, else names
        between `separator`s.
      names: in the order of their ids; numbers by size, else by the alphabet.
      met: all names of the file that was read last.
      unseen: names that only later files have. Their ids come after those of `names`, so that no
        prediction equals them and each counts as an error.
    """

    def __init__(
        self, several: bool = False, separator: str = ',', names: tuple[str, ...] = ()
    ):
        self.several, self.separator = several, separator
        self.names = names
        self.met: set[str] = set()
        self.unseen: set[str] = set()

    def __call__(self, rows: Rows, labels: Sequence[Any]) -> np.ndarray:
        names_n = [self._names(rows, i, label) for i, label in enumerate(labels)]
        self.met = {name for names in names_n for name in names}
        if not self.names:
            self.names = _in_order(self.met)
            if len(self.names) < 2 - self.several:
                raise InputError(
                    f"{rows.path} has one label, {', '.join(self.names) or 'none'}: there is "
                    'nothing to learn; is config.data.label the right column?'
                )
        unseen = self.met - set(self.names)
        self.unseen |= unseen
        ids = {name: i for i, name in enumerate([*self.names, *sorted(unseen)])}
        if not self.several:
            return np.array([ids[name] for (name,) in names_n], np.int32)
        indicators = np.zeros((len(names_n), len(ids)), np.float32)
        for row, names in zip(indicators, names_n, strict=True):
            row[[ids[name] for name in names]] = 1.0
        return indicators

    def _names(self, rows: Rows, i: int, label: Any) -> list[str]:
        if not self.several:
            if isinstance(label, list):
                raise InputError(
                    f'{rows.place(i)} has a list of labels: set '
                    '--config.classification.multi_label=True to train on several at once'
                )
            return [label]
        if isinstance(label, str) and label.lstrip().startswith('['):
            try:
                label = json.loads(label)
            except ValueError:
                raise InputError(f'{rows.place(i)}: {label!r} is no list; mend it') from None
        parts = label if isinstance(label, list) else label.split(self.separator)
        return [name for part in parts if (name := label_text(part))]


def _in_order(names: set[str]) -> tuple[str, ...]:
    """Numbers by size, else by the alphabet: one order, whatever order a set has in a process."""
    try:
        numbers = {name: float(name) for name in names}
    except ValueError:
        return tuple(sorted(names))
    if any(math.isnan(number) for number in numbers.values()):
        return tuple(sorted(names))
    return tuple(sorted(names, key=lambda name: (numbers[name], name)))  # '1' and '1.0' are equal


def text_task(
    config: ConfigDict, t: Tokenization, *, head: str, labels: Sequence[str],
    metrics: Sequence[str], train: TextExamples | None, evaluated: Mapping[str, TextExamples],
    predicted: Mapping[str, TextExamples], prefixes: Mapping[str, str] | None = None,
    windows: str = 'first', id_column: str = '', loss: Mapping[str, Any] | None = None,
) -> LabelledTask:
    """A task on texts.

    Args:
      config: of the run.
      t: how texts become ids.
      head: 'classification', 'multi_label' or 'regression'.
      labels: names by id; none of a regression.
      metrics: names in `metrics.METRICS`; the first picks the best evaluation.
      train: what is trained on, or None.
      evaluated, predicted: by the name of the split, which the file of predictions has.
      prefixes: of the metrics of some splits.
      windows: one of WINDOWS, of what is predicted; what is trained on is cut.
      id_column: that the user named; empty: predictions are numbered by row.
      loss: arguments of the head beside the number of labels.
    """
    def units(examples: TextExamples, how: str, labelled: bool) -> tuple[TextWindows, Units]:
        b = None if examples.text_b is None else t.encode(examples.text_b)
        read = text_windows(
            t.encode(examples.text_a), b, how, max_length=t.max_length, **t.vocab.ends)
        if not labelled:
            return read, Units(read.sequences)
        known = examples.labelled()
        if known.ndim == 2:  # a label that the model does not have is scored, not computed
            known = known[:, : len(labels)]
        return read, Units(read.sequences, labels={'labels': known[read.text]})

    def eval_set(split: str, examples: TextExamples, labelled: bool) -> EvalSet:
        read, of_windows = units(examples, windows, labelled)

        of_head = HEADS[head]

        def score(outputs: Outputs) -> dict[str, float]:
            logits = read.combined_logits(of_head, outputs['logits'])
            predictions, truth = of_head.predictions(logits), examples.labelled()
            loss = of_head.mean_loss(logits, truth)
            if truth.ndim == 1 and labels and len(set(predictions)) == 1 < len(set(truth)):
                say(f'warning: all predictions are {labels[predictions[0]]!r}')
            if truth.ndim == 2:  # labels that the model does not have are never predicted
                missing = truth.shape[1] - predictions.shape[1]
                predictions = np.pad(predictions, [(0, 0), (0, missing)])
            return {name: METRICS[name].compute(predictions, truth) for name in metrics} | {
                'loss': loss}

        def write(outputs: Outputs, folder: Path) -> None:
            predictions = of_head.predictions(read.combined_logits(of_head, outputs['logits']))
            write_predictions(folder / f'{split}_predictions.tsv', id_column, examples.ids,
                              of_head.texts(predictions, labels))

        return EvalSet((prefixes or {}).get(split, ''), of_windows,
                       score if labelled else None, write)

    return LabelledTask(config, t, LabelledData(
        train=None if train is None else units(train, 'first', True)[1],
        evaluated=tuple(eval_set(*item, True) for item in evaluated.items()),
        predicted=tuple(eval_set(*item, False) for item in predicted.items()),
        metric=metrics[0], head=head, labels=tuple(labels),
        objective={'num_outputs': len(labels) or 1, **(loss or {})},
        inference={} if windows == 'first' else {'windows': windows},
    ))


def write_predictions(
    path: Path, id_column: str, ids: Sequence[str], values: Iterable[str]
) -> None:
    """Writes a TSV file with `index` (or the user's id column) and `prediction` of each example.

    `index` is the row of the example in its file, from 0. A value that holds a TAB or a line end is
    quoted. `tools.glue_submission` reads such files.
    """
    content = io.StringIO()
    writer = csv.writer(content, delimiter='\t', lineterminator='\n')
    writer.writerow([id_column or 'index', 'prediction'])
    writer.writerows(zip(ids, values, strict=True))
    write_whole(path, content.getvalue())


def open_classification(
    config: ConfigDict, scored: ScoredModel | None = None
) -> LabelledTask:
    """Classification of the user's texts; the training file determines the labels."""
    c = config.classification
    head = 'multi_label' if c.multi_label else 'classification'
    metrics = _metrics(config, head, 'micro_f1,macro_f1,accuracy' if c.multi_label
                       else 'accuracy,macro_f1')
    names = LearntNames(c.multi_label, c.separator, scored.labels if scored else ())
    train, dev = _read(config, names, scored)
    shown = dev if train is None else train
    if names.unseen:
        check_labels_known(dev.source, names.met, names.names)
    labels = shown.labelled()
    counts = (labels.sum(axis=0).astype(int) if c.multi_label
              else np.bincount(labels, minlength=len(names.names)))
    say('labels: ' + ', '.join(
        f'{name} {n:,} ({n / len(shown):.0%})' for name, n in zip(names.names, counts)))
    if names.unseen:
        unseen = ', '.join(sorted(names.unseen)[:10])
        say(f'note: {unseen} occur only in evaluation and count as errors')
    check_metrics(metrics, head, len(names.names), 'config.classification.metrics')
    loss: dict[str, Any] = {}
    if weights := _class_weights(c.class_weights, names.names, counts):
        loss['class_weights'] = weights
    if c.label_smoothing:
        loss['label_smoothing'] = c.label_smoothing
    if loss and c.multi_label:
        raise InputError(f'config.classification: {", ".join(loss)} are for one label an example')
    return _task(config, head, names.names, metrics, train, dev, loss)


def _class_weights(
    text: str, names: Sequence[str], counts: np.ndarray
) -> tuple[float, ...]:
    """`classification.class_weights` by label: 'balanced', as scikit-learn's, or 'LABEL=2.5, ...'.

    Raises:
      InputError: neither of these, or an unknown label.
    """
    if text in ('', 'balanced'):
        n = counts[: len(names)]
        return tuple((n.sum() / (len(n) * np.maximum(n, 1))).tolist()) if text else ()
    weights = dict.fromkeys(names, 1.0)
    for part in text.split(','):
        name, equals, value = (x.strip() for x in part.rpartition('='))
        if name not in weights or not equals or not re.fullmatch(r'[0-9]+(\.[0-9]+)?', value):
            raise InputError(f"config.classification.class_weights={text!r}: write 'balanced', or "
                             f"LABEL=NUMBER between commas; the labels are {', '.join(names)}")
        weights[name] = float(value)
    return tuple(weights.values())


def open_regression(
    config: ConfigDict, scored: ScoredModel | None = None
) -> LabelledTask:
    """Regression on the user's texts; the label is a number."""
    metrics = _metrics(config, 'regression', 'spearman,pearson')
    train, dev = _read(config, numbers(), scored)
    labels = (dev if train is None else train).labelled()
    say(f'numbers from {labels.min():g} to {labels.max():g}, mean {labels.mean():g}, deviation '
        f'{labels.std():g}')
    return _task(config, 'regression', (), metrics, train, dev)


def _metrics(config: ConfigDict, head: str, usual: str) -> tuple[str, ...]:
    """Names of the metrics; the first picks the best evaluation."""
    names = [name.strip() for name in (config[config.task].metrics or usual).split(',')]
    return check_metrics(names, head, field=f'config.{config.task}.metrics')


def _read(
    config: ConfigDict, convert: Convert, scored: ScoredModel | None
) -> tuple[TextExamples | None, TextExamples]:
    """Training examples (None where a model is only scored) and evaluation examples."""
    d = config.data
    columns = Columns((d.text, *([d.text_pair] if d.text_pair else [])), d.label, d.id)

    def read(path: str) -> TextExamples:
        return read_texts(
            path, columns, convert, max_malformed=d.max_malformed, needs_ids=bool(d.id))

    def contents(examples: TextExamples) -> list[str]:
        return ['\n'.join(x) for x in zip(examples.text_a, examples.text_b or examples.text_a)]

    return own_files(
        config, read, contents, meaning='a .csv, .tsv or .jsonl file', what='examples',
        training=scored is None,
    )


def _task(
    config: ConfigDict, head: str, labels: tuple[str, ...], metrics: tuple[str, ...],
    train: TextExamples | None, dev: TextExamples, loss: Mapping[str, Any] | None = None,
) -> LabelledTask:
    windows = config[config.task].windows or 'first'
    if windows not in WINDOWS:
        raise InputError(
            f'config.{config.task}.windows={windows!r} is unknown: {nearest(windows, WINDOWS)}')
    task = text_task(
        config, open_tokenization(config), head=head, labels=labels, metrics=metrics, train=train,
        evaluated={'dev': dev}, predicted={}, windows=windows, id_column=config.data.id,
        loss=loss,
    )
    units = task.data.train or task.data.evaluated[0].units
    say(f'{len(dev if train is None else train):,} examples of {np.median(units.lengths):.0f} '
        f'tokens (half of them), at most {units.lengths.max()}; {units.sequences.num_cut:,} are '
        f'cut at config.data.max_seq_length={config.data.max_seq_length}')
    return task
