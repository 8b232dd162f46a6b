"""The FLOPs formula, used for every MFU figure and to choose the length of packed rows.

A layer's matrices come from the declarations of its parameters, so changed layers count correctly.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp

from bert_jax.model.encoder import Layer
from bert_jax.model.layers import ModelConfig, declared_parameters
from bert_jax.sharding import Layout


@functools.lru_cache(maxsize=64)
def _matrices(config: ModelConfig) -> tuple[tuple[int, int, int], ...]:
    """(number of matrices, in, out) of each kernel of a layer."""
    config = dataclasses.replace(config, attention='xla', dtype='float32', layout=Layout())
    x_1x8xH = jnp.zeros((1, 8, config.hidden_size))
    boxed = jax.eval_shape(
        Layer(config).init, jax.random.key(0), x_1x8xH, 0, jnp.ones((1, 8), jnp.int32), None)
    kernels = [p for p in declared_parameters(boxed['params']).values() if p.num_in]
    return tuple(jax.eval_shape(p.to_matrices, p.value).shape for p in kernels)


def _layer_flops(config: ModelConfig) -> float:
    """FLOPs of a layer's matrices for one token; a multiply-add counts as two."""
    return 2.0 * sum(math.prod(shape) for shape in _matrices(config))


def token_flops(config: ModelConfig, row_length: int) -> float:
    """FLOPs of the forward pass through all layers for one token of a row of `row_length`.

    A multiply-add counts as two. Only matrix products count, not embedding look-ups, softmax and
    LayerNorm.
    """
    return config.num_layers * (_layer_flops(config) + 4 * row_length * config.hidden_size)


def bilstm_flops(inputs: int, units: int) -> float:
    """FLOPs of one token's forward pass through both directions of a BiLSTM layer."""
    return 16.0 * units * (inputs + units)


def train_flops(
    config: ModelConfig, seq_length: int, num_predictions: int, num_cls: int = 1
) -> float:
    """FLOPs of training on one row of `num_cls` sequences: three times the forward pass.

    As `token_flops`, except that the last layer computes only its projection to queries, keys and
    values at all positions, and the rest at [CLS] and the predicted positions. The optimizer,
    rematerialisation and the padding of the vocabulary do not count.
    """
    c, s, p, h = config, seq_length, num_predictions, config.hidden_size
    before = s * token_flops(c, s) * (c.num_layers - 1) / c.num_layers
    projection = 6 * h**2
    last = s * projection + (p + num_cls) * (_layer_flops(c) - projection + 4 * s * h)
    head = p * (2 * h**2 + 2 * h * c.vocab_size)
    return 3.0 * (before + last + head + num_cls * (2 * h**2 + 4 * h))


def muon_flops(config: ModelConfig) -> float:
    """FLOPs of Muon's five Newton-Schulz iterations in a step, for the matrices of all layers.

    An iteration on an m x n matrix, m <= n, takes 4 m^2 n + 2 m^3 FLOPs, whatever the batch. With
    an intermediate size of 4 h, those of a step equal training the layers on about 4 h tokens. MFU
    leaves out the optimizer; a comparison of recipes must not.
    """
    total = 0
    for number, *shape in _matrices(config):
        m, n = sorted(shape)
        total += number * (4 * m**2 * n + 2 * m**3)
    return 5.0 * config.num_layers * total
