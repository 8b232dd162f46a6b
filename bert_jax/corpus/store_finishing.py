"""The last step of a token store: its index, and what depends on all documents.

It reads what was noted of the parts, not the text, and may be repeated: the files that it writes
follow from the parts alone. Of D documents it keeps a byte each in memory, and `_HASHES_AT_ONCE`
hashes. A text of 1e12 tokens, in 16,000 parts, has about 1e9 documents.
"""

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from bert_jax.corpus.store_parts import (
    DocumentFilter,
    LeftOut,
    LowestDocuments,
    Notes,
    blocks_path,
    notes_path,
    numbers_of,
    part_names,
)
from bert_jax.rows import store
from bert_jax.rows.blocks import smallest_token_dtype
from bert_jax.rows.store_statistics import SentenceSample
from bert_jax.runtime import files
from bert_jax.runtime.errors import InputError

VOCABULARY = 'vocabulary'  # the folder of the tokenizer's files
_HASHES_AT_ONCE = 1 << 26  # of documents: sorting them takes 2 GB
_THREADS = 16


class Parts:
    """The finished parts of a store.

    Attributes:
      names: of the parts, in the order of the text.
      sizes: bytes of their blocks.
      notes: of the parts.
      indices: of their blocks, of `blocks.INDEX_DTYPE`.
      first_document: int64 [parts + 1], the number of each part's first document, and of all.
    """

    def __init__(self, folder: files.Path, num_shares: int, copies: str):
        """Opens the notes.

        Args:
          folder: of the store.
          num_shares: of the source.
          copies: a folder on a disk for the notes, if the store is in a bucket.

        Raises:
          InputError: a part is missing or damaged.
        """
        found = files.sizes(folder)
        self.names = part_names(found)
        with ThreadPoolExecutor(_THREADS) as pool:
            self.notes = list(pool.map(
                lambda name: Notes.open(notes_path(folder, name), copies), self.names))
        # Not in threads: Python 3.11's parser, which reads the headers of NumPy's files, may fail
        # there (CPython's issue 106905).
        self.indices = [notes.read('index') for notes in self.notes]
        self._check_whole(folder, num_shares)
        self.sizes: list[int] = []
        for name, index in zip(self.names, self.indices, strict=True):
            path = blocks_path(folder, name)
            size = int(index['num_bytes'].sum(dtype=np.int64))
            if found.get(path.name) != size:
                raise InputError(f'{path} is missing or has another size than its part: delete '
                                 f'{notes_path(folder, name)} and it is built again')
            self.sizes.append(size)
        num_documents = [int(index['num_documents'].sum(dtype=np.int64)) for index in self.indices]
        self.first_document = np.concatenate([[0], np.cumsum(num_documents, dtype=np.int64)])

    def _check_whole(self, folder: files.Path, num_shares: int) -> None:
        """Raises an InputError unless each share has all of its parts."""
        expected = (0, 0)
        for name, notes in zip(self.names, self.notes, strict=True):
            share, number = numbers_of(name)
            if (share, number) != expected:
                break
            _, is_last = notes.following()
            expected = (share + 1, 0) if is_last else (share, number + 1)
        if expected != (num_shares, 0):
            raise InputError(f'{folder} lacks a part of share {expected[0]}, which was there: '
                             'start again and it is built')

    @property
    def num_documents(self) -> int:
        """Documents of all parts."""
        return int(self.first_document[-1])

    def documents(self, part: int) -> slice:
        """The numbers of a part's documents."""
        return slice(int(self.first_document[part]), int(self.first_document[part + 1]))


def left_out_documents(parts: Parts, facts: Sequence[DocumentFilter]) -> LeftOut:
    """Decides from what was noted of all documents which are not to be used.

    These are all but the first of exact duplicates, and those that the facts add, one after the
    other.
    """
    left_out = _exact_duplicates(parts)
    for fact in facts:
        left_out = fact.decide(parts.notes, left_out)
    return left_out


def _exact_duplicates(parts: Parts) -> LeftOut:
    """All documents but the first with the same hash."""
    def hashes() -> Iterator[np.ndarray]:
        for notes in parts.notes:
            yield notes.read('document_hashes')

    if parts.num_documents <= _HASHES_AT_ONCE:
        in_memory = list(hashes())
        is_duplicate = repeated(lambda: in_memory, parts.num_documents)
    else:
        is_duplicate = repeated(hashes, parts.num_documents)
    return LeftOut(is_duplicate, {'num_duplicates': int(is_duplicate.sum())})


def repeated(hashes: Callable[[], Iterable[np.ndarray]], num_hashes: int) -> np.ndarray:
    """Which of some hashes occur earlier among them, bool [num_hashes].

    They are read once for each pass; a pass takes those with some leading bits.

    Args:
      hashes: gives them, as uint64 arrays one after the other; called for each pass.
      num_hashes: of all arrays together.
    """
    bits = 0
    while num_hashes >> bits > _HASHES_AT_ONCE:
        bits += 1
    is_repeated = np.zeros(num_hashes, bool)
    for leading in range(1 << bits):
        chosen: list[np.ndarray] = []
        places: list[np.ndarray] = []
        begin = 0
        for values in hashes():
            if bits:
                place = np.flatnonzero(values >> np.uint64(64 - bits) == leading)
                chosen.append(values[place])
                places.append(place + begin)
            else:
                chosen.append(values)
            begin += len(values)
        found = _later_ones(np.concatenate([*chosen, np.zeros(0, np.uint64)]))
        if bits:
            found = np.concatenate(places)[found]
        is_repeated[found] = True
    return is_repeated


