"""Texts, tables, vocabularies and weights that are not what they should be."""

import json
import os
import struct

import numpy as np
from safetensors.numpy import load_file, save_file

from tests.abuse.commands import Case
from tests.tiny_runs import WORDS

_MODEL = 'model.safetensors'


def _write(name, content):
    def write(folder):
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return write


def _text(name, content, says):
    return Case(name, 'main', '@text --config.data.source={folder}/bad.txt', says,
                before=_write('bad.txt', content))


def _link(name, target):
    return lambda folder: os.symlink(target, folder / name)


def _tensor(name, change, model='hf_pretraining'):
    """Changes one tensor of a published model."""
    def write(folder):
        path = folder / model / _MODEL
        tensors = load_file(path)
        tensors[name] = change(np.array(tensors[name]))
        save_file(tensors, path, metadata={'format': 'pt'})
    return write


def _set(name, **fields):
    def write(folder):
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return write


def _poisoned(value):
    def change(x):
        x.flat[x.size // 2] = value
        return x
    return change


_POOLER = 'bert.pooler.dense.weight'
_TWO = ('convert', '{folder}/hf_pretraining {folder}/new --to bert_jax'), (
    'predict', '@features "a b"'), (
    'main', '@text --config.init_checkpoint={folder}/hf_pretraining --config.data.vocab_size=8000 '
    '--config.model.name=')

CASES = [
    _text('empty', '', 'bad.txt.*empty'),
    _text('white space', ' \n\n \n', 'no words'),
    _text('binary', b'a\0b', 'NUL'),
    _text('latin-1', 'straße'.encode('latin-1'), 'UTF-8'),
    _text('one document', 'one only.', 'too few'),
    Case('no such text', 'main', '@text --config.data.source={folder}/no*.txt', r'no\*\.txt'),
    Case('a dangling link', 'main', '@text --config.data.source={folder}/gone.txt',
         r'gone\.txt.*link', before=_link('gone.txt', 'nowhere')),
    Case('a glob that finds a dangling link', 'main', '@text --config.data.source={folder}/*.txt',
         r'gone\.txt.*link', before=_link('gone.txt', 'nowhere')),
    Case('a link to itself', 'main', '@text --config.data.source={folder}/loop.txt', r'loop\.txt',
         before=_link('loop.txt', 'loop.txt')),
    Case('no such user', 'main', '@text --config.data.source=~nosuchuser/x.txt', r'~nosuchuser'),
    Case('no such user to write to', 'main', '@synthetic --workdir=~nosuchuser/x', r'~nosuchuser'),
    Case('no such user of weights', 'convert', '~nosuchuser/x {folder}/new --to tf1',
         r'~nosuchuser'),
    Case('a folder as text', 'main', '@text --config.data.source={folder}/notes', r'notes'),
    Case('a source of numbers', 'main', '@text --config.data.source=3', r'source'),
    Case('nested JSON lines', 'main', '@text --config.data.source=jsonl:{folder}/bad.jsonl',
         r'bad\.jsonl, line 1', before=_write('bad.jsonl', '[' * 100000 + '\n')),
    Case('a vocabulary of specials', 'main', '@text --config.data.vocab_file={folder}/v.txt',
         r'v\.txt', before=_write('v.txt', '[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n')),
    Case('a vocabulary of another language', 'main',
         '@text --config.data.vocab_file={folder}/v.txt', r'\[UNK\]',
         before=_write('v.txt', '\n'.join(
             ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *(chr(0x4e00 + i) for i in range(99))]
         ))),
    Case('a vocabulary that is not there', 'main',
         '@text --config.data.vocab_file={folder}/none.txt', r'none\.txt'),
    Case('a vocabulary of bytes', 'main', '@text --config.data.vocab_file={folder}/v.txt',
         r'v\.txt', before=_write('v.txt', bytes(range(256)))),
    Case('a SentencePiece model of nothing', 'main',
         '@text --config.data.vocab_file={folder}/v.model', r'v\.model',
         before=_write('v.model', b'nonsense')),
    Case('empty texts', 'main', '@csv', r't\.csv.*(empty|no text|unusable)',
         before=_write('t.csv', 'text,label\n' + ',a\n,b\n' * 50)),
    Case('texts of unknown words', 'main', '@csv', r'\[UNK\]',
         before=_write('t.csv', 'text,label\n' + '漢字漢字,a\n日本,b\n' * 50)),
    Case('a labels of one kind', 'main', '@csv', r't\.csv',
         before=_write('t.csv', 'text,label\n' + f'{WORDS[0]},a\n' * 50)),
    *(Case(f'weights with {value}', command, args, rf'{_POOLER}|bert/pooler/dense/kernel',
           before=_tensor(_POOLER, _poisoned(value)))
      for value in (np.nan, np.inf, -np.inf) for command, args in _TWO),
    *(Case(f'{field}={value}', command, args, rf'config\.json: {field}',
           before=_set('hf_pretraining/config.json', **{field: value}))
      for field, value in (
          ('layer_norm_eps', -1), ('layer_norm_eps', float('nan')), ('hidden_dropout_prob', 7.5),
          ('initializer_range', -1), ('num_hidden_layers', 10**9), ('vocab_size', -3),
          ('layer_norm_eps', '1e-12'), ('hidden_size', 1.5), ('hidden_size', True))
      for command, args in _TWO[:2]),
    Case('weights cut', 'convert', '{folder}/hf_pretraining {folder}/new --to bert_jax', _MODEL,
         before=lambda folder: os.truncate(folder / 'hf_pretraining' / _MODEL, 5000)),
    Case('weights of nothing', 'convert', '{folder}/hf_pretraining {folder}/new --to bert_jax',
         _MODEL, before=_write(f'hf_pretraining/{_MODEL}', b'')),
    Case('a header of 2^60 bytes', 'convert', '{folder}/hf_pretraining {folder}/new --to bert_jax',
         _MODEL, before=_write(f'hf_pretraining/{_MODEL}', struct.pack('<Q', 1 << 60) + b'{}')),
    Case('nested config', 'convert', '{folder}/hf_pretraining {folder}/new --to bert_jax',
         r'config\.json', before=_write('hf_pretraining/config.json', '[' * 100000)),
    Case('no model', 'predict', 'features --model {folder}/notes a', r'notes.*no model'),
    Case('no such model', 'predict', 'features --model {folder}/none a', r'none does not exist'),
    Case('a lone surrogate', 'predict',
         ('features', '--model', '{folder}/hf_pretraining', 'a \udce4'), r'UTF-8'),
    Case('a lone surrogate of JSON', 'predict', 'answer --model {folder}/hf_question_answering',
         r'UTF-8|surrogate', stdin=b'{"question": "\\ud800", "context": "a b"}\n'),
    Case('nested JSON', 'predict', 'answer --model {folder}/hf_question_answering', r'line 1',
         stdin=b'{"question": ' + b'[' * 100000 + b'\n'),
    Case('nothing', 'predict', '@features', r'no texts'),
    Case('bytes', 'predict', '@features', r'UTF-8', stdin=b'\xff\xfe\n'),
    Case('a folder of texts', 'predict', '@features --input {folder}/notes', r'notes'),
    Case('no such column', 'predict', '@features --text nope --input {folder}/t.csv', r"'nope'",
         before=_write('t.csv', 'a,b\n1,2\n')),
    Case('an empty table', 'predict', '@features --text a --input {folder}/t.csv', r't\.csv',
         before=_write('t.csv', '')),
]
