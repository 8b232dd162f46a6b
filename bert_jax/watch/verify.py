"""The check that each device and its neighbour compute the same gradient from the same rows."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.kernels.dropout import dropout_keys
from bert_jax.model.trainable import Batch, Params, Sums, Trainable
from bert_jax.runtime.checksum import checksum_on_device
from bert_jax.runtime.errors import FaultyChip
from bert_jax.runtime.pauses import calling, pause
from bert_jax.sharding import BATCH_AXES, Layout
from bert_jax.step.gradients import gradient_of_rows, manual_axes
from bert_jax.step.step import TrainState


def make_verify(
    head: Trainable, mesh: Mesh, *, seed: int, accumulation_steps: int = 1,
) -> Callable[[TrainState, Batch], np.ndarray] | None:
    """Makes a function that computes the gradient of each device's rows on it and its neighbour.

    One program runs on the batch and on the batch shifted by one device's rows, so intact chips
    give the same bits. This costs two forward and backward passes; `docs/pods.md` lists errors that
    it cannot detect.

    Returns:
      A function from (state, batch) to checksums [2, batch shards] uint32, of the device that has
      the rows and of its neighbour; None if the batch has one shard. If some differ, it raises
      FaultyChip and names the suspects, a single one if both of that one's comparisons differ.
      It raises Interrupted if the run has to stop.
    """
    shards = Layout(mesh).batch_shards
    if shards == 1:
        return None
    rows = PartitionSpec(BATCH_AXES)
    replicated = PartitionSpec()

    def of_device(params: Params, own: tuple[Batch, jax.Array], totals: Sums) -> jax.Array:
        batch, dropout_keys_Bx2 = own
        grads, loss, _ = gradient_of_rows(
            head, params, batch, dropout_keys_Bx2, totals, accumulation_steps, Layout(mesh))
        sums = [checksum_on_device(x) for x in jax.tree.leaves((grads, loss))]
        return jnp.stack(sums).sum()[None]

    def checksums(state: TrainState, batch: Batch, moved_by: jax.Array) -> jax.Array:
        batch_size = next(iter(batch.values())).shape[0]
        dropout_keys_Bx2 = dropout_keys(seed, state.step, jnp.arange(batch_size, dtype=jnp.uint32))
        moved = jax.tree.map(
            lambda x: jnp.roll(x, moved_by, axis=0), (dict(batch), dropout_keys_Bx2))
        return jax.shard_map(
            of_device, mesh=mesh, in_specs=(replicated, rows, replicated), out_specs=rows,
            check_vma=False, axis_names=manual_axes(mesh),
        )(state.params, moved, head.totals(batch))

    compute = jax.jit(checksums, out_shardings=NamedSharding(mesh, replicated))

    def compare(state: TrainState, batch: Batch) -> np.ndarray:
        rows_a_device = next(iter(batch.values())).shape[0] // shards
        ours = calling(lambda: np.asarray(compute(state, batch, 0)))
        pause()
        neighbours = np.roll(compute(state, batch, rows_a_device), -1)
        differing = ours != neighbours
        if differing.any():
            step = int(state.step) + 1
            raise FaultyChip(
                f'step {step:,}: gradients of the same rows differ between neighbours: '
                f'{_suspects(differing, mesh)} computes wrongly. Go on without it, from a '
                'checkpoint of before', step)
        pause()
        return np.stack([ours, neighbours])

    return compare


def _suspects(differing: np.ndarray, mesh: Mesh) -> str:
    """The devices that differ in most comparisons, for a message.

    Args:
      differing: [batch shards] bool: whether a device and its neighbour differ.
      mesh: the devices.
    """
    by_own_rows = differing.astype(int)
    by_neighbours_rows = np.roll(by_own_rows, 1)
    comparisons = by_own_rows + by_neighbours_rows
    devices = mesh.devices.reshape(len(differing), -1)[comparisons == comparisons.max()]
    return ', '.join(f'{device} of host {device.process_index}' for device in devices.flat)
