"""Optimizers: BERT's Adam, AdamW, StableAdamW, LAMB, Muon, and those of optax.

How an optimizer treats a parameter depends on its declaration (`model.layers.Parameter`).
"""

import ast
import collections
import dataclasses
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

from bert_jax.config.adapters import AdapterOptions
from bert_jax.config.fields import FIELDS
from bert_jax.model.flops import muon_flops
from bert_jax.model.layers import ModelConfig, Names, Parameter, layer_of, path_names
from bert_jax.runtime.errors import InputError, nearest
from bert_jax.runtime.schema import why_not_allowed
from bert_jax.sharding import distribute
from bert_jax.step.schedules import Schedule
from bert_jax.weights.adapters import is_of_adapter
from bert_jax.weights.parameters import ENCODER

Parameters = Mapping[Names, Parameter]  # see `model.layers.declared_parameters`


def frozen_parameters(
    pattern: str, parameters: Parameters, field: str = 'config.optimizer.frozen'
) -> set[Names]:
    """The parameters whose names a pattern matches; '' matches none.

    Args:
      pattern: a regular expression.
      parameters: of the model.
      field: where the pattern is from, for messages.

    Raises:
      InputError: it is not a regular expression, or it matches no parameter, or all of them.
    """
    if not pattern:
        return set()
    named = {'/'.join(names): names for names in parameters}
    try:
        found = {names for name, names in named.items() if re.search(pattern, name)}
    except re.error as error:
        raise InputError(f'{field}={pattern!r} is not a valid regular expression: '
                         f'{error}') from None
    if not 0 < len(found) < len(named):
        which = 'every' if found else 'no'
        some = ', '.join(list(named)[:8])
        raise InputError(f"{field}={pattern!r} is in {which} parameter's name; "
                         f'there are {some}, ...')
    return found


def frozen_beside(adapter: AdapterOptions, parameters: Parameters) -> set[Names]:
    """The encoder's parameters that stay frozen while an adapter is trained; empty without one.

    Raises:
      InputError: the model has no biases, and these are the adapter.
    """
    if not adapter.is_on:
        return set()
    of_encoder = {names for names in parameters if '/'.join(names).startswith(ENCODER)}
    trained = {names for names in of_encoder if is_of_adapter('/'.join(names))}
    if adapter.kind == 'bitfit':
        trained = {names for names in of_encoder if names[-1] == 'bias'}
    if not trained:
        raise InputError("config.adapter.kind='bitfit' trains biases, and this model has none "
                         'in its encoder: take another kind, with a rank')
    return of_encoder - trained


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
    places_of_shape: dict[tuple[int, ...], list[int]] = collections.defaultdict(list)
    for i, matrices in enumerate(wide):
        places_of_shape[matrices.shape[1:]].append(i)
    for shape in sorted(places_of_shape):
        places = places_of_shape[shape]
        alike = [wide[i] for i in places]
        x, constrain = distribute(jnp.concatenate(alike), mesh)
        x = constrain(0.2 * max(shape) ** 0.5 * _orthogonalized(x, eps))
        ends = np.cumsum(list(map(len, alike)))  # behind the last is what `distribute` added
        for i, part in zip(places, jnp.split(x, ends)):
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
    """Steps done, and the mean of the weights after the last `num_averaged` of them.

    `step` and `num_averaged` are scalars (int32), `mean` is a tree like the parameters.
    """

    step: jax.Array
    num_averaged: jax.Array
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
        zero = jnp.zeros((), jnp.int32)
        return MeanState(zero, zero, jax.tree.map(jnp.zeros_like, params))

    def update(updates: Any, state: MeanState, params: Any):
        step = state.step + 1
        count = jnp.where(step > last - steps + 1, state.num_averaged + 1, 1)
        mean = jax.tree.map(lambda m, p, u: m + (p + u - m) / count, state.mean, params, updates)
        updates = jax.tree.map(
            lambda m, p, u: jnp.where(step == last, m - p, u), mean, params, updates)
        # After the last update the mean is the weights themselves, should the run go on.
        return updates, MeanState(step, jnp.where(step == last, 1, count), mean)

    return optax.GradientTransformation(init, update)


