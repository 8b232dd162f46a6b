"""Rows of a benchmark's files: TSV without quoting, CSV with it, JSON lines; plain or gzipped.

A row that cannot be used is counted, listed and left out; past a limit it is an error.
"""

from __future__ import annotations

import csv
import fnmatch
import gzip
import json
import os
import sys
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path, children, open_stream

_LISTED = 3  # malformed rows of a file that are shown one by one

# (line, the wanted columns of the row; None for an optional one that the file lacks)
Row = tuple[int, list[Any]]


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
    """'csv', 'jsonl' or 'tsv' (whatever else a file is called)."""
    ending = os.path.splitext(path.removesuffix('.gz'))[1]
    return ending[1:] if ending in ('.csv', '.jsonl') else 'tsv'


def read_table(
    path: str, columns: Sequence[str], rejects: Rejects, *, optional: Sequence[str] = (),
    headerless: Sequence[str] = (),
) -> Iterator[Row]:
    """Columns of a TSV or CSV file, as strings.

    The first row is a header if one of its cells is the name of a wanted column.

    Args:
      path: the file; `.csv` is read with quoting, anything else as TSV without.
      columns: wanted, by their names in the header.
      rejects: takes the rows with another number of columns.
      optional: those of `columns` that the file may lack.
      headerless: names of all columns of a file without a header; empty: it must have one.

    Raises:
      InputError: no such column; an unreadable or empty file.
    """
    rows = _csv_rows(path) if format_of(path) == 'csv' else _tsv_rows(path)
    first = next(rows, None)
    if first is None:
        raise InputError(f'{path} is empty: copy it again')
    names: Sequence[str] = first[1]
    if not set(names) & set(columns) and headerless:
        names = headerless
        rows = _chain(first, rows)
    missing = [name for name in columns if name not in names and name not in optional]
    if missing:
        raise InputError(
            f"{path} has no column '{missing[0]}' in its header; it has: {', '.join(names)[:200]}: "
            'name the columns as the original file does'
        )
    places = [names.index(name) if name in names else None for name in columns]
    width = len(names)
    for line, cells in rows:
        if len(cells) == width:
            yield line, [None if place is None else cells[place] for place in places]
        else:
            rejects.add(line, f'columns: {len(cells)}, where {width} are wanted')


def read_json_lines(
    path: str, fields: Sequence[str], rejects: Rejects, *, optional: Sequence[str] = ()
) -> Iterator[Row]:
    """Fields of JSON lines, as they are.

    Args:
      path: the file.
      fields: wanted.
      rejects: takes the lines that are no objects or lack a field.
      optional: those of `fields` that an object may lack.

    Raises:
      InputError: an unreadable or empty file.
    """
    line = 0
    for line, text in lines(path):
        if not text.strip():
            continue
        try:
            record = json.loads(text)
        except ValueError as error:
            rejects.add(line, f'not JSON ({error})')
            continue
        if not isinstance(record, dict):
            rejects.add(line, 'not a JSON object')
            continue
        missing = [name for name in fields if name not in record and name not in optional]
        if missing:
            rejects.add(line, f"no field '{missing[0]}' (it has: {', '.join(record)[:200]})")
        else:
            yield line, [record.get(name) for name in fields]
    if not line:
        raise InputError(f'{path} is empty: copy it again')


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
    """Ids as strings; where there is none, the place of the row in the file, from 0.

    Args:
      ids: a cell or None a row.
      lines: of the rows.
      rejects: rows that were left out; they keep their places.
    """
    first = min([*lines[:1], *rejects.lines])
    return [
        str(line - first) if x is None else str(x) for x, line in zip(ids, lines, strict=True)
    ]


def _chain(first: tuple[int, list[str]], rest: Iterator[tuple[int, list[str]]]) -> Iterator:
    yield first
    yield from rest


def _tsv_rows(path: str) -> Iterator[tuple[int, list[str]]]:
    """Cells of each line that is not blank: quotes are ordinary characters."""
    for line, text in lines(path):
        if text:
            yield line, text.split('\t')


def _csv_rows(path: str) -> Iterator[tuple[int, list[str]]]:
    """Cells of each row, which quotes may stretch over several lines."""
    reader = csv.reader((text + '\n' for _, text in lines(path)), strict=True)
    line = 1
    try:
        for cells in reader:
            if cells:
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(
            f'{path}, line {line} is not CSV ({error}); mend its quotes'
        ) from None


def lines(path: str) -> Iterator[tuple[int, str]]:
    """(number, text) of each line: no line end, no BOM. Only line feeds end lines."""
    number = 0
    try:
        with open_stream(path) as file:
            for number, line in enumerate(file, 1):
                if number == 1:
                    line = line.removeprefix(b'\xef\xbb\xbf')
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
