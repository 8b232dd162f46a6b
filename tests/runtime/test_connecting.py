"""How a process finds out which processes it belongs to."""

from unittest import mock

import pytest

from bert_jax.runtime import connecting, hosts
from bert_jax.runtime.errors import InputError


@pytest.mark.parametrize('environment, message', [
    ({'JAX_NUM_PROCESSES': 'abc', 'JAX_PROCESS_ID': '0', 'JAX_COORDINATOR_ADDRESS': 'x:1'},
     "JAX_NUM_PROCESSES='abc' in the environment is not a whole number"),
    ({'JAX_NUM_PROCESSES': '2'}, 'JAX_COORDINATOR_ADDRESS, JAX_PROCESS_ID is not set'),
    ({'JAX_NUM_PROCESSES': '2', 'JAX_PROCESS_ID': '2', 'JAX_COORDINATOR_ADDRESS': 'x:1'},
     'this process is number 2 of 2 .* they are numbered from 0 to 1'),
    ({'JAX_NUM_PROCESSES': '2', 'JAX_PROCESS_ID': '1', 'JAX_COORDINATOR_ADDRESS': 'x'},
     "JAX_COORDINATOR_ADDRESS='x' in the environment is not NAME:PORT"),
    ({'JAX_NUM_PROCESSES': '2', 'JAX_PROCESS_ID': '1', 'JAX_COORDINATOR_ADDRESS': 'x:99999'},
     "JAX_COORDINATOR_ADDRESS='x:99999' in the environment is not NAME:PORT"),
    ({'MEGASCALE_NUM_SLICES': '2'}, 'MEGASCALE_COORDINATOR_ADDRESS, MEGASCALE_SLICE_ID is not set'),
])
def test_an_incomplete_or_wrong_environment_is_refused(monkeypatch, environment, message):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=message):
        connecting.connect()


@pytest.mark.parametrize('environment, message', [
    ({'OMPI_COMM_WORLD_SIZE': '4', 'OMPI_COMM_WORLD_RANK': '3'}, 'is task 3 of 4'),
    ({'SLURM_STEP_NUM_TASKS': '2', 'SLURM_PROCID': '1', 'COLAB_GPU': '1'}, 'is task 1 of 2'),
])
def test_one_of_several_tasks_that_have_not_joined_is_refused(monkeypatch, environment, message):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr('jax.distributed.initialize', mock.Mock(side_effect=AssertionError))
    with pytest.raises(InputError, match=message):
        connecting.connect()


@pytest.mark.parametrize(('process_id', 'index', 'is_first'), [
    (None, 0, True), (0, 0, True), (2, 2, False)])
def test_a_process_knows_which_it_is(monkeypatch, process_id, index, is_first):
    monkeypatch.setattr(hosts, 'state', lambda: mock.Mock(process_id=process_id))
    assert (hosts.index(), hosts.first()) == (index, is_first)
