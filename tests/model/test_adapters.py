"""Adapters: where they begin, and that a model with one computes what its merged kernels do."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax.traverse_util import flatten_dict

from bert_jax.config.adapters import AdapterOptions
from bert_jax.config.bert_config import OPTIONS
from bert_jax.heads.classification import Classification
from bert_jax.kernels import dropout as drop
from bert_jax.model.layers import ModelConfig
from bert_jax.runtime.errors import InputError
from bert_jax.sharding import Layout, make_mesh, tree_shardings
from bert_jax.step.optimizers import OptimizerOptions, frozen_beside, make_optimizer
from bert_jax.step.step import abstract_state, parameters_of
from bert_jax.weights import adapters, parameters
from tests.refusals import refused
from tests.tiny_models import assert_close, drawn_state, fixed_step, jit, random_like

SIZES = {'vocab_size': 90, 'num_layers': 1, 'hidden_size': 16, 'num_heads': 2,
         'intermediate_size': 24, 'max_position_embeddings': 26}
MODERN = {'pre_norm': True, 'gated': True, 'biases': False, 'positions': 'rotary',
          'type_vocab_size': 0, 'pooler_norm': True}

NONE = AdapterOptions()
STILL = {'hidden_dropout': 0.0, 'attention_dropout': 0.0, 'classifier_dropout': 0.0}


def head_with(options=NONE, **changes):
    return Classification(ModelConfig(**SIZES | changes, adapter=options), 3)


def model_of(config):
    return {option.name: getattr(config, option.name) for option in OPTIONS}


def batch_of(rows):
    rng = np.random.default_rng(1)
    numbers = np.repeat([1, 2, 0], [6, 8, 2])

    def every(row):
        return np.tile(np.asarray(row, np.int32), (rows, 1))

    return {
        'input_ids': rng.integers(1, 90, (rows, 16)).astype(np.int32),
        'sequence_ids': every(numbers), 'segment_ids': every(numbers == 2),
        'position_ids': every([*range(6), *range(8), 0, 0]), 'cls_positions': every([0, 6]),
        'labels': rng.integers(0, 3, (rows, 2)).astype(np.int32),
        'unit_weights': np.ones((rows, 2), np.float32)}


@functools.cache
def outputs_of(head):
    """Jitted: (parameters, batch, keys of dropout) -> outputs."""
    return jit(head.outputs)


def outputs(head, params, batch):
    return jax.device_get(outputs_of(head)(params, batch))


def random_params(head, scale=0.5):
    return random_like(jax.eval_shape(head.init, jax.random.key(0)), scale=scale)


def test_training_starts_from_the_model_as_it_is():
    """And the parameters of the model are drawn as without an adapter."""
    wide = {'initializer_range': 0.3}  # so that kernels matter
    without = head_with(**wide)
    head = head_with(AdapterOptions('dora', 4, targets='all'), **wide)
    # By one program, as the compiler sees once what both draw alike.
    params, expected = nn.meta.unbox(jax.device_get(
        jit(lambda key: (head.init(key), without.init(key)))(jax.random.key(3))))
    flat = flatten_dict(params, sep='/')
    assert_close({name: x for name, x in flat.items() if not adapters.is_of_adapter(name)},
                 flatten_dict(expected, sep='/'), rtol=0, atol=3e-7)
    a = np.abs(flat['bert/encoder/layer_0/attention/output/dense/adapter/a'])
    assert a.shape == (2, 8, 4) and 0.15 < a.max() <= 1 / np.sqrt(16)
    batch = batch_of(2)
    assert_close(outputs(head, params, batch), outputs(without, expected, batch), rtol=0, atol=1e-5)


@pytest.mark.parametrize(('kind', 'targets', 'model'), [
    ('lora', 'query,value', {}), ('rslora', 'key, intermediate', {}), ('dora', 'value,output', {}),
    ('dora', 'all', MODERN), ('lora', 'attention,intermediate', MODERN)])
def test_merged_kernels_compute_what_adapters_do(kind, targets, model):
    options = AdapterOptions(kind, 3, alpha=5.0, dropout=0.5, targets=targets)
    model = {**model, 'num_layers': 2}
    head = head_with(options, **model)
    tree = random_params(head, 0.3)
    params = parameters.from_tree(jax.device_get(tree), 90)
    of_adapter = {name: x for name, x in params.items() if adapters.is_of_adapter(name)}
    base = {name: x for name, x in params.items() if name not in of_adapter}
    weights = parameters.Weights(
        base, model_of(head.config), 'classification', (), None, True, (), 'x',
        adapter=adapters.AdapterWeights(options, of_adapter))
    merged = parameters.to_tree(weights.merged.params, head.config.padded_vocab_size)
    batch = batch_of(2)
    expected = outputs(head, tree, batch)
    without = head_with(**model)
    assert_close(outputs(without, merged, batch), expected, rtol=0, atol=1e-5)
    unmerged = parameters.to_tree(base, head.config.padded_vocab_size)
    others = outputs(without, unmerged, batch)['logits']
    assert np.abs(others - expected['logits']).max() > 0.01


DORA = AdapterOptions('dora', 4, dropout=0.3, targets='all')
DROPPING = AdapterOptions(rank=3, dropout=0.5, targets='all')


def test_dropout_is_on_what_the_adapter_reads_alone():
    """Without other dropout, the rows differ only if the adapter adds something."""
    head = head_with(DROPPING, **STILL)
    params = random_params(head)
    batch = batch_of(2)
    keys = drop.dropout_keys(0, 1, np.arange(2))

    @jit
    def logits(params):  # of both at once, as the compiler sees most of them once
        return [head.outputs(params, batch, row_keys)['logits'] for row_keys in (keys, None)]

    drawn, plain = logits(params)
    assert np.abs(drawn - plain).max() > 0.01
    nothing = jax.tree_util.tree_map_with_path(
        lambda path, x: x * 0 if path[-1].key == 'b' else x, params)
    np.testing.assert_array_equal(*logits(nothing))


def test_the_adapters_of_all_dense_layers_have_masks_of_their_own(monkeypatch):
    drawn = []
    real = drop.dropout

    def spy(x, rate, rows, site, layer=0, lines=None):
        if rate:
            drawn.append((site, layer))
        return real(x, rate, rows, site, layer, lines)

    head = head_with(DROPPING, **STILL, num_layers=2)
    params = jax.eval_shape(head.init, jax.random.key(0))
    monkeypatch.setattr(drop, 'dropout', spy)
    jax.eval_shape(head.outputs, params, batch_of(2), drop.dropout_keys(0, 1, jnp.arange(2)))
    sites = (drop.QKV_ADAPTER, drop.ATTENTION_OUTPUT_ADAPTER, drop.INTERMEDIATE_ADAPTER,
             drop.FFN_OUTPUT_ADAPTER)
    # The last layer reads twice for one projection: for queries where they are wanted, and for the
    # rest everywhere.
    expected = [(site, layer) for layer in (0, 1) for site in sites]
    assert drawn == [*expected[:5], *expected[4:]]


def on_mesh(head, mesh):
    return dataclasses.replace(
        head, config=dataclasses.replace(head.config, layout=Layout(mesh)))


@functools.cache
def trained(head, mesh, parts=1):
    """Parameters before and after three steps, the number of moments, and the last loss."""
    head = on_mesh(head, mesh)
    declared = parameters_of(head)
    frozen = frozen_beside(head.config.adapter, declared)
    schedule = optax.constant_schedule(0.01)
    optimizer = make_optimizer(OptimizerOptions(), schedule, declared, frozen=frozen, mesh=mesh)
    step = fixed_step(
        head, optimizer, schedule, mesh, clip_norm=1.0, frozen=frozen, accumulation_steps=parts)
    state = drawn_state(head, optimizer, mesh)
    start = flatten_dict(jax.device_get(state.params), sep='/')
    for _ in range(3):
        state, metrics = step(state, batch_of(8))
    shapes = abstract_state(head, optimizer, mesh)
    moments = sum(x.size for x in jax.tree.leaves(shapes.opt_state) if x.ndim)
    end = flatten_dict(jax.device_get(state.params), sep='/')
    return start, end, moments, float(metrics['loss'])


@pytest.mark.parametrize(('options', 'changes'), [
    (AdapterOptions(rank=2, dropout=0.3), {}),
    (DORA, MODERN),
    (AdapterOptions('bitfit'), {'dtype': 'bfloat16'}),
], ids=['lora', 'dora', 'bitfit'])
def test_only_the_adapter_and_the_head_are_trained_and_have_moments(options, changes):
    one = make_mesh(1, 1, 1, jax.devices()[:1])
    start, end, moments, _ = trained(head_with(options, **changes), one)
    changed = {name for name in end if (start[name] != end[name]).any()}
    leaf = '/bias' if options.kind == 'bitfit' else '/adapter/'
    may = {name for name in end if name.startswith(('bert/pooler', 'classifier')) or leaf in name}
    # The bias of keys cancels in the softmax, and one word's type is that of all.
    assert changed <= may and may - changed <= {name for name in may if 'bert/pooler' in name}
    assert moments == 2 * sum(end[name].size for name in may)


@pytest.mark.slow
def test_a_mesh_and_parts_of_a_batch_change_nothing(monkeypatch):
    """Eight devices, over which the adapters are split as the kernels beside them."""
    monkeypatch.setattr('bert_jax.sharding.LEAST_SPLIT', 1)
    head = head_with(DORA, **MODERN)
    one = trained(head, make_mesh(1, 1, 1, jax.devices()[:1]))
    mesh = make_mesh(2, 2, 2)
    many = trained(head, mesh, parts=2)
    state = abstract_state(on_mesh(head, mesh), optax.sgd(0.1), mesh)
    axes = {name: {axis for dim in x.sharding.spec for axis in np.atleast_1d(dim) if axis}
            for name, x in flatten_dict(state.params, sep='/').items()}
    adapter = 'bert/encoder/layer_0/intermediate/dense/adapter'
    assert 'fsdp' in axes[f'{adapter}/a'] and axes[f'{adapter}/b'] >= {'fsdp', 'tensor'}
    assert_close(many[1], one[1], rtol=0, atol=3e-5)
    assert many[3] == pytest.approx(one[3], abs=1e-5)


def test_lora_split_over_tensor_shards_computes_the_same(monkeypatch):
    """One device has the columns of several matrices in one dim, shards have them apart."""
    monkeypatch.setattr('bert_jax.sharding.LEAST_SPLIT', 1)
    head = head_with(AdapterOptions('lora', 4, targets='query,value'))
    params = random_params(head)
    mesh = make_mesh(1, 1, 2, jax.devices()[:2])
    split = on_mesh(head, mesh)
    shardings = tree_shardings(mesh, jax.eval_shape(split.init, jax.random.key(0)))
    b = shardings['bert']['encoder']['layer_0']['attention']['self']['qkv']['adapter']['b']
    assert 'tensor' in b.spec
    found = logits_and_gradient(split, jax.device_put(params, shardings))
    assert_close(found, logits_and_gradient(head, params), rtol=1e-4, atol=1e-4)


def logits_and_gradient(head, params):
    """Logits, and the gradient of the sum of their squares."""
    def loss(params):
        logits = head.outputs(params, batch_of(2))['logits']
        return jnp.sum(logits**2), logits

    gradient, logits = jit(jax.grad(loss, has_aux=True))(params)
    return jax.device_get((logits, gradient))


@pytest.mark.parametrize(('fields', 'message'), [
    ({'rank': 4, 'targets': 'query,valeu'}, "did you mean 'value'"),
    ({'kind': 'dora'}, "config.adapter.kind='dora' has no effect without config.adapter.rank"),
    ({'alpha': 3.0}, 'config.adapter.alpha=3.0 has no effect'),
    ({'kind': 'bitfit', 'rank': 4}, 'config.adapter.rank=4 has no effect'),
    ({'kind': 'bitfit', 'dropout': 0.1}, 'config.adapter.dropout=0.1 has no effect'),
])
def test_options_without_effect_are_refused(fields, message):
    with refused(message):
        AdapterOptions(**fields)


@pytest.mark.parametrize('options', [AdapterOptions(rank=2), AdapterOptions('bitfit')], ids=str)
def test_relative_positions_stay(options):
    head = head_with(options, relative_positions=True, type_vocab_size=0)
    frozen = frozen_beside(options, parameters_of(head))
    assert ('bert', 'relative_positions') in frozen


def test_a_model_without_biases_has_no_bitfit():
    head = head_with(AdapterOptions('bitfit'), **MODERN)
    with pytest.raises(InputError, match='this model has none'):
        frozen_beside(head.config.adapter, parameters_of(head))
