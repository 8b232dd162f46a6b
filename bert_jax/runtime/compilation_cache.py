"""XLA's compiled programs, kept for the next start of a run.

jax's own bound on the size of its cache does without neither file locks, which buckets do not have,
nor whole pairs of files, which a killed process does not leave; so the oldest are deleted here.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
from typing import Any

import jax

from bert_jax.runtime import files, hosts

_MAX_BYTES = 2 << 30


def keep_compiled(folder: Any) -> None:
    """Keeps compiled programs under a folder, on a disk or in a bucket.

    The folder may be shared: the first host writes and all read. JAX_COMPILATION_CACHE_DIR of the
    environment goes first. Call it before anything is compiled.
    """
    if getattr(jax.config, 'jax_compilation_cache_dir', None):
        return
    folder = files.absolute(folder) / _platform()
    if files.in_bucket(folder):
        # XLA's own caches, of GPU kernels, can be on a disk only.
        jax.config.update('jax_persistent_cache_enable_xla_caches', 'none')
    if hosts.first():
        _shrink(folder, _MAX_BYTES)
    jax.config.update('jax_compilation_cache_dir', os.fspath(folder))


def _platform() -> str:
    """What programs are compiled for; of CPUs also which instructions they know.

    jax's key does not say the latter, and a program with others than the machine's crashes.
    """
    backend = jax.default_backend()
    if backend != 'cpu':
        return backend
    try:
        with open('/proc/cpuinfo', encoding='utf-8') as file:
            lines = sorted({line for line in file if line.startswith(('model name', 'flags',
                                                                      'Features'))})
    except OSError:
        lines = [platform.processor()]
    return f"cpu-{hashlib.sha256(''.join(lines).encode()).hexdigest()[:12]}"


def _shrink(folder: Any, max_bytes: int) -> None:
    """Deletes the oldest files of a folder until the rest has at most `max_bytes`."""
    by_age = []
    for path in files.children(folder):
        with contextlib.suppress(FileNotFoundError):  # another run deletes too
            if files.in_bucket(path):
                found = path.stat()
                by_age.append((found.mtime, found.length, path))
            else:  # epath's `stat` asks who owns it, which a container may not know
                status = os.stat(path)
                by_age.append((status.st_mtime, status.st_size, path))
    surplus = sum(size for _, size, _ in by_age) - max_bytes
    for _, size, path in sorted(by_age, key=lambda entry: entry[0]):
        if surplus > 0 and path.is_file():
            path.unlink(missing_ok=True)
            surplus -= size
