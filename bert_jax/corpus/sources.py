"""Sources of text: documents in units (files or shards), with a digest of their content."""

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import itertools
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath

from bert_jax.corpus import python_docs
from bert_jax.corpus.digests import digests, name_of, object_digest
from bert_jax.corpus.source import Document, Source, Unit
from bert_jax.corpus.text_batches import read_ahead
from bert_jax.corpus.text_formats import FORMATS, file_units, read_documents, read_otherwise
from bert_jax.corpus.tfds_source import tfds_source
from bert_jax.rows.store import PREPARED
from bert_jax.runtime import hosts
from bert_jax.runtime.errors import InputError, needing
from bert_jax.runtime.files import Found, as_path, find, in_bucket, near_file
from bert_jax.runtime.hub import parquet_files

# Compression reduces prose to a third; about a seventh of Python's source code is prose.
_COMPRESSION = 3
_CODE_BYTES_A_TEXT_BYTE = 7


@dataclasses.dataclass(frozen=True)
class TextSpec:
    """A source as the user names it, which a host opens only if it reads it.

    Attributes:
      name: such as 'docs:python', 'wikipedia:en', 'tfds:NAME', 'hf:datasets/ORG/NAME/PATH', or a
        pattern of files.
      tfds_dir: folder of prepared tensorflow-datasets; empty: the default one.
      column: the column of a table or feature of a record that holds the text.
    """

    name: str
    tfds_dir: str = ''
    column: str = 'text'

    @property
    def kind(self) -> 'SourceKind':
        """The kind that its prefix names, or else its ending."""
        prefix, colon, _ = self.name.partition(':')
        if colon and prefix in SOURCES:
            return SOURCES[prefix]
        for kind in SOURCES.values():
            if kind.endings and self.name.endswith(kind.endings):
                return kind
        return SOURCES['']

    @property
    def rest(self) -> str:
        """The name after the prefix; all of it if there is no prefix."""
        prefix, colon, rest = self.name.partition(':')
        if colon and prefix in SOURCES:
            return rest
        return self.name

    @functools.cached_property
    def source(self) -> Source:
        """The opened text.

        Raises:
          InputError: there is no such text, one of its files is empty, or a package it needs is
            not installed.
        """
        if self.rest and self.kind.open is not None:
            return self.kind.open(self)
        return _files_told(self)

    def source_if_here(self) -> Source | None:
        """The opened text; None if this host lacks it, or could have it only by a download."""
        if self.kind.is_downloaded and not hosts.first():
            return None
        with contextlib.suppress(InputError, OSError):
            return self.source
        return None


@dataclasses.dataclass(frozen=True)
class SourceKind:
    """The kind of source that a prefix of `config.data.source` stands for.

    Attributes:
      open: opens the text; None where there is none.
      holds: 'text', 'records' (rows that are made already) or 'store' (tokens).
      is_downloaded: whether a host that lacks it may get it by a download.
      endings: of files of this kind that need no prefix.
    """

    open: Callable[[TextSpec], Source] | None
    holds: str = 'text'
    is_downloaded: bool = False
    endings: tuple[str, ...] = ()


def open_source(name: str, tfds_dir: str = '', column: str = 'text') -> Source:
    """Opens a text; see `TextSpec`."""
    return TextSpec(name, tfds_dir, column).source


def sample_texts(source: Source, max_bytes: int) -> Iterator[str]:
    """The texts of a `Sample`, for training a vocabulary."""
    for document in Sample(source, max_bytes):
        yield document.text.decode()


