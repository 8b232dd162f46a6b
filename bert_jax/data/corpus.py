"""Sources of text: documents in units (files or shards), with a digest of their content.

Text files have one of five formats and may be compressed (.gz, .bz2). In a table, each row is a
document, with its text in one column. Errors name the file and the place in it.
"""

import contextlib
import functools
import importlib.util
import itertools
import logging
import os
import platform
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath
from typing import Any

from bert_jax.data import python_docs, table, wikidump
from bert_jax.data.digests import digests, name_of, object_digest
from bert_jax.data.source import Document, Source, Unit
from bert_jax.runtime.errors import InputError, first_line, needing
from bert_jax.runtime.files import Found, as_path, find, in_bucket, read_blocks
from bert_jax.runtime.hub import parquet_files
from bert_jax.runtime.packages import loading_tensorflow

_BLOCK_BYTES = 1 << 20
# A longer document is split into several, so that memory stays bounded whatever the file.
_MAX_DOCUMENT_BYTES = 16 << 20
_MAX_LINE_BYTES = 64 << 20


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
    if rest and kind == 'docs':
        if rest != 'python':
            raise InputError(f"data source '{spec}' is unknown: the one of its kind is docs:python")
        return _python_docs(spec)
    if rest and kind == 'tfds':
        return _tfds(spec, rest, data_dir, column)
    if rest and kind == 'wikipedia':
        return _wikipedia(spec, rest, data_dir)
    if rest and kind == 'wikidump':
        with needing(f"data source '{spec}'"):
            import mwparserfromhell  # noqa: F401  (used by the processes that read pages)
        kind = wikidump.FORMAT
    if rest and kind in (*FORMATS, *TABLES):
        return _files(spec, rest, kind, column)
    return _files(spec, spec, '', column)


def sample_texts(source: Source, max_bytes: int) -> Iterator[str]:
    """Text for training a vocabulary: an equal share from the start of each unit.

    Args:
      source: the text.
      max_bytes: total UTF-8 bytes, exceeded by less than one document.

    Yields:
      Documents' texts.
    """
    left = max_bytes
    for i, unit in enumerate(source.units):
        share = left // (len(source.units) - i)
        for document in source.read(unit):
            yield document.text.decode()
            share -= len(document.text)
            left -= len(document.text)
            if share <= 0:
                break
        if left <= 0:
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
    if not found and as_path(pattern).is_dir():
        raise InputError(f"data source '{spec}' is a directory: name the files in it, as in "
                         f"'{pattern.rstrip('/')}/*'")
    if not found:
        raise InputError(f"data source '{spec}': no file matches '{pattern}'; {_meant(pattern)}"
                         'name existing text files, or docs:python for text that needs none')
    for file in found:
        if file.size == 0:
            raise InputError(f"data source '{spec}': {file.path} is empty; leave it out")
    sizes = [file.size for file in found]
    is_dump = format_name == wikidump.FORMAT
    return Source(
        spec,
        # Compression reduces prose to a third; a quarter of an English dump's XML is text.
        [Unit(file.path, file.size // (4 if is_dump else 1)
              * (3 if file.path.endswith(('.gz', '.bz2')) else 1)) for file in found],
        functools.partial(_read_file, format_name, column),
        functools.partial(_digest_of_files, format_name, column, found),
        f'{len(sizes)} files of {sum(sizes):,} bytes, {name_of([format_name, sizes])}',
        takes_all_cores=is_dump)


def _meant(pattern: str) -> str:
    """What a pattern without a match may mean, for a message; '' if nothing is likely."""
    parts = [part.strip() for part in pattern.split(',')]
    if len(parts) > 1 and all(map(find, parts)):
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
        return _tfds(spec, prepared, data_dir, 'text')
    name = _WIKIPEDIA_HUB.format(language)
    try:
        files = _files(spec, name, 'parquet', 'text')
    except InputError as error:
        fault = str(error)
    else:
        return files
    if importlib.util.find_spec('tensorflow_datasets'):
        with contextlib.suppress(InputError):
            return _tfds(spec, prepared, data_dir, 'text', try_gcs=True)
    raise InputError(
        f"data source '{spec}': {fault}; or set config.data.source to files of your own (a dump of "
        f"Wikipedia is 'wikidump:FILE.xml.bz2'), or config.data.tfds_dir to a directory where "
        f'{prepared} is prepared')


