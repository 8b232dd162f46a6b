"""Heads on each token: answer spans and tags by fine-tuning, and tags by a BiLSTM on features.

Sections 4.2 and 5.3 of the paper.

    B, R: rows, S: row length, H: hidden_size, F: features, U: units of one direction, L: labels,
    K: examples (windows) a row
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from bert_jax.heads import base
from bert_jax.heads.base import Batch, Head, Keys, Losses, Outputs
from bert_jax.heads.classification import CLASSIFIER
from bert_jax.heads.tensors import Part, output_layer
from bert_jax.kernels import dropout as drop
from bert_jax.model.bilstm import BiLstm
from bert_jax.model.encoder import Bert
from bert_jax.model.flops import bilstm_flops, token_flops
from bert_jax.model.layers import Dense, ModelConfig, parameter
from bert_jax.runtime.errors import InputError

SPAN = Part('cls/squad/', output_layer('cls/squad', 2, tf1='cls/squad/'))


class SpanHead(nn.Module):
    """`squad`: start and end scores of each token."""

    config: ModelConfig

    def setup(self) -> None:
        self.squad = Dense(
            self.config, (self.config.hidden_size,), (2,), ('embed',), (None,))


class BertForTokens(nn.Module):
    """Logits [B, S, outputs] float32 of a dense layer on every token's last hidden state.

    With `pools_tokens`, the pooler's layers are between the two.

    Attributes:
      span: whether the layer is `cls/squad`, which has no dropout in front of it unless the pooler
        is there; otherwise it is `classifier`, after dropout.
    """

    config: ModelConfig
    num_outputs: int
    span: bool = False

    def setup(self) -> None:
        self.bert = Bert(self.config, pooled=self.config.pools_tokens)
        self.bilstm = base.ablation_bilstm(self.config)
        if self.span:
            self.cls = SpanHead(self.config)
        else:
            self.classifier = Dense(
                self.config, (self.config.hidden_size,), (self.num_outputs,), ('embed',), (None,))

    def __call__(
        self, batch: Batch, dropout_keys_Bx2: Keys = None, encoded: Outputs | None = None
    ) -> jax.Array:
        """See the class; `encoded` is as for `base.encode`."""
        x_BxSxH = base.encode(self.bert, self.bilstm, batch, dropout_keys_Bx2, encoded)
        if self.span and not self.config.pools_tokens:
            return self.cls.squad.logits(x_BxSxH)  # without dropout, as in run_squad.py
        if self.config.pools_tokens:
            x_BxSxH = self.bert.pooler(x_BxSxH, dropout_keys_Bx2)
        x_BxSxH = drop.dropout(
            x_BxSxH, self.config.classifier_dropout, dropout_keys_Bx2, drop.CLASSIFIER)
        last = self.cls.squad if self.span else self.classifier
        return last.logits(x_BxSxH)


@dataclasses.dataclass(frozen=True)
class QuestionAnswering(Head):
    """Mean of the cross-entropies of start and end over the tokens of the window (section 4.2).

    In a window without an answer, the label is [CLS]. (google-research/bert's softmax also covers
    the window's padding, which packed rows do not have.) An example is right if both ends are.
    """

    name = 'question_answering'
    parts = (SPAN,)

    num_outputs: int = 2

    @property
    def module(self) -> nn.Module:
        return BertForTokens(self.config, 2, span=True)

    def named(self, logits: jax.Array) -> dict[str, jax.Array]:
        return {'start_logits': logits[..., 0], 'end_logits': logits[..., 1]}

    def losses(self, outputs: Outputs, batch: Batch) -> Losses:
        numbers_K = jnp.arange(1, batch['unit_weights'].shape[1] + 1)
        inside_RxKxS = batch['sequence_ids'][:, None, :] == numbers_K[None, :, None]

        def span_loss(logits_RxS: jax.Array, positions_RxK: jax.Array) -> tuple[jax.Array, ...]:
            logits_RxKxS = jnp.where(inside_RxKxS, logits_RxS[:, None, :], base.ELSEWHERE)
            return base.cross_entropy(logits_RxKxS, positions_RxK)

        start_RxK, start_right = span_loss(outputs['start_logits'], batch['start_positions'])
        end_RxK, end_right = span_loss(outputs['end_logits'], batch['end_positions'])
        return (start_RxK + end_RxK) * 0.5, start_right * end_right


class FeatureCombination(nn.Module):
    """Features [B, S, F] of a `Bert` output, by one of the six choices of table 7.

    F is H, or 4 H for `concat_last_four` (less if the model has fewer layers). Weighted sums are
    ELMo's (Peters et al., 2018, equation 1): the softmax of `layer_weights` (initially 0, for a
    mean) times `scale` (initially 1), both learned. `weighted_sum_all` takes the outputs of all
    layers, not the embeddings; `embeddings` are the embeddings after their LayerNorm.
    """

    combination: str

    @nn.compact
    def __call__(self, output: Mapping[str, Any]) -> jax.Array:
        layers = output['layers']
        # A model with one layer has the embeddings second to last.
        every = (output['embedding_output'], *layers)
        if self.combination == 'embeddings':
            return every[0]
        if self.combination == 'second_to_last':
            return every[-2]
        if self.combination == 'last':
            return every[-1]
        if self.combination == 'concat_last_four':
            return jnp.concatenate(layers[-4:], axis=-1)
        chosen = layers if self.combination == 'weighted_sum_all' else layers[-4:]
        weights = self.param(
            'layer_weights', parameter(nn.initializers.zeros, None), (len(chosen),))
        scale = self.param('scale', parameter(nn.initializers.ones), ())
        shares = (scale * jax.nn.softmax(weights)).astype(chosen[0].dtype)
        return sum(shares[i] * x_BxSxH for i, x_BxSxH in enumerate(chosen))


class BertFeatureTagger(nn.Module):
    """Logits [B, S, L] float32 from a frozen encoder, two BiLSTM layers and a dense layer.

    The encoder runs without dropout and gets no gradient (the optimizer freezes `bert`, because of
    weight decay). `classifier_dropout` applies to the inputs of each BiLSTM and of the classifier.
    The paper's "768-dimensional" is read as the number of units of each direction.
    Parameters: `bert`, `features`, `bilstm_0`, `bilstm_1`, `classifier`.
    """

    config: ModelConfig
    num_labels: int
    combination: str = 'concat_last_four'
    units: int = 768

    def setup(self) -> None:
        self.bert = Bert(self.config, pooled=False)
        self.features = FeatureCombination(self.combination)
        self.bilstm = [BiLstm(self.config, self.units) for _ in range(2)]
        self.classifier = Dense(
            self.config, (2 * self.units,), (self.num_labels,), (None,), (None,))

    def __call__(self, batch: Batch, dropout_keys_Bx2: Keys = None) -> jax.Array:
        frozen = lax.stop_gradient(self.bert(*base.inputs_of(batch, None)))
        x = self.features(frozen)
        rate = self.config.classifier_dropout
        for i, layer in enumerate(self.bilstm):
            x = drop.dropout(x, rate, dropout_keys_Bx2, drop.CLASSIFIER, i)
            x = layer(x, batch['sequence_ids'])
        x = drop.dropout(x, rate, dropout_keys_Bx2, drop.CLASSIFIER, len(self.bilstm))
        return self.classifier.logits(x)


@dataclasses.dataclass(frozen=True)
class Tagging(Head):
    """Mean over words of the cross-entropy at their first pieces, where `token_weights` is 1."""

    name = 'token_classification'
    parts: ClassVar[tuple[Part, ...]] = (CLASSIFIER,)
    labelled = True
    weights = 'token_weights'

    @property
    def module(self) -> nn.Module:
        return BertForTokens(self.config, self.num_outputs)

    def losses(self, outputs: Outputs, batch: Batch) -> Losses:
        return base.cross_entropy(outputs['logits'], batch['token_labels'])


@dataclasses.dataclass(frozen=True)
class FeatureTagging(Tagging):
    """Tagging by a BiLSTM on `features` of a frozen encoder (section 5.3)."""

    name = 'feature_tagger'
    parts = ()
    stays_in_run = True

    features: str = 'concat_last_four'

    @classmethod
    def of_model(cls, config: ModelConfig, num_labels: int, inference: Mapping[str, Any]) -> Self:
        if not inference.get('features'):
            raise InputError("the run's config.json has no inference.features, which says what its "
                             'tagger reads: put it back as it was')
        return cls(config, num_labels, inference['features'])

    @property
    def module(self) -> nn.Module:
        return BertFeatureTagger(self.config, self.num_outputs, self.features)

    def token_flops(self, row_length: int) -> float:
        num_layers = self.config.num_layers
        # The compiler drops unused layers.
        used_layers = num_layers
        if self.features == 'embeddings':
            used_layers = 0
        elif self.features == 'second_to_last':
            used_layers = num_layers - 1
        num_inputs = self.config.hidden_size
        if self.features == 'concat_last_four':
            num_inputs *= min(4, num_layers)
        units = BertFeatureTagger.units
        trained = bilstm_flops(num_inputs, units) + bilstm_flops(2 * units, units)
        return token_flops(self.config, row_length, used_layers) + 3.0 * trained
