"""The gradient of a global batch: over the devices of a mesh, and in parts.

Shapes: B rows of the global batch. `dropout_keys_Bx2` are the dropout keys of each row.
"""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.model.trainable import Batch, Params, Sums, Trainable
from bert_jax.sharding import BATCH_AXES, UPDATE_AXES, Layout, is_large

# Columns and rows of a bfloat16 tile: TPUs lay out the last two dims of an array in tiles.
_LANES, _SUBLANES = 128, 16


def global_gradient(
    head: Trainable, params: Params, batch: Batch, dropout_keys_Bx2: jax.Array, parts: int,
    mesh: Mesh, shardings: Any, message_dtype: str,
) -> tuple[Any, jax.Array, Sums]:
    """Gradient (sharded as the parameters, float32), loss and sums of a global batch.

    Left to itself, the compiler would reduce a gradient for each use of a parameter, in each part
    of the batch. So the batch axes are manual here: once a step the parameters are gathered, each
    device sums gradients over its rows, and these sums are reduced and scattered.

    Large parameters are rounded to `message_dtype` on any mesh, so that the loss does not depend on
    the mesh. Where devices exchange them, their gradients are rounded to it: that of each use in
    each part of a device's rows, the device's sum, and the sums of several devices.

    Args:
      head: its loss is differentiated.
      params: sharded as `shardings`.
      batch: of the step.
      dropout_keys_Bx2: see `kernels.dropout.dropout_keys`.
      parts: number of parts in which the rows are computed.
      mesh: the devices.
      shardings: of the parameters, a tree like them.
      message_dtype: in which large parameters and their gradients are exchanged.
    """
    totals = head.totals(batch)
    params = jax.tree.map(lambda x: _rounded(x, message_dtype), params)
    if Layout(mesh).batch_shards == 1:
        return gradient_of_rows(head, params, batch, dropout_keys_Bx2, totals, parts, Layout(mesh))

    def of_own_rows(
        params: Params, batch: Batch, dropout_keys_Bx2: jax.Array, totals: Sums
    ) -> tuple[Any, jax.Array, Sums]:
        params = jax.tree.map(
            lambda x, sharding: _gather(x, sharding, message_dtype), params, shardings)
        grads, loss, sums = gradient_of_rows(
            head, params, batch, dropout_keys_Bx2, totals, parts, Layout(mesh))
        grads = jax.tree.map(
            lambda x, sharding: _reduce(x, sharding, mesh, message_dtype), grads, shardings)
        return grads, *jax.lax.psum((loss, sums), BATCH_AXES)

    rows = PartitionSpec(BATCH_AXES)
    replicated = PartitionSpec()
    split = jax.tree.map(lambda x: PartitionSpec(*_batch_axes(x)), shardings)
    return jax.shard_map(
        of_own_rows, mesh=mesh, in_specs=(split, rows, rows, replicated),
        out_specs=(split, replicated, replicated), check_vma=False,
        axis_names=manual_axes(mesh),
    )(params, batch, dropout_keys_Bx2, totals)


def manual_axes(mesh: Mesh) -> set[str]:
    """The axes that `jax.shard_map` handles: those of the batch, and axes of size 1.

    With no automatic axis left, the compiler has least to do.
    """
    return {name for name, size in mesh.shape.items() if name in BATCH_AXES or size == 1}


def _batch_axes(sharding: NamedSharding) -> list[tuple[str, ...]]:
    """The batch axes that split each dim of a parameter."""
    splitting = [axis for axis in BATCH_AXES if sharding.mesh.shape.get(axis, 1) > 1]
    result = []
    for axes in sharding.spec:
        if isinstance(axes, str):
            axes = (axes,)
        result.append(tuple(axis for axis in axes or () if axis in splitting))
    return result


def _splits(sharding: NamedSharding) -> list[tuple[str, int]]:
    """Pairs (mesh axis, dim), in the order in which the dims of a parameter are split."""
    axes_of_dims = _batch_axes(sharding)
    splits = []
    for axis in UPDATE_AXES:
        for dim, axes in enumerate(axes_of_dims):
            if axis in axes:
                splits.append((axis, dim))
    return splits