class Sample:
    """Documents of an equal share from the start of each unit.

    Attributes:
      is_cut: whether documents are left out; known after the last one.
    """

    def __init__(self, source: Source, max_bytes: int):
        """A sample of `source`, of at most `max_bytes` of UTF-8 and less than one document more."""
        self.is_cut = False
        self._source = source
        self._max_bytes = max_bytes

    def __iter__(self) -> Iterator[Document]:
        for _, document in self.with_units():
            yield document

    def with_units(self) -> Iterator[tuple[int, Document]]:
        """(The number of its unit, a document), in order."""
        left = self._max_bytes
        all_units = self._source.units
        units = read_ahead(self._source, all_units, head_bytes=left // len(all_units))
        for number, documents in enumerate(units):
            share = left // (len(all_units) - number)
            for document in documents:
                if share <= 0:
                    self.is_cut = True
                    break
                yield number, document
                share -= len(document.text)
                left -= len(document.text)
            if left <= 0:
                self.is_cut = self.is_cut or number + 1 < len(all_units)
                return

    def whole_size(self, num_bytes: int) -> int:
        """Bytes of text in the source, of which so many were in the sample; estimated if it is cut.

        To be called after the last document.
        """
        if not self.is_cut:
            return num_bytes
        return max(num_bytes, sum(unit.num_bytes for unit in self._source.units))


def shares_of(
    sizes: Sequence[int], weights: Sequence[float], power: float
) -> list[float]:
    """The share of each source in a mixture: by its weight, and its size to a power."""
    parts: list[float] = []
    for size, weight in zip(sizes, weights, strict=True):
        parts.append(weight * max(size, 1) ** power)
    return [part / sum(parts) for part in parts]


def _files(spec: str, pattern: str, format_name: str, column: str) -> Source:
    """Files on disk, in a bucket or on the Hugging Face hub, one unit each.

    Args:
      spec: the user's name for them.
      pattern: pattern of their paths, or name of a data set on the hub.
      format_name: one of `FORMATS`, or '' to tell it from each file's name and content.
      column: the column of a table that holds the text.
    """
    known = FORMATS[format_name or 'text']
    if known.package:
        with needing(f"data source '{spec}'", extra=known.extra):
            importlib.import_module(known.package)
    found = _found(pattern)
    if not found:
        raise InputError(f"data source '{spec}'{_why_nothing(pattern)}")
    for file in found:
        if file.size == 0:
            raise InputError(f"data source '{spec}': {file.path} is empty; leave it out")
    sizes = [file.size for file in found]
    name_in_digest = format_name and (known.name_in_digest or format_name)
    units = [_units_of(file, format_name) for file in found]
    contents = _Contents(name_in_digest, column, pattern, found, [len(x) for x in units])
    return Source(
        spec,
        list(itertools.chain.from_iterable(units)),
        read=functools.partial(read_documents, format_name, column),
        fingerprint=contents.fingerprint,
        contents=contents.of_units,
        look_again=contents.look_again,
        outline=f'{len(sizes)} files of {sum(sizes):,} bytes, {name_of([name_in_digest, sizes])}',
        takes_all_cores=known.takes_all_cores)


def _found(pattern: str) -> list[Found]:
    """The files that a pattern names, or those of a data set on the hub."""
    return [file for path in parquet_files(pattern) for file in find(path)]


def _units_of(file: Found, format_name: str) -> list[Unit]:
    """The units of a file, with how many bytes of text each holds, estimated from its size."""
    num_bytes = file.size
    if format_name:
        num_bytes //= FORMATS[format_name].bytes_a_text_byte
    if file.path.lower().endswith(('.gz', '.bz2')):
        return [Unit(file.path, num_bytes * _COMPRESSION)]
    return file_units(format_name, file.path, num_bytes)


def _why_nothing(pattern: str) -> str:
    """The rest of the message for a pattern that matches no file, with what it may mean."""
    if as_path(pattern).is_dir():
        return f" is a directory: name the files in it, as in '{pattern.rstrip('/')}/*'"
    return (f": no file matches '{pattern}'; {_meant(pattern)}name existing text files, or "
            'docs:python for text that needs none')


def _meant(pattern: str) -> str:
    """A hint on what a pattern without a match may mean; '' if nothing is likely."""
    parts = [part.strip() for part in pattern.split(',')]
    if len(parts) > 1 and all(find(part) for part in parts):
        return f'several files are a list, config.data.source={parts!r}; '
    if '[' in pattern and find(pattern.replace('[', '[[]')):
        return ('brackets in a pattern hold characters of which one is meant: write [[] for the '
                'bracket of a name; ')
    near = near_file(pattern)
    return f'{near} Else ' if near else ''


# What a language's Wikipedia is called by tensorflow-datasets and on the Hugging Face hub.
_WIKIPEDIA_TFDS = 'wikipedia/20230601.{}'
_WIKIPEDIA_HUB = 'hf:datasets/wikimedia/wikipedia/20231101.{}/train'


def _wikipedia(spec: TextSpec) -> Source:
    """Wikipedia in a language, from what is nearest.

    That is a copy prepared by tensorflow-datasets, else the Parquet files on the Hugging Face hub,
    else the public copy of tensorflow-datasets. (It can be built by Beam only.)

    Raises:
      InputError: there is no copy that can be read.
      Unavailable: a download was cut off.
    """
    language = spec.rest  # Wikipedia's code of it, such as 'en'
    prepared = _WIKIPEDIA_TFDS.format(language)
    folder = as_path(spec.tfds_dir or os.environ.get('TFDS_DATA_DIR') or '~/tensorflow_datasets')
    if find(str(folder / prepared / '*' / 'dataset_info.json')):
        return tfds_source(spec.name, prepared, spec.tfds_dir, 'text')
    name = _WIKIPEDIA_HUB.format(language)
    try:
        return _files(spec.name, name, 'parquet', 'text')
    except InputError as error:
        fault = str(error)
    if importlib.util.find_spec('tensorflow_datasets'):
        with contextlib.suppress(InputError):
            return tfds_source(spec.name, prepared, spec.tfds_dir, 'text', try_gcs=True)
    raise InputError(
        f"data source '{spec.name}': {fault}; or set config.data.source to files of your own (a "
        f"dump of Wikipedia is 'wikidump:FILE.xml.bz2'), or config.data.tfds_dir to a directory "
        f'where {prepared} is prepared')


class _Contents:
    """The content of files, by digests."""

    def __init__(
        self, name_in_digest: str, column: str, pattern: str, found: Sequence[Found],
        num_units: Sequence[int],
    ):
        """Reads nothing yet.

        Args:
          name_in_digest: of the format that the user names; '' for none.
          column: the column of a table that holds the text.
          pattern: that names the files.
          found: the files.
          num_units: of each file.
        """
        self._name_in_digest = name_in_digest
        self._column = column
        self._pattern = pattern
        self._num_units = num_units
        self._digests: list[str] = []  # as they were told last
        self._of_units: tuple[str, ...] = ()  # made of these digests
        self._set(found)

    def _set(self, found: Sequence[Found]) -> None:
        self._found = found
        self._paths = [file.path for file in found]
        # A file's ending may determine how it is read; its folder does not matter.
        self._endings = [''.join(PurePath(path).suffixes) for path in self._paths]

    def look_again(self) -> None:
        """Lists the files again: in a bucket, the listing has their digests.

        What has been added is not of the text. Files of the hub's cache stay as they are.
        """
        if not self._pattern.startswith('hf:'):
            listed = {file.path: file for file in _found(self._pattern)}
            self._set([listed[path] for path in self._paths if path in listed])

    def fingerprint(self) -> str:
        """The digest of all files together."""
        if in_bucket(self._pattern):
            found = [object_digest(file) for file in self._found]
        else:
            found = digests(self._paths)
        if found != self._digests:
            self._digests = found
            self._of_units = ()
        identity = [self._name_in_digest, *zip(self._endings, found, strict=True)]
        # Older stores, built from the column 'text', must keep their digests: the column is added
        # only where it has another name, and for CSV and TSV, which older stores read as text.
        if self._column != 'text' or any(
                ending.startswith(('.csv', '.tsv')) for ending in self._endings):
            identity.append(self._column)
        if not self._name_in_digest:
            identity += read_otherwise(self._paths)
        return name_of(identity)

    def of_units(self) -> tuple[str, ...]:
        """For each unit the digest of its file, as of the time when the fingerprint was made."""
        if not self._digests:
            self.fingerprint()
        if self._of_units:
            return self._of_units
        files = zip(self._paths, self._endings, self._digests, self._num_units, strict=True)
        found: list[str] = []
        for path, ending, digest, num_units in files:
            identity = [self._name_in_digest, self._column, ending, digest]
            if not self._name_in_digest:
                identity += read_otherwise([path])
            found += num_units * [name_of(identity)]
        self._of_units = tuple(found)
        return self._of_units


def _python_docs(spec: TextSpec) -> Source:
    """Documentation of this Python and its packages; cached, because parsing takes seconds."""
    if spec.rest != 'python':
        raise InputError(
            f"data source '{spec.name}' is unknown: the one of its kind is docs:python")
    found = python_docs.source_files()
    # Names and sizes instead of the contents of thousands of files: another version of a package
    # differs in some name or size.
    contents = [(file.name, file.size) for file in found]
    digest = name_of([platform.python_version(), python_docs.VERSION, contents])

    @functools.cache
    def documents() -> list[Document]:
        texts = python_docs.documents(found, min(4, os.cpu_count() or 1))
        return [Document(text.encode('utf-8', 'ignore'), split=True) for text in texts]

    # One unit, because a paragraph is dropped if any earlier file has it.
    num_bytes = sum(file.size for file in found) // _CODE_BYTES_A_TEXT_BYTE
    return Source(
        spec.name,
        [Unit(spec.name, num_bytes)],
        read=lambda unit: iter(documents()),
        fingerprint=lambda: digest,
        outline=f'{len(found):,} files of Python, {digest}',
        takes_all_cores=True)


def _tfds(spec: TextSpec) -> Source:
    return tfds_source(spec.name, spec.rest, spec.tfds_dir, spec.column)


def _files_told(spec: TextSpec) -> Source:
    """Files whose names and contents tell the format, also on the hub."""
    return _files(spec.name, spec.name, '', spec.column)


def _files_of(format_name: str) -> SourceKind:
    def files(spec: TextSpec) -> Source:
        return _files(spec.name, spec.rest, format_name, spec.column)

    return SourceKind(files)


# By prefix; '' is a source without one.
SOURCES: dict[str, SourceKind] = {
    '': SourceKind(_files_told),
    'docs': SourceKind(_python_docs),
    'tfds': SourceKind(_tfds, is_downloaded=True),
    'hf': SourceKind(_files_told, is_downloaded=True),
    'wikipedia': SourceKind(_wikipedia, is_downloaded=True),
    'tfrecord': SourceKind(None, holds='records', endings=('.tfrecord', '.tfrecords')),
    PREPARED.removesuffix(':'): SourceKind(None, holds='store'),
    **{format_name: _files_of(format_name) for format_name in FORMATS},
}
