"""What a model gets wrong, of the tables of examples that a run or an evaluation has written.

Such a table, `SPLIT_examples.csv` of `tasks.texts`, has the texts of each scored row, its label or
number, the prediction, and the probabilities of the labels. Nothing is computed anew here.
"""

import collections
import csv
import io
import itertools
import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.rows import table
from bert_jax.run.description import read_run_fields
from bert_jax.run.result_folder import RESULT
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, as_path, children, exists, read_bytes, read_json

_ENDING = '_examples.csv'
_PROBABILITY = 'probability of '
_MANY_WORDS = 10  # of a text: in a longer one, a word less or another one changes little
_MASK = (1 << 64) - 1


class ScoredRow(NamedTuple):
    """A row that was scored.

    Attributes:
      split: begins the name of its table.
      id: of the row, in the user's column of ids, or its index in the scored file, from 0.
      texts: one or two.
      label: what is right, as text; with any number of labels, they are listed in it.
      prediction: as the label.
      probabilities: of the labels by name; {}: numbers are predicted.
      is_wrong: whether the prediction is another than the label; never of numbers.
      badness: minus the logarithm of the probability of this label, or of just these labels; of
        numbers, the distance of the prediction.
    """

    split: str
    id: str
    texts: tuple[str, ...]
    label: str
    prediction: str
    probabilities: Mapping[str, float]
    is_wrong: bool = False
    badness: float = 0.0

    @property
    def has_number(self) -> bool:
        """Whether the label is a number, from which predictions have a distance."""
        return not self.probabilities

    def record(self) -> dict[str, Any]:
        """The row for JSON."""
        fields = {'set': self.split, 'id': self.id, 'text': self.texts[0]}
        if len(self.texts) > 1:
            fields['text_pair'] = self.texts[1]
        fields |= {'label': self.label, 'prediction': self.prediction}
        if self.has_number:
            return fields | {'distance': self.badness}
        return fields | {
            'probability': math.exp(-self.badness), 'probabilities': dict(self.probabilities)}


def scored_rows(folder: Path) -> list[ScoredRow]:
    """The rows of all tables of examples in a folder.

    Raises:
      InputError: there is none, or one was changed and cannot be read.
    """
    tables = [path for path in children(folder) if path.name.endswith(_ENDING)]
    rows = [row for path in sorted(tables) for row in _rows_of(path)]
    if not rows:
        raise InputError(
            f'{folder} holds no scored rows (..{_ENDING}), which a finished run and an evaluation '
            'of labelled texts write: python -m bert_jax.evaluate RUN, then name the folder that '
            'it names')
    return rows


def _rows_of(path: Path) -> list[ScoredRow]:
    """The rows of a table of examples, judged."""
    csv.field_size_limit(table.LONGEST_CELL)
    try:
        content = io.StringIO(read_bytes(path).decode('utf-8'), newline='')
        header, *lines = csv.reader(content, strict=True)
        num_texts = header.index('label') - 1
        names = [name.removeprefix(_PROBABILITY) for name in header[num_texts + 3 :]]
        rows: list[ScoredRow] = []
        for row_id, *cells in lines:
            *texts, label, prediction = map(_as_read, cells[: num_texts + 2])
            shares = map(float, cells[num_texts + 2 :])
            probabilities = dict(zip(names, shares, strict=True))
            rows.append(ScoredRow(
                path.name.removesuffix(_ENDING), _as_read(row_id), tuple(texts), label, prediction,
                probabilities))
        return list(map(_judge_of(rows), rows))
    except (ValueError, csv.Error) as error:
        raise InputError(f'{path} is not as bert_jax wrote it ({error}): evaluate again') from None


def _as_read(cell: str) -> str:
    """A cell without the apostrophe that keeps spreadsheets from running it as a formula."""
    return cell[1:] if re.match(r"'\s*[=+\-@]", cell) else cell


def _judge_of(rows: Sequence[ScoredRow]) -> Callable[[ScoredRow], ScoredRow]:
    """The function that judges the rows of a table: of numbers, of one label or of several."""
    if not rows or rows[0].has_number:
        return _judged_number
    sums = [sum(row.probabilities.values()) for row in rows]
    if all(abs(each - 1) < 1e-3 for each in sums):
        return _judged_label
    return _judged_labels


def _judged_number(row: ScoredRow) -> ScoredRow:
    return row._replace(badness=abs(float(row.label) - float(row.prediction)))


