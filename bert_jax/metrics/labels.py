"""Metrics of labels and numbers by name, as scikit-learn and SciPy define them.

All are shares or coefficients: 0.9, not 90. Those of GLUE (Wang et al., 2018) are the official
ones.

    n: examples, L: labels
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.runtime.errors import InputError

# The first of a task is the one that Table 1 of the BERT paper reports. 'ax' is the diagnostic
# set, whose labels are not public; it is scored by Matthews' coefficient over three labels.
GLUE_METRICS: Mapping[str, tuple[str, ...]] = {
    'cola': ('matthews',),
    'sst2': ('accuracy',),
    'mrpc': ('f1', 'accuracy'),
    'stsb': ('spearman', 'pearson'),
    'qqp': ('f1', 'accuracy'),
    'mnli': ('accuracy',),
    'qnli': ('accuracy',),
    'rte': ('accuracy',),
    'wnli': ('accuracy',),
    'ax': ('matthews',),
}


def accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Share of equal ones; of marks [n, L], of the examples whose marks are all equal."""
    equal = predictions == labels
    return float(np.mean(equal.all(axis=1) if equal.ndim == 2 else equal))


def f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Of two labels: harmonic mean of precision and recall of the second, id 1.

    0 where neither side has it.
    """
    return _f1(predictions == 1, labels == 1)


def _f1(found: np.ndarray, wanted: np.ndarray) -> float:
    """F1 of marks; 0 where neither side has one."""
    both, either = np.sum((found > 0) & (wanted > 0)), np.sum(found > 0) + np.sum(wanted > 0)
    return float(2 * both / either) if either else 0.0


def matthews(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Matthews' correlation of any number of labels (R_K; Gorodkin, 2004).

    0 where all predictions or all labels are the same, as scikit-learn has it.
    """
    names, ids = np.unique(np.concatenate([labels, predictions]), return_inverse=True)
    k, n = len(names), len(labels)
    counts_KxK = np.bincount(ids[:n] * k + ids[n:], minlength=k * k).reshape(k, k)
    true_K, predicted_K = counts_KxK.sum(1).astype(float), counts_KxK.sum(0).astype(float)
    spread = (n * n - true_K @ true_K) * (n * n - predicted_K @ predicted_K)
    if spread <= 0:
        return 0.0
    return float((n * np.trace(counts_KxK) - true_K @ predicted_K) / np.sqrt(spread))


def pearson(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Linear correlation.

    0 where a side is constant or a prediction is not finite (SciPy: nan), so that runs that learned
    nothing can be compared and written as JSON.
    """
    x, y = predictions.astype(np.float64), labels.astype(np.float64)
    if not (np.isfinite(x).all() and np.isfinite(y).all()) or np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    # Scaled before squaring, which under- or overflows for values far from 1.
    x, y = ((z - z.mean()) / np.ptp(z) for z in (x, y))
    # Rounding may lead a hair past the ends.
    return float(np.clip((x @ y) / np.sqrt((x @ x) * (y @ y)), -1.0, 1.0))


def spearman(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Pearson's correlation of the ranks, equal values sharing their average rank."""
    if not (np.isfinite(predictions).all() and np.isfinite(labels).all()):
        return 0.0
    return pearson(_average_ranks(predictions), _average_ranks(labels))


def _average_ranks(values: np.ndarray) -> np.ndarray:
    """[n] float64 ranks from 1."""
    _, ids, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[ids]


def macro_f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """The mean over labels of the F1 of each; over those that occur, where an example has one."""
    if labels.ndim == 2:
        pairs = list(zip(predictions.T, labels.T, strict=True))
    else:
        names = np.unique(np.concatenate([predictions, labels]))
        pairs = [(predictions == name, labels == name) for name in names]
    return float(np.mean([_f1(found, wanted) for found, wanted in pairs]))


def micro_f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    """F1 over the marks [n, L] of all labels together; of one label each it is the accuracy."""
    return _f1(predictions, labels) if labels.ndim == 2 else accuracy(predictions, labels)


class Metric(NamedTuple):
    """A metric and what it can be computed of.

    Attributes:
      compute: from predictions and labels: ids [n], marks [n, L] or numbers [n].
      heads: kinds of heads whose outputs it is of.
      labels: how many labels there have to be; None: any number.
    """

    compute: Callable[[np.ndarray, np.ndarray], float]
    heads: tuple[str, ...]
    labels: int | None = None


_IDS = ('classification', 'multiple_choice', 'token_classification', 'feature_tagger')
METRICS: Mapping[str, Metric] = {
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
    """The names, where each is the name of a metric of such a head.

    Args:
      names: of metrics.
      head: kind of the model's head.
      num_labels: how many labels it has; None: not known yet.
      field: where the names come from, for the message.

    Raises:
      InputError: one is unknown, or not of this head or number of labels; it names those that are.
    """
    fit = [name for name, metric in METRICS.items() if head in metric.heads
           and (num_labels is None or metric.labels in (None, num_labels))]
    for name in names:
        if name not in fit:
            known = METRICS.get(name)
            reason = 'is unknown' if known is None else (
                f'is of {known.labels} labels, and there are {num_labels}' if head in known.heads
                else f'is not of a {head} head')
            raise InputError(f"{field}={','.join(names)!r}: {name!r} {reason}: choose from "
                             + ', '.join(fit))
    return tuple(names)
