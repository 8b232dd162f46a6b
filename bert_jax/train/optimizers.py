"""Learning-rate schedules and optimizers: BERT's Adam, AdamW, StableAdamW, LAMB, Muon, optax's.

How an optimizer treats a parameter depends on its declaration (`model.layers.Parameter`).
"""

import ast
import functools
import inspect
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from bert_jax.model.encoder import layer_of
from bert_jax.model.layers import Names, Parameter, path_names
from bert_jax.runtime.errors import InputError, nearest
from bert_jax.sharding import distribute

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
      decay: see `_share_left`.

    Returns:
      A function from a step (a scalar int32, from 0) to its rate, a scalar float32.
    """

    def segment_rate(segment: ScheduleSegment, step: jax.Array) -> jax.Array:
        since_start = step.astype(jnp.float32) - segment.start
        decayed = segment.learning_rate * _share_left(decay, segment, since_start) ** power
        warming = segment.learning_rate * since_start / max(segment.warmup, 1)
        return jnp.where(since_start < segment.warmup, warming, decayed)

    def schedule(step: jax.Array) -> jax.Array:
        step = jnp.asarray(step)
        rate = segment_rate(segments[0], step)
        for segment in segments[1:]:
            rate = jnp.where(step >= segment.start, segment_rate(segment, step), rate)
        return rate

    return schedule


def _share_left(decay: str, segment: ScheduleSegment, since_start: jax.Array) -> jax.Array:
    """The share of the rate that the decay leaves at a step of a segment, from 1 down.

    Args:
      decay: one of `config.choices.DECAYS`:
        'polynomial': falls in a line, to 0 at the end of the segment;
        'cosine': as half a cosine wave, to 0;
        '1-sqrt': 1 - sqrt(x) at the share x of the decay's steps, to 0 (Hägele et al., 2024);
        'inverse_sqrt': sqrt(d / t) at step t of a decay from step d, however long the segment is
          (Vaswani et al., 2017; d is then the end of the warm-up).
      segment: its rate is not read.
      since_start: the step, counted from the segment's start.
    """
    if decay == 'inverse_sqrt':
        begin = max(segment.decay_from, segment.warmup, 1)
        return jnp.sqrt(begin / jnp.maximum(since_start, begin))
    decay_steps = max(segment.steps - segment.decay_from, 1)
    left = jnp.clip(1.0 - (since_start - segment.decay_from) / decay_steps, 0.0, 1.0)
    if decay == 'cosine':
        return 0.5 - 0.5 * jnp.cos(jnp.pi * left)
    if decay == '1-sqrt':
        return 1.0 - jnp.sqrt(1.0 - left)
    return left


Parameters = Mapping[Names, Parameter]  # see `model.layers.declared_parameters`


def frozen_parameters(pattern: str, parameters: Parameters) -> set[Names]:
    """The parameters whose names `pattern`, such as `optimizer.frozen`, matches; '' matches none.

    Raises:
      InputError: it is not a regular expression, or it matches no parameter, or all of them.
    """
    if not pattern:
        return set()
    named = {'/'.join(names): names for names in parameters}
    try:
        found = {names for name, names in named.items() if re.search(pattern, name)}
    except re.error as error:
        raise InputError(f'config.optimizer.frozen={pattern!r} is not a valid regular expression: '
                         f'{error}') from None
    if not 0 < len(found) < len(named):
        which = 'every' if found else 'no'
        some = ', '.join(list(named)[:8])
        raise InputError(f"config.optimizer.frozen={pattern!r} is in {which} parameter's name; "
                         f'there are {some}, ...')
    return found


class BertAdamState(NamedTuple):
    """Running means of the gradients and of their squares, trees like the parameters."""

    mu: Any
    nu: Any


def scale_by_bert_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """Adam as in google-research/bert: no bias correction, eps outside the root.

    update = m / (sqrt(v) + eps). Compared with bias correction, early updates are smaller because
    of m and larger because of v. `optax.scale_by_adam` is the textbook form.
    """

    def init(params: Any) -> BertAdamState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return BertAdamState(mu=zeros, nu=jax.tree.map(jnp.zeros_like, params))

    def update(grads: Any, state: BertAdamState, params: Any = None):
        del params
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, grads)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * jnp.square(g), state.nu, grads)
        updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu)
        return updates, BertAdamState(mu, nu)

    return optax.GradientTransformation(init, update)


def scale_by_layer_trust_ratio(parameters: Parameters) -> optax.GradientTransformation:
    """LAMB's trust ratio, |w| / |update|, where weight decay applies; 1 elsewhere or at zero norm.

    Each parameter has its own ratio, and so has each of query, key and value although they are
    fused (You et al., 2019, Algorithm 2; without biases and LayerNorm, as in its published code).
    """

    def scaled(path: Sequence[Any], update: jax.Array, param: jax.Array) -> jax.Array:
        declared = parameters[path_names(path)]
        if not declared.decays:
            return update
        axes = tuple(set(range(param.ndim)) - set(declared.separate_axes))

        def norm(x: jax.Array) -> jax.Array:
            return jnp.sqrt(jnp.sum(jnp.square(x), axis=axes, keepdims=True))

        weights = norm(param)
        updates = norm(update)
        has_ratio = (weights > 0) & (updates > 0)
        ratio = weights / jnp.where(updates > 0, updates, 1.0)
        return update * jnp.where(has_ratio, ratio, 1.0)

    return optax.stateless(
        lambda updates, params: jax.tree_util.tree_map_with_path(scaled, updates, params))


def clipped_by_gradient_rms(
    adamw: optax.GradientTransformation, b2: float, eps: float
) -> optax.GradientTransformation:
    """StableAdamW (Wortsman et al., 2023, Algorithm 2): updates clipped by the gradient's size.

    A parameter's update, with its weight decay, is divided by max(1, r). r is the root mean square
    of its gradient's elements over what Adam expects of them: the root of their mean of squares
    with corrected bias, at least eps. (AdaFactor clips so: Shazeer and Stern, 2018.)

    Args:
      adamw: a chain that begins with `optax.scale_by_adam`, before the learning rate.
      b2, eps: of that.
    """

    def update(grads: Any, state: Any, params: Any = None):
        updates, state = adamw.update(grads, state, params)
        adam = state[0]
        correction = 1 - b2**adam.count

        def scaled(update: jax.Array, gradient: jax.Array, square: jax.Array) -> jax.Array:
            expected = jnp.maximum(square / correction, eps**2)
            rms = jnp.sqrt(jnp.mean(jnp.square(gradient) / expected))
            return update / jnp.maximum(rms, 1.0)

        return jax.tree.map(scaled, updates, grads, adam.nu), state

    return optax.GradientTransformation(adamw.init, update)


class MuonState(NamedTuple):
    """Steps done (a scalar int32), and running means of gradients, a tree like the parameters."""

    step: jax.Array
    momentum: Any


# Coefficients of an odd polynomial of degree five; applied five times it maps all but the smallest
# singular values in (0, 1] to about 1 (Jordan, 2024).
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def _orthogonalized(x: jax.Array, eps: float) -> jax.Array:
    """About U V^T of each matrix U S V^T of [number, m, n], m <= n, by Newton-Schulz iteration."""
    x = x / (jnp.linalg.norm(x, axis=(1, 2), keepdims=True) + eps)
    a, b, c = _NEWTON_SCHULZ
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def scale_by_muon(
    decay: float, eps: float, mesh: Mesh | None, parameters: Parameters
) -> optax.GradientTransformation:
    """Muon (Jordan, 2024) for kernels of layers: orthogonalised Nesterov momentum.

    Updates have an RMS of at most about 0.2, like Adam's (Liu et al., 2025, section 2.2).

    Five iterations on all layers of Base cost as many FLOPs as training it on 3,000 tokens
    (`model.flops.muon_flops`), which is more than one chip of a pod has in a batch. So whole
    matrices are distributed over the devices; `optax.contrib.muon` computes all on every device.
    """

    def init(params: Any) -> MuonState:
        return MuonState(jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, params))

    def update(grads: Any, state: MuonState, params: Any = None):
        del params
        step = state.step + 1
        momentum = jax.tree.map(lambda m, g: decay * m + (1 - decay) * g, state.momentum, grads)
        ahead = jax.tree.map(
            lambda m, g: (
                decay * m / (1 - decay ** (step + 1)) + (1 - decay) * g / (1 - decay**step)),
            momentum, grads)
        leaves, tree = jax.tree_util.tree_flatten_with_path(ahead)
        declarations = [parameters[path_names(path)] for path, _ in leaves]
        matrices = [d.to_matrices(x) for d, (_, x) in zip(declarations, leaves)]
        orthogonal = _orthogonal_updates(matrices, eps, mesh)
        updates = [d.from_matrices(x, kernel.shape)
                   for d, x, (_, kernel) in zip(declarations, orthogonal, leaves)]
        return jax.tree.unflatten(tree, updates), MuonState(step, momentum)

    return optax.GradientTransformation(init, update)


def _orthogonal_updates(
    kernels: Sequence[jax.Array], eps: float, mesh: Mesh | None
) -> list[jax.Array]:
    """The orthogonalised matrices of kernels [number, m, n], scaled by 0.2 sqrt(max(m, n)).

    Matrices of one shape are computed together, distributed over the devices.
    """
    is_tall = [x.shape[1] > x.shape[2] for x in kernels]
    wide = _transposed_where(is_tall, kernels)
    for shape in sorted({x.shape[1:] for x in wide}):
        alike = [i for i, x in enumerate(wide) if x.shape[1:] == shape]
        x, constrain = distribute(jnp.concatenate([wide[i] for i in alike]), mesh)
        x = constrain(0.2 * max(shape) ** 0.5 * _orthogonalized(x, eps))
        ends = np.cumsum([len(wide[i]) for i in alike])
        for i, part in zip(alike, jnp.split(x, ends)):
            wide[i] = part
    return _transposed_where(is_tall, wide)


def _transposed_where(which: Sequence[bool], matrices: Sequence[jax.Array]) -> list[jax.Array]:
    return [x.mT if transpose else x for x, transpose in zip(matrices, which)]


def scale_by_depth(decay: float, parameters: Iterable[Names]) -> optax.GradientTransformation:
    """Layer-wise learning rate decay, for fine-tuning.

    The last layer's updates are scaled by `decay`, those of the layer before it by `decay**2`, and
    so on down to the embeddings; the pooler's and the head's are not scaled (Howard and Ruder,
    2018; Clark et al., 2020). `parameters` are all of the model, including frozen ones.
    """
    num_layers = 1 + max(layer_of(names) or 0 for names in parameters)

    def update(updates: Any, params: Any) -> Any:
        del params

        def scaled(path: Sequence[Any], x: jax.Array) -> jax.Array:
            names = path_names(path)
            layer = layer_of(names)
            if layer is not None:
                return x * decay ** (num_layers - layer)
            if 'embeddings' in names or 'embeddings_project' in names:
                return x * decay ** (num_layers + 1)
            return x

        return jax.tree_util.tree_map_with_path(scaled, updates)

    return optax.stateless(update)


class MeanState(NamedTuple):
    """Steps done (a scalar int32), and the mean of the weights, a tree like the parameters."""

    step: jax.Array
    mean: Any


def end_with_mean(steps: int, last: int) -> optax.GradientTransformation:
    """Makes the last update lead to the mean of the weights after each of the last `steps` steps.

    So the run's last checkpoint, its evaluation and runs that start from it have averaged weights
    (Izmailov et al., 2018, and Kaddour's LAWA, 2022, also average at the end).

    Args:
      steps: how many to average, at least 1.
      last: number of steps of the whole run.
    """

    def init(params: Any) -> MeanState:
        return MeanState(jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, params))

    def update(updates: Any, state: MeanState, params: Any):
        step = state.step + 1
        count = jnp.maximum(step - (last - steps), 1)
        mean = jax.tree.map(lambda m, p, u: m + (p + u - m) / count, state.mean, params, updates)
        updates = jax.tree.map(
            lambda m, p, u: jnp.where(step == last, m - p, u), mean, params, updates)
        return updates, MeanState(step, mean)

    return optax.GradientTransformation(init, update)


OWN_OPTIMIZERS = ('bert_adamw', 'adamw', 'stable_adamw', 'lamb', 'muon')
# Optimizers of optax whose updates are not proportional to the rate or need more than gradients.
_NOT_PROPORTIONAL = ('fromage', 'lbfgs', 'noisy_sgd')
_SET_BY_CONFIG = ('learning_rate', 'weight_decay', 'mask', 'weight_decay_mask', 'weight_decay_rate')


@functools.cache
def optax_optimizers() -> Mapping[str, Mapping[str, Any]]:
    """Optimizers of optax that `optimizer.name` may name: their arguments and default values.

    Learning rate and weight decay are left out, because the config sets them.
    """
    optimizers = {}
    for name, build in vars(optax).items():
        if name in (*OWN_OPTIMIZERS, *_NOT_PROPORTIONAL) or name.startswith(('_', 'scale_by_')):
            continue
        if not (inspect.isfunction(build) or isinstance(build, functools.partial)):
            continue
        parameters = inspect.signature(build).parameters
        if 'learning_rate' in parameters:
            optimizers[name] = {
                key: parameter.default for key, parameter in parameters.items()
                if key not in _SET_BY_CONFIG}
    return optimizers


def optimizer_arguments(name: str, text: str) -> dict[str, Any]:
    """Parses `optimizer.arguments` for an optimizer of optax, such as 'b1=0.95, b2=0.98'.

    Raises:
      InputError: these are not keyword arguments, or one is unknown or of another type than its
        default, or the optimizer takes none.
    """
    field = f'config.optimizer.arguments={text!r}'
    try:
        arguments = _parse_keywords(text)
    except (SyntaxError, ValueError, TypeError, AttributeError, RecursionError):
        raise InputError(f"{field}: write them as 'b1=0.95, b2=0.98'") from None
    known = optax_optimizers().get(name, {})
    if arguments and not known:
        message = f'{field} has no effect with config.optimizer.name={name!r}'
        if name in OWN_OPTIMIZERS:
            message += ': it reads optimizer.b1, b2 and eps'
        raise InputError(message)
    for key, value in arguments.items():
        if key not in known:
            raise InputError(f'{field}: {name} has no {key!r}: {nearest(key, list(known))}')
        if not _is_like(value, known[key], key):
            raise InputError(f'{field}: {key}={value!r} cannot be, {name} has {known[key]!r}')
    return arguments


def _parse_keywords(text: str) -> dict[str, Any]:
    """Literal keyword arguments by name; raises one of several errors for anything else."""
    call: Any = ast.parse(f'f({text})', mode='eval').body
    arguments = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    if not isinstance(call.func, ast.Name) or call.args or None in arguments:
        raise ValueError('no name')
    return arguments


def _is_like(value: Any, default: Any, key: str) -> bool:
    if 'dtype' in key:
        return value in (None, 'float32', 'bfloat16')
    if value is None or isinstance(value, bool) or isinstance(default, bool):
        return default is None or type(value) is type(default)
    return (isinstance(value, (int, float)) and math.isfinite(value)
            and not callable(default) and not isinstance(default, str))


def make_optimizer(
    name: str, schedule: Schedule, parameters: Parameters, *, weight_decay: float, b1: float,
    b2: float, eps: float, layer_decay: float = 1.0, frozen: Collection[Names] = (),
    mesh: Mesh | None = None, arguments: Mapping[str, Any] | None = None,
    mean_of: tuple[int, int] = (0, 0),
) -> optax.GradientTransformation:
    """The optimizer, without clipping: the train step clips, because it reports the norm.

    Args:
      name: one of `OWN_OPTIMIZERS`: 'bert_adamw' is the original's, the others' Adam corrects its
        bias; or of `optax_optimizers`.
      schedule: learning rate by step.
      parameters: declarations (`train.step.parameters_of`).
      weight_decay: decoupled: added to the update, before the learning rate, of parameters that
        decay.
      b1, b2, eps: of Adam, for our own; optimizers of optax take `arguments` instead.
      layer_decay: see `scale_by_depth`; 1 for one rate everywhere.
      frozen: parameters that are not trained and have no moments.
      mesh: over which Muon distributes its work.
      arguments: of an optimizer of optax.
      mean_of: arguments of `end_with_mean`; 0 steps: no mean.
    """
    def where(holds: Callable[[Names], bool]) -> Callable[[Any], Any]:
        """A function from parameters to a tree of booleans: whether `holds` for their names."""
        return lambda params: jax.tree_util.tree_map_with_path(
            lambda path, _: holds(path_names(path)), params)

    if name == 'bert_adamw':
        parts = [scale_by_bert_adam(b1, b2, eps)]
    elif name == 'muon':
        # Muon for the matrices of the layers, Adam with Nesterov momentum for all else. Their
        # updates have the same scale, so one rate and one weight decay serve both.
        parts = [optax.partition(
            {True: scale_by_muon(0.95, eps, mesh, parameters),
             False: optax.scale_by_adam(b1, b2, eps, nesterov=True)},
            where(lambda names: layer_of(names) is not None and parameters[names].num_in > 0))]
    elif name in OWN_OPTIMIZERS:
        parts = [optax.scale_by_adam(b1, b2, eps)]
    else:
        parts = _scale_by_optax(name, arguments or {})
    parts.append(optax.add_decayed_weights(
        weight_decay, where(lambda names: parameters[names].decays)))
    if name == 'stable_adamw':
        parts = [clipped_by_gradient_rms(optax.chain(*parts), b2, eps)]
    elif name == 'lamb':
        parts.append(scale_by_layer_trust_ratio(parameters))
    if layer_decay != 1.0:
        parts.append(scale_by_depth(layer_decay, parameters))
    parts.append(optax.scale_by_learning_rate(schedule))
    num_averaged, num_steps = mean_of
    if num_averaged:
        parts.append(end_with_mean(num_averaged, num_steps))
    optimizer = optax.chain(*parts)
    if not frozen:
        return optimizer
    return optax.partition(
        {True: optimizer, False: optax.set_to_zero()},
        where(lambda names: names not in frozen))


def _scale_by_optax(
    name: str, arguments: Mapping[str, Any]
) -> list[optax.GradientTransformation]:
    """An optimizer of optax without its own rate and weight decay."""
    build = getattr(optax, name)
    own = {}
    if 'weight_decay' in inspect.signature(build).parameters:
        own['weight_decay'] = 0.0
    # Its updates are negative. Decay is added to what this gives, and the rate negates it again.
    return [build(learning_rate=1.0, **own, **arguments), optax.scale(-1.0)]
