"""Which tokenizer a vocabulary file asks for."""

from __future__ import annotations

import os
from typing import Protocol

import numpy as np

from bert_jax.runtime.errors import InputError
from bert_jax.text.sentencepiece import SentencePieceTokenizer
from bert_jax.text.vocab import SPECIAL_TOKENS, Vocab
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
    tokenizer = WordPieceTokenizer.from_file(path, lowercase)
    if len(tokenizer.vocab) <= len(SPECIAL_TOKENS):
        raise InputError(f"{path}: it holds the special tokens alone: name a whole vocabulary")
    return tokenizer


def check_known(
    ids: np.ndarray, vocab: Vocab, text: str, vocab_file: str | os.PathLike[str] | None
) -> None:
    """Refuses a text of whose words a vocabulary knows hardly one: nothing could be learned of it.

    Args:
        ids: of the text, or of a part of it; with or without [CLS] and [SEP].
        vocab: they are of.
        text: names it, for the message.
        vocab_file: likewise.

    Raises:
        InputError: there are no words, or more than half of the pieces are [UNK].
    """
    words = ids[(ids != vocab.cls_id) & (ids != vocab.sep_id) & (ids != vocab.pad_id)]
    if not len(words):
        raise InputError(f"{text} holds no text: all of it is empty")
    unknown = float(np.mean(words == vocab.unk_id))
    if unknown > 0.5:
        raise InputError(
            f"{text}: {100 * unknown:.1f} % of its pieces are [UNK] in {vocab_file}, so there is "
            "nothing to learn from: set config.data.vocab_file to a vocabulary of its language "
            "(and config.data.lowercase as it was made)"
        )
