"""The device mesh, logical axis names, and shardings of trees and batches.

The model names the *logical* axes of its parameters and activations; `RULES` maps them to *mesh*
axes. Everything is `jax.jit` with shardings: the compiler inserts the communication, except for
the sums of gradients, which `train.step` places.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from bert_jax.runtime.errors import InputError

MESH_AXES = ('data', 'fsdp', 'tensor')
BATCH_AXES = ('data', 'fsdp')
# Gradients are summed over these, one after the other: first over neighbours on a torus's axis.
UPDATE_AXES = ('fsdp', 'data')
# Parameters with fewer elements are not split: the message would cost more than the update.
LEAST_SPLIT = 1 << 14
# The word table is padded to a multiple of this, for TPU lanes and the tensor axis.
VOCAB_MULTIPLE = 128

# Logical axis -> mesh axes. Dims with other names are not split.
RULES: tuple[tuple[str, tuple[str, ...] | str | None], ...] = (
    ('batch', BATCH_AXES),
    ('vocab', 'tensor'),
    ('heads', 'tensor'),
    ('mlp', 'tensor'),  # intermediate_size
)


def padded_vocab_size(vocab_size: int) -> int:
    """Rows of the word table: `vocab_size` rounded up to a multiple of `VOCAB_MULTIPLE`."""
    missing = -vocab_size % VOCAB_MULTIPLE
    return vocab_size + missing


def make_mesh(data: int, fsdp: int, tensor: int, devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh of `data` x `fsdp` x `tensor` devices.

    Axes are Auto: with jax's default, Explicit, embedding look-ups raise a sharding type error.

    Args:
      data, fsdp, tensor: sizes; their product is the number of devices.
      devices: default: all of this run's; or a topology's, to compile for.

    Raises:
      InputError: the data axis cannot span the slices.
    """
    shape = data, fsdp, tensor
    return Mesh(arrange_devices(shape, jax.devices() if devices is None else devices), MESH_AXES,
                axis_types=(AxisType.Auto,) * 3)


def mesh_sizes(data: int, fsdp: int, tensor: int, devices: Sequence[Any]) -> tuple[int, int, int]:
    """Sizes of the mesh axes; a `data` or `fsdp` of -1 takes the remaining devices.

    If both are -1, fsdp spans neighbours: the chips along the longest axis of a slice's torus,
    which form a ring (at least four: in a 2 x 2 square all are neighbours), or the devices of a
    host. The size of fsdp divides the number of devices in a slice.
    """
    rest = len(devices) // tensor
    if data == fsdp == -1:
        if devices[0].platform == 'tpu':
            near = max(4, *(1 + max(axis) for axis in zip(*(d.coords for d in devices))))
        else:
            near = sum(d.process_index == devices[0].process_index for d in devices)
        of_slice = rest // _num_slices(devices)
        fsdp = max(n for n in range(1, near + 1) if of_slice % n == 0)
    if data == -1:
        data = rest // fsdp
    return data, rest // data if fsdp == -1 else fsdp, tensor


def _num_slices(devices: Iterable[Any]) -> int:
    """Number of TPU slices, which a slow network connects; 1 for other devices."""
    return len({getattr(d, 'slice_index', 0) for d in devices if d.platform == 'tpu'}) or 1


