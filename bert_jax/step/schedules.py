"""Learning-rate schedules: warm-up and decay, in one segment or several."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Schedule = Callable[[jax.Array], jax.Array]


class ScheduleSegment(NamedTuple):
    """Linear warm-up and decay over `steps` steps, beginning at step `start`.

    The decay counts from the segment's step `decay_from`. The default of 0 is as in
    google-research/bert: at the end of the warm-up, the rate jumps from `learning_rate` to
    `learning_rate * (1 - warmup / steps) ** power`. If `decay_from` is later than the end of the
    warm-up, the rate is constant in between; if it is `steps`, to the end of the segment.
    """

    start: int
    steps: int
    learning_rate: Any  # a number, or a traced one
    warmup: int
    decay_from: int = 0


def make_schedule(
    segments: Sequence[ScheduleSegment], power: float = 1.0, decay: str = 'polynomial',
) -> Schedule:
    """The learning rate as a function of the step. With a warm-up, the first step has rate 0.

    Args:
      segments: in order; each applies from its start to the next one's start.
      power: of what the decay leaves of the rate; 1 is linear, 0.5 is NVIDIA's for LAMB.
      decay: one of `config.choices.DECAYS`.

    Returns:
      A function from a step (a scalar int32, from 0) to its rate, a scalar float32.
    """
    share_left = _SHARE_LEFT[decay]

    def segment_rate(segment: ScheduleSegment, step: jax.Array) -> jax.Array:
        since_start = step.astype(jnp.float32) - segment.start
        decayed = segment.learning_rate * share_left(segment, since_start) ** power
        warming = segment.learning_rate * since_start / max(segment.warmup, 1)
        return jnp.where(since_start < segment.warmup, warming, decayed)

    def schedule(step: jax.Array) -> jax.Array:
        step = jnp.asarray(step)
        rate = segment_rate(segments[0], step)
        for segment in segments[1:]:
            rate = jnp.where(step >= segment.start, segment_rate(segment, step), rate)
        return rate

    return schedule


def _line(segment: ScheduleSegment, since_start: jax.Array) -> jax.Array:
    """Falls in a line, to 0 at the end of the segment."""
    decay_steps = max(segment.steps - segment.decay_from, 1)
    return jnp.clip(1.0 - (since_start - segment.decay_from) / decay_steps, 0.0, 1.0)


def _half_cosine(segment: ScheduleSegment, since_start: jax.Array) -> jax.Array:
    """Falls as half a cosine wave, to 0."""
    return 0.5 - 0.5 * jnp.cos(jnp.pi * _line(segment, since_start))


def _one_minus_root(segment: ScheduleSegment, since_start: jax.Array) -> jax.Array:
    """1 - sqrt(x) at the share x of the decay's steps, to 0 (Hägele et al., 2024)."""
    return 1.0 - jnp.sqrt(1.0 - _line(segment, since_start))


def _inverse_root(segment: ScheduleSegment, since_start: jax.Array) -> jax.Array:
    """sqrt(d / t) at step t of a decay from step d, however long the segment is.

    In the Transformer (Vaswani et al., 2017), d is the end of the warm-up.
    """
    begin = max(segment.decay_from, segment.warmup, 1)
    return jnp.sqrt(begin / jnp.maximum(since_start, begin))


# By name in `config.choices.DECAYS`: the share of the rate that the decay leaves, from 1 down, at a
# step counted from the segment's start. (The segment's rate is not read.)
_SHARE_LEFT: Mapping[str, Callable[[ScheduleSegment, jax.Array], jax.Array]] = {
    'polynomial': _line,
    'cosine': _half_cosine,
    '1-sqrt': _one_minus_root,
    'inverse_sqrt': _inverse_root,
}
