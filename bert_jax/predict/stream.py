"""Texts in, results out: what a job on texts defines, and the stream that runs it on many.

A job yields one result per text, in the order of the texts. A text that cannot be read has an
error as its result and affects no other.
"""

import abc
import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any, Generic, TypeVar

from bert_jax.answers.engine import Function, Outputs
from bert_jax.predict.loaded import LoadedModel
from bert_jax.rows.packing import Units
from bert_jax.runtime.arriving import PAUSE, WAIT_SECONDS, Arriving, Pause
from bert_jax.runtime.errors import InputError, Unreadable
from bert_jax.text.library import Unsplittable

# One text, or several that belong together: a pair, or a beginning and its possible endings. An
# exception in place of a text becomes that text's result.
Text = str | Sequence[str] | Exception
Result = dict[str, Any]

_CHUNK_STEPS = 8  # a chunk of texts fills about so many steps of the engine,
_CHUNK_VALUES = 1 << 27  # and its outputs have at most about so many values
# From a chunk to the next, of a source that may pause at any text. Small chunks cost less than the
# programs of their shapes, which are compiled first, so that it is not 2.
_GROWTH = 16
_TOKEN_CHARACTERS = 4  # of a token, roughly
_COUNTED = {1: 'one text', 2: 'two texts'}

Read = TypeVar('Read')
Made = TypeVar('Made')


class Notes:
    """Notes on the texts of a stream: the first few of each kind, and how many more there were."""

    def __init__(self, model: LoadedModel):
        """`model`: takes the notes."""
        self._model = model
        self._nums: dict[str, int] = {}
        self._mosts: dict[str, int] = {}

    def add(self, line: str, kind: str, most: int = 1) -> None:
        """Passes a note on, or counts it.

        Args:
          line: the note.
          kind: what the texts of such notes have in common, such as 'texts are too long'.
          most: how many of the kind are passed on.
        """
        num = self._nums.get(kind, 0) + 1
        self._nums[kind] = num
        self._mosts[kind] = most
        if num <= most:
            self._model.pass_on(line)

    def finish(self) -> None:
        """Says how many there were of each kind that were not passed on."""
        for kind, num in self._nums.items():
            more = num - self._mosts[kind]
            if more > 0:
                self._model.pass_on(f'{more:,} more {kind}')
        self._nums.clear()


class TextJob(abc.ABC, Generic[Read, Made]):
    """How texts are read, computed and turned into results; `stream` runs it.

    Attributes:
      model: computes the texts.
      function: computes packed batches of the units (`answers.engine`).
      keys: of a result, besides the text. They are None where a text could not be read, so that all
        results are rows of one table.
      num_texts: how many texts belong together in a result; 0: as many as are given.
      values_per_token: output values per token, which bound the size of a chunk.
      reading: what else decides, besides the model's tokenizer, frame and length, which units
        `read` and `batch` make of a text.
      notes: on the texts.
    """

    keys: Iterable[str] = ()
    num_texts: int = 1
    values_per_token: int = 1
    reading: tuple[Any, ...] = ()

    def __init__(self, model: LoadedModel, function: Function):
        """See the class."""
        self.model = model
        self.function = function
        self.notes = Notes(model)

    @property
    def params(self) -> Any:
        """The parameters that `function` gets, on the devices."""
        return self.model.device_params

    @abc.abstractmethod
    def read(self, text: Any, number: int) -> Read:
        """Tokenizes a text, in another thread than the caller's.

        An exception that it raises becomes the text's result.

        Args:
          text: as the user gave it.
          number: of the text, from 1, for notes.
        """

    @abc.abstractmethod
    def batch(self, texts: list[Read]) -> tuple[Made, Units]:
        """Makes (anything for `results`, units) of what `read` returned for some texts."""

    @abc.abstractmethod
    def results(self, texts: list[Read], made: Made, outputs: Outputs) -> Iterable[Any]:
        """Makes one result for each text, from the outputs of the units that `batch` made."""

    def without_result(self, text: Any, reason: str) -> Any:
        """Makes the result of a text that could not be read, or of the exception in its place."""
        return shown(text, self.num_texts) | dict.fromkeys(self.keys) | {'error': reason}

    def size(self, text: Any) -> int:
        """Estimates the tokens of a text's units."""
        return num_tokens(text)