def _grouped_splits(splits: list[tuple[str, int]]) -> list[tuple[int, tuple[str, ...]]]:
    """Pairs (dim, axes in a row that split it), in the order of the splits."""
    axes_by_dim = []
    for dim, group in itertools.groupby(splits, key=lambda split: split[1]):
        axes = tuple(axis for axis, _ in group)
        axes_by_dim.append((dim, axes))
    return axes_by_dim


def _rounded(x: jax.Array, message_dtype: str) -> jax.Array:
    """A float32 parameter with the values that it has in messages.

    Whether it is in messages depends on the mesh; whether it is rounded does not.
    """
    if not is_large(x.shape) or message_dtype == 'float32':
        return x  # in float32 it would be a copy, which XLA makes on CPUs
    finfo = jnp.finfo(message_dtype)
    return jax.lax.reduce_precision(x, finfo.nexp, finfo.nmant)


def _gather(x: jax.Array, sharding: NamedSharding, message_dtype: str) -> jax.Array:
    """The whole parameter in the dtype of messages, gathered from the shards of the batch axes.

    Axes that split one dim are gathered at once, so that TPUs use the links of all of them. Pieces
    that are far from whole tiles are gathered over one axis after the other, and in a dim of their
    own: otherwise, TPUs would sum whole arrays, padded with zeros.
    """
    splits = _splits(sharding)
    if not splits:
        return x
    x = x.astype(message_dtype)
    for dim, axes in reversed(_grouped_splits(splits)):
        padding = -x.shape[dim] % _SUBLANES
        if padding <= x.shape[dim] / 8:
            x = _gather_dim(x, sharding, dim, axes)
        else:
            for axis in reversed(axes):
                x = _gather_dim(x, sharding, dim, (axis,))
    return x


def _gather_dim(
    x: jax.Array, sharding: NamedSharding, dim: int, axes: tuple[str, ...]
) -> jax.Array:
    """`x` with the pieces of a dim from all devices on these axes."""
    whole = jax.lax.all_gather(
        _flat(x, sharding) if dim == 0 else x, axes, axis=dim,
        tiled=x.shape[dim] % _SUBLANES == 0)
    return whole.reshape(*x.shape[:dim], -1, *x.shape[dim + 1:])


def _reduce(
    x: jax.Array, sharding: NamedSharding, mesh: Mesh, message_dtype: str
) -> jax.Array:
    """This device's shard of the sum of a gradient over the batch axes, in float32.

    One axis at a time: over two axes of a torus at once, TPUs would sum whole arrays.
    """
    splits = _splits(sharding)
    if splits:
        x = x.astype(message_dtype)
        if Layout(mesh).on_cpu and mesh.shape['tensor'] > 1:
            # XLA for CPUs aborts on sums of bfloat16 over manual axes beside an automatic one.
            x = x.astype(jnp.float32)
    for dim, axes in _grouped_splits(splits):
        part = _as_matrix(x, sharding) if dim == 0 else x
        for axis in axes:
            part = jax.lax.psum_scatter(part, axis, scatter_dimension=dim, tiled=True)
        x = part.reshape(*x.shape[:dim], -1, *x.shape[dim + 1:])
        if part.ndim != x.ndim:  # else each of Adam's products with it would be laid out again
            x = jax.lax.optimization_barrier(x)
    scattered = {axis for axis, _ in splits}
    left = tuple(
        axis for axis in BATCH_AXES if axis not in scattered and mesh.shape[axis] > 1)
    return jax.lax.psum(x, left).astype(jnp.float32)


def _as_matrix(x: jax.Array, sharding: NamedSharding) -> jax.Array:
    """`x` with two dims, of which the last fills the lanes of a TPU, for a sum that splits dim 0.

    The compiler would sum some arrays with more dims whole, and makes no sum of them asynchronous.
    """
    if sharding.mesh.shape['tensor'] > 1:
        return x
    if x.shape[-1] % _LANES:
        return x.reshape(len(x), -1)
    return x.reshape(-1, x.shape[-1])


