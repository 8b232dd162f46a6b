"""Answers to questions: spans of a context, in its original characters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from bert_jax.errors import InputError
from bert_jax.predict import heads
from bert_jax.predict.loaded import LoadedModel
from bert_jax.predict.offsets import Piece, pieces_of
from bert_jax.predict.rows import Tokens
from bert_jax.predict.runner import each_token
from bert_jax.predict.windows import sliding, with_most_context

# As google-research/bert's run_squad has them by default.
_MAX_LENGTH = 384
_STRIDE = 128
_MAX_QUESTION = 64
_NUM_BEST = 20


class _Asked(NamedTuple):
    question: str
    context: str
    pieces: list[Piece]
    begin: int  # of the context in a sequence
    windows: list[tuple[int, int]]


def answer(
    model: LoadedModel, questions: Iterable[tuple[str, str]], max_answer_length: int = 30,
    null_threshold: float | None = None,
) -> Iterator[dict[str, Any]]:
    """The best span of each context; see `Model.answer`."""
    model.need('answer')
    if max_answer_length < 1:
        raise InputError(f'max_answer_length={max_answer_length} must be 1 or more tokens')
    runner = model.runner

    def program(states):  # type: ignore[no-untyped-def]
        return heads.token_logits(
            runner.params, states[0], config=model.config, path=('cls', 'squad')
        )

    items = (_ask(model, pair, i) for i, pair in enumerate(questions))
    for asked, results in runner.stream(items, each_token(program)):
        best = _spans(asked, results, max_answer_length)
        if null_threshold is not None:  # an empty answer starts and ends at [CLS]
            null = min(float(x[0].astype(np.float64).sum()) for x in results)
            empty = (null - null_threshold, 0, 0)
            best = sorted([*best, empty], key=lambda span: -span[0])
            if best[-1] is not empty:
                del best[_NUM_BEST:]
        scores = np.array([span[0] for span in best])
        weights = np.exp(scores - scores[0])
        score, begin, end = best[0]
        yield {
            'question': asked.question, 'answer': asked.context[begin:end], 'start': begin,
            'end': end, 'score': score, 'probability': float(1 / weights.sum()),
        }


def _ask(
    model: LoadedModel, pair: tuple[str, str], number: int
) -> tuple[_Asked, list[Tokens]]:
    if isinstance(pair, str) or len(pair) != 2:
        raise InputError(f'question {number + 1} must come with one context')
    question, context = pair
    question_ids = model.encode(question, number, 'question')
    model.encode(context, number, 'context')
    pieces = pieces_of(model.tokenizer, context)
    limit = min(_MAX_LENGTH, model.max_length)
    longest = min(_MAX_QUESTION, (limit - 3) // 2)
    if len(question_ids) > longest:
        model.note(
            f'question {number + 1} has {len(question_ids)} tokens: its end is left out, after '
            f'{longest}'
        )
        question_ids = question_ids[:longest]
    size = limit - len(question_ids) - 3
    windows = sliding(len(pieces), size, min(_STRIDE, size))
    ids = [piece.id for piece in pieces]
    sequences = [
        Tokens.of(model.tokenizer.vocab, question_ids, ids[begin : begin + n])
        for begin, n in windows
    ]
    return _Asked(question, context, pieces, len(question_ids) + 2, windows), sequences


def _spans(
    asked: _Asked, results: list[np.ndarray], max_length: int
) -> list[tuple[float, int, int]]:
    """(score, first character, one past the last) of the best spans that differ in their text.

    A span begins in the window where its first token has most context; its score is the sum of
    its two logits.
    """
    best_window = with_most_context(asked.windows, len(asked.pieces))
    found: list[tuple[float, int, int]] = []  # with tokens instead of characters
    for number, ((at, length), logits) in enumerate(zip(asked.windows, results, strict=True)):
        inside = logits[asked.begin : asked.begin + length].astype(np.float64)
        starts = np.where(best_window[at : at + length] == number, inside[:, 0], -np.inf)
        longest = min(max_length, length)
        ends = np.pad(inside[:, 1], (0, longest - 1), constant_values=-np.inf)
        # scores[s, d]: from token s to token s + d
        scores = starts[:, None] + np.lib.stride_tricks.sliding_window_view(ends, longest)
        for flat in np.argsort(-scores, axis=None, kind='stable')[:_NUM_BEST].tolist():
            start, distance = divmod(flat, longest)
            if np.isfinite(scores[start, distance]):
                found.append((float(scores[start, distance]), at + start, at + start + distance))
    spans: dict[str, tuple[float, int, int]] = {}
    for score, start, end in sorted(found, key=lambda span: -span[0]):
        begin, stop = asked.pieces[start].begin, asked.pieces[end].end
        spans.setdefault(asked.context[begin:stop], (score, begin, stop))
    return list(spans.values())[:_NUM_BEST]
