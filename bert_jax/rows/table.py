"""The one reader of tables: CSV, TSV, JSON and Parquet, for training and prediction.

A file's extension tells its format, in upper or lower case: `.csv` has quoting, and its header
tells what separates the cells; `.json`, `.jsonl`, `.ndjson` and `.jsonlines` hold an object a line
or one list of objects, `.parquet` and data sets of the Hugging Face hub (`runtime.hub`) are
Parquet, anything else is TSV without quoting. All but Parquet may be compressed (`.gz`, `.bz2`).
A bad file is an `InputError`. A bad row has a `fault`: training leaves the row out, up to a limit,
and prediction gives an error in its place.
"""

import codecs
import contextlib
import csv
import difflib
import fnmatch
import itertools
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bert_jax.runtime.errors import (
    DamagedFile,
    InputError,
    first_line,
    needing,
    tell,
    tell_once,
)
from bert_jax.runtime.files import (
    LONGEST_LINE,
    as_path,
    children,
    is_damage,
    lone_cr,
    open_stream,
    read_lines,
)
from bert_jax.runtime.hub import parquet_files
from bert_jax.runtime.schema import TEXT, ListOf, fault_in

_LONGEST_JSON = 2 << 30  # bytes of a line, which may be the whole file: a list, or SQuAD's layout
_LISTED = 3  # malformed rows of a file that are shown one by one
_PLACES = 100  # of the others, whose places alone are shown
# What Parquet files begin with; PAR1 alone is the name of a gene, too.
_PARQUET_MARK = b'PAR1\x15'
_BATCH_ROWS = 1024  # of Parquet, in memory at once
_NUMBER = re.compile(r'-?(0|[1-9][0-9]*)(\.[0-9]*)?')
_MOST_DIGITS = 18  # of the index of a label
_HEADER_AGAIN = 'the header again'
_SECRET = '-1'  # in place of a label, in test splits of benchmarks on the Hugging Face hub
_NO_LABELS: dict[type, str] = {
    list: 'a list', tuple: 'a list', dict: 'an object', bytes: 'bytes', bytearray: 'bytes'}
LONGEST_CELL = 1 << 30  # the csv module's own limit is 131,072 characters
# What pyarrow raises for a value that Python does not have, such as the year 10000, a nanosecond,
# an unknown time zone, or bytes that are no UTF-8.
_NO_PYTHON_VALUE = (ValueError, ArithmeticError, LookupError, TypeError, ImportError)
# Of cells in a .csv file; spreadsheets of many countries write the second.
_SEPARATORS = {',': 'a comma', ';': 'a semicolon', '\t': 'a TAB', '|': 'a vertical bar'}


# Byte order marks; and which of the bytes of the first letters are not NUL, where there is no mark.
_WIDE_MARKS = {
    codecs.BOM_UTF32_LE: 'UTF-32', codecs.BOM_UTF32_BE: 'UTF-32', codecs.BOM_UTF16_LE: 'UTF-16'}
_WIDE_LETTERS: Mapping[tuple[bool, ...], str] = {
    (True, False, True, False): 'UTF-16LE',
    (False, True, False, True): 'UTF-16BE',
    (True, False, False, False): 'UTF-32LE',
    (False, False, False, True): 'UTF-32BE',
}


class Malformed(Exception):
    """Why a row cannot be used; the other rows of its file can."""


class NoLabel(Malformed):
    """A row has no label: its cell is empty, null or NaN."""


class Row(NamedTuple):
    """A row of a table.

    Attributes:
      line: line of the file where the row begins, from 1; in a JSON list or Parquet, the number of
        the row, from 1.
      cells: of the wanted columns; None for an optional one that the file lacks.
      fault: why the row cannot be used; '' if it can.
    """

    line: int
    cells: list[Any]
    fault: str = ''


class Line(NamedTuple):
    """A line of a text file: its number, from 1, and its text without the line end."""

    number: int
    text: str


class Rows(NamedTuple):
    """The usable rows of a file, parsed.

    Attributes:
      ids: from the column of ids; without one, the row's index from 0 among all rows (header and
        blank lines do not count).
      lines: see `Row`.
      values: what each row was parsed to.
    """

    ids: list[str]
    lines: list[int]
    values: list[Any]


