"""Dense, LayerNorm and gelu with BERT's initialisation and precision rules.

    B: batch rows, S: sequence, H: hidden_size
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from bert_jax.config.bert_config import BertConfig
from bert_jax.train.sharding import VOCAB_MULTIPLE, Layout, partitioned


@dataclasses.dataclass(frozen=True)
class ModelConfig(BertConfig):
    """What the model is, with how and where it is computed."""

    dtype: str = 'float32'  # of the computation; parameters are float32
    scan_layers: bool = False
    remat: str = 'none'
    attention: str = 'auto'  # see model/attention.py
    layout: Layout = Layout()

    @property
    def padded_vocab_size(self) -> int:
        return -(-self.vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE

    def kernel_init(self) -> Callable[..., jax.Array]:
        """Normal of `initializer_range`, cut at two of it, without variance correction, as TF's."""
        stddev = self.initializer_range

        def init(key: jax.Array, shape: Sequence[int], dtype=jnp.float32) -> jax.Array:
            return stddev * jax.random.truncated_normal(key, -2.0, 2.0, shape, dtype)

        return init


def gelu(x: jax.Array, form: str | Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Gaussian error linear unit.

    Args:
      x: any shape.
      form: 'gelu_tanh', the approximation of google-research/bert, or 'gelu_erf', exact; or a
        function that computes it another way, for an export.
    """
    if callable(form):
        return form(x)
    if form == 'gelu_erf':
        return x * 0.5 * (1.0 + lax.erf(x * jnp.asarray(math.sqrt(0.5), x.dtype)))
    return jax.nn.gelu(x, approximate=True)


class Dense(nn.Module):
    """`x` [..., in dims] times a kernel [in dims, out dims], plus a bias [out dims]."""

    config: ModelConfig
    in_dims: tuple[int, ...]
    out_dims: tuple[int, ...]
    in_axes: tuple[str | None, ...]
    out_axes: tuple[str | None, ...]

    def setup(self) -> None:
        self.kernel = self.param(
            'kernel',
            partitioned(self.config.kernel_init(), *self.in_axes, *self.out_axes),
            self.in_dims + self.out_dims,
        )
        self.bias = self.param(
            'bias', partitioned(nn.initializers.zeros, *self.out_axes), self.out_dims
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        y, bias = self.apart(x)
        return y + bias.astype(y.dtype)

    def apart(
        self, x: jax.Array, out_dtype: Any = None
    ) -> tuple[jax.Array, jax.Array]:
        """The product [..., out dims] in `out_dtype` (None: the compute dtype), and the bias."""
        layout, dtype = self.config.layout, self.config.dtype
        kernel, n = self.kernel.astype(dtype), len(self.in_dims)
        rows = x.shape[: x.ndim - n]
        if layout.tensor_shards == 1:
            # One dim of features: TPUs pad the last two to tiles, 12 heads of 64 to 16 of 128.
            kernel = kernel.reshape(math.prod(self.in_dims), math.prod(self.out_dims))
            x, n = x.reshape(*rows, -1), 1
        if layout.on_cpu:
            # One dim of rows: with two, a CPU computes the gradient of the kernel from transposed
            # copies (a quarter of its time). On a TPU it would keep gelu out of its product.
            x = x.reshape(-1, *kernel.shape[:n])
        contract = (tuple(range(x.ndim - n, x.ndim)), tuple(range(n)))
        y = lax.dot_general(
            x.astype(dtype), kernel, (contract, ((), ())), preferred_element_type=out_dtype)
        return y.reshape(*rows, *self.out_dims), self.bias

    def logits(self, x: jax.Array) -> jax.Array:
        """Outputs of a head [..., out dims] float32: accumulated, and the bias added, in float32.

        Rounded to bfloat16, 80 logits would become 51 values, with ties between spans.
        """
        y, bias = self.apart(x, jnp.float32)
        return y + bias


class LayerNorm(nn.Module):
    """Normalises the last dim; statistics in float32, result in the compute dtype."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = (x.shape[-1],)
        scale = self.param('scale', partitioned(nn.initializers.ones, None), shape)
        bias = self.param('bias', partitioned(nn.initializers.zeros, None), shape)
        x = x.astype(jnp.float32)
        # Both moments in one pass, the one that makes `x`. Of its differences to the mean, the
        # variance would take a pass more, and its gradient two. Float32 has the digits for it:
        # these means are small beside the deviations.
        mean = jnp.mean(x, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(x), axis=-1, keepdims=True) - jnp.square(mean)
        y = (x - mean) * lax.rsqrt(jnp.maximum(variance, 0.0) + self.config.layer_norm_eps)
        return (y * scale + bias).astype(self.config.dtype)
