"""Text sources: documents in units (files or shards), with a digest of their content."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple, Protocol

from bert_jax.data import python_docs, text_files, wikidump
from bert_jax.data.store import digests, object_digest
from bert_jax.data.text_files import Document
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path, find, in_bucket
from bert_jax.runtime.process import loading_tensorflow


def tfds_records(name: str, split: str, data_dir: str = '') -> Iterator[dict[str, Any]]:
    """The records of a split of a tensorflow-datasets data set, as NumPy values by feature.

    Args:
      name: such as 'glue/mrpc'.
      split: such as 'validation'.
      data_dir: folder of prepared data; empty: the default one.

    Raises:
      InputError: it is not prepared and cannot be.
    """
    data = prepared_builder(f'tfds:{name}', name, data_dir).as_dataset(
        split=split, shuffle_files=False
    )
    import tensorflow as tf
    import tensorflow_datasets as tfds

    if not all(spec.shape.is_fully_defined() for spec in tf.nest.flatten(data.element_spec)):
        yield from tfds.as_numpy(data)
        return
    for batch in tfds.as_numpy(data.batch(256)):
        names = list(batch)
        for values in zip(*(batch[key] for key in names), strict=True):
            yield dict(zip(names, values, strict=True))


def prepared_builder(spec: str, name: str, data_dir: str) -> Any:
    """A builder with prepared data, which is downloaded now if necessary.

    Args:
      spec: the user's name for it, for messages.
      name: of the data set.
      data_dir: see `tfds_records`.

    Raises:
      InputError: it is not prepared and cannot be.
    """
    with loading_tensorflow(spec):
        import tensorflow_datasets as tfds

    place = os.path.expanduser(data_dir) if data_dir else tfds.core.constants.DATA_DIR
    remedy = (
        'set --config.data.source to files of your own, or --config.data.tfds_dir to a directory '
        'where it is prepared'
    )
    if name.startswith('wikipedia'):  # preparing it needs Beam, which is not a requirement
        remedy += (
            '; Wikipedia is read from its own dumps too: download one from dumps.wikimedia.org and '
            "set --config.data.source='wikidump:FILE.xml.bz2'"
        )
    try:
        with _quiet():
            builder = tfds.builder(name, data_dir=place, try_gcs=False)
            if not builder.is_prepared():
                _check_network()
                builder.download_and_prepare()
    except InputError:
        raise
    except Exception as error:  # of tfds' many back ends
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise InputError(
            f"data source '{spec}': data set '{name}' is not in {place} and cannot be made there "
            f'({reason}); {remedy}'
        ) from error
    return builder


def _check_network() -> None:
    """Fails within seconds without a network: tfds would retry for minutes."""
    request = urllib.request.Request('https://storage.googleapis.com', method='HEAD')
    try:
        urllib.request.urlopen(request, timeout=10).close()
    except urllib.error.HTTPError:
        pass  # any answer will do
    except OSError as error:
        raise OSError(f'no network: {getattr(error, "reason", error)}') from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences the log of tensorflow-datasets."""
    loggers = [logging.getLogger(), logging.getLogger('absl')]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


__all__ = ['Document', 'Source', 'Unit', 'open_source', 'sample_texts']


class Unit(NamedTuple):
    """A part of a source that can be read by itself: a file or a shard."""

    name: str
    num_bytes: int  # of text, estimated for compressed files; 0 where unknown


class Source(Protocol):
    """Documents in a fixed order, in units."""

    spec: str
    takes_all_cores: bool  # whether reading a unit keeps them busy, with processes of its own

    def fingerprint(self) -> str:
        """A digest of the content, independent of its path.

        Raises:
          InputError: it cannot be read.
        """

    def outline(self) -> str:
        """A cheap digest without reading the text, which hosts compare."""

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
      spec: such as 'docs:python', 'tfds:NAME', or a pattern of files.
      data_dir: folder of prepared tensorflow-datasets; empty: the default one.

    Raises:
      InputError: there is no such source.
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
    """Text for training a vocabulary: an equal share from the start of each unit.

    Args:
      source: the text.
      max_bytes: total UTF-8 bytes, exceeded by at most one document.

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
        # A file's ending may determine how it is read; its folder does not matter.
        names = [''.join(PurePath(path).suffixes) for path in self._paths]
        if in_bucket(self._paths[0]):
            contents = [object_digest(file) for file in self._found]
        else:
            contents = _content(self.spec, self._paths)
        return _digest([self._format, *zip(names, contents, strict=True)])

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
        # Names and sizes instead of the contents of thousands of files: another version of a
        # package differs in some name or size.
        return python_docs.fingerprint(self._files)

    def outline(self) -> str:
        return f'{len(self._files):,} files of Python, {self.fingerprint()}'

    def units(self) -> list[Unit]:
        # One unit, because a paragraph is dropped if any earlier file has it. About a seventh of
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
    """A data set of tensorflow-datasets, one unit for each shard."""

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
