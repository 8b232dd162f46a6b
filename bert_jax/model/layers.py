"""Dense with its adapter, LayerNorm and gelu with BERT's initialisation and precision rules.

    B: batch rows, S: sequence, H: hidden_size, L: lines (as in `kernels.dropout`)

    Of an adapter, I: inputs, M: adapted matrices, N: all matrices, R: rank, O: outputs of a matrix
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from bert_jax.config.adapters import TARGETS, AdapterOptions
from bert_jax.config.bert_config import BertConfig
from bert_jax.kernels import dropout as drop
from bert_jax.sharding import Layout, padded_vocab_size


@dataclasses.dataclass(frozen=True)
class ModelConfig(BertConfig):
    """The model's fields, with the settings of its computation."""

    dtype: str = 'float32'  # of activations; parameters are float32
    remat: str = 'none'
    attention: str = 'auto'  # see model/attention.py
    failing_attention: tuple[str, ...] = ()  # what 'auto' does not take
    layout: Layout = Layout()
    adapter: AdapterOptions = AdapterOptions()

    @property
    def padded_vocab_size(self) -> int:
        return padded_vocab_size(self.vocab_size)

    @property
    def kernel_init(self) -> Callable[..., Any]:
        """TF's truncated normal: cut at two standard deviations, without variance correction."""
        return nn.initializers.truncated_normal(self.initializer_range)

    @property
    def branch_init(self) -> Callable[..., Any]:
        """Of the kernels whose products are added to the residual stream, two in each layer.

        With 'by_depth' the sum of all of them has the variance of one of `kernel_init` (Shoeybi et
        al., 2019, Megatron-LM, section 4).
        """
        deviation = self.initializer_range
        if self.initializer == 'by_depth':
            deviation /= math.sqrt(2 * self.num_layers)
        return nn.initializers.truncated_normal(deviation)


class Parameter(nn.LogicallyPartitioned):
    """A parameter with its declaration for the mesh, optimizers and the FLOPs formula.

    Its dims are [in dims, separate dims, out dims].

    Attributes:
      value: the array.
      names: the logical axis of each dim (`sharding.RULES`).
      num_in: number of dims that are contracted; 0: a table or a vector, not a matrix.
      num_separate: number of dims that index separate matrices: 1 for fused query, key and value.
      decays: whether weight decay and LAMB's trust ratio apply.
    """

    num_in: int = flax.struct.field(default=0, pytree_node=False)
    num_separate: int = flax.struct.field(default=0, pytree_node=False)
    decays: bool = flax.struct.field(default=True, pytree_node=False)

    @property
    def separate_axes(self) -> tuple[int, ...]:
        """Dims that index separate matrices."""
        return tuple(range(self.num_in, self.num_in + self.num_separate))

    def to_matrices(self, x: jax.Array) -> jax.Array:
        """Reshapes an array with this parameter's dims to matrices [number, in, out]."""
        separate = self.separate_axes
        x = jnp.moveaxis(x, separate, range(len(separate)))
        out = len(separate) + self.num_in
        return x.reshape(-1, math.prod(x.shape[len(separate) : out]), math.prod(x.shape[out:]))

    def from_matrices(self, matrices: jax.Array, shape: Sequence[int]) -> jax.Array:
        """The inverse of `to_matrices` for an array of this shape."""
        separate = self.separate_axes
        rest = [size for axis, size in enumerate(shape) if axis not in separate]
        x = matrices.reshape(*(shape[axis] for axis in separate), *rest)
        return jnp.moveaxis(x, range(len(separate)), separate)


def parameter(
    init: Callable[..., jax.Array], *names: str | None, **declared: Any
) -> Callable[..., Any]:
    """An initializer that returns a `Parameter` with these names and other fields."""
    def make(*args: Any) -> Parameter:
        return Parameter(init(*args), names, **declared)

    return make


Names = tuple[str, ...]


def path_names(path: Sequence[Any]) -> Names:
    """The dict keys of a jax key path (flax's metadata boxes add attributes, which are skipped)."""
    return tuple(str(key.key) for key in path if isinstance(key, jax.tree_util.DictKey))


