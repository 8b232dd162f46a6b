"""The pre-training heads: masked LM and next sentence (paper section 3.1).

    B: batch rows, S: sequence, P: masked positions a row, K: sequences a row, H: hidden_size,
    V: padded vocabulary
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from bert_jax.heads import base
from bert_jax.heads.base import Batch, Head, Keys, Params, Part, Sums, Tensor
from bert_jax.model.encoder import Bert
from bert_jax.model.flops import train_flops
from bert_jax.model.layers import Dense, LayerNorm, ModelConfig, gelu, parameter
from bert_jax.sharding import Layout

PADDING_LOGIT = -1e30
# Most bytes of masked-LM logits that a device computes at once; fewer on CPUs, to fit the cache.
CHUNK_BYTES, CHUNK_BYTES_ON_CPU = 1 << 30, 16 << 20

PREDICTIONS = Part('cls/predictions/', (
    Tensor.of('cls/predictions/transform/dense/kernel', 'H,H'),
    Tensor.of('cls/predictions/transform/dense/bias', 'H'),
    Tensor.of('cls/predictions/transform/LayerNorm/scale', 'H'),
    Tensor.of('cls/predictions/transform/LayerNorm/bias', 'H'),
    Tensor.of('cls/predictions/output_bias', 'V', huggingface='cls.predictions.bias')))
SEQ_RELATIONSHIP = Part('cls/seq_relationship/', (
    Tensor.of('cls/seq_relationship/kernel', 'H,2', tf1='cls/seq_relationship/output_weights'),
    Tensor.of('cls/seq_relationship/bias', '2', tf1='cls/seq_relationship/output_bias')))


class Predictions(nn.Module):
    """The masked-LM head up to its output layer, which is tied to the word embeddings.

    Returns (hidden [B, P, H] in the compute dtype, bias [V] float32).
    """

    config: ModelConfig

    @nn.compact
    def __call__(self, x_BxPxH: jax.Array) -> tuple[jax.Array, jax.Array]:
        c = self.config
        init = parameter(nn.initializers.zeros, 'vocab', decays=False)
        bias_V = self.param('output_bias', init, (c.padded_vocab_size,))
        # Padding rows are never predicted and get no gradient.
        padding_V = jnp.arange(c.padded_vocab_size) >= c.vocab_size
        hidden = Transform(c, name='transform')(x_BxPxH)
        return hidden, jnp.where(padding_V, PADDING_LOGIT, bias_V)


class Transform(nn.Module):
    """Dense -> gelu -> LayerNorm before the output layer."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x_BxPxH: jax.Array) -> jax.Array:
        c = self.config
        dense = Dense(c, (c.hidden_size,), (c.hidden_size,), ('embed',), (None,), name='dense')
        return LayerNorm(c, name='LayerNorm')(gelu(dense(x_BxPxH), c.hidden_act))


class PretrainingHeads(nn.Module):
    """`predictions` (masked LM) and `seq_relationship` (next sentence)."""

    config: ModelConfig

    def setup(self) -> None:
        c = self.config
        self.predictions = Predictions(c)
        self.seq_relationship = Dense(c, (c.hidden_size,), (2,), ('embed',), (None,))


class BertForPreTraining(nn.Module):
    """Encoder with masked-LM and next-sentence heads.

    The last layer is computed only at [CLS] and the masked positions, which the losses need; in a
    `causal` model, at all positions, so P is S.

    Returns a dict: `nsp_logits` [B, 2] float32, or [B, K, 2] for packed rows (see `Bert`);
    `mlm_output`, the `output` of `masked_lm_logits` and `masked_lm_loss`: (hidden [B, P, H], word
    embeddings [V, H], bias [V]); and all that `Bert` returns, at the computed positions.
    """

    config: ModelConfig

    def setup(self) -> None:
        self.bert = Bert(self.config)
        self.cls = PretrainingHeads(self.config)

    def __call__(self, batch: Batch, rows_Bx2: Keys = None) -> dict[str, Any]:
        c, inputs = self.config, base.inputs_of(batch, rows_Bx2)
        cls_BxK = batch.get('cls_positions')
        if c.causal:
            outputs = self.bert(*inputs, cls_BxK)
            masked_BxPxH = outputs['sequence_output']
        else:
            first_BxK, cls_query_index_BxK = jnp.zeros((len(batch['input_ids']), 1), jnp.int32), None
            if cls_BxK is not None:
                first_BxK = cls_BxK
                cls_query_index_BxK = jnp.broadcast_to(jnp.arange(cls_BxK.shape[1]), cls_BxK.shape)
            wanted = jnp.concatenate([first_BxK, batch['masked_lm_positions']], axis=1)
            outputs = self.bert(*inputs, cls_query_index_BxK, wanted)
            masked_BxPxH = outputs['sequence_output'][:, first_BxK.shape[1]:]
        hidden_BxPxH, bias_V = self.cls.predictions(masked_BxPxH)
        table_VxH = c.layout(self.bert.embeddings.word_embeddings, 'vocab', None)
        return outputs | {
            'mlm_output': (hidden_BxPxH, table_VxH, bias_V),
            'nsp_logits': self.cls.seq_relationship.logits(outputs['pooled_output']),
        }


