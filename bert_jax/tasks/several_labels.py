"""Any number of labels in a cell of a table: lists, names between separators, places of 0 and 1.

How the cells of a file hold them is found from all of them together, because one cell alone does
not tell: `a/b` may be two labels or one, and `[0, 1, 1]` the labels 0 and 1 or three places.
"""

import ast
import collections
import json
import re
from collections.abc import Collection, Sequence
from typing import Any

from bert_jax.rows import table
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.hosts import say

# These separate labels wherever they occur. Other characters do so if what is between them recurs.
_USUAL = ',|;\t'
_WITHIN_NAMES = frozenset(' _-.\'"()[]{}%')
_RECURS = 0.8  # share of the parts that must occur in other cells too
# A list in a call, as programs print arrays: `array(['a', 'b'], dtype=object)`, `tensor([0, 1])`.
_IN_A_CALL = re.compile(r'\s*\w+\(([\[({].*[\])}])(?:, *\w+=[^\[\]]*)?\)\s*', re.DOTALL)
_LIKE_A_LIST = re.compile(r"""\s*(\[|[({]\s*['"])""")
_BETWEEN_STRINGS = re.compile(r"""(?<=['"])\s+(?=['"])""")
_BETWEEN_NUMBERS = re.compile(r'(?<=[\w.])\s+(?=\w)')
_BETWEEN_PLACES = re.compile(r'[\s,;|]+')
_ON = ('1', '1.', '1.0', 'true')
_OFF = ('0', '0.', '0.0', 'false')
_ON_OR_OFF = frozenset(_ON + _OFF)


def parts_of_list(cell: str) -> list[Any]:
    """The items of a list written by JSON, Python (a list, tuple or set) or NumPy.

    Raises:
      InputError: it is no list.
    """
    text = cell.strip()
    value = _json_value(text)
    if not isinstance(value, list):
        value = _python_value(text)
    if not isinstance(value, (list, tuple, set)):
        value = _python_value(_with_commas(text))
    if isinstance(value, set):
        return sorted(value, key=str)
    if isinstance(value, (list, tuple)):
        return list(value)
    raise InputError(f'{cell!r:.60} is no list: correct the cell')


def without_call(cell: str) -> str:
    """The list in a cell in which it stands in a call; any other cell as it is."""
    call = _IN_A_CALL.fullmatch(cell)
    return call[1] if call else cell


def _with_commas(text: str) -> str:
    """A list as NumPy writes it, without commas between the items, with them."""
    between = _BETWEEN_NUMBERS
    if re.search('[\'"]', text):
        between = _BETWEEN_STRINGS
    return between.sub(', ', text)


