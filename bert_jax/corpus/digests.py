"""Digests of files and other content, by which stores and caches are found again."""

import base64
import contextlib
import hashlib
import itertools
import json
import os
import time
from collections.abc import Iterator, Sequence
from concurrent import futures
from typing import Any, NamedTuple

from bert_jax.runtime import files, hashing
from bert_jax.runtime.errors import InputError

_REMEMBERED = '~/.cache/bert_jax/digests'
# For what no run has used in this time, or in so many bytes, files are hashed again.
_REMEMBERED_SECONDS = 90 * 86_400
_MAX_REMEMBERED_BYTES = 1 << 30  # about ten million files
# File times are coarse: a file could change twice within one tick.
_SETTLED_SECONDS = 2.0
_BUCKET_THREADS = 32
_MD5_LENGTH = 24  # of an MD5 in base64
# What a thread hashes at a time: to pass on a single tiny file costs more than to hash it.
_GROUP_FILES = 256
_GROUP_BYTES = 16 << 20
_READ_BYTES = 1 << 18


def digests(paths: Sequence[str | os.PathLike[str]]) -> list[str]:
    """The MD5 of each file, in hexadecimal digits; hashed only if the file changed since last time.

    Args:
      paths: all on disk, or all in buckets, whose listings have digests (see `object_digest`).

    Raises:
      OSError: a file is missing or cannot be read.
    """
    names = [os.fspath(path) for path in paths]
    if not names:
        return []
    if files.in_bucket(names[0]):
        with futures.ThreadPoolExecutor(_BUCKET_THREADS) as pool:
            return list(pool.map(_digest_in_bucket, names))
    names = [os.path.abspath(name) for name in names]
    remembered = _Remembered(names)
    states = [_state_of(name) for name in names]
    found = [remembered.find(*file) for file in zip(names, states, strict=True)]
    missing = [index for index, digest in enumerate(found) if not digest]
    groups = _groups([names[index] for index in missing], [states[index] for index in missing])
    with futures.ThreadPoolExecutor() as pool:
        hashed = itertools.chain.from_iterable(pool.map(_hash_all, groups))
        for index, (digest, state) in zip(missing, hashed, strict=True):
            found[index] = digest
            if state is not None:
                remembered.add(names[index], state, digest)
    remembered.save()
    return found


def _digest_in_bucket(name: str) -> str:
    return object_digest(files.find(name)[0])


def object_digest(found: files.Found) -> str:
    """The digest of an object in a bucket, from its listing: MD5, or else CRC32C and size."""
    if len(found.checksum) == _MD5_LENGTH:
        return base64.b64decode(found.checksum).hex()
    # An object that was uploaded in pieces has no MD5.
    return f'crc32c {found.checksum} of {found.size} bytes'


class _State(NamedTuple):
    """Properties of a file that change when its content does."""

    size: int
    time: int  # when it was changed, in nanoseconds
    inode: int


def _state_of(name: str) -> _State:
    stat = os.stat(name)
    return _State(stat.st_size, stat.st_mtime_ns, stat.st_ino)


class _Remembered:
    """Digests of the files of one call, remembered with the state in which they were hashed.

    The common folder of the files has a file of its own in `_REMEMBERED`, so that a run reads and
    writes the digests of its own corpus, however large, and of few others.
    """

    def __init__(self, names: Sequence[str]):
        """Reads those of earlier runs.

        Args:
          names: absolute paths of all files that will be asked for.
        """
        self._folder = os.path.dirname(os.path.commonprefix([min(names), max(names)]))
        name = hashing.digest(os.fsencode(self._folder))
        self._path = files.as_path(_REMEMBERED) / f'{name}.json'
        self._asked: set[str] = set()
        self._known: dict[str, str] = {}
        self._has_new = False
        with contextlib.suppress(InputError):  # missing or damaged
            self._known = files.read_json(self._path, '')

    def find(self, name: str, state: _State) -> str:
        """The digest of a file in this state; '' if it is not known."""
        key = self._key(name)
        self._asked.add(key)
        known = self._known.get(key)
        prefix = _written(state)
        if isinstance(known, str) and known.startswith(prefix):
            return known.removeprefix(prefix)
        return ''

    def add(self, name: str, state: _State, digest: str) -> None:
        """Remembers the digest of a file that has just been hashed."""
        self._known[self._key(name)] = _written(state) + digest
        self._has_new = True

    def _key(self, name: str) -> str:
        return name[len(self._folder) :]

    def save(self) -> None:
        """Keeps the digests for later runs."""
        with contextlib.suppress(OSError):  # an unwritable home costs time, not the run
            if self._has_new:
                self._drop_deleted()
                self._path.parent.mkdir(parents=True, exist_ok=True)
                files.write_whole(self._path, json.dumps(self._known))
                _forget_old(self._path.parent)
            else:
                os.utime(self._path)  # it was used

    def _drop_deleted(self) -> None:
        """Forgets files that are not there any more."""
        for key in self._known.keys() - self._asked:
            if not os.path.exists(self._folder + key):
                del self._known[key]


def _written(state: _State) -> str:
    """A state as it stands before a digest."""
    return f'{state.size} {state.time} {state.inode} '


def _forget_old(folder: files.Path) -> None:
    """Deletes what no run used for long, and of too much the part that was used longest ago."""
    with os.scandir(folder) as entries:
        found = [(entry.stat(), entry.path) for entry in entries]
    found.sort(key=lambda file: file[0].st_mtime, reverse=True)
    total = 0
    for stat, path in found:
        total += stat.st_size
        is_old = time.time() - stat.st_mtime > _REMEMBERED_SECONDS
        if is_old or total > _MAX_REMEMBERED_BYTES:
            os.unlink(path)


def _groups(names: Sequence[str], states: Sequence[_State]) -> Iterator[list[str]]:
    """Files in groups, each of many small files or a few large ones."""
    group: list[str] = []
    num_bytes = 0
    for name, state in zip(names, states, strict=True):
        group.append(name)
        num_bytes += state.size
        if len(group) >= _GROUP_FILES or num_bytes >= _GROUP_BYTES:
            yield group
            group = []
            num_bytes = 0
    yield group


class _Hashed(NamedTuple):
    """The digest of a file, and its state; None if it may have changed while it was read."""

    digest: str
    state: _State | None


def _hash_all(names: Sequence[str]) -> list[_Hashed]:
    return [_hash(name) for name in names]


def _hash(name: str) -> _Hashed:
    """Hashes a file."""
    before = _state_of(name)
    digest = md5_of(name)
    is_settled = time.time() - before.time / 1e9 > _SETTLED_SECONDS
    if is_settled and _state_of(name) == before:
        return _Hashed(digest, before)
    return _Hashed(digest, None)


def md5_of(name: str | os.PathLike[str]) -> str:
    """The MD5 of a file, in hexadecimal digits, which is always hashed (see `digests`)."""
    with open(name, 'rb', buffering=0) as file:
        content = file.read(_READ_BYTES)
        digest = hashlib.md5(content, usedforsecurity=False)
        if len(content) == _READ_BYTES:  # `file_digest` alone is slow for tiny files
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


def name_of(identity: Any) -> str:
    """16 hexadecimal digits that change with a value that JSON can hold."""
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
