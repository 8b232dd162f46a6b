"""Processes: error boundary, TensorFlow's import, chips, compilation cache, worker processes."""

import contextlib
import dataclasses
import errno
import importlib.metadata
import io
import logging
import multiprocessing
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from bert_jax.runtime import files
from bert_jax.runtime.errors import Diverged, InputError, Stopped, Unavailable, first_line, tell

STARTED = time.time()  # about the start of this process


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Discards standard error: TensorFlow's C++ prints a banner whatever the log level.

    Exceptions are not suppressed.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, 'w') as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def without(package: str, *, empty: bool = False) -> Iterator[None]:
    """Hides a package that is not loaded yet, or makes it an `empty` module, within the block.

    This saves the seconds that libraries take to import an optional package that is not used here.
    """
    loaded = package in sys.modules
    if not loaded:
        sys.modules[package] = types.ModuleType(package) if empty else None  # type: ignore[assignment]
    try:
        yield
    finally:
        if not loaded:
            del sys.modules[package]


def has_tensorflow() -> bool:
    """Whether TensorFlow and TF-Text are installed, which prepare text where they are."""
    return all(importlib.util.find_spec(name) for name in ('tensorflow', 'tensorflow_text'))


@contextlib.contextmanager
def loading_tensorflow(purpose: str) -> Iterator[None]:
    """Imports TensorFlow without its banner, off the accelerators; the block may import TF-Text.

    Raises:
      InputError: it is not installed, or TF-Text belongs to another release of it; names `purpose`
        and the command that installs the right one.
    """
    try:
        with quiet_stderr():
            # Keras is a third of the import time. A missing package is reported below.
            # A caller's TensorFlow that is initialised already keeps its devices (RuntimeError).
            with without('keras'), contextlib.suppress(ModuleNotFoundError, RuntimeError):
                import tensorflow

                for kind in ('GPU', 'TPU'):  # jax computes on them
                    tensorflow.config.set_visible_devices([], kind)
            yield
    except ModuleNotFoundError as error:
        missing = str(error.name).partition('.')[0]
        if not missing.startswith('tensorflow'):
            raise
        # TensorFlow Text would install plain tensorflow, which is larger and takes accelerators;
        # tensorflow-cpu exists for x86-64 only.
        small = sys.platform == 'linux' and platform.machine() == 'x86_64'
        raise InputError(
            f"{purpose} needs {missing}, which is not installed: python -m pip install 'tensorflow"
            f"{'-cpu' if small else ''}==2.21.*' tensorflow-datasets && python -m pip install "
            "--no-deps 'tensorflow-text==2.21.*'"
        ) from None
    except Exception as error:  # TensorFlow's own types, which are not known before it is loaded
        if 'undefined symbol' not in str(error) or 'text' not in str(error):
            raise
        release = '.'.join(sys.modules['tensorflow'].__version__.split('.')[:2])
        raise InputError(
            f'{purpose} needs a tensorflow-text that fits TensorFlow {release}, and another is '
            f"installed: python -m pip install --no-deps 'tensorflow-text=={release}.*'"
        ) from None


def _errors_of_a_file(*numbers: int) -> str:
    """A pattern of the operating system's errors that name a file."""
    return rf"\[Errno ({'|'.join(map(str, numbers))})\] .+: "


