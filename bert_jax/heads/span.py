"""The head of extractive question answering: a span's start and end (paper section 4.2).

    B, R: rows, S: row length, H: hidden_size, K: examples (windows) a row
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from bert_jax.heads.base import (
    ELSEWHERE,
    Batch,
    Head,
    Keys,
    Losses,
    Outputs,
    Part,
    Tensor,
    ablation_bilstm,
    cross_entropy,
    encode,
)
from bert_jax.model.encoder import Bert
from bert_jax.model.layers import Dense, ModelConfig

SPAN = Part('cls/squad/', (
    Tensor('cls/squad/kernel', 'cls/squad/output_weights', 'qa_outputs.weight', 'H,2'),
    Tensor('cls/squad/bias', 'cls/squad/output_bias', 'qa_outputs.bias', '2'),
))


class SpanHead(nn.Module):
    """`squad`: start and end scores of each token."""

    config: ModelConfig

    def setup(self) -> None:
        c = self.config
        self.squad = Dense(c, (c.hidden_size,), (2,), ('embed',), (None,))

    def __call__(self, x_BxSxH: jax.Array) -> jax.Array:
        return self.squad.logits(x_BxSxH)


class BertForQuestionAnswering(nn.Module):
    """Start and end logits [B, S, 2] float32 of every token; no dropout before them."""

    config: ModelConfig

    def setup(self) -> None:
        self.bert = Bert(self.config, pooled=False)
        self.bilstm = ablation_bilstm(self.config)
        self.cls = SpanHead(self.config)

    def __call__(self, batch: Batch, rows_Bx2: Keys = None) -> jax.Array:
        return self.cls(encode(self.bert, self.bilstm, batch, rows_Bx2))


@dataclasses.dataclass(frozen=True)
class QuestionAnswering(Head):
    """Mean of the cross-entropies of start and end over the tokens of the window (section 4.2).

    The answer of a window without one is [CLS]. (google-research/bert's softmax also covers the
    window's padding, which packed rows do not have.) An example is right if both ends are.
    """

    name = 'question_answering'
    classes = {'BertForQuestionAnswering': (SPAN,)}

    num_outputs: int = 2

    @classmethod
    def of_model(cls, config: ModelConfig, num_labels: int, inference: Mapping[str, Any]) -> Head:
        return cls(config)

    @property
    def module(self) -> nn.Module:
        return BertForQuestionAnswering(self.config)

    def named(self, logits: jax.Array) -> dict[str, jax.Array]:
        return {'start_logits': logits[..., 0], 'end_logits': logits[..., 1]}

    def losses(self, outputs: Outputs, batch: Batch) -> Losses:
        numbers_K = jnp.arange(1, batch['unit_weights'].shape[1] + 1)
        inside_RxKxS = batch['sequence_ids'][:, None, :] == numbers_K[None, :, None]

        def span_loss(logits_RxS: jax.Array, positions_RxK: jax.Array) -> tuple[jax.Array, ...]:
            logits_RxKxS = jnp.where(inside_RxKxS, logits_RxS[:, None, :], ELSEWHERE)
            return cross_entropy(logits_RxKxS, positions_RxK)

        start_RxK, start_right = span_loss(outputs['start_logits'], batch['start_positions'])
        end_RxK, end_right = span_loss(outputs['end_logits'], batch['end_positions'])
        return (start_RxK + end_RxK) * 0.5, start_right * end_right
