"""Labels in the cells of a file, and the numbers that a model is trained on.

`NumericLabels` are numbers. `LabelParser` gives ids to names; how a cell holds them is its
`LabelFormat`, which `find_format` finds where an example has several.

    n: examples, L: labels
"""

import contextlib
import dataclasses
import difflib
import itertools
import math
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from bert_jax.rows import table
from bert_jax.runtime.errors import InputError, counted
from bert_jax.runtime.files import as_path
from bert_jax.runtime.hosts import say
from bert_jax.tasks import several_labels
from bert_jax.text.vocab_files import read_lines

_FEW = 5  # examples of a label; fewer teach little
_SELDOM = 2  # examples of a label that is perhaps misspelt
_LEAST_LETTERS = 4  # of a label that is compared with others
_MOST_COMPARED = 20  # of these, with so many others; a comparison takes microseconds
_MOST_KNOWN = 1000
_MOST_SHOWN = 10
# Marks of format that change what is seen: joiners of letters and emoji, and the tags of flags.
_SEEN_MARKS = re.compile('[\u200c\u200d\U000e0020-\U000e007f]')


class NumericLabels(NamedTuple):
    """Labels that are numbers, float32; values outside [low, high] are refused."""

    low: float = -3e38
    high: float = 3e38

    def parse(self, cell: Any) -> float:
        """The number in a cell.

        Raises:
          InputError: it is no number, or outside the limits.
          NoLabel: the cell is empty.
        """
        text = table.label_of(cell)
        try:
            number = float(text.replace('_', 'x'))  # Python takes 1_0 for 10
        except ValueError:
            number = math.nan
        if not self.low <= number <= self.high:
            limits = ''
            if self != NumericLabels():
                limits = f' from {self.low:g} to {self.high:g}'
            comma = ''
            if ',' in str(cell):
                comma = ', with a point instead of the comma'
            raise InputError(f"score '{cell}' is not a number{limits}; correct the cell{comma}"
                             f'{table.hint_of_secret(text)}')
        return number

    def array(self, numbers: Sequence[float]) -> np.ndarray:
        """All numbers of a file, [n] float32."""
        return np.array(numbers, np.float32)


@dataclasses.dataclass(frozen=True)
class LabelFormat:
    """How the cells of a file hold labels.

    Attributes:
      numbered: names of labels that are numbers in the file.
      several: whether an example has any number of labels.
      separator: between several names in a cell; empty: a cell is a list, or one label.
      places: with several labels, whether a cell has a place of 0 or 1 for each of `numbered`.
    """

    numbered: Sequence[str] = ()
    several: bool = False
    separator: str = ''
    places: bool = False

    def parse(self, cell: Any) -> list[str]:
        """The names in a cell.

        Raises:
          InputError: a list, where an example has one label; or another thing that is no label.
          NoLabel: the cell is empty, where an example has one label.
          Malformed: a number has no name.
        """
        if self.places:
            return several_labels.names_of_places(cell, self.numbered)
        if self.several:
            labels = several_labels.split_labels(cell, self.separator)
            return [table.named(label, self.numbered) for label in labels]
        if isinstance(cell, list) or _is_list(cell):
            raise InputError('a list of labels: set --config.classification.multi_label=True to '
                             'train on several at once')
        return [table.named(table.label_of(cell), self.numbered)]


