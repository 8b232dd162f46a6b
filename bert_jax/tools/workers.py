"""Worker processes of a command, each with its own chips of this machine."""

import contextlib
import ctypes
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from bert_jax.runtime import accelerators
from bert_jax.runtime.errors import InputError, Stopped, show, tell
from bert_jax.runtime.stopping import Guard

ShouldStop = Callable[[int], bool]  # polled with a step; whether to stop there
STOPPED = 143  # the exit status after a stop
_WOULD_FAIL_AGAIN = (2, 3)  # exit statuses of a worker: bad input; it diverged
_PR_SET_PDEATHSIG = 1  # of prctl(2): a signal to this process when its parent dies
# Libtpu's bounds of a slice of so many chips of a TPU host.
_CHIPS_PER_PROCESS_BOUNDS = {1: '1,1,1', 2: '1,2,1', 4: '2,2,1', 8: '2,4,1'}
_MAX_DEATHS = 3  # per worker, on average, before a command gives up


def worker_environment(worker: int, workers: int, chips: int) -> dict[str, str]:
    """Environment variables that give a process its share of the machine, for jax and libtpu.

    Args:
      worker: number of the process.
      workers: number of processes.
      chips: chips of each; 0: all that there are.

    Raises:
      InputError: there are too few chips, or a TPU cannot be divided like that.
    """
    kind, names = accelerators.visible_chips()
    chips = chips or len(names)
    is_indivisible = kind == 'tpu' and chips not in _CHIPS_PER_PROCESS_BOUNDS
    if len(names) < workers * chips or is_indivisible:
        raise InputError(
            f'--chips={chips}: this machine has {len(names)} ({", ".join(names)}); a TPU is '
            'divided by 1, 2, 4 or 8')
    own_chips = ','.join(names[worker * chips : (worker + 1) * chips])
    if kind == 'cpu':
        return {'XLA_FLAGS': _flags_with_devices(chips)}
    if kind == 'gpu':
        return {'CUDA_VISIBLE_DEVICES': own_chips}
    return {  # makes them a slice of their own, whatever slice the host is in
        'TPU_VISIBLE_CHIPS': own_chips,
        'TPU_CHIPS_PER_PROCESS_BOUNDS': _CHIPS_PER_PROCESS_BOUNDS[chips],
        'TPU_PROCESS_BOUNDS': '1,1,1', 'TPU_WORKER_ID': '0', 'TPU_WORKER_HOSTNAMES': 'localhost',
    }


def _flags_with_devices(num_devices: int) -> str:
    """XLA_FLAGS with another number of virtual CPU devices."""
    flags = os.environ.get('XLA_FLAGS', '').split()
    others = [flag for flag in flags if not flag.startswith(accelerators.VIRTUAL_DEVICES_FLAG)]
    return ' '.join([*others, f'{accelerators.VIRTUAL_DEVICES_FLAG}={num_devices}'])


def run_workers(
    module: str, argv: Sequence[str], worker: int | None, chips: int,
    act: Callable[[ShouldStop], bool],
) -> int:
    """Works in this process, or starts several that do; returns the exit status, 143 after a stop.

    Args:
      module: run as `python -m MODULE ARGV... --worker=NUMBER`.
      argv: of the command.
      worker: number of this process; None: the process that the user started.
      chips: chips of each process; 0: one process has all.
      act: does the work of a process, given `should_stop`; returns False if it was stopped.
    """
    is_first = worker is None
    num_workers = max(1, len(accelerators.visible_chips()[1]) // chips) if chips else 1
    if not is_first:
        _end_with_parent()
    guard = Guard()
    guard.start()
    status = STOPPED
    with contextlib.suppress(Stopped):
        if is_first and num_workers > 1:
            environments = [
                worker_environment(number, num_workers, chips) for number in range(num_workers)]
            status = _Supervisor(module, argv, environments).run(guard.should_stop)
        else:
            if is_first:
                os.environ.update(worker_environment(0, 1, chips))
            accelerators.check_accelerators()
            status = 0 if act(guard.should_stop) else STOPPED
    if status == STOPPED and is_first:
        show('stopped; the same command goes on from here')
    return status


def _end_with_parent() -> None:
    """Stops this process when its parent dies."""
    if sys.platform == 'linux':
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@dataclasses.dataclass
class _Supervisor:
    """Runs worker processes until all is done.

    A worker that dies is started again, and its run resumes from its last checkpoint.

    Attributes:
      module: of the command.
      argv: of the command.
      environments: variables of each worker.
    """

    module: str
    argv: Sequence[str]
    environments: Sequence[dict[str, str]]
    _running: dict[int, subprocess.Popen[bytes]] = dataclasses.field(default_factory=dict)
    _deaths: int = 0

    def run(self, should_stop: ShouldStop) -> int:
        """Returns 0, or the status of the first worker that gave up, or 143 after a stop."""
        for worker in range(len(self.environments)):
            self._start(worker)
        status = self._watch(should_stop)
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            process.wait()
        return status

    def _start(self, worker: int) -> None:
        process = subprocess.Popen(
            [sys.executable, '-m', self.module, *self.argv, f'--worker={worker}'],
            env=os.environ | self.environments[worker],
            start_new_session=True)  # Ctrl-C reaches it only through this process, once
        if sys.platform == 'linux':
            os.sched_setaffinity(process.pid, self._cores(worker))
        self._running[worker] = process

    def _cores(self, worker: int) -> list[int]:
        """The worker's share of the cores of this process."""
        workers = len(self.environments)
        cores = sorted(os.sched_getaffinity(0))
        first = worker * len(cores) // workers
        end = (worker + 1) * len(cores) // workers
        return cores[first:end] or [cores[worker % len(cores)]]

    def _watch(self, should_stop: ShouldStop) -> int:
        """Starts workers that die again, until all have ended or one gives up; the status."""
        most_deaths = _MAX_DEATHS * len(self.environments)
        while self._running:
            time.sleep(0.2)
            if should_stop(0):
                return STOPPED
            for worker, process in list(self._running.items()):
                status = process.poll()
                if status is None:
                    continue
                if status == 0:
                    del self._running[worker]
                    continue
                if status in _WOULD_FAIL_AGAIN or self._deaths >= most_deaths:
                    return max(status, 1)
                self._deaths += 1
                tell(f'worker {worker} ended with status {status}: started again')
                self._start(worker)
        return 0
