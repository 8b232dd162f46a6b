"""Sources of text, read as a stream of documents.

A source is named by a string:

- `PATH` or a glob, plain or `.gz`, on a disk or as gs://BUCKET/...: the content decides.
  `<doc ...>` marks are WikiExtractor's, ` = Title = ` is WikiText's, a name ending in `.jsonl` or
  `.json` is JSON lines with a `text` field, anything else is text with a blank line between
  documents, whose paragraphs are split into sentences later.
- `lines:GLOB`: one sentence a line, blank line between documents, as Google's tools want it.
- `text:GLOB`, `wikiextractor:GLOB`, `wikitext:GLOB`, `jsonl:GLOB`: a format without looking at the
  content.
- `tfds:NAME/CONFIG[:SPLIT]`: the feature `text` of a tensorflow-datasets data set.
- `wikidump:GLOB`: MediaWiki dumps (XML; plain, `.gz` or `.bz2`), the text passages of articles; see
  `wikidump.py`.
- `docs:python`: the documentation that comes with every Python (see `python_docs.py`).

Reading works on large blocks, because a corpus has tens of gigabytes: no Python runs per line.
Why one file: what the name of a source may mean stands side by side.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple, Protocol

from bert_jax.data import python_docs, text_files, wikidump
from bert_jax.data.identity import digests
from bert_jax.data.text_files import Document
from bert_jax.data.tfds_data import prepared_builder
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path, find

__all__ = ['Document', 'Source', 'Unit', 'open_source', 'sample_texts']


class Unit(NamedTuple):
    """A part of a source that is read from its start: a file or a shard."""

    name: str
    num_bytes: int  # of text, estimated for compressed files; 0 where unknown


class Source(Protocol):
    """Documents in a fixed order, in units."""

    spec: str
    takes_all_cores: bool  # whether reading a unit keeps them busy, with processes of its own

    def fingerprint(self) -> str:
        """Identity of the content, wherever it lies: another one means another text.

        Raises:
          InputError: it cannot be read.
        """

    def outline(self) -> str:
        """What tells most texts apart at a glance: hosts compare it, and only one reads."""

    def units(self) -> list[Unit]:
        """The parts of the source, in order."""

    def read(self, unit: Unit) -> Iterator[Document]:
        """Documents of one part, always the same in the same order.

        Raises:
          InputError: unreadable content, naming the file and the place in it.
        """


def open_source(spec: str, data_dir: str = '') -> Source:
    """The source that a string names.

    Args:
      spec: see the head of this file.
      data_dir: where prepared tensorflow-datasets are; empty: their default place.

    Raises:
      InputError: nothing is found under that name.
    """
    kind, colon, rest = spec.partition(':')
    if kind == 'docs' and colon:
        if rest != 'python':
            raise InputError(f"data source '{spec}' is unknown: the one of its kind is docs:python")
        return _PythonDocs(spec)
    if kind == 'tfds' and colon:
        return _Tfds(spec, rest, data_dir)
    if kind == 'wikidump' and colon:
        return _WikiDumps(spec, rest)
    if kind in text_files.FORMATS and colon:
        return _Files(spec, rest, kind)
    return _Files(spec, spec, '')


def sample_texts(source: Source, max_bytes: int) -> Iterator[str]:
    """Text for training a vocabulary: an equal share of every unit's beginning.

    Args:
      source: where from.
      max_bytes: of UTF-8 in all, passed by one document at most.

    Yields:
      Documents' texts.
    """
    units = source.units()
    left = max_bytes
    for i, unit in enumerate(units):
        share = left // (len(units) - i)
        for document in source.read(unit):
            yield document.text.decode()
            share -= len(document.text)
            left -= len(document.text)
            if share <= 0:
                break
        if left <= 0:
            return


def _digest(identity: Any) -> str:
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]


def _content(spec: str, paths: Sequence[str | os.PathLike[str]]) -> list[str]:
    """The digest of each file."""
    try:
        return digests(paths)
    except OSError as error:
        raise InputError(
            f"data source '{spec}': {error.filename or 'a file'} cannot be read "
            f'({error.strerror or error})'
        ) from error


class _Files:
    """Files on a disk or in a bucket, one unit each."""

    takes_all_cores = False

    def __init__(self, spec: str, pattern: str, format_name: str):
        self.spec = spec
        self._format = format_name
        self._found = find(pattern)
        self._paths = [file.path for file in self._found]
        if not self._found and as_path(pattern).is_dir():
            raise InputError(
                f"data source '{spec}' is a directory: name the files in it, as in "
                f"'{pattern.rstrip('/')}/*'"
            )
        if not self._found:
            raise InputError(
                f"data source '{spec}': no file matches '{pattern}'; name existing text files, "
                'or docs:python for text that needs none'
            )
        for file in self._found:
            if file.size == 0:
                raise InputError(f"data source '{spec}': {file.path} is empty; leave it out")

    def fingerprint(self) -> str:
        # The end of a name may decide how a file is read; its folder does not matter.
        names = [''.join(PurePath(path).suffixes) for path in self._paths]
        return _digest([self._format, *zip(names, _content(self.spec, self._paths))])

    def outline(self) -> str:
        sizes = [file.size for file in self._found]
        return f'{len(sizes)} files of {sum(sizes):,} bytes, {_digest([self._format, sizes])}'

    def units(self) -> list[Unit]:
        return [Unit(file.path, text_files.text_size(file)) for file in self._found]

    def read(self, unit: Unit) -> Iterator[Document]:
        return text_files.read_documents(unit.name, self._format)


class _WikiDumps(_Files):
    """MediaWiki dumps, one unit each."""

    takes_all_cores = True

    def __init__(self, spec: str, pattern: str):
        wikidump.check_packages(spec)
        super().__init__(spec, pattern, wikidump.FORMAT)

    def units(self) -> list[Unit]:
        return [Unit(file.path, wikidump.text_size(file)) for file in self._found]

    def read(self, unit: Unit) -> Iterator[Document]:
        return wikidump.read_documents(unit.name)


class _PythonDocs:
    """Documentation of this Python and its packages; cached, because parsing it takes seconds."""

    takes_all_cores = True

    def __init__(self, spec: str):
        self.spec = spec
        self._files = python_docs.source_files()
        self._documents: list[Document] | None = None

    def fingerprint(self) -> str:
        # Not of the content of thousands of files: what is installed does not change in place
        # without a change of its version, and that shows in some name or size.
        return python_docs.fingerprint(self._files)

    def outline(self) -> str:
        return f'{len(self._files):,} files of Python, {self.fingerprint()}'

    def units(self) -> list[Unit]:
        # One unit, because a paragraph is left out if any file before had it. About a seventh of
        # the source code is prose.
        return [Unit(self.spec, sum(size for _, _, size in self._files) // 7)]

    def read(self, unit: Unit) -> Iterator[Document]:
        if self._documents is not None:
            yield from self._documents
            return
        documents = []
        for text in python_docs.documents(self._files, min(4, os.cpu_count() or 1)):
            documents.append(Document(text.encode('utf-8', 'ignore'), True))
            yield documents[-1]
        self._documents = documents


class _Tfds:
    """A data set of tensorflow-datasets, one unit a shard."""

    takes_all_cores = False

    def __init__(self, spec: str, name: str, data_dir: str):
        self.spec = spec
        name, _, split = name.partition(':')
        self._split = split or 'train'
        self._builder = prepared_builder(spec, name, data_dir)
        info = self._builder.info
        if 'text' not in info.features:
            raise InputError(
                f"data source '{spec}': the data set has no feature 'text', only "
                f"{', '.join(info.features)}"
            )
        if self._split not in info.splits:
            raise InputError(
                f"data source '{spec}': no split '{self._split}', only {', '.join(info.splits)}"
            )

    def fingerprint(self) -> str:
        paths = self._builder.info.splits[self._split].filepaths
        return _digest(_content(self.spec, paths))

    def outline(self) -> str:
        split = self._builder.info.splits[self._split]
        return f'{self._builder.info.full_name}, {split.num_bytes:,} bytes'

    def units(self) -> list[Unit]:
        split = self._builder.info.splits[self._split]
        n = split.num_shards
        return [
            Unit(f'{self._split}[{i}shard:{i + 1}shard]', split.num_bytes // n) for i in range(n)
        ]

    def read(self, unit: Unit) -> Iterator[Document]:
        import tensorflow_datasets as tfds

        data = self._builder.as_dataset(
            split=unit.name, shuffle_files=False,
            decoders=tfds.decode.PartialDecoding({'text': True}),
        )
        for batch in tfds.as_numpy(data.batch(256)):
            for text in batch['text']:
                yield Document(text_files.normalise(text), True)
