"""A SentencePiece model as a BERT tokenizer, for vocabularies trained elsewhere."""

import functools
import unicodedata
from collections.abc import Sequence

import sentencepiece

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.hashing import digest
from bert_jax.text.offsets import NormalizedWord, moved, place_pieces
from bert_jax.text.tokenizer import Encoding, Place, Split, Tokens, joined
from bert_jax.text.vocab import CLS, MASK, PAD, SEP, UNK, Vocab
from bert_jax.text.wordpiece import ORIGINAL, raw_words_with_places

WORD_START = '\u2581'  # "lower one eighth block" stands for the space before a word
_BEFORE = 'a'  # a word before others


class SentencePieceTokenizer:
    """Splits text into the pieces of a SentencePiece model, after the model's own normalizer.

    Special tokens should be control symbols: user-defined symbols are recognised in the text, so
    that a literal `[MASK]` in it becomes the special token.

    Attributes:
      vocab: the pieces; one continues a word unless it begins with U+2581 or is special.
      model: the serialized model.
    """

    switches = ORIGINAL  # a model has its own normalizer
    lowercase = None
    algorithm = 'sentencepiece'

    def __init__(self, model: bytes, source: str = 'SentencePiece model'):
        """Reads a serialized model; InputError if it is damaged or lacks a special token."""
        self.model = model
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
        except (RuntimeError, OSError):
            raise InputError(f'{source}: not a SentencePiece model, or damaged') from None
        pieces = [self._processor.IdToPiece(i) for i in range(self._processor.GetPieceSize())]
        if CLS not in pieces and '<s>' in pieces:
            raise InputError(
                f'{source} has <s> in the place of [CLS], and models with such files count its '
                'pieces in an order of their own: write the tokenizer.json beside it, by '
                'AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) of transformers')
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
        self._before_word = self._find_before_word(source)
        self._num_before = len(self._processor.EncodeAsIds(_BEFORE))

    def _find_before_word(self, source: str) -> str:
        """What `joinable` puts before a word that is not a text's first: its mark, or nothing.

        Models put the mark before each text, unless they were trained with add_dummy_prefix=False.

        Raises:
          InputError: they put it behind words.
        """
        word = ''.join(self._processor.EncodeAsPieces(_BEFORE))
        if word.endswith(WORD_START) and not word.startswith(WORD_START):
            raise InputError(f'{source} puts the mark of a word behind it, and before it is what '
                             'can be read: train it without treat_whitespace_as_suffix')
        return '' if word.startswith(WORD_START) else WORD_START

    @functools.cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits that change with the model."""
        # Stores of older versions lack the mark before sentences.
        return digest(b'sentencepiece ' + self._before_word.encode() + self.model)

    def encode(self, text: str) -> list[int]:
        """The ids of the pieces of `text`, without [CLS] and [SEP]."""
        if self._before_word and text.startswith(self._before_word):  # it is of `joinable`
            ids = self._processor.EncodeAsIds(f'{_BEFORE} {text.removeprefix(self._before_word)}')
            return ids[self._num_before :]
        return self._processor.EncodeAsIds(text)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of many texts."""
        return [self.encode(text) for text in texts]

    def encode_joined(self, texts: Sequence[str]) -> Tokens:
        """`encode` of many texts, one after the other."""
        return joined(self.encode_batch(texts))

    def joinable(self, parts: Sequence[str]) -> Sequence[str]:
        """The words or sentences of a text, each so that its ids are those that it has there.

        They are as they are, as a model puts the mark of a word before each text; else `encode`
        knows all but the first by it.
        """
        if not self._before_word:
            return parts
        first = list(parts[:1])
        return first + [self._before_word + part if part else part for part in parts[1:]]

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """The ids of each word of a text."""
        return self.encode_batch(self.joinable(words))

    def encode_with_places(self, text: str) -> Encoding:
        """The pieces of a text and their characters, as far as NFKC explains them.

        Pieces that join words, which a model may have, are not found: words are encoded one by one.
        """
        split = self.split(text)
        return Encoding(split.ids, split.places)

    def split(self, text: str) -> Split:
        """The pieces of a text, of which white space separates the parts."""
        ids: list[int] = []
        places: list[Place] = []
        parts: list[int | None] = []
        words = raw_words_with_places(text)
        ids_of_words = self.encode_words([word for word, _ in words])
        for number, ((word, begin), of_word) in enumerate(zip(words, ids_of_words, strict=True)):
            ids += of_word
            in_word = place_pieces(_normalized(word), self._lengths(of_word))
            places += moved(in_word, begin)
            parts += [number] * len(of_word)
        return Split(ids, places, parts, places)

    def _lengths(self, ids: Sequence[int]) -> list[int | None]:
        """The characters of each piece; None of [UNK]."""
        lengths: list[int | None] = []
        for piece_id in ids:
            is_unknown = piece_id == self.vocab.unk_id
            lengths.append(None if is_unknown else len(self.shown(piece_id)))
        return lengths

    def shown(self, piece_id: int) -> str:
        """A piece without the mark of a word's beginning."""
        return self.vocab.tokens[piece_id].removeprefix(WORD_START)


def _normalized(word: str) -> NormalizedWord:
    """A word as models normalize it, as a rule: by NFKC."""
    forms = [unicodedata.normalize('NFKC', char).strip() for char in word]
    return NormalizedWord(word, forms, [''.join(forms)])


def _known_as(pieces: Sequence[str], name: str, other: str) -> str:
    """What a vocabulary calls a special token: `name`, or `other` if it has only that."""
    if name not in pieces and other in pieces:
        return other
    return name
