"""Digests of files and other content, by which stores and caches are found again."""

import base64
import contextlib
import hashlib
import json
import os
import time
from collections.abc import Sequence
from concurrent import futures
from typing import Any

from bert_jax.runtime import files

_REMEMBERED = '~/.cache/bert_jax/digests.json'
_MAX_REMEMBERED = 100_000  # files, the ones hashed last
# File times are coarse: a file could change twice within one tick.
_SETTLED_SECONDS = 2.0
_BUCKET_THREADS = 32
_MD5_LENGTH = 24  # of an MD5 in base64


def digests(paths: Sequence[str | os.PathLike[str]]) -> list[str]:
    """The MD5 of each file, in hexadecimal digits; hashed only if the file changed since last time.

    Args:
      paths: all on disk, or all in buckets, whose listings have digests (see `object_digest`).

    Raises:
      OSError: a file is missing or cannot be read.
    """
    names = [os.fspath(path) for path in paths]
    if names and files.in_bucket(names[0]):
        with futures.ThreadPoolExecutor(_BUCKET_THREADS) as pool:
            return list(pool.map(_digest_in_bucket, names))
    remembered = _Remembered(files.as_path(_REMEMBERED))
    with futures.ThreadPoolExecutor() as pool:
        result = list(pool.map(remembered.digest, names))
    remembered.save()
    return result


def _digest_in_bucket(name: str) -> str:
    return object_digest(files.find(name)[0])


def object_digest(found: files.Found) -> str:
    """The digest of an object in a bucket, from its listing: MD5, or else CRC32C and size."""
    if len(found.checksum) == _MD5_LENGTH:
        return base64.b64decode(found.checksum).hex()
    # An object that was uploaded in pieces has no MD5.
    return f'crc32c {found.checksum} of {found.size} bytes'


class _Remembered:
    """Digests of files, remembered by what changes when a file's content does."""

    def __init__(self, path: files.Path):
        """Reads those of earlier runs.

        Args:
          path: the file that keeps them.
        """
        self._path = path
        self._known: dict[str, str] = {}
        self._new: dict[str, str] = {}
        with contextlib.suppress(OSError, ValueError, TypeError):  # missing or damaged
            self._known = dict(json.loads(path.read_text()))

    def digest(self, name: str) -> str:
        """The digest of a file. Threads call it at the same time."""
        state = self._state_of(name)
        if state in self._known:
            return self._known[state]
        digest = md5_of(name)
        # The digest of a file that changed meanwhile must not be remembered.
        is_settled = time.time() - os.stat(name).st_mtime > _SETTLED_SECONDS
        if is_settled and self._state_of(name) == state:
            self._new[state] = digest
        return digest

    def _state_of(self, name: str) -> str:
        """A file's real path, with what changes when its content does."""
        stat = os.stat(name)
        return f'{os.path.realpath(name)} {stat.st_size} {stat.st_mtime_ns} {stat.st_ino}'

    def save(self) -> None:
        """Keeps the new digests for later runs."""
        if not self._new:
            return
        latest = list((self._known | self._new).items())[-_MAX_REMEMBERED:]
        with contextlib.suppress(OSError):  # an unwritable home costs time, not the run
            self._path.parent.mkdir(parents=True, exist_ok=True)
            files.write_whole(self._path, json.dumps(dict(latest)))


def md5_of(name: str | os.PathLike[str]) -> str:
    """The MD5 of a file, in hexadecimal digits, which is always hashed (see `digests`)."""
    with open(name, 'rb', buffering=0) as file:
        digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False))
    return digest.hexdigest()


def name_of(identity: Any) -> str:
    """16 hexadecimal digits that change with a value that JSON can hold."""
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
