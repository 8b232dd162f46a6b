"""Damaged, contradictory and foreign models: each is refused in one line that says why."""

import json
import shutil

import numpy as np
import pytest
from run_model import RECORDED
from safetensors.numpy import load_file, save_file

from bert_jax.runtime.errors import InputError
from bert_jax.weights import load_weights
from bert_jax.weights.huggingface import write_huggingface
from bert_jax.weights.run_directory import write_run

WEIGHTS, INDEX = 'model.safetensors', 'model.safetensors.index.json'
DATA = 'bert_model.ckpt.data-00000-of-00001'
ARRAYS = 'checkpoints/0/default'
DENSE = 'bert.encoder.layer.1.output.dense.'
TOKENS = {token: i for i, token in enumerate((RECORDED / 'base' / 'vocab.txt').read_text().split())}


@pytest.fixture(scope='module')
def models(tmp_path_factory):
    """A good folder of each format."""
    folder = tmp_path_factory.mktemp('models')
    weights = load_weights(RECORDED / 'pretraining')
    write_run(folder / 'run', weights)
    made = {name: RECORDED / name for name in ('pretraining', 'classification', 'base')}
    made['run'] = folder / 'run'
    write_huggingface(folder / 'shards', weights)
    tensors = load_file(folder / 'shards' / WEIGHTS)
    (folder / 'shards' / WEIGHTS).unlink()
    weight_map = {}
    for i, names in enumerate((sorted(tensors)[::2], sorted(tensors)[1::2]), 1):
        file = f'model-{i:05}-of-00002.safetensors'
        save_file({name: tensors[name] for name in names}, folder / 'shards' / file)
        weight_map |= dict.fromkeys(names, file)
    (folder / 'shards' / INDEX).write_text(json.dumps({'weight_map': weight_map}))
    made['shards'] = folder / 'shards'
    return made


@pytest.fixture(scope='module')
def tf1(tmp_path_factory):
    pytest.importorskip('tensorflow', reason='it reads and writes TF1 checkpoints')
    from bert_jax.weights.tf1 import write_tf1

    folder = tmp_path_factory.mktemp('tf1') / 'tf1'
    write_tf1(folder, load_weights(RECORDED / 'pretraining'))
    return folder


def lose(*names):
    def damage(folder):
        for name in names:
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return damage


def put(name, content):
    content = content if isinstance(content, (bytes, str)) else json.dumps(content)
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data)


def rewrite(name, change):
    """`change` of the bytes of a file, or of all files of a folder."""
    def damage(folder):
        path = folder / name
        for file in path.iterdir() if path.is_dir() else [path]:
            file.write_bytes(change(file.read_bytes()))
    return damage


def half(data):
    return data[: len(data) // 2]


def flip_a_bit(data):
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]


def config(name='config.json', /, section=None, **changes):
    """Fields of a JSON file set, or where None is given left out; the digest goes."""
    def damage(folder):
        said = json.loads((folder / name).read_text())
        said.pop('digest', None)
        inner = said[section] if section else said
        inner |= changes
        for field in [field for field, value in inner.items() if value is None]:
            del inner[field]
        (folder / name).write_text(json.dumps(said))
    return damage


def tensors(change):
    def damage(folder):
        changed = change(load_file(folder / WEIGHTS))
        save_file(changed, folder / WEIGHTS, metadata={'format': 'pt'})
    return damage


def without(*names):
    return tensors(lambda t: {name: x for name, x in t.items() if name not in names})


def vocabulary(change):
    return rewrite('vocab.txt', lambda data: '\n'.join(change(data.decode().split())).encode())


def tokenizer(content):
    def damage(folder):
        (folder / 'vocab.txt').unlink()
        (folder / 'tokenizer.json').write_text(json.dumps(content))
    return damage


