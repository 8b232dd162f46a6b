"""A model as it lies on disk, with its vocabulary."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path
from bert_jax.text.added import is_unused
from bert_jax.text.load import load_tokenizer
from bert_jax.text.vocab import Vocab


@dataclasses.dataclass(frozen=True, eq=False)
class Weights:
    """A model as it lies on disk.

    Attributes:
      params: float32 arrays by our names (`weights.names`): unrolled layers, unpadded vocabulary.
      model: every field of `BertConfig`.
      head: one of `heads.HEADS`; '' is an encoder alone, 'pretraining' masked LM, next sentence or
        both, as `params` has them.
      labels: by id, of heads whose outputs have names.
      vocab_file: a vocab.txt or a SentencePiece .model; None where there is none.
      lowercase: whether text is lower-cased before WordPiece.
      unused: tensors of the files that have no place here.
      source: what was read and where, for messages.
      inference: how the run made its predictions: `max_seq_length`, `doc_stride`,
        `max_query_length`, `null_threshold`, `windows`, `features`, as far as its task has them.
    """

    params: dict[str, np.ndarray]
    model: dict[str, Any]
    head: str
    labels: tuple[str, ...]
    vocab_file: Path | None
    lowercase: bool
    unused: tuple[str, ...]
    source: str
    inference: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def num_labels(self) -> int:
        """Outputs of the classifier; 0 where there is none."""
        return len(self.params['classifier/bias']) if 'classifier/bias' in self.params else 0

    def has(self, part: str) -> bool:
        """Whether a part of the model is there, such as 'bert/pooler' or 'cls/predictions'."""
        return any(name.startswith(part.rstrip('/') + '/') for name in self.params)


def read_vocabulary(path: Path, lowercase: bool) -> Vocab:
    """A vocab.txt or a SentencePiece model; InputError where it is none."""
    return load_tokenizer(path, lowercase).vocab


def looks_lowercase(vocab: Vocab) -> bool:
    """Whether no token but the bracketed special ones has an upper-case letter."""
    return not any(
        token != token.lower() for token in vocab.tokens
        if not (token.startswith('[') and token.endswith(']'))
    )


def whole_vocabulary(weights: Weights) -> list[str]:
    """A token for each row of the embedding of weights that have a WordPiece vocabulary.

    A run may have more rows than its vocabulary has tokens; rows past them get names that occur in
    no text.
    """
    assert weights.vocab_file is not None
    tokens = list(read_vocabulary(weights.vocab_file, weights.lowercase).tokens)
    return tokens + [f'[unused row {i}]' for i in range(len(tokens), weights.model['vocab_size'])]


def check_vocabulary(vocab: Vocab, vocab_file: Path, vocab_size: int) -> None:
    """Refuses a vocabulary of another size than the embedding."""
    if len(vocab) != vocab_size:
        more = vocab_size - len(vocab)
        remedy = (
            f'add {more} lines such as [unused-1] at its end if the embedding was filled up'
            if more > 0 else 'put the vocabulary beside it that belongs to it'
        )
        raise InputError(
            f'{vocab_file} has {len(vocab)} tokens, the embedding has {vocab_size} rows: {remedy}'
        )


def check_order(vocab: Vocab, vocab_file: Path, weights: Weights) -> None:
    """Refuses a vocabulary in another order than that which the weights bring."""
    if weights.vocab_file is None:
        return
    theirs = read_vocabulary(weights.vocab_file, weights.lowercase).tokens
    for i, (token, own) in enumerate(zip(vocab.tokens, theirs, strict=False)):
        if token != own and not is_unused(own):
            raise InputError(
                f'{vocab_file}: line {i + 1} is {token!r}, and {own!r} in {weights.vocab_file}, '
                f'the vocabulary of {weights.source}: leave it out to take that one'
            )