def find_format(
    path: str, cells: Sequence[Any], usual: LabelFormat, *, names: Collection[str], is_first: bool
) -> LabelFormat:
    """The format of cells that hold several labels. Prints what it found.

    Args:
      path: the file, for messages.
      cells: of the column of labels.
      usual: the format as the config, or an earlier file, has it; with the names of this file.
      names: labels that are known already.
      is_first: whether no file was read before.

    Raises:
      InputError: the cells hold places of 0 and 1 without names for these, or several characters
        may separate the labels.
    """
    num_names = len(usual.numbered)
    num_places = 0
    if is_first:
        num_places = several_labels.num_places(cells, num_names)
    if num_places:
        if num_places != num_names:
            raise InputError(
                f'{path}: its labels are lists of {num_places} places of 0 and 1 (multi-hot): name '
                f'the label of each place, config.data.label_names=NAME,NAME,... '
                f'({num_names} are named)')
        say(f'{path}: its labels are places of 0 and 1 (multi-hot), in the order of '
            'config.data.label_names')
        return dataclasses.replace(usual, places=True)
    if usual.separator or usual.places:
        return usual
    separator = several_labels.find_separator(path, cells, {*names, *usual.numbered})
    if separator:
        say(f'{path}: labels are separated by {separator!r} (config.classification.separator)')
    return dataclasses.replace(usual, separator=separator)


class LabelParser:
    """Labels that are names: int32 ids [n], or float32 indicators [n, L] if an example has several.

    Attributes:
      names: in the order of their ids. If empty, they are taken from the first file, the training
        file: numbers sorted by size, other names alphabetically.
      only: whether other names are refused.
      format: how cells hold the labels.
      met: all names in the file that was read last.
      unseen: names that only later files have. Their ids come after those of `names`, so that no
        prediction equals them and each counts as an error.
    """

    def __init__(
        self, names: Sequence[str] = (), *, only: bool = False,
        format: LabelFormat = LabelFormat(),
    ):
        self.names = tuple(names)
        self.only = only
        self.format = format
        self.met: set[str] = set()
        self.unseen: set[str] = set()

    def parse(self, cell: Any) -> list[str]:
        """The names in a cell.

        Raises:
          InputError: a name is refused, or `format` refuses the cell.
          Malformed: as for `LabelFormat.parse`.
        """
        found = self.format.parse(cell)
        if self.only:
            for name in found:
                if name not in self.names:
                    raise InputError(
                        f"unknown label '{name}'; known are {', '.join(self.names)}: "
                        f'correct the cell{table.hint_of_secret(name)}')
        return found

    def array(self, labels: Sequence[list[str]]) -> np.ndarray:
        """The labels of all examples of a file, [n] int32 or [n, L] float32; updates the names."""
        there = set(itertools.chain.from_iterable(labels))
        known_name = as_known(there, self.names or self.format.numbered)
        self.met = {known_name.get(name, name) for name in there}
        self.names = self.names or self._names_of_first_file()
        unseen = self.met - set(self.names)
        self.unseen |= unseen
        id_of = {name: i for i, name in enumerate([*self.names, *sorted(unseen)])}
        num_ids = len(id_of)
        for name, known in known_name.items():
            id_of[name] = id_of[known]
        if not self.format.several:
            ids = [id_of[name] for (name,) in labels]
            return np.array(ids, np.int32)
        indicators = np.zeros((len(labels), num_ids), np.float32)
        for row, names in zip(indicators, labels, strict=True):
            row[[id_of[name] for name in names]] = 1.0
        return indicators

    def _names_of_first_file(self) -> tuple[str, ...]:
        """The names of numbers, then the other names; these are unseen if no number has a name."""
        numbered = set(self.format.numbered)
        if numbered and not self.met & numbered:
            return tuple(self.format.numbered)
        return (*self.format.numbered, *_in_order(self.met - numbered))


def _is_list(cell: Any) -> bool:
    """Whether a text is a list, as JSON, pandas and NumPy write it."""
    text = several_labels.without_call(cell) if isinstance(cell, str) else ''
    if not text.startswith('['):
        return False
    with contextlib.suppress(InputError):
        return bool(several_labels.parts_of_list(text))
    return False


def _in_order(names: set[str]) -> tuple[str, ...]:
    """Sorts numbers by size, other names alphabetically; a set's own order varies by process."""
    with contextlib.suppress(ValueError):
        if not any(math.isnan(float(name)) for name in names):
            return tuple(sorted(names, key=lambda name: (float(name), name)))  # 1 and 1.0 are equal
    return tuple(sorted(names))


