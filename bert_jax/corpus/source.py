"""Sources of text: documents in units, and batches of documents on their way into a store.

    n: lines, N: tokens in all lines together
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np


class Document(NamedTuple):
    """A document's text."""

    text: bytes  # UTF-8; paragraphs or sentences separated by newlines
    split: bool  # True: paragraphs, to be split into sentences; False: one sentence a line


class Unit(NamedTuple):
    """A file, a range of a large file, or a shard of a source, which can be read by itself.

    Attributes:
      name: the path of the file, or what the source calls the shard.
      num_bytes: of text, estimated for compressed files; 0 where unknown.
      begin, end: bytes of the file, if the unit is a range of it; `end` is None for other units.
    """

    name: str
    num_bytes: int
    begin: int = 0
    end: int | None = None


@dataclasses.dataclass
class Source:
    """Documents in a fixed order, in units.

    Attributes:
      spec: the user's name for it.
      units: its units, in order.
      read: gives the documents of a unit, always the same in the same order; raises a DamagedFile
        that names the file and the place of unreadable content.
      fingerprint: gives a digest of the content, independent of its path.
      contents: gives for each unit what changes with the content of its file or the way to read it;
        nothing where only the whole is known.
      look_again: makes both tell the content as it is now; else they may tell that of a listing.
      outline: a summary, made without reading the text, which hosts compare.
      takes_all_cores: whether reading a unit keeps all cores busy, with processes of its own.
    """

    spec: str
    units: Sequence[Unit]
    read: Callable[[Unit], Iterator[Document]]
    fingerprint: Callable[[], str]
    outline: str = ''
    takes_all_cores: bool = False
    contents: Callable[[], Sequence[str]] = tuple
    look_again: Callable[[], object] = tuple


class TextBatch(NamedTuple):
    """Documents that are tokenized together.

    Attributes:
      texts: UTF-8, one for each document.
      split: whether to split them into sentences instead of lines.
      note: stays with the batch.
    """

    texts: list[bytes]
    split: bool
    note: Any


class TokenBatch(NamedTuple):
    """The tokens of a batch of documents.

    Attributes:
      ids: [N] int32, of all lines one after the other.
      num_tokens: [n] int32, in each line.
      num_lines: int64, in each document.
      note: that of the `TextBatch`.
    """

    ids: np.ndarray
    num_tokens: np.ndarray
    num_lines: np.ndarray
    note: Any
