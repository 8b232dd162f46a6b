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

from bert_jax.data import table
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.hosts import say

# These separate labels wherever they occur. Other characters do so if what is between them recurs.
_USUAL = ',|;\t'
_WITHIN_NAMES = frozenset(' _-.\'"()[]{}%')
_RECURS = 0.8  # share of the parts that must occur in other cells too
_LIKE_A_LIST = re.compile(r"""\s*(\[|[({]\s*['"])""")
_ON, _OFF = ('1', '1.', '1.0', 'true'), ('0', '0.', '0.0', 'false')


def parts_of_list(cell: str) -> list[Any]:
    """The items of a list written by JSON, Python (a list, tuple or set) or NumPy.

    Raises:
      InputError: it is no list.
    """
    text = cell.strip()
    # NumPy puts no commas between items; Python would join the strings of ['a' 'b'].
    between = r"""(?<=['"])\s+(?=['"])""" if re.search('[\'"]', text) else r'(?<=[\w.])\s+(?=\w)'
    with_commas = re.sub(between, ', ', text)
    for parse, version in ((json.loads, text), (ast.literal_eval, text),
                           (ast.literal_eval, with_commas)):
        joined = parse is ast.literal_eval and re.search(r"""['"]\s+['"]""", version)
        try:
            value = None if joined else parse(version)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
        if isinstance(value, (list, tuple, set)):
            return sorted(value, key=str) if isinstance(value, set) else list(value)
    raise InputError(f'{cell!r:.60} is no list; mend it')


def split_labels(cell: Any, separator: str) -> list[str]:
    """The labels in a cell, in which they are a list or names between separators.

    Args:
      cell: of the table, or a value of JSON or Parquet.
      separator: empty: a text that is no list is one label.

    Raises:
      InputError: it begins like a list and is none.
    """
    if isinstance(cell, str) and _LIKE_A_LIST.match(cell):
        cell = parts_of_list(cell)
    elif not isinstance(cell, (list, tuple)):
        text = table.label_text(cell)
        cell = text.split(separator) if separator else [text]
    return [text for part in cell if (text := table.label_text(part))]


def num_places(cells: Sequence[Any], num_names: int) -> int:
    """How many places of 0 and 1 each cell has, if labels are written so (multi-hot); else 0.

    They are if 0 and 1 are all that occurs, and one of them is twice in a list, which a list of
    label numbers never has, or all lists are equally long, so that all would have all labels.

    Args:
      cells: of the column; lists, or texts like `[0, 1, 1]`, `[0 1 1]` or `0,1,1`.
      num_names: of the names that the user gives; 0: none.
    """
    lengths = collections.Counter[int]()
    twice = False
    for cell in cells:
        marks = _marks(cell)
        if not all(mark in _ON or mark in _OFF for mark in marks):
            return 0
        twice |= len({mark in _ON for mark in marks}) < len(marks)
        lengths[len(marks)] += bool(marks)
    (length, _), = lengths.most_common(1) or [(0, 0)]
    alike = len(+lengths) == 1 and length > 1 and num_names in (0, length)
    return length if twice or alike else 0


def _marks(cell: Any) -> list[str]:
    """The items of a list of 0 and 1, as texts in lower case."""
    items = cell if isinstance(cell, (list, tuple)) else re.split(
        r'[\s,;|]+', table.label_text(cell).strip('[]() \t'))
    return [text for item in items if (text := table.label_text(item).lower())]


def names_of_places(cell: Any, names: Sequence[str]) -> list[str]:
    """The names whose places hold 1; none for an empty cell.

    Raises:
      Malformed: there are more or fewer places than names, or something else than 0 and 1 in one.
    """
    marks = _marks(cell)
    if marks and len(marks) != len(names):
        raise table.Malformed(f'{len(marks)} places of 0 and 1, where {len(names)} have names')
    if odd := [mark for mark in marks if mark not in (*_ON, *_OFF)]:
        raise table.Malformed(f'{odd[0]!r:.60} in a place of 0 or 1')
    return [name for name, mark in zip(names, marks) if mark in _ON]


def find_separator(path: str, cells: Sequence[Any], known: Collection[str]) -> str:
    """The character between the labels in the cells; '' if each holds at most one.

    Another one that recurs inside labels is said.

    Args:
      path: the file, for the message.
      cells: of the column of labels; lists do not count.
      known: labels that are known already.

    Raises:
      InputError: several characters may separate labels.
    """
    texts = {text for cell in cells if isinstance(cell, str) and (text := cell.strip())
             and not _LIKE_A_LIST.match(text)} - set(known)
    characters = {char for text in texts for char in text if char not in _WITHIN_NAMES
                  and not (char.isalnum() or char.isspace() and char != '\t')}
    shares = {char: _share_that_recurs(texts, char, known) for char in sorted(characters)}
    recurring = {char for char, share in shares.items() if share >= _RECURS}
    fits = {char: shares[char] for char in shares
            if char in _USUAL or char in recurring and _stands_alone(texts, char, known)}
    best = [char for char, share in fits.items() if share == max(fits.values())]
    if len(best) > 1:
        raise InputError(
            f"{path}: {' and '.join(map(repr, best))} occur inside labels, such as "
            f'{next(text for text in sorted(texts) if best[0] in text)!r:.60}: name the one that '
            'separates them, config.classification.separator')
    if best:
        return best[0]
    for char in sorted(recurring)[:1]:
        say(f'warning: {path}: {char!r} recurs inside labels, such as '
            f'{next(text for text in sorted(texts) if char in text)!r:.60}: if it separates them, '
            f'set config.classification.separator={char!r}')
    spaced = {word for text in texts if ' ' in text for word in text.split()}
    return ' ' if spaced and spaced <= texts | set(known) else ''


def _parts(text: str, char: str) -> set[str]:
    return {part for x in text.split(char) if (part := x.strip())}


def _share_that_recurs(texts: Collection[str], char: str, known: Collection[str]) -> float:
    """The share of the parts of texts with this character that occur in other texts too."""
    counts = collections.Counter(part for text in texts for part in _parts(text, char))
    split = set[str]().union(*(_parts(text, char) for text in texts if char in text))
    if any(len(_parts(text, char)) < 2 for text in texts if char in text):
        return 0.0  # as in C++ and C#
    return sum(counts[part] > 1 or part in known for part in split) / max(len(split), 1)


def _stands_alone(texts: Collection[str], char: str, known: Collection[str]) -> bool:
    """Whether half of the parts are labels by themselves, unlike those of sport/tennis."""
    split = set[str]().union(*(_parts(text, char) for text in texts if char in text))
    return 2 * len(split & {*texts, *known}) >= len(split)
