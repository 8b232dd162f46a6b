"""Schedules and optimizers against their formulas, written out in NumPy."""

import dataclasses
import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

from bert_jax.config.bert_config import OPTIONS
from bert_jax.heads.classification import Classification
from bert_jax.heads.pretraining import Pretraining
from bert_jax.model.encoder import layer_of
from bert_jax.model.flops import muon_flops, token_flops
from bert_jax.model.layers import ModelConfig, Parameter, declared_parameters, path_names
from bert_jax.runtime.errors import InputError
from bert_jax.sharding import make_mesh
from bert_jax.train import optimizers
from bert_jax.train.step import abstract_state, parameters_of
from tests.tiny_models import jit, random_like

pytestmark = pytest.mark.slow

ScheduleSegment = optimizers.ScheduleSegment
ADAM = {'weight_decay': 0.01, 'b1': 0.9, 'b2': 0.999, 'eps': 1e-6}
ONE = [ScheduleSegment(0, 100, 1.0, 10)]


@pytest.mark.parametrize('segments, options, rates', [
    # At the end of warm-up it jumps: 1 - 10 / 100, not 1. Past the end it stays.
    (ONE, {}, {0: 0, 1: 0.1, 5: 0.5, 9: 0.9, 10: 0.9, 11: 0.89, 50: 0.5, 99: 0.01, 100: 0, 150: 0}),
    ([ScheduleSegment(0, 100, 2.0, 20)], {'power': 0.5}, {0: 0, 19: 1.9, 20: 2 * 0.8**0.5, 75: 1}),
    ([ScheduleSegment(0, 100, 1.0, 50, 50)], {}, {0: 0, 25: 0.5, 50: 1, 75: 0.5, 100: 0}),
    ([ScheduleSegment(0, 100, 1.0, 10, 80)], {},
     {5: 0.5, 10: 1, 79: 1, 80: 1, 90: 0.5, 100: 0, 150: 0}),
    (ONE, {'power': 0.0}, {0: 0, 5: 0.5, 10: 1, 99: 1}),
    ([ScheduleSegment(0, 100, 1.0, 0)], {'decay': 'cosine'},
     {0: 1, 25: 0.5 + 0.5 * 2**-0.5, 50: 0.5, 100: 0}),
    ([*ONE, ScheduleSegment(100, 40, 2.0, 4)], {},  # with its own warm-up and decay
     {0: 0, 10: 0.9, 99: 0.01, 100: 0, 102: 1, 104: 1.8, 120: 1, 140: 0}),
], ids=['linear', 'root', 'triangle', 'stable', 'constant', 'cosine', 'two'])
def test_schedules_follow_their_formulas(segments, options, rates):
    schedule = optimizers.make_schedule(segments, **options)
    for step, rate in rates.items():
        assert float(schedule(step)) == pytest.approx(rate, abs=1e-6), step
        assert float(jax.jit(schedule)(jnp.int32(step))) == pytest.approx(rate, abs=1e-6), step


SMALL = ModelConfig(vocab_size=40, num_layers=2, hidden_size=8, num_heads=2,
                    intermediate_size=12, max_position_embeddings=8)


def of_model():
    """(Shapes of the parameters of a small model, their declarations)."""
    tree = jax.eval_shape(Pretraining(SMALL).init, jax.random.key(0))
    return nn.meta.unbox(tree), declared_parameters(tree)


def declared(params):
    """Declarations of other parameters: kernels are [in, out]; all but biases and scales decay."""
    return {path_names(path): Parameter(
        None, (None,) * jnp.ndim(x), num_in=path_names(path)[-1] == 'kernel',
        decays=path_names(path)[-1] not in ('bias', 'output_bias', 'scale'),
    ) for path, x in jax.tree_util.tree_leaves_with_path(params)}


def leaf(tree, names):
    """The leaf or subtree at a path."""
    return functools.reduce(lambda tree, key: tree[key], names, tree)


def updated(name, params, gradients, parameters=None, rate=1e-2):
    """Parameters after one update with each of the gradients, at rates rate, 2 rate, ..."""
    return updated_by(optimizers.make_optimizer(
        name, lambda step: rate * (step + 1.0), parameters or declared(params), **ADAM),
        params, gradients)


