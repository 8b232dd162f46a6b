"""Damaged, contradictory and foreign models: each is refused in one line that says why."""

import json
import shutil

import numpy as np
import pytest
from run_model import RECORDED
from safetensors.numpy import load_file, save_file

from bert_jax.weights import load_weights
from bert_jax.weights.run_directory import write_run
from bert_jax.weights.tf1 import write_tf1
from tests.refusals import refused

WEIGHTS, INDEX = 'model.safetensors', 'model.safetensors.index.json'
DATA = 'bert_model.ckpt.data-00000-of-00001'
ARRAYS = 'checkpoints/0/default'
DENSE = 'bert.encoder.layer.1.output.dense.'
ADAPTER = '{"base_model_name_or_path": "org/name"}'
TOKENS = {token: i for i, token in enumerate((RECORDED / 'base' / 'vocab.txt').read_text().split())}


@pytest.fixture(scope='module')
def models(tmp_path_factory):
    """A good folder of each format."""
    folder = tmp_path_factory.mktemp('models')
    weights = load_weights(RECORDED / 'pretraining')
    write_run(folder / 'run', weights)
    shutil.copytree(RECORDED / 'pretraining', folder / 'shards')
    tensors = load_file(folder / 'shards' / WEIGHTS)
    (folder / 'shards' / WEIGHTS).unlink()
    weight_map = {name: f'model-{i % 2}.safetensors' for i, name in enumerate(sorted(tensors))}
    for file in set(weight_map.values()):
        save_file({name: tensors[name] for name in tensors if weight_map[name] == file},
                  folder / 'shards' / file)
    (folder / 'shards' / INDEX).write_text(json.dumps({'weight_map': weight_map}))
    return {name: RECORDED / name for name in ('pretraining', 'classification', 'base')} | {
        name: folder / name for name in ('run', 'shards', 'tf1')}


def lose(name):
    def damage(folder):
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return damage


def put(name, content):
    return lambda folder: (folder / name).write_text(content)


def rewrite(name, change):
    """Applies `change` to the bytes of a file, or of each file of a folder."""
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
    """Sets fields of a JSON file, deletes those given as None, and drops the digest."""
    def damage(folder):
        said = json.loads((folder / name).read_text()) | {'digest': None}
        inner = said[section] if section else said
        inner |= changes
        for fields in (said, inner):
            for field in [field for field, value in fields.items() if value is None]:
                del fields[field]
        (folder / name).write_text(json.dumps(said))
    return damage


def tensors(change):
    return lambda folder: save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS)


def having(name, x):
    return tensors(lambda t: t | {name: x})


def without(part):
    return tensors(lambda t: {name: x for name, x in t.items() if part not in name})


def vocabulary(change):
    return rewrite('vocab.txt', lambda data: '\n'.join(change(data.decode().split())).encode())


def tokenizer(content):
    return lambda folder: (lose('vocab.txt')(folder),
                           put('tokenizer.json', json.dumps(content))(folder))


