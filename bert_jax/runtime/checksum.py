"""What tells whether arrays are what they were: checksums, and whether every number is finite.

A file format's checksums cover what it wrote, where it has any; these cover the way from the
devices and back. They are sums of integers, so they depend neither on a mesh nor on an order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

CHECKSUMS = 'checksums'  # what they are called beside the trees that are saved
_BLOCK = 1 << 18  # elements that stay in a CPU's cache


def saved_tree(tree: dict[str, Any]) -> dict[str, Any]:
    """What is saved of a dict of trees: they, and their checksums."""
    return tree | {CHECKSUMS: checksums(leaves(tree))}


def leaves(tree: Any) -> dict[str, Any]:
    """Leaves by their path, 'params/bert/pooler/dense/kernel'."""
    return {leaf_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def checksums(arrays: Mapping[str, Any]) -> np.ndarray:
    """Uint32, one an array, in the order of their names. Every change of one element changes it.

    Computed where the arrays lie; on CPUs without compiling anything.
    """
    sums = [
        checksum(np.asarray(x)) if _is_on_host(x) else _alone(_on_device, x)
        for x in (arrays[name] for name in sorted(arrays))
    ]
    return np.array(jax.device_get(sums), np.uint32)


def _is_on_host(x: Any) -> bool:
    return not isinstance(x, jax.Array) or (
        x.is_fully_addressable and x.addressable_shards[0].device.platform == 'cpu')


def _alone(function: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    """What a function computes of an array on devices, before anything else is begun on CPUs.

    CPUs start small programs in any order: each host would wait in a sum that another is not in.
    """
    found = function(x)
    if x.addressable_shards[0].device.platform == 'cpu':
        found.block_until_ready()
    return found


def checksum(x: np.ndarray) -> np.uint32:
    """That of an array on the host."""
    bits = np.ascontiguousarray(x).reshape(-1).view(f'uint{8 * x.dtype.itemsize}')
    total = 0
    for start in range(0, bits.size, _BLOCK):
        block = bits[start : start + _BLOCK].astype(np.uint32)
        index = np.arange(start, start + block.size).astype(np.uint32)
        total += int(_mixed(block, index).sum(dtype=np.uint64))
    return np.uint32(total & 0xFFFFFFFF)


def leaf_name(path: tuple[Any, ...]) -> str:
    """The name of a tree's leaf by its path, 'params/bert/pooler/dense/kernel'."""
    return '/'.join(str(getattr(key, 'key', getattr(key, 'name', getattr(key, 'idx', key))))
                    for key in path)


def not_finite(arrays: Mapping[str, Any]) -> str | None:
    """The first array, by name, that holds NaN or infinity; of numpy's or of a device."""
    found = {
        name: is_finite(np.asarray(x)) if _is_on_host(x) else _alone(_is_finite_on_device, x)
        for name, x in arrays.items() if jnp.issubdtype(x.dtype, jnp.floating)
    }
    return next((name for name, good in jax.device_get(found).items() if not good), None)


def is_finite(x: np.ndarray) -> bool:
    """Whether no element is NaN or infinite."""
    with np.errstate(all='ignore'):
        # One pass without an array of the same size; the sum of good ones may overflow.
        if np.isfinite(np.add.reduce(x, axis=None, dtype=np.result_type(x.dtype, np.float32))):
            return True
    return bool(np.isfinite(x).all())


@jax.jit
def _is_finite_on_device(x: jax.Array) -> jax.Array:
    return jnp.isfinite(x).all()


@jax.jit
def _on_device(x: jax.Array) -> jax.Array:
    bits = lax.bitcast_convert_type(x, jnp.dtype(f'uint{8 * x.dtype.itemsize}'))
    index = jnp.zeros(x.shape, jnp.uint32)
    stride = 1
    for dim in reversed(range(x.ndim)):
        index += lax.broadcasted_iota(jnp.uint32, x.shape, dim) * jnp.uint32(stride % 2**32)
        stride *= x.shape[dim]
    return jnp.sum(_mixed(bits.astype(jnp.uint32), index), dtype=jnp.uint32)


def _mixed(bits: Any, index: Any) -> Any:
    """A hash of each element and its place; at one place a bijection."""
    h = bits ^ index * np.uint32(0x9E3779B9)
    h = (h ^ (h >> 16)) * np.uint32(0x7FEB352D)
    h = (h ^ (h >> 15)) * np.uint32(0x846CA68B)
    return h ^ (h >> 16)