def updated_by(optimizer, params, gradients):
    """Parameters after one update with each of the gradients."""
    @jit
    def update(params, state, grads):
        updates, state = optimizer.update(grads, state, params)
        return jax.tree.map(jnp.add, params, updates), state

    state = optimizer.init(params)
    for grads in gradients:
        params, state = update(params, state, grads)
    return params


def numpy_updated(name, w, gradients, decay, trust, rate=1e-2):
    """One array after the same updates, by the formulas."""
    b1, b2, eps = 0.9, 0.999, 1e-6
    w = np.asarray(w, np.float64)
    m, v = np.zeros_like(w), np.zeros_like(w)
    for i, g in enumerate(np.asarray(gradients, np.float64)):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        if name == 'bert_adamw':  # no correction of the bias
            u = m / (np.sqrt(v) + eps)
        else:
            u = m / (1 - b1 ** (i + 1)) / (np.sqrt(v / (1 - b2 ** (i + 1))) + eps)
        u = u + decay * w  # before the rate
        if trust:
            u = u * np.linalg.norm(w) / np.linalg.norm(u)
        w = w - rate * (i + 1) * u
    return w


@pytest.mark.parametrize('name', ['bert_adamw', 'adamw', 'lamb'])
@pytest.mark.parametrize('scale', [1.0, 1e-6], ids=['', 'eps shows'])
def test_updates_follow_the_formula(name, scale):
    params = {'dense': {'kernel': np.zeros((4, 3)), 'bias': np.zeros(3)},
              'LayerNorm': {'scale': np.zeros(3), 'bias': np.zeros(3)},
              'word_embeddings': np.zeros((5, 3)), 'output_bias': np.zeros(5)}
    params = random_like(params, 0)
    gradients = [random_like(params, seed, scale) for seed in (1, 2, 3)]
    after = updated(name, params, gradients)
    for path, w in jax.tree_util.tree_leaves_with_path(params):
        names = path_names(path)
        decays = names[-1] in ('kernel', 'word_embeddings')
        expected = numpy_updated(name, w, [leaf(g, names) for g in gradients], 0.01 * decays,
                                 name == 'lamb' and decays)
        np.testing.assert_allclose(
            leaf(after, names), expected, rtol=2e-5, atol=1e-6, err_msg=str(path))


def test_query_key_and_value_have_trust_ratios_of_their_own():
    shapes, parameters = of_model()
    params = random_like(shapes, 0)
    # Slices of very different norms, so that a shared ratio would show.
    qkv = ('bert', 'encoder', 'layer_1', 'attention', 'self', 'qkv')
    leaf(params, qkv)['kernel'] *= jnp.array([1.0, 10.0, 100.0])[None, :, None, None]
    gradients = [random_like(params, seed) for seed in (1, 2, 3)]
    after = leaf(updated('lamb', params, gradients, parameters), qkv)
    before, *gradients = (leaf(tree, qkv) for tree in (params, *gradients))
    for i in range(3):  # as if query, key and value were parameters of their own
        expected = numpy_updated('lamb', before['kernel'][:, i],
                                 [g['kernel'][:, i] for g in gradients], 0.01, True)
        np.testing.assert_allclose(after['kernel'][:, i], expected, rtol=2e-5, atol=2e-6)
    expected = numpy_updated('lamb', before['bias'], [g['bias'] for g in gradients], 0.0, False)
    np.testing.assert_allclose(after['bias'], expected, rtol=2e-5, atol=2e-6)


def test_the_last_step_leads_to_the_mean_of_the_last_weights():
    params = random_like({'kernel': np.zeros((4, 3))}, 0)
    gradients = [random_like(params, seed) for seed in range(10)]

    def after(steps, **options):
        return updated_by(optimizers.make_optimizer(
            'adamw', lambda step: 0.1, declared(params), **ADAM, **options),
            params, gradients[:steps])['kernel']

    usual = [after(steps) for steps in range(11)]
    np.testing.assert_array_equal(after(9, mean_of=(4, 10)), usual[9])
    for steps, last in ((4, 10), (3, 3), (1, 5)):
        np.testing.assert_allclose(after(last, mean_of=(steps, last)), np.mean(
            usual[last - steps + 1:last + 1], axis=0), rtol=1e-5)


@pytest.mark.parametrize('start, gradient', [(0.0, 1.0), (1.0, 0.0)], ids=['zero w', 'zero g'])
def test_lamb_with_a_zero_norm_stays_finite(start, gradient):
    params = {'kernel': jnp.full((2, 2), start)}
    after = updated('lamb', params, [{'kernel': jnp.full((2, 2), gradient)}])['kernel']
    assert jnp.isfinite(after).all() and (after != params['kernel']).all()


