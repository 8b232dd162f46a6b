"""Files of a run, a store or a sweep that somebody's editor or disk has changed."""

import json
import os
import re
import shutil

from bert_jax.weights import load_weights
from bert_jax.weights.huggingface import write_huggingface
from bert_jax.weights.run_directory import write_run
from tests.abuse.commands import Case


def _write(pattern, change):
    """Changes the files that match: `change` takes and gives bytes."""
    def write(folder):
        paths = [path for path in folder.glob(pattern) if path.is_file()]
        assert paths, pattern
        for path in paths:
            path.write_bytes(change(path.read_bytes()))
    return write


def _garbage(data):
    return bytes((byte * 7 + 13) % 256 for byte in data)


def _flipped(data):
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0x40]) + data[middle + 1:]


def _cut_vocabulary(data):
    return b'\n'.join(data.split(b'\n')[:-7]) + b'\n'


def _with(**fields):
    def change(data):
        return json.dumps(json.loads(_opened(data)) | fields).encode()
    return change


def _opened(data):
    """Without its digest: whatever else it says is looked at."""
    return re.sub(rb',\s*"digest": "\w+"', b'', data)


def _value(pattern, value):
    """Another value in the place of one, as a disk might have it."""
    def change(data):
        changed = re.sub(pattern, value, data)
        assert changed != data, data
        return changed
    return change


