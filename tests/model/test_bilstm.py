"""The feature-based tagger: against torch's LSTM, the choices of features, the frozen encoder."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from bert_jax.config.fields import FIELDS
from bert_jax.heads.tokens import BertFeatureTagger, FeatureCombination
from bert_jax.kernels import dropout as drop
from bert_jax.model.bilstm import BiLstm, _scan, recur
from bert_jax.model.layers import ModelConfig, path_names
from bert_jax.sharding import Layout, make_mesh
from tests.tiny_models import jit, random_like

CONFIG = ModelConfig(
    vocab_size=50, num_layers=2, hidden_size=16, num_heads=2, intermediate_size=32,
    max_position_embeddings=24, classifier_dropout=0.4, initializer_range=0.5)
NUM_FEATURES, UNITS, LABELS = 6, 5, 3
LENGTHS = np.array([7, 9, 1, 4])


def torch_names(p):
    """Our parameters, or their gradients, by torch's names; torch has a second bias, here 0."""
    named = {}
    for d, suffix in enumerate(('', '_reverse')):
        named |= {
            f'weight_ih_l0{suffix}': p['kernel'][:, d].reshape(-1, 4 * UNITS).T,
            f'weight_hh_l0{suffix}': p['recurrent_kernel'][d].reshape(-1, 4 * UNITS).T,
            f'bias_ih_l0{suffix}': p['bias'][d].reshape(-1)}
    return jax.tree.map(np.array, named)


@pytest.mark.extras
@pytest.mark.parametrize('in_one_row', [False, True])
def test_outputs_and_gradients_are_those_of_torch(in_one_row):
    """Four sequences, each in a row of its own with random padding, or packed into one row."""
    torch = pytest.importorskip('torch', reason='torch is not installed')
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    rng = np.random.default_rng(0)
    x = rng.normal(size=(len(LENGTHS), LENGTHS.max(), NUM_FEATURES)).astype(np.float32)
    real = np.arange(LENGTHS.max()) < LENGTHS[:, None]
    weights_of_sum = rng.normal(size=(real.sum(), 2 * UNITS)).astype(np.float32)
    if in_one_row:
        ours_x = np.pad(x[real], ((0, 2), (0, 0)), constant_values=1)[None]
        sequence = np.append(np.repeat(np.arange(len(LENGTHS)) + 1, LENGTHS), [0, 0])[None]
    else:
        ours_x, sequence = x, real.astype(np.int32)
    layer = BiLstm(CONFIG, UNITS)
    params = random_like(jax.eval_shape(
        layer.init, jax.random.key(0), ours_x, sequence)['params'], 1, 0.5)

    theirs = torch.nn.LSTM(NUM_FEATURES, UNITS, batch_first=True, bidirectional=True)
    zeros = {name: torch.zeros_like(value) for name, value in theirs.named_parameters()}
    theirs.load_state_dict(zeros | {
        name: torch.tensor(value) for name, value in torch_names(params).items()})
    x_torch = torch.tensor(x, requires_grad=True)
    packed = pack_padded_sequence(
        x_torch, torch.tensor(LENGTHS), batch_first=True, enforce_sorted=False)
    expected = pad_packed_sequence(theirs(packed)[0], batch_first=True)[0][torch.tensor(real)]
    (expected * torch.tensor(weights_of_sum)).sum().backward()

    def weighted_sum(params, x):
        found = layer.apply({'params': params}, x, sequence)[sequence > 0]
        return (found * weights_of_sum).sum(), found

    (_, found), (param_grads, x_grad) = jit(
        jax.value_and_grad(weighted_sum, argnums=(0, 1), has_aux=True))(params, ours_x)
    np.testing.assert_allclose(found, expected.detach(), atol=1e-6)
    np.testing.assert_allclose(x_grad[sequence > 0], x_torch.grad[torch.tensor(real)], atol=1e-5)
    for name, grad in torch_names(param_grads).items():
        np.testing.assert_allclose(
            grad, getattr(theirs, name).grad.numpy(), atol=2e-5, err_msg=name)


def test_the_gradient_written_by_hand_is_that_of_jax():
    rng = np.random.default_rng(0)
    x, kernel, weights = (rng.normal(size=shape).astype(np.float32) for shape in (
        (4, 2, 3, 4, UNITS), (2, UNITS, 4, UNITS), (4, 2, 3, UNITS)))
    keep = np.ones((4, 2, 3), np.float32)
    keep[0] = keep[2, :, 1] = 0

    def gradients(states_of):
        def weighted_sum(x, kernel):
            return (states_of(x, kernel, keep) * weights).sum()

        return jit(jax.grad(weighted_sum, (0, 1)))(x, kernel)

    expected = gradients(lambda *arguments: _scan(*arguments)[0])
    for found, of_jax in zip(gradients(recur), expected, strict=True):
        np.testing.assert_allclose(found, of_jax, atol=1e-5)