@pytest.mark.parametrize('name, arguments', [
    ('lion', {'b1': 0.95, 'b2': 0.98}), ('nadamw', {'b1': 0.8}), ('adan', {}),
])
def test_an_optax_optimizer_is_unchanged_but_for_which_parameters_decay(name, arguments):
    params = random_like({'kernel': np.zeros((4, 3)), 'LayerNorm': {'scale': np.zeros(3)}}, 0)
    schedule = optimizers.make_schedule([ScheduleSegment(0, 10, 1e-2, 2)])
    ours = optimizers.make_optimizer(name, schedule, declared(params), arguments=arguments, **ADAM)
    mask = {'kernel': True, 'LayerNorm': {'scale': False}}
    theirs = getattr(optax, name)(schedule, weight_decay=0.01, mask=mask, **arguments)
    gradients = [random_like(params, seed) for seed in (1, 2, 3)]
    after = [updated_by(optimizer, params, gradients) for optimizer in (ours, theirs)]
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-8), *after)
    assert any(jax.tree.leaves(jax.tree.map(lambda a, b: bool((a != b).any()), after[0], params)))


@pytest.mark.filterwarnings('ignore:.optimistic_adam. is deprecated')  # a user may name it
@pytest.mark.parametrize('name', optimizers.optax_optimizers())
def test_every_optimizer_of_optax_fits_a_mesh_and_is_proportional_to_its_rate(name):
    config = ModelConfig(vocab_size=64, num_layers=2, hidden_size=256, num_heads=2,
                         intermediate_size=256, max_position_embeddings=8)
    objective, mesh = Pretraining(config), make_mesh(2, 2, 2)
    optimizer = optimizers.make_optimizer(name, lambda step: 1.0, parameters_of(objective), **ADAM)
    state = abstract_state(objective, optimizer, mesh)
    for x in jax.tree.leaves(state):
        x.sharding.shard_shape(x.shape)  # raises if a dim cannot be split like this
    after = jax.eval_shape(optimizer.update, state.params, state.opt_state, state.params)
    assert jax.tree.structure(after) == jax.tree.structure((state.params, state.opt_state))

    params = {'kernel': jnp.linspace(0.1, 1, 12).reshape(3, 4), 'bias': jnp.ones(3)}
    moved = []
    for rate in (0.5, 1.0):
        optimizer = optimizers.make_optimizer(
            name, optax.constant_schedule(rate), declared(params), **ADAM)
        moments = optimizer.init(params)
        for step in (1, 2, 3):
            grads = jax.tree.map(lambda x: jnp.sin(x * step), params)  # noqa: B023
            updates, moments = optimizer.update(grads, moments, params)
        moved.append(updates)
    jax.tree.map(lambda half, whole: np.testing.assert_allclose(2 * half, whole, rtol=1e-5), *moved)
    assert all(jnp.isfinite(x).all() and x.any() for x in jax.tree.leaves(moved))


@pytest.mark.parametrize('name, text, words', [
    ('lion', 'weight_decay=0.5', "lion has no 'weight_decay'"),
    ('lion', 'b1="high"', 'cannot be'), ('lion', 'b1=1e999', 'cannot be'),
    ('nadamw', 'nesterov=1', 'cannot be'), ('lion', '0.9', 'write them as'),
    ('lion', 'b1=1)(', 'write them as'), ('adamw', 'b1=0.5', 'it reads optimizer.b1'),
])
def test_arguments_that_an_optimizer_does_not_have_are_refused(name, text, words):
    with pytest.raises(InputError, match=re.escape(words)):
        optimizers.optimizer_arguments(name, text)
    assert optimizers.optimizer_arguments('lion', ' b1=0.95,mu_dtype="bfloat16", ') == {
        'b1': 0.95, 'mu_dtype': 'bfloat16'}