HUGGINGFACE = [
    ('pretraining', tensors(lambda t: t | {DENSE + 'weight': np.ones((12, 8), np.float32)}),
     DENSE + 'weight', '[12, 8]', '[8, 12]', 'config.json'),
    ('pretraining', without(DENSE + 'bias'), f'has no tensor {DENSE}bias'),
    ('pretraining', without('cls.predictions.transform.dense.bias'),
     'has no tensor cls.predictions.transform.dense.bias'),
    ('pretraining', without('bert.pooler.dense.weight', 'bert.pooler.dense.bias'), 'pooler'),
    ('pretraining', tensors(lambda t: t | {
        'cls.predictions.decoder.weight': t['bert.embeddings.word_embeddings.weight'] + 1}),
     'cls.predictions.decoder.weight', 'not tied'),
    ('pretraining', tensors(lambda t: t | {'cls.predictions.bias': np.zeros(40, np.float64)}),
     'cls.predictions.bias', 'F64', 'float32'),
    ('pretraining', tensors(lambda t: t | {DENSE + 'bias': np.full(8, np.nan, np.float32)}),
     DENSE + 'bias holds NaN'),
    ('pretraining', config(num_hidden_layers=3), 'has 2 layers', 'there are 3'),
    ('pretraining', config(hidden_size=16), 'word_embeddings', '[40, 8]', '[40, 16]'),
    ('pretraining', config(num_attention_heads=3), 'num_attention_heads=3', 'hidden_size=8'),
    ('pretraining', config(hidden_size=None), 'has no hidden_size'),
    ('pretraining', config(hidden_size='8'), "hidden_size='8'", 'whole number'),
    ('pretraining', config(num_hidden_layers=True), 'num_hidden_layers=True', 'whole number'),
    ('pretraining', config(hidden_act='relu'), "hidden_act='relu'", 'gelu_new'),
    ('pretraining', config(hidden_act=['gelu']), "hidden_act=['gelu']"),
    ('pretraining', config(architectures='BertModel'), "architectures='BertModel'"),
    ('pretraining', config(model_type='roberta'), "model_type='roberta'"),
    ('pretraining', config(position_embedding_type='relative_key'), 'relative_key'),
    ('pretraining', config(is_decoder=True), 'is_decoder=True'),
    ('pretraining', config(add_cross_attention=True), 'add_cross_attention=True'),
    ('pretraining', config(architectures=['BertForQuestionAnswering']),
     'BertForQuestionAnswering', 'contradicts'),
    ('classification', config(id2label={'0': 'a', '1': 'b'}), "['a', 'b'] for 3 outputs"),
    ('classification', config(id2label={'0': 'a', '1': 'b', '3': 'c'}), 'does not map 0, 1'),
    ('classification', config(id2label={'0': 'a', '1': 'b', '2': 'a'}), "['a', 'b', 'a']"),
    ('classification', config(id2label=['a', 'b', 'c']), 'id2label'),
    ('classification', config(problem_type='regression'), '3 outputs'),
    ('classification', config(bert_jax_inference=[9]), 'bert_jax_inference=[9] is no JSON object'),
    *(('pretraining', rewrite(WEIGHTS, lambda data, size=size: data[:size]), WEIGHTS, 'download')
      for size in (0, 100, 5000)),
    ('pretraining', rewrite(WEIGHTS, lambda data: data[:20] + b'\xff' * 20 + data[40:]),
     'no whole safetensors file'),
    ('shards', lose('model-00002-of-00002.safetensors'),
     'model-00002-of-00002.safetensors is missing'),
    ('shards', rewrite(INDEX, lambda data: data.replace(b'predictions.bias', b'predictions.other')),
     'has no tensor cls.predictions.other'),
    *(('shards', put(INDEX, index), 'weight_map')
      for index in ({}, {'weight_map': {}}, {'weight_map': {'cls.predictions.bias': 1}})),
    ('pretraining', vocabulary(lambda t: t[:-2]), 'has 38 tokens', 'has 40 rows', 'add 2 lines'),
    ('pretraining', vocabulary(lambda t: [*t, 'more']), 'has 41 tokens', 'has 40 rows'),
    ('pretraining', vocabulary(lambda t: t[:-1] + [t[-2]]), 'vocab.txt', 'line 40'),
    ('pretraining', vocabulary(lambda t: [x for x in t if x != '[MASK]']), '[MASK]'),
    ('pretraining', tokenizer({'model': {'vocab': TOKENS | {',': 77}}}), 'not 0, 1, 2'),
    ('pretraining', tokenizer({'model': {'vocab': list(TOKENS)}}), 'no tokenizer file'),
    ('pretraining', tokenizer({}), 'no tokenizer file'),
    ('pretraining', tokenizer({
        'model': {'vocab': TOKENS}, 'added_tokens': [{'content': 'more', 'id': 40}]}),
     'has 41 tokens'),
    *(('pretraining', put('config.json', text), 'config.json')
      for text in ('{"hidden_size": 8', '[]', '', b'\xff\xfe')),
    ('pretraining', lose('config.json'), 'config.json is missing'),
    ('base', lose(WEIGHTS), 'model.safetensors is missing'),
    ('base', lambda folder: (folder / WEIGHTS).rename(folder / 'pytorch_model.bin'),
     'pickle', 'save_pretrained'),
]
# What formats share (sizes, shapes, heads, vocabularies) is above.
RUN = [('run', *case) for case in (
    (lose('config.json'), 'config.json is missing'),
    (config(model=None), 'no section "model"'),
    (lose('checkpoints/0'), 'no checkpoint'),
    (rewrite(ARRAYS + '/d', half), 'checkpoints/0 cannot be read', 'move it away'),
    (lose(ARRAYS), 'checkpoints/0 cannot be read'),
    (config(section='model', num_layers=3), 'has 2 layers', 'there are 3'),
    (config(section='model', num_heads=3), 'num_heads=3', 'hidden_size=8'),
    (config(section='model', quantum='maybe'), "config.json: model.quantum='maybe' is unknown"),
    (config(head='parser'), "head='parser'"),
    (config(inference=[9]), 'config.json: inference=[9] is no JSON object'),
    (rewrite('config.json', lambda data: data.replace(b'"num_layers": 2', b'"num_layers": 1')),
     'config.json is not what was written'),
    (vocabulary(lambda t: [*t, 'more']), 'not the vocabulary that the run was trained with'),
    (lambda folder: (config(vocabulary=None)(folder), vocabulary(lambda t: [*t, 'more'])(folder)),
     'has 41 tokens', 'has 40 rows'),
)]
CONFIG = 'bert_config.json'
TF1 = [('tf1', *case) for case in (
    (lose(DATA), DATA, 'missing'),
    (lose('bert_model.ckpt.index'), 'bert_model.ckpt.index is missing'),
    *((rewrite(*damage), 'bert_model.ckpt cannot be read') for damage in (
        (DATA, half), (DATA, flip_a_bit), ('bert_model.ckpt.index', half))),
    (lose(CONFIG), 'bert_config.json is missing'),
    (config(CONFIG, intermediate_size=13), 'intermediate/dense/kernel', '[8, 12]', '[8, 13]'),
    (config(CONFIG, hidden_act='relu'), "hidden_act='relu'"),
    (config(CONFIG, gelu_form='quick'), "gelu_form='quick'"),
    (config(CONFIG, head='parser'), "head='parser'"),
    (config(CONFIG, bert_jax_inference=[9]), 'bert_jax_inference=[9] is no JSON object'),
)]


