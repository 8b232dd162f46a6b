"""A process joins the others of its run, if jax or the environment says that there are some."""

import os
import threading
from collections.abc import Sequence
from typing import NamedTuple

import jax

from bert_jax.runtime import hosts, joining
from bert_jax.runtime.errors import InputError, tell

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
_JOIN_SECONDS = 600  # hosts come up minutes apart, mostly because installing takes long
_CONNECT_SECONDS = 60  # once all are there


def connect() -> None:
    """Joins the other processes of the run, if jax or the environment names a cluster.

    jax detects TPU VMs (by their metadata server), GKE, SLURM and Open MPI. Elsewhere
    JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID name the cluster.

    While some are missing, it prints a line a minute.

    Raises:
      InputError: this process was started as one of several, and they have not joined; or the
        environment has only some of the variables, perhaps those of another run.
      Unavailable: some hosts have not come within the limit, or host 0 cannot be reached.
    """
    _check_complete(_CLUSTER)
    _check_complete(_SLICES)
    num_tasks = {launcher: _whole_number(launcher.num_tasks) or 1 for launcher in _LAUNCHERS}
    visible_chips = os.environ.get('TPU_VISIBLE_CHIPS')
    if visible_chips:  # perhaps of another run; libtpu obeys it
        tell(f'note: TPU_VISIBLE_CHIPS={visible_chips} is set: this process uses these chips only')
    process_id = _whole_number('JAX_PROCESS_ID')
    limit = _whole_number('BERT_JAX_JOIN_SECONDS') or _JOIN_SECONDS
    is_notebook = any(name in os.environ for name in _NOTEBOOKS)
    if process_id is not None or not is_notebook:
        num_processes = None if process_id is None else _whole_number('JAX_NUM_PROCESSES') or 1
        cluster = joining.find_cluster(num_processes, process_id, limit)
        if cluster is not None:
            _join(cluster, limit)
    if hosts.count() > 1:
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


def _join(cluster: joining.Cluster, limit: float) -> None:
    """Waits for all processes of the cluster, and connects them.

    If one of them ends in between, jax would abort the others, so this ends them before.
    """
    has_joined = threading.Event()

    def leave_if_not_joined() -> None:
        if not has_joined.wait(_CONNECT_SECONDS):
            tell(f'error: the {cluster.count} hosts met, and then did not connect within '
                 f'{_CONNECT_SECONDS} s: one of them has ended, as its log says; start all again')
            os._exit(1)

    if cluster.count > 1:
        joining.meet(cluster, limit)
        threading.Thread(target=leave_if_not_joined, daemon=True).start()
    try:
        jax.distributed.initialize(
            cluster.address, cluster.count, cluster.index,
            initialization_timeout=2 * _CONNECT_SECONDS)
    finally:
        has_joined.set()


def _whole_number(variable: str) -> int | None:
    """The number in an environment variable; None if it is not set.

    Raises:
      InputError: it is not a whole number from 0.
    """
    value = os.environ.get(variable)
    if value and not (value.isascii() and value.isdigit()):
        raise InputError(f'{variable}={value!r} in the environment is not a whole number')
    return int(value) if value else None