FULL = 'No space left on device|Disk quota exceeded'
# (Types of exceptions; a pattern found in 'module.name: message'; what is printed; exit status).
# The first row that fits an exception or one of its causes counts.
_ANSWERS: tuple[tuple[Any, str, str, int], ...] = (
    (Stopped, '', '{fault}', 143),
    (InputError, '', '{fault}', 2),
    ((Diverged, Unavailable), '', '{fault}', 1),
    (KeyboardInterrupt, '', 'stopped', 130),
    (Exception, FULL, '{disk} is full (No space left on device): free some space and start again',
     1),
    (OSError, _errors_of_a_file(
        errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY, errno.EACCES,
        errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP, errno.ENXIO, errno.ENODEV),
     '{file}: check the path and the rights to it', 2),
    (OSError, _errors_of_a_file(errno.EIO, errno.ESTALE, errno.EFBIG),
     '{file}: the disk or network that it is on fails', 1),
    (Exception, 'MemoryError: |RESOURCE_EXHAUSTED',
     'out of memory ({line}): raise config.train.accumulation_steps (the result stays the same), '
     "set config.model.remat='full', or lower the batch size or the sequence length", 1),
    (Exception, 'Unable to initialize backend',
     'jax finds no device of JAX_PLATFORMS ({line}): set JAX_PLATFORMS=cpu to use the CPU, or '
     'install jax for the device of this machine', 2),
    # Libraries that access buckets, and how messages of gcsfs and TensorStore begin.
    (Exception, r'^(gcsfs|aiohttp|google|requests)\.|(OSError|ValueError): (Forbidden|UNAVAILABLE|'
     'DEADLINE_EXCEEDED|PERMISSION_DENIED|UNAUTHENTICATED|ABORTED): ',
     'a bucket refuses or is away ({line}): started again, a run goes on from its last checkpoint',
     1),
    (UnicodeError, '', 'a text cannot be written or read ({line}): convert it to UTF-8, and set '
     'PYTHONUTF8=1 where the locale is another', 2),
)


def answer(
    error: BaseException, writing: object = None, log_folder: files.Path | None = None
) -> tuple[str, int]:
    """(one-line message, exit status) for an exception that ends the program.

    Args:
      error: the exception.
      writing: the file or folder that the program writes, for the message of a full disk.
      log_folder: receives the traceback of an unexpected error, if it is writable.
    """
    chain: list[BaseException] = []  # the exception and its causes
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    for types_, pattern, message, status in _ANSWERS:
        for fault in chain:
            named = f'{type(fault).__module__}.{type(fault).__name__}: {fault}'
            # If JAX_PLATFORMS is not set, a device that does not start may start the next time.
            unset = 'JAX_PLATFORMS' in message and 'JAX_PLATFORMS' not in os.environ
            if isinstance(fault, types_) and re.search(pattern, named) and not unset:
                name = getattr(fault, 'filename', None)
                return message.format(
                    fault=' '.join(str(fault).split()), line=first_line(fault),
                    file=f"{os.fsdecode(name or '')}: {getattr(fault, 'strerror', '')}",
                    disk=f'the disk of {name or writing}' if name or writing else 'a disk'), status
    lines = ''.join(traceback.format_exception(error))
    kept: Any = (log_folder or files.Path(tempfile.gettempdir())) / f'error-{os.getpid()}.log'
    try:
        files.write_whole(kept, lines)
    except Exception:  # of many libraries
        sys.stderr.write(lines)
        kept = 'the lines above'
    return (f'{type(error).__name__}: {first_line(error)} (this may be a fault of bert_jax; the '
            f'traceback is in {kept})', 1)


@contextlib.contextmanager
def error_boundary(stopped: str = 'stopped', writing: str | None = None) -> Iterator[None]:
    """Turns exceptions of the block into one line on standard error and an exit status.

    Args:
      stopped: printed after Ctrl-C.
      writing: a file that the block writes, for the message of a full disk.

    Raises:
      SystemExit: with status 2 for bad input, 130 after Ctrl-C, and 1 for anything else, such as
        standard output whose reader has gone.
    """
    # Orbax leaves unfinished asyncio tasks behind when it cannot read a file of a checkpoint; only
    # the error itself is reported.
    logging.getLogger('asyncio').setLevel(logging.CRITICAL)
    logging.getLogger('absl').setLevel(logging.ERROR)  # libraries log a great deal below it
    warnings.filterwarnings('ignore', message='coroutine .* was never awaited')
    sys.unraisablehook = _unless_of_a_task
    try:
        # Otherwise the next file to be opened would take a closed standard stream's number.
        while (number := os.open(os.devnull, os.O_RDWR)) < 3:
            pass
        os.close(number)
        if sys.stderr is None:
            sys.stderr = open(os.devnull, 'w')  # noqa: SIM115
        if sys.stdout is None:
            raise InputError('standard output is closed: send it to a file or a program')
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors='backslashreplace')  # for locales without UTF-8
        yield
        sys.stdout.flush()  # may be the first to fail on a full disk
    except BrokenPipeError:  # the reader has closed the pipe, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(1)  # the code after the block must not run as if it were done
    except (Exception, KeyboardInterrupt) as error:
        line, status = answer(error, 'standard output' if _drop_output() else writing)
        tell(f'error: {stopped if status == 130 else line}')
        sys.exit(status)


