"""A bidirectional LSTM, for the ablation of section 5.1 and the features of section 5.3.

Rows may be packed (see `Bert`): the state is reset where `sequence_ids` change. This also separates
padding, so the backward direction starts at a sequence's last token.

    B: batch rows, S: sequence, F: features, U: units of one direction, D: directions (2),
    G: gates (4), T: time, which runs backwards in direction 1
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from bert_jax.model.layers import ModelConfig, parameter


def _scan(x_TxDxBxGxU: jax.Array, kernel_DxUxGxU: jax.Array, keep_TxDxB: jax.Array) -> Any:
    """(Hidden states h, cell states c [T, D, B, U], gates [T, D, B, G, U]), all float32.

    Both directions advance in one scan. Gates are returned after their sigmoid or tanh.
    """

    def step(carry: tuple[jax.Array, jax.Array], inputs: tuple[jax.Array, jax.Array]) -> Any:
        h_DxBxU, c_DxBxU = carry
        x_DxBxGxU, keep_DxB = inputs
        h_DxBxU = h_DxBxU * keep_DxB[..., None]
        c_DxBxU = c_DxBxU * keep_DxB[..., None]
        sums_DxBxGxU = x_DxBxGxU + jnp.einsum(
            'DBV,DVGU->DBGU', h_DxBxU.astype(kernel_DxUxGxU.dtype), kernel_DxUxGxU,
            preferred_element_type=jnp.float32)
        i, f, g, o = (sums_DxBxGxU[:, :, gate] for gate in range(4))
        i = jax.nn.sigmoid(i)
        f = jax.nn.sigmoid(f)
        g = jnp.tanh(g)
        o = jax.nn.sigmoid(o)
        c_DxBxU = f * c_DxBxU + i * g
        h_DxBxU = o * jnp.tanh(c_DxBxU)
        return (h_DxBxU, c_DxBxU), (h_DxBxU, c_DxBxU, jnp.stack([i, f, g, o], axis=2))

    _, directions, batch, _, units = x_TxDxBxGxU.shape
    zeros = jnp.zeros((directions, batch, units), jnp.float32)
    _, states = lax.scan(step, (zeros, zeros), (x_TxDxBxGxU, keep_TxDxB))
    return states


@jax.custom_vjp
def recur(x_TxDxBxGxU: jax.Array, kernel_DxUxGxU: jax.Array, keep_TxDxB: jax.Array) -> jax.Array:
    """Hidden states [T, D, B, U] float32 of an LSTM, from the inputs to its gates.

    The gradient is written by hand: jax's accumulates and transposes the kernel's gradient at every
    step, which takes three times as long on a CPU.

    Args:
      x_TxDxBxGxU: the layer's input times its kernel, plus the bias, float32.
      kernel_DxUxGxU: recurrent kernel in the compute dtype.
      keep_TxDxB: 0 where the state is reset before the step, else 1; float32, without gradient.
    """
    return _scan(x_TxDxBxGxU, kernel_DxUxGxU, keep_TxDxB)[0]


def _forward(x: jax.Array, kernel: jax.Array, keep: jax.Array) -> Any:
    h, c, gates = _scan(x, kernel, keep)
    return h, (h, c, gates, kernel, keep)


def _backward(residuals: Any, grad_TxDxBxU: jax.Array) -> Any:
    h_TxDxBxU, c_TxDxBxU, gates_TxDxBxGxU, kernel_DxUxGxU, keep_TxDxB = residuals

    def before(state_TxDxBxU: jax.Array) -> jax.Array:
        """The state before each step."""
        shifted = jnp.pad(state_TxDxBxU[:-1], ((1, 0), (0, 0), (0, 0), (0, 0)))
        return shifted * keep_TxDxB[..., None]

    turned_DxGxUxV = jnp.transpose(kernel_DxUxGxU, (0, 2, 3, 1))

    def step(carry: tuple[jax.Array, jax.Array], inputs: Any) -> Any:
        """`carry`: gradients with respect to the states after this step."""
        dh, dc = carry
        grad, before_c, c, gates, keep = inputs
        i, f, g, o = (gates[:, :, gate] for gate in range(4))
        tanh_c = jnp.tanh(c)
        dh = dh + grad
        dc = dc + dh * o * (1 - tanh_c * tanh_c)
        sums_DxBxGxU = jnp.stack([
            dc * g * i * (1 - i),
            dc * before_c * f * (1 - f),
            dc * i * (1 - g * g),
            dh * tanh_c * o * (1 - o),
        ], axis=2)
        dh = jnp.einsum(
            'DBGU,DGUV->DBV', sums_DxBxGxU.astype(turned_DxGxUxV.dtype), turned_DxGxUxV,
            preferred_element_type=jnp.float32)
        return (dh * keep[..., None], dc * f * keep[..., None]), sums_DxBxGxU

    zeros = jnp.zeros_like(h_TxDxBxU[0])
    inputs = (grad_TxDxBxU, before(c_TxDxBxU), c_TxDxBxU, gates_TxDxBxGxU, keep_TxDxB)
    _, sums_TxDxBxGxU = lax.scan(step, (zeros, zeros), inputs, reverse=True)
    dtype = kernel_DxUxGxU.dtype
    kernel_grad = jnp.einsum(
        'TDBV,TDBGU->DVGU', before(h_TxDxBxU).astype(dtype), sums_TxDxBxGxU.astype(dtype),
        preferred_element_type=jnp.float32)
    return sums_TxDxBxGxU, kernel_grad.astype(dtype), None


recur.defvjp(_forward, _backward)


def _flip(x_TxDxetc: jax.Array) -> jax.Array:
    """Reverses time in direction 1."""
    return jnp.stack([x_TxDxetc[:, 0], x_TxDxetc[::-1, 1]], axis=1)


_glorot = nn.initializers.glorot_uniform(in_axis=0, out_axis=3, batch_axis=(1, 2))


def _uniform_of_torch(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Uniform within +-1 / sqrt(U), as in `torch.nn.LSTM`.

    Not orthogonal matrices: LAPACK's decomposition has hung in processes with TensorFlow.
    """
    limit = shape[-1] ** -0.5
    return jax.random.uniform(key, shape, minval=-limit, maxval=limit)


