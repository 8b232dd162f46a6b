"""Token stores: the blocks of a prepared text, on a disk or in a bucket, and windows of them.

A store is a folder:

    part-00000-000.blocks, ...   blocks, one after the other (see `rows.blocks`)
    part-00000-000.npz, ...      what was noted of each part while it was made (see `store_parts`)
    index.bin                    an entry of `blocks.INDEX_DTYPE` for each block, in text order
    left_out.bin                 a bit for each document: 1 for those not to be used (duplicates)
    held_out.bin                 a block of the used documents with the smallest hashes
    token_counts.bin             int64 [vocab_size], how often each id occurs in the text
    manifest.json                what the store was made from and how much is in it; written last

Rows are made from windows: some blocks joined in memory. A small text is one window.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import numpy as np

from bert_jax.rows.blocks import INDEX_DTYPE, Block, bounds_of, smallest_token_dtype
from bert_jax.runtime import files
from bert_jax.runtime.errors import InputError, counted, tell

FORMAT_VERSION = 3
PREPARED = 'store:'  # begins the name of a source that is a finished store
MANIFEST = 'manifest.json'
INDEX = 'index.bin'
LEFT_OUT = 'left_out.bin'
HELD_OUT = 'held_out.bin'
TOKEN_COUNTS = 'token_counts.bin'
BLOCKS_ENDING = '.blocks'
HELD_OUT_TOKENS = 1 << 23  # of the documents in `held_out.bin`: 65,536 rows of 128
_THREADS = 16  # that read blocks
_COUNTS = ('num_blocks', 'num_tokens', 'num_sentences', 'num_documents', 'text_bytes')


@dataclasses.dataclass(frozen=True)
class LoadedBlocks:
    """Some blocks of a store, joined: a text in memory. No sentence or document is empty.

    Attributes:
      tokens: uint16 or uint32 [T], all documents one after the other, without special tokens.
      sentence_offsets: int64 [S + 1]; sentence s is tokens[offsets[s] : offsets[s + 1]].
      document_offsets: int64 [D + 1]; document d is the sentences offsets[d] to offsets[d + 1] - 1.
      document_hashes: uint64 [D], of the token ids.
      documents: int64 [K], ascending indices of the documents to use, without duplicates.
    """

    tokens: np.ndarray
    sentence_offsets: np.ndarray
    document_offsets: np.ndarray
    document_hashes: np.ndarray
    documents: np.ndarray

    def split_held_out(
        self, fraction: float, min_documents: int, name: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """Splits the documents by their hashes: by their content, not their place.

        A document's side depends on its own text only (but for `min_documents`), so a corpus can
        grow without any document changing sides.

        Args:
          fraction: share of the documents to hold out; 0 holds out none.
          min_documents: at least so many on each side.
          name: of the source, for messages.

        Returns:
          (training, held-out) document indices, int64, ascending.

        Raises:
          InputError: too few documents.
        """
        if fraction <= 0:
            return self.documents, self.documents[:0]
        num_documents = len(self.documents)
        if num_documents < 2 * min_documents:
            raise InputError(
                f"data source '{name}' has {num_documents} different documents, too few to hold "
                f'some out ({2 * min_documents} are needed): separate documents by a blank line, '
                'add text, or set --config.data.eval_source')
        hashes = self.document_hashes[self.documents]
        is_held_out = hashes < held_out_limit(fraction)
        num_held_out = int(is_held_out.sum())
        if not min_documents <= num_held_out <= num_documents - min_documents:
            by_hash = np.argsort(hashes)
            is_held_out[by_hash[:min_documents]] = True
            is_held_out[by_hash[num_documents - min_documents:]] = False
        return self.documents[~is_held_out], self.documents[is_held_out]


def held_out_limit(fraction: float) -> np.uint64:
    """Documents with a hash below this are the share `fraction` of all."""
    return np.uint64(min(int(fraction * 2.0**64), 2**64 - 1))


@dataclasses.dataclass(frozen=True)
class TokenStore:
    """A finished store, on a disk or in a bucket. Its blocks are read when they are asked for.

    Attributes:
      path: the store's folder.
      manifest: what it was built from and how much is in it.
      index: [blocks] of `INDEX_DTYPE`.
      first_document: int64 [blocks + 1], the number of the first document of each block, and of all
        documents.
      part_names: of the parts, by their number in the index.
    """

    path: files.Path
    manifest: dict[str, Any]
    index: np.ndarray
    first_document: np.ndarray
    part_names: tuple[str, ...]
    _left_out_bits: np.ndarray

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Opens a finished store.

        Raises:
          InputError: there is none, or its index is damaged.
        """
        folder = files.as_path(path)
        manifest = read_manifest(folder)
        index = np.frombuffer(_read_checked(folder, manifest, INDEX), INDEX_DTYPE)
        bits = np.frombuffer(_read_checked(folder, manifest, LEFT_OUT), np.uint8)
        _check_counts(folder, manifest, index, len(bits))
        return cls(
            folder, manifest, index, bounds_of(index['num_documents']), tuple(manifest['parts']),
            bits)

    @property
    def fingerprint(self) -> str:
        """Identity of the store: text, vocabulary and options."""
        return self.manifest['fingerprint']

    @property
    def num_tokens(self) -> int:
        """Tokens of all documents, used or not."""
        return self.manifest['num_tokens']

    @property
    def repeated_share(self) -> float:
        """Share of the sentences that repeat earlier ones; see `store_statistics`."""
        return self.manifest['repeated_share']

    def window(self, numbers: Sequence[int] | np.ndarray) -> LoadedBlocks:
        """Joins the blocks of these numbers, in this order. Several threads read them.

        Raises:
          InputError: a block is damaged or missing.
        """
        bounds = bounds_of(self.index['num_tokens'][numbers])
        tokens = np.empty(bounds[-1], smallest_token_dtype(self.manifest['vocab_size']))

        def read(place: int) -> Block:
            block = self.block(numbers[place])
            tokens[bounds[place] : bounds[place + 1]] = block.tokens
            # Copies, because views would keep all bytes of the block.
            return block.without_tokens()

        with ThreadPoolExecutor(min(_THREADS, max(len(numbers), 1))) as pool:
            blocks = list(pool.map(read, range(len(numbers))))
        is_left_out = np.concatenate([self._is_left_out(number) for number in numbers])
        return _window(tokens, blocks, is_left_out)

    def block(self, number: int) -> Block:
        """Reads a block and checks it against the index.

        Raises:
          InputError: it is damaged or missing.
        """
        entry = self.index[number]
        path = self.path / f"{self.part_names[entry['part']]}{BLOCKS_ENDING}"
        try:
            content = files.read_range(path, int(entry['offset']), int(entry['num_bytes']))
        except FileNotFoundError:
            raise InputError(f'{path} is missing: {remedy(self.path)}') from None
        return Block.from_bytes(content, entry, path)

    def first_tokens(self, num_tokens: int) -> np.ndarray:
        """The first so many tokens of the text, or all."""
        ends = np.cumsum(self.index['num_tokens'])
        num_blocks = int(np.searchsorted(ends, num_tokens)) + 1
        return self.window(np.arange(min(num_blocks, len(ends)))).tokens[:num_tokens]

    def _is_left_out(self, number: int) -> np.ndarray:
        """[documents] bool, for those of a block."""
        first, last = self.first_document[number : number + 2].tolist()
        first_byte = first // 8
        bits = np.unpackbits(
            self._left_out_bits[first_byte : -(-last // 8)], bitorder='little').astype(bool)
        return bits[first - 8 * first_byte : last - 8 * first_byte]

    def used_hashes(self) -> np.ndarray:
        """The hashes of the different documents that are used, uint64, ascending.

        Of each block only these are read, by several threads, and not checked against the index.

        Raises:
          InputError: a file is missing or cut short.
        """
        numbers = np.arange(len(self.index))
        with ThreadPoolExecutor(_THREADS) as pool:
            hashes = list(pool.map(self._used_hashes, numbers))
        return np.unique(np.concatenate([np.zeros(0, np.uint64), *hashes]))

    def _used_hashes(self, number: int) -> np.ndarray:
        """Those of a block, uint64."""
        entry = self.index[number]
        path = self.path / f"{self.part_names[entry['part']]}{BLOCKS_ENDING}"
        begin, num_bytes = Block.place_of_hashes(entry)
        try:
            content = files.read_range(path, begin, num_bytes)
        except FileNotFoundError:
            content = b''
        if len(content) < num_bytes:
            raise InputError(f'{path} is missing or cut short: {remedy(self.path)}')
        return np.frombuffer(content, '<u8')[~self._is_left_out(number)]

    def held_out(self) -> LoadedBlocks:
        """The used documents with the smallest hashes, up to about `HELD_OUT_TOKENS` tokens.

        Raises:
          InputError: the file is damaged.
        """
        content = _read_checked(self.path, self.manifest, HELD_OUT)
        block = Block.parse(content)
        return _window(block.tokens, [block], np.zeros(len(block.document_lengths), bool))

    def check_file(self, name: str) -> None:
        """Checks one of the files that the manifest describes.

        Raises:
          InputError: it is missing or damaged.
        """
        _read_checked(self.path, self.manifest, name)

    def token_counts(self) -> np.ndarray:
        """How often each id occurs in the text, int64 [vocab_size].

        Raises:
          InputError: the file is damaged.
        """
        return np.frombuffer(_read_checked(self.path, self.manifest, TOKEN_COUNTS), '<i8')


def _window(tokens: np.ndarray, blocks: Sequence[Block], is_left_out: np.ndarray) -> LoadedBlocks:
    """The window of some blocks.

    Args:
      tokens: of all of them.
      blocks: in the order of the window; their own tokens are not looked at.
      is_left_out: [D] bool, for each of their documents.
    """
    return LoadedBlocks(
        tokens=tokens,
        sentence_offsets=bounds_of(np.concatenate([block.sentence_lengths for block in blocks])),
        document_offsets=bounds_of(np.concatenate([block.document_lengths for block in blocks])),
        document_hashes=np.concatenate([block.document_hashes for block in blocks]),
        documents=np.flatnonzero(~is_left_out))


def file_sizes(manifest: Mapping[str, Any]) -> dict[str, int]:
    """Bytes by name of the files that rows are made from, without the manifest itself."""
    sizes = {f'{name}{BLOCKS_ENDING}': size for name, size in manifest['parts'].items()}
    for name, entry in manifest['files'].items():
        sizes[name] = entry['bytes']
    return sizes


def documents_in_words(manifest: Mapping[str, Any]) -> str:
    """How many documents a store has, and how many of them are not used for which reason."""
    left_out = [counted(manifest['num_duplicates'], 'duplicate')]
    kept = ''
    if 'num_near_duplicates' in manifest:
        left_out.append(counted(manifest['num_near_duplicates'], 'near-duplicate'))
    if 'num_contaminated' in manifest:
        contaminated = f"{manifest['num_contaminated']:,} with evaluation texts"
        if manifest['leaves_out_contaminated']:
            left_out.append(contaminated)
        else:
            kept = f'; {contaminated} kept'
    documents = counted(manifest['num_documents'], 'document')
    return f"{documents} ({', '.join(left_out)} left out{kept})"


def described_file(content: bytes) -> dict[str, int]:
    """Size and checksum of a file, as they stand in the manifest under `files`."""
    return {'bytes': len(content), 'crc': zlib.crc32(content)}


def _read_checked(folder: files.Path, manifest: dict[str, Any], name: str) -> bytes:
    """The content of one of the files that the manifest describes."""
    path = folder / name
    try:
        content = files.read_bytes(path)
    except FileNotFoundError:
        raise InputError(f'{path} is missing: {remedy(folder)}') from None
    if described_file(content) != manifest['files'][name]:
        raise InputError(
            f'{path} is damaged (its content is not that of the manifest): {remedy(folder)}')
    return content


def is_finished(path: files.Path) -> bool:
    """Whether a folder holds a finished store."""
    return files.exists(path / MANIFEST)


def open_finished(path: str) -> TokenStore:
    """A store that was built before, whatever its vocabulary.

    Raises:
      InputError: there is no finished store, or it is damaged.
    """
    folder = files.absolute(path)
    if not is_finished(folder):
        raise InputError(f'{path} is no finished token store (it has no {MANIFEST}): name the '
                         'folder that bert_jax.tools.prepare names, or run that again')
    return TokenStore.open(folder)


def read_manifest(path: files.Path) -> dict[str, Any]:
    """The manifest of a finished store, on a disk or in a bucket.

    Raises:
      InputError: there is none, or it is damaged or of another version.
    """
    try:
        manifest = json.loads(files.read_bytes(path / MANIFEST))
        version = manifest['format_version']
        if version == FORMAT_VERSION:
            _check_manifest(manifest)
    except FileNotFoundError:
        raise InputError(
            f'{path} is not a finished token store (no {MANIFEST}): {remedy(path)}') from None
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError,
            RecursionError) as error:
        raise InputError(f'{path / MANIFEST} is damaged ({error}): {remedy(path)}') from None
    if version != FORMAT_VERSION:
        raise InputError(f'{path} has format version {version}, this program reads '
                         f'{FORMAT_VERSION}: {remedy(path)}')
    return manifest


def _check_manifest(manifest: dict[str, Any]) -> None:
    """Raises a ValueError or the like if a manifest lacks what a store is read by."""
    for name in _COUNTS:
        if not isinstance(manifest[name], int) or manifest[name] < 0:
            raise ValueError(f'{name} is no count')
    for name in (INDEX, LEFT_OUT, HELD_OUT, TOKEN_COUNTS):
        described_as = manifest['files'][name]
        if sorted(described_as) != ['bytes', 'crc']:
            raise ValueError(f'{name} is not described')
    if manifest['files'][INDEX]['bytes'] != manifest['num_blocks'] * INDEX_DTYPE.itemsize:
        raise ValueError('its index has not an entry for each block')
    if not all(isinstance(size, int) for size in manifest['parts'].values()):
        raise ValueError('its parts have no sizes')


def _check_counts(
    folder: files.Path, manifest: Mapping[str, Any], index: np.ndarray, left_out_bytes: int
) -> None:
    """Raises an InputError if a manifest does not count what the index does."""
    num_tokens = int(index['num_tokens'].sum(dtype=np.int64))
    num_documents = int(index['num_documents'].sum(dtype=np.int64))
    counted = (manifest['num_tokens'], manifest['num_documents'])
    last_part = int(index['part'].max(initial=0))
    if (
        counted != (num_tokens, num_documents) or left_out_bytes != -(-num_documents // 8)
        or last_part >= len(manifest['parts'])
    ):
        raise InputError(f'{folder / MANIFEST} is damaged (its counts are not those of {INDEX}): '
                         f'{remedy(folder)}')


def remedy(path: files.Path) -> str:
    """The remedy for a damaged store, for messages."""
    return f'delete {path} and it is built again from its text'


@contextlib.contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """Holds a lock on a file (made if missing); if the process dies, the lock is released too."""
    files.check_ends(os.fspath(path))
    with open(path, 'a') as file:  # which empties no file that a link there names
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell(f'waiting for another process, which has {path}')
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def disk_faults(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Makes OSErrors that name no file, as of a full disk, name the folder that the block fills."""
    try:
        yield
    except OSError as error:
        if error.errno and not error.filename:
            error.filename = os.fspath(folder)
        raise


# Old names, for config files of users (docs/stability.md).
Window = LoadedBlocks
