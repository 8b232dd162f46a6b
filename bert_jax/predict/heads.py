"""What is computed on the device: the encoder over packed rows, and heads on its output.

All functions take parameters as an argument, so that a compiled program serves any weights of the
same shapes and does not carry them.

    B: batch rows, S: sequence, H: hidden_size, P: positions, V: vocabulary, L: layers or labels,
    M: sequences of a batch
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.model.encoder import Bert, Pooler
from bert_jax.model.heads import Predictions, masked_lm_logits
from bert_jax.model.layers import Dense, ModelConfig

Params = dict[str, Any]


@functools.partial(jax.jit, static_argnames=('config', 'layers'))
def encode(
    params: Params, inputs: dict[str, jax.Array], *, config: ModelConfig, layers: tuple[int, ...]
) -> tuple[jax.Array, ...]:
    """Hidden states [B, S, H] of the chosen layers in the compute dtype.

    Args:
      inputs: as in `rows.Batch`.
      layers: counted from the top: -1 is the last layer, -num_layers the first, one below are the
        embeddings.
    """
    outputs: Any = Bert(config, pooled=False).apply(
        {'params': params['bert']}, inputs['input_ids'], inputs['input_mask'],
        inputs['segment_ids'], None, inputs['position_ids'],
    )
    states = (outputs['embedding_output'], *outputs['layers'])
    return tuple(states[i] for i in layers)


@jax.jit
def token_vectors(states: tuple[jax.Array, ...]) -> jax.Array:
    """[B * S, L, H] float32 of the states of L layers."""
    vectors = jnp.stack(states, axis=2).astype(jnp.float32)
    return vectors.reshape(-1, *vectors.shape[2:])


@jax.jit
def mean_vectors(x_BxSxH: jax.Array, owners_BxS: jax.Array) -> jax.Array:
    """[M, H] float32: the mean over all tokens of each sequence, [CLS] and [SEP] among them.

    Args:
      owners_BxS: number of the sequence, from 1; 0 on padding. M is as many as there can be, two
        tokens each.
    """
    owners = owners_BxS.reshape(-1)
    x = x_BxSxH.astype(jnp.float32).reshape(len(owners), -1)
    num = len(owners) // 2 + 1
    sums = jax.ops.segment_sum(x, owners, num)[1:]
    counts = jax.ops.segment_sum(jnp.ones_like(owners), owners, num)[1:]
    return sums / jnp.maximum(counts, 1)[:, None]


@jax.jit
def vectors_at(x_BxSxH: jax.Array, positions_P: jax.Array) -> jax.Array:
    """[P, H] float32: hidden states at positions of the rows laid end to end."""
    return _take(x_BxSxH, positions_P).astype(jnp.float32)


@functools.partial(jax.jit, static_argnames=('config', 'num'))
def masked_lm_top(
    params: Params, x_BxSxH: jax.Array, positions_P: jax.Array, *, config: ModelConfig, num: int
) -> tuple[jax.Array, jax.Array]:
    """The `num` likeliest tokens at positions: (probabilities [P, num], ids [P, num])."""
    logits_PxV = predict_tokens(params, _take(x_BxSxH, positions_P)[None], config)[0]
    probabilities = jax.nn.softmax(logits_PxV)
    return jax.lax.top_k(probabilities, num)


@functools.partial(jax.jit, static_argnames=('config',))
def masked_lm_log_probability(
    params: Params, x_BxSxH: jax.Array, positions_P: jax.Array, targets_P: jax.Array,
    *, config: ModelConfig,
) -> jax.Array:
    """[P] natural logarithm of the probability of a token at each position."""
    logits_PxV = predict_tokens(params, _take(x_BxSxH, positions_P)[None], config)[0]
    wanted = jnp.take_along_axis(logits_PxV, targets_P[:, None], axis=-1)[:, 0]
    return wanted - jax.nn.logsumexp(logits_PxV, axis=-1)


@functools.partial(jax.jit, static_argnames=('config', 'path'))
def pooled_logits(
    params: Params, x_BxSxH: jax.Array, positions_P: jax.Array, *, config: ModelConfig,
    path: tuple[str, ...],
) -> jax.Array:
    """[P, L] float32: a dense layer on the pooled vectors of [CLS] at positions.

    Args:
      path: where the layer is in the parameters.
    """
    pooler = {'params': params['bert']['pooler']}
    pooled: Any = Pooler(config).apply(pooler, _take(x_BxSxH, positions_P))
    return dense(config, params, path, pooled)


@functools.partial(jax.jit, static_argnames=('config', 'path'))
def token_logits(
    params: Params, x_BxSxH: jax.Array, *, config: ModelConfig, path: tuple[str, ...]
) -> jax.Array:
    """[B * S, L] float32: a dense layer on every token."""
    logits = dense(config, params, path, x_BxSxH)
    return logits.reshape(-1, logits.shape[-1])


def _take(x_BxSxH: jax.Array, positions_P: jax.Array) -> jax.Array:
    return jnp.take(x_BxSxH.reshape(-1, x_BxSxH.shape[-1]), positions_P, axis=0)


def predict_tokens(params: Params, x_BxPxH: jax.Array, config: ModelConfig) -> jax.Array:
    """Masked-LM logits [B, P, V] float32 of hidden states."""
    variables = {'params': params['cls']['predictions']}
    hidden_and_bias: Any = Predictions(config).apply(variables, x_BxPxH)
    hidden, bias = hidden_and_bias
    table = params['bert']['embeddings']['word_embeddings'].astype(config.dtype)
    return masked_lm_logits((hidden, table, bias))


def dense(config: ModelConfig, params: Params, path: tuple[str, ...], x: jax.Array) -> jax.Array:
    """Logits [..., L] float32 of hidden states [..., H] by the dense layer at `path`."""
    for name in path:
        params = params[name]
    layer = Dense(config, (config.hidden_size,), params['bias'].shape, ('embed',), (None,))
    logits: Any = layer.apply({'params': params}, x)
    return logits.astype(jnp.float32)
