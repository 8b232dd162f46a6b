"""Multi-head self-attention with a fused query-key-value projection (paper section 3).

`attend` dispatches to an implementation, which takes the projection's output unchanged and the
sequence number of each token; no mask is made outside. New implementations, and other rules of
which token attends to which, belong here.

    B: batch rows, S: sequence (Q queries, K keys), P: wanted positions, H: hidden_size, N: heads,
    D: head_dim
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bert_jax.model import dropout as drop
from bert_jax.model.attention_kernel import HEAD_DIM, kernel_attention, refusal
from bert_jax.model.layers import Dense, ModelConfig
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.hosts import say

MASKED_SCORE = -10000.0  # added to the scores of masked keys, as in google-research/bert
_NOT_CAUSAL = 'it has no left-to-right attention'
_KERNEL_FROM = 128  # 'auto' takes the TPU kernel for rows of at least so many tokens


class Implementation(Protocol):
    """See `attend`."""

    def __call__(
        self, qkv_BxSx3xNxD: jax.Array, bias_3xNxD: jax.Array, segments_BxS: jax.Array,
        rows_Bx2: jax.Array | None, layer: jax.Array | int, *, config: ModelConfig,
        wanted_BxP: jax.Array | None,
    ) -> jax.Array: ...


Keep = Callable[[jax.Array], Any]


def attend(
    qkv_BxSx3xNxD: jax.Array,
    bias_3xNxD: jax.Array,
    segments_BxS: jax.Array,
    rows_Bx2: jax.Array | None,
    layer: jax.Array | int,
    *,
    config: ModelConfig,
    wanted_BxP: jax.Array | None = None,
    keep: Keep | None = None,
) -> jax.Array:
    """Context vectors [B, S, N, D], or [B, P, N, D]: softmax(q k / sqrt(D)) v, with dropout.

    Args:
      qkv_BxSx3xNxD: queries, keys and values without bias, in the compute dtype.
      bias_3xNxD: their bias, float32.
      segments_BxS: sequence number of each token; 0 is padding. A token attends to those with the
        same number. So padding attends to padding, and its output is never used.
      rows_Bx2: keys of dropout on the probabilities, or None.
      layer: index of the layer, for dropout; may be traced.
      config: chooses the implementation.
      wanted_BxP: positions of the queries to compute; None: all.
      keep: receives the probabilities [B, N, Q, K] float32, before dropout. This forces the plain
        implementation: the others do not store them.
    """
    if keep is not None:
        return _xla(
            qkv_BxSx3xNxD, bias_3xNxD, segments_BxS, rows_Bx2, layer, config=config,
            wanted_BxP=wanted_BxP, keep=keep,
        )
    drops = rows_Bx2 is not None and config.attention_dropout > 0
    name = choose(config, qkv_BxSx3xNxD.shape[1], drops)
    if wanted_BxP is not None:  # a few queries: too little work for a kernel
        name = 'xla'
    return IMPLEMENTATIONS[name](
        qkv_BxSx3xNxD, bias_3xNxD, segments_BxS, rows_Bx2, layer, config=config,
        wanted_BxP=wanted_BxP,
    )


def choose(config: ModelConfig, length: int, drops: bool) -> str:
    """The name of the implementation for rows of `length` tokens, with or without dropout.

    Raises:
      InputError: the config names one that cannot compute this.
    """
    name = config.attention
    if name == 'auto':
        if length >= _KERNEL_FROM and not _kernel_refusal(config, length):
            return 'kernel'
        return 'xla' if drops or _cudnn_refusal(config, length) else 'cudnn'
    refusal_of = {'kernel': _kernel_refusal, 'cudnn': _cudnn_refusal}.get(name)
    if refusal_of is not None and (why := refusal_of(config, length)):
        raise InputError(f"config.model.attention={name!r} cannot be: {why}; choose auto or xla")
    if name == 'cudnn' and drops:
        raise InputError(
            "config.model.attention='cudnn' cannot be: it has no dropout, and "
            f'config.model.attention_dropout={config.attention_dropout}; choose auto, which takes '
            'it for evaluation, or set the dropout to 0'
        )
    return name


def _kernel_refusal(config: ModelConfig, length: int) -> str | None:
    if config.causal:
        return _NOT_CAUSAL
    heads = config.num_heads // config.layout.tensor_shards
    return refusal(config.layout.platform, config.dtype, length, heads, config.head_dim)


def _cudnn_refusal(config: ModelConfig, length: int) -> str | None:
    if config.causal:
        return _NOT_CAUSAL
    if config.layout.platform != 'gpu':
        return f'it is for GPUs, and this is a {config.layout.platform}'
    if config.dtype != 'bfloat16':
        return f'it is for bfloat16, and this is {config.dtype}'
    if config.head_dim % 8 or config.head_dim > 128:
        return f'its heads have a multiple of 8 dims up to 128, and these have {config.head_dim}'
    if length % 2:
        return f'its rows have an even number of tokens, and these have {length}'
    return None


def _kernel(
    qkv_BxSx3xNxD: jax.Array, bias_3xNxD: jax.Array, segments_BxS: jax.Array,
    rows_Bx2: jax.Array | None, layer: jax.Array | int, *, config: ModelConfig,
    wanted_BxP: jax.Array | None,
) -> jax.Array:
    """The TPU kernel; see `attention_kernel`."""
    assert wanted_BxP is None
    return kernel_attention(
        qkv_BxSx3xNxD, bias_3xNxD, segments_BxS, rows_Bx2, layer,
        rate=config.attention_dropout, mesh=config.layout.mesh,
    )


def _xla(
    qkv_BxSx3xNxD: jax.Array, bias_3xNxD: jax.Array, segments_BxS: jax.Array,
    rows_Bx2: jax.Array | None, layer: jax.Array | int, *, config: ModelConfig,
    wanted_BxP: jax.Array | None, keep: Keep | None = None,
) -> jax.Array:
    """Plain operations, which XLA fuses; scores and softmax are float32."""
    qkv_BxSx3xNxD = qkv_BxSx3xNxD + bias_3xNxD.astype(qkv_BxSx3xNxD.dtype)
    probs_BxNxQxK = _probabilities(
        qkv_BxSx3xNxD, segments_BxS, config=config, wanted_BxP=wanted_BxP)
    if keep is not None:
        keep(probs_BxNxQxK)
    probs_BxNxQxK = drop.dropout(
        probs_BxNxQxK.astype(config.dtype), config.attention_dropout, rows_Bx2,
        drop.ATTENTION_PROBS, layer, wanted_BxP,
    )
    return jnp.einsum('BNQK,BKND->BQND', probs_BxNxQxK, qkv_BxSx3xNxD[:, :, 2])


def _probabilities(
    qkv_BxSx3xNxD: jax.Array, segments_BxS: jax.Array, *, config: ModelConfig,
    wanted_BxP: jax.Array | None = None,
) -> jax.Array:
    """softmax(q k / sqrt(D)) [B, N, Q, K] float32, before dropout; see `attend`.

    Args:
      qkv_BxSx3xNxD: with bias.
    """
    q_BxQxNxD, k_BxKxNxD = qkv_BxSx3xNxD[:, :, 0], qkv_BxSx3xNxD[:, :, 1]
    queries_BxQ = segments_BxS
    if wanted_BxP is not None:
        q_BxQxNxD = gather_positions(q_BxQxNxD, wanted_BxP)
        queries_BxQ = jnp.take_along_axis(segments_BxS, wanted_BxP, axis=1)
    # exp(-10000) is 0 in every precision, so a sequence is independent of its neighbours.
    seen_BxQxK = queries_BxQ[:, :, None] == segments_BxS[:, None, :]
    if config.causal:  # within a packed sequence, the order is that of the row
        places_S = jnp.arange(segments_BxS.shape[1])
        places_BxQ = places_S[None] if wanted_BxP is None else wanted_BxP
        seen_BxQxK &= places_BxQ[:, :, None] >= places_S
    bias_Bx1xQxK = jnp.where(seen_BxQxK, 0.0, MASKED_SCORE)[:, None]
    scores = jnp.einsum(
        'BQND,BKND->BNQK', q_BxQxNxD, k_BxKxNxD, preferred_element_type=jnp.float32
    )
    scores = scores * (1.0 / math.sqrt(config.head_dim)) + bias_Bx1xQxK
    return jax.nn.softmax(scores, axis=-1)


def _cudnn(
    qkv_BxSx3xNxD: jax.Array, bias_3xNxD: jax.Array, segments_BxS: jax.Array,
    rows_Bx2: jax.Array | None, layer: jax.Array | int, *, config: ModelConfig,
    wanted_BxP: jax.Array | None,
) -> jax.Array:
    """The fused attention of NVIDIA's cuDNN. jax does not expose its dropout."""
    del rows_Bx2, layer, config
    assert wanted_BxP is None
    qkv_BxSx3xNxD = qkv_BxSx3xNxD + bias_3xNxD.astype(qkv_BxSx3xNxD.dtype)
    q_BxSxNxD, k_BxSxNxD, v_BxSxNxD = (qkv_BxSx3xNxD[:, :, i] for i in range(3))
    seen_Bx1xSxS = (segments_BxS[:, :, None] == segments_BxS[:, None, :])[:, None]
    return jax.nn.dot_product_attention(
        q_BxSxNxD, k_BxSxNxD, v_BxSxNxD, mask=seen_Bx1xSxS, implementation='cudnn'
    )


