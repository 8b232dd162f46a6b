"""The last step of a token store: its index, and what depends on all documents.

It reads what was noted of the parts, not the text, and may be repeated: the files that it writes
follow from the parts alone. First all documents are compared with each other; then each part has a
summary, which knows the documents that are left out; then all summaries are joined, in whatever
order, and written. One process does it all, with a byte of each document in memory and as much as a
comparison takes; or those of an engine compare and summarize (see `beam_shares`), and one joins. A
text of 1e12 tokens, in 16,000 parts, has about 1e9 documents.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from bert_jax.corpus.document_facts import ExactDuplicates
from bert_jax.corpus.store_parts import (
    Decider,
    DocumentFilter,
    LowestDocuments,
    Notes,
    blocks_path,
    notes_path,
    num_documents_of,
    numbers_of,
    part_names,
)
from bert_jax.rows import store
from bert_jax.rows.blocks import Block, smallest_token_dtype
from bert_jax.rows.store_statistics import SentenceSample
from bert_jax.runtime import files
from bert_jax.runtime.errors import InputError

VOCABULARY = 'vocabulary'  # the folder of the tokenizer's files
_THREADS = 16


def deciders_of(facts: Sequence[DocumentFilter]) -> list[Decider]:
    """The deciders of which documents are left out, in their order."""
    return [ExactDuplicates(), *facts]


class PartSummary(NamedTuple):
    """The record of a part once it is known which of its documents are left out.

    Attributes:
      blocks: their index, of `blocks.INDEX_DTYPE`.
      is_last: whether it is the last of its share.
      totals: int64 [2], sentences and bytes of text.
      token_counts: int64 [vocab_size].
      left_out: a bit for each document, as bytes.
      num_found, noted: by each decider, as its `counts` takes them.
      sentences: (hashes, documents, limit) of a sample, from documents that are used.
      held_out: (documents, their numbers, the limit of hashes), of those that are used.
    """

    blocks: np.ndarray
    is_last: bool
    totals: np.ndarray
    token_counts: np.ndarray
    left_out: np.ndarray
    num_found: list[int]
    noted: list[Any]
    sentences: tuple[np.ndarray, np.ndarray, np.uint64]
    held_out: tuple[Block, np.ndarray, np.uint64]


def summarized(
    notes: Notes, deciders: Sequence[Decider], repeats: Sequence[np.ndarray]
) -> PartSummary:
    """The summary of a part.

    Args:
      notes: of the part.
      deciders: see `deciders_of`.
      repeats: for each of these, what its comparison found in the part: bool [D].

    Raises:
      InputError: the notes are damaged.
    """
    index = notes.read('index')
    is_left_out = np.zeros(num_documents_of(index), bool)
    num_found: list[int] = []
    noted: list[Any] = []
    for decider, is_repeat in zip(deciders, repeats, strict=True):
        is_found, note = decider.found(notes, is_repeat)
        num_found.append(int((is_found & ~is_left_out).sum()))
        noted.append(note)
        if decider.leaves_out:
            is_left_out |= is_found
    hashes = notes.read('sentence_hashes')
    documents = notes.read('sentence_documents')
    is_used = ~is_left_out[documents]
    block, numbers, limit = notes.held_out()
    is_taken = ~is_left_out[numbers]
    _, is_last = notes.following()
    return PartSummary(
        blocks=index,
        is_last=is_last,
        totals=notes.read('totals'),
        token_counts=notes.read('token_counts'),
        left_out=np.packbits(is_left_out),
        num_found=num_found,
        noted=noted,
        sentences=(
            hashes[is_used], documents[is_used], np.uint64(notes.read('sentence_limit'))),
        held_out=(block.chosen(is_taken), numbers[is_taken], limit))


class Summaries:
    """The summaries of parts, to be joined in any order.

    Those of all parts of a text take about as much memory as its index: samples of its parts are
    the smaller the more text there is, and the counts of tokens are added up.

    Attributes:
      parts: by name; without `token_counts`.
      token_counts: int64 [vocab_size], of all of them.
    """

    def __init__(self) -> None:
        self.parts: dict[str, PartSummary] = {}
        self.token_counts = np.zeros(0, np.int64)

    def add(self, name: str, part: PartSummary) -> None:
        """Adds a part."""
        self.parts[name] = part._replace(token_counts=np.zeros(0, np.int64))
        self._count(part.token_counts)

    def join(self, others: 'Summaries') -> None:
        """Adds other parts."""
        self.parts |= others.parts
        self._count(others.token_counts)

    def _count(self, token_counts: np.ndarray) -> None:
        if not len(self.token_counts):
            self.token_counts = token_counts.copy()
        elif len(token_counts):
            self.token_counts += token_counts


def _summaries(
    folder: files.Path, num_shares: int, facts: Sequence[DocumentFilter]
) -> Summaries:
    """The summaries of all parts in a folder, made by this process.

    Raises:
      InputError: a part is missing or damaged.
    """
    deciders = deciders_of(facts)
    found = Summaries()
    with files.temporary_folder() as copies:
        names = part_names(files.sizes(folder))
        with ThreadPoolExecutor(_THREADS) as pool:
            notes = list(pool.map(
                lambda name: Notes.open(notes_path(folder, name), copies), names))
        # Not in threads: Python 3.11's parser, which reads the headers of NumPy's files, may fail
        # there (CPython's issue 106905).
        indices = {name: of_part.read('index') for name, of_part in zip(names, notes, strict=True)}
        _check_whole(names, [of_part.following()[1] for of_part in notes], folder, num_shares)
        _check_sizes(indices, folder)
        ends = np.cumsum([num_documents_of(index) for index in indices.values()])
        repeats: list[list[np.ndarray]] = []
        for decider in deciders:
            is_repeat = np.zeros(ends[-1] if names else 0, bool)
            if decider.comparison is not None:
                is_repeat = decider.comparison.repeats(notes)
            repeats.append(np.split(is_repeat, ends[:-1]))
        for name, of_part, *is_repeat_in in zip(names, notes, *repeats, strict=True):
            found.add(name, summarized(of_part, deciders, is_repeat_in))
    return found


def _check_whole(
    names: Sequence[str], are_last: Sequence[bool], folder: files.Path, num_shares: int
) -> None:
    """Raises an InputError unless each share has all of its parts.

    Args:
      names: of the parts that are there, in the order of the text.
      are_last: whether each is the last of its share.
      folder: of the store.
      num_shares: of the source.
    """
    expected = (0, 0)
    for name, is_last in zip(names, are_last, strict=True):
        share, number = numbers_of(name)
        if (share, number) != expected:
            break
        expected = (share + 1, 0) if is_last else (share, number + 1)
    if expected != (num_shares, 0):
        raise InputError(f'{folder} lacks a part of share {expected[0]}, which was there: '
                         'start again and it is built')


def _check_sizes(indices: Mapping[str, np.ndarray], folder: files.Path) -> dict[str, int]:
    """The bytes of the parts' blocks.

    Raises:
      InputError: a file has others than its index says, or is missing.
    """
    found = files.sizes(folder)
    sizes: dict[str, int] = {}
    for name, index in indices.items():
        path = blocks_path(folder, name)
        sizes[name] = int(index['num_bytes'].sum(dtype=np.int64))
        if found.get(path.name) != sizes[name]:
            raise InputError(f'{path} is missing or has another size than its part: delete '
                             f'{notes_path(folder, name)} and it is built again')
    return sizes


@dataclasses.dataclass(frozen=True)
class Origin:
    """The origin of a store, as in its manifest.

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
    bad_files: Mapping[str, str] | None = None, summaries: Summaries | None = None,
) -> None:
    """Writes what a store lacks when all of its parts are there, and last the manifest.

    Args:
      folder: of the store.
      origin: for the manifest.
      num_shares: of the source.
      facts: see `store_building.open_build`.
      bad_files: what is wrong with files that were set aside, by their names; for the manifest.
      summaries: of all parts; None: they are made here.

    Raises:
      InputError: a part is damaged, or there is no text.
    """
    if summaries is None:
        summaries = _summaries(folder, num_shares, facts)
    names = sorted(summaries.parts, key=numbers_of)
    parts = [summaries.parts[name] for name in names]
    _check_whole(names, [part.is_last for part in parts], folder, num_shares)
    sizes = _check_sizes({name: summaries.parts[name].blocks for name in names}, folder)
    num_documents = sum(num_documents_of(part.blocks) for part in parts)
    if not num_documents:
        raise InputError(f"data source '{origin.source}' holds no text")
    contents = _files_of_all_parts(parts, summaries.token_counts, origin.vocab_size)
    for name, content in contents.items():
        files.write_whole(folder / name, content)
    contents |= _vocabulary_files(folder)
    num_sentences, text_bytes = np.sum([part.totals for part in parts], axis=0).tolist()
    manifest = {
        'format_version': store.FORMAT_VERSION,
        **dataclasses.asdict(origin),
        'num_blocks': sum(len(part.blocks) for part in parts),
        'num_tokens': int(summaries.token_counts.sum()),
        'num_sentences': num_sentences,
        'num_documents': num_documents,
        **_counts(parts, deciders_of(facts)),
        'text_bytes': text_bytes,
        'repeated_share': _repeated_share(parts),
        **({'bad_files': bad_files} if bad_files else {}),
        'parts': sizes,
        'files': {name: store.described_file(content) for name, content in contents.items()},
    }
    _check_still_there(folder, names)
    files.write_whole(folder / store.MANIFEST, json.dumps(manifest, indent=1))


