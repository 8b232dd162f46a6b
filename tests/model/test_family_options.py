"""The options of BERT's family, each against the same model computed in another way."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.heads.classification import Classification
from bert_jax.heads.pretraining import Pretraining
from bert_jax.heads.tokens import QuestionAnswering, Tagging
from bert_jax.kernels import dropout as drop
from bert_jax.model.encoder import Bert
from bert_jax.model.flops import key_value_flops
from bert_jax.model.layers import LayerNorm, ModelConfig
from tests.tiny_models import assert_close, jit, random_like

pytestmark = pytest.mark.slow

CONFIG = ModelConfig(
    vocab_size=90, num_layers=2, hidden_size=16, num_heads=2, intermediate_size=24,
    max_position_embeddings=26, hidden_dropout=0.0, attention_dropout=0.0)
MODERNBERT = {
    'pre_norm': True, 'gated': True, 'biases': False, 'positions': 'rotary', 'type_vocab_size': 0,
    'local_attention': 6, 'global_every': 2, 'rotary_base': 900.0, 'local_rotary_base': 30.0,
    'pooler_act': 'gelu_erf', 'pooler_norm': True, 'pooling': 'mean', 'pools_tokens': True}
LLAMA = {
    'pre_norm': True, 'norm': 'rms', 'embedding_norm': False, 'gated': True, 'hidden_act': 'silu',
    'layer_biases': 'none', 'positions': 'rotary', 'type_vocab_size': 0, 'num_kv_heads': 1}
OPTIONS = {
    'RoBERTa': {'first_position': 2, 'type_vocab_size': 1},
    'ELECTRA': {'embedding_size': 6, 'pooler_act': 'gelu_erf'},
    'DistilBERT': {'type_vocab_size': 0, 'pooler_act': 'relu'},
    'ModernBERT': MODERNBERT,
    'ModernBERT, causal': {**MODERNBERT, 'causal': True},
    'GTE': {
        'positions': 'rotary', 'gated': True, 'layer_biases': 'not_intermediate'},
    'EuroBERT': {
        **LLAMA, 'masked_lm_head': 'linear', 'pooling': 'late', 'pooler_act': 'gelu_erf'},
    'UltraBERT': {
        **LLAMA, 'masked_lm_head': 'two_layers', 'masked_lm_size': 6, 'pooler': False,
        'pooling': 'mean', 'local_attention': 6, 'first_global': 1, 'layer_biases': 'all'},
    'MPNet': {'relative_positions': True, 'first_position': 2, 'type_vocab_size': 0},
    'ALBERT': {'shared_layers': True, 'embedding_size': 6},
    'BERT, mean': {'pooling': 'mean', 'local_attention': 4},
}
LENGTHS = (9, 5, 7)  # of packed sequences; then there are three tokens of padding
PLACES = np.concatenate([np.arange(n) for n in LENGTHS])
NUMBERS = np.repeat([1, 2, 3], LENGTHS)
RNG = np.random.default_rng(0)
TOKENS = [RNG.integers(1, 90, (2, n)) for n in LENGTHS]  # of two rows


@pytest.fixture(scope='module', params=OPTIONS, ids=str)
def config(request):
    return with_options(request.param)


@pytest.fixture(scope='module')
def params(config):
    return random_params(Pretraining(config))


def with_options(family):
    return dataclasses.replace(CONFIG, **OPTIONS[family])


def random_params(head):
    return random_like(jax.eval_shape(head.init, jax.random.key(0)), scale=0.5)


def padded(x, missing=3):
    """A row [n], or rows, with zeros behind, as two rows."""
    x = np.broadcast_to(x, (2, x.shape[-1]))
    return np.pad(x, ((0, 0), (0, missing)))


def packed_batch():
    """Two rows of three sequences each, with padding."""
    ids = padded(np.concatenate(TOKENS, axis=1))
    starts = np.cumsum((0, *LENGTHS[:-1]))
    return {
        'input_ids': ids,
        'sequence_ids': padded(NUMBERS),
        'segment_ids': padded((PLACES > 3).astype(np.int32)),
        'position_ids': padded(PLACES),
        'cls_positions': np.tile(starts, (2, 1)),
    }


def arguments(batch):
    names = ('input_ids', 'sequence_ids', 'segment_ids')
    return [batch[name] for name in names] + [None, batch.get('position_ids')]


def encode(config, params, *inputs):
    outputs = jit(lambda *x: Bert(config).apply({'params': params['bert']}, *x))(*inputs)
    return jax.device_get(outputs)


@pytest.fixture(scope='module')
def whole(config, params):
    """The outputs of the packed batch."""
    batch = packed_batch()
    return encode(config, params, *arguments(batch), batch['cls_positions'])


def test_a_packed_row_is_its_sequences_alone(config, params, whole):
    ids = np.concatenate([padded(ids, 11 - ids.shape[1]) for ids in TOKENS])  # two rows of each
    mask = np.repeat([np.arange(11) < n for n in LENGTHS], 2, axis=0).astype(np.int32)
    alone = encode(config, params, ids, mask, mask * (np.arange(11) > 3))
    for number, (end, length) in enumerate(zip(np.cumsum(LENGTHS), LENGTHS, strict=True)):
        rows = slice(2 * number, 2 * number + 2)
        np.testing.assert_allclose(
            whole['sequence_output'][:, end - length : end],
            alone['sequence_output'][rows, :length], atol=2e-5)
        np.testing.assert_allclose(
            whole['pooled_output'][:, number], alone['pooled_output'][rows], atol=2e-5)


def test_wanted_positions_give_the_rows_of_the_whole_output(config, params, whole):
    wanted = np.array([[0, 9, 20, 20], [14, 3, 2, 8]])
    cls_config = dataclasses.replace(config, pooling='cls')
    some = encode(cls_config, params, *arguments(packed_batch()), None, wanted)['sequence_output']
    of_whole = whole['sequence_output'][np.arange(2)[:, None], wanted]
    np.testing.assert_allclose(some, of_whole, atol=2e-5)


@pytest.mark.parametrize('family, remat', [
    ('ELECTRA', 'full'), ('ModernBERT', 'dots'), ('ModernBERT', 'full'), ('EuroBERT', 'full'),
    ('ALBERT', 'full')])
def test_rematerialisation_changes_nothing_with_dropout_on(family, remat):
    params = random_params(Pretraining(with_options(family)))
    batch = packed_batch()
    noisy = dataclasses.replace(
        with_options(family), hidden_dropout=0.2, attention_dropout=0.2, pooler_dropout=0.3)
    rows = drop.dropout_rows(3, 5, jnp.arange(2))

    def gradients(config):
        def loss(params):
            ids, numbers, segments, _, positions = arguments(batch)
            outputs = Bert(config).apply(
                {'params': params}, ids, numbers, segments, rows, positions,
                batch['cls_positions'])
            real = jnp.asarray(numbers > 0)[..., None]
            return jnp.sum(outputs['sequence_output']**3 * real) + jnp.sum(
                outputs['pooled_output']**3)

        return jax.device_get(jit(jax.value_and_grad(loss))(params['bert']))

    expected = gradients(noisy)
    assert_close(gradients(dataclasses.replace(noisy, remat=remat)), expected, rtol=2e-3, atol=2e-4)
    largest = jax.tree.map(lambda x: float(np.abs(x).max()), expected[1])
    assert all(x > 0 for x in jax.tree.leaves(largest))


@pytest.mark.parametrize('family', ['ELECTRA', 'ModernBERT', 'EuroBERT', 'UltraBERT'])
@pytest.mark.parametrize('kind', [Classification, Tagging, QuestionAnswering])
def test_an_export_s_outputs_are_those_of_the_head(family, kind):
    """Exports have one sequence a row and no position ids."""
    config = with_options(family)
    head = kind(config, 2)
    params = random_params(head)
    ids = padded(TOKENS[0])
    mask = (ids > 0).astype(np.int32)
    batch = {'input_ids': ids, 'sequence_ids': mask, 'segment_ids': 0 * ids,
             'cls_positions': np.zeros((2, 1), np.int32)}
    expected = jax.device_get(jit(head.outputs)(params, batch))

    def export(params):
        pooled = 'pooler' in params['bert'] or not config.pooler
        out = Bert(config, pooled=pooled).apply({'params': params['bert']}, ids, mask, 0 * ids)
        return head.outputs_from_hidden(params, out['sequence_output'], out['pooled_output'])

    for name, x in jax.device_get(jit(export)(params)).items():
        there = expected[name]
        if kind is Classification:
            there = there[:, 0]
        real = mask > 0 if x.shape[:2] == mask.shape else ...
        np.testing.assert_allclose(x[real], there[real], atol=2e-5)


def test_the_rows_before_the_first_position_are_never_used():
    config = dataclasses.replace(CONFIG, first_position=2)
    params = random_params(Pretraining(config))
    embeddings = params['bert']['embeddings']
    embeddings['position_embeddings'] = embeddings['position_embeddings'].at[:2].set(jnp.nan)
    batch = packed_batch()
    for inputs in (arguments(batch), arguments(batch)[:3]):
        outputs = encode(config, params, *inputs)
        assert np.isfinite(outputs['sequence_output']).all()


def test_each_layer_has_its_own_window_and_base():
    config = dataclasses.replace(
        CONFIG, local_attention=8, global_every=3, rotary_base=5.0, local_rotary_base=2.0)
    layers = [config.of_layer(i) for i in range(7)]
    assert [layer.local_attention for layer in layers] == [0, 8, 8, 0, 8, 8, 0]
    assert [layer.rotary_base for layer in layers] == [5.0, 2.0, 2.0, 5.0, 2.0, 2.0, 5.0]
    assert CONFIG.of_layer(1) is CONFIG


def test_the_first_global_layer():
    config = dataclasses.replace(CONFIG, local_attention=8, global_every=3, first_global=2)
    assert [config.of_layer(i).local_attention for i in range(6)] == [8, 8, 0, 8, 8, 0]


@pytest.mark.parametrize('biased', [False, True])
def test_grouped_heads_are_heads_with_equal_keys_and_values(biased):
    config = dataclasses.replace(
        CONFIG, num_heads=4, num_kv_heads=2, layer_biases='all' if biased else 'none')
    params = random_params(Pretraining(config))
    every = dataclasses.replace(config, num_kv_heads=0)
    repeated = jax.tree.map(lambda x: x, params)
    for layer in repeated['bert']['encoder'].values():
        projections = layer['attention']['self']
        query, both = projections.pop('query'), projections.pop('key_value')
        projections['qkv'] = {
            name: np.concatenate([np.expand_dims(x, -3), np.repeat(both[name], 2, -2)], -3)
            for name, x in query.items()}
    found, expected = (
        encode(*case, *arguments(packed_batch()))['sequence_output']
        for case in ((config, params), (every, repeated)))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert key_value_flops(config) * 2 == key_value_flops(every)


def test_an_rms_norm_is_that_of_its_formula():
    config = dataclasses.replace(CONFIG, norm='rms', layer_norm_eps=0.5)
    x, scale = RNG.normal(1.0, 2.0, (2, 5, 16)), RNG.normal(size=16)
    found = LayerNorm(config).apply({'params': {'scale': scale}}, x)
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 0.5) * scale
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_pooler_dropout_is_in_front_of_the_pooler():
    config = dataclasses.replace(CONFIG, pooler_dropout=0.5)
    params = random_params(Pretraining(config))
    batch = packed_batch()
    ids, numbers, segments, _, positions = arguments(batch)
    rows = drop.dropout_rows(3, 5, jnp.arange(2))
    inputs = (ids, numbers, segments, rows, positions, batch['cls_positions'])
    found = encode(config, params, *inputs)
    read = drop.dropout(
        found['sequence_output'][np.arange(2)[:, None], batch['cls_positions']], 0.5, rows,
        drop.POOLER)
    dense = params['bert']['pooler']['dense']
    expected = np.tanh(read @ dense['kernel'] + dense['bias'])
    np.testing.assert_allclose(found['pooled_output'], expected, atol=1e-5)
    assert (np.asarray(read) == 0).mean() > 0.3
