"""The device mesh, logical axis names, and shardings of trees and batches.

The model names the *logical* axes of its parameters and activations; `RULES` maps them to *mesh*
axes. Everything is `jax.jit` with shardings: the compiler inserts the communication, except for
the sums of gradients, which `step.step` places.
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
_FLAT_RING = 16  # chips: shorter axes of v5e and v6e do not wrap around
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
    if devices is None:
        devices = jax.devices()
    arranged = arrange_devices((data, fsdp, tensor), devices)
    return Mesh(arranged, MESH_AXES, axis_types=(AxisType.Auto,) * 3)


def mesh_sizes(data: int, fsdp: int, tensor: int, devices: Sequence[Any]) -> tuple[int, int, int]:
    """Sizes of the mesh axes; a `data` or `fsdp` of -1 takes the remaining devices.

    If both are -1, fsdp spans devices that communicate fast, as far as its size divides the number
    of devices in a slice.
    """
    num_batch_shards = len(devices) // tensor
    if data == fsdp == -1:
        in_slice = num_batch_shards // _num_slices(devices)
        fsdp = _largest_divisor(in_slice, at_most=_num_neighbours(devices, in_slice, tensor))
    if data == -1:
        data = num_batch_shards // fsdp
    if fsdp == -1:
        fsdp = num_batch_shards // data
    return data, fsdp, tensor


def _num_neighbours(devices: Sequence[Any], in_slice: int, tensor: int) -> int:
    """How many parts of the batch are on devices that communicate fast with each other.

    For TPUs: those of the chips along the longest axis of a slice's torus, but of at least four,
    because in a 2 x 2 square all are neighbours. Where a flat slice has no ring, half of its
    devices, if these are more: their sums run along two axes at once, while those of all devices
    would be all-reduces of whole arrays (docs/log/messages.md). For others: those of a host, of
    which each part of the batch takes as many as the `tensor` axis has.

    Args:
      devices: of all slices.
      in_slice: parts of the batch in a slice.
      tensor: size of that axis.
    """
    first = devices[0]
    if first.platform != 'tpu':
        on_host = sum(device.process_index == first.process_index for device in devices)
        return max(1, on_host // tensor)
    coordinates_by_axis = zip(*(device.coords for device in devices), strict=True)
    shape = [
        1 + max(coordinates) - min(coordinates) for coordinates in coordinates_by_axis]
    devices_per_chip = 1 + max(device.core_on_chip for device in devices)
    on_longest_axis = max(4, *shape) * devices_per_chip
    is_flat = shape[2] == 1
    if is_flat and max(shape) < _FLAT_RING:
        return max(on_longest_axis, in_slice // 2)
    return on_longest_axis


def _largest_divisor(number: int, at_most: int) -> int:
    return max(divisor for divisor in range(1, at_most + 1) if number % divisor == 0)


def _num_slices(devices: Iterable[Any]) -> int:
    """Number of TPU slices, which a slow network connects; 1 for other devices."""
    tpus = [device for device in devices if device.platform == 'tpu']
    slices = {getattr(device, 'slice_index', 0) for device in tpus}
    return max(1, len(slices))


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
        return str(self._device.platform)

    @property
    def _device(self) -> Any:
        """One of the mesh, or of jax's default platform without a mesh."""
        return jax.devices()[0] if self.mesh is None else self.mesh.devices.flat[0]

    @property
    def kept_of_gelu(self) -> str:
        """What the backward pass of gelu reads (see `layers.gelu`).

        TPU v4, v6e and v7 store its derivative: if the matrix product recomputed it, the product
        would wait for the vector unit, by the compiler's schedules (`docs/preflight.md`). CPUs and
        GPUs do not fuse it into the product and would store it in float32 beside the input, so
        they keep the input alone and compute it again.
        """
        if self.platform in ('gpu', 'cpu'):
            return 'input'
        kind = str(self._device.device_kind)
        return 'stored' if kind.startswith(('TPU v4', 'TPU v6', 'TPU7')) else 'derivative'

    @property
    def has_large_vmem(self) -> bool:
        """Whether it is a TPU with more on-chip memory than the 16 MiB of those up to v4."""
        return not str(self._device.device_kind).startswith(('TPU v2', 'TPU v3', 'TPU v4'))

    @property
    def on_cpu(self) -> bool:
        """Whether the platform is 'cpu'."""
        return self.platform == 'cpu'

    @property
    def _constrains(self) -> bool:
        """Whether there are several devices and no `shard_map` has split the arrays already."""
        if self.mesh is None or self.mesh.size == 1:
            return False
        return not jax.sharding.get_abstract_mesh().manual_axes

    @property
    def batch_shards(self) -> int:
        """Number of parts that constraints split the batch into."""
        if self.mesh is None or not self._constrains:
            return 1
        return math.prod(self.mesh.shape[name] for name in BATCH_AXES)

    @property
    def tensor_shards(self) -> int:
        """Number of parts that heads, intermediate and vocabulary are split into."""
        if self.mesh is None:
            return 1
        return self.mesh.shape['tensor']

    def __call__(self, x: jax.Array, *logical_axes: str | None) -> jax.Array:
        """Constrains the sharding of `x`; each dim has a logical axis name or None."""
        if self.mesh is None or not self._constrains:
            return x
        mesh_axes: dict[str | None, Any] = dict(RULES)
        spec = PartitionSpec(*(mesh_axes.get(name) for name in logical_axes))
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, spec))


