"""By which documents of a text are left out: near-duplicates, and those with evaluation texts.

Each connects functions on arrays (`near_duplicates`, `contamination`) to the parts of a store: what
these find in the documents of a part is kept in its notes, and what they conclude from all parts
goes into the manifest. In a manifest, beside `num_duplicates`:

    num_near_duplicates     documents left out as such
    num_contaminated        documents that hold evaluation texts, of those not left out before
    leaves_out_contaminated whether these are left out
    contamination           of each evaluation file, the fields of `contamination.EvaluatedFile`
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np

from bert_jax.config.filtering import FilterOptions
from bert_jax.corpus import near_duplicates
from bert_jax.corpus.contamination import Evaluated, Found, fingerprint_of
from bert_jax.corpus.near_duplicates import Signatures, signatures
from bert_jax.corpus.store_parts import DocumentFilter, LeftOut, Notes
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

    def decide(self, notes: Sequence[Notes], left_out: LeftOut) -> LeftOut:
        """Adds the documents that are similar to an earlier one, which may be left out itself."""
        def read(part: int, rows: slice) -> tuple[np.ndarray, np.ndarray]:
            return notes[part].read_rows(_KEYS, rows), notes[part].read_rows(_KEY_DOCUMENTS, rows)

        is_similar = near_duplicates.near_duplicates(
            [part.read(_BOUNDS) for part in notes], read,
            np.concatenate([part.read(_SKETCHES) for part in notes]), self.threshold)
        num_added = int((is_similar & ~left_out.is_left_out).sum())
        return LeftOut(
            left_out.is_left_out | is_similar,
            {**left_out.counts, 'num_near_duplicates': num_added})


class _PartSignatures:
    """The signatures of a part's documents."""

    def __init__(self, threshold: float):
        self._threshold = threshold
        self._found: list[Signatures] = []

    def add(self, tokens: np.ndarray, token_bounds: np.ndarray) -> None:
        """Signs the next documents."""
        self._found.append(signatures(tokens, token_bounds, self._threshold))

    def notes(self) -> Mapping[str, np.ndarray]:
        """Those of all documents."""
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

    def decide(self, notes: Sequence[Notes], left_out: LeftOut) -> LeftOut:
        """Counts, and adds the documents with evaluation texts if they are to be left out."""
        found: list[Found] = []
        is_contaminated = np.zeros(len(left_out.is_left_out), bool)
        first_document = 0
        for part in notes:
            of_part = Found(part.read(_DOCUMENTS), part.read(_FILES), part.read(_RUNS))
            is_contaminated[first_document + of_part.documents] = True
            found.append(of_part)
            first_document += len(part.read('document_hashes'))
        evaluated_files = self._evaluated.counts(found)
        counts = {
            **left_out.counts,
            'num_contaminated': int((is_contaminated & ~left_out.is_left_out).sum()),
            'leaves_out_contaminated': self.is_removing,
            'contamination': [file._asdict() for file in evaluated_files],
        }
        if not self.is_removing:
            return LeftOut(left_out.is_left_out, counts)
        return LeftOut(left_out.is_left_out | is_contaminated, counts)


class _PartFound:
    """What the documents of a part hold of evaluation files."""

    def __init__(self, evaluated: Evaluated):
        self._evaluated = evaluated
        self._found: list[Found] = []
        self._num_documents: list[int] = []

    def add(self, tokens: np.ndarray, token_bounds: np.ndarray) -> None:
        """Looks at the next documents."""
        self._found.append(self._evaluated.found(tokens, token_bounds))
        self._num_documents.append(len(token_bounds) - 1)

    def notes(self) -> Mapping[str, np.ndarray]:
        """What all documents hold."""
        found = Found.joined(self._found, self._num_documents)
        return {_DOCUMENTS: found.documents, _FILES: found.files, _RUNS: found.runs}