def label_names(config: ConfigDict, path: str, column: str) -> list[str]:
    """The names of labels that are numbers in a file: `data.label_names`, else the file's own.

    Args:
      config: of the run.
      path: the file.
      column: of the labels.

    Raises:
      InputError: a name occurs twice, or the file of names cannot be read.
    """
    named = config.data.label_names
    if not named:
        return table.class_names(path, column)
    file = as_path(named)
    if file.exists():
        parts = read_lines(file, 'label names', 'config.data.label_names')
        text, remedy = '\n'.join(parts), 'write one name a line, that of label 0 first'
    else:
        parts = named.split(',')
        text, remedy = named, 'write the names alone, with commas between, as in O,B-PER,I-PER'
    if several_labels.is_value(text):
        raise InputError(f'config.data.label_names={named!r:.200} holds a list or object: '
                         f'{remedy}')
    names = list(filter(None, map(str.strip, parts)))
    if len(set(names)) < len(names):
        raise InputError(f'config.data.label_names={named} has a name twice')
    return names


def labels_by_number(
    path: str, usual: Sequence[str], names: Sequence[str] = ()
) -> Sequence[str]:
    """The labels of a benchmark's file by their numbers: in its own order, if it names them.

    Args:
      path: the file, with a column `label`.
      usual: the labels by the numbers of most files.
      names: what files call them; empty: as they are.
    """
    label_of = {
        name.casefold(): label for name, label in zip(names or usual, usual, strict=True)}
    stated = table.class_names(path, 'label')
    folded = [name.strip().casefold() for name in stated]
    if sorted(folded) == sorted(label_of):
        return [label_of[name] for name in folded]
    if stated and folded != list(map(str, range(len(stated)))):
        say(f"note: {path} calls its labels {', '.join(stated)}: their numbers are read as "
            f"{', '.join(usual)}")
    return usual


def as_known(there: Collection[str], known: Collection[str]) -> dict[str, str]:
    """{label: the known label that it means}, for labels in another spelling; prints which.

    Such labels differ only in case or in what is not seen, or they are the same number, as 1 and
    1.0 are. A known label stays itself, and so does a label that could mean either of two known
    ones. If none is known yet, such labels stay apart, with a warning, except for equal numbers,
    which become the shortest of them.

    Args:
      there: labels of a file or a model.
      known: labels that they are compared with.
    """
    if not known:
        warn_of_alike(there)
        return _same_numbers(there, _shortest_numbers(there))
    folded = _by_folded_case(known)
    found: dict[str, str] = {}
    for name in sorted(set(there) - set(known)):
        alike = folded.get(_folded(name), [])
        if len(alike) == 1:
            found[name] = alike[0]
    in_case = {name: same for name, same in found.items() if name.casefold() == same.casefold()}
    _say_one('differ only in case', in_case)
    _say_one('look the same', {
        ascii(name): ascii(same) for name, same in found.items() if name not in in_case})
    return found | _same_numbers(set(there) - set(known), known)


def _say_one(are: str, found: Mapping[str, str]) -> None:
    """Says which labels are taken for others."""
    if found:
        shown = itertools.islice(found.items(), 5)
        examples = [f'{name} is {same}' for name, same in shown]
        say(f"note: labels that {are} are one: {', '.join(examples)}")


def _same_numbers(there: Collection[str], known: Collection[str]) -> dict[str, str]:
    """{label: the known label that is the same number}; says which they are."""
    known_of_number: dict[str, str] = {}
    for name in sorted(known):
        known_of_number.setdefault(table.plain_number(name), name)
    found: dict[str, str] = {}
    for name in sorted(set(there) - set(known)):
        number = table.plain_number(name)
        if number and number in known_of_number:
            found[name] = known_of_number[number]
    _say_one('are the same number', found)
    return found


def _shortest_numbers(names: Collection[str]) -> list[str]:
    """Of the names of each number the shortest, such as 1 of 1, 1.0 and 1.00."""
    shortest: dict[str, str] = {}
    for name in sorted(names, key=lambda name: (len(name), name)):
        number = table.plain_number(name)
        if number:
            shortest.setdefault(number, name)
    return list(shortest.values())


