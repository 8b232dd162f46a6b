"""Metrics of labels and numbers by name, as scikit-learn and SciPy compute them.

`METRICS` says which head and how many classes each is for. All are shares or coefficients: 0.9,
not 90. Predictions and labels are class ids [n], 0/1 indicators [n, L] for several labels per
example, or numbers [n]. A metric is NaN where scikit-learn or SciPy gives NaN: it is undefined.

    n: examples, L: labels
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bert_jax.runtime.errors import InputError


def most_frequent(labels: Sequence[Any] | np.ndarray) -> Any:
    """The most frequent of some labels [n]; of several, the first in their order."""
    values, counts = np.unique(labels, return_counts=True)
    return values[counts.argmax()]


def scores_of_one_answer(
    answer: Any, labels: np.ndarray, compute_metrics: Callable[..., Mapping[str, float]]
) -> dict[str, float]:
    """Metrics by name if every prediction is one answer, which knows nothing of the example.

    A metric that is undefined for this, as the correlation with a constant is, counts as 0.

    Args:
      answer: a label, or a number.
      labels: [n] or [n, L].
      compute_metrics: from predictions and labels to metrics by name.
    """
    scores = compute_metrics(np.full(labels.shape, answer), labels)
    return {name: 0.0 if math.isnan(value) else value for name, value in scores.items()}


def accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Share of correct examples; with [n, L], those whose labels are all correct."""
    equal = predictions == labels
    if equal.ndim == 2:
        equal = equal.all(axis=1)
    return float(np.mean(equal))


def f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """F1 of class 1: harmonic mean of precision and recall.

    0 where class 1 does not occur, as scikit-learn has it.
    """
    return _f1(predictions == 1, labels == 1)


def macro_f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Mean of the classes' F1; for class ids, over classes that occur on either side."""
    of_classes = [_f1(predicted, true) for predicted, true in _by_class(predictions, labels)]
    return float(np.mean(of_classes))


def micro_f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """F1 from the counts of all classes together; for class ids it equals the accuracy."""
    pairs = _by_class(predictions, labels)
    predicted, true = zip(*pairs, strict=True)
    return _f1(np.concatenate(predicted), np.concatenate(true))