def arrange_devices(shape: tuple[int, int, int], devices: Sequence[Any]) -> np.ndarray:
    """Devices in mesh order, such that neighbours on a mesh axis are neighbours on the torus.

    The data axis spans the TPU slices, which a slow network connects; axes that communicate in
    every layer stay within a slice. An axis of the torus is split if the mesh needs that (as 4 x 2
    does on v4, v5p and v6e).

    Raises:
      InputError: the data axis cannot span the slices.
    """
    slices = _num_slices(devices)
    if slices == 1:
        return mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    data, fsdp, tensor = shape
    if data % slices:
        raise InputError(
            f'config.mesh.data={data} cannot be split over {slices} slices: fsdp={fsdp} and '
            f'tensor={tensor} have to fit into one slice of {len(devices) // slices} chips')
    return mesh_utils.create_hybrid_device_mesh(
        (data // slices, fsdp, tensor), (slices, 1, 1), devices, allow_split_physical_axes=True)


@dataclasses.dataclass(frozen=True)
class Layout:
    """Sharding constraints for activations.

    It does nothing without a mesh or within a `shard_map` over the batch axes, where each device
    has its rows already, and the parameters determine the split over the tensor axis.
    """

    mesh: Mesh | None = None

    @property
    def platform(self) -> str:
        """'cpu', 'gpu' or 'tpu': the mesh's platform, or jax's default without a mesh."""
        if self.mesh is None:
            return jax.default_backend()
        return str(self.mesh.devices.flat[0].platform)

    @property
    def stores_gelu(self) -> bool:
        """Whether gelu is stored: products that recompute it would wait for the vector unit.

        So the compiler's schedules say (`docs/preflight.md`).
        """
        kind = None if self.mesh is None else self.mesh.devices.flat[0].device_kind
        return str(kind).startswith(('TPU v4', 'TPU v6'))

    @property
    def on_cpu(self) -> bool:
        return self.platform == 'cpu'

    @property
    def _constrains(self) -> bool:
        return (self.mesh is not None and self.mesh.size > 1
                and not jax.sharding.get_abstract_mesh().manual_axes)

    @property
    def batch_shards(self) -> int:
        """Number of parts that constraints split the batch into."""
        if self.mesh is None or not self._constrains:
            return 1
        return math.prod(self.mesh.shape[name] for name in BATCH_AXES)

    @property
    def tensor_shards(self) -> int:
        """Number of parts that heads, intermediate and vocabulary are split into."""
        return 1 if self.mesh is None else self.mesh.shape['tensor']

    def __call__(self, x: jax.Array, *logical_axes: str | None) -> jax.Array:
        """Constrains the sharding of `x`; each dim has a logical axis name or None."""
        if self.mesh is None or not self._constrains:
            return x
        rules = dict(RULES)
        spec = PartitionSpec(*(rules.get(name) if name else None for name in logical_axes))
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, spec))


def tree_shardings(mesh: Mesh, boxed_tree: Any) -> Any:
    """NamedShardings of a tree whose leaves carry flax's logical partitioning metadata.

    The tensor axis splits the dims that `RULES` names. Master parameters and moments are also split
    over the batch axes, so that each device updates only a part (Xu et al., 2020, "Automatic
    Cross-Replica Sharding of Weight Update in Data-Parallel Training"); `train.step` gathers
    parameters and reduces gradients. Leaves without metadata (counters) are replicated.
    """
    # In an optimizer's state, the box of a parameter that it masks out is empty, and where it keeps
    # sums over dims (Adafactor, SM3), the box's names do not match the dims.
    rules: dict[str | None, int] = {
        name: mesh.shape[axis] for name, axis in RULES if isinstance(axis, str)}

    def named(x: Any) -> bool:
        leaves = jax.tree.leaves(x)
        if not leaves or not isinstance(x, nn.LogicallyPartitioned):
            return bool(leaves)
        shape = leaves[0].shape
        return leaves[0] is x.value and len(shape) == len(x.names) and not any(
            size % rules.get(name, 1) for name, size in zip(x.names, shape))

    boxed_tree = jax.tree.map(
        lambda x: x if named(x) else nn.meta.unbox(x), boxed_tree,
        is_leaf=lambda x: isinstance(x, nn.meta.AxisMetadata))
    shardings = nn.logical_to_mesh_sharding(nn.get_partition_spec(boxed_tree), mesh, RULES)
    return jax.tree.map(
        lambda x, sharding: NamedSharding(mesh, _split_update(mesh, x.shape, sharding.spec)),
        nn.meta.unbox(boxed_tree), shardings)


def _update_axes(mesh: Mesh) -> tuple[str, ...]:
    """The axes that updates are split over, within slices: slices exchange only gradient sums."""
    return UPDATE_AXES if _num_slices(mesh.devices.flat) == 1 else UPDATE_AXES[:1]