def _folded(name: str) -> str:
    """A name without its case and what is not seen: marks of format, how accents are encoded."""
    if name.isascii():
        return name.casefold()
    seen = [
        sign for sign in name if unicodedata.category(sign) != 'Cf' or _SEEN_MARKS.match(sign)]
    return unicodedata.normalize('NFC', ''.join(seen).casefold()).strip()


def _by_folded_case(names: Collection[str]) -> dict[str, list[str]]:
    folded: dict[str, list[str]] = {}
    for name in sorted(names):
        folded.setdefault(_folded(name), []).append(name)
    return folded


def warn_of_alike(names: Collection[str], what: str = 'labels') -> None:
    """Warns if some names differ only in case, or look the same."""
    for alike in _by_folded_case(names).values():
        if len(alike) > 1:
            are = 'differ only in case'
            if len({name.casefold() for name in alike}) > 1:
                alike = list(map(ascii, alike))
                are = 'look the same'
            say(f"warning: the {what} {' and '.join(alike)} {are}, and are apart: spell them alike "
                'if they are one')
            return


def warn_of_rare(counts: Mapping[str, int], what: str = 'labels', unit: str = 'row') -> None:
    """Warns of labels that are perhaps misspelt, and of all that have too few examples to learn.

    Args:
      counts: examples of each label, to train on.
      what, unit: what the labels and their examples are called.
    """
    by_count = sorted(counts, key=lambda name: (counts[name], name))
    rare = [name for name in by_count if counts[name] < _FEW]
    if not rare or len(counts) < 2:
        return
    misspelt = [name for name in rare if counts[name] <= _SELDOM]
    for name in misspelt[:_MOST_COMPARED]:
        near = nearest_label(name, [other for other in counts if counts[other] > _SELDOM])
        if near:
            say(f'warning: {name!r} ({counted(counts[name], unit)}) is close to {near!r} '
                f'({counted(counts[near], unit)}), and is trained as another label: if it is '
                'misspelt, correct it')
    shown = [f'{name} {counts[name]}' for name in rare[:_MOST_SHOWN]]
    if len(rare) > _MOST_SHOWN:
        shown.append(f'and {len(rare) - _MOST_SHOWN:,} further')
    say(f"warning: {what} with fewer than {_FEW} {unit}s to train on: {', '.join(shown)}")


def nearest_label(name: str, others: Sequence[str]) -> str:
    """The label that another one may be a misspelling of; '' if there is none.

    Numbers and short names are close to many that are meant.
    """
    if len(name) < _LEAST_LETTERS or table.plain_number(name):
        return ''
    words = [other for other in others[:_MOST_KNOWN] if not table.plain_number(other)]
    folded = {other.casefold(): other for other in words if other.casefold() != name.casefold()}
    close = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.8)
    return folded[close[0]] if close else ''


def check_labels_known(
    source: str, there: Collection[str], known: Collection[str], *, is_training: bool = False
) -> None:
    """Refuses to score a model on a file that shares no label with it: every score would be 0.

    Args:
      source: the file, for the message.
      there: its labels.
      known: the model's.
      is_training: whether the model is trained now, on a file with these labels.

    Raises:
      InputError: they share no label.
    """
    if set(there) & set(known):
        return
    hint = table.hint_of_secret('-1') if set(there) == {'-1'} else ''
    owner = 'the model'
    remedy = 'or, if only the names differ, add --labels_by_position to bert_jax.evaluate'
    if is_training:
        owner = 'the training file'
        remedy = 'or write the labels of both files alike'
    raise InputError(
        f"{source} has the labels {', '.join(sorted(there)[:5])}, {owner} "
        f"{', '.join(sorted(known)[:5])}: none is the same{hint}; name the columns with "
        f'config.data.text and config.data.label, {remedy}')
