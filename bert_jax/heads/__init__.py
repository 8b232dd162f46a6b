"""The heads that a model can have: one file a kind, each class with all that a head is.

That is its parameters and their names in files, what it computes, its loss, how its outputs are
read. A head of one's own is a class and a line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bert_jax.heads.base import POOLER, Head, Part
from bert_jax.heads.classification import (
    CLASSIFIER,
    Classification,
    MultiLabel,
    MultipleChoice,
    Regression,
)
from bert_jax.heads.pretraining import PREDICTIONS, SEQ_RELATIONSHIP, Pretraining
from bert_jax.heads.span import SPAN, QuestionAnswering
from bert_jax.heads.tagging import FeatureTagging, Tagging

HEADS: Mapping[str, type[Any]] = {head.name: head for head in (
    Head, Pretraining, Classification, Regression, MultiLabel, MultipleChoice, Tagging,
    QuestionAnswering, FeatureTagging,
)}
PARTS = (POOLER, PREDICTIONS, SEQ_RELATIONSHIP, SPAN, CLASSIFIER)


def part_of(name: str) -> Part | None:
    """The part that a parameter belongs to; None for embeddings and layers."""
    return next((part for part in PARTS if name.startswith(part.prefix)), None)