def _digest_of_files(format_name: str, column: str, found: Sequence[Found]) -> str:
    paths = [file.path for file in found]
    # A file's ending may determine how it is read; its folder does not matter.
    names = [''.join(PurePath(path).suffixes) for path in paths]
    contents = map(object_digest, found) if in_bucket(paths[0]) else digests(paths)
    # Older stores, built from the column 'text', must keep their digests: the column is added only
    # where it has another name, and for CSV and TSV, which older stores read as plain text.
    is_new = column != 'text' or any(name.startswith(('.csv', '.tsv')) for name in names)
    return name_of([format_name, *zip(names, contents, strict=True), *[column] * is_new])


def _read_file(format_name: str, column: str, unit: Unit) -> Iterator[Document]:
    path = unit.name
    if not format_name and table.format_of(path):
        format_name = 'table'
    if format_name in TABLES:
        return _rows(TABLES[format_name], path, column)
    blocks = _line_blocks(path)  # a generator, which dumps never start
    if not format_name:
        first = next((block for block in blocks if block.strip()), b'')  # skips blank ones
        blocks = itertools.chain([first], blocks)
        if first.lstrip().startswith(b'<doc '):
            format_name = 'wikiextractor'
        elif _TITLE.match(b'\n ' + first.lstrip()):
            format_name = 'wikitext'
        else:
            format_name = 'text'
    return FORMATS[format_name](path, blocks)


