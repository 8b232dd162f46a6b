"""Parts of a token store: what a worker makes of a stretch of text, in two files.

NAME.blocks has the blocks, one after the other. NAME.npz, written after it, has what is noted of
them, as NumPy arrays:

    index [blocks]                of `blocks.INDEX_DTYPE`, with part number 0
    document_hashes [D]           uint64, of the tokens of each document
    token_counts [vocab_size]     int64
    totals [2]                    int64: sentences, bytes of text
    next [3]                      int64: unit and documents of it where the next part begins, and
                                  whether this part is the last of its share
    sentence_hashes, sentence_documents, sentence_limit
                                  of a `store_statistics.SentenceSample`
    held_out, held_out_numbers, held_out_limit
                                  of `LowestDocuments`, as the bytes of a block

and what `DocumentFilter` note. They stay in the finished store: of a store with a damaged index
only the last step has to be repeated, and several workers may do that at the same time.

Equal text gives equal bytes.
"""

import contextlib
import io
import os
import re
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, NamedTuple, Protocol, Self

import numpy as np

from bert_jax.rows.blocks import BLOCK_TOKENS, INDEX_DTYPE, Block
from bert_jax.rows.store import BLOCKS_ENDING, HELD_OUT_TOKENS, held_out_limit
from bert_jax.rows.store_statistics import NO_LIMIT, SAMPLED_SENTENCES, SentenceSample
from bert_jax.runtime import files
from bert_jax.runtime.errors import InputError

NOTES_ENDING = '.npz'
PART_FILE_BYTES = 256 << 20  # a part ends at the first batch where its file has as many
# Of a text; an estimate, by which parts keep about four times as much as the whole sample needs.
_BYTES_A_TOKEN = 4
_BYTES_A_SENTENCE = 128
_SAMPLED_MORE = 4
_ZIP_LENGTHS_AT = 26  # in the header of a file in an archive, of which 30 bytes are fixed


class PartFacts(Protocol):
    """The notes on the documents of a part while it grows."""

    def add(self, tokens: np.ndarray, token_bounds: np.ndarray) -> None:
        """Notes the next documents of the part.

        Args:
          tokens: uint16 or uint32 [T], of these documents.
          token_bounds: int64 [D + 1], where documents begin, and where the last ends.
        """

    def notes(self) -> Mapping[str, np.ndarray]:
        """Arrays for the notes of the part, by names that no others have."""


class KeyedRows(NamedTuple):
    """Documents of a part, or of several, by keys that any documents of a text may share.

    Attributes:
      keys: uint64 [n].
      documents: uint32 [n], counted from the first of their part.
      sketches: uint64 [n, W], by which documents with an equal key are compared; W may be 0.
    """

    keys: np.ndarray
    documents: np.ndarray
    sketches: np.ndarray

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """The rows of parts, one part after the other."""
        return cls(*map(np.concatenate, zip(*parts, strict=True)))

    def by_leading_bits(self, num_bits: int) -> Iterator[tuple[int, Self]]:
        """(The first `num_bits` bits of keys, the rows with them in their order)."""
        if not num_bits:
            yield 0, self
            return
        leading = (self.keys >> np.uint64(64 - num_bits)).astype(np.int64)
        order = np.argsort(leading, kind='stable')
        values, starts = np.unique(leading[order], return_index=True)
        for value, rows in zip(values.tolist(), np.split(order, starts[1:]), strict=True):
            yield value, type(self)(self.keys[rows], self.documents[rows], self.sketches[rows])


class Comparison(Protocol):
    """Finds the documents that repeat an earlier one of the text, in whatever part, by their keys.

    Only documents with an equal key are compared. So one process can look at all parts, or several
    at the rows of some keys each, with the same result.
    """

    def repeats(self, notes: 'Sequence[Notes]') -> np.ndarray:
        """Which documents of all parts repeat an earlier one: bool [D].

        Args:
          notes: of the parts, in the order of the text.
        """

    def rows(self, notes: 'Notes') -> KeyedRows:
        """The rows of a part; in the order of the documents where keys are equal."""

    def repeats_in(self, rows: KeyedRows) -> np.ndarray:
        """The numbers of the rows whose documents repeat an earlier one.

        Args:
          rows: of all parts, one part after the other, with some keys.
        """


