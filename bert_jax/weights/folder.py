"""Writing a folder whole or not at all, and the JSON in it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bert_jax.errors import InputError


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to write into, which becomes `target` when the block ends without an error.

    Raises:
      InputError: `target` holds something already, or cannot be written.
    """
    check_free(target)
    beside = target.with_name(f'.{target.name}.{os.getpid()}.tmp')
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        beside.mkdir()
        yield beside
        os.replace(beside, target)  # onto an empty folder at most
    except OSError as error:
        raise InputError(f'{target} cannot be written: {error.strerror or error}') from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def check_free(target: Path) -> None:
    """Refuses a target that holds something."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f'{target} is there already: name a new folder, nothing is written over')


def write_json(path: Path, value: dict[str, Any]) -> None:
    """An indented JSON object, in UTF-8."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + '\n', encoding='utf-8')
