"""Text files of six formats, plain or gzipped, as documents; every fault names its place."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Found, in_bucket, open_stream

_BLOCK_BYTES = 1 << 20
# A longer document is continued as a new one, so that memory stays bounded whatever the file.
MAX_DOCUMENT_BYTES = 16 << 20
_MAX_LINE_BYTES = 64 << 20


class Document(NamedTuple):
    """A document's text."""

    text: bytes  # UTF-8; paragraphs or sentences separated by newlines
    split: bool  # True: paragraphs, to be split into sentences; False: one sentence a line


def text_size(file: Found) -> int:
    """Bytes of text in a file, for progress: exact, or as the end of a gzipped file says.

    The trailer counts modulo 4 GiB and only the last of several parts, so this is an estimate.
    """
    if file.size < 18 or not file.path.endswith('.gz'):
        return file.size
    if in_bucket(file.path):
        return 3 * file.size  # as prose has it: nothing is read at random there
    with open(file.path, 'rb') as stream:
        stream.seek(-4, os.SEEK_END)
        return max(file.size, int.from_bytes(stream.read(4), 'little'))


def read_documents(path: str, format_name: str = '') -> Iterator[Document]:
    """Documents of one file, none of them empty.

    Args:
      path: the file; `.gz` is decompressed on the way.
      format_name: one of `FORMATS`, or '' to look at the name and content.

    Raises:
      InputError: empty, binary, not UTF-8, cut short, or not of the format.
    """
    if format_name == 'parquet' or not format_name and path.endswith('.parquet'):
        return _parquet(path, iter(()))
    blocks = _line_blocks(path)
    if not format_name:
        name = path.removesuffix('.gz')
        first = b''
        for first in blocks:  # until there is a line to judge by
            if first.strip():
                break
        blocks = itertools.chain([first], blocks)
        if name.endswith(('.jsonl', '.json')):
            format_name = 'jsonl'
        elif first.lstrip().startswith(b'<doc '):
            format_name = 'wikiextractor'
        elif _TITLE.match(b'\n ' + first.lstrip()):
            format_name = 'wikitext'
        else:
            format_name = 'text'
    return FORMATS[format_name](path, blocks)


def normalise(text: bytes) -> bytes:
    """Line ends as newlines, no white space around."""
    return (text.replace(b'\r\n', b'\n') if b'\r' in text else text).strip()


def _raw_blocks(path: str) -> Iterator[bytes]:
    """The file's content in blocks, decompressed."""
    try:
        with open_stream(path) as file:
            while block := file.read(_BLOCK_BYTES):
                yield block
    except EOFError as error:
        raise InputError(f'{path} is cut short: the gzip stream does not end; copy it again') \
            from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f'{path} is not a sound gzip file ({error}); copy it again') from error
    except OSError as error:
        raise InputError(f'{path} cannot be read: {error.strerror or error}') from error


def _line_blocks(path: str) -> Iterator[bytes]:
    """The file's content in blocks of whole lines, checked: UTF-8, no NUL, no BOM, LF line ends."""
    offset = 0  # of the text that was passed on, before line ends were changed
    rest = b''
    for raw in itertools.chain(_raw_blocks(path), [b'']):
        end = raw.rfind(b'\n') + 1 if raw else 0
        if raw and not end:
            rest += raw
            if len(rest) > _MAX_LINE_BYTES:
                raise InputError(
                    f'{path}: the line at byte {offset} is longer than {_MAX_LINE_BYTES >> 20} '
                    'MiB; is this text?'
                )
            continue
        block, rest = rest + raw[:end], raw[end:]
        if not block:
            continue
        nul = block.find(b'\0')
        if nul >= 0:
            raise InputError(
                f'{path} is not text: byte {offset + nul} is NUL; leave the file out, or convert '
                'it to UTF-8 if it is UTF-16'
            )
        try:
            block.decode()
        except UnicodeDecodeError as error:
            raise InputError(
                f'{path} is not UTF-8: byte {offset + error.start} is '
                f'0x{block[error.start]:02x}; convert the file (iconv -t UTF-8)'
            ) from None
        size = len(block)
        if offset == 0:
            block = block.removeprefix(b'\xef\xbb\xbf')
        offset += size
        yield block.replace(b'\r\n', b'\n') if b'\r' in block else block
    if offset == 0:
        raise InputError(f'{path} is empty')


_BLANK = re.compile(rb'\n[ \t]*\n\s*')
_TITLE = re.compile(rb'\n = [^=\n][^\n]* =[ \t]*(?=\n)')
_SECTION = re.compile(rb'\n *= = [^\n]*= =[ \t]*(?=\n)')


def _separated(blocks: Iterator[bytes], separator: re.Pattern, split: bool) -> Iterator[Document]:
    """The text between the matches of a separator that begins with a line end."""
    rest = b'\n'
    for block in blocks:
        parts = separator.split(rest + block)
        rest = parts.pop()
        for part in parts:
            if part := part.strip():
                yield Document(part, split)
        # `rest` ends with a line: all of it is lines of a document that goes on.
        if len(rest) > MAX_DOCUMENT_BYTES:
            yield Document(rest.strip(), split)
            rest = b'\n'
    if rest := rest.strip():
        yield Document(rest, split)


