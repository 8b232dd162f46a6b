"""Heads on a sequence's vector: classification, regression, multiple labels, multiple choice.

All are a dense layer on the pooled vector (paper sections 4.1 and 4.4, figure 4), which is that of
[CLS], or with another `pooling` of all tokens. In the ablations of section 5.1, a `causal` encoder
pools the last token, which alone attends to all others, and with `bilstm` the final states of both
directions of the BiLSTM are pooled.

    B, R: rows, S: row length, H: hidden_size, K: sequences or examples a row, L: labels,
    C: choices an example, W: windows, n: texts
"""

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from bert_jax.heads import base
from bert_jax.heads.base import Batch, Head, Keys, Losses, Outputs, Params
from bert_jax.heads.tensors import Part, output_layer
from bert_jax.kernels import dropout as drop
from bert_jax.model.attention import gather_positions
from bert_jax.model.encoder import Bert
from bert_jax.model.flops import key_value_flops, token_flops
from bert_jax.model.layers import Dense, ModelConfig

CLASSIFIER = Part('classifier/', output_layer('classifier', 'L', tf1=''))


def last_tokens(numbers_BxS: jax.Array, num: int) -> jax.Array:
    """Last positions [B, K] of sequences 1 to `num` in packed rows; 0 for absent sequences."""
    inside_BxKxS = numbers_BxS[:, None, :] == jnp.arange(1, num + 1)[:, None]
    positions_S = jnp.arange(numbers_BxS.shape[1])
    return jnp.max(jnp.where(inside_BxKxS, positions_S, 0), axis=2)


