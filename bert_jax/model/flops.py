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

# The time of a score of a head, beside its products, in FLOPs of the layers' products: 3 to 6 ns on
# two cores of a Xeon, for softmax, copies and small products (see docs/log/speed.md).
_CPU_FLOPS_A_SCORE = 1000.0


@functools.lru_cache(maxsize=64)
def _matrices(config: ModelConfig) -> tuple[tuple[int, int, int], ...]:
    """(number of matrices, in, out) of each kernel of a layer."""
    config = dataclasses.replace(config, attention='xla', dtype='float32', layout=Layout())
    # Shapes, not arrays: each array would be made by a program, compiled before the first result.
    key = jax.eval_shape(jax.random.key, 0)
    x_1x8xH = jax.ShapeDtypeStruct((1, 8, config.hidden_size), jnp.float32)
    segments_1x8 = jax.ShapeDtypeStruct((1, 8), jnp.int32)
    boxed = jax.eval_shape(Layer(config).init, key, x_1x8xH, 0, segments_1x8, None)
    declared = declared_parameters(boxed['params']).values()
    kernels = [parameter for parameter in declared if parameter.num_in]
    return tuple(jax.eval_shape(kernel.to_matrices, kernel.value).shape for kernel in kernels)


def _matrix_flops(config: ModelConfig) -> float:
    """FLOPs of a layer's matrices for one token; a multiply-add counts as two."""
    return 2.0 * sum(math.prod(shape) for shape in _matrices(config))


def _attention_flops(config: ModelConfig, layer: int, row_length: int) -> float:
    """FLOPs of a layer's scores and of the sums of values by them, for one token of a row."""
    return 4.0 * _num_keys(config, layer, row_length) * config.hidden_size


def _num_keys(config: ModelConfig, layer: int, row_length: int) -> int:
    """The tokens that one token of a row attends to, if all of the row were its sequence."""
    window = config.of_layer(layer).local_attention
    if not window:
        return row_length
    return min(row_length, 2 * (window // 2) + 1)  # on both sides, and its own


def _before_layers_flops(config: ModelConfig) -> float:
    """FLOPs of projecting one token's embeddings to the layers' width; 0 without projection."""
    columns = config.num_embedding_columns
    if columns == config.hidden_size:
        return 0.0
    return 2.0 * columns * config.hidden_size


def token_flops(config: ModelConfig, row_length: int, num_layers: int | None = None) -> float:
    """FLOPs of the forward pass through the layers for one token of a row of `row_length`.

    A multiply-add counts as two. Only matrix products count, not embedding look-ups, softmax and
    LayerNorm. A local layer counts its window, also at the ends of a row, where it is cut.

    Args:
      config: of the model.
      row_length: number of tokens of a row.
      num_layers: only the first so many layers; None: all.
    """
    if num_layers is None:
        num_layers = config.num_layers
    total = _before_layers_flops(config) + num_layers * _matrix_flops(config)
    for layer in range(num_layers):
        total += _attention_flops(config, layer, row_length)
    return total


def row_cost(config: ModelConfig, row_length: int) -> float:
    """What the forward pass costs for one token of a row, to choose row lengths by.

    These are its FLOPs, and on CPUs what scores take beside their products, in FLOPs of products.
    """
    cost = token_flops(config, row_length)
    if config.layout.on_cpu:
        num_keys = sum(_num_keys(config, layer, row_length) for layer in range(config.num_layers))
        cost += _CPU_FLOPS_A_SCORE * config.num_heads * num_keys
    return cost


def key_value_flops(config: ModelConfig) -> float:
    """FLOPs of a layer's projection to keys and values, for one token."""
    num_heads = 2 * (config.num_kv_heads or config.num_heads)
    return 2.0 * config.hidden_size * num_heads * config.head_dim


def bilstm_flops(inputs: int, units: int) -> float:
    """FLOPs of one token's forward pass through both directions of a BiLSTM layer."""
    return 16.0 * units * (inputs + units)


def train_flops(
    config: ModelConfig, seq_length: int, num_predictions: int, num_cls: int = 1
) -> float:
    """FLOPs of training on one row of `num_cls` sequences: three times the forward pass.

    As `token_flops`, except that the last layer computes only its projection to keys and values at
    all positions, and the rest at [CLS] and the predicted positions. The optimizer,
    rematerialisation and the padding of the vocabulary do not count.
    """
    hidden = config.hidden_size
    columns = config.num_embedding_columns
    last_layer = config.num_layers - 1
    before_last = seq_length * token_flops(config, seq_length, last_layer)
    keys_and_values = key_value_flops(config)
    rest_of_layer = (
        _matrix_flops(config) - keys_and_values + _attention_flops(config, last_layer, seq_length))
    last = seq_length * keys_and_values + (num_predictions + num_cls) * rest_of_layer
    masked_lm = num_predictions * (2 * hidden * columns + 2 * columns * config.vocab_size)
    next_sentence = num_cls * (2 * hidden**2 + 4 * hidden)
    return 3.0 * (before_last + last + masked_lm + next_sentence)


def muon_flops(config: ModelConfig) -> float:
    """FLOPs of Muon's five Newton-Schulz iterations in a step, for the matrices of all layers.

    An iteration on an m x n matrix, m <= n, takes 4 m^2 n + 2 m^3 FLOPs, whatever the batch. With
    an intermediate size of 4 h, those of a step equal training the layers on about 4 h tokens. MFU
    leaves out the optimizer; a comparison of recipes must not.
    """
    a_layer = 0
    for num_matrices, *shape in _matrices(config):
        m, n = sorted(shape)
        a_layer += num_matrices * (4 * m**2 * n + 2 * m**3)
    return 5.0 * config.num_distinct_layers * a_layer
