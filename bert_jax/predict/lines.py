"""Texts of the command line: from arguments, a file or standard input, with progress."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from typing import IO, Any

from bert_jax.labelled.tabular import read_rows
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import local_copy

_TAB = '\t'
_NOTES = 20  # that are shown
_TABLE = re.compile(r'.*\.(csv|tsv|jsonl?)(\.gz)?', re.IGNORECASE)  # names of files with columns


Line = str | InputError  # an error in the place of what is wrong


class Texts:
    """The texts of a run, read as they are wanted.

    Lines end at `\\n` alone; a text is never skipped, so text n is line n. What cannot be read is
    an error in its place, whose result says so.
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
          InputError: both are given, the file cannot be opened, or it has columns and none is named
            (its header would be read as a text).
        """
        table = file is not None and _TABLE.fullmatch(file)
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
        self._columns = list(columns)
        if arguments and file is not None:
            raise InputError(f'give texts or --input={file}, not both')
        self._arguments = list(arguments)
        self._name = file or 'standard input'
        if sys.stdin is None and file is None and not arguments:
            raise InputError('standard input is closed: give texts, or --input=FILE')
        self._lines: IO[bytes] = sys.stdin.buffer if sys.stdin else io.BytesIO()
        self._bytes = 0  # of the file, where it is known
        if file is not None:
            try:
                self._lines = open(local_copy(file), 'rb')  # noqa: SIM115  (to the end of the run)
                self._bytes = os.fstat(self._lines.fileno()).st_size
            except OSError as error:
                raise InputError(f'--input={file}: {error.strerror or error}') from error
        elif not arguments and sys.stdin.isatty():
            print('texts from standard input, one a line; end with Ctrl-D', file=sys.stderr)
        self._num_done = self._num_read = self._bytes_read = self._num_notes = 0
        self._terminal = sys.stderr.isatty()
        self.start()

    def start(self) -> None:
        """Starts the clock of the progress that is shown."""
        self._started = self._shown = time.monotonic()

    def single(self) -> Iterator[Line]:
        """Each argument or line is a text."""
        if self._columns:
            for row in self._rows():
                yield row if isinstance(row, InputError) else row[0]
            return
        for text in self._arguments:
            yield _checked(text)
        if not self._arguments:
            yield from self._read()

    def parts(self, *separators: str) -> Iterator[tuple[str, ...] | InputError]:
        """Each argument or line is one text, or several with a TAB (or a separator) between."""
        if self._columns:
            yield from self._rows()
            return
        for text in self.single():
            if isinstance(text, InputError):
                yield text
                continue
            for separator in separators:
                text = text.replace(separator, _TAB)
            yield tuple(text.split(_TAB))

    def pairs(self) -> Iterator[tuple[str, ...] | InputError]:
        """Two arguments, or a line with a TAB between two texts, or two columns."""
        if self._arguments:
            yield from self._twos()
            return
        for number, parts in enumerate(self.parts(), 1):
            if isinstance(parts, InputError) or len(parts) == 2:
                yield parts
            elif self._columns:
                raise InputError('two texts are wanted: name the second column with --text-pair')
            else:
                yield InputError(
                    f'{self._name}, line {number} has {len(parts) - 1} TABs: one expected, between '
                    'two texts'
                )

    def choices(self) -> Iterator[tuple[str, ...] | InputError]:
        """All arguments together, a line with TABs, or columns, are a beginning and its ends."""
        if self._arguments:
            yield tuple(map(_checked, self._arguments))
        elif self._columns:
            yield from self._rows(lists=True)
        else:
            yield from self.parts()

    def questions(self) -> Iterator[tuple[str, ...] | InputError]:
        """(question, context): two arguments or columns, or a line with a TAB or of JSON."""
        if self._arguments or self._columns:
            yield from self.pairs()
            return
        for number, line in enumerate(self._read(), 1):
            if isinstance(line, InputError):
                yield line
                continue
            try:
                if line.lstrip().startswith('{'):
                    read = json.loads(line)
                    question, context = read['question'], read['context']
                else:
                    question, context = line.split(_TAB)
                if not isinstance(question, str) or not isinstance(context, str):
                    raise TypeError
                yield _checked(question), _checked(context)
            except InputError as error:
                yield InputError(f'{self._name}, line {number}: {error}')
            except (ValueError, KeyError, TypeError, RecursionError):
                yield InputError(
                    f'{self._name}, line {number} is neither {{"question": ..., "context": ...}} '
                    f'nor a question, a TAB and a context ({line[:60]!r})'
                )

    def _rows(self, lists: bool = False) -> Iterator[tuple[str, ...] | InputError]:
        """The named columns of each row; a list of texts is as many columns, if there may be."""
        for row in read_rows(self._name, self._columns, own=True, progress=self._count):
            fault, cells = row.fault, []
            for name, cell in zip(self._columns, row.cells):
                some = cell if lists and isinstance(cell, list) else [cell]
                if not all(isinstance(text, str) for text in some):
                    fault = fault or f'{name}: a text is not a string'
                cells += some
            try:
                if fault:
                    raise InputError(fault)
                yield tuple(map(_checked, cells))
            except InputError as error:
                yield InputError(f'{self._name}, line {row.line}: {error}')

    def _count(self, size: int) -> None:
        """Counts a line of the file, for the progress that is shown."""
        self._num_read += 1
        self._bytes_read += size

    def _twos(self) -> Iterator[tuple[str, str]]:
        texts = [_checked(text) for text in self._arguments]
        if len(texts) % 2:
            raise InputError(
                f'{len(texts)} texts are no pairs: two arguments are one pair ({texts[-1][:60]!r} '
                'has no second)'
            )
        yield from zip(texts[::2], texts[1::2], strict=True)

    def _read(self) -> Iterator[Any]:
        for line in self._lines:
            self._count(len(line))
            try:
                text = line.decode('utf-8')
            except UnicodeDecodeError as error:
                yield InputError(
                    f'{self._name}, line {self._num_read} is not UTF-8 (byte '
                    f'0x{line[error.start]:02x}): convert it'
                )
                continue
            if self._num_read == 1:
                text = text.removeprefix('\ufeff')
            yield text.rstrip('\r\n')
        if not self._num_read:
            raise InputError(f'{self._name} has no texts: write one a line')

    def note(self, line: str) -> None:
        """A remark, on standard error; after some of them it is silent."""
        self._num_notes += 1
        if self._num_notes > _NOTES:
            return
        if self._num_notes == _NOTES:
            line += '; further notes are left out'
        print(('\r\033[K' if self._terminal else '') + f'note: {line}', file=sys.stderr, flush=True)

    def done(self) -> None:
        """Counts a text, and says now and then how far it is: often on a terminal, else seldom."""
        self._num_done += 1
        now = time.monotonic()
        if now - self._shown < (0.5 if self._terminal else 10):
            return
        self._shown = now
        sys.stdout.flush()
        rate = self._num_done / (now - self._started)
        line = f'{self._num_done} texts, {rate:.1f} a second'
        total = float(len(self._arguments))
        if self._bytes_read:
            total = self._bytes / self._bytes_read * self._num_read
        if total:
            left = max(total - self._num_done, 0) / rate
            line += f', {left // 60:.0f} min {left % 60:.0f} s left'
        print(f'\r{line}\033[K' if self._terminal else line, file=sys.stderr, flush=True,
              end='' if self._terminal else '\n')

    def end(self) -> None:
        """Clears the line of progress."""
        if self._terminal:
            print('\r\033[K', file=sys.stderr, end='', flush=True)


def _checked(text: str) -> str:
    try:
        text.encode('utf-8')
    except UnicodeEncodeError:
        raise InputError(f'{text!r:.60} is not UTF-8') from None
    return text
