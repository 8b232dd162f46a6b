"""Formats of text files, which may be compressed (.gz, .bz2), and of tables: files -> documents.

In a table, each row is a document, with its text in one column. Errors name the file and the place
in it.

A large file of plain text is several units, so that several workers can read it: ranges that begin
at multiples of `_RANGE_BYTES`, whoever reads them. A document belongs to the range in which the
last blank line before it begins, and the first one of the file to the first range. So the documents
of all ranges are those of the file, except that one of more than 16 MiB, which is split anyway, may
be split at other lines where it reaches into another range.
"""

import codecs
import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from bert_jax.corpus import fasta, wikidump
from bert_jax.corpus.source import Document, Unit
from bert_jax.rows import table
from bert_jax.runtime.errors import DamagedFile
from bert_jax.runtime.files import LONGEST_LINE, read_blocks

_BLOCK_BYTES = 1 << 20
# A longer document is split into several, so that memory stays bounded whatever the file.
_MAX_DOCUMENT_BYTES = 16 << 20
_LARGE_BYTES = 1 << 30
_RANGE_BYTES = 512 << 20
_MOST_LONE = 20  # CRs within lines for each line feed; where there are more, CR ends the lines
_BYTE_ORDER_MARK = b'\xef\xbb\xbf'
_MARKS_OF_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# Part of the digest of files of text, of which version 1 has no name: raise it when their reading
# changes, blank lines and titles included.
_TEXT_VERSION = 2
# What files without a named format may hold in place of prose: how they begin, what that is, and
# what to do about it.
_NO_PROSE = (
    (rb'[\[\s]*\{\s*"(?:[^"\\\n]|\\.)*"\s*:', 'JSON',
     'write jsonl:FILES where each line is an object'),
    (rb'(?:<\?xml[^>]*>\s*)?<mediawiki\b', 'a MediaWiki dump', 'write wikidump:FILES'),
    (rb'<\?xml\b|(?i:<!doctype html|<html\b)', 'XML or HTML', 'extract its text'),
    (rb'\{\\rtf', 'RTF', 'extract its text'),
)


@dataclasses.dataclass(frozen=True)
class TextFile:
    """A file that is to be read.

    Attributes:
      path: where it is.
      column: the column of a table that holds the text.
      blocks: its text in blocks of whole lines, decompressed and checked. The file is opened for
        the first of them only.
    """

    path: str
    column: str
    blocks: Iterator[bytes]


def _never(*_: object) -> bool:
    return False


@dataclasses.dataclass(frozen=True)
class Format:
    """A format of files, plain or compressed (.gz, .bz2).

    Attributes:
      read: gives the documents of a file, none of them empty.
      in_ranges: whether a large file is read in ranges: a blank line between documents.
      is_named: whether a file's name says that it is in this format.
      recognises: whether a file is in this format by its path and the beginning of its text; it is
        asked where the user names no format.
      was_text: whether older versions read the files that are so recognised as plain text. The
        format's name is then part of their digests.
      name_in_digest: of the files that the user says are in it; '' for its name in `FORMATS`. It
        differs where the way of reading has changed.
      bytes_a_text_byte: of a file that is not compressed, for one byte of text.
      takes_all_cores: see `Source`.
      package: what reading it needs, which not everybody has installed.
      extra: that installs `package`.
    """

    read: Callable[[TextFile], Iterator[Document]]
    in_ranges: bool = False
    is_named: Callable[[str], bool] = _never
    recognises: Callable[[str, bytes], bool] = _never
    was_text: bool = False
    name_in_digest: str = ''
    bytes_a_text_byte: int = 1
    takes_all_cores: bool = False
    package: str = ''
    extra: str = ''


def file_units(format_name: str, path: str, size: int) -> list[Unit]:
    """The units of a file that is not compressed: one, or several if it is large and plain text.

    If a file without a named format turns out to be of another one than plain text, its first unit
    has all of its documents.

    Args:
      format_name: see `read_documents`.
      path: the file.
      size: its bytes of text.
    """
    if format_name:
        in_ranges = FORMATS[format_name].in_ranges
    else:
        in_ranges = not any(known.is_named(path) for known in FORMATS.values())
    if size <= _LARGE_BYTES or not in_ranges:
        return [Unit(path, size)]
    units = []
    for begin in range(0, size, _RANGE_BYTES):
        end = min(begin + _RANGE_BYTES, size)
        units.append(Unit(path, end - begin, begin, end))
    return units


