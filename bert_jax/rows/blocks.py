"""Blocks: the pieces in which a token store is kept and read.

A block holds some whole documents, about `BLOCK_TOKENS` tokens of them, and says where they begin
and end, so it can be read by itself, by one read of a file or one request to a bucket. The index of
a store has an entry of 24 bytes for each of its blocks, with the checksum of its bytes.

The bytes of a block, all little-endian:

    uint32 [4]  tokens T, sentences S, documents D, bytes of a token
    uint64 [D]  hashes of the documents' tokens
    uint32 [D]  sentences of each document
    uint32 [S]  tokens of each sentence
    uint16 or uint32 [T]  the tokens
"""

import zlib
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from bert_jax.runtime.errors import InputError

# Half a million tokens are a megabyte: large enough that a request to a bucket costs less than
# what it brings, small enough that a host can mix many of them.
BLOCK_TOKENS = 1 << 19
INDEX_DTYPE = np.dtype([
    ('part', '<u4'),  # number of the part that the block is in
    ('offset', '<u4'),  # where its bytes begin in the file of the part
    ('num_bytes', '<u4'),
    ('num_tokens', '<u4'),
    ('num_documents', '<u4'),
    ('crc', '<u4'),  # CRC-32 of the bytes
])
_HEADER = np.dtype('<u4')
_HEADER_FIELDS = 4


class Block(NamedTuple):
    """Some documents of a store. No document or sentence is empty.

    Attributes:
      tokens: uint16 or uint32 [T], of all documents one after the other, without special tokens.
      sentence_lengths: uint32 [S], tokens of each sentence.
      document_lengths: uint32 [D], sentences of each document.
      document_hashes: uint64 [D], of the tokens of each document.
    """

    tokens: np.ndarray
    sentence_lengths: np.ndarray
    document_lengths: np.ndarray
    document_hashes: np.ndarray

    @classmethod
    def joined(cls, blocks: Sequence[Self]) -> Self:
        """The documents of several blocks, in their order."""
        return cls(*(np.concatenate(arrays) for arrays in zip(*blocks, strict=True)))

    def without_tokens(self) -> Self:
        """A copy without tokens, which shares no memory with the block."""
        return type(self)(
            self.tokens[:0].copy(), self.sentence_lengths.copy(), self.document_lengths.copy(),
            self.document_hashes.copy())

    @property
    def token_bounds(self) -> np.ndarray:
        """Where documents begin among the tokens, and where the last ends: int64 [D + 1]."""
        sentence_bounds = bounds_of(self.document_lengths)
        return bounds_of(self.sentence_lengths)[sentence_bounds]

    def split(self, num_documents: int) -> tuple[Self, Self]:
        """(The first documents, the others)."""
        num_sentences = int(self.document_lengths[:num_documents].sum(dtype=np.int64))
        num_tokens = int(self.sentence_lengths[:num_sentences].sum(dtype=np.int64))
        first = type(self)(
            self.tokens[:num_tokens], self.sentence_lengths[:num_sentences],
            self.document_lengths[:num_documents], self.document_hashes[:num_documents])
        others = type(self)(
            self.tokens[num_tokens:], self.sentence_lengths[num_sentences:],
            self.document_lengths[num_documents:], self.document_hashes[num_documents:])
        return first, others

    def chosen(self, is_chosen: np.ndarray) -> Self:
        """The documents for which `is_chosen`, bool [D], is true."""
        has_sentence = np.repeat(is_chosen, self.document_lengths)
        has_token = np.repeat(has_sentence, self.sentence_lengths)
        return type(self)(
            self.tokens[has_token], self.sentence_lengths[has_sentence],
            self.document_lengths[is_chosen], self.document_hashes[is_chosen])

    def to_bytes(self) -> bytes:
        """The bytes of the block, as `from_bytes` reads them."""
        counts = [
            len(self.tokens), len(self.sentence_lengths), len(self.document_lengths),
            self.tokens.dtype.itemsize]
        return b''.join([
            np.array(counts, _HEADER).tobytes(),
            self.document_hashes.astype('<u8').tobytes(),
            self.document_lengths.astype('<u4').tobytes(),
            self.sentence_lengths.astype('<u4').tobytes(),
            self.tokens.astype(token_dtype(self.tokens.dtype.itemsize)).tobytes()])

    @classmethod
    def from_bytes(cls, content: bytes, entry: np.void, where: object) -> Self:
        """The block of an index entry, as views of its bytes.

        Args:
          content: the bytes.
          entry: of `INDEX_DTYPE`.
          where: the file, for the message.

        Raises:
          InputError: these are not the bytes that were written.
        """
        if len(content) != entry['num_bytes'] or zlib.crc32(content) != entry['crc']:
            raise InputError(
                f"{where}: the block at byte {entry['offset']} is damaged (its content is not that "
                'of the index): delete the store and it is built again from its text')
        return cls.parse(content)

    @classmethod
    def parse(cls, content: bytes) -> Self:
        """The block of some bytes that have been checked, as views of them."""
        num_tokens, num_sentences, num_documents, token_bytes = np.frombuffer(
            content, _HEADER, _HEADER_FIELDS).tolist()
        offset = _HEADER_FIELDS * _HEADER.itemsize

        def take(dtype: np.dtype, count: int) -> np.ndarray:
            nonlocal offset
            values = np.frombuffer(content, dtype, count, offset)
            offset += values.nbytes
            return values

        hashes = take(np.dtype('<u8'), num_documents)
        document_lengths = take(np.dtype('<u4'), num_documents)
        sentence_lengths = take(np.dtype('<u4'), num_sentences)
        tokens = take(token_dtype(token_bytes), num_tokens)
        return cls(tokens, sentence_lengths, document_lengths, hashes)

    @staticmethod
    def place_of_hashes(entry: np.void) -> tuple[int, int]:
        """Where the hashes of an entry's documents begin in the file, and their bytes."""
        begin = int(entry['offset']) + _HEADER_FIELDS * _HEADER.itemsize
        return begin, 8 * int(entry['num_documents'])

    def entry(self, part: int, offset: int, content: bytes) -> np.ndarray:
        """The index entry [1] of the block.

        Args:
          part: number of the part.
          offset: where the block's bytes begin in its file.
          content: `to_bytes()`.
        """
        values = (
            part, offset, len(content), len(self.tokens), len(self.document_lengths),
            zlib.crc32(content))
        return np.array([values], INDEX_DTYPE)


def bounds_of(lengths: np.ndarray) -> np.ndarray:
    """[n + 1] int64: where runs of these lengths [n] begin, and the end of the last."""
    bounds = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=bounds[1:])
    return bounds


def token_dtype(num_bytes: int) -> np.dtype:
    """The type of tokens of so many bytes."""
    return np.dtype(f'<u{num_bytes}')


def smallest_token_dtype(vocab_size: int) -> np.dtype:
    """The type of the tokens of a vocabulary."""
    return token_dtype(2 if vocab_size < 1 << 16 else 4)
