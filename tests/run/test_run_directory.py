"""Run directories: runs on any mesh, which checkpoint is read, vocabularies that are smaller."""

import json
import shutil

import jax
import numpy as np
import optax
import pytest

from bert_jax.config.bert_config import OPTIONS
from bert_jax.foreign import load_weights
from bert_jax.foreign.huggingface import write_huggingface
from bert_jax.heads.pretraining import Pretraining
from bert_jax.model.layers import ModelConfig
from bert_jax.run.checkpoint import Best, Checkpoints
from bert_jax.run.layout import step_to_read
from bert_jax.run.model import read_description
from bert_jax.runtime.errors import InputError
from bert_jax.sharding import Layout, make_mesh
from bert_jax.step.step import abstract_state
from bert_jax.weights.parameters import from_tree
from tests.foreign.run_model import RECORDED, assert_same_params

pytestmark = pytest.mark.slow

MODEL = {
    'vocab_size': 40, 'num_layers': 2, 'hidden_size': 8, 'num_heads': 2, 'intermediate_size': 16,
    'max_position_embeddings': 10, 'type_vocab_size': 2, 'hidden_act': 'gelu_tanh',
    'layer_norm_eps': 1e-12, 'initializer_range': 0.02, 'hidden_dropout': 0.1,
    'attention_dropout': 0.1}


def state_of(axes, seed=0):
    """A state sharded as in training, with random numbers in every array."""
    mesh = make_mesh(*axes)
    config = ModelConfig(**MODEL, layout=Layout(mesh))
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda x: jax.device_put(rng.normal(size=x.shape).astype(x.dtype), x.sharding),
        abstract_state(Pretraining(config), optax.adam(1e-3), mesh))


def run_of(folder, states):
    """A run directory as training writes it, with the checkpoints {step: state}."""
    checkpoints = Checkpoints(folder / 'checkpoints', 9)
    for step, state in states.items():
        checkpoints.save(step, state)
    checkpoints.close()
    (folder / 'config.json').write_text(json.dumps({
        'task': 'pretrain', 'model': MODEL | {'name': 'tiny', 'scan_layers': False},
        'data': {'lowercase': False}}))
    shutil.copy(RECORDED / 'base' / 'vocab.txt', folder)
    return folder


@pytest.fixture(scope='module')
def states():
    return {step: state_of((8, 1, 1), seed=step) for step in (2, 10)}


@pytest.fixture(scope='module')
def saved(states, tmp_path_factory):
    return run_of(tmp_path_factory.mktemp('saved'), states)


@pytest.fixture
def run(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / 'run')


@pytest.mark.parametrize('axes', [(8, 1, 1), (2, 2, 2)])
def test_a_run_of_any_mesh(tmp_path, axes):
    state = state_of(axes)
    weights = load_weights(run_of(tmp_path, {3: state}))
    assert_same_params(from_tree(jax.device_get(state.params), MODEL['vocab_size']), weights.params)
    younger = {
        option.name: option.default for option in OPTIONS if option.name not in MODEL}
    assert weights.model == MODEL | younger
    assert weights.head == 'pretraining' and weights.labels == ()
    assert weights.vocab_file == tmp_path / 'vocab.txt' and weights.lowercase is False
    assert weights.source.endswith('step 3')


def test_the_newest_checkpoint_is_read(run, states):
    for named, step in ((run, 10), (run / 'checkpoints' / '2', 2)):  # or the one that is named
        weights = load_weights(named)
        words = states[step].params['bert']['embeddings']['word_embeddings'][:40]
        np.testing.assert_array_equal(weights.params['bert/embeddings/word_embeddings'], words)
        assert weights.source.endswith(f'step {step}')


def test_the_best_evaluation_is_read_where_it_is_kept(run, states):
    best = Best(run / 'best', 'accuracy')
    best.offer(2, {'accuracy': 0.5}, states[2].params)
    best.close()
    weights = load_weights(run)
    assert weights.source.endswith('step 2 (its best evaluation)')
    assert step_to_read(run) == run / 'best' / '2'
    assert step_to_read(run / 'checkpoints' / '10') == run / 'checkpoints' / '10'
    assert step_to_read(run / 'best') is None
    assert_same_params(weights.params, from_tree(jax.device_get(states[2].params), 40))


def test_a_checkpoint_has_the_rotary_base_of_its_phase(run):
    change_config(run, model={'rotary_base': 500.0}, phases=[
        {'steps': 2}, {'steps': 1, 'rotary_base': 7000.0}, {'steps': 7, 'rotary_base': 9000.0}])
    assert load_weights(run).model['rotary_base'] == 9000.0
    assert load_weights(run / 'checkpoints' / '2').model['rotary_base'] == 500.0
    assert read_description(run).model['rotary_base'] == 500.0, 'this is what a run resumes with'


def change_config(run, model, **fields):
    """Changes fields of a run's config.json, and some of its model."""
    config = json.loads((run / 'config.json').read_text())
    config['model'] |= model
    (run / 'config.json').write_text(json.dumps(config | fields))


@pytest.mark.parametrize('phases, words', [
    ([{'rotary_base': 7000.0}], 'without its steps'),
    ([{'steps': 99, 'rotary_base': 'high'}], "rotary_base='high' must be"),
])
def test_phases_that_are_none_are_refused(run, phases, words):
    change_config(run, model={}, phases=phases)
    with pytest.raises(InputError, match=words):
        load_weights(run)


@pytest.mark.parametrize('next_sentence', [True, False])
def test_a_next_sentence_head_that_was_not_trained_is_no_part_of_the_model(run, next_sentence):
    config = json.loads((run / 'config.json').read_text())
    config['data']['next_sentence'] = next_sentence
    (run / 'config.json').write_text(json.dumps(config))
    weights = load_weights(run)
    assert weights.has('cls/seq_relationship') == next_sentence
    assert weights.has('cls/predictions') and weights.has('bert/pooler')
    assert weights.head == 'pretraining'


def test_a_vocabulary_may_be_smaller_than_the_embedding(run):
    """model.vocab_size may be set; exports have names for the rows without a token."""
    tokens = (run / 'vocab.txt').read_text().split()
    (run / 'vocab.txt').write_text('\n'.join(tokens[:-3]) + '\n')
    weights = load_weights(run)
    write_huggingface(run / 'hf', weights)
    assert load_weights(run / 'hf').vocab_file.read_text().splitlines() == [
        *tokens[:-3], '[unused row 37]', '[unused row 38]', '[unused row 39]']
