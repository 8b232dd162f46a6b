"""Checkpoints: saved asynchronously, restored onto any mesh."""

import contextlib
import functools
import itertools
import math
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from orbax.checkpoint.checkpoint_managers import preservation_policy

from bert_jax.run.layout import STATE
from bert_jax.run.ranking import loss_of, rank
from bert_jax.runtime import checksum, files, hosts
from bert_jax.runtime.errors import Diverged, InputError, SaveFailed, first_line
from bert_jax.runtime.hosts import say
from bert_jax.runtime.pauses import waiting_for
from bert_jax.runtime.process import describe_error
from bert_jax.step.step import TrainState

Shapes = Mapping[str, tuple[int, ...]]
_T = TypeVar('_T')
# Codes of TensorStore's errors for missing or damaged bytes. An error without a code means an
# invalid argument, such as metadata that is not JSON. Other codes concern the machine or network:
# UNAVAILABLE, PERMISSION_DENIED, RESOURCE_EXHAUSTED, …
_DAMAGE = ('DATA_LOSS', 'NOT_FOUND', 'OUT_OF_RANGE', 'FAILED_PRECONDITION', 'INVALID_ARGUMENT')
# Errors that Python code raises if files are missing, or metadata is valid JSON but damaged.
_MISREAD = (FileNotFoundError, NotADirectoryError, IsADirectoryError,
            KeyError, TypeError, AttributeError, IndexError, NotImplementedError)


# Bytes. Of an array that several devices hold, each saves a part, and cutting parts off takes a
# program for each shape: where they are small, compiling it takes longer than it saves.
_LEAST_PART = 1 << 20


class Damaged(Exception):
    """A checkpoint's metadata or bytes are missing or damaged."""


class OtherOptimizer(InputError):
    """A checkpoint is of the same model, trained by another optimizer."""


def read(
    folder: Any, abstract: Any, added_later: Mapping[str, Callable[[int], Any]] | None = None
) -> Any:
    """Reads the arrays of a checkpoint with the shardings of `abstract`. All hosts call it.

    One replica reads them and broadcasts them to the others.

    Args:
      folder: of the checkpoint, named after its step.
      abstract: shapes, dtypes and shardings of what it holds.
      added_later: for scalars that checkpoints of older versions lack, by the last part of their
        names: their value at a step.

    Raises:
      InputError: the checkpoint is of another model or optimizer (`OtherOptimizer`).
      Damaged: it cannot be read; raised on all hosts.
      Exception: any other error, on the host where it occurs.
    """
    folder = files.as_path(folder)
    describe = functools.cache(lambda: _description(folder))
    saved = _shapes(describe)
    has_checksums = saved.pop(checksum.CHECKSUMS, None) is not None
    wanted = checksum.leaves(abstract)
    arrays = {}
    for name in wanted.keys() - saved.keys():
        value_at = (added_later or {}).get(name.rpartition('/')[2])
        if value_at is not None:
            arrays[name] = _scalar(value_at(int(folder.name)), wanted.pop(name))
    _check_same(saved, {name: x.shape for name, x in wanted.items()}, folder)
    mesh = next(iter(wanted.values())).sharding.mesh
    if has_checksums:
        wanted[checksum.CHECKSUMS] = jax.ShapeDtypeStruct(
            (len(saved),), np.uint32, sharding=NamedSharding(mesh, PartitionSpec()))
    if jax.process_count() == 1:
        read_arrays = _on_all_hosts(
            'read a checkpoint', lambda: _load(folder, describe, wanted, mesh))
    else:
        read_arrays = _read_once_and_broadcast(folder, describe, wanted, mesh)
    if has_checksums:
        written = np.asarray(read_arrays.pop(checksum.CHECKSUMS))
        _on_all_hosts('verify a checkpoint', lambda: _verify(read_arrays, written))
    arrays |= read_arrays
    in_order = [arrays[name] for name in checksum.leaves(abstract)]
    return jax.tree.unflatten(jax.tree.structure(abstract), in_order)


