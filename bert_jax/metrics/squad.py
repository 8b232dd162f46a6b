"""Exact match and F1 of SQuAD 1.1 and 2.0, as the official evaluation scripts compute them.

The same operations in the same order, so that results are equal to the last digit
(evaluate-v1.1.py; evaluate-v2.0.py of rajpurkar/SQuAD-explorer).
"""

from __future__ import annotations

import collections
import re
import string
from collections.abc import Mapping, Sequence

from bert_jax.runtime.errors import InputError

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
    """What a question adds to the sum when it keeps its prediction."""
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
