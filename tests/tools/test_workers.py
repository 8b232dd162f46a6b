"""Worker processes: each gets its own chips of the machine."""

import pytest

from bert_jax.runtime import accelerators
from bert_jax.runtime.errors import InputError
from bert_jax.tools.workers import worker_environment


@pytest.fixture
def machine(monkeypatch):
    """A function that gives this machine so many chips of a kind."""
    def pretend(kind, num_chips):
        names = [str(number) for number in range(num_chips)]
        monkeypatch.setattr(accelerators, 'visible_chips', lambda: (kind, names))

    return pretend


def test_a_gpu_is_chosen_by_its_number(machine):
    machine('gpu', 2)
    environment = worker_environment(worker=1, workers=2, chips=1)
    assert environment == {'CUDA_VISIBLE_DEVICES': '1'}


def test_the_chips_of_a_tpu_process_are_a_slice_of_their_own(machine):
    machine('tpu', 4)
    environment = worker_environment(worker=1, workers=2, chips=2)
    assert environment.items() >= {
        'TPU_VISIBLE_CHIPS': '2,3', 'TPU_CHIPS_PER_PROCESS_BOUNDS': '1,2,1',
        'TPU_PROCESS_BOUNDS': '1,1,1', 'TPU_WORKER_HOSTNAMES': 'localhost',
    }.items()


def test_a_single_process_has_all_chips(machine):
    machine('tpu', 4)
    environment = worker_environment(worker=0, workers=1, chips=0)
    assert environment['TPU_CHIPS_PER_PROCESS_BOUNDS'] == '2,2,1'


def test_virtual_devices_are_divided_and_other_flags_kept(machine, monkeypatch):
    machine('cpu', 4)
    monkeypatch.setenv('XLA_FLAGS', '--other --xla_force_host_platform_device_count=4')
    environment = worker_environment(worker=3, workers=4, chips=1)
    assert environment == {'XLA_FLAGS': '--other --xla_force_host_platform_device_count=1'}


def test_more_chips_than_there_are_are_refused(machine):
    machine('tpu', 2)
    with pytest.raises(InputError, match='--chips=2: this machine has 2'):
        worker_environment(worker=0, workers=2, chips=2)


def test_a_tpu_is_not_divided_by_three(machine):
    machine('tpu', 4)
    with pytest.raises(InputError, match='--chips=3: this machine has 4'):
        worker_environment(worker=0, workers=1, chips=3)
