"""The heads of a model, one class each.

Each class defines the head's parameters and their names in files, its module, its loss and the
decoding of its outputs. To add a head, write its class and add it to `HEADS`.
"""

from collections.abc import Mapping
from typing import Any

from bert_jax.heads.base import Head
from bert_jax.heads.classification import Classification, MultiLabel, MultipleChoice, Regression
from bert_jax.heads.pretraining import Pretraining
from bert_jax.heads.replaced_tokens import ReplacedTokens
from bert_jax.heads.retrieval import LOG_SCALE
from bert_jax.heads.tensors import POOLER, Part
from bert_jax.heads.tokens import FeatureTagging, QuestionAnswering, Tagging

_CLASSES: tuple[type[Any], ...] = (
    Head,
    Pretraining,
    ReplacedTokens,
    Classification,
    Regression,
    MultiLabel,
    MultipleChoice,
    Tagging,
    QuestionAnswering,
    FeatureTagging,
)
HEADS: Mapping[str, type[Any]] = {head.name: head for head in _CLASSES}
# Names of parameters of losses, which no use of a trained model needs.
ONLY_TRAINED = frozenset({LOG_SCALE})


def _distinct_parts() -> tuple[Part, ...]:
    """The pooler and the parts that heads consist of, in the order of `HEADS`."""
    distinct: dict[Part, None] = {POOLER: None}
    for head in HEADS.values():
        distinct |= dict.fromkeys(head.parts)
    return tuple(distinct)


PARTS = _distinct_parts()


def part_of(name: str) -> Part | None:
    """The part of a head that the named parameter belongs to; None for embeddings and layers."""
    for part in PARTS:
        if name.startswith(part.prefix):
            return part
    return None
