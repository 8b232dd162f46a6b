"""Damaged, contradictory and foreign models: each is refused in one line that says why."""

import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax.foreign import load_weights
from bert_jax.foreign.tf1 import write_tf1
from bert_jax.run.model import write_run
from tests.foreign.run_model import RECORDED
from tests.refusals import refused

WEIGHTS = 'model.safetensors'
INDEX = 'model.safetensors.index.json'
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
    shutil.copytree(RECORDED / 'pretraining', folder / 'shards')
    tensors = load_file(folder / 'shards' / WEIGHTS)
    (folder / 'shards' / WEIGHTS).unlink()
    weight_map = {name: f'model-{i % 2}.safetensors' for i, name in enumerate(sorted(tensors))}
    for file in set(weight_map.values()):
        save_file({name: tensors[name] for name in tensors if weight_map[name] == file},
                  folder / 'shards' / file)
    (folder / 'shards' / INDEX).write_text(json.dumps({'weight_map': weight_map}))
    recorded = {name: RECORDED / name for name in ('pretraining', 'classification', 'base')}
    return recorded | {name: folder / name for name in ('run', 'shards', 'tf1')}


def all_of(*damages):
    def damage(folder):
        for each in damages:
            each(folder)
    return damage


def move(name, to):
    return lambda folder: (folder / name).rename(folder / to)


def replace_in(name, old, new):
    return rewrite(name, lambda data: data.replace(old, new))


def lose(name):
    def damage(folder):
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
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
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1
    return bytes(flipped)


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


def one_more_token(folder):
    tokens = (folder / 'vocab.txt').read_text().split()
    (folder / 'vocab.txt').write_text('\n'.join([*tokens, 'more']))


def tokenizer(content):
    """Puts a tokenizer.json in the place of the vocab.txt."""
    return all_of(lose('vocab.txt'), put('tokenizer.json', json.dumps(content)))


@dataclasses.dataclass(frozen=True)
class Case:
    """A damaged model.

    Attributes:
      model: a name in `models`.
      damage: changes a copy of it, a folder.
      says: parts of the message, all of which are in it.
    """

    model: str
    damage: Callable[[Path], object]
    says: Sequence[str]

    def __str__(self):
        return f'{self.model}: {self.says[0]}'[:60]


