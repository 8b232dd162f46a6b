"""Answers to questions from the logits of windows, as `run_squad.py` of BERT's authors finds them.

A question of SQuAD 2.0 may have no answer. What is compared:

    score of an answer     start logit of its first token + end logit of its last token
    score of "no answer"   start logit + end logit of [CLS], the least over the question's windows
    null_odds              score of "no answer" - score of the best answer
    prediction             '' where null_odds > null_threshold, else the best answer

    W: windows of all questions, T: tokens of all windows
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from bert_jax.rows.questions import WORD
from bert_jax.rows.squad_windows import SquadWindows
from bert_jax.runtime.pauses import pause
from bert_jax.text.tokenizer import Place
from bert_jax.text.wordpiece import WordPieceTokenizer

N_BEST = 20  # starts and ends a window, and answers a question, that are kept
MAX_ANSWER_LENGTH = 30  # tokens
_CERTAIN = 1e6  # `null_odds` where there is no span: above any threshold, and valid in JSON
_NO_SPAN = 'empty'  # run_squad.py's text where SQuAD 1.1 wants an answer and there is no span


class Span(NamedTuple):
    """Tokens [start, end] of a window, which may be an answer."""

    window: int
    start: int
    end: int
    start_logit: float
    end_logit: float


class ScoredPlace(NamedTuple):
    """Characters of the paragraph that may be an answer; (0, 0) for "no answer"."""

    place: Place
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        """The score that ranks answers."""
        return self.start_logit + self.end_logit


class Candidate(NamedTuple):
    """A possible answer; the text '' is "no answer", at the place (0, 0)."""

    text: str
    probability: float
    start_logit: float
    end_logit: float
    place: Place


class Prediction(NamedTuple):
    """The predicted answer to a question.

    Attributes:
      text: the best answer other than "no answer" ('' for SQuAD 2.0 where there is no span).
      n_best: candidates, best first, with a softmax over them; SQuAD 2.0: "no answer" among them.
      null_odds: SQuAD 2.0: the score of "no answer" minus that of `text`; else 0.
    """

    text: str
    n_best: tuple[Candidate, ...]
    null_odds: float = 0.0

    def answer(self, null_threshold: float | None) -> str:
        """The predicted text; '' if `null_odds` are above the threshold (None: never)."""
        if null_threshold is not None and self.null_odds > null_threshold:
            return ''
        return self.text


class SpanPlaces(Protocol):
    """Finds the characters that a span of tokens stands for."""

    def place(self, windows: SquadWindows, context: str, span: Span) -> Place:
        """First and last (exclusive) character in the paragraph `context`."""


class PlacesByPieces:
    """A span begins where its first piece does and ends with its last one.

    White space that these have at their ends is no part of it.
    """

    def place(self, windows: SquadWindows, context: str, span: Span) -> Place:
        """See `SpanPlaces`."""
        begin, end = _characters(windows, span)
        text = context[begin:end]
        begin += len(text) - len(text.lstrip())
        return begin, begin + len(text.strip())


class PlacesByWords:
    """Pieces are joined to words, which are aligned with those of the paragraph.

    This is how the original finds answers, see `aligned_place`. The windows are of paragraphs that
    were tokenized word by word.
    """

    def __init__(self, tokenizer: WordPieceTokenizer):
        """Takes the tokenizer that made the windows."""
        self._split = functools.lru_cache(maxsize=1 << 16)(tokenizer.split)
        self._surfaces: list[str] = []
        for piece_id, continues in enumerate(tokenizer.vocab.is_continuation.tolist()):
            surface = tokenizer.shown(piece_id)
            self._surfaces.append(surface if continues else f' {surface}')

    def place(self, windows: SquadWindows, context: str, span: Span) -> Place:
        """See `SpanPlaces`."""
        first = windows.sequences.offsets[span.window]
        ids = windows.sequences.ids[first + span.start:first + span.end + 1].tolist()
        joined = ''.join([self._surfaces[i] for i in ids])
        text = ' '.join(joined.split())
        begin, end = _characters(windows, span)  # of whole words
        words = [match.span() for match in WORD.finditer(context, begin, end)]
        return aligned_place(context, words, text, self._split)


def _characters(windows: SquadWindows, span: Span) -> Place:
    """The characters of a span: where its first token begins, and where its last one ends."""
    shift = windows.part_starts[span.window] - windows.sequences.first_lengths[span.window]
    places = windows.paragraphs.places
    begin, _ = places[shift + span.start].tolist()
    _, end = places[shift + span.end].tolist()
    return begin, end


def predict_answers(
    windows: SquadWindows, start_logits: np.ndarray, end_logits: np.ndarray, *,
    places: SpanPlaces, version: str, n_best: int = N_BEST,
    max_answer_length: int = MAX_ANSWER_LENGTH,
) -> dict[str, Prediction]:
    """The best answers to each question, by its id.

    In each window the best starts are paired with the best ends. The spans of all windows of a
    question are ranked by the sum of their two logits, and the pieces of a span are aligned with
    the characters of the paragraph.

    Args:
      windows: W windows of Q questions.
      start_logits, end_logits: [T] float, for every token of `windows.sequences`.
      places: how the characters of an answer are found.
      version: 'v1', or 'v2', where "no answer" is an answer.
      n_best: how many starts and ends per window, and answers per question, are kept.
      max_answer_length: in tokens.
    """
    finder = _SpanFinder(windows, start_logits, end_logits, n_best, max_answer_length)
    predictions: dict[str, Prediction] = {}
    numbers = np.arange(len(windows.questions) + 1)
    bounds = np.searchsorted(windows.question_index, numbers).tolist()
    for i, question in enumerate(windows.questions):
        pause()
        of_question = range(bounds[i], bounds[i + 1])
        no_answer = None
        if version == 'v2':
            no_answer = finder.no_answer(of_question)
        placed = _placed(finder.best_spans(of_question), places, windows, question.context)
        kept = _distinct(question.context, placed, no_answer, n_best)
        predictions[question.id] = _prediction(kept, no_answer)
    return predictions


def _placed(
    spans: Iterable[Span], places: SpanPlaces, windows: SquadWindows, context: str
) -> Iterator[ScoredPlace]:
    """Spans as characters, one by one, because finding the characters of a span takes its time."""
    for span in spans:
        place = places.place(windows, context, span)
        yield ScoredPlace(place, span.start_logit, span.end_logit)


@dataclasses.dataclass(frozen=True)
class _SpanFinder:
    """Finds the spans of a question that the logits of its windows make most likely.

    Attributes:
      windows, start_logits, end_logits, n_best, max_answer_length: as for `predict_answers`.
    """

    windows: SquadWindows
    start_logits: np.ndarray
    end_logits: np.ndarray
    n_best: int
    max_answer_length: int

    def no_answer(self, of_question: range) -> ScoredPlace:
        """The least likely [CLS] of a question's windows."""
        cls = self.windows.sequences.offsets[of_question.start:of_question.stop]
        logits = zip(self.start_logits[cls].tolist(), self.end_logits[cls].tolist(), strict=True)
        candidates = [ScoredPlace((0, 0), start, end) for start, end in logits]
        return min(candidates, key=lambda candidate: candidate.score)

    def best_spans(self, of_question: range) -> Iterator[Span]:
        """A question's spans, best first.

        They pair the `n_best` starts and the `n_best` ends of each window. A start must have its
        maximal context in the window (ends need not), and both must be tokens of the paragraph;
        other tokens among the best still count towards `n_best`, as in the original. Equal scores
        keep the order of windows, starts and ends.
        """
        spans = np.concatenate(self._spans_by_window(of_question), axis=1)
        scores = spans[3] + spans[4]
        order = np.argsort(-scores, kind='stable')
        for window, start, end, start_logit, end_logit in spans[:, order].T.tolist():
            yield Span(int(window), int(start), int(end), start_logit, end_logit)

    def _spans_by_window(self, of_question: range) -> list[np.ndarray]:
        """The result of `_spans_of_window` for each window of a question."""
        low = of_question.start
        high = of_question.stop
        part_starts = self.windows.part_starts[low:high] - self.windows.part_starts[low]
        part_lengths = self.windows.part_lengths[low:high]
        owners = max_context(part_starts, part_lengths)
        found: list[np.ndarray] = []
        for i, window in enumerate(of_question):
            tokens_in_part = slice(part_starts[i], part_starts[i] + part_lengths[i])
            found.append(self._spans_of_window(window, owners[tokens_in_part] == i))
        return found

    def _spans_of_window(self, window: int, is_owner: np.ndarray) -> np.ndarray:
        """Columns of `Span` [5, n] float64, in the order of starts, then of ends.

        Args:
          window: its index.
          is_owner: [tokens of the paragraph] whether a token has its maximal context in the window.
        """
        low, high = self.windows.sequences.offsets[window:window + 2]
        start_logits = self.start_logits[low:high]
        end_logits = self.end_logits[low:high]
        # The paragraph: all but [CLS] question [SEP] and the last [SEP].
        begin = self.windows.sequences.first_lengths[window]
        part = slice(begin, begin + self.windows.part_lengths[window])
        may_start = np.zeros(high - low, np.bool_)
        may_start[part] = is_owner
        may_end = np.zeros(high - low, np.bool_)
        may_end[part] = True
        starts = np.argsort(-start_logits, kind='stable')[: self.n_best]
        ends = np.argsort(-end_logits, kind='stable')[: self.n_best]
        distance = ends - starts[:, None]
        is_span = (distance >= 0) & (distance < self.max_answer_length)
        is_span &= may_start[starts][:, None] & may_end[ends]
        i, j = np.nonzero(is_span)
        start = starts[i]
        end = ends[j]
        return np.array(
            [np.full(len(i), window), start, end, start_logits[start], end_logits[end]],
            np.float64)


