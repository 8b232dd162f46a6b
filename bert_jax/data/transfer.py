"""Copying a token store between disks and buckets, and checking that it arrived.

The manifest comes last: what a copy that was cut off has left is not taken for a store, and the
next one goes on behind the files that are whole.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from typing import Any

from bert_jax.data import disk
from bert_jax.data.identity import digests, new_digest
from bert_jax.data.token_store import MANIFEST, damaged, read_manifest
from bert_jax.runtime import files
from bert_jax.runtime.errors import InputError

_THREADS = 16
_BLOCK_BYTES = 8 << 20


def copy_store(source: files.Path, target: files.Path) -> tuple[int, float]:
    """Copies a finished store, many files at once, each checked against the manifest.

    Args:
      source: its folder, on a disk or in a bucket.
      target: another one, on a disk if `source` is not; its parent need not exist.

    Returns:
      Bytes that were copied, and the seconds it took.

    Raises:
      InputError: the store is damaged, or does not fit where it should go.
    """
    started = time.monotonic()
    entries = read_manifest(source)['files']
    target.mkdir(parents=True, exist_ok=True)
    if not files.in_bucket(target):
        for left in target.glob('.*.tmp'):  # by a copy that was killed
            left.unlink()
    missing = [name for name, entry in entries.items() if not _has(target / name, entry)]
    size = sum(entries[name]['bytes'] for name in missing)
    if not files.in_bucket(target) and (free := shutil.disk_usage(target).free) < size:
        raise InputError(
            f'{target} has room for {free / 1e9:.1f} GB, and the token store has {size / 1e9:.1f} '
            'GB more: free some space, or set --config.data.local_dir to a larger disk'
        )

    def copy(name: str, check: Callable[[], None]) -> None:
        check()
        if files.in_bucket(target):
            files.upload(source / name, target / name)
            if not _has(target / name, entries[name]):
                raise InputError(damaged(source, name))
            return
        with files.open_whole(target / name) as file:
            _read_checked(source, name, entries[name], check, file.write)

    disk.in_threads(copy, missing, _THREADS)
    files.write_whole(target / MANIFEST, (source / MANIFEST).read_bytes())
    return size, time.monotonic() - started


def check_store(path: files.Path) -> tuple[int, float]:
    """Reads a published store back; what this takes, a host's copy takes at least.

    Returns:
      Bytes that were read, and the seconds it took.

    Raises:
      InputError: a file is not what the manifest says.
    """
    started = time.monotonic()
    entries = read_manifest(path)['files']

    def read(name: str, check: Callable[[], None]) -> None:
        _read_checked(path, name, entries[name], check, len)

    disk.in_threads(read, list(entries), _THREADS)
    return sum(entry['bytes'] for entry in entries.values()), time.monotonic() - started


def _has(path: files.Path, entry: dict[str, Any]) -> bool:
    """Whether a file is there and whole."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().length == entry['bytes'] and digests([path]) == [entry['md5']]
    return False


def _read_checked(
    folder: files.Path, name: str, entry: dict[str, Any], check: Callable[[], None],
    take: Callable[[bytes], Any],
) -> None:
    digest = new_digest()
    try:
        with (folder / name).open('rb') as file:
            while block := file.read(_BLOCK_BYTES):
                check()
                digest.update(block)
                take(block)
    except FileNotFoundError:
        raise InputError(damaged(folder, name)) from None
    if digest.hexdigest() != entry['md5']:
        raise InputError(damaged(folder, name))