def layer_of(names: Names) -> int | None:
    """Index of the layer that a parameter belongs to; None outside the layers."""
    if 'encoder' not in names:
        return None
    return int(names[names.index('encoder') + 1].removeprefix('layer_'))


def declared_parameters(boxed: Any) -> dict[Names, Parameter]:
    """The declarations of a tree of `Parameter`s, by path."""
    leaves = jax.tree_util.tree_leaves_with_path(boxed, is_leaf=lambda x: isinstance(x, Parameter))
    return {path_names(path): x for path, x in leaves}


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def gelu(x: jax.Array, form: str, kept: str = 'derivative') -> jax.Array:
    """Gaussian error linear unit.

    Args:
      x: any shape.
      form: 'gelu_tanh', the approximation of google-research/bert, or 'gelu_erf', exact.
      kept: what the backward pass reads. 'derivative': the derivative, which XLA recomputes, as it
        does gelu, in the matrix products that read them. 'stored': the derivative from memory.
        'input': x, from which it computes the derivative.
    """
    y = x.astype(jnp.float32)
    if form == 'gelu_tanh':
        y = jax.nn.gelu(y)
    else:  # written such that it becomes one operator in an export to ONNX
        y = y * 0.5 * (1.0 + lax.erf(y * math.sqrt(0.5)))
    return y.astype(x.dtype)


def _gelu_forward(x: jax.Array, form: str, kept: str) -> tuple[jax.Array, jax.Array]:
    value, derivative = _gelu_and_derivative(x, form)
    if kept == 'input':
        return value, x
    if kept == 'stored':
        value, derivative = lax.optimization_barrier((value, derivative))
    return value, derivative


def _gelu_and_derivative(x: jax.Array, form: str) -> tuple[jax.Array, jax.Array]:
    """The values of gelu and its derivative, in few operations.

    Gelu is x times a share; its derivative is the share plus x times the share's slope.
    """
    y = x.astype(jnp.float32)
    square = y * y
    if form == 'gelu_tanh':  # x (1 + tanh(a x + b x^3)) / 2 (Hendrycks and Gimpel, 2016)
        a = math.sqrt(2 / math.pi)
        b = 0.044715 * math.sqrt(2 / math.pi)
        share = 0.5 + 0.5 * jnp.tanh(y * (a + b * square))
        value = y * share
        # (1 + tanh(u)) / 2 has the slope share (1 - share) 2 u'.
        rise = value * ((1.0 - share) * (2.0 * a + 6.0 * b * square))
    else:
        share = 0.5 + 0.5 * lax.erf(y * math.sqrt(0.5))
        value = y * share
        rise = y * (jnp.exp(-0.5 * square) * (1 / math.sqrt(2 * math.pi)))
    return value.astype(x.dtype), (share + rise).astype(x.dtype)


def _gelu_backward(
    form: str, kept: str, residual: jax.Array, dy: jax.Array
) -> tuple[jax.Array]:
    if kept != 'input':
        return (dy * residual,)
    # Without the barrier, XLA would store what both passes compute, in float32.
    x, dy = lax.optimization_barrier((residual, dy))
    return (dy * _gelu_and_derivative(x, form)[1],)


gelu.defvjp(_gelu_forward, _gelu_backward)


def activation(x: jax.Array, form: str, kept: str = 'derivative') -> jax.Array:
    """`hidden_act` of an array: `gelu`, whose arguments these are, relu, or silu in float32."""
    if form == 'relu':
        return jax.nn.relu(x)
    if form == 'silu':
        return jax.nn.silu(x.astype(jnp.float32)).astype(x.dtype)
    return gelu(x, form, kept)


