"""A SentencePiece model as a BERT tokenizer, for vocabularies trained elsewhere."""

import functools
import itertools
import re
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
# Signs of Chinese and Japanese, which stand in texts without spaces around them.
_CHINESE_JAPANESE = (
    '\u2e80-\u312f\u31a0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff9f'
    '\U00020000-\U0003ffff')
_BETWEEN_SENTENCES = re.compile(f'[{_CHINESE_JAPANESE}]')
# Thai, Lao, Burmese and Khmer have spaces between sentences and none between words.
_BETWEEN_WORDS = re.compile(f'[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff{_CHINESE_JAPANESE}]')


class SentencePieceTokenizer:
    """Splits text into the pieces of a SentencePiece model, after the model's own normalizer.

    Special tokens should be control symbols: user-defined symbols are recognised in the text, so
    that a literal `[MASK]` in it becomes the special token.

    Attributes:
      vocab: the pieces; one continues a word unless it begins with U+2581 or is special.
      model: the serialized model.
      before_word: what `joinable` puts before a word with a space before it: the mark of a word,
        or nothing, if the model puts that before each text or knows no spaces.
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
        self.before_word = self._find_before_word(source)

    def _find_before_word(self, source: str) -> str:
        """`before_word`; models need one that were trained with add_dummy_prefix=False.

        Raises:
          InputError: the model puts the mark of a word behind it.
        """
        word = ''.join(self._processor.EncodeAsPieces('a'))
        if word.endswith(WORD_START) and not word.startswith(WORD_START):
            raise InputError(f'{source} puts the mark of a word behind it, and before it is what '
                             'can be read: train it without treat_whitespace_as_suffix')
        knows_spaces = any(WORD_START in piece for piece in self.vocab.tokens)
        return WORD_START if knows_spaces and not word.startswith(WORD_START) else ''

    @functools.cached_property
    def _has_cut_words(self) -> bool:
        """Whether the model was trained on Chinese or Japanese that was cut into words by spaces.

        Then its words have spaces between them as others have. Of its pieces of several signs,
        about half begin with one, each word and its parts; else few do, as those behind Latin
        words.
        """
        several = re.compile(f'{WORD_START}?{_BETWEEN_SENTENCES.pattern}{{2,}}')
        found = [piece for piece in self.vocab.tokens if several.fullmatch(piece)]
        return 4 * sum(piece.startswith(WORD_START) for piece in found) > len(found)

    @functools.cached_property
    def _word(self) -> str:
        """A word of one piece, which joins with no space behind it.

        An unknown one would, with unknown words.
        """
        with_space = '\n'.join(piece for piece in self.vocab.tokens if WORD_START in piece)
        for piece_id, piece in enumerate(self.vocab.tokens):
            is_known = self._processor.EncodeAsIds(piece) == [piece_id] != [self.vocab.unk_id]
            if is_known and piece[-1] + WORD_START not in with_space:
                return piece
        return 'a'

    @functools.cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits that change with the model."""
        # Stores of older versions lack the mark before sentences, some of it.
        cut = b'cut ' if self.before_word and self._has_cut_words else b''
        return digest(b'sentencepiece ' + cut + self.before_word.encode() + self.model)

    def encode(self, text: str) -> list[int]:
        """The ids of the pieces of `text`, without [CLS] and [SEP]."""
        if self.before_word and text.startswith(self.before_word):  # it is of `joinable`
            word = text.removeprefix(self.before_word)
            return self._processor.EncodeAsIds(f'{self._word} {word}')[1:]
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
        knows by it those with a space before them. Beside Chinese and Japanese there is none.
        """
        return self._marked(parts, _BETWEEN_SENTENCES)

    def _marked(self, parts: Sequence[str], unspaced: re.Pattern[str] | None) -> Sequence[str]:
        """Parts of a text, `before_word` before each but the first.

        Args:
          parts: words or sentences.
          unspaced: signs that have no space beside them, if there are some.
        """
        if not self.before_word:
            return parts
        if self._has_cut_words:
            unspaced = None
        marked = list(parts[:1])
        for last, part in itertools.pairwise(parts):
            joins = unspaced and (unspaced.match(last[-1:]) or unspaced.match(part))
            marked.append(part if joins or not part else self.before_word + part)
        return marked

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """The ids of each word of a text, which has spaces between them if its script has."""
        return self.encode_batch(self._marked(words, _BETWEEN_WORDS))

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
        ids_of_words = self.encode_batch(self._marked([word for word, _ in words], None))
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
    """The name of a special token in a vocabulary: `name`, or `other` if it has only that."""
    if name not in pieces and other in pieces:
        return other
    return name
