"""Reading one checkpoint, on all hosts alike: damage is told apart from every other fault.

Orbax's handlers read it, without its barriers: where one host fails, the others would wait at them
for minutes. Instead the hosts tell each other how reading went, and do the same about it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import NamedSharding, PartitionSpec

from bert_jax.runtime import files, hosts
from bert_jax.runtime.checksum import CHECKSUMS, checksums, leaf_name, leaves
from bert_jax.runtime.errors import InputError
from bert_jax.train.replicas import holds_first, on_first, spread
from bert_jax.train.restack import as_saved, restack

_T = TypeVar('_T')
_ITEM = 'default'  # orbax's name of what a checkpoint holds
# What TensorStore's faults begin with where bytes are missing or are no checkpoint's; a fault
# without a code is an invalid argument to it, such as a description that is no JSON. Any other code
# is of the machine or the network: UNAVAILABLE, PERMISSION_DENIED, RESOURCE_EXHAUSTED, …
_DAMAGE = ('DATA_LOSS', 'NOT_FOUND', 'OUT_OF_RANGE', 'FAILED_PRECONDITION', 'INVALID_ARGUMENT')
_MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
# How Python code falls over a description that is JSON, but not the one that was written.
_MISREAD = (KeyError, TypeError, AttributeError, IndexError, NotImplementedError)


class Damaged(Exception):
    """A checkpoint's description or bytes are missing, or are not what was written."""


def read(folder: Any, abstract: Any) -> Any:
    """The arrays of a checkpoint, laid out as `abstract` says. Called by all hosts.

    One replica reads, and the others get it from there. Encoder layers may have been saved stacked
    or not.

    Raises:
      InputError: it is of another model or optimizer.
      Damaged: it cannot be read.
      Exception: any other fault, on all hosts.
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
    """What `act` returns. All hosts call it, and where it fails on one it fails on all.

    Raises:
      Damaged: a host found damage.
      Exception: a host met another fault; on that host it is the fault itself.
    """
    try:
        result, fault = act(), None
    except Exception as error:
        result, fault = None, _cause(error)
    told = ''
    if fault is not None:
        told = ('damaged ' if _is_damage(fault) else 'failed ') + first_line(fault)
    found = [text.partition(' ') for text in hosts.exchange(what, told)]
    if fault is not None and told.startswith('failed'):
        raise fault
    for host, (kind, _, line) in enumerate(found):
        if kind == 'failed':
            raise RuntimeError(f'host {host} failed to {what}: {line}')
    for kind, _, line in found:
        if kind == 'damaged':
            raise Damaged(line) from fault
    return result  # type: ignore[return-value]


def first_line(error: BaseException) -> str:
    """What an error says, in short."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def _cause(error: BaseException) -> BaseException:
    """The fault that orbax packed into a plain Exception."""
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
    """This process's shards. Orbax wants a tree of the saved one's structure, whatever ours is."""
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
    """The saved tree with what each array is in its place, and those by name."""
    handler = ocp.StandardCheckpointHandler()
    try:
        tree = getattr(handler.metadata(folder / _ITEM), 'tree', None)
    finally:
        handler.close()
    if tree is None:
        raise Damaged('it has no description')
    found = jax.tree_util.tree_leaves_with_path(tree, is_leaf=_is_array)
    return tree, {leaf_name(path): x for path, x in found if _is_array(x)}


def _is_array(x: Any) -> bool:
    return hasattr(x, 'shape') and hasattr(x, 'dtype')


def _verify(arrays: dict[str, jax.Array], written: np.ndarray) -> None:
    differing = np.flatnonzero(checksums(arrays) != written)
    if differing.size:
        raise Damaged(f'{sorted(arrays)[differing[0]]} is not what was saved')


def _check_same(
    saved: dict[str, tuple[int, ...]], wanted: dict[str, tuple[int, ...]], where: Any
) -> None:
    # Parameters first: they say more than the moments made after them.
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
