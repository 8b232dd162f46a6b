"""Logits of windows -> answers: the search over spans, and the text of a span.

As `run_squad.py` of google-research/bert does it: within a window the best starts meet the best
ends, the spans of all windows of a question compete by the sum of their two logits, and the pieces
of a span are aligned with the characters of the paragraph.

    Q: questions, W: windows, T: tokens of all windows; in a chunk of questions
    w: windows, L: tokens of the longest window, K: best starts (or ends) of a window, S: spans
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from bert_jax.labelled.squad import SquadExamples
from bert_jax.labelled.squad_windows import SquadWindows, ranges
from bert_jax.text.vocab import CONTINUATION, Vocab
from bert_jax.text.wordpiece import ORIGINAL, Switches, basic_tokens

_QUESTIONS_AT_ONCE = 256
# The odds of no answer where no span was found at all: above any threshold, and valid in JSON.
_CERTAIN = 1e6
_NO_SPAN = 'empty'  # run_squad.py's text where SQuAD 1.1 wants an answer and there is no span


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A possible answer; the text '' is "no answer"."""

    text: str
    probability: float
    start_logit: float
    end_logit: float


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What is found for a question.

    Attributes:
      text: the best answer other than "no answer" ('' for SQuAD 2.0 where there is no span).
      n_best: candidates, best first, with a softmax over them; SQuAD 2.0: "no answer" among them.
      places: first and last (exclusive) character in the paragraph of each of `n_best`; (0, 0) of
        no answer.
      null_odds: SQuAD 2.0: the score of "no answer" minus that of `text`, in logits; else 0.
    """

    text: str
    n_best: tuple[Candidate, ...]
    places: tuple[tuple[int, int], ...]
    null_odds: float = 0.0


def final_texts(
    ids: Sequence[str], predictions: Sequence[Prediction], null_threshold: float | None = None
) -> dict[str, str]:
    """Question id -> answer, '' where its `null_odds` are above the threshold (None: nowhere).

    SQuAD 2.0's threshold is tuned on the texts without a threshold; see `bert_jax.metrics.squad`.
    """
    limit = math.inf if null_threshold is None else null_threshold
    return {
        name: '' if found.null_odds > limit else found.text
        for name, found in zip(ids, predictions, strict=True)
    }


def predict_answers(
    examples: SquadExamples,
    windows: SquadWindows,
    start_logits: np.ndarray,
    end_logits: np.ndarray,
    *,
    vocab: Vocab,
    lowercase: bool,
    switches: Switches = ORIGINAL,
    version: str,
    n_best: int = 20,
    max_answer_length: int = 30,
) -> list[Prediction]:
    """The best answers to each question.

    Args:
      examples, windows: Q questions and their W windows.
      start_logits, end_logits: [T] float, for every token of `windows.sequences`.
      vocab, lowercase, switches: of the tokenizer that made the windows. (Pieces are aligned with
        characters as WordPiece makes them; spans of SentencePiece pieces may come as whole words.)
      version: 'v1', or 'v2', where "no answer" is an answer.
      n_best: how many starts and ends of a window, and answers to a question, are kept.
      max_answer_length: in tokens.

    Returns:
      [Q] predictions.
    """
    assert start_logits.shape == end_logits.shape == windows.sequences.ids.shape
    surfaces = [
        token.removeprefix(CONTINUATION) if continues else f' {token}'
        for token, continues in zip(vocab.tokens, vocab.is_continuation.tolist())
    ]
    window_bounds = np.searchsorted(windows.question_index, np.arange(len(examples) + 1))
    predictions = []
    for low in range(0, len(examples), _QUESTIONS_AT_ONCE):
        high = min(low + _QUESTIONS_AT_ONCE, len(examples))
        spans = _best_spans(
            windows, window_bounds[low], window_bounds[high], start_logits, end_logits, n_best,
            max_answer_length)
        span_bounds = np.searchsorted(spans.question, np.arange(low, high + 1))
        for q in range(low, high):
            null = None
            if version == 'v2':
                cls = windows.sequences.offsets[window_bounds[q]:window_bounds[q + 1]]
                pairs = zip(start_logits[cls].tolist(), end_logits[cls].tolist())
                null = min(pairs, key=sum)
            context = examples.contexts[examples.context_index[q]]
            place_of = functools.partial(
                _span_place, context, windows, surfaces, (lowercase, switches))
            first, last = span_bounds[q - low:q - low + 2]
            candidates = spans.candidates(first, last, place_of)
            predictions.append(_choose(context, candidates, null, n_best))
    return predictions


def _choose(
    context: str, candidates: Iterable[tuple[tuple[int, int], float, float]],
    null: tuple[float, float] | None, n_best: int,
) -> Prediction:
    """The prediction from (place, start logit, end logit), best first, and the logits of [CLS]."""
    kept: dict[str, tuple[float, float]] = {}
    places: dict[str, tuple[int, int]] = {}
    for place, start, end in candidates:
        if null is not None and start + end < sum(null):
            kept.setdefault('', null)
        if len(kept) >= n_best:
            break
        text = context[slice(*place)]
        kept.setdefault(text, (start, end))
        places.setdefault(text, place)
    if null is not None:
        kept.setdefault('', null)
    if not kept:
        kept[_NO_SPAN] = (0.0, 0.0)
    scores = [start + end for start, end in kept.values()]
    highest = max(scores)
    weights = [math.exp(score - highest) for score in scores]
    total = sum(weights)
    best = next((text for text in kept if text), '')
    null_odds = 0.0
    if null is not None:
        null_odds = sum(null) - kept[best][0] - kept[best][1] if best else _CERTAIN
    return Prediction(
        text=best,
        n_best=tuple(
            Candidate(text, weight / total, *logits)
            for (text, logits), weight in zip(kept.items(), weights)
        ),
        places=tuple(places.get(text, (0, 0)) for text in kept),
        null_odds=null_odds,
    )


@dataclasses.dataclass(frozen=True)
class _Spans:
    """S spans sorted by question, then by score, best first.

    question, window, start, end: [S] int; positions within the window. start_logits, end_logits:
    [S] float64.
    """

    question: np.ndarray
    window: np.ndarray
    start: np.ndarray
    end: np.ndarray
    start_logits: np.ndarray
    end_logits: np.ndarray

    def candidates(
        self, low: int, high: int, place_of: Callable[[int, int, int], tuple[int, int]]
    ) -> Iterator[tuple[tuple[int, int], float, float]]:
        """(place, start logit, end logit) of some spans, aligned only as far as asked for."""
        columns = (self.window, self.start, self.end, self.start_logits, self.end_logits)
        for window, start, end, *logits in zip(*(c[low:high].tolist() for c in columns)):
            yield place_of(window, start, end), logits[0], logits[1]


def _best_spans(
    windows: SquadWindows, low: int, high: int, start_logits: np.ndarray, end_logits: np.ndarray,
    n_best: int, max_answer_length: int,
) -> _Spans:
    """Spans between the best starts and the best ends of each of the windows [low, high).

    A start must have its maximal context in the window (ends need not), and both must be tokens of
    the paragraph: other tokens among the best take places away, as in the original. Equal scores
    keep the order of windows, starts and ends.
    """
    sequences = windows.sequences
    lengths = sequences.lengths[low:high]
    first, offsets = sequences.first_lengths[low:high], sequences.offsets[low:high + 1]
    row = np.repeat(np.arange(high - low), lengths)
    column = ranges(np.zeros_like(lengths), lengths)
    number = np.arange(high - low)[:, None]

    def best(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Positions and logits of the best tokens, [w, K] each."""
        padded = np.full((high - low, lengths.max()), -np.inf)
        padded[row, column] = logits[offsets[0]:offsets[-1]]
        order = np.argsort(-padded, axis=1, kind='stable')[:, :n_best]
        return order, padded[number, order]

    start, start_logit = best(start_logits)
    end, end_logit = best(end_logits)
    may_start = np.zeros((high - low, lengths.max()), np.bool_)
    may_start[row, column] = _has_max_context(windows, low, high)
    may_end = (end >= first[:, None]) & (end < lengths[:, None] - 1)
    distance = end[:, None, :] - start[:, :, None]
    valid = (distance >= 0) & (distance < max_answer_length)
    valid &= may_start[number, start][:, :, None] & may_end[:, None, :]
    w, i, j = np.nonzero(valid)
    score = start_logit[w, i] + end_logit[w, j]
    order = np.lexsort((-score, windows.question_index[low + w]))
    w, i, j = w[order], i[order], j[order]
    return _Spans(windows.question_index[low + w], low + w, start[w, i], end[w, j],
                  start_logit[w, i], end_logit[w, j])


