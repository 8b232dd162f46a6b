"""Trains on two hosts, while one thing after another fails at random.

    python -m benchmarks.chaos FOLDER [--events=200] [--steps=2000] [--seed=0] [--pause=25] [--disk]

A host is killed, also while the hosts join, told to stop, hangs, or may write only small files; all
hosts are suspended until another run has taken their directory over; a host never joins; the bucket
refuses requests, stalls, cuts connections or loses answers; the disk for temporary files is full.
Whenever a run ends, it is started again, as by a launcher, and in the end its parameters must equal
those of an undisturbed run, bit for bit. Runs follow each other until so many things have failed.
Every end must be explained by a line.
"""

import argparse
import collections
import contextlib
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import numpy as np

from tests.bucket_server import BucketServer
from tests.conftest import ROOT
from tests.tiny_runs import TINY, documents

# Each run in its own namespace of processes, as on a machine of its own.
NAMESPACE = ['unshare', '--pid', '--fork', '--kill-child', '--mount-proc']
FAULTS = [
    'kill', 'stop', 'stand still', 'small files', 'suspend', 'full disk', 'lose answers', 'cut',
    'stall', '401', '403', '429', '500', '503']
ALONE = 0.1  # how often one host is started alone before a run is
EXPLAINED = r'(error: |local_hosts: host \d+ was ended by signal )'
OBJECTS = '/o'  # a part of the URL of every request that concerns objects
LONGEST = 120  # the most seconds that a host hangs
_JOINING_SECONDS = 10  # in which hosts start and join, about
DONE = 0  # exit statuses of a run
BAD_INPUT = 2
DIVERGED = 3


def command(data: str, workdir: str, local: Path, steps: int) -> list[str]:
    """Trains on two hosts, with its text and the token store in `data`."""
    return [
        *NAMESPACE, str(ROOT / 'launch' / 'local_hosts.sh'), '2',
        sys.executable, '-m', 'bert_jax.main', *TINY,
        f'--config.data.source={data}/text.txt', f'--config.data.dir={data}/data',
        f'--config.data.local_dir={local}',
        f'--config.train.steps={steps}', '--config.train.save_every=100',
        '--config.train.log_every=10', '--config.train.eval_every=50',
        '--config.train.verify_every=70', f'--workdir={workdir}',
    ]


def host_pids(launcher: int) -> list[int]:
    """Process ids of the hosts that a launcher, or what it has started, runs."""
    found = []
    children = Path(f'/proc/{launcher}/task/{launcher}/children').read_text().split()
    for pid in map(int, children):
        with contextlib.suppress(OSError):  # it has just ended
            arguments = Path(f'/proc/{pid}/cmdline').read_bytes().split(b'\0')
            if arguments[0] == os.fsencode(sys.executable):
                found.append(pid)
            else:
                found += host_pids(pid)
    return found


class Chaos:
    """Makes one thing after another fail.

    Attributes:
      server: the bucket's.
      temporary: the folder for temporary files of the hosts.
      rng: draws what fails, when, and for how long.
      pause: mean seconds between faults.
      events: how many faults there are to be.
      faults: how often each has happened, by name.
      stops: seconds from each SIGTERM to the end of the run.
      longest_silence: the most seconds in which a run that nothing held printed nothing.
    """

    def __init__(
        self, server: BucketServer, temporary: Path, rng: random.Random, pause: float, events: int
    ):
        self.server = server
        self.temporary = temporary
        self.rng = rng
        self.pause = pause
        self.events = events
        self.faults = collections.Counter[str]()
        self.stops: list[float] = []
        self.longest_silence = 0.0

    def is_over(self) -> bool:
        """Whether all faults have happened."""
        return self.faults.total() >= self.events

    def disturb(self, run: Callable[[], subprocess.Popen[bytes]], output: Path) -> int:
        """Starts a run and disturbs it until it ends; returns its exit status."""
        launcher = run()
        due = self._next_fault()
        if self.rng.random() < 0.3:
            due = time.monotonic() + self.rng.uniform(0, _JOINING_SECONDS)
        size = 0
        heard = time.monotonic()
        while True:
            status = launcher.poll()
            now = time.monotonic()
            self.longest_silence = max(self.longest_silence, now - heard)
            if status is not None:
                return status
            time.sleep(0.1)
            if output.stat().st_size != size:
                size = output.stat().st_size
                heard = time.monotonic()
            if now > due and not self.is_over() and host_pids(launcher.pid):
                name = self.rng.choice(FAULTS)
                if name == 'suspend':
                    launcher = self._suspend(launcher, run)
                else:
                    self._strike(name, launcher)
                self.faults[name] += 1
                due = self._next_fault()
                heard = time.monotonic()

    def _next_fault(self) -> float:
        return time.monotonic() + self.pause * self.rng.uniform(0.5, 1.5)

    def _suspend(
        self, launcher: subprocess.Popen[bytes], run: Callable[[], subprocess.Popen[bytes]]
    ) -> subprocess.Popen[bytes]:
        """Suspends all hosts until another run has taken over; the launcher of the one that stays.

        That is the other one, unless the suspended one had not begun yet.
        """
        log('chaos: suspend, until another run has taken over')
        pids = host_pids(launcher.pid)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        successor = run()
        time.sleep(self.rng.choice([45, 60, 90]))
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        while launcher.poll() is None and successor.poll() is None:
            time.sleep(0.1)
        if launcher.poll() is None:
            log(f'the other run ended with status {successor.poll()}')
            return launcher
        log(f'the suspended run ended with status {launcher.poll()}')
        return successor

    def _strike(self, name: str, launcher: subprocess.Popen[bytes]) -> None:
        """Makes one thing fail, waits, and ends the failure."""
        pid = self.rng.choice(host_pids(launcher.pid))
        seconds = self.rng.choice([2, 10, 40])
        if name == 'kill':
            os.kill(pid, signal.SIGKILL)
            seconds = 0
        elif name == 'stop':
            os.kill(pid, signal.SIGTERM)
            seconds = 0
        elif name == 'stand still':
            seconds = self.rng.choice([2, 10, LONGEST])
            os.kill(pid, signal.SIGSTOP)
        elif name == 'small files':
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
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
        began = time.monotonic()
        if name == 'stop':
            launcher.wait(timeout=600)
            self.stops.append(time.monotonic() - began)
        time.sleep(seconds)
        self.server.faults.clear()
        self.server.lost.clear()
        self._filling.unlink(missing_ok=True)
        with contextlib.suppress(ProcessLookupError):  # it has ended
            if name == 'stand still':
                os.kill(pid, signal.SIGCONT)
            if name == 'small files':
                unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
                resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)

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


