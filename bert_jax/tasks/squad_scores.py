"""Exact match and F1 of SQuAD, as the official scripts compute them.

The same operations in the same order: evaluate-v1.1.py, and evaluate-v2.0.py of
rajpurkar/SQuAD-explorer.
"""

import collections
import re
import string
from collections.abc import Mapping, Sequence

# A `null_threshold` at which no question is answered: `null_odds`, as differences of logits, are
# far above it.
NEVER_ANSWER = -1e9
_ARTICLES = re.compile(r'\b(a|an|the)\b')
_WITHOUT_PUNCTUATION = str.maketrans('', '', string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower-cased, without ASCII punctuation, English articles and superfluous white space."""
    return ' '.join(_ARTICLES.sub(' ', text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def _overlap(gold: str, predicted: str) -> float:
    """F1 of two bags of words; 0 if they have no word in common."""
    golds, words = gold.split(), predicted.split()
    common = sum((collections.Counter(words) & collections.Counter(golds)).values())
    if not common:
        return 0
    precision = common / len(words)
    recall = common / len(golds)
    return (2 * precision * recall) / (precision + recall)


def v1_scores(texts: Mapping[str, str], answers: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """'exact_match' and 'f1' of SQuAD 1.1, in per cent.

    Args:
      texts: question id -> predicted text.
      answers: question id -> texts of the accepted answers, one or more.
    """
    exact_match = f1 = 0.0
    for name, text in texts.items():
        predicted = normalize_answer(text)
        golds = [normalize_answer(answer) for answer in answers[name]]
        exact_match += predicted in golds
        f1 += max(_overlap(gold, predicted) for gold in golds)
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
    raw: dict[str, dict[str, float]] = {'exact': {}, 'f1': {}}
    for name, text in texts.items():
        predicted = normalize_answer(text)
        golds = [gold for gold in map(normalize_answer, answers[name]) if gold] or ['']
        raw['exact'][name] = int(predicted in golds)
        raw['f1'][name] = max(
            _overlap(gold, predicted) if gold and predicted else int(gold == predicted)
            for gold in golds)
    best = {key: _best_threshold(raw[key], texts, answers, odds) for key in raw}
    limit = best['f1'][1] if null_threshold is None else null_threshold
    scores: dict[str, float] = {}
    for prefix, names in (('', list(texts)), ('HasAns_', [n for n in texts if answers[n]]),
                          ('NoAns_', [n for n in texts if not answers[n]])):
        if not names:
            continue
        for key in raw:
            final = [float(not answers[n]) if odds[n] > limit else raw[key][n] for n in names]
            scores[prefix + key] = 100.0 * sum(final) / len(names)
        scores[prefix + 'total'] = len(names)
    scores = {'exact_match': scores.pop('exact'), **scores}
    for key, (score, threshold) in best.items():
        scores[f'best_{key}_thresh'] = 0.0 if threshold == NEVER_ANSWER else threshold
        scores[f'best_{key}'] = 100.0 * score / len(texts)
    return scores | {'null_threshold': limit}


def _best_threshold(
    raw: Mapping[str, float], texts: Mapping[str, str], answers: Mapping[str, Sequence[str]],
    odds: Mapping[str, float],
) -> tuple[float, float]:
    """(Best sum of scores, threshold): questions with odds up to it keep their prediction.

    Questions of equal odds are taken one by one, as the official script does, although no
    threshold lies between them.
    """
    score = best = float(sum(not answers[name] for name in texts))
    threshold = NEVER_ANSWER
    for name in sorted(odds, key=odds.__getitem__):
        score += raw[name] if answers[name] else -bool(texts[name])
        if score > best:
            best, threshold = score, odds[name]
    return best, threshold