def _text(path: str, blocks: Iterator[bytes]) -> Iterator[Document]:
    """A blank line between documents, paragraphs in lines."""
    return _separated(blocks, _BLANK, True)


def _lines(path: str, blocks: Iterator[bytes]) -> Iterator[Document]:
    """A blank line between documents, one sentence a line."""
    return _separated(blocks, _BLANK, False)


def _wikitext(path: str, blocks: Iterator[bytes]) -> Iterator[Document]:
    """` = Title = `, ` = = Section = = `, paragraphs in lines, blank lines anywhere."""
    for document in _separated(blocks, _TITLE, True):
        if text := _SECTION.sub(b'', b'\n' + document.text + b'\n').strip():
            yield Document(text, True)


def _wikiextractor(path: str, blocks: Iterator[bytes]) -> Iterator[Document]:
    """`<doc ...>`, a title, paragraphs in lines, `</doc>`."""
    offset = 0  # of `text` in the decompressed file, after changes of line ends
    text = b''
    for block in itertools.chain(blocks, [b'']):
        text = text + block if text else block
        position = 0
        while True:
            start = text.find(b'<doc ', position)
            header_end = text.find(b'\n', start)
            end = text.find(b'</doc>', header_end) if start >= 0 <= header_end else -1
            if end < 0:
                break
            if text[position:start].strip():
                raise InputError(_stray(path, offset, text, position))
            header = text[start:header_end]
            nested = text.find(b'\n<doc ', header_end, end)
            if nested >= 0:
                raise InputError(_unclosed(path, header))
            title_end = text.find(b'\n', header_end + 1, end)
            if title_end >= 0 and (body := text[title_end:end].strip()):
                yield Document(body, True)
            position = end + len(b'</doc>')
        offset += position
        text = text[position:]
        if start >= 0 and len(text) > 4 * MAX_DOCUMENT_BYTES:
            raise InputError(_unclosed(path, text.lstrip()[:200].split(b'\n')[0]))
        if start < 0 and text.strip() and (not block or len(text) > _BLOCK_BYTES):
            raise InputError(_stray(path, offset, text, 0))
    if text.strip():
        raise InputError(_unclosed(path, text.lstrip().split(b'\n')[0]))


def _unclosed(path: str, header: bytes) -> str:
    shown = header.decode(errors='replace')[:120]
    return f"{path}: '{shown}' has no </doc>; is the file cut short?"


def _stray(path: str, offset: int, text: bytes, position: int) -> str:
    lead = len(text[position:]) - len(text[position:].lstrip())
    line = text[position + lead:position + lead + 80].split(b'\n')[0].decode(errors='replace')
    return (
        f"{path}: text outside of <doc> and </doc> at byte {offset + position + lead}: '{line}'; "
        'name the format with text:, lines: or jsonl: if this is not WikiExtractor output'
    )


def _json_lines(path: str, blocks: Iterator[bytes]) -> Iterator[Document]:
    """An object a line, its `text` holding paragraphs in lines."""
    number = 0
    for block in blocks:
        for line in block.split(b'\n'):
            number += 1
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(
                    f'{path}, line {number} is not JSON ({error}): one object a line is wanted, '
                    "as in {\"text\": \"...\"}"
                ) from None
            text = record.get('text') if isinstance(record, dict) else None
            if not isinstance(text, str):
                has = ', '.join(record) if isinstance(record, dict) else type(record).__name__
                raise InputError(
                    f"{path}, line {number} has no field 'text' of type string (it has: {has})"
                )
            if encoded := normalise(text.encode('utf-8', 'ignore')):
                yield Document(encoded, True)
        number -= 1 if block.endswith(b'\n') else 0


def _parquet(path: str, blocks: Iterator[bytes]) -> Iterator[Document]:
    """A document a row, its column `text` holding paragraphs in lines; `blocks` are not read."""
    try:
        from pyarrow import ArrowException, parquet
    except ModuleNotFoundError:
        raise InputError(f'{path}: Parquet needs pyarrow: python -m pip install pyarrow') from None
    with open_stream(path) as file:
        try:
            table = parquet.ParquetFile(file)
            if 'text' not in table.schema_arrow.names:
                has = ', '.join(table.schema_arrow.names)
                raise InputError(f"{path} has no column 'text' (it has: {has})")
            for batch in table.iter_batches(1024, columns=['text']):
                for text in batch.column(0).to_pylist():
                    if encoded := normalise(str(text or '').encode('utf-8', 'ignore')):
                        yield Document(encoded, True)
        except (ArrowException, OSError) as error:
            reason = ' '.join(str(error).split())[:200]
            raise InputError(f'{path} is not a sound Parquet file ({reason}); copy it again') \
                from None


FORMATS: dict[str, Callable[[str, Iterator[bytes]], Iterator[Document]]] = {
    'text': _text,
    'lines': _lines,
    'wikiextractor': _wikiextractor,
    'wikitext': _wikitext,
    'jsonl': _json_lines,
    'parquet': _parquet,
}
