"""Checkpoints of a run of two processes: what one cannot read, both pass over or both refuse."""

import json
import os
import socket
import subprocess
import sys

import jax
import numpy as np
import optax
import pytest
from toy import Toy, mesh

from bert_jax.train.checkpoint import Checkpoints
from bert_jax.train.step import abstract_state
from tests.conftest import ROOT
from tests.train.two_hosts import numbers

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    """(folder, what each process found)."""
    folder = tmp_path_factory.mktemp('run')
    with socket.socket() as free:
        free.bind(('localhost', 0))
        port = free.getsockname()[1]
    env = os.environ | {
        'XLA_FLAGS': '--xla_force_host_platform_device_count=4', 'PYTHONPATH': str(ROOT),
        'JAX_COORDINATOR_ADDRESS': f'localhost:{port}', 'JAX_NUM_PROCESSES': '2',
    }
    processes = [
        subprocess.Popen(
            [sys.executable, '-m', 'tests.train.two_hosts', str(folder)], cwd=ROOT, text=True,
            env=env | {'JAX_PROCESS_ID': str(i)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for i in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
    found = []
    for process, (out, err) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, err[-3000:]
        found.append(json.loads(out[out.index('found {'):].removeprefix('found ')))
    return folder, found


def test_hosts_with_one_folder_go_on_and_others_are_told(run):
    for found in run[1]:
        assert found['shared'] == ''
        assert 'not the same folder on all hosts (host 1 does not see' in found['own']
        assert found['own'].startswith('InputError: --workdir=')


@pytest.mark.parametrize('name, readers', [
    ('data', [0]), ('both', [0]), ('fsdp', [0, 1]),
])
def test_one_replica_reads_and_all_have_the_state(run, name, readers):
    for host, found in enumerate(run[1]):
        assert found[name] == {'same': True, 'step': 3, 'loads': int(host in readers)}


def test_a_fault_on_one_host_is_raised_on_both(run):
    first, second = (found['fault'] for found in run[1])
    assert second == 'ConnectionError: reset'
    assert first == 'RuntimeError: host 1 failed to read a checkpoint: reset'


def test_damage_is_moved_aside_once_and_both_take_the_one_before(run):
    for found in run[1]:
        assert found['taken'] == 2
        assert found['left'] == ['1', '2', '3.unreadable']


def test_one_process_goes_on_from_what_two_saved(run):
    for axes in ((1, 1, 1), (2, 2, 2)):
        checkpoints = Checkpoints(run[0] / 'checkpoints', 9)
        found = checkpoints.restore(abstract_state(Toy(), optax.adam(1e-3), mesh(*axes)))
        checkpoints.close()
        assert found.step == 3
        for x in jax.tree.leaves((found.params, found.opt_state[0].nu)):
            np.testing.assert_array_equal(x, numbers(x))


def test_published_parameters_fill_the_shards_of_each_host(run):
    for found in run[1]:
        assert found['warm'] == {'wrong': [], 'split': True}
