"""Schedules and optimizers against their formulas, written out in NumPy."""

import dataclasses
import functools
import math
import re
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from bert_jax.config.bert_config import OPTIONS
from bert_jax.heads.classification import Classification
from bert_jax.heads.pretraining import Pretraining
from bert_jax.model.flops import muon_flops, token_flops
from bert_jax.model.layers import ModelConfig, Parameter, declared_parameters, layer_of, path_names
from bert_jax.runtime.errors import InputError
from bert_jax.sharding import make_mesh
from bert_jax.step import optimizers
from bert_jax.step.optimizers import OptimizerOptions
from bert_jax.step.schedules import ScheduleSegment, make_schedule
from bert_jax.step.step import abstract_state, parameters_of
from tests.tiny_models import assert_close, jit, random_like

B1 = 0.9
B2 = 0.999
EPS = 1e-6
WEIGHT_DECAY = 0.01
ADAM = {'weight_decay': WEIGHT_DECAY, 'b1': B1, 'b2': B2, 'eps': EPS}


def options(name, **others):
    """The options of an optimizer with the numbers above."""
    return OptimizerOptions(name, **{**ADAM, **others})


@dataclasses.dataclass
class ScheduleCase:
    """A schedule of these segments, and its rate at some steps."""

    segments: list[ScheduleSegment]
    rates: dict[int, float]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


TENTH_OF_WARMUP = ScheduleSegment(start=0, steps=100, learning_rate=1.0, warmup=10)
SCHEDULES = {
    # At the end of warm-up it jumps: 1 - 10 / 100, not 1. Past the end it stays.
    'linear': ScheduleCase(
        [TENTH_OF_WARMUP],
        {0: 0, 1: 0.1, 5: 0.5, 9: 0.9, 10: 0.9, 11: 0.89, 50: 0.5, 99: 0.01, 100: 0, 150: 0},
    ),
    'root': ScheduleCase(
        [ScheduleSegment(start=0, steps=100, learning_rate=2.0, warmup=20)],
        {0: 0, 19: 1.9, 20: 2 * 0.8**0.5, 75: 1},
        {'power': 0.5},
    ),
    'triangle': ScheduleCase(
        [ScheduleSegment(start=0, steps=100, learning_rate=1.0, warmup=50, decay_from=50)],
        {0: 0, 25: 0.5, 50: 1, 75: 0.5, 100: 0},
    ),
    'stable': ScheduleCase(
        [ScheduleSegment(start=0, steps=100, learning_rate=1.0, warmup=10, decay_from=80)],
        {5: 0.5, 10: 1, 79: 1, 80: 1, 90: 0.5, 100: 0, 150: 0},
    ),
    'constant': ScheduleCase(
        [TENTH_OF_WARMUP],
        {0: 0, 5: 0.5, 10: 1, 99: 1},
        {'power': 0.0},
    ),
    'cosine': ScheduleCase(
        [ScheduleSegment(start=0, steps=100, learning_rate=1.0, warmup=0)],
        {0: 1, 25: 0.5 + 0.5 * 2**-0.5, 50: 0.5, 100: 0},
        {'decay': 'cosine'},
    ),
    '1-sqrt': ScheduleCase(
        [ScheduleSegment(start=0, steps=100, learning_rate=1.0, warmup=10, decay_from=80)],
        {5: 0.5, 10: 1, 80: 1, 85: 0.5, 90: 1 - 0.5**0.5, 100: 0, 150: 0},
        {'decay': '1-sqrt'},
    ),
    # As the Transformer's: 1 / sqrt(step) from the end of the warm-up, and on after the last step.
    'inverse_sqrt': ScheduleCase(
        [TENTH_OF_WARMUP],
        {0: 0, 5: 0.5, 10: 1, 40: 0.5, 90: 1 / 3, 160: 0.25},
        {'decay': 'inverse_sqrt'},
    ),
    'inverse_sqrt later': ScheduleCase(
        [ScheduleSegment(start=100, steps=50, learning_rate=2.0, warmup=0, decay_from=4)],
        {100: 2, 104: 2, 116: 1, 149: 4 / 7},
        {'decay': 'inverse_sqrt'},
    ),
    'never': ScheduleCase(
        [ScheduleSegment(start=0, steps=100, learning_rate=1.0, warmup=10, decay_from=100),
         ScheduleSegment(start=100, steps=20, learning_rate=0.5, warmup=0, decay_from=0)],
        {5: 0.5, 10: 1, 99: 1, 100: 0.5, 105: 0.25, 120: 0},
        {'decay': '1-sqrt'},
    ),
    # The second segment has its own warm-up and decay.
    'two': ScheduleCase(
        [TENTH_OF_WARMUP, ScheduleSegment(start=100, steps=40, learning_rate=2.0, warmup=4)],
        {0: 0, 10: 0.9, 99: 0.01, 100: 0, 102: 1, 104: 1.8, 120: 1, 140: 0},
    ),
}


