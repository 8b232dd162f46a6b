"""A trace of some steps for TensorBoard's profiler."""

import contextlib
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

import jax

from bert_jax.runtime import files, hosts


class Profile:
    """A trace of a range of steps, in `plugins/profile/` of the run directory.

    It covers the host's devices; all hosts compute alike, so one host is enough. A run that resumes
    within the range traces the rest of it.
    """

    def __init__(self, steps: tuple[int, int] | None, workdir: Any):
        """`steps`: the first and the last to trace; None if this host traces none."""
        self._first, self._last = steps or (0, -1)
        self._workdir = workdir
        self._folder = ''  # where a trace is written while it runs

    def before(self, step: int, results: Any) -> None:
        """Starts or ends the trace before a step, after waiting for the last results."""
        within = self._first <= step <= self._last
        if within == bool(self._folder):
            return
        jax.block_until_ready(results)
        if within:  # jax can write only to disks
            if files.in_bucket(self._workdir):
                self._copies = files.temporary_folder()
                self._folder = self._copies.name
            else:
                self._folder = str(self._workdir)
            with _as_tensorflow_had_it():
                jax.profiler.start_trace(self._folder)
        else:
            self.close()

    def close(self) -> None:
        """Ends a running trace."""
        if not self._folder:
            return
        with _as_tensorflow_had_it():
            jax.profiler.stop_trace()
        folder = pathlib.Path(self._folder)
        self._folder = ''
        if files.in_bucket(self._workdir):
            for file in filter(pathlib.Path.is_file, folder.rglob('*')):
                files.upload(file, self._workdir / file.relative_to(folder).as_posix())
            self._copies.cleanup()
        hosts.say(f'profile: tensorboard --logdir {self._workdir}')


@contextlib.contextmanager
def _as_tensorflow_had_it() -> Iterator[None]:
    """Keeps the function that TensorFlow calls before each operation, to ask whether it is traced.

    It was a flag before TensorFlow 2.21, and jax 0.7 still sets it: each operation would fail.
    """
    trace = sys.modules.get('tensorflow.python.profiler.trace')
    enabled = getattr(trace, 'enabled', None)
    yield
    if callable(enabled):
        trace.enabled = enabled  # type: ignore[union-attr]