def _one_for_forget_gates(_: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """0, but 1 for the forget gate: [D, G, U]."""
    return jnp.zeros(shape).at[:, 1].set(1.0)


class BiLstm(nn.Module):
    """One bidirectional LSTM layer: [B, S, F] -> [B, S, 2 U], forward and backward side by side.

    Gates are i, f, g, o, with the equations of `torch.nn.LSTM` and one bias. The state is float32.
    `kernel` [F, D, G, U] is Glorot uniform in each gate, `recurrent_kernel` [D, U, G, U] uniform
    within +-1 / sqrt(U) as in `torch.nn.LSTM`, `bias` [D, G, U] 0, but 1 for the forget gate.
    """

    config: ModelConfig
    units: int

    @nn.compact
    def __call__(self, x_BxSxF: jax.Array, sequence_BxS: jax.Array) -> jax.Array:
        dtype = self.config.dtype
        units = self.units
        kernel = self.param(
            'kernel',
            parameter(_glorot, None, None, None, None),
            (x_BxSxF.shape[-1], 2, 4, units))
        recurrent_kernel = self.param(
            'recurrent_kernel',
            parameter(_uniform_of_torch, None, None, None, None),
            (2, units, 4, units))
        bias = self.param(
            'bias', parameter(_one_for_forget_gates, None, None, None, decays=False), (2, 4, units))
        # The inputs of all steps in one product.
        x_SxDxBxGxU = jnp.einsum(
            'BSF,FDGU->SDBGU', x_BxSxF.astype(dtype), kernel.astype(dtype),
            preferred_element_type=jnp.float32)
        x_SxDxBxGxU = x_SxDxBxGxU + bias[:, None]
        sequence_TxDxB = _flip(jnp.stack([sequence_BxS.T] * 2, axis=1))
        same = sequence_TxDxB[1:] == sequence_TxDxB[:-1]
        keep_TxDxB = jnp.pad(same.astype(jnp.float32), ((1, 0), (0, 0), (0, 0)))
        h_TxDxBxU = recur(_flip(x_SxDxBxGxU), recurrent_kernel.astype(dtype), keep_TxDxB)
        h_BxSxDxU = jnp.transpose(_flip(h_TxDxBxU), (2, 0, 1, 3)).astype(dtype)
        h_BxSx2U = h_BxSxDxU.reshape(*sequence_BxS.shape, 2 * units)
        return self.config.layout(h_BxSx2U, 'batch', None, None)