MlmOutput = tuple[jax.Array, jax.Array, jax.Array]
_HIGHEST = 80.0  # logits are clipped to this far above the label's: e^80 fits into float32


def masked_lm_logits(output: MlmOutput) -> jax.Array:
    """Logits [..., V] float32 of hidden [..., H]; -1e30 for padding rows of V."""
    hidden, table_VxH, bias_V = output
    logits = jnp.einsum('...H,VH->...V', hidden, table_VxH.astype(hidden.dtype),
                        preferred_element_type=jnp.float32)
    return logits + bias_V


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def masked_lm_loss(
    output: MlmOutput, labels_BxP: jax.Array, weights_BxP: jax.Array, chunks: int, layout: Layout
) -> tuple[jax.Array, jax.Array]:
    """Sums of cross entropy and of correct predictions over the masked positions.

    The logits of all positions would be the largest array of the step, read and written several
    times. So they are computed in `chunks` parts of the slots, each with its gradient while it is
    in cache. No [B, P, V] array is kept for the backward pass, which only scales the gradient. The
    loss is float32, and exact up to 80 nats a token. In the gradient, the probabilities of tokens
    other than the label are rounded to the compute dtype.

    Args:
      output: `mlm_output` of `BertForPreTraining`.
      labels_BxP: ids to predict.
      weights_BxP: 1 for used slots, 0 for empty ones.
      chunks: number of parts, from `mlm_chunks`.
      layout: of activations on the mesh.
    """
    sums, _ = _loss_and_gradients(output, labels_BxP, weights_BxP, chunks, layout, False)
    return sums


