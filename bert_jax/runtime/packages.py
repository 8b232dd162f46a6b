"""Imports of packages that are optional, slow or noisy, TensorFlow above all."""

import contextlib
import importlib.util
import os
import platform
import sys
import types
from collections.abc import Iterator

from bert_jax.runtime.errors import InputError, install


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Discards standard error: TensorFlow's C++ prints a banner whatever the log level.

    Exceptions are not suppressed.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, 'w') as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def without(package: str, *, empty: bool = False) -> Iterator[None]:
    """Hides a package that is not loaded yet, or makes it an `empty` module, within the block.

    This saves the seconds that libraries take to import an optional package that is not used here.
    """
    if package in sys.modules:
        yield
        return
    hidden = types.ModuleType(package) if empty else None
    sys.modules[package] = hidden  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[package]


def has_tensorflow() -> bool:
    """Whether TensorFlow and TF-Text are installed, which prepare text where they are."""
    return all(importlib.util.find_spec(name) for name in ('tensorflow', 'tensorflow_text'))


@contextlib.contextmanager
def loading_tensorflow(purpose: str) -> Iterator[None]:
    """Imports TensorFlow without its banner, off the accelerators; the block may import TF-Text.

    Raises:
      InputError: it is not installed, or TF-Text belongs to another release of it; names `purpose`
        and the command that installs the right one.
    """
    try:
        with quiet_stderr():
            # Keras is a third of the import time. A missing package is reported below.
            # A caller's TensorFlow that is initialised already keeps its devices (RuntimeError).
            with without('keras'), contextlib.suppress(ModuleNotFoundError, RuntimeError):
                import tensorflow

                for kind in ('GPU', 'TPU'):  # jax computes on them
                    tensorflow.config.set_visible_devices([], kind)
            yield
    except ModuleNotFoundError as error:
        missing = str(error.name).partition('.')[0]
        if not missing.startswith('tensorflow'):
            raise
        raise InputError(
            f'{purpose} needs {missing}, which is not installed: {_install_tensorflow()}') from None
    except Exception as error:  # TensorFlow's own types, which are not known before it is loaded
        if 'undefined symbol' not in str(error) or 'text' not in str(error):
            raise
        release = '.'.join(sys.modules['tensorflow'].__version__.split('.')[:2])
        raise InputError(
            f'{purpose} needs a tensorflow-text that fits TensorFlow {release}, and another is '
            f"installed: python -m pip install --no-deps 'tensorflow-text=={release}.*'"
        ) from None


def _install_tensorflow() -> str:
    """The command that installs TensorFlow and TF-Text on this machine."""
    command = install('data')
    if sys.platform == 'linux' and platform.machine() == 'x86_64':
        # There the extra has tensorflow-cpu, and TensorFlow Text would install plain tensorflow,
        # which is larger and takes accelerators.
        command += " && python -m pip install --no-deps 'tensorflow-text==2.21.*'"
    return command