def tree_shardings(mesh: Mesh, boxed_tree: Any) -> Any:
    """NamedShardings of a tree whose leaves carry flax's logical partitioning metadata.

    The tensor axis splits the dims that `RULES` names. Master parameters and moments are also split
    over the batch axes, so that each device updates only a part (Xu et al., 2020, "Automatic
    Cross-Replica Sharding of Weight Update in Data-Parallel Training"); `step.step` gathers
    parameters and reduces gradients. Leaves without metadata (counters) are replicated.
    """
    num_parts = {axis: mesh.shape[name] for axis, name in RULES if isinstance(name, str)}

    def unbox_if_unusable(leaf: Any) -> Any:
        return leaf if _is_usable(leaf, num_parts) else nn.meta.unbox(leaf)

    def split(x: Any, sharding: NamedSharding) -> NamedSharding:
        return NamedSharding(mesh, _split_update(mesh, x.shape, sharding.spec))

    boxed_tree = jax.tree.map(
        unbox_if_unusable, boxed_tree, is_leaf=lambda x: isinstance(x, nn.meta.AxisMetadata))
    shardings = nn.logical_to_mesh_sharding(nn.get_partition_spec(boxed_tree), mesh, RULES)
    return jax.tree.map(split, nn.meta.unbox(boxed_tree), shardings)


def _is_usable(leaf: Any, num_parts: Mapping[str, int]) -> bool:
    """Whether a leaf's metadata, if it has any, names the dims of its array.

    In an optimizer's state, the box of a parameter that it masks out is empty, and where it keeps
    sums over dims (Adafactor, SM3), the box's names do not match the dims.

    Args:
      leaf: an array or a box.
      num_parts: into how many parts each logical axis is split.
    """
    arrays = jax.tree.leaves(leaf)
    if not arrays:
        return False
    if not isinstance(leaf, nn.LogicallyPartitioned):
        return True
    array = arrays[0]
    if array is not leaf.value or len(array.shape) != len(leaf.names):
        return False
    return all(
        name is None or size % num_parts.get(name, 1) == 0
        for name, size in zip(leaf.names, array.shape))


def _update_axes(mesh: Mesh) -> tuple[str, ...]:
    """The axes that updates are split over, within slices: slices exchange only gradient sums."""
    if _num_slices(mesh.devices.flat) == 1:
        return UPDATE_AXES
    return UPDATE_AXES[:1]


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
    padding = [(0, missing)] + [(0, 0)] * (x.ndim - 1)
    return constrain(jnp.pad(x, padding)), constrain


def is_large(shape: Sequence[int]) -> bool:
    """Whether an array of this shape is split over the batch axes, if they divide a dim of it."""
    return len(shape) >= 2 and math.prod(shape) >= LEAST_SPLIT


def _split_update(mesh: Mesh, shape: tuple[int, ...], spec: PartitionSpec) -> PartitionSpec:
    """`spec` with each batch axis added to the first dim that it divides.

    The first is taken, because the last two dims are a chip's tiles.
    """
    if not is_large(shape):
        return spec
    axes_by_dim = _axes_by_dim(spec, len(shape))
    for axis in _update_axes(mesh):
        if mesh.shape[axis] == 1:
            continue
        dim = _first_divisible_dim(mesh, shape, axes_by_dim, axis)
        if dim is not None:
            axes_by_dim[dim] = _with_batch_axis(axes_by_dim[dim], axis)
    return PartitionSpec(*map(_spec_entry, axes_by_dim))


