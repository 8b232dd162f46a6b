"""The one reader of tables: CSV, TSV, JSON and Parquet, for training and prediction.

A file's extension tells its format, in upper or lower case: `.csv` has quoting, and its header
tells what separates the cells; `.json` and `.jsonl` hold an object a line or one list of objects,
`.parquet` and data sets of the Hugging Face hub (`runtime.hub`) are Parquet, anything else is TSV
without quoting. All but Parquet may be compressed (`.gz`, `.bz2`).
A bad file is an `InputError`. A bad row has a `fault`: training leaves the row out, up to a limit,
and prediction gives an error in its place.
"""

import codecs
import contextlib
import csv
import fnmatch
import itertools
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from bert_jax.runtime.errors import InputError, first_line, needing, tell, tell_once
from bert_jax.runtime.files import as_path, children, open_stream
from bert_jax.runtime.hub import parquet_files

_LISTED = 3  # malformed rows of a file that are shown one by one
_PLACES = 100  # of the others, whose places alone are shown
_BATCH_ROWS = 1024  # of Parquet, in memory at once
_LONGEST_CELL = 1 << 30  # the csv module's own limit is 131,072 characters
_SEPARATORS = ',;\t|'  # of cells in a .csv file; spreadsheets of many countries write the second
_NAMED = 'a comma', 'a semicolon', 'a TAB', 'a vertical bar'


class Malformed(Exception):
    """Why a row cannot be used; the other rows of its file can."""


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
    ending = re.search(r'\.(csv|tsv|jsonl?|parquet)(\.gz|\.bz2)?$', path.lower())
    return ending[1].removesuffix('l') if ending else ''


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
    return _table(path, columns, optional, headerless)


def column_names(path: str) -> list[str]:
    """The columns of a table, or the fields of the first object in JSON; [] if there are none."""
    form = format_of(path)
    if form == 'parquet':
        with _parquet(parquet_files(path)[0]) as content:
            return list(content.schema_arrow.names)
    if form == 'json':
        return list(next((record for _, record, fault in _objects(path) if not fault), {}))
    _, names = next(_cells(path, ()), (0, list[str]()))
    return [name.strip() for name in names]


def column_or_usual(path: str, name: str, usual: Sequence[str], field: str) -> str:
    """The name of a column, or, where the table lacks it, the usual one that the table has.

    Another one is said, and taken only if `name` itself is usual, so that nobody chose it, and if
    no other column could be meant.

    Args:
      path: the file.
      name: the column as configured.
      usual: names of such columns, in lower case.
      field: of the config, for the message.
    """
    names = column_names(path)
    if name in names or name not in usual:
        return name
    others = [other for other in names if other.strip().lower() in usual]
    if len(others) != 1:
        return name
    tell(f'{path}: its column {others[0]!r} is read for {field}={name!r}, which it lacks')
    return others[0]


def _table(
    path: str, columns: Sequence[str], optional: Sequence[str], headerless: Sequence[str]
) -> Iterator[Row]:
    """The rows of a CSV or TSV file."""
    rows = _cells(path, columns if not headerless else None)
    first = next(rows, None)
    if first is None:
        return
    names = [name.strip() for name in first[1]]
    if headerless and not set(names) & set(columns):
        names, rows = list(headerless), itertools.chain([first], rows)
    for name in columns:
        if name not in names and name not in optional:
            raise InputError(_no_column(path, name, names))
        if names.count(name) > 1:
            raise InputError(f"{path} has two columns '{name}' in its header: rename one of them")
    places = [names.index(name) if name in names else None for name in columns]
    width = len(names)
    for line, cells in rows:
        if len(cells) == width:
            yield Row(line, [None if place is None else cells[place] for place in places])
        else:
            yield Row(line, [], f'columns: {len(cells)}, where {width} are wanted')


