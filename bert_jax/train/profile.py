"""Traces some steps for TensorBoard's profile plugin."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import jax

from bert_jax.runtime.files import as_path, in_bucket


class Profile:
    """A trace of the steps `first` to `last`, in `plugins/profile/` of the run directory.

    It is the first host's, which sees its own devices; all hosts compute alike. A run that resumes
    between the two traces the steps that are left, one that resumes behind them none.
    """

    def __init__(self, steps: tuple[int, int] | None, workdir: Any, active: bool):
        self._steps = steps if active else None
        self._workdir = workdir
        self._target: str | None = None  # while it traces
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def before(self, step: int, last: Any) -> None:
        """Begins, where `step` is the first to trace; results of the `last` are waited for."""
        if self._steps is None or self._target or not self._steps[0] <= step <= self._steps[1]:
            return
        jax.block_until_ready(last)
        if in_bucket(self._workdir):  # jax writes to disks only
            self._scratch = tempfile.TemporaryDirectory()
        self._target = self._scratch.name if self._scratch else str(self._workdir)
        jax.profiler.start_trace(self._target)

    def after(self, step: int, results: Any) -> str | None:
        """Ends, where `step` was the last to trace; a line that says so."""
        if not self._target or self._steps is None or step < self._steps[1]:
            return None
        jax.block_until_ready(results)
        return self.close()

    def close(self) -> str | None:
        """Ends a trace that is going on."""
        if not self._target:
            return None
        jax.profiler.stop_trace()
        self._steps = self._target = None
        if self._scratch:
            folder = Path(self._scratch.name)
            for file in folder.rglob('*'):
                if file.is_file():
                    target = as_path(self._workdir) / file.relative_to(folder).as_posix()
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(file.read_bytes())
            self._scratch.cleanup()
        return f'profile: tensorboard --logdir {self._workdir}'