class Adapter(nn.Module):
    """The parameters that are trained in place of a kernel (`config.adapters`).

    To the product of `x` with the kernel it adds `x` times `a` [in dims, separate dim, rank] times
    `b` [rank, separate dim, out dims], scaled. With 'dora', each column of the kernel plus a times
    b is brought to the length `magnitude` [separate dim, out dims]. The separate dim is that of the
    matrices that have an adapter; a kernel of one matrix has none. At first b is 0 and the lengths
    are the kernel's, so that training starts from the model as it is; a is drawn as peft draws it.

    Attributes:
      adapted: index of each matrix that has an adapter.
      in_dims, out_dims, in_axes, out_axes, num_separate: of the kernel, as for `Dense`.
    """

    config: ModelConfig
    adapted: tuple[int, ...]
    in_dims: tuple[int, ...]
    out_dims: tuple[int, ...]
    in_axes: tuple[str | None, ...]
    out_axes: tuple[str | None, ...]
    num_separate: int

    @nn.compact
    def __call__(
        self, y: jax.Array, x: jax.Array, kernel: jax.Array, matrices: slice = slice(None)
    ) -> jax.Array:
        """The product [..., out] with the adapter.

        Args:
          y: the product without it, [..., out] or [..., out dims].
          x: what is multiplied with the adapter, [..., in].
          kernel: [in dims, out dims], float32.
          matrices: those that the product is of.
        """
        options = self.config.adapter
        num_in = len(self.in_dims)
        separate = (len(self.adapted),) * self.num_separate
        columns = (*separate, *self.out_dims[self.num_separate :])
        declared = functools.partial(parameter, num_separate=self.num_separate)
        init_a = declared(
            _uniform_by_inputs(num_in), *self.in_axes, *self.out_axes[: self.num_separate], None,
            num_in=num_in)
        init_b = declared(nn.initializers.zeros, None, *self.out_axes, num_in=1)
        a = self.param('a', init_a, (*self.in_dims, *separate, options.rank))
        b = self.param('b', init_b, (options.rank, *columns))
        a_IxMxR = a.reshape(-1, len(self.adapted), options.rank)
        b_RxMxO = b.reshape(options.rank, len(self.adapted), -1) * options.scale
        dtype = self.config.dtype
        num_low = len(self.adapted) * options.rank
        low = x.astype(dtype) @ a_IxMxR.reshape(-1, num_low).astype(dtype)
        b_MxRxNxO = self._of_each_matrix(b_RxMxO)[:, :, matrices]
        every: tuple[int, ...] = b_MxRxNxO.shape[2:]
        if self.config.layout.tensor_shards == 1:
            # All columns as one dim: TPUs pad the last two, and one of 3 matrices to 8 or 16. (On
            # several shards each matrix is split by its own columns.)
            every = (math.prod(every),)
        result = y.reshape(*x.shape[:-1], *every)
        added = jnp.tensordot(low, b_MxRxNxO.reshape(num_low, *every).astype(dtype), 1)
        result = result + added.astype(y.dtype)
        if options.kind == 'dora':
            factor_MxO = self._dora_factor(a_IxMxR, b_RxMxO, kernel, columns)
            factor = self._placed(factor_MxO)[matrices].reshape(every)
            result = result * factor.astype(y.dtype)
        return result.reshape(y.shape)

    def _dora_factor(
        self, a_IxMxR: jax.Array, b_RxMxO: jax.Array, kernel: jax.Array, columns: tuple[int, ...]
    ) -> jax.Array:
        """What DoRA multiplies a product's columns with, [matrices, columns of one] (M, O).

        Args:
          a_IxMxR, b_RxMxO: the adapter's matrices; b is scaled.
          kernel: [in dims, out dims], float32.
          columns: shape of the magnitudes.
        """
        kernel_IxMxO = kernel.reshape(len(a_IxMxR), self._num_matrices, -1)
        chosen_IxMxO = kernel_IxMxO[:, self.adapted, :]

        def lengths(product_IxMxO: jax.Array) -> jax.Array:
            return jnp.linalg.norm(chosen_IxMxO + product_IxMxO, axis=0)

        init = parameter(
            lambda _, shape: lengths(jnp.zeros(())).reshape(shape), *self.out_axes, decays=False)
        magnitude = self.param('magnitude', init, columns)
        # Its gradient takes the lengths for constants (section 4.3 of the paper).
        constant_MxO = lax.stop_gradient(lengths(jnp.einsum('IMR,RMO->IMO', a_IxMxR, b_RxMxO)))
        return magnitude.reshape(len(self.adapted), -1) / constant_MxO

    @property
    def _num_matrices(self) -> int:
        """The matrices of the kernel."""
        return math.prod(self.out_dims[: self.num_separate])

    def _of_each_matrix(self, b_RxMxO: jax.Array) -> jax.Array:
        """`b` of all matrices [M, R, N, O]: 0 where a matrix is not the adapted one."""
        is_own_MxN = jnp.array(self.adapted)[:, None] == jnp.arange(self._num_matrices)
        b_MxRxO = jnp.swapaxes(b_RxMxO, 0, 1)
        return jnp.where(is_own_MxN[:, None, :, None], b_MxRxO[:, :, None], 0)

    def _placed(self, of_adapted_MxO: jax.Array) -> jax.Array:
        """[N, O]: the values of the adapted matrices, and 1 for the others."""
        parts = [jnp.ones_like(of_adapted_MxO[0])] * self._num_matrices
        for place, matrix in enumerate(self.adapted):
            parts[matrix] = of_adapted_MxO[place]
        return jnp.stack(parts)