class Decider(Protocol):
    """Decides of the documents of a part whether they are left out.

    Attributes:
      leaves_out: whether those found are left out, or only counted.
      comparison: with documents of other parts, if it needs one.
    """

    @property
    def leaves_out(self) -> bool: ...

    @property
    def comparison(self) -> Comparison | None: ...

    def found(self, notes: 'Notes', is_repeat: np.ndarray) -> tuple[np.ndarray, Any]:
        """Which documents of a part are found, bool [D], and what else `counts` needs of it.

        Args:
          notes: of the part.
          is_repeat: bool [D], what the comparison found; nothing without one.
        """

    def counts(self, num_found: int, noted: Sequence[Any]) -> dict[str, Any]:
        """For the manifest.

        Args:
          num_found: how many were found that are not left out for an earlier reason.
          noted: by `found`, of all parts in the order of the text.
        """


class DocumentFilter(Decider, Protocol):
    """Notes facts of documents; once all are noted, it decides which are left out.

    It can be pickled.
    """

    @property
    def fingerprint(self) -> str:
        """Changes with whatever may change the notes or what is decided from them."""

    def of_part(self) -> PartFacts:
        """Begins the notes of a part."""


def num_documents_of(index: np.ndarray) -> int:
    """The number of documents in blocks with this index."""
    return int(index['num_documents'].sum(dtype=np.int64))


class Start(NamedTuple):
    """Where in a source a part begins.

    Attributes:
      unit: of the source.
      done: documents of the unit that are before.
    """

    unit: int
    done: int


class Limits(NamedTuple):
    """Hashes below which sentences and documents of a text are sampled."""

    sentence: np.uint64
    document: np.uint64

    @classmethod
    def of(cls, text_bytes: int) -> Self:
        """The limits of a text of about so many bytes; 0: of unknown length."""
        sentence_bytes = _SAMPLED_MORE * SAMPLED_SENTENCES * _BYTES_A_SENTENCE
        document_bytes = _SAMPLED_MORE * HELD_OUT_TOKENS * _BYTES_A_TOKEN
        return cls(
            held_out_limit(min(sentence_bytes / max(text_bytes, 1), 1.0)),
            held_out_limit(min(document_bytes / max(text_bytes, 1), 1.0)))


class LowestDocuments:
    """The documents with the smallest hashes, up to about `HELD_OUT_TOKENS` tokens.

    Of equal documents the first is taken. Those of parts of a text can be joined, and do not depend
    on how it was divided.

    Attributes:
      limit: all documents with a hash below it are taken, and no others.
    """

    def __init__(self, token_bytes: int, limit: np.uint64 = NO_LIMIT):
        self.limit = limit
        empty = np.zeros(0, np.uint32)
        self._blocks = [
            Block(np.zeros(0, f'<u{token_bytes}'), empty, empty, np.zeros(0, np.uint64))]
        self._numbers = [np.zeros(0, np.int64)]
        self._num_tokens = 0

    def add(self, block: Block, numbers: np.ndarray, limit: np.uint64 = NO_LIMIT) -> None:
        """Adds the documents of a block that are to be taken.

        Args:
          block: of the text.
          numbers: int64 [D], of the documents.
          limit: of the documents that the block was made of.
        """
        self.limit = min(self.limit, limit)
        is_taken = block.document_hashes < self.limit
        if is_taken.any():
            self._blocks.append(block if is_taken.all() else block.chosen(is_taken))
            self._numbers.append(numbers[is_taken])
            self._num_tokens += len(self._blocks[-1].tokens)
        if self._num_tokens > 4 * HELD_OUT_TOKENS:
            self._thin()

    def _thin(self) -> None:
        """Keeps documents up to the one with which they have `HELD_OUT_TOKENS` tokens."""
        block = Block.joined(self._blocks)
        numbers = np.concatenate(self._numbers)
        hashes, first = np.unique(block.document_hashes, return_index=True)
        num_tokens = np.cumsum(np.diff(block.token_bounds)[first])
        num_kept = int(np.searchsorted(num_tokens, HELD_OUT_TOKENS)) + 1
        if num_kept < len(hashes):
            self.limit = min(self.limit, hashes[num_kept])
        is_kept = np.zeros(len(numbers), bool)
        is_kept[first[hashes < self.limit]] = True
        self._blocks = [block.chosen(is_kept)]
        self._numbers = [numbers[is_kept]]
        self._num_tokens = len(self._blocks[0].tokens)

    def documents(self) -> tuple[Block, np.ndarray]:
        """(The documents, their numbers), in the order of the text."""
        self._thin()
        return self._blocks[0], self._numbers[0]


