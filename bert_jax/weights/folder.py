"""Writing a folder whole or not at all, and the JSON in it."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from typing import Any

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.faults import FULL
from bert_jax.runtime.files import Path, as_path, children, in_bucket, upload


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder on this machine to write into, which becomes `target` when the block ends well.

    On a disk it is renamed. In a bucket its files are uploaded, and last the one that readers ask
    for first, `config.json` or `bert_config.json`: what has none of them is no whole model.

    Raises:
      InputError: `target` holds something already, or cannot be written.
      OSError: its disk is full.
    """
    check_free(target)
    try:
        if in_bucket(target):
            with tempfile.TemporaryDirectory(prefix='bert_jax_') as folder:
                yield as_path(folder)
                _upload(as_path(folder), target)
            return
        beside = target.with_name(f'.{target.name}.{os.getpid()}.tmp')
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            beside.mkdir()
            yield beside
            os.replace(beside, target)  # onto an empty folder at most
        finally:
            beside.rmtree(missing_ok=True)
    except OSError as error:
        if error.errno in FULL or 'No space left' in str(error):
            raise  # the doors say which disk is full
        raise InputError(f'{target} cannot be written: {error.strerror or error}') from error


def _upload(folder: Path, target: Path) -> None:
    paths = [as_path(root) / name for root, _, names in os.walk(folder) for name in names]
    for path in sorted(paths, key=lambda path: path.name in ('config.json', 'bert_config.json')):
        upload(path, target / str(path.relative_to(folder)))


def check_free(target: Path) -> None:
    """Refuses a target that holds something."""
    if children(target) or (target.exists() and not target.is_dir()):
        raise InputError(f'{target} is there already: name a new folder, nothing is written over')


def write_json(path: Path, value: dict[str, Any]) -> None:
    """An indented JSON object, in UTF-8."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + '\n', encoding='utf-8')
