"""FASTA files of DNA, RNA or proteins: records -> documents of lines of letters.

A line that begins with `>` is the header of a record and is not read; the lines after it are one
sequence. It is read in capitals, without the `*` at its end. A run of 100 N or more is a gap of an
assembly: it is left out, and the letters around it are never neighbours. A file is read in blocks,
so that a chromosome on a single line takes no more memory than other text.
"""

import itertools
import re
from collections.abc import Iterator

from bert_jax.corpus.source import Document
from bert_jax.runtime.errors import DamagedFile
from bert_jax.runtime.files import read_blocks

ENDINGS = ('.fa', '.fas', '.fasta', '.fna', '.ffn', '.frn', '.faa')
_COMPRESSED = ('.gz', '.bz2')
_BLOCK_BYTES = 1 << 20
# A line is a "sentence", which `data.split_long_sentences` cuts to the rows. k-mers of k to 10 fill
# it, so that all of them in a document begin at a multiple of k.
LINE_LETTERS = 5040
# Long records are cut into several documents, of which some can be held out.
DOCUMENT_LETTERS = 10 * LINE_LETTERS
_GAP = re.compile(rb'N{100,}')
_MAX_HEADER_BYTES = 1 << 20
_BYTE_ORDER_MARK = b'\xef\xbb\xbf'
_WHITE_SPACE = b' \t\n\r\v\f'
_LETTERS = b'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz'
_SEQUENCE_CHARS = _LETTERS + b'*' + _WHITE_SPACE
_SHOWN = 40  # bytes of a wrong line, in messages


def is_fasta(path: str) -> bool:
    """Whether a file's name says that it is FASTA."""
    name = path.lower()
    for ending in _COMPRESSED:
        name = name.removesuffix(ending)
    return name.endswith(ENDINGS)


def read_fasta(path: str) -> Iterator[Document]:
    """The documents of a file, which may be compressed (.gz, .bz2).

    Raises:
      DamagedFile: it is damaged or no FASTA file, or has a record without a sequence.
    """
    reader = _Reader(path)
    blocks = read_blocks(path, _BLOCK_BYTES)
    first = next(blocks, b'').removeprefix(_BYTE_ORDER_MARK)
    for block in itertools.chain([first], blocks):
        for document in reader.read(block):
            yield Document(document, split=False)
    for document in reader.end():
        yield Document(document, split=False)