def _unless_of_a_task(unraisable: Any) -> None:
    """Python's hook for unraisable exceptions, except those of garbage-collected tasks and stops.

    A stop that is lost there takes effect after the first step (see `stopping`).
    """
    left = isinstance(unraisable.object, types.CoroutineType) or isinstance(
        unraisable.exc_value, Stopped)
    if not left and 'Event loop is closed' not in str(unraisable.exc_value):
        sys.__unraisablehook__(unraisable)


def _drop_output() -> bool:
    """Redirects standard output to the null device if its reader is gone or its disk full."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return True
    return False


_GIB = 1 << 30


@dataclasses.dataclass(frozen=True)
class Chip:
    """An accelerator chip; 0 means unknown.

    Attributes:
      name: its name in a topology, such as v5e.
      kinds: parts of jax's `device_kind`, in lower case, that identify it.
      peak_flops: FLOP/s in bfloat16.
      cycle_flops: FLOPs a cycle, in the cycles of the compiler's `estimated_cycles`.
      memory_bytes: limit of a program (the chip's memory less the compiler's reserve).
      bandwidth: bytes/s of that memory.
      links: bytes/s between chips, all links of a chip together, one direction.
    """

    name: str
    kinds: tuple[str, ...]
    peak_flops: float = 0.0
    cycle_flops: int = 0
    memory_bytes: int = 0
    bandwidth: float = 0.0
    links: float = 0.0

    @property
    def clock(self) -> float:
        """Cycles/s."""
        return self.peak_flops / self.cycle_flops


# TPUs: peaks, bandwidth and links (Gbit/s there) from Google's Cloud TPU documentation; 123e12 is
# the commonly cited peak of v3. FLOPs a cycle: matrix units x their size, at clocks of 1.05 (v4),
# 1.5 (v5e) and 1.75 GHz (v5p, v6e). memory_bytes: "available HBM" in the compiler's own message
# (libtpu 0.0.42.1). GPUs: NVIDIA's data sheets; jax reports the memory of a GPU.
CHIPS = (
    Chip('v6e', ('v6 lite', 'v6e'), 918e12, 524_288, int(31.25 * _GIB), 1.64e12, 448e9),
    Chip('v5e', ('v5 lite', 'v5e'), 197e12, 131_072, int(15.75 * _GIB), 0.819e12, 200e9),
    Chip('v5p', ('v5p', 'v5'), 459e12, 262_144, int(95.74 * _GIB), 2.765e12, 600e9),
    Chip('v4', ('v4',), 275e12, 262_144, int(30.75 * _GIB), 1.23e12, 300e9),
    Chip('v3', ('v3',), 123e12),
    Chip('v2', ('v2',), 46e12),
    Chip('H200', ('h200',), 989e12, bandwidth=4.8e12),
    Chip('H100', ('h100',), 989e12, bandwidth=3.35e12),
    Chip('A100', ('a100',), 312e12, bandwidth=2.0e12),
)
UNKNOWN = Chip('', ())


def find_chip(device_kind: str) -> Chip:
    """The chip of a jax `device_kind`; `UNKNOWN` for CPUs and others."""
    kind = device_kind.lower()
    return next((chip for chip in CHIPS if any(part in kind for part in chip.kinds)), UNKNOWN)


def processor() -> str:
    """The processor's model, or at least its architecture."""
    model = re.search(r'^model name\s*:(.*)', files.read_system('/proc/cpuinfo'), re.MULTILINE)
    return model[1].strip() if model else platform.machine()