# By the names of `model.attention`; see `choose` for 'auto'.
IMPLEMENTATIONS: Mapping[str, Implementation] = {'xla': _xla, 'kernel': _kernel, 'cudnn': _cudnn}


def gather_positions(x_BxSxF: jax.Array, positions_BxP: jax.Array) -> jax.Array:
    """Rows [B, P, ...] of the sequence [B, S, ...] at `positions`.

    A product with one-hot rows: under 0.1 % of the model's cost, exact, and its gradient is a
    product instead of a scatter.
    """
    one_hot_BxPxS = jax.nn.one_hot(positions_BxP, x_BxSxF.shape[1], dtype=x_BxSxF.dtype)
    return jnp.einsum(
        'BPS,BS...->BP...', one_hot_BxPxS, x_BxSxF, precision=jax.lax.Precision.HIGHEST
    )


class SelfAttention(nn.Module):
    """Context vectors [B, S, N, D] of hidden states [B, S, H]; [B, P, N, D] with `wanted_BxP`.

    If flax's collection `intermediates` is mutable, it receives `probabilities` [B, N, Q, K].
    """

    config: ModelConfig

    @nn.compact
    def __call__(
        self,
        x_BxSxH: jax.Array,
        segments_BxS: jax.Array,
        rows_Bx2: jax.Array | None,
        layer: jax.Array | int,
        wanted_BxP: jax.Array | None = None,
    ) -> jax.Array:
        c = self.config
        project = Dense(
            c, (c.hidden_size,), (3, c.num_heads, c.head_dim), ('embed',), (None, 'heads', None),
            num_separate=1, name='qkv',
        )
        qkv, bias = project.apart(x_BxSxH)
        qkv = c.layout(qkv, 'batch', None, None, 'heads', None)
        keep = None
        if self.is_mutable_collection('intermediates'):
            keep = functools.partial(self.sow, 'intermediates', 'probabilities')
        return attend(
            qkv, bias, segments_BxS, rows_Bx2, layer, config=c, wanted_BxP=wanted_BxP, keep=keep)


