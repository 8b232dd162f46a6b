"""The records that every run makes of a few fixed steps, to compare other runs with it.

Rows, masks and dropout are functions of (seed, step), so two runs of one recipe and seed see the
same batch at every step, on any mesh and any number of hosts. (Labelled examples are packed into
rows for the mesh and the accumulation steps: there the batch has the same examples in other rows.)
A checked step has a record of its own in metrics.jsonl: a digest of its batch, its learning rate,
and the mean loss and gradient norm since the last checked step. `train.reference` compares these
with a reference.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_jax.runtime.checksum import checksums
from bert_jax.runtime.hashing import digest

_DIGITS = 12  # hexadecimal, of a digest: 48 bits, which a float holds exactly
BATCH = 'check/batch'
LEARNING_RATE = 'check/learning_rate'
LOSS = 'check/loss'
GRADIENT = 'check/grad_norm'
NUM_STEPS = 'check/steps'


def is_checked(step: int) -> bool:
    """Whether a step is one digit and zeros: 1 to 9, 10 to 90 by tens, 100 to 900, and so on."""
    return len(str(step).rstrip('0')) == 1


def is_whole(step: int, record: Mapping[str, float]) -> bool:
    """Whether a record's means are over all steps since the last checked one: no resume between."""
    return record[NUM_STEPS] == steps_since_check(step)


def steps_since_check(step: int) -> int:
    """The steps from the last checked one to this checked one: 1, 1, ..., 10, 10, ..., 100."""
    return 10 ** (len(str(step - 1)) - 1)


class StepChecks:
    """Makes the records of the checked steps of a run, from its start or where it resumes."""

    def __init__(self) -> None:
        self._digests: dict[int, int] = {}  # of batches, by step
        self._losses: list[float] = []  # of the steps since the last checked one
        self._gradients: list[float] = []

    def see(self, step: int, batch: Mapping[str, Any]) -> None:
        """Takes the digest of a checked step's batch. All hosts call it, with the same step."""
        self._digests[step] = batch_digest(batch)

    def add(self, step: int, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Takes the metrics of the next step; returns its record, {} if it is not checked."""
        self._losses.append(float(metrics['loss']))
        self._gradients.append(float(metrics['grad_norm']))
        if not is_checked(step):
            return {}
        record = {
            BATCH: self._digests.pop(step),
            LEARNING_RATE: float(metrics['learning_rate']),
            LOSS: float(np.mean(self._losses)),
            GRADIENT: float(np.mean(self._gradients)),
            NUM_STEPS: len(self._losses),
        }
        self._losses.clear()
        self._gradients.clear()
        return record


def batch_digest(batch: Mapping[str, Any]) -> int:
    """A digest of a global batch's content: the same however the batch is split over devices.

    Args:
      batch: arrays by name, on devices, perhaps of several hosts.

    Returns:
      An integer of 48 bits.
    """
    return int(digest(checksums(batch).tobytes())[:_DIGITS], 16)