def _no_column(path: str, name: str, names: Sequence[str], where: str = 'in its header') -> str:
    remedy = ('name the columns as the original file does; those of your files with '
              '--config.data.text, text_pair, choices, label and id, or for predictions with '
              '--text, --text-pair and --choices')
    if similar := [other for other in names if other.lower() == name.lower()]:
        remedy = f"did you mean '{similar[0]}'? {remedy}"
    return f"{path} has no column '{name}' {where}; it has: {', '.join(names)[:200]}: {remedy}"


def _cells(path: str, columns: Sequence[str] | None) -> Iterator[tuple[int, list[str]]]:
    """First line and cells of each row of a CSV or TSV file, the header first.

    Args:
      path: the file.
      columns: names in the header, which tell the separator; empty: they are not known; None: there
        may be no header.
    """
    numbered, leading = lines(path), list[tuple[int, str]]()
    for row in numbered:
        leading.append(row)
        if row[1].strip():
            break
    header = leading[-1][1] if leading else ''
    usual = ',' if format_of(path) == 'csv' else '\t'
    separator = usual if columns is None else _separator(header, columns, usual)
    if told := re.fullmatch('sep=(.)', header):  # Excel's own line before the header
        separator, leading = told[1], [(number, '') for number, _ in leading]
    elif separator != usual:
        named = dict(zip(_SEPARATORS, _NAMED, strict=True))[separator]
        tell_once(f'{path}: its cells are separated by {named}, as its header shows')
    rows = itertools.chain(leading, numbered)
    if separator == usual == '\t':
        return ((line, text.split('\t')) for line, text in rows if text)
    return _csv_rows(path, rows, separator)


def _separator(header: str, columns: Sequence[str], usual: str) -> str:
    """The separator that gives most of the columns; in CSV, else that which gives most cells.

    Where several do, the usual one.
    """
    def fit(separator: str) -> tuple[int, int]:
        names = _header(header, separator)
        return len(set(names) & set(columns)), len(names) if usual == ',' else 0

    return max(usual + _SEPARATORS, key=fit)


def _header(line: str, separator: str) -> list[str]:
    """The names in a header with this separator; one name if it is no such header."""
    try:
        return [name.strip() for name in next(csv.reader([line], delimiter=separator), [])]
    except csv.Error:  # the cell goes on in the next line
        return [line]


def _csv_rows(
    path: str, numbered: Iterator[tuple[int, str]], separator: str
) -> Iterator[tuple[int, list[str]]]:
    """First line and cells of each row; quoted cells may span several lines."""
    csv.field_size_limit(_LONGEST_CELL)
    reader = csv.reader(
        (text + '\n' for _, text in numbered), strict=True, delimiter=separator)
    line = 1
    try:
        for cells in reader:
            if cells:
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        if 'new-line' in str(error):
            raise InputError(f'{path}, line {line} holds a lone CR (0x0D), which ends no line '
                             "here: remove it or put its cell into quotes; if CR ends the lines, "
                             "convert the file (tr '\\r' '\\n')") from None
        raise InputError(f'{path}, line {line} is not CSV ({error}): mend it, a quote in it may '
                         'not be closed') from None


def _objects(path: str) -> Iterator[tuple[int, Any, str]]:
    """(line or number, value, what is wrong with it or '') of each object of a JSON file."""
    rows = ((line, text) for line, text in lines(path) if text.strip())
    first = next(rows, None)
    if first is None:
        return
    values: Iterator[tuple[int, tuple[Any, str]]] = (
        (line, _parsed(text)) for line, text in itertools.chain([first], rows))
    if first[1].lstrip().startswith('['):
        whole, fault = _parsed('\n'.join(text for _, text in (first, *rows)))
        if fault:
            raise InputError(f'{path} begins with [ and is no list of JSON objects: {fault}')
        values = enumerate(((record, '') for record in whole), 1)
    for line, (record, fault) in values:
        if not fault and not isinstance(record, dict):
            fault = 'not a JSON object'
        yield line, record, fault


