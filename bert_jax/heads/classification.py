"""Heads over a sequence's vector: classification, regression, multiple labels, multiple choice.

A dense layer on the pooled vector (paper sections 4.1 and 4.4, figure 4). In the ablations of
section 5.1, a `causal` encoder pools the last token, which alone attends to all others, and with
`bilstm` the final states of both directions of the BiLSTM are pooled.

    B, R: rows, S: row length, H: hidden_size, K: sequences or examples a row, L: labels,
    C: choices an example, W: windows, n: texts
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

from bert_jax.heads.base import (
    POOLER,
    Batch,
    Head,
    LabelledHead,
    Params,
    Part,
    Tensor,
    ablation_bilstm,
    apply_layer,
    cross_entropy,
    encode,
)
from bert_jax.model import dropout as drop
from bert_jax.model.attention import gather_positions
from bert_jax.model.encoder import Bert
from bert_jax.model.flops import token_flops
from bert_jax.model.layers import Dense, ModelConfig

CLASSIFIER = Part('classifier/', (
    Tensor('classifier/kernel', 'output_weights', 'classifier.weight', 'H,L'),
    Tensor('classifier/bias', 'output_bias', 'classifier.bias', 'L'),
))


def last_tokens(numbers_BxS: jax.Array, num: int) -> jax.Array:
    """Last positions [B, K] of the sequences 1 to `num` of packed rows; 0 if absent."""
    inside_BxKxS = numbers_BxS[:, None, :] == jnp.arange(1, num + 1)[:, None]
    return jnp.max(jnp.where(inside_BxKxS, jnp.arange(numbers_BxS.shape[1]), 0), axis=2)


class BertForSequenceClassification(nn.Module):
    """Logits [B, L] float32 of a dense layer on the pooled vector; [B, K, L] from packed rows.

    One label is a regression. Multiple choice has one label and takes the logits of an example's
    choices together.
    """

    config: ModelConfig
    num_labels: int

    def setup(self) -> None:
        c = self.config
        self.bert = Bert(c)
        self.bilstm = ablation_bilstm(c)
        self.classifier = Dense(c, (c.hidden_size,), (self.num_labels,), ('embed',), (None,))

    def __call__(
        self, batch: Mapping[str, jax.Array], rows_Bx2: jax.Array | None = None
    ) -> jax.Array:
        pooled = self._pooled(batch, rows_Bx2)
        pooled = drop.dropout(pooled, self.config.classifier_dropout, rows_Bx2, drop.CLASSIFIER)
        return self.classifier.logits(pooled)

    def _pooled(
        self, batch: Mapping[str, jax.Array], rows_Bx2: jax.Array | None
    ) -> jax.Array:
        """[B, H] or [B, K, H]; the last layer computes [CLS], or the last token, only."""
        inputs = batch['input_ids'], batch['sequence_ids'], batch['segment_ids'], rows_Bx2
        packed = 'cls_positions' in batch
        first_BxK = (
            batch['cls_positions'] if packed else jnp.zeros((len(batch['input_ids']), 1), jnp.int32)
        )
        last_BxK = last_tokens(batch['sequence_ids'], first_BxK.shape[1])
        if self.bilstm is None:
            among_BxK = jnp.broadcast_to(jnp.arange(first_BxK.shape[1]), first_BxK.shape)
            read_BxK = last_BxK if self.config.causal else first_BxK
            pooled_BxKxH = self.bert(
                *inputs, batch.get('position_ids'), among_BxK, read_BxK)['pooled_output']
        else:
            x_BxSxH = encode(self.bert, self.bilstm, batch, rows_Bx2)
            forward_BxSxU, backward_BxSxU = jnp.split(x_BxSxH, 2, axis=-1)
            pooled_BxKxH = self.bert.pooler(jnp.concatenate([
                gather_positions(forward_BxSxU, last_BxK),
                gather_positions(backward_BxSxU, first_BxK),
            ], axis=-1))
        return pooled_BxKxH if packed else pooled_BxKxH[:, 0]


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities over the last axis, in double precision."""
    x = logits.astype(np.float64)
    x = np.exp(x - x.max(axis=-1, keepdims=True))
    return x / x.sum(axis=-1, keepdims=True)


