"""Tokenized documents on disk, memory-mapped: what pre-training reads.

A store is a directory of flat little-endian arrays, made by `store.py` and never changed. T tokens,
S sentences, D documents, K documents that are kept (exact duplicates are passed over).
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from bert_jax.errors import InputError

FORMAT_VERSION = 1
MANIFEST = 'manifest.json'


@dataclasses.dataclass(frozen=True)
class TokenStore:
    """Token ids with the bounds of sentences and documents. No sentence or document is empty.

    Attributes:
      path: the store's directory.
      manifest: what it was built from and how much is in it.
      tokens: uint16 or uint32 [T], all documents one after the other, without special tokens.
      sentence_offsets: int64 [S+1], sentence s is tokens[sentence_offsets[s]:...[s+1]].
      document_offsets: int64 [D+1], document d is sentences document_offsets[d] to ...[d+1].
      document_hashes: uint64 [D], of the token ids.
      documents: int64 [K], indices of the documents to use, ascending.
    """

    path: Path
    manifest: dict[str, Any]
    tokens: np.ndarray
    sentence_offsets: np.ndarray
    document_offsets: np.ndarray
    document_hashes: np.ndarray
    documents: np.ndarray

    @classmethod
    def open(cls, path: Path | str) -> TokenStore:
        """Maps a finished store.

        Raises:
          InputError: there is none, or its files are not what its manifest says.
        """
        path = Path(path)
        try:
            manifest = json.loads((path / MANIFEST).read_text())
        except FileNotFoundError:
            raise InputError(
                f'{path} is not a finished token store (no {MANIFEST}): build it again'
            ) from None
        except ValueError as error:
            raise InputError(f'{path / MANIFEST} is damaged ({error}): {_remedy(path)}') from None
        if manifest.get('format_version') != FORMAT_VERSION:
            raise InputError(
                f"{path} has format version {manifest.get('format_version')}, this program reads "
                f'{FORMAT_VERSION}: {_remedy(path)}'
            )
        for name, size in manifest['files'].items():
            file = path / name
            found = file.stat().st_size if file.exists() else -1
            if found != size:
                raise InputError(
                    f'{file} is missing: {_remedy(path)}' if found < 0 else
                    f'{file} has {found} bytes where the manifest says {size}: {_remedy(path)}'
                )
        return cls(
            path=path,
            manifest=manifest,
            tokens=np.memmap(path / 'tokens.bin', manifest['dtype'], 'r'),
            sentence_offsets=np.memmap(path / 'sentence_offsets.bin', '<i8', 'r'),
            document_offsets=np.memmap(path / 'document_offsets.bin', '<i8', 'r'),
            document_hashes=np.memmap(path / 'document_hashes.bin', '<u8', 'r'),
            documents=np.load(path / 'documents.npy'),
        )

    @property
    def fingerprint(self) -> str:
        """Identity of the store: text, vocabulary and options."""
        return self.manifest['fingerprint']

    def split_held_out(
        self, fraction: float, min_documents: int = 2
    ) -> tuple[np.ndarray, np.ndarray]:
        """Splits the documents by their hashes: by what they say, not where they stand.

        A document's side depends on its own text only (but for `min_documents`), so a corpus can
        grow without any document changing sides.

        Args:
          fraction: share of the documents to hold out; 0 holds out none.
          min_documents: at least so many on each side.

        Returns:
          (training, held-out) document indices, int64, ascending.

        Raises:
          InputError: too few documents.
        """
        none = self.documents[:0]
        if fraction <= 0:
            return self.documents, none
        if len(self.documents) < 2 * min_documents:
            raise InputError(
                f"data source '{self.manifest['source']}' has {len(self.documents)} different "
                f'documents, too few to hold some out ({2 * min_documents} are needed): separate '
                'documents by a blank line, add text, or set --config.data.eval_source'
            )
        hashes = self.document_hashes[self.documents]
        held_out = hashes < np.uint64(min(int(fraction * 2.0**64), 2**64 - 1))
        by_hash = np.argsort(hashes)
        held_out[by_hash[:min_documents]] = True
        held_out[by_hash[len(by_hash) - min_documents:]] = False
        return self.documents[~held_out], self.documents[held_out]


def _remedy(path: Path) -> str:
    return f'delete {path} and it is built again'
