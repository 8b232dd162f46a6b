"""Classification and regression of the user's own texts or pairs of texts.

A file of the user is read in the order: its columns, how its cells hold labels, its examples. The
first file determines the labels of a classification.
"""

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bert_jax.rows import table
from bert_jax.runtime.errors import InputError, counted
from bert_jax.runtime.hosts import say
from bert_jax.tasks.handles import ScoredModel
from bert_jax.tasks.labelled import LabelledTask
from bert_jax.tasks.labels import (
    LabelFormat,
    LabelParser,
    NumericLabels,
    check_labels_known,
    find_format,
    label_names,
    nearest_label,
    warn_of_rare,
)
from bert_jax.tasks.metrics import check_metrics
from bert_jax.tasks.sources import own_files
from bert_jax.tasks.texts import (
    TextColumns,
    TextExamples,
    TextHead,
    label_counts,
    read_texts,
    text_task,
)

# Names of the columns that are read where the config names none: the first, or, if the file lacks
# it, the only other one that it has.
_USUAL_TEXTS = ('text', 'sentence', 'review', 'comment', 'tweet', 'content', 'body', 'document')
_USUAL_LABELS = ('label', 'labels', 'class', 'category', 'sentiment', 'intent', 'target')
_USUAL_NUMBERS = (*_USUAL_LABELS, 'score', 'rating', 'similarity')
_USUAL_METRICS = {'classification': 'accuracy,macro_f1', 'regression': 'spearman,pearson',
                  'multi_label': 'micro_f1,macro_f1,accuracy'}
_DECIMAL = re.compile(r'-?[0-9]+\.[0-9]+')


def open_regression(config: ConfigDict, scored: ScoredModel | None = None) -> LabelledTask:
    """A number for each of the user's texts."""

    def read(path: str) -> TextExamples:
        texts = _text_columns(config, path)
        label = table.column_or_usual(
            path, config.data.label, _USUAL_NUMBERS, 'config.data.label')
        return _read_examples(config, path, texts, label, NumericLabels())

    train, dev = own_files(config, scored, read, _contents)
    numbers = dev.labels
    if train is not None:
        numbers = train.labels
    say(f'numbers from {numbers.min():g} to {numbers.max():g}, mean {numbers.mean():g}, deviation '
        f'{numbers.std():g}')
    return _own_text_task(config, _own_head(config, 'regression', ()), train, dev)


def open_classification(config: ConfigDict, scored: ScoredModel | None = None) -> LabelledTask:
    """One label, or with `classification.multi_label` any number, for each of the user's texts."""
    labels = _OwnLabels(config, scored)
    train, dev = own_files(config, scored, labels.read, _contents)
    if labels.unseen:
        check_labels_known(dev.source, labels.met, labels.names, is_training=scored is None)
        say(f'note: {_with_near(labels.unseen, labels.names)} occur only in evaluation and count '
            'as errors')
    examples = dev
    if train is not None:
        examples = train
    counts = label_counts(examples.labels, len(labels.names))
    _say_labels(labels.names, counts, len(examples))
    if train is not None:
        warn_of_rare(dict(zip(labels.names, counts.tolist())))
    loss = _loss_arguments(config, labels.names, counts, len(examples))
    head_name = 'classification'
    if labels.several:
        head_name = 'multi_label'
    head = _own_head(config, head_name, labels.names, loss)
    return _own_text_task(config, head, train, dev)


def _with_near(unseen: Collection[str], known: Sequence[str]) -> str:
    """Labels that the model does not have, with those that are perhaps meant."""
    shown: list[str] = []
    for name in sorted(unseen)[:10]:
        near = nearest_label(name, known)
        shown.append(f'{name} (near {near})' if near else name)
    return ', '.join(shown)


