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
from collections.abc import Callable
from typing import Self

from bert_jax.runtime.files import digest
from bert_jax.text.added import AddedToken, Finder, with_ids
from bert_jax.text.vocab import CONTINUATION, Vocab

MAX_CHARS_PER_WORD = 200

# The characters that separate words. Cleaning turns tab, newline, carriage return and category Zs
# into spaces; U+2028 and U+2029 survive it and are split at by `str.split`. The other characters
# that `str.isspace` accepts (\v, \f, \x1c to \x1f, \x85) are control characters, which cleaning
# removes, joining the text on both sides: hence no plain `str.split` on raw text. (All of
# category Zs is in the basic plane.)
WHITESPACE = frozenset('\t\n\r\u2028\u2029') | {
    chr(c) for c in range(0x10000) if unicodedata.category(chr(c)) == 'Zs'}
_WORD = re.compile(f"[^{re.escape(''.join(sorted(WHITESPACE)))}]+")

# "CJK Unified Ideographs" and its extensions, as listed in the original: no kana, no Hangul.
_CJK_RANGES = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)


def raw_words(text: str) -> list[str]:
    """The runs of characters between white space, as they stand in `text`."""
    return _WORD.findall(text)


def _cleaned(char: str) -> str:
    """The character; '' for NUL, the replacement character, and control and format characters."""
    return '' if char in '\0\ufffd' or unicodedata.category(char) in ('Cc', 'Cf') else char


def has_words(text: str) -> bool:
    """Whether something is left of a text that is cleaned: else it has no tokens."""
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


_CLEAN = _Table(lambda c: f' {c} ' if is_cjk(c) else _cleaned(c))
_CLEAN_ALONE = _Table(_cleaned)
_SPACED = _Table(lambda c: ' ' if c in WHITESPACE else _CLEAN[ord(c)])
_SPACED_ALONE = _Table(lambda c: ' ' if c in WHITESPACE else _cleaned(c))
_WITHOUT_ACCENTS = _Table(lambda c: '' if unicodedata.category(c) == 'Mn' else c)
_SPLIT_PUNCTUATION = _Table(lambda c: f' {c} ' if is_punctuation(c) else c)


@dataclasses.dataclass(frozen=True)
class Switches:
    """Switches of Hugging Face's BertTokenizer; the defaults are the original's behaviour.

    Their names and meanings are those of `tokenizer_config.json`.

    Attributes:
        strip_accents: whether accents are stripped; None: if text is lower-cased.
        tokenize_chinese_chars: whether an ideograph is a word by itself.
        do_basic_tokenize: whether text is cleaned, lower-cased and split at punctuation at all.
        never_split: words that are left as they are and become one piece or [UNK].
        added_tokens: tokens that are found in the text before anything else is done.
    """

    strip_accents: bool | None = None
    tokenize_chinese_chars: bool = True
    do_basic_tokenize: bool = True
    never_split: tuple[str, ...] = ()
    # Without a place in `repr`, which is part of the fingerprints of older stores.
    added_tokens: tuple[AddedToken, ...] = dataclasses.field(default=(), repr=False)


ORIGINAL = Switches()


def _split_word(raw_word: str, lowercase: bool, switches: Switches) -> list[str]:
    """Basic tokens of one run of characters without white space."""
    if not switches.do_basic_tokenize:
        return raw_word.split()  # `str.split` knows more white space
    if raw_word.isascii() and raw_word.isalnum() and not switches.never_split:
        return [raw_word.lower() if lowercase else raw_word]
    clean = _CLEAN if switches.tokenize_chinese_chars else _CLEAN_ALONE
    strip = lowercase if switches.strip_accents is None else switches.strip_accents
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
        tokens += part.translate(_SPLIT_PUNCTUATION).split()
    return tokens


