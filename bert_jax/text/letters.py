"""One letter a token: DNA, RNA and proteins. The vocabulary follows from the letters alone.

A capital and a small letter are the same: genomes have repeats in small ones. White space separates
words and is no token; any other character that is no letter of the vocabulary is [UNK].

    n: texts, L: characters of all texts, T: tokens of all texts, V: tokens of the vocabulary
"""

import functools
import os
import re
import string
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.hashing import digest
from bert_jax.text.tokenizer import Encoding, Tokens
from bert_jax.text.vocab import SPECIAL_TOKENS, Vocab
from bert_jax.text.vocab_files import read_lines

ENDING = '.letters'
# The codes of DNA, RNA and proteins, with those of IUPAC that stand for several, are letters.
ALL_LETTERS = string.ascii_uppercase
WHITE_SPACE = ' \t\n\r\v\f'
_WHITE_SPACE_PATTERN = r'[ \t\n\r\x0B\x0C]+'
ANY_CHARACTER = r'[\s\S]'
_NO_TOKEN = -1
_ALLOWED = re.compile(r'[A-Z*.-]')  # `*` ends proteins, `-` and `.` are gaps of alignments


def letter_tokens(letters: str = ALL_LETTERS) -> list[str]:
    """The tokens of a vocabulary: the special ones, then the letters.

    Raises:
      InputError: a letter is small, is none, or is there twice.
    """
    for letter in letters:
        if not is_letter(letter) or letters.count(letter) > 1:
            raise InputError(
                f"config.data.tokenizer='letters:{letters}': {letter!r} is there twice or is no "
                "capital letter: name each once, as in letters:ACGTN, or write letters for all 26")
    return [*SPECIAL_TOKENS, *letters]


def is_letter(token: str) -> bool:
    """Whether a token is a letter of sequences: a capital, or one of `*`, `-` and `.`."""
    return _ALLOWED.fullmatch(token) is not None


def read_letters(path: str | os.PathLike[str]) -> 'LetterTokenizer':
    """The tokenizer of a file of letters: a token a line, whose id is the number of the line.

    Raises:
      InputError: the file cannot be read, or has a token that is no letter.
    """
    tokens = read_lines(path)
    for number, token in enumerate(tokens, 1):
        if not is_letter(token) and not _is_bracketed(token):
            raise InputError(f'{path}: line {number} is {token!r}, and no capital letter: a file '
                             f'that ends in {ENDING} has a letter a line')
    if not any(is_letter(token) for token in tokens):
        raise InputError(f'{path}: it holds no letter: name a whole vocabulary')
    return LetterTokenizer(sequence_vocab(tokens, path))


def sequence_vocab(tokens: Iterable[str], source: object) -> Vocab:
    """A vocabulary in which each token is a word of its own, so that runs of them are masked.

    Raises:
      InputError: a special token is missing.
    """
    tokens = list(tokens)
    is_continuation = np.zeros(len(tokens), np.bool_)
    return Vocab.from_tokens(tokens, is_continuation=is_continuation, source=str(source))


def _is_bracketed(token: str) -> bool:
    """Whether it is a special token or the placeholder of a row without one."""
    return token.startswith('[') and token.endswith(']')


def bytes_of(text: str) -> np.ndarray:
    """[L] uint8: the characters of a text, a byte each; `?` for those beyond ASCII."""
    return np.frombuffer(text.encode('ascii', 'replace'), np.uint8)


def ids_by_byte(vocab: Vocab) -> np.ndarray:
    """[256] int32: the id of each byte's letter, in either case; of white space, -1."""
    table = np.full(256, vocab.stand_in_id, np.int32)
    for char in WHITE_SPACE:
        table[ord(char)] = _NO_TOKEN
    for token, piece_id in vocab.index.items():
        if is_letter(token):
            table[ord(token)] = piece_id
            table[ord(token.lower())] = piece_id
    return table


def one_after_the_other(texts: Sequence[str]) -> str:
    """The texts, with a line end after each, so that none of them is empty."""
    return ''.join([f'{text}\n' for text in texts])