def mlm_chunks(rows: int, slots: int, vocab_size: int, limit_bytes: int) -> int:
    """The fewest equal parts of `slots` whose float32 logits for `rows` rows fit the limit."""
    for chunks in range(1, slots):
        if slots % chunks == 0 and rows * (slots // chunks) * vocab_size * 4 <= limit_bytes:
            return chunks
    return slots


def _loss_and_gradients(output, labels_BxP, weights_BxP, chunks, layout, with_gradients):
    hidden_BxPxH, table_VxH, bias_V = output
    batch, slots, _ = hidden_BxPxH.shape

    def part(carry, chunk):
        hidden_MxH, labels_M, weights_M = chunk  # M: B * P / chunks
        logits_MxV = layout(masked_lm_logits((hidden_MxH, table_VxH, bias_V)), 'batch', 'vocab')
        # Softmax is the same whatever is subtracted. The label's logit is known (up to rounding)
        # before the others, so a TPU sums exponentials within the product that computes logits.
        words_MxH = jnp.take(table_VxH, labels_M, axis=0).astype(hidden_MxH.dtype)
        shift_M = jnp.take(bias_V, labels_M) + jnp.einsum(
            'MH,MH->M', hidden_MxH, words_MxH, preferred_element_type=jnp.float32)
        exp_MxV = jnp.exp(jnp.minimum(logits_MxV - shift_M[:, None], _HIGHEST))
        sum_M = jnp.sum(exp_MxV, axis=-1)
        right_MxV = lax.broadcasted_iota(labels_M.dtype, exp_MxV.shape, 1) == labels_M[:, None]
        label_logit_M = jnp.sum(jnp.where(right_MxV, logits_MxV, 0.0), axis=-1)
        loss_M = jnp.log(sum_M) + (shift_M - label_logit_M)
        correct_M = (label_logit_M >= jnp.max(logits_MxV, axis=-1)).astype(jnp.float32)
        sums = (jnp.sum(loss_M * weights_M), jnp.sum(correct_M * weights_M))
        if not with_gradients:
            return jax.tree.map(jnp.add, carry, sums), None
        # The barrier makes XLA store this array, in the compute dtype, and not the logits.
        exp_MxV = lax.optimization_barrier(exp_MxV.astype(hidden_MxH.dtype))
        d_label_M = jnp.expm1(-loss_M) * weights_M  # p - 1, precise where p is about 1
        scale_M = weights_M / sum_M
        d_logits = jnp.where(
            right_MxV, d_label_M[:, None], exp_MxV.astype(jnp.float32) * scale_M[:, None]
        ).astype(hidden_MxH.dtype)
        # A product with ones, because a sum would be a separate pass over the array.
        ones_Mx8 = jnp.ones((len(labels_M), 8), d_logits.dtype)
        d_bias, *_ = jnp.einsum('MV,ME->EV', d_logits, ones_Mx8, preferred_element_type=jnp.float32)
        d_hidden_MxH = jnp.einsum('MV,VH->MH', d_logits, table_VxH.astype(d_logits.dtype))
        d_table = jnp.einsum('MV,MH->VH', d_logits, hidden_MxH, preferred_element_type=jnp.float32)
        return jax.tree.map(jnp.add, carry, (*sums, d_table, d_bias)), d_hidden_MxH

    # Rows and slots as one dim: a TPU would pad 20 slots to whole tiles.
    def split(x):
        x = x.reshape(batch, chunks, slots // chunks, *x.shape[2:]).swapaxes(0, 1)
        return x.reshape(chunks, batch * slots // chunks, *x.shape[3:])

    zero = jnp.zeros((), jnp.float32)
    start: tuple[jax.Array, ...] = (zero, zero)
    if with_gradients:
        start += (jnp.zeros(table_VxH.shape, jnp.float32), jnp.zeros(bias_V.shape, jnp.float32))
    inputs = jax.tree.map(split, (hidden_BxPxH, labels_BxP, weights_BxP))
    if chunks == 1:
        carry, d_hidden = part(start, jax.tree.map(lambda x: x[0], inputs))
    else:
        carry, d_hidden = lax.scan(part, start, inputs)
    if with_gradients:
        d_hidden = d_hidden.reshape(chunks, batch, slots // chunks, -1)
        d_hidden = d_hidden.swapaxes(0, 1).reshape(hidden_BxPxH.shape)
    sums = carry[:2]
    return sums, (d_hidden, *carry[2:]) if with_gradients else None


def _masked_lm_forward(output, labels_BxP, weights_BxP, chunks, layout):
    sums, gradients = _loss_and_gradients(output, labels_BxP, weights_BxP, chunks, layout, True)
    return sums, (gradients, jax.tree.map(lambda x: jnp.zeros((), x.dtype), output))


def _masked_lm_backward(chunks, layout, residuals, cotangents):
    del chunks, layout
    gradients, like = residuals
    scale = cotangents[0]  # correctness has no gradient
    scaled = tuple((g * scale).astype(x.dtype) for g, x in zip(gradients, like, strict=True))
    return scaled, None, None


masked_lm_loss.defvjp(_masked_lm_forward, _masked_lm_backward)


@dataclasses.dataclass(frozen=True)
class Pretraining(Head):
    """The mean MLM loss over masked positions plus the mean NSP loss over pairs (section 3.1).

    Both means are over the global batch. (google-research/bert on TPUs averages per core first, so
    there a position's weight depends on its core.)

    A left-to-right model (`causal`, section 5.1) has a language model's loss instead: it predicts
    the next token at every position, including [SEP], in rows without masks. Any other model has
    this loss in a `causal` phase, whose batches contain `causal_loss_mask`. Neither has an NSP loss.
    """

    name = 'pretraining'
    classes = {
        'BertForPreTraining': (base.POOLER, PREDICTIONS, SEQ_RELATIONSHIP),
        'BertForMaskedLM': (PREDICTIONS,),
        'BertForNextSentencePrediction': (base.POOLER, SEQ_RELATIONSHIP)}
    shown = {'mlm_accuracy': 'mlm', 'lm_accuracy': 'lm', 'nsp_accuracy': 'nsp'}

    next_sentence: bool = True

    @property
    def module(self) -> nn.Module:
        return BertForPreTraining(self.config)

    def of(self, batch: Batch) -> tuple[Self, Batch]:
        """The objective for a batch, and the batch with that objective's labels and weights."""
        if not self.config.causal and 'causal_loss_mask' not in batch:
            return self, batch
        ids_BxS, numbers_BxS = batch['input_ids'], batch['sequence_ids']
        rows, width = numbers_BxS.shape
        masked_BxP = jnp.where(batch['masked_lm_weights'] > 0, batch['masked_lm_positions'], width)
        ids_BxS = ids_BxS.at[jnp.arange(rows)[:, None], masked_BxP].set(
            batch['masked_lm_ids'], mode='drop')
        same = (numbers_BxS[:, 1:] == numbers_BxS[:, :-1]) & (numbers_BxS[:, 1:] > 0)
        return dataclasses.replace(
            self, config=dataclasses.replace(self.config, causal=True), next_sentence=False,
        ), {
            **batch, 'input_ids': ids_BxS, 'masked_lm_ids': jnp.roll(ids_BxS, -1, axis=1),
            'masked_lm_weights': jnp.pad(same.astype(jnp.float32), ((0, 0), (0, 1))),
        }

    def totals(self, batch: Batch) -> Sums:
        weights_BxP = self.of(batch)[1]['masked_lm_weights']
        return {'masked': jnp.maximum(jnp.sum(weights_BxP), 1.0),
                'rows': jnp.maximum(jnp.sum(batch['example_weights']), 1.0)}

    def outputs(self, params: Params, batch: Batch, rows_Bx2: Keys = None) -> dict[str, Any]:
        objective, batch = self.of(batch)
        outputs: Any = objective.module.apply({'params': params}, batch, rows_Bx2)
        return outputs

    def loss(
        self, params: Params, batch: Batch, totals: Sums, rows_Bx2: Keys
    ) -> tuple[jax.Array, Sums]:
        objective, batch = self.of(batch)
        c, name = objective.config, 'lm' if objective.config.causal else 'mlm'
        outputs: Any = objective.module.apply({'params': params}, batch, rows_Bx2)
        weights_BxP = batch['masked_lm_weights']
        num_rows, num_slots = weights_BxP.shape
        chunks = mlm_chunks(
            -(-num_rows // c.layout.batch_shards), num_slots, c.padded_vocab_size,
            CHUNK_BYTES_ON_CPU if c.layout.on_cpu else CHUNK_BYTES)
        mlm_loss, mlm_correct = masked_lm_loss(
            outputs['mlm_output'], batch['masked_lm_ids'], weights_BxP, chunks, c.layout)
        weights = batch['example_weights']  # [B], or [B, K] of packed rows
        sums = {
            f'{name}_loss': mlm_loss, f'{name}_correct': mlm_correct,
            f'{name}_count': jnp.sum(weights_BxP), 'rows': jnp.sum(weights),
            'tokens': jnp.sum((batch['sequence_ids'] > 0).astype(jnp.float32))}
        loss = mlm_loss / totals['masked']
        if objective.next_sentence:
            losses, correct = base.cross_entropy(
                outputs['nsp_logits'], batch['next_sentence_labels'])
            sums['nsp_loss'] = jnp.sum(losses * weights)
            sums['nsp_correct'] = jnp.sum(correct * weights)
            sums['nsp_random'] = jnp.sum(batch['next_sentence_labels'] * weights)
            loss = loss + sums['nsp_loss'] / totals['rows']
        return loss, sums

    def score(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Metrics of the masked words and of the pairs.

        `nsp_majority` is the accuracy of always answering as most pairs are. Over no masked word,
        or no pair, there is no metric, since 0.0 would look like a perfect loss.
        """
        metrics, name = dict[str, float](), 'lm' if 'lm_loss' in sums else 'mlm'
        if masked := sums[f'{name}_count']:
            loss = sums[f'{name}_loss'] / masked
            metrics |= {
                f'{name}_loss': loss, f'{name}_perplexity': math.exp(min(loss, 700.0)),
                f'{name}_accuracy': sums[f'{name}_correct'] / masked}
        if 'nsp_loss' in sums and (rows := sums['rows']):
            random = sums['nsp_random'] / rows
            metrics |= {
                'nsp_loss': sums['nsp_loss'] / rows, 'nsp_accuracy': sums['nsp_correct'] / rows,
                'nsp_majority': max(random, 1 - random)}
        return metrics

    def flops(
        self, max_seq_length: int, max_predictions_per_seq: int, pairs_a_row: int = 1
    ) -> float:
        """FLOPs of training on one row, which may hold several pairs."""
        last = (max_seq_length, 0) if self.config.causal else (max_predictions_per_seq, pairs_a_row)
        return train_flops(self.config, max_seq_length, *last)

    def outputs_from_hidden(
        self, params: Params, x_BxSxH: jax.Array, pooled_BxH: jax.Array | None
    ) -> dict[str, jax.Array]:
        """Next-sentence logits; masked-LM logits need positions (see `predict.export`)."""
        if pooled_BxH is None or 'seq_relationship' not in params['cls']:
            return {}
        logits = self.apply_layer(params, 'cls/seq_relationship', pooled_BxH)
        return {'next_sentence_logits': logits}