@pytest.mark.parametrize('case', SCHEDULES.values(), ids=SCHEDULES)
def test_schedules_follow_their_formulas(case):
    schedule = make_schedule(case.segments, **case.options)
    compiled = jax.jit(schedule)
    for step, rate in case.rates.items():
        assert float(schedule(step)) == pytest.approx(rate, abs=1e-6), step
        assert float(compiled(jnp.int32(step))) == pytest.approx(rate, abs=1e-6), step


@pytest.mark.extras
@pytest.mark.parametrize('decay', ['linear', 'cosine', '1-sqrt', 'inverse_sqrt'])
def test_schedules_are_those_of_transformers(decay):
    torch = pytest.importorskip('torch', reason='the extra [parity] is not installed')
    transformers = pytest.importorskip('transformers', reason='the extra [parity] is not installed')
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.5)
    segment = ScheduleSegment(start=0, steps=50, learning_rate=0.5, warmup=8, decay_from=30)
    if decay == 'inverse_sqrt':
        theirs = transformers.get_inverse_sqrt_schedule(optimizer, 8)
        segment = segment._replace(decay_from=0)
    else:
        theirs = transformers.get_wsd_schedule(
            optimizer, num_warmup_steps=8, num_stable_steps=22, num_decay_steps=20,
            decay_type=decay)
    expected = []
    for _ in range(51):
        expected += theirs.get_last_lr()
        optimizer.step()
        theirs.step()
    schedule = make_schedule([segment], decay=decay.replace('linear', 'polynomial'))
    np.testing.assert_allclose(schedule(jnp.arange(51)), expected, rtol=1e-5, atol=1e-7)


SMALL = ModelConfig(
    vocab_size=40,
    num_layers=2,
    hidden_size=8,
    num_heads=2,
    intermediate_size=12,
    max_position_embeddings=8,
)


@dataclasses.dataclass
class Model:
    """Parameters of a small model with their declarations, and three gradients."""

    parameters: dict[tuple[str, ...], Parameter]
    params: Any
    gradients: list[Any]


@pytest.fixture(scope='module')
def model():
    boxed = jax.eval_shape(Pretraining(SMALL).init, jax.random.key(0))
    params = random_like(boxed, 0)
    return Model(declared_parameters(boxed), params, random_gradients(params))


def random_gradients(params, scale=1.0):
    return [random_like(params, seed, scale) for seed in (1, 2, 3)]


