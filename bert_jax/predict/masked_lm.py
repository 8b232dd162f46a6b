"""Commands over the masked-LM head: filling in [MASK], and pseudo-perplexity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from bert_jax.data.pairs import joined, make_sequences
from bert_jax.predict import functions
from bert_jax.predict.engine import Outputs
from bert_jax.predict.loaded import LoadedModel
from bert_jax.predict.texts import (
    Note,
    Single,
    check_many,
    parts_of,
    refused,
    shown,
    stream,
    whole_number,
)
from bert_jax.runtime.errors import InputError
from bert_jax.tasks.packing import Units
from bert_jax.text.sentencepiece import WORD_START
from bert_jax.text.vocab import CONTINUATION, MASK, Vocab

_SCORED = 64  # tokens of a text that are masked in one go, so that a long one is no long chunk


class _Masked(NamedTuple):
    """Token sequences of a text, each with one masked place, and the tokens that stood there."""

    text: str
    ids: list[list[int]]
    places: list[int]  # in `ids`
    targets: list[int]


def fill_mask(
    model: LoadedModel, texts: Iterable[Single], top_k: int = 5
) -> Iterator[dict[str, Any]]:
    """The likeliest tokens for each [MASK]; see `Model.fill_mask`."""
    model.need('fill-mask')
    top_k = whole_number('top_k', top_k)
    vocab = model.vocab

    def results(texts: list[_Masked], outputs: Outputs) -> Iterator[dict[str, Any]]:
        of_masks = zip(outputs['probabilities'].tolist(), outputs['ids'].tolist(), strict=True)
        for text in texts:
            predictions = [
                [
                    {
                        'token': _name(vocab, i), 'id': i, 'probability': probability,
                        'sequence': _with_token(text.text, number, vocab, i),
                    }
                    for probability, i in zip(*next(of_masks), strict=True)
                ]
                for number in range(len(text.ids))
            ]
            yield {
                'text': text.text,
                'predictions': predictions if len(predictions) > 1 else predictions[0],
            }

    return stream(
        model, texts, read=lambda *text: _prompt(model, *text),
        make=lambda texts: _units(model, texts), results=results, refused=refused,
        function=functions.masked_lm_top(model.config, min(top_k, model.config.vocab_size)),
    )


def _prompt(model: LoadedModel, text: Any, number: int, note: Note) -> _Masked:
    """A prompt once for each [MASK]; of one that is too long, what is around it."""
    (text,) = parts_of(text, 1)
    model.encode(text)  # refuses empty ones
    ids: list[int] = []
    masks = []
    for i, part in enumerate(text.split(MASK)):
        if i:
            masks.append(len(ids))
            ids.append(model.vocab.mask_id)
        ids += model.tokenizer.encode(part)
    if not masks:
        raise InputError(
            f'it has no {MASK}: write {MASK} where a word is to be filled in ({text[:60]!r})'
        )
    size = model.max_length - 2
    if len(ids) > size:
        note(
            f'text {number} has {len(ids)} tokens, the model takes {size}: each {MASK} is filled '
            f'in from the {size} tokens around it'
        )
    begins = [_around(len(ids), at, size) for at in masks]
    return _Masked(
        text, [ids[begin : begin + size] for begin in begins],
        [at - begin for at, begin in zip(masks, begins, strict=True)], [0] * len(masks),
    )


def _around(length: int, place: int, size: int) -> int:
    """Where the window of `size` tokens begins that has a place in its middle.

    Near an end of the text it is moved, so that it is full where the text is long enough.
    """
    return max(0, min(place - size // 2, length - size))


def _units(model: LoadedModel, texts: list[_Masked]) -> tuple[list[_Masked], Units]:
    sequences = make_sequences(
        joined([ids for text in texts for ids in text.ids]), None,
        max_length=model.max_length, **model.vocab.ends,
    )
    places = np.array([place for text in texts for place in text.places], np.int64)
    targets = np.array([target for text in texts for target in text.targets], np.int32)
    return texts, Units(
        sequences, labels={'targets': targets}, positions={'masked_positions': 1 + places}
    )


def _name(vocab: Vocab, i: int) -> str:
    """The token; an embedding may have more rows than the vocabulary has tokens."""
    return vocab.tokens[i] if i < len(vocab) else f'[unused row {i}]'


def _with_token(text: str, number: int, vocab: Vocab, i: int) -> str:
    """The text with its mask `number` replaced; a continuation is joined to the word before."""
    parts = text.split(MASK)
    before, after = MASK.join(parts[: number + 1]), MASK.join(parts[number + 1 :])
    token = _name(vocab, i).removeprefix(WORD_START)
    if i < len(vocab) and vocab.is_continuation[i]:
        return before.rstrip() + token.removeprefix(CONTINUATION) + after
    return before + token + after


class _Part(NamedTuple):
    """Some tokens of a text, each of which is to be masked; or what is wrong with the text."""

    text: Any
    ids: list[int]
    places: range
    error: Exception | None = None

    @property
    def is_last(self) -> bool:
        return self.places.stop == len(self.ids)


def score(model: LoadedModel, texts: Iterable[Single]) -> Iterator[dict[str, Any]]:
    """Pseudo-log-likelihoods; see `Model.score`."""
    model.need('score')
    check_many(texts)
    size = model.max_length - 2
    mask_id = model.vocab.mask_id

    def parts() -> Iterator[_Part]:
        for text in texts:
            try:
                if isinstance(text, Exception):
                    raise text
                ids = model.encode(parts_of(text, 1)[0])
            except Exception as error:  # this text's result
                yield _Part(text, [], range(0), error)
                continue
            for begin in range(0, len(ids), _SCORED):
                yield _Part(text, ids, range(begin, min(begin + _SCORED, len(ids))))

    def read(part: _Part, number: int, note: Note) -> tuple[_Part, _Masked]:
        del number, note
        if part.error is not None:
            raise part.error
        begins = [_around(len(part.ids), at, size) for at in part.places]
        windows = [part.ids[begin : begin + size] for begin in begins]
        places = [at - begin for at, begin in zip(part.places, begins, strict=True)]
        for window, place in zip(windows, places, strict=True):
            window[place] = mask_id
        targets = part.ids[part.places.start : part.places.stop]
        return part, _Masked(part.text, windows, places, targets)

    def make(read: list[tuple[_Part, _Masked]]) -> tuple[list[_Part], Units]:
        parts, masked = zip(*read, strict=True)
        return list(parts), _units(model, list(masked))[1]

    def results(parts: list[_Part], outputs: Outputs) -> Iterator[tuple[_Part, list[float]]]:
        found = iter(outputs['log_probability'].tolist())
        for part in parts:
            yield part, [next(found) for _ in part.places]

    def answers() -> Iterator[dict[str, Any]]:
        logs: list[float] = []
        for found in stream(
            model, parts(), read=read, make=make, results=results,
            function=functions.masked_lm_log_probability(model.config),
            refused=lambda part, reason: refused(part.text, reason),
            size=lambda part: len(part.places) * min(len(part.ids) + 2, model.max_length),
        ):
            if isinstance(found, dict):
                yield found
                continue
            part, values = found
            logs += values
            if part.is_last:
                total, num = math.fsum(logs), len(logs)
                logs = []
                yield shown(part.text) | {
                    'num_tokens': num, 'log_probability': total,
                    'pseudo_perplexity': pseudo_perplexity(total, num),
                }

    return answers()


def pseudo_perplexity(log_probability: float, num_tokens: int) -> float:
    """exp of minus the mean log probability of a token (Salazar et al., 2020, section 2.3)."""
    return math.exp(min(-log_probability / max(num_tokens, 1), 700.0))
