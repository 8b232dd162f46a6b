"""Texts in, a result for each out, in their order: what all commands share.

A text is read by itself, so that whatever is wrong with one is that one's result and no other's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data.pairs import Sequences
from bert_jax.predict.engine import Function, Outputs
from bert_jax.predict.loaded import LoadedModel
from bert_jax.runtime.errors import InputError
from bert_jax.tasks.packing import Units

# One text, or several that go together: a pair; a beginning and its possible ends. An error in
# place of a text is what is wrong with it.
Text = str | Sequence[str] | Exception
Single = str | Exception
Pair = Sequence[str] | Exception
Note = Callable[[str], None]
# From a text, its number from 1 and where to put remarks, to whatever `make` takes.
Read = Callable[[Any, int, Note], Any]

_CHUNK_STEPS = 8  # of the engine: what is made ready at a time,
_CHUNK_VALUES = 1 << 27  # and at most this many result values
_CHARACTERS = 4  # of a token, more or less

NONE = Units(Sequences(np.zeros(0, np.int32), np.zeros(1, np.int64), np.zeros(0, np.int64)))


class _Chunk(NamedTuple):
    """Consecutive texts, what was read of each (or an exception), and remarks."""

    texts: list[Any]
    read: list[Any]
    made: Any
    notes: list[str]


def stream(
    model: LoadedModel, texts: Iterable[Any], *, read: Read,
    make: Callable[[list[Any]], tuple[Any, Units]], function: Function,
    results: Callable[[Any, Outputs], Iterable[Any]],
    refused: Callable[[Any, str], Any], size: Callable[[Any], int] | None = None,
    values_per_token: int = 1,
) -> Iterator[Any]:
    """One result a text, in order; memory does not grow with their number.

    Args:
      model: whose engine computes.
      texts: any iterable; it is read a few chunks ahead, in the caller's thread.
      read: tokenizes a text, in another thread; what it raises is the text's result.
      make: units of what was read of consecutive texts, and (not None) what `results` needs.
      function: what is computed of the units.
      results: of what `make` gave and the outputs, one for each text.
      refused: the result of a text (or an error) that could not be read, from the reason.
      size: tokens of the units of a text, more or less.
      values_per_token: numbers that `function` gives a token, which bounds what is in memory.

    Raises:
      InputError: `texts` is one text.
    """
    check_many(texts)
    engine = model.engine
    limit = min(_CHUNK_STEPS * engine.tokens_a_step, _CHUNK_VALUES // values_per_token)

    def prepare(chunk: tuple[int, list[Any]]) -> tuple[_Chunk, Units]:
        first, members = chunk
        notes: list[str] = []
        found = [_read(read, text, first + i, notes.append) for i, text in enumerate(members)]
        good = [x for x in found if not isinstance(x, Exception)]
        made, units = make(good) if good else (None, NONE)
        return _Chunk(members, found, made, notes), units

    def answers() -> Iterator[Any]:
        chunks = _chunks(texts, size or num_tokens, limit)
        for chunk, outputs in engine.stream(function, model.device_params, chunks, prepare):
            for note in chunk.notes:
                model.note(note)
            found = iter(() if chunk.made is None else results(chunk.made, outputs))
            for text, x in zip(chunk.texts, chunk.read, strict=True):
                yield refused(text, _reason(x)) if isinstance(x, Exception) else next(found)

    return answers()


def check_many(texts: Iterable[Any]) -> None:
    """Refuses one text, whose letters would be texts."""
    if isinstance(texts, (str, bytes)):
        raise InputError(f'one text where a list of texts is expected: write [{texts[:40]!r}]')
    if isinstance(texts, Mapping) or not isinstance(texts, Iterable):
        raise InputError(
            f'{texts!r:.60} ({type(texts).__name__}) where a list of texts is expected')


def whole_number(name: str, value: Any, least: int = 1) -> int:
    """An argument that is to be a whole number.

    Raises:
      InputError: it is something else, or below `least`.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise InputError(f'{name}={value!r:.60} must be {least} or more, a whole number')
    return int(value)


def _read(read: Read, text: Any, number: int, note: Note) -> Any:
    if isinstance(text, Exception):
        return text
    try:
        return read(text, number, note)
    except Exception as error:  # whatever it is, the other texts have their results
        return error


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, InputError) else f'{type(error).__name__}: {error}'


def _chunks(
    texts: Iterable[Any], size: Callable[[Any], int], limit: int
) -> Iterator[tuple[int, list[Any]]]:
    """(number of the first, consecutive texts), of about `limit` tokens together."""
    chunk: list[Any] = []
    number = tokens = 0
    for number, text in enumerate(texts, 1):
        chunk.append(text)
        tokens += size(text)
        if tokens >= limit:
            yield number + 1 - len(chunk), chunk
            chunk, tokens = [], 0
    if chunk:
        yield number + 1 - len(chunk), chunk


def num_tokens(text: Any) -> int:
    """About so many are in a text, a pair or whatever else."""
    if isinstance(text, str):
        return 2 + len(text) // _CHARACTERS
    if isinstance(text, Sequence):
        return sum(map(num_tokens, text))
    return 1


def refused(text: Any, reason: str) -> dict[str, Any]:
    """The result of a text, or of several that go together, from which nothing can be made."""
    return shown(text) | {'error': reason}


def shown(text: Any) -> dict[str, Any]:
    """A text as its result shows it."""
    if isinstance(text, str):
        return {'text': text}
    if isinstance(text, Sequence) and all(isinstance(part, str) for part in text):
        return shown_parts(text)
    return {'text': None if isinstance(text, Exception) else repr(text)}


def shown_parts(parts: Sequence[str]) -> dict[str, Any]:
    """Texts that go together as their result shows them."""
    if len(parts) == 2:
        return {'first': parts[0], 'second': parts[1]}
    return {'text': parts[0] if len(parts) == 1 else list(parts)}


def parts_of(text: Any, *allowed: int) -> list[str]:
    """The texts that go together.

    Args:
      text: one text or several.
      allowed: how many there may be; none: any number.

    Raises:
      InputError: it is no text, or there is another number of them.
    """
    parts = [text] if isinstance(text, str) else text
    if not isinstance(parts, Sequence) or not all(isinstance(part, str) for part in parts):
        raise InputError(f'{text!r:.60} is no text: a str, or a tuple of them, is expected')
    if allowed and len(parts) not in allowed:
        wanted = ' or '.join(('one text', 'two texts')[n - 1] for n in allowed)
        raise InputError(f'it has {len(parts)} parts: {wanted} expected')
    return list(parts)
