"""Documents of a source in batches for a tokenizer; how units are read ahead, many at a time."""

import collections
import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from bert_jax.corpus.source import Document, Source, TextBatch, Unit
from bert_jax.runtime.files import in_bucket

_BATCH_BYTES = 1 << 20
_BATCH_DOCUMENTS = 10_000
# Larger units are read one after the other: a thread more would take memory and gain little.
_SMALL_BYTES = 1 << 20
# A small object takes as long as a megabyte of a large one, and so does a file of a network disk.
_THREADS = 32
_BYTES_AHEAD = 32 << 20
_MOST_OF_A_UNIT = 8 << 20  # that is in memory for what is read ahead of it: a request to a bucket
# On a disk, where to pass a tiny file on to another thread costs as much as to read it.
_UNITS_OF_A_TASK = 16
_TINY_BYTES = 1 << 16


class Place(NamedTuple):
    """Where in a source a batch ends, and its size.

    Attributes:
      unit: of the last document of the batch.
      done: documents of this unit in the batch and before it.
      num_bytes: of text in the batch.
    """

    unit: int
    done: int
    num_bytes: int


def text_batches(source: Source, indices: range, done: int = 0) -> Iterator[TextBatch]:
    """The documents of units, about 1 MiB or 10,000 at a time, however small the units are.

    A batch also ends before a document that differs in `split`. Its `note` is a `Place`, and what
    follows it is `text_batches(source, range(place.unit, indices.stop), place.done)`.

    Args:
      source: the text.
      indices: of the units, one after the other.
      done: documents of the first unit to leave out.
    """
    batch = _GrowingBatch()
    units = source.units[indices.start : indices.stop]
    for index, documents in zip(indices, read_ahead(source, units, _SMALL_BYTES), strict=True):
        for document in itertools.islice(documents, done, None):
            if batch.texts and document.split != batch.split:
                yield batch.taken()
            done += 1
            batch.add(document, index, done)
            if batch.is_full():
                yield batch.taken()
        done = 0
    if batch.texts:
        yield batch.taken()


@dataclasses.dataclass
class _GrowingBatch:
    """Documents of a batch that is not full; the fields are those of `TextBatch` and `Place`."""

    texts: list[bytes] = dataclasses.field(default_factory=list)
    split: bool = True
    unit: int = 0
    done: int = 0
    num_bytes: int = 0

    def add(self, document: Document, unit: int, done: int) -> None:
        """Adds a document, the one of a unit with which so many are done."""
        self.texts.append(document.text)
        self.split = document.split
        self.unit = unit
        self.done = done
        self.num_bytes += len(document.text)

    def is_full(self) -> bool:
        """Whether the batch is to be used as it is."""
        return self.num_bytes >= _BATCH_BYTES or len(self.texts) >= _BATCH_DOCUMENTS

    def taken(self) -> TextBatch:
        """The batch, in whose place an empty one begins."""
        batch = TextBatch(self.texts, self.split, Place(self.unit, self.done, self.num_bytes))
        self.texts = []
        self.num_bytes = 0
        return batch


def read_ahead(
    source: Source, units: Sequence[Unit], largest: int | None = None,
    head_bytes: int = _SMALL_BYTES,
) -> Iterator[Iterator[Document]]:
    """The documents of each unit, in order, while threads read the beginnings of the next units.

    An error is raised where its document would come. What is in memory is bounded whatever the
    sizes of the units, also where they were estimated wrongly.

    Args:
      source: the text.
      units: some of its units.
      largest: bytes of text of the largest units to read ahead; None: all are.
      head_bytes: of the text of a unit, about so much is read ahead.
    """
    pool = ThreadPoolExecutor(_THREADS, 'read-ahead')
    pending: collections.deque[tuple[_Task, Future[list[_Head]]]] = collections.deque()
    num_bytes = 0
    try:
        for task in _tasks(source, units, largest):
            while pending and not _has_room(len(pending), num_bytes + task.num_bytes):
                first, heads = pending.popleft()
                num_bytes -= first.num_bytes
                for head in heads.result():
                    yield head.all_documents(source)
            pending.append((task, pool.submit(_heads, source, task, head_bytes)))
            num_bytes += task.num_bytes
        for _, heads in pending:
            for head in heads.result():
                yield head.all_documents(source)
    finally:
        pool.shutdown(cancel_futures=True)


def _has_room(num_tasks: int, num_bytes: int) -> bool:
    """Whether one more task than these may begin, with which they hold so many bytes."""
    return num_tasks < 2 * _THREADS and num_bytes <= _BYTES_AHEAD


class _Task(NamedTuple):
    """Units whose beginnings a thread reads, one after the other.

    Attributes:
      units: the units.
      is_ahead: whether they are read ahead; if not, they are only read when it is their turn.
      num_bytes: that reading their beginnings takes in memory, estimated.
    """

    units: list[Unit]
    is_ahead: bool
    num_bytes: int


def _tasks(source: Source, units: Sequence[Unit], largest: int | None) -> Iterator[_Task]:
    """The units in tasks: each one alone, but tiny files of a disk together."""
    group: list[Unit] = []
    num_bytes = 0
    for unit in units:
        is_small = largest is None or 0 < unit.num_bytes <= largest
        is_ahead = is_small and not source.takes_all_cores
        is_tiny = is_ahead and not in_bucket(unit.name) and 0 < unit.num_bytes <= _TINY_BYTES
        if group and (not is_tiny or len(group) == _UNITS_OF_A_TASK):
            yield _Task(group, True, num_bytes)
            group = []
            num_bytes = 0
        memory = min(unit.num_bytes or _MOST_OF_A_UNIT, _MOST_OF_A_UNIT)
        if is_tiny:
            group.append(unit)
            num_bytes += memory
        else:
            yield _Task([unit], is_ahead, memory if is_ahead else 0)
    if group:
        yield _Task(group, True, num_bytes)


class _Head(NamedTuple):
    """The beginning of a unit.

    Attributes:
      unit: the unit.
      documents: those that have been read.
      rest: the documents behind them; None if reading has not begun.
      error: what reading ended with, if it failed.
    """

    unit: Unit
    documents: list[Document]
    rest: Iterator[Document] | None
    error: Exception | None

    def all_documents(self, source: Source) -> Iterator[Document]:
        """The documents of the unit."""
        yield from self.documents
        if self.error is not None:
            raise self.error
        if self.rest is None:
            yield from source.read(self.unit)
        else:
            yield from self.rest


def _heads(source: Source, task: _Task, num_bytes: int) -> list[_Head]:
    """The beginnings of units, with so many bytes of text or a little more of each."""
    if not task.is_ahead:
        return [_Head(unit, [], None, None) for unit in task.units]
    return [_head(source, unit, num_bytes) for unit in task.units]


def _head(source: Source, unit: Unit, num_bytes: int) -> _Head:
    documents: list[Document] = []
    try:
        rest = iter(source.read(unit))
        for document in rest:
            documents.append(document)
            num_bytes -= len(document.text)
            if num_bytes <= 0:
                break
    except Exception as error:  # raised again by `all_documents`
        return _Head(unit, documents, None, error)
    return _Head(unit, documents, rest, None)
