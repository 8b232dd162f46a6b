"""Where results go: asked before the work, and nothing is written over that is not ours."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, as_path, children, in_bucket


def check_new_file(path: str | os.PathLike[str], flag: str) -> None:
    """Refuses a file that is there already, or that could not be written.

    Raises:
      InputError: so it is; it names the flag.
    """
    target = as_path(path)
    if target.is_dir():
        raise InputError(f'{flag}={path} is a folder: name a file')
    if target.exists() or os.path.islink(target):
        raise InputError(f'{flag}: {path} is there already: name another file, nothing is written '
                         'over')
    if not in_bucket(path):
        _check_writable(target.parent, path, flag)


def open_folder(
    named: str | os.PathLike[str], flag: str, is_ours: Callable[[Path], bool]
) -> Path:
    """Makes a folder for results, or takes one that holds earlier ones.

    Args:
      named: the folder.
      flag: that names it.
      is_ours: whether a folder that is not empty holds earlier results of this door.

    Raises:
      InputError: it holds something else, or cannot be written.
    """
    folder = as_path(named)
    if not in_bucket(named):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f'{flag}={named} cannot be made ({error.strerror or error}): name another place'
            ) from None
        _check_writable(folder, named, flag)
    others = [path.name for path in children(folder) if not is_by_the_way(path)]
    if others and not is_ours(folder):
        raise InputError(
            f'{named} holds something else ({", ".join(others[:3])}'
            + (', ...' if len(others) > 3 else '') + f'): give another {flag}, nothing is written '
            'over'
        )
    return folder


def is_by_the_way(path: Path) -> bool:
    """Whether a file says nothing of what a folder is: hidden, or the log of a program."""
    return path.name.startswith('.') or path.suffix in ('.log', '.out', '.err') or (
        path.name == 'log.txt')


def _check_writable(folder: Path, named: object, flag: str) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(
            f'{flag}={named} cannot be written ({folder}: {error.strerror or error}): name another '
            'place'
        ) from None