@pytest.mark.parametrize('name', [*optimizers.OWN_OPTIMIZERS, 'lion'])
def test_frozen_parameters_stay_bit_for_bit_and_have_no_moments(name):
    shapes, parameters = of_model()
    params = random_like(shapes, 0)
    frozen = optimizers.frozen_parameters('embeddings|layer_0/', parameters)
    optimizer = optimizers.make_optimizer(
        name, lambda step: 0.1, parameters, frozen=frozen, layer_decay=0.9, **ADAM)
    after = updated_by(optimizer, params, [random_like(params, seed) for seed in (1, 2, 3)])
    for path, x in jax.tree_util.tree_leaves_with_path(params):
        names = path_names(path)
        stays = bool({'embeddings', 'layer_0'} & set(names))
        assert stays == (names in frozen) == (leaf(after, names) == x).all(), names
    moments = jax.tree_util.tree_leaves_with_path(jax.eval_shape(optimizer.init, params))
    trained = {path_names(path)[-len(names):] for path, _ in moments for names in parameters}
    assert trained & set(parameters) == set(parameters) - frozen
    for pattern, words in (('layer_[', 'valid regular'), ('layer_7', 'in no '), ('.', 'in every ')):
        with pytest.raises(InputError, match=words):
            optimizers.frozen_parameters(pattern, parameters)


def orthogonalized(x):
    """Five Newton-Schulz iterations on a matrix with Jordan's coefficients, by the formula."""
    x = x / np.linalg.norm(x)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


def test_muon_orthogonalizes_the_matrices_of_layers_and_adam_does_the_rest():
    shapes, parameters = of_model()
    params = random_like(shapes, 0)
    grads = random_like(params, 1)
    after = updated('muon', params, [grads], parameters)

    def moved(*names):
        """(gradient, update without weight decay) of a parameter."""
        w, g, new = (leaf(tree, names) for tree in (params, grads, after))
        decay = 0.01 * (names[-1] != 'bias')
        return np.asarray(g, np.float64), np.asarray((w - new) / 1e-2 - decay * w, np.float64)

    layer = ('bert', 'encoder', 'layer_1')
    g, u = moved(*layer, 'intermediate', 'dense', 'kernel')
    np.testing.assert_allclose(u, 0.2 * np.sqrt(12) * orthogonalized(g), atol=1e-3)
    g, u = moved(*layer, 'attention', 'output', 'dense', 'kernel')  # [heads, head_dim, hidden]
    np.testing.assert_allclose(
        u.reshape(8, 8), 0.2 * np.sqrt(8) * orthogonalized(g.reshape(8, 8)), atol=1e-3)
    g, u = moved(*layer, 'attention', 'self', 'qkv', 'kernel')
    for i in range(3):
        np.testing.assert_allclose(u[:, i].reshape(8, 8), 0.2 * np.sqrt(8) * orthogonalized(
            g[:, i].reshape(8, 8)), atol=1e-3)
    for names in [(*layer, 'output', 'dense', 'bias'), ('bert', 'embeddings', 'word_embeddings'),
                  ('bert', 'pooler', 'dense', 'kernel')]:
        g, u = moved(*names)  # Nesterov's momentum at the first step
        expected = (0.9 * 0.1 / (1 - 0.9**2) + 1) * g / (np.abs(g) + 1e-6)
        np.testing.assert_allclose(u, expected, atol=1e-3, err_msg=str(names))


@pytest.mark.parametrize('names, shape, num_in, num_separate', [
    ((None, None), (5, 3), 1, 0), ((None,) * 3, (2, 4, 3), 2, 0), ((None,) * 3, (4, 2, 6), 1, 1),
    ((None,) * 4, (5, 3, 2, 4), 1, 1),
])
def test_a_kernel_s_declared_matrices_are_those_that_a_product_uses(
    names, shape, num_in, num_separate
):
    """A gated layer's array holds two matrices, as that of query, key and value holds three."""
    parameter = Parameter(None, names, num_in=num_in, num_separate=num_separate)
    x = random_like(jnp.zeros(shape), 0)
    matrices = parameter.to_matrices(x)
    np.testing.assert_array_equal(parameter.from_matrices(matrices, shape), x)
    product = np.tensordot(np.ones(shape[:num_in]), x, num_in)
    np.testing.assert_allclose(
        np.ones(matrices.shape[1]) @ matrices, product.reshape(-1, matrices.shape[2]), rtol=1e-5)


