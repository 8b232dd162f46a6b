"""Where the texts of a command come from, and which of them belong together.

A `Source` gives rows: arguments, lines of a file, rows of a table, questions of a SQuAD file. A
`Form` makes a text of a row: a single one, a pair, a beginning with its choices.
"""

import abc
import codecs
import contextlib
import json
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from bert_jax.rows.squad_reader import questions_of
from bert_jax.rows.table import Malformed, Row, format_of, read_rows, texts_of
from bert_jax.runtime.arriving import (
    PAUSE,
    WAIT_SECONDS,
    Arriving,
    LiveFile,
    Pause,
    is_live,
)
from bert_jax.runtime.errors import InputError, Unreadable, tell
from bert_jax.runtime.files import LONGEST_LINE, as_path, near_file, open_stream, read_lines


class Form(abc.ABC):
    """The form of a text that a command takes.

    Attributes:
      num_arguments: arguments that make one text; None: all of them.
      num_columns: columns of a table that a text needs; None: any number.
    """

    num_arguments: int | None = 1
    num_columns: int | None = 1

    @abc.abstractmethod
    def text(self, cells: list[Any]) -> Any:
        """The text that the cells of a row hold.

        Raises:
          Malformed: they hold none.
        """

    def split(self, line: str) -> list[Any]:
        """The cells of a line or argument.

        Raises:
          Malformed: they cannot be told apart.
        """
        return [line]

    def num_texts(self, columns: Sequence[str]) -> int:
        """How many texts belong where one cannot be read, such as 2 for a pair; 0: not known."""
        return len(columns)


class SingleText(Form):
    """A single text; a cell may hold the list of its words."""

    def text(self, cells: list[Any]) -> Any:
        """The text, its words joined by spaces."""
        (cell,) = cells
        if isinstance(cell, list):
            return ' '.join(texts_of(cell))
        (text,) = texts_of([cell])
        return text


class Words(SingleText):
    """A single text, or the list of its words: each is tagged, also an empty one."""

    def text(self, cells: list[Any]) -> Any:
        """The text, or the list."""
        (cell,) = cells
        if isinstance(cell, list):
            return texts_of(cell)
        return super().text(cells)


class Parts(Form):
    """One text, or several that belong together: with TABs between them, or in columns.

    Attributes:
      separator: may stand between the texts of a line, in place of a TAB.
    """

    num_columns: int | None = None

    def __init__(self, separator: str = '\t'):
        """See the class."""
        self.separator = separator

    def text(self, cells: list[Any]) -> tuple[str, ...]:
        """The texts of the cells."""
        return tuple(texts_of(cells))

    def split(self, line: str) -> list[Any]:
        """The texts of a line."""
        return line.replace(self.separator, '\t').split('\t')


class Pair(Parts):
    """Two texts: two arguments, a line with a TAB between them, or two columns."""

    num_arguments = 2
    num_columns = 2

    def text(self, cells: list[Any]) -> tuple[str, ...]:
        """The two texts."""
        if len(cells) != 2:
            raise Malformed('two texts with a TAB between them are needed')
        return super().text(cells)

    def num_texts(self, columns: Sequence[str]) -> int:
        """Two."""
        return 2


class QuestionAndContext(Pair):
    """A pair; a line may be {"question": ..., "context": ...} too."""

    def split(self, line: str) -> list[Any]:
        """The question and the context of a line."""
        if not line.lstrip().startswith('{'):
            return super().split(line)
        try:
            record = json.loads(line)
            return [record['question'], record['context']]
        except (ValueError, KeyError, RecursionError):
            raise Malformed('it is no {"question": ..., "context": ...}') from None


class Choices(Parts):
    """A beginning and its possible endings: all arguments, a line with TABs, or columns.

    A column may hold lists of endings.
    """

    num_arguments = None

    def text(self, cells: list[Any]) -> tuple[str, ...]:
        """The beginning and the endings."""
        texts: list[Any] = []
        for cell in cells:
            texts += cell if isinstance(cell, list) else [cell]
        return super().text(texts)

    def num_texts(self, columns: Sequence[str]) -> int:
        """Results have the beginning alone in 'text'."""
        return 1