def basic_tokens(text: str, lowercase: bool = True, switches: Switches = ORIGINAL) -> list[str]:
    """Split `text` into words and punctuation marks, before WordPiece.

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
        lowercase: whether text is lower-cased and (by default) stripped of accents first.
        switches: what else is done before WordPiece.
    """

    def __init__(
        self, vocab: Vocab, lowercase: bool = True, switches: Switches = ORIGINAL,
        cache_size: int = 1 << 18, vocab_name: str = '',
    ):
        """Make a tokenizer.

        Args:
            vocab: a vocabulary with `##` marking continuations, without the added tokens.
            lowercase: true for uncased vocabularies.
            switches: how the tokenizer differs from the original's.
            cache_size: how many distinct words `encode` caches before it clears the cache.
            vocab_name: what messages call the vocabulary.

        Raises:
            InputError: an added token has the id of another.
        """
        source = vocab_name or 'vocabulary'
        self.added = with_ids(switches.added_tokens, vocab.index, source)
        self.word_pieces = vocab
        self.vocab = vocab.with_tokens({i: token.content for token, i in self.added}, source) if (
            self.added) else vocab
        self.lowercase = lowercase
        self.switches = switches
        self._cache_size = cache_size
        self._cache: dict[str, tuple[int, ...]] = {}
        self._max_piece = max(map(len, vocab.tokens))
        self._max_continuation = max(
            (len(t) - 2 for t in vocab.tokens if t.startswith(CONTINUATION)), default=0)
        # Where two are the same after normalization, the first is found (in `tokenizers`, any).
        as_it_stands, normalized = (
            {text: pair for pair in reversed(self.added) if pair[0].normalized is wanted
             and (text := self.normalize(pair[0].content) if wanted else pair[0].content)}
            for wanted in (False, True))
        self._as_it_stands, self._normalized = Finder(as_it_stands), Finder(normalized)
        self.found_as_it_stands, self.found_normalized = tuple(as_it_stands), tuple(normalized)

    @classmethod
    def from_file(cls, vocab_file: str | os.PathLike[str], lowercase: bool = True) -> Self:
        """A tokenizer of a vocabulary file; InputError where `Vocab.from_file` raises it."""
        return cls(Vocab.from_file(vocab_file), lowercase)

    @functools.cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits that change with whatever may change the ids of a text."""
        parts = [self.vocab.fingerprint, str(self.lowercase), unicodedata.unidata_version]
        if self.switches != ORIGINAL:
            parts.append(repr(self.switches))
        if self.added:
            parts.append(repr(self.added))
        return digest(' '.join(('wordpiece', *parts)).encode())

    def tokenize(self, text: str) -> list[str]:
        """The WordPieces of `text`, without [CLS] and [SEP]; [UNK] for words not covered."""
        return [self.vocab.tokens[i] for i in self.encode(text)]

    def encode(self, text: str) -> list[int]:
        """The ids of the added tokens and the WordPieces of `text`, without [CLS] and [SEP]."""
        if not self.added:
            return self._encode_words(text)
        ids: list[int] = []
        for part, known in self._as_it_stands.split(text):
            if known is not None:
                ids.append(known)
            elif not self._normalized.is_in(normalized := self.normalize(part)):
                ids += self._encode_words(part)
            else:
                for piece, added in self._normalized.split(normalized):
                    ids += self._encode_words(piece) if added is None else [added]
        return ids

    def may_have_added(self, text: str) -> bool:
        """Whether an added token may be found in a text."""
        return self._as_it_stands.is_in(text) or (
            bool(self.found_normalized) and self._normalized.is_in(self.normalize(text)))

    def normalize(self, text: str) -> str:
        """`text` as it is before it is split at white space and punctuation."""
        switches = self.switches
        if not switches.do_basic_tokenize or switches.never_split:
            return text  # words are looked up as they stand
        text = text.translate(_SPACED if switches.tokenize_chinese_chars else _SPACED_ALONE)
        if self.lowercase:
            text = text.lower()
        strip = self.lowercase if switches.strip_accents is None else switches.strip_accents
        return unicodedata.normalize('NFD', text).translate(_WITHOUT_ACCENTS) if strip else text

    def _encode_words(self, text: str) -> list[int]:
        cache = self._cache
        ids: list[int] = []
        for word in raw_words(text):
            known = cache.get(word)
            ids += self._encode_word(word) if known is None else known
        return ids

    def _encode_word(self, raw_word: str) -> tuple[int, ...]:
        never_split = self.switches.never_split if self.switches.do_basic_tokenize else ()
        whole = {word: [self.vocab.index.get(word, self.vocab.unk_id)] for word in never_split}
        pieces: list[int] = []
        for token in _split_word(raw_word, self.lowercase, self.switches):
            pieces += whole.get(token) or self.pieces(token)
        if len(self._cache) >= self._cache_size:
            self._cache.clear()
        self._cache[raw_word] = ids = tuple(pieces)
        return ids

    def pieces(self, token: str) -> list[int]:
        """Ids of the greedy longest-match pieces of one basic token; [UNK] if any part fails."""
        unknown = [self.vocab.unk_id]
        if len(token) > MAX_CHARS_PER_WORD:
            return unknown
        index = self.word_pieces.index
        ids: list[int] = []
        start, prefix, longest = 0, '', self._max_piece
        while start < len(token):
            for end in range(min(len(token), start + longest), start, -1):
                piece = index.get(prefix + token[start:end])
                if piece is not None:
                    break
            else:
                return unknown
            ids.append(piece)
            start, prefix, longest = end, CONTINUATION, self._max_continuation
        return ids