def _later_ones(hashes: np.ndarray) -> np.ndarray:
    """The places of hashes that occur at an earlier place too, int64."""
    order = np.argsort(hashes)
    ordered = hashes[order]
    is_equal = ordered[1:] == ordered[:-1]  # to the one before
    in_run = np.zeros(len(order), bool)
    in_run[1:] = is_equal
    in_run[:-1] |= is_equal
    places = order[in_run]
    of_places = ordered[in_run]
    by_place = np.lexsort((places, of_places))
    places = places[by_place]
    of_places = of_places[by_place]
    return places[1:][of_places[1:] == of_places[:-1]]


@dataclasses.dataclass(frozen=True)
class Origin:
    """What a store is made from, as its manifest says it.

    Attributes:
      fingerprint: of the store.
      source: the user's name for the text.
      source_fingerprint, tokenizer_fingerprint: of text and tokenizer.
      vocab_size: of the tokenizer.
      lowercase: of the tokenizer.
    """

    fingerprint: str
    source: str
    source_fingerprint: str
    tokenizer_fingerprint: str
    vocab_size: int
    lowercase: bool | None


def finish_store(
    folder: files.Path, origin: Origin, num_shares: int, facts: Sequence[DocumentFilter] = (),
    bad_files: Mapping[str, str] | None = None,
) -> None:
    """Writes what a store lacks when all of its parts are there, and last the manifest.

    Args:
      folder: of the store.
      origin: for the manifest.
      num_shares: of the source.
      facts: see `store_building.open_build`.
      bad_files: what is wrong with files that were set aside, by their names; for the manifest.

    Raises:
      InputError: a part is damaged, or there is no text.
    """
    with files.temporary_folder() as copies:
        parts = Parts(folder, num_shares, copies)
        if not parts.num_documents:
            raise InputError(f"data source '{origin.source}' holds no text")
        left_out = left_out_documents(parts, facts)
        contents = {
            store.INDEX: _index(parts).tobytes(),
            store.LEFT_OUT: np.packbits(left_out.is_left_out, bitorder='little').tobytes(),
        }
        totals = np.zeros(2, np.int64)
        token_counts = np.zeros(origin.vocab_size, np.int64)
        sentences = SentenceSample()
        held_out = LowestDocuments(smallest_token_dtype(origin.vocab_size).itemsize)
        for part, notes in enumerate(parts.notes):
            is_used = ~left_out.is_left_out[parts.documents(part)]
            totals += notes.read('totals')
            token_counts += notes.read('token_counts')
            _add_sentences(sentences, notes, is_used)
            _add_held_out(held_out, notes, is_used)
    block, _ = held_out.documents()
    contents[store.HELD_OUT] = block.to_bytes()
    contents[store.TOKEN_COUNTS] = token_counts.astype('<i8').tobytes()
    for name, content in contents.items():
        files.write_whole(folder / name, content)
    contents |= _vocabulary_files(folder)
    num_sentences, text_bytes = totals.tolist()
    manifest = {
        'format_version': store.FORMAT_VERSION,
        **dataclasses.asdict(origin),
        'num_blocks': sum(map(len, parts.indices)),
        'num_tokens': int(token_counts.sum()),
        'num_sentences': num_sentences,
        'num_documents': parts.num_documents,
        **left_out.counts,
        'text_bytes': text_bytes,
        'repeated_share': sentences.repeated_share(),
        **({'bad_files': bad_files} if bad_files else {}),
        'parts': dict(zip(parts.names, parts.sizes, strict=True)),
        'files': {name: store.described_file(content) for name, content in contents.items()},
    }
    files.write_whole(folder / store.MANIFEST, json.dumps(manifest, indent=1))


def _index(parts: Parts) -> np.ndarray:
    """The index of all blocks, with the numbers of their parts."""
    for number, index in enumerate(parts.indices):
        index['part'] = number
    return np.concatenate(parts.indices)


def _add_sentences(sentences: SentenceSample, notes: Notes, is_used: np.ndarray) -> None:
    """Adds a part's sampled sentences of the documents that are used, bool [D of the part]."""
    hashes = notes.read('sentence_hashes')
    documents = notes.read('sentence_documents')
    in_used = is_used[documents]
    limit = np.uint64(notes.read('sentence_limit'))
    sentences.add_hashes(hashes[in_used], documents[in_used], limit)


def _add_held_out(held_out: LowestDocuments, notes: Notes, is_used: np.ndarray) -> None:
    """Adds a part's candidates for the held-out documents, as far as they are used."""
    block, numbers, limit = notes.held_out()
    used = is_used[numbers]
    held_out.add(block.chosen(used), numbers[used], limit)


def _vocabulary_files(folder: files.Path) -> dict[str, bytes]:
    """The files of the tokenizer that a store keeps, by their names in the store."""
    contents = {}
    for path in files.children(folder / VOCABULARY):
        if not files.is_incidental(path):
            contents[f'{VOCABULARY}/{path.name}'] = files.read_bytes(path)
    return contents
