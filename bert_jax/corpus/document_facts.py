"""By which documents of a text are left out: duplicates, and those with evaluation texts.

Each connects functions on arrays (`exact_duplicates`, `near_duplicates`, `contamination`) to the
parts of a store: what these find in the documents of a part is kept in its notes, and what they
conclude from all parts goes into the manifest:

    num_duplicates          documents left out that are equal to an earlier one
    num_near_duplicates     documents left out as such
    num_contaminated        documents that hold evaluation texts, of those not left out before
    leaves_out_contaminated whether these are left out
    contamination           of each evaluation file, the fields of `contamination.EvaluatedFile`
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.config.filtering import FilterOptions
from bert_jax.corpus import exact_duplicates, near_duplicates
from bert_jax.corpus.contamination import Evaluated, Found, fingerprint_of
from bert_jax.corpus.near_duplicates import Signatures, signatures
from bert_jax.corpus.store_parts import DocumentFilter, KeyedRows, Notes, num_documents_of
from bert_jax.text.tokenizer import Tokenizer

# Names of notes.
_KEYS = 'near_duplicates_keys'
_KEY_DOCUMENTS = 'near_duplicates_documents'
_SKETCHES = 'near_duplicates_sketches'
_BOUNDS = 'near_duplicates_bounds'
_DOCUMENTS = 'contamination_documents'
_FILES = 'contamination_files'
_RUNS = 'contamination_runs'


def document_facts(options: FilterOptions, tokenizer: Tokenizer) -> list[DocumentFilter]:
    """The filters of a text.

    Args:
      options: which documents are left out.
      tokenizer: of the text.
    """
    facts: list[DocumentFilter] = []
    if options.near_duplicates:
        facts.append(NearDuplicates(options.near_duplicates))
    if options.decontaminate:
        facts.append(Contamination(
            options.decontaminate, options.remove_contaminated, tokenizer))
    return facts


@dataclasses.dataclass(frozen=True)
class ExactDuplicates:
    """Leaves out documents that are equal to an earlier one, in every store."""

    @property
    def leaves_out(self) -> bool:
        """Always."""
        return True

    @property
    def comparison(self) -> '_EqualDocuments':
        """With all earlier documents."""
        return _EqualDocuments()

    def found(self, notes: Notes, is_repeat: np.ndarray) -> tuple[np.ndarray, None]:
        """Those that the comparison found."""
        return is_repeat, None

    def counts(self, num_found: int, noted: Sequence[None]) -> dict[str, Any]:
        """How many."""
        return {'num_duplicates': num_found}


class _EqualDocuments:
    """Finds documents with an equal hash, which is their key."""

    def repeats(self, notes: Sequence[Notes]) -> np.ndarray:
        """See `store_parts.Comparison`."""
        num_documents = sum(num_documents_of(part.read('index')) for part in notes)
        return exact_duplicates.repeated(
            lambda: (part.read('document_hashes') for part in notes), num_documents)

    def rows(self, notes: Notes) -> KeyedRows:
        """See `store_parts.Comparison`."""
        hashes = notes.read('document_hashes')
        return KeyedRows(
            hashes, np.arange(len(hashes), dtype=np.uint32), np.zeros((len(hashes), 0), np.uint64))

    def repeats_in(self, rows: KeyedRows) -> np.ndarray:
        """See `store_parts.Comparison`."""
        return exact_duplicates.later_ones(rows.keys)


@dataclasses.dataclass(frozen=True)
class NearDuplicates:
    """Leaves out documents that are similar to an earlier one.

    The last step holds 16 bytes of each document in memory, and the keys of a pass.

    Attributes:
      threshold: from what similarity on.
    """

    threshold: float

    @property
    def fingerprint(self) -> str:
        """Changes with the threshold and the rules."""
        return f'near-duplicates {float(self.threshold)} {near_duplicates.VERSION}'

    def of_part(self) -> '_PartSignatures':
        """Begins the notes of a part."""
        return _PartSignatures(self.threshold)

    @property
    def leaves_out(self) -> bool:
        """Always: there is no other use of them."""
        return True

    @property
    def comparison(self) -> '_SimilarDocuments':
        """With all earlier documents, which may be left out themselves."""
        return _SimilarDocuments(self.threshold)

    def found(self, notes: Notes, is_repeat: np.ndarray) -> tuple[np.ndarray, None]:
        """Those that the comparison found."""
        return is_repeat, None

    def counts(self, num_found: int, noted: Sequence[None]) -> dict[str, Any]:
        """How many, exact duplicates not among them."""
        return {'num_near_duplicates': num_found}


class _SimilarDocuments(NamedTuple):
    """Finds documents with an equal key whose sketches are similar."""

    threshold: float

    def repeats(self, notes: Sequence[Notes]) -> np.ndarray:
        """See `store_parts.Comparison`."""
        def read(part: int, rows: slice) -> tuple[np.ndarray, np.ndarray]:
            return notes[part].read_rows(_KEYS, rows), notes[part].read_rows(_KEY_DOCUMENTS, rows)

        return near_duplicates.near_duplicates(
            [part.read(_BOUNDS) for part in notes], read,
            np.concatenate([part.read(_SKETCHES) for part in notes]), self.threshold)

    def rows(self, notes: Notes) -> KeyedRows:
        """See `store_parts.Comparison`."""
        documents = notes.read(_KEY_DOCUMENTS)
        return KeyedRows(notes.read(_KEYS), documents, notes.read(_SKETCHES)[documents])

    def repeats_in(self, rows: KeyedRows) -> np.ndarray:
        """See `store_parts.Comparison`."""
        return np.unique(near_duplicates.similar_to_earlier(
            rows.keys, np.arange(len(rows.keys)), rows.sketches, self.threshold))


class _PartSignatures:
    """The signatures of a part's documents."""

    def __init__(self, threshold: float):
        self._threshold = threshold
        self._found: list[Signatures] = []

    def add(self, tokens: np.ndarray, token_bounds: np.ndarray) -> None:
        """Signs the next documents."""
        self._found.append(signatures(tokens, token_bounds, self._threshold))

    def notes(self) -> Mapping[str, np.ndarray]:
        """The notes of all documents."""
        found = Signatures.joined(self._found)
        return {
            _KEYS: found.keys,
            _KEY_DOCUMENTS: found.documents,
            _SKETCHES: found.sketches,
            _BOUNDS: found.bounds,
        }


