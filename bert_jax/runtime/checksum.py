"""Checksums of arrays, digests of bytes and JSON, and tests for finite numbers.

File formats check at most what they wrote. Checksums of arrays also cover the transfers from the
devices and back. They are integer sums, so they do not depend on the mesh or the summation order.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.hashing import GOLDEN_RATIO, digest, mix

CHECKSUMS = 'checksums'  # the key of the checksums in saved trees
DIGEST = 'digest'  # the field of a JSON object that holds the digest of the others
_BLOCK = 1 << 18  # elements, small enough for a CPU's cache


def with_digest(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with its digest added."""
    return {**fields, DIGEST: digest(json.dumps(fields, sort_keys=True).encode())}


def check_digest(written: Mapping[str, Any], where: object) -> dict[str, Any]:
    """Checks the digest of a JSON object and returns the object without it.

    Objects without a digest are accepted: older versions wrote none, and users who edit a file on
    purpose remove it.

    Args:
      written: the object as read.
      where: its file, for messages.

    Raises:
      InputError: the digest does not match.
    """
    fields = dict(written)
    expected = fields.pop(DIGEST, None)
    if expected not in (None, with_digest(fields)[DIGEST]):
        raise InputError(
            f'{where} is not what was written (its "{DIGEST}" is of another content): put it back '
            f'as it was, or remove its line "{DIGEST}" if it was changed on purpose')
    return fields


def saved_tree(tree: dict[str, Any]) -> dict[str, Any]:
    """A dict of trees with their checksums added, as checkpoints store them."""
    return tree | {CHECKSUMS: checksums(leaves(tree))}


def leaves(tree: Any) -> dict[str, Any]:
    """Leaves by their path, 'params/bert/pooler/dense/kernel'."""
    return {leaf_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def is_array(x: Any) -> bool:
    """Whether this is an array, or describes one: it has a shape and a dtype."""
    return hasattr(x, 'shape') and hasattr(x, 'dtype')


def checksums(arrays: Mapping[str, Any]) -> np.ndarray:
    """One uint32 for each array, sorted by name.

    A change of one element always changes it, if elements have at most 32 bits.
    """
    sums = [_compute(arrays[name], checksum, checksum_on_device) for name in sorted(arrays)]
    return np.array(jax.device_get(sums), np.uint32)


def _compute(
    x: Any, on_host: Callable[[np.ndarray], Any], on_device: Callable[[jax.Array], Any]
) -> Any:
    """Computes on the array's device; in NumPy, without compilation, if a CPU holds all of it."""
    on_cpu = not isinstance(x, jax.Array) or x.addressable_shards[0].device.platform == 'cpu'
    if on_cpu and getattr(x, 'is_fully_addressable', True):
        return on_host(np.asarray(x))
    result = on_device(x)
    if on_cpu:  # CPUs start programs in any order, and collectives out of order deadlock hosts
        result.block_until_ready()
    return result


def checksum(x: np.ndarray) -> np.uint32:
    """The checksum of an array on the host."""
    bits = np.ascontiguousarray(x).reshape(-1).view(f'uint{8 * x.dtype.itemsize}')
    total = 0
    for start in range(0, bits.size, _BLOCK):
        block = bits[start : start + _BLOCK].astype(np.uint32)
        index = np.arange(start, start + block.size).astype(np.uint32)
        total += int(_mixed(block, index).sum(dtype=np.uint64))
    return np.uint32(total & 0xFFFFFFFF)


def leaf_name(path: tuple[Any, ...]) -> str:
    """The name of a tree's leaf by its path, 'params/bert/pooler/dense/kernel'."""
    return jax.tree_util.keystr(path, simple=True, separator='/')


def not_finite(arrays: Mapping[str, Any]) -> str | None:
    """The name of the first array, on host or device, with NaN or infinity, or None."""
    results = {}
    for name, x in arrays.items():
        if jnp.issubdtype(x.dtype, jnp.floating):
            results[name] = _compute(x, is_finite, is_finite_on_device)
    for name, finite in jax.device_get(results).items():
        if not finite:
            return name
    return None


def is_finite(x: np.ndarray) -> bool:
    """Whether no element is NaN or infinite."""
    with np.errstate(all='ignore'):
        # One pass without a temporary array. If finite numbers overflow, the elements decide below.
        if np.isfinite(np.add.reduce(x, axis=None, dtype=np.result_type(x.dtype, np.float32))):
            return True
    return bool(np.isfinite(x).all())


@jax.jit
def is_finite_on_device(x: jax.Array) -> jax.Array:
    """`is_finite` of an array on its devices."""
    return jnp.isfinite(x).all()


@jax.jit
def checksum_on_device(x: jax.Array) -> jax.Array:
    """`checksum` of an array on its devices, whatever its sharding."""
    bits = lax.bitcast_convert_type(x, jnp.dtype(f'uint{8 * x.dtype.itemsize}'))
    index = jnp.zeros(x.shape, jnp.uint32)
    stride = 1
    for dim in reversed(range(x.ndim)):
        index += lax.broadcasted_iota(jnp.uint32, x.shape, dim) * jnp.uint32(stride % 2**32)
        stride *= x.shape[dim]
    return jnp.sum(_mixed(bits.astype(jnp.uint32), index), dtype=jnp.uint32)


def _mixed(bits: Any, index: Any) -> Any:
    """A hash of each element and its index; for a given index it is a bijection."""
    return mix(bits ^ index * np.uint32(GOLDEN_RATIO))
