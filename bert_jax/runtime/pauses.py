"""Lets a run stop within long work between two steps.

An evaluation takes as long as many steps. The training loop says how to ask whether to stop
(`interruptible`), and what evaluates, predicts or verifies asks it between its batches (`pause`)
without knowing of a run. Processes of one run pause equally often, so that all leave at the same
place. A run also leaves while it waits for data (`result_of`) or for what it writes
(`waiting_for`); several processes do so if all of them wait since the same pause. A process that is
alone also leaves while it compiles (`calling`): among several, one may already compute with all
others what another still compiles.
"""

import contextlib
import contextvars
import dataclasses
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import TypeVar

from bert_jax.runtime import hosts
from bert_jax.runtime.errors import Stopped

_T = TypeVar('_T')
_SECONDS = 0.2  # between two pauses of a process that waits


@dataclasses.dataclass(frozen=True)
class _Asked:
    """How a block of `interruptible` asks whether it has to stop."""

    should_stop: Callable[[], bool]
    should_leave: Callable[[bool], bool]


# Another thread has none: only the one that trains decides.
_asked: contextvars.ContextVar[_Asked | None] = contextvars.ContextVar('asked', default=None)


class Interrupted(Stopped):
    """A run has to stop, and so leaves work that takes long between two steps."""


@contextlib.contextmanager
def interruptible(
    should_stop: Callable[[], bool], should_leave: Callable[[bool], bool] = lambda is_over: False
) -> Iterator[None]:
    """While the block runs, `pause` asks `should_stop`.

    Args:
      should_stop: whether to stop here; the same in all processes of a run, which ask it equally
        often.
      should_leave: asked of several processes while one of them waits, and once more with True when
        its wait is over; see `Guard.should_leave`.

    Raises:
      Interrupted: one of them returned True.
    """
    token = _asked.set(_Asked(should_stop, should_leave))
    try:
        yield
    finally:
        _asked.reset(token)


def pause() -> None:
    """Ends a block of `interruptible` if the run has to stop; elsewhere it does nothing."""
    asked = _asked.get()
    if asked is not None and asked.should_stop():
        raise Interrupted('stopped between two batches')


def calling(function: Callable[[], _T]) -> _T:
    """The result of a function that may compile for minutes, during which no Python runs here.

    In a block of `interruptible` of a process that is alone it works in a thread of its own, which
    a run that stops leaves behind.
    """
    if _asked.get() is None or hosts.count() > 1:
        return function()
    return result_of(_begin(function))


def waiting_for(function: Callable[[], _T]) -> _T:
    """The result of a function that waits, and computes nothing together with other processes.

    In a block of `interruptible` it works in a thread of its own, which a run that stops leaves
    behind.
    """
    if _asked.get() is None:
        return function()
    return result_of(_begin(function))


def _begin(function: Callable[[], _T]) -> Future[_T]:
    """Calls a function in a thread that does not keep this process from ending."""
    future: Future[_T] = Future()
    threading.Thread(target=_complete, args=(future, function), daemon=True).start()
    return future


def _complete(future: Future[_T], function: Callable[[], _T]) -> None:
    try:
        future.set_result(function())
    except BaseException as error:
        future.set_exception(error)


def result_of(future: Future[_T]) -> _T:
    """Waits for the result of a future, which computes nothing together with other processes.

    Raises:
      Interrupted: in a block of `interruptible`, the run has to stop.
    """
    asked = _asked.get()
    if asked is None:
        return future.result()
    while not wait([future], timeout=_SECONDS).done:
        _leave_if_asked(asked, is_over=False)
    result = future.result()
    if hosts.count() > 1:
        _leave_if_asked(asked, is_over=True)
    return result


def _leave_if_asked(asked: _Asked, is_over: bool) -> None:
    """Ends a wait if the run has to stop."""
    if hosts.count() == 1:
        leaves = asked.should_stop()  # alone, a process may ask however often it likes
    else:
        leaves = asked.should_leave(is_over)
    if leaves:
        raise Interrupted('stopped while waiting')