def named_leaves(tree):
    """(names of its path, array) of each leaf."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(path_names(path), x) for path, x in leaves]


def leaf(tree, names):
    """The leaf or subtree at a path."""
    return functools.reduce(lambda tree, key: tree[key], names, tree)


def declared(params):
    """Declarations of other parameters: kernels are [in, out]; all but biases and scales decay."""
    parameters = {}
    for names, x in named_leaves(params):
        parameters[names] = Parameter(
            None,
            (None,) * jnp.ndim(x),
            num_in=int(names[-1] == 'kernel'),
            decays=names[-1] not in ('bias', 'output_bias', 'scale'),
        )
    return parameters


def updated(name, params, gradients, parameters=None):
    """Parameters after an update with each of the gradients, at rates 0.01, 0.02, ..."""
    optimizer = optimizers.make_optimizer(
        options(name), lambda step: 1e-2 * (step + 1.0), parameters or declared(params))
    return updated_by(optimizer, params, gradients)


def updated_by(optimizer, params, gradients):
    """Parameters after one update with each of the gradients."""
    return jax.tree.map(lambda x: x[-1], after_each_update(optimizer, params, gradients))


def after_each_update(optimizer, params, gradients):
    """Parameters after each update with a gradient, [updates, ...], by one program."""
    @jit
    def compute(params, gradients):
        def update(params_and_state, grads):
            params, state = params_and_state
            updates, state = optimizer.update(grads, state, params)
            params = jax.tree.map(jnp.add, params, updates)
            return (params, state), params

        return jax.lax.scan(update, (params, optimizer.init(params)), gradients)[1]

    stacked = jax.tree.map(lambda *x: np.stack(x), *gradients)
    return jax.device_get(compute(params, stacked))


def numpy_updated(name, weights, gradients, *, decays, trust):
    """One array after the updates of `updated`, by the formulas.

    Args:
      name: of the optimizer.
      weights: the array.
      gradients: one an update.
      decays: whether weight decay applies.
      trust: whether LAMB's trust ratio applies.
    """
    w = np.asarray(weights, np.float64)
    m = np.zeros_like(w)
    v = np.zeros_like(w)
    for step, gradient in enumerate(gradients, start=1):
        g = np.asarray(gradient, np.float64)
        m = B1 * m + (1 - B1) * g
        v = B2 * v + (1 - B2) * g * g
        if name == 'bert_adamw':  # no correction of the bias
            update = m / (np.sqrt(v) + EPS)
        else:
            update = m / (1 - B1**step) / (np.sqrt(v / (1 - B2**step)) + EPS)
        if decays:
            update = update + WEIGHT_DECAY * w  # before the rate
        if name == 'stable_adamw':
            expected = np.maximum(v / (1 - B2**step), EPS**2)
            update = update / max(1.0, np.sqrt(np.mean(g * g / expected)))
        if trust:
            update = update * np.linalg.norm(w) / np.linalg.norm(update)
        w = w - 1e-2 * step * update
    return w


@pytest.mark.parametrize('name', ['bert_adamw', 'adamw', 'stable_adamw', 'lamb'])
@pytest.mark.parametrize('scale', [1.0, 1e-6], ids=['usual', 'eps shows'])
def test_updates_follow_the_formula(name, scale):
    shapes = {
        'dense': {'kernel': np.zeros((4, 3)), 'bias': np.zeros(3)},
        'LayerNorm': {'scale': np.zeros(3), 'bias': np.zeros(3)},
        'word_embeddings': np.zeros((5, 3)),
        'output_bias': np.zeros(5),
    }
    params = random_like(shapes, 0)
    gradients = random_gradients(params, scale)
    after = updated(name, params, gradients)
    for names, weights in named_leaves(params):
        decays = names[-1] in ('kernel', 'word_embeddings')
        expected = numpy_updated(
            name,
            weights,
            [leaf(grads, names) for grads in gradients],
            decays=decays,
            trust=decays and name == 'lamb',
        )
        np.testing.assert_allclose(
            leaf(after, names), expected, rtol=2e-5, atol=1e-6, err_msg=str(names))


@pytest.mark.extras
def test_stable_adamw_is_that_of_optimi():
    torch = pytest.importorskip('torch', reason='the extra [parity] is not installed')
    optimi = pytest.importorskip('optimi', reason='the extra [parity] is not installed')
    params = random_like({'kernel': np.zeros((5, 4))}, 0)
    # The later gradients are far larger than those before: Adam's updates would be, too.
    gradients = [random_like(params, seed, scale) for seed, scale in enumerate((1, 1, 30, 1, 100))]
    optimizer = optimizers.make_optimizer(
        options('stable_adamw', weight_decay=0.1, b2=0.98), lambda step: 1e-2, declared(params))
    weights = torch.nn.Parameter(torch.tensor(np.asarray(params['kernel'])))
    theirs = optimi.StableAdamW(
        [weights], lr=1e-2, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.1, foreach=False)
    for grads in gradients:
        weights.grad = torch.tensor(np.asarray(grads['kernel']))
        theirs.step()
    found = updated_by(optimizer, params, gradients)['kernel']
    np.testing.assert_allclose(found, weights.detach().numpy(), rtol=1e-5, atol=1e-6)
    usual = optimizers.make_optimizer(
        options('adamw', weight_decay=0.1, b2=0.98), lambda step: 1e-2, declared(params))
    difference = np.abs(updated_by(usual, params, gradients)['kernel'] - found)
    assert difference.max() > 1e-3, 'no update was clipped'


def test_query_key_and_value_have_trust_ratios_of_their_own(model):
    qkv = ('bert', 'encoder', 'layer_1', 'attention', 'self', 'qkv')
    params = jax.tree.map(lambda x: x, model.params)
    before = leaf(params, qkv)
    # Slices of very different norms, so that a shared ratio would show.
    before['kernel'] = before['kernel'] * np.float32([1, 10, 100])[None, :, None, None]
    after = leaf(updated('lamb', params, model.gradients, model.parameters), qkv)
    gradients = [leaf(grads, qkv) for grads in model.gradients]
    for i in range(3):  # as if query, key and value were parameters of their own
        expected = numpy_updated(
            'lamb',
            before['kernel'][:, i],
            [grads['kernel'][:, i] for grads in gradients],
            decays=True,
            trust=True,
        )
        np.testing.assert_allclose(after['kernel'][:, i], expected, rtol=2e-5, atol=2e-6)
    bias_gradients = [grads['bias'] for grads in gradients]
    expected = numpy_updated('lamb', before['bias'], bias_gradients, decays=False, trust=False)
    np.testing.assert_allclose(after['bias'], expected, rtol=2e-5, atol=2e-6)


def test_the_last_step_leads_to_the_mean_of_the_last_weights():
    params = random_like({'kernel': np.zeros((4, 3))}, 0)
    gradients = [random_like(params, seed) for seed in range(10)]

    def kernels(**mean):
        optimizer = optimizers.make_optimizer(
            options('adamw'), lambda step: 0.1, declared(params), **mean)
        return after_each_update(optimizer, params, gradients)['kernel']

    usual = kernels()
    for steps, last in ((4, 10), (3, 3), (1, 5)):
        found = kernels(mean_of=(steps, last))
        np.testing.assert_allclose(found[: last - 1], usual[: last - 1], rtol=1e-6)
        expected = np.mean(usual[last - steps : last], axis=0)
        np.testing.assert_allclose(found[last - 1], expected, rtol=1e-5)


@dataclasses.dataclass(frozen=True)
class Cut:
    """A run of 12 steps is stopped after 6, and goes on with another end, or another mean.

    Attributes:
      before: steps of the mean that the run began with.
      after: steps of the mean that it ends with.
      last: the step that it ends at.
      instead: what is refused names the means that can be had: one of so many steps, or fewer.
    """

    before: int
    after: int
    last: int
    instead: tuple[int, int] | None = None


@pytest.mark.parametrize('cut', [
    Cut(6, 6, 12),
    Cut(6, 3, 8),  # the weights after step 6 are those that the mean had become
    Cut(6, 2, 8),
    Cut(6, 4, 8, instead=(3, 2)),
    Cut(10, 6, 8),  # the mean of 3 to 8, as it began
    Cut(10, 5, 8, instead=(6, 2)),
    Cut(10, 8, 8, instead=(6, 2)),
    Cut(10, 14, 16),
    Cut(10, 12, 16, instead=(14, 10)),
    Cut(10, 10, 16),
], ids=str)
def test_a_mean_that_is_cut_short_is_of_the_last_weights_or_refused(cut):
    params = random_like({'kernel': np.zeros((4, 3))}, 0)
    gradients = [random_like(params, seed) for seed in range(16)]

    def stepped(params, state, steps, **mean):
        """The weights after each of some steps, and the state."""
        optimizer = optimizers.make_optimizer(
            options('adamw'), lambda step: 0.1, declared(params), **mean)
        state = state or optimizer.init(params)
        weights = []
        for step in steps:
            updates, state = optimizer.update(gradients[step], state, params)
            params = optax.apply_updates(params, updates)
            weights.append(params)
        return weights, state

    recorded, _ = stepped(params, None, range(16))
    weights, state = stepped(params, None, range(6), mean_of=(cut.before, 12))
    if cut.instead:
        most, at_most = cut.instead
        with pytest.raises(InputError, match=f'average={cut.after}: .* at step 6.*average={most}, '
                                             f'or at most {at_most}, '):
            optimizers.check_mean(state, cut.after, cut.last)
        for steps in (most, at_most):
            optimizers.check_mean(state, steps, cut.last)
        return
    optimizers.check_mean(state, cut.after, cut.last)
    weights, state = stepped(
        weights[-1], state, range(6, cut.last), mean_of=(cut.after, cut.last))
    of_mean = recorded[cut.last - cut.after : cut.last]
    expected = np.mean([each['kernel'] for each in of_mean], axis=0)
    np.testing.assert_allclose(weights[-1]['kernel'], expected, rtol=1e-5)
    # The weights of the end are a mean; a run that goes on has no others.
    optimizers.check_mean(state, cut.after, cut.last)
    optimizers.check_mean(state, 4, cut.last + 4)
    with pytest.raises(InputError, match='or at most 4, '):
        optimizers.check_mean(state, 6, cut.last + 4)


@pytest.mark.parametrize('step', range(1, 13))
def test_how_many_weights_a_mean_is_of_follows_from_the_run(step):
    """A checkpoint from before the state said it is read with this."""
    optimizer = optimizers.end_with_mean(5, 12)
    weights = {'x': np.ones(2, np.float32)}
    state = optimizer.init(weights)
    for _ in range(step):
        _, state = optimizer.update({'x': np.zeros(2, np.float32)}, state, weights)
    assert optimizers.num_averaged_by(step, 5, 12) == state.num_averaged


@pytest.mark.parametrize('weight, gradient', [
    pytest.param(0.0, 1.0, id='zero weights'),
    pytest.param(1.0, 0.0, id='zero gradient'),
])
def test_lamb_with_a_zero_norm_stays_finite(weight, gradient):
    params = {'kernel': jnp.full((2, 2), weight)}
    grads = {'kernel': jnp.full((2, 2), gradient)}
    after = updated('lamb', params, [grads])['kernel']
    assert jnp.isfinite(after).all()
    assert (after != params['kernel']).all()


@pytest.mark.parametrize('name, arguments', [
    ('lion', {'b1': 0.95, 'b2': 0.98}),
    ('nadamw', {'b1': 0.8}),
    ('adan', {}),
])
def test_an_optax_optimizer_is_unchanged_but_for_which_parameters_decay(name, arguments):
    params = random_like({'kernel': np.zeros((4, 3)), 'LayerNorm': {'scale': np.zeros(3)}}, 0)
    gradients = random_gradients(params)
    schedule = make_schedule([ScheduleSegment(0, 10, 1e-2, 2)])
    text = ', '.join(f'{key}={value}' for key, value in arguments.items())
    ours = optimizers.make_optimizer(options(name, arguments=text), schedule, declared(params))
    decays = {'kernel': True, 'LayerNorm': {'scale': False}}
    theirs = getattr(optax, name)(schedule, weight_decay=0.01, mask=decays, **arguments)
    found = updated_by(ours, params, gradients)
    expected = updated_by(theirs, params, gradients)
    assert_close(found, expected, rtol=1e-6, atol=1e-8)
    moved = [(x != leaf(params, names)).any() for names, x in named_leaves(found)]
    assert any(moved)


# A user may name an optimizer that optax is about to drop.
every_optax_optimizer = pytest.mark.parametrize('name', optimizers.optax_optimizers())
may_be_deprecated = pytest.mark.filterwarnings('ignore:.optimistic_adam. is deprecated')


LARGE_ENOUGH_TO_SPLIT = ModelConfig(
    vocab_size=64,
    num_layers=1,
    hidden_size=256,
    num_heads=2,
    intermediate_size=256,
    max_position_embeddings=8,
)


@pytest.fixture(scope='module')
def parameters_to_split():
    return parameters_of(Pretraining(LARGE_ENOUGH_TO_SPLIT))


@may_be_deprecated
@every_optax_optimizer
def test_the_state_of_every_optimizer_of_optax_fits_a_mesh(name, parameters_to_split):
    head = Pretraining(LARGE_ENOUGH_TO_SPLIT)
    optimizer = optimizers.make_optimizer(options(name), lambda step: 1.0, parameters_to_split)
    state = abstract_state(head, optimizer, make_mesh(2, 2, 2))
    for x in jax.tree.leaves(state):
        x.sharding.shard_shape(x.shape)  # raises if a dim cannot be split like this
    after = jax.eval_shape(optimizer.update, state.params, state.opt_state, state.params)
    assert jax.tree.structure(after) == jax.tree.structure((state.params, state.opt_state))


@may_be_deprecated
@every_optax_optimizer
def test_updates_of_every_optimizer_of_optax_are_proportional_to_the_rate(name):
    params = {'kernel': np.linspace(0.1, 1, 12, dtype=np.float32).reshape(3, 4),
              'bias': np.ones(3, np.float32)}
    gradients = {name: np.stack([np.sin(x * step) for step in (1, 2, 3)])
                 for name, x in params.items()}

    def third_updates(rate, params, gradients):
        schedule = optax.constant_schedule(rate)
        optimizer = optimizers.make_optimizer(options(name), schedule, declared(params))

        def update(moments, grads):
            updates, moments = optimizer.update(grads, moments, params)
            return moments, updates

        _, updates = jax.lax.scan(update, optimizer.init(params), gradients)
        return jax.tree.map(lambda x: x[-1], updates)

    of_rates = jax.device_get(jit(jax.vmap(third_updates, in_axes=(0, None, None)))(
        np.array([0.5, 1.0], np.float32), params, gradients))
    half = jax.tree.map(lambda x: x[0], of_rates)
    whole = jax.tree.map(lambda x: x[1], of_rates)
    assert_close(jax.tree.map(lambda x: 2 * x, half), whole, rtol=1e-5)
    assert_finite_and_not_zero(half)
    assert_finite_and_not_zero(whole)


def assert_finite_and_not_zero(updates, optimizer=''):
    for names, x in named_leaves(updates):
        assert np.isfinite(x).all(), (optimizer, names)
        assert x.any(), (optimizer, names)


@pytest.mark.parametrize('name, text, words', [
    ('lion', 'weight_decay=0.5', "lion has no 'weight_decay'"),
    ('lion', 'b1="high"', 'cannot be'),
    ('lion', 'b1=1e999', 'cannot be'),
    ('nadamw', 'nesterov=1', 'cannot be'),
    ('lion', '0.9', 'write them as'),
    ('lion', 'b1=1)(', 'write them as'),
    ('adamw', 'b1=0.5', 'it reads optimizer.b1'),
])
def test_arguments_that_an_optimizer_does_not_have_are_refused(name, text, words):
    with pytest.raises(InputError, match=re.escape(words)):
        optimizers.optimizer_arguments(name, text)


def test_arguments_of_an_optimizer_are_read():
    found = optimizers.optimizer_arguments('lion', ' b1=0.95,mu_dtype="bfloat16", ')
    assert found == {'b1': 0.95, 'mu_dtype': 'bfloat16'}


FROZEN = 'embeddings|layer_0/'
optimizers_that_freeze = pytest.mark.parametrize('name', [*optimizers.OWN_OPTIMIZERS, 'lion'])


def freezing(name, model):
    """(the optimizer of this name that leaves out frozen parameters, their names)."""
    frozen = optimizers.frozen_parameters(FROZEN, model.parameters)
    optimizer = optimizers.make_optimizer(
        options(name, layer_decay=0.9), lambda step: 0.1, model.parameters, frozen=frozen)
    return optimizer, frozen


@pytest.fixture(scope='module')
def part_of_model(model):
    """The word table, and a kernel and a bias of each layer: others are treated like these."""
    dense = ('intermediate', 'dense')
    kept = [('bert', 'embeddings', 'word_embeddings'), *(
        ('bert', 'encoder', layer, *dense, name)
        for layer in ('layer_0', 'layer_1') for name in ('kernel', 'bias'))]

    def part(tree):
        return flax.traverse_util.unflatten_dict({names: leaf(tree, names) for names in kept})

    return Model({names: model.parameters[names] for names in kept}, part(model.params),
                 list(map(part, model.gradients)))


@optimizers_that_freeze
def test_frozen_parameters_stay_bit_for_bit_and_others_do_not(name, part_of_model):
    optimizer, frozen = freezing(name, part_of_model)
    after = updated_by(optimizer, part_of_model.params, part_of_model.gradients)
    for names, x in named_leaves(part_of_model.params):
        is_frozen = 'embeddings' in names or 'layer_0' in names
        assert (names in frozen) == is_frozen, names
        assert (leaf(after, names) == x).all() == is_frozen, names


@optimizers_that_freeze
def test_frozen_parameters_have_no_moments(name, model):
    optimizer, frozen = freezing(name, model)
    moments = named_leaves(jax.eval_shape(optimizer.init, model.params))
    with_moments = {
        parameter for parameter in model.parameters for names, _ in moments
        if names[-len(parameter):] == parameter}
    assert with_moments == set(model.parameters) - frozen


@pytest.mark.parametrize('pattern, words', [
    ('layer_[', 'valid regular'),
    ('layer_7', 'in no '),
    ('.', 'in every '),
])
def test_a_pattern_that_freezes_nothing_or_everything_is_refused(pattern, words, model):
    with pytest.raises(InputError, match=words):
        optimizers.frozen_parameters(pattern, model.parameters)
    with pytest.raises(InputError, match='^Own.frozen='):
        optimizers.frozen_parameters(pattern, model.parameters, 'Own.frozen')


def orthogonalized(x):
    """Five Newton-Schulz iterations on a matrix with Jordan's coefficients, by the formula."""
    x = x / np.linalg.norm(x)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


