"""What careless hands do at the commands, and what the one line that answers it says.

Config files that are none, settings that mean nothing, numbers that cannot be; texts, tables,
vocabularies and weights that are not what they should be; files that an editor or a disk has
changed; places that cannot be written, or hold what is not ours.
"""

import contextlib
import errno
import json
import os
import re
import shutil
import struct
import subprocess
from unittest import mock

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.abuse.commands import Case
from tests.tiny_runs import WORDS

# Preparations of a case's folder.


def write(name, content):
    def before(folder):
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return before


def change(pattern, changed):
    """Changes the files that match: `changed` takes and gives bytes."""
    def before(folder):
        paths = [path for path in folder.glob(pattern) if path.is_file()]
        assert paths, pattern
        for path in paths:
            path.write_bytes(changed(path.read_bytes()))
    return before


def link(name, target):
    return lambda folder: os.symlink(target, folder / name)


def set_fields(name, **fields):
    return change(name, lambda data: json.dumps(json.loads(data) | fields).encode())


def poison(name, value):
    """A value in the middle of a tensor of published weights."""
    def before(folder):
        path = folder / 'hf_pretraining' / _MODEL
        tensors = {key: np.array(x) for key, x in load_file(path).items()}
        tensors[name].flat[tensors[name].size // 2] = value
        save_file(tensors, path, metadata={'format': 'pt'})
    return before


# Changes of a file's bytes.


def cut(data):
    return b'\n'.join(data.split(b'\n')[:-7]) + b'\n'


def undigested(data):
    """Without its digest: whatever else it says is looked at."""
    return re.sub(rb',\s*"digest": "\w+"', b'', data)


def having(**fields):
    return lambda data: json.dumps(json.loads(undigested(data)) | fields).encode()


def value(pattern, new):
    """Another value in the place of one, as a disk might have it."""
    def changed(data):
        result = re.sub(pattern, new, data)
        assert result != data, data
        return result
    return changed


def nothing(data):
    return b''


# Surroundings.


@contextlib.contextmanager
def full_disk(folder):
    """Nothing more fits on any disk."""
    def refuse(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with mock.patch('os.fsync', refuse):
        yield


@contextlib.contextmanager
def small_disk(folder):
    """`small` is a disk of 16 kB."""
    (folder / 'small').mkdir()
    mounted = subprocess.run(
        ['mount', '-t', 'tmpfs', '-o', 'size=16k', 'none', folder / 'small'], capture_output=True)
    if mounted.returncode:
        pytest.skip('disks cannot be mounted here')
    try:
        yield
    finally:
        subprocess.run(['umount', '--lazy', folder / 'small'], check=True)


_START = 'from bert_jax.config import default_config\ndef get_config():\n    c = default_config()\n'
_FILES = [
    ('', 'get_config'),
    (b'\xff\xfe\x00', 'Python'),
    ('def get_config(:\n', 'line 1'),
    ('import nothing_of_this_name\n', r'line 1.*nothing_of_this_name'),
    ('\n\nx = 1 / 0\n', r'line 3.*division'),
    ('def get_config():\n    return 1 / 0\n', r'line 2.*division'),
    ('get_config = 3\n', 'get_config'),
    ('def get_config():\n    return {}\n', 'default_config'),
    ('from ml_collections import ConfigDict\ndef get_config():\n'
     '    return ConfigDict({"task": "pretrain"})\n', 'default_config'),
    (_START + '    c.phases = ("a",)\n    return c\n', 'phases'),
    (_START + '    del c.optimizer.eps\n    return c\n', 'line 4'),
    (_START + '    c.optimizer.learning_rte = 1\n    return c\n', 'learning_rte'),
    (_START + '    c.train = 3\n    return c\n', 'train'),
    ('import sys\nsys.exit(0)\n', 'line 2'),
    ('def get_config():\n    return get_config()\n', 'recursion'),
]
_VALUES = {
    # field: values, each refused by its name; tests/test_config.py has all ranges
    'optimizer.weight_decay': ('nan', 'inf', '-1'),
    'optimizer.name': ('lino', 'lbfgs', 'scale_by_adam', 'apply_updates', ''),
    'optimizer.arguments': ('b1=0.5', '0.5', 'b1', '**{}', 'b1=open("x")'),
    'optimizer.learning_rate': ('1e400', '0'),
    'optimizer.warmup': ('-1', 'nan', '1e400', 'soon'),
    'data.max_seq_length': ('200000', '7'), 'data.max_predictions_per_seq': ('0', '1000000'),
    'train.steps': ('-1', '1e400 steps', '1e15 steps', '1e8 epochs', 'nan', 'many', '0.5'),
    'train.batch_size': ('0', '-8', '100000000', 'many'), 'train.packed_rows': ('3', '1000000'),
    'train.eval_every': ('-1', 'nan', '1e400 steps', '3 feet'), 'train.save_every': ('often',),
    'train.log_every': ('always',),
    'train.profile': ('1..1000', 'x', '-1..2', '9..8', '0..8'), 'train.skip_steps': ('(0,)',),
    'mesh.data': ('0', '3'), 'mesh.fsdp': ('-2', '3'), 'mesh.tensor': ('0', '7'),
    'seed': ('-1', '99999999999999999999'),
}
_PHASES = {
    '("a",)': 'phases', '(1,)': 'phases', '"steps"': 'phases', 'None': 'phases',
    '{"steps": 3}': 'phases', '({"stepz": 2},)': 'did you mean',
    '({"steps": -1},)': r'phases\[0\]\.steps', '({"steps": "1e400 steps"},)': r'\[0\]\.steps',
    '({"steps": None},)': r'phases\[0\]\.steps', '({"steps": [2]},)': r'phases\[0\]\.steps',
    '({"steps": 2, "learning_rate": -1.0},)': r'phases\[0\]\.learning_rate',
    '({"steps": 2, "learning_rate": 1e400},)': r'phases\[0\]\.learning_rate',
    '({"steps": 2, "learning_rate": "fast"},)': r'phases\[0\]\.learning_rate',
    '({"steps": 2, "batch_size": 1e400},)': 'phases',
    '({"steps": 2, "batch_size": 100000000},)': r'phases\[0\]\.batch_size',
    '({"steps": 2, "max_seq_length": 200000},)': r'phases\[0\]\.max_seq_length',
}

CONFIGS = [
    *(Case('main --config={folder}/c.py', rf'(config\.|c\.py.*){says}',
           before=write('c.py', content)) for content, says in _FILES),
    *(Case(('main', '@synthetic', f'--config.{field}={wrong}'),
           rf"{field.rpartition('.')[2]}.*{re.escape(wrong.split()[0])}"
           if wrong and wrong not in ('1e400', 'inf', 'nan') else field)
      for field, values in _VALUES.items() for wrong in values),
    *(Case(('main', '@synthetic', f'--config.phases={phases}'), says)
      for phases, says in _PHASES.items()),
    *(Case('main --config=configs/squad.py --config.init_checkpoint={folder}/run '
           f'--config.squad.{field}={wrong}', field)
      for field, wrong in (('max_query_length', -1), ('max_query_length', 0), ('doc_stride', 0))),
    *(Case(f'main @glue --config.{field}={wrong}', rf'{field}.*means nothing')
      for field, wrong in (
          ('train.eval_batch_size', 8), ('train.max_eval_examples', 3), ('data.vocab_size', 99),
          ('data.label', 'y'), ('data.held_out', 0.5), ('data.masked_lm_prob', 0.3))),
    *(Case(f'sweep @sweep --{flag}=-1', f'--{flag}=-1')
      for flag in ('restarts', 'parallel', 'chips')),
    Case('main --workdir={folder}/new', '--config is missing'),
    Case('main --config=configs/tiny_pretrian.py', r'tiny_pretrian\.py: No such .*tiny_pretrain'),
    Case('main --config=configs', 'configs.*directory'),
    Case('main --config={folder}/hf_pretraining/model.safetensors', r'model\.safetensors.*Python'),
    Case('main --config={folder}/hf_pretraining/config.json', r'config\.json.*Python'),
    Case('main --config=configs/tiny_pretrain.py:foo', r'tiny_pretrain\.py:foo: .*takes 0'),
    Case('main --config=configs/glue.py:nope', "'nope'"),
    Case('main --config=configs/glue.py:ax', r'configs/glue\.py:ax has no training set'),
    Case('main --config=configs/glue.py:rte', 'init_checkpoint'),
    Case('main @synthetic --config.task=3', 'task'),
    Case('main @synthetic --config.task=pretran', "did you mean 'pretrain'"),
    Case('main @synthetic --config.data.packing=perhaps', 'packing'),
    Case('main @synthetic --config.data.text_pair=b', r'data\.text_pair'),
    Case('main @synthetic --config.model.dtype=int8', r'model\.dtype'),
    Case('main @synthetic --config.model.features=last', r'model\.features'),
    Case('main @synthetic --config.model.causal=True', r'data\.next_sentence'),
    Case('main @synthetic --config.model.bilstm=True', r'model\.bilstm.*means nothing'),
    Case('main @synthetic --config.optimizer.lr=1', r'optimizer\.lr is not a field'),
    Case('main @synthetic --config.train=3', 'train'),
    Case('main @synthetic --wrkdir={folder}/new', 'wrkdir'),
    Case('main @synthetic --workdir={folder}/new please', "'please'"),
    Case(('main', '@glue', '--config.phases=({"steps": 1},)'), 'phases'),
    Case('preflight --topology=v5e:2x2', '--config is missing'),
    Case('preflight @synthetic --topology=3', 'topology'),
    Case('prepare --config=configs', 'configs.*directory'),
    Case('sweep --config=nowhere.py --restarts=1', r'nowhere\.py'),
    Case('sweep --config=configs/glue.py:cola --grid seed=1,1', 'twice'),
    Case('sweep --config=configs/glue.py:cola --grid train.batch_size=many', 'batch_size'),
    Case('sweep @sweep --grid optimizer.learning_rate=nan,1e-4', '_rate=nan'),
    Case('paper 5 --pretrain train.batch_size=many', 'batch_size'),
    Case('predict answer --model {folder}/hf_question_answering --null-threshold=nan "who ?" "a b"',
         'null.threshold=nan'),
    Case('predict answer --model {folder}/hf_question_answering --max-answer-length=-1 "who ?" "a"',
         'max.answer.length'),
    Case('predict fill-mask --model {folder}/hf_pretraining --top-k=-1 "a [MASK]"', 'top.k'),
    Case('predict @features --layers=-99 "a"', 'layer -99'),
    Case('bench --only=step --steps=-1', 'steps'),
    Case('bench --only=step --seq=1e99', 'seq'),
]

_MODEL = 'model.safetensors'
_POOLER = 'bert.pooler.dense.weight'
_CONVERT = 'convert {folder}/hf_pretraining {folder}/new --to bert_jax'
_START_FROM = ('main @text --config.init_checkpoint={folder}/hf_pretraining '
               '--config.data.vocab_size=8000 --config.model.name=')
INPUTS = [
    *(Case('main @text --config.data.source={folder}/bad.txt', says,
           before=write('bad.txt', content))
      for content, says in (
          ('', 'bad.txt.*empty'), (' \n\n \n', 'no words'), (b'a\0b', '0x00'),
          ('straße'.encode('latin-1'), 'UTF-8'), ('one only.', 'too few'))),
    Case('main @text --config.data.source={folder}/no*.txt', r'no\*\.txt'),
    *(Case(f'main @text --config.data.source={{folder}}/{name}.txt', r'gone\.txt: No such file',
           before=link('gone.txt', 'nowhere')) for name in ('gone', '*')),
    Case('main @text --config.data.source={folder}/loop.txt', r'loop\.txt',
         before=link('loop.txt', 'loop.txt')),
    Case('main @text --config.data.source=~nosuchuser/x.txt', '~nosuchuser'),
    Case('main @synthetic --workdir=~nosuchuser/x', '~nosuchuser'),
    Case('convert ~nosuchuser/x {folder}/new --to tf1', '~nosuchuser'),
    Case('main @text --config.data.source={folder}/notes', 'notes'),
    Case('main @text --config.data.source=3', 'source'),
    Case('main @text --config.data.source=jsonl:{folder}/bad.jsonl', r'bad\.jsonl, line 1',
         before=write('bad.jsonl', '[' * 100000 + '\n')),
    *(Case('main @text --config.data.vocab_file={folder}/v.txt', says, before=write('v.txt', vocab))
      for vocab, says in (
          ('[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n', r'v\.txt'), (bytes(range(256)), r'v\.txt'),
          ('\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]',
                      *(chr(0x4e00 + i) for i in range(99))]), r'\[UNK\]'))),
    Case('main @text --config.data.vocab_file={folder}/none.txt', r'none\.txt'),
    Case('main @text --config.data.vocab_file={folder}/v.model', r'v\.model',
         before=write('v.model', b'nonsense')),
    *(Case('main @csv', says, before=write('t.csv', 'text,label\n' + rows * 50))
      for rows, says in ((',a\n,b\n', r't\.csv.*(empty|no text|unusable)'),
                         ('漢字漢字,a\n日本,b\n', r'\[UNK\]'), (f'{WORDS[0]},a\n', r't\.csv'))),
    *(Case(line, rf'{_POOLER}|bert/pooler/dense/kernel', before=poison(_POOLER, number))
      for number in (np.nan, np.inf, -np.inf)
      for line in (_CONVERT, 'predict @features "a b"', _START_FROM)),
    *(Case(line, rf'config\.json: {field}',
           before=set_fields('hf_pretraining/config.json', **{field: wrong}))
      for field, wrong in (
          ('layer_norm_eps', -1), ('layer_norm_eps', float('nan')), ('hidden_dropout_prob', 7.5),
          ('initializer_range', -1), ('num_hidden_layers', 10**9), ('vocab_size', -3),
          ('layer_norm_eps', '1e-12'), ('hidden_size', 1.5), ('hidden_size', True))
      for line in (_CONVERT, 'predict @features "a b"')),
    *(Case(_CONVERT, name, before=change(f'hf_pretraining/{name}', changed))
      for name, changed in (
          (_MODEL, lambda data: data[:5000]), (_MODEL, nothing),
          (_MODEL, lambda data: struct.pack('<Q', 1 << 60) + b'{}'),
          ('config.json', lambda data: b'[' * 100000))),
    Case('predict features --model {folder}/notes a', 'notes.*no model'),
    Case('predict features --model {folder}/none a', 'none does not exist'),
    Case(('predict', 'features', '--model', '{folder}/hf_pretraining', 'a \udce4'), 'UTF-8'),
    *(Case('predict answer --model {folder}/hf_question_answering', says, stdin=stdin)
      for stdin, says in ((b'{"question": "\\ud800", "context": "a b"}\n', 'UTF-8|surrogate'),
                          (b'{"question": ' + b'[' * 100000 + b'\n', 'line 1'))),
    Case('predict @features', 'no texts'),
    Case('predict @features', 'UTF-8', stdin=b'\xff\xfe\n'),
    Case('predict @features --input {folder}/notes', 'notes'),
    Case('predict @features --text nope --input {folder}/t.csv', "'nope'",
         before=write('t.csv', 'a,b\n1,2\n')),
    Case('predict @features --text a --input {folder}/t.csv', r't\.csv', before=write('t.csv', '')),
]

