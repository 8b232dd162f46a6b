"""The pre-training heads: masked LM and next sentence (paper section 3.1).

    B: batch rows, S: sequence, P: masked positions a row, K: sequences a row, H: hidden_size,
    E: columns of the embedding tables, V: padded vocabulary
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Self

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.heads import base
from bert_jax.heads.base import Batch, Head, Keys, Params, Sums
from bert_jax.heads.masked_lm_loss import MaskedLmSums, masked_lm_loss, mlm_chunks
from bert_jax.heads.tensors import Part, Tensor, dense, layer_norm, output_layer, table
from bert_jax.model.encoder import Bert
from bert_jax.model.flops import train_flops
from bert_jax.model.layers import Dense, LayerNorm, ModelConfig, activation, gelu, parameter

PADDING_LOGIT = -1e30
# Most bytes of masked-LM logits that a device computes at once; fewer on CPUs, to fit the cache.
CHUNK_BYTES = 1 << 30
CHUNK_BYTES_ON_CPU = 16 << 20

PREDICTIONS = Part('cls/predictions/', (
    *dense('cls/predictions/transform/dense', ('H',), ('E',)),
    *layer_norm('cls/predictions/transform/LayerNorm', 'E'),
    Tensor('cls/predictions/output_bias', 'cls/predictions/output_bias', out_dims=('V',)),
    table('cls/predictions/output_embeddings', 'V'),
    *dense('cls/predictions/transform/first', ('H',), ('M',)),
    *dense('cls/predictions/transform/second', ('M',), ('H',))))
SEQ_RELATIONSHIP = Part(
    'cls/seq_relationship/',
    output_layer('cls/seq_relationship', 2, tf1='cls/seq_relationship/'))


class Predictions(nn.Module):
    """The masked-LM head up to its output layer (`masked_lm_head`).

    Returns (hidden [B, P, E] in the compute dtype, bias [V] float32). The output layer's kernel is
    `output_table`.
    """

    config: ModelConfig

    def setup(self) -> None:
        config = self.config
        num_rows = config.padded_vocab_size
        if config.masked_lm_head == 'bert':
            init = parameter(nn.initializers.zeros, 'vocab', decays=False)
            self.output_bias = self.param('output_bias', init, (num_rows,))
        else:
            init = parameter(_drawn_words(config), 'vocab', 'embed')
            self.output_embeddings = self.param(
                'output_embeddings', init, (num_rows, config.hidden_size))
        before: Any = {'bert': Transform, 'two_layers': TwoLayers}.get(config.masked_lm_head)
        if before is not None:
            self.transform = before(config)

    def __call__(self, x_BxPxH: jax.Array) -> tuple[jax.Array, jax.Array]:
        num_rows = self.config.padded_vocab_size
        # Padding rows are never predicted and get no gradient.
        padding_V = jnp.arange(num_rows) >= self.config.vocab_size
        hidden = x_BxPxH
        if self.config.masked_lm_head != 'linear':
            hidden = self.transform(x_BxPxH)
        if self.config.masked_lm_head != 'bert':
            return hidden, jnp.where(padding_V, PADDING_LOGIT, jnp.zeros(num_rows))
        return hidden, jnp.where(padding_V, PADDING_LOGIT, self.output_bias)

    def output_table(self, words_VxE: jax.Array) -> jax.Array:
        """The kernel [V, E] of the output layer: the word embeddings, if it has not its own."""
        return words_VxE if self.config.masked_lm_head == 'bert' else self.output_embeddings


def _drawn_words(config: ModelConfig) -> Callable[..., jax.Array]:
    """The initializer of an output layer, with zeros in the padding rows."""
    def init(key: jax.Array, shape: tuple[int, int]) -> jax.Array:
        is_word_Vx1 = jnp.arange(shape[0])[:, None] < config.vocab_size
        return jnp.where(is_word_Vx1, config.kernel_init(key, shape), 0.0)

    return init


class TwoLayers(nn.Module):
    """Two dense layers without biases, each with gelu, before the output layer."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x_BxPxH: jax.Array) -> jax.Array:
        config = self.config
        hidden, columns = config.hidden_size, config.num_masked_lm_columns
        for name, size_in, size_out in (('first', hidden, columns), ('second', columns, hidden)):
            project = Dense(
                config, (size_in,), (size_out,), ('embed',), (None,), biased=False, name=name)
            x_BxPxH = gelu(project(x_BxPxH), 'gelu_tanh')
        return x_BxPxH


