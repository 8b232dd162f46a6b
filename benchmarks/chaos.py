"""Trains on two hosts with everything in a bucket, while one thing after another fails at random.

    python -m benchmarks.chaos FOLDER [--steps=2000] [--seed=0] [--pause=25]

A host is killed or hangs; the bucket refuses requests, stalls, cuts connections or loses answers;
the disk for temporary files is full. Whenever the run ends, it is started again, as by a launcher,
and in the end its parameters must equal those of an undisturbed run, bit for bit.
"""

import argparse
import collections
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from tests.bucket_server import BucketServer
from tests.conftest import ROOT
from tests.tiny_runs import TINY, documents

OBJECTS = '/o'  # a part of the URL of every request that concerns objects
LONGEST = 120  # the most seconds that a host hangs
DONE = 0  # exit statuses of a run
BAD_INPUT = 2


def command(bucket: str, local: Path, run: str, steps: int) -> list[str]:
    """Trains on two hosts with everything in a bucket."""
    return [
        str(ROOT / 'launch' / 'local_hosts.sh'), '2', sys.executable, '-m', 'bert_jax.main', *TINY,
        f'--config.data.source={bucket}/text.txt', f'--config.data.dir={bucket}/data',
        f'--config.data.local_dir={local}',
        f'--config.train.steps={steps}', '--config.train.save_every=100',
        '--config.train.log_every=10', '--config.train.eval_every=500', f'--workdir={bucket}/{run}',
    ]


def host_pids(launcher: int) -> list[int]:
    """Process ids of the hosts that a launcher has started."""
    children = Path(f'/proc/{launcher}/task/{launcher}/children').read_text().split()
    return [
        int(pid) for pid in children
        if b'bert_jax.main' in Path(f'/proc/{pid}/cmdline').read_bytes()]


class Chaos:
    """Makes one thing after another fail.

    Attributes:
      server: the bucket's.
      temporary: the folder for temporary files of the hosts.
      rng: draws what fails, when, and for how long.
      pause: mean seconds between faults.
      faults: how often each has happened, by name.
    """

    def __init__(self, server: BucketServer, temporary: Path, rng: random.Random, pause: float):
        self.server = server
        self.temporary = temporary
        self.rng = rng
        self.pause = pause
        self.faults = collections.Counter[str]()

    def disturb(self, launcher: subprocess.Popen[bytes]) -> int:
        """Disturbs a run until it ends; returns its exit status."""
        due = self._next_fault()
        while True:
            status = launcher.poll()
            if status is not None:
                return status
            time.sleep(0.1)
            if time.monotonic() > due:
                self.faults[self._strike(launcher.pid)] += 1
                due = self._next_fault()

    def _next_fault(self) -> float:
        return time.monotonic() + self.pause * self.rng.uniform(0.5, 1.5)

    def _strike(self, launcher: int) -> str:
        """Makes one thing fail, waits, and ends the failure; returns its name."""
        pids = host_pids(launcher)
        if not pids:
            return ''
        pid = self.rng.choice(pids)
        seconds = self.rng.choice([2, 10, 40])
        name = self.rng.choice([
            'kill', 'stand still', 'full disk', 'lose answers', 'cut', 'stall', '401', '403', '429',
            '500', '503'])
        if name == 'kill':
            os.kill(pid, signal.SIGKILL)
            seconds = 0
        elif name == 'stand still':
            seconds = self.rng.choice([2, 10, LONGEST])
            os.kill(pid, signal.SIGSTOP)
        elif name == 'full disk':
            self._fill_disk()
        elif name == 'lose answers':
            self.server.lost.extend(['POST .*/o', 'GET .*/o', 'DELETE .*/o'])
        elif name == 'cut':
            self.server.faults[OBJECTS] = 0
        elif name == 'stall':
            self.server.faults[OBJECTS] = -15
        else:
            self.server.faults[OBJECTS] = int(name)
        log(f'chaos: {name}, {seconds} s')
        time.sleep(seconds)
        self.server.faults.clear()
        self.server.lost.clear()
        self._filling.unlink(missing_ok=True)
        if name == 'stand still':
            with contextlib.suppress(ProcessLookupError):  # it was taken for dead and killed
                os.kill(pid, signal.SIGCONT)
        return name

    @property
    def _filling(self) -> Path:
        return self.temporary / 'fill'

    def _fill_disk(self) -> None:
        with contextlib.suppress(OSError), open(self._filling, 'wb', buffering=0) as file:
            while file.write(bytes(1 << 20)):
                pass


def log(text: str) -> None:
    """Prints a line with the time."""
    print(f'{time.strftime("%H:%M:%S")} {text}', flush=True)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Makes a folder a file system of its own, if this process may; it can then be full."""
    folder.mkdir(parents=True)
    mounted = subprocess.run(
        ['mount', '-t', 'tmpfs', '-o', 'size=256m', 'tmpfs', str(folder)], check=False)
    try:
        yield
    finally:
        if mounted.returncode == 0:
            subprocess.run(['umount', str(folder)], check=False)


def run_through_chaos(arguments: list[str], output: IO[str], chaos: Chaos) -> int:
    """Starts a run again whenever it ends, until it is done or refuses its input; its status."""
    started = time.monotonic()
    endings = collections.Counter[int]()
    status: int | None = None
    while status not in (DONE, BAD_INPUT):
        launcher = subprocess.Popen(
            arguments, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
        status = chaos.disturb(launcher)
        endings[status] += 1
        log(f'the run ended with status {status}')
    minutes = (time.monotonic() - started) / 60
    print(f'{minutes:.0f} min; ended by status: {dict(endings)}; faults: {dict(chaos.faults)}')
    return status


def count_differing(first: str, second: str) -> int:
    """Compares the parameters of two runs, and returns how many differ."""
    from bert_jax.weights import load_weights

    expected = load_weights(first).params
    found = load_weights(second).params
    differing = [name for name in expected if not np.array_equal(expected[name], found[name])]
    print(f'{len(expected)} parameters, {len(differing)} differ')
    return len(differing)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', type=Path)
    parser.add_argument('--steps', type=int, default=2000)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--pause', type=float, default=25.0, help='seconds between faults')
    options = parser.parse_args()
    temporary = options.folder / 'tmp'
    local = options.folder / 'local'
    with small_disk(temporary):
        server = BucketServer()
        os.environ |= server.environment() | {
            'JAX_PLATFORMS': 'cpu', 'TMPDIR': str(temporary), 'PYTHONUNBUFFERED': '1',
            'XLA_FLAGS': '--xla_force_host_platform_device_count=2', 'LOCAL_HOSTS_GRACE': '60',
            'GLIBC_TUNABLES': 'glibc.malloc.hugetlb=1',
            'JAX_COMPILATION_CACHE_DIR': str(options.folder / 'compiled'),
        }
        from bert_jax.runtime import files

        bucket = server.make_bucket('chaos')
        files.write_whole(f'{bucket}/text.txt', documents(300))
        with open(options.folder / 'quiet.log', 'w') as output:
            subprocess.run(
                command(bucket, local, 'quiet', options.steps), cwd=ROOT, check=True,
                stdout=output, stderr=subprocess.STDOUT)
        log('the uninterrupted run is done')
        chaos = Chaos(server, temporary, random.Random(options.seed), options.pause)
        with open(options.folder / 'run.log', 'w') as output:
            status = run_through_chaos(
                command(bucket, local, 'run', options.steps), output, chaos)
    if status != DONE:
        return 1
    return 1 if count_differing(f'{bucket}/quiet', f'{bucket}/run') else 0


if __name__ == '__main__':
    sys.exit(main())
