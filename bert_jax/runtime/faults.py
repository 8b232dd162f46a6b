"""What the doors say of a fault: one line, and the exit status that goes with it.

What a user can mend is told with the place and the remedy. Of anything else, which may be a fault
of this program, the traceback is kept in a file that the line names.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
import tempfile
import traceback
import types
import warnings
from collections.abc import Iterator
from typing import Any

from bert_jax.runtime.errors import Diverged, InputError, Stopped
from bert_jax.runtime.files import Path, write_whole
from bert_jax.runtime.process import check_streams

FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_SPACE = 'No space left on device'
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
_NOT_AS_NAMED = (
    errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ENAMETOOLONG,
    errno.ELOOP, errno.ENXIO, errno.ENODEV,
)
_BAD_DISK = (errno.EIO, errno.ESTALE, errno.EFBIG)


@contextlib.contextmanager
def error_boundary(stopped: str = 'stopped', writing: str | None = None) -> Iterator[None]:
    """Ends the program with one line on standard error where the block fails.

    Args:
      stopped: what is said after Ctrl-C.
      writing: a file that the block writes, which may be what fills its disk.

    Raises:
      SystemExit: 2 where bad input is the cause, 130 after Ctrl-C, 1 of anything else.
    """
    _leave_unsaid()
    try:
        check_streams()
        yield
        sys.stdout.flush()  # a full disk may be told of as late as here
    except BrokenPipeError:  # the reader has seen enough, as `head` does
        _drop_output()
    except (Exception, KeyboardInterrupt) as error:
        line, status = answer(error, writing)
        if isinstance(error, KeyboardInterrupt):
            line = stopped
        _drop_output()
        print(f'error: {line}', file=sys.stderr, flush=True)
        sys.exit(status)


def _leave_unsaid() -> None:
    """Orbax leaves tasks behind where a file of a checkpoint cannot be read. What becomes of them
    when they are collected would be told with tracebacks, after the line that says it."""
    logging.getLogger('asyncio').setLevel(logging.CRITICAL)
    warnings.filterwarnings('ignore', message='coroutine .* was never awaited')
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _unless_of_a_task


def _unless_of_a_task(unraisable: Any) -> None:
    """Tells faults that Python cannot raise, but for what tasks leave, and for a stop asked for in
    such a place, which comes after the first step (see `stopping`)."""
    left = isinstance(unraisable.object, types.CoroutineType) or isinstance(
        unraisable.exc_value, Stopped)
    if not left and 'Event loop is closed' not in str(unraisable.exc_value):
        sys.__unraisablehook__(unraisable)


def _drop_output() -> None:
    """Writes what is left for standard output, or where that cannot be, nowhere."""
    if _fault_of_output():  # its reader is gone, its disk full
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _fault_of_output() -> Exception | None:
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError) as error:
        return error
    return None


def answer(
    error: BaseException, writing: object = None, log_folder: Path | None = None
) -> tuple[str, int]:
    """(what to say of an exception in one line, exit status).

    Args:
      error: that ends the program.
      writing: the file or folder that the program writes: a full disk may be its.
      log_folder: where a traceback is kept, if it can be.
    """
    chain = _chain(error)
    for fault in chain:
        if isinstance(fault, InputError):
            return ' '.join(str(fault).split()), 2
        if isinstance(fault, Diverged):
            return ' '.join(str(fault).split()), 1
    if isinstance(error, KeyboardInterrupt):
        return 'stopped', 130
    for fault in chain:
        if isinstance(fault, OSError) and (said := _of_the_system(fault, writing)):
            return said
    if any(_NO_SPACE in str(fault) for fault in chain):
        return _full(writing), 1
    if any(isinstance(fault, MemoryError) or 'RESOURCE_EXHAUSTED' in str(fault) for fault in chain):
        return (
            f'out of memory ({_first_line(chain[0])}): lower the batch size, '
            'config.train.eval_batch_size or the sequence length', 1
        )
    platforms = os.environ.get('JAX_PLATFORMS')
    if platforms and any('Unable to initialize backend' in str(fault) for fault in chain):
        return (
            f'JAX_PLATFORMS={platforms}: jax finds no such device here ({_first_line(chain[-1])}): '
            'set JAX_PLATFORMS=cpu to use the CPU, or install jax for the device of this machine', 2
        )
    for fault in chain:
        if isinstance(fault, UnicodeError):
            return (
                f'a text cannot be written or read as {fault.encoding}'  # type: ignore[attr-defined]
                f' ({_first_line(fault)}): convert it to UTF-8, and set PYTHONUTF8=1 where the '
                'locale is another', 2
            )
    return (
        f'{type(error).__name__}: {_first_line(error)} (this may be a fault of bert_jax; the '
        f'traceback is in {_keep(error, log_folder)})', 1
    )


def _chain(error: BaseException) -> list[BaseException]:
    """An exception and what it was raised from, itself first."""
    chain: list[BaseException] = []
    found: BaseException | None = error
    while found is not None and found not in chain:
        chain.append(found)
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
    return chain


def _of_the_system(error: OSError, writing: object) -> tuple[str, int] | None:
    """Of a fault that the system names with its place, or None."""
    if error.errno in FULL:
        output = getattr(_fault_of_output(), 'errno', None) in FULL
        return _full(error.filename or ('standard output' if output else writing)), 1
    if error.filename is None:
        return None
    said = f'{os.fsdecode(error.filename)}: {error.strerror}'
    if error.errno in _NOT_ALLOWED:
        return f'{said}: name another place, or ask for the rights to this one', 2
    if error.errno in _NOT_AS_NAMED:
        return f'{said}: check the path', 2
    if error.errno in _BAD_DISK:
        return f'{said}: the disk or network that it is on fails', 1
    return None


def _full(place: object) -> str:
    where = f'the disk of {place}' if place else 'a disk'
    return f'{where} is full ({_NO_SPACE}): free some space and start again'


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def _keep(error: BaseException, folder: Path | None) -> str:
    """Writes the traceback where it can be written; where."""
    text = ''.join(traceback.format_exception(error))
    for place in (folder, Path(tempfile.gettempdir())):
        if place is not None:
            path = place / f'error-{os.getpid()}.log'
            with contextlib.suppress(Exception):  # of many libraries; there is another place
                write_whole(path, text)
                return str(path)
    sys.stderr.write(text)
    return 'the lines above'
