"""What a file holds, told by a digest of its content.

Where a file lies and when it was written say nothing about a text: a copy must be known again, and
another text under an old name must not pass for it. Reading tens of gigabytes at every start would
take minutes, so this machine remembers the digest of a file with its size, time and inode, and a
file that has not changed since costs a look. A bucket knows the digests of its objects.

MD5 is what buckets have, so that a text has one identity there and here. It is to notice accidents,
not forgery.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from bert_jax.data import disk
from bert_jax.runtime import files

_REMEMBERED = '~/.cache/bert_jax/digests.json'
_MAX_REMEMBERED = 100_000  # files, the ones asked for last
_BLOCK_BYTES = 4 << 20
# Disks keep time in steps: a file could change twice in one of them.
_SETTLED_SECONDS = 2.0
_BUCKET_THREADS = 32


def new_digest() -> Any:
    """A hash object for content that passes by."""
    return hashlib.md5(usedforsecurity=False)


def digests(paths: Sequence[str | os.PathLike[str]]) -> list[str]:
    """The digest of each file's content, as hexadecimal digits; hashed only where not known.

    Raises:
      OSError: a file is missing or cannot be read.
    """
    names = [os.fspath(path) for path in paths]
    distant = [name for name in names if files.in_bucket(name)]
    found = dict(zip(distant, disk.in_threads(_of_object, distant, _BUCKET_THREADS), strict=True))
    local = [name for name in names if not files.in_bucket(name)]
    known = _read_remembered() if local else {}
    states = {name: _state(name) for name in local}
    for name, (place, *state) in states.items():
        if known.get(place, [])[:-1] == state:
            found[name] = known[place][-1]
    unknown = [name for name in states if name not in found]
    if unknown:
        hashed = disk.in_threads(_of_file, unknown, os.cpu_count() or 1)
        found |= zip(unknown, hashed, strict=True)
        _remember({
            states[name][0]: [*states[name][1:], found[name]] for name in unknown
            # One that changed while it was read is another one by now.
            if _state(name) == states[name]
            and time.time() - states[name][2] / 1e9 > _SETTLED_SECONDS
        })
    return [found[name] for name in names]


def _state(name: str) -> tuple[str, int, int, int]:
    """A file's real path, and what changes with its content."""
    stat = os.stat(name)
    return os.path.realpath(name), stat.st_size, stat.st_mtime_ns, stat.st_ino


def _of_file(name: str, check: Callable[[], None]) -> str:
    digest = new_digest()
    block = memoryview(bytearray(_BLOCK_BYTES))
    with open(name, 'rb', buffering=0) as file:
        while size := file.readinto(block):
            digest.update(block[:size])
            check()
    return digest.hexdigest()


def _of_object(name: str, check: Callable[[], None]) -> str:
    import fsspec

    check()
    system, path = fsspec.core.url_to_fs(name)
    info = system.info(path)
    if 'md5Hash' in info:
        return base64.b64decode(info['md5Hash']).hex()
    # An object that was uploaded in pieces has no MD5.
    return f"crc32c {info['crc32c']} of {info['size']} bytes"


def _read_remembered() -> dict[str, list[Any]]:
    """[size, time, inode, digest] by real path; whatever is not of that form is forgotten."""
    try:
        content = json.loads(files.as_path(_REMEMBERED).read_text())
        return {
            path: list(entry) for path, entry in content.items()
            if [type(value) for value in entry] == [int, int, int, str]
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _remember(entries: dict[str, list[Any]]) -> None:
    if not entries:
        return
    path = files.as_path(_REMEMBERED)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with disk.lock(path.with_suffix('.lock')):
            known = _read_remembered()
            kept = {place: known[place] for place in known if place not in entries} | entries
            files.write_whole(path, json.dumps(dict([*kept.items()][-_MAX_REMEMBERED:])))
    except OSError:
        pass  # a home that cannot be written costs time, not the run