def max_context(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The index of the window that gives each token of a paragraph its maximal context, int64.

    A window's score is its number of tokens on the side of the token that has fewer, plus 0.01
    times the window's length. The highest score wins, and the earlier window among equals.

    Args:
      starts, lengths: of the parts of the paragraph in each window of a question; the first start
        is 0.
    """
    size = int((starts + lengths).max())
    best = np.full(size, -1.0)
    owner = np.zeros(size, np.int64)
    for window, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
        left = np.arange(length)
        score = np.minimum(left, left[::-1]) + 0.01 * length
        part = slice(start, start + length)
        better = score > best[part]
        best[part][better] = score[better]
        owner[part][better] = window
    return owner


def _distinct(
    context: str, spans: Iterable[ScoredPlace], no_answer: ScoredPlace | None, n_best: int
) -> dict[str, ScoredPlace]:
    """The kept answers by text, best first, with "no answer" (None in SQuAD 1.1) in its place.

    A text that several spans have counts once, with its best logits. Pieces without characters
    of their own (of white space) are no answer.

    Args:
      context: the paragraph.
      spans: best first; no more are taken than needed.
      no_answer: competes with them.
      n_best: how many are kept.
    """
    kept: dict[str, ScoredPlace] = {}
    for span in spans:
        if no_answer and span.score < no_answer.score:
            kept.setdefault('', no_answer)
        if len(kept) >= n_best:
            break
        begin, end = span.place
        if begin < end:
            kept.setdefault(context[begin:end], span)
    if no_answer:
        kept.setdefault('', no_answer)
    if not kept:
        kept[_NO_SPAN] = ScoredPlace((0, 0), 0.0, 0.0)
    return kept


def _prediction(kept: Mapping[str, ScoredPlace], no_answer: ScoredPlace | None) -> Prediction:
    """The best answer, the candidates with probabilities, and the odds of "no answer"."""
    scores = [span.score for span in kept.values()]
    highest = max(scores)
    weights = [math.exp(score - highest) for score in scores]
    total = sum(weights)
    candidates: list[Candidate] = []
    for (text, span), weight in zip(kept.items(), weights, strict=True):
        probability = weight / total
        candidates.append(
            Candidate(text, probability, span.start_logit, span.end_logit, span.place))
    best = next(filter(None, kept), '')
    null_odds = 0.0
    if no_answer and best:
        null_odds = no_answer.score - kept[best].start_logit - kept[best].end_logit
    elif no_answer:
        null_odds = _CERTAIN
    return Prediction(best, tuple(candidates), null_odds)


def aligned_place(
    context: str, words: Sequence[Place], text: str, split: Callable[[str], Sequence[str]]
) -> Place:
    """The place of a tokenized text in the words that it came from.

    The words are tokenized without WordPiece and searched for `text`. If tokenizing keeps the
    number of characters, they correspond one to one. Otherwise, or if `text` is not found (it may
    hold an [UNK]), the result is all of the words. As in `get_final_text` of run_squad.py.

    Args:
      context: the paragraph.
      words: first and last (exclusive) character of successive words in it.
      text: the pieces joined to words; words and punctuation are separated by single spaces.
      split: of the tokenizer: what a word is split into before WordPiece.
    """
    tokens = [' '.join(split(context[begin:end])) for begin, end in words]
    tokenized = ' '.join(filter(None, tokens))
    characters: list[int] = []
    for begin, end in words:
        characters += range(begin, end)
    found = tokenized.find(text)
    corresponds = len(tokenized) - tokenized.count(' ') == len(characters)
    if not text or found < 0 or not corresponds:
        return characters[0], characters[-1] + 1
    last = found + len(text) - 1
    first_character = characters[found - tokenized.count(' ', 0, found)]
    last_character = characters[last - tokenized.count(' ', 0, last)]
    return first_character, last_character + 1