def versions() -> dict[str, str]:
    """The versions of this package and of the packages that compute, by name."""
    known = {}
    for name in ('bert-jax', 'jax', 'jaxlib', 'libtpu', 'flax', 'optax'):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            known[name] = importlib.metadata.version(name)
    return known


def made_by() -> dict[str, str]:
    """The commit of this package ('' outside its repository) and the running command."""
    root, commit = os.path.dirname(os.path.dirname(os.path.dirname(__file__))), ''
    if os.path.exists(os.path.join(root, '.git')) and shutil.which('git'):
        commit = subprocess.run(
            ['git', '-C', root, 'describe', '--always', '--dirty', '--exclude=*'],
            capture_output=True, text=True).stdout.strip()
    module = getattr(sys.modules['__main__'].__spec__, 'name', '')
    return {'commit': commit, 'command': shlex.join(
        ['python', '-m', module, *sys.argv[1:]] if module else sys.argv)}


def hardware() -> str:
    """The devices that jax computes on: accelerators, or the processor's cores."""
    import jax

    if jax.default_backend() != 'cpu':
        return f'{jax.device_count()} x {jax.devices()[0].device_kind}'
    return f'{os.cpu_count()} cores of {processor()}'


def keep_compiled(folder: Any) -> None:
    """Sets jax's persistent compilation cache, on a disk or in a bucket.

    The folder may be shared: the first host writes and all read. JAX_COMPILATION_CACHE_DIR in the
    environment takes precedence. Call it before anything is compiled.
    """
    import jax  # here, so that `--help` does not wait for it

    from bert_jax.runtime import hosts

    if getattr(jax.config, 'jax_compilation_cache_dir', None):
        return
    backend = jax.default_backend()
    if backend == 'cpu':
        # jax's cache key leaves out the CPU's instruction set, and a program crashes without its
        # instructions.
        lines = set(files.read_system('/proc/cpuinfo').splitlines(keepends=True))
        wanted = [x for x in lines if x.startswith(('model name', 'flags', 'Features'))]
        known = ''.join(sorted(wanted)) or platform.processor()
        backend += f'-{files.digest(known.encode())[:12]}'
    folder = files.absolute(folder) / backend
    if files.in_bucket(folder):
        # XLA's own caches (of GPU kernels) can only be on a disk.
        jax.config.update('jax_persistent_cache_enable_xla_caches', 'none')
    elif hosts.first():
        shrink(folder, 2 << 30)
    jax.config.update('jax_compilation_cache_dir', os.fspath(folder))


def shrink(folder: Any, max_bytes: int) -> None:
    """Keeps the newest files of a folder on a disk, up to `max_bytes`, and deletes the others."""
    found, used = [], 0
    for path in files.children(folder):
        with contextlib.suppress(FileNotFoundError):  # another run deletes too
            status = os.stat(path)  # epath's looks up the owner, whom a container may not know
            found.append((status.st_mtime, status.st_size, path))
    for _, size, path in sorted(found, reverse=True):
        used += size
        if used > max_bytes and path.is_file():
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def process_pool(num_processes: int) -> Iterator[ProcessPoolExecutor]:
    """Worker processes that end with the block, and with this process however it ends.

    They load only what their tasks need. Tasks that still run when the block ends are abandoned. If
    a worker dies, waiting for a result raises `BrokenProcessPool`.
    """
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(
        num_processes, multiprocessing.get_context('spawn'), initializer=_begin)
    # A worker would import this process's `__main__`, the running command.
    command = sys.modules['__main__']
    sys.modules['__main__'] = types.ModuleType('__main__')
    try:
        while len(started := set(multiprocessing.active_children()) - before) < num_processes:
            pool.submit(os.getpid)  # starts a process where none is idle
    finally:
        sys.modules['__main__'] = command
    try:
        yield pool
    finally:
        for process in started:
            process.kill()
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches this process through its parent
    parent: Any = multiprocessing.parent_process()

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