def format_of(path: str) -> str:
    """'csv', 'tsv', 'json' or 'parquet', by a file's name; '' for any other name."""
    if path.startswith('hf:'):
        return 'parquet'
    ending = re.search(
        r'\.(csv|tsv|jsonl?|ndjson|jsonlines|parquet)(\.gz|\.bz2)?$', path.lower())
    if not ending:
        return ''
    return 'json' if 'json' in ending[1] else ending[1]


def read_rows(
    path: str, columns: Sequence[str], *, optional: Sequence[str] = (),
    headerless: Sequence[str] = (),
) -> Iterator[Row]:
    """The wanted columns of each row, as they stand in the file.

    Args:
      path: the file.
      columns: names in the header (spaces around a name do not count), or fields of the objects,
        or columns of Parquet.
      optional: those of `columns` that the file may lack.
      headerless: names of all columns, for a CSV or TSV file without a header, which is one whose
        first row holds none of `columns`. Empty: there must be a header.

    Raises:
      InputError: the file cannot be read in the format of its name, or lacks a column.
    """
    if format_of(path) == 'json':
        return read_objects(path, columns, optional)
    if format_of(path) == 'parquet':
        return read_parquet(path, columns, optional)
    return _read_separated(path, columns, optional, headerless)


def all_rows(path: str) -> Iterator[Row]:
    """All cells of each row, whatever the columns are called; a header is a row too.

    Raises:
      InputError: the file cannot be read in the format of its name.
    """
    if format_of(path) == 'parquet':
        return read_parquet(path, column_names(path))
    if format_of(path) == 'json':
        return _values_of_objects(path)
    return _cells(path, ())


def _values_of_objects(path: str) -> Iterator[Row]:
    """The values of all fields of each object of a JSON file."""
    for line, record, fault in _objects(path):
        cells = [] if fault else list(record.values())
        yield Row(line, cells, fault)


def column_names(path: str) -> list[str]:
    """The columns of a table, or the fields of the first object in JSON; [] if there are none."""
    if format_of(path) == 'parquet':
        with _parquet(parquet_files(path)[0]) as content:
            return list(content.schema_arrow.names)
    if format_of(path) == 'json':
        for found in _objects(path):
            if not found.fault:
                return list(found.value)
        return []
    header = next(_cells(path, ()), None)
    if header is None:
        return []
    return [name.strip() for name in header.cells]


def column_or_usual(path: str, name: str | None, usual: Sequence[str], field: str) -> str:
    """The column that the config names; else the first usual name, or the one that the file has.

    Prints a line if it takes another column than the first, which it does only if no second one
    could be meant.

    Args:
      path: the file.
      name: the column as configured; None: it is not.
      usual: names of such columns, in lower case.
      field: of the config, for the message.
    """
    if name is not None:
        return name
    first = usual[0]
    names = column_names(path)
    others = [other for other in names if other.strip().lower() in usual]
    if first in names or len(others) != 1:
        return first
    tell(f'{path}: its column {others[0]!r} is read for {field}: it has no {first!r}')
    return others[0]


def _read_separated(
    path: str, columns: Sequence[str], optional: Sequence[str], headerless: Sequence[str]
) -> Iterator[Row]:
    """`read_rows` for a CSV or TSV file."""
    rows = _cells(path, None if headerless else columns)
    first = next(rows, None)
    if first is None:
        return
    names = [name.strip() for name in first.cells]
    header = first.cells
    if headerless and not set(names) & set(columns):
        names = list(headerless)
        header = []
        rows = itertools.chain([first], rows)
    if '\r' in ''.join(header) and format_of(path) != 'csv':  # which may have it within quotes
        raise DamagedFile(lone_cr(path, first.line))
    _check_header(path, names, columns, optional)
    width = len(names)
    # Behind the cells of each row stands None, for the columns that the file lacks.
    places = [names.index(name) if name in names else width for name in columns]
    for line, cells, _ in rows:
        if len(cells) != width:
            hint = '' if format_of(path) == 'csv' else _hint_of_cr('\t'.join(cells))
            yield Row(line, [], f'columns: {len(cells)}, where {width} are wanted{hint}')
        elif cells == header and width > 1:  # files that were put together have it again
            yield Row(line, [], _HEADER_AGAIN)
        else:
            cells.append(None)
            yield Row(line, [cells[place] for place in places])