def num_averaged_by(step: int, steps: int, last: int) -> int:
    """How many steps' weights `MeanState.mean` averages after a step."""
    return max(1, step - (last - steps)) if step < last else 1


def check_mean(opt_state: Any, steps: int, last: int) -> None:
    """Checks that a run can go on to the mean of `end_with_mean(steps, last)`.

    A state saved for another last step, or another length of the mean, averages other steps. Before
    the mean begins, that does no harm.

    Raises:
      InputError: the mean would be of other weights; these are gone.
    """
    states = jax.tree.leaves(opt_state, is_leaf=lambda x: isinstance(x, MeanState))
    for state in states:
        if not isinstance(state, MeanState):
            continue
        done = int(state.step)
        first = done - int(state.num_averaged) + 1
        wanted = last - steps + 1
        if done < last and wanted <= done and wanted != first:
            raise InputError(
                f'config.optimizer.average={steps}: the mean of steps {wanted:,} to {last:,} '
                f'cannot be had any more: the run is at step {done:,}, and its mean begins at '
                f'step {first:,}: write --config.optimizer.average={last - first + 1}, or at most '
                f'{last - done}, or give another --workdir')


@dataclasses.dataclass(frozen=True)
class Trained:
    """What an optimizer updates.

    Attributes:
      parameters: their declarations (`step.step.parameters_of`).
      weight_decay: the part that adds their decay to the updates of parameters that decay.
      mesh: the devices, over which it may distribute its work; None: it does not.
    """

    parameters: Parameters
    weight_decay: optax.GradientTransformation
    mesh: Mesh | None


def _negligible(model: ModelConfig) -> float:
    """FLOPs of an update that does a few operations for each parameter."""
    del model
    return 0.0


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """What follows from the name of an optimizer.

    Attributes:
      build: makes its parts, in order, from a `Trained` and keyword arguments: its `fields` and
        its `settings`. The weight decay is one of the parts, the learning rate is not.
      fields: which of `optimizer.b1`, `b2` and `eps` it reads.
      settings: its other hyperparameters, which `optimizer.arguments` sets, with their defaults.
      flops: FLOPs of its update in a step of a model.
    """

    build: Callable[..., list[optax.GradientTransformation]]
    fields: tuple[str, ...] = ('b1', 'b2', 'eps')
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    flops: Callable[[ModelConfig], float] = _negligible


def _where(holds: Callable[[Names], bool]) -> Callable[[Any], Any]:
    """A function from parameters to a tree of booleans: whether `holds` for their names."""
    return lambda params: jax.tree_util.tree_map_with_path(
        lambda path, _: holds(path_names(path)), params)


def _bert_adamw(
    trained: Trained, b1: float, b2: float, eps: float
) -> list[optax.GradientTransformation]:
    """The original's: its Adam does not correct the bias."""
    return [scale_by_bert_adam(b1, b2, eps), trained.weight_decay]


def _adamw(
    trained: Trained, b1: float, b2: float, eps: float
) -> list[optax.GradientTransformation]:
    return [optax.scale_by_adam(b1, b2, eps), trained.weight_decay]


def _stable_adamw(
    trained: Trained, b1: float, b2: float, eps: float
) -> list[optax.GradientTransformation]:
    adamw = optax.chain(*_adamw(trained, b1, b2, eps))
    return [clipped_by_gradient_rms(adamw, b2, eps)]


def _lamb(
    trained: Trained, b1: float, b2: float, eps: float
) -> list[optax.GradientTransformation]:
    return [*_adamw(trained, b1, b2, eps), scale_by_layer_trust_ratio(trained.parameters)]


