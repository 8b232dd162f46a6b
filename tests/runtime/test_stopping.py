"""Hosts stop together and fail together: small processes that poll as the training loop does."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest import mock

import pytest

from bert_jax.runtime import hosts
from bert_jax.runtime.errors import InputError, Stopped
from bert_jax.runtime.stopping import Guard

pytestmark = pytest.mark.slow

LOCAL_HOSTS = Path(__file__).resolve().parents[2] / 'launch' / 'local_hosts.sh'

# Each host prints its process id, then runs a body, such as `STEPS`, where host 0 is slow.
HOST = """
import os, sys, time
from bert_jax.runtime import hosts
from bert_jax.runtime import stopping
from bert_jax.runtime.errors import Stopped
stopping.SILENCE_SECONDS = 4.0
stopping.SILENCE_AT_START_SECONDS = 8.0
stopping.STILL_SECONDS = 3.0
hosts.connect()
guard = stopping.Guard()
guard.start()
def tell(*words):  # in one piece: several hosts write at once
    os.write(2, (' '.join(map(str, words)) + '\\n').encode())
tell('pid', hosts.index(), os.getpid())
{body}
"""
STEPS = """
step = 0
while step < 10_000:
    step += 1
    time.sleep(0.01 if hosts.index() else 0.05)
    if guard.should_stop(step):
        tell('stopped at', step)
        guard.fail('', 143)
"""


class Hosts:
    def __init__(self, count, body):
        self.process = subprocess.Popen(
            [LOCAL_HOSTS, str(count), sys.executable, '-c', HOST.format(body=body)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=LOCAL_HOSTS.parents[1],
            env=os.environ | {'JAX_PLATFORMS': 'cpu', 'LOCAL_HOSTS_GRACE': '20'},
        )
        self.pids = {}
        while len(self.pids) < count:
            words = self.process.stderr.readline().split()
            assert words or self.process.poll() is None, 'a host did not start'
            if 'pid' in words:
                index, pid = words[words.index('pid') + 1:]
                self.pids[int(index)] = int(pid)

    def end(self):
        """(exit status, what they printed to standard error)."""
        # Not by `communicate`, which loses what `readline` has read ahead.
        limit = threading.Timer(60, self.process.terminate)
        limit.start()
        errors = self.process.stderr.read()
        limit.cancel()
        return self.process.wait(), errors


@pytest.mark.parametrize('asked, sent', [(0, signal.SIGTERM), (2, signal.SIGHUP)])
def test_a_signal_to_one_host_stops_all_at_the_same_step(asked, sent):
    run = Hosts(3, STEPS)
    time.sleep(1.0)
    os.kill(run.pids[asked], sent)
    status, errors = run.end()
    assert status == 143
    steps = [line.split()[-1] for line in errors.splitlines() if 'stopped at' in line]
    assert len(steps) == 3 and len(set(steps)) == 1, errors


@pytest.mark.parametrize('body, sent, ended, message', [
    ("guard.fail('the disk is full', 2) if hosts.index() == 1 else time.sleep(60)", None, 2,
     'error: host 1: the disk is full'),
    (STEPS, signal.SIGKILL, None, r'error: host 1: has not been heard of for \d+ seconds'),
], ids=['fails', 'dies'])
def test_the_end_of_a_host_ends_the_others_with_its_message(body, sent, ended, message):
    run = Hosts(3, body)
    if sent:
        time.sleep(2.0)
        os.kill(run.pids[1], sent)
    started = time.monotonic()
    status, errors = run.end()
    assert time.monotonic() - started < 20
    assert len(re.findall(message, errors)) == 2 and (ended is None or status == ended)


def test_a_host_that_is_silent_while_it_compiles_is_given_more_time():
    run = Hosts(2, 'if hosts.index():\n    time.sleep(60)\n' + STEPS)
    time.sleep(1.0)
    os.kill(run.pids[1], signal.SIGSTOP)
    time.sleep(5.5)
    assert run.process.poll() is None
    os.kill(run.pids[1], signal.SIGCONT)
    time.sleep(1.5)
    os.kill(run.pids[1], signal.SIGKILL)
    _, errors = run.end()
    assert 'error: host 1: has not been heard of for ' in errors


HANGS = """
from bert_jax.runtime.files import as_path
guard.watch(lambda: {cause!r}, as_path({folder!r}))
def waits_for_ever():
    time.sleep(60)
for step in range(1, 40):
    time.sleep(0.05)
    guard.should_stop(step)
    if step == 30 - 10 * hosts.index():
        waits_for_ever() if {cause!r} == 'step' else time.sleep(6)
