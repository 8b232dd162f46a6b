"""Learning-rate schedules and the optimizers: BERT's Adam, optax's AdamW, LAMB."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

Schedule = Callable[[jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class ScheduleSegment:
    """Linear warm-up and polynomial decay to 0 over `steps` steps, beginning at step `start`."""

    start: int
    steps: int
    learning_rate: Any  # a number, or a traced one
    warmup: int


def make_schedule(segments: Sequence[ScheduleSegment], power: float = 1.0) -> Schedule:
    """The learning rate at a step.

    As in google-research/bert: within a segment the decay counts from its first step, not from
    the end of the warm-up, so the rate jumps from `learning_rate` to
    `learning_rate * (1 - warmup / steps) ** power` where the warm-up ends. The first step has
    rate 0.

    Args:
      segments: in order; each holds from its start to the next one's start.
      power: of the polynomial; 1 is linear, 0.5 is NVIDIA's for LAMB.
    """

    def segment_rate(segment: ScheduleSegment, step: jax.Array) -> jax.Array:
        t = step.astype(jnp.float32) - segment.start
        left = jnp.clip(1.0 - t / segment.steps, 0.0, 1.0)
        decayed = segment.learning_rate * left**power
        warming = segment.learning_rate * t / max(segment.warmup, 1)
        return jnp.where(t < segment.warmup, warming, decayed)

    def schedule(step: jax.Array) -> jax.Array:
        step = jnp.asarray(step)
        rate = segment_rate(segments[0], step)
        for segment in segments[1:]:
            rate = jnp.where(step >= segment.start, segment_rate(segment, step), rate)
        return rate

    return schedule


def path_names(path: Sequence[Any]) -> tuple[str, ...]:
    """The dict keys of a jax key path (flax's metadata boxes add attributes, which are skipped)."""
    return tuple(str(key.key) for key in path if isinstance(key, jax.tree_util.DictKey))


def decays(path: Sequence[Any]) -> bool:
    """Whether weight decay applies: not to biases and LayerNorm; to embeddings it does."""
    names = path_names(path)
    return 'LayerNorm' not in names and not names[-1].endswith('bias')


def decay_mask(params: Any) -> Any:
    """A tree of bools like `params`: where weight decay (and LAMB's trust ratio) applies."""
    return jax.tree_util.tree_map_with_path(lambda path, _: decays(path), params)


class BertAdamState(NamedTuple):
    mu: Any
    nu: Any


def scale_by_bert_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """Adam as google-research/bert has it: no bias correction, eps outside the root.

    update = m / (sqrt(v) + eps). Early updates are smaller than with correction for m and larger
    for v; see `optax.scale_by_adam` for the textbook form.
    """

    def init(params: Any) -> BertAdamState:
        zeros = lambda: jax.tree.map(jnp.zeros_like, params)  # noqa: E731
        return BertAdamState(mu=zeros(), nu=zeros())

    def update(grads: Any, state: BertAdamState, params: Any = None):
        del params
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, grads)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * jnp.square(g), state.nu, grads)
        updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu)
        return updates, BertAdamState(mu, nu)

    return optax.GradientTransformation(init, update)


def _ratio_axes(path: Sequence[Any], ndim: int) -> tuple[int, ...]:
    """Dims over which a layer's norm is taken: one ratio a layer and a Q, K, V slice."""
    names = path_names(path)
    kept = set()
    if 'layer' in names:  # scanned: the leading dim is the layer
        kept.add(0)
    if 'qkv' in names:  # [..., 3, heads, head_dim]
        kept.add(ndim - 3)
    return tuple(axis for axis in range(ndim) if axis not in kept)


def scale_by_layer_trust_ratio() -> optax.GradientTransformation:
    """LAMB's trust ratio, |w| / |update|, where weight decay applies; 1 elsewhere or at zero norm.

    Taken for each layer and for each of query, key and value, also where layers are stacked for
    scanning or the three are fused, so that the layout of the parameters does not change training
    (You et al., 2019, Algorithm 2; biases and LayerNorm left out as in its published code).
    """

    def scaled(path: Sequence[Any], update: jax.Array, param: jax.Array) -> jax.Array:
        if not decays(path):
            return update
        axes = _ratio_axes(path, param.ndim)

        def norm(x: jax.Array) -> jax.Array:
            return jnp.sqrt(jnp.sum(jnp.square(x), axis=axes, keepdims=True))

        w, u = norm(param), norm(update)
        return update * jnp.where((w > 0) & (u > 0), w / jnp.where(u > 0, u, 1.0), 1.0)

    def update(updates: Any, state: Any, params: Any):
        return jax.tree_util.tree_map_with_path(scaled, updates, params), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def make_optimizer(
    name: str, schedule: Schedule, *, weight_decay: float, b1: float, b2: float, eps: float,
    frozen: str = '',
) -> optax.GradientTransformation:
    """The optimizer, without clipping, which the train step does where it has the norm at hand.

    Args:
      name: 'bert_adamw' (the original's), 'adamw' (with bias correction), 'lamb'.
      schedule: learning rate by step.
      weight_decay: added to the update before the learning rate (decoupled), see `decays`.
      b1, b2, eps: of Adam.
      frozen: top-level part of the parameters that is left as it is, without moments.
    """
    parts = {
        'bert_adamw': [scale_by_bert_adam(b1, b2, eps)],
        'adamw': [optax.scale_by_adam(b1, b2, eps)],
        'lamb': [optax.scale_by_adam(b1, b2, eps)],
    }[name]
    parts = [*parts, optax.add_decayed_weights(weight_decay, decay_mask)]
    if name == 'lamb':
        parts.append(scale_by_layer_trust_ratio())
    optimizer = optax.chain(*parts, optax.scale_by_learning_rate(schedule))
    if not frozen:
        return optimizer
    return optax.partition(
        {True: optimizer, False: optax.set_to_zero()},
        lambda params: {part: part != frozen for part in params},
    )