def _muon(
    trained: Trained, b1: float, b2: float, eps: float, momentum: float
) -> list[optax.GradientTransformation]:
    """Muon for the matrices of the layers, Adam with Nesterov momentum for all else.

    Their updates have the same scale, so one rate and one weight decay serve both.
    """
    def is_matrix(names: Names) -> bool:
        return layer_of(names) is not None and trained.parameters[names].num_in > 0

    both = optax.partition(
        {True: scale_by_muon(momentum, eps, trained.mesh, trained.parameters),
         False: optax.scale_by_adam(b1, b2, eps, nesterov=True)},
        _where(is_matrix))
    return [both, trained.weight_decay]


# The optimizers that are written here, by their names in `optimizer.name`.
OWN_OPTIMIZERS: dict[str, Optimizer] = {
    'bert_adamw': Optimizer(_bert_adamw),
    'adamw': Optimizer(_adamw),
    'stable_adamw': Optimizer(_stable_adamw),
    'lamb': Optimizer(_lamb),
    'muon': Optimizer(_muon, settings={'momentum': 0.95}, flops=muon_flops),
}
# Optimizers of optax whose updates are not proportional to the rate or need more than gradients.
_NOT_PROPORTIONAL = ('fromage', 'lbfgs', 'noisy_sgd')
_SET_BY_CONFIG = ('learning_rate', 'weight_decay', 'mask', 'weight_decay_mask', 'weight_decay_rate')


@functools.cache
def optax_optimizers() -> Mapping[str, Optimizer]:
    """Optimizers of optax that `optimizer.name` may name.

    Their settings are their arguments but for learning rate and weight decay, which the config
    sets.
    """
    optimizers = {}
    for name, make in vars(optax).items():
        if name in (*OWN_OPTIMIZERS, *_NOT_PROPORTIONAL) or name.startswith(('_', 'scale_by_')):
            continue
        if not (inspect.isfunction(make) or isinstance(make, functools.partial)):
            continue
        parameters = inspect.signature(make).parameters
        if 'learning_rate' in parameters:
            settings = {
                key: parameter.default for key, parameter in parameters.items()
                if key not in _SET_BY_CONFIG}
            optimizers[name] = Optimizer(
                functools.partial(_of_optax, make), fields=(), settings=settings)
    return optimizers


def _of_optax(
    make: Callable[..., optax.GradientTransformation], trained: Trained, **settings: Any
) -> list[optax.GradientTransformation]:
    """An optimizer of optax without its own rate and weight decay."""
    own = {}
    if 'weight_decay' in inspect.signature(make).parameters:
        own['weight_decay'] = 0.0
    # Its updates are negative. Decay is added to what this gives, and the rate negates it again.
    return [
        make(learning_rate=1.0, **own, **settings), optax.scale(-1.0), trained.weight_decay]


def update_flops(name: str, model: ModelConfig) -> float:
    """FLOPs of an optimizer's update in a step; 0 for one that this version does not have."""
    if name not in OWN_OPTIMIZERS:
        return 0.0
    return OWN_OPTIMIZERS[name].flops(model)


def optimizer_arguments(name: str, text: str) -> dict[str, Any]:
    """Parses `optimizer.arguments`, such as 'b1=0.95, b2=0.98'.

    Args:
      name: of the optimizer, one that there is.
      text: some of its `settings`.

    Raises:
      InputError: these are not keyword arguments, or one is unknown or of another type than its
        default, or the optimizer takes none.
    """
    field = f'config.optimizer.arguments={text!r}'
    try:
        arguments = _parse_keywords(text)
    except (SyntaxError, ValueError, TypeError, AttributeError, RecursionError):
        raise InputError(f"{field}: write them as 'b1=0.95, b2=0.98'") from None
    optimizer = _named(name)
    known = optimizer.settings
    has_fields = any(key in optimizer.fields for key in arguments)
    if has_fields or arguments and not known:
        message = f'{field} has no effect with config.optimizer.name={name!r}'
        if optimizer.fields:
            message += f': it reads optimizer.{_listed(optimizer.fields)}'
        raise InputError(message)
    for key, value in arguments.items():
        if key not in known:
            raise InputError(f'{field}: {name} has no {key!r}: {nearest(key, list(known))}')
        if not _is_like(value, known[key], key):
            raise InputError(f'{field}: {key}={value!r} cannot be, {name} has {known[key]!r}')
    return arguments


