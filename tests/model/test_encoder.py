"""The encoder: padding, rematerialisation, numerics, initialisation, names."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict

from bert_jax.config import MODEL_SIZES
from bert_jax.heads.masked_lm_loss import masked_lm_logits, masked_lm_loss
from bert_jax.heads.pretraining import Pretraining
from bert_jax.kernels import dropout as drop
from bert_jax.model.encoder import Bert
from bert_jax.model.layers import (
    LayerNorm,
    ModelConfig,
    activation,
    declared_parameters,
    gelu,
)
from bert_jax.sharding import Layout
from tests.conftest import check_golden
from tests.tiny_models import drawn_params, jit

CONFIG = ModelConfig(
    vocab_size=300, num_layers=2, hidden_size=32, num_heads=4, intermediate_size=64,
    max_position_embeddings=24, hidden_dropout=0.2, attention_dropout=0.3, initializer_range=0.1)
ROWS = drop.dropout_keys(3, 5, np.arange(4))


def config(**changes):
    return dataclasses.replace(CONFIG, **changes)


def init(config):
    return Pretraining(config).init(jax.random.key(0))


@pytest.fixture(scope='module')
def params():
    params = drawn_params(Pretraining(CONFIG), scale=0.1)
    params['bert']['embeddings']['word_embeddings'][300:] = 0.0
    return params


@pytest.fixture(scope='module')
def batch():
    rng = np.random.default_rng(0)
    real = np.arange(16) < np.array([[16], [9], [12], [5]])
    return {
        'input_ids': rng.integers(1, 300, (4, 16)) * real,
        'sequence_ids': real.astype(np.int32),
        'segment_ids': rng.integers(0, 2, (4, 16)) * real,
        'masked_lm_positions': rng.integers(1, 5, (4, 3)),
        'labels': rng.integers(0, 300, (4, 3)),
        'weights': np.array([[1, 1, 1], [1, 0, 0], [1, 1, 0], [0, 0, 0]], np.float32)}


def inputs_of(batch):
    return [batch[name] for name in ('input_ids', 'sequence_ids', 'segment_ids')]


@pytest.fixture(scope='module')
def encode(params):
    """Jitted Bert without dropout: (ids, mask, segments) -> outputs, on the host."""
    outputs = jit(lambda *x: Bert(CONFIG).apply({'params': params['bert']}, *x))
    return lambda *x: jax.device_get(outputs(*x))


@pytest.fixture(scope='module')
def without_dropout(batch):
    """Jitted: parameters -> (loss, logits of words)."""
    def compute(params):
        out = Pretraining(CONFIG).outputs(params, batch)
        return loss(CONFIG, params, batch, None), masked_lm_logits(out['mlm_output'])

    return jit(compute)


@pytest.fixture(scope='module')
def plain(params, batch, without_dropout):
    """(loss, gradients) with dropout on."""
    value, grads = value_and_grad(CONFIG, params, batch)
    assert abs(value - without_dropout(params)[0]) > 1e-3
    return value, grads


def loss(config, params, batch, rows=ROWS):
    """A loss that reads every output."""
    out = Pretraining(config).outputs(params, batch, rows)
    words = masked_lm_loss(out['mlm_output'], batch['labels'], batch['weights'], 1, Layout())
    nsp = jax.nn.logsumexp(out['nsp_logits'], axis=-1)[0]
    hidden = out['sequence_output'].astype(jnp.float32)
    return words.loss + nsp + (hidden**3).mean()


def value_and_grad(config, params, batch):
    return jax.device_get(jit(jax.value_and_grad(lambda p: loss(config, p, batch)))(params))


def assert_close(found, expected, rtol=1e-4):
    """Equal trees, up to rounding relative to each leaf's greatest value."""
    def check(x, y):
        atol = rtol * float(np.abs(y).max()) + 1e-7
        np.testing.assert_allclose(x, y, rtol=0, atol=atol)

    jax.tree.map(check, found, expected)


def test_ids_and_segments_of_padding_do_not_affect_real_tokens(encode, batch):
    ids, mask, segments = inputs_of(batch)
    real = mask == 1
    a = encode(ids, mask, segments)
    b = encode(np.where(real, ids, 77), mask, np.where(real, segments, 1))
    np.testing.assert_array_equal(a['sequence_output'][real], b['sequence_output'][real])
    np.testing.assert_array_equal(a['pooled_output'], b['pooled_output'])
    # Outputs at padding do change with its ids, so the comparisons above can fail.
    assert not np.allclose(a['sequence_output'][~real], b['sequence_output'][~real], atol=0.1)