def _check_header(
    path: str, names: Sequence[str], columns: Sequence[str], optional: Sequence[str]
) -> None:
    """Refuses a header that lacks one of the columns, unless it is optional, or has it twice."""
    for column in columns:
        if column not in names and column not in optional:
            raise InputError(_no_column(path, column, names))
        if names.count(column) > 1:
            raise InputError(f"{path} has two columns '{column}' in its header: rename one of them")


def _no_column(path: str, name: str, names: Sequence[str], where: str = 'in its header') -> str:
    """The message for a table that has columns `names` and lacks another one."""
    if re.match(r'\[?\s*\{\s*"', ','.join(names)):
        return f'{path} begins like JSON, and by its name is none: let it end in .jsonl or .json'
    remedy = ('name the columns as the original file does; those of your files with '
              '--config.data.text, text_pair, choices, label and id, or for predictions with '
              '--text, --text-pair and --choices')
    if name in ('_id', 'query-id', 'corpus-id'):
        remedy = ('config.retrieval.corpus and queries have a header with _id and text, qrels with '
                  f'query-id, corpus-id and score; else {remedy}')
    similar = [other for other in names if other.lower() == name.lower()]
    similar += difflib.get_close_matches(name, names, n=1, cutoff=0.7)
    if similar:
        remedy = f"did you mean '{similar[0]}'? {remedy}"
    return f"{path} has no column '{name}' {where}; it has: {', '.join(names)[:200]}: {remedy}"


def _cells(path: str, columns: Sequence[str] | None) -> Iterator[Row]:
    """All cells of each row of a CSV or TSV file, the header first.

    Args:
      path: the file.
      columns: names in the header, which tell the separator; empty: they are not known; None: there
        may be no header.
    """
    numbered = lines(path)
    leading = _lines_to_header(numbered)
    header = leading[-1].text if leading else ''
    usual = ',' if format_of(path) == 'csv' else '\t'
    separator = usual
    declared = re.fullmatch('sep=(.)', header)
    if declared:  # Excel's own line before the header
        separator = declared[1]
        leading = [Line(number, '') for number, _ in leading]
    elif columns is not None:
        separator = _separator(header, columns, usual)
        if separator != usual:
            tell_once(f'{path}: its cells are separated by {_SEPARATORS[separator]}, as its header '
                      'shows')
    all_lines = itertools.chain(leading, numbered)
    if separator == usual == '\t':
        return _tsv_rows(path, all_lines)
    return _csv_rows(path, all_lines, separator)


def _lines_to_header(numbered: Iterator[Line]) -> list[Line]:
    """The blank lines at the start of a file, and the first one that is not blank."""
    leading = []
    for line in numbered:
        leading.append(line)
        if line.text.strip():
            break
    return leading


def _separator(header: str, columns: Sequence[str], usual: str) -> str:
    """The separator that gives most of the columns; in CSV, else that which gives most cells.

    Where several do, the usual one.
    """
    def fit(separator: str) -> tuple[int, int]:
        names = _header(header, separator)
        num_wanted = len(set(names) & set(columns))
        num_cells = len(names) if usual == ',' else 0
        return num_wanted, num_cells

    return max([usual, *_SEPARATORS], key=fit)


def _header(line: str, separator: str) -> list[str]:
    """The names in a header with this separator; one name if it is no such header."""
    try:
        return [name.strip() for name in next(csv.reader([line], delimiter=separator), [])]
    except csv.Error:  # the cell goes on in the next line
        return [line]


def _tsv_rows(path: str, numbered: Iterator[Line]) -> Iterator[Row]:
    """All cells of each row; quotes are characters, and a note says so where they look like more.

    Of the programs that quote, some always do, and most where a cell holds a TAB, a line feed or a
    quote. TABs and line feeds give rows with other numbers of cells; the rest would not be noticed.
    """
    is_told = False
    for number, text in numbered:
        if not text:
            continue
        cells = text.split('\t')
        if '"' in text and not is_told and (
                any(map(_is_quoted, cells)) or _are_all_in_quotes(cells)):
            is_told = True
            tell_once(
                f'note: {path}, line {number}: a cell stands in quotes and has doubled ones, or '
                'all cells stand in quotes, which are read as they stand, because .tsv has no '
                'quoting: if a program has written them, give the file the ending .csv, which may '
                'have TABs between its cells')
        yield Row(number, cells)


