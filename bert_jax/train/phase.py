"""A phase as the training loop receives it from a task."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from bert_jax.model.trainable import Batch, Params


class Phase(NamedTuple):
    """A part of the run with one batch shape.

    Attributes:
      start, end: its steps, counted from 0; the end is exclusive.
      batch_size: sequences or units of a global batch; packed, they fill fewer rows.
      batches: a function from a step of the phase to an iterator of device batches from there on.
      evaluate: a function from parameters to metrics of the held-out rows.
      flops_per_sequence: training FLOPs of a step, divided by `batch_size`.
      name: for messages.
    """

    start: int
    end: int
    batch_size: int
    batches: Callable[[int], Iterator[Batch]]
    evaluate: Callable[[Params], dict[str, float]]
    flops_per_sequence: float
    name: str