def _files_of_all_parts(
    parts: Sequence[PartSummary], token_counts: np.ndarray, vocab_size: int
) -> dict[str, bytes]:
    """The content of the files that describe all parts together, by name.

    Args:
      parts: of the store, in order.
      token_counts: by id.
      vocab_size: of the tokenizer.
    """
    is_left_out = np.concatenate([
        np.unpackbits(part.left_out, count=num_documents_of(part.blocks)) for part in parts])
    held_out = LowestDocuments(smallest_token_dtype(vocab_size).itemsize)
    for part in parts:
        held_out.add(*part.held_out)
    held_out_block, _ = held_out.documents()
    return {
        store.INDEX: _index(parts).tobytes(),
        store.LEFT_OUT: np.packbits(is_left_out, bitorder='little').tobytes(),
        store.HELD_OUT: held_out_block.to_bytes(),
        store.TOKEN_COUNTS: token_counts.astype('<i8').tobytes(),
    }


def _repeated_share(parts: Sequence[PartSummary]) -> float:
    """The share of the sentences that repeat another, by a sample of their hashes."""
    sample = SentenceSample()
    for part in parts:
        sample.add_hashes(*part.sentences)
    return sample.repeated_share()


def _check_still_there(folder: files.Path, names: Iterable[str]) -> None:
    """Raises an InputError if another process has removed a part since it was read."""
    found = files.sizes(folder)
    for name in names:
        for path in (blocks_path(folder, name), notes_path(folder, name)):
            if path.name not in found:
                raise InputError(f'{path} was removed by another command for the same text, which '
                                 'may have fewer bad files: start again and it is built')


def _index(parts: Iterable[PartSummary]) -> np.ndarray:
    """The index of all blocks, with the numbers of their parts."""
    indices = [part.blocks.copy() for part in parts]
    for number, index in enumerate(indices):
        index['part'] = number
    return np.concatenate(indices)


def _counts(parts: Sequence[PartSummary], deciders: Sequence[Decider]) -> dict[str, Any]:
    """The counts of all deciders, for the manifest."""
    counts: dict[str, Any] = {}
    for number, decider in enumerate(deciders):
        num_found = sum(part.num_found[number] for part in parts)
        counts |= decider.counts(num_found, [part.noted[number] for part in parts])
    return counts


def _vocabulary_files(folder: files.Path) -> dict[str, bytes]:
    """The files of the tokenizer that a store keeps, by their names in the store."""
    contents = {}
    for path in files.children(folder / VOCABULARY):
        if not files.is_incidental(path):
            contents[f'{VOCABULARY}/{path.name}'] = files.read_bytes(path)
    return contents
