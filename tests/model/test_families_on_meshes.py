"""A step of each newer family on a mesh of data, fsdp and tensor axes is that on one device."""

import dataclasses

import jax
import numpy as np
import optax
import pytest
from flax.traverse_util import flatten_dict

from bert_jax.heads.pretraining import Pretraining
from bert_jax.model.layers import ModelConfig
from bert_jax.sharding import Layout, make_mesh
from tests.tiny_models import assert_close, drawn_state, fixed_step

pytestmark = pytest.mark.slow

CONFIG = ModelConfig(
    vocab_size=64, num_layers=1, hidden_size=32, num_heads=4, intermediate_size=24,
    max_position_embeddings=16, hidden_dropout=0.1, attention_dropout=0.1)
LLAMA = {
    'pre_norm': True, 'norm': 'rms', 'embedding_norm': False, 'gated': True, 'hidden_act': 'silu',
    'layer_biases': 'none', 'positions': 'rotary', 'type_vocab_size': 0, 'num_kv_heads': 2}
OPTIONS = {
    'UltraBERT': {
        **LLAMA, 'masked_lm_head': 'two_layers', 'masked_lm_size': 24, 'pooler': False,
        'local_attention': 6, 'first_global': 1, 'num_layers': 2},
    'MPNet and ALBERT': {
        'relative_positions': True, 'first_position': 2, 'type_vocab_size': 0,
        'shared_layers': True, 'embedding_size': 16, 'num_layers': 2,
        'masked_lm_head': 'linear'},  # as of GTE
}


def batch_of(rows, length):
    rng = np.random.default_rng(0)
    return {
        'input_ids': rng.integers(1, 64, (rows, length)).astype(np.int32),
        'sequence_ids': np.tile(np.repeat([1, 0], [length - 3, 3]), (rows, 1)).astype(np.int32),
        'segment_ids': np.zeros((rows, length), np.int32),
        'masked_lm_positions': rng.integers(1, length - 3, (rows, 3)).astype(np.int32),
        'masked_lm_ids': rng.integers(1, 64, (rows, 3)).astype(np.int32),
        'masked_lm_weights': np.ones((rows, 3), np.float32),
        'example_weights': np.ones(rows, np.float32)}


def after_a_step(config, mesh):
    """The parameters and the loss after a step of plain gradient descent."""
    head = Pretraining.of_pretraining(
        dataclasses.replace(config, layout=Layout(mesh)), next_sentence=False)
    optimizer = optax.sgd(1.0)
    state = drawn_state(head, optimizer, mesh, scale=0.1)
    step = fixed_step(head, optimizer, optax.constant_schedule(1.0), mesh, clip_norm=0.0)
    state, metrics = step(state, batch_of(8, 12))
    return flatten_dict(jax.device_get(state.params), sep='/'), float(metrics['mlm_loss'])


@pytest.mark.parametrize('family', OPTIONS)
def test_a_mesh_changes_nothing(family):
    config = dataclasses.replace(CONFIG, **OPTIONS[family])
    expected, loss = after_a_step(config, make_mesh(1, 1, 1, jax.devices()[:1]))
    found, on_mesh = after_a_step(config, make_mesh(2, 2, 2))
    assert on_mesh == pytest.approx(loss, rel=1e-5)
    assert_close(found, expected, rtol=0, atol=2e-5)