def _judged_label(row: ScoredRow) -> ScoredRow:
    """A row with one label, which the model may lack."""
    probability = row.probabilities.get(row.label, 0.0)
    return row._replace(is_wrong=row.label != row.prediction, badness=_surprise(probability))


def _judged_labels(row: ScoredRow) -> ScoredRow:
    """A row with any number of labels."""
    labels = _listed(row.label, row.probabilities)
    badness = 0.0
    for name in labels | row.probabilities.keys():
        probability = row.probabilities.get(name, 0.0)
        badness += _surprise(probability if name in labels else 1 - probability)
    is_wrong = labels != _listed(row.prediction, row.probabilities)
    return row._replace(is_wrong=is_wrong, badness=badness)


def _listed(cell: str, names: Iterable[str]) -> set[str]:
    """The labels of a cell: between commas, or as JSON where a label has a comma."""
    if any(',' in name for name in names):
        return set(json.loads(cell))
    return set(filter(None, cell.split(',')))


def _surprise(probability: float) -> float:
    return -math.log(max(probability, 1e-300))


def wrongest(rows: Sequence[ScoredRow]) -> list[ScoredRow]:
    """The wrong rows, or all where numbers are predicted; those that are most wrong first."""
    wrong = [row for row in rows if row.is_wrong or row.has_number]
    return sorted(wrong, key=lambda row: -row.badness)


class Confusion(NamedTuple):
    """A label, what was predicted in its place, and in how many rows."""

    label: str
    prediction: str
    rows: int


def confusions(rows: Sequence[ScoredRow]) -> list[Confusion]:
    """Which labels are taken for which, the most frequent first; with several labels, as a list."""
    counts = collections.Counter((row.label, row.prediction) for row in rows if row.is_wrong)
    return [Confusion(*pair, number) for pair, number in counts.most_common()]


class Group(NamedTuple):
    """Rows with something in common.

    Attributes:
      name: what they have in common.
      rows: how many they are.
      wrong: share of them that is wrong; of numbers, their mean distance.
    """

    name: str
    rows: int
    wrong: float


def _group(name: str, rows: Sequence[ScoredRow]) -> Group:
    if rows[0].has_number:
        return Group(name, len(rows), float(np.mean([row.badness for row in rows])))
    return Group(name, len(rows), sum(row.is_wrong for row in rows) / len(rows))


def by_length(rows: Sequence[ScoredRow]) -> list[Group]:
    """The rows in four groups by the characters of their texts, of about equal size."""
    lengths = np.array([sum(map(len, row.texts)) for row in rows])
    bounds = np.unique(np.quantile(lengths, [0.25, 0.5, 0.75, 1], method='lower'))
    number = np.searchsorted(bounds, lengths)
    groups: list[Group] = []
    for i in range(len(bounds)):
        places = np.flatnonzero(number == i)
        name = f'{lengths[places].min():,} to {lengths[places].max():,}'
        groups.append(_group(name, [rows[place] for place in places.tolist()]))
    return groups


def by_set(rows: Sequence[ScoredRow]) -> list[Group]:
    """The rows by the set that they are of, as MNLI has two."""
    return _groups_of(rows, [row.split for row in rows])


def by_column(rows: Sequence[ScoredRow], folder: Path, column: str) -> list[Group]:
    """The rows by what a further column of the scored file says of them, most wrong first.

    Args:
      rows: of `scored_rows`.
      folder: they are from.
      column: of the file that was scored, such as the source of each text.

    Raises:
      InputError: that file is not one table, has changed, or lacks the column.
    """
    source = _scored_file(folder)
    id_column = _id_column(folder, source)
    found = table.read_table(
        source, [column], lambda cells: str(cells[0]), id_column=id_column, max_malformed=1.0)
    values = dict(zip(found.ids, found.values, strict=True))
    missing = [row.id for row in rows if row.id not in values]
    if missing:
        raise InputError(f'{source} has no row {missing[0]}, which was scored: it was perhaps '
                         'changed; evaluate again')
    return sorted(_groups_of(rows, [values[row.id] for row in rows]), key=lambda x: -x.wrong)


def _groups_of(rows: Sequence[ScoredRow], names: Sequence[str]) -> list[Group]:
    members: dict[str, list[ScoredRow]] = {}
    for row, name in zip(rows, names, strict=True):
        members.setdefault(name, []).append(row)
    return list(itertools.starmap(_group, members.items()))


