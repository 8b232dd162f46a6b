"""Folders that appear as a whole or not at all, on a disk, in a bucket or on the hub."""

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from typing import Any

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import (
    Path,
    as_path,
    children,
    in_bucket,
    remove_leftovers,
    temporary_folder,
    temporary_name,
    upload,
)
from bert_jax.runtime.hub import publish
from bert_jax.runtime.process import DISK_IS_FULL

_ASKED_FIRST = ('config.json', 'bert_config.json')
_REMOVALS = 30  # tries to remove a folder
_REMOVAL_PAUSE = 0.1  # seconds between them


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder on this machine to write into, which becomes `target` when the block succeeds.

    On a disk it is renamed. For hf:ORG/NAME it is published on the Hugging Face hub. For a bucket
    its files are uploaded, last the one that readers ask for first, `config.json` or
    `bert_config.json`: without it, a model is incomplete.

    Raises:
      InputError: `target` holds something already, or cannot be written.
      OSError: its disk is full.
    """
    check_free(target)
    on_hub = os.fspath(target).startswith('hf:')
    try:
        if on_hub or in_bucket(target):
            with temporary_folder() as folder:
                yield as_path(folder)
                if on_hub:
                    publish(folder, os.fspath(target))
                else:
                    _upload_files(as_path(folder), target)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        with folder_beside(target) as beside:
            yield beside
            _flush(beside)
            os.replace(beside, target)  # fails if the target is a folder that is not empty
    except OSError as error:
        if re.search(DISK_IS_FULL, str(error)):
            raise  # the error boundary names the full disk
        raise InputError(f'{target} cannot be written: {error.strerror or error}') from error


@contextlib.contextmanager
def folder_beside(target: Path) -> Iterator[Path]:
    """A folder on the disk of another one, to write into before it gets its name.

    What killed processes have left there is removed first, and the folder itself at the end, unless
    it was renamed.
    """
    remove_leftovers(target.parent, target.name)
    beside = temporary_name(target)
    beside.mkdir()
    try:
        yield beside
    finally:
        _remove(beside)


def _remove(folder: Path) -> None:
    """Removes a folder to which threads may still write, and never raises.

    Where a save of orbax fails, as its disk is full, its other threads go on for a moment: a folder
    that was just emptied holds a file again. The error to be told is that of the save. What is left
    after all tries, `remove_leftovers` takes one day.
    """
    for _ in range(_REMOVALS):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.lexists(folder):
            return
        time.sleep(_REMOVAL_PAUSE)


def _upload_files(folder: Path, target: Path) -> None:
    """Uploads a folder's files, last the one that readers ask for first."""
    paths = []
    for root, _, names in os.walk(folder):
        paths += [as_path(root) / name for name in names]
    for path in sorted(paths, key=lambda path: path.name in _ASKED_FIRST):
        upload(path, target / str(path.relative_to(folder)))


def _flush(folder: Path) -> None:
    """Waits until the files of a folder are on the disk, so that no crash leaves empty ones."""
    for root, _, names in os.walk(folder):
        for path in (root, *(os.path.join(root, name) for name in names)):
            opened = os.open(path, os.O_RDONLY)
            os.fsync(opened)
            os.close(opened)


def check_free(target: Path) -> None:
    """Raises InputError if a target is a file, or a folder that is not empty."""
    is_other = os.path.lexists(target) and not target.is_dir()  # a file, or a link to nothing
    if children(target) or is_other:
        raise InputError(f'{target} is there already: name a new folder, nothing is written over')


def write_json(path: Path, value: dict[str, Any] | list[dict[str, Any]]) -> None:
    """Writes an indented JSON object, or a list of objects, in UTF-8."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + '\n', encoding='utf-8')