def refusal(path):
    with pytest.raises(InputError) as error:
        load_weights(path)
    message = str(error.value)
    assert '\n' not in message
    return message


@pytest.mark.parametrize(('name', 'damage', 'words'), [
    pytest.param(name, damage, words, id=f'{name}: {words[0]}'[:60])
    for name, damage, *words in HUGGINGFACE + RUN + TF1])
def test_a_bad_model_is_one_line(name, damage, words, models, request, tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path / 'home'))
    source = request.getfixturevalue('tf1') if name == 'tf1' else models[name]
    shutil.copytree(source, tmp_path / 'model')
    damage(tmp_path / 'model')
    # A TF1 checkpoint by its prefix: its folder may have no index.
    message = refusal(tmp_path / 'model' / ('bert_model.ckpt' if name == 'tf1' else ''))
    for word in words:
        assert word in message


def test_paths_that_hold_no_model(tmp_path):
    (tmp_path / 'a file').write_text('x')
    for path in (tmp_path, tmp_path / 'nowhere', tmp_path / 'a file'):
        message = refusal(path)
        for word in ('run directory', 'Hugging Face', 'bert_model.ckpt.index', str(path)):
            assert word in message


def test_an_index_without_data(shared_data):
    message = refusal(shared_data / 'checkpoint_index' / 'uncased_L-8_H-512_A-8')
    assert 'data-00000-of-00001 is missing' in message
