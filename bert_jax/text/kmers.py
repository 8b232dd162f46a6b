"""k letters of DNA a token (Dalla-Torre et al., 2023, "Nucleotide Transformer", section 4.1).

A run of A, C, G and T is cut into k-mers from its beginning, and what is left at its end into
letters. They do not overlap: where they do, as in DNABERT (Ji et al., 2021), the neighbours of a
masked token show its letters, unless k tokens in a row are masked. N and white space end a run; N
is a token, and any other letter is [UNK]. Small letters are capitals.

    n: texts, L: characters of all texts, T: tokens of all texts, M: k-mers of all texts
"""

import functools
import itertools
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.hashing import digest
from bert_jax.text.letters import (
    ANY_CHARACTER,
    bytes_of,
    ids_by_byte,
    lists_of_each,
    one_after_the_other,
    sequence_vocab,
    tokenizer_json_parts,
    tokens_of_each,
)
from bert_jax.text.tokenizer import Encoding, Tokens
from bert_jax.text.vocab import SPECIAL_TOKENS, Vocab
from bert_jax.text.vocab_files import read_lines

ENDING = '.kmers'
BASES = 'ACGT'
_UNKNOWN_BASE = 'N'
_SIZES = range(2, 9)
_NO_BASE = -1


def kmer_tokens(size: int) -> list[str]:
    """The tokens of a vocabulary: the special ones, A, C, G, T, N, and all k-mers in order.

    Args:
      size: k.

    Raises:
      InputError: k is not from 2 to 8.
    """
    if size not in _SIZES:
        raise InputError(f"config.data.tokenizer='kmer:{size}': k is from {_SIZES[0]} to "
                         f"{_SIZES[-1]}, and kmer:6 has 4,096 k-mers; a letter a token is letters")
    kmers = map(''.join, itertools.product(BASES, repeat=size))
    return [*SPECIAL_TOKENS, *BASES, _UNKNOWN_BASE, *kmers]


def read_kmers(path: str | os.PathLike[str]) -> 'KmerTokenizer':
    """The tokenizer of a file of k-mers: a token a line, whose id is the number of the line.

    Raises:
      InputError: the file cannot be read, or lacks a k-mer.
    """
    return KmerTokenizer(sequence_vocab(read_lines(path), path), str(path))


class _Pieces(NamedTuple):
    """The pieces of texts that stand one after the other.

    Attributes:
      ids: [L] int32, of the piece that begins at each character; elsewhere anything.
      is_piece: [L] bool, whether a piece begins.
      kmer_begins: [M] int64, where k-mers begin.
    """

    ids: np.ndarray
    is_piece: np.ndarray
    kmer_begins: np.ndarray


class KmerTokenizer:
    """Splits DNA into k-mers that do not overlap.

    Attributes:
      vocab: the special tokens, letters and k-mers.
      size: k.
    """

    lowercase = None  # small letters are capitals

    def __init__(self, vocab: Vocab, source: str = 'vocabulary'):
        """Makes a tokenizer of a vocabulary from `kmer_tokens`, in any order.

        Raises:
          InputError: a k-mer is missing; the message calls the vocabulary `source`.
        """
        self.vocab = vocab
        kmers = [token for token in vocab.tokens if len(token) > 1 and set(token) <= set(BASES)]
        self.size = max(map(len, kmers), default=_SIZES[0])
        missing = set(kmer_tokens(self.size)).difference(vocab.tokens)
        if missing:
            raise InputError(f'{source}: {min(missing)} is missing among {len(vocab)} tokens: a '
                             f'file that ends in {ENDING} has all k-mers of {BASES} of one length')
        in_order = kmer_tokens(self.size)[-len(BASES) ** self.size :]
        self._ids_of_kmers = np.array([vocab.index[kmer] for kmer in in_order], np.int32)
        self._ids = ids_by_byte(vocab)
        self._digits = np.full(256, _NO_BASE, np.int8)
        for digit, base in enumerate(BASES):
            self._digits[[ord(base), ord(base.lower())]] = digit

    @property
    def algorithm(self) -> str:
        """As `config.data.tokenizer` has it."""
        return f'kmer:{self.size}'

    @functools.cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits that change with the vocabulary."""
        return digest(f'kmers {self.vocab.fingerprint}'.encode())

    def encode(self, text: str) -> list[int]:
        """The ids of the k-mers and letters of a text."""
        pieces = self._pieces(text)
        return pieces.ids[pieces.is_piece].tolist()

    def encode_joined(self, texts: Sequence[str]) -> Tokens:
        """The ids of many texts as arrays.

        Returns:
          (ids of all texts one after the other [T] int32, tokens of each text [n] int64).
        """
        pieces = self._pieces(one_after_the_other(texts))
        return pieces.ids[pieces.is_piece], tokens_of_each(texts, pieces.is_piece)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of many texts."""
        return lists_of_each(*self.encode_joined(texts))

    def joinable(self, parts: Sequence[str]) -> Sequence[str]:
        """The parts as they are: a k-mer is the same wherever it stands."""
        return parts

    def encode_words(self, words: Sequence[str]) -> list[list[int]]:
        """The ids of each word of a text; no k-mer reaches into the next word."""
        return self.encode_batch(words)

    def encode_with_places(self, text: str) -> Encoding:
        """The k-mers and letters of a text and their places."""
        pieces = self._pieces(text)
        widths = np.ones(len(pieces.ids), np.int64)
        widths[pieces.kmer_begins] = self.size
        begins = np.flatnonzero(pieces.is_piece)
        ends = begins + widths[begins]
        places = list(zip(begins.tolist(), ends.tolist(), strict=True))
        return Encoding(pieces.ids[begins].tolist(), places)

    def shown(self, piece_id: int) -> str:
        """The k-mer or letter."""
        return self.vocab.tokens[piece_id]

    def tokenizer_json_parts(self) -> dict[str, Any]:
        """See `letters.tokenizer_json_parts`."""
        return tokenizer_json_parts(self.vocab, f'[{BASES}]{{{self.size}}}|{ANY_CHARACTER}')

    def _pieces(self, text: str) -> _Pieces:
        """Where the pieces of a text of L characters begin, and their ids."""
        chars = bytes_of(text)
        digits = self._digits[chars]
        ids = self._ids[chars]
        is_piece = ids >= 0
        begins = self._kmer_begins(digits)
        number = np.zeros(len(begins), np.int64)  # of a k-mer, read with the bases as digits
        for place in range(self.size):
            number = number * len(BASES) + digits[begins + place]
            if place:
                is_piece[begins + place] = False
        ids[begins] = self._ids_of_kmers[number]
        return _Pieces(ids, is_piece, begins)

    def _kmer_begins(self, digits: np.ndarray) -> np.ndarray:
        """[M] int64: where k-mers begin.

        Args:
          digits: [L] int8, -1 outside of runs of bases.
        """
        is_base = np.concatenate([[False], digits != _NO_BASE, [False]])
        edges = np.flatnonzero(is_base[1:] != is_base[:-1])
        run_begins = edges[::2]
        run_lengths = edges[1::2] - run_begins
        num_kmers = run_lengths // self.size
        # The number of each k-mer in its run.
        before_run = np.cumsum(num_kmers) - num_kmers
        number = np.arange(num_kmers.sum()) - np.repeat(before_run, num_kmers)
        return np.repeat(run_begins, num_kmers) + self.size * number
