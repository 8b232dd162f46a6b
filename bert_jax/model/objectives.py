"""What a model with a head is trained for: its loss, and sums that its scores come from.

One class a kind of head (`heads.HEADS`); `OBJECTIVES` is the table.

    B, R: rows, S: row length, P: masked positions a row, K: units a row, C: choices a unit,
    L: labels

Why one file: a row of the table each, most of them a dozen lines, read side by side.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from bert_jax.model.bilstm import BertFeatureTagger
from bert_jax.model.flops import bilstm_flops, token_flops, train_flops
from bert_jax.model.heads import (
    BertForPreTraining,
    cross_entropy,
    masked_lm_loss,
    mlm_chunks,
)
from bert_jax.model.layers import ModelConfig
from bert_jax.model.task_heads import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)

Params = Any
Batch = Mapping[str, jax.Array]
Sums = Mapping[str, jax.Array]  # metric sums and counts; they add up over batches and hosts

_ELSEWHERE = -1e30  # score of tokens outside a window
# Masked-LM logits are computed in parts of at most so many bytes a device; a CPU has little cache.
CHUNK_BYTES, CHUNK_BYTES_ON_CPU = 1 << 30, 16 << 20


class Objective(Protocol):
    """A model with its loss and the scores of that loss.

    Losses and metrics are sums with counts, divided once: `totals` gives the divisors of a whole
    global batch before any of it is computed, so that a step computed in parts, or on many
    devices, is the same step.

    Attributes:
      config: of the encoder.
      shown: metrics of `score` that the line of a step shows, and what it calls them.
    """

    @property
    def config(self) -> ModelConfig: ...

    @property
    def shown(self) -> Mapping[str, str]: ...

    def __hash__(self) -> int:  # equal ones have the same parameters
        ...

    def init(self, rng: jax.Array) -> Params:
        """Parameters with flax's partitioning metadata."""
        ...

    def totals(self, batch: Batch) -> Sums:
        """Divisors of the loss over this batch."""
        ...

    def outputs(
        self, params: Params, batch: Batch, rows_Bx2: jax.Array | None = None
    ) -> dict[str, Any]:
        """Of a packed batch, logits [R, K, ...] a unit or [R, S, ...] a token: numbers whose mean
        over several models is a prediction. Of pre-training what `BertForPreTraining` returns."""
        ...

    def loss(
        self, params: Params, batch: Batch, totals: Sums, rows_Bx2: jax.Array | None
    ) -> tuple[jax.Array, Sums]:
        """The batch's share of the loss, and metric sums.

        Args:
          params: unboxed parameters.
          batch: features [B, ...].
          totals: divisors, from the whole batch that this one is a part of.
          rows_Bx2: dropout keys (`model.dropout.dropout_rows`), or None: no dropout.
        """
        ...

    def score(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Metrics by name from summed sums."""
        ...


def _any_shape(config: ModelConfig) -> ModelConfig:
    """The same parameters, from an input of any shape: a kernel's rows are split over a mesh."""
    return dataclasses.replace(config, attention='xla')


@dataclasses.dataclass(frozen=True)
class Pretraining:
    """The mean MLM loss over masked positions plus the mean NSP loss over pairs (section 3.1).

    Both means are over the global batch. (google-research/bert on TPUs averages per core first,
    which weights positions by how many others their core holds.)

    A left-to-right model (`causal`, section 5.1) has the loss of a language model instead of the
    MLM's: at every position that of the next token, [SEP] too, in rows as they were before masking.
    """

    config: ModelConfig
    next_sentence: bool = True
    shown: ClassVar[Mapping[str, str]] = {
        'mlm_accuracy': 'mlm', 'lm_accuracy': 'lm', 'nsp_accuracy': 'nsp',
    }

    def init(self, rng: jax.Array) -> Params:
        ones_1x8 = jnp.ones((1, 8), jnp.int32)
        positions = jnp.zeros((1, 1), jnp.int32)
        model = BertForPreTraining(_any_shape(self.config))
        return model.init(rng, ones_1x8, ones_1x8, ones_1x8, positions)['params']

    def _predicted(self, batch: Batch) -> tuple[jax.Array, ...]:
        """(Ids [B, S] that are read, labels [B, P], their weights [B, P])."""
        labels_BxP, weights_BxP = batch['masked_lm_ids'], batch['masked_lm_weights']
        if not self.config.causal:
            return batch['input_ids'], labels_BxP, weights_BxP
        numbers_BxS = batch['input_mask']
        rows, width = numbers_BxS.shape
        masked_BxP = jnp.where(weights_BxP > 0, batch['masked_lm_positions'], width)
        ids_BxS = batch['input_ids'].at[jnp.arange(rows)[:, None], masked_BxP].set(
            labels_BxP, mode='drop')
        same = (numbers_BxS[:, 1:] == numbers_BxS[:, :-1]) & (numbers_BxS[:, 1:] > 0)
        return (
            ids_BxS, jnp.roll(ids_BxS, -1, axis=1),
            jnp.pad(same.astype(jnp.float32), ((0, 0), (0, 1))),
        )

    def totals(self, batch: Batch) -> Sums:
        return {
            'masked': jnp.maximum(jnp.sum(self._predicted(batch)[2]), 1.0),
            'rows': jnp.maximum(jnp.sum(batch['example_weights']), 1.0),
        }

    def outputs(
        self, params: Params, batch: Batch, rows_Bx2: jax.Array | None = None
    ) -> dict[str, Any]:
        return self._outputs(params, batch, rows_Bx2, everywhere=True)

    def _outputs(
        self, params: Params, batch: Batch, rows_Bx2: jax.Array | None, *, everywhere: bool
    ) -> dict[str, Any]:
        outputs: Any = BertForPreTraining(self.config, everywhere).apply(
            {'params': params},
            self._predicted(batch)[0], batch['input_mask'], batch['segment_ids'],
            None if self.config.causal else batch['masked_lm_positions'], rows_Bx2,
            batch.get('position_ids'), batch.get('cls_positions'),
        )
        return outputs

    def loss(
        self, params: Params, batch: Batch, totals: Sums, rows_Bx2: jax.Array | None
    ) -> tuple[jax.Array, Sums]:
        outputs = self._outputs(params, batch, rows_Bx2, everywhere=False)
        _, labels_BxP, weights_BxP = self._predicted(batch)
        c = self.config
        num_rows, num_slots = weights_BxP.shape
        chunks = mlm_chunks(
            -(-num_rows // c.layout.batch_shards), num_slots, c.padded_vocab_size,
            CHUNK_BYTES_ON_CPU if c.layout.on_cpu else CHUNK_BYTES,
        )
        mlm_loss, mlm_correct = masked_lm_loss(
            outputs['mlm_output'], labels_BxP, weights_BxP, chunks, c.layout
        )
        sums = {
            'mlm_loss': mlm_loss,
            'mlm_correct': mlm_correct,
            'mlm_count': jnp.sum(weights_BxP),
            'rows': jnp.sum(batch['example_weights']),
            'tokens': jnp.sum((batch['input_mask'] > 0).astype(jnp.float32)),
        }
        loss = sums['mlm_loss'] / totals['masked']
        if self.next_sentence:
            weights = batch['example_weights']  # [B], or [B, K] of packed rows
            losses, correct = cross_entropy(outputs['nsp_logits'], batch['next_sentence_labels'])
            sums['nsp_loss'] = jnp.sum(losses * weights)
            sums['nsp_correct'] = jnp.sum(correct * weights)
            loss = loss + sums['nsp_loss'] / totals['rows']
        return loss, sums

    def score(self, sums: Mapping[str, float]) -> dict[str, float]:
        masked, rows = max(sums['mlm_count'], 1.0), max(sums['rows'], 1.0)
        mlm_loss = sums['mlm_loss'] / masked
        name = 'lm' if self.config.causal else 'mlm'
        metrics = {
            f'{name}_loss': mlm_loss,
            f'{name}_perplexity': math.exp(min(mlm_loss, 700.0)),
            f'{name}_accuracy': sums['mlm_correct'] / masked,
        }
        if self.next_sentence:
            metrics['nsp_loss'] = sums['nsp_loss'] / rows
            metrics['nsp_accuracy'] = sums['nsp_correct'] / rows
        return metrics

    def flops(
        self, max_seq_length: int, max_predictions_per_seq: int, pairs_a_row: int = 1
    ) -> float:
        """FLOPs of training on one row."""
        predicted = max_seq_length if self.config.causal else max_predictions_per_seq
        return train_flops(self.config, max_seq_length, predicted, pairs_a_row)


@dataclasses.dataclass(frozen=True)
class _Packed:
    """What objectives on packed rows share: a flax module on a packed batch, weighted means."""

    config: ModelConfig
    num_outputs: int  # of the head, where that is not fixed
    shown: ClassVar[Mapping[str, str]] = {'accuracy': 'acc'}

    @property
    def _model(self) -> nn.Module:
        raise NotImplementedError

    def _apply(self, params: Params, batch: Batch, rows_Bx2: jax.Array | None) -> Any:
        return self._model.apply({'params': params}, batch, rows_Bx2)

    def init(self, rng: jax.Array) -> Params:
        ones_1x8 = jnp.ones((1, 8), jnp.int32)
        model = dataclasses.replace(self, config=_any_shape(self.config))._model
        return model.init(rng, {
            'input_ids': ones_1x8, 'input_mask': ones_1x8, 'segment_ids': ones_1x8,
            'position_ids': ones_1x8, 'cls_positions': jnp.zeros((1, 1), jnp.int32),
        })['params']

    def token_flops(self, row_length: int) -> float:
        """FLOPs of training on one token of a row; dense heads are too small to count."""
        c = self.config
        bilstm = bilstm_flops(c.hidden_size, c.hidden_size // 2) if c.bilstm else 0.0
        return 3.0 * (token_flops(c, row_length) + bilstm)

    def totals(self, batch: Batch) -> Sums:
        return {'units': jnp.maximum(jnp.sum(batch['unit_weights']), 1.0)}

    def _sums(
        self, batch: Batch, weights: jax.Array, losses: jax.Array, correct: jax.Array | None
    ) -> dict[str, jax.Array]:
        sums = {
            'units': jnp.sum(weights),
            'tokens': jnp.sum((batch['input_mask'] > 0).astype(jnp.float32)),
            'loss_sum': jnp.sum(losses * weights),
        }
        if correct is not None:
            sums['correct'] = jnp.sum(correct * weights)
        return sums

    def score(self, sums: Mapping[str, float]) -> dict[str, float]:
        return {'accuracy': sums['correct'] / max(sums['units'], 1.0)}


@dataclasses.dataclass(frozen=True)
class Classification(_Packed):
    """Cross-entropy over labels, one label a unit (section 4.1)."""

    @property
    def _model(self) -> nn.Module:
        return BertForSequenceClassification(self.config, self.num_outputs)

    def token_flops(self, row_length: int) -> float:
        c = self.config
        if c.scan_layers or c.bilstm:
            return super().token_flops(row_length)
        # The last layer is computed at [CLS] alone (`Bert`, `wanted_BxP`), from keys and values.
        others = token_flops(c, row_length) * (1 - 1 / c.num_layers)
        return 3.0 * (others + 6 * c.hidden_size**2)

    def outputs(
        self, params: Params, batch: Batch, rows_Bx2: jax.Array | None = None
    ) -> dict[str, Any]:
        return {'logits': self._apply(params, batch, rows_Bx2)}

    def _losses(
        self, logits: jax.Array, labels: jax.Array
    ) -> tuple[jax.Array, jax.Array | None]:
        """(loss [R, K], whether it is right [R, K]) from logits [R, K, ...]."""
        return cross_entropy(logits, labels)

    def loss(
        self, params: Params, batch: Batch, totals: Sums, rows_Bx2: jax.Array | None
    ) -> tuple[jax.Array, Sums]:
        logits = self.outputs(params, batch, rows_Bx2)['logits']
        sums = self._sums(batch, batch['unit_weights'], *self._losses(logits, batch['labels']))
        return sums['loss_sum'] / totals['units'], sums


@dataclasses.dataclass(frozen=True)
class Regression(Classification):
    """Squared error; the label is a number. `logits` are [R, K, 1]."""

    num_outputs: int = 1
    shown: ClassVar[Mapping[str, str]] = {'squared_error': 'mse'}

    def _losses(
        self, logits: jax.Array, labels: jax.Array
    ) -> tuple[jax.Array, jax.Array | None]:
        return jnp.square(logits[..., 0] - labels), None

    def score(self, sums: Mapping[str, float]) -> dict[str, float]:
        return {'squared_error': sums['loss_sum'] / max(sums['units'], 1.0)}


@dataclasses.dataclass(frozen=True)
class MultiLabel(Classification):
    """Any number of labels a unit: binary cross-entropy, mean over the L labels.

    `labels` are [R, K, L] of 0 and 1. Right is a unit all of whose labels are.
    """

    def _losses(
        self, logits: jax.Array, labels: jax.Array
    ) -> tuple[jax.Array, jax.Array | None]:
        losses_RxKxL = optax.sigmoid_binary_cross_entropy(logits, labels)
        right_RxK = jnp.all((logits > 0) == (labels > 0.5), axis=-1)
        return jnp.mean(losses_RxKxL, axis=-1), right_RxK.astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class MultipleChoice(Classification):
    """Softmax over the `num_outputs` sequences of a unit, `logits` [R, K, C] (section 4.4)."""

    @property
    def _model(self) -> nn.Module:
        return BertForSequenceClassification(self.config, 1)

    def outputs(
        self, params: Params, batch: Batch, rows_Bx2: jax.Array | None = None
    ) -> dict[str, Any]:
        logits = self._apply(params, batch, rows_Bx2)
        return {'logits': logits.reshape(logits.shape[0], -1, self.num_outputs)}


@dataclasses.dataclass(frozen=True)
class Tagging(_Packed):
    """Cross-entropy at the first piece of each word (`token_weights` 1), mean over words."""

    @property
    def _model(self) -> nn.Module:
        return BertForTokenClassification(self.config, self.num_outputs)

    def totals(self, batch: Batch) -> Sums:
        return {'units': jnp.maximum(jnp.sum(batch['token_weights']), 1.0)}  # words

    def outputs(
        self, params: Params, batch: Batch, rows_Bx2: jax.Array | None = None
    ) -> dict[str, Any]:
        return {'logits': self._apply(params, batch, rows_Bx2)}

    def loss(
        self, params: Params, batch: Batch, totals: Sums, rows_Bx2: jax.Array | None
    ) -> tuple[jax.Array, Sums]:
        logits_RxSxL = self.outputs(params, batch, rows_Bx2)['logits']
        sums = self._sums(
            batch, batch['token_weights'], *cross_entropy(logits_RxSxL, batch['token_labels'])
        )
        return sums['loss_sum'] / totals['units'], sums


@dataclasses.dataclass(frozen=True)
class FeatureTagging(Tagging):
    """The same from a BiLSTM on `features` of a frozen encoder (section 5.3)."""

    features: str = 'concat_last_four'

    @property
    def _model(self) -> nn.Module:
        return BertFeatureTagger(self.config, self.num_outputs, self.features)

    def token_flops(self, row_length: int) -> float:
        c, units = self.config, BertFeatureTagger.units
        layers = {'embeddings': 0, 'second_to_last': c.num_layers - 1}.get(
            self.features, c.num_layers)  # the compiler leaves the others out
        inputs = c.hidden_size * (
            min(4, c.num_layers) if self.features == 'concat_last_four' else 1)
        trained = bilstm_flops(inputs, units) + bilstm_flops(2 * units, units)
        return layers / c.num_layers * token_flops(c, row_length) + 3.0 * trained


@dataclasses.dataclass(frozen=True)
class QuestionAnswering(_Packed):
    """Mean of the cross-entropies of start and end over the tokens of the window (section 4.2).

    A window without an answer has it at [CLS]. (google-research/bert's softmax also runs over the
    padding of the window, which here is not there.) Right is a unit both of whose ends are.
    """

    num_outputs: int = 2

    @property
    def _model(self) -> nn.Module:
        return BertForQuestionAnswering(self.config)

    def outputs(
        self, params: Params, batch: Batch, rows_Bx2: jax.Array | None = None
    ) -> dict[str, Any]:
        logits = self._apply(params, batch, rows_Bx2)
        return {'start_logits': logits[..., 0], 'end_logits': logits[..., 1]}

    def loss(
        self, params: Params, batch: Batch, totals: Sums, rows_Bx2: jax.Array | None
    ) -> tuple[jax.Array, Sums]:
        outputs = self.outputs(params, batch, rows_Bx2)
        weights_RxK = batch['unit_weights']
        numbers_K = jnp.arange(1, weights_RxK.shape[1] + 1)
        own_RxKxS = batch['input_mask'][:, None, :] == numbers_K[None, :, None]

        def span_loss(logits_RxS: jax.Array, positions_RxK: jax.Array) -> tuple[jax.Array, ...]:
            logits_RxKxS = jnp.where(own_RxKxS, logits_RxS[:, None, :], _ELSEWHERE)
            return cross_entropy(logits_RxKxS, positions_RxK)

        start_RxK, start_right = span_loss(outputs['start_logits'], batch['start_positions'])
        end_RxK, end_right = span_loss(outputs['end_logits'], batch['end_positions'])
        sums = self._sums(
            batch, weights_RxK, (start_RxK + end_RxK) * 0.5, start_right * end_right
        )
        return sums['loss_sum'] / totals['units'], sums


# By the name of the head. Downstream ones are made of (encoder, outputs).
OBJECTIVES: Mapping[str, Any] = {
    'pretraining': Pretraining,
    'classification': Classification,
    'regression': Regression,
    'multi_label': MultiLabel,
    'multiple_choice': MultipleChoice,
    'token_classification': Tagging,
    'question_answering': QuestionAnswering,
    'feature_tagger': FeatureTagging,
}
