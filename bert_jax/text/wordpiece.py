"""BERT's tokenizer in plain Python: the reference that every faster path must equal.

Behaves as `FullTokenizer` of github.com/google-research/bert (tokenization.py) token for token:
clean, put spaces around CJK ideographs, lower-case and strip accents where the vocabulary is
uncased, split at punctuation, then greedy longest-match WordPiece. Unlike Hugging Face, words of
up to 200 characters are matched (not 100), and special tokens in the text are ordinary text, except
those that somebody added to the tokenizer (`Switches.added_tokens`).

Unicode properties come from `unicodedata`, whose version is part of the fingerprint.
"""

import dataclasses
import functools
import os
import re
import string
import unicodedata
from collections.abc import Callable, Sequence
from typing import Self

from bert_jax.runtime.errors import tell_once
from bert_jax.runtime.hashing import digest
from bert_jax.text.added import AddedToken, Finder, with_ids
from bert_jax.text.offsets import NormalizedWord, moved, place_pieces
from bert_jax.text.tokenizer import Encoding, Place, Tokenizer, Tokens, joined
from bert_jax.text.vocab import CONTINUATION, Vocab
from bert_jax.text.vocab_files import read_vocab

MAX_CHARS_PER_WORD = 200

# The characters that separate words. Cleaning turns tab, newline, carriage return and category Zs
# into spaces; U+2028 and U+2029 survive it and are split at by `str.split`. The other characters
# that `str.isspace` accepts (\v, \f, \x1c to \x1f, \x85) are control characters, which cleaning
# removes, joining the text on both sides: hence no plain `str.split` on raw text. (All of
# category Zs is in the basic plane.)
_SPACE_SEPARATORS = frozenset(
    char for char in map(chr, range(0x10000)) if unicodedata.category(char) == 'Zs')
WHITESPACE = frozenset('\t\n\r\u2028\u2029') | _SPACE_SEPARATORS
_WORD = re.compile(f"[^{re.escape(''.join(sorted(WHITESPACE)))}]+")

# "CJK Unified Ideographs" and its extensions, as listed in the original: no kana, no Hangul.
_CJK_RANGES = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)


def raw_words(text: str) -> list[str]:
    """The runs of characters between white space, unchanged."""
    return _WORD.findall(text)


def raw_words_with_places(text: str) -> list[tuple[str, int]]:
    """`raw_words`, each with the place of its first character in the text."""
    return [(match[0], match.start()) for match in _WORD.finditer(text)]


def _cleaned(char: str) -> str:
    """The character; '' for NUL, the replacement character, and control and format characters."""
    if char in '\0\ufffd' or unicodedata.category(char) in ('Cc', 'Cf'):
        return ''
    return char


def _cleaned_apart(char: str) -> str:
    """`_cleaned`, with spaces around an ideograph."""
    if is_cjk(char):
        return f' {char} '
    return _cleaned(char)


def _spaced(char: str) -> str:
    """`_cleaned`, with plain spaces for all white space."""
    if char in WHITESPACE:
        return ' '
    return _cleaned(char)


def _spaced_apart(char: str) -> str:
    """`_spaced`, with spaces around an ideograph."""
    if is_cjk(char):
        return f' {char} '
    return _spaced(char)


def _without_accent(char: str) -> str:
    """The character; '' for a combining mark."""
    return '' if unicodedata.category(char) == 'Mn' else char


def _punctuation_apart(char: str) -> str:
    """The character, with spaces around a punctuation mark."""
    return f' {char} ' if is_punctuation(char) else char


def has_words(text: str) -> bool:
    """Whether anything but white space is left of a text once it is cleaned."""
    return any(char not in WHITESPACE and _cleaned(char) for char in text)


def is_cjk(char: str) -> bool:
    """Whether it is an ideograph, which BERT makes a word by itself."""
    return any(low <= ord(char) <= high for low, high in _CJK_RANGES)


def is_punctuation(char: str) -> bool:
    """Whether it is in category P*, or an ASCII symbol (such as `$`, `+` or `^`)."""
    return char in string.punctuation or unicodedata.category(char).startswith('P')


class _Table(dict[int, str]):
    """A table for `str.translate` whose entries are computed on first use."""

    def __init__(self, translate: Callable[[str], str]):
        self._translate = translate

    def __missing__(self, code: int) -> str:
        result = self._translate(chr(code))
        if len(self) < 1 << 16:
            self[code] = result
        return result


