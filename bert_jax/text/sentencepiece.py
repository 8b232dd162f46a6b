"""A SentencePiece model as a BERT tokenizer, for vocabularies trained elsewhere."""

import functools
from collections.abc import Sequence

import sentencepiece

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import digest
from bert_jax.text.vocab import CLS, MASK, PAD, SEP, UNK, Vocab
from bert_jax.text.wordpiece import ORIGINAL

WORD_START = '\u2581'  # "lower one eighth block" stands for the space before a word


class SentencePieceTokenizer:
    """Splits text into the pieces of a SentencePiece model, after the model's own normalizer.

    Special tokens should be control symbols: user-defined symbols are recognised in the text, so
    that a literal `[MASK]` in it becomes the special token.

    Attributes:
      vocab: the pieces; one continues a word unless it begins with U+2581 or is special.
      model: the serialized model.
    """

    switches = ORIGINAL  # a model has its own normalizer

    def __init__(self, model: bytes, source: str = 'SentencePiece model'):
        """Reads a serialized model; InputError if it is damaged or lacks a special token."""
        self.model = model
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
        except (RuntimeError, OSError):
            raise InputError(f'{source}: not a SentencePiece model, or damaged') from None
        pieces = [self._processor.IdToPiece(i) for i in range(self._processor.GetPieceSize())]
        pad = _known_as(pieces, PAD, '<pad>')
        unk = _known_as(pieces, UNK, '<unk>')
        specials = (pad, unk, CLS, SEP, MASK)
        is_continuation = []
        for i, piece in enumerate(pieces):
            starts_word = piece.startswith(WORD_START)
            is_special = (
                piece in specials or self._processor.IsControl(i) or self._processor.IsUnknown(i))
            is_continuation.append(not starts_word and not is_special)
        self.vocab = Vocab.from_tokens(
            pieces, specials=specials, source=source, is_continuation=is_continuation)

    @functools.cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits that change with the model."""
        return digest(b'sentencepiece ' + self.model)

    def encode(self, text: str) -> list[int]:
        """The ids of the pieces of `text`, without [CLS] and [SEP]."""
        return self._processor.EncodeAsIds(text)


def _known_as(pieces: Sequence[str], name: str, other: str) -> str:
    """What a vocabulary calls a special token: `name`, or `other` if it has only that."""
    if name not in pieces and other in pieces:
        return other
    return name
