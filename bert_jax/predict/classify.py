"""Commands over the pooled vector: next sentence, classification, regression, multiple choice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data.pairs import Sequences, joined
from bert_jax.heads import HEADS
from bert_jax.heads.classification import MultipleChoice, softmax
from bert_jax.predict import functions
from bert_jax.predict.engine import Outputs
from bert_jax.predict.loaded import LoadedModel
from bert_jax.predict.texts import (
    Note,
    Pair,
    Text,
    parts_of,
    refused,
    shown_parts,
    stream,
)
from bert_jax.runtime.errors import InputError
from bert_jax.tasks.packing import Units
from bert_jax.tasks.texts import TextWindows, text_windows


class Tokenized(NamedTuple):
    """The texts that go together, and the pieces of each."""

    texts: list[str]
    ids: list[list[int]]


Made = tuple[list[Tokenized], TextWindows]


def next_sentence(
    model: LoadedModel, pairs: Iterable[Pair]
) -> Iterator[dict[str, Any]]:
    """How likely B follows A; see `Model.next_sentence`."""
    model.need('next-sentence')

    def results(made: Made, outputs: Outputs) -> Iterator[dict[str, Any]]:
        for pair, of_pair in zip(made[0], softmax(outputs['logits']).tolist(), strict=True):
            yield shown_parts(pair.texts) | {'probability': of_pair[0]}

    return stream(
        model, pairs, read=reader(model, 2), make=maker(model), results=results,
        function=functions.next_sentence(model.config), refused=refused,
    )


def classify(
    model: LoadedModel, texts: Iterable[Text], windows: str | None
) -> Iterator[dict[str, Any]]:
    """Labels of texts or pairs, values, or choices; see `Model.classify`."""
    model.need('classify')
    head, labels = HEADS[model.weights.head], model.weights.labels
    if head is MultipleChoice:
        if windows is not None:
            raise InputError(f'windows={windows!r}: beginnings and ends are cut, not read in parts')
        return _choose(model, texts)
    how = model.windows(windows)

    def results(made: Made, outputs: Outputs) -> Iterator[dict[str, Any]]:
        texts, read = made
        logits = read.combined_logits(head, outputs['logits']).astype(np.float64)
        for text, result in zip(texts, head.described(logits, labels), strict=True):
            yield shown_parts(text.texts) | result

    return stream(
        model, texts, read=reader(model, 1, 2, how=how), make=maker(model, how), results=results,
        function=model.objective.outputs, refused=refused,
    )


def _choose(model: LoadedModel, texts: Iterable[Text]) -> Iterator[dict[str, Any]]:
    """Which end goes with a beginning: each of them is a pair, a unit by itself."""
    pair = reader(model, 2)

    def read(text: Text, number: int, note: Note) -> list[Tokenized]:
        parts = parts_of(text)
        if len(parts) < 3:
            raise InputError('it has no choices: a beginning and two or more ends of it expected')
        return [pair((parts[0], end), number, note) for end in parts[1:]]

    def make(texts: list[list[Tokenized]]) -> tuple[list[list[Tokenized]], Units]:
        _, units = maker(model)([pair for text in texts for pair in text])
        return texts, units

    def results(texts: list[list[Tokenized]], outputs: Outputs) -> Iterator[dict[str, Any]]:
        bounds = np.cumsum([len(text) for text in texts])[:-1]
        for text, logits in zip(texts, np.split(outputs['logits'][:, 0], bounds), strict=True):
            probabilities = softmax(logits).tolist()
            best = int(logits.argmax())
            yield {
                'text': text[0].texts[0], 'choices': [pair.texts[1] for pair in text],
                'choice': best, 'probability': probabilities[best],
                'probabilities': probabilities,
            }

    return stream(
        model, texts, read=read, make=make, results=results,
        function=model.objective.outputs, refused=refused,
    )


def reader(
    model: LoadedModel, *allowed: int, empty: bool = False, how: str = 'first'
) -> Callable[[Any, int, Note], Tokenized]:
    """Tokenizes a text or several that go together; remarks on what will be cut.

    Args:
      model: says how long it may be.
      allowed: how many texts there may be in one.
      empty: whether a text without words is one.
      how: one of `text_windows.WINDOWS`.
    """
    def read(text: Any, number: int, note: Note) -> Tokenized:
        parts = parts_of(text, *allowed)
        ids = [(model.tokenizer.encode if empty else model.encode)(part) for part in parts]
        total, budget = sum(map(len, ids)), model.max_length - 1 - len(ids)
        if total > budget and how == 'first':
            note(f'text {number} has {total} tokens, the model takes {budget}: its end is left out')
        return Tokenized(parts, ids)

    return read


def maker(
    model: LoadedModel, how: str = 'first'
) -> Callable[[list[Tokenized]], tuple[Made, Units]]:
    """Units of single texts and pairs, in their order."""
    def make(texts: list[Tokenized]) -> tuple[Made, Units]:
        firsts = joined([text.ids[0] for text in texts])
        limits: Any = {'max_length': model.max_length, **model.vocab.ends}
        is_pair = np.array([len(text.ids) == 2 for text in texts])
        if not is_pair.any():
            read = text_windows(firsts, None, how, **limits)
            return (texts, read), Units(read.sequences)
        seconds = joined([text.ids[1] if len(text.ids) == 2 else () for text in texts])
        read = text_windows(firsts, seconds, how, **limits)
        if not is_pair.all():
            read = _chosen(text_windows(firsts, None, how, **limits), read, is_pair)
        return (texts, read), Units(read.sequences)

    return make


def _chosen(first: TextWindows, second: TextWindows, from_second: np.ndarray) -> TextWindows:
    """Text by text the windows of the first or of the second."""
    windows = sorted(
        (text, i, x.sequences) for x, chosen in ((first, ~from_second), (second, from_second))
        for i, text in enumerate(x.text.tolist()) if chosen[text]
    )
    ids = [x.ids[x.offsets[i] : x.offsets[i + 1]] for _, i, x in windows]
    sequences = Sequences(
        np.concatenate(ids), np.concatenate([[0], np.cumsum([len(x) for x in ids])]),
        np.array([x.first_lengths[i] for _, i, x in windows]),
    )
    return TextWindows(sequences, np.array([text for text, _, _ in windows]), first.how)
