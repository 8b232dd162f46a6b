"""Encoder layers between their two arrangements: one array a layer, or stacked for scanning.

`encoder/layer_0/…`, `encoder/layer_1/…` and `encoder/layer/…` with a leading axis hold the same
numbers, in the parameters as in the optimizer's moments. So a run may go on with the other one.
Trees are flat here: leaves by their path.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec, Sharding

_STACKED = re.compile(r'(.*encoder/)layer/(.*)')
_SINGLE = re.compile(r'(.*encoder/)layer_([0-9]+)/(.*)')
Structs = dict[str, jax.ShapeDtypeStruct]


def as_saved(wanted: Structs, saved: Iterable[str]) -> Structs:
    """What to read in order to have what is wanted: the same, in the arrangement of `saved`."""
    saved = set(saved)
    found: Structs = {}
    for name, x in wanted.items():
        stacked, single = _STACKED.fullmatch(name), _SINGLE.fullmatch(name)
        if stacked and _single(stacked, 0) in saved:
            one = _struct(x, x.shape[1:], x.sharding.spec[1:])
            found |= {_single(stacked, i): one for i in range(x.shape[0])}
        elif single and _stacked(single) in saved:
            number = max(int(m[2]) for m in map(_SINGLE.fullmatch, wanted) if m) + 1
            found[_stacked(single)] = _struct(x, (number, *x.shape), (None, *x.sharding.spec))
        else:
            found[name] = x
    return found


def restack(arrays: dict[str, jax.Array], wanted: Structs) -> dict[str, jax.Array]:
    """The arrays of `as_saved` as they are wanted; what is stacked leaves `arrays` one by one."""
    found: dict[str, jax.Array] = {}
    for name, x in wanted.items():
        stacked, single = _STACKED.fullmatch(name), _SINGLE.fullmatch(name)
        if name in arrays:
            found[name] = arrays.pop(name)
        elif stacked:
            layers = [arrays.pop(_single(stacked, i)) for i in range(x.shape[0])]
            found[name] = _jitted(_stack, x.sharding)(*layers)
        else:
            assert single
            found[name] = _jitted(_pick, x.sharding)(arrays[_stacked(single)], int(single[2]))
    return found


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