@dataclasses.dataclass
class Move:
    """A parameter's gradient, and its update without rate and weight decay."""

    gradient: np.ndarray
    update: np.ndarray


@pytest.fixture(scope='module')
def muon_move():
    """A function from a parameter's names to its `Move` by one step of Muon."""
    boxed = jax.eval_shape(Pretraining(SMALL).init, jax.random.key(0))
    params = random_like(boxed, 0)
    grads = random_like(params, 1)
    after = updated('muon', params, [grads], declared_parameters(boxed))

    def move(*names):
        weights = leaf(params, names)
        decay = 0.0 if names[-1] == 'bias' else WEIGHT_DECAY
        update = (weights - leaf(after, names)) / 1e-2 - decay * weights
        return Move(np.asarray(leaf(grads, names), np.float64), np.asarray(update, np.float64))

    return move


LAYER = ('bert', 'encoder', 'layer_1')


def test_muon_orthogonalizes_an_oblong_matrix(muon_move):
    move = muon_move(*LAYER, 'intermediate', 'dense', 'kernel')
    expected = 0.2 * np.sqrt(12) * orthogonalized(move.gradient)
    np.testing.assert_allclose(move.update, expected, atol=1e-3)


def test_muon_orthogonalizes_the_output_of_all_heads_as_one_matrix(muon_move):
    move = muon_move(*LAYER, 'attention', 'output', 'dense', 'kernel')  # [heads, head_dim, hidden]
    expected = 0.2 * np.sqrt(8) * orthogonalized(move.gradient.reshape(8, 8))
    np.testing.assert_allclose(move.update.reshape(8, 8), expected, atol=1e-3)


