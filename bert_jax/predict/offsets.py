"""Word pieces with the characters of the text that they stand for."""

from __future__ import annotations

from typing import Any, NamedTuple

import sentencepiece

from bert_jax.text.sentencepiece import SentencePieceTokenizer
from bert_jax.text.vocab import CONTINUATION
from bert_jax.text.wordpiece import WordPieceTokenizer, basic_tokens, raw_words


class Piece(NamedTuple):
    """A word piece: its id, and the characters text[begin:end] that it stands for."""

    id: int
    begin: int
    end: int


def pieces_of(tokenizer: WordPieceTokenizer | SentencePieceTokenizer, text: str) -> list[Piece]:
    """The pieces of `tokenizer.encode(text)`, each with its place in `text`.

    A combining mark that the tokenizer drops belongs to the piece before it.
    """
    if isinstance(tokenizer, SentencePieceTokenizer):
        return _sentencepieces(tokenizer, text)
    pieces = []
    at = 0
    for word in raw_words(text):
        at = text.index(word, at)
        pieces += [
            Piece(i, at + begin, at + end) for i, begin, end in _wordpieces(tokenizer, word)
        ]
        at += len(word)
    return pieces


def _wordpieces(tokenizer: WordPieceTokenizer, word: str) -> list[Piece]:
    """Pieces of a run of characters without white space.

    Cleaning, lower-casing and stripping accents act on one character at a time as far as the
    *number* of characters goes (which capital sigma becomes which small one depends on its
    neighbours, but it becomes one). So character by character it is known which of the text makes
    which of the tokens.
    """
    owners = [
        i for i, char in enumerate(word) for _ in ''.join(basic_tokens(char, tokenizer.lowercase))
    ]
    tokens = basic_tokens(word, tokenizer.lowercase)
    assert len(owners) == sum(map(len, tokens)), word
    owners.append(len(word))
    found = []
    at = 0
    for token in tokens:
        ids = tokenizer.pieces(token)
        for number, i in enumerate(ids):
            if ids == [tokenizer.vocab.unk_id]:
                length = len(token)
            else:
                length = len(tokenizer.vocab.tokens[i]) - (len(CONTINUATION) if number else 0)
            last = owners[at + length - 1]
            found.append(Piece(i, owners[at], max(last + 1, owners[at + length])))
            at += length
    return found


def _sentencepieces(tokenizer: SentencePieceTokenizer, text: str) -> list[Piece]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    mapping: Any = processor.encode(text, out_type='offset_mapping')
    pieces = []
    for i, (begin, end) in zip(mapping['ids'], mapping['offsets'], strict=True):
        spaces = len(text[begin:end]) - len(text[begin:end].lstrip())  # before the word
        pieces.append(Piece(i, begin + spaces, end))
    return pieces