def test_initial_values():
    x, mask = jnp.ones((1, 4, 40)), jnp.ones((1, 4), jnp.int32)
    params = nn.meta.unbox(jit(BiLstm(CONFIG, 30).init)(jax.random.key(0), x, mask)['params'])
    expected = np.zeros((2, 4, 30))
    expected[:, 1] = 1.0  # i, f, g, o
    np.testing.assert_array_equal(params['bias'], expected)
    for kernel, axes, limit in ((params['recurrent_kernel'], 1, 30**-0.5),
                                (params['kernel'], 0, np.sqrt(6 / (40 + 30)))):
        sizes = np.abs(kernel).max(axis=(axes, 3)), np.abs(kernel).mean(axis=(axes, 3))
        assert (0.95 * limit < sizes[0]).all() and (sizes[0] <= limit).all()
        assert np.abs(sizes[1] - limit / 2).max() < 0.03


@pytest.mark.parametrize('kind', FIELDS['tagging.features'].allowed[1:])
def test_choices_of_features(kind):
    rng = np.random.default_rng(0)
    embeddings, *layers = rng.normal(size=(6, 2, 3, 4)).astype(np.float32)
    output = {'embedding_output': embeddings, 'layers': tuple(layers)}
    module = FeatureCombination(kind)
    params = nn.meta.unbox(module.init(jax.random.key(0), output)).get('params', {})
    at_start, weights = {
        'embeddings': (embeddings, 0),
        'second_to_last': (layers[3], 0),
        'last': (layers[4], 0),
        'weighted_sum_last_four': (np.mean(layers[1:], axis=0), 4),
        'concat_last_four': (np.concatenate(layers[1:], axis=-1), 0),
        'weighted_sum_all': (np.mean(layers, axis=0), 5)}[kind]
    np.testing.assert_allclose(module.apply({'params': params}, output), at_start, atol=1e-6)
    assert jax.tree.map(jnp.shape, params) == (
        {'layer_weights': (weights,), 'scale': ()} if weights else {})
    if weights:
        w = rng.normal(size=weights).astype(np.float32)
        shares = np.exp(w) / np.exp(w).sum()
        learned = module.apply({'params': {'layer_weights': w, 'scale': np.float32(3)}}, output)
        expected = 3 * np.tensordot(shares, np.stack(layers[-weights:]), 1)
        np.testing.assert_allclose(learned, expected, atol=1e-5)


@pytest.fixture(scope='module')
def batch():
    rng = np.random.default_rng(0)
    mask = (np.arange(12) < np.array([[12], [7], [3], [10]] * 2)).astype(np.int32)
    return {'input_ids': rng.integers(1, 50, mask.shape).astype(np.int32) * mask,
            'sequence_ids': mask, 'segment_ids': np.zeros_like(mask)}


def tagger(config=CONFIG):
    return BertFeatureTagger(config, LABELS, 'weighted_sum_last_four', units=UNITS)


@pytest.fixture(scope='module')
def tagger_params(batch):
    return random_like(jax.eval_shape(tagger().init, jax.random.key(0), batch)['params'], 0, 0.3)


def logits(params, batch, rows=None, config=CONFIG):
    return tagger(config).apply({'params': params}, batch, rows)


def test_the_encoder_is_frozen_and_all_else_learns(tagger_params, batch):
    def loss(params):
        x = logits(params, batch, drop.dropout_keys(0, 0, jnp.arange(8)))
        assert x.shape == (8, 12, LABELS) and x.dtype == jnp.float32
        return jnp.sum(jnp.square(x) * batch['sequence_ids'][..., None])

    assert set(tagger_params) == {'bert', 'features', 'bilstm_0', 'bilstm_1', 'classifier'}
    grads = jax.device_get(jit(jax.grad(loss))(tagger_params))
    for path, grad in jax.tree_util.tree_leaves_with_path(grads):
        names = path_names(path)
        assert np.isfinite(grad).all(), names
        assert grad.any() == (names[0] != 'bert'), names


def test_dropout_is_drawn_around_the_lstm_but_not_in_the_encoder(tagger_params, batch):
    of = jit(logits, static_argnames='config')
    rows = [drop.dropout_keys(seed, 0, np.arange(8)) for seed in (0, 0, 1)]
    plain = np.asarray(of(tagger_params, batch))
    first, same, other = (np.asarray(of(tagger_params, batch, r)) for r in rows)
    np.testing.assert_array_equal(first, same)
    assert np.abs(first - other).max() > 1e-3 and np.abs(first - plain).max() > 1e-3
    without = dataclasses.replace(CONFIG, classifier_dropout=0.0)
    assert without.hidden_dropout > 0
    np.testing.assert_allclose(of(tagger_params, batch, rows[0], without), plain, atol=1e-6)


def test_rows_are_split_over_a_mesh(tagger_params, batch):
    mesh = make_mesh(2, 1, 2, jax.devices()[:4])
    config = dataclasses.replace(CONFIG, layout=Layout(mesh))

    one, many = (
        jit(jax.value_and_grad(lambda p, c=c: jnp.sum(jnp.square(logits(p, batch, None, c)))))(
            tagger_params) for c in (CONFIG, config))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4), one, many)