HUGGINGFACE = [
    ('pretraining', having(DENSE + 'weight', np.ones((12, 8), np.float32)),
     DENSE + 'weight', '[12, 8]', '[8, 12]', 'config.json'),
    ('pretraining', without(DENSE + 'bias'), f'has no tensor {DENSE}bias'),
    ('pretraining', without('pooler'), 'whose head needs a pooler'),
    ('pretraining', having('cls.predictions.decoder.weight', np.ones((40, 8), np.float32)),
     'cls.predictions.decoder.weight', 'not tied'),
    ('pretraining', having('cls.predictions.bias', np.zeros(40)), 'predictions.bias', 'F64'),
    ('pretraining', having(DENSE + 'bias', np.full(8, np.nan, np.float32)), 'bias holds NaN'),
    ('pretraining', config(num_hidden_layers=3), 'has 2 layers', 'there are 3'),
    ('pretraining', config(hidden_size=16), 'word_embeddings', '[40, 8]', '[40, 16]'),
    ('pretraining', config(num_attention_heads=3), 'num_attention_heads=3', 'hidden_size=8'),
    ('pretraining', config(hidden_size=None), 'has no hidden_size'),
    ('pretraining', config(hidden_size='8'), "hidden_size='8'", 'whole number'),
    ('pretraining', config(hidden_act='relu'), "hidden_act='relu'", 'gelu_new'),
    ('pretraining', config(model_type='roberta'), "model_type='roberta'"),
    ('pretraining', config(position_embedding_type='relative_key'), 'relative_key'),
    ('pretraining', config(architectures=['BertForQuestionAnswering']),
     'BertForQuestionAnswering', 'contradicts'),
    ('classification', config(id2label={'0': 'a', '1': 'b'}), "['a', 'b'] for 3 outputs"),
    ('classification', config(id2label={'0': 'a', '1': 'b', '3': 'c'}), 'does not map 0, 1'),
    ('classification', config(problem_type='regression'), '3 outputs'),
    ('pretraining', rewrite(WEIGHTS, half), 'not a complete safetensors file', 'download'),
    ('shards', lose('model-1.safetensors'), 'model-1.safetensors is missing'),
    ('shards', rewrite(INDEX, lambda data: data.replace(b'predictions.bias', b'predictions.other')),
     'has no tensor cls.predictions.other'),
    ('shards', put(INDEX, '{}'), 'weight_map'),
    ('pretraining', vocabulary(lambda t: [*t, 'more']), 'has 41 tokens', 'has 40 rows'),
    ('pretraining', tokenizer({'model': {'vocab': TOKENS | {',': 77}}}), 'has 78 tokens'),
    ('pretraining', tokenizer({'model': {'vocab': TOKENS | {'x': 0}}}), 'not distinct'),
    ('pretraining', tokenizer({}), 'no tokenizer file'),
    *(('pretraining', put('config.json', text), 'config.json') for text in ('{"a": 8', '[]')),
    ('pretraining', lose('config.json'), 'config.json is missing'),
    ('base', lose(WEIGHTS), 'model.safetensors is missing'),
    ('base', lambda folder: (folder / WEIGHTS).rename(folder / 'pytorch_model.bin'),
     'pickle', 'save_pretrained'),
    ('base', lambda folder: (folder / WEIGHTS).rename(folder / 'tf_model.h5'),
     'as a TF2 model (.h5)', 'save_pretrained'),
    ('pretraining', tensors(lambda t: {'net.' + name: x for name, x in t.items()}),
     'has no tensor bert.encoder.layer.0.', 'net.bert.embeddings'),
    ('pretraining', having('module.' + DENSE + 'bias', np.ones(8, np.float32)),
     'two models', f'module.{DENSE}bias'),
    ('pretraining', config(model_type='distilbert', hidden_size=None), "model_type='distilbert'"),
    ('pretraining', put('tokenizer_config.json', '{"tokenizer_class": "XLMRobertaTokenizerFast"}'),
     "tokenizer_config.json: tokenizer_class='XLMRobertaTokenizerFast'"),
    ('pretraining', config(tokenizer_class='BertJapaneseTokenizer'), 'config.json: tokenizer_clas'),
    ('base', lambda folder: (
        lose('config.json')(folder), put('adapter_config.json', ADAPTER)(folder),
        (folder / WEIGHTS).rename(folder / 'adapter_model.safetensors')),
     'holds only an adapter of org/name', 'merge_and_unload'),
    ('base', lambda folder: (
        put('adapter_config.json', '{}')(folder),
        (folder / WEIGHTS).rename(folder / 'adapter_model.bin')),
     'holds only an adapter of a model that it does not name'),
]
# What all formats share (sizes, shapes, heads, vocabularies) is tested above.
RUN = [('run', *case) for case in (
    (lose('config.json'), 'config.json is missing'),
    (config(model=None), 'no section "model"'),
    (lose('checkpoints/0'), 'no checkpoint'),
    (rewrite(ARRAYS + '/d', half), 'checkpoints/0 cannot be read', 'move it away'),
    (config(section='model', num_layers=3), 'has 2 layers', 'there are 3'),
    (config(section='model', scan_layers=True), 'model.scan_layers=True is no longer read'),
    (config(section='model', quantum='maybe'), "config.json: model.quantum='maybe' is unknown"),
    (config(head='parser'), "head='parser'"),
    (rewrite('config.json', lambda data: data.replace(b'"num_layers": 2', b'"num_layers": 1')),
     'config.json is not what was written'),
    (vocabulary(lambda t: [*t, 'more']), 'not the vocabulary that the run was trained with'),
    (lambda folder: (config(vocabulary=None)(folder), vocabulary(lambda t: [*t, 'more'])(folder)),
     'has 41 tokens', 'has 40 rows'))]
CONFIG = 'bert_config.json'
TF1 = [('tf1', *case) for case in (
    (lose(DATA), DATA, 'missing'),
    (lose('bert_model.ckpt.index'), 'bert_model.ckpt.index is missing'),
    *((rewrite(DATA, damage), 'bert_model.ckpt cannot be read') for damage in (half, flip_a_bit)),
    (lose(CONFIG), 'bert_config.json is missing'),
    (config(CONFIG, hidden_act='relu'), "hidden_act='relu'"),
    (config(CONFIG, gelu_form='quick'), "gelu_form='quick'"))]


@pytest.mark.parametrize(('name', 'damage', 'words'), [
    pytest.param(name, damage, words, id=f'{name}: {words[0]}'[:60])
    for name, damage, *words in HUGGINGFACE + RUN + TF1])
def test_a_bad_model_is_refused_in_one_line(name, damage, words, models, tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path / 'home'))
    if name == 'tf1' and not models['tf1'].exists():
        pytest.importorskip('tensorflow', reason='it writes TF1 checkpoints')
        write_tf1(models['tf1'], load_weights(RECORDED / 'pretraining'))
    shutil.copytree(models[name], tmp_path / 'model')
    damage(tmp_path / 'model')
    # TF1 by its prefix: a folder is not recognized as TF1 if the damage removed the index.
    with refused(*words):
        load_weights(tmp_path / 'model' / ('bert_model.ckpt' if name == 'tf1' else ''))


def test_a_tf2_checkpoint_is_refused_by_its_kind(tmp_path):
    tf = pytest.importorskip('tensorflow')
    tf.train.Checkpoint(layer=tf.Variable([1.0])).write(str(tmp_path / 'bert_model.ckpt'))
    with refused('bert_model.ckpt is a TF2 checkpoint', 'save_pretrained'):
        load_weights(tmp_path)


def test_an_adapter_beside_the_weights_is_noted(tmp_path, capsys):
    shutil.copytree(RECORDED / 'base', tmp_path / 'model')
    (tmp_path / 'model' / 'adapter_config.json').write_text('{}')
    load_weights(tmp_path / 'model')
    assert 'adapter_config.json is not applied' in capsys.readouterr().err


def test_paths_that_hold_no_model(tmp_path):
    (tmp_path / 'a file').write_text('x')
    for path in (tmp_path, tmp_path / 'nowhere', tmp_path / 'a file'):
        with refused(f'{path} '):
            load_weights(path)
    (tmp_path / 'a.zip').write_bytes(b'PK')
    with refused('a.zip is not a sound .zip file'):
        load_weights(tmp_path / 'a.zip')
