"""The folder of an evaluation: `result.json` and the files of its predictions, replaced as a whole.

On a disk the files are written into a new folder, which is renamed. A folder that cannot be renamed
(in a bucket, a mounted one, one in a folder of somebody else) keeps its place: `result.json` says
that the evaluation is unfinished until all the others are there.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Collection, Mapping
from typing import Any

from bert_jax.run.layout import is_run
from bert_jax.runtime.errors import InputError, show
from bert_jax.runtime.files import (
    Path,
    as_path,
    children,
    exists,
    in_bucket,
    open_folder,
    read_fields,
    write_whole,
)
from bert_jax.runtime.new_folder import folder_beside
from bert_jax.runtime.schema import INSIDE, TEXT, ListOf

RESULT = 'result.json'
_FILES = 'files'  # the field of result.json that names the others
_IDENTITY = ('task', 'models', 'source')  # the fields that say what was evaluated on what
_SCHEMA = {'task': TEXT, 'models': ListOf(TEXT), 'source': TEXT, _FILES: ListOf(INSIDE)}
_REMEDY = 'remove it'


def free_folder(named: str, identity: Mapping[str, Any]) -> str:
    """The first of NAME, NAME-2, NAME-3, ... that is free, or has an evaluation of the same.

    Args:
      named: NAME.
      identity: the fields of the new `result.json` that say what is evaluated.
    """
    number = 1
    place = named
    while not _is_free(as_path(place), identity):
        number += 1
        place = f'{named}-{number}'
    return place


def _is_free(folder: Path, identity: Mapping[str, Any]) -> bool:
    """Whether an evaluation may be written into a folder without asking."""
    if not children(folder):
        return True
    with contextlib.suppress(InputError):
        earlier = read_fields(folder / RESULT, _SCHEMA, _REMEDY)
        return all(earlier.get(name) == identity[name] for name in _IDENTITY)
    return False


def open_result_folder(folder: Path) -> None:
    """Makes the folder of an evaluation; notes which earlier one is replaced.

    Raises:
      InputError: it is a run, holds something else, or cannot be replaced.
    """
    if not _stays_in_place(folder):
        _settle(as_path(os.path.realpath(folder)))
    if is_run(folder):
        raise InputError(f'{folder} is a run, whose predictions would be lost: give another')
    open_folder(folder, '--workdir', lambda folder: exists(folder / RESULT))
    if not in_bucket(folder) and os.path.samefile(folder, '.'):
        raise InputError(f'--workdir={folder} is the current folder, and an evaluation takes the '
                         'place of its folder as a whole: name another')
    if not exists(folder / RESULT):
        return
    folders = [path.name for path in children(folder) if path.is_dir()]
    if folders:
        raise InputError(f'{folder} holds something else ({folders[0]}/): give another --workdir, '
                         'nothing is written over')
    earlier = read_fields(folder / RESULT, _SCHEMA, _REMEDY)
    show(f"note: {folder} holds an evaluation on {earlier.get('source')}, which is replaced: "
         'give --workdir=DIR to keep both')


def write_result(folder: Path, result: Mapping[str, Any], files: Mapping[str, str]) -> None:
    """Writes an evaluation in place of the earlier one, whose files are removed.

    Args:
      folder: opened by `open_result_folder`.
      result: the content of `result.json`.
      files: the content of the others, by name.
    """
    removed = [name for name in _files_of_earlier(folder) if name not in files]
    content = json.dumps({**result, _FILES: sorted(files)}, indent=1) + '\n'
    if _stays_in_place(folder):
        # This names the files of both, so that the next evaluation can remove them.
        unfinished = {'unfinished': True, _FILES: [*removed, *files]}
        write_whole(folder / RESULT, json.dumps(unfinished))
        for name in removed:
            (folder / name).unlink(missing_ok=True)
        for name, text in files.items():
            write_whole(folder / name, text)
        write_whole(folder / RESULT, content)
        return
    _replace(as_path(os.path.realpath(folder)), {**files, RESULT: content}, removed)


def _files_of_earlier(folder: Path) -> list[str]:
    """The files that an earlier evaluation has written into a folder, if there is one."""
    if not exists(folder / RESULT):
        return []
    written = read_fields(folder / RESULT, _SCHEMA, _REMEDY).get(_FILES) or ()
    return [path.name for path in children(folder) if path.name in written]


def _stays_in_place(folder: Path) -> bool:
    """Whether a folder cannot be replaced by another with its name."""
    if in_bucket(folder):
        return True
    whole = os.path.realpath(folder)
    parent = os.path.dirname(whole)
    may_rename = not os.path.exists(parent) or os.access(parent, os.W_OK | os.X_OK)
    return os.path.ismount(whole) or not may_rename


def _replace(folder: Path, files: Mapping[str, str], removed: Collection[str]) -> None:
    """Replaces a folder by one with other files, and those of its own that are not `removed`."""
    with folder_beside(folder) as beside:
        shutil.copystat(folder, beside)  # such as who may read it
        for name, content in files.items():
            write_whole(beside / name, content)
        for path in children(folder):
            if path.name not in removed and path.name not in files and not path.is_dir():
                _link(path, beside / path.name)
        os.rename(folder, _before(folder))
        try:
            os.rename(beside, folder)
        except OSError:
            os.rename(_before(folder), folder)
            raise
        _settle(folder)


def _before(folder: Path) -> Path:
    """The name of a folder while another takes its place."""
    return folder.parent / f'.{folder.name}.before'


def _settle(folder: Path) -> None:
    """Ends a replacement, perhaps of a process that was killed in it.

    If there is a new folder, it gets the folders in the one before, which is removed; else the one
    before comes back.
    """
    before = _before(folder)
    if not exists(before):
        return
    if not exists(folder):
        os.rename(before, folder)
        return
    for path in children(before):
        if path.is_dir() and not exists(folder / path.name):
            os.rename(path, folder / path.name)
    before.rmtree()


def _link(path: Path, other: Path) -> None:
    """Gives a file, which may be a log that is being written, a second name."""
    try:
        os.link(path, other, follow_symlinks=False)
    except OSError:  # of disks without such names
        shutil.copy2(path, other, follow_symlinks=False)
