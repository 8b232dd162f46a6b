"""Texts of the command line: from arguments, a file or standard input, with progress."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from typing import IO

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path, open_stream
from bert_jax.tasks.table import Malformed, read_rows, texts_of

_TAB = '\t'
_NOTES = 20  # that are shown
_TABLE = re.compile(r'.*\.(csv|tsv|jsonl?)(\.gz)?', re.IGNORECASE)  # names of files with columns

Parts = tuple[str, ...] | InputError  # texts that go together, or why there are none


class Texts:
    """The texts of a run, read as they are wanted.

    A line or a row of a table is never skipped: what cannot be read is an error in its place. A
    table is checked as a whole before anything is computed.
    """

    def __init__(
        self, arguments: Sequence[str], file: str | None, columns: Sequence[str] = (), *,
        whole_objects: bool = False,
    ):
        """Opens what the texts come from.

        Args:
          arguments: texts; empty: they come from the file.
          file: path; None: standard input, where there are no arguments.
          columns: of a .csv, .tsv, .json or .jsonl file: of the texts, and of second texts if there
            are.
          whole_objects: whether lines of JSON may come without `columns`: questions with contexts.

        Raises:
          InputError: both are given, the file cannot be read, or it has columns and none is named
            (its header would be read as a text).
        """
        if arguments and file is not None:
            raise InputError(f'give texts or --input={file}, not both')
        table = _TABLE.fullmatch(file or '')
        if columns and not table:
            raise InputError(
                f'--text={columns[0]} names a column: --input must be a file that has some, ending '
                'in .csv, .tsv, .json or .jsonl, plain or .gz'
            )
        if table and not columns and not (whole_objects and table[1].lower() == 'jsonl'):
            raise InputError(
                f'--input={file} has columns: name the one with the texts, --text=COLUMN (a file '
                'with a text in each line is called .txt)'
            )
        for text in arguments:
            if any('\ud800' <= character <= '\udfff' for character in text):
                raise InputError(f'{text!r:.60} is not UTF-8')
        self._arguments, self._file, self._columns = list(arguments), file, list(columns)
        self._name = file or 'standard input'
        self._total = len(arguments)  # 0: not known
        if columns:
            self._total = sum(1 for _ in read_rows(self._name, self._columns))
            if not self._total:
                raise InputError(f'{file} holds no rows: copy it again')
        elif file is not None:
            try:
                if as_path(file).is_file() or not as_path(file).exists():  # a pipe is read once
                    with open_stream(file) as lines:
                        self._total = sum(1 for _ in lines)
            except OSError as error:
                raise InputError(f'--input={file}: {error.strerror or error}') from error
        elif not arguments and sys.stdin is None:
            raise InputError('standard input is closed: give texts, or --input=FILE')
        elif not arguments and sys.stdin.isatty():
            print('texts from standard input, one a line; end with Ctrl-D', file=sys.stderr)
        self._num_done = self._num_notes = 0
        self._terminal = sys.stderr.isatty()
        self.start()

    def start(self) -> None:
        """Starts the clock of the progress that is shown."""
        self._started = self._shown = time.monotonic()

    def single(self) -> Iterator[str | InputError]:
        """Each argument, line or row is a text."""
        for parts in self._read():
            yield parts if isinstance(parts, InputError) else parts[0]

    def parts(self, *separators: str) -> Iterator[Parts]:
        """Each argument or line is one text, or several with a TAB (or a separator) between."""
        for parts in self._read():
            if isinstance(parts, InputError) or self._columns:
                yield parts
                continue
            (text,) = parts
            for separator in separators:
                text = text.replace(separator, _TAB)
            yield tuple(text.split(_TAB))

    def pairs(self) -> Iterator[Parts]:
        """Two arguments, or a line with a TAB between two texts, or two columns."""
        if self._arguments:
            texts = self._arguments
            if len(texts) % 2:
                raise InputError(
                    f'{len(texts)} texts are no pairs: two arguments are one pair '
                    f'({texts[-1][:60]!r} has no second)')
            yield from zip(texts[::2], texts[1::2], strict=True)
            return
        if len(self._columns) == 1:
            raise InputError('two texts are wanted: name the second column with --text-pair')
        for number, parts in enumerate(self.parts(), 1):
            if isinstance(parts, InputError) or len(parts) == 2:
                yield parts
            else:
                yield InputError(
                    f'{self._name}, line {number} has {len(parts) - 1} TABs: one expected, between '
                    'two texts'
                )

    def choices(self) -> Iterator[Parts]:
        """All arguments together, a line with TABs, or columns, are a beginning and its ends."""
        if self._arguments:
            yield tuple(self._arguments)
        elif self._columns:
            yield from self._rows(lists=True)
        else:
            yield from self.parts()

    def questions(self) -> Iterator[Parts]:
        """(question, context): two arguments or columns, or a line with a TAB or of JSON."""
        if self._arguments or self._columns:
            yield from self.pairs()
            return
        for number, line in enumerate(self.single(), 1):
            if isinstance(line, InputError):
                yield line
                continue
            try:
                if line.lstrip().startswith('{'):
                    record = json.loads(line)
                    question, context = record['question'], record['context']
                else:
                    question, context = line.split(_TAB)
                if not isinstance(question, str) or not isinstance(context, str):
                    raise TypeError
                yield tuple(texts_of([question, context]))
            except Malformed as error:
                yield InputError(f'{self._name}, line {number}: {error}')
            except (ValueError, KeyError, TypeError, RecursionError):
                yield InputError(
                    f'{self._name}, line {number} is neither {{"question": ..., "context": ...}} '
                    f'nor a question, a TAB and a context ({line[:60]!r})'
                )

    def _read(self) -> Iterator[Parts]:
        """Each argument or line as one text; of a table the cells of the named columns."""
        if self._arguments:
            yield from ((text,) for text in self._arguments)
        elif self._columns:
            yield from self._rows()
        elif self._file is None:
            yield from self._lines(sys.stdin.buffer)
        else:
            with open_stream(self._file) as lines:
                yield from self._lines(lines)

    def _rows(self, lists: bool = False) -> Iterator[Parts]:
        """The cells of each row; with `lists`, a list of texts is as many cells."""
        for row in read_rows(self._name, self._columns):
            try:
                if row.fault:
                    raise Malformed(row.fault)
                cells = [text for cell in row.cells
                         for text in (cell if lists and isinstance(cell, list) else [cell])]
                yield tuple(texts_of(cells))
            except Malformed as error:
                yield InputError(f'{self._name}, line {row.line}: {error}')

    def _lines(self, lines: IO[bytes]) -> Iterator[Parts]:
        number = 0
        for number, line in enumerate(lines, 1):
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                yield InputError(
                    f'{self._name}, line {number} is not UTF-8 (byte 0x{line[error.start]:02x}): '
                    'convert it'
                )
                continue
            yield (text.removeprefix('\ufeff' if number == 1 else '').rstrip('\r\n'),)
        if not number:
            raise InputError(f'{self._name} has no texts: write one a line')

    def note(self, line: str) -> None:
        """Shows a remark on standard error; after some of them it is silent."""
        self._num_notes += 1
        if self._num_notes > _NOTES:
            return
        if self._num_notes == _NOTES:
            line += '; further notes are left out'
        print(('\r\033[K' if self._terminal else '') + f'note: {line}', file=sys.stderr, flush=True)

    def done(self) -> None:
        """Counts a text, and shows the progress: often on a terminal, else seldom."""
        self._num_done += 1
        now = time.monotonic()
        if now - self._shown < (0.5 if self._terminal else 10):
            return
        self._shown = now
        sys.stdout.flush()
        rate = self._num_done / (now - self._started)
        line = f'{self._num_done} texts, {rate:.1f} a second'
        if self._total:
            left = max(self._total - self._num_done, 0) / rate
            line += f', {left // 60:.0f} min {left % 60:.0f} s left'
        print(f'\r{line}\033[K' if self._terminal else line, file=sys.stderr, flush=True,
              end='' if self._terminal else '\n')

    def end(self) -> None:
        """Clears the line of progress."""
        if self._terminal:
            print('\r\033[K', file=sys.stderr, end='', flush=True)