def _flat(x: jax.Array, sharding: NamedSharding) -> jax.Array:
    """Merges the dims after the first, if the last does not fill the lanes of a TPU."""
    fills_lanes = x.shape[-1] % _LANES == 0
    if fills_lanes or sharding.mesh.shape['tensor'] > 1:
        return x
    return x.reshape(len(x), -1)


def gradient_of_rows(
    head: Trainable, params: Params, batch: Batch, dropout_keys_Bx2: jax.Array, totals: Sums,
    parts: int, layout: Layout,
) -> tuple[Any, jax.Array, Sums]:
    """Gradient, loss and sums of these rows of a batch, accumulated over `parts` parts of them.

    Args:
      head, params, dropout_keys_Bx2, parts: as for `global_gradient`.
      batch: the rows, of a global batch with these `totals`.
      totals: `head.totals` of the global batch.
      layout: of the rows.
    """
    value_and_grad = jax.value_and_grad(head.loss, has_aux=True)
    if parts == 1:
        (loss, sums), grads = value_and_grad(params, batch, totals, dropout_keys_Bx2)
        return grads, loss, sums
    if head.loss_spans_batch:
        return _in_two_passes(head, params, batch, dropout_keys_Bx2, totals, parts, layout)

    def of_part(part: tuple[Batch, jax.Array]) -> tuple[Any, jax.Array, Sums]:
        (loss, sums), grads = value_and_grad(params, part[0], totals, part[1])
        return grads, loss, sums

    def add(carry: Any, part: tuple[Batch, jax.Array]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, carry, of_part(part)), None

    all_parts = _split((dict(batch), dropout_keys_Bx2), parts, layout)
    grads, loss, sums = jax.eval_shape(of_part, jax.tree.map(lambda x: x[0], all_parts))
    zeros = (_zeros_of(grads), *jax.tree.map(jnp.zeros_like, (loss, sums)))
    (grads, loss, sums), _ = jax.lax.scan(add, zeros, all_parts)
    return grads, loss, sums


def _zeros_of(tree: Any) -> Any:
    """Zeros of a tree's shapes in float32, in which the gradients of several parts are added."""
    return jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), tree)


def _split(tree: Any, parts: int, layout: Layout) -> Any:
    """Rows [B, ...] as [A, B / A, ...]; a part has every A-th row, so devices keep their rows."""
    def split(x: jax.Array) -> jax.Array:
        x = x.reshape(x.shape[0] // parts, parts, *x.shape[1:]).swapaxes(0, 1)
        return layout(x, None, 'batch', *(None,) * (x.ndim - 2))

    return jax.tree.map(split, tree)


def _joined(x: jax.Array) -> jax.Array:
    """Parts [A, B / A, ...] of `_split` as rows [B, ...]."""
    return x.swapaxes(0, 1).reshape(-1, *x.shape[2:])


def _in_two_passes(
    head: Any, params: Params, batch: Batch, dropout_keys_Bx2: jax.Array, totals: Sums, parts: int,
    layout: Layout,
) -> tuple[Any, jax.Array, Sums]:
    """`gradient_of_rows` for a loss that compares all examples of the batch.

    It first computes all outputs, and then the gradients part by part, with a second forward pass
    (Gao et al., 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup").
    """
    all_parts = _split((dict(batch), dropout_keys_Bx2), parts, layout)
    outputs = jax.lax.map(lambda part: head.outputs(params, *part), all_parts)
    loss_and_gradient = jax.value_and_grad(head.loss_of, has_aux=True)
    (loss, sums), d_outputs = loss_and_gradient(jax.tree.map(_joined, outputs), batch, totals)

    def add(grads: Any, part: Any) -> tuple[Any, None]:
        rows, d_part = part
        _, pull = jax.vjp(lambda p: head.outputs(p, *rows), params)
        return jax.tree.map(jnp.add, grads, pull(d_part)[0]), None

    grads, _ = jax.lax.scan(add, _zeros_of(params), (all_parts, _split(d_outputs, parts, layout)))
    return grads, loss, sums