def start_alone(arguments: list[str], output: IO[str], chaos: Chaos) -> None:
    """Starts one of two hosts, which must end by itself."""
    began = time.monotonic()
    alone = os.environ | {
        'JAX_COORDINATOR_ADDRESS': '127.0.0.1:19999', 'JAX_NUM_PROCESSES': '2',
        'JAX_PROCESS_ID': '0', 'BERT_JAX_JOIN_SECONDS': '20'}
    host = arguments[arguments.index(sys.executable):]
    ended = subprocess.run(
        host, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, env=alone, check=False)
    chaos.faults['nobody joins'] += 1
    log(f'chaos: nobody joins: status {ended.returncode} in {time.monotonic() - began:.0f} s')


def run_through_chaos(arguments: list[str], file: Path, chaos: Chaos) -> bool:
    """Starts a run again whenever it ends; whether it was done, and each end explained."""
    endings = collections.Counter[int]()
    status: int | None = None
    num_unexplained = 0
    with open(file, 'w') as output:

        def run() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                arguments, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)

        while status not in (DONE, BAD_INPUT, DIVERGED):
            if not chaos.is_over() and chaos.rng.random() < ALONE:
                start_alone(arguments, output, chaos)
            begin = file.stat().st_size
            status = chaos.disturb(run, file)
            endings[status] += 1
            lines = file.read_bytes()[begin:].decode(errors='replace').splitlines()
            why = [line for line in lines if re.match(EXPLAINED, line)]
            if status != DONE and not why:
                num_unexplained += 1
            log(f'the run ended with status {status}: {why[:1]}')
    waits = ', '.join(f'{seconds:.0f}' for seconds in chaos.stops)
    print(f'ended by status: {dict(endings)}, {num_unexplained} without a word; '
          f'faults: {dict(chaos.faults)}; seconds to stop: {waits}; '
          f'longest silence: {chaos.longest_silence:.0f} s', flush=True)
    return status == DONE and not num_unexplained


def count_differing(first: str, second: str) -> int:
    """Compares the parameters of two runs, and returns how many differ."""
    from bert_jax.foreign import load_weights

    expected = load_weights(first).params
    found = load_weights(second).params
    differing = [name for name in expected if not np.array_equal(expected[name], found[name])]
    print(f'{len(expected)} parameters, {len(differing)} differ')
    return len(differing)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', type=Path)
    parser.add_argument('--events', type=int, default=200)
    parser.add_argument('--steps', type=int, default=2000)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--pause', type=float, default=25.0, help='seconds between faults')
    parser.add_argument('--disk', action='store_true', help='runs are on the disk')
    options = parser.parse_args()
    temporary = options.folder / 'tmp'
    local = options.folder / 'local'
    is_good = True
    with small_disk(temporary):
        server = BucketServer()
        os.environ |= server.environment() | {
            'JAX_PLATFORMS': 'cpu', 'TMPDIR': str(temporary), 'PYTHONUNBUFFERED': '1',
            'XLA_FLAGS': '--xla_force_host_platform_device_count=2', 'LOCAL_HOSTS_GRACE': '60',
            'BERT_JAX_JOIN_SECONDS': '50',
            'GLIBC_TUNABLES': 'glibc.malloc.hugetlb=1',
            'JAX_COMPILATION_CACHE_DIR': str(options.folder / 'compiled'),
        }
        from bert_jax.runtime import files

        bucket = server.make_bucket('chaos')
        files.write_whole(f'{bucket}/text.txt', documents(300))
        runs = str(options.folder) if options.disk else bucket
        quiet = f'{runs}/quiet'
        with open(options.folder / 'quiet.log', 'w') as output:
            subprocess.run(
                command(bucket, quiet, local, options.steps), cwd=ROOT, check=True,
                stdout=output, stderr=subprocess.STDOUT)
        log('the uninterrupted run is done')
        rng = random.Random(options.seed)
        chaos = Chaos(server, temporary, rng, options.pause, options.events)
        number = 0
        while is_good and not chaos.is_over():
            number += 1
            run = f'{runs}/run{number}'
            is_good = run_through_chaos(
                command(bucket, run, local, options.steps),
                options.folder / f'run{number}.log', chaos)
            if count_differing(quiet, run):
                is_good = False
    return 0 if is_good else 1


if __name__ == '__main__':
    sys.exit(main())
