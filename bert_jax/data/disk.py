"""Working on a disk with others: locks, many files at once, faults that name the place."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any, TypeVar

from bert_jax.runtime.errors import InputError

_Item = TypeVar('_Item')
_Result = TypeVar('_Result')

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_WRITABLE = (errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR, errno.EEXIST)


@contextlib.contextmanager
def lock(path: str | os.PathLike[str], waiting_for: str = '') -> Iterator[None]:
    """Holds a lock that the system gives back when the process ends, however it ends.

    Args:
      path: a file on a disk, made where there is none.
      waiting_for: said on standard error if another process holds it.
    """
    with open(path, 'w') as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting_for:
                print(f'waiting for another process {waiting_for}', file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def fsync_folder(path: str | os.PathLike[str]) -> None:
    """Makes what was renamed or made in a folder survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def faults(what: str, folder: str | os.PathLike[str], field: str) -> Iterator[None]:
    """Says in a line which place is full or cannot be written.

    Args:
      what: is written.
      folder: where to.
      field: of the config, names another place.

    Raises:
      InputError: in place of such an OSError.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise InputError(
                f'no space left for {what} in {folder}: free some (it goes on where it was), or '
                f'set --config.{field} to a larger disk'
            ) from error
        if error.errno in _NOT_WRITABLE:
            raise InputError(
                f'{folder} cannot be written ({error.strerror}): set --config.{field} to a '
                'directory that can'
            ) from error
        raise


def in_threads(
    work: Callable[[_Item, Callable[[], None]], _Result], items: Sequence[_Item], num_threads: int
) -> list[_Result]:
    """Work on many items side by side; the first fault, or a signal here, ends all.

    Args:
      work: of an item and a function to call between short pieces of the work: it raises where
        there is no reason to go on.
      items: what to work on.
      num_threads: at once.

    Returns:
      The results, in order.
    """
    stop = threading.Event()

    def check() -> None:
        if stop.is_set():
            raise futures.CancelledError

    with futures.ThreadPoolExecutor(max(1, min(num_threads, len(items)))) as pool:
        tasks: list[futures.Future[Any]] = [pool.submit(work, item, check) for item in items]
        try:
            for task in futures.as_completed(tasks):
                task.result()
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    return [task.result() for task in tasks]
