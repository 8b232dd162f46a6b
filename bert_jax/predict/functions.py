"""Jitted inference functions over packed batches (`tasks.packing`) of the encoder and pre-training.

Each returns a function for the engine, the same object for the same arguments, so that it is
compiled once for each shape. For task heads, the function is `heads.base.Head.outputs`.

    R: rows, S: row length, K: units a row, H: hidden_size, V: padded vocabulary
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.heads.pretraining import PretrainingHeads, masked_lm_logits
from bert_jax.model.attention import gather_positions
from bert_jax.model.encoder import Bert
from bert_jax.model.layers import ModelConfig
from bert_jax.predict.engine import Function

Batch = dict[str, jax.Array]


def inputs(batch: Batch) -> tuple[jax.Array, jax.Array, jax.Array, None, jax.Array]:
    """The encoder's arguments."""
    return (batch['input_ids'], batch['sequence_ids'], batch['segment_ids'], None,
            batch['position_ids'])


class Pretraining(nn.Module):
    """The encoder on packed rows with the pre-training heads, or the one that a model has."""

    config: ModelConfig
    pooled: bool = False

    def setup(self) -> None:
        self.bert = Bert(self.config, pooled=self.pooled)
        self.cls = PretrainingHeads(self.config)

    def masked_lm(self, batch: Batch) -> jax.Array:
        """Logits [R, K, V] at `masked_positions`; the last layer computes only these."""
        x: Any = self.bert(*inputs(batch), wanted_BxP=batch['masked_positions'])
        return self.predict(x['sequence_output'])

    def predict(self, x_RxKxH: jax.Array) -> jax.Array:
        """Masked-LM logits [R, K, V] of hidden states."""
        hidden, bias = self.cls.predictions(x_RxKxH)
        table = self.bert.embeddings.word_embeddings.astype(self.config.dtype)
        return masked_lm_logits((hidden, table, bias))

    def next_sentence(self, batch: Batch) -> jax.Array:
        """Logits [R, K, 2] of following and not following; the last layer computes [CLS] only."""
        cls_RxK = batch['cls_positions']
        among_RxK = jnp.broadcast_to(jnp.arange(cls_RxK.shape[1]), cls_RxK.shape)
        x: Any = self.bert(*inputs(batch), cls_positions_BxK=among_RxK, wanted_BxP=cls_RxK)
        return self.cls.seq_relationship(x['pooled_output']).astype(jnp.float32)


def _masked_lm(config: ModelConfig, params: Any, batch: Batch) -> Any:
    return Pretraining(config).apply({'params': params}, batch, method=Pretraining.masked_lm)


@functools.cache
def masked_lm_top(config: ModelConfig, num: int) -> Function:
    """`probabilities` and `ids` [R, K, num] of the likeliest tokens at `masked_positions`."""
    def function(params: Any, batch: Batch) -> dict[str, jax.Array]:
        logits = _masked_lm(config, params, batch)
        probabilities, ids = jax.lax.top_k(jax.nn.softmax(logits), num)
        return {'probabilities': probabilities, 'ids': ids}

    return function


@functools.cache
def masked_lm_log_probability(config: ModelConfig) -> Function:
    """`log_probability` [R, K] of the token `targets` at `masked_positions`."""
    def function(params: Any, batch: Batch) -> dict[str, jax.Array]:
        logits = _masked_lm(config, params, batch)
        wanted = jnp.take_along_axis(logits, batch['targets'][..., None], axis=-1)[..., 0]
        return {'log_probability': wanted - jax.nn.logsumexp(logits, axis=-1)}

    return function


@functools.cache
def next_sentence(config: ModelConfig) -> Function:
    """`logits` [R, K, 2] of following and not following."""
    def function(params: Any, batch: Batch) -> dict[str, jax.Array]:
        module = Pretraining(config, pooled=True)
        logits: Any = module.apply({'params': params}, batch, method=Pretraining.next_sentence)
        return {'logits': logits}

    return function


@functools.cache
def hidden_states(config: ModelConfig, layers: tuple[int, ...]) -> Function:
    """`values` [R, S, layers, H] float32.

    Args:
      config: with unrolled layers.
      layers: counted from the top: -1 is the last layer, -num_layers the first, and
        -num_layers - 1 the embeddings.
    """
    def function(params: Any, batch: Batch) -> dict[str, jax.Array]:
        states = _states(config, params, batch, layers)
        return {'values': jnp.stack(states, axis=2).astype(jnp.float32)}

    return function


@functools.cache
def vectors(config: ModelConfig, layer: int, pool: str) -> Function:
    """`vectors` [R, K, H] float32 of each unit.

    Args:
      config: with unrolled layers, unless the layer is the last.
      layer: as in `hidden_states`.
      pool: 'mean' or 'max' over all tokens, [CLS] and [SEP] among them, or 'cls'.
    """
    def function(params: Any, batch: Batch) -> dict[str, jax.Array]:
        (x_RxSxH,) = _states(config, params, batch, (layer,))
        if pool == 'cls':
            result = gather_positions(x_RxSxH, batch['cls_positions']).astype(jnp.float32)
            return {'vectors': result}
        x_RxSxH = x_RxSxH.astype(jnp.float32)
        mask_RxS = batch['sequence_ids']
        numbers_K = jnp.arange(1, batch['cls_positions'].shape[1] + 1)
        if pool == 'max':  # one unit of each row at a time: [R, K, S, H] would be large
            maxima_KxRxH = jax.lax.map(
                lambda k: jnp.max(jnp.where((mask_RxS == k)[..., None], x_RxSxH, -jnp.inf), axis=1),
                numbers_K,
            )
            return {'vectors': maxima_KxRxH.swapaxes(0, 1)}
        inside_RxKxS = mask_RxS[:, None, :] == numbers_K[None, :, None]
        sums = jnp.einsum(
            'RKS,RSH->RKH', inside_RxKxS.astype(jnp.float32), x_RxSxH,
            precision=jax.lax.Precision.HIGHEST,
        )
        return {'vectors': sums / jnp.maximum(jnp.sum(inside_RxKxS, axis=2), 1)[..., None]}

    return function


def _states(
    config: ModelConfig, params: Any, batch: Batch, layers: tuple[int, ...]
) -> list[jax.Array]:
    outputs: Any = Bert(config, pooled=False).apply({'params': params['bert']}, *inputs(batch))
    # Scanned layers return the last one only.
    states = (outputs['embedding_output'], *(outputs['layers'] or [outputs['sequence_output']]))
    return [states[i] for i in layers]