Combine = Callable[[np.ndarray], np.ndarray]  # from windows [W, L] to texts [n, L]


@dataclasses.dataclass(frozen=True)
class Classification(LabelledHead):
    """Cross-entropy over labels, one label an example (section 4.1).

    Attributes:
      class_weights: factors of the losses by label; empty: 1.
      label_smoothing: share of the target that is spread evenly over all labels.
    """

    name: ClassVar[str] = 'classification'
    title: ClassVar[str] = 'a classification head'
    classes: ClassVar[Mapping[str, tuple[Part, ...]]] = {
        'BertForSequenceClassification': (POOLER, CLASSIFIER)}
    labelled: ClassVar[bool] = True
    problem_type: ClassVar[str] = 'single_label_classification'

    class_weights: tuple[float, ...] = ()
    label_smoothing: float = 0.0

    @property
    def module(self) -> nn.Module:
        return BertForSequenceClassification(self.config, self.num_outputs)

    def token_flops(self, row_length: int) -> float:
        c = self.config
        if c.scan_layers or c.bilstm:
            return super().token_flops(row_length)
        # The last layer is computed at [CLS] only (`Bert`, `wanted_BxP`), from keys and values.
        others = token_flops(c, row_length) * (1 - 1 / c.num_layers)
        return 3.0 * (others + 6 * c.hidden_size**2)

    def losses(
        self, outputs: Mapping[str, Any], batch: Batch
    ) -> tuple[jax.Array, jax.Array | None]:
        logits, labels = outputs['logits'], batch['labels']
        losses, correct = cross_entropy(logits, labels)
        if self.label_smoothing:
            uniform = jax.nn.logsumexp(logits, axis=-1) - jnp.mean(logits, axis=-1)
            losses += self.label_smoothing * (uniform - losses)
        if self.class_weights:
            losses *= jnp.take(jnp.array(self.class_weights), labels)
        return losses, correct

    def of_states(
        self, params: Params, x_BxSxH: jax.Array, pooled_BxH: jax.Array | None
    ) -> dict[str, jax.Array]:
        assert pooled_BxH is not None
        return {'logits': apply_layer(self.module, params, 'classifier', pooled_BxH)}

    @staticmethod
    def of_windows(logits_WxL: np.ndarray, combine: Combine, largest: bool) -> np.ndarray:
        """Logits [n, L] of texts from those of their windows.

        Args:
          logits_WxL: of windows.
          combine: the mean over a text's windows, or where `largest`, the largest.
          largest: see there.
        """
        probabilities = combine(softmax(logits_WxL))
        with np.errstate(divide='ignore'):  # a probability of 0
            return np.log(probabilities)

    @staticmethod
    def mean_loss(logits_nxL: np.ndarray, labels: np.ndarray) -> float:
        """The mean loss of examples, without those whose label the model does not have."""
        known_n = np.flatnonzero(labels < logits_nxL.shape[1])
        likelihood_n = softmax(logits_nxL)[known_n, labels[known_n]]
        return float(-np.log(np.maximum(likelihood_n, 1e-300)).mean()) if known_n.size else 0.0

    @staticmethod
    def predictions(logits_nxL: np.ndarray) -> np.ndarray:
        """[n]: the ids of the labels."""
        return logits_nxL.argmax(-1)

    @staticmethod
    def texts(predictions_n: np.ndarray, labels: Sequence[str]) -> list[str]:
        """Predictions as strings, for files."""
        return [labels[int(i)] for i in predictions_n]

    @staticmethod
    def described(logits_nxL: np.ndarray, labels: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Predictions with probabilities, for `predict`."""
        best_n = logits_nxL.argmax(axis=1).tolist()
        for row, best in zip(softmax(logits_nxL).tolist(), best_n, strict=True):
            yield {
                'label': labels[best], 'probability': row[best],
                'probabilities': dict(zip(labels, row, strict=True)),
            }


@dataclasses.dataclass(frozen=True)
class Regression(Classification):
    """Squared error; the label is a number. `logits` are [R, K, 1]."""

    name: ClassVar[str] = 'regression'
    title: ClassVar[str] = 'a regression head'
    labelled: ClassVar[bool] = False
    problem_type: ClassVar[str] = 'regression'
    shown: ClassVar[Mapping[str, str]] = {'squared_error': 'mse'}

    num_outputs: int = 1

    def losses(
        self, outputs: Mapping[str, Any], batch: Batch
    ) -> tuple[jax.Array, jax.Array | None]:
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
        """[n]: the values."""
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

    `labels` are [R, K, L] of 0 and 1. An example is right if all of its labels are.
    """

    name: ClassVar[str] = 'multi_label'
    title: ClassVar[str] = 'a multi-label head'
    problem_type: ClassVar[str] = 'multi_label_classification'

    def losses(
        self, outputs: Mapping[str, Any], batch: Batch
    ) -> tuple[jax.Array, jax.Array | None]:
        logits, labels = outputs['logits'], batch['labels']
        losses_RxKxL = optax.sigmoid_binary_cross_entropy(logits, labels)
        right_RxK = jnp.all((logits > 0) == (labels > 0.5), axis=-1)
        return jnp.mean(losses_RxKxL, axis=-1), right_RxK.astype(jnp.float32)

    @staticmethod
    def of_windows(logits_WxL: np.ndarray, combine: Combine, largest: bool) -> np.ndarray:
        logits_WxL = logits_WxL.astype(np.float64)
        if largest:  # the largest probability is that of the largest logit
            return combine(logits_WxL)
        no_WxL = np.logaddexp(0, logits_WxL)  # -log of the probability of its absence
        yes, no = (combine(np.exp(x)) for x in (logits_WxL - no_WxL, -no_WxL))
        with np.errstate(divide='ignore'):  # a probability of 0
            return np.log(yes) - np.log(no)

    @staticmethod
    def mean_loss(logits_nxL: np.ndarray, labels: np.ndarray) -> float:
        x_nxL = np.clip(logits_nxL.astype(np.float64), -700, 700)
        return float((np.logaddexp(0, x_nxL) - x_nxL * labels[:, : x_nxL.shape[1]]).mean())

    @staticmethod
    def predictions(logits_nxL: np.ndarray) -> np.ndarray:
        """[n, L] of 0 and 1."""
        return (logits_nxL > 0).astype(np.float32)

    @staticmethod
    def texts(predictions_n: np.ndarray, labels: Sequence[str]) -> list[str]:
        # A JSON list if a label contains the separator.
        join = json.dumps if any(',' in label for label in labels) else ','.join
        return [join([labels[int(i)] for i in np.flatnonzero(row)]) for row in predictions_n]

    @staticmethod
    def described(logits_nxL: np.ndarray, labels: Sequence[str]) -> Iterator[dict[str, Any]]:
        for row in (1 / (1 + np.exp(-logits_nxL))).tolist():
            yield {
                'labels': [x for x, p in zip(labels, row, strict=True) if p > 0.5],
                'probabilities': dict(zip(labels, row, strict=True)),
            }


@dataclasses.dataclass(frozen=True)
class MultipleChoice(Classification):
    """Softmax over the `num_outputs` sequences of an example, `logits` [R, K, C] (section 4.4)."""

    name: ClassVar[str] = 'multiple_choice'
    title: ClassVar[str] = 'a multiple-choice head'
    classes: ClassVar[Mapping[str, tuple[Part, ...]]] = {
        'BertForMultipleChoice': (POOLER, CLASSIFIER)}
    labelled: ClassVar[bool] = False
    problem_type: ClassVar[str] = ''

    @classmethod
    def of_model(cls, config: ModelConfig, num_labels: int, inference: Mapping[str, Any]) -> Head:
        return cls(config, 1)

    @property
    def module(self) -> nn.Module:
        return BertForSequenceClassification(self.config, 1)

    def outputs(
        self, params: Params, batch: Batch, rows_Bx2: jax.Array | None = None
    ) -> dict[str, Any]:
        logits = self.apply(params, batch, rows_Bx2)
        return {'logits': logits.reshape(logits.shape[0], -1, self.num_outputs)}