def _zeroed(data):
    """Without what stands in the middle."""
    return data[:len(data) // 3] + bytes(len(data) // 3) + data[2 * (len(data) // 3):]


def _written(form, then):
    """`run` as another format has it, in `written`."""
    def before(folder):
        weights = load_weights(folder / 'run')
        (write_run if form == 'bert_jax' else write_huggingface)(folder / 'written', weights)
        then(folder)
    return before


_RUN = '@text --workdir={folder}/run --config.train.steps=6'
_PREDICT = 'fill-mask --model {folder}/run "a [MASK]"'


_CONFIGS = {
    'empty': lambda data: b'', 'no JSON': lambda data: b'{', 'a list': lambda data: b'[]',
    'nested': lambda data: b'[' * 100000, 'binary': lambda data: b'\xff\0',
    'a model of numbers': _with(model=3), 'no model': _with(model={}),
    'another size': lambda data: re.sub(
        rb'"hidden_size": 16', b'"hidden_size": 32', _opened(data)),
    'a task of numbers': _with(task=3), 'data of numbers': _with(data=3),
    'a negative epsilon': lambda data: re.sub(
        rb'"layer_norm_eps": [-0-9e.]+', b'"layer_norm_eps": -1', _opened(data)),
    'another epsilon': _value(rb'"layer_norm_eps": [-0-9e.]+', b'"layer_norm_eps": 0.001'),
}

CASES = [
    *(Case(f'config.json: {name}', command, args, r'config\.json|holds a run with',
           before=_write('run/config.json', change))
      for name, change in _CONFIGS.items()
      for command, args in (('main', _RUN), ('predict', _PREDICT))
      if (name, command) not in (('a task of numbers', 'predict'), ('data of numbers', 'main'))),
    *(Case(f'metrics.jsonl: {name}', 'main', _RUN, r'metrics\.jsonl', before=_write(
           'run/metrics.jsonl', lambda data, line=line: line + b'\n' + data))
      for name, line in (
          ('a number', b'3'), ('a record without a step', b'{}'),
          ('a step of words', b'{"step": "x"}'), ('binary', b'\xff\0'),
          ('a loss of words', b'{"step": 1, "train/loss": "x"}'))),
    *(Case('vocab.txt: lines gone', command, args, r'vocab', before=_write(
        'run/vocab.txt', _cut_vocabulary))
      for command, args in (('main', _RUN), ('predict', _PREDICT),
                         ('convert', '{folder}/run {folder}/new --to huggingface'))),
    Case('vocab.txt: lines swapped', 'predict', _PREDICT, r'vocab',
         before=_write(
        'run/vocab.txt', lambda data: b'\n'.join(
            data.split(b'\n')[:5] + data.split(b'\n')[5:-1][::-1]) + b'\n')),
    Case('a cached vocabulary cut', 'main', '@text', r'vocabularies/.*damaged',
         before=_write('cache/vocabularies/*.txt', _cut_vocabulary)),
    *(Case(f'store: {name} {what}', 'main', '@text', rf'{name}.*damaged',
           before=_write(f'cache/stores/*/{name}*', change))
      for name in ('tokens', 'sentence_offsets', 'document_offsets', 'documents')
      for what, change in (('of garbage', _garbage), ('flipped', _flipped))),
    *(Case(f'store: manifest {name}', 'main', '@text', r'manifest|format version',
           before=_write('cache/stores/*/manifest.json', change))
      for name, change in (
          ('empty', lambda data: b''), ('a list', lambda data: b'[]'),
          ('of another version', _with(format_version=99)), ('negative', _with(num_tokens=-1)),
          ('of too many', _with(num_tokens=10**12)), ('nested', lambda data: b'[' * 100000),
          ('without files', _with(files=3)), ('of another file', _with(files={'../x': {
              'bytes': 3, 'md5': 'x'}})))),
    *(Case(f'sweep.json: {name}', 'sweep',
           '--config=configs/tiny_pretrain.py --restarts=1 --workdir={folder}/s',
           r'sweep\.json|holds a sweep', before=lambda folder, content=content: (
               (folder / 's' / 'runs').mkdir(parents=True),
               (folder / 's' / 'sweep.json').write_text(content)))
      for name, content in (('empty', ''), ('a list', '[]'), ('a number', '3'),
                            ('half', '{"config": 3}'), ('nested', '[' * 100000))),
    *(Case(f'sweep_result.json: {name}', 'sweep',
           '--config=configs/tiny_pretrain.py --grid seed=1 --workdir={folder}/s',
           r'sweep_result\.json', before=lambda folder, content=content: (
               (folder / 's' / 'runs' / 'seed=1').mkdir(parents=True),
               (folder / 's' / 'sweep.json').write_text(json.dumps(
                   {'config': 'configs/tiny_pretrain.py', 'settings': []})),
               (folder / 's' / 'runs' / 'seed=1' / 'sweep_result.json').write_text(content)))
      for name, content in (('empty', ''), ('a list', '[]'), ('without its metric',
                            '{"metric": "eval/f1"}'), ('NaN',
                            '{"metric": "eval/f1", "eval/f1": NaN}'))),
    *(Case(f'best: {name}', 'main', '@glue --config.init_checkpoint={things}/run '
           '--config.data.dir={things}/cache --workdir={folder}/cola', r'cola/best',
           before=_write('cola/best/*/metrics/metrics', change))
      for name, change in (('empty', lambda data: b''), ('a list', lambda data: b'[]'),
                           ('without its metric', lambda data: b'{}'),
                           ('another value', _value(rb'": [-0-9.e]+', b'": 0.875')),
                           ('a word for a value', _value(rb'digest', b'digesx')))),
    *(Case(f'{form}: numbers gone', 'convert', '{folder}/written {folder}/new --to tf1',
           r'written.*is not what was (saved|written)', before=_written(form, _write(
               'written/' + pattern, _zeroed)))
      for form, pattern in (('huggingface', '*.safetensors'),
                            ('bert_jax', 'checkpoints/0/default/ocdbt.process_0/d/*'))),
    Case('the text replaced', 'main', _RUN, r'holds a run with (another vocab|model\.vocab)',
         before=_write('text.txt', lambda data: data.upper() + b'\n\nA text of more words.')),
    Case('a run without checkpoints', 'predict', _PREDICT, r'no checkpoint',
         before=lambda folder: (shutil.rmtree(folder / 'run' / 'checkpoints'),
                                (folder / 'run' / 'checkpoints').mkdir())),
    Case('a link to nowhere as checkpoints', 'main', _RUN, r'checkpoints',
         before=lambda folder: (shutil.rmtree(folder / 'run' / 'checkpoints'),
                                os.symlink('nowhere', folder / 'run' / 'checkpoints'))),
]
