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
    'ModernBERT': MODERNBERT,
    'GTE': {
        'positions': 'rotary', 'gated': True, 'layer_biases': 'not_intermediate',
        'type_vocab_size': 1, 'num_layers': 1},
    'EuroBERT': {
        **LLAMA, 'masked_lm_head': 'linear', 'pooling': 'late', 'pooler_act': 'gelu_erf',
        'num_layers': 1},
    'UltraBERT': {
        **LLAMA, 'masked_lm_head': 'two_layers', 'masked_lm_size': 6, 'pooler': False,
        'pooling': 'mean', 'local_attention': 6, 'first_global': 1, 'layer_biases': 'all'},
    'MPNet and DistilBERT': {
        'relative_positions': True, 'first_position': 2, 'type_vocab_size': 0, 'pooler_act': 'relu',
        'num_layers': 1},
    'ALBERT and ELECTRA': {
        'shared_layers': True, 'embedding_size': 6, 'pooler_act': 'gelu_erf'},
    'BERT, causal and mean': {
        'causal': True, 'pooling': 'mean', 'local_attention': 4, 'num_layers': 1},
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


def alone_batch():
    """Two rows of each sequence, as long as the packed ones."""
    places = np.tile(np.arange(24, dtype=np.int32), (6, 1))
    mask = (places < np.repeat(LENGTHS, 2)[:, None]).astype(np.int32)
    return {
        'input_ids': np.concatenate([padded(ids, 24 - ids.shape[1]) for ids in TOKENS]),
        'sequence_ids': mask,
        'segment_ids': mask * (places > 3),
        'position_ids': mask * places,
        'cls_positions': np.zeros((6, 3), np.int32),
    }


def arguments(batch):
    names = ('input_ids', 'sequence_ids', 'segment_ids')
    return [batch[name] for name in names] + [None, batch.get('position_ids')]


def encode(config, params, *inputs):
    outputs = jit(lambda *x: Bert(config).apply({'params': params['bert']}, *x))(*inputs)
    return jax.device_get(outputs)


WANTED = np.array([[0, 9, 20, 20], [14, 3, 2, 8]])


@pytest.fixture(scope='module')
def outputs(config, params):
    """The outputs of the packed rows and then those of single sequences; those at WANTED."""
    batch = jax.tree.map(lambda *x: np.concatenate(x), packed_batch(), alone_batch())
    wanted = np.concatenate([WANTED, np.zeros((6, 4), int)])

    @jit
    def compute(params, batch, wanted):
        inputs = arguments(batch)
        variables = {'params': params['bert']}
        whole = Bert(config).apply(variables, *inputs, batch['cls_positions'])
        by_cls = dataclasses.replace(config, pooling='cls')
        return whole, Bert(by_cls).apply(variables, *inputs, None, wanted)

    return jax.device_get(compute(params, batch, wanted))


def test_a_packed_row_is_its_sequences_alone(outputs):
    whole, _ = outputs
    together, alone = whole['sequence_output'][:2], whole['sequence_output'][2:]
    pooled, pooled_alone = whole['pooled_output'][:2], whole['pooled_output'][2:, 0]
    for number, (end, length) in enumerate(zip(np.cumsum(LENGTHS), LENGTHS, strict=True)):
        rows = slice(2 * number, 2 * number + 2)
        np.testing.assert_allclose(
            together[:, end - length : end], alone[rows, :length], atol=2e-5)
        np.testing.assert_allclose(pooled[:, number], pooled_alone[rows], atol=2e-5)


def test_wanted_positions_give_the_rows_of_the_whole_output(outputs):
    whole, some = outputs
    of_whole = whole['sequence_output'][np.arange(2)[:, None], WANTED]
    np.testing.assert_allclose(some['sequence_output'][:2], of_whole, atol=2e-5)


@pytest.mark.parametrize('family, remat, num_layers', [
    ('ModernBERT', ['full'], 2), ('EuroBERT', ['dots'], 1),
    ('ALBERT and ELECTRA', ['full'], 2)])