@pytest.mark.parametrize('index', [0, 1, 2], ids=['query', 'key', 'value'])
def test_muon_orthogonalizes_query_key_and_value_each_alone(muon_move, index):
    move = muon_move(*LAYER, 'attention', 'self', 'qkv', 'kernel')
    gradient = move.gradient[:, index].reshape(8, 8)
    update = move.update[:, index].reshape(8, 8)
    np.testing.assert_allclose(update, 0.2 * np.sqrt(8) * orthogonalized(gradient), atol=1e-3)


@pytest.mark.parametrize('names', [
    (*LAYER, 'output', 'dense', 'bias'),
    ('bert', 'embeddings', 'word_embeddings'),
    ('bert', 'pooler', 'dense', 'kernel'),
], ids='/'.join)
def test_muon_updates_by_adam_what_is_no_matrix_of_a_layer(muon_move, names):
    move = muon_move(*names)
    # Nesterov's momentum at the first step.
    momentum = (0.9 * 0.1 / (1 - 0.9**2) + 1) * move.gradient
    expected = momentum / (np.abs(move.gradient) + 1e-6)
    np.testing.assert_allclose(move.update, expected, atol=1e-3)


@pytest.mark.parametrize('shape, num_in, num_separate', [
    pytest.param((5, 3), 1, 0, id='dense'),
    pytest.param((2, 4, 3), 2, 0, id='two dims in'),
    pytest.param((4, 2, 6), 1, 1, id='gated'),
    pytest.param((5, 3, 2, 4), 1, 1, id='query, key and value'),
])
def test_a_kernel_s_declared_matrices_are_those_that_a_product_uses(shape, num_in, num_separate):
    """A gated layer's array holds two matrices, as that of query, key and value holds three."""
    parameter = Parameter(
        None, (None,) * len(shape), num_in=num_in, num_separate=num_separate)
    x = random_like(np.zeros(shape), 0)
    matrices = parameter.to_matrices(x)
    np.testing.assert_array_equal(parameter.from_matrices(matrices, shape), x)
    product = np.tensordot(np.ones(shape[:num_in]), x, num_in)
    products = np.ones(matrices.shape[1]) @ matrices
    np.testing.assert_allclose(products, product.reshape(-1, matrices.shape[2]), rtol=1e-5)