def _scored_file(folder: Path) -> str:
    """The table whose rows were scored.

    Raises:
      InputError: it was none.
    """
    if exists(folder / RESULT):
        source = read_json(folder / RESULT, 'evaluate again').get('source')
    else:
        fields = read_run_fields(folder)
        source = fields.get('data.eval_source') or fields.get('data.source')
    is_hub = str(source).startswith('hf:')
    if not is_hub and not as_path(str(source)).is_file():
        raise InputError(f'--by needs the table that was scored, and {source} is none that is here')
    return str(source)


def _id_column(folder: Path, source: str) -> str | None:
    """The column of the scored file by which its rows are found; None: by their places.

    Raises:
      InputError: it cannot be told.
    """
    first = min(path for path in children(folder) if path.name.endswith(_ENDING))
    name, *_ = next(csv.reader(io.StringIO(read_bytes(first).decode('utf-8'), newline='')))
    if name != 'index':
        return name
    if name in table.column_names(source):
        raise InputError(f"--by: {source} has a column 'index', and so have tables whose rows are "
                         'counted: rename the column and evaluate again')
    return None


def contradictions(rows: Sequence[ScoredRow]) -> list[tuple[ScoredRow, ScoredRow]]:
    """Pairs of rows whose texts are nearly equal and whose labels are not.

    Nearly equal are texts of the same words, whatever their order, case, marks and white space; of
    ten words or more, one may be missing or another. Numbers are different labels if they differ
    by more than their standard deviation.
    """
    deviation = 0.0
    if rows[0].has_number:
        deviation = float(np.std([float(row.label) for row in rows]))
    pairs: set[tuple[int, int]] = set()
    for alike in _alike(rows):
        labels = {rows[i].label: i for i in reversed(alike)}  # the first of each label
        if len(labels) == 1:
            continue
        if deviation:
            least, *_, most = sorted(labels, key=float)
            if float(most) - float(least) > deviation:
                pairs.add((labels[least], labels[most]))
            continue
        first, *others = sorted(labels.values())
        pairs |= {(first, other) for other in others}
    return [(rows[i], rows[j]) for i, j in sorted(pairs)]


def _alike(rows: Sequence[ScoredRow]) -> Iterator[list[int]]:
    """Places of rows that have a key in common, in their order."""
    keys: list[np.ndarray] = []
    for row in rows:
        keys.append(np.array(_keys(row.texts), np.uint64))
    places = np.repeat(np.arange(len(rows)), list(map(len, keys)))
    all_keys = np.concatenate(keys)
    order = np.argsort(all_keys, kind='stable')
    is_again = all_keys[order][1:] == all_keys[order][:-1]
    is_shared = np.append(is_again, False) | np.append(False, is_again)
    is_start = ~np.append(False, is_again)[is_shared]
    groups = np.split(places[order][is_shared], np.flatnonzero(is_start)[1:])
    for group in groups:
        if len(group):  # it has at least two, but for the one where nothing is shared
            yield group.tolist()


def _keys(texts: Sequence[str]) -> list[int]:
    """Sums of the hashes of a row's words: of all and, of many words, of all but each one."""
    hashes: list[int] = []
    for number, text in enumerate(texts):
        plain = unicodedata.normalize('NFKC', text).casefold()
        for word in re.findall(r'\w+', plain) or [plain.strip()]:
            hashes.append(hash((number, word)))
    total = sum(hashes)
    keys = {total & _MASK}
    if len(hashes) >= _MANY_WORDS:
        keys |= {(total - each) & _MASK for each in hashes}
    return list(keys)


def report(rows: Sequence[ScoredRow], most: int, columns: Sequence[Group]) -> dict[str, Any]:
    """All of this for JSON.

    Args:
      rows: of `scored_rows`.
      most: so many of the wrongest rows and of the contradictions.
      columns: of `by_column`.
    """
    pairs = contradictions(rows)[:most]
    return {
        'rows': len(rows),
        'wrong': sum(row.is_wrong for row in rows),
        'wrongest': [row.record() for row in wrongest(rows)[:most]],
        'confusions': [each._asdict() for each in confusions(rows)],
        'contradictions': [[row.record() for row in pair] for pair in pairs],
        'by_length': [each._asdict() for each in by_length(rows)],
        'by_set': [each._asdict() for each in by_set(rows)],
        'by_column': [each._asdict() for each in columns],
    }
