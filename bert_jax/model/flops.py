"""FLOPs, by the one formula that every MFU figure and every choice of rows here uses.

The matrices of a layer are those that its parameters declare, so a layer with others counts right.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp

from bert_jax.model.encoder import Layer
from bert_jax.model.layers import ModelConfig, declared_parameters
from bert_jax.train.sharding import Layout


@functools.lru_cache(maxsize=64)
def _matrices(config: ModelConfig) -> tuple[tuple[int, int, int], ...]:
    """(number, in, out) of the matrices of each kernel of a layer."""
    config = dataclasses.replace(config, attention='xla', dtype='float32', layout=Layout())
    x_1x8xH = jnp.zeros((1, 8, config.hidden_size))
    boxed = jax.eval_shape(
        Layer(config).init, jax.random.key(0), x_1x8xH, 0, jnp.ones((1, 8), jnp.int32), None)
    kernels = [p for p in declared_parameters(boxed['params']).values() if p.num_in]
    return tuple(jax.eval_shape(p.to_matrices, p.value).shape for p in kernels)


def _layer_flops(config: ModelConfig) -> float:
    """FLOPs of the matrices of a layer on one token; a multiply-add counts two."""
    return 2.0 * sum(math.prod(shape) for shape in _matrices(config))


def token_flops(config: ModelConfig, row_length: int) -> float:
    """FLOPs of the forward pass through all layers on one token of a row of `row_length`.

    A multiply-add counts two. Matrix products only: embedding look-ups, softmax and LayerNorm are
    left out.
    """
    return config.num_layers * (_layer_flops(config) + 4 * row_length * config.hidden_size)


def bilstm_flops(inputs: int, units: int) -> float:
    """FLOPs of the forward pass of both directions of a BiLSTM layer on one token."""
    return 16.0 * units * (inputs + units)


def train_flops(
    config: ModelConfig, seq_length: int, num_predictions: int, num_cls: int = 1
) -> float:
    """FLOPs of training on one row: three times the forward pass, as far as it is needed.

    The row holds `num_cls` sequences. As `token_flops` counts, but the last layer has all but its
    projection to queries, keys and values at [CLS] and the predicted positions only. The optimizer
    and rematerialisation are left out, and the vocabulary is counted unpadded.
    """
    c, s, p, h = config, seq_length, num_predictions, config.hidden_size
    before = s * token_flops(c, s) * (c.num_layers - 1) / c.num_layers
    projection = 6 * h**2
    last = s * projection + (p + num_cls) * (_layer_flops(c) - projection + 4 * s * h)
    head = p * (2 * h**2 + 2 * h * c.vocab_size)
    return 3.0 * (before + last + head + num_cls * (2 * h**2 + 4 * h))


def muon_flops(config: ModelConfig) -> float:
    """FLOPs of Muon's five Newton-Schulz iterations at a step, on the matrices of all layers.

    On one of m x n, m <= n, an iteration takes 4 m^2 n + 2 m^3. They do not depend on the batch: at
    an intermediate size of 4 h, a step's are those of training the layers on some 4 h tokens. MFU
    leaves them out, as all of an optimizer; a comparison of recipes must not.
    """
    total = 0
    for number, *shape in _matrices(config):
        m, n = sorted(shape)
        total += number * (4 * m**2 * n + 2 * m**3)
    return 5.0 * config.num_layers * total
