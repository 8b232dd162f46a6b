"""Whether fused attention computes on a chip what XLA computes there.

The TPU kernel's tests interpret it, and cuDNN is another's program: so a run asks the chip itself,
once, before it relies on either.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.model import dropout as drop
from bert_jax.model.attention import IMPLEMENTATIONS
from bert_jax.model.attention_kernel import HEAD_DIM, kernel_attention
from bert_jax.model.layers import ModelConfig
from bert_jax.runtime.hosts import say

TOLERANCE = 0.03  # of the largest element: bfloat16 keeps 8 bits, and sums are in another order
_LENGTH = 200  # no multiple of a kernel's tiles
_RATE = 0.1
_FUSED = {'tpu': 'kernel', 'gpu': 'cudnn'}  # what 'auto' may choose, by platform


@functools.cache
def fault() -> str:
    """Why fused attention is not to be used on this chip; '' where it is right, or has none."""
    try:
        match _FUSED.get(jax.default_backend()):
            case 'kernel':
                found = disagreement(functools.partial(kernel_attention, rate=_RATE), _RATE)
            case 'cudnn':
                found = disagreement(_implementation('cudnn', 0.0), 0.0)
            case _:
                return ''
    except Exception as error:  # of the compiler, of many types
        return str(error).strip().partition('\n')[0][:200] or type(error).__name__
    if found <= TOLERANCE:
        return ''
    return f'it differs from XLA by {found:.1%} of the largest element'


def settled(attention: str) -> str:
    """`model.attention` for this chip: 'auto' becomes 'xla' where its fused one has a fault."""
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

    found, wanted = both(fused), both(_implementation('xla', rate, num_heads))
    return max(
        float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(found, wanted, strict=True)
    )