def _is_quoted(cell: str) -> bool:
    """Whether a cell looks like one that a program put into quotes, because it holds some."""
    inner = cell[1:-1]
    is_in_quotes = len(cell) > 2 and cell[0] == cell[-1] == '"'
    return is_in_quotes and '"' in inner and '"' not in inner.replace('""', '')


def _are_all_in_quotes(cells: Sequence[str]) -> bool:
    """Whether all cells of a row, if it has several, stand in quotes."""
    return len(cells) > 1 and all(len(cell) > 1 and cell[0] == cell[-1] == '"' for cell in cells)


def _csv_rows(path: str, numbered: Iterator[Line], separator: str) -> Iterator[Row]:
    """All cells of each row; quoted cells may span several lines."""
    csv.field_size_limit(LONGEST_CELL)
    of_row: list[str] = []
    reader = csv.reader(_read_into(of_row, numbered), strict=True, delimiter=separator)
    is_told = False
    first_line = 1
    try:
        for cells in reader:
            if not is_told and _have_spaces_before_quotes(cells, of_row, separator):
                is_told = True
                tell_once(f'note: {path}, line {first_line}: a space stands before the quotes of a '
                          'cell, which are read as they stand then: if a program has written them, '
                          'remove the space')
            if cells:
                yield Row(first_line, cells)
            of_row.clear()
            first_line = reader.line_num + 1
    except csv.Error as error:
        if 'new-line' in str(error):
            raise DamagedFile(
                lone_cr(path, first_line, 'remove it or put its cell into quotes')) from None
        raise DamagedFile(
            f'{path}, line {first_line} is not CSV ({error}): correct the line; perhaps '
            'a quote in it is not closed') from None


def _read_into(of_row: list[str], numbered: Iterator[Line]) -> Iterator[str]:
    """The lines with their ends, each of which is added to `of_row`."""
    for line in numbered:
        of_row.append(line.text)
        yield line.text + '\n'


def _have_spaces_before_quotes(
    cells: Sequence[str], lines_of_row: Sequence[str], separator: str
) -> bool:
    """Whether a cell of a row has a space before its quotes, which then are characters.

    If the separator stands between them, they end in another cell.
    """
    for place, cell in enumerate(cells):
        if cell.startswith(' "'):
            ends = [cell[2:], *cells[place + 1 :]]
            is_bare = separator + cell in separator + '\n'.join(lines_of_row)
            if is_bare and any(end.rstrip().endswith('"') for end in ends):
                return True
    return False


class _Object(NamedTuple):
    """A value in a JSON file.

    Attributes:
      line: where it stands; in a list, its number.
      value: a dict, if it has no fault.
      fault: what is wrong with it; '' if nothing is.
    """

    line: int
    value: Any
    fault: str


def _objects(path: str) -> Iterator[_Object]:
    """The objects of a JSON file: one on each line, or all in one list."""
    filled = (line for line in lines(path) if line.text.strip())
    first = next(filled, None)
    if first is None:
        return
    texts = itertools.chain([first], filled)
    if first.text.lstrip().startswith('['):
        values = _list_values(path, texts)
    else:
        values = _line_values(texts)
    for found in values:
        if found.fault or isinstance(found.value, dict):
            yield found
        else:
            yield found._replace(fault='not a JSON object')


def _line_values(texts: Iterator[Line]) -> Iterator[_Object]:
    """The value on each line."""
    for number, text in texts:
        try:
            yield _Object(number, _parsed(text), '')
        except (ValueError, RecursionError) as error:
            yield _Object(number, None, f'not JSON ({error}){_hint_of_line(text, error)}')


def _hint_of_line(text: str, error: Exception) -> str:
    """A hint on what is wrong with a line that is not one value of JSON; '' if none is likely."""
    if isinstance(error, json.JSONDecodeError):
        rest = text[error.pos :].strip()
        if not rest:
            return '; the line ends within an object: write each object on a line of its own'
        if rest == ',':
            return '; a comma stands behind the object: remove it'
    return _hint_of_cr(text)


