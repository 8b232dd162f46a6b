"""Runs of real processes whose save fails on one host, and whose directory another run takes over.

    python -m tests.train.test_sessions FOLDER [--machine=NAME] [--small-files]

is such a process: it saves a state every few steps, as a run does, until there is
a file `end` beside the folder.
"""

import argparse
import os
import resource
import signal
import subprocess
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from bert_jax.run.checkpoint import Checkpoints
from bert_jax.runtime import folder_lock, hosts
from bert_jax.sharding import make_mesh
from bert_jax.step.step import TrainState
from bert_jax.train.session import run_session
from tests.conftest import ROOT, wait_until, xla_flags
from tests.programs import python

pytestmark = pytest.mark.slow

EVERY = 5  # steps between saves
MOST_STEPS = 2000


def start(launcher, *arguments, **streams):
    """Starts the process, or as many of them as the launcher does."""
    command = [*launcher, *python(), '-m', 'tests.train.test_sessions', *arguments]
    environment = os.environ | {'XLA_FLAGS': xla_flags(1), 'LOCAL_HOSTS_GRACE': '120'}
    return subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **streams)


def test_a_save_that_fails_on_one_host_ends_all_and_names_it(tmp_path):
    run = start(
        [ROOT / 'launch' / 'local_hosts.sh', '2'], tmp_path / 'run', '--small-files',
        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    _, errors = run.communicate(timeout=240)
    assert run.returncode == 1, errors
    lines = [line for line in errors.splitlines() if line.startswith('error: host 1: ')]
    assert len(lines) == 1, errors
    assert 'the checkpoint of step 10 cannot be saved' in lines[0]
    assert 'File too large' in lines[0]
    limited = float((tmp_path / 'run' / 'limited').read_text())
    assert time.time() - limited < 60


def test_a_suspended_run_that_wakes_leaves_its_successor_alone(tmp_path):
    def last_saved():
        names = [path.name for path in (tmp_path / 'states').glob('*')]
        return max((int(name) for name in names if name.isdecimal()), default=0)

    first = start([], tmp_path / 'run', '--machine=one', stderr=subprocess.PIPE)
    wait_until(last_saved)
    first_pid = int((tmp_path / 'one').read_text())
    os.kill(first_pid, signal.SIGSTOP)
    taken_at = last_saved()
    second = start([], tmp_path / 'run', '--machine=two', stderr=subprocess.PIPE)
    wait_until(lambda: last_saved() > taken_at)
    os.kill(first_pid, signal.SIGCONT)
    _, errors = first.communicate(timeout=600)
    assert first.returncode == 2
    assert errors.count('error: ') == 1 and 'was taken by another process' in errors
    before = last_saved()
    (tmp_path / 'end').touch()
    _, errors = second.communicate(timeout=240)
    assert second.returncode == 0, errors
    assert last_saved() > before


def a_state():
    """A state whose parameters are divided among the processes."""
    mesh = make_mesh(1, jax.device_count(), 1)
    divided = NamedSharding(mesh, PartitionSpec('fsdp'))
    whole = np.random.default_rng(0).random((8, 50_000), np.float32)
    params = jax.make_array_from_callback(whole.shape, divided, lambda index: whole[index])
    step = jax.make_array_from_callback(
        (), NamedSharding(mesh, PartitionSpec()), lambda index: np.int32(0))
    return TrainState(step, {'x': params}, {})


def main():
    """Trains, without computing anything."""
    parser = argparse.ArgumentParser()
    parser.add_argument('folder', type=Path)
    parser.add_argument('--machine', default='')
    parser.add_argument('--small-files', action='store_true')
    options = parser.parse_args()
    if options.machine:
        options.folder.with_name(options.machine).write_text(str(os.getpid()))
        folder_lock._machine = lambda: options.machine
        folder_lock.SECONDS = 0.5
        folder_lock.BEAT_SECONDS = 60.0  # the lock is asked all the same
    with run_session(options.folder) as session:
        checkpoints = Checkpoints(options.folder.with_name('states'), 3)
        session.guard.watch(lambda: 'step', options.folder, checkpoints.fault)
        state = a_state()
        first = (checkpoints.latest_step() or 0) + 1
        for step in range(first, first + MOST_STEPS):
            time.sleep(0.05)
            checkpoints.check()
            session.should_stop(step)
            if step % EVERY == 0:
                session.check_lock()
                is_last = options.folder.with_name('end').exists()
                checkpoints.save(step, state.replace(step=state.step + jnp.int32(step)))
                if is_last:
                    break
            if step == EVERY and options.small_files and hosts.index() == 1:
                checkpoints._saves.wait()
                limit_files(options.folder)
        checkpoints.close()


def limit_files(folder):
    """From here on, this process writes no file that is larger than 1,000 bytes."""
    (folder / 'limited').write_text(str(time.time()))
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))


if __name__ == '__main__':
    main()