_RUN = 'main @text --workdir={folder}/run --config.train.steps=6'
_PREDICT = 'predict fill-mask --model {folder}/run "a [MASK]"'
_EPSILON = rb'"layer_norm_eps": [-0-9e.]+'
_CHANGED_CONFIGS = [
    nothing, lambda data: b'{', lambda data: b'[]', lambda data: b'[' * 100000,
    lambda data: b'\xff\0', having(model=3), having(model={}),
    lambda data: re.sub(rb'"hidden_size": 16', b'"hidden_size": 32', undigested(data)),
    lambda data: re.sub(_EPSILON, b'"layer_norm_eps": -1', undigested(data)),
    value(_EPSILON, b'"layer_norm_eps": 0.001'),
]
_SWEEP = 'sweep --config=configs/tiny_pretrain.py --workdir={folder}/s'


def _sweep(result, description=None):
    """A sweep of one finished run."""
    def before(folder):
        run = folder / 's' / 'runs' / 'seed=1'
        run.mkdir(parents=True)
        (run.parents[1] / 'sweep.json').write_text(json.dumps(
            {'config': 'configs/tiny_pretrain.py', 'settings': []}) if description is None
            else description)
        (run / 'sweep_result.json').write_text(result)
    return before


HAND_EDITED = [
    *(Case(line, r'config\.json|holds a run with', before=change('run/config.json', changed))
      for changed in _CHANGED_CONFIGS for line in (_RUN, _PREDICT)),
    Case(_RUN, r'config\.json|holds a run with', before=change('run/config.json', having(task=3))),
    Case(_PREDICT, r'config\.json', before=change('run/config.json', having(data=3))),
    *(Case(_RUN, r'metrics\.jsonl', before=change(
        'run/metrics.jsonl', lambda data, line=line: line + b'\n' + data))
      for line in (b'3', b'{}', b'{"step": "x"}', b'\xff\0', b'{"step": 1, "train/loss": "x"}')),
    *(Case(line, 'vocab', before=change('run/vocab.txt', cut))
      for line in (_RUN, _PREDICT, 'convert {folder}/run {folder}/new --to huggingface')),
    Case(_PREDICT, 'vocab', before=change('run/vocab.txt', lambda data: b'\n'.join(
        data.split(b'\n')[:5] + data.split(b'\n')[5:-1][::-1]) + b'\n')),
    Case('main @text', 'vocabularies/.*damaged', before=change('cache/vocabularies/*.txt', cut)),
    *(Case('main @text', 'manifest|format version',
           before=change('cache/stores/*/manifest.json', changed))
      for changed in (
          nothing, lambda data: b'[]', having(format_version=99), having(num_tokens=-1),
          having(num_tokens=10**12), lambda data: b'[' * 100000, having(files=3),
          having(files={'../x': {'bytes': 3, 'md5': 'x'}}))),
    *(Case(f'{_SWEEP} --restarts=1', r'sweep\.json|holds a sweep', before=_sweep('', content))
      for content in ('', '[]', '3', '{"config": 3}', '[' * 100000)),
    *(Case(f'{_SWEEP} --grid seed=1', r'sweep_result\.json', before=_sweep(content))
      for content in ('', '[]', '{"metric": "eval/f1"}', '{"metric": "eval/f1", "eval/f1": NaN}')),
    *(Case('main @glue --config.init_checkpoint={things}/run --config.data.dir={things}/cache '
           '--workdir={folder}/cola', 'cola/best',
           before=change('cola/best/*/metrics/metrics', changed))
      for changed in (nothing, lambda data: b'[]', lambda data: b'{}',
                      value(rb'": [-0-9.e]+', b'": 0.875'), value(rb'digest', b'digesx'))),
    Case(_RUN, r'holds a run with (another vocab|model\.vocab)', before=change(
        'text.txt', lambda data: data.upper() + b'\n\nA text of more words.')),
    Case(_PREDICT, 'no checkpoint', before=lambda folder: (
        shutil.rmtree(folder / 'run' / 'checkpoints'), (folder / 'run' / 'checkpoints').mkdir())),
    Case(_RUN, 'checkpoints', before=lambda folder: (
        shutil.rmtree(folder / 'run' / 'checkpoints'),
        os.symlink('nowhere', folder / 'run' / 'checkpoints'))),
]