def _scalar(value: Any, like: jax.ShapeDtypeStruct) -> jax.Array:
    """A scalar on all devices."""
    return jax.make_array_from_callback(
        (), like.sharding, lambda _: np.asarray(value, like.dtype))


def _read_once_and_broadcast(
    folder: Any, describe: Callable[[], Any], wanted: Mapping[str, jax.ShapeDtypeStruct],
    mesh: Mesh,
) -> dict[str, jax.Array]:
    """The arrays on the whole mesh, of which the first replica reads each shard once."""
    replica = Mesh(mesh.devices[:1], mesh.axis_names, axis_types=mesh.axis_types)
    readers = {device.process_index for device in replica.devices.flat}

    def load_own() -> dict[str, jax.Array]:
        if jax.process_index() not in readers:
            return {}
        return _load(folder, describe, wanted, replica)

    read_here = _on_all_hosts('read a checkpoint', load_own)
    arrays = {}
    for name, like in wanted.items():
        # One at a time, and forgotten, so that devices hold only one array twice.
        arrays[name] = _broadcast(read_here.pop(name, None), like)
    return arrays


def _broadcast(x: jax.Array | None, like: jax.ShapeDtypeStruct) -> jax.Array:
    """Broadcasts an array of the first replica to all devices, bit for bit.

    Orbax's single-replica restore sums floats, which turns -0.0 into 0.0.

    Args:
      x: on the first replica's devices; None on processes without one of them.
      like: shape and sharding of the result.
    """
    mesh = like.sharding.mesh
    replicas = mesh.axis_names[0]
    spec = []
    for axes in like.sharding.spec:
        if isinstance(axes, str):
            axes = (axes,)
        spec.append(tuple(axis for axis in axes or () if axis != replicas))
    # One slice for each replica: the first holds the values, the others zeros; their sum is `x`.
    shape = (mesh.shape[replicas], *like.shape)
    sharding = NamedSharding(mesh, PartitionSpec(replicas, *spec))
    shards = {}
    if x is not None:
        shards = {shard.device: shard.data for shard in x.addressable_shards}
    del x
    zeros = np.zeros(sharding.shard_shape(shape), like.dtype)
    slices = []
    for device in sharding.addressable_devices:
        if device in shards:
            slices.append(shards.pop(device)[None])
        else:
            slices.append(jax.device_put(zeros, device))
    return jax.jit(_filled_slice, out_shardings=like.sharding)(
        jax.make_array_from_single_device_arrays(shape, sharding, slices))


def _filled_slice(x: jax.Array) -> jax.Array:
    """The slice x[i] in which not all is 0, bit for bit."""
    bits = jax.lax.bitcast_convert_type(x, jnp.dtype(f'uint{8 * x.dtype.itemsize}'))
    return jax.lax.bitcast_convert_type(jnp.sum(bits, axis=0, dtype=bits.dtype), x.dtype)


def _on_all_hosts(what: str, act: Callable[[], _T]) -> _T:
    """Returns the result of `act`. All hosts call it, and damage on one host is damage on all.

    Any other error ends the host where it occurs, and `runtime.stopping.Guard` ends the others.

    Raises:
      Damaged: a host found damage.
    """
    fault: BaseException | None = None
    try:
        result = act()
    except Exception as error:
        fault = error
        while type(fault) is Exception and fault.__cause__ is not None:
            fault = fault.__cause__  # orbax wraps errors in a plain Exception
    if fault is not None and not _is_damage(fault):
        raise fault
    for line in hosts.exchange(what, first_line(fault) if fault else ''):
        if line:
            raise Damaged(line) from fault
    return result


def _is_damage(error: BaseException) -> bool:
    if isinstance(error, (Damaged, *_MISREAD)):
        return True
    code = re.match(r'([A-Z_]{5,}): ', str(error))
    # JSON and text decoding raise subclasses of ValueError.
    return isinstance(error, ValueError) and (code is None or code[1] in _DAMAGE)


