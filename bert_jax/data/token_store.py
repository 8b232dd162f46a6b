"""Tokenized documents on disk, memory-mapped: what pre-training reads.

A store is a directory of little-endian arrays in pieces of at most 512 MiB, made by `store.py` and
never changed, with a manifest that says what is in it and the digest of every file. A store looks
the same wherever it is: where it was built, published, and copied to. T tokens, S sentences, D
documents, K documents that are kept (exact duplicates are passed over).
"""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

import numpy as np

from bert_jax.data.identity import digests
from bert_jax.data.pieces import map_pieces, piece_names
from bert_jax.runtime import files
from bert_jax.runtime.errors import InputError

FORMAT_VERSION = 2
MANIFEST = 'manifest.json'


def token_dtype(tokenizer: Any) -> np.dtype:
    """16 bits a token where they are enough."""
    return np.dtype('<u2' if len(tokenizer.vocab) < 65_536 else '<u4')


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

    path: files.Path
    manifest: dict[str, Any]
    tokens: np.ndarray
    sentence_offsets: np.ndarray
    document_offsets: np.ndarray
    document_hashes: np.ndarray
    documents: np.ndarray

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> TokenStore:
        """Maps a finished store whose files are what its manifest says, to the last byte.

        Raises:
          InputError: there is none, or a file is another one.
        """
        folder = files.as_path(path)
        manifest = read_manifest(folder)
        entries = manifest['files']
        for name, entry in entries.items():
            file = folder / name
            found = os.path.getsize(file) if file.exists() else -1
            if found != entry['bytes']:
                raise InputError(
                    f'{file} is missing: {remedy(folder)}' if found < 0 else
                    f"{file} has {found} bytes where the manifest says {entry['bytes']}: "
                    f'{remedy(folder)}'
                )
        for name, digest in zip(entries, digests([folder / name for name in entries]), strict=True):
            if digest != entries[name]['md5']:
                raise InputError(damaged(folder, name))
        arrays = {}
        for array, (dtype, count) in array_types(manifest).items():
            num_bytes = count * np.dtype(dtype).itemsize
            names = piece_names(array, num_bytes, manifest['piece_bytes'])
            sizes = [entries[name]['bytes'] if name in entries else -1 for name in names]
            if min(sizes) < 0 or sum(sizes) != num_bytes:
                raise InputError(
                    f'{folder / MANIFEST} is damaged (its files do not hold {count} {array}): '
                    f'{remedy(folder)}'
                )
            arrays[array] = map_pieces([str(folder / name) for name in names], sizes, dtype)
        return cls(folder, manifest, **arrays)

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


def array_types(manifest: dict[str, Any]) -> dict[str, tuple[str, int]]:
    """(dtype, number of elements) of each array of a store."""
    documents = manifest['num_documents']
    return {
        'tokens': (manifest['dtype'], manifest['num_tokens']),
        'sentence_offsets': ('<i8', manifest['num_sentences'] + 1),
        'document_offsets': ('<i8', documents + 1),
        'document_hashes': ('<u8', documents),
        'documents': ('<i8', documents - manifest['num_duplicates']),
    }


def read_manifest(path: files.Path) -> dict[str, Any]:
    """The manifest of a finished store, on a disk or in a bucket.

    Raises:
      InputError: there is none, or it is not one of this program.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        version = manifest.get('format_version')
        if version == FORMAT_VERSION:
            entries = manifest['files'].values()
            numbers = [manifest['piece_bytes'], *(entry['bytes'] for entry in entries)]
            numbers += [count for _, count in array_types(manifest).values()]
            if any('/' in name for name in manifest['files']):
                raise ValueError('a file is not in its folder')
            texts = [manifest['fingerprint'], manifest['source'],
                     *(entry['md5'] for entry in entries)]
            if not (all(type(number) is int and number >= 0 for number in numbers)
                    and all(isinstance(text, str) for text in texts)
                    and manifest['piece_bytes'] and manifest['dtype'] in ('<u2', '<u4')):
                raise ValueError('a value is of the wrong kind')
    except FileNotFoundError:
        raise InputError(
            f'{path} is not a finished token store (no {MANIFEST}): build it again'
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f'{path / MANIFEST} is damaged ({error}): {remedy(path)}') from None
    if version != FORMAT_VERSION:
        raise InputError(
            f'{path} has format version {version}, this program reads {FORMAT_VERSION}: '
            f'{remedy(path)}'
        )
    return manifest


def damaged(path: files.Path, name: str) -> str:
    """What to say of a file that is not the one that was written."""
    return f'{path / name} is damaged (its content is not that of the manifest): {remedy(path)}'


def remedy(path: files.Path) -> str:
    return f'delete {path} and it is built again'