guard.finish()
"""


@pytest.mark.parametrize('count', [1, 3])
def test_a_run_that_hangs_ends_with_the_stacks_of_all_hosts(tmp_path, count):
    status, errors = Hosts(count, HANGS.format(cause='step', folder=str(tmp_path))).end()
    assert status == 1
    last = 30 - 10 * (count - 1)
    line = f'error: host {count - 1}: at step {last} no step was finished for'
    assert errors.count(line) == count
    for host in range(count):
        stacks = (tmp_path / f'stacks-{host}.txt').read_text()
        assert 'in waits_for_ever' in stacks and 'in _watch' in stacks


def test_a_long_evaluation_is_not_a_hang(tmp_path):
    status, errors = Hosts(2, HANGS.format(cause='evaluation', folder=str(tmp_path))).end()
    assert status == 0, errors
    assert not list(tmp_path.iterdir())


def test_a_signal_before_the_first_step_ends_all_at_once():
    run = Hosts(2, 'hosts.share("store", lambda: time.sleep(60))')
    time.sleep(0.5)
    os.kill(run.pids[0], signal.SIGTERM)
    started = time.monotonic()
    _, errors = run.end()
    assert time.monotonic() - started < 20
    assert 'stopped before the first step' in errors


def test_a_signal_whose_exception_is_lost_before_the_first_step_stops_after_it():
    guard = Guard()
    with pytest.raises(Stopped):  # which a garbage collector's callback could swallow
        guard._handle(signal.SIGTERM, None)
    assert guard.should_stop(1)


def test_hosts_compare_settings_and_each_names_the_difference():
    body = """
from bert_jax.runtime.errors import InputError
tell('all', hosts.exchange('names', f'host {hosts.index()}'))
hosts.agree('the run', {'seed': 1})
try:
    hosts.agree('the run', {'seed': 1, 'text': 'abc' if hosts.index() < 2 else 'xyz'})
except InputError as error:
    tell('told:', error)
guard.finish()
"""
    status, errors = Hosts(3, body).end()
    assert status == 0
    assert errors.count("all ['host 0', 'host 1', 'host 2']") == 3
    assert errors.count("the run must be the same on all hosts: text is 'abc' on host 0 and "
                        "'xyz' on host 2") == 3


@pytest.mark.parametrize('environment, message', [
    ({'JAX_NUM_PROCESSES': 'abc', 'JAX_PROCESS_ID': '0', 'JAX_COORDINATOR_ADDRESS': 'x:1'},
     "JAX_NUM_PROCESSES='abc' in the environment is not a whole number"),
    ({'JAX_NUM_PROCESSES': '2'}, 'JAX_COORDINATOR_ADDRESS, JAX_PROCESS_ID is not set'),
    ({'OMPI_COMM_WORLD_SIZE': '4', 'OMPI_COMM_WORLD_RANK': '3'}, 'is task 3 of 4'),
    ({'SLURM_STEP_NUM_TASKS': '2', 'SLURM_PROCID': '1', 'COLAB_GPU': '1'}, 'is task 1 of 2'),
    ({'MEGASCALE_NUM_SLICES': '2'}, 'MEGASCALE_COORDINATOR_ADDRESS, MEGASCALE_SLICE_ID is not set'),
])
def test_one_of_several_tasks_that_have_not_joined_is_refused(monkeypatch, environment, message):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr('jax.distributed.initialize', mock.Mock(
        side_effect=ValueError('coordinator_address should be defined.')))
    with pytest.raises(InputError, match=message):
        hosts.connect()


@pytest.mark.parametrize('device, extra', [('0x0063', 'jax\\[tpu\\]'), ('', 'jax\\[cuda13\\]')])
def test_an_accelerator_that_jax_does_not_use_is_refused(monkeypatch, tmp_path, device, extra):
    (tmp_path / 'vendor').write_text('0x1ae0\n')
    (tmp_path / 'device').write_text(device + '\n')
    found = {'/sys/bus/pci/devices/*': [str(tmp_path)], '/dev/nvidia[0-9]*': ['/dev/nvidia0']}
    monkeypatch.setattr('glob.glob', lambda pattern: found[pattern])
    monkeypatch.delenv('JAX_PLATFORMS')
    with pytest.raises(InputError, match=extra):
        hosts.check_accelerators()
    monkeypatch.setenv('JAX_PLATFORMS', 'cpu')
    hosts.check_accelerators()
