"""Claims on pieces of work in a folder, by which workers on many machines divide it.

A claim is a small file, which its worker rewrites every few seconds while it works. A piece is free
if it has no claim, or that of a worker which has ended: at once where it ran on this machine, else
after `folder_lock.SECONDS` without a change by this worker's clock.

Two workers can come to hold one piece, if one of them was suspended. So claims are for work of
which the results are the same, whoever does it: they save time, and nothing depends on them. Where
only one process may write, take a `folder_lock`.
"""

import contextlib
import dataclasses
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from bert_jax.runtime import folder_lock
from bert_jax.runtime.files import as_path, write_new, write_whole

ENDING = '.claim'


@dataclasses.dataclass(frozen=True)
class _Seen:
    """A claim as it was read, and since when it has been the same."""

    content: Mapping[str, Any]
    since: float


class Claims:
    """The claims of one worker in a folder. It works on one piece at a time."""

    def __init__(self, folder: str | os.PathLike[str]):
        """`folder` must exist, unless it is in a bucket."""
        self._folder = as_path(folder)
        self._content = folder_lock.new_claim()
        self._seen: dict[str, _Seen] = {}  # by piece

    @property
    def worker(self) -> str:
        """The name of this worker: hexadecimal digits, unlike those of any other."""
        return self._content['token']

    @contextlib.contextmanager
    def held(self, piece: str) -> Iterator[bool]:
        """Whether the block may work on a piece; if so, it is claimed until the block ends."""
        if not self._take(piece):
            yield False
            return
        ended = threading.Event()
        thread = threading.Thread(target=self._beat, args=(piece, ended), daemon=True)
        thread.start()
        try:
            yield True
        finally:
            ended.set()
            thread.join(folder_lock.BEAT_SECONDS)  # a beat in progress would write the claim again
            with contextlib.suppress(OSError):
                self._path(piece).unlink(missing_ok=True)

    def _take(self, piece: str) -> bool:
        """Claims a piece, unless another worker has it."""
        path = self._path(piece)
        content = folder_lock.read_claim(path)
        mine = json.dumps(self._content)
        if not content and write_new(path, mine):
            return True
        if content.get('token') == self.worker:
            return True  # only the reply to an earlier attempt was lost
        if not self._is_dead(piece, content):
            return False
        write_whole(path, mine)
        return True

    def _is_dead(self, piece: str, content: Mapping[str, Any]) -> bool:
        """Whether the worker of a claim is known to be gone."""
        is_alive = folder_lock.is_at_work(content)
        if is_alive is not None:
            return not is_alive
        now = time.monotonic()
        seen = self._seen.get(piece)
        if seen is None or seen.content != content:
            self._seen[piece] = _Seen(content, since=now)
            return False
        return now - seen.since > folder_lock.SECONDS

    def _beat(self, piece: str, ended: threading.Event) -> None:
        """Rewrites the claim from time to time, until the work has ended."""
        while not ended.wait(folder_lock.BEAT_SECONDS):
            self._content['beat'] += 1
            with contextlib.suppress(Exception):  # of many libraries; the next beat tries again
                write_whole(self._path(piece), json.dumps(self._content))

    def _path(self, piece: str) -> Any:
        return self._folder / f'{piece}{ENDING}'