def test_rematerialisation_changes_nothing_with_dropout_on(family, remat, num_layers):
    noisy = dataclasses.replace(
        with_options(family), num_layers=num_layers, hidden_dropout=0.2, attention_dropout=0.2,
        pooler_dropout=0.3)
    params = random_params(Pretraining(noisy))
    batch = packed_batch()
    rows = drop.dropout_keys(3, 5, np.arange(2))

    def gradient(params, way):
        def loss(params):
            ids, numbers, segments, _, positions = arguments(batch)
            outputs = Bert(dataclasses.replace(noisy, remat=way)).apply(
                {'params': params}, ids, numbers, segments, rows, positions,
                batch['cls_positions'])
            real = jnp.asarray(numbers > 0)[..., None]
            return jnp.sum(outputs['sequence_output']**3 * real) + jnp.sum(
                outputs['pooled_output']**3)

        return jax.value_and_grad(loss)(params)

    @jit
    def gradients(params):  # at once, so that the compiler sees most of the forward pass once
        return [gradient(params, way) for way in (noisy.remat, *remat)]

    expected, *others = jax.device_get(gradients(params['bert']))
    for found in others:
        assert_close(found, expected, rtol=2e-3, atol=2e-4)
    largest = jax.tree.map(lambda x: float(np.abs(x).max()), expected[1])
    assert all(x > 0 for x in jax.tree.leaves(largest))


@pytest.mark.parametrize('family', [
    'ALBERT and ELECTRA', 'ModernBERT', 'EuroBERT', 'UltraBERT'])
def test_an_export_s_outputs_are_those_of_the_head(family):
    """Exports have one sequence a row and no position ids."""
    config = dataclasses.replace(with_options(family), num_layers=1)
    heads = [kind(config, 2) for kind in (Classification, Tagging, QuestionAnswering)]
    params = [random_params(head) for head in heads]
    encoder = params[0]['bert']  # of all: the compiler computes it once
    parts = [list(of_head.pop('bert')) for of_head in params]
    ids = padded(TOKENS[0])
    mask = (ids > 0).astype(np.int32)
    batch = {'input_ids': ids, 'sequence_ids': mask, 'segment_ids': 0 * ids,
             'cls_positions': np.zeros((2, 1), np.int32)}

    @jit
    def compute(encoder, params):
        exported, outputs = [], []
        for head, of_head, names in zip(heads, params, parts, strict=True):
            every = {**of_head, 'bert': {name: encoder[name] for name in names}}
            pooled = 'pooler' in names or not config.pooler
            bert = Bert(config, pooled=pooled)
            out = bert.apply({'params': every['bert']}, ids, mask, 0 * ids)
            exported.append(head.outputs_from_hidden(
                every, out['sequence_output'], out['pooled_output']))
            outputs.append(head.outputs(every, batch))
        return exported, outputs

    for head, found, expected in zip(
            heads, *jax.device_get(compute(encoder, params)), strict=True):
        for name, x in found.items():
            there = expected[name]
            if isinstance(head, Classification):
                there = there[:, 0]
            real = mask > 0 if x.shape[:2] == mask.shape else ...
            np.testing.assert_allclose(x[real], there[real], atol=2e-5, err_msg=str(type(head)))


def test_the_rows_before_the_first_position_are_never_used():
    config = dataclasses.replace(CONFIG, first_position=2, num_layers=1)
    params = random_params(Pretraining(config))
    embeddings = params['bert']['embeddings']
    embeddings['position_embeddings'][:2] = np.nan
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


def test_grouped_heads_are_heads_with_equal_keys_and_values():
    config = dataclasses.replace(
        CONFIG, num_layers=1, num_heads=4, num_kv_heads=2, layer_biases='all')
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
    config = dataclasses.replace(CONFIG, pooler_dropout=0.5, num_layers=1)
    params = random_params(Pretraining(config))
    batch = packed_batch()
    ids, numbers, segments, _, positions = arguments(batch)
    rows = drop.dropout_keys(3, 5, np.arange(2))
    inputs = (ids, numbers, segments, rows, positions, batch['cls_positions'])
    found = encode(config, params, *inputs)
    read = np.asarray(jax.jit(lambda x: drop.dropout(x, 0.5, rows, drop.POOLER))(
        found['sequence_output'][np.arange(2)[:, None], batch['cls_positions']]))
    dense = params['bert']['pooler']['dense']
    expected = np.tanh(read @ dense['kernel'] + dense['bias'])
    np.testing.assert_allclose(found['pooled_output'], expected, atol=1e-5)
    assert (read == 0).mean() > 0.3