def read_documents(format_name: str, column: str, unit: Unit) -> Iterator[Document]:
    """The documents of a file, or those of a range of it.

    Args:
      format_name: one of `FORMATS`, or '' to tell it from the file's name and content.
      column: the column of a table that holds the text.
      unit: names the file and the range.

    Raises:
      DamagedFile: its content cannot be read in this format.
      InputError: it cannot be read, or has no such column.
    """
    path = unit.name
    blocks = _line_blocks(path)
    if not format_name and table.format_of(path):
        format_name = 'table'
    if not format_name:
        first = _first_of(blocks)
        blocks = itertools.chain([first], blocks)
        format_name = _format_of_text(path, first)
    known = FORMATS[format_name]
    if unit.end is not None:
        if known.in_ranges:
            begin = _first_cut(path, unit.begin)
            blocks = _line_blocks(path, begin, _first_cut(path, unit.end))
        elif unit.begin:
            return iter(())
    return known.read(TextFile(path, column, blocks))


def _first_cut(path: str, place: int) -> int:
    """Where plain text may be cut into ranges, from a place on: the first blank line from there.

    If no blank line begins in 16 MiB, it is the first line. All places are in bytes of the file.

    Raises:
      DamagedFile: there is a line of more than `LONGEST_LINE`.
    """
    if not place:
        return 0
    before = place - 1  # the newline there, if it is one, is before the first line
    text = b''
    for block in read_blocks(path, _BLOCK_BYTES, before):
        searched = max(text.rfind(b'\n'), 0)
        text += block
        first_line = text.find(b'\n') + 1
        if not first_line and len(text) > LONGEST_LINE:
            raise DamagedFile(_too_long(path, before, text))
        blank = _BLANK_LINE.search(text, searched)
        if blank:
            return before + blank.start() + 1
        if first_line and len(text) - first_line > _MAX_DOCUMENT_BYTES:
            return before + first_line
    return before + len(text)


def read_otherwise(paths: Iterable[str]) -> list[str]:
    """For a digest, how files without a named format are read that older versions read otherwise.

    All text is among them: whether a file has what is read otherwise, only reading it would tell.
    """
    newer = [known for known in FORMATS.values() if known.was_text]
    found: set[str] = set()
    for path in paths:
        if table.format_of(path):
            continue
        name = 'text'
        if any(known.is_named(path) for known in newer):
            name = _format_of_text(path, _first_of(_line_blocks(path)))
        found.add(name if FORMATS[name].was_text else f'text {_TEXT_VERSION}')
    return sorted(found)


def _first_of(blocks: Iterator[bytes]) -> bytes:
    """The first block that is not blank; b'' if there is none."""
    return next((block for block in blocks if block.strip()), b'')


def _format_of_text(path: str, first: bytes) -> str:
    """The name of the format of a text file that begins with this block.

    Raises:
      DamagedFile: it begins with markup or data.
    """
    text = first.lstrip()
    for name, known in FORMATS.items():
        if known.recognises(path, text):
            return name
    for begins, what, remedy in _NO_PROSE:
        if re.match(begins, text):
            raise DamagedFile(f'{path} begins like {what}: {remedy}, or write text:FILES to read '
                              'it as it stands')
    return 'text'


def normalise(text: bytes) -> bytes:
    """The text with LF line ends and without surrounding white space."""
    return text.replace(b'\r\n', b'\n').strip()