def _axes_by_dim(spec: PartitionSpec, num_dims: int) -> list[tuple[str, ...]]:
    """The mesh axes that split each dim; a spec may leave out the last dims."""
    axes_by_dim: list[tuple[str, ...]] = []
    for entry in spec:
        if isinstance(entry, str):
            axes_by_dim.append((entry,))
        else:
            axes_by_dim.append(tuple(entry or ()))
    missing = num_dims - len(axes_by_dim)
    return axes_by_dim + [()] * missing


def _spec_entry(axes: tuple[str, ...]) -> tuple[str, ...] | str | None:
    """The entry of a `PartitionSpec` for a dim that these axes split."""
    if not axes:
        return None
    return axes[0] if len(axes) == 1 else axes


def _first_divisible_dim(
    mesh: Mesh, shape: tuple[int, ...], axes_by_dim: Sequence[tuple[str, ...]], axis: str
) -> int | None:
    """The first dim that `axis` divides together with the axes that already split it, or None."""
    for dim, size in enumerate(shape):
        axes = (*axes_by_dim[dim], axis)
        if size % math.prod(mesh.shape[name] for name in axes) == 0:
            return dim
    return None


def _with_batch_axis(axes: tuple[str, ...], batch_axis: str) -> tuple[str, ...]:
    """Adds a batch axis before `tensor`, which the compiler splits within each of its parts."""
    batch = [axis for axis in axes if axis in BATCH_AXES]
    others = [axis for axis in axes if axis not in BATCH_AXES]
    return (*batch, batch_axis, *others)


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
    if process is None:
        process = jax.process_index()
    is_of_process = np.vectorize(lambda device: device.process_index == process)(mesh.devices)
    blocks = np.flatnonzero(is_of_process.any(axis=MESH_AXES.index('tensor')))
    num_blocks = is_of_process[..., 0].size
    rows_a_block = batch_size // num_blocks
    return (blocks[:, None] * rows_a_block + np.arange(rows_a_block)).reshape(-1)


def to_global(
    mesh: Mesh, local_batch: Mapping[str, np.ndarray], batch_size: int, rows: np.ndarray
) -> dict[str, jax.Array]:
    """A global batch of `batch_size` rows on the mesh, from the rows of each process.

    `local_batch` has this process's rows, and `rows` their indices in the global batch (from
    `local_rows`).
    """
    sharding = batch_sharding(mesh)
    if mesh.size == 1:
        return jax.device_put(dict(local_batch), sharding)

    def to_devices(local: np.ndarray) -> jax.Array:
        def shard(index: Any) -> np.ndarray:
            start, stop, _ = index[0].indices(batch_size)
            first = int(np.searchsorted(rows, start))
            return local[first : first + stop - start]

        return jax.make_array_from_callback((batch_size, *local.shape[1:]), sharding, shard)

    return {name: to_devices(local) for name, local in local_batch.items()}


def check_mesh(data: int, fsdp: int, tensor: int, num_devices: int) -> None:
    """Checks that a mesh has as many devices as there are.

    Args:
      data, fsdp, tensor: sizes of its axes, as for `mesh_sizes`.
      num_devices: that there are.

    Raises:
      InputError: it has not.
    """
    fixed = math.prod(size for size in (data, fsdp, tensor) if size != -1)
    if -1 in (data, fsdp):
        fits = fixed != 0 and num_devices % fixed == 0
    else:
        fits = fixed == num_devices
    if not fits:
        raise InputError(
            f'config.mesh data={data} x fsdp={fsdp} x tensor={tensor} does not fit '
            f'{num_devices} devices: their product must be the number of devices (-1 takes what '
            'is left)')


def check_vocabulary(vocab_size: int, tensor: int) -> None:
    """Checks that the tensor axis divides the padded vocabulary.

    Raises:
      InputError: it does not (powers of two up to 128 always do).
    """
    padded = padded_vocab_size(vocab_size)
    if padded % tensor:
        raise InputError(f'config.mesh.tensor={tensor} does not divide the {padded:,} rows of the '
                         'padded vocabulary: take a power of two')