def _has_max_context(windows: SquadWindows, low: int, high: int) -> np.ndarray:
    """Of the tokens of the windows [low, high): which are best seen there, bool.

    A token that several windows of a question hold belongs to the one with the most tokens on its
    poorer side (and, by 0.01 a token, the longer window; then the earlier). False for what is not
    of the paragraph.
    """
    question = windows.question_index[low:high] - windows.question_index[low]
    lengths = windows.document_lengths[low:high]
    leader = np.searchsorted(question, question)  # the first window of the question
    shift = windows.document_starts[low:high] - windows.document_starts[low:high][leader]
    extents = np.zeros(question[-1] + 1, np.int64)
    np.maximum.at(extents, question, shift + lengths)
    shift = shift + (np.cumsum(extents) - extents)[question]  # all questions one after the other
    best, owner = np.full(extents.sum(), -1.0), np.zeros(extents.sum(), np.int64)
    nth = np.arange(high - low) - leader
    for n in range(nth.max() + 1):
        some = np.flatnonzero(nth == n)
        row = np.repeat(some, lengths[some])
        left = ranges(np.zeros_like(some), lengths[some])
        score = np.minimum(left, lengths[row] - 1 - left) + 0.01 * lengths[row]
        token = shift[row] + left
        better = score > best[token]
        best[token] = np.where(better, score, best[token])
        owner[token] = np.where(better, row, owner[token])
    offsets = windows.sequences.offsets[low:high + 1] - windows.sequences.offsets[low]
    result = np.zeros(offsets[-1], np.bool_)
    row = np.repeat(np.arange(high - low), lengths)
    places = ranges(offsets[:-1] + windows.sequences.first_lengths[low:high], lengths)
    result[places] = owner[ranges(shift, lengths)] == row
    return result


