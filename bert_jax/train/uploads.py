"""A folder of growing files that is kept in a bucket."""

from __future__ import annotations

import concurrent.futures
import os
import tempfile
import time
from typing import Any

from bert_jax.runtime.files import as_path, children, upload

# An object cannot grow: each upload is of the whole file. A long run's records are megabytes.
_SECONDS_BETWEEN = 30.0


class Uploads:
    """Uploads what changed in a local folder, in a thread, so that no step waits for it.

    Attributes:
      folder: where to write; it goes with this object. Names that begin with a dot stay here.
    """

    def __init__(self, target: Any):
        """`target`: the folder in a bucket."""
        self._target = target
        self._temporary = tempfile.TemporaryDirectory(prefix='bert_jax_')
        self.folder = as_path(self._temporary.name)
        self._thread = concurrent.futures.ThreadPoolExecutor(1)
        self._running: concurrent.futures.Future[None] | None = None
        self._last = time.monotonic()
        self._uploaded: dict[str, int] = {}  # bytes of each file

    def start(self, now: bool = False) -> None:
        """Begins an upload if the last one was a while ago (or `now`) and has ended."""
        if self._running is not None:
            if not self._running.done():
                return
            if error := self._running.exception():
                print(f'warning: {self._target} takes no files at present '
                      f"({' '.join(str(error).split())[:200]}); trying again later", flush=True)
            self._running = None
        if now or time.monotonic() - self._last > _SECONDS_BETWEEN:
            self._last = time.monotonic()
            self._running = self._thread.submit(self._upload)

    def finish(self) -> None:
        """Uploads what is not yet, and waits for it; raises what hinders it."""
        self._thread.submit(self._upload).result()

    def _upload(self) -> None:
        for path in children(self.folder):
            size = os.stat(path).st_size
            # Images are drawn anew: their size says nothing.
            if path.name.startswith('.') or (
                path.suffix != '.png' and self._uploaded.get(path.name) == size
            ):
                continue
            upload(path, self._target / path.name)
            self._uploaded[path.name] = size

    def close(self) -> None:
        """Ends with everything uploaded."""
        self.finish()
        self._thread.shutdown()
        self._temporary.cleanup()