def distribute(x: jax.Array, mesh: Mesh | None) -> tuple[jax.Array, Callable[..., jax.Array]]:
    """Distributes the N items of `x` [N, ...] evenly over the devices, each whole on one device.

    Returns:
      (`x` with N padded with zeros to a multiple of the devices; a function that constrains another
      array of that shape to the same sharding).
    """
    if mesh is None or mesh.size == 1:
        return x, lambda y: y
    axes = (*_update_axes(mesh), 'tensor')
    sharding = NamedSharding(mesh, PartitionSpec(axes))

    def constrain(y: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(y, sharding)

    missing = -len(x) % math.prod(mesh.shape[axis] for axis in axes)
    return constrain(jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1))), constrain


def _split_update(mesh: Mesh, shape: tuple[int, ...], spec: PartitionSpec) -> PartitionSpec:
    """`spec` with each batch axis added to the first dim that it divides.

    The first is taken, because the last two dims are a chip's tiles.
    """
    if len(shape) < 2 or math.prod(shape) < LEAST_SPLIT:
        return spec
    parts: list[tuple[str, ...]] = [
        (axes,) if isinstance(axes, str) else tuple(axes or ())
        for axes in (*spec, *(None,) * (len(shape) - len(spec)))]
    for axis in _update_axes(mesh):
        for dim, size in enumerate(shape):
            whole = math.prod(mesh.shape[name] for name in (*parts[dim], axis))
            if mesh.shape[axis] > 1 and size % whole == 0:
                # Before `tensor`, which the compiler splits within each of these parts.
                parts[dim] = (*(n for n in parts[dim] if n in BATCH_AXES), axis,
                              *(n for n in parts[dim] if n not in BATCH_AXES))
                break
    return PartitionSpec(*(axes if len(axes) > 1 else axes[0] if axes else None for axes in parts))


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """The sharding of a batch: its rows are split over the data and fsdp axes."""
    return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def local_rows(mesh: Mesh, batch_size: int, process: int | None = None) -> np.ndarray:
    """The rows of a global batch that a process's devices need, ascending, int64.

    They need not be contiguous: the mesh orders devices by the torus, not by host.

    Args:
      mesh: of the run.
      batch_size: rows of the global batch.
      process: default: this one.
    """
    process = jax.process_index() if process is None else process
    theirs = np.vectorize(lambda device: device.process_index == process)(mesh.devices)
    blocks = np.flatnonzero(theirs.any(axis=2))
    rows = batch_size // theirs[..., 0].size
    return (blocks[:, None] * rows + np.arange(rows)).reshape(-1)


def to_global(
    mesh: Mesh, local_batch: Mapping[str, np.ndarray], batch_size: int, rows: np.ndarray
) -> dict[str, jax.Array]:
    """A global batch of `batch_size` rows on the mesh, from the rows of each process.

    `local_batch` has this process's rows, and `rows` their indices in the global batch (from
    `local_rows`).
    """
    sharding = batch_sharding(mesh)

    def place(x: np.ndarray) -> jax.Array:
        def shard(index: Any) -> np.ndarray:
            start, stop, _ = index[0].indices(batch_size)
            first = int(np.searchsorted(rows, start))
            return x[first : first + stop - start]

        return jax.make_array_from_callback((batch_size,) + x.shape[1:], sharding, shard)

    if mesh.size == 1:
        return jax.device_put(dict(local_batch), sharding)
    return {name: place(x) for name, x in local_batch.items()}


def check_vocabulary(vocab_size: int, tensor: int) -> None:
    """Checks that the tensor axis divides the padded vocabulary.

    Raises:
      InputError: it does not (powers of two up to 128 always do).
    """
    padded = padded_vocab_size(vocab_size)
    if padded % tensor:
        raise InputError(f'config.mesh.tensor={tensor} does not divide the {padded:,} rows of the '
                         'padded vocabulary: take a power of two')