class _OwnLabels:
    """The labels of the user's files. What the first file has holds for later files too.

    Attributes:
      several: whether an example has any number of labels.
      names: of the labels, by id.
      met: all names in the file that was read last.
      unseen: names that only later files have.
    """

    def __init__(self, config: ConfigDict, scored: ScoredModel | None):
        section = config[config.task]
        self._config = config
        self.several = section.multi_label
        # Columns of 0 and 1, one for each label; empty: one column holds the labels.
        self._marks: list[str] = []
        if self.several and ',' in (config.data.label or ''):
            self._marks = [name.strip() for name in config.data.label.split(',')]
        self.names: tuple[str, ...] = tuple(self._marks)
        if scored and scored.labels:
            self.names = tuple(scored.labels)
        self.met: set[str] = set()
        self.unseen: set[str] = set()
        self._format = LabelFormat()
        if self.several:
            self._format = LabelFormat(several=True, separator=section.separator)

    def read(self, path: str) -> TextExamples:
        """The examples of a file.

        Raises:
          InputError: the file cannot be read, or leaves nothing to learn.
        """
        texts = _text_columns(self._config, path)
        label = table.column_or_usual(
            path, self._config.data.label, _USUAL_LABELS, 'config.data.label')
        self._format = self._format_of(path, label)
        parser = LabelParser(self.names, format=self._format)
        examples = _read_examples(self._config, path, texts, self._marks or label, parser)
        self.names = parser.names
        self.met = parser.met
        self.unseen |= parser.unseen
        has_too_few = len(self.names) < 2
        if self.several:
            has_too_few = not self.names
        if has_too_few:
            raise InputError(
                f"{path} has one label, {', '.join(self.names) or 'none'}: there is nothing to "
                'learn; is config.data.label the right column?')
        return examples

    def _format_of(self, path: str, label: str) -> LabelFormat:
        """How the file's column holds labels."""
        usual = dataclasses.replace(
            self._format, numbered=label_names(self._config, path, label))
        if not self.several or self._marks:
            return usual
        cells: list[Any] = []
        for row in table.read_rows(path, [label]):
            if not row.fault:
                (cell,) = row.cells
                _check_labels(path, row.line, cell)
                cells.append(cell)
        return find_format(path, cells, usual, names=self.names, is_first=not self.met)


def _check_labels(path: str, line: int, cell: Any) -> None:
    """Refuses a cell that holds no label and no list of labels."""
    for part in cell if isinstance(cell, (list, tuple)) else [cell]:
        try:
            table.label_text(part)
        except InputError as error:
            raise InputError(f'{path}, line {line}: {error}') from None


def _text_columns(config: ConfigDict, path: str) -> list[str]:
    """The columns of the text, or of the two texts."""
    text = table.column_or_usual(path, config.data.text, _USUAL_TEXTS, 'config.data.text')
    if config.data.text_pair:
        return [text, config.data.text_pair]
    return [text]


def _read_examples(
    config: ConfigDict, path: str, texts: Sequence[str], label: str | list[str],
    labels: NumericLabels | LabelParser,
) -> TextExamples:
    columns = TextColumns(texts, label, id=config.data.id, needs_ids=True)
    return read_texts(
        path, columns, labels, max_malformed=config.data.max_malformed, keep_empty=False)


def _contents(examples: TextExamples) -> list[str]:
    """The content that decides what is held out: both texts of a pair, or a single text twice."""
    pairs = zip(examples.texts[0], examples.texts[-1], strict=True)
    return ['\n'.join(pair) for pair in pairs]


def _say_labels(names: Sequence[str], counts: np.ndarray, num_examples: int) -> None:
    """Says how frequent the labels are, with a warning if they look like scores."""
    shown: list[str] = []
    for name, count in zip(names, counts):
        share = count / num_examples
        shown.append(f'{name} {count:,} ({share:.0%})')
    say(f"labels: {', '.join(shown)}")
    decimals = list(filter(_DECIMAL.fullmatch, names))
    if len(decimals) > 2:
        say('warning: each number is a class here: configs/regression.py predicts numbers')


