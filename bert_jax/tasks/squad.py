"""SQuAD 1.1 and 2.0 (paper sections 4.2 and 4.3), or any file in their layout.

From top to bottom: the task; answers from the logits of windows, as `run_squad.py` of
google-research/bert finds them (within a window the best starts meet the best ends, the spans of
all windows of a question compete by the sum of their two logits, and the pieces of a span are
aligned with the characters of the paragraph); exact match and F1 as the official scripts compute
them, the same operations in the same order (evaluate-v1.1.py; evaluate-v2.0.py of
rajpurkar/SQuAD-explorer); the files that those scripts read.

    Q: questions, W: windows, T: tokens of all windows; in a chunk of questions
    w: windows, L: tokens of the longest window, K: best starts (or ends) of a window, S: spans
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
import math
import os
import re
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, as_path, in_bucket, write_whole
from bert_jax.runtime.hosts import say
from bert_jax.tasks.labelled import (
    EvalSet,
    LabelledData,
    LabelledTask,
    Outputs,
    ScoredModel,
    open_tokenization,
    tfds_records,
)
from bert_jax.tasks.packing import Units, ranges
from bert_jax.tasks.squad_windows import (
    VERSIONS,
    SquadExamples,
    SquadWindows,
    from_tfds,
    read_squad,
    squad_windows,
)
from bert_jax.text.vocab import CONTINUATION, Vocab
from bert_jax.text.wordpiece import ORIGINAL, Switches, basic_tokens


def open_squad(
    version: str, config: ConfigDict, scored: ScoredModel | None = None
) -> LabelledTask:
    """The units are windows, and an epoch is all of them.

    (google-research/bert counts questions for its steps, 1 % fewer, so it ends a little before its
    last epoch does.)
    """
    options = {name: config.squad[name] for name in ('doc_stride', 'max_query_length')}
    t = open_tokenization(config)

    def windows(training: bool) -> tuple[SquadExamples, SquadWindows]:
        examples = _read(config, version, training)
        return examples, squad_windows(
            examples, t.encode, max_length=t.max_length, doc_stride=options['doc_stride'],
            max_question_length=options['max_query_length'], training=training, **t.vocab.ends,
        )

    threshold = scored.inference.get('null_threshold') if scored and version == 'v2' else None
    if scored and version == 'v2':
        say('scored with the threshold of no answer that '
            + (f'the model brings, {threshold:g}' if threshold is not None else
               'is best for F1 on these very questions, as the model brings none'))
    examples, dev = windows(training=False)
    answers = examples.gold_texts()  # refuses a file without answers now, not after an epoch

    def predict(outputs: Outputs) -> list[Prediction]:
        return predict_answers(
            examples, dev, outputs['start_logits'], outputs['end_logits'], vocab=t.vocab,
            lowercase=t.lowercase, switches=t.tokenizer.switches, version=version,
        )

    def scores(predictions: list[Prediction]) -> dict[str, float]:
        texts = final_texts(examples.ids, predictions)
        if version == 'v1':
            return squad_scores(texts, answers, version='v1')
        odds = {name: result.null_odds
                for name, result in zip(examples.ids, predictions, strict=True)}
        limit = best_null_threshold(texts, answers, odds) if threshold is None else threshold
        return squad_scores(
            texts, answers, version='v2', null_odds=odds, null_threshold=limit
        ) | {'null_threshold': limit}

    def write(outputs: Outputs, workdir: Path) -> None:
        predictions = predict(outputs)
        write_predictions(workdir, examples.ids, predictions,
                          null_threshold=scores(predictions).get('null_threshold'))

    train = None
    if scored is None:
        _, result = windows(training=True)
        train = Units(result.sequences, positions={
            'start_positions': result.start_positions, 'end_positions': result.end_positions,
        })
    return LabelledTask(config, t, LabelledData(
        train=train,
        evaluated=(EvalSet(
            '', Units(dev.sequences), lambda outputs: scores(predict(outputs)), write),),
        metric='f1', head='question_answering', inference=options,
        settled=('null_threshold',),
    ))


def _read(config: ConfigDict, version: str, training: bool) -> SquadExamples:
    """The questions to train on, or those to score."""
    kind: Any = {
        'version': version, 'training': training, 'max_skipped': config.data.max_malformed
    }
    if config.data.source == 'tfds:squad' and (training or not config.data.eval_source):
        split = 'train' if training else 'validation'
        records = tfds_records(config, f'squad/v{VERSIONS[version]}', split)
        return from_tfds(records, **kind)
    return read_squad(_files(config, version, training), **kind)


def _files(config: ConfigDict, version: str, training: bool) -> list[str]:
    """Training files or the file to score, from `data.source` and `data.eval_source`."""
    number = VERSIONS[version]
    source, eval_source = config.data.source, config.data.eval_source
    sources = [source] if isinstance(source, str) else list(source)
    meaning = (
        f'the folder with train-v{number}.json and dev-v{number}.json, a training file (or a list '
        "of them) with config.data.eval_source, or 'tfds:squad'"
    )
    if not training and eval_source:
        return [str(as_path(eval_source))]
    if not sources or not all(
        isinstance(s, str) and s and (':' not in s or in_bucket(s)) for s in sources
    ):
        raise InputError(
            f'config.data.source={source!r}: config.task={config.task!r} needs {meaning}'
        )
    paths = [as_path(s) for s in sources]
    if len(paths) == 1 and paths[0].is_dir():
        stem = f"{'train' if training else 'dev'}-v{number}.json"
        for path in (paths[0] / stem, paths[0] / f'{stem}.gz'):
            if path.exists():
                return [str(path)]
        raise InputError(f'{paths[0]} has no {stem}, plain or .gz: name {meaning}')
    if not eval_source:
        raise InputError('config.data.eval_source is empty: name the file to evaluate on')
    return [str(path) for path in paths]


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
    """The predicted answer to a question.

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

    SQuAD 2.0's threshold is tuned on the texts without a threshold; see `best_null_threshold`.
    """
    limit = math.inf if null_threshold is None else null_threshold
    return {
        name: '' if result.null_odds > limit else result.text
        for name, result in zip(ids, predictions, strict=True)
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
        span_bounds = np.searchsorted(spans[0], np.arange(low, high + 1))
        for q in range(low, high):
            null = None
            if version == 'v2':
                cls = windows.sequences.offsets[window_bounds[q]:window_bounds[q + 1]]
                pairs = zip(start_logits[cls].tolist(), end_logits[cls].tolist())
                null = min(pairs, key=sum)
            context = examples.contexts[examples.context_index[q]]
            first, last = span_bounds[q - low:q - low + 2]
            # Lazy: only as many spans are aligned with characters as `_choose` takes.
            candidates = (
                (_span_place(context, windows, surfaces, (lowercase, switches), *span), start, end)
                for *span, start, end in zip(*(x[first:last].tolist() for x in spans[1:]))
            )
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


def _best_spans(
    windows: SquadWindows, low: int, high: int, start_logits: np.ndarray, end_logits: np.ndarray,
    n_best: int, max_answer_length: int,
) -> tuple[np.ndarray, ...]:
    """Spans between the best starts and the best ends of each of the windows [low, high).

    A start must have its maximal context in the window (ends need not), and both must be tokens of
    the paragraph: other tokens among the best take places away, as in the original. Equal scores
    keep the order of windows, starts and ends.

    Returns:
      question, window, start, end: [S] int, sorted by question, then by score, best first;
      positions within the window. Then start and end logits, [S] float64.
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
    return (windows.question_index[low + w], low + w, start[w, i], end[w, j],
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
    """The first and last character of a tokenized text in the words that it came from.

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


# A threshold of no answer: no question is answered. Odds are differences of logits, far above it.
NEVER_ANSWER = -1e9
_ARTICLES = re.compile(r'\b(a|an|the)\b')
_WITHOUT_PUNCTUATION = str.maketrans('', '', string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower case, without ASCII punctuation, English articles and superfluous white space."""
    return ' '.join(_ARTICLES.sub(' ', text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def squad_scores(
    predictions: Mapping[str, str],
    answers: Mapping[str, Sequence[str]],
    *,
    version: str,
    null_odds: Mapping[str, float] | None = None,
    null_threshold: float = 0.0,
) -> dict[str, float]:
    """Scores of predictions, in per cent.

    Args:
      predictions: question id -> text, '' for "no answer". Questions without a prediction count
        0 for 'v1', as in the official script, and are an error for 'v2'.
      answers: question id -> texts of the accepted answers; none of them: unanswerable.
      version: 'v1' or 'v2'.
      null_odds: 'v2': question id -> how sure the model is that there is no answer. Predictions
        must then be the texts without a threshold.
      null_threshold: odds above it make the prediction "no answer" (the original model's default
        is 0, the official script's 1, which is meant for probabilities).

    Returns:
      'exact_match' and 'f1'. For 'v2' also, named as in the official script, 'total', the same
      three for questions with and without an answer ('HasAns_exact', 'NoAns_f1', ...), and with
      `null_odds` the best threshold for each ('best_f1', 'best_f1_thresh', 'best_exact',
      'best_exact_thresh').

    Raises:
      InputError: nothing to score, no prediction or no odds for a question of 'v2', no answer to
        one of 'v1'.
    """
    if not answers:
        raise InputError('no question to score')
    if version == 'v1':
        return _v1_scores(predictions, answers)
    assert version == 'v2'
    for what, given in (('prediction', predictions), ('null odds', null_odds)):
        if given is not None and (missing := [name for name in answers if name not in given]):
            raise InputError(
                f'{len(missing)} of {len(answers)} questions have no {what}, the first of them '
                f'{missing[0]}; predict them all'
            )
    return _v2_scores(predictions, answers, null_odds, null_threshold)


def best_null_threshold(
    predictions: Mapping[str, str], answers: Mapping[str, Sequence[str]],
    null_odds: Mapping[str, float],
) -> float:
    """The `null_threshold` that is best for F1, as `best_f1_thresh` of the official script.

    But where no answer to any question is best, it is NEVER_ANSWER: the official script then names
    0, which is right for the probabilities that it expects, not for odds that may be negative.
    """
    _, f1 = _raw_scores(predictions, answers)
    gains = _gains(f1, predictions, answers)
    none = float(sum(not texts for texts in answers.values()))
    _, threshold = _best_threshold(gains, null_odds, none)
    return NEVER_ANSWER if threshold is None else threshold


def _overlap(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """F1 of two bags of words that have something in common, else 0."""
    common = sum((collections.Counter(predicted) & collections.Counter(gold)).values())
    if not common:
        return 0
    precision = common / len(predicted)
    recall = common / len(gold)
    return (2 * precision * recall) / (precision + recall)


def _v1_scores(
    predictions: Mapping[str, str], answers: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    exact_match = f1 = 0.0
    for name, texts in answers.items():
        if not texts:
            raise InputError(f"question {name} has no answer; score it as 'v2'")
        if name in predictions:
            predicted = normalize_answer(predictions[name])
            golds = [normalize_answer(text) for text in texts]
            exact_match += predicted in golds
            f1 += max(_overlap(gold.split(), predicted.split()) for gold in golds)
    return {'exact_match': 100.0 * exact_match / len(answers), 'f1': 100.0 * f1 / len(answers)}


def _v2_scores(
    predictions: Mapping[str, str],
    answers: Mapping[str, Sequence[str]],
    null_odds: Mapping[str, float] | None,
    null_threshold: float,
) -> dict[str, float]:
    exact, f1 = _raw_scores(predictions, answers)
    odds = null_odds or {}

    def final(raw: Mapping[str, float], name: str) -> float:
        return float(not answers[name]) if odds and odds[name] > null_threshold else raw[name]

    scores: dict[str, float] = {}
    has_answer = [name for name, texts in answers.items() if texts]
    no_answer = [name for name, texts in answers.items() if not texts]
    for prefix, names in (('', list(answers)), ('HasAns_', has_answer), ('NoAns_', no_answer)):
        if names:
            scores[prefix + 'exact'] = 100.0 * sum(final(exact, n) for n in names) / len(names)
            scores[prefix + 'f1'] = 100.0 * sum(final(f1, n) for n in names) / len(names)
            scores[prefix + 'total'] = len(names)
    scores = {'exact_match': scores.pop('exact'), **scores}
    if null_odds is not None:
        for key, raw in (('exact', exact), ('f1', f1)):
            gains = _gains(raw, predictions, answers)
            best, threshold = _best_threshold(gains, null_odds, len(no_answer))
            scores[f'best_{key}_thresh'] = 0.0 if threshold is None else threshold
            scores[f'best_{key}'] = 100.0 * best / len(answers)
    return scores


def _raw_scores(
    predictions: Mapping[str, str], answers: Mapping[str, Sequence[str]]
) -> tuple[dict[str, float], dict[str, float]]:
    """(exact match, F1) of each question without a threshold."""
    exact: dict[str, float] = {}
    f1: dict[str, float] = {}
    for name, texts in answers.items():
        predicted = normalize_answer(predictions[name])
        golds = [gold for gold in map(normalize_answer, texts) if gold] or ['']
        exact[name] = int(predicted in golds)
        f1[name] = max(
            _overlap(gold.split(), predicted.split()) if gold and predicted
            else int(gold == predicted) for gold in golds
        )
    return exact, f1


def _gains(
    raw: Mapping[str, float], predictions: Mapping[str, str],
    answers: Mapping[str, Sequence[str]],
) -> dict[str, float]:
    """A question's contribution to the sum where it keeps its prediction."""
    return {n: raw[n] if answers[n] else -bool(predictions[n]) for n in answers}


def _best_threshold(
    gains: Mapping[str, float], null_odds: Mapping[str, float], score: float
) -> tuple[float, float | None]:
    """The best sum of scores when questions up to some odds keep their prediction, and those odds.

    `score` is the sum when none does; where that is best there are no such odds. Questions
    of equal odds are taken one by one, as the official script does, although no threshold lies
    between them.
    """
    best: float = score
    threshold: float | None = None
    for name in sorted(null_odds, key=null_odds.__getitem__):
        if name in gains:
            score += gains[name]
            if score > best:
                best, threshold = score, null_odds[name]
    return best, threshold


def write_predictions(
    folder: str | os.PathLike[str],
    ids: Sequence[str],
    predictions: Sequence[Prediction],
    *,
    null_threshold: float | None = None,
) -> None:
    """Writes JSON files by question id; each appears whole or not at all.

    `predictions.json`: texts, for the official script. `nbest_predictions.json`: candidates with
    text, probability and logits. For SQuAD 2.0 also `null_odds.json`.

    Args:
      folder: where; it must exist.
      ids: question ids.
      predictions: one for each.
      null_threshold: SQuAD 2.0: odds of "no answer" above it empty the text. None: SQuAD 1.1.
    """
    files: dict[str, dict[str, Any]] = {
        'predictions': final_texts(ids, predictions, null_threshold),
        'nbest_predictions': {
            name: [dataclasses.asdict(candidate) for candidate in result.n_best]
            for name, result in zip(ids, predictions, strict=True)
        },
    }
    if null_threshold is not None:
        files['null_odds'] = {name: result.null_odds for name, result in zip(ids, predictions)}
    for name, content in files.items():
        write_whole(as_path(folder) / f'{name}.json', json.dumps(content, indent=1) + '\n')