def _shapes(describe: Callable[[], Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of a saved tree, which `describe` reads, by name. The first host reads for all."""
    def by_name() -> dict[str, Any]:
        tree = jax.tree_util.tree_leaves_with_path(describe(), is_leaf=checksum.is_array)
        return {checksum.leaf_name(path): x.shape for path, x in tree if checksum.is_array(x)}

    read = _on_all_hosts('describe a checkpoint', lambda: by_name() if hosts.first() else {})
    shapes = hosts.share_json('shapes', lambda: read)
    return {name: tuple(shape) for name, shape in shapes.items()}


def _load(
    folder: Any, describe: Callable[[], Any], wanted: Mapping[str, jax.ShapeDtypeStruct],
    mesh: Mesh,
) -> dict[str, jax.Array]:
    """This process's shards on `mesh`, which may be a part of the mesh of `wanted`."""
    def struct(path: Any, x: Any) -> Any:
        if not checksum.is_array(x):
            return x
        like = wanted[checksum.leaf_name(path)]
        return jax.ShapeDtypeStruct(
            like.shape, like.dtype, sharding=NamedSharding(mesh, like.sharding.spec))

    # Orbax needs a target with the structure of the saved tree.
    target = jax.tree_util.tree_map_with_path(
        struct, describe(), is_leaf=checksum.is_array)
    with contextlib.closing(ocp.StandardCheckpointHandler()) as handler:
        restored = handler.restore(folder / STATE, args=ocp.args.StandardRestore(target))
    return checksum.leaves(restored)


def _description(folder: Any) -> Any:
    """The saved tree of array metadata."""
    with contextlib.closing(ocp.StandardCheckpointHandler()) as handler:
        tree = getattr(handler.metadata(folder / STATE), 'tree', None)
    if tree is None:
        raise Damaged('it has no description')
    return tree


def _verify(arrays: dict[str, jax.Array], written: np.ndarray) -> None:
    differing = np.flatnonzero(checksum.checksums(arrays) != written)
    if differing.size:
        raise Damaged(f'{sorted(arrays)[differing[0]]} is not what was saved')


def _check_same(saved: Shapes, wanted: Shapes, where: Any) -> None:
    def shape_of(name: str, shapes: Shapes) -> str:
        return str(list(shapes[name])) if name in shapes else 'missing'

    def params_first(name: str) -> tuple[bool, str]:  # users know their names, not the moments'
        return not name.startswith('params'), name

    for name in sorted(saved.keys() | wanted.keys(), key=params_first):
        if saved.get(name) != wanted.get(name):
            kind = OtherOptimizer if name.startswith('opt_state') else InputError
            raise kind(
                f'{where} is of another model or optimizer: {name} is {shape_of(name, saved)} '
                f'there and {shape_of(name, wanted)} in the config; give another --workdir, or the '
                'config that it was made with')


def _manager(directory: Any, **options: Any) -> ocp.CheckpointManager:
    handler: Any = ocp.type_handlers.get_type_handler(jax.Array)
    handler._min_slice_bytes_for_replica_parallel = _LEAST_PART  # no public name reaches it
    return ocp.CheckpointManager(directory, options=ocp.CheckpointManagerOptions(**options))


class _Saves:
    """Saves of a manager in the background; the error of one is known as soon as it happens.

    Orbax raises it only in a thread of its own, which then waits twenty minutes for the threads of
    the other hosts.
    """

    def __init__(self, manager: ocp.CheckpointManager):
        """Saves by a manager."""
        self._manager = manager
        self._step = 0  # of the last save
        self._error: BaseException | None = None
        self._fault: SaveFailed | None = None
        self._lock = threading.Lock()
        checkpointer: Any = manager._checkpointer  # no public name reaches it
        self._wait_for_files = checkpointer.wait_until_finished
        checkpointer.wait_until_finished = self._note_error

    def _note_error(self) -> None:
        try:
            self._wait_for_files()
        except BaseException as error:
            self._error = error
            raise

    def save(self, step: int, **options: Any) -> None:
        """Starts a save once the one before is finished; raises SaveFailed."""
        self.wait()
        self._step = step
        with self._raising():
            self._manager.save(step, **options)

    def wait(self) -> None:
        """Waits for unfinished saves; raises SaveFailed."""
        self.check()
        with self._raising():
            self._manager.wait_until_finished()

    def close(self) -> None:
        """Waits for unfinished saves and closes the manager; raises SaveFailed."""
        self.wait()
        with self._raising():
            self._manager.close()

    def check(self) -> None:
        """Raises SaveFailed if a save has failed; it does not wait for one."""
        fault = self.fault()
        if fault is not None:
            raise fault from self._error

    def fault(self) -> SaveFailed | None:
        """The error that `check` raises, if there is one; any thread may call this."""
        with self._lock:
            if self._fault is None and self._error is not None:
                self._fault = self._describe(self._error)
        return self._fault

    def _describe(self, error: BaseException) -> SaveFailed | None:
        """The report of an error; None if it comes from jax's service: another host has ended."""
        if _is_of_service(error):
            return None
        line, _ = describe_error(error, self._manager.directory)
        return SaveFailed(f'the checkpoint of step {self._step:,} cannot be saved: {line}')

    @contextlib.contextmanager
    def _raising(self) -> Iterator[None]:
        """Turns errors of the block into SaveFailed."""
        try:
            yield
        except Exception as error:
            self.check()
            fault = self._describe(error)
            if fault is None:
                raise
            self.note(fault)
            raise fault from error

    def note(self, fault: SaveFailed) -> None:
        """Takes a fault for `check` to raise."""
        with self._lock:
            self._fault = fault


def _is_of_service(error: BaseException | None) -> bool:
    """Whether jax's coordination service is the cause of an error."""
    while error is not None:
        if isinstance(error, jax.errors.JaxRuntimeError):
            return True
        error = error.__cause__
    return False


class _KeepNewest(preservation_policy.PreservationPolicy):
    """Tells orbax to keep the newest checkpoint, and the newest of those at regular steps."""

    def __init__(self, number: int | None, every: int):
        self._number = number
        self._every = every

    def is_regular(self, step: int) -> bool:
        """Whether the run saves at this step whatever the time."""
        return self._every > 0 and step % self._every == 0

    def should_preserve(
        self, checkpoints: Sequence[Any], *, context: preservation_policy.PreservationContext
    ) -> list[bool]:
        steps = sorted(checkpoint.step for checkpoint in checkpoints)
        if self._number is None:
            return [True] * len(steps)
        regular = [step for step in steps if self.is_regular(step)]
        kept = {*regular[-self._number :], *steps[-1:]}
        if len(kept) < 2:  # the newest may turn out to be damaged
            kept.update(steps[-2:])
        return [checkpoint.step in kept for checkpoint in checkpoints]


class Checkpoints:
    """The checkpoints of a run, `DIRECTORY/STEP/`.

    Orbax writes to a temporary folder and renames it, or in a bucket writes `commit_success.txt`
    last. So a save that was killed does not count, and the next start deletes it. If the newest
    checkpoint is damaged nevertheless (by a bad disk), the one before it is restored, and the
    damaged one is renamed to `STEP.unreadable`. If none can be read, nothing is renamed: the cause
    may lie elsewhere. Any other error is raised.

    A checkpoint holds no NaN or Inf. The one before the newest is kept until the next save or the
    end of the run, which show that the newest is good. So a run that keeps one checkpoint has two
    while it trains.
    """

    def __init__(self, directory: Any, keep: int | None, every: int = 1):
        """Opens the directory.

        Args:
          directory: `checkpoints/` of the run.
          keep: how many of the newest checkpoints to keep; None: all.
          every: they are at multiples of so many steps (0: there are none). Others, saved because
            time has passed, push none of these out, and only the newest of them is kept.
        """
        self._directory = files.absolute(directory)
        self._num_kept_at_end = keep
        self._policy = _KeepNewest(None if keep is None else max(keep, 2), every)
        self._manager = _manager(
            self._directory, preservation_policy=self._policy,
            cleanup_tmp_directories=True)  # of killed saves; no other process writes here
        self._saves = _Saves(self._manager)

    def latest_step(self) -> int | None:
        """Step of the newest checkpoint, or None."""
        return self._manager.latest_step()

    def restore(
        self, abstract: TrainState, added_later: Mapping[str, Callable[[int], Any]] | None = None
    ) -> TrainState | None:
        """The newest readable state, with the shardings of `abstract`; None without checkpoints.

        All hosts restore the same step.

        Args:
          abstract: shapes, dtypes and shardings.
          added_later: as for `read`.

        Raises:
          InputError: the checkpoint is of another model or optimizer, or none can be read (a run
            never restarts silently).
        """
        newest_first = sorted(self._manager.all_steps(), reverse=True)
        steps = hosts.share_json('steps', lambda: newest_first)
        damaged: dict[int, str] = {}
        for step in steps:
            try:
                tree = read(self._directory / str(step), vars(abstract), added_later)
            except Damaged as error:
                damaged[step] = first_line(error)
                continue
            self._move_aside(damaged, 'unreadable')
            return TrainState(**tree)
        if damaged:
            raise InputError(
                f'{self._directory} has no checkpoint that can be read (step {steps[0]}: '
                f'{damaged[steps[0]]}): to begin again from step 0, give another --workdir')
        return None

    def _move_aside(self, faults: Mapping[int, str], kind: str) -> None:
        """Renames checkpoints to `STEP.KIND`, on the first host, and prints their faults."""
        if not faults:
            return
        if hosts.first():
            for step, fault in faults.items():
                path = self._directory / str(step)
                aside = _free_name(path.with_name(f'{step}.{kind}'))
                path.rename(aside)  # in a bucket its objects are copied, then deleted
                if fault:
                    hosts.say(f'warning: checkpoint {path} cannot be read ({fault}); moved to '
                              f'{aside.name}, taking the one before it')
        hosts.barrier('checkpoints moved')
        self._manager.reload()

    def save(self, step: int, state: TrainState) -> None:
        """Starts to save, if this step is not saved; the state may be donated when this returns.

        Raises:
          Diverged: a parameter or a moment is not finite; nothing is saved.
          SaveFailed: this save cannot begin, or the one before has failed.
        """
        if self.latest_step() == step:
            return
        tree = dict(vars(state))
        name = checksum.not_finite(checksum.leaves(tree))
        if name:
            raise Diverged(f'step {step}: {name} is not finite', step)
        self._saves.save(step, args=ocp.args.StandardSave(checksum.saved_tree(tree)))

    def check(self) -> None:
        """Raises SaveFailed if a save in the background has failed; it does not wait for one."""
        self._saves.check()

    def fault(self) -> SaveFailed | None:
        """The error that `check` raises, if there is one; any thread may call this."""
        return self._saves.fault()

    def note(self, fault: SaveFailed) -> None:
        """Takes the fault of another save, or of what must come before one."""
        self._saves.note(fault)

    def set_aside(self, step: int) -> str:
        """Renames the checkpoint of a diverged step to `STEP.diverged`.

        Returns:
          A message about the newest checkpoint left.
        """
        self._saves.wait()
        if step in self._manager.all_steps():
            self._move_aside({step: ''}, 'diverged')  # '': it can be read
        latest = self.latest_step()
        if latest is None:
            return 'there is no good checkpoint'
        return f'the last good checkpoint, of step {latest:,}, is kept'

    def finish(self) -> None:
        """Leaves only the checkpoints that a finished run keeps.

        They are the last one, which is good, and the newest of those saved at regular steps.
        """
        self._saves.wait()
        if self._num_kept_at_end is None:
            return
        steps = sorted(self._manager.all_steps())
        regular = [step for step in steps[:-1] if self._policy.is_regular(step)]
        kept = [*regular, *steps[-1:]][-self._num_kept_at_end :]
        for step in steps:
            if step not in kept:
                self._manager.delete(step)

    def close(self) -> None:
        """Waits for unfinished saves.

        Raises:
          SaveFailed: one has failed.
        """
        self._saves.close()


def _free_name(path: Any) -> Any:
    """The path, or the first of `PATH-2`, `PATH-3`, ... that does not exist."""
    name = path.name
    for number in itertools.count(2):
        if not path.exists():
            break
        path = path.with_name(f'{name}-{number}')
    return path


class Best:
    """The parameters of the best evaluation, `DIRECTORY/STEP/`, with its metrics.

    Of evaluations with the same metric, the one with the lowest loss is the best, and of those with
    the same loss the first. An undefined metric, which is null in the file, is below all others.
    Orbax writes both to one temporary folder and renames it, so a killed run keeps a whole one.
    """

    def __init__(self, directory: Any, metric: str):
        """Opens the directory.

        Args:
          directory: `best/` of the run.
          metric: name of the metric to maximise.

        Raises:
          InputError: its metrics cannot be read.
        """
        self._metric = metric
        self._directory = files.absolute(directory)
        try:
            self._manager = _manager(
                self._directory, max_to_keep=1, best_fn=lambda metrics: rank(metrics, metric))
            metrics = self.metrics()
            if metrics is None:  # before the first
                metrics = {metric: 0.0}
            known = [value for value in (metrics[metric], *metrics.values()) if value is not None]
            if not all(map(math.isfinite, known)):
                raise ValueError('not finite')
        except (ValueError, TypeError, KeyError, AttributeError, FileNotFoundError):
            raise InputError(
                f'{self._directory} holds no {metric} that can be read (STEP/metrics/metrics): put '
                'it back as it was, or move the folder away and the next evaluation is the best'
            ) from None
        self._saves = _Saves(self._manager)

    def offer(self, step: int, metrics: dict[str, float], params: Any) -> None:
        """Saves these parameters if their evaluation is better than all before.

        Raises:
          SaveFailed: they cannot be written.
          Interrupted: the run has to stop; they are still being written, until `close`.
        """
        metric = self._metric
        best = self.metrics()
        if best is not None and rank(metrics, metric) <= rank(best, metric):
            return
        if best is not None and metrics.get(metric) == best.get(metric):
            say(f'step {step:>7,}  {metric} is as at step {self.step():,}, the best so far; the '
                f'lower loss decides: {loss_of(metrics, metric):.4g}, not '
                f'{loss_of(best, metric):.4g}')
        saved = ocp.args.StandardSave(checksum.saved_tree({'params': params}))
        record = checksum.with_digest({metric: None, **metrics})
        self._saves.save(step, args=saved, metrics=record)
        waiting_for(self._saves.wait)  # `params` are donated to the next step

    def step(self) -> int:
        """Step of the best evaluation; 0 before the first."""
        return self._manager.best_step() or 0

    def metrics(self) -> dict[str, Any] | None:
        """Metrics of the best evaluation, None if undefined; or None before the first."""
        step = self._manager.best_step()
        if step is None:
            return None
        return checksum.check_digest(
            self._manager.metrics(step), self._directory / str(step) / 'metrics')

    def restore(self, abstract_params: Any) -> tuple[int, Any]:
        """(step, parameters) of the best evaluation.

        Raises:
          InputError: they cannot be read.
        """
        path = self._directory / str(self.step())
        try:
            return self.step(), read(path, {'params': abstract_params})['params']
        except Damaged as error:
            raise InputError(
                f'{path} cannot be read ({error}): the parameters of the best evaluation are lost; '
                'move it away, and start again for the result of the last one') from error

    def fault(self) -> SaveFailed | None:
        """Why a save has failed, if one has; any thread may call this."""
        return self._saves.fault()

    def close(self) -> None:
        """Closes the directory."""
        self._saves.close()