# Even root makes nothing in /proc/1. Nothing that somebody else wrote is written over.
OUTPUTS = [
    Case('main @synthetic --workdir=/proc/1/run', '--workdir=/proc/1/run'),
    Case('main @text --config.data.dir={folder}/notes/important.txt', r'config\.data\.dir'),
    Case('main @text --config.data.dir=/proc/1/cache', r'config\.data\.dir'),
    Case('main @text --config.data.dir={folder}/other', r'other.*--config\.data\.dir',
         around=full_disk),
    *(Case(f'convert {{folder}}/run {{folder}}/small/x --to {form}', 'small/x is full', 1,
           around=small_disk) for form in ('huggingface', 'tf1', 'bert_jax')),
    Case('main @text --workdir={folder}/small/x', 'small/x is full', 1, around=small_disk),
    Case('main @text --config.data.dir={folder}/small/x --config.data.local_dir={folder}/small/x',
         r'small/x.*config\.data\.dir', around=small_disk),
    Case('predict @features --input {folder}/text.txt --output {folder}/small/x.npz',
         r'small/x\.npz is full', 1, around=small_disk),
    Case('predict @export --output {folder}/small/x', 'small/x is full', 1, around=small_disk),
    Case('predict @features --output {folder}/v.npz a', 'full|space', 1, around=full_disk),
    Case('convert {folder}/run /proc/1/new --to tf1', '/proc/1/new'),
    Case('convert {folder}/run {folder}/text.txt/new --to huggingface', r'text\.txt'),
    Case('convert {folder}/run {folder}/cola --to huggingface', 'cola is there already'),
    Case('convert {folder}/run {folder}/run --to tf1', 'there already'),
    Case('predict @features --output {folder}/notes a', 'notes'),
    Case('predict @features --output {folder}/v.npz a', r'v\.npz',
         before=lambda folder: (folder / 'v.npz').mkdir()),
    Case('predict @features --output {folder}/none/v.npz a', 'none'),
    Case('predict @features --output {folder}/v.npz "a b"', r'v\.npz.*is there already',
         before=write('v.npz', b'features')),
    Case('predict @export --output {folder}/notes', 'notes'),
    Case('predict @export --output /proc/1/v', '/proc/1'),
    Case('predict @export --output {folder}/v.npz', r'v\.npz'),
    Case('predict @export --output {folder}/hf_pretraining/model.safetensors',
         r'model\.safetensors.*is there already'),
    Case('predict @export --output {folder}/v.stablehlo', r'v\.npz.*is there already',
         before=write('v.npz', b'features')),
    Case('report {folder}/run --output {folder}/notes/important.txt',
         r'important\.txt is there already'),
    Case('report {folder}/run --output /proc/1/x', '--output=/proc/1/x'),
    Case('report {folder}/notes --output {folder}/new.html', 'notes is no run directory'),
    Case('evaluate {folder}/cola --workdir=/proc/1/e', '--workdir=/proc/1/e'),
    Case('evaluate {folder}/cola {folder}/notes', 'notes'),
    Case('evaluate {folder}/cola --workdir={folder}/run', 'is a run'),
    Case('evaluate {folder}/cola --workdir={folder}/notes', 'notes.*--workdir'),
    Case('evaluate {folder}/cola --workdir={folder}/text.txt', r'--workdir=.*text\.txt'),
    Case('sweep @sweep --workdir={folder}/text.txt', r'--workdir=.*text\.txt'),
    Case('sweep @sweep --workdir=/proc/1/s', '--workdir=/proc/1/s'),
    Case('sweep @sweep --workdir={folder}/run', 'run.*--workdir'),
    Case('sweep @sweep --workdir={folder}/hf_pretraining', 'hf_pretraining.*--workdir'),
    Case('bench --only=step --json={folder}/notes', '--json=.*notes'),
    Case('bench --only=step --json={folder}/none/x.json', '--json=.*none'),
    Case('bench --only=step --json={folder}/hf_pretraining/config.json', 'is there already'),
    Case('preflight @synthetic --topology=v5e:2x2 --json={folder}/notes/important.txt',
         r'important\.txt is there already'),
    Case('submission {folder}/none/z.zip --fill-missing', 'none'),
    Case('submission {folder}/hf_pretraining/model.safetensors --fill-missing', 'there already'),
    Case('main @synthetic --workdir={folder}/hf_pretraining', 'hf_pretraining.*--workdir'),
    Case('main @glue --config.init_checkpoint={folder}/hf_pretraining '
         '--workdir={folder}/hf_pretraining', 'hf_pretraining.*--workdir'),
    Case('main @synthetic --workdir={folder}/notes', r'notes.*important\.txt.*--workdir'),
    Case('main @synthetic --workdir={folder}/text.txt/run', r'--workdir=.*text\.txt'),
    Case('main @text --workdir={folder}/run', r'run.*config\.json.*--workdir',
         before=lambda folder: (folder / 'run' / 'config.json').unlink()),
]

CASES = [*CONFIGS, *INPUTS, *HAND_EDITED, *OUTPUTS]