def _by_class(predictions: np.ndarray, labels: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """(predicted, true) booleans [n] of each class."""
    if labels.ndim == 2:
        return list(zip(predictions.T > 0, labels.T > 0, strict=True))
    classes = np.unique(np.concatenate([predictions, labels]))
    return [(predictions == label, labels == label) for label in classes]


def _f1(predicted: np.ndarray, true: np.ndarray) -> float:
    both = np.sum(predicted & true)
    total = np.sum(predicted) + np.sum(true)
    if not total:
        return 0.0
    return float(2 * both / total)


def of_each_class(
    predictions: np.ndarray, labels: np.ndarray, probabilities_nxL: np.ndarray
) -> list[list[float]]:
    """[count, precision, recall, F1, area under the ROC curve] of each class against the others.

    As scikit-learn has it, precision and recall are 0 where they are undefined, and the area is
    NaN: that of a class that no example, or every example, has.
    """
    rows = []
    for label, probabilities_n in enumerate(probabilities_nxL.T):
        if labels.ndim == 2:
            predicted = predictions[:, label] > 0
            true = labels[:, label] > 0
        else:
            predicted = predictions == label
            true = labels == label
        both = np.sum(predicted & true)
        count = int(true.sum())
        precision = float(both / max(predicted.sum(), 1))
        recall = float(both / max(count, 1))
        area = _area_under_roc(probabilities_n, true)
        rows.append([count, precision, recall, _f1(predicted, true), area])
    return rows


def _area_under_roc(scores: np.ndarray, true: np.ndarray) -> float:
    """The share of pairs of a true and another example whose scores are in order; ties are half.

    NaN if there are no such pairs.
    """
    count = int(true.sum())
    num_others = len(true) - count
    if not count * num_others:
        return math.nan
    pairs = _average_ranks(scores)[true].sum() - count * (count + 1) / 2
    return float(pairs / (count * num_others))


def matthews(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Matthews' correlation of any number of labels (R_K; Gorodkin, 2004).

    0 where all predictions or all labels are the same, as scikit-learn has it.
    """
    n = len(labels)
    names, ids = np.unique(np.concatenate([labels, predictions]), return_inverse=True)
    num_names = len(names)
    cells = ids[:n] * num_names + ids[n:]
    counts_LxL = np.bincount(cells, minlength=num_names**2).reshape(num_names, num_names)
    true_L = counts_LxL.sum(axis=1).astype(float)
    predicted_L = counts_LxL.sum(axis=0).astype(float)
    spread = (n * n - true_L @ true_L) * (n * n - predicted_L @ predicted_L)
    if spread <= 0:
        return 0.0
    return float((n * np.trace(counts_LxL) - true_L @ predicted_L) / np.sqrt(spread))


def pearson(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Linear correlation; NaN where a side is constant or not finite."""
    x = predictions.astype(np.float64)
    y = labels.astype(np.float64)
    if not np.isfinite(x).all() or not np.isfinite(y).all():
        return math.nan
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan
    # Scaled before squaring, because squares of values far from 1 under- or overflow.
    scaled_x = (x - x.mean()) / np.ptp(x)
    scaled_y = (y - y.mean()) / np.ptp(y)
    return float(np.corrcoef(scaled_x, scaled_y)[0, 1])


def spearman(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Pearson's correlation of the ranks; equal values share their average rank."""
    if not (np.isfinite(predictions).all() and np.isfinite(labels).all()):
        return math.nan
    return pearson(_average_ranks(predictions), _average_ranks(labels))


def _average_ranks(values: np.ndarray) -> np.ndarray:
    """[n] float64 ranks from 1; equal values share their average rank."""
    _, ids, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[ids]


class Metric(NamedTuple):
    """A metric and what it is defined for.

    Attributes:
      compute: from predictions and labels.
      heads: the heads that it can score.
      labels: how many labels there have to be; None: any number.
    """

    compute: Callable[[np.ndarray, np.ndarray], float]
    heads: tuple[str, ...]
    labels: int | None = None

    def suits(self, head: str, num_labels: int | None) -> bool:
        """Whether it is defined for a head with so many labels; None: not known yet."""
        if head not in self.heads:
            return False
        return num_labels is None or self.labels in (None, num_labels)


_IDS = ('classification', 'multiple_choice', 'token_classification', 'feature_tagger')
METRICS: dict[str, Metric] = {  # a config file may add to it
    'accuracy': Metric(accuracy, (*_IDS, 'multi_label')),
    'f1': Metric(f1, ('classification',), labels=2),
    'macro_f1': Metric(macro_f1, (*_IDS, 'multi_label')),
    'micro_f1': Metric(micro_f1, (*_IDS, 'multi_label')),
    'matthews': Metric(matthews, _IDS),
    'pearson': Metric(pearson, ('regression',)),
    'spearman': Metric(spearman, ('regression',)),
}


def check_metrics(
    names: Sequence[str], head: str, num_labels: int | None = None, field: str = 'metrics'
) -> tuple[str, ...]:
    """Returns the names, if each is a metric that is defined for the head.

    Args:
      names: of metrics.
      head: one of `heads.HEADS`.
      num_labels: how many labels it has; None: not known yet.
      field: where the names come from, for the message.

    Raises:
      InputError: one is unknown, or not defined for this head or number of labels; the message
        names those that are.
    """
    fit = [name for name, metric in METRICS.items() if metric.suits(head, num_labels)]
    for name in names:
        if name not in fit:
            with_labels = ''
            if num_labels is not None:
                with_labels = f' with {num_labels} labels'
            raise InputError(f"{field}={','.join(names)!r}: {name!r} is no metric of a {head} head"
                             f"{with_labels}: choose from {', '.join(fit)}")
    return tuple(names)
