"""Copies of the state: one replica reads it from the disk, the others get it over the network.

The mesh's data axis counts replicas. Reading a checkpoint once, whatever their number, spares a
bucket thousands of readers, and the devices' network is the faster one. What is split over that
axis as well is split last, when it has come.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from bert_jax.train.sharding import MESH_AXES

_REPLICAS = MESH_AXES[0]
Structs = dict[str, jax.ShapeDtypeStruct]


def on_first(wanted: Structs) -> Structs:
    """The same shapes on the first replica's devices alone."""
    def moved(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        sharding = NamedSharding(_first(x.sharding.mesh), x.sharding.spec)
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    return {name: moved(x) for name, x in wanted.items()}


def holds_first(wanted: Structs) -> bool:
    """Whether this process has devices of the first replica, and so has to read."""
    mesh = next(iter(wanted.values())).sharding.mesh
    return jax.process_index() in {device.process_index for device in mesh.devices[0].flat}


def spread(arrays: dict[str, jax.Array], wanted: Structs) -> dict[str, jax.Array]:
    """The first replica's arrays on all devices, bit for bit.

    Args:
      arrays: laid out as `on_first` says; empty on processes without a device of it. It is emptied,
        so that the devices hold the state once and one array twice.
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
    held = {} if x is None else {shard.device: shard.data for shard in x.addressable_shards}
    del x
    if like.sharding.is_fully_addressable:  # one process: its devices copy, nothing is compiled
        origins = np.broadcast_to(mesh.devices[:1], mesh.devices.shape)
        parts = [
            jax.device_put(held[origin], device)
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
        held.pop(device)[None] if device in held else jax.device_put(zeros, device)
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
