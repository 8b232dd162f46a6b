"""The protocol of all kinds of tokenizers, on which the rest of the project relies.

A kind is one file of this folder, a row of `text/kinds.py` with the file that it reads.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from bert_jax.text.vocab import Vocab, unused_row

Place = tuple[int, int]  # first and last (exclusive) character
Tokens = tuple[np.ndarray, np.ndarray]  # ids of all texts [T] int32, tokens of each [n] int64


def joined(ids: Sequence[Sequence[int]]) -> Tokens:
    """Joins the ids of many texts."""
    counts = np.fromiter(map(len, ids), np.int64, len(ids))
    flat = itertools.chain.from_iterable(ids)
    return np.fromiter(flat, np.int32, int(counts.sum())), counts


class Encoding(NamedTuple):
    """A text in pieces.

    Attributes:
      ids: of the pieces.
      places: the characters of the text that each piece stands for.
    """

    ids: list[int]
    places: list[Place]


class Split(NamedTuple):
    """A text in parts and in pieces.

    Attributes:
      ids, places: as in `Encoding`.
      parts: what the text was split into before it was split into pieces: for each piece the
        number of its part, None of an added token. Empty where `vocab.is_continuation` tells.
      offsets: the places as transformers has them, with white space and marks that belong to a
        piece.
    """

    ids: list[int]
    places: list[Place]
    parts: Sequence[int | None]
    offsets: Sequence[Place]


class Tokenizer(Protocol):
    """Splits texts into the pieces of a vocabulary; no method adds [CLS] or [SEP].

    Attributes:
      vocab: the pieces, with the ids of the special tokens by their role, and how texts become a
        sequence (`Vocab.frame`).
      lowercase: whether text is lower-cased before it is split; None: a normalizer of the
        tokenizer's own decides.
      algorithm: what splits words into pieces, in the words of `config.data.tokenizer`:
        'wordpiece', 'sentencepiece', 'bpe', 'unigram', ...
    """

    @property
    def vocab(self) -> Vocab:
        """See the class."""

    @property
    def lowercase(self) -> bool | None:
        """See the class."""

    @property
    def algorithm(self) -> str:
        """See the class."""

    @property
    def fingerprint(self) -> str:
        """32 hexadecimal digits that change with whatever may change the ids of a text."""

    def encode(self, text: str) -> list[int]:
        """The ids of the pieces of a text."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of many texts."""

    def encode_joined(self, texts: Sequence[str]) -> Tokens:
        """`encode` of many texts, one after the other: see `joined`."""

    def joinable(self, parts: Sequence[str]) -> Sequence[str]:
        """The words or sentences of a text, each so that its ids are those that it has there.

        In byte-level BPE, all but the first need the space before them; elsewhere nothing changes.
        """

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """The ids of each word of a text, as in the text that joins the words with spaces.

        A word without pieces, such as one of control characters, has none here either.
        """

    def encode_with_places(self, text: str) -> Encoding:
        """The pieces of a text, and the characters that each stands for."""

    def shown(self, piece_id: int) -> str:
        """The readable form of a piece, without the marks of where words begin or go on.

        Whether it continues the word before it is in `vocab.is_continuation`.
        """


def name_of(tokenizer: Tokenizer, piece_id: int) -> str:
    """The name of a piece in results: its token in the vocabulary, if that can be read.

    Byte-level vocabularies spell all characters but ASCII by others: there the name is the readable
    form. An embedding may have more rows than the vocabulary has tokens.
    """
    if piece_id >= len(tokenizer.vocab):
        return unused_row(piece_id)
    token = tokenizer.vocab.tokens[piece_id]
    shown = tokenizer.shown(piece_id)
    if shown in token or '\ufffd' in shown:
        return token
    return shown
