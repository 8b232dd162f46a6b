"""How a command ends: each exception becomes one line on standard error and an exit status."""

import _thread
import contextlib
import dataclasses
import errno
import io
import logging
import os
import re
import secrets
import signal
import sys
import tempfile
import threading
import time
import traceback
import types
import warnings
from collections.abc import Iterator
from typing import Any

from bert_jax.runtime import files, signals
from bert_jax.runtime.errors import (
    Diverged,
    FaultyChip,
    InputError,
    SaveFailed,
    Stopped,
    Unavailable,
    first_line,
    shortened,
    tell,
)

STARTED = time.time()  # about the start of this process
_PATIENCE_SECONDS = 10.0  # that a command gets to end by itself after a signal
_STOPPING = (signal.SIGTERM, signal.SIGHUP)  # SIGHUP: of a terminal that is gone
DISK_IS_FULL = 'No space left on device|Disk quota exceeded'  # a pattern of messages


@dataclasses.dataclass(frozen=True, kw_only=True)
class ErrorRule:
    """The line that a command prints for a kind of exception, and its exit status.

    Attributes:
      types: classes of the exceptions that the rule is for.
      pattern: is found in 'module.name: message' of these exceptions.
      raised_in: the end of the path of the file that raises them; '': any.
      only_if_set: an environment variable without which the rule does not apply.
      line: is printed. In it, {message} is the exception's message on one line, {first_line} that
        message's first line, {file} the file that the exception names and what is wrong with it,
        and {disk} the disk of the file that the exception names or the command writes.
      status: the exit status.
    """

    types: type[BaseException] | tuple[type[BaseException], ...]
    pattern: str = ''
    raised_in: str = ''
    only_if_set: str = ''
    line: str
    status: int

    def applies_to(self, error: BaseException) -> bool:
        """Whether the rule is for this exception."""
        if self.only_if_set and self.only_if_set not in os.environ:
            return False
        if not _raised_in(error).endswith(self.raised_in):
            return False
        name = f'{type(error).__module__}.{type(error).__name__}'
        return isinstance(error, self.types) and bool(re.search(self.pattern, f'{name}: {error}'))

    def describe(self, error: BaseException, writing: object) -> str:
        """The line that is printed for an exception while the command writes `writing`."""
        file = getattr(error, 'filename', None)
        reason = getattr(error, 'strerror', '')
        disk = 'a disk'
        if file or writing:
            disk = f'the disk of {file or writing}'
        return self.line.format(
            message=' '.join(str(error).split()),
            first_line=first_line(error),
            file=f"{os.fsdecode(file or '')}: {reason}",
            disk=disk)


def _raised_in(error: BaseException) -> str:
    """The path of the file with the line that raised an exception; '' where none did."""
    frames = traceback.extract_tb(error.__traceback__)
    return frames[-1].filename if frames else ''


def _naming_a_file(*numbers: int) -> str:
    """A pattern of the operating system's errors of these numbers, where they name a file."""
    choices = '|'.join(str(number) for number in numbers)
    return rf'\[Errno ({choices})\] .+: '