def _loss_arguments(
    config: ConfigDict, names: Sequence[str], counts: np.ndarray, num_examples: int
) -> dict[str, Any]:
    """The arguments of the head that change the loss from plain cross-entropy.

    Args:
      config: of the run.
      names: of the labels.
      counts: examples of each label.
      num_examples: of the training file.

    Raises:
      InputError: one of them does not suit examples with several labels, or is no value of its
        field.
    """
    section = config[config.task]
    loss: dict[str, Any] = {}
    several = num_examples if section.multi_label else 0
    weights = class_weights(section.class_weights, names, counts, several)
    if weights:
        loss['class_weights'] = weights
    if section.label_smoothing:
        loss['label_smoothing'] = section.label_smoothing
        if section.multi_label:
            raise InputError(
                f'config.classification.label_smoothing={section.label_smoothing} is for one label '
                'an example: leave it out with config.classification.multi_label')
    return loss


def class_weights(
    text: str, names: Sequence[str], counts: np.ndarray, several: int = 0
) -> tuple[float, ...]:
    """The weights in `classification.class_weights`: 'balanced' (scikit-learn's), 'LABEL=2.5, ...'.

    With several labels an example, a label's weight is that of the examples that have it, relative
    to those that do not; 'balanced' gives both the same weight in sum.

    Args:
      text: the value of the field; '': no weights.
      names: of the labels.
      counts: examples of each label; there may be more labels than names.
      several: number of examples, if these have any number of labels; 0: they have one.

    Raises:
      InputError: neither of these, or an unknown label.
    """
    if not text:
        return ()
    if text == 'balanced' and several:
        present = counts[: len(names)]
        # A label that no example has, or every one, has nothing to balance.
        is_both = (present > 0) & (present < several)
        weights_of_present = np.where(is_both, (several - present) / np.maximum(present, 1), 1.0)
        return tuple(weights_of_present.tolist())
    if text == 'balanced':
        return _balanced_weights(counts[: len(names)])
    weights = dict.fromkeys(names, 1.0)
    for part in text.split(','):
        before, _, after = part.rpartition('=')
        name = before.strip()
        number = after.strip()
        if name not in weights or not re.fullmatch(r'[0-9]+(\.[0-9]+)?', number):
            raise InputError(f"config.classification.class_weights={text!r}: write 'balanced', or "
                             f"LABEL=NUMBER between commas; the labels are {', '.join(names)}")
        weights[name] = float(number)
    return tuple(weights.values())


def _balanced_weights(counts: np.ndarray) -> tuple[float, ...]:
    """Weights that give all classes with examples the same weight in sum."""
    balanced = counts.sum() / (np.count_nonzero(counts) * np.maximum(counts, 1))
    # A class that only held-out rows have is not trained, and its weight never used.
    return tuple(np.where(counts > 0, balanced, 1.0).tolist())


def _own_head(
    config: ConfigDict, name: str, labels: Sequence[str], loss: Mapping[str, Any] | None = None
) -> TextHead:
    """The head, with the metrics that the config names, or the usual ones.

    Args:
      config: of the run.
      name: of the head.
      labels: names by id; empty for a regression.
      loss: arguments of the head that change its loss.

    Raises:
      InputError: a metric is unknown, or does not fit the head or the number of labels.
    """
    named = config[config.task].metrics or _USUAL_METRICS[name]
    metrics = check_metrics(
        [metric.strip() for metric in named.split(',')], name, len(labels),
        f'config.{config.task}.metrics')
    return TextHead(name, labels, metrics, loss or {})


def _own_text_task(
    config: ConfigDict, head: TextHead, train: TextExamples | None, dev: TextExamples
) -> LabelledTask:
    """The task. Says how long the texts are."""
    task = text_task(
        config, head=head, train=train, sets={'dev': dev},
        windows=config[config.task].windows or 'first', id_column=config.data.id,
        keep_all=False)
    num_examples = len(dev)
    if task.train is not None:
        num_examples = len(task.train)
    units = task.train or task.evaluated[0].units
    say(f"{counted(num_examples, 'example')} of {np.median(units.lengths):.0f} tokens (half of "
        'them), at '
        f'most {units.lengths.max()}; {units.sequences.num_cut:,} are cut at '
        f'config.data.max_seq_length={config.data.max_seq_length}')
    return task
