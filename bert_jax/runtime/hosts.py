"""Host-side messages between the processes of a run.

They go through the key-value store of jax's coordination service. No device takes part, so they
work before the first step, while a device waits for a neighbour, and when a host fails. All hosts
call these functions in the same order; with a single process they return at once. `stopping.py`
makes hosts stop and fail together.
"""

import glob
import importlib.util
import itertools
import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax

from bert_jax.runtime.errors import InputError, tell
from bert_jax.runtime.files import read_system

_CLUSTER = ('JAX_COORDINATOR_ADDRESS', 'JAX_NUM_PROCESSES', 'JAX_PROCESS_ID')
# Variables by which launchers number processes: (how many, which one).
_TASK_COUNTS = (
    ('JAX_NUM_PROCESSES', 'JAX_PROCESS_ID'), ('SLURM_STEP_NUM_TASKS', 'SLURM_PROCID'),
    ('OMPI_COMM_WORLD_SIZE', 'OMPI_COMM_WORLD_RANK'), ('PMI_SIZE', 'PMI_RANK'),
)
# Variables of a TPU run on several slices.
_SLICES = ('MEGASCALE_COORDINATOR_ADDRESS', 'MEGASCALE_NUM_SLICES', 'MEGASCALE_SLICE_ID')
# Single-host notebooks: looking for a cluster there would only take time.
_NOTEBOOKS = ('COLAB_RELEASE_TAG', 'COLAB_GPU', 'KAGGLE_KERNEL_RUN_TYPE')
# PCI devices of vendor 0x1ae0 (Google) that are TPUs: v2 and v3, v4, v5p, v5e, v6e, v7.
_TPU_DEVICES = ('0x0027', '0x005e', '0x0062', '0x0063', '0x006f', '0x0076')

VIRTUAL = '--xla_force_host_platform_device_count'  # of XLA_FLAGS

_calls = itertools.count()


def state() -> Any:
    """This process's handle on jax's coordination service."""
    from jax._src import distributed  # no public name reaches the service's store

    return distributed.global_state


def index() -> int:
    """This process's index, valid after `connect`. It does not initialise the devices."""
    return state().process_id or 0


def count() -> int:
    """The number of processes of the run."""
    return state().num_processes or 1


def first() -> bool:
    """Whether this is the process that writes and prints for all."""
    return index() == 0


def connect() -> None:
    """Joins the other processes of the run, if jax or the environment names a cluster.

    jax detects TPU VMs (by their metadata server), GKE, SLURM and Open MPI. Elsewhere
    JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID name the cluster.

    Raises:
      InputError: this process was started as one of several, and they have not joined; or the
        environment has only some of the variables, perhaps those of another run.
    """
    for names in (_CLUSTER, _SLICES):
        missing = [name for name in names if not os.environ.get(name)]
        if 0 < len(missing) < len(names):
            raise InputError(f'{", ".join(missing)} is not set in the environment: set '
                             f'{", ".join(names)}, or none of them')
    tasks = {size: _whole_number(size) or 1 for size, _ in _TASK_COUNTS}
    if chips := os.environ.get('TPU_VISIBLE_CHIPS'):  # perhaps of another run; libtpu obeys it
        tell(f'note: TPU_VISIBLE_CHIPS={chips} is set: this process uses these chips only')
    # The hosts of a pod come up minutes apart, mostly because installing takes long.
    arguments: Any = {'initialization_timeout': _whole_number('BERT_JAX_JOIN_SECONDS') or 600}
    if (process_id := _whole_number('JAX_PROCESS_ID')) is not None:
        arguments |= {'num_processes': tasks['JAX_NUM_PROCESSES'], 'process_id': process_id}
    if process_id is not None or not any(name in os.environ for name in _NOTEBOOKS):
        try:
            jax.distributed.initialize(**arguments)
        except ValueError as error:
            if 'coordinator_address' not in str(error):  # else no cluster: one process runs
                raise
    if count() > 1:
        # CPUs run independent programs in any order, so hosts could enter the collectives of two
        # programs in different orders and deadlock.
        jax.config.update('jax_cpu_enable_async_dispatch', False)
    for size, number in _TASK_COUNTS:
        if tasks[size] > 1 and count() == 1:
            raise InputError(
                f'this process is task {os.environ.get(number, "?")} of {tasks[size]} ({size}), '
                f'and they have not joined: start one task, or set {", ".join(_CLUSTER)} for each')


def _whole_number(variable: str) -> int | None:
    """The number in an environment variable; None if it is not set.

    Raises:
      InputError: it is not a whole number from 0.
    """
    value = os.environ.get(variable)
    if value and not (value.isascii() and value.isdigit()):
        raise InputError(f'{variable}={value!r} in the environment is not a whole number')
    return int(value) if value else None