# The first rule that applies to an exception or one of its causes counts.
_ERROR_RULES = (
    ErrorRule(types=Stopped, line='{message}', status=143),
    ErrorRule(types=InputError, line='{message}', status=2),
    ErrorRule(types=(FaultyChip, SaveFailed, Unavailable), line='{message}', status=1),
    ErrorRule(types=Diverged, line='{message}', status=3),
    ErrorRule(types=KeyboardInterrupt, line='stopped', status=130),
    ErrorRule(
        types=Exception,
        pattern=DISK_IS_FULL,
        line='{disk} is full (No space left on device): free some space and start again',
        status=1),
    ErrorRule(
        types=Exception,
        pattern='File too large',
        line='{disk} takes no file of that size (File too large): raise the limit of the shell '
             '(ulimit -f unlimited), or write to another disk',
        status=1),
    ErrorRule(
        types=OSError,
        pattern=_naming_a_file(
            errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY, errno.EACCES,
            errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP, errno.ENXIO, errno.ENODEV),
        line='{file}: check the path and the rights to it',
        status=2),
    ErrorRule(
        types=OSError,
        pattern=_naming_a_file(errno.EIO, errno.ESTALE, errno.EFBIG),
        line='{file}: the disk or network that it is on fails',
        status=1),
    ErrorRule(  # of TensorStore: EPERM, EACCES, EROFS
        types=ValueError,
        pattern=r"\[os_error_code='(1|13|30)'",
        line='{first_line}: check the path and the rights to it',
        status=2),
    ErrorRule(
        types=Exception,
        pattern='MemoryError: |RESOURCE_EXHAUSTED',
        line='out of memory ({first_line}): raise config.train.accumulation_steps (the result '
             "stays the same), set config.model.remat='full', or lower the batch size or the "
             'sequence length',
        status=1),
    ErrorRule(
        types=Exception,
        pattern='Unable to initialize backend',
        # Otherwise a device that does not start may start the next time.
        only_if_set='JAX_PLATFORMS',
        line='jax finds no device of JAX_PLATFORMS ({first_line}): set JAX_PLATFORMS=cpu to use '
             'the CPU, or install jax for the device of this machine',
        status=2),
    ErrorRule(
        # jax has the platform and found no device of it: CUDA without a GPU.
        types=AssertionError,
        raised_in='xla_bridge.py',
        only_if_set='JAX_PLATFORMS',
        line='jax finds no device of JAX_PLATFORMS: set JAX_PLATFORMS=cpu to use the CPU, or '
             'install jax for the device of this machine',
        status=2),
    ErrorRule(  # of Gloo and NCCL; jax 0.7 calls the error XlaRuntimeError
        types=Exception,
        pattern='(Jax|Xla)RuntimeError: .*(closed by peer|reset by peer|remote process exited)',
        line='another host ended or cannot be reached ({first_line}): look at what the other hosts '
             'printed; started again, a run goes on from its last checkpoint',
        status=1),
    ErrorRule(
        types=Exception,
        # Libraries that access buckets, and how messages of gcsfs and TensorStore begin.
        pattern=r'^(gcsfs|aiohttp|google|requests)\.|(OSError|ValueError): (Forbidden|UNAVAILABLE|'
                'DEADLINE_EXCEEDED|PERMISSION_DENIED|UNAUTHENTICATED|ABORTED): ',
        line='a bucket refuses or is away ({first_line}): started again, a run goes on from its '
             'last checkpoint',
        status=1),
    ErrorRule(
        types=UnicodeError,
        line='a text cannot be written or read ({first_line}): convert it to UTF-8, and set '
             'PYTHONUTF8=1 where the locale is another',
        status=2),
)


def describe_error(
    error: BaseException, writing: object = None, log_folder: files.Path | None = None
) -> tuple[str, int]:
    """(one-line message, exit status) for an exception that ends the program.

    Args:
      error: the exception.
      writing: the file or folder that the program writes, for the message of a full disk.
      log_folder: receives the traceback of an unexpected error, if it is writable.
    """
    chain = _with_causes(error)
    for rule in _ERROR_RULES:
        for fault in chain:
            if rule.applies_to(fault):
                return shortened(rule.describe(fault, writing)), rule.status
    where = _keep_traceback(error, log_folder or files.Path(tempfile.gettempdir()))
    return (f'{type(error).__name__}: {first_line(error)} (this may be a fault of bert_jax; the '
            f'traceback is in {where})', 1)


def is_full_disk(error: BaseException) -> bool:
    """Whether an exception, or one of its causes, says that a disk is full."""
    return any(re.search(DISK_IS_FULL, str(fault)) for fault in _with_causes(error))


def _with_causes(error: BaseException) -> list[BaseException]:
    """An exception, the one that caused it, and so on."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        if current.__cause__ or current.__suppress_context__:
            current = current.__cause__
        else:
            current = current.__context__
    return chain


def _keep_traceback(error: BaseException, folder: files.Path) -> object:
    """Writes an exception's traceback into a file, or on standard error; says where it is."""
    lines = ''.join(traceback.format_exception(error))
    file = folder / f'error-{secrets.token_hex(4)}.log'
    try:
        files.write_whole(file, lines)
    except Exception:  # of many libraries
        sys.stderr.write(lines)
        return 'the lines above'
    return file