def _named(name: str) -> Optimizer:
    """The optimizer of a name that `OptimizerOptions` allows."""
    if name in OWN_OPTIMIZERS:
        return OWN_OPTIMIZERS[name]
    return optax_optimizers()[name]


def _listed(names: Sequence[str]) -> str:
    """Names as 'b1, b2 and eps'."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


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


@dataclasses.dataclass(frozen=True)
class OptimizerOptions:
    """Options of an optimizer, named as the fields of `config.optimizer`.

    Attributes:
      name: of `OWN_OPTIMIZERS` or `optax_optimizers`.
      arguments: its settings, see `optimizer_arguments`.
      weight_decay: decoupled: added to the update, before the learning rate, of parameters that
        decay.
      b1, b2, eps: of Adam, for those that read them.
      layer_decay: see `scale_by_depth`; 1 for one rate everywhere.
    """

    name: str = FIELDS['optimizer.name'].default
    arguments: str = FIELDS['optimizer.arguments'].default
    weight_decay: float = FIELDS['optimizer.weight_decay'].default
    b1: float = FIELDS['optimizer.b1'].default
    b2: float = FIELDS['optimizer.b2'].default
    eps: float = FIELDS['optimizer.eps'].default
    layer_decay: float = FIELDS['optimizer.layer_decay'].default

    def __post_init__(self) -> None:
        """Raises InputError: there is no such optimizer, or it does not read what is set."""
        why = why_not_allowed(self.name, (*OWN_OPTIMIZERS, *optax_optimizers()))
        if why:
            raise InputError(f'config.optimizer.name={self.name!r} {why}')
        optimizer_arguments(self.name, self.arguments)
        for key in ('b1', 'b2', 'eps'):
            value = getattr(self, key)
            is_read = key in _named(self.name).fields
            if not is_read and value != FIELDS[f'optimizer.{key}'].default:
                raise InputError(
                    f'config.optimizer.{key}={value} has no effect with '
                    f'config.optimizer.name={self.name!r}: set optimizer.arguments instead')


def make_optimizer(
    options: OptimizerOptions, schedule: Schedule, parameters: Parameters, *,
    frozen: Collection[Names] = (), mesh: Mesh | None = None, mean_of: tuple[int, int] = (0, 0),
) -> optax.GradientTransformation:
    """The optimizer, without clipping: the train step clips, because it reports the norm.

    Args:
      options: which one, and its hyperparameters.
      schedule: learning rate by step.
      parameters: declarations (`step.step.parameters_of`).
      frozen: parameters that are not trained and have no moments.
      mesh: over which Muon distributes its work.
      mean_of: arguments of `end_with_mean`; 0 steps: no mean.
    """
    chosen = _named(options.name)
    weight_decay = optax.add_decayed_weights(
        options.weight_decay, _where(lambda names: parameters[names].decays))
    fields = {name: getattr(options, name) for name in chosen.fields}
    settings = {**chosen.settings, **optimizer_arguments(options.name, options.arguments)}
    parts = chosen.build(Trained(parameters, weight_decay, mesh), **fields, **settings)
    if options.layer_decay != 1.0:
        parts.append(scale_by_depth(options.layer_decay, parameters))
    parts.append(optax.scale_by_learning_rate(schedule))
    num_averaged, num_steps = mean_of
    if num_averaged:
        parts.append(end_with_mean(num_averaged, num_steps))
    optimizer = optax.chain(*parts)
    if not frozen:
        return optimizer
    return optax.partition(
        {True: optimizer, False: optax.set_to_zero()},
        _where(lambda names: names not in frozen))