class Source(abc.ABC):
    """The texts of a command, read one by one as they are needed.

    A line or a table row is never skipped: for one that cannot be read, there is an error instead.

    Attributes:
      name: in messages.
      columns: of a table, that hold the texts and, if any, the second texts or choices.
      wait: seconds that a text waits for others; inf: they are all there.
    """

    name: str
    columns: Sequence[str] = ()
    wait: float = math.inf

    @abc.abstractmethod
    def rows(self, form: Form) -> Iterator[Row | Pause]:
        """The rows that hold the texts, split into cells only where the source has columns."""

    def texts(self, form: Form) -> Arriving:
        """Texts, or tuples of texts that belong together, or an error if one is unreadable.

        Raises:
          InputError: once they are read: there are no texts, the arguments or columns do not form
            pairs, or they do where single texts are wanted.
        """
        return Arriving(self._read(form), self.wait)

    def _read(self, form: Form) -> Iterator[Any]:
        """See `texts`."""
        num_columns = len(self.columns)
        if form.num_columns == 1 and num_columns > 1:
            raise InputError('single texts are wanted: leave out --text-pair')
        if form.num_columns == 2 and num_columns == 1:
            raise InputError('two texts are wanted: name the second column with --text-pair')
        for row in self.rows(form):
            if isinstance(row, Pause):
                yield row
                continue
            try:
                yield self._text(row, form)
            except Malformed as error:
                reason = f'{self.name}, line {row.line}: {error}'
                yield Unreadable(reason, form.num_texts(self.columns))

    def _text(self, row: Row, form: Form) -> Any:
        """The text of a row; raises Malformed if it has none."""
        if row.fault:
            raise Malformed(row.fault)
        cells = row.cells
        if len(cells) == 1 and not self.columns:
            cells = form.split(cells[0])
        return form.text(cells)

    def ids(self, column: str) -> Iterator[Any]:
        """Yields what names each text; None where it cannot be read. Lines have no such column."""
        raise NotImplementedError


class Arguments(Source):
    """Texts on the command line."""

    name = 'the arguments'

    def __init__(self, texts: Sequence[str]):
        """`texts`: one or more."""
        ''.join(texts).encode()  # may raise a UnicodeError, which is reported in one line
        self._texts = texts

    def rows(self, form: Form) -> Iterator[Row]:
        """The arguments in rows, each with as many texts as belong together."""
        texts = self._texts
        size = form.num_arguments or len(texts)
        if len(texts) % size:
            raise InputError(f'{len(texts)} texts are no pairs: two arguments are one pair '
                             f'({texts[-1][:60]!r} has no second)')
        for i in range(0, len(texts), size):
            yield Row(i, list(texts[i : i + size]))


class Lines(Source):
    """A file, or standard input, with a text in each line."""

    def __init__(self, file: str | None, wait: float | None = None):
        """Checks that the file is there.

        Args:
          file: its path; None: standard input.
          wait: seconds that a line of a pipe waits for others; None: the usual ones.

        Raises:
          InputError: it is not there, or there is nothing to wait for.
        """
        self._file = file
        self.name = file or 'standard input'
        if file is not None:
            if not as_path(file).exists():
                near = near_file(file)
                hint = f': {near}' if near else ''
                raise InputError(f'--input={file}: No such file or directory{hint}')
        elif sys.stdin is None:
            raise InputError('standard input is closed: give texts, or --input=FILE')
        elif sys.stdin.isatty():
            tell('texts from standard input, one a line; end with Ctrl-D')
        self._live = self._live_file()
        if self._live is not None:
            self.wait = WAIT_SECONDS if wait is None else wait
        elif wait is not None:
            raise InputError(f'--wait={wait:g}: {self.name} is a file, of which nothing comes '
                             'later: leave it out')

    def _live_file(self) -> LiveFile | None:
        """Standard input, if it is a pipe or terminal, whose lines come one by one; else None."""
        if self._file is not None:
            return None
        try:
            descriptor = sys.stdin.fileno()
        except (OSError, ValueError):  # it is no file of the operating system's
            return None
        return LiveFile(descriptor) if is_live(descriptor) else None

    def rows(self, form: Form) -> Iterator[Row | Pause]:
        """A row for each line."""
        number = 0
        is_utf16 = False
        is_told = False  # that a line holds a CR
        try:
            with self._open() as file:
                lines = read_lines(file, self.name, LONGEST_LINE)
                while True:
                    if self._live is not None and not self._live.has_line(self.wait):
                        yield PAUSE
                    line = next(lines, None)
                    if line is None:
                        break
                    number += 1
                    if number == 1:
                        is_utf16 = line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
                    if not is_told and b'\r' in line.strip():
                        is_told = True
                        tell(f'note: {self.name}, line {number} holds a CR (0x0D), which ends no '
                             "line here: if CR ends the lines, convert them (tr '\\r' '\\n')")
                    yield _row_of_line(line, number, is_utf16)
        except OSError as error:
            raise InputError(f'{self.name} cannot be read ({error}): check it') from None
        if not number:
            raise InputError(f'{self.name} has no texts: write one a line')

    def _open(self) -> contextlib.AbstractContextManager[Any]:
        if self._live is not None:
            return contextlib.nullcontext(self._live)
        if self._file is not None:
            return open_stream(self._file)
        return contextlib.nullcontext(sys.stdin.buffer)