def _list_values(path: str, texts: Iterator[Line]) -> Iterator[_Object]:
    """The values of the list that the lines hold together."""
    whole = '\n'.join(line.text for line in texts)
    try:
        values = _parsed(whole)
    except (ValueError, RecursionError) as error:
        raise DamagedFile(f'{path} begins with [ and is no list of JSON objects: not JSON '
                          f'({error})') from None
    for number, value in enumerate(values, 1):
        yield _Object(number, value, '')


def _parsed(text: str) -> Any:
    """The value of a JSON text; a ValueError or RecursionError if there is none."""
    return json.loads(text, object_pairs_hook=_record_of)


def _record_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object with these fields; a ValueError if a name is there twice."""
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f'{repeated!r} is there twice')
    return record


def read_objects(path: str, columns: Sequence[str], optional: Sequence[str] = ()) -> Iterator[Row]:
    """`read_rows` for a JSON file of any name: an object on each line, or all in one list."""
    lacking = ''  # a column that some row lacks, and the columns that such a row has
    names: list[str] = []
    any_used = False
    for line, record, fault in _objects(path):
        if fault:
            yield Row(line, [], fault)
            continue
        missing = [name for name in columns if name not in record and name not in optional]
        if missing:
            lacking = lacking or missing[0]
            names = names or list(record)
            has = ', '.join(record)[:200]
            yield Row(line, [], f"no field '{missing[0]}' (it has: {has})")
            continue
        any_used = True
        yield Row(line, [record.get(name) for name in columns])
    if lacking and not any_used:  # it is not the rows that are wrong
        raise InputError(_no_column(path, lacking, names, 'in any row'))


def read_parquet(path: str, columns: Sequence[str], optional: Sequence[str] = ()) -> Iterator[Row]:
    """`read_rows` for a Parquet file of any name."""
    number = 0
    for name in parquet_files(path):
        for record in _parquet_records(path, name, columns, optional):
            number += 1
            cells = [] if record.fault else [record.values.get(column) for column in columns]
            yield Row(number, cells, record.fault)


class _Record(NamedTuple):
    """The cells of a row of Parquet by column; or its fault, '' if it has none."""

    values: dict[str, Any]
    fault: str = ''


def _parquet_records(
    path: str, file: str, columns: Sequence[str], optional: Sequence[str]
) -> Iterator[_Record]:
    """The wanted columns of each row of one file of the data set at `path`."""
    with _parquet(file) as content:
        names = content.schema_arrow.names
        _check_header(path, names, columns, optional)
        there = [column for column in columns if column in names]
        for batch in content.iter_batches(_BATCH_ROWS, columns=there):
            yield from _records_of(batch)


def _records_of(batch: Any) -> list[_Record]:
    """The rows of a batch of Parquet. One that Python has no value for has a fault."""
    try:
        return [_Record(values) for values in batch.to_pylist()]
    except _NO_PYTHON_VALUE:
        pass  # of some cell
    return [_record_at(batch, row) for row in range(batch.num_rows)]


def _record_at(batch: Any, row: int) -> _Record:
    """One row of a batch."""
    values: dict[str, Any] = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            values[name] = column[row].as_py()
        except _NO_PYTHON_VALUE as error:
            fault = f"the {column.type} in '{name}' has no value in Python ({first_line(error)})"
            return _Record({}, fault)
    return _Record(values)


def class_names(path: str, column: str) -> list[str]:
    """The names of a column's numbered labels; [] if the file does not give them.

    Parquet files of Hugging Face's `datasets` do, for a `ClassLabel` or a list of them.
    """
    if format_of(path) != 'parquet':
        return []
    with _parquet(parquet_files(path)[0]) as content:
        metadata = content.schema_arrow.metadata or {}
    try:
        described = json.loads(metadata.get(b'huggingface', b'{}'))
    except (ValueError, RecursionError):
        return []
    if fault_in(described, {'info': {'features': {}}}):
        return []  # of another program; the labels then are the numbers
    feature: Any = ((described.get('info') or {}).get('features') or {}).get(column)
    if isinstance(feature, list) and feature:
        feature = feature[0]
    elif isinstance(feature, dict) and feature.get('feature'):
        feature = feature['feature']
    if fault_in(feature, {'_type': ('ClassLabel',), 'names': ListOf(TEXT)}):
        return []
    return list(feature.get('names') or ())


@contextlib.contextmanager
def _parquet(path: str) -> Iterator[Any]:
    """An open Parquet file; errors in reading it become an InputError, or its DamagedFile."""
    with needing(f'{path}: Parquet'):
        from pyarrow import ArrowException, parquet
    with open_stream(path) as file:
        try:
            yield parquet.ParquetFile(file)
        except (ArrowException, OSError) as error:
            if isinstance(error, OSError) and not is_damage(error):
                raise  # of the disk: `open_stream` has its message
            kind = InputError if isinstance(error, MemoryError) else DamagedFile
            raise kind(f'{path} cannot be read as Parquet ({first_line(error)}); copy it '
                       'again') from None


def lines(path: str) -> Iterator[Line]:
    """The lines of a file, without byte order marks before them. Only line feeds end lines.

    Raises:
      DamagedFile: the file is not UTF-8 text, or has a line that is too long.
      InputError: it cannot be read.
    """
    longest = _LONGEST_JSON if format_of(path) == 'json' else LONGEST_LINE
    number = 0
    try:
        with open_stream(path) as file:
            ended = itertools.chain(read_lines(file, path, longest), [b''])
            for number, (line, following) in enumerate(itertools.pairwise(ended), 1):
                if number == 1 and line.startswith(_PARQUET_MARK):
                    raise DamagedFile(f'{path} is a Parquet file: let its name end in .parquet')
                if b'\0' in line:
                    encoding = _wide_encoding(line)
                    raise DamagedFile(
                        f'{path}, line {number} holds a NUL byte: it is no text file, or '
                        f'{encoding}: convert it (iconv -f {encoding} -t UTF-8)')
                if number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                    raise DamagedFile(
                        f'{path}, line 1 is not UTF-8 but UTF-16, as its byte order mark shows: '
                        'convert it (iconv -f UTF-16 -t UTF-8)')
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                while _is_mark(line):
                    line = line.removeprefix(codecs.BOM_UTF8)
                is_all = number == 1 and not following.strip()
                if is_all and b'\r' in line.rstrip(b'\r\n'):
                    raise DamagedFile(
                        f"{path}: its lines end with CR only: convert it (tr '\\r' '\\n')")
                yield Line(number, line.rstrip(b'\r\n').decode())
    except UnicodeDecodeError as error:
        raise DamagedFile(
            f'{path}, line {number} is not UTF-8: byte {error.start} is '
            f'0x{error.object[error.start]:02x}; convert the file (iconv -t UTF-8)'
        ) from None


def _hint_of_cr(row: str) -> str:
    """A hint for the fault of a row with a CR within; '' for other rows."""
    if '\r' not in row.strip():
        return ''
    return "; it holds a lone CR (0x0D): if CR ends the lines, convert the file (tr '\\r' '\\n')"


def lines_of_words(path: str) -> Iterator[Line]:
    """`lines` of a file of words or names, which hold no CR.

    Raises:
      DamagedFile: as `lines`; or a CR stands within a line.
    """
    for line in lines(path):
        if '\r' in line.text.strip():
            raise DamagedFile(lone_cr(path, line.number))
        yield line


def _is_mark(line: bytes) -> bool:
    """Whether a line within a file begins with a byte order mark, and not with a word of U+FEFF.

    Files that were put together have one within.
    """
    rest = line[len(codecs.BOM_UTF8) :]
    return line.startswith(codecs.BOM_UTF8) and not rest[:1].isspace()


def _wide_encoding(line: bytes) -> str:
    """Which encoding a line with NUL bytes is in, if it is text: by its first letters."""
    for start, encoding in _WIDE_MARKS.items():
        if line.startswith(start):
            return encoding
    return _WIDE_LETTERS.get(tuple(map(bool, line[:4])), 'UTF-16')


def read_table(
    path: str, columns: Sequence[str], parse: Callable[[list[Any]], Any], *,
    id_column: str | None = None, max_malformed: float = 0.01, optional: Sequence[str] = (),
    headerless: Sequence[str] = (),
) -> Rows:
    """The results of `parse` for all rows of a file.

    Args:
      path, columns, optional, headerless: as for `read_rows`.
      parse: from cells to a value. It raises Malformed for a row to leave out, and InputError for
        one that fails the file; file and line are put before the latter's message.
      id_column: the column of ids, besides `columns`; None: there is none.
      max_malformed: share of the rows that may be malformed; one row always may, unless this is 0.
        The header, which files that were put together have again, does not count.

    Raises:
      InputError: as `read_rows` and `parse`; no rows, too many malformed ones, or a repeated id.
    """
    rows = Rows([], [], [])
    faults = []
    headers = []  # the lines that hold the header again
    wanted = list(columns)
    if id_column is not None:
        wanted.append(id_column)
    read = read_rows(path, wanted, optional=optional, headerless=headerless)
    for index, row in enumerate(read):
        if row.fault == _HEADER_AGAIN:
            headers.append(row.line)
            continue
        try:
            value = _parsed_row(row, parse, len(columns))
        except Malformed as error:
            faults.append(f'line {row.line}: {error}')
            continue
        except InputError as error:
            raise InputError(f'{path}, line {row.line}: {error}') from None
        row_id = index
        if id_column is not None and row.cells[-1] is not None:
            row_id = row.cells[-1]
        elif id_column is not None and id_column not in optional:
            faults.append(f"line {row.line}: '{id_column}' is null: it has no id")
            continue
        rows.ids.append(str(row_id))
        rows.lines.append(row.line)
        rows.values.append(value)
    if headers:
        others = f', as in {len(headers) - 1:,} more' if headers[1:] else ''
        tell(f'{path}, line {headers[0]}: {_HEADER_AGAIN}{others}; left out')
    check_malformed(path, len(rows.values), faults, max_malformed)
    _check_ids(path, rows)
    return rows


def _parsed_row(row: Row, parse: Callable[[list[Any]], Any], num_columns: int) -> Any:
    """The result of `parse` for the first cells of a row; Malformed if the row has a fault."""
    if row.fault:
        raise Malformed(row.fault)
    return parse(row.cells[:num_columns])


def _check_ids(path: str, rows: Rows) -> None:
    """Refuses a table in which two rows have the same id."""
    line_of: dict[str, int] = {}
    for line, row_id in zip(rows.lines, rows.ids, strict=True):
        first = line_of.setdefault(row_id, line)
        if first != line:
            raise InputError(f"{path}, line {line}: id '{row_id}' stands in line {first} already; "
                             'remove one of them')


def check_malformed(path: str, num_used: int, faults: Sequence[str], max_share: float) -> None:
    """Reports on standard error the rows that were left out.

    Args:
      path: the file.
      num_used: number of rows that were used.
      faults: place and reason for each of the others.
      max_share: share of all rows that may be left out; one row always may, unless this is 0.

    Raises:
      InputError: more were left out, or none was used.
    """
    num_faults = len(faults)
    total = num_used + num_faults
    if not total:
        raise InputError(f'{path} holds no rows: copy it again')
    allowed = 0
    if max_share > 0:
        allowed = max(1, int(max_share * total + 1e-9))
    if num_faults > allowed or not num_used:
        remedy = 'correct the file'
        if num_used:
            least = math.ceil(1000 * num_faults / total) / 1000
            remedy += (', or raise the share that may be, '
                       f'config.data.max_malformed={max_share:g}, to {least:g}')
        raise InputError(
            f'{path}: {num_faults} of {total} rows are malformed ({num_faults / total:.2%}); the '
            f'first is {faults[0]}; {remedy}')
    for fault in faults[:_LISTED]:
        tell(f'{path}, {fault}; left out')
    if num_faults > _LISTED:
        others = _places_of(faults[_LISTED:])
        tell(f'{path}: {num_faults} of {total} rows left out as malformed; the others: {others}')


def _places_of(faults: Sequence[str]) -> str:
    """The places of malformed rows, for a message."""
    places = [fault.partition(':')[0] for fault in faults[:_PLACES]]
    listed = ', '.join(places)
    num_further = len(faults) - _PLACES
    if num_further > 0:
        return f'{listed} and {num_further} further'
    return listed


def texts_of(cells: Sequence[Any]) -> list[str]:
    """The cells, checked to be strings that can be encoded as UTF-8.

    Raises:
      Malformed: one is not.
    """
    for cell in cells:
        if not isinstance(cell, str):
            raise Malformed(f'a text is not a string, but {cell!r:.60}')
        if not cell.isascii():
            try:
                cell.encode()
            except UnicodeEncodeError:
                raise Malformed('a text holds half of a surrogate pair') from None
    return list(cells)


def label_of(cell: Any) -> str:
    """A label as a string, from a cell or a JSON value.

    Raises:
      NoLabel: there is none.
      InputError: it is no single value.
    """
    label = label_text(cell)
    if not label:
        raise NoLabel('its label is empty')
    return label


def label_text(value: Any) -> str:
    """A label as a string; '' if there is none: null, NaN or nothing but white space.

    Raises:
      InputError: it is no single value, or one of bytes.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ''
    if isinstance(value, bool):
        return str(value).lower()
    for kind, name in _NO_LABELS.items():
        if isinstance(value, kind):
            raise InputError(f'its label is {name}, {value!r:.60}: write a text or a number')
    return str(value).strip()