class Transform(nn.Module):
    """Dense -> `hidden_act` -> LayerNorm before the output layer, to a word embedding's size."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x_BxPxH: jax.Array) -> jax.Array:
        config = self.config
        project = Dense(
            config, (config.hidden_size,), (config.num_embedding_columns,), ('embed',), (None,),
            biased=config.biases, name='dense')
        y_BxPxE = activation(project(x_BxPxH), config.hidden_act)
        return LayerNorm(config, name='LayerNorm')(y_BxPxE)


class PretrainingHeads(nn.Module):
    """`predictions` (masked LM) and `seq_relationship` (next sentence)."""

    config: ModelConfig

    def setup(self) -> None:
        self.predictions = Predictions(self.config)
        self.seq_relationship = Dense(
            self.config, (self.config.hidden_size,), (2,), ('embed',), (None,))


class BertForPreTraining(nn.Module):
    """Encoder with masked-LM and next-sentence heads.

    The last layer is computed only at [CLS] and the masked positions, which the losses need; in a
    `causal` model, at all positions, so P is S.

    Returns a dict: `nsp_logits` [B, 2] float32, or [B, K, 2] for packed rows (see `Bert`);
    `mlm_output`, the `output` of `masked_lm_logits` and `masked_lm_loss`: (hidden [B, P, E], word
    embeddings [V, E], bias [V]); and all that `Bert` returns, at the computed positions.
    """

    config: ModelConfig

    def setup(self) -> None:
        self.bert = Bert(self.config)
        self.cls = PretrainingHeads(self.config)

    def __call__(self, batch: Batch, dropout_keys_Bx2: Keys = None) -> dict[str, Any]:
        if self.config.causal:
            inputs = base.inputs_of(batch, dropout_keys_Bx2)
            outputs = self.bert(*inputs, batch.get('cls_positions'))
            masked_BxPxH = outputs['sequence_output']
        else:
            outputs, masked_BxPxH = self._encode_where_needed(batch, dropout_keys_Bx2)
        hidden_BxPxE, bias_V = self.cls.predictions(masked_BxPxH)
        table_VxE = self.cls.predictions.output_table(self.bert.embeddings.word_embeddings)
        table_VxE = self.config.layout(table_VxE, 'vocab', None)
        return outputs | {
            'mlm_output': (hidden_BxPxE, table_VxE, bias_V),
            'nsp_logits': self.cls.seq_relationship.logits(outputs['pooled_output']),
        }

    def _encode_where_needed(
        self, batch: Batch, dropout_keys_Bx2: Keys
    ) -> tuple[dict[str, Any], jax.Array]:
        """The outputs of `Bert` at [CLS] and then at masked positions; those at the latter."""
        if 'cls_positions' in batch:
            cls_BxK = batch['cls_positions']
            cls_query_index_BxK = jnp.broadcast_to(jnp.arange(cls_BxK.shape[1]), cls_BxK.shape)
        else:
            cls_BxK = jnp.zeros((len(batch['input_ids']), 1), jnp.int32)
            cls_query_index_BxK = None
        wanted_BxP = jnp.concatenate([cls_BxK, batch['masked_lm_positions']], axis=1)
        inputs = base.inputs_of(batch, dropout_keys_Bx2)
        outputs = self.bert(*inputs, cls_query_index_BxK, wanted_BxP)
        return outputs, outputs['sequence_output'][:, cls_BxK.shape[1]:]


def chunks_of_slots(config: ModelConfig, weights_BxP: jax.Array) -> int:
    """In how many parts of the slots a device computes masked-LM logits, to fit its memory.

    Args:
      config: of the encoder.
      weights_BxP: `masked_lm_weights`; only their shape counts.
    """
    layout = config.layout
    num_rows, num_slots = weights_BxP.shape
    return mlm_chunks(
        math.ceil(num_rows / layout.batch_shards),
        num_slots,
        config.padded_vocab_size,
        CHUNK_BYTES_ON_CPU if layout.on_cpu else CHUNK_BYTES)


def _next_token_batch(batch: Batch) -> Batch:
    """The batch without masks, each token labelled with the next one of its sequence."""
    numbers_BxS = batch['sequence_ids']
    ids_BxS = unmasked_ids(batch)
    has_next_BxS = (numbers_BxS[:, 1:] == numbers_BxS[:, :-1]) & (numbers_BxS[:, 1:] > 0)
    return {
        **batch,
        'input_ids': ids_BxS,
        'masked_lm_ids': jnp.roll(ids_BxS, -1, axis=1),
        'masked_lm_weights': jnp.pad(has_next_BxS.astype(jnp.float32), ((0, 0), (0, 1))),
    }


def unmasked_ids(batch: Batch) -> jax.Array:
    """The ids [B, S] of a masked batch before it was masked."""
    num_rows, length = batch['sequence_ids'].shape
    # Empty slots point behind the row, where nothing is written.
    positions_BxP = jnp.where(batch['masked_lm_weights'] > 0, batch['masked_lm_positions'], length)
    rows_Bx1 = jnp.arange(num_rows)[:, None]
    return batch['input_ids'].at[rows_Bx1, positions_BxP].set(batch['masked_lm_ids'], mode='drop')


@dataclasses.dataclass(frozen=True)
class Pretraining(Head):
    """The mean MLM loss over masked positions plus the mean NSP loss over pairs (section 3.1).

    Both means are over the global batch. (google-research/bert on TPUs averages per core first, so
    there a position's weight depends on its core.)

    A left-to-right model (`causal`, section 5.1) has a language model's loss instead: it predicts
    the next token at every position, including [SEP], in rows without masks. Any other model has
    this loss in a `causal` phase, whose batches have a feature `causal_loss_mask`. Neither has an
    NSP loss.
    """

    name = 'pretraining'
    parts = (PREDICTIONS, SEQ_RELATIONSHIP)
    shown = {
        'mlm_accuracy': 'mlm accuracy', 'lm_accuracy': 'lm accuracy',
        'nsp_accuracy': 'nsp accuracy'}

    metric = 'mlm_accuracy'
    left_to_right = True

    next_sentence: bool = True

    @classmethod
    def of_pretraining(cls, config: ModelConfig, *, next_sentence: bool) -> Self:
        return cls(config, next_sentence=next_sentence)

    @property
    def module(self) -> nn.Module:
        # Means over all tokens are for downstream tasks: they would need the last layer at all
        # positions (`validation` refuses them with next sentences).
        return BertForPreTraining(dataclasses.replace(self.config, pooling='cls'))

    def for_batch(self, batch: Batch) -> tuple[Self, Batch]:
        """The head that learns from a batch, and the batch with that head's labels and weights."""
        if not self.config.causal and 'causal_loss_mask' not in batch:
            return self, batch
        config = dataclasses.replace(self.config, causal=True)
        head = dataclasses.replace(self, config=config, next_sentence=False)
        return head, _next_token_batch(batch)

    def totals(self, batch: Batch) -> Sums:
        _, labelled = self.for_batch(batch)
        return {
            'masked': jnp.maximum(jnp.sum(labelled['masked_lm_weights']), 1.0),
            'rows': jnp.maximum(jnp.sum(batch['example_weights']), 1.0),
        }

    def outputs(
        self, params: Params, batch: Batch, dropout_keys_Bx2: Keys = None
    ) -> dict[str, Any]:
        head, batch = self.for_batch(batch)
        outputs: Any = head.module.apply({'params': params}, batch, dropout_keys_Bx2)
        return outputs

    def loss(
        self, params: Params, batch: Batch, totals: Sums, dropout_keys_Bx2: Keys
    ) -> tuple[jax.Array, Sums]:
        head, batch = self.for_batch(batch)
        outputs: Any = head.module.apply({'params': params}, batch, dropout_keys_Bx2)
        name = 'lm' if head.config.causal else 'mlm'
        words = head._word_sums(outputs, batch)
        sums = {f'{name}_{field}': value for field, value in words._asdict().items()}
        sums[f'{name}_count'] = jnp.sum(batch['masked_lm_weights'])
        weights = batch['example_weights']  # [B], or [B, K] of packed rows
        sums['rows'] = jnp.sum(weights)
        sums['tokens'] = jnp.sum((batch['sequence_ids'] > 0).astype(jnp.float32))
        loss = words.loss / totals['masked']
        if head.next_sentence:
            labels = batch['next_sentence_labels']
            losses, correct = base.cross_entropy(outputs['nsp_logits'], labels)
            sums['nsp_loss'] = jnp.sum(losses * weights)
            sums['nsp_correct'] = jnp.sum(correct * weights)
            sums['nsp_random'] = jnp.sum(labels * weights)
            loss = loss + sums['nsp_loss'] / totals['rows']
        return loss, sums

    def _word_sums(self, outputs: Any, batch: Batch) -> MaskedLmSums:
        """Sums over the masked words, or over all words of a left-to-right model."""
        weights_BxP = batch['masked_lm_weights']
        return masked_lm_loss(
            outputs['mlm_output'], batch['masked_lm_ids'], weights_BxP,
            chunks_of_slots(self.config, weights_BxP), self.config.layout)

    def score(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Metrics of the masked words and of the pairs.

        `nsp_majority` is the accuracy of always answering as most pairs are. Over no masked word,
        or no pair, there is no metric, since 0.0 would look like a perfect loss.
        """
        name = 'lm' if 'lm_loss' in sums else 'mlm'
        metrics: dict[str, float] = {}
        num_words = sums[f'{name}_count']
        if num_words:
            loss = sums[f'{name}_loss'] / num_words
            metrics[f'{name}_loss'] = loss
            metrics[f'{name}_perplexity'] = math.exp(min(loss, 700.0))
            metrics[f'{name}_accuracy'] = sums[f'{name}_correct'] / num_words
        num_pairs = sums['rows']
        if 'nsp_loss' in sums and num_pairs:
            random = sums['nsp_random'] / num_pairs
            metrics['nsp_loss'] = sums['nsp_loss'] / num_pairs
            metrics['nsp_accuracy'] = sums['nsp_correct'] / num_pairs
            metrics['nsp_majority'] = max(random, 1 - random)
        return metrics

    def loss_of_chance(self) -> float:
        loss = math.log(self.config.vocab_size)
        if self.next_sentence and not self.config.causal:
            loss += math.log(2)
        return loss

    def flops(
        self, max_seq_length: int, max_predictions_per_seq: int, pairs_a_row: int = 1
    ) -> float:
        if self.config.causal:  # predicts a word at each position
            return train_flops(self.config, max_seq_length, max_seq_length, 0)
        return train_flops(self.config, max_seq_length, max_predictions_per_seq, pairs_a_row)

    def outputs_from_hidden(
        self, params: Params, x_BxSxH: jax.Array, pooled_BxH: jax.Array | None
    ) -> dict[str, jax.Array]:
        """Next-sentence logits; masked-LM logits need positions (see `predict.export`)."""
        if pooled_BxH is None or 'seq_relationship' not in params['cls']:
            return {}
        logits = self.apply_layer(params, 'cls/seq_relationship', pooled_BxH)
        return {'next_sentence_logits': logits}