def depth_factor(name):
    """The factor of a parameter's rate where each layer halves it, counted from the head."""
    if 'layer_1' in name:
        return 0.5
    if 'layer_0' in name:
        return 0.25
    if 'embeddings/' in name:
        return 0.125
    return 1.0


def test_rates_fall_with_the_distance_from_the_head(model):
    def updates(layer_decay):
        optimizer = optimizers.make_optimizer(
            options('adamw', layer_decay=layer_decay), lambda step: 1.0, model.parameters)
        update = jit(lambda grads, params: optimizer.update(grads, optimizer.init(params), params))
        return jax.device_get(update(model.gradients[0], model.params)[0])

    whole = updates(layer_decay=1.0)
    for names, part in named_leaves(updates(layer_decay=0.5)):
        name = '/'.join(names)
        ratios = np.round(np.asarray(part / leaf(whole, names)), 5)
        assert np.unique(ratios).tolist() == [depth_factor(name)], name


def test_the_layer_weights_of_a_tagger_belong_to_no_layer():
    params = {
        'bert': {'encoder': {'layer_0': {'bias': jnp.ones(2)}}},
        'features': {'layer_weights': jnp.ones(2)},
    }
    scale = optimizers.scale_by_depth(0.5, [('encoder', 'layer_0'), ('encoder', 'layer_1')])
    moved, _ = scale.update(params, None)
    assert moved['features']['layer_weights'].tolist() == [1, 1]
    assert moved['bert']['encoder']['layer_0']['bias'].tolist() == [0.25, 0.25]


