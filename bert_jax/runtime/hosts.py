"""Host-side messages between the processes of a run.

They go through the key-value store of jax's coordination service. No device takes part, so they
work before the first step, while a device waits for a neighbour, and when a host fails. All hosts
call these functions in the same order; with a single process they return at once. `stopping.py`
makes hosts stop and fail together.
"""

import itertools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from bert_jax.runtime import accelerators
from bert_jax.runtime.errors import InputError, show, tell

_CLUSTER = ('JAX_COORDINATOR_ADDRESS', 'JAX_NUM_PROCESSES', 'JAX_PROCESS_ID')


class _Launcher(NamedTuple):
    """The environment variables by which a launcher numbers the processes that it starts."""

    num_tasks: str
    task: str


_LAUNCHERS = (
    _Launcher(num_tasks='JAX_NUM_PROCESSES', task='JAX_PROCESS_ID'),
    _Launcher(num_tasks='SLURM_STEP_NUM_TASKS', task='SLURM_PROCID'),
    _Launcher(num_tasks='OMPI_COMM_WORLD_SIZE', task='OMPI_COMM_WORLD_RANK'),
    _Launcher(num_tasks='PMI_SIZE', task='PMI_RANK'),
)
# Variables of a TPU run on several slices.
_SLICES = ('MEGASCALE_COORDINATOR_ADDRESS', 'MEGASCALE_NUM_SLICES', 'MEGASCALE_SLICE_ID')
# Single-host notebooks: looking for a cluster there would only take time.
_NOTEBOOKS = ('COLAB_RELEASE_TAG', 'COLAB_GPU', 'KAGGLE_KERNEL_RUN_TYPE')
_calls = itertools.count()

accelerators.skip_absent_tpu()  # here, because every command imports this file before it starts jax


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
    _check_complete(_CLUSTER)
    _check_complete(_SLICES)
    num_tasks = {launcher: _whole_number(launcher.num_tasks) or 1 for launcher in _LAUNCHERS}
    visible_chips = os.environ.get('TPU_VISIBLE_CHIPS')
    if visible_chips:  # perhaps of another run; libtpu obeys it
        tell(f'note: TPU_VISIBLE_CHIPS={visible_chips} is set: this process uses these chips only')
    # The hosts of a pod come up minutes apart, mostly because installing takes long.
    arguments = {'initialization_timeout': _whole_number('BERT_JAX_JOIN_SECONDS') or 600}
    process_id = _whole_number('JAX_PROCESS_ID')
    if process_id is not None:
        arguments['num_processes'] = _whole_number('JAX_NUM_PROCESSES') or 1
        arguments['process_id'] = process_id
    is_notebook = any(name in os.environ for name in _NOTEBOOKS)
    if process_id is not None or not is_notebook:
        _join_cluster(arguments)
    if count() > 1:
        # CPUs run independent programs in any order, so hosts could enter the collectives of two
        # programs in different orders and deadlock.
        jax.config.update('jax_cpu_enable_async_dispatch', False)
        return
    for launcher, num in num_tasks.items():
        if num > 1:
            task = os.environ.get(launcher.task, '?')
            raise InputError(
                f'this process is task {task} of {num} ({launcher.num_tasks}), and they have not '
                f'joined: start one task, or set {", ".join(_CLUSTER)} for each')


def _check_complete(names: Sequence[str]) -> None:
    """Refuses an environment that has some of these variables and lacks others."""
    missing = [name for name in names if not os.environ.get(name)]
    if missing and len(missing) < len(names):
        raise InputError(f'{", ".join(missing)} is not set in the environment: set '
                         f'{", ".join(names)}, or none of them')


def _join_cluster(arguments: Mapping[str, Any]) -> None:
    """Initializes jax's processes, unless jax detects no cluster: then this process is alone."""
    try:
        jax.distributed.initialize(**arguments)
    except ValueError as error:
        if 'coordinator_address' not in str(error):
            raise


def _whole_number(variable: str) -> int | None:
    """The number in an environment variable; None if it is not set.

    Raises:
      InputError: it is not a whole number from 0.
    """
    value = os.environ.get(variable)
    if value and not (value.isascii() and value.isdigit()):
        raise InputError(f'{variable}={value!r} in the environment is not a whole number')
    return int(value) if value else None


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

    def gather() -> str:
        return json.dumps([_get(f'{key}/{host}') for host in range(count())])

    return json.loads(share(name, gather))


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
    differences = []
    for name in sorted(set(ours) | set(theirs)):
        on_first, here = theirs.get(name), ours.get(name)
        if here != on_first:
            differences.append(
                f'{name} is {on_first!r} on host 0 and {here!r} on host {index()}')
    for line in exchange(what, '; '.join(differences[:3])):
        if line:
            raise InputError(f'{what} must be the same on all hosts: {line}')


def _get(key: str) -> str:
    """Waits for the value of a key, with a short timeout so that Python can handle signals."""
    while True:
        try:
            return state().client.blocking_key_value_get(key, 1000)
        except Exception as error:
            if 'DEADLINE_EXCEEDED' not in str(error):
                raise


def say(line: str) -> None:
    """Prints a line on standard output, at once, on the first host only; see `errors.show`."""
    if first():
        show(line)
