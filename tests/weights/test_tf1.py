"""TF1 checkpoints: names and shapes of the original's, there and back, what is refused."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from bert_jax.config.bert_config import BertConfig
from bert_jax.runtime.errors import InputError
from bert_jax.weights import load_weights
from bert_jax.weights.formats import Weights, sizes_of, tensors
from bert_jax.weights.tf1 import write_tf1

tf = pytest.importorskip('tensorflow', reason='it reads and writes TF1 checkpoints')

RECORDED = Path(__file__).parents[1] / 'fixtures' / 'huggingface'


def assert_same(a, b):
    assert a.params.keys() == b.params.keys()
    for name in a.params:
        assert b.params[name].dtype == np.float32
        np.testing.assert_array_equal(a.params[name], b.params[name], err_msg=name)
    for field in ('model', 'head', 'labels', 'lowercase'):
        assert getattr(a, field) == getattr(b, field)


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


def lose(name):
    return lambda folder: (folder / name).unlink()


def halve(name):
    return lambda folder: (folder / name).write_bytes(
        (folder / name).read_bytes()[: (folder / name).stat().st_size // 2])


def flip_a_bit(name):
    def change(folder):
        data = bytearray((folder / name).read_bytes())
        data[len(data) // 2] ^= 1
        (folder / name).write_bytes(data)
    return change


def say(**changes):
    def change(folder):
        path = folder / 'bert_config.json'
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return change


DATA = 'bert_model.ckpt.data-00000-of-00001'
BAD = {
    'no data': (lose(DATA), [DATA, 'missing']),
    'no index': (lose('bert_model.ckpt.index'), ['bert_model.ckpt.index is missing']),
    'half the data': (halve(DATA), ['bert_model.ckpt cannot be read']),
    'a flipped bit': (flip_a_bit(DATA), ['bert_model.ckpt cannot be read']),
    'half the index': (halve('bert_model.ckpt.index'), ['bert_model.ckpt cannot be read']),
    'no config': (lose('bert_config.json'), ['bert_config.json is missing']),
    'no JSON': (halve('bert_config.json'), ['bert_config.json', 'JSON']),
    'layers': (say(num_hidden_layers=5), ['has 2 layers', 'there are 5']),
    'sizes': (say(intermediate_size=13), ['intermediate/dense/kernel', '[8, 12]', '[8, 13]']),
    'activation': (say(hidden_act='relu'), ["hidden_act='relu'"]),
    'form of gelu': (say(gelu_form='quick'), ["gelu_form='quick'"]),
    'head': (say(head='parser'), ["head='parser'"]),
    'another head': (say(head='question_answering'), ['question_answering', 'contradicts']),
    'vocabulary': (lambda folder: (folder / 'vocab.txt').write_text(
        '[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n'), ['has 6 tokens', 'has 40 rows']),
}


@pytest.mark.parametrize('name', BAD)
def test_bad_checkpoints_are_one_line(tmp_path, name):
    damage, words = BAD[name]
    write_tf1(tmp_path / 'tf1', load_weights(RECORDED / 'pretraining'))
    damage(tmp_path / 'tf1')
    path = tmp_path / 'tf1' / 'bert_model.ckpt'  # the prefix; the folder has no index in one case
    with pytest.raises(InputError) as error:
        load_weights(path)
    message = str(error.value)
    assert '\n' not in message
    for word in words:
        assert word in message


def test_an_index_without_data(shared_data):
    with pytest.raises(InputError, match='data-00000-of-00001 is missing'):
        load_weights(shared_data / 'checkpoint_index' / 'uncased_L-8_H-512_A-8')


def test_a_checkpoint_by_another_name(tmp_path):
    weights = load_weights(RECORDED / 'classification')
    write_tf1(tmp_path / 'tf1', weights)
    for path in (tmp_path / 'tf1').glob('bert_model.ckpt.*'):
        path.rename(path.with_name(path.name.replace('bert_model.ckpt', 'model.ckpt-100')))
    with pytest.raises(InputError, match=r'such as .*model\.ckpt-100$'):
        load_weights(tmp_path / 'tf1')
    for spelling in ('', '.index', '.data-00000-of-00001'):
        assert_same(weights, load_weights(tmp_path / 'tf1' / f'model.ckpt-100{spelling}'))