def read_objects(path: str, columns: Sequence[str], optional: Sequence[str] = ()) -> Iterator[Row]:
    """`read_rows` for a JSON file of any name: an object on each line, or all in one list."""
    lacking, names, used = '', list[str](), False
    for line, record, fault in _objects(path):
        missing = [] if fault else [
            name for name in columns if name not in record and name not in optional]
        if missing:
            fault = f"no field '{missing[0]}' (it has: {', '.join(record)[:200]})"
            lacking, names = lacking or missing[0], names or list(record)
        used |= not fault
        yield Row(line, [] if fault else [record.get(name) for name in columns], fault)
    if lacking and not used:  # it is not the rows that are wrong
        raise InputError(_no_column(path, lacking, names, 'in any row'))


def read_parquet(path: str, columns: Sequence[str], optional: Sequence[str] = ()) -> Iterator[Row]:
    """`read_rows` for a Parquet file of any name."""
    places = itertools.count(1)
    for name in parquet_files(path):
        with _parquet(name) as content:
            names = content.schema_arrow.names
            for column in columns:
                if column not in names and column not in optional:
                    raise InputError(_no_column(path, column, names))
            for batch in content.iter_batches(
                    _BATCH_ROWS, columns=[column for column in columns if column in names]):
                for record in batch.to_pylist():
                    yield Row(next(places), [record.get(column) for column in columns])


def class_names(path: str, column: str) -> list[str]:
    """The names of a column's numbered labels; [] if the file does not give them.

    Parquet files of Hugging Face's `datasets` do, for a `ClassLabel` or a list of them.
    """
    if format_of(path) != 'parquet':
        return []
    with _parquet(parquet_files(path)[0]) as content:
        described = json.loads((content.schema_arrow.metadata or {}).get(b'huggingface', b'{}'))
    feature = described.get('info', {}).get('features', {}).get(column) or {}
    feature = feature[0] if isinstance(feature, list) else feature.get('feature') or feature
    return feature['names'] if feature.get('_type') == 'ClassLabel' else []


@contextlib.contextmanager
def _parquet(path: str) -> Iterator[Any]:
    """An open Parquet file; errors in reading it become an InputError."""
    with needing(f'{path}: Parquet'):
        from pyarrow import ArrowException, parquet
    with open_stream(path) as file:
        try:
            yield parquet.ParquetFile(file)
        except (ArrowException, OSError) as error:
            raise InputError(f'{path} cannot be read as Parquet ({first_line(error)}); copy it '
                             'again') from None


def _parsed(text: str) -> tuple[Any, str]:
    """(value of a JSON text, what is wrong with it or '')."""
    def record_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        record = dict(pairs)
        if len(record) < len(pairs):
            names = [name for name, _ in pairs]
            raise ValueError(f'{next(x for x in names if names.count(x) > 1)!r} is there twice')
        return record

    try:
        return json.loads(text, object_pairs_hook=record_of), ''
    except (ValueError, RecursionError) as error:
        return None, f'not JSON ({error})'


