"""The reader of tables: TSV without quoting, CSV with it, JSON; plain or gzipped.

Benchmarks' files, your own and those that are only predicted are read by it. In training and
evaluation a row that cannot be used is counted, listed and left out; past a limit it is an error.
"""

from __future__ import annotations

import codecs
import csv
import fnmatch
import gzip
import itertools
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path, children, open_stream

# What to do about a column that a user's own file lacks.
_OWN_COLUMNS = (
    'name its columns with --config.data.text, text_pair, choices, label and id, or for '
    'predictions with --text, --text-pair and --choices'
)
_LISTED = 3  # malformed rows of a file that are shown one by one

_LONGEST_CELL = 1 << 30  # characters; the csv module's own limit is 131,072


class Row(NamedTuple):
    """A row of a table.

    Attributes:
      line: where it begins, from 1; of a JSON list its place.
      cells: the wanted columns; None for an optional one that is not there.
      fault: why it cannot be used; '' of a good one.
    """

    line: int
    cells: list[Any]
    fault: str = ''


class Rejects:
    """The rows of one file that cannot be used.

    Attributes:
      path: the file.
      max_share: of its rows that may be malformed; above 0, one always may.
    """

    def __init__(self, path: str, max_share: float):
        self.path = path
        self.max_share = max_share
        self._rows: list[tuple[int, str]] = []

    @property
    def lines(self) -> list[int]:
        """Where the rows are."""
        return [line for line, _ in self._rows]

    def add(self, line: int, reason: str) -> None:
        self._rows.append((line, reason))

    def filter(self, rows: Iterable[Row]) -> Iterator[tuple[int, list[Any]]]:
        """(line, cells) of the good rows; takes the others."""
        for row in rows:
            if row.fault:
                self.add(row.line, row.fault)
            else:
                yield row.line, row.cells

    def check(self, num_used: int) -> int:
        """Lists the rows that were left out on standard error; gives their number.

        Args:
          num_used: rows of the file that were used.

        Raises:
          InputError: too many were left out, or none was used.
        """
        num = len(self._rows)
        total = num_used + num
        if not total:
            raise InputError(f'{self.path} holds no rows: copy it again')
        allowed = max(1, int(self.max_share * total)) if self.max_share > 0 else 0
        if num > allowed or not num_used:
            line, reason = self._rows[0]
            remedy = 'mend the file' + (', or raise config.data.max_malformed' if num_used else '')
            raise InputError(
                f'{self.path}: {num} of {total} rows are malformed ({allowed} may be); the first '
                f'is line {line}: {reason}; {remedy}'
            )
        for line, reason in self._rows[:_LISTED]:
            print(f'{self.path}, line {line}: {reason}; left out', file=sys.stderr)
        if num > _LISTED:
            print(f'{self.path}: {num} of {total} rows left out as malformed', file=sys.stderr)
        return num


def find_files(folder: str, stems: Sequence[str], endings: Sequence[str]) -> list[str]:
    """Files of a split: the first of the form `STEM.ENDING`, else all of `STEM.*.ENDING`.

    Args:
      folder: where to look; need not exist.
      stems: names in the order of preference, such as 'train'.
      endings: formats in the order of preference, such as 'tsv'; each plain or with `.gz`.
    """
    for name in _names(stems, endings):
        path = os.path.join(folder, name)
        if as_path(path).is_file():
            return [path]
    names = [child.name for child in children(folder)]
    return sorted(
        os.path.join(folder, name) for pattern in _names([f'{stem}.*' for stem in stems], endings)
        for name in fnmatch.filter(names, pattern)
    )


def find_file(folder: str, stems: Sequence[str], endings: Sequence[str]) -> str:
    """The one of `find_files`. Says which it is, unless the name is as in the benchmark.

    Raises:
      InputError: no such folder, no such file, or several.
    """
    if not as_path(folder).is_dir():
        raise InputError(f'no folder {folder}: name one in the layout of the benchmark')
    found = find_files(folder, stems, endings)
    names = _names(stems, endings)
    if not found:
        raise InputError(f"{folder} has none of {', '.join(names)}")
    if len(found) > 1:
        raise InputError(
            f'{folder} has no {names[0]} but several that could be: '
            f"{', '.join(map(os.path.basename, found))}; keep one of them"
        )
    if os.path.basename(found[0]).removesuffix('.gz') not in _names(stems, endings[:1]):
        print(f'{stems[0]} is read from {found[0]}', file=sys.stderr)
    return found[0]


