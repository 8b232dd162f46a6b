"""Runs commands in forks of a process that has imported what they need: a second each, not six.

Unlike `tests.abuse.commands.open_command`, a command here has a process of its own: its standard
streams, memory, signals and environment are its own, and it can hang or be killed.
"""

import contextlib
import importlib
import os
import signal
import sys
import tempfile
import time
import traceback
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from bert_jax.runtime import files
from tests.abuse.commands import Answer
from tests.conftest import ROOT

# Imported before the first fork. None of them may start a thread or open a device.
_IMPORTED = (
    'bert_jax.main', 'bert_jax.run_setup', 'bert_jax.convert', 'bert_jax.evaluate', 'bert_jax',
    'bert_jax.predict.__main__', 'bert_jax.tools.prepare', 'bert_jax.tools.sweep.__main__',
    'bert_jax.tools.report.__main__', 'bert_jax.train.experiment', 'orbax.checkpoint', 'sklearn',
    'matplotlib.figure', 'matplotlib.backends.backend_agg', 'tensorboardX',
)
_MOST_MEMORY = 2e9  # bytes


class Strike(NamedTuple):
    """A signal that a process gets, and the seconds after its start."""

    number: int
    seconds: float


class Ended(NamedTuple):
    """How a process ended: what it answered, its seconds, and its peak of memory in bytes."""

    answer: Answer
    seconds: float
    memory: int

    @property
    def harm(self) -> str:
        """What no command may do, or ''."""
        if self.answer.status == -signal.SIGKILL:
            return 'it did not end'
        if self.answer.status < 0:
            return f'signal {-self.answer.status}'
        if self.memory > _MOST_MEMORY:
            return f'{self.memory:,} bytes of memory'
        return self.answer.harm


def warm_up() -> None:
    """Imports what commands import."""
    for name in _IMPORTED:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)


def run_forked(
    act: Callable[[], object], stdin: bytes = b'', seconds: float = 60.0,
    environment: Mapping[str, str] | None = None, strike: Strike | None = None,
    place: Path = ROOT,
) -> Ended:
    """Runs a function in a fork of this process, which is killed if it has not ended in time.

    Args:
      act: is called in the fork.
      stdin: bytes of its standard input.
      seconds: after which it is killed.
      environment: variables to set.
      strike: a signal that it gets, unless it has ended.
      place: its working directory.
    """
    with (tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out,
          tempfile.TemporaryFile() as err):
        given.write(stdin)
        given.seek(0)
        began = time.monotonic()
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if not child:
            streams = (given.fileno(), out.fileno(), err.fileno())
            _become(act, streams, environment or {}, place)
        status, memory = _await(child, seconds, strike)
        spent = time.monotonic() - began
        out.seek(0)
        err.seek(0)
        answer = Answer(status, out.read().decode(errors='replace'),
                        err.read().decode(errors='replace'))
    return Ended(answer, spent, memory)


def _become(
    act: Callable[[], object], streams: tuple[int, int, int], environment: Mapping[str, str],
    place: Path,
) -> None:
    """The life of a fork; does not return."""
    status = 1
    is_interrupted = False
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        for name, number in (('stdin', 0), ('stdout', 1), ('stderr', 2)):
            mode = 'r' if number == 0 else 'w'
            errors = 'backslashreplace' if number == 2 else 'strict'
            stream = open(  # noqa: SIM115
                number, mode, encoding='utf-8', errors=errors, closefd=False)
            setattr(sys, name, stream)
        os.setpgid(0, 0)
        _forget_finalizers()
        # As in a terminal; shells let programs in the background ignore some signals.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        os.environ.update(environment)
        os.chdir(place)
        act()
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException as error:
        is_interrupted = isinstance(error, KeyboardInterrupt)
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        with contextlib.suppress(Exception):
            weakref.finalize._exitfunc()  # type: ignore[attr-defined]
            files.remove_temporary_folders()  # as at Python's end
        if is_interrupted:  # as Python ends
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(status)


def _forget_finalizers() -> None:
    """What this process would do at its end, such as to remove folders, is its parent's to do."""
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]


def _await(child: int, seconds: float, strike: Strike | None) -> tuple[int, int]:
    """(Exit status, or minus the signal; peak of memory in bytes) of a process."""
    began = time.monotonic()
    while True:
        pid, status, usage = os.wait4(child, os.WNOHANG)
        if pid:
            break
        spent = time.monotonic() - began
        if strike and spent > strike.seconds:
            os.kill(child, strike.number)
            strike = None
        if spent > seconds:
            os.killpg(child, signal.SIGKILL)
            _, status, usage = os.wait4(child, 0)
            break
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024