class BertForSequenceClassification(nn.Module):
    """Logits [B, K, L] float32 of a dense layer on the pooled vector of each sequence.

    Regression has one label. So has multiple choice, which takes an example's choices together.
    Without `bilstm`, the encoder's last layer is computed only at [CLS], or at the last token, if
    the pooler does not read the mean of all.
    """

    config: ModelConfig
    num_labels: int

    def setup(self) -> None:
        self.bert = Bert(self.config)
        self.bilstm = base.ablation_bilstm(self.config)
        self.classifier = Dense(
            self.config, (self.config.hidden_size,), (self.num_labels,), ('embed',), (None,))

    def __call__(
        self, batch: Batch, dropout_keys_Bx2: Keys = None, encoded: Outputs | None = None
    ) -> jax.Array:
        """See the class; `encoded` is as for `base.encode`."""
        if encoded is None:
            pooled_BxKxH = self._pooled(batch, dropout_keys_Bx2)
        else:
            pooled_BxKxH = encoded['pooled_output']
        pooled_BxKxH = drop.dropout(
            pooled_BxKxH, self.config.classifier_dropout, dropout_keys_Bx2, drop.CLASSIFIER)
        return self.classifier.logits(pooled_BxKxH)

    def _pooled(self, batch: Batch, dropout_keys_Bx2: Keys) -> jax.Array:
        """The pooled vector [B, K, H] of each sequence."""
        first_BxK = batch['cls_positions']
        last_BxK = last_tokens(batch['sequence_ids'], first_BxK.shape[1])
        if self.bilstm is None and self.config.pooling != 'cls':
            outputs = self.bert(*base.inputs_of(batch, dropout_keys_Bx2), first_BxK)
            return outputs['pooled_output']
        if self.bilstm is None:
            cls_query_index_BxK = jnp.broadcast_to(jnp.arange(first_BxK.shape[1]), first_BxK.shape)
            pooled_positions_BxK = last_BxK if self.config.causal else first_BxK
            inputs = base.inputs_of(batch, dropout_keys_Bx2)
            outputs = self.bert(*inputs, cls_query_index_BxK, pooled_positions_BxK)
            return outputs['pooled_output']
        x_BxSxH = base.encode(self.bert, self.bilstm, batch, dropout_keys_Bx2)
        forward_BxSxU, backward_BxSxU = jnp.split(x_BxSxH, 2, axis=-1)
        forward_BxKxU = gather_positions(forward_BxSxU, last_BxK)
        backward_BxKxU = gather_positions(backward_BxSxU, first_BxK)
        final_BxKxH = jnp.concatenate([forward_BxKxU, backward_BxKxU], axis=-1)
        return self.bert.pooler(final_BxKxH, dropout_keys_Bx2)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities over the last axis, in double precision."""
    import scipy.special  # which takes 0.2 s; a pre-training needs none of it

    return scipy.special.softmax(logits.astype(np.float64), axis=-1)


Combine = Callable[[np.ndarray], np.ndarray]  # from windows [W, L] to texts [n, L]


@dataclasses.dataclass(frozen=True)
class Classification(Head):
    """Cross-entropy over labels, one label an example (section 4.1).

    Attributes:
      class_weights: a factor of the loss for each label; empty: all 1.
      label_smoothing: share of the target that is spread evenly over all labels.
    """

    name = 'classification'
    parts = (CLASSIFIER,)
    needs_pooler = True
    labelled = True
    problem_type = 'single_label_classification'

    class_weights: tuple[float, ...] = ()
    label_smoothing: float = 0.0

    @property
    def module(self) -> nn.Module:
        return BertForSequenceClassification(self.config, self.num_outputs)

    def token_flops(self, row_length: int) -> float:
        if self.config.bilstm or self.config.pooling != 'cls':
            return super().token_flops(row_length)
        # At most tokens, the last layer only projects to keys and values (see `Bert`).
        others = token_flops(self.config, row_length, self.config.num_layers - 1)
        return 3.0 * (others + key_value_flops(self.config))

    def losses(self, outputs: Outputs, batch: Batch) -> Losses:
        logits = outputs['logits']
        labels = batch['labels']
        losses, correct = base.cross_entropy(logits, labels)
        if self.label_smoothing:
            uniform = jax.nn.logsumexp(logits, axis=-1) - jnp.mean(logits, axis=-1)
            losses += self.label_smoothing * (uniform - losses)
        if self.class_weights:
            losses *= jnp.take(jnp.array(self.class_weights), labels)
        return losses, correct

    @staticmethod
    def of_windows(logits_WxL: np.ndarray, combine: Combine, largest: bool) -> np.ndarray:
        """Logits [n, L] of texts from those of their windows.

        Args:
          logits_WxL: of windows.
          combine: takes the mean over each text's windows, or the maximum if `largest`.
          largest: which of the two.
        """
        with np.errstate(divide='ignore'):  # a probability of 0
            return np.log(combine(softmax(logits_WxL)))

    @staticmethod
    def mean_loss(logits_nxL: np.ndarray, labels: np.ndarray) -> float:
        """The mean loss of examples, except those whose label the model does not have.

        NaN if it has the label of none.
        """
        known_n = np.flatnonzero(labels < logits_nxL.shape[1])
        if not known_n.size:
            return math.nan
        likelihood_n = softmax(logits_nxL)[known_n, labels[known_n]]
        return float(-np.log(np.maximum(likelihood_n, 1e-300)).mean())

    @staticmethod
    def predictions(logits_nxL: np.ndarray) -> np.ndarray:
        """Label ids [n], or values [n], or with several labels an example, 0 and 1 [n, L]."""
        return logits_nxL.argmax(-1)

    @staticmethod
    def texts(predictions_n: np.ndarray, labels: Sequence[str]) -> list[str]:
        """Predictions as strings, as files contain them."""
        return [labels[int(i)] for i in predictions_n]

    @staticmethod
    def described(logits_nxL: np.ndarray, labels: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Predictions with probabilities, for `predict`."""
        best_n = logits_nxL.argmax(axis=1).tolist()
        for row, best in zip(softmax(logits_nxL).tolist(), best_n, strict=True):
            yield {
                'label': labels[best],
                'probability': row[best],
                'probabilities': dict(zip(labels, row, strict=True)),
            }


@dataclasses.dataclass(frozen=True)
class Regression(Classification):
    """Squared error; labels are numbers, and `logits` are [R, K, 1]."""

    name = 'regression'
    labelled = False
    problem_type = 'regression'
    shown = {'squared_error': 'mse'}

    num_outputs: int = 1

    def losses(self, outputs: Outputs, batch: Batch) -> Losses:
        return jnp.square(outputs['logits'][..., 0] - batch['labels']), None

    def score(self, sums: Mapping[str, float]) -> dict[str, float]:
        return {'squared_error': sums['loss_sum'] / max(sums['units'], 1.0)}

    @staticmethod
    def of_windows(logits_WxL: np.ndarray, combine: Combine, largest: bool) -> np.ndarray:
        return combine(logits_WxL)

    @staticmethod
    def mean_loss(logits_nxL: np.ndarray, labels: np.ndarray) -> float:
        return float(np.square(logits_nxL[:, 0].astype(np.float64) - labels).mean())

    @staticmethod
    def predictions(logits_nxL: np.ndarray) -> np.ndarray:
        return logits_nxL[:, 0]

    @staticmethod
    def texts(predictions_n: np.ndarray, labels: Sequence[str]) -> list[str]:
        return [f'{value:.6f}' for value in predictions_n]

    @staticmethod
    def described(logits_nxL: np.ndarray, labels: Sequence[str]) -> Iterator[dict[str, Any]]:
        for value in logits_nxL[:, 0].tolist():
            yield {'value': value}