def test_wanted_positions_give_the_rows_and_gradients_of_the_whole_output(params, batch):
    wanted = np.array([[0, 5, 5], [2, 0, 0], [15, 1, 3], [0, 1, 2]])
    ids, _, segments = inputs_of(batch)
    row = np.arange(16)  # two sequences in a row, of 7 and 9 tokens
    sequence_ids = np.tile(np.where(row < 7, 1, 2), (4, 1))
    position_ids = np.tile(np.where(row < 7, row, row - 7), (4, 1))

    def encode(params, wanted_positions):
        outputs = Bert(CONFIG).apply(
            {'params': params}, ids, sequence_ids, segments, ROWS, position_ids, None,
            wanted_positions)
        return outputs['sequence_output']

    def loss_at_wanted(params):
        x = encode(params, wanted)
        return jnp.sum(x**3), x

    def loss_of_whole(params):
        x = encode(params, None)[np.arange(4)[:, None], wanted]
        return jnp.sum(x**3), x

    @jit
    def both(params):  # so that the compiler sees the first layer once
        return [jax.grad(loss, has_aux=True)(params) for loss in (loss_at_wanted, loss_of_whole)]

    (grads, found), (whole_grads, expected) = jax.device_get(both(params['bert']))
    np.testing.assert_allclose(found, expected, atol=2e-6)
    assert_close(grads, whole_grads)


def test_rematerialisation_changes_nothing_with_dropout_on(params, batch, plain):
    """Everything computed again is in test_family_options.py."""
    value, grads = value_and_grad(config(remat='dots'), params, batch)
    np.testing.assert_allclose(value, plain[0], rtol=1e-5)
    assert_close(grads, plain[1], rtol=1e-5)


def test_dropout_is_where_the_original_has_it(params, batch, monkeypatch):
    """On embeddings, attention probabilities and both residual branches; in no head."""
    calls = []
    real = drop.dropout

    def spy(x, rate, rows, site, layer=0, lines=None):
        if rate:
            calls.append((site, layer, rate, x.shape))
        return real(x, rate, rows, site, layer, lines)

    monkeypatch.setattr(drop, 'dropout', spy)
    jax.eval_shape(lambda p: loss(CONFIG, p, batch), params)
    assert calls == [
        (drop.EMBEDDINGS, 0, 0.2, (4, 16, 32)),
        (drop.ATTENTION_PROBS, 0, 0.3, (4, 4, 16, 16)),
        (drop.ATTENTION_OUTPUT, 0, 0.2, (4, 16, 32)),
        (drop.FFN_OUTPUT, 0, 0.2, (4, 16, 32)),
        # The last layer: at [CLS] and three masks.
        (drop.ATTENTION_PROBS, 1, 0.3, (4, 4, 4, 16)),
        (drop.ATTENTION_OUTPUT, 1, 0.2, (4, 4, 32)),
        (drop.FFN_OUTPUT, 1, 0.2, (4, 4, 32)),
    ]


GELU_INPUTS = np.linspace(-6, 6, 241).astype(np.float32)


def test_gelu_forms_follow_their_formulas_and_differ():
    x = GELU_INPUTS
    tanh = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x.astype(float) ** 3)))
    erf = np.array([0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x.tolist()])
    np.testing.assert_allclose(gelu(jnp.array(x), 'gelu_tanh'), tanh, atol=1e-6)
    np.testing.assert_allclose(gelu(jnp.array(x), 'gelu_erf'), erf, atol=1e-6)
    assert 3e-4 < np.abs(tanh - erf).max() < 6e-4


def test_relu_and_its_derivative():
    x = jnp.array([-2.0, 0.0, 3.0])
    value, backward = jax.vjp(lambda x: activation(x, 'relu'), x)
    np.testing.assert_array_equal(value, [0, 0, 3])
    np.testing.assert_array_equal(backward(jnp.ones(3))[0], [0, 0, 1])  # as in PyTorch