def test_rates_fall_with_the_distance_from_the_head():
    shapes, parameters = of_model()
    params = random_like(shapes, 0)
    grads = random_like(params, 1)

    def move(layer_decay):
        optimizer = optimizers.make_optimizer(
            'adamw', lambda step: 1.0, parameters, layer_decay=layer_decay, **ADAM)
        return jit(optimizer.update)(grads, optimizer.init(params), params)[0]

    ratios = jax.tree.map(lambda whole, part: np.unique(np.round(np.asarray(part / whole), 5)),
                          move(1.0), move(0.5))
    for path, found in jax.tree_util.tree_leaves_with_path(ratios):
        name = '/'.join(path_names(path))
        expected = (0.5 if 'layer_1' in name else 0.25 if 'layer_0' in name else
                    0.125 if 'embeddings/' in name else 1.0)
        assert found.tolist() == [expected], name


def test_the_layer_weights_of_a_tagger_belong_to_no_layer():
    params = {'bert': {'encoder': {'layer_0': {'bias': jnp.ones(2)}}},
              'features': {'layer_weights': jnp.ones(2)}}
    of_two = optimizers.scale_by_depth(0.5, [('encoder', f'layer_{i}') for i in (0, 1)])
    moved, _ = of_two.update(params, None)
    assert moved['features']['layer_weights'].tolist() == [1, 1]
    assert moved['bert']['encoder']['layer_0']['bias'].tolist() == [0.25, 0.25]


@pytest.mark.parametrize('axes', [(1, 1, 1), (8, 1, 1), (2, 4, 1), (2, 2, 2), (1, 1, 8)])
def test_muon_distributes_its_matrices_over_the_devices(axes):
    config = ModelConfig(vocab_size=64, num_layers=4, hidden_size=64, num_heads=8,
                         intermediate_size=256, max_position_embeddings=16)
    on = make_mesh(*axes, jax.devices()[:math.prod(axes)])

    def of(mesh):
        schedule = optimizers.make_schedule([ScheduleSegment(0, 10, 1.0, 0)])
        task = Pretraining(config)
        optimizer = optimizers.make_optimizer(
            'muon', schedule, parameters_of(task), mesh=mesh, **ADAM)
        return optimizer, abstract_state(task, optimizer, on)

    optimizer, state = of(on)
    shardings = jax.tree.map(lambda x: x.sharding, (state.params, state.opt_state))
    dealt = jax.jit(optimizer.update, out_shardings=shardings).lower(
        state.params, state.opt_state, state.params).compile()
    # Each of eight devices has two of the 16 square matrices and one of the 8 oblong ones.
    # Elementwise work comes on top.
    share = dealt.cost_analysis()['flops'] / muon_flops(config)
    assert 1 < share * math.prod(axes) < 1.2

    params = random_like(state.params, 0)
    grads = random_like(params, 1)
    optimizer, _ = of(None)
    expected, _ = optimizer.update(grads, optimizer.init(params), params)
    found, _ = dealt(*(jax.device_put(x, to) for x, to in zip(
        (grads, optimizer.init(params), params), (*shardings, shardings[0]))))
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=2e-4), found, expected)


OTHER = {o.name: next(value for value in o.allowed if value != o.default)
         for o in OPTIONS if isinstance(o.allowed, tuple)}


@pytest.mark.parametrize('option', ['', *OTHER])
def test_every_model_option_declares_its_parameters_and_fits_every_optimizer(option):
    config = dataclasses.replace(SMALL, **({option: OTHER[option]} if option else {}))
    task = Classification(config, 3) if option == 'bilstm' else Pretraining(config)
    boxed = jax.eval_shape(task.init, jax.random.key(0))
    parameters = declared_parameters(boxed)
    shapes = nn.meta.unbox(boxed)
    matrices = 0
    for path, x in jax.tree_util.tree_leaves_with_path(shapes):
        p, names = parameters[path_names(path)], path_names(path)
        if layer_of(names) is not None and x.ndim > 1 and names[-1] != 'bias':
            assert p.num_in and p.decays, f'{names} is a matrix of a layer: it declares its dims'
            matrices += x.size
        if 'lstm' not in str(names):
            assert p.decays == (names[-1] == 'kernel' or names[-1].endswith('_embeddings')), names
    assert token_flops(config, 0) == 2 * matrices  # a multiply-add for each weight and token
    params = random_like(shapes, 0)
    grads = random_like(params, 1)
    for name in (*optimizers.OWN_OPTIMIZERS, 'lion'):
        optimizer = optimizers.make_optimizer(name, lambda step: 0.1, parameters, **ADAM)
        updates, _ = jit(optimizer.update)(grads, optimizer.init(params), params)
        assert all(jnp.isfinite(x).all() and x.any() for x in jax.tree.leaves(updates)), name