@dataclasses.dataclass(frozen=True)
class MultiLabel(Classification):
    """Any number of labels an example: binary cross-entropy, mean over the L labels.

    `labels` are [R, K, L] of 0 and 1. An example is right if all of its labels are. A class weight
    is a factor of the loss where the label is 1, as PyTorch's `pos_weight`.
    """

    name = 'multi_label'
    problem_type = 'multi_label_classification'

    def losses(self, outputs: Outputs, batch: Batch) -> Losses:
        logits = outputs['logits']
        labels = batch['labels']
        losses_RxKxL = optax.sigmoid_binary_cross_entropy(logits, labels)
        if self.class_weights:
            losses_RxKxL *= jnp.where(labels > 0.5, jnp.array(self.class_weights), 1.0)
        right_RxK = jnp.all((logits > 0) == (labels > 0.5), axis=-1)
        return jnp.mean(losses_RxKxL, axis=-1), right_RxK.astype(jnp.float32)

    @staticmethod
    def of_windows(logits_WxL: np.ndarray, combine: Combine, largest: bool) -> np.ndarray:
        logits_WxL = logits_WxL.astype(np.float64)
        if largest:  # the largest probability is that of the largest logit
            return combine(logits_WxL)
        no_WxL = np.logaddexp(0, logits_WxL)  # -log of the probability that a label is absent
        present_nxL = combine(np.exp(logits_WxL - no_WxL))
        absent_nxL = combine(np.exp(-no_WxL))
        with np.errstate(divide='ignore'):  # a probability of 0
            return np.log(present_nxL) - np.log(absent_nxL)

    @staticmethod
    def mean_loss(logits_nxL: np.ndarray, labels: np.ndarray) -> float:
        x_nxL = np.clip(logits_nxL.astype(np.float64), -700, 700)
        known_nxL = labels[:, : x_nxL.shape[1]]
        return float((np.logaddexp(0, x_nxL) - x_nxL * known_nxL).mean())

    @staticmethod
    def predictions(logits_nxL: np.ndarray) -> np.ndarray:
        return (logits_nxL > 0).astype(np.float32)

    @staticmethod
    def texts(predictions_n: np.ndarray, labels: Sequence[str]) -> list[str]:
        join: Callable[[list[str]], str] = ','.join
        if any(',' in label for label in labels):  # the separator
            join = json.dumps
        texts = []
        for row in predictions_n:
            predicted = [labels[int(i)] for i in np.flatnonzero(row)]
            texts.append(join(predicted))
        return texts

    @staticmethod
    def described(logits_nxL: np.ndarray, labels: Sequence[str]) -> Iterator[dict[str, Any]]:
        for row in (1 / (1 + np.exp(-logits_nxL))).tolist():
            probabilities = dict(zip(labels, row, strict=True))
            likely = [label for label, share in zip(labels, row, strict=True) if share > 0.5]
            yield {'labels': likely, 'probabilities': probabilities}


@dataclasses.dataclass(frozen=True)
class MultipleChoice(Classification):
    """Softmax over the `num_outputs` choices of an example, `logits` [R, K, C] (section 4.4)."""

    name = 'multiple_choice'
    labelled = False
    problem_type = ''

    @property
    def module(self) -> nn.Module:
        return BertForSequenceClassification(self.config, 1)

    def outputs(
        self, params: Params, batch: Batch, dropout_keys_Bx2: Keys = None
    ) -> dict[str, Any]:
        logits = super().outputs(params, batch, dropout_keys_Bx2)['logits']
        return {'logits': logits.reshape(logits.shape[0], -1, self.num_outputs)}