_CLEANED = _Table(_cleaned)
_CLEANED_APART = _Table(_cleaned_apart)
_SPACED = _Table(_spaced)
_SPACED_APART = _Table(_spaced_apart)
_WITHOUT_ACCENTS = _Table(_without_accent)
_PUNCTUATION_APART = _Table(_punctuation_apart)


@dataclasses.dataclass(frozen=True)
class Switches:
    """Switches of Hugging Face's BertTokenizer; the defaults are the original's behaviour.

    Their names and meanings are those of `tokenizer_config.json`.

    Attributes:
      strip_accents: whether accents are stripped; None: if text is lower-cased.
      tokenize_chinese_chars: whether an ideograph is a word by itself.
      do_basic_tokenize: whether text is cleaned, lower-cased and split at punctuation at all.
      never_split: words that are left as they are and become one piece or [UNK].
      truncation_side: the end of a text at which it is cut, if a model cuts as transformers does.
      split_special_tokens: whether special tokens among the added ones are not found, but split.
      added_tokens: tokens that are found in the text before anything else is done.
    """

    strip_accents: bool | None = None
    tokenize_chinese_chars: bool = True
    do_basic_tokenize: bool = True
    never_split: tuple[str, ...] = ()
    # These have no place in `repr`, which is part of the fingerprints of older stores.
    truncation_side: str = dataclasses.field(default='right', repr=False)
    split_special_tokens: bool = dataclasses.field(default=False, repr=False)
    added_tokens: tuple[AddedToken, ...] = dataclasses.field(default=(), repr=False)

    def strips_accents(self, lowercase: bool) -> bool:
        """Whether accents are stripped from text that is, or is not, lower-cased."""
        if self.strip_accents is None:
            return lowercase
        return self.strip_accents


ORIGINAL = Switches()


def _split_word(raw_word: str, lowercase: bool, switches: Switches) -> list[str]:
    """Basic tokens of one run of characters without white space."""
    if not switches.do_basic_tokenize:
        return raw_word.split()  # `str.split` knows more white space
    if raw_word.isascii() and raw_word.isalnum() and not switches.never_split:
        return [raw_word.lower() if lowercase else raw_word]
    clean = _CLEANED_APART if switches.tokenize_chinese_chars else _CLEANED
    strip = switches.strips_accents(lowercase)
    tokens = []
    # Part by part: the lower case of a final capital sigma depends on its neighbours.
    for part in raw_word.translate(clean).split():
        if part in switches.never_split:
            tokens.append(part)
            continue
        if lowercase:
            part = part.lower()
        if strip:
            part = unicodedata.normalize('NFD', part).translate(_WITHOUT_ACCENTS)
        tokens += part.translate(_PUNCTUATION_APART).split()
    return tokens


def basic_tokens(text: str, lowercase: bool = True, switches: Switches = ORIGINAL) -> list[str]:
    """Splits `text` into words and punctuation marks, before WordPiece.

    Every step acts within a run of characters between white space, so that runs can be handled
    (and cached) one by one.
    """
    return [token for word in raw_words(text) for token in _split_word(word, lowercase, switches)]