@contextlib.contextmanager
def error_boundary(stopped: str = 'stopped', writing: str | None = None) -> Iterator[None]:
    """Turns exceptions of the block into one line on standard error and an exit status.

    Args:
      stopped: printed after Ctrl-C.
      writing: a file that the block writes, for the message of a full disk.

    Raises:
      SystemExit: with status 2 for bad input, 3 if a training diverged, 130 after Ctrl-C, 143 after
        SIGTERM or SIGHUP, and 1 for anything else, such as standard output whose reader has gone.
    """
    _quiet_libraries()
    try:
        _check_standard_streams()
        with _stopping_on_signals():
            yield
        sys.stdout.flush()  # may be the first to fail on a full disk
    except BrokenPipeError:  # the reader has closed the pipe, as `head` does
        _discard_output()
        sys.exit(1)  # the code after the block must not run as if it were done
    except (Exception, KeyboardInterrupt, Stopped) as error:
        if _cannot_flush_output():
            _discard_output()
            line, status = describe_error(error, 'standard output')
        else:
            line, status = describe_error(error, writing)
        if status == 130:
            line = stopped
        if isinstance(error, KeyboardInterrupt | Stopped):
            files.remove_temporary_folders()
        tell(f'error: {line}')
        sys.exit(status)


@contextlib.contextmanager
def _stopping_on_signals() -> Iterator[None]:
    """Raises Stopped in the block on SIGTERM and SIGHUP, so that temporary files are removed.

    The process ends after `_PATIENCE_SECONDS` also where the exception does not arrive.

    Where something else handles a signal already, such as the guard of a run, or `nohup` has it
    ignored, that goes on.
    """
    is_main_thread = threading.current_thread() is threading.main_thread()
    handled = [number for number in _STOPPING if signal.getsignal(number) == signal.SIG_DFL]
    if not is_main_thread or not handled:
        yield
        return
    process = os.getpid()

    def stop(number: int, frame: object) -> None:
        if os.getpid() != process:  # a fork, which has inherited this
            os._exit(143)
        raise Stopped('stopped')

    has_ended = threading.Event()

    def leave_if_not_ended() -> None:
        if not has_ended.wait(_PATIENCE_SECONDS):
            with contextlib.suppress(OSError):  # of a terminal that is gone
                os.write(2, b'error: stopped\n')
            files.remove_temporary_folders()
            os._exit(143)

    end_calls = signals.call_in_thread(handled, leave_if_not_ended)
    for number in handled:
        signal.signal(number, stop)
    try:
        yield
    finally:
        has_ended.set()
        for number in handled:
            if signal.getsignal(number) is stop:
                signal.signal(number, signal.SIG_DFL)
        end_calls()


def _quiet_libraries() -> None:
    """Silences what libraries print beside the error itself."""
    # Orbax leaves unfinished asyncio tasks behind when it cannot read a file of a checkpoint.
    logging.getLogger('asyncio').setLevel(logging.CRITICAL)
    # Libraries log a great deal, orbax whole tracebacks of errors that it raises as well.
    logging.getLogger('absl').setLevel(logging.CRITICAL)
    warnings.filterwarnings('ignore', message='coroutine .* was never awaited')
    sys.unraisablehook = _report_unraisable


def _report_unraisable(unraisable: Any) -> None:
    """Python's hook for unraisable exceptions, except those of garbage-collected tasks and stops.

    A stop that is lost there takes effect after the first step (see `stopping`).
    """
    if isinstance(unraisable.object, types.CoroutineType):
        return
    if isinstance(unraisable.exc_value, Stopped):
        return
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        threading.Timer(0.1, _thread.interrupt_main).start()  # again, outside of the callback
        return
    if 'Event loop is closed' in str(unraisable.exc_value):
        return
    sys.__unraisablehook__(unraisable)


def _check_standard_streams() -> None:
    """Gives a closed standard error a place, and refuses a closed standard output.

    Raises:
      InputError: standard output is closed.
    """
    # Otherwise the next file to be opened would take a closed standard stream's number.
    number = os.open(os.devnull, os.O_RDWR)
    while number < 3:
        number = os.open(os.devnull, os.O_RDWR)
    os.close(number)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, 'w')  # noqa: SIM115
    if sys.stdout is None:
        raise InputError('standard output is closed: send it to a file or a program')
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors='backslashreplace')  # for locales without UTF-8


def _cannot_flush_output() -> bool:
    """Whether the reader of standard output is gone or its disk full."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError):
        return True
    return False


def _discard_output() -> None:
    """Redirects standard output to the null device."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