class _Reader:
    """Takes a file block by block and gives its documents.

    It is in the line of a header that has not ended yet (`header`), or else in a sequence.
    """

    def __init__(self, path: str):
        self._path = path
        self._line = 1  # the number of the line that the next byte is in
        self._is_line_begin = True
        self._header: bytes | None = None
        self._record: _Record | None = None

    def read(self, block: bytes) -> Iterator[bytes]:
        """The documents that end in a block of the file."""
        at = 0
        while at < len(block):
            if self._header is not None:
                at = self._read_header(self._header, block, at)
            elif self._is_line_begin and block.startswith(b'>', at):
                yield from self._end_record()
                self._header = b''
            else:
                end = block.find(b'\n>', at) + 1
                if not end:
                    end = len(block)
                yield from self._read_sequence(block[at:end])
                at = end

    def end(self) -> Iterator[bytes]:
        """The documents that are left at the end of the file."""
        if self._header is not None:
            self._begin_record(self._header)
        if self._record is None:
            raise DamagedFile(f'{self._path} is empty')
        yield from self._end_record()

    def _read_header(self, header: bytes, block: bytes, at: int) -> int:
        """Reads the rest of a header's line, if it ends in the block; the place after it."""
        end = block.find(b'\n', at) + 1
        if not end:
            self._header = header + block[at:]
            if len(self._header) > _MAX_HEADER_BYTES:
                raise DamagedFile(f'{self._path}, line {self._line}: the header is longer than '
                                  f'{_MAX_HEADER_BYTES >> 20} MiB; is this FASTA?')
            return len(block)
        self._begin_record(header + block[at:end])
        return end

    def _begin_record(self, header: bytes) -> None:
        self._record = _Record(header.removeprefix(b'>'), self._line)
        self._header = None
        self._is_line_begin = True
        self._line += 1

    def _end_record(self) -> Iterator[bytes]:
        """The last documents of the record before a header or the end of the file."""
        record = self._record
        if record is None:
            return
        if record.is_empty:
            name = _shown(record.header)
            raise DamagedFile(f'{self._path}, line {record.line}: the record {name} has no '
                              'sequence: remove it, or copy the file again if it is cut short')
        yield from record.documents(is_whole=True)

    def _read_sequence(self, text: bytes) -> Iterator[bytes]:
        """The documents that end in lines of a sequence, of which the last may not be whole."""
        wrong = text.translate(None, _SEQUENCE_CHARS)
        if self._record is None:
            if text.strip():
                raise DamagedFile(self._no_header(text))
        elif wrong:
            raise DamagedFile(self._no_letter(text, wrong[:1]))
        else:
            self._record.add(text.translate(None, _WHITE_SPACE).upper())
            yield from self._record.documents(is_whole=False)
        self._line += text.count(b'\n')
        self._is_line_begin = text.endswith(b'\n')

    def _no_header(self, text: bytes) -> str:
        """The message for a file that begins with something else than a header."""
        before = text[: len(text) - len(text.lstrip())]
        number = self._line + before.count(b'\n')
        place = f'{self._path}, line {number}'
        line = text.lstrip().partition(b'\n')[0]
        if line.startswith(b'@'):
            return (f'{place}: {_shown(line)} begins a FASTQ file, and reads with their qualities '
                    'are not read: convert it to FASTA (seqtk seq -a)')
        return (f"{place}: {_shown(line)} is no header: a FASTA file begins with '>NAME'; name "
                'the format of other text (lines:FILES, one sequence a line)')

    def _no_letter(self, text: bytes, char: bytes) -> str:
        """The message for a character that cannot be in a sequence."""
        before = text[: text.index(char)]
        line = self._line + before.count(b'\n')
        what = repr(char.decode()) if char.isascii() else f'byte 0x{char.hex()}'
        remedy = 'a sequence has letters, and * where a protein ends: correct the line'
        if char in b'-.':
            remedy = 'it is a gap of an alignment: give the sequences before they were aligned'
        return f'{self._path}, line {line}: {what} in a sequence: {remedy}'


class _Record:
    """The sequence of a record, as far as it has been read and not given away.

    Attributes:
      header: its line, without `>`.
      line: the number of this line.
      is_empty: whether no letter has been read.
    """

    def __init__(self, header: bytes, line: int):
        self.header = header
        self.line = line
        self.is_empty = True
        self._letters = b''
        self._is_after_gap = False

    def add(self, letters: bytes) -> None:
        """Reads on."""
        self.is_empty = self.is_empty and not letters
        self._letters += letters
        if self._is_after_gap:
            self._letters = self._letters.lstrip(b'N')  # the gap goes on
            self._is_after_gap = not self._letters

    def documents(self, is_whole: bool) -> Iterator[bytes]:
        """The documents that are certain by now; all that are left if the record is whole."""
        letters = self._letters
        if is_whole:
            letters = letters.rstrip(b'*')
        *ended, last = _GAP.split(letters)
        for part in ended:
            yield from _cut(part)
        if ended:
            self._is_after_gap = not last
        if is_whole:
            yield from _cut(last)
            return
        # N at the end may become a gap, and * is left out at the end of the record.
        num_certain = len(last.rstrip(b'N*')) // DOCUMENT_LETTERS * DOCUMENT_LETTERS
        yield from _cut(last[:num_certain])
        self._letters = last[num_certain:]


def _cut(letters: bytes) -> Iterator[bytes]:
    """Documents of the letters between two gaps; none if there are no letters."""
    for begin in range(0, len(letters), DOCUMENT_LETTERS):
        document = letters[begin : begin + DOCUMENT_LETTERS]
        lines = []
        for at in range(0, len(document), LINE_LETTERS):
            lines.append(document[at : at + LINE_LETTERS])
        yield b'\n'.join(lines)


def _shown(line: bytes) -> str:
    """The beginning of a line, for messages."""
    return repr(line.strip()[:_SHOWN].decode(errors='replace'))
