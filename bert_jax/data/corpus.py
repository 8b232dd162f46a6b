"""Sources of text: documents in units (files or shards), with a digest of their content."""

import contextlib
import functools
import importlib.util
import os
import platform
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from bert_jax.data import fasta, python_docs, wikidump
from bert_jax.data.digests import digests, name_of, object_digest
from bert_jax.data.source import Document, Source, Unit
from bert_jax.data.text_batches import read_ahead
from bert_jax.data.text_formats import (
    FORMATS,
    TABLES,
    file_units,
    is_read_as_fasta,
    read_documents,
)
from bert_jax.data.tfds_source import tfds_source
from bert_jax.runtime.errors import InputError, needing
from bert_jax.runtime.files import Found, as_path, find, in_bucket
from bert_jax.runtime.hub import parquet_files

# Compression reduces prose to a third; a quarter of an English dump's XML is text; about a seventh
# of Python's source code is prose.
_COMPRESSION = 3
_DUMP_BYTES_A_TEXT_BYTE = 4
_CODE_BYTES_A_TEXT_BYTE = 7


def open_source(spec: str, data_dir: str = '', column: str = 'text') -> Source:
    """Opens the source that a string names.

    Args:
      spec: such as 'docs:python', 'wikipedia:en', 'tfds:NAME', 'hf:datasets/ORG/NAME/PATH', or a
        pattern of files.
      data_dir: folder of prepared tensorflow-datasets; empty: the default one.
      column: the column of a table or feature of a record that holds the text.

    Raises:
      InputError: there is no such source, one of its files is empty, or a package it needs is
        not installed.
    """
    kind, _, rest = spec.partition(':')
    if not rest:
        return _files(spec, spec, '', column)
    if kind == 'docs':
        if rest != 'python':
            raise InputError(f"data source '{spec}' is unknown: the one of its kind is docs:python")
        return _python_docs(spec)
    if kind == 'tfds':
        return tfds_source(spec, rest, data_dir, column)
    if kind == 'wikipedia':
        return _wikipedia(spec, rest, data_dir)
    if kind == 'wikidump':
        with needing(f"data source '{spec}'"):
            import mwparserfromhell  # noqa: F401  (used by the processes that read pages)
        return _files(spec, rest, wikidump.FORMAT, column)
    if kind in FORMATS or kind in TABLES:
        return _files(spec, rest, kind, column)
    return _files(spec, spec, '', column)


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
        left = self._max_bytes
        all_units = self._source.units
        units = read_ahead(self._source, all_units, head_bytes=left // len(all_units))
        for number, documents in enumerate(units):
            share = left // (len(all_units) - number)
            for document in documents:
                if share <= 0:
                    self.is_cut = True
                    break
                yield document
                share -= len(document.text)
                left -= len(document.text)
            if left <= 0:
                self.is_cut = self.is_cut or number + 1 < len(all_units)
                return


def _files(spec: str, pattern: str, format_name: str, column: str) -> Source:
    """Files on disk, in a bucket or on the Hugging Face hub, one unit each.

    Args:
      spec: the user's name for them.
      pattern: pattern of their paths, or name of a data set on the hub.
      format_name: one of `FORMATS` or `TABLES`, or '' to tell it from each file's name and content.
      column: the column of a table that holds the text.
    """
    found = [file for path in parquet_files(pattern) for file in find(path)]
    if not found:
        raise InputError(f"data source '{spec}'{_why_nothing(pattern)}")
    for file in found:
        if file.size == 0:
            raise InputError(f"data source '{spec}': {file.path} is empty; leave it out")
    sizes = [file.size for file in found]
    is_dump = format_name == wikidump.FORMAT
    return Source(
        spec,
        [unit for file in found for unit in _units_of(file, format_name)],
        read=functools.partial(read_documents, format_name, column),
        fingerprint=functools.partial(_digest_of_files, format_name, column, found),
        outline=f'{len(sizes)} files of {sum(sizes):,} bytes, {name_of([format_name, sizes])}',
        takes_all_cores=is_dump)


def _units_of(file: Found, format_name: str) -> list[Unit]:
    """The units of a file, with how many bytes of text each holds, estimated from its size."""
    is_compressed = file.path.lower().endswith(('.gz', '.bz2'))
    is_dump = format_name == wikidump.FORMAT
    if not is_compressed and not is_dump:
        return file_units(format_name, file.path, file.size)
    num_bytes = file.size
    if is_dump:
        num_bytes //= _DUMP_BYTES_A_TEXT_BYTE
    if is_compressed:
        num_bytes *= _COMPRESSION
    return [Unit(file.path, num_bytes)]


def _why_nothing(pattern: str) -> str:
    """The rest of the message for a pattern that matches no file, with what it may mean."""
    if as_path(pattern).is_dir():
        return f" is a directory: name the files in it, as in '{pattern.rstrip('/')}/*'"
    return (f": no file matches '{pattern}'; {_meant(pattern)}name existing text files, or "
            'docs:python for text that needs none')


def _meant(pattern: str) -> str:
    """What a pattern without a match may mean, for a message; '' if nothing is likely."""
    parts = [part.strip() for part in pattern.split(',')]
    if len(parts) > 1 and all(find(part) for part in parts):
        return f'several files are a list, config.data.source={parts!r}; '
    if '[' in pattern and find(pattern.replace('[', '[[]')):
        return ('brackets in a pattern hold characters of which one is meant: write [[] for the '
                'bracket of a name; ')
    return ''


# What a language's Wikipedia is called by tensorflow-datasets and on the Hugging Face hub.
_WIKIPEDIA_TFDS = 'wikipedia/20230601.{}'
_WIKIPEDIA_HUB = 'hf:datasets/wikimedia/wikipedia/20231101.{}/train'


def _wikipedia(spec: str, language: str, data_dir: str) -> Source:
    """Wikipedia in a language, from what is nearest.

    That is a copy prepared by tensorflow-datasets, else the Parquet files on the Hugging Face hub,
    else the public copy of tensorflow-datasets. (It can be built by Beam only.)

    Args:
      spec: the user's name for it.
      language: Wikipedia's code of it, such as 'en'.
      data_dir: folder of prepared tensorflow-datasets; empty: the default one.

    Raises:
      InputError: there is no copy that can be read.
      Unavailable: a download was cut off.
    """
    prepared = _WIKIPEDIA_TFDS.format(language)
    folder = as_path(data_dir or os.environ.get('TFDS_DATA_DIR') or '~/tensorflow_datasets')
    if find(str(folder / prepared / '*' / 'dataset_info.json')):
        return tfds_source(spec, prepared, data_dir, 'text')
    name = _WIKIPEDIA_HUB.format(language)
    try:
        return _files(spec, name, 'parquet', 'text')
    except InputError as error:
        fault = str(error)
    if importlib.util.find_spec('tensorflow_datasets'):
        with contextlib.suppress(InputError):
            return tfds_source(spec, prepared, data_dir, 'text', try_gcs=True)
    raise InputError(
        f"data source '{spec}': {fault}; or set config.data.source to files of your own (a dump of "
        f"Wikipedia is 'wikidump:FILE.xml.bz2'), or config.data.tfds_dir to a directory where "
        f'{prepared} is prepared')


def _digest_of_files(format_name: str, column: str, found: Sequence[Found]) -> str:
    paths = [file.path for file in found]
    # A file's ending may determine how it is read; its folder does not matter.
    endings = [''.join(PurePath(path).suffixes) for path in paths]
    if in_bucket(paths[0]):
        contents = [object_digest(file) for file in found]
    else:
        contents = digests(paths)
    identity = [format_name, *zip(endings, contents, strict=True)]
    # Older stores, built from the column 'text', must keep their digests: the column is added only
    # where it has another name, and for CSV and TSV, which older stores read as plain text.
    if column != 'text' or any(ending.startswith(('.csv', '.tsv')) for ending in endings):
        identity.append(column)
    # Likewise, older stores read these files as text.
    if not format_name and any(is_read_as_fasta(path) for path in paths):
        identity.append(fasta.FORMAT)
    return name_of(identity)


def _python_docs(spec: str) -> Source:
    """Documentation of this Python and its packages; cached, because parsing takes seconds."""
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
        spec,
        [Unit(spec, num_bytes)],
        read=lambda unit: iter(documents()),
        fingerprint=lambda: digest,
        outline=f'{len(found):,} files of Python, {digest}',
        takes_all_cores=True)
