"""What the steps since the last log line have measured."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from bert_jax.heads.base import Head
from bert_jax.runtime.errors import Diverged


class Window:
    """Metrics of the steps since the last log line, checked for NaN as they are fetched."""

    def __init__(self, first_step: int, first_of_run: int):
        """`first_of_run`: the step that the run starts from, here and now."""
        self._first_of_run = first_of_run
        self._next_step = first_step + 1  # steps are named by the updates done with them
        self._on_device: list[dict[str, jax.Array]] = []
        self.fetched: list[dict[str, np.ndarray]] = []

    def add(self, metrics: dict[str, jax.Array]) -> None:
        self._on_device.append(metrics)
        # At most two steps in flight: hundreds of unsynchronised ones abort on virtual CPU
        # devices, and more than two gain nothing.
        if len(self._on_device) > 2:
            jax.block_until_ready(self._on_device[-3]['loss'])

    def fetch(self) -> None:
        """Waits for all steps.

        Raises:
          Diverged: at the first step whose loss or gradient is not finite.
        """
        for metrics in jax.device_get(self._on_device):
            if not (np.isfinite(metrics['loss']) and np.isfinite(metrics['grad_norm'])):
                before = self._next_step - 1
                raise Diverged(
                    f"step {self._next_step}: loss {metrics['loss']}, gradient norm "
                    f"{metrics['grad_norm']}: stopped. " + (
                        'No step was done before, so no learning rate is the cause: look at the '
                        'parameters that it starts from, and at the data'
                        if before == self._first_of_run else
                        'Lower config.optimizer.learning_rate or lengthen config.optimizer.warmup'
                    ), before)
            self._next_step += 1
            self.fetched.append(metrics)
        self._on_device.clear()

    def take(self) -> list[dict[str, np.ndarray]]:
        self.fetch()
        fetched, self.fetched = self.fetched, []
        return fetched


def means(objective: Head, steps: Sequence[dict[str, np.ndarray]]) -> dict[str, float]:
    """Metrics over several steps: sums through `score`, the step's own as they are."""
    own = ('loss', 'grad_norm', 'learning_rate')
    sums = {
        name: float(sum(np.float64(s[name]) for s in steps)) for name in steps[0] if name not in own
    }
    return {
        'loss': float(np.mean([s['loss'] for s in steps])),
        **objective.score(sums),
        'grad_norm': float(np.mean([s['grad_norm'] for s in steps])),
        'learning_rate': float(steps[-1]['learning_rate']),
    }