def _has_bytes_of_utf16(line: bytes) -> bool:
    """Whether every other byte is NUL, as in Latin letters of UTF-16, which may be UTF-8, too."""
    return any(half and not half.strip(b'\0') for half in (line[::2], line[1::2]))


def _row_of_line(line: bytes, number: int, is_utf16: bool) -> Row:
    """A line's text, without line end and byte order mark.

    Args:
      line, number: from 1.
      is_utf16: whether the file begins as UTF-16 does.
    """
    if is_utf16 or _has_bytes_of_utf16(line):
        return Row(number, [], 'UTF-16, not UTF-8: convert it (iconv -f UTF-16 -t UTF-8 FILE)')
    try:
        text = line.decode('utf-8-sig' if number == 1 else 'utf-8')
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        return Row(number, [], f'not UTF-8 (byte 0x{byte:02x}): convert it')
    return Row(number, [text.rstrip('\r\n')])


class Table(Source):
    """Columns of a .csv, .tsv, .json, .jsonl or .parquet file."""

    def __init__(self, file: str, columns: Sequence[str]):
        """Checks the table as a whole, before anything is computed.

        Raises:
          InputError: it cannot be read, or has no rows.
        """
        self.name = file
        self.columns = columns
        num_rows = sum(1 for _ in read_rows(file, columns))
        if not num_rows:
            raise InputError(f'{file} holds no rows: copy it again')

    def rows(self, form: Form) -> Iterator[Row]:
        """The rows of the table."""
        return read_rows(self.name, self.columns)

    def ids(self, column: str) -> Iterator[Any]:
        """Yields what a column of the table holds, row by row; None where it cannot be read."""
        for row in read_rows(self.name, [column]):
            yield None if row.fault else row.cells[0]


class SquadFile(Source):
    """The questions of a file in SQuAD's layout."""

    def __init__(self, file: str):
        """Reads the file.

        Raises:
          InputError: it cannot be read.
        """
        self.name = file
        self._questions = questions_of(file)

    def rows(self, form: Form) -> Iterator[Row]:
        """A row for each question."""
        for number, question in enumerate(self._questions, 1):
            yield Row(number, [question.text, question.context])

    def ids(self, column: str) -> Iterator[str]:
        """The ids of the questions, which are in no column."""
        for question in self._questions:
            yield question.id


def open_source(
    arguments: Sequence[str], file: str | None, columns: Sequence[str] = (),
    wait: float | None = None,
) -> Source:
    """The texts that a command line names.

    Args:
      arguments: the texts; empty: they come from the file.
      file: a path; None: standard input, if there are no arguments.
      columns: the columns of a table that hold the texts and, if any, the second texts or choices.
      wait: as for `Lines`.

    Raises:
      InputError: both texts and a file are given, the file cannot be read, or it has columns
        and none is named (its header would be read as a text).
    """
    if arguments and file is not None:
        raise InputError(f'give texts or --input={file}, not both')
    is_table = bool(format_of(file or ''))
    if columns and not is_table:
        raise InputError(f'--text={columns[0]} names a column: --input must be a file that has '
                         'some, ending in .csv, .tsv, .json or .jsonl, plain or .gz, or '
                         '.parquet')
    if is_table and not columns:
        raise InputError(f'--input={file} has columns: name the one with the texts, '
                         '--text=COLUMN (a file with a text in each line is called .txt)')
    if wait is not None and (arguments or columns):
        raise InputError(f'--wait={wait:g} is for texts from standard input: leave it out')
    if arguments:
        return Arguments(arguments)
    if file is not None and columns:
        return Table(file, columns)
    return Lines(file, wait)