def _names(stems: Sequence[str], endings: Sequence[str]) -> list[str]:
    return [f'{stem}.{ending}{gz}' for stem in stems for ending in endings for gz in ('', '.gz')]


def format_of(path: str) -> str:
    """'csv', 'json' (objects, one a line or in one list), or 'tsv' for any other name."""
    ending = os.path.splitext(path.lower().removesuffix('.gz'))[1]
    return {'.csv': 'csv', '.json': 'json', '.jsonl': 'json'}.get(ending, 'tsv')


def read_rows(
    path: str, columns: Sequence[str], *, optional: Sequence[str] = (),
    headerless: Sequence[str] = (), own: bool = False,
    progress: Callable[[int], None] = lambda size: None,
) -> Iterator[Row]:
    """Columns of a table: for training, evaluation and prediction alike.

    The first row of a CSV or TSV file is a header if one of its cells is the name of a wanted
    column; spaces around names do not count. Its cells are strings, those of JSON as they are.

    Args:
      path: `.csv` is read with quoting, `.json` and `.jsonl` as objects, one a line or in one list,
        anything else as TSV without quoting; plain or `.gz`, in any case of letters.
      columns: wanted, by their names in the header, or fields of the objects.
      optional: those of `columns` that the file or an object may lack.
      headerless: names of all columns of a file without a header; empty: it must have one.
      own: whether the user named the columns, which are not those of a benchmark.
      progress: called with the bytes of each line that is read.

    Raises:
      InputError: no such column, or one that is there twice; an unreadable or empty file.
    """
    form = format_of(path)
    if form == 'json':
        yield from _object_rows(path, columns, optional, progress)
        return
    rows = (_csv_rows if form == 'csv' else _tsv_rows)(path, progress)
    first = next(rows, None)
    if first is None:
        raise InputError(f'{path} is empty: copy it again')
    names: Sequence[str] = [name.strip() for name in first[1]]
    if not set(names) & set(columns) and headerless:
        names = headerless
        rows = itertools.chain([first], rows)
    for name in columns:
        if name not in names and name not in optional:
            raise InputError(_no_column(path, name, names, own))
        if names.count(name) > 1:
            raise InputError(f"{path} has two columns '{name}' in its header: rename one of them")
    places = [names.index(name) if name in names else None for name in columns]
    width = len(names)
    for line, cells in rows:
        if len(cells) == width:
            yield Row(line, [None if place is None else cells[place] for place in places])
        else:
            yield Row(line, [], f'columns: {len(cells)}, where {width} are wanted')


def _no_column(path: str, name: str, names: Sequence[str], own: bool) -> str:
    remedy = _OWN_COLUMNS if own else 'name the columns as the original file does'
    similar = [other for other in names if other.lower() == name.lower()]
    if len(names) == 1 and names[0].count(';') > 0:
        remedy = "its columns are separated by ';', and ',' is expected: convert it"
    elif similar:
        remedy = f"did you mean '{similar[0]}'? {remedy}"
    return (f"{path} has no column '{name}' in its header; it has: {', '.join(names)[:200]}: "
            f'{remedy}')


def _object_rows(
    path: str, fields: Sequence[str], optional: Sequence[str], progress: Callable[[int], None]
) -> Iterator[Row]:
    number = 0
    for number, record in _objects(path, progress):
        if not isinstance(record, dict):
            fault = record if isinstance(record, str) else 'not a JSON object'
        else:
            missing = [name for name in fields if name not in record and name not in optional]
            fault = f"no field '{missing[0]}'" if missing else ''
            fault += f" (it has: {', '.join(record)[:200]})" if missing else ''
        if fault:
            yield Row(number, [], fault)
        else:
            yield Row(number, [record.get(name) for name in fields])
    if not number:
        raise InputError(f'{path} is empty: copy it again')


def _objects(path: str, progress: Callable[[int], None]) -> Iterator[tuple[int, Any]]:
    """(line, or place in the list from 1; value, or what is wrong with it) of each object."""
    may_be_list = path.lower().removesuffix('.gz').endswith('.json')
    texts = lines(path, progress)
    for line, text in texts:
        if not text.strip():
            continue
        if may_be_list and text.lstrip().startswith('['):
            try:
                values = json.loads('\n'.join([text, *(rest for _, rest in texts)]))
            except (ValueError, RecursionError) as error:
                raise InputError(f'{path} is no list of JSON objects ({error}): mend it') from None
            yield from enumerate(values, 1)
            return
        try:
            value = json.loads(text, object_pairs_hook=_without_doubles)
            yield line, value if isinstance(value, dict) else [value]
        except (ValueError, RecursionError) as error:
            yield line, f'not JSON ({error})'


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f'{next(n for n in names if names.count(n) > 1)!r} is there twice')
    return found