@pytest.mark.parametrize('form', ['gelu_tanh', 'gelu_erf'])
@pytest.mark.parametrize('kept', ['derivative', 'stored', 'input'])
def test_the_derivative_of_gelu_is_that_of_jax(form, kept):
    @jit
    def differentiate(inputs):
        return [jax.vmap(jax.grad(function))(inputs) for function in (
            lambda x: gelu(x, form, kept),
            lambda x: jax.nn.gelu(x, approximate=form == 'gelu_tanh'))]

    found, expected = differentiate(GELU_INPUTS)
    np.testing.assert_allclose(found, expected, rtol=0, atol=5e-6)


@pytest.mark.parametrize('form', ['gelu_tanh', 'gelu_erf'])
def test_constants_of_gelu_are_not_rounded_to_bfloat16(form):
    half = jnp.array(GELU_INPUTS, jnp.bfloat16)
    whole = gelu(half.astype(jnp.float32), form)
    np.testing.assert_array_equal(gelu(half, form), whole.astype(jnp.bfloat16))


def norm(x):
    module = LayerNorm(config(dtype=x.dtype.name))
    return jax.device_get(jit(module.init_with_output)(jax.random.key(0), x)[0])


@pytest.mark.parametrize('deviation, expected', [(1.0, 1.0), (1e-6, 0.5**0.5), (1e-7, 0.0995)])
def test_layer_norm_adds_1e_12_to_the_variance(deviation, expected):
    x = np.float32(deviation) * np.tile(np.float32([-1.0, 1.0]), 16)[None]
    np.testing.assert_allclose(np.abs(norm(x)), expected, rtol=1e-3)


def test_layer_norm_statistics_are_float32_under_bfloat16():
    x = (30 + np.random.default_rng(0).standard_normal((8, 512))).astype(jnp.bfloat16)
    y = norm(x)
    assert y.dtype == jnp.bfloat16
    wide = np.asarray(x, np.float64)
    expected = (wide - wide.mean(-1, keepdims=True)) / wide.std(-1, keepdims=True)
    np.testing.assert_allclose(np.asarray(y, np.float64), expected, rtol=2**-8, atol=1e-5)


def test_initial_parameters_are_truncated_normal_one_and_zero():
    config = ModelConfig(
        vocab_size=1000, num_layers=2, hidden_size=128, num_heads=2, intermediate_size=512)
    params = jax.device_get(jit(lambda: nn.meta.unbox(init(config)))())
    for path, x in flatten_dict(params, sep='/').items():
        name = path.rpartition('/')[2]
        if name in ('bias', 'output_bias', 'scale'):
            assert (x == (name == 'scale')).all(), path
            continue
        assert not x[1000:].any(), 'rows of no word'
        x = np.asarray(x[:1000])
        assert np.abs(x).max() <= 0.04, path
        if x.size >= 10_000:  # 0.02 x 0.8796: truncated at 2 sigma, not rescaled
            assert abs(x.std() - 0.017593) < 4 * 0.0176 / (2 * x.size) ** 0.5, path
            assert abs(x.mean()) < 5 * 0.0176 / x.size**0.5 and np.abs(x).max() > 0.039, path
    kernels = [layer['intermediate']['dense']['kernel'].ravel()
               for layer in params['bert']['encoder'].values()]
    assert abs(np.corrcoef(*kernels)[0, 1]) < 0.02


def test_padded_vocabulary_rows_get_no_gradient_and_never_win(params, plain, without_dropout):
    table = params['bert']['embeddings']['word_embeddings']
    assert table.shape == (384, 32)
    words = 'bert/embeddings/word_embeddings'
    bias = 'cls/predictions/output_bias'
    grads = flatten_dict(plain[1], sep='/')
    for grad in (grads[words], grads[bias]):
        assert not grad[300:].any() and grad[:300].any()
    # They never win, even with values that training cannot give them.
    odd = flatten_dict(params, sep='/')
    is_word = np.arange(384)[:, None] < 300
    odd |= {words: np.where(is_word, table, np.float32(50.0)), bias: np.full(384, 99.0, 'f4')}
    _, logits = without_dropout(unflatten_dict(odd, sep='/'))
    assert (logits.argmax(-1) < 300).all()