def _span_place(
    context: str, windows: SquadWindows, surfaces: Sequence[str],
    how: tuple[bool, Switches], window: int,
    start: int, end: int,
) -> tuple[int, int]:
    """The characters of the paragraph that the tokens [start, end] of a window stand for."""
    offset = windows.sequences.offsets[window]
    ids = windows.sequences.ids[offset + start:offset + end + 1].tolist()
    shift = windows.document_starts[window] - windows.sequences.first_lengths[window]
    low, high = windows.token_words[shift + start], windows.token_words[shift + end] + 1
    words = list(zip(windows.word_starts[low:high].tolist(), windows.word_ends[low:high].tolist()))
    text = ' '.join(''.join([surfaces[i] for i in ids]).split())
    return aligned_place(context, words, text, *how)


def aligned_place(
    context: str, words: Sequence[tuple[int, int]], text: str, lowercase: bool,
    switches: Switches = ORIGINAL,
) -> tuple[int, int]:
    """Where a tokenized text stands in the words that it came from: first character, and last.

    The last is exclusive.

    The words are tokenized without WordPiece and searched for `text`; if that leaves as many
    characters as they have, the characters correspond one to one, else (and where `text` is not
    found: an [UNK] in it) the words are returned whole. `get_final_text` of run_squad.py.

    Args:
      context: the paragraph.
      words: first and last (exclusive) character of successive words in it.
      text: pieces put together, words and punctuation separated by single spaces.
      lowercase, switches: of the tokenizer.
    """
    tokens = [_basic_text(context[begin:end], lowercase, switches) for begin, end in words]
    tokenized = ' '.join([token for token in tokens if token])
    begin = tokenized.find(text)
    num_characters = sum(end - begin for begin, end in words)
    if not text or begin < 0 or len(tokenized) - tokenized.count(' ') != num_characters:
        return words[0][0], words[-1][1]
    end = begin + len(text) - 1
    return (
        _character(words, begin - tokenized.count(' ', 0, begin)),
        _character(words, end - tokenized.count(' ', 0, end)) + 1,
    )


@functools.lru_cache(maxsize=1 << 16)
def _basic_text(word: str, lowercase: bool, switches: Switches) -> str:
    return ' '.join(basic_tokens(word, lowercase, switches))


def _character(words: Sequence[tuple[int, int]], n: int) -> int:
    """Place in the paragraph of the n-th character of the words."""
    for begin, end in words:
        if n < end - begin:
            return begin + n
        n -= end - begin
    raise AssertionError('beyond the words')