def read_by_adapter(
    config: ModelConfig, x: jax.Array, dropout_keys_Bx2: jax.Array | None, site: int, layer: Any,
    lines_BxL: jax.Array | None = None,
) -> jax.Array:
    """The input of an adapter, from `x` [B, S, ...]: with dropout, [B, S, in].

    Args:
      config: has the rate.
      x: the input of the dense layer.
      dropout_keys_Bx2, site, layer, lines_BxL: as for `dropout`.
    """
    rate = config.adapter.dropout
    if rate:
        x = x.reshape(*x.shape[:2], -1)  # so that its lines are positions
    return drop.dropout(x, rate, dropout_keys_Bx2, site, layer, lines_BxL)


def _uniform_by_inputs(num_in: int) -> Callable[..., jax.Array]:
    """Uniform up to 1 / sqrt(inputs): Kaiming's with a = sqrt(5), as peft and PyTorch draw it."""
    def init(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        bound = 1 / math.sqrt(math.prod(shape[:num_in]))
        return jax.random.uniform(key, shape, minval=-bound, maxval=bound)

    return init


class Dense(nn.Module):
    """`x` [..., in dims] times a kernel [in dims, out dims], plus a bias [out dims].

    The first `num_separate` of the out dims index separate matrices (see `Parameter`).

    Attributes:
      biased: whether there is a bias.
      ends_branch: whether what it computes is added to the residual stream.
      module: its place in a layer, a key of `config.adapters.TARGETS`; elsewhere it has no adapter.
    """

    config: ModelConfig
    in_dims: tuple[int, ...]
    out_dims: tuple[int, ...]
    in_axes: tuple[str | None, ...]
    out_axes: tuple[str | None, ...]
    num_separate: int = 0
    biased: bool = True
    ends_branch: bool = False
    module: str = ''

    def setup(self) -> None:
        drawn = self.config.branch_init if self.ends_branch else self.config.kernel_init
        init = parameter(drawn, *self.in_axes, *self.out_axes, num_in=len(self.in_dims),
                         num_separate=self.num_separate)
        self.kernel = self.param('kernel', init, self.in_dims + self.out_dims)
        if self.biased:
            zeros = parameter(nn.initializers.zeros, *self.out_axes, decays=False)
            self.bias = self.param('bias', zeros, self.out_dims)
        else:
            self.bias = None
        self.adapter = None
        # Two products of one input, such as a gated layer's, are one target.
        targets = TARGETS.get(self.module, ())
        if self.num_separate and len(targets) == 1:
            targets *= self.out_dims[0]
        adapted = self.config.adapter.adapted(targets)
        if adapted:
            self.adapter = Adapter(
                self.config, adapted, self.in_dims, self.out_dims, self.in_axes, self.out_axes,
                self.num_separate)

    def __call__(self, x: jax.Array, read: jax.Array | None = None) -> jax.Array:
        """The product with the bias; `read` as for `product_and_bias`."""
        y, bias = self.product_and_bias(x, read=read)
        if bias is None:
            return y
        return y + bias.astype(y.dtype)

    def product_and_bias(
        self, x: jax.Array, out_dtype: Any = None, read: jax.Array | None = None,
        matrices: slice = slice(None),
    ) -> tuple[jax.Array, jax.Array | None]:
        """The product [..., out dims], and the bias.

        Args:
          x: [..., in dims].
          out_dtype: of the product; None: the compute dtype.
          read: what the adapter, if there is one, reads (`read_by_adapter`); None: `x`.
          matrices: the product is with these of the separate ones.
        """
        dtype = self.config.dtype
        kernel = self.kernel.astype(dtype)
        bias = self.bias
        num_in = len(self.in_dims)
        if matrices != slice(None):
            kernel = kernel[(slice(None),) * num_in + (matrices,)]
            bias = None if bias is None else bias[matrices]
        out_dims = kernel.shape[num_in:]
        rows = x.shape[: x.ndim - num_in]
        if self.config.layout.tensor_shards == 1:
            # One feature dim: TPUs pad the last two dims to tiles, 12 heads of 64 to 16 of 128.
            kernel = kernel.reshape(math.prod(self.in_dims), math.prod(out_dims))
            x = x.reshape(*rows, -1)
            num_in = 1
        if self.config.layout.on_cpu:
            # One row dim: with two, a CPU computes the kernel's gradient from transposed copies (a
            # quarter of its time). On a TPU, one row dim would keep gelu out of its fused product.
            x = x.reshape(-1, *kernel.shape[:num_in])
        contracted_of_x = tuple(range(x.ndim - num_in, x.ndim))
        contracted_of_kernel = tuple(range(num_in))
        y = lax.dot_general(
            x.astype(dtype),
            kernel,
            ((contracted_of_x, contracted_of_kernel), ((), ())),
            preferred_element_type=out_dtype)
        if self.adapter is not None:
            read = x if read is None else read
            read = read.reshape(*x.shape[: x.ndim - num_in], -1)
            y = self.adapter(y, read, self.kernel, matrices)
        return y.reshape(*rows, *out_dims), bias

    def logits(self, x: jax.Array) -> jax.Array:
        """Float32 outputs of a head [..., out dims]: accumulated, and the bias added, in float32.

        Rounded to bfloat16, 80 different logits would become 51, with ties between spans.
        """
        y, bias = self.product_and_bias(x, jnp.float32)
        if bias is None:
            return y
        return y + bias


class LayerNorm(nn.Module):
    """Normalises the last dim; statistics in float32, result in the compute dtype.

    It has a bias if the model has `biases`. With `norm='rms'` it is an RMSNorm, which has none.
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = (x.shape[-1],)
        scale = self.param('scale', parameter(nn.initializers.ones, None, decays=False), shape)
        bias = None
        if self.config.biases and self.config.norm == 'layer':
            bias = self.param('bias', parameter(nn.initializers.zeros, None, decays=False), shape)
        x = x.astype(jnp.float32)
        if self.config.norm == 'rms':
            mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
            y = x * lax.rsqrt(mean_square + self.config.layer_norm_eps)
            return (y * scale).astype(self.config.dtype)
        # One-pass variance: E[x^2] - E[x]^2, fused with the computation of x. The two-pass form
        # reads x again, and its gradient twice. Float32 is precise enough, because the means are
        # small compared with the standard deviations.
        mean = jnp.mean(x, axis=-1, keepdims=True)
        variance = jnp.mean(jnp.square(x), axis=-1, keepdims=True) - jnp.square(mean)
        y = (x - mean) * lax.rsqrt(jnp.maximum(variance, 0.0) + self.config.layer_norm_eps)
        y = y * scale
        if bias is not None:
            y = y + bias
        return y.astype(self.config.dtype)