TOLERANCE = 0.03  # of the largest element: bfloat16 keeps 8 bits, and sums are in another order
_LENGTH = 200  # not a multiple of a kernel's tiles
_RATE = 0.1
_FUSED = {'tpu': 'kernel', 'gpu': 'cudnn'}  # what 'auto' may choose, by platform


@functools.cache
def fault() -> str:
    """Why this chip's fused attention is wrong; '' if it is right or the chip has none."""
    try:
        match _FUSED.get(jax.default_backend()):
            case 'kernel':
                result = disagreement(functools.partial(kernel_attention, rate=_RATE), _RATE)
            case 'cudnn':
                result = disagreement(_implementation('cudnn', 0.0), 0.0)
            case _:
                return ''
    except Exception as error:  # of the compiler, of many types
        return str(error).strip().partition('\n')[0][:200] or type(error).__name__
    if result <= TOLERANCE:
        return ''
    return f'it differs from XLA by {result:.1%} of the largest element'


def settled(attention: str) -> str:
    """`model.attention` for this chip: 'auto' becomes 'xla' if the fused attention is wrong."""
    if attention != 'auto' or not (why := fault()):
        return attention
    name = _FUSED[jax.default_backend()]
    say(f'note: attention is computed by XLA, {name!r} fails on this chip ({why})')
    return 'xla'


def _implementation(name: str, rate: float, num_heads: int = 2) -> Callable[..., jax.Array]:
    config = ModelConfig(
        vocab_size=8, num_layers=1, hidden_size=num_heads * HEAD_DIM, num_heads=num_heads,
        intermediate_size=8, attention_dropout=rate, dtype='bfloat16',
    )
    return functools.partial(IMPLEMENTATIONS[name], config=config, wanted_BxP=None)


def disagreement(
    fused: Callable[..., jax.Array], rate: float, num_heads: int = 2
) -> float:
    """The largest difference of values and gradients, as a share of their largest element.

    Two rows on one device, one of two sequences and one with padding.

    Args:
      fused: takes qkv, its bias, segments, rows and the layer, as `attend`.
      rate: of dropout.
      num_heads: of 64 dims.
    """
    rng = np.random.default_rng(0)
    shape = (2, _LENGTH, 3, num_heads, HEAD_DIM)
    qkv = jnp.asarray(rng.normal(size=shape), jnp.bfloat16)
    d_context = jnp.asarray(rng.normal(size=(2, _LENGTH, num_heads, HEAD_DIM)), jnp.bfloat16)
    segments = np.ones((2, _LENGTH), np.int32)
    segments[0, 120:], segments[1, 150:] = 2, 0
    d_context = d_context * (segments > 0)[:, :, None, None]
    bias = jnp.asarray(rng.normal(size=shape[2:]), jnp.float32)
    rows = drop.dropout_rows(0, 1, jnp.arange(2))

    def both(attend: Callable[..., jax.Array]) -> list[np.ndarray]:
        def run(
            qkv: jax.Array, bias: jax.Array, d_context: jax.Array
        ) -> tuple[jax.Array, ...]:
            context, pull = jax.vjp(lambda x, b: attend(x, b, segments, rows, 0), qkv, bias)
            return context, *pull(d_context)

        context, d_qkv, d_bias = jax.device_get(jax.jit(run)(qkv, bias, d_context))
        real = segments > 0
        return [x.astype(np.float64) for x in (context[real], d_qkv[real], d_bias)]

    result, wanted = both(fused), both(_implementation('xla', rate, num_heads))
    return max(
        float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(result, wanted, strict=True)
    )