def tokens_of_each(texts: Sequence[str], is_token: np.ndarray) -> np.ndarray:
    """[n] int64: the tokens of each text.

    Args:
      texts: n texts.
      is_token: [L] bool, of `one_after_the_other(texts)`: whether a token begins.
    """
    if not texts:
        return np.zeros(0, np.int64)
    lengths = np.array([len(text) + 1 for text in texts], np.int64)
    begins = np.cumsum(lengths) - lengths
    return np.add.reduceat(is_token, begins, dtype=np.int64)


def lists_of_each(ids: np.ndarray, counts: np.ndarray) -> list[list[int]]:
    """The ids of each text, from those [T] of all texts and the number [n] of each."""
    ends = np.cumsum(counts).tolist()
    begins = [0, *ends[:-1]]
    return [ids[begin:end].tolist() for begin, end in zip(begins, ends, strict=False)]


def tokenizer_json_parts(vocab: Vocab, piece_pattern: str) -> dict[str, Any]:
    """The parts of a tokenizer.json that make pieces of a text, for the `tokenizers` library.

    Args:
      vocab: letters and k-mers.
      piece_pattern: matches the next piece of a text in capitals, whatever character comes next.
    """
    capitals = [
        {'type': 'Replace', 'pattern': {'String': letter.lower()}, 'content': letter}
        for letter in ALL_LETTERS]
    words = {'type': 'Split', 'pattern': {'Regex': _WHITE_SPACE_PATTERN}, 'behavior': 'Removed',
             'invert': False}
    pieces = {'type': 'Split', 'pattern': {'Regex': piece_pattern}, 'behavior': 'Isolated',
              'invert': False}
    unknown = vocab.tokens[vocab.stand_in_id]
    return {
        'normalizer': {'type': 'Sequence', 'normalizers': capitals},
        'pre_tokenizer': {'type': 'Sequence', 'pretokenizers': [words, pieces]},
        'decoder': {'type': 'Fuse'},
        'model': {'type': 'WordLevel', 'vocab': vocab.index, 'unk_token': unknown},
    }


class LetterTokenizer:
    """Each letter of a text is a token.

    Attributes:
      vocab: the special tokens and the letters.
    """

    lowercase = None  # small letters are capitals
    algorithm = 'letters'

    def __init__(self, vocab: Vocab):
        """Makes a tokenizer of a vocabulary from `letter_tokens`."""
        self.vocab = vocab
        self._ids = ids_by_byte(vocab)

    @functools.cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits that change with the vocabulary."""
        return digest(f'letters {self.vocab.fingerprint}'.encode())

    def encode(self, text: str) -> list[int]:
        """The ids of the letters of a text."""
        ids = self._ids[bytes_of(text)]
        return ids[ids != _NO_TOKEN].tolist()

    def encode_joined(self, texts: Sequence[str]) -> Tokens:
        """The ids of many texts as arrays.

        Returns:
          (ids of all texts one after the other [T] int32, tokens of each text [n] int64).
        """
        ids = self._ids[bytes_of(one_after_the_other(texts))]
        is_token = ids != _NO_TOKEN
        return ids[is_token], tokens_of_each(texts, is_token)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of many texts."""
        return lists_of_each(*self.encode_joined(texts))

    def joinable(self, parts: Sequence[str]) -> Sequence[str]:
        """The parts as they are: a letter is the same wherever it stands."""
        return parts

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """The ids of each word of a text."""
        return self.encode_batch(words)

    def encode_with_places(self, text: str) -> Encoding:
        """The letters of a text and their places."""
        ids = self._ids[bytes_of(text)]
        begins = np.flatnonzero(ids != _NO_TOKEN)
        places = [(begin, begin + 1) for begin in begins.tolist()]
        return Encoding(ids[begins].tolist(), places)

    def shown(self, piece_id: int) -> str:
        """The letter."""
        return self.vocab.tokens[piece_id]

    def tokenizer_json_parts(self) -> dict[str, Any]:
        """See the function of this name."""
        return tokenizer_json_parts(self.vocab, ANY_CHARACTER)
