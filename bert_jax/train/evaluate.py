"""Evaluation: sums over batches, divided once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from bert_jax.heads.base import Head
from bert_jax.train.step import Batch, EvalStep


def evaluate(objective: Head, eval_step: EvalStep, params: Any, batches: Iterable[Batch]
             ) -> dict[str, float]:
    """The objective's metrics over all batches; rows of weight 0 count nowhere.

    Sums are added in float64, so the number of batches does not show in the result.
    """
    total: dict[str, float] = {}
    pending: dict[str, jax.Array] | None = None

    def add(sums: dict[str, jax.Array]) -> None:
        for name, value in jax.device_get(sums).items():
            total[name] = total.get(name, 0.0) + float(np.float64(value))

    for batch in batches:
        sums = eval_step(params, batch)
        if pending is not None:
            add(pending)  # read one batch late, so that the device always has work
        pending = sums
    if pending is not None:
        add(pending)
    return objective.score(total)
