"""Exact match and F1 of SQuAD, as the official scripts compute them.

The same operations in the same order: evaluate-v1.1.py, and evaluate-v2.0.py of
rajpurkar/SQuAD-explorer.
"""

import collections
import re
import string
from collections.abc import Mapping, Sequence
from typing import NamedTuple

# A `null_threshold` at which no question is answered: `null_odds`, as differences of logits, are
# far above it.
NEVER_ANSWER = -1e9
_ARTICLES = re.compile(r'\b(a|an|the)\b')
_WITHOUT_PUNCTUATION = str.maketrans('', '', string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower-cased, without ASCII punctuation, English articles and superfluous white space."""
    words = text.lower().translate(_WITHOUT_PUNCTUATION)
    return ' '.join(_ARTICLES.sub(' ', words).split())


def _overlap(gold: str, predicted: str) -> float:
    """F1 of two bags of words; 0 if they have no word in common."""
    gold_words = gold.split()
    words = predicted.split()
    common = collections.Counter(words) & collections.Counter(gold_words)
    num_common = sum(common.values())
    if not num_common:
        return 0
    precision = num_common / len(words)
    recall = num_common / len(gold_words)
    return (2 * precision * recall) / (precision + recall)


def _best_overlap(golds: Sequence[str], predicted: str) -> float:
    """The highest F1 with one of the accepted answers, all normalized."""
    return max(_overlap(gold, predicted) for gold in golds)


def v1_scores(texts: Mapping[str, str], answers: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """'exact_match' and 'f1' of SQuAD 1.1, in per cent.

    Args:
      texts: question id -> predicted text.
      answers: question id -> texts of the accepted answers, one or more.
    """
    exact_match = 0.0
    f1 = 0.0
    for name, text in texts.items():
        predicted = normalize_answer(text)
        golds = list(map(normalize_answer, answers[name]))
        exact_match += predicted in golds
        f1 += _best_overlap(golds, predicted)
    return {'exact_match': 100.0 * exact_match / len(texts), 'f1': 100.0 * f1 / len(texts)}


def v2_scores(
    texts: Mapping[str, str], answers: Mapping[str, Sequence[str]], odds: Mapping[str, float],
    null_threshold: float | None = None,
) -> dict[str, float]:
    """Scores of SQuAD 2.0, in per cent.

    Args:
      texts: question id -> predicted text without a threshold, '' for "no answer".
      answers: question id -> texts of the accepted answers; none: unanswerable.
      odds: question id -> `null_odds`, higher where the model is surer that there is no answer.
      null_threshold: odds above it make the prediction "no answer" (the original model's default
        is 0, the official script's 1, which is meant for probabilities). None: the one that is
        best for F1, as `best_f1_thresh` of the official script; but NEVER_ANSWER if answering no
        question is best: the official script then gives 0, which is right for the probabilities
        that it expects, not for odds that may be negative.

    Returns:
      'exact_match', 'f1' and 'null_threshold'; named as in the official script, 'total', the same
      three for questions with and without an answer ('HasAns_exact', 'NoAns_f1', ...), and the
      best threshold for each ('best_f1', 'best_f1_thresh', 'best_exact', 'best_exact_thresh').
    """
    raw = _raw_scores(texts, answers)
    best: dict[str, _BestThreshold] = {}
    for key, raw_scores in raw.items():
        best[key] = _best_threshold(raw_scores, texts, answers, odds)
    threshold = null_threshold
    if threshold is None:
        threshold = best['f1'].threshold
    final: dict[str, dict[str, float]] = {}
    for key, raw_scores in raw.items():
        final[key] = _with_threshold(raw_scores, answers, odds, threshold)

    answered = []
    unanswered = []
    for name in texts:
        if answers[name]:
            answered.append(name)
        else:
            unanswered.append(name)
    overall = _group_scores('', list(texts), final)
    scores = {'exact_match': overall.pop('exact'), **overall}
    scores |= _group_scores('HasAns_', answered, final)
    scores |= _group_scores('NoAns_', unanswered, final)
    for key, found in best.items():
        shown = found.threshold
        if shown == NEVER_ANSWER:
            shown = 0.0
        scores[f'best_{key}_thresh'] = shown
        scores[f'best_{key}'] = 100.0 * found.score / len(texts)
    scores['null_threshold'] = threshold
    return scores


def _raw_scores(
    texts: Mapping[str, str], answers: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, float]]:
    """{'exact' or 'f1': {question id: score of the predicted text}}, without a threshold."""
    exact: dict[str, float] = {}
    f1: dict[str, float] = {}
    for name, text in texts.items():
        predicted = normalize_answer(text)
        golds = _v2_golds(answers[name])
        exact[name] = int(predicted in golds)
        f1[name] = _v2_f1(predicted, golds)
    return {'exact': exact, 'f1': f1}


def _v2_golds(answers: Sequence[str]) -> list[str]:
    """The accepted answers, normalized; [''] if there is none, or none that has words."""
    normalized = map(normalize_answer, answers)
    with_words = list(filter(None, normalized))
    return with_words or ['']


def _v2_f1(predicted: str, golds: Sequence[str]) -> float:
    """The best F1 with an accepted answer, all normalized; 1 if neither has words."""
    if not predicted:
        return int('' in golds)
    return _best_overlap(golds, predicted)


def _group_scores(
    prefix: str, names: Sequence[str], final: Mapping[str, Mapping[str, float]]
) -> dict[str, float]:
    """Mean scores of some questions in per cent, and their number; {} if there are none."""
    if not names:
        return {}
    scores: dict[str, float] = {}
    for key, score_of in final.items():
        of_group = [score_of[name] for name in names]
        scores[prefix + key] = 100.0 * sum(of_group) / len(names)
    scores[f'{prefix}total'] = len(names)
    return scores


def _with_threshold(
    raw: Mapping[str, float], answers: Mapping[str, Sequence[str]], odds: Mapping[str, float],
    threshold: float,
) -> dict[str, float]:
    """Scores of the questions, where odds above the threshold predict that there is no answer."""
    final: dict[str, float] = {}
    for name, score in raw.items():
        final[name] = score
        if odds[name] > threshold:
            final[name] = float(not answers[name])
    return final


class _BestThreshold(NamedTuple):
    """A threshold of `null_odds`, and the sum of scores that it gives."""

    score: float
    threshold: float


def _best_threshold(
    raw: Mapping[str, float], texts: Mapping[str, str], answers: Mapping[str, Sequence[str]],
    odds: Mapping[str, float],
) -> _BestThreshold:
    """The threshold up to whose odds questions keep their prediction, with the best scores.

    Questions of equal odds are taken one by one, as the official script does, although no
    threshold lies between them.
    """
    unanswered = [name for name in texts if not answers[name]]
    score = float(len(unanswered))
    best = _BestThreshold(score, NEVER_ANSWER)
    for name in sorted(odds, key=odds.__getitem__):
        if answers[name]:
            score += raw[name]
        elif texts[name]:
            score -= 1
        if score > best.score:
            best = _BestThreshold(score, odds[name])
    return best