HUGGINGFACE = [
    Case('pretraining', having(DENSE + 'weight', np.ones((12, 8), np.float32)),
         says=[DENSE + 'weight', '[12, 8]', '[8, 12]', 'config.json']),
    Case('pretraining', without(DENSE + 'bias'), says=[f'has no tensor {DENSE}bias']),
    Case('shards', lose(INDEX), says=['has model-0.safetensors, but no', INDEX, 'call a file']),
    Case('classification',
         lambda folder: (folder / WEIGHTS).rename(folder / 'adapter_model.safetensors'),
         says=[f'{WEIGHTS} is missing']),
    Case('classification', without('classifier.bias'), says=['has no tensor classifier.bias']),
    Case('pretraining', without('pooler'), says=['whose head needs a pooler']),
    Case('pretraining',
         having('cls.predictions.decoder.weight', np.ones((40, 8), np.float32)),
         says=['cls.predictions.decoder.weight', 'not tied']),
    Case('pretraining', tensors(lambda t: {
        name.replace('pooler.dense.weight', 'pooler.dense.parametrizations.weight.original'): x
        for name, x in t.items()}),
        says=['pooler.dense.weight is missing', 'parametrization of PyTorch', 'remove_']),
    Case('pretraining', having('cls.predictions.bias', np.zeros(40, np.int32)),
         says=['predictions.bias', 'I32']),
    Case('pretraining', having('cls.predictions.bias', np.full(40, 1e39)),
         says=['predictions.bias', 'beyond those of float32']),
    Case('pretraining', having(DENSE + 'bias', np.full(8, np.nan, np.float32)),
         says=['bias holds NaN']),
    Case('pretraining', config(num_hidden_layers=3), says=['has 2 layers', 'there are 3']),
    Case('pretraining', config(hidden_size=16),
         says=['word_embeddings', '[40, 8]', '[40, 16]']),
    Case('pretraining', config(num_attention_heads=3),
         says=['num_attention_heads=3', 'hidden_size=8']),
    Case('pretraining', config(hidden_size=None), says=['has no hidden_size']),
    Case('pretraining', config(hidden_size='8'), says=["hidden_size='8'", 'whole number']),
    Case('pretraining', config(hidden_act='tanh'), says=["hidden_act='tanh'", 'gelu_new']),
    Case('pretraining', config(model_type='gpt2'), says=["model_type='gpt2'", 'xlm-roberta']),
    Case('pretraining', config(position_embedding_type='relative_key'), says=['relative_key']),
    Case('pretraining', config(architectures=['BertForQuestionAnswering']),
         says=['BertForQuestionAnswering', 'contradicts']),
    Case('classification', config(id2label={'0': 'a', '1': 'b'}),
         says=["['a', 'b'] for 3 outputs"]),
    Case('classification', config(id2label={'0': False, '1': True}),
         says=["['False', 'True'] for 3 outputs"]),
    Case('classification', config(id2label={'0': 'a', '1': 'b', '3': 'c'}),
         says=['does not map 0, 1']),
    Case('classification', config(problem_type='regression'), says=['3 outputs']),
    Case('pretraining', rewrite(WEIGHTS, half),
         says=['not a complete safetensors file', 'download']),
    *(Case('pretraining', rewrite(name, lambda _: b'version https://git-lfs.github.com/spec/v1\n'),
           says=[f'{name} is a pointer of Git LFS', 'git lfs pull'])
      for name in (WEIGHTS, 'config.json', 'vocab.txt')),
    Case('shards', lose('model-1.safetensors'), says=['model-1.safetensors is missing']),
    Case('shards', put(INDEX, '{}'), says=['weight_map']),
    Case('shards', put(INDEX, '{"weight_map": {"a": null}}'), says=['weight_map']),
    Case('pretraining', one_more_token, says=['has 41 tokens', 'has 40 rows']),
    Case('pretraining', tokenizer({'model': {'vocab': TOKENS | {',': 77}}}),
         says=['model/tokenizer.json has 78 tokens']),
    Case('pretraining', tokenizer({'model': {'vocab': TOKENS | {'x': 0}}}),
         says=['not distinct']),
    Case('pretraining', tokenizer({}), says=['no tokenizer file']),
    Case('pretraining', tokenizer({'model': {'vocab': {'x': float('inf')}}}),
         says=['tokenizer.json is no tokenizer file']),
    Case('pretraining', tokenizer({'model': {'vocab': {}}}), says=['has an empty vocabulary']),
    Case('pretraining', put('config.json', '{"a": 8'), says=['config.json']),
    Case('pretraining', put('config.json', '[]'), says=['config.json']),
    Case('pretraining', lose('config.json'), says=['config.json is missing']),
    Case('base', lose(WEIGHTS), says=['model.safetensors is missing']),
    Case('base', move(WEIGHTS, 'pytorch_model.bin'), says=['pickle', 'save_pretrained']),
    Case('base', move(WEIGHTS, 'tf_model.h5'), says=['as a TF2 model (.h5)', 'save_pretrained']),
    Case('pretraining', tensors(lambda t: {'net.' + name: x for name, x in t.items()}),
         says=['has no tensor bert.encoder.layer.0.', 'net.bert.embeddings']),
    Case('pretraining', having('module.' + DENSE + 'bias', np.ones(8, np.float32)),
         says=['two models', f'module.{DENSE}bias']),
    Case('pretraining', config(model_type='deberta-v2', hidden_size=None),
         says=["model_type='deberta-v2'"]),
    Case('pretraining',
         put('tokenizer_config.json', '{"tokenizer_class": "XLMRobertaTokenizerFast"}'),
         says=["tokenizer_config.json: tokenizer_class='XLMRobertaTokenizerFast'"]),
    Case('pretraining', config(tokenizer_class='BertJapaneseTokenizer'),
         says=['config.json: tokenizer_clas']),
    Case('pretraining', config(model_type=['bert']), says=["model_type=['bert'] is not one"]),
    Case('pretraining', config(architectures='BertModel'), says=["architectures='BertModel'"]),
    Case('pretraining', config(architectures={'0': 'BertModel'}), says=['is no list']),
    Case('pretraining', config(bert_jax_inference=[1]),
         says=['bert_jax_inference: [1] is no JSON object']),
    Case('base',
         all_of(put('adapter_config.json', '{}'), move(WEIGHTS, 'adapter_model.safetensors')),
         says=['adapter_config.json does not name the model that it is added to', '--adapter']),
    Case('base',
         all_of(
             put('adapter_config.json', '{"base_model_name_or_path": []}'),
             move(WEIGHTS, 'adapter_model.bin')),
         says=['base_model_name_or_path=[] must be a text']),
]
# What all formats share (sizes, shapes, heads, vocabularies) is tested above.
RUN = [
    Case('run', lose('config.json'), says=['config.json is missing']),
    Case('run', config(model=None), says=['no section "model"']),
    Case('run', lose('checkpoints/0'), says=['no checkpoint']),
    Case('run', rewrite(ARRAYS + '/d', half),
         says=['checkpoints/0 cannot be read', 'move it away']),
    Case('run', config(section='model', num_layers=3), says=['has 2 layers', 'there are 3']),
    Case('run', config(section='model', scan_layers=True),
         says=['model.scan_layers=True is no longer read']),
    Case('run', config(section='model', quantum='maybe'),
         says=["config.json: model.quantum='maybe' is unknown"]),
    Case('run', config(head='parser'), says=["head='parser'"]),
    Case('run', replace_in('config.json', b'"num_layers": 2', b'"num_layers": 1'),
         says=['config.json is not what was written']),
    Case('run', one_more_token, says=['not the vocabulary that the run was trained with']),
    Case('run', all_of(config(vocabulary=None), one_more_token),
         says=['has 41 tokens', 'has 40 rows']),
]
CONFIG = 'bert_config.json'
TF1 = [
    Case('tf1', lose(DATA), says=[DATA, 'missing']),
    Case('tf1', lose('bert_model.ckpt.index'), says=['bert_model.ckpt.index is missing']),
    Case('tf1', rewrite(DATA, half), says=['bert_model.ckpt cannot be read']),
    Case('tf1', rewrite(DATA, flip_a_bit), says=['bert_model.ckpt cannot be read']),
    Case('tf1', lose(CONFIG), says=['bert_config.json is missing']),
    Case('tf1', config(CONFIG, hidden_act='relu'), says=["hidden_act='relu'"]),
    Case('tf1', config(CONFIG, gelu_form='quick'), says=["gelu_form='quick'"]),
]


@pytest.mark.parametrize('case', HUGGINGFACE + RUN + TF1, ids=str)
def test_a_bad_model_is_refused_in_one_line(case, models, tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path / 'home'))
    if case.model == 'tf1' and not models['tf1'].exists():
        pytest.importorskip('tensorflow', reason='it writes TF1 checkpoints')
        write_tf1(models['tf1'], load_weights(RECORDED / 'pretraining'))
    folder = tmp_path / 'model'
    shutil.copytree(models[case.model], folder)
    case.damage(folder)
    # TF1 by its prefix: a folder is not recognized as TF1 if the damage removed the index.
    named = folder / 'bert_model.ckpt' if case.model == 'tf1' else folder
    with refused(*case.says):
        load_weights(named)


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