class WordPieceTokenizer:
    """Splits text into the WordPieces of a vocabulary.

    Attributes:
      vocab: the vocabulary, with the added tokens.
      word_pieces: the vocabulary that words are split into: without the added tokens, unless it
        has them itself. The ids are those of `vocab`.
      added: the added tokens with their ids.
      found_as_it_stands, found_normalized: what is looked for in a text before and after
        normalization: the added tokens as `Switches` have them, and as `normalize` makes them.
      lowercase: whether text is lower-cased and (by default) stripped of accents first.
      switches: what else is done before WordPiece.
    """

    algorithm = 'wordpiece'

    def __init__(
        self, vocab: Vocab, lowercase: bool = True, switches: Switches = ORIGINAL,
        cache_size: int = 1 << 18, vocab_name: str = '',
    ):
        """Makes a tokenizer.

        Args:
          vocab: a vocabulary with `##` marking continuations, without the added tokens.
          lowercase: true for uncased vocabularies.
          switches: how the tokenizer differs from the original's.
          cache_size: how many distinct words are cached, before the cache is cleared.
          vocab_name: what messages call the vocabulary.

        Raises:
          InputError: an added token has the id of another.
        """
        source = vocab_name or 'vocabulary'
        if switches.truncation_side == 'left':
            frame = dataclasses.replace(vocab.frame, cuts_start=True)
            vocab = dataclasses.replace(vocab, template=frame)
        self.added = with_ids(switches.added_tokens, vocab.index, source)
        self.word_pieces = vocab
        self.vocab = vocab
        if self.added:
            by_id = {number: token.content for token, number in self.added}
            self.vocab = vocab.with_tokens(by_id, source)
        self.lowercase = lowercase
        self.switches = switches
        self._cache_size = cache_size
        self._cache: dict[str, tuple[int, ...]] = {}
        self._words_with_places: dict[str, Encoding] = {}
        self._max_piece = max(map(len, vocab.tokens))
        continuations = [token for token in vocab.tokens if token.startswith(CONTINUATION)]
        self._max_continuation = max(map(len, continuations), default=2) - len(CONTINUATION)
        self._whole_words = self._ids_of_whole_words()
        self._make_finders()

    def _ids_of_whole_words(self) -> dict[str, list[int]]:
        """The id of each word that is not split."""
        if not self.switches.do_basic_tokenize:
            return {}
        index = self.vocab.index
        unknown = self.vocab.stand_in_id
        return {word: [index.get(word, unknown)] for word in self.switches.never_split}

    def _make_finders(self) -> None:
        """Makes what finds the added tokens in a text, before and after normalization."""
        as_it_stands: dict[str, tuple[AddedToken, int]] = {}
        normalized: dict[str, tuple[AddedToken, int]] = {}
        # Where two are the same after normalization, the first is found (in `tokenizers`, any).
        for token, number in reversed(self.added):
            if token.special and self.switches.split_special_tokens:
                continue
            if token.normalized:
                normalized[self.normalize(token.content)] = token, number
            else:
                as_it_stands[token.content] = token, number
        nothing = normalized.pop('', None)
        if nothing is not None:
            tell_once(f'note: the added token {nothing[0].content!r:.60} is normalized to nothing, '
                      'so no text has it')
        as_it_stands.pop('', None)
        self._as_it_stands = Finder(as_it_stands)
        self._normalized = Finder(normalized)
        self.found_as_it_stands = tuple(as_it_stands)
        self.found_normalized = tuple(normalized)

    @classmethod
    def from_file(cls, vocab_file: str | os.PathLike[str], lowercase: bool = True) -> Self:
        """A tokenizer of a vocabulary file; InputError where `read_vocab` raises it."""
        return cls(read_vocab(vocab_file), lowercase)

    @functools.cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits that change with whatever may change the ids of a text."""
        parts = [self.vocab.fingerprint, str(self.lowercase), unicodedata.unidata_version]
        if self.switches != ORIGINAL:
            parts.append(repr(self.switches))
        if self.added:
            parts.append(repr(self.added))
            if self.switches.split_special_tokens:
                parts.append('split')
        return digest(' '.join(('wordpiece', *parts)).encode())

    def tokenize(self, text: str) -> list[str]:
        """The WordPieces of `text`, without [CLS] and [SEP]; [UNK] for words not covered."""
        return [self.vocab.tokens[i] for i in self.encode(text)]

    def encode(self, text: str) -> list[int]:
        """The ids of the added tokens and the WordPieces of `text`, without [CLS] and [SEP]."""
        if not self.added:
            return self._encode_words(text)
        ids: list[int] = []
        for part, added in self._as_it_stands.split(text):
            if added is None:
                ids += self._encode_between(part)
            else:
                ids.append(added)
        return ids

    def _encode_between(self, text: str) -> list[int]:
        """The ids of text between tokens that are found as it stands."""
        normalized = self.normalize(text)
        if not self._normalized.is_in(normalized):
            return self._encode_words(text)
        ids: list[int] = []
        for part, added in self._normalized.split(normalized):
            if added is None:
                ids += self._encode_words(part)
            else:
                ids.append(added)
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of many texts."""
        return [self.encode(text) for text in texts]

    def encode_joined(self, texts: Sequence[str]) -> Tokens:
        """`encode` of many texts, one after the other."""
        return joined(self.encode_batch(texts))

    def joinable(self, parts: Sequence[str]) -> Sequence[str]:
        """The parts as they are: words are split one by one."""
        return parts

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """The ids of each word of a text."""
        return self.encode_batch(words)

    def encode_with_places(self, text: str) -> Encoding:
        """The pieces of a text, and the characters that each stands for.

        Added tokens that normalization makes appear are found within words only.
        """
        ids: list[int] = []
        places: list[Place] = []
        part_begin = 0
        for part, added in self._as_it_stands.split(text):
            if added is not None:
                ids.append(added)
                places.append((part_begin, part_begin + len(part)))
            else:
                for word, begin in raw_words_with_places(part):
                    of_word = self._encode_word_with_places(word)
                    ids += of_word.ids
                    places += moved(of_word.places, part_begin + begin)
            part_begin += len(part)
        return Encoding(ids, places)

    def _encode_word_with_places(self, word: str) -> Encoding:
        """The pieces of a word and their characters in it, computed once."""
        known = self._words_with_places.get(word)
        if known is None:
            ids = self._encode_between(word)
            known = Encoding(ids, self._places_in_word(word, ids))
            if len(self._words_with_places) >= self._cache_size:
                self._words_with_places.clear()
            self._words_with_places[word] = known
        return known

    def _places_in_word(self, word: str, ids: Sequence[int]) -> list[Place]:
        """The characters of a word that each of its pieces stands for."""
        forms = [''.join(self.split(char)) for char in word]
        lengths: list[int | None] = []
        for piece_id in ids:
            is_unknown = piece_id == self.vocab.unk_id
            lengths.append(None if is_unknown else len(self.shown(piece_id)))
        return place_pieces(NormalizedWord(word, forms, self.split(word)), lengths)

    def shown(self, piece_id: int) -> str:
        """A piece without the mark of its going on a word."""
        token = self.vocab.tokens[piece_id]
        if self.vocab.is_continuation[piece_id]:
            return token.removeprefix(CONTINUATION)
        return token

    def may_have_added(self, text: str) -> bool:
        """Whether an added token may be found in a text."""
        if self._as_it_stands.is_in(text):
            return True
        return bool(self.found_normalized) and self._normalized.is_in(self.normalize(text))

    def normalize(self, text: str) -> str:
        """`text` as it is before it is split at white space and punctuation."""
        switches = self.switches
        if not switches.do_basic_tokenize or switches.never_split:
            return text  # words are looked up as they stand
        text = text.translate(_SPACED_APART if switches.tokenize_chinese_chars else _SPACED)
        if self.lowercase:
            text = text.lower()
        if switches.strips_accents(self.lowercase):
            text = unicodedata.normalize('NFD', text).translate(_WITHOUT_ACCENTS)
        return text

    def _encode_words(self, text: str) -> list[int]:
        cache = self._cache
        ids: list[int] = []
        for word in raw_words(text):
            known = cache.get(word)
            ids += self._encode_word(word) if known is None else known
        return ids

    def _encode_word(self, raw_word: str) -> tuple[int, ...]:
        pieces: list[int] = []
        for token in _split_word(raw_word, self.lowercase, self.switches):
            pieces += self._whole_words.get(token) or self.pieces(token)
        ids = tuple(pieces)
        if len(self._cache) >= self._cache_size:
            self._cache.clear()
        self._cache[raw_word] = ids
        return ids

    def split(self, text: str) -> list[str]:
        """The words and punctuation marks of a text, to which WordPiece is applied."""
        return basic_tokens(text, self.lowercase, self.switches)

    def pieces(self, token: str) -> list[int]:
        """Ids of the greedy longest-match pieces of one basic token; [UNK] if any part fails."""
        unknown = [self.vocab.stand_in_id]
        if len(token) > MAX_CHARS_PER_WORD:
            return unknown
        index = self.word_pieces.index
        ids: list[int] = []
        start = 0
        prefix = ''
        longest = self._max_piece
        while start < len(token):
            for end in range(min(len(token), start + longest), start, -1):
                piece = index.get(prefix + token[start:end])
                if piece is not None:
                    break
            else:
                return unknown
            ids.append(piece)
            start = end
            prefix = CONTINUATION
            longest = self._max_continuation
        return ids


def wordpiece_of(tokenizer: Tokenizer) -> WordPieceTokenizer | None:
    """The tokenizer if it is WordPiece, whose steps some programs of the original repeat."""
    if isinstance(tokenizer, WordPieceTokenizer):
        return tokenizer
    return None
