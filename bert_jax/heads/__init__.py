"""The kinds of heads that a model can have, declared once.

Weights and their formats, predictions and export read this table; what a kind computes, and its
loss, is in `model.objectives`. A kind's parameters are in *parts*, several kinds may share one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from bert_jax.heads.tensors import Tensor


class Part(NamedTuple):
    """Parameters that a model has all of or none: those whose names begin with `prefix`."""

    prefix: str
    tensors: tuple[Tensor, ...]


POOLER = Part('bert/pooler/', (
    Tensor('bert/pooler/dense/kernel', 'bert/pooler/dense/kernel',
           'bert.pooler.dense.weight', 'H,H'),
    Tensor('bert/pooler/dense/bias', 'bert/pooler/dense/bias', 'bert.pooler.dense.bias', 'H'),
))
PREDICTIONS = Part('cls/predictions/', (
    Tensor('cls/predictions/transform/dense/kernel', 'cls/predictions/transform/dense/kernel',
           'cls.predictions.transform.dense.weight', 'H,H'),
    Tensor('cls/predictions/transform/dense/bias', 'cls/predictions/transform/dense/bias',
           'cls.predictions.transform.dense.bias', 'H'),
    Tensor('cls/predictions/transform/LayerNorm/scale', 'cls/predictions/transform/LayerNorm/gamma',
           'cls.predictions.transform.LayerNorm.weight', 'H'),
    Tensor('cls/predictions/transform/LayerNorm/bias', 'cls/predictions/transform/LayerNorm/beta',
           'cls.predictions.transform.LayerNorm.bias', 'H'),
    Tensor('cls/predictions/output_bias', 'cls/predictions/output_bias',
           'cls.predictions.bias', 'V'),
))
SEQ_RELATIONSHIP = Part('cls/seq_relationship/', (
    Tensor('cls/seq_relationship/kernel', 'cls/seq_relationship/output_weights',
           'cls.seq_relationship.weight', 'H,2'),
    Tensor('cls/seq_relationship/bias', 'cls/seq_relationship/output_bias',
           'cls.seq_relationship.bias', '2'),
))
SPAN = Part('cls/squad/', (
    Tensor('cls/squad/kernel', 'cls/squad/output_weights', 'qa_outputs.weight', 'H,2'),
    Tensor('cls/squad/bias', 'cls/squad/output_bias', 'qa_outputs.bias', '2'),
))
CLASSIFIER = Part('classifier/', (
    Tensor('classifier/kernel', 'output_weights', 'classifier.weight', 'H,L'),
    Tensor('classifier/bias', 'output_bias', 'classifier.bias', 'L'),
))
PARTS = (POOLER, PREDICTIONS, SEQ_RELATIONSHIP, SPAN, CLASSIFIER)


@dataclasses.dataclass(frozen=True)
class Head:
    """A kind of head.

    Attributes:
      name: in `config.json`, and wherever a head is named.
      title: for messages.
      classes: Hugging Face's classes with this head, each with its parts beside embeddings and
        layers; a model is written as the first whose parts are all there. None: its parameters
        have no place in any format, and stay in the run.
      labelled: whether its outputs have names.
      problem_type: what Hugging Face's config says of a class that several heads share.
    """

    name: str
    title: str
    classes: Mapping[str, tuple[Part, ...]]
    labelled: bool = False
    problem_type: str = ''

    @property
    def own(self) -> tuple[Part, ...]:
        """The parts that make it this head."""
        found = {part: None for parts in self.classes.values() for part in parts}
        return tuple(part for part in found if part is not POOLER)

    @property
    def pooled(self) -> bool:
        """Whether it cannot do without the pooler."""
        return bool(self.own) and all(POOLER in parts for parts in self.classes.values())

    @property
    def portable(self) -> bool:
        """Whether weights with this head can be carried to other formats."""
        return bool(self.classes)


_SEQUENCE = {'BertForSequenceClassification': (POOLER, CLASSIFIER)}

HEADS: Mapping[str, Head] = {head.name: head for head in (
    Head('', 'no head', {'BertModel': (POOLER,)}),
    Head('pretraining', 'a pre-training head', {
        'BertForPreTraining': (POOLER, PREDICTIONS, SEQ_RELATIONSHIP),
        'BertForMaskedLM': (PREDICTIONS,),
        'BertForNextSentencePrediction': (POOLER, SEQ_RELATIONSHIP),
    }),
    Head('classification', 'a classification head', _SEQUENCE, True,
         'single_label_classification'),
    Head('regression', 'a regression head', _SEQUENCE, False, 'regression'),
    Head('multi_label', 'a multi-label head', _SEQUENCE, True, 'multi_label_classification'),
    Head('multiple_choice', 'a multiple-choice head', {
        'BertForMultipleChoice': (POOLER, CLASSIFIER),
    }),
    Head('token_classification', 'a token-classification head', {
        'BertForTokenClassification': (CLASSIFIER,),
    }, True),
    Head('question_answering', 'a question-answering head', {
        'BertForQuestionAnswering': (SPAN,),
    }),
    Head('feature_tagger', 'a BiLSTM on features of a frozen encoder', {}, True),
)}


def part_of(name: str) -> Part | None:
    """The part that a parameter belongs to; None for embeddings and layers."""
    return next((part for part in PARTS if name.startswith(part.prefix)), None)
