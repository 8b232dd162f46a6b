"""TF1 checkpoints: names and shapes of the original's, there and back, what is refused."""

import json
import shutil

import numpy as np
import pytest
from run_model import RECORDED, assert_same

from bert_jax.config.bert_config import BertConfig
from bert_jax.runtime.errors import InputError
from bert_jax.weights import load_weights
from bert_jax.weights.formats import Weights, sizes_of, tensors
from bert_jax.weights.tf1 import write_tf1

tf = pytest.importorskip('tensorflow', reason='it reads and writes TF1 checkpoints')

def test_a_checkpoint_has_the_names_and_shapes_of_googles(shared_data, tmp_path):
    """Of BERT-Medium as it was published."""
    released = shared_data / 'checkpoint_index' / 'uncased_L-8_H-512_A-8'
    model = vars(BertConfig(
        vocab_size=30522, num_layers=8, hidden_size=512, num_heads=8, intermediate_size=2048))
    params = {
        tensor.name: np.zeros(tensor.shape(sizes_of(model)), np.float32)
        for tensor in tensors(model) if not tensor.name.startswith(('classifier/', 'cls/squad/'))
    }
    weights = Weights(params, model, 'pretraining', (), None, True, (), 'zeros')
    notes = write_tf1(tmp_path / 'tf1', weights)
    assert notes == ['no vocab.txt: there is no vocabulary']
    expected = tf.train.list_variables(str(released / 'bert_model.ckpt'))
    assert len(expected) == 142
    assert tf.train.list_variables(str(tmp_path / 'tf1' / 'bert_model.ckpt')) == expected
    config = json.loads((tmp_path / 'tf1' / 'bert_config.json').read_text())
    assert config | json.loads((released / 'bert_config.json').read_text()) == config


def test_what_the_original_cannot_say_is_said_and_kept(tmp_path):
    weights = load_weights(RECORDED / 'base')  # erf form, epsilon 1e-5
    notes = write_tf1(tmp_path / 'tf1', weights)
    assert any('hidden_act is gelu_erf' in note for note in notes)
    assert any('layer_norm_eps is 1e-05' in note for note in notes)
    config = json.loads((tmp_path / 'tf1' / 'bert_config.json').read_text())
    assert config['hidden_act'] == 'gelu'
    del config['gelu_form'], config['layer_norm_eps']
    (tmp_path / 'tf1' / 'bert_config.json').write_text(json.dumps(config))
    model = load_weights(tmp_path / 'tf1').model
    assert model == weights.model | {'hidden_act': 'gelu_tanh', 'layer_norm_eps': 1e-12}


def test_moments_and_counters_are_not_parameters(tmp_path):
    write_tf1(tmp_path / 'tf1', load_weights(RECORDED / 'pretraining'))
    prefix = tmp_path / 'tf1' / 'bert_model.ckpt'
    reader = tf.train.load_checkpoint(str(prefix))
    arrays = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    moments = {f'{name}/adam_{x}': array for name, array in arrays.items() for x in 'mv'}
    arrays |= moments | {'global_step': np.int64(7), 'other/kernel': np.zeros(3, np.float32)}
    tf.raw_ops.SaveV2(
        prefix=str(prefix), tensor_names=list(arrays), shape_and_slices=[''] * len(arrays),
        tensors=list(arrays.values()),
    )
    weights = load_weights(prefix)
    assert weights.unused == ('other/kernel',)
    assert_same(weights, load_weights(RECORDED / 'pretraining'))


def test_the_config_may_lie_one_folder_up(tmp_path):
    weights = load_weights(RECORDED / 'pretraining')
    write_tf1(tmp_path / 'model' / 'init', weights)
    for name in ('bert_config.json', 'vocab.txt'):
        shutil.move(tmp_path / 'model' / 'init' / name, tmp_path / 'model' / name)
    again = load_weights(tmp_path / 'model' / 'init' / 'bert_model.ckpt')
    assert_same(weights, again)
    assert again.vocab_file == tmp_path / 'model' / 'vocab.txt'


def test_a_checkpoint_by_another_name(tmp_path):
    weights = load_weights(RECORDED / 'classification')
    write_tf1(tmp_path / 'tf1', weights)
    for path in (tmp_path / 'tf1').glob('bert_model.ckpt.*'):
        path.rename(path.with_name(path.name.replace('bert_model.ckpt', 'model.ckpt-100')))
    with pytest.raises(InputError, match=r'such as .*model\.ckpt-100$'):
        load_weights(tmp_path / 'tf1')
    for spelling in ('', '.index', '.data-00000-of-00001'):
        assert_same(weights, load_weights(tmp_path / 'tf1' / f'model.ckpt-100{spelling}'))