def _json_value(text: str) -> Any:
    """The value of a JSON text; None if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def is_value(text: str) -> bool:
    """Whether a text is a list or an object, as JSON or Python writes it."""
    return any(isinstance(value(text), list | dict) for value in (_json_value, _python_value))


def _python_value(text: str) -> Any:
    """The value of a literal of Python; None if it is none."""
    if _BETWEEN_STRINGS.search(text):  # Python would join the strings of ['a' 'b']
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def split_labels(cell: Any, separator: str) -> list[str]:
    """The labels in a cell, in which they are a list or names between separators.

    Args:
      cell: of the table, or a value of JSON or Parquet.
      separator: empty: a text that is no list is one label.

    Raises:
      InputError: it begins like a list and is none.
    """
    if isinstance(cell, (list, tuple)):
        parts = cell
    elif isinstance(cell, str) and _LIKE_A_LIST.match(without_call(cell)):
        parts = parts_of_list(without_call(cell))
    else:
        parts = [table.label_text(cell)]
        if separator:
            parts = parts[0].split(separator)
    labels = map(table.label_text, parts)
    return list(filter(None, labels))


def num_places(cells: Sequence[Any], num_names: int) -> int:
    """How many places of 0 and 1 each cell has, if labels are written so (multi-hot); else 0.

    They are if 0 and 1 are all that occurs, and one of them is twice in a list, which a list of
    label numbers never has, or all lists are equally long, so that all would have all labels.

    Args:
      cells: of the column; lists, or texts like `[0, 1, 1]`, `[0 1 1]` or `0,1,1`.
      num_names: of the names that the user gives; 0: none.
    """
    lengths: collections.Counter[int] = collections.Counter()
    repeats_a_mark = False
    for cell in cells:
        marks = _marks(cell)
        if not _ON_OR_OFF.issuperset(marks):
            return 0
        are_on = {mark in _ON for mark in marks}
        if len(are_on) < len(marks):
            repeats_a_mark = True
        if marks:
            lengths[len(marks)] += 1
    if not lengths:
        return 0
    ((length, _),) = lengths.most_common(1)
    are_equally_long = len(lengths) == 1 and length > 1 and num_names in (0, length)
    if repeats_a_mark or are_equally_long:
        return length
    return 0


def _marks(cell: Any) -> list[str]:
    """The items of a list of 0 and 1, as texts in lower case."""
    if isinstance(cell, (list, tuple)):
        items = cell
    else:
        text = without_call(table.label_text(cell))
        items = _BETWEEN_PLACES.split(text.strip('[]() \t'))
    marks = [table.label_text(item).lower() for item in items]
    return list(filter(None, marks))


def names_of_places(cell: Any, names: Sequence[str]) -> list[str]:
    """The names whose places hold 1; none for an empty cell.

    Raises:
      Malformed: there are more or fewer places than names, or something else than 0 and 1 in one.
    """
    marks = _marks(cell)
    if marks and len(marks) != len(names):
        raise table.Malformed(f'{len(marks)} places of 0 and 1, where {len(names)} have names')
    for mark in marks:
        if mark not in _ON_OR_OFF:
            raise table.Malformed(f'{mark!r:.60} in a place of 0 or 1')
    return [name for name, mark in zip(names, marks) if mark in _ON]


def find_separator(path: str, cells: Sequence[Any], known: Collection[str]) -> str:
    """The character between the labels in the cells; '' if each holds at most one.

    Prints a note if another character recurs inside labels.

    Args:
      path: the file, for the message.
      cells: of the column of labels; lists do not count.
      known: labels that are known already.

    Raises:
      InputError: several characters may separate labels.
    """
    texts = _Texts(cells, known)
    recurring: list[str] = []
    shares: dict[str, float] = {}  # by characters that may separate labels
    for char in texts.characters():
        share = texts.share_that_recurs(char)
        recurs = share >= _RECURS
        if recurs:
            recurring.append(char)
        if char in _USUAL or (recurs and texts.are_parts_labels(char)):
            shares[char] = share
    highest = max(shares.values(), default=0.0)
    best = [char for char, share in shares.items() if share == highest]
    if len(best) > 1:
        raise InputError(
            f"{path}: {' and '.join(map(repr, best))} occur inside labels, such as "
            f'{texts.first_with(best[0])!r:.60}: name the one that separates them, '
            'config.classification.separator')
    if best:
        return best[0]
    if recurring:
        char = recurring[0]
        say(f'warning: {path}: {char!r} recurs inside labels, such as '
            f'{texts.first_with(char)!r:.60}: if it separates them, '
            f'set config.classification.separator={char!r}')
    if texts.are_words_labels():
        return ' '
    return ''


class _Texts:
    """The distinct cells that are texts, and what is between the characters in them."""

    def __init__(self, cells: Sequence[Any], known: Collection[str]):
        """Collects the texts.

        Args:
          cells: of the column of labels; lists do not count.
          known: labels that are known already, and are no texts to split.
        """
        texts: set[str] = set()
        for cell in cells:
            if isinstance(cell, str) and not _LIKE_A_LIST.match(without_call(cell)):
                texts.add(cell.strip())
        self._known = set(known)
        self._texts = texts - self._known - {''}

    def characters(self) -> list[str]:
        """The characters that may separate labels, in order."""
        there = set[str]().union(*self._texts)
        return sorted(filter(_may_separate, there))

    def first_with(self, char: str) -> str:
        """The first text with a character, alphabetically."""
        return min(self._with(char))

    def _with(self, char: str) -> list[str]:
        return [text for text in self._texts if char in text]

    def share_that_recurs(self, char: str) -> float:
        """The share of the parts of texts with this character that occur in other texts too."""
        counts: collections.Counter[str] = collections.Counter()
        split: set[str] = set()
        for text in self._texts:
            parts = _parts(text, char)
            counts.update(parts)
            if char in text:
                if len(parts) < 2:
                    return 0.0  # as in C++ and C#
                split |= parts
        num_recurring = 0
        for part in split:
            if counts[part] > 1 or part in self._known:
                num_recurring += 1
        return num_recurring / max(len(split), 1)

    def are_parts_labels(self, char: str) -> bool:
        """Whether half of the parts are labels by themselves, unlike those of sport/tennis."""
        split: set[str] = set()
        for text in self._with(char):
            split |= _parts(text, char)
        alone = split & (self._texts | self._known)
        return 2 * len(alone) >= len(split)

    def are_words_labels(self) -> bool:
        """Whether each word of the texts with several words is a label by itself."""
        words: set[str] = set()
        for text in self._with(' '):
            words.update(text.split())
        return bool(words) and words <= self._texts | self._known


def _may_separate(char: str) -> bool:
    if char in _WITHIN_NAMES or char.isalnum():
        return False
    return char == '\t' or not char.isspace()


def _parts(text: str, char: str) -> set[str]:
    """The parts between the occurrences of a character, without white space around them."""
    parts = set(map(str.strip, text.split(char)))
    return parts - {''}