DISTRIBUTED = ModelConfig(
    vocab_size=64,
    num_layers=2,
    hidden_size=64,
    num_heads=8,
    intermediate_size=256,
    max_position_embeddings=16,
)


def make_muon(mesh):
    """Muon for the model DISTRIBUTED, with its work distributed over a mesh if there is one."""
    schedule = make_schedule([ScheduleSegment(0, 10, 1.0, 0)])
    parameters = parameters_of(Pretraining(DISTRIBUTED))
    return optimizers.make_optimizer(options('muon'), schedule, parameters, mesh=mesh)


@dataclasses.dataclass
class DistributedMuon:
    """The update of Muon, compiled for the devices of a mesh."""

    num_devices: int
    params: Any  # abstract, with shardings
    moments: Any
    update: jax.stages.Compiled


@pytest.fixture(
    scope='module', params=[(4, 1, 1), (2, 2, 1), (1, 1, 4)], ids=str)
def distributed_muon(request):
    num_devices = math.prod(request.param)
    mesh = make_mesh(*request.param, jax.devices()[:num_devices])
    optimizer = make_muon(mesh)
    state = abstract_state(Pretraining(DISTRIBUTED), optimizer, mesh)
    shardings = jax.tree.map(lambda x: x.sharding, (state.params, state.opt_state))
    update = jit(optimizer.update, out_shardings=shardings)
    compiled = update.lower(state.params, state.opt_state, state.params).compile()
    return DistributedMuon(num_devices, state.params, state.opt_state, compiled)


def test_muon_distributes_its_matrices_over_the_devices(distributed_muon):
    """Of four devices, each has two of the 8 square matrices and one of the 4 oblong ones."""
    share = distributed_muon.update.cost_analysis()['flops'] / muon_flops(DISTRIBUTED)
    # Elementwise work comes on top.
    assert 1 < share * distributed_muon.num_devices < 1.2