class PartBuilder:
    """A part that grows.

    Attributes:
      text_bytes: of its documents.
      file_bytes: of its blocks so far.
    """

    def __init__(
        self, file: IO[bytes], token_bytes: int, vocab_size: int, limits: Limits,
        facts: Sequence[PartFacts] = (),
    ):
        """Begins a part.

        Args:
          file: receives the blocks.
          token_bytes: of a token, 2 or 4.
          vocab_size: of the tokenizer.
          limits: of the whole text.
          facts: what else is noted of the documents.
        """
        self.text_bytes = 0
        self.file_bytes = 0
        self._file = file
        self._facts = facts
        self._open: list[Block] = []  # documents of the block that grows
        self._num_open_tokens = 0
        self._closed: Block | None = None  # held back, because a short last block is added to it
        self._entries = [np.zeros(0, INDEX_DTYPE)]
        self._hashes = [np.zeros(0, np.uint64)]
        self._num_documents = 0
        self._num_sentences = 0
        self._token_counts = np.zeros(vocab_size, np.int64)
        self._sentences = SentenceSample(limits.sentence)
        self._held_out = LowestDocuments(token_bytes, limits.document)

    def add(self, documents: Block, text_bytes: int) -> None:
        """Adds documents, made of so many bytes of text."""
        self.text_bytes += text_bytes
        while True:
            ends = documents.token_bounds[1:] + self._num_open_tokens
            num_fitting = int(np.searchsorted(ends, BLOCK_TOKENS)) + 1
            if num_fitting > len(ends):
                break
            first, documents = documents.split(num_fitting)
            self._keep_open(first)
            self._close()
        if len(documents.document_lengths):
            self._keep_open(documents)

    def add_whole(self, block: Block) -> None:
        """Adds a block that is to stay as it is: each of a part, or none, is added so."""
        self._write(block)

    def _keep_open(self, documents: Block) -> None:
        self._open.append(documents)
        self._num_open_tokens += len(documents.tokens)

    def _close(self) -> None:
        """Ends the block that grows, and writes the one before it."""
        if self._closed is not None:
            self._write(self._closed)
        self._closed = Block.joined(self._open)
        self._open = []
        self._num_open_tokens = 0

    def _write(self, block: Block) -> None:
        content = block.to_bytes()
        self._entries.append(block.entry(0, self.file_bytes, content))
        self._file.write(content)
        self.file_bytes += len(content)
        first_document = self._num_documents
        self._num_documents += len(block.document_lengths)
        self._num_sentences += len(block.sentence_lengths)
        self._hashes.append(block.document_hashes)
        self._token_counts += np.bincount(block.tokens, minlength=len(self._token_counts))
        self._sentences.add(block, first_document)
        self._held_out.add(block, np.arange(first_document, self._num_documents))
        for fact in self._facts:
            fact.add(block.tokens, block.token_bounds)

    def finish(self, following: Start, is_last: bool) -> dict[str, np.ndarray]:
        """Writes the last blocks; returns the notes of the part.

        Args:
          following: where the next part begins.
          is_last: whether it is the last of its share.
        """
        if self._closed is not None and 0 < self._num_open_tokens < BLOCK_TOKENS // 2:
            self._open.insert(0, self._closed)
            self._closed = None
        if self._open:
            self._close()
        if self._closed is not None:
            self._write(self._closed)
        sentence_hashes, sentence_documents = self._sentences.sentences()
        held_out, held_out_numbers = self._held_out.documents()
        notes = {
            'index': np.concatenate(self._entries),
            'document_hashes': np.concatenate(self._hashes),
            'token_counts': self._token_counts,
            'totals': np.array([self._num_sentences, self.text_bytes]),
            'next': np.array([*following, is_last]),
            'sentence_hashes': sentence_hashes,
            'sentence_documents': sentence_documents,
            'sentence_limit': np.array(self._sentences.limit),
            'held_out': np.frombuffer(held_out.to_bytes(), np.uint8),
            'held_out_numbers': held_out_numbers,
            'held_out_limit': np.array(self._held_out.limit),
        }
        for fact in self._facts:
            notes.update(fact.notes())
        return notes