def _python_docs(spec: str) -> Source:
    """Documentation of this Python and its packages; cached, because parsing takes seconds."""
    found = python_docs.source_files()
    # Names and sizes instead of the contents of thousands of files: another version of a package
    # differs in some name or size.
    digest = name_of([platform.python_version(), python_docs.VERSION,
                      [(name, size) for name, _, size in found]])

    @functools.cache
    def read(unit: Unit) -> list[Document]:
        return [Document(text.encode('utf-8', 'ignore'), True)
                for text in python_docs.documents(found, min(4, os.cpu_count() or 1))]

    # One unit, because a paragraph is dropped if any earlier file has it. About a seventh of the
    # source code is prose.
    return Source(
        spec, [Unit(spec, sum(size for _, _, size in found) // 7)], lambda unit: iter(read(unit)),
        lambda: digest, f'{len(found):,} files of Python, {digest}', takes_all_cores=True)


def _tfds(
    spec: str, name: str, data_dir: str, column: str, try_gcs: bool = False
) -> Source:
    """A data set of tensorflow-datasets, one unit for each shard."""
    name, _, split_name = name.partition(':')
    builder = _prepared_builder(spec, name, data_dir, try_gcs)
    info, split_name = builder.info, split_name or 'train'
    if column not in info.features or split_name not in info.splits:
        raise InputError(f"data source '{spec}': no feature '{column}' or no split '{split_name}', "
                         f"only {', '.join(info.features)} in {', '.join(info.splits)}")
    split = info.splits[split_name]
    n, num_bytes = split.num_shards, split.num_bytes
    return Source(
        spec, [Unit(f'{split.name}[{i}shard:{i + 1}shard]', num_bytes // n) for i in range(n)],
        functools.partial(_read_shard, builder, column),
        functools.partial(_digest_of_shards, split, column),
        f'{info.full_name}, {num_bytes:,} bytes')


def _digest_of_shards(split: Any, column: str) -> str:
    return name_of(digests(split.filepaths) + [column] * (column != 'text'))


def _read_shard(builder: Any, column: str, unit: Unit) -> Iterator[Document]:
    import tensorflow_datasets as tfds

    only_text = tfds.decode.PartialDecoding({column: True})
    for record in _records(builder, unit.name, decoders=only_text):
        yield Document(_normalise(record[column]), True)


def tfds_records(name: str, split: str, data_dir: str = '') -> Iterator[dict[str, Any]]:
    """The records of a split of a tensorflow-datasets data set, as NumPy values by feature.

    Args:
      name: such as 'glue/mrpc'.
      split: such as 'validation'.
      data_dir: folder of prepared data; empty: the default one.

    Raises:
      InputError: the data set is not prepared and cannot be, or a package is not installed.
    """
    return _records(_prepared_builder(f'tfds:{name}', name, data_dir), split)


def _records(builder: Any, split: str, **options: Any) -> Iterator[dict[str, Any]]:
    """The records of a split as NumPy values, read in batches where their shapes allow."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    data = builder.as_dataset(split=split, shuffle_files=False, **options)
    if not all(spec.shape.is_fully_defined() for spec in tf.nest.flatten(data.element_spec)):
        yield from tfds.as_numpy(data)
        return
    for batch in tfds.as_numpy(data.batch(256)):
        for values in zip(*batch.values(), strict=True):
            yield dict(zip(batch, values, strict=True))


def _prepared_builder(spec: str, name: str, data_dir: str, try_gcs: bool = False) -> Any:
    """A tensorflow-datasets builder whose data is prepared, after a download if necessary.

    Args:
      spec: the user's name for it, for messages.
      name: of the data set.
      data_dir: see `tfds_records`.
      try_gcs: whether tensorflow-datasets' public copy will do.

    Raises:
      InputError: the data set is not prepared and cannot be, or a package is not installed.
    """
    with loading_tensorflow(spec):
        import tensorflow_datasets as tfds

    place = os.path.expanduser(data_dir) if data_dir else tfds.core.constants.DATA_DIR
    logging.disable(logging.CRITICAL)
    try:
        if try_gcs:
            _reach_google()
        builder = tfds.builder(name, data_dir=place, try_gcs=try_gcs)
        if not builder.is_prepared():
            _reach_google()
            builder.download_and_prepare()
    except Exception as error:  # tfds' back ends raise many types
        raise InputError(
            f"data source '{spec}': data set '{name}' is not in {place} and cannot be made there "
            f'({first_line(error)}); set --config.data.source to files of your own (a dump of '
            "Wikipedia is 'wikidump:FILE.xml.bz2'), or --config.data.tfds_dir to a directory where "
            'it is prepared') from error
    finally:
        logging.disable(logging.NOTSET)
    return builder


def _reach_google() -> None:
    """Fails within seconds without a network, where tensorflow-datasets would retry for minutes."""
    with contextlib.suppress(urllib.error.HTTPError):  # any answer will do
        urllib.request.urlopen('https://storage.googleapis.com', timeout=10).close()


def _normalise(text: bytes) -> bytes:
    """The text with LF line ends and without surrounding white space."""
    return text.replace(b'\r\n', b'\n').strip()


def _line_blocks(path: str) -> Iterator[bytes]:
    """The file in blocks of whole lines: checked (UTF-8, no NUL), without BOM, LF line ends."""
    offset = 0  # bytes passed on, counted before line ends are changed
    rest = b''
    for raw in itertools.chain(read_blocks(path, _BLOCK_BYTES), [b'']):
        end = raw.rfind(b'\n') + 1
        if raw and not end:
            rest += raw
            if len(rest) > _MAX_LINE_BYTES:
                raise InputError(f'{path}: the line at byte {offset} is longer than '
                                 f'{_MAX_LINE_BYTES >> 20} MiB; is this text?')
            continue
        block, rest = rest + raw[:end], raw[end:]
        bad = block.find(b'\0')
        if bad < 0:
            try:
                block.decode()
            except UnicodeDecodeError as error:
                bad = error.start
        if bad >= 0:
            raise InputError(f'{path} is not text in UTF-8: byte {offset + bad} is '
                             f'0x{block[bad]:02x}; convert it (iconv -t UTF-8), or leave it out')
        yield (block if offset else block.removeprefix(b'\xef\xbb\xbf')).replace(b'\r\n', b'\n')
        offset += len(block)
    if offset == 0:
        raise InputError(f'{path} is empty')


_BLANK = re.compile(rb'\n[ \t]*\n\s*')
_TITLE = re.compile(rb'\n = [^=\n][^\n]* =[ \t]*(?=\n)')
_SECTION = re.compile(rb'\n *= = [^\n]*= =[ \t]*(?=\n)')


def _separated(
    path: str, blocks: Iterator[bytes], separator: re.Pattern = _BLANK, split: bool = True
) -> Iterator[Document]:
    """Documents: the text between matches of `separator`, which begins with a newline."""
    rest = b'\n'
    for block in blocks:
        *parts, rest = separator.split(rest + block)
        # `rest` consists of whole lines, so a document that is too long can be cut here.
        if len(rest) > _MAX_DOCUMENT_BYTES:
            parts.append(rest)
            rest = b'\n'
        yield from (Document(text, split) for part in parts if (text := part.strip()))
    if text := rest.strip():
        yield Document(text, split)


def _wikitext(path: str, blocks: Iterator[bytes]) -> Iterator[Document]:
    """` = Title = `, ` = = Section = = `, one paragraph per line, blank lines anywhere."""
    for document in _separated(path, blocks, _TITLE):
        if text := _SECTION.sub(b'', b'\n' + document.text + b'\n').strip():
            yield Document(text, True)


def _wikiextractor(path: str, blocks: Iterator[bytes]) -> Iterator[Document]:
    """`<doc ...>`, a title, one paragraph per line, `</doc>`."""
    offset = 0  # of `rest` in the decompressed file, counted after line ends are changed
    rest = b''
    for block in itertools.chain(blocks, [b'']):
        *documents, rest = (rest + block).split(b'</doc>')
        # Text without </doc> is examined at the end of the file, or when it gets too long.
        ended = len(documents)
        if rest.strip() and (not block or len(rest) > 4 * _MAX_DOCUMENT_BYTES):
            documents.append(rest)
        for i, document in enumerate(documents):
            text = document.lstrip()
            tag, _, body = text.partition(b'\n')
            shown = tag[:80].decode(errors='replace')
            if not text.startswith(b'<doc '):
                at = offset + len(document) - len(text)
                raise InputError(f"{path}: text outside of <doc> at byte {at}: '{shown}'; name "
                                 'the format with text: if this is not WikiExtractor output')
            if i == ended or b'\n<doc ' in text:
                raise InputError(f"{path}: '{shown}' has no </doc>; is the file cut short?")
            if body := body.partition(b'\n')[2].strip():  # without the title
                yield Document(body, True)
            offset += len(document) + len(b'</doc>')


def _rows(read: Callable[..., Iterator[table.Row]], path: str, column: str) -> Iterator[Document]:
    """One document per row: the text in `column`, one paragraph per line."""
    for row in read(path, [column]):
        cell = row.cells[0] if row.cells else None
        if fault := row.fault or ('' if isinstance(cell, str | None) else f'{column} is no text'):
            raise InputError(f'{path}, line {row.line}: {fault}: mend it; config.data.text '
                             'names the column')
        if text := _normalise((cell or '').encode('utf-8', 'ignore')):
            yield Document(text, True)


# Readers of text formats: documents, none of them empty, from a path and its blocks of lines
# (.gz and .bz2 decompressed).
FORMATS: dict[str, Callable[[str, Iterator[bytes]], Iterator[Document]]] = {
    'text': _separated,  # a blank line between documents, one paragraph per line
    'lines': functools.partial(_separated, split=False),  # likewise, one sentence per line
    'wikiextractor': _wikiextractor,
    'wikitext': _wikitext,
    wikidump.FORMAT: lambda path, _: (
        Document(text.encode('utf-8', 'ignore'), True) for text in wikidump.read_articles(path)),
}
TABLES: dict[str, Callable[..., Iterator[table.Row]]] = {
    'table': table.read_rows,  # the file's ending tells the format
    'jsonl': table.read_objects,
    'parquet': table.read_parquet,
}