def named(value: Any, names: Sequence[str]) -> str:
    """A label as a string; if there are names, a number is replaced by the name with that index.

    Raises:
      Malformed: the number has no name.
    """
    text = label_text(value)
    number = plain_number(text) or text
    if not names or not number.removeprefix('-').isdecimal():
        return text
    # Python converts no number of thousands of digits.
    is_index = len(number) < _MOST_DIGITS and 0 <= int(number) < len(names)
    if not is_index:
        raise Malformed(
            f'label {text:.60} has no name in config.data.label_names{hint_of_secret(text)}')
    return names[int(number)]


def hint_of_secret(label: str) -> str:
    """A hint for a message on a label that stands for a secret one; '' for other labels."""
    if plain_number(label) != _SECRET:
        return ''
    return f' ({_SECRET} stands for a secret label, as test splits have it: name another split)'


def plain_number(text: str) -> str:
    """A number without zeros behind the point, by which 1, 1.0 and 1. are one; '' for other texts.

    Numbers that begin with a zero, such as 007, are names.
    """
    if not _NUMBER.fullmatch(text):
        return ''
    if '.' in text:
        text = text.rstrip('0').rstrip('.')
    return '0' if text == '-0' else text


def find_file(folder: str, names: Sequence[str], *, required: bool = True) -> str:
    """The path of a split's file: the first of the names that exists, plain or `.gz`.

    If none does, the only file with an addition to one of the names, such as `train.part.tsv`.

    Args:
      folder: where to look.
      names: in order of preference, the benchmark's own first.
      required: whether the file has to exist; if not, '' is returned for a missing one.

    Raises:
      InputError: no such folder, no such file, or several with additions to the names.
    """
    there = [child.name for child in children(folder)]
    found = _files_named(names, there) or _files_with_additions(names, there)
    if len(found) > 1:
        raise InputError(f'{folder} has no {names[0]} but several that could be: '
                         f"{', '.join(found)}; keep one of them")
    if found:
        path = os.path.join(folder, found[0])
        if found[0].removesuffix('.gz') not in names:
            tell(f'{names[0]} is read from {path}')
        return path
    if not required:
        return ''
    if as_path(folder).is_dir():
        raise InputError(f"{folder} has none of {', '.join(names)}, plain or .gz")
    raise InputError(f'no folder {folder}: name one that has {names[0]}')


def _files_named(names: Sequence[str], there: Sequence[str]) -> list[str]:
    """The first of the names that is there, plain or `.gz`, as a list of one; [] if none is."""
    for name in names:
        for candidate in (name, f'{name}.gz'):
            if candidate in there:
                return [candidate]
    return []


def _files_with_additions(names: Sequence[str], there: Sequence[str]) -> list[str]:
    """The names that are there with an addition before their ending, in order of the alphabet."""
    found = []
    for name in names:
        stem, ending = os.path.splitext(name)
        found += fnmatch.filter(there, f'{stem}.*{ending}')
        found += fnmatch.filter(there, f'{stem}.*{ending}.gz')
    return sorted(found)
