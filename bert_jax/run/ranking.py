"""Which of two evaluations is better: by the metric, and where that is equal, by the loss."""

import math
from collections.abc import Mapping
from typing import Any

Rank = tuple[float, float]  # of what is compared; the larger one is better


def rank(metrics: Mapping[str, Any], metric: str) -> Rank:
    """The rank of an evaluation.

    An undefined metric is below all others. So is the loss that an evaluation does not have, as
    that may be of a run that has diverged.

    Args:
      metrics: of the evaluation by name, such as `eval/accuracy`; undefined ones are missing, None
        or NaN.
      metric: the name of the one that decides, with the same prefix.
    """
    return _number(metrics.get(metric)), -loss_of(metrics, metric)


def loss_of(metrics: Mapping[str, Any], metric: str) -> float:
    """The loss that decides between evaluations of the same metric; infinity without one.

    It is called `loss`, or as the metric is: `mlm_loss` beside `mlm_accuracy`. Where evaluations
    have none, a result may have the last one of the training.
    """
    prefix, slash, name = metric.rpartition('/')
    family = name.rpartition('_')[0]
    for loss in (f'{prefix}{slash}loss', f'{prefix}{slash}{family}_loss', 'train/loss'):
        value = metrics.get(loss)
        if value is not None and not math.isnan(value):
            return float(value)
    return math.inf


def _number(value: Any) -> float:
    if value is None or math.isnan(value):
        return -math.inf
    return float(value)
