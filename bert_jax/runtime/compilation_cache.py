"""jax's persistent cache of compiled programs, on a disk or in a bucket."""

import contextlib
import os
import platform
import re
import warnings
from typing import Any, NamedTuple

from bert_jax.runtime import files
from bert_jax.runtime.errors import tell
from bert_jax.runtime.hashing import digest

_MAX_BYTES = 2 << 30  # on a disk
_LEAST_SECONDS_OF_JAX = 1.0  # to compile, of programs that jax keeps, unless told otherwise
# How jax's warning of a program that cannot be read begins, and the name of the program in it.
_UNREADABLE = 'Error reading persistent compilation cache entry for '


def keep_compiled(
    folder: Any, *, least_seconds: float | None = None, in_command: bool = True
) -> None:
    """Sets jax's persistent compilation cache, on a disk or in a bucket.

    The folder may be shared: the first host writes and all read. JAX_COMPILATION_CACHE_DIR in the
    environment takes precedence. Call it before anything is compiled. Without a right to write to
    the folder, nothing is kept. A program of which a killed process has left half is kept anew by
    the next command.

    Args:
      folder: of the cache; there is one in it for each kind of device.
      least_seconds: programs that compile faster are not kept, unless jax is told otherwise;
        None: as jax has it.
      in_command: False in a process of somebody else's program, whose warnings stay its own.
    """
    import jax  # here, so that `--help` does not wait for it

    from bert_jax.runtime import hosts

    config: Any = jax.config  # whose options are no attributes for a type checker
    if config.jax_compilation_cache_dir or not config.jax_enable_compilation_cache:
        return
    backend = jax.default_backend()
    if backend == 'cpu':
        # jax's cache key leaves out the CPU's instruction set, and a program crashes without its
        # instructions.
        backend += f'-{_instruction_set()}'
    folder = files.absolute(folder) / backend
    if files.in_bucket(folder):
        # XLA's own caches (of GPU kernels) can only be on a disk.
        jax.config.update('jax_persistent_cache_enable_xla_caches', 'none')
    else:
        try:
            os.makedirs(folder, exist_ok=True)
        except OSError:
            return
        if not os.access(folder, os.W_OK | os.X_OK):
            return
        if hosts.first():
            shrink(folder, _MAX_BYTES)
            if in_command:
                _remove_unreadable(folder)
    jax.config.update('jax_compilation_cache_dir', os.fspath(folder))
    least_now = config.jax_persistent_cache_min_compile_time_secs
    if least_seconds is not None and least_now == _LEAST_SECONDS_OF_JAX:
        jax.config.update('jax_persistent_cache_min_compile_time_secs', least_seconds)


def _remove_unreadable(folder: files.Path) -> None:
    """Removes programs that jax cannot read, when it says so and before it compiles them again.

    A process that is killed while jax writes a program leaves half of it, and jax never replaces a
    file: while the half stays in the folder, every later start would compile the program anew.

    Args:
      folder: with jax's cache.
    """
    show_others = warnings.showwarning
    if getattr(show_others, 'removes_from', None) == folder:
        return

    def show(message: Warning | str, *args: Any, **kwargs: Any) -> None:
        unreadable = re.match(f"{_UNREADABLE}'([^']+)'", str(message))
        if not unreadable:
            show_others(message, *args, **kwargs)
            return
        program = unreadable[1]
        tell(f'note: {program} is compiled again: what was kept of it in {folder} is damaged')
        for path in files.children(folder):
            if path.name.startswith(f'{program}-'):  # of all models: which one is not said
                with contextlib.suppress(OSError):  # it is another user's
                    path.unlink(missing_ok=True)

    show.removes_from = folder  # type: ignore[attr-defined]
    warnings.showwarning = show
    warnings.filterwarnings('always', message=_UNREADABLE)


def _instruction_set() -> str:
    """12 hexadecimal digits that change with the CPU's model and its instructions."""
    lines = set(files.read_system('/proc/cpuinfo').splitlines(keepends=True))
    described = sorted(
        line for line in lines if line.startswith(('model name', 'flags', 'Features')))
    known = ''.join(described) or platform.processor()
    return digest(known.encode())[:12]


class _CachedFile(NamedTuple):
    """A file; sorted by the time of its last change."""

    changed: float
    num_bytes: int
    path: files.Path


def shrink(folder: Any, max_bytes: int) -> None:
    """Keeps the newest files of a folder on a disk, up to `max_bytes`, and deletes the others."""
    found = []
    for path in files.children(folder):
        with contextlib.suppress(FileNotFoundError):  # another run deletes too
            status = os.stat(path)  # epath's looks up the owner, whom a container may not know
            found.append(_CachedFile(status.st_mtime, status.st_size, path))
    used = 0
    for file in sorted(found, reverse=True):
        used += file.num_bytes
        if used > max_bytes and file.path.is_file():
            file.path.unlink(missing_ok=True)