def write_notes(path: files.Path, notes: Mapping[str, np.ndarray]) -> None:
    """Writes the notes of a part, as `numpy.savez` would, but always the same bytes."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, 'w') as archive:
        for name, values in notes.items():
            # An entry of this kind has a fixed time.
            with archive.open(zipfile.ZipInfo(f'{name}.npy'), 'w', force_zip64=True) as file:
                np.lib.format.write_array(file, values, allow_pickle=False)
    files.write_whole(path, content.getvalue())


class Notes:
    """The notes of a part, read from a file on a disk, array by array."""

    def __init__(self, path: files.Path, where: files.Path):
        """Reads nothing yet.

        Args:
          path: of the file.
          where: of the file that it may be a copy of, for messages.
        """
        self._path = path
        self._where = where

    @classmethod
    def open(cls, path: files.Path, copies: str) -> Self:
        """The notes in a file; one in a bucket is first copied into the folder `copies`."""
        if not files.in_bucket(path):
            files.check_ends(os.fspath(path))
            return cls(path, path)
        copy = files.as_path(copies) / path.name
        copy.write_bytes(files.read_bytes(path))
        return cls(copy, path)

    def read(self, name: str) -> np.ndarray:
        """One of the arrays.

        Raises:
          InputError: the file is damaged.
          FileNotFoundError: it is not there.
        """
        with self._damage_named(), np.load(self._path, allow_pickle=False) as arrays:
            return arrays[name]

    def read_rows(self, name: str, rows: slice) -> np.ndarray:
        """A stretch of an array [n], without a look at the rest, and so not checked.

        Raises:
          InputError: the file is damaged.
          FileNotFoundError: it is not there.
        """
        with self._damage_named(), open(self._path, 'rb') as file:
            with zipfile.ZipFile(file) as archive:
                begin = archive.getinfo(f'{name}.npy').header_offset
            file.seek(begin + _ZIP_LENGTHS_AT)
            num_before = sum(struct.unpack('<HH', file.read(4)))  # the name, and further fields
            file.seek(num_before, io.SEEK_CUR)
            np.lib.format.read_magic(file)
            _, _, dtype = np.lib.format.read_array_header_1_0(file)
            file.seek(rows.start * dtype.itemsize, io.SEEK_CUR)
            content = file.read((rows.stop - rows.start) * dtype.itemsize)
            return np.frombuffer(content, dtype, rows.stop - rows.start)

    @contextlib.contextmanager
    def _damage_named(self) -> Iterator[None]:
        """Makes what is raised for damaged files an InputError that names this one."""
        try:
            yield
        except (KeyError, ValueError, EOFError, struct.error, zipfile.BadZipFile,
                NotImplementedError) as error:
            raise InputError(f'{self._where} is damaged ({error}): delete it and it is built '
                             'again') from None

    def following(self) -> tuple[Start, bool]:
        """(Where the next part begins, whether this one is the last of its share)."""
        unit, done, is_last = self.read('next').tolist()
        return Start(unit, done), bool(is_last)

    def held_out(self) -> tuple[Block, np.ndarray, np.uint64]:
        """(Documents, their numbers in the part, the limit of their hashes)."""
        block = Block.parse(self.read('held_out').tobytes())
        return block, self.read('held_out_numbers'), np.uint64(self.read('held_out_limit'))


def part_name(share: int, number: int) -> str:
    """The name of a part, without an ending."""
    return f'part-{share:05}-{number:03}'


def numbers_of(name: str) -> tuple[int, int]:
    """(Share, number in the share) of a part's name."""
    _, share, number = name.split('-')
    return int(share), int(number)


def part_names(file_names: Iterable[str]) -> list[str]:
    """The names of the finished parts among the files of a folder, in the order of the text."""
    found = []
    for file_name in file_names:
        match = re.fullmatch(rf'(part-\d+-\d+){re.escape(NOTES_ENDING)}', file_name)
        if match:
            found.append(match[1])
    return sorted(found, key=numbers_of)


def blocks_path(folder: files.Path, name: str) -> files.Path:
    """The file of a part's blocks."""
    return folder / f'{name}{BLOCKS_ENDING}'


def notes_path(folder: files.Path, name: str) -> files.Path:
    """The file of a part's notes."""
    return folder / f'{name}{NOTES_ENDING}'
