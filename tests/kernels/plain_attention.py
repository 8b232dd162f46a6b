"""Attention and its gradients in NumPy, which the kernels' must equal.

They are written out in float64, so nothing is compiled but the masks of dropout.
"""

import functools

import numpy as np

from bert_jax.kernels import dropout as drop
from tests.tiny_models import jit

LAYER = 3


def attention_with_gradient(
    qkv, bias, segments, rows, d_out, rate, *, window=0, rotary_base=0.0, rotary_factor=1.0
):
    """The output [B, L, N, D], and the gradients of `qkv` and `bias`.

    Args:
      qkv: [B, L, 3, N, D], any float.
      bias: [3, N, D].
      segments: [B, L], the number of each token's sequence.
      rows: [B, 2], of `dropout_keys`.
      d_out: [B, L, N, D], the gradient of the output.
      rate: of dropout.
      window: how many tokens around its own a token attends to; 0: all.
      rotary_base, rotary_factor: of rotary positions; base 0: none.
    """
    x = np.asarray(qkv, np.float64) + bias
    q, k, v = (x[:, :, i].swapaxes(1, 2) for i in range(3))  # [B, N, L, D]
    d_out = np.asarray(d_out, np.float64).swapaxes(1, 2)
    scale = 1 / np.sqrt(q.shape[-1])
    turned = functools.partial(_turned, base=rotary_base, factor=rotary_factor)
    q, k = turned(q), turned(k)
    seen = segments[:, None, :, None] == segments[:, None, None, :]
    if window:
        place = np.arange(q.shape[2])
        seen = seen & (abs(place[:, None] - place) <= window // 2)
    scores = np.where(seen, q @ k.swapaxes(2, 3) * scale, -np.inf)
    probs = np.exp(scores - scores.max(-1, keepdims=True))
    probs /= probs.sum(-1, keepdims=True)
    kept = _kept(probs.shape, rate, rows)
    out = (probs * kept) @ v
    d_v = (probs * kept).swapaxes(2, 3) @ d_out
    d_probs = d_out @ v.swapaxes(2, 3) * kept
    d_scores = scale * probs * (d_probs - (d_probs * probs).sum(-1, keepdims=True))
    d_q = turned(d_scores @ k, back=True)
    d_k = turned(d_scores.swapaxes(2, 3) @ q, back=True)
    d_qkv = np.stack([d.swapaxes(1, 2) for d in (d_q, d_k, d_v)], axis=2)
    return out.swapaxes(1, 2), d_qkv, d_qkv.sum((0, 1))


def _turned(x, base, factor, back=False):
    """Rotary positions as products of complex numbers, or the other way around."""
    if not base:
        return x
    half = x.shape[-1] // 2
    turns = base ** (-np.arange(half) / half) / factor
    angles = np.arange(x.shape[2])[:, None] * turns
    points = (x[..., :half] + 1j * x[..., half:]) * np.exp((-1j if back else 1j) * angles)
    return np.concatenate([points.real, points.imag], axis=-1)


@functools.partial(jit, static_argnums=(0, 1))
def _mask(shape, rate, rows):
    return drop.dropout(np.ones(shape, np.float32), rate, rows, drop.ATTENTION_PROBS, LAYER)


def _kept(shape, rate, rows):
    """What dropout multiplies probabilities by, 0 or 1 / (1 - rate)."""
    return np.asarray(_mask(shape, rate, rows)) if rate else 1.0