def num_tokens(text: Any) -> int:
    """An estimate of the tokens in a text, a pair or anything else."""
    if isinstance(text, str):
        return 2 + len(text) // _TOKEN_CHARACTERS
    if isinstance(text, Sequence):
        return sum(map(num_tokens, text))
    return 1


def shown(text: Any, num_texts: int = 0) -> Result:
    """A text, or several that belong together, as a result shows them; None for those not there.

    Args:
      text: as the user gave it, or an exception in its place.
      num_texts: how many texts belong together; 0: as many as `text` has.
    """
    parts = _shown_parts(text)
    if not num_texts and isinstance(text, Unreadable):
        num_texts = text.num
    if (num_texts or len(parts)) == 2:
        first, second, *_ = [*parts, None, None]
        return {'first': first, 'second': second}
    if len(parts) == 1:
        return {'text': parts[0]}
    return {'text': parts or None}


def _shown_parts(text: Any) -> list[str]:
    """The texts of one item; other values are written as Python does, and exceptions left out."""
    if isinstance(text, Exception):
        return []
    if isinstance(text, str):
        return [text]
    if isinstance(text, Sequence) and all(isinstance(part, str) for part in text):
        return list(text)
    return [repr(text)]


def parts_of(text: Any, *allowed: int) -> list[str]:
    """The texts of one item, as a list.

    Args:
      text: one text, or several that belong together.
      allowed: how many there may be, 1 or 2; none given: any number.

    Raises:
      InputError: it is no text, or there is another number of them.
    """
    parts = [text] if isinstance(text, str) else text
    if not isinstance(parts, Sequence) or not all(isinstance(part, str) for part in parts):
        raise InputError(f'{text!r:.60} is no text: a str, or a tuple of them, is expected')
    if allowed and len(parts) not in allowed:
        wanted = ' or '.join(_COUNTED[num] for num in allowed)
        counted = '1 part' if len(parts) == 1 else f'{len(parts)} parts'
        raise InputError(f'it has {counted}: {wanted} expected')
    return list(parts)


@dataclasses.dataclass(frozen=True)
class _Chunk:
    """Consecutive texts, as given; the first has this number."""

    texts: list[Any]
    first_number: int


@dataclasses.dataclass(frozen=True)
class _ReadChunk(Generic[Read, Made]):
    """A chunk of which units are made.

    Attributes:
      texts: as given.
      read: what the job read of each text, or the exception.
      readable: those of `read` that are no exceptions.
      made: by the job's `batch`; None if no text is readable.
    """

    texts: list[Any]
    read: list[Read | Exception]
    readable: list[Read]
    made: Made | None