def label_ids(
    path: str, lines: Sequence[int], labels: Sequence[str], known: Sequence[str]
) -> np.ndarray:
    """[n] int32: the places of labels among the known ones.

    Raises:
      InputError: a label that is not among them, with its line.
    """
    ids = {label: i for i, label in enumerate(known)}
    found = np.array([ids.get(label, -1) for label in labels], np.int32)
    if len(found) and found.min() < 0:
        i = int(np.argmin(found))
        raise InputError(
            f"{path}, line {lines[i]}: unknown label '{labels[i]}'; known are {', '.join(known)}: "
            'mend it'
        )
    return found


def check_unique(path: str, lines: Sequence[int], ids: Sequence[str]) -> None:
    """Refuses a file with an id that occurs twice."""
    if len(set(ids)) == len(ids):
        return
    seen: dict[str, int] = {}
    for line, name in zip(lines, ids, strict=True):
        if name in seen:
            raise InputError(
                f"{path}, line {line}: id '{name}' stands in line {seen[name]} already; "
                'remove one of them'
            )
        seen[name] = line


def label_text(value: Any) -> str:
    """A label as a string, from a cell or a JSON value; '' where there is none."""
    if isinstance(value, bool):
        return str(value).lower()
    return '' if value is None else str(value).strip()


def row_ids(ids: Sequence[Any], lines: Sequence[int], rejects: Rejects) -> list[str]:
    """Ids as strings; where there is none, the place of the row among all of the file, from 0.

    Args:
      ids: a cell or None a row.
      lines: of the rows.
      rejects: rows that were left out; they keep their places.
    """
    places = {line: i for i, line in enumerate(sorted({*lines, *rejects.lines}))}
    return [str(places[line]) if x is None else str(x) for x, line in zip(ids, lines, strict=True)]


def _tsv_rows(path: str, progress: Callable[[int], None]) -> Iterator[tuple[int, list[str]]]:
    """Cells of each line that is not blank: quotes are ordinary characters."""
    for line, text in lines(path, progress):
        if text:
            yield line, text.split('\t')


def _csv_rows(path: str, progress: Callable[[int], None]) -> Iterator[tuple[int, list[str]]]:
    """Cells of each row, which quotes may stretch over several lines."""
    csv.field_size_limit(_LONGEST_CELL)
    reader = csv.reader((text + '\n' for _, text in lines(path, progress)), strict=True)
    line = 1
    try:
        for cells in reader:
            if cells:
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(
            f'{path}, line {line} is not CSV ({error}): mend its quotes'
        ) from None


def lines(
    path: str, progress: Callable[[int], None] = lambda size: None
) -> Iterator[tuple[int, str]]:
    """(number, text) of each line: no line end, no BOM. Only line feeds end lines.

    Args:
      path: the file, plain or `.gz`.
      progress: called with the bytes of each line.

    Raises:
      InputError: it cannot be read, or is not UTF-8 text.
    """
    number = 0
    try:
        with open_stream(path) as file:
            for number, line in enumerate(file, 1):
                progress(len(line))
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                    if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                        raise InputError(
                            f'{path} is UTF-16: convert it (iconv -f UTF-16 -t UTF-8)')
                    if not line.endswith(b'\n') and b'\r' in line[:-1]:
                        raise InputError(
                            f"{path}: its lines end with CR alone: convert it (tr '\\r' '\\n')")
                if b'\0' in line:
                    raise InputError(
                        f'{path}, line {number} holds a NUL byte: it is no text file, or UTF-16: '
                        'convert it to UTF-8')
                yield number, line.rstrip(b'\r\n').decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f'{path}, line {number} is not UTF-8: byte {error.start} is '
            f'0x{error.object[error.start]:02x}; convert the file (iconv -t UTF-8)'
        ) from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f'{path} is not a sound gzip file ({error}); copy it again') from error
    except OSError as error:
        raise InputError(f'{path} cannot be read: {error.strerror or error}') from error
