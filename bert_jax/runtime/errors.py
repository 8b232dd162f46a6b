"""Messages to users: exceptions whose messages are meant for them, lines on standard streams."""

import contextlib
import difflib
import functools
import importlib.metadata
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any


class InputError(ValueError):
    """Bad input or configuration: one line that names the place, the value and the remedy.

    Commands print it on standard error without a traceback and exit with status 2. Any other
    exception that escapes is a defect of this program, and its traceback is kept.
    """

    def __init__(self, message: object = ''):
        """The message; line ends, which a value in it may have, become spaces."""
        super().__init__(' '.join(str(message).splitlines()))


class DamagedFile(InputError):
    """The content of a file cannot be read; the other files of the text can still be used.

    It is not raised for faults of a disk, a network, the installation or the configuration: these
    would hit every file, and pass.
    """


class Unreadable(InputError):
    """One text of many cannot be read; it takes the place of the text, and the others are used.

    Attributes:
      num: how many texts belong together in this place; 0: it is not known.
    """

    def __init__(self, message: str, num: int = 0):
        super().__init__(message)
        self.num = num


class Unavailable(RuntimeError):
    """A network or bucket is unreachable: one line, exit status 1, so that launchers retry."""


class SaveFailed(RuntimeError):
    """A checkpoint cannot be written: one line with the cause, exit status 1."""


class Diverged(RuntimeError):
    """A loss, parameter or metric is not finite. Exit status 3: the same command would fail again.

    Attributes:
      step: the step whose parameters are bad.
    """

    def __init__(self, message: str, step: int):
        super().__init__(message)
        self.step = step


class FaultyChip(Diverged):
    """A chip computes wrongly: exit status 1, as another machine would not."""


class Pruned(RuntimeError):
    """A run of a sweep is behind the others and ends before its last step; the message says how."""


class Stopped(BaseException):
    """The run stopped on SIGTERM or Ctrl-C, with its state saved.

    Like KeyboardInterrupt it is no Exception, so `except Exception` does not catch it.
    """


def install(extra: str = '', package: str = '') -> str:
    """The command that installs what is missing and leaves the versions of all else as they fit.

    A package that is installed by its own name may bring others in versions that this one cannot
    use.

    Args:
      extra: of this package; '': what it always needs.
      package: another one, of no extra.
    """
    here = 'bert_jax'
    try:
        importlib.metadata.version(here)
    except importlib.metadata.PackageNotFoundError:  # used from its repository
        here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if extra:
        here += f'[{extra}]'
    if extra or not here.isidentifier():
        here = f"'{here}'"
    return ' '.join(['python -m pip install', *filter(None, [package]), here])


@contextlib.contextmanager
def needing(purpose: str, extra: str = '', package: str = '') -> Iterator[None]:
    """Turns a failing import of the block into an InputError.

    Args:
      purpose: what needs the package, for the message.
      extra, package: what to install, as for `install`.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = str(error.name).partition('.')[0]
        raise InputError(f'{purpose} needs {missing}, which is not installed: '
                         f'{install(extra, package)}') from None


_COLOURS = {'error:': 31, 'warning:': 33}  # of a terminal, by how a line begins
_LONGEST_LINE = 1500  # characters that are shown of a message
# Characters that move a terminal's cursor, colour it or rename its window, but TAB and line feed.
_CONTROLS = re.compile('[\x00-\x08\x0b-\x1f\x7f-\x9f]')


def visible(text: str) -> str:
    """A text with its control characters written out (`\\x1b`), as names in files may have any."""
    return _CONTROLS.sub(lambda found: f'\\x{ord(found[0]):02x}', text)


def shortened(line: str) -> str:
    """A line without its middle, if that is what a very long name or value takes."""
    if len(line) <= _LONGEST_LINE:
        return line
    return f'{line[: _LONGEST_LINE // 2]} ... {line[-_LONGEST_LINE // 2 :]}'


def _for(stream: Any, line: str) -> str:
    """A line as a stream shows it: on a terminal, errors are red and warnings yellow.

    NO_COLOR in the environment leaves the colours out (https://no-color.org), and so does a
    terminal without any.
    """
    line = visible(line)
    colour = _COLOURS.get(line.partition(' ')[0])
    is_plain = os.environ.get('NO_COLOR') or os.environ.get('TERM') == 'dumb'
    if colour is None or is_plain or not stream.isatty():
        return line
    return f'\x1b[{colour}m{line}\x1b[0m'


def tell(line: str) -> None:
    """Prints a line on standard error, at once, on the host that calls it.

    A line that standard error does not take is lost.
    """
    with contextlib.suppress(OSError):
        print(_for(sys.stderr, line), file=sys.stderr, flush=True)


def show(line: str) -> None:
    """Prints a line on standard output, at once.

    Long work outlives the reader of its output, and a full disk there: where standard output takes
    no more lines, a note on standard error says so once, and later lines are discarded.
    """
    try:
        print(_for(sys.stdout, line), flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        tell(f'note: standard output takes nothing any more ({error.strerror}); the work goes on '
             'without it')


@functools.cache
def tell_once(line: str) -> None:
    """Prints a line on standard error, unless this process has printed it there before.

    It is for what is found while reading a file, which one command may do several times.
    """
    tell(line)


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, at most 300 characters; its type if it has none."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]


def named_hosts(numbers: Iterable[int]) -> str:
    """Hosts by their numbers: 'host 3', 'hosts 3, 7' or, of many, 'hosts 0-5, 7'."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][-1] == number - 1:
            ranges[-1] = [ranges[-1][0], number]
        else:
            ranges.append([number])
    parts: list[str] = []
    for of_range in ranges:
        if of_range[-1] - of_range[0] == 1:
            parts += map(str, of_range)
        else:
            parts.append('-'.join(map(str, of_range)))
    is_one = len(parts) == 1 and '-' not in parts[0]
    return f"{'host' if is_one else 'hosts'} {', '.join(parts)}"


def counted(number: int, noun: str) -> str:
    """'1 block', '2,000 blocks'."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def nearest(word: str, choices: Iterable[Any]) -> str:
    """"did you mean 'x'?" for the most similar choice; where none is similar, all of them."""
    known = [str(choice) for choice in choices]
    close = difflib.get_close_matches(str(word), known, n=1, cutoff=0.6)
    if close:
        return f'did you mean {close[0]!r}?'
    return 'choose from ' + ', '.join(choice or "''" for choice in known)
