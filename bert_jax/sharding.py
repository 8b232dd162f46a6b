"""The device mesh, the logical axis names, and how trees and batches are laid out on it.

The model names the *logical* axes of its parameters and activations; `RULES` says which *mesh*
axes split them. Everything is `jax.jit` with shardings: the compiler inserts the communication.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

MESH_AXES = ('data', 'fsdp', 'tensor')
# The word table is padded to a multiple: TPU lanes, and splits over the tensor axis.
VOCAB_MULTIPLE = 128

# Logical axis -> mesh axes. Names that are not here stay whole.
RULES: tuple[tuple[str, tuple[str, ...] | str | None], ...] = (
    ('batch', ('data', 'fsdp')),
    ('embed', 'fsdp'),  # hidden_size of a parameter (fully sharded data parallelism)
    ('vocab', 'tensor'),
    ('heads', 'tensor'),
    ('mlp', 'tensor'),  # intermediate_size
    ('layers', None),  # leading axis of scanned layers
)


def make_mesh(data: int, fsdp: int, tensor: int) -> Mesh:
    """A mesh of `data` x `fsdp` x `tensor` devices, which must be all devices.

    Axes are Auto: with jax's default, Explicit, embedding look-ups raise a sharding type error.
    """
    return jax.make_mesh((data, fsdp, tensor), MESH_AXES, axis_types=(AxisType.Auto,) * 3)


@dataclasses.dataclass(frozen=True)
class Layout:
    """Constrains activations to the mesh; without a mesh it does nothing."""

    mesh: Mesh | None = None

    @property
    def batch_shards(self) -> int:
        """Parts that the batch is split into."""
        return 1 if self.mesh is None else self.mesh.shape['data'] * self.mesh.shape['fsdp']

    def __call__(self, x: jax.Array, *logical_axes: str | None) -> jax.Array:
        """`x` with one logical axis name (or None) a dim."""
        if self.mesh is None or self.mesh.size == 1:
            return x
        rules = dict(RULES)
        spec = PartitionSpec(*(rules.get(name) if name else None for name in logical_axes))
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, spec))


def tree_shardings(mesh: Mesh, boxed_tree: Any) -> Any:
    """NamedShardings of a tree whose leaves carry flax's logical partitioning metadata.

    Leaves without metadata (counters) are replicated.
    """
    specs = nn.get_partition_spec(boxed_tree)
    return nn.logical_to_mesh_sharding(specs, mesh, RULES)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows of a batch over the data and fsdp axes."""
    return NamedSharding(mesh, PartitionSpec(('data', 'fsdp')))


def local_rows(mesh: Mesh, batch_size: int) -> range:
    """The rows of a global batch that this process's devices need.

    Raises:
      NotImplementedError: they are not one contiguous range (a device order that no supported
        topology has).
    """
    indices = batch_sharding(mesh).addressable_devices_indices_map((batch_size,))
    rows = np.unique(np.concatenate([np.arange(batch_size)[index] for index in indices.values()]))
    if len(rows) != rows[-1] - rows[0] + 1:
        raise NotImplementedError(f'the rows of this process are not contiguous: {rows}')
    return range(int(rows[0]), int(rows[-1]) + 1)


def to_global(
    mesh: Mesh, local_batch: Mapping[str, np.ndarray], batch_size: int, rows: range
) -> dict[str, jax.Array]:
    """This process's rows as part of a global batch of `batch_size` rows on the mesh."""
    sharding = batch_sharding(mesh)

    def place(x: np.ndarray) -> jax.Array:
        def shard(index: Any) -> np.ndarray:
            start, stop, _ = index[0].indices(batch_size)
            return x[start - rows.start : stop - rows.start]

        return jax.make_array_from_callback((batch_size,) + x.shape[1:], sharding, shard)

    if mesh.size == 1:
        return jax.device_put(dict(local_batch), sharding)
    return {name: place(x) for name, x in local_batch.items()}


def partitioned(init: Callable[..., Any], *logical_axes: str | None) -> Callable[..., Any]:
    """A parameter initializer that also names the parameter's logical axes."""
    return nn.with_logical_partitioning(init, logical_axes)
