"""Checksums of arrays.

A file format's checksums cover what it wrote, where it has any; these cover the way from the
devices and back. They are sums of integers, so they depend neither on a mesh nor on an order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_BLOCK = 1 << 18  # elements that stay in a CPU's cache


def checksums(arrays: Mapping[str, jax.Array]) -> np.ndarray:
    """Uint32, one an array, in the order of their names. Every change of one element changes it.

    Computed where the arrays lie; on CPUs without compiling anything.
    """
    sums = [
        _on_host(np.asarray(x)) if _is_of_a_cpu(x) else _on_device(x)
        for x in (arrays[name] for name in sorted(arrays))
    ]
    return np.array(jax.device_get(sums), np.uint32)


def _is_of_a_cpu(x: jax.Array) -> bool:
    return x.is_fully_addressable and x.addressable_shards[0].device.platform == 'cpu'


def _on_host(x: np.ndarray) -> np.uint32:
    bits = np.ascontiguousarray(x).reshape(-1).view(f'uint{8 * x.dtype.itemsize}')
    total = 0
    for start in range(0, bits.size, _BLOCK):
        block = bits[start : start + _BLOCK].astype(np.uint32)
        index = np.arange(start, start + block.size).astype(np.uint32)
        total += int(_mixed(block, index).sum(dtype=np.uint64))
    return np.uint32(total & 0xFFFFFFFF)


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