def check_accelerators() -> None:
    """Refuses to train on the CPU of a machine whose accelerator jax does not see.

    Raises:
      InputError: there is such an accelerator, and JAX_PLATFORMS is not set.
    """
    if os.environ.get('JAX_PLATFORMS') or jax.default_backend() != 'cpu':
        return
    kind, _ = chips()
    if kind != 'cpu':
        name, extra = {'tpu': ('a TPU', 'tpu'), 'gpu': ('an NVIDIA GPU', 'cuda13')}[kind]
        raise InputError(
            f"this machine has {name} and jax {jax.__version__} uses the CPU: pip install "
            f"'jax[{extra}]=={jax.__version__}', or set JAX_PLATFORMS=cpu to train on the CPU")


def chips() -> tuple[str, list[str]]:
    """('tpu', 'gpu' or 'cpu', names of this machine's chips), without starting jax.

    Only those that the environment leaves visible; for a CPU, the virtual devices of XLA_FLAGS.
    """
    tpus = sum(read_system(f'{path}/vendor') == '0x1ae0'
               and read_system(f'{path}/device') in _TPU_DEVICES
               for path in glob.glob('/sys/bus/pci/devices/*'))
    gpus = len(glob.glob('/dev/nvidia[0-9]*'))
    kind, number, variable = ('tpu', tpus, 'TPU_VISIBLE_CHIPS') if tpus else (
        'gpu', gpus, 'CUDA_VISIBLE_DEVICES')
    hidden = kind == 'gpu' and os.environ.get(variable) in ('', '-1')
    if hidden or not number or os.environ.get('JAX_PLATFORMS') == 'cpu':
        virtual = re.search(VIRTUAL + '=([0-9]+)', os.environ.get('XLA_FLAGS', ''))
        kind, number, variable = 'cpu', int(virtual[1]) if virtual else 1, ''
    visible = os.environ.get(variable, '')
    return kind, visible.split(',') if visible else [str(i) for i in range(number)]


# To look for a TPU, jax would load an installed libtpu, which prints errors if there is none.
if (not getattr(jax.config, 'jax_platforms', None) and importlib.util.find_spec('libtpu')
        and chips()[0] == 'cpu' and not glob.glob('/dev/accel*') + glob.glob('/dev/vfio/*')):
    jax.config.update('jax_platforms', 'cpu')


def share(name: str, make: Callable[[], str]) -> str:
    """Broadcasts the result of `make` from the first host; the others wait without a timeout."""
    if count() == 1:
        return make()
    key = f'bert_jax/{next(_calls)}/{name}'
    if not first():
        return _get(key)
    value = make()
    state().client.key_value_set(key, value)
    return value


def exchange(name: str, value: str) -> list[str]:
    """The (short) values of all hosts, in the order of their indices."""
    if count() == 1:
        return [value]
    key = f'bert_jax/{next(_calls)}/{name}'
    state().client.key_value_set(f'{key}/{index()}', value)
    return json.loads(share(name, lambda: json.dumps([_get(f'{key}/{i}') for i in range(count())])))


def barrier(name: str) -> None:
    """Waits until every host is here."""
    exchange(name, '')


def agree(what: str, values: Mapping[str, Any]) -> None:
    """Checks that values are equal on all hosts.

    Args:
      what: name of the values, for the message.
      values: by name; values that JSON can hold.

    Raises:
      InputError: on all hosts, with the first host that differs from host 0 and its differences.
    """
    if count() == 1:
        return
    theirs = json.loads(share(what, lambda: json.dumps(values)))
    ours = json.loads(json.dumps(values))
    differences = [
        f'{name} is {theirs.get(name)!r} on host 0 and {ours.get(name)!r} on host {index()}'
        for name in sorted(set(ours) | set(theirs)) if ours.get(name) != theirs.get(name)]
    lines = [line for line in exchange(what, '; '.join(differences[:3])) if line]
    if lines:
        raise InputError(f'{what} must be the same on all hosts: {lines[0]}')


def _get(key: str) -> str:
    """Waits for the value of a key, with a short timeout so that Python can handle signals."""
    while True:
        try:
            return state().client.blocking_key_value_get(key, 1000)
        except Exception as error:
            if 'DEADLINE_EXCEEDED' not in str(error):
                raise


def say(line: str) -> None:
    """Prints on the first host only.

    A run outlives the reader of its output, and a full disk there: from then on, nothing more is
    printed.
    """
    if not first():
        return
    try:
        print(line, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        tell(f'note: standard output takes nothing any more ({error.strerror}); the run goes on '
             'without it')