def stream(
    model: LoadedModel, texts: Iterable[Any], job: TextJob[Any, Any]
) -> Iterator[Any]:
    """Yields one result per text, in order; memory use does not grow with their number.

    Args:
      model: whose engine computes the units.
      texts: any iterable; it is read a few chunks ahead, in the caller's thread. One without a
        length may be a live source: of it a single text is taken before the first result, and then
        at most `_GROWTH` times as many as have results, until chunks are full. A text that takes
        long to come has its result before the next is asked for.
      job: what is done with them.

    Raises:
      InputError: `texts` is one text, whose characters would be taken for texts, or not an
        iterable of texts.
    """
    if isinstance(texts, Arriving):
        arriving = texts
        begins_small = False
    else:
        if isinstance(texts, (str, bytes, Mapping)) or not isinstance(texts, Iterable):
            raise InputError(f'{texts!r:.60} ({type(texts).__name__}) where a list of texts is '
                             'expected, such as [text]')
        begins_small = not isinstance(texts, Sized)
        arriving = Arriving(texts, WAIT_SECONDS if begins_small else math.inf)
    max_tokens = min(
        _CHUNK_STEPS * model.engine.tokens_a_step, _CHUNK_VALUES // job.values_per_token)
    chunks = _chunks(arriving, max_tokens, job.size, begins_small)

    def prepare(chunk: _Chunk) -> tuple[_ReadChunk[Any, Any], Units | None]:
        return _read_chunk(job, chunk)

    computed = model.engine.stream(job.function, job.params, chunks, prepare)
    try:
        for chunk, outputs in computed:
            yield from _results(job, chunk, outputs)
    finally:
        job.notes.finish()


def _chunks(
    arriving: Arriving, max_tokens: int, size: Callable[[Any], int], begins_small: bool
) -> Iterator[_Chunk | Pause]:
    """Consecutive texts, of about `max_tokens` tokens together, or fewer where they come slowly.

    There is a `PAUSE` after each chunk that is not full: its results are wanted before the next
    text is there.

    Args:
      arriving: the texts.
      max_tokens: of a full chunk.
      size: the tokens of a text.
      begins_small: whether the first chunk is one text, and each at most `_GROWTH` times as many as
        the one before until they are full: a source that says nothing of its pauses may make one
        before any text.
    """
    first_number = 1
    most_texts = 1 if begins_small else 0  # 0: any number
    chunk: list[Any] = []
    tokens = 0
    asked = begun = time.monotonic()  # when the last text was asked for; and the chunk's first
    for text in arriving.items:
        now = time.monotonic()
        was_slow = now - asked >= arriving.wait
        if not isinstance(text, Pause):
            if not chunk:
                begun = now
            chunk.append(text)
            tokens += size(text)
        is_full = tokens >= max_tokens
        is_late = isinstance(text, Pause) or was_slow or now - begun >= arriving.wait
        if chunk and (is_full or is_late or len(chunk) == most_texts):
            yield _Chunk(chunk, first_number)
            first_number += len(chunk)
            chunk = []
            tokens = 0
            if is_full:
                most_texts = 0
            else:
                yield PAUSE
                most_texts = _next_most(most_texts, was_slow, begins_small)
        asked = time.monotonic()
    if chunk:
        yield _Chunk(chunk, first_number)


def _next_most(most_texts: int, was_slow: bool, begins_small: bool) -> int:
    """The most texts of the chunk after one that is not full; 0: any number."""
    if not begins_small:
        return 0
    return 1 if was_slow else _GROWTH * max(1, most_texts)


def _read_chunk(
    job: TextJob[Read, Made], chunk: _Chunk
) -> tuple[_ReadChunk[Read, Made], Units | None]:
    """(The chunk with what the job read and made of it; its units, if a text has any)."""
    numbered = enumerate(chunk.texts, chunk.first_number)
    read: list[Any] = [_read(job, text, number) for number, text in numbered]
    try:
        return _made(job, chunk, read)
    except Unsplittable:  # where only `batch` splits texts
        return _made(job, chunk, [_alone(job, x) for x in read])


def _made(
    job: TextJob[Read, Made], chunk: _Chunk, read: list[Any]
) -> tuple[_ReadChunk[Read, Made], Units | None]:
    """`_read_chunk`, from what the job read."""
    readable = [x for x in read if not isinstance(x, Exception)]
    if not readable:
        return _ReadChunk(chunk.texts, read, readable, None), None
    made, units = job.batch(readable)
    return _ReadChunk(chunk.texts, read, readable, made), units


def _alone(job: TextJob[Read, Any], read: Read | Exception) -> Read | Exception:
    """What the job has read of a text, or the error if its batch cannot be made."""
    if isinstance(read, Exception):
        return read
    try:
        job.batch([read])
    except Unsplittable as error:
        return error
    return read


def _read(job: TextJob[Read, Any], text: Any, number: int) -> Read | Exception:
    """What a job reads of a text, or why it cannot."""
    if isinstance(text, Exception):
        return text
    try:
        return job.read(text, number)
    except Exception as error:  # of any type: the other texts still get results
        return error


def _results(
    job: TextJob[Read, Made], chunk: _ReadChunk[Read, Made], outputs: Outputs
) -> Iterator[Any]:
    """The results of a chunk's texts, in their order, errors among them."""
    results: Iterator[Any] = iter(())
    if chunk.readable:
        made: Any = chunk.made
        results = iter(job.results(chunk.readable, made, outputs))
    for text, read in zip(chunk.texts, chunk.read, strict=True):
        if isinstance(read, Exception):
            yield job.without_result(text, _reason(read))
        else:
            yield next(results)


def _reason(error: Exception) -> str:
    """Why a text cannot be read; of an exception that is not for users, its type comes first."""
    if isinstance(error, InputError):
        return str(error)
    return f'{type(error).__name__}: {error}'