def _line_blocks(path: str, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
    """The file in blocks of whole lines: checked (UTF-8, no NUL), without BOM, LF line ends.

    Args:
      path: the file.
      begin, end: bytes of the file, where lines begin; None: to its end.
    """
    offset = begin  # of what has not been passed on, counted before line ends are changed
    rest = b''
    for raw in itertools.chain(read_blocks(path, _BLOCK_BYTES, begin, end), [b'']):
        last_line = raw.rfind(b'\n') + 1
        if raw and not last_line:
            rest += raw
            if len(rest) > LONGEST_LINE:
                raise DamagedFile(_too_long(path, offset, rest))
            continue
        block = rest + raw[:last_line]
        rest = raw[last_line:]
        _check_text(path, block, offset)
        text = block
        if offset == 0:
            text = block.removeprefix(_BYTE_ORDER_MARK)
            num_lone = text.count(b'\r') - text.count(b'\r\n')
            if num_lone > max(1, _MOST_LONE * text.count(b'\n')):
                raise DamagedFile(
                    f"{path}: its lines end with CR only: convert it (tr '\\r' '\\n')")
        yield text.replace(b'\r\n', b'\n')
        offset += len(block)
    if offset == 0:
        raise DamagedFile(f'{path} is empty')


def _too_long(path: str, offset: int, line: bytes) -> str:
    remedy = 'is this text?'
    if b'\r' in line:
        remedy = "if CR (0x0D) ends its lines, convert it (tr '\\r' '\\n')"
    return f'{path}: the line at byte {offset} is longer than {LONGEST_LINE >> 20} MiB; {remedy}'


def _check_text(path: str, block: bytes, offset: int) -> None:
    """Refuses a block of a file, at byte `offset`, that has a NUL or is not UTF-8."""
    bad = block.find(b'\0')
    if bad < 0:
        try:
            block.decode()
        except UnicodeDecodeError as error:
            bad = error.start
    if bad >= 0 and offset == 0 and block.startswith(_MARKS_OF_UTF16):
        raise DamagedFile(f'{path} is not UTF-8 but UTF-16, as its byte order mark shows: convert '
                          'it (iconv -f UTF-16 -t UTF-8), or leave it out')
    if bad >= 0:
        raise DamagedFile(f'{path} is not text in UTF-8: byte {offset + bad} is '
                          f'0x{block[bad]:02x}; convert it (iconv -t UTF-8), or leave it out')


# White space of Unicode besides spaces, TABs and line feeds: between documents, a line of it is
# blank, as in Google's create_pretraining_data.py.
_OTHER_WHITE = (
    rb'(?:[\r\v\f\x1c-\x1f]|\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f'
    rb'|\xe3\x80\x80)')
_WHITE_LINE = re.compile(rb'\n[ \t]*(?:' + _OTHER_WHITE + rb'[ \t]*)+(?=\n|\Z)')
_BLANK = re.compile(rb'\n[ \t]*\n\s*')
# With the line end before it, as in the file.
_BLANK_LINE = re.compile(rb'\n(?:[ \t]|' + _OTHER_WHITE + rb')*\n')
_TITLE = re.compile(rb'\n ?= [^=\n][^\n]* =[ \t]*(?=\n)')
_SECTION = re.compile(rb'\n *= = [^\n]*= =[ \t]*(?=\n)')


def _paragraphs(file: TextFile) -> Iterator[Document]:
    """A blank line between documents, one paragraph per line."""
    return _separated(map(_with_blank_lines, file.blocks))


def _lines(file: TextFile) -> Iterator[Document]:
    """A blank line between documents, one sentence per line."""
    return _separated(map(_with_blank_lines, file.blocks), split=False)


def _with_blank_lines(block: bytes) -> bytes:
    """Whole lines of a text, of which those that only have white space of Unicode are empty."""
    return _WHITE_LINE.sub(b'\n', b'\n' + block)[1:]


def _separated(
    blocks: Iterator[bytes], separator: re.Pattern = _BLANK, split: bool = True
) -> Iterator[Document]:
    """Documents: the text between matches of `separator`, which begins with a newline."""
    rest = b'\n'
    for block in blocks:
        *parts, rest = separator.split(rest + block)
        # `rest` consists of whole lines, so a document that is too long can be cut here.
        if len(rest) > _MAX_DOCUMENT_BYTES:
            parts.append(rest)
            rest = b'\n'
        yield from _documents(parts, split)
    yield from _documents([rest], split)


def _documents(texts: Iterable[bytes], split: bool) -> Iterator[Document]:
    """A document of each text that is not blank."""
    for text in texts:
        stripped = text.strip()
        if stripped:
            yield Document(stripped, split)


def _wikitext(file: TextFile) -> Iterator[Document]:
    """` = Title = `, ` = = Section = = `, one paragraph per line, blank lines anywhere."""
    for document in _separated(file.blocks, _TITLE):
        without_sections = _SECTION.sub(b'', b'\n' + document.text + b'\n')
        yield from _documents([without_sections], True)


def _wikiextractor(file: TextFile) -> Iterator[Document]:
    """`<doc ...>`, a title, one paragraph per line, `</doc>`."""
    end = b'</doc>'
    offset = 0  # of `rest` in the decompressed file, counted after line ends are changed
    rest = b''
    for block in itertools.chain(file.blocks, [b'']):
        *documents, rest = (rest + block).split(end)
        for document in documents:
            _check_doc(file.path, document, offset, is_ended=True)
            _, _, title_and_text = document.lstrip().partition(b'\n')
            _, _, text = title_and_text.partition(b'\n')
            yield from _documents([text], True)
            offset += len(document) + len(end)
        # Text without </doc> is examined at the end of the file, or when it gets too long.
        if rest.strip() and (not block or len(rest) > 4 * _MAX_DOCUMENT_BYTES):
            _check_doc(file.path, rest, offset, is_ended=False)


def _check_doc(path: str, document: bytes, offset: int, is_ended: bool) -> None:
    """Refuses text at byte `offset` that is not one `<doc ...>` with its `</doc>`."""
    text = document.lstrip()
    shown = text.partition(b'\n')[0][:80].decode(errors='replace')
    if not text.startswith(b'<doc '):
        at = offset + len(document) - len(text)
        raise DamagedFile(f"{path}: text outside of <doc> at byte {at}: '{shown}'; name "
                          'the format with text: if this is not WikiExtractor output')
    if not is_ended or b'\n<doc ' in text:
        raise DamagedFile(f"{path}: '{shown}' has no </doc>; is the file cut short?")


def _rows(read: Callable[..., Iterator[table.Row]], file: TextFile) -> Iterator[Document]:
    """One document per row, or several if it is too long: the column, one paragraph per line."""
    column = file.column
    rows = read(file.path, [column])
    for row in rows:
        cell = row.cells[0] if row.cells else None
        fault = row.fault
        if not fault and not isinstance(cell, str | None):
            fault = f'{column} is no text'
        if fault:
            # Where no row has the column, which only the reader knows, it is not the file's fault.
            _ = next((other for other in rows if other.cells), None)
            raise DamagedFile(f'{file.path}, line {row.line}: {fault}: correct the row; '
                              'config.data.text names the column')
        text = normalise((cell or '').encode('utf-8', 'ignore'))
        for piece in _pieces(text):
            if len(piece) > LONGEST_LINE:
                raise DamagedFile(f'{file.path}, line {row.line}: a line of {column} is longer '
                                  f'than {LONGEST_LINE >> 20} MiB; is this text?')
            yield from _documents([piece], True)


def _pieces(text: bytes) -> Iterator[bytes]:
    """A text, cut at line ends into pieces of at most 16 MiB; a longer line is one piece."""
    begin = 0
    while len(text) - begin > _MAX_DOCUMENT_BYTES:
        longest = begin + _MAX_DOCUMENT_BYTES
        end = text.rfind(b'\n', begin, longest + 1)
        if end < 0:
            end = text.find(b'\n', longest)
        if end < 0:
            break
        yield text[begin:end]
        begin = end + 1
    yield text[begin:]


def _wikidump(file: TextFile) -> Iterator[Document]:
    """The articles of a MediaWiki dump, which has a reader of its own."""
    for text in wikidump.read_articles(file.path):
        yield Document(text.encode('utf-8', 'ignore'), split=True)


def _fasta(file: TextFile) -> Iterator[Document]:
    """Sequences of letters, whose reader does not need whole lines."""
    return fasta.read_fasta(file.path)


def _is_wikiextractor(path: str, text: bytes) -> bool:
    return text.startswith(b'<doc ')


def _is_wikitext(path: str, text: bytes) -> bool:
    return _TITLE.match(b'\n ' + text) is not None


def _is_fasta(path: str, text: bytes) -> bool:
    # The name alone does not tell: `.fa` is also the ending of text in Persian.
    return text.startswith(b'>') and fasta.is_fasta(path)


def _is_table(path: str) -> bool:
    return bool(table.format_of(path))


# Names are prefixes of sources (`lines:FILES`). The first format that recognises a file reads it.
FORMATS: Mapping[str, Format] = {
    'text': Format(_paragraphs, in_ranges=True, name_in_digest=f'text {_TEXT_VERSION}'),
    'lines': Format(_lines, in_ranges=True, name_in_digest=f'lines {_TEXT_VERSION}'),
    'wikiextractor': Format(_wikiextractor, recognises=_is_wikiextractor),
    'wikitext': Format(
        _wikitext, recognises=_is_wikitext, name_in_digest=f'wikitext {_TEXT_VERSION}'),
    'wikidump': Format(
        _wikidump,
        name_in_digest=f'wikidump {wikidump.VERSION}',
        bytes_a_text_byte=4,  # a quarter of an English dump's XML is text
        takes_all_cores=True,
        package='mwparserfromhell',
        extra='wikidump'),
    'fasta': Format(_fasta, is_named=fasta.is_fasta, recognises=_is_fasta, was_text=True),
    # The file's ending shows which table it is.
    'table': Format(functools.partial(_rows, table.read_rows), is_named=_is_table),
    'jsonl': Format(functools.partial(_rows, table.read_objects)),
    'parquet': Format(functools.partial(_rows, table.read_parquet)),
}
