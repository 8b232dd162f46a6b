"""Texts in, results out: what a command defines, and the stream that runs it on many texts.

A command yields one result per text, in the order of the texts. A text that cannot be read has an
error as its result and affects no other.
"""

import abc
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from bert_jax.data.packing import Units
from bert_jax.inference.engine import Function, Outputs
from bert_jax.predict.loaded import LoadedModel
from bert_jax.runtime.errors import InputError, Unreadable

# One text, or several that belong together: a pair, or a beginning and its possible endings. An
# exception in place of a text becomes that text's result.
Text = str | Sequence[str] | Exception
Result = dict[str, Any]

_CHUNK_STEPS = 8  # a chunk of texts fills about so many steps of the engine,
_CHUNK_VALUES = 1 << 27  # and its outputs have at most about so many values
_TOKEN_CHARACTERS = 4  # of a token, roughly
_COUNTED = {1: 'one text', 2: 'two texts'}

Read = TypeVar('Read')
Made = TypeVar('Made')


class Command(abc.ABC, Generic[Read, Made]):
    """How texts are read, computed and turned into results; `stream` runs it.

    Attributes:
      model: computes the texts.
      function: computes packed batches of the units (`inference.engine`).
      keys: of a result, besides the text. They are None where a text could not be read, so that all
        results are rows of one table.
      num_texts: how many texts belong together in a result; 0: as many as are given.
      values_per_token: output values per token, which bound the size of a chunk.
    """

    keys: Iterable[str] = ()
    num_texts: int = 1
    values_per_token: int = 1

    def __init__(self, model: LoadedModel, function: Function):
        """See the class."""
        self.model = model
        self.function = function

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
    """The texts of one item; what is no text, as Python writes it; none for an exception."""
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
      read: what the command read of each text, or the exception.
      readable: those of `read` that are no exceptions.
      made: by the command's `batch`; None if no text is readable.
    """

    texts: list[Any]
    read: list[Read | Exception]
    readable: list[Read]
    made: Made | None


def stream(
    model: LoadedModel, texts: Iterable[Any], command: Command[Any, Any]
) -> Iterator[Any]:
    """Yields one result per text, in order; memory use does not grow with their number.

    Args:
      model: whose engine computes the units.
      texts: any iterable; it is read a few chunks ahead, in the caller's thread.
      command: what is done with them.

    Raises:
      InputError: `texts` is one text, whose characters would be taken for texts, or not an
        iterable of texts.
    """
    if isinstance(texts, (str, bytes, Mapping)) or not isinstance(texts, Iterable):
        raise InputError(f'{texts!r:.60} ({type(texts).__name__}) where a list of texts is '
                         'expected, such as [text]')
    max_tokens = min(
        _CHUNK_STEPS * model.engine.tokens_a_step, _CHUNK_VALUES // command.values_per_token)
    chunks = _chunks(texts, max_tokens, command.size)

    def prepare(chunk: _Chunk) -> tuple[_ReadChunk[Any, Any], Units | None]:
        return _read_chunk(command, chunk)

    computed = model.engine.stream(command.function, model.device_params, chunks, prepare)
    for chunk, outputs in computed:
        yield from _results(command, chunk, outputs)


def _chunks(
    texts: Iterable[Any], max_tokens: int, size: Callable[[Any], int]
) -> Iterator[_Chunk]:
    """Consecutive texts, of about `max_tokens` tokens together."""
    chunk: list[Any] = []
    first_number = 1
    tokens = 0
    for text in texts:
        chunk.append(text)
        tokens += size(text)
        if tokens >= max_tokens:
            yield _Chunk(chunk, first_number)
            first_number += len(chunk)
            chunk = []
            tokens = 0
    if chunk:
        yield _Chunk(chunk, first_number)


def _read_chunk(
    command: Command[Read, Made], chunk: _Chunk
) -> tuple[_ReadChunk[Read, Made], Units | None]:
    """(The chunk with what the command read and made of it; its units, if a text has any)."""
    numbered = enumerate(chunk.texts, chunk.first_number)
    read: list[Any] = [_read(command, text, number) for number, text in numbered]
    readable = [x for x in read if not isinstance(x, Exception)]
    if not readable:
        return _ReadChunk(chunk.texts, read, readable, None), None
    made, units = command.batch(readable)
    return _ReadChunk(chunk.texts, read, readable, made), units


def _read(command: Command[Read, Any], text: Any, number: int) -> Read | Exception:
    """What a command reads of a text, or why it cannot."""
    if isinstance(text, Exception):
        return text
    try:
        return command.read(text, number)
    except Exception as error:  # of any type: the other texts still get results
        return error


def _results(
    command: Command[Read, Made], chunk: _ReadChunk[Read, Made], outputs: Outputs
) -> Iterator[Any]:
    """The results of a chunk's texts, in their order, errors among them."""
    results: Iterator[Any] = iter(())
    if chunk.readable:
        made: Any = chunk.made
        results = iter(command.results(chunk.readable, made, outputs))
    for text, read in zip(chunk.texts, chunk.read, strict=True):
        if isinstance(read, Exception):
            yield command.without_result(text, _reason(read))
        else:
            yield next(results)


def _reason(error: Exception) -> str:
    """Why a text cannot be read; what is not meant for users begins with its type."""
    if isinstance(error, InputError):
        return str(error)
    return f'{type(error).__name__}: {error}'
