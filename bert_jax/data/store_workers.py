"""Processes that build the parts of a token store side by side.

One process reads, checks and hashes about as much text as eight processors tokenize; more
processors than that need more processes. They are fresh ones of `store_worker`, told by pipes, and
end when this process does: their pipe closes, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.data.corpus import Source

_ROOT = Path(__file__).resolve().parents[2]
_CORES_A_PROCESS = 8
_MIN_BYTES_A_PROCESS = 1 << 30  # a process takes seconds to start


class Part(NamedTuple):
    """What one part is made of."""

    first: int  # unit of the source
    last: int  # the unit after its last
    folder: str  # where its files grow


def num_cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == 'linux' else os.cpu_count() or 1


def choose_num_processes(num_bytes: int, num_parts: int) -> int:
    """How many processes are worth their start for so much text."""
    worth = num_bytes // _MIN_BYTES_A_PROCESS
    return max(1, min(num_cores() // _CORES_A_PROCESS, worth, num_parts))


def build_parts(
    source: Source, tokenizer: Any, parts: Sequence[Part], num_processes: int, num_threads: int,
    report: Callable[[Part, int], None],
) -> Iterator[dict[str, int]]:
    """What `PartBuilder.build` returns for each part, in order, as they become ready.

    Args:
      source: can be pickled.
      tokenizer: can be pickled.
      parts: to build.
      num_processes: at once.
      num_threads: of each process.
      report: takes a part and the bytes of it that are done, in any thread.

    Raises:
      InputError, OSError: as a worker met them.
      RuntimeError: a worker failed or was ended.
    """
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get('PYTHONPATH')]))
    workers = [
        subprocess.Popen(
            [sys.executable, '-m', 'bert_jax.data.store_worker'], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, start_new_session=True,  # Ctrl-C reaches them through us
            env=os.environ | {
                # TensorFlow would take threads for all processors in every worker.
                'PYTHONPATH': path, 'CUDA_VISIBLE_DEVICES': '',
                'TF_NUM_INTRAOP_THREADS': str(num_threads),
                'TF_NUM_INTEROP_THREADS': str(num_threads + 2),
            },
        )
        for _ in range(num_processes)
    ]
    free: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
    job = pickle.dumps((source, tokenizer, num_threads))

    def build(part: Part) -> dict[str, int]:
        worker = free.get()
        _send(worker, pickle.dumps(part))
        while True:
            kind, what = _receive(worker)
            if kind == 'fault':
                raise what
            if kind == 'done':
                free.put(worker)
                return what
            report(part, what)

    pool = futures.ThreadPoolExecutor(num_processes)
    try:
        for worker in workers:
            _send(worker, job)
            free.put(worker)
        for task in [pool.submit(build, part) for part in parts]:
            yield task.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.kill()  # what it wrote is good up to its journal
            free.put(worker)  # a thread that waits for one goes on, and fails
        pool.shutdown()
        for worker in workers:
            worker.wait()
            for pipe in (worker.stdin, worker.stdout):
                assert pipe is not None
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def _send(worker: subprocess.Popen[bytes], message: bytes) -> None:
    assert worker.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended: `_receive` says so
        worker.stdin.write(message)
        worker.stdin.flush()


def _receive(worker: subprocess.Popen[bytes]) -> Any:
    assert worker.stdout is not None
    try:
        return pickle.load(worker.stdout)
    except (EOFError, pickle.UnpicklingError):
        status = worker.wait()
        reason = ', perhaps for want of memory' if status == -9 else ''
        raise RuntimeError(
            f'a process that builds the token store ended with status {status}{reason}'
        ) from None
