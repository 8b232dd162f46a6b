"""Self-attention fused into one kernel for each of the forward and backward passes.

This is the entry to the kernels of TPUs (`attention_tpu`) and GPUs (`attention_gpu`): it computes
what both read, and splits the work over a mesh.

    B: batch rows, S: sequence, N: heads, D: head_dim, M: marks of a token, which are the number of
    its sequence and, with dropout, its hash as a key
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as Spec

from bert_jax.kernels import dropout as drop
from bert_jax.kernels.attention_blocks import limits
from bert_jax.kernels.attention_gpu import attention_on_gpu
from bert_jax.kernels.attention_tiles import HEAD_DIMS, LANES, Settings
from bert_jax.kernels.attention_tpu import attention_on_tpu
from bert_jax.sharding import BATCH_AXES


def kernel_attention(
    qkv_BxSx3xNxD: jax.Array,
    bias_3xNxD: jax.Array,
    segments_BxS: jax.Array,
    dropout_keys_Bx2: jax.Array | None,
    layer: jax.Array | int,
    *,
    settings: Settings,
    mesh: Mesh | None = None,
) -> jax.Array:
    """Context vectors [B, S, N, D], in the dtype of `qkv`.

    `why_not` says which shapes the kernels of a chip cannot compute; here they are not checked.

    Args:
      qkv_BxSx3xNxD: queries, keys and values, without bias.
      bias_3xNxD: their bias, float32.
      segments_BxS: number of the sequence that each token belongs to; 0 is padding. A token
        attends to the tokens with its own number.
      dropout_keys_Bx2: keys from `dropout_keys`, or None: no dropout, whatever the settings.
      layer: index of the encoder layer; may be traced.
      settings: what the kernels are made for.
      mesh: rows and heads are split over its axes if it has more than one device.
    """
    length, _, num_heads, _ = qkv_BxSx3xNxD.shape[1:]
    if dropout_keys_Bx2 is None:
        settings = settings._replace(rate=0.0)
    if settings.reach >= length - 1:  # every token sees all others
        settings = settings._replace(reach=0)
    marks = [segments_BxS.astype(jnp.int32)]
    query_hashes_BxNxS = None
    if settings.rate:
        column_BxS, line_BxS, head_BxN = drop.index_hashes(
            dropout_keys_Bx2, (length, length, num_heads), drop.ATTENTION_PROBS, layer)
        marks.append(column_BxS)
        query_hashes_BxNxS = head_BxN[:, :, None] ^ line_BxS[:, None]
    attend: Callable[..., jax.Array]
    attend = functools.partial(
        attention_on_gpu if settings.on_gpu else attention_on_tpu, settings=settings)
    if mesh is not None:
        attend = _split_over(mesh, attend)
    return attend(qkv_BxSx3xNxD, bias_3xNxD, jnp.stack(marks, axis=1), query_hashes_BxNxS)


def why_not(settings: Settings, length: int, num_heads: int, window: int) -> str:
    """Why the kernels of a chip cannot compute a shape, as "it ..., and ..."; '' if they can.

    Args:
      settings: what the kernels are made for.
      length: tokens of a row.
      num_heads: heads on each device.
      window: tokens of the window that they attend to, half on each side; 0: there is none.
    """
    if settings.head_dim not in HEAD_DIMS:
        dims = ', '.join(map(str, HEAD_DIMS))
        return f'its heads have {dims} dims, and these have {settings.head_dim}'
    if window == 1:
        return 'its windows have at least 2 tokens, and these have 1'
    if settings.on_gpu:
        return ''
    heads_of_tile = LANES // settings.head_dim
    if num_heads % heads_of_tile:
        return (f'it takes heads of {settings.head_dim} dims by {heads_of_tile}, and a device has '
                f'{num_heads}')
    most = limits(settings.has_large_vmem)
    if length > most.length:
        return f'its rows have at most {most.length} tokens on this chip, and these have {length}'
    if window > most.window:
        return f'its windows have up to {most.window} tokens on this chip, and these have {window}'
    return ''


def _split_over(mesh: Mesh, attend: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """`attend`, called on each device's own rows and heads: the compiler cannot partition a kernel.

    Axes over which a surrounding `shard_map` has split the arrays already are left out.
    """
    surrounding = jax.sharding.get_abstract_mesh()
    manual_axes = surrounding.manual_axes
    axes = [name for name in mesh.shape if name not in manual_axes]
    if math.prod(mesh.shape[name] for name in axes) == 1:
        return attend
    batch = tuple(name for name in BATCH_AXES if name in axes)
    heads = 'tensor' if 'tensor' in axes else None
    return jax.shard_map(
        attend,
        mesh=surrounding if manual_axes else mesh,
        in_specs=(
            Spec(batch, None, None, heads),
            Spec(None, heads),
            Spec(batch),
            Spec(batch, heads),
        ),
        out_specs=Spec(batch, None, heads),
        axis_names=set(axes),
        check_vma=False)