@dataclasses.dataclass
class Step:
    """Gradients, parameters and moments, and the (updates, moments) after a step with them."""

    grads: Any
    params: Any
    moments: Any
    after: Any


@pytest.fixture(scope='module')
def undistributed_step():
    params = random_like(jax.eval_shape(Pretraining(DISTRIBUTED).init, jax.random.key(0)), 0)
    grads = random_like(params, 1)
    muon = make_muon(mesh=None)
    moments = jit(muon.init)(params)
    return Step(grads, params, moments, jit(muon.update)(grads, moments, params))


def put_like(tree, abstract):
    """The arrays of a tree with the shardings of an abstract one."""
    return jax.tree.map(lambda x, like: jax.device_put(x, like.sharding), tree, abstract)


def test_muon_distributed_over_devices_computes_the_same(distributed_muon, undistributed_step):
    found = distributed_muon.update(
        put_like(undistributed_step.grads, distributed_muon.params),
        put_like(undistributed_step.moments, distributed_muon.moments),
        put_like(undistributed_step.params, distributed_muon.params),
    )
    assert_close(found, undistributed_step.after, atol=2e-4)


def other_values():
    """For each option that says which parameters there are, the first value but its default.

    Of those with a list of values.
    """
    others = {}
    for option in OPTIONS:
        if option.effect == 'shape' and isinstance(option.allowed, tuple):
            others[option.name] = next(x for x in option.allowed if x != option.default)
    return others


OTHER_VALUES = other_values()


@dataclasses.dataclass
class OptionModel:
    """A small model with one option changed; its parameters are shapes."""

    config: ModelConfig
    parameters: dict[tuple[str, ...], Parameter]
    shapes: Any


@functools.cache
def make_option_model(option):
    """The small model with another value of this option; of '', the model itself."""
    changes = {option: OTHER_VALUES[option]} if option else {}
    config = dataclasses.replace(SMALL, **changes)
    head = Classification(config, 3) if option == 'bilstm' else Pretraining(config)
    boxed = jax.eval_shape(head.init, jax.random.key(0))
    return OptionModel(config, declared_parameters(boxed), nn.meta.unbox(boxed))


@pytest.fixture(scope='module', params=['', *OTHER_VALUES])
def option(request):
    return request.param


@pytest.fixture(scope='module')
def option_model(option):
    return make_option_model(option)


def is_matrix_of_layer(names, x):
    return layer_of(names) is not None and x.ndim > 1 and names[-1] != 'bias'


def test_every_matrix_of_a_layer_declares_its_dims_and_decays(option_model):
    for names, x in named_leaves(option_model.shapes):
        if is_matrix_of_layer(names, x):
            assert option_model.parameters[names].num_in, names
            assert option_model.parameters[names].decays, names


def test_a_token_costs_a_multiply_add_for_each_weight_of_the_layers(option_model):
    config = option_model.config
    weights = 0
    for names, x in named_leaves(option_model.shapes):
        if is_matrix_of_layer(names, x):
            weights += x.size
    weights *= config.num_layers // config.num_distinct_layers  # as often as they are read
    assert token_flops(config, 0) == 2 * weights


def test_kernels_and_embeddings_decay_and_nothing_else_does(option_model):
    for names, _ in named_leaves(option_model.shapes):
        if 'lstm' not in str(names):
            is_weight = names[-1] == 'kernel' or names[-1].endswith('_embeddings')
            assert option_model.parameters[names].decays == is_weight, names


def own_parameters(option):
    """Parameters that only a model with this option has, as a flat tree; of '', all.

    The second layer has those of the first.
    """
    found = make_option_model(option)
    usual = make_option_model('').parameters if option else {}
    own = {}
    for names, x in named_leaves(found.shapes):
        if 'layer_1' not in names and usual.get(names) != found.parameters[names]:
            own[names] = x
    return own


@functools.cache
def parameters_of_options():
    """(shapes, declarations) of all that `own_parameters` tells, under the option's name."""
    shapes = {}
    parameters = {}
    for option in ('', *OTHER_VALUES):
        for names, x in own_parameters(option).items():
            path = (option or 'usual', *names)
            shapes[path] = x
            parameters[path] = make_option_model(option).parameters[names]
    return shapes, parameters


@pytest.mark.parametrize('name', [*optimizers.OWN_OPTIMIZERS, 'lion'])
def test_every_optimizer_moves_every_parameter_of_every_model_option(name):
    shapes, parameters = parameters_of_options()
    params = flax.traverse_util.unflatten_dict(random_like(shapes, 0))
    grads = random_like(params, 1)
    optimizer = optimizers.make_optimizer(options(name), lambda step: 0.1, parameters)
    updates = jit(lambda: optimizer.update(grads, optimizer.init(params), params)[0])()
    assert_finite_and_not_zero(jax.device_get(updates), name)
