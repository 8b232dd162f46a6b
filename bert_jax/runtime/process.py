"""How the process itself runs."""

from __future__ import annotations

import contextlib
import io
import os
import platform
import sys
import time
import types
from collections.abc import Iterator
from typing import Any

from bert_jax.runtime.errors import InputError

STARTED = time.time()  # of this process, as far as a module can tell

_HUGE_PAGES = 'GLIBC_TUNABLES=glibc.malloc.hugetlb=1'


def huge_pages_note() -> str:
    """What to say to a run on CPUs whose malloc has small pages; '' where that is settled.

    XLA on CPUs takes and returns its buffers at every step. With 4 kB pages a tiny model's run was
    seen to spend a third of its time in page faults; with huge pages it did 1.3 times the steps.
    The variable is read when a process starts, so nothing within can set it.
    """
    if sys.platform != 'linux' or 'GLIBC_TUNABLES' in os.environ:
        return ''
    return f'note: on CPUs, training may be a third faster with {_HUGE_PAGES} in the environment'


def check_streams() -> None:
    """Refuses to work where nothing could be said, or arguments not be read.

    A stream that is closed leaves its number to the first file that is opened, into which libraries
    would then write what they tell: so somebody has to have it.

    Raises:
      InputError: standard output is closed, or an argument is not of the locale's encoding.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it takes the lowest number that is free: this one
    if sys.stderr is None:
        sys.stderr = open(2, 'w', closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        raise InputError('standard output is closed: send it to a file or a program')
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors='backslashreplace')
    encoding = sys.getfilesystemencoding()
    for argument in sys.argv:
        if encoding != 'utf-8' and not argument.isascii():
            raise InputError(
                f'{argument!r} cannot be read, as the locale is of {encoding}: set PYTHONUTF8=1 or '
                'LC_ALL=C.UTF-8'
            )


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Drops what is written to standard error: TensorFlow greets from C++, past every setting.

    An import that fails still raises.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextlib.contextmanager
def without(package: str, *, empty: bool = False) -> Iterator[None]:
    """Within it, a package that is not loaded yet cannot be found, or is `empty`.

    For imports that would load it for seconds, and to no use here, wherever it is installed.
    """
    modules: dict[str, Any] = sys.modules
    loaded = package in modules
    if not loaded:
        modules[package] = types.ModuleType(package) if empty else None
    try:
        yield
    finally:
        if not loaded:
            del modules[package]


@contextlib.contextmanager
def loading_tensorflow(purpose: str) -> Iterator[None]:
    """For imports of TensorFlow and what comes with it: quiet, and told in a line where it lacks.

    Raises:
      InputError: it is not installed; says what needs it and how it is installed.
    """
    try:
        with quiet_stderr():
            # Keras is a third of its import. What lacks is told below, by whoever needs it.
            with without('keras'), contextlib.suppress(ModuleNotFoundError):
                import tensorflow  # noqa: F401
            yield
    except ModuleNotFoundError as error:
        missing = str(error.name).partition('.')[0]
        if not missing.startswith('tensorflow'):
            raise
        # TensorFlow Text would bring the plain package, which is larger and knows accelerators;
        # the small one is made for x86-64 alone.
        small = sys.platform == 'linux' and platform.machine() == 'x86_64'
        raise InputError(
            f"{purpose} needs {missing}, which is not installed: python -m pip install 'tensorflow"
            f"{'-cpu' if small else ''}==2.21.*' tensorflow-datasets && python -m pip install "
            "--no-deps 'tensorflow-text==2.21.*'"
        ) from None
