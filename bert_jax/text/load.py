"""Which tokenizer a vocabulary file asks for."""

from __future__ import annotations

import os
from typing import Protocol

from bert_jax.text.sentencepiece import SentencePieceTokenizer
from bert_jax.text.vocab import Vocab
from bert_jax.text.wordpiece import WordPieceTokenizer


class Tokenizer(Protocol):
    """What the rest of the program needs of a tokenizer."""

    vocab: Vocab

    @property
    def fingerprint(self) -> str:
        """Changes with whatever may change the ids of a text."""

    def tokenize(self, text: str) -> list[str]:
        """The pieces of `text`, without [CLS] and [SEP]."""

    def encode(self, text: str) -> list[int]:
        """The ids of the pieces of `text`, without [CLS] and [SEP]."""


def load_tokenizer(
    path: str | os.PathLike[str], lowercase: bool
) -> WordPieceTokenizer | SentencePieceTokenizer:
    """The tokenizer of a vocabulary file.

    Args:
        path: a SentencePiece model if it ends in `.model`, else a WordPiece vocabulary.
        lowercase: for WordPiece; a SentencePiece model has its own normalizer.

    Raises:
        InputError: the file cannot be read or lacks a special token.
    """
    if os.fspath(path).endswith(".model"):
        return SentencePieceTokenizer.from_file(path)
    return WordPieceTokenizer.from_file(path, lowercase)