def test_bfloat16_computes_in_half_and_keeps_float32_parameters(params, batch, encode):
    in_half = config(dtype='bfloat16')
    inputs = inputs_of(batch)
    half = jax.device_get(
        jit(lambda p: Bert(in_half).apply({'params': p}, *inputs))(params['bert']))
    whole = encode(*inputs)
    for name in ('sequence_output', 'pooled_output', 'embedding_output'):
        assert half[name].dtype == jnp.bfloat16, name
        assert 0 < np.abs(half[name].astype(np.float32) - whole[name]).mean() < 0.02, name
    out = jax.eval_shape(lambda p: Pretraining(in_half).outputs(p, batch), params)
    logits = jax.eval_shape(masked_lm_logits, out['mlm_output'])
    assert out['nsp_logits'].dtype == logits.dtype == jnp.float32
    grads = jax.eval_shape(jax.grad(lambda p: loss(in_half, p, batch)), params)
    for tree in (jax.eval_shape(lambda: init(in_half)), grads):
        assert {x.dtype for x in jax.tree.leaves(tree)} == {jnp.dtype('float32')}


def test_parameter_names_shapes_axes_and_decay_are_the_golden_ones():
    """A line for each: path, shape, logical axes, decays. UPDATE_GOLDEN=1 writes the file."""
    layers, hidden, heads = MODEL_SIZES['tiny']
    config = ModelConfig(vocab_size=30522, num_layers=layers, hidden_size=hidden, num_heads=heads,
                         intermediate_size=4 * hidden)
    lines = []
    for names, box in declared_parameters(jax.eval_shape(lambda: init(config))).items():
        path = '/'.join(names)
        shape = 'x'.join(map(str, box.value.shape))
        axes = ','.join(axis or '-' for axis in box.names)
        lines.append(f'{path} {shape} {axes} {box.decays}')
    check_golden('tiny_parameters.txt', sorted(lines))


DEEP = dict(num_layers=3, hidden_size=128, num_heads=4, intermediate_size=192)
IN_LAYER = {  # by transformers' names of the modules of a ModernBERT
    'attn.Wqkv': 'attention/self/qkv', 'attn.Wo': 'attention/output/dense',
    'mlp.Wi': 'intermediate/dense', 'mlp.Wo': 'output/dense'}


def deviations(**options):
    """The standard deviation of each kernel of layer 1 and of the word table."""
    model = config(**DEEP, initializer_range=0.02, **options)
    bert = jit(lambda: nn.meta.unbox(init(model)))()['bert']
    found = {'table': float(np.std(bert['embeddings']['word_embeddings'][:model.vocab_size]))}
    kernels = flatten_dict(bert['encoder']['layer_1'], sep='/')
    for name in IN_LAYER.values():
        found[name] = float(np.std(kernels[f'{name}/kernel']))
    return found


def test_kernels_that_end_a_branch_are_narrower_by_depth_and_others_are_not(monkeypatch):
    """By kernels that are their deviation: drawing them takes seconds to compile."""
    def draws(deviation):
        return lambda key, shape: np.where(np.arange(math.prod(shape)) % 2, -1.0, 1.0).reshape(
            shape).astype(np.float32) * deviation

    monkeypatch.setattr(nn.initializers, 'truncated_normal', draws)
    usual = deviations()
    by_depth = deviations(initializer='by_depth')
    ratios = {name: usual[name] / by_depth[name] for name in usual}
    ends = {name for name, ratio in ratios.items() if ratio != 1}
    assert ends == {'attention/output/dense', 'output/dense'}
    assert [ratios[name] for name in ends] == pytest.approx([6**0.5, 6**0.5])  # sqrt(2 * 3)


@pytest.mark.extras
def test_initialisation_by_depth_is_that_of_transformers_modernbert():
    torch = pytest.importorskip('torch', reason='the extra [parity] is not installed')
    transformers = pytest.importorskip('transformers', reason='the extra [parity] is not installed')
    torch.manual_seed(0)
    theirs = transformers.ModernBertModel(transformers.ModernBertConfig(
        vocab_size=300, pad_token_id=0, num_hidden_layers=3, hidden_size=128, num_attention_heads=4,
        intermediate_size=192))
    expected = {'table': theirs.embeddings.tok_embeddings}
    for their_name, name in IN_LAYER.items():
        expected[name] = theirs.layers[1].get_submodule(their_name)
    found = deviations(
        initializer='by_depth', pre_norm=True, gated=True, biases=False, positions='rotary')
    for name, module in expected.items():
        assert found[name] == pytest.approx(float(module.weight.detach().std()), rel=0.02), name
