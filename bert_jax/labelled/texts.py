"""Texts or pairs of texts with a label each, from TSV, CSV or JSON lines, columns by name.

A benchmark's own files are read by this, and anybody's.

    n: examples, L: labels
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bert_jax.labelled import tabular
from bert_jax.runtime.errors import InputError

# (file, lines, label of each as it stands there) -> labels as arrays [n, ...]
Convert = Callable[[str, Sequence[int], Sequence[Any]], np.ndarray]
UNKNOWN = -1  # id of a label that training has not seen: no prediction equals it


@dataclasses.dataclass(frozen=True)
class Columns:
    """What the columns of a file are called.

    Attributes:
      texts: of its text or its two texts.
      label: of the label.
      id: of what an example is called; a file may lack it, unless it has no labels.
      headerless: columns of labelled files that have no header.
      own: whether the config names them, as those of a user's own file.
    """

    texts: tuple[str, ...]
    label: str
    id: str = ''
    headerless: tuple[str, ...] = ()
    own: bool = False


@dataclasses.dataclass(frozen=True)
class TextExamples:
    """n examples, in the order of the file.

    Attributes:
      text_a: the text, or the first of a pair.
      text_b: the second; None: single texts.
      labels: [n] int32 ids, float32 numbers, or [n, L] float32 of 0 and 1; None: there are none.
      ids: what the file calls them, or their place in it from 0.
      num_skipped: malformed rows that were left out.
      source: file or data set, for messages.
    """

    text_a: list[str]
    text_b: list[str] | None
    labels: np.ndarray | None
    ids: list[str]
    num_skipped: int
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
      path: see `tabular.read_rows`.
      columns: what it calls its columns or fields.
      convert: makes arrays of labels; None: labels are not read.
      max_malformed: share of the rows that may have another number of columns or an empty label;
        one always may, unless this is 0.
      needs_ids: whether the column of ids must be there.

    Raises:
      InputError: a missing column, what `convert` refuses, an id that occurs twice, too many
        malformed rows, a file that is empty or cannot be read.
    """
    rejects = tabular.Rejects(path, max_malformed)
    label_column = [columns.label] if convert else []
    wanted = [*([columns.id] if columns.id else []), *columns.texts, *label_column]
    optional = [columns.id] if columns.id and not needs_ids else []
    rows = tabular.read_rows(
        path, wanted, optional=optional, headerless=columns.headerless if convert else (),
        own=columns.own,
    )
    lines, ids, texts, labels = [], [], [], []
    for line, cells in rejects.filter(rows):
        row_id = cells.pop(0) if columns.id else None
        label = cells.pop() if convert else None
        if convert and not isinstance(label, list) and not (label := tabular.label_text(label)):
            rejects.add(line, 'its label is empty')
        elif not all(isinstance(text, str) for text in cells):
            rejects.add(line, 'a text is not a string')
        else:
            lines.append(line)
            ids.append(row_id)
            texts.append(cells)
            labels.append(label)
    num_skipped = rejects.check(len(lines))
    names = tabular.row_ids(ids, lines, rejects)
    tabular.check_unique(path, lines, names)
    return TextExamples(
        text_a=[cells[0] for cells in texts],
        text_b=[cells[1] for cells in texts] if len(columns.texts) == 2 else None,
        labels=convert(path, lines, labels) if convert else None,
        ids=names, num_skipped=num_skipped, source=path,
    )


def known_names(known: Sequence[str]) -> Convert:
    """Names to ids; one that is not known is an error."""
    return lambda path, lines, labels: tabular.label_ids(path, lines, labels, known)


def numbers(low: float = -math.inf, high: float = math.inf) -> Convert:
    """Numbers as they are, refused outside of [low, high]."""
    def convert(path: str, lines: Sequence[int], labels: Sequence[Any]) -> np.ndarray:
        values = np.empty(len(labels), np.float32)
        for i, label in enumerate(labels):
            try:
                values[i] = float(label)
            except (TypeError, ValueError):
                values[i] = np.nan
            if not (low <= values[i] <= high and np.isfinite(values[i])):
                wanted = f'a number from {low:g} to {high:g}' if high < math.inf else 'a number'
                raise InputError(
                    f"{path}, line {lines[i]}: score '{label}' is not {wanted}; mend it"
                )
        return values

    return convert


class LearntNames:
    """Names of labels that the training file decides, unless they are known from a trained model.

    Attributes:
      several: whether an example has any number of labels: a list in JSON lines, else names
        between `separator`s.
      names: in the order of their ids; numbers by size, else by the alphabet.
      met: all names of the file that was read last.
      unseen: those met after training's, which count as errors.
    """

    def __init__(
        self, several: bool = False, separator: str = ',', names: tuple[str, ...] = ()
    ):
        self.several, self.separator = several, separator
        self.names = names
        self.met: set[str] = set()
        self.unseen: set[str] = set()

    def __call__(self, path: str, lines: Sequence[int], labels: Sequence[Any]) -> np.ndarray:
        found = [self._parts(path, line, label) for line, label in zip(lines, labels, strict=True)]
        self.met = {name for names in found for name in names}
        if not self.names:
            self.names = _in_order(self.met)
            if len(self.names) < 2 - self.several:
                raise InputError(
                    f"{path} has one label, {', '.join(self.names) or 'none'}: there is nothing "
                    'to learn; is config.data.label the right column?'
                )
        index = {name: i for i, name in enumerate(self.names)}
        self.unseen |= self.met - set(index)
        if not self.several:
            return np.array([index.get(name, UNKNOWN) for (name,) in found], np.int32)
        # Labels that the model does not have are further columns, which it never marks.
        index |= {name: len(index) + i for i, name in enumerate(sorted(self.met - set(index)))}
        marks = np.zeros((len(found), len(index)), np.float32)
        for row, names in zip(marks, found, strict=True):
            row[[index[name] for name in names]] = 1.0
        return marks

    def _parts(self, path: str, line: int, label: Any) -> list[str]:
        if self.several:
            if isinstance(label, str) and label.lstrip().startswith('['):
                try:
                    label = json.loads(label)
                except ValueError:
                    raise InputError(
                        f'{path}, line {line}: {label!r} is no list; mend it'
                    ) from None
            parts = label if isinstance(label, list) else str(label).split(self.separator)
            return [name for part in parts if (name := tabular.label_text(part))]
        if isinstance(label, list):
            raise InputError(
                f'{path}, line {line} has a list of labels: set '
                '--config.classification.multi_label=True to train on several at once'
            )
        return [label]


def _in_order(names: set[str]) -> tuple[str, ...]:
    """Numbers by size, else by the alphabet: one order, whatever order a set has in a process."""
    try:
        numbers = {name: float(name) for name in names}
    except ValueError:
        return tuple(sorted(names))
    if any(math.isnan(number) for number in numbers.values()):
        return tuple(sorted(names))
    return tuple(sorted(names, key=lambda name: (numbers[name], name)))  # '1' and '1.0' are equal