def lines(path: str) -> Iterator[tuple[int, str]]:
    """(number, text) of each line, without line end and byte order mark. Only line feeds end lines.

    Raises:
      InputError: the file cannot be read, or is not UTF-8 text.
    """
    number = 0
    try:
        with open_stream(path) as file:
            for number, line in enumerate(file, 1):
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                    if b'\r' in line.rstrip(b'\r\n'):
                        raise InputError(
                            f"{path}: its lines end with CR only: convert it (tr '\\r' '\\n')")
                if b'\0' in line:
                    raise InputError(
                        f'{path}, line {number} holds a NUL byte: it is no text file, or UTF-16: '
                        'convert it (iconv -f UTF-16 -t UTF-8)')
                yield number, line.rstrip(b'\r\n').decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f'{path}, line {number} is not UTF-8: byte {error.start} is '
            f'0x{error.object[error.start]:02x}; convert the file (iconv -t UTF-8)'
        ) from None


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

    Raises:
      InputError: as `read_rows` and `parse`; no rows, too many malformed ones, or a repeated id.
    """
    rows, faults = Rows([], [], []), list[str]()
    ids = [] if id_column is None else [id_column]
    for index, row in enumerate(
        read_rows(path, [*columns, *ids], optional=optional, headerless=headerless)
    ):
        try:
            if row.fault:
                raise Malformed(row.fault)
            rows.values.append(parse(row.cells[: len(columns)]))
        except Malformed as error:
            faults.append(f'line {row.line}: {error}')
        except InputError as error:
            raise InputError(f'{path}, line {row.line}: {error}') from None
        else:
            (row_id,) = row.cells[len(columns) :] or [None]
            rows.ids.append(str(index if row_id is None else row_id))
            rows.lines.append(row.line)
    check_malformed(path, len(rows.values), faults, max_malformed)
    seen: dict[str, int] = {}
    for line, name in zip(rows.lines, rows.ids, strict=True):
        if seen.setdefault(name, line) != line:
            raise InputError(f"{path}, line {line}: id '{name}' stands in line {seen[name]} "
                             'already; remove one of them')
    return rows


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
    num, total = len(faults), num_used + len(faults)
    if not total:
        raise InputError(f'{path} holds no rows: copy it again')
    allowed = max(1, int(max_share * total)) if max_share > 0 else 0
    if num > allowed or not num_used:
        remedy = 'mend the file' + (', or raise config.data.max_malformed' if num_used else '')
        raise InputError(
            f'{path}: {num} of {total} rows are malformed ({allowed} may be); the first is '
            f'{faults[0]}; {remedy}')
    for fault in faults[:_LISTED]:
        tell(f'{path}, {fault}; left out')
    if num > _LISTED:
        places = [fault.partition(':')[0] for fault in faults[_LISTED : _LISTED + _PLACES]]
        further = f' and {num - _LISTED - _PLACES} further' * (num > _LISTED + _PLACES)
        tell(f'{path}: {num} of {total} rows left out as malformed; the others: '
             f'{", ".join(places)}{further}')


def texts_of(cells: Sequence[Any]) -> list[str]:
    """The cells, checked to be strings that can be encoded as UTF-8.

    Raises:
      Malformed: one is not.
    """
    for cell in cells:
        if not isinstance(cell, str):
            raise Malformed('a text is not a string')
        if not cell.isascii():
            try:
                cell.encode()
            except UnicodeEncodeError:
                raise Malformed('a text holds half of a surrogate pair') from None
    return list(cells)


def label_of(cell: Any) -> str:
    """A label as a string, from a cell or a JSON value.

    Raises:
      Malformed: there is none.
    """
    if not (label := label_text(cell)):
        raise Malformed('its label is empty')
    return label


def label_text(value: Any) -> str:
    """A label as a string; '' if there is none."""
    if isinstance(value, bool):
        return str(value).lower()
    return '' if value is None else str(value).strip()


def named(value: Any, names: Sequence[str]) -> str:
    """A label as a string; if there are names, a number is replaced by the name with that index.

    Raises:
      Malformed: the number has no name.
    """
    text = label_text(value)
    if not names or not text.removeprefix('-').isdecimal():
        return text
    if not 0 <= int(text) < len(names):
        raise Malformed(f'label {text} has no name in config.data.label_names')
    return names[int(text)]


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
    named = [(*os.path.splitext(name), gz) for name in names for gz in ('', '.gz')]
    found = [name for name in map(''.join, named) if name in there][:1] or sorted(
        name for stem, ending, gz in named
        for name in fnmatch.filter(there, f'{stem}.*{ending}{gz}'))
    if len(found) > 1:
        raise InputError(f'{folder} has no {names[0]} but several that could be: '
                         f"{', '.join(found)}; keep one of them")
    if not found and required:
        raise InputError(f"{folder} has none of {', '.join(names)}, plain or .gz"
                         if as_path(folder).is_dir() else
                         f'no folder {folder}: name one that has {names[0]}')
    if found and found[0].removesuffix('.gz') not in names:
        tell(f'{names[0]} is read from {os.path.join(folder, found[0])}')
    return os.path.join(folder, found[0]) if found else ''
