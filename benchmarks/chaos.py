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
from pathlib import Path

import numpy as np

from tests.bucket_server import BucketServer
from tests.conftest import ROOT
from tests.tiny_runs import TINY, documents

OBJECTS = '/o'  # a part of the URL of every request that concerns objects
LONGEST = 120  # the most seconds that a host hangs


def command(bucket: str, local: Path, run: str, steps: int) -> list[str]:
    return [
        str(ROOT / 'launch' / 'local_hosts.sh'), '2', sys.executable, '-m', 'bert_jax.main', *TINY,
        f'--config.data.source={bucket}/text.txt', f'--config.data.dir={bucket}/data',
        f'--config.data.local_dir={local}',
        f'--config.train.steps={steps}', '--config.train.save_every=100',
        '--config.train.log_every=10', '--config.train.eval_every=500', f'--workdir={bucket}/{run}',
    ]


def host_pids(launcher: int) -> list[int]:
    """Process ids of the hosts that a launcher has started."""
    pids = Path(f'/proc/{launcher}/task/{launcher}/children').read_text().split()
    return [int(pid) for pid in pids
            if b'bert_jax.main' in Path(f'/proc/{pid}/cmdline').read_bytes()]


def strike(launcher: int, server: BucketServer, temporary: Path, rng: random.Random) -> str:
    """Makes one thing fail, waits, and ends the failure; returns its name."""
    pids = host_pids(launcher)
    if not pids:
        return ''
    pid, seconds = rng.choice(pids), rng.choice([2, 10, 40])
    name = rng.choice(['kill', 'stand still', 'full disk', 'lose answers', 'cut', 'stall',
                       *map(str, (401, 403, 429, 500, 503))])
    if name == 'kill':
        os.kill(pid, signal.SIGKILL)
        seconds = 0
    elif name == 'stand still':
        seconds = rng.choice([2, 10, LONGEST])
        os.kill(pid, signal.SIGSTOP)
    elif name == 'full disk':
        with (contextlib.suppress(OSError),
              open(temporary / 'fill', 'wb', buffering=0) as file):
            while file.write(bytes(1 << 20)):
                pass
    elif name == 'lose answers':
        server.lost.extend(['POST .*/o', 'GET .*/o', 'DELETE .*/o'])
    else:
        server.faults[OBJECTS] = {'cut': 0, 'stall': -15}[name] if name.isalpha() else int(name)
    print(f'{time.strftime("%H:%M:%S")} chaos: {name}, {seconds} s', flush=True)
    time.sleep(seconds)
    server.faults.clear()
    server.lost.clear()
    (temporary / 'fill').unlink(missing_ok=True)
    if name == 'stand still':
        with contextlib.suppress(ProcessLookupError):  # it was taken for dead and killed
            os.kill(pid, signal.SIGCONT)
    return name


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', type=Path)
    parser.add_argument('--steps', type=int, default=2000)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--pause', type=float, default=25.0, help='seconds between faults')
    options = parser.parse_args()
    temporary, local = options.folder / 'tmp', options.folder / 'local'
    temporary.mkdir(parents=True)
    full_disks = subprocess.run(
        ['mount', '-t', 'tmpfs', '-o', 'size=256m', 'tmpfs', str(temporary)], check=False)
    rng, server = random.Random(options.seed), BucketServer()
    os.environ |= server.environment() | {
        'JAX_PLATFORMS': 'cpu', 'TMPDIR': str(temporary), 'PYTHONUNBUFFERED': '1',
        'XLA_FLAGS': '--xla_force_host_platform_device_count=2', 'LOCAL_HOSTS_GRACE': '60',
        'GLIBC_TUNABLES': 'glibc.malloc.hugetlb=1',
        'JAX_COMPILATION_CACHE_DIR': str(options.folder / 'compiled'),
    }
    from bert_jax.runtime import files
    from bert_jax.weights import load_weights

    bucket = server.make_bucket('chaos')
    files.write_whole(f'{bucket}/text.txt', documents(300))
    with open(options.folder / 'quiet.log', 'w') as log:
        subprocess.run(command(bucket, local, 'quiet', options.steps), cwd=ROOT, check=True,
                       stdout=log, stderr=subprocess.STDOUT)
    print(f'{time.strftime("%H:%M:%S")} the uninterrupted run is done', flush=True)
    begun, status = time.monotonic(), None
    starts, faults = collections.Counter(), collections.Counter()
    log = open(options.folder / 'run.log', 'w')  # noqa: SIM115
    while status != 0:
        launcher = subprocess.Popen(command(bucket, local, 'run', options.steps), cwd=ROOT,
                                    stdout=log, stderr=subprocess.STDOUT)
        due = time.monotonic() + options.pause * rng.uniform(0.5, 1.5)
        while (status := launcher.poll()) is None:
            time.sleep(0.1)
            if time.monotonic() > due:
                faults[strike(launcher.pid, server, temporary, rng)] += 1
                due = time.monotonic() + options.pause * rng.uniform(0.5, 1.5)
        starts[status] += 1
        print(f'{time.strftime("%H:%M:%S")} the run ended with status {status}', flush=True)
        if status == 2:
            break
    if full_disks.returncode == 0:
        subprocess.run(['umount', str(temporary)], check=False)
    print(f'{(time.monotonic() - begun) / 60:.0f} min; ended by status: {dict(starts)}; faults: '
          f'{dict(faults)}')
    if status != 0:
        return 1
    quiet, ours = (load_weights(f'{bucket}/{run}').params for run in ('quiet', 'run'))
    differing = [name for name in quiet if not np.array_equal(quiet[name], ours[name])]
    print(f'{len(quiet)} parameters, {len(differing)} differ')
    return 1 if differing else 0


if __name__ == '__main__':
    sys.exit(main())