@dataclasses.dataclass(frozen=True)
class Contamination:
    """Counts texts of evaluation files, and may leave out the documents that hold them.

    The files are read when the first documents are looked at: not where the store is there already.

    Attributes:
      files: see `contamination.Evaluated.open`.
      is_removing: whether the documents are left out.
      tokenizer: of the text.
    """

    files: str
    is_removing: bool
    tokenizer: Tokenizer

    @property
    def fingerprint(self) -> str:
        """Changes with the content of the files, the rules, and whether documents are left out."""
        return f'contamination {fingerprint_of(self.files)} {self.is_removing}'

    @functools.cached_property
    def _evaluated(self) -> Evaluated:
        return Evaluated.open(self.files, self.tokenizer)

    def of_part(self) -> '_PartFound':
        """Begins the notes of a part."""
        return _PartFound(self._evaluated)

    @property
    def leaves_out(self) -> bool:
        """Whether they are left out, or counted only."""
        return self.is_removing

    @property
    def comparison(self) -> None:
        """None: a document is compared with the evaluation files alone."""

    def found(self, notes: Notes, is_repeat: np.ndarray) -> tuple[np.ndarray, Found]:
        """The documents that hold texts of the files, and which texts."""
        of_part = Found(notes.read(_DOCUMENTS), notes.read(_FILES), notes.read(_RUNS))
        is_contaminated = np.zeros(len(notes.read('document_hashes')), bool)
        is_contaminated[of_part.documents] = True
        return is_contaminated, of_part

    def counts(self, num_found: int, noted: Sequence[Found]) -> dict[str, Any]:
        """How many documents, and of each file how much is in the text."""
        return {
            'num_contaminated': num_found,
            'leaves_out_contaminated': self.is_removing,
            'contamination': [file._asdict() for file in self._evaluated.counts(noted)],
        }


class _PartFound:
    """The texts of evaluation files in the documents of a part."""

    def __init__(self, evaluated: Evaluated):
        self._evaluated = evaluated
        self._found: list[Found] = []
        self._num_documents: list[int] = []

    def add(self, tokens: np.ndarray, token_bounds: np.ndarray) -> None:
        """Looks at the next documents."""
        self._found.append(self._evaluated.found(tokens, token_bounds))
        self._num_documents.append(len(token_bounds) - 1)

    def notes(self) -> Mapping[str, np.ndarray]:
        """The texts that all documents hold."""
        found = Found.joined(self._found, self._num_documents)
        return {_DOCUMENTS: found.documents, _FILES: found.files, _RUNS: found.runs}
