"""The head of ELECTRA's discriminator (Clark et al., 2020): which tokens were replaced.

    B: batch rows, S: row length, H: hidden_size
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from bert_jax.heads import base
from bert_jax.heads.base import Batch, Head, Keys, Losses, Outputs, Params
from bert_jax.heads.tensors import Part, dense
from bert_jax.model.encoder import Bert
from bert_jax.model.layers import Dense, ModelConfig, activation

DISCRIMINATOR = Part('discriminator_predictions/', (
    *dense('discriminator_predictions/dense', ('H',), ('H',)),
    *dense('discriminator_predictions/dense_prediction', ('H',), (1,))))


class DiscriminatorPredictions(nn.Module):
    """Dense -> gelu -> dense: a logit [B, S] float32 for each token, above 0 if it was replaced."""

    config: ModelConfig

    def setup(self) -> None:
        hidden = self.config.hidden_size
        self.dense = Dense(self.config, (hidden,), (hidden,), ('embed',), (None,))
        self.dense_prediction = Dense(self.config, (hidden,), (1,), ('embed',), (None,))

    def __call__(self, x_BxSxH: jax.Array) -> jax.Array:
        y_BxSxH = activation(self.dense(x_BxSxH), self.config.hidden_act)
        return self.dense_prediction.logits(y_BxSxH)[..., 0]


class BertForReplacedTokens(nn.Module):
    """Logits [B, S] float32 of `DiscriminatorPredictions` on the encoder's last hidden states."""

    config: ModelConfig

    def setup(self) -> None:
        self.bert = Bert(self.config, pooled=False)
        self.discriminator_predictions = DiscriminatorPredictions(self.config)

    def __call__(
        self, batch: Batch, dropout_keys_Bx2: Keys = None, encoded: Outputs | None = None
    ) -> jax.Array:
        """See the class; `encoded` is as for `base.encode`."""
        x_BxSxH = base.encode(self.bert, None, batch, dropout_keys_Bx2, encoded)
        return self.discriminator_predictions(x_BxSxH)


@dataclasses.dataclass(frozen=True)
class ReplacedTokens(Head):
    """Mean binary cross-entropy over the tokens of weight 1; label 1: the token was replaced.

    `configs/electra_pretrain.py` trains it together with a generator that replaces tokens.
    """

    name = 'replaced_tokens'
    parts = (DISCRIMINATOR,)
    weights = 'token_weights'

    @property
    def module(self) -> nn.Module:
        return BertForReplacedTokens(self.config)

    def losses(self, outputs: Outputs, batch: Batch) -> Losses:
        return replaced_loss(outputs['logits'], batch['token_labels'])

    def outputs_from_hidden(
        self, params: Params, x_BxSxH: jax.Array, pooled_BxH: jax.Array | None
    ) -> dict[str, jax.Array]:
        layers = DiscriminatorPredictions(self.config)
        logits: Any = layers.apply({'params': params['discriminator_predictions']}, x_BxSxH)
        return {'logits': logits}


def replaced_loss(logits_BxS: jax.Array, replaced_BxS: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(Binary cross-entropy of each token; 1 where the logit is on the label's side, else 0).

    Args:
      logits_BxS: float32.
      replaced_BxS: 1 where the token was replaced, 0 elsewhere.
    """
    labels = replaced_BxS.astype(jnp.float32)
    correct = (logits_BxS > 0) == (labels > 0)
    return optax.sigmoid_binary_cross_entropy(logits_BxS, labels), correct.astype(jnp.float32)
