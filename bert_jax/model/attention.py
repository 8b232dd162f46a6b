"""Multi-head self-attention with a fused query-key-value projection (paper section 3).

`attend` takes the projection's output unchanged and the sequence number of each token; its callers
make no mask. New implementations, and other rules for which tokens attend to which, belong here.

    B: batch rows, S: sequence (Q queries, K keys), P: wanted positions, H: hidden_size, N: heads,
    D: head_dim, C: blocks of queries, G: heads of keys and values, M: matrices of a projection,
    F: any further dims
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from bert_jax.kernels import dropout as drop
from bert_jax.kernels.attention_kernel import kernel_attention, why_not
from bert_jax.kernels.attention_tiles import Settings
from bert_jax.kernels.rotary import rotated
from bert_jax.model.layers import Dense, ModelConfig, read_by_adapter
from bert_jax.model.local_attention import local_attention, takes_blocks
from bert_jax.model.relative import scores_at
from bert_jax.runtime.errors import InputError

# Added to the scores of masked keys, as in google-research/bert. exp(-10000) is 0 in every
# precision, so a sequence is independent of its neighbours.
_MASKED_SCORE = -10000.0
# XLA computes longer rows in blocks of so many queries.
_LONGEST_AT_ONCE = 2048
_QUERIES_AT_ONCE = 512
_KERNEL_FROM = 128  # 'auto' takes the TPU kernel for rows of at least so many tokens
# What a projection has in this order.
_QUERIES = slice(0, 1)
_KEYS_AND_VALUES = slice(1, 3)


def attend(
    qkv_BxSx3xNxD: jax.Array, bias_3xNxD: jax.Array | None, segments_BxS: jax.Array,
    dropout_keys_Bx2: jax.Array | None, layer: jax.Array | int, *, config: ModelConfig,
    keep: Callable[[jax.Array], Any] | None = None, relative_NxSxS: jax.Array | None = None,
) -> jax.Array:
    """Context vectors [B, S, N, D]: softmax(q k / sqrt(D)) v, with dropout.

    Args:
      qkv_BxSx3xNxD: queries, keys and values without bias, in the compute dtype.
      bias_3xNxD: their bias, float32, or None.
      segments_BxS: sequence number of each token; 0 is padding. A token attends to the tokens with
        its own number. So padding attends to padding, and its output is never used.
      dropout_keys_Bx2: keys of dropout on the probabilities, or None.
      layer: index of the layer, for dropout; may be traced.
      config: names the implementation (see `choose`), and has the layer's own options
        (`BertConfig.of_layer`): its window, and its base of rotary positions.
      keep: receives the probabilities [B, N, Q, K] float32, before dropout. Only the plain
        implementation stores them, so it is used.
      relative_NxSxS: what is added to the scores (`relative_positions`); the plain implementation
        alone does so.
    """
    drops = dropout_keys_Bx2 is not None and config.attention_dropout > 0
    name = choose(config, qkv_BxSx3xNxD.shape[1], drops)
    if keep is not None:
        name = 'xla'
    if name == 'kernel':
        if bias_3xNxD is None:
            bias_3xNxD = jnp.zeros(qkv_BxSx3xNxD.shape[2:], jnp.float32)
        return kernel_attention(
            qkv_BxSx3xNxD, bias_3xNxD, segments_BxS, dropout_keys_Bx2, layer,
            settings=_kernel_settings(config), mesh=config.layout.mesh)
    q_BxQxNxD, k_BxKxNxD, v_BxKxNxD = _with_bias(qkv_BxSx3xNxD, bias_3xNxD)
    if config.positions == 'rotary':
        q_BxQxNxD = rotated(q_BxQxNxD, config.rotary_base, config.rotary_factor)
        k_BxKxNxD = rotated(k_BxKxNxD, config.rotary_base, config.rotary_factor)
    if name == 'cudnn':
        seen_BxSxS = _seen(segments_BxS, None, config)
        return jax.nn.dot_product_attention(
            q_BxQxNxD, k_BxKxNxD, v_BxKxNxD, implementation='cudnn', mask=seen_BxSxS[:, None])
    if keep is None and takes_blocks(config, qkv_BxSx3xNxD.shape[1]):
        return local_attention(
            (q_BxQxNxD, k_BxKxNxD, v_BxKxNxD), segments_BxS, dropout_keys_Bx2, layer, config=config,
            masked_score=_MASKED_SCORE)
    plain = functools.partial(
        _plain, keys_and_values=(k_BxKxNxD, v_BxKxNxD), segments_BxS=segments_BxS,
        dropout_keys_Bx2=dropout_keys_Bx2, layer=layer, config=config,
        relative_NxSxS=relative_NxSxS)
    if keep is None and _is_long(qkv_BxSx3xNxD.shape[1]):
        return _in_blocks_of_queries(plain, q_BxQxNxD)
    return plain(q_BxQxNxD, None, keep=keep)


def attend_where_wanted(
    q_BxPxNxD: jax.Array, k_BxSxNxD: jax.Array, v_BxSxNxD: jax.Array, segments_BxS: jax.Array,
    dropout_keys_Bx2: jax.Array | None, layer: jax.Array | int, wanted_BxP: jax.Array, *,
    config: ModelConfig, keep: Callable[[jax.Array], Any] | None = None,
    relative_NxSxS: jax.Array | None = None,
) -> jax.Array:
    """As `attend`, at the positions `wanted_BxP` only: context vectors [B, P, N, D].

    These are too little work for a kernel, so the plain implementation computes them. Queries, at
    those positions, and keys and values have their bias.
    """
    if config.positions == 'rotary':
        base, factor = config.rotary_base, config.rotary_factor
        q_BxPxNxD = rotated(q_BxPxNxD, base, factor, wanted_BxP)
        k_BxSxNxD = rotated(k_BxSxNxD, base, factor)
    return _plain(
        q_BxPxNxD, wanted_BxP, keys_and_values=(k_BxSxNxD, v_BxSxNxD), segments_BxS=segments_BxS,
        dropout_keys_Bx2=dropout_keys_Bx2, layer=layer, config=config,
        relative_NxSxS=relative_NxSxS, keep=keep)


def _kernel_settings(config: ModelConfig) -> Settings:
    return Settings(
        head_dim=config.head_dim,
        rate=config.attention_dropout,
        reach=config.local_attention // 2,
        rotary_base=config.rotary_base if config.positions == 'rotary' else 0.0,
        rotary_factor=config.rotary_factor,
        on_gpu=config.layout.platform == 'gpu',
        has_large_vmem=config.layout.has_large_vmem)


def _plain(
    q_BxQxNxD: jax.Array, wanted_BxP: jax.Array | None, *,
    keys_and_values: tuple[jax.Array, jax.Array], segments_BxS: jax.Array,
    dropout_keys_Bx2: jax.Array | None, layer: jax.Array | int, config: ModelConfig,
    relative_NxSxS: jax.Array | None = None, keep: Callable[[jax.Array], Any] | None = None,
) -> jax.Array:
    """Context vectors [B, Q, N, D] in plain operations, which XLA fuses.

    Scores and softmax are float32. `wanted_BxP` are the positions of the queries; None: all.
    """
    k_BxKxNxD, v_BxKxNxD = keys_and_values
    seen_BxQxK = _seen(segments_BxS, wanted_BxP, config)
    added_BxNxQxK = jnp.where(seen_BxQxK, 0.0, _MASKED_SCORE)[:, None]  # the same for all heads
    if relative_NxSxS is not None:
        added_BxNxQxK += (
            relative_NxSxS if wanted_BxP is None else scores_at(relative_NxSxS, wanted_BxP))
    scores_BxNxQxK = jnp.einsum(
        'BQND,BKND->BNQK', q_BxQxNxD, k_BxKxNxD, preferred_element_type=jnp.float32)
    probs_BxNxQxK = jax.nn.softmax(
        scores_BxNxQxK * (1.0 / math.sqrt(config.head_dim)) + added_BxNxQxK, axis=-1)
    if keep is not None:
        keep(probs_BxNxQxK)
    probs_BxNxQxK = drop.dropout(
        probs_BxNxQxK.astype(config.dtype), config.attention_dropout, dropout_keys_Bx2,
        drop.ATTENTION_PROBS, layer, wanted_BxP)
    return jnp.einsum('BNQK,BKND->BQND', probs_BxNxQxK, v_BxKxNxD)


def _is_long(length: Any) -> bool:
    """Whether all scores of a row at once are too large. Not if the length is symbolic."""
    return isinstance(length, int) and length > _LONGEST_AT_ONCE


def _in_blocks_of_queries(
    plain: Callable[[jax.Array, jax.Array], jax.Array], q_BxSxNxD: jax.Array
) -> jax.Array:
    """As `plain` of all queries, one block after the other: the scores of a row are never stored.

    The backward pass computes a block again, which is a third more work.
    """
    batch, length, num_heads, head_dim = q_BxSxNxD.shape
    missing = -length % _QUERIES_AT_ONCE
    q_BxSxNxD = jnp.pad(q_BxSxNxD, ((0, 0), (0, missing), (0, 0), (0, 0)))
    q_BxCxQxNxD = q_BxSxNxD.reshape(batch, -1, _QUERIES_AT_ONCE, num_heads, head_dim)
    # Padded queries have the last position; their results are left out.
    positions_CxQ = jnp.minimum(
        jnp.arange(length + missing), length - 1).reshape(-1, _QUERIES_AT_ONCE)

    @functools.partial(jax.checkpoint, prevent_cse=False)
    def context_of(block: tuple[jax.Array, jax.Array]) -> jax.Array:
        q_BxQxNxD, positions_Q = block
        return plain(q_BxQxNxD, jnp.broadcast_to(positions_Q, (batch, _QUERIES_AT_ONCE)))

    context_CxBxQxNxD = lax.map(context_of, (jnp.moveaxis(q_BxCxQxNxD, 1, 0), positions_CxQ))
    context_BxSxNxD = jnp.moveaxis(context_CxBxQxNxD, 0, 1).reshape(q_BxSxNxD.shape)
    return context_BxSxNxD[:, :length]


def _with_bias(product_BxSxMxNxD: jax.Array, bias_MxNxD: jax.Array | None) -> list[jax.Array]:
    """Queries, keys and values, or what there is of them, each [B, S, N, D]."""
    parts = range(product_BxSxMxNxD.shape[2])
    if bias_MxNxD is None:
        return [product_BxSxMxNxD[:, :, i] for i in parts]
    bias_MxNxD = bias_MxNxD.astype(product_BxSxMxNxD.dtype)
    # Added to each part: else each part's gradient would be padded to all of them and added up.
    return [product_BxSxMxNxD[:, :, i] + bias_MxNxD[i] for i in parts]


def _seen(
    segments_BxS: jax.Array, wanted_BxP: jax.Array | None, config: ModelConfig
) -> jax.Array:
    """Whether a query sees a key [B, Q, K], of the queries at wanted positions; None: of all."""
    queries_BxQ = segments_BxS
    if wanted_BxP is not None:
        queries_BxQ = jnp.take_along_axis(segments_BxS, wanted_BxP, axis=1)
    seen_BxQxK = queries_BxQ[:, :, None] == segments_BxS[:, None, :]
    if not config.causal and not config.local_attention:
        return seen_BxQxK
    # Within a packed sequence, order and distances are those of the row.
    places_S = lax.broadcasted_iota(jnp.int32, segments_BxS.shape[1:], 0)
    places_BxQ = places_S[None] if wanted_BxP is None else wanted_BxP
    if config.causal:
        seen_BxQxK &= places_BxQ[:, :, None] >= places_S
    if config.local_attention:
        distances_BxQxK = jnp.abs(places_BxQ[:, :, None] - places_S)
        seen_BxQxK &= distances_BxQxK <= config.local_attention // 2
    return seen_BxQxK


def choose(config: ModelConfig, length: int, drops: bool) -> str:
    """The name of the implementation for rows of `length` tokens, with or without dropout.

    Raises:
      InputError: the config names one that cannot compute this.
    """
    name = config.attention
    if name == 'auto':
        fused = _fused_of(config.layout.platform, length, drops)
        if not fused or fused in config.failing_attention:
            return 'xla'
        return 'xla' if why_unsupported(fused, config, length, drops) else fused
    if name == 'xla':  # not checked: an export's length is symbolic and cannot be compared
        return name
    why = why_unsupported(name, config, length, drops)
    if why:
        raise InputError(f'config.model.attention={name!r} cannot be: {why}; choose auto or xla')
    return name


def _fused_of(platform: str, length: int, drops: bool) -> str:
    """The fused implementation that 'auto' considers on a platform; '' if there is none."""
    if platform == 'gpu':
        return 'kernel' if drops else 'cudnn'
    if platform == 'tpu' and length >= _KERNEL_FROM:
        return 'kernel'
    return ''


def why_unsupported(name: str, config: ModelConfig, length: int, drops: bool) -> str:
    """Why the fused implementation `name` cannot compute this; '' if it can."""
    platform = config.layout.platform
    platforms = {'kernel': ('tpu', 'gpu'), 'cudnn': ('gpu',)}[name]
    if platform not in platforms:
        needed = ' and '.join(f'{x.upper()}s' for x in platforms)
        return f'it is for {needed}, and this is a {platform}'
    if config.causal:
        return 'it has no left-to-right attention'
    if config.relative_positions:
        return 'it adds no relative positions to scores'
    if config.dtype != 'bfloat16':
        return f'it is for bfloat16, and this is {config.dtype}'
    if name == 'cudnn':
        return _why_not_by_cudnn(config, length, drops)
    num_heads = config.num_heads // config.layout.tensor_shards
    return why_not(_kernel_settings(config), length, num_heads, config.local_attention)


def _why_not_by_cudnn(config: ModelConfig, length: int, drops: bool) -> str:
    if config.head_dim % 8 or config.head_dim > 128:
        return f'its heads have a multiple of 8 dims up to 128, and these have {config.head_dim}'
    if length % 2:
        return f'its rows have an even number of tokens, and these have {length}'
    if drops:  # jax does not expose its dropout
        return (f'it has no dropout, and config.model.attention_dropout={config.attention_dropout}'
                ' (auto takes it for evaluation)')
    return ''


def gather_positions(x_BxSxF: jax.Array, positions_BxP: jax.Array) -> jax.Array:
    """The elements [B, P, ...] of the sequence [B, S, ...] at `positions`.

    It is a product with one-hot rows: exact, under 0.1 % of the model's cost, and with a product
    instead of a scatter as its gradient.
    """
    one_hot_BxPxS = jax.nn.one_hot(positions_BxP, x_BxSxF.shape[1], dtype=x_BxSxF.dtype)
    return jnp.einsum(
        'BPS,BS...->BP...', one_hot_BxPxS, x_BxSxF, precision=jax.lax.Precision.HIGHEST)


class SelfAttention(nn.Module):
    """Context vectors [B, S, N, D] of hidden states [B, S, H].

    With `wanted_BxP` they are [B, P, N, D], at these positions: hidden states there, `x_BxPxH`, are
    projected to queries, all hidden states to keys and values.

    With `num_kv_heads`, keys and values are projected to so many heads and repeated, so that every
    implementation of `attend` takes them: this saves parameters and their products, no attention.

    If flax's collection `intermediates` is mutable, it receives `probabilities` [B, N, Q, K].
    """

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x_BxSxH: jax.Array, segments_BxS: jax.Array, dropout_keys_Bx2: jax.Array | None,
        layer: jax.Array | int, wanted_BxP: jax.Array | None = None,
        relative_NxSxS: jax.Array | None = None, x_BxPxH: jax.Array | None = None,
    ) -> jax.Array:
        config = self.config
        project: Any = self._of_groups
        if not config.num_kv_heads:
            fused = self._projection('qkv', (3, config.num_heads, config.head_dim))
            project = fused.product_and_bias

        def projected(
            x: jax.Array, lines: jax.Array | None = None, matrices: slice = slice(None)
        ) -> tuple[jax.Array, jax.Array | None]:
            read = read_by_adapter(config, x, dropout_keys_Bx2, drop.QKV_ADAPTER, layer, lines)
            product, bias = project(x, read=read, matrices=matrices)
            return config.layout(product, 'batch', None, None, 'heads', None), bias

        keep = None
        if self.is_mutable_collection('intermediates'):
            keep = functools.partial(self.sow, 'intermediates', 'probabilities')
        if wanted_BxP is None:
            return attend(
                *projected(x_BxSxH), segments_BxS, dropout_keys_Bx2, layer,
                config=config, keep=keep, relative_NxSxS=relative_NxSxS)
        assert x_BxPxH is not None
        (q_BxPxNxD,) = _with_bias(*projected(x_BxPxH, wanted_BxP, matrices=_QUERIES))
        k_BxSxNxD, v_BxSxNxD = _with_bias(*projected(x_BxSxH, matrices=_KEYS_AND_VALUES))
        return attend_where_wanted(
            q_BxPxNxD, k_BxSxNxD, v_BxSxNxD, segments_BxS, dropout_keys_Bx2, layer, wanted_BxP,
            config=config, keep=keep, relative_NxSxS=relative_NxSxS)

    def _projection(self, name: str, out_dims: tuple[int, ...]) -> Dense:
        """A product to heads [..., N, D], several of which may be fused."""
        config = self.config
        num_separate = len(out_dims) - 2
        return Dense(
            config,
            in_dims=(config.hidden_size,),
            out_dims=out_dims,
            in_axes=('embed',),
            out_axes=(*[None] * num_separate, 'heads', None),
            num_separate=num_separate,
            biased=config.has_layer_biases,
            module=f'attention/self/{name}',
            name=name)

    def _of_groups(
        self, x_BxSxH: jax.Array, read: jax.Array, matrices: slice = slice(None)
    ) -> tuple[jax.Array, jax.Array | None]:
        """Queries, keys and values [B, S, 3, N, D], or some of them, and their bias.

        Those of `num_kv_heads` are repeated. `read` is what adapters read.
        """
        config = self.config
        parts = []  # products with their biases
        if matrices != _KEYS_AND_VALUES:
            query = self._projection('query', (config.num_heads, config.head_dim))
            q_BxSxNxD, bias_NxD = query.product_and_bias(x_BxSxH, read=read)
            parts.append((q_BxSxNxD[:, :, None], None if bias_NxD is None else bias_NxD[None]))
        if matrices != _QUERIES:
            key_value = self._projection('key_value', (2, config.num_kv_heads, config.head_dim))
            kv_BxSx2xGxD, bias_2xGxD = key_value.product_and_bias(x_BxSxH, read=read)
            repeat = functools.partial(jnp.repeat, repeats=config.grouped_heads)
            bias = None if bias_2xGxD is None else repeat(bias_2xGxD, axis=1)
            parts.append((repeat(kv_BxSx2xGxD, axis=3), bias))
        products, biases = zip(*parts)
        product = jnp.concatenate(products, axis=2)
        return product, None if biases[0] is None else jnp.concatenate(biases)
