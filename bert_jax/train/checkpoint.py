"""Checkpoints: saved asynchronously, restored onto any mesh, with scanned layers or without."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from bert_jax.runtime import files, hosts
from bert_jax.runtime.checksum import (
    CHECKSUMS,
    check_digest,
    checksums,
    leaf_name,
    leaves,
    not_finite,
    saved_tree,
    with_digest,
)
from bert_jax.runtime.errors import Diverged, InputError
from bert_jax.train.sharding import MESH_AXES
from bert_jax.train.step import TrainState

_STACKED = re.compile(r'(.*encoder/)layer/(.*)')
_SINGLE = re.compile(r'(.*encoder/)layer_([0-9]+)/(.*)')
Structs = dict[str, jax.ShapeDtypeStruct]


def as_saved(wanted: Structs, saved: Iterable[str]) -> Structs:
    """Shapes of the wanted arrays with layers stacked or not, as in `saved`."""
    saved = set(saved)
    result: Structs = {}
    for name, x in wanted.items():
        stacked, single = _STACKED.fullmatch(name), _SINGLE.fullmatch(name)
        if stacked and _single(stacked, 0) in saved:
            one = _struct(x, x.shape[1:], x.sharding.spec[1:])
            result |= {_single(stacked, i): one for i in range(x.shape[0])}
        elif single and _stacked(single) in saved:
            number = max(int(m[2]) for m in map(_SINGLE.fullmatch, wanted) if m) + 1
            result[_stacked(single)] = _struct(x, (number, *x.shape), (None, *x.sharding.spec))
        else:
            result[name] = x
    return result


def restack(arrays: dict[str, jax.Array], wanted: Structs) -> dict[str, jax.Array]:
    """The inverse of `as_saved` for the arrays read; it empties `arrays` to save memory."""
    result: dict[str, jax.Array] = {}
    for name, x in wanted.items():
        stacked, single = _STACKED.fullmatch(name), _SINGLE.fullmatch(name)
        if name in arrays:
            result[name] = arrays.pop(name)
        elif stacked:
            layers = [arrays.pop(_single(stacked, i)) for i in range(x.shape[0])]
            result[name] = _jitted(_stack, x.sharding)(*layers)
        else:
            assert single
            result[name] = _jitted(_pick, x.sharding)(arrays[_stacked(single)], int(single[2]))
    return result


def _single(match: re.Match[str], layer: int) -> str:
    return f'{match[1]}layer_{layer}/{match[2]}'


def _stacked(match: re.Match[str]) -> str:
    return f'{match[1]}layer/{match[3]}'


def _struct(
    x: jax.ShapeDtypeStruct, shape: tuple[int, ...], spec: Iterable[object]
) -> jax.ShapeDtypeStruct:
    sharding = NamedSharding(x.sharding.mesh, PartitionSpec(*spec))
    return jax.ShapeDtypeStruct(shape, x.dtype, sharding=sharding)


def _stack(*layers: jax.Array) -> jax.Array:
    return jnp.stack(layers)


def _pick(layers: jax.Array, layer: jax.Array) -> jax.Array:
    return layers[layer]


@functools.cache
def _jitted(move: Callable[..., jax.Array], sharding: Sharding) -> Callable[..., jax.Array]:
    return jax.jit(move, out_shardings=sharding)


_REPLICAS = MESH_AXES[0]
Structs_replicas = dict[str, jax.ShapeDtypeStruct]


def on_first(wanted: Structs_replicas) -> Structs_replicas:
    """The same shapes on the first replica's devices only."""
    def moved(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(_first(x.sharding.mesh), x.sharding.spec)
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    return {name: moved(x) for name, x in wanted.items()}


def holds_first(wanted: Structs_replicas) -> bool:
    """Whether this process has devices of the first replica and therefore reads."""
    mesh = next(iter(wanted.values())).sharding.mesh
    return jax.process_index() in {device.process_index for device in mesh.devices[0].flat}


def spread(arrays: dict[str, jax.Array], wanted: Structs_replicas) -> dict[str, jax.Array]:
    """Broadcasts the first replica's arrays to all devices, bit for bit.

    Orbax's single-replica restore sums floats, which turns -0.0 into 0.0.

    Args:
      arrays: with the shardings of `on_first`; empty on processes without a device of it. It is
        emptied, so that the devices hold the state once and one array twice.
      wanted: shapes and shardings of the result.
    """
    return {name: _spread(arrays.pop(name, None), x) for name, x in wanted.items()}


def _first(mesh: Mesh) -> Mesh:
    assert mesh.axis_names[0] == _REPLICAS
    return Mesh(mesh.devices[:1], mesh.axis_names, axis_types=mesh.axis_types)


def _spread(x: jax.Array | None, like: jax.ShapeDtypeStruct) -> jax.Array:
    mesh = like.sharding.mesh
    spec = PartitionSpec(*(
        tuple(axis for axis in ((axes,) if isinstance(axes, str) else axes or ())
              if axis != _REPLICAS)
        for axes in like.sharding.spec
    ))
    shards = {} if x is None else {shard.device: shard.data for shard in x.addressable_shards}
    del x
    if like.sharding.is_fully_addressable:  # one process: its devices copy, nothing is compiled
        origins = np.broadcast_to(mesh.devices[:1], mesh.devices.shape)
        parts = [
            jax.device_put(shards[origin], device)
            for origin, device in zip(origins.flat, mesh.devices.flat, strict=True)
        ]
        whole = jax.make_array_from_single_device_arrays(
            like.shape, NamedSharding(mesh, spec), parts)
        return jax.device_put(whole, like.sharding)
    # One slice a replica: the first holds the values, the others zeros. Their sum is the values.
    shape = (mesh.shape[_REPLICAS], *like.shape)
    slices = NamedSharding(mesh, PartitionSpec(_REPLICAS, *spec))
    zeros = np.zeros(slices.shard_shape(shape), like.dtype)
    parts = [
        shards.pop(device)[None] if device in shards else jax.device_put(zeros, device)
        for device in slices.addressable_devices
    ]
    stacked = jax.make_array_from_single_device_arrays(shape, slices, parts)
    return _sum(like.sharding)(stacked)


@functools.cache
def _sum(sharding: Sharding) -> Callable[[jax.Array], jax.Array]:
    def add(x: jax.Array) -> jax.Array:
        # As integers: -0.0 + 0.0 is 0.0.
        bits = jax.lax.bitcast_convert_type(x, jnp.dtype(f'uint{8 * x.dtype.itemsize}'))
        return jax.lax.bitcast_convert_type(jnp.sum(bits, axis=0, dtype=bits.dtype), x.dtype)

    return jax.jit(add, out_shardings=sharding)


_T = TypeVar('_T')
_ITEM = 'default'  # orbax's name of what a checkpoint holds
# Codes of TensorStore's errors for missing or damaged bytes. An error without a code is an invalid
# argument, such as metadata that is not JSON. Other codes concern the machine or the network:
# UNAVAILABLE, PERMISSION_DENIED, RESOURCE_EXHAUSTED, …
_DAMAGE = ('DATA_LOSS', 'NOT_FOUND', 'OUT_OF_RANGE', 'FAILED_PRECONDITION', 'INVALID_ARGUMENT')
_MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
# Errors that Python code raises on metadata that is JSON but damaged.
_MISREAD = (KeyError, TypeError, AttributeError, IndexError, NotImplementedError)


class Damaged(Exception):
    """A checkpoint's metadata or bytes are missing or damaged."""


def read(folder: Any, abstract: Any) -> Any:
    """The arrays of a checkpoint with the shardings of `abstract`. All hosts call it.

    One replica reads and broadcasts to the others. Encoder layers may be saved stacked or not.

    Raises:
      InputError: it is of another model or optimizer.
      Damaged: it cannot be read.
      Exception: any other error, on all hosts.
    """
    folder = files.as_path(folder)
    saved = _shapes(folder)
    has_checksums = saved.pop(CHECKSUMS, None) is not None
    wanted = leaves(abstract)
    laid_out = as_saved(wanted, saved)
    _check_same(saved, {name: x.shape for name, x in laid_out.items()}, folder)
    if has_checksums:
        mesh = next(iter(wanted.values())).sharding.mesh
        laid_out[CHECKSUMS] = jax.ShapeDtypeStruct(
            (len(saved),), np.uint32, sharding=NamedSharding(mesh, PartitionSpec())
        )

    def load() -> dict[str, jax.Array]:
        return _load(folder, on_first(laid_out)) if holds_first(laid_out) else {}

    arrays = spread(on_all_hosts('read a checkpoint', load), laid_out)
    if has_checksums:
        written = np.asarray(arrays.pop(CHECKSUMS))
        on_all_hosts('verify a checkpoint', lambda: _verify(arrays, written))
    arrays = restack(arrays, wanted)
    structure = jax.tree.structure(abstract)
    return jax.tree.unflatten(structure, [arrays[name] for name in wanted])


def on_all_hosts(what: str, act: Callable[[], _T]) -> _T:
    """Returns the result of `act`. All hosts call it; a failure on one host fails all.

    Raises:
      Damaged: a host found damage.
      Exception: another error on a host; that host raises the error itself.
    """
    try:
        result, fault = act(), None
    except Exception as error:
        result, fault = None, _cause(error)
    reported = ''
    if fault is not None:
        reported = ('damaged ' if _is_damage(fault) else 'failed ') + first_line(fault)
    results = [text.partition(' ') for text in hosts.exchange(what, reported)]
    if fault is not None and reported.startswith('failed'):
        raise fault
    for host, (kind, _, line) in enumerate(results):
        if kind == 'failed':
            raise RuntimeError(f'host {host} failed to {what}: {line}')
    for kind, _, line in results:
        if kind == 'damaged':
            raise Damaged(line) from fault
    return result  # type: ignore[return-value]


def first_line(error: BaseException) -> str:
    """The first line of an error."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def _cause(error: BaseException) -> BaseException:
    """The error that orbax wrapped in a plain Exception."""
    while type(error) is Exception and error.__cause__ is not None:
        error = error.__cause__
    return error


def _is_damage(error: BaseException) -> bool:
    if isinstance(error, (Damaged, *_MISSING, *_MISREAD)):
        return True
    if not isinstance(error, ValueError):  # JSON and text decoding raise kinds of ValueError
        return False
    code = re.match(r'([A-Z_]{5,}): ', str(error))
    return code is None or code[1] in _DAMAGE


def _shapes(folder: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of a saved tree by name. The first host reads them for all."""
    def describe() -> str:
        if not hosts.first():
            return ''
        _, saved = _description(folder)
        return json.dumps({name: x.shape for name, x in saved.items()})

    text = on_all_hosts('describe a checkpoint', describe)
    shapes = json.loads(hosts.share('shapes', lambda: text))
    return {name: tuple(shape) for name, shape in shapes.items()}


def _load(folder: Any, wanted: dict[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    """This process's shards. Orbax needs a target with the structure of the saved tree."""
    tree, _ = _description(folder)
    target = jax.tree_util.tree_map_with_path(
        lambda path, x: wanted[leaf_name(path)] if _is_array(x) else x, tree, is_leaf=_is_array
    )
    handler = ocp.StandardCheckpointHandler()
    try:
        return leaves(handler.restore(folder / _ITEM, args=ocp.args.StandardRestore(target)))
    finally:
        handler.close()


def _description(folder: Any) -> tuple[Any, dict[str, Any]]:
    """The saved tree of array metadata, and that metadata by name."""
    handler = ocp.StandardCheckpointHandler()
    try:
        tree = getattr(handler.metadata(folder / _ITEM), 'tree', None)
    finally:
        handler.close()
    if tree is None:
        raise Damaged('it has no description')
    result = jax.tree_util.tree_leaves_with_path(tree, is_leaf=_is_array)
    return tree, {leaf_name(path): x for path, x in result if _is_array(x)}


def _is_array(x: Any) -> bool:
    return hasattr(x, 'shape') and hasattr(x, 'dtype')


def _verify(arrays: dict[str, jax.Array], written: np.ndarray) -> None:
    differing = np.flatnonzero(checksums(arrays) != written)
    if differing.size:
        raise Damaged(f'{sorted(arrays)[differing[0]]} is not what was saved')


def _check_same(
    saved: dict[str, tuple[int, ...]], wanted: dict[str, tuple[int, ...]], where: Any
) -> None:
    # Parameters first: their names say more than those of moments.
    for name, shape in sorted(wanted.items(), key=lambda item: not item[0].startswith('params')):
        if name not in saved:
            raise InputError(
                f'{where} is of another model or optimizer: it has no {name}; give another '
                '--workdir, or the config that it was made with'
            )
        if saved[name] != shape:
            raise InputError(
                f'{where} is of another model: {name} is {list(saved[name])} there and '
                f'{list(shape)} in the config; give another --workdir, or that config'
            )
    extra = sorted(set(saved) - set(wanted))
    if extra:
        raise InputError(
            f'{where} is of another model or optimizer: it also has {extra[0]}; give another '
            '--workdir, or the config that it was made with'
        )


class Checkpoints:
    """The checkpoints of a run, `DIRECTORY/STEP/`.

    Orbax writes beside and renames, so a killed process leaves whole checkpoints only. If the
    newest is damaged all the same (a bad disk), the one before it is restored, and then the damaged
    one is renamed to `STEP.unreadable`. If none can be read, nothing is renamed: the cause may lie
    elsewhere. Any other error is raised.

    Checkpoints are finite, and all but the newest were trained a step further. So a run that keeps
    one checkpoint has two while it trains.
    """

    def __init__(self, directory: Any, keep: int | None):
        self._directory = files.absolute(directory)
        self._manager = ocp.CheckpointManager(
            self._directory,
            item_handlers=ocp.StandardCheckpointHandler(),
            options=ocp.CheckpointManagerOptions(
                max_to_keep=None if keep is None else max(keep, 2), create=True,
                enable_async_checkpointing=True,
                cleanup_tmp_directories=True,  # of saves that were cut off; the run has its claim
            ),
        )
        self._keep = keep

    def latest_step(self) -> int | None:
        """Step of the newest checkpoint, or None."""
        return self._manager.latest_step()

    def restore(self, abstract: TrainState) -> TrainState | None:
        """The newest readable state with the shardings of `abstract`; None without checkpoints.

        All hosts restore the same step.

        Raises:
          InputError: the checkpoint is of another model or optimizer, or none can be read (a run
            never restarts silently).
        """
        steps = json.loads(hosts.share('steps', lambda: json.dumps(
            sorted(self._manager.all_steps(), reverse=True)
        )))
        damaged: dict[int, str] = {}
        for step in steps:
            try:
                tree = read(self._directory / str(step), _as_tree(abstract))
            except Damaged as error:
                damaged[step] = first_line(error)
                continue
            if damaged:
                on_all_hosts('move a checkpoint aside', lambda: self._move_aside(damaged))
                self._manager.reload()
            return TrainState(**tree)
        if damaged:
            raise InputError(
                f'{self._directory} has no checkpoint that can be read (step {steps[0]}: '
                f'{damaged[steps[0]]}): to begin again from step 0, give another --workdir'
            )
        return None

    def _move_aside(self, damaged: dict[int, str]) -> None:
        if not hosts.first():
            return
        for step, fault in damaged.items():
            path = self._directory / str(step)
            aside = self._rename(path, 'unreadable')
            hosts.say(f'warning: checkpoint {path} cannot be read ({fault}); moved to '
                      f'{aside.name}, taking the one before it')

    def _rename(self, path: Any, kind: str) -> Any:
        aside = path.with_name(f'{path.name}.{kind}')
        number = 1
        while aside.exists():
            number += 1
            aside = path.with_name(f'{path.name}.{kind}-{number}')
        path.rename(aside)  # in a bucket its objects are copied, then deleted
        return aside

    def save(self, step: int, state: TrainState) -> None:
        """Starts saving; the state may be donated as soon as this returns.

        Raises:
          Diverged: a parameter or a moment is not finite; nothing is saved.
        """
        if self.latest_step() == step:
            return
        tree = _as_tree(state)
        if name := not_finite(leaves(tree)):
            raise Diverged(f'step {step}: {name} is not finite', step)
        self._manager.save(step, args=ocp.args.StandardSave(saved_tree(tree)))

    def check(self) -> None:
        """Raises the error of a background save, without waiting for its end."""
        self._manager.check_for_errors()

    def set_aside(self, step: int) -> str:
        """Renames the checkpoint of a diverged step to `STEP.diverged`.

        Returns:
          A message about the newest checkpoint left.
        """
        self._manager.wait_until_finished()

        def move() -> None:
            if hosts.first() and step in self._manager.all_steps():
                self._rename(self._directory / str(step), 'diverged')

        on_all_hosts('move a checkpoint aside', move)
        self._manager.reload()
        latest = self.latest_step()
        return ('there is no good checkpoint' if latest is None else
                f'the last good checkpoint, of step {latest:,}, is kept')

    def finish(self) -> None:
        """Deletes all but the checkpoints to keep: the newest is known to be good."""
        self._manager.wait_until_finished()
        if self._keep is not None:
            for step in sorted(self._manager.all_steps())[: -self._keep]:
                self._manager.delete(step)

    def close(self) -> None:
        """Waits for saves under way."""
        self._manager.wait_until_finished()
        self._manager.close()


def _as_tree(state: TrainState) -> dict[str, Any]:
    return {'step': state.step, 'params': state.params, 'opt_state': state.opt_state}


class Best:
    """The parameters of the best evaluation, `DIRECTORY/STEP/`, with its metrics.

    Orbax writes metrics and parameters together and renames, so a killed run keeps a whole one.
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
            self._manager = ocp.CheckpointManager(
                self._directory,
                item_handlers=ocp.StandardCheckpointHandler(),
                options=ocp.CheckpointManagerOptions(
                    max_to_keep=1, create=True, best_fn=lambda metrics: metrics[metric],
                    best_mode='max',
                ),
            )
            result = self.metrics()
            good = result is None or metric in result and all(map(math.isfinite, result.values()))
        except (ValueError, TypeError, KeyError, AttributeError, FileNotFoundError):
            good = False
        if not good:
            raise InputError(
                f'{self._directory} holds no {metric} that can be read (STEP/metrics/metrics): put '
                'it back as it was, or move the folder away and the next evaluation is the best'
            )

    def offer(self, step: int, metrics: dict[str, float], params: Any) -> None:
        """Keeps these parameters if they are better than all before."""
        best = self.metrics()
        if best is None or metrics[self._metric] > best[self._metric]:
            saved = ocp.args.StandardSave(saved_tree({'params': params}))
            self._manager.save(step, args=saved, metrics=with_digest(metrics))
            self._manager.wait_until_finished()  # `params` are donated to the next step

    def step(self) -> int:
        """Step of the best evaluation; 0 before the first."""
        return self._manager.best_step() or 0

    def metrics(self) -> dict[str, float] | None:
        """Metrics of the best evaluation, or None before the first."""
        step = self._manager.best_step()
        return None if step is None else check_digest(
            self._manager.metrics(step), self._directory / str(step) / 'metrics')

    def restore(self, abstract_params: Any) -> tuple[int, Any]:
        """(step, parameters) of the best evaluation.

        Raises:
          InputError: they cannot be read.
        """
        step = self._manager.best_step()
        assert step is not None, 'nothing was offered'
        path = self._directory / str(step)
        try:
            return step, read(path, {'params': abstract_params})['params']
        except Damaged as error:
            raise InputError(
                f'{path} cannot be read ({error}): the parameters of the best evaluation are lost; '
                'move it away, and start again for the result of the last one'
            ) from error

    def close(self) -> None:
        self._manager.close()
