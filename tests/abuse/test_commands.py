"""Careless and hostile inputs to every command: none does harm, each is refused in one line.

Broken config files, settings without a meaning; texts, tables, vocabularies and weights that are
not what they should be; files that an editor or a disk has changed; outputs where nothing can be
written, or that would overwrite other files. Files that were there before are there afterwards,
byte for byte. Readers have tests of their own: tests/test_config.py, tests/data/test_corpus.py,
tests/tasks/test_tables.py, tests/weights/test_refused.py, tests/predict/test_cli.py.
"""

import contextlib
import dataclasses
import json
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.abuse.__main__ import TARGETS, careless, convert_run, fuzz
from tests.abuse.commands import contents, make, open_command
from tests.tiny_runs import WORDS

pytestmark = pytest.mark.slow


@dataclasses.dataclass(frozen=True)
class Case:
    """A call of a command (see `open_command`), and how it must answer.

    Attributes:
      says: a pattern that the one line of error has to match.
      status: its exit status.
      before: prepares the case's folder.
      around: returns the context manager, of the case's folder, in which the command runs.
    """

    line: str | tuple[str, ...]
    says: str
    status: int = 2
    before: Callable[[Path], object] = lambda folder: None
    stdin: bytes = b''
    around: Callable[[Path], contextlib.AbstractContextManager] = contextlib.nullcontext


def write(name, content):
    data = content if isinstance(content, bytes) else content.encode()
    return lambda folder: (folder / name).write_bytes(data)


def change(pattern, changed):
    """Changes the files that match: `changed` takes and gives bytes."""
    def before(folder):
        paths = [path for path in folder.glob(pattern) if path.is_file()]
        assert paths, pattern
        for path in paths:
            path.write_bytes(changed(path.read_bytes()))
    return before


def having(**fields):
    """Sets fields of a JSON file and drops its digest, so that the values are checked."""
    def changed(data):
        said = json.loads(data) | fields
        said.pop('digest', None)
        return json.dumps(said).encode()
    return changed


def value(pattern, new):
    """Replaces a value and keeps the digest, as damage on a disk would."""
    def changed(data):
        result = re.sub(pattern, new, data)
        assert result != data, data
        return result
    return changed


def cut(data):
    return b'\n'.join(data.split(b'\n')[:-7]) + b'\n'


def nothing(data):
    return b''


def deep(data):
    return b'[' * 100000


@contextlib.contextmanager
def small_disk(folder):
    """Mounts a disk of 16 kB as `small`."""
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
CONFIGS = [
    *(Case('main --config={folder}/c.py', rf'(config\.|c\.py.*){says}',
           before=write('c.py', content)) for content, says in (
        ('', 'get_config'), (b'\xff\xfe\x00', 'Python'), ('def get_config(:\n', 'line 1'),
        ('import nothing_of_this_name\n', r'line 1.*nothing_of_this_name'),
        ('def get_config():\n    return 1 / 0\n', r'line 2.*division'),
        ('def get_config():\n    return {}\n', 'default_config'),
        (_START + '    c.optimizer.learning_rte = 1\n    return c\n', 'learning_rte'),
        ('import sys\nsys.exit(0)\n', 'line 2'),
        ('def get_config():\n    return get_config()\n', 'recursion'))),
    # Fields; tests/test_config.py has all ranges.
    *(Case(('main', '@synthetic', f'--config.{setting}'), says) for setting, says in (
        ('optimizer.name=apply_updates', 'name.*apply_updates'), ('optimizer.name=', 'name'),
        ('optimizer.arguments=b1=open("x")', 'arguments.*b1=open'),
        ('optimizer.lr=1', 'lr is not a field'), ('data.packing=perhaps', 'packing'),
        ('train.steps=1e400 steps', 'steps'), ('train.steps=1e15 steps', 'steps.*1e15'),
        ('train.steps=many', 'steps.*many'), ('train.batch_size=100000000', 'batch_size.*1000'),
        ('train.profile=9..8', r'profile.*9\.\.8'), ('train=3', 'train'), ('task=3', 'task'),
        ('seed=99999999999999999999', 'seed'), ('task=pretran', "did you mean 'pretrain'"),
        ('phases=None', 'phases'), ('phases={"steps": 3}', 'phases'),
        ('phases=({"steps": [2]},)', r'phases\[0\]\.steps'),
        ('phases=({"steps": 2, "learning_rate": 1e400},)', r'phases\[0\]\.learning_rate'))),
    Case('main @glue --config.data.held_out=0.5', 'held_out.*has no effect'),
    Case('main @csv --config.data.held_out=0.5 --config.data.eval_source=x', 'would change'),
    Case(('main', '@glue', '--config.phases=({"steps": 1},)'), 'phases'),
    *(Case(f'main --config={file}', says) for file, says in (
        ('configs/tiny_pretrian.py', r'tiny_pretrian\.py: No such .*tiny_pretrain'),
        ('configs', 'configs.*directory'), ('configs/glue.py:nope', "'nope'"),
        ('{folder}/hf_pretraining/model.safetensors', r'model\.safetensors.*Python'),
        ('configs/glue.py:ax', r'configs/glue\.py:ax has no training set'),
        ('configs/glue.py:rte', 'init_checkpoint'))),
    Case('main --workdir={folder}/new', '--config is missing'),
    Case('main @synthetic --wrkdir={folder}/new', 'wrkdir'),
    Case('main @synthetic --workdir={folder}/new please', "'please'"),
    Case('main --config=configs/squad.py --config.init_checkpoint={folder}/run '
         '--config.squad.doc_stride=0', 'doc_stride'),
    *(Case(f'sweep @sweep --{flag}=-1', f'--{flag}: -1 is less than 0')
      for flag in ('restarts', 'chips')),
    *(Case(line, says) for line, says in {
        'bench --stpes=3': 'stpes',
        'bench --seq=16 --predictions=15': '--predictions=15',
        'preflight @synthetic --topology=v5e': 'v5e:16x16',
        'preflight @synthetic --topology=v5e:32x32': 'at most 16',
        'preflight @synthetic --topology=v4:4x4': '3 dims',
        'preflight @synthetic --topology=v5e:2x2 --price=cheap': '--price=cheap',
        'paper mine --rows=glue.py:mrpc': 'glue.py:mrpc is a config of mrpc',
        'paper mine': "'mine'.*--rows=FILE:NAME",
        "preflight @text --topology=v5e:4x4 --config.train.steps='3 epochs'": 'write steps',
        'preflight @glue --topology=v5e:4x4': "'cola'",
        'prepare @text --config.data.source={folder}/none.txt': r'none\.txt',
        'prepare @glue': "'cola' reads its data at every start",
        'paper 5 --columns=mrcp': 'columns=mrcp is unknown',
        'paper 5 --pretrain train.stepz=3': r'train\.stepz',
        'paper 5 --seeds=0': '--seeds: 0 is less than 1',
        'paper 5 --finetune mprc:train.steps=7': r"mprc is unknown: did you mean 'mrpc'\?",
        'paper 5 --weights bse=x': 'at the scale tiny: --weights=bse is unknown',
        'paper 7 --data=there': 'there/conll2003 does not exist',
        'report {folder}/run {folder}/run --output={folder}/new.html': 'run is named twice',
        'report {folder}/run --output={folder}/new.html --text="the [MASK] cat"': r'text.*\[MASK',
        'glue_submission {folder}/new.zip': 'name the directories of runs',
        'glue_submission {folder}/new.zip {folder}/none': 'no folder .*none',
    }.items()),
]

_CONVERT = 'convert {folder}/hf_pretraining {folder}/new --to bert_jax'
INPUTS = [
    *(Case(f'main @text --config.data.source={{folder}}/{name}.txt', r'gone\.txt: No such file',
           before=lambda folder: os.symlink('nowhere', folder / 'gone.txt'))
      for name in ('gone', '*')),
    Case('main @text --config.data.source=3', 'source'),
    Case('main @text --config.data.source=~nosuchuser/x.txt', '~nosuchuser'),
    Case('main @text --config.data.source=jsonl:{folder}/bad.jsonl',
         r'bad\.jsonl begins with \[ and is no list',
         before=write('bad.jsonl', '[' * 100000 + '\n')),
    Case('main @text --config.data.vocab_file={folder}/v.txt', r'\[UNK\]', before=write(
        'v.txt', '\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]',
                            *(chr(0x4e00 + i) for i in range(99))]))),
    *(Case('main @csv', says, before=write('t.csv', 'text,label\n' + rows * 50))
      for rows, says in ((',a\n,b\n', r't\.csv.*(empty|no text|unusable)'),
                         ('漢字漢字,a\n日本,b\n', r'\[UNK\]'), (f'{WORDS[0]},a\n', r't\.csv'))),
    *(Case(_CONVERT, rf'config\.json: {field}',
           before=change('hf_pretraining/config.json', having(**{field: wrong})))
      for field, wrong in (('layer_norm_eps', -1), ('hidden_dropout_prob', float('nan')),
                           ('num_hidden_layers', 10**9), ('vocab_size', -3))),
    Case(_CONVERT, 'model.safetensors', before=change(
        'hf_pretraining/model.safetensors', lambda data: struct.pack('<Q', 1 << 60) + b'{}')),
    Case(_CONVERT, 'config.json', before=change('hf_pretraining/config.json', deep)),
    Case('predict features --model {folder}/notes a', 'notes.*no model'),
    Case(('predict', 'features', '--model', '{folder}/hf_pretraining', 'a \udce4'), 'UTF-8'),
    *(Case('predict answer --model {folder}/hf_question_answering', says, stdin=stdin)
      for stdin, says in ((b'{"question": "\\ud800", "context": "a b"}\n', 'UTF-8|surrogate'),
                          (b'{"question": ' + b'[' * 100000 + b'\n', 'line 1'))),
    Case('predict @features --normalize "a b"', 'add --pool'),
    Case('predict @features --windows=mean "a b"', 'add --pool'),
    Case('predict @features --input {folder}/notes', 'notes'),
]

_RUN = 'main @text --workdir={folder}/run --config.train.steps=6'
_PREDICT = 'predict fill-mask --model {folder}/run "a [MASK]"'
_SWEEP = 'sweep --config=configs/tiny_pretrain.py --workdir={folder}/s'


def _sweep(result):
    """A sweep of one finished run."""
    def before(folder):
        run = folder / 's' / 'runs' / 'seed=1'
        run.mkdir(parents=True)
        (folder / 's' / 'sweep.json').write_text(
            '{"config": "configs/tiny_pretrain.py", "settings": []}')
        (run / 'sweep_result.json').write_text(result)
    return before


HAND_EDITED = [
    *(Case(line, r'config\.json|holds a run with', before=change('run/config.json', changed))
      for changed in (nothing, lambda data: b'[]', deep, lambda data: b'\xff\0', having(model=3),
                      having(model={}), value(rb'"hidden_size": 32', b'"hidden_size": 16'),
                      value(rb'"layer_norm_eps": [-0-9e.]+', b'"layer_norm_eps": -1'))
      for line in (_RUN, _PREDICT)),
    Case(_RUN, r'config\.json|holds a run with', before=change('run/config.json', having(task=3))),
    Case(_PREDICT, r'config\.json', before=change('run/config.json', having(data=3))),
    Case(_RUN, r'metrics\.jsonl', before=change(
        'run/metrics.jsonl', lambda data: b'{"step": 1, "train/loss": "x"}\n' + data)),
    *(Case(line, 'vocab', before=change('run/vocab.txt', cut))
      for line in (_RUN, 'convert {folder}/run {folder}/new --to huggingface')),
    Case(_PREDICT, 'vocab', before=change('run/vocab.txt', lambda data: b'\n'.join(
        data.split(b'\n')[:5] + data.split(b'\n')[5:-1][::-1]) + b'\n')),
    Case('main @text', 'vocabularies/.*damaged', before=change('cache/vocabularies/*.txt', cut)),
    *(Case('main @text', 'manifest|format version',
           before=change('cache/stores/*/manifest.json', changed))
      for changed in (having(format_version=99), having(num_tokens=10**12), deep,
                      having(files={'../x': {'bytes': 3, 'md5': 'x'}}))),
    Case(f'{_SWEEP} --restarts=1', 'holds a sweep', before=lambda folder: (
        (begun := folder / 's' / 'runs' / 'seed=9').mkdir(parents=True),
        (begun / 'config.json').write_text('{}'),
        (folder / 's' / 'sweep.json').write_text('{"config": 3}'))),
    *(Case(f'{_SWEEP} --grid seed=1', r'sweep_result\.json', before=_sweep(content))
      for content in ('', '[]', '{"metric": "eval/f1", "eval/f1": NaN}')),
    *(Case('main @glue --config.init_checkpoint={things}/run --config.data.dir={things}/cache '
           '--workdir={folder}/cola', 'cola/best',
           before=change('cola/best/*/metrics/metrics', changed))
      for changed in (nothing, lambda data: b'{}', value(rb'": [-0-9.e]+', b'": 0.875'))),
    Case(_RUN, r'holds a run with (another vocab|model\.vocab)', before=change(
        'text.txt', lambda data: data.upper() + b'\n\nA text of more words.')),
    Case(_PREDICT, 'no checkpoint', before=lambda folder: (
        shutil.rmtree(folder / 'run' / 'checkpoints'), (folder / 'run' / 'checkpoints').mkdir())),
]

# Even root can create nothing in /proc/1. Files that the command did not write are kept.
_HF = '{folder}/hf_pretraining'
OUTPUTS = [
    *(Case(line, r'small/x(\.npz)? is full', 1, around=small_disk) for line in (
        *(f'convert {{folder}}/run {{folder}}/small/x --to {form}'
          for form in ('huggingface', 'tf1', 'bert_jax')),
        'main @text --workdir={folder}/small/x', 'predict @export --output {folder}/small/x',
        'predict @features --input {folder}/text.txt --output {folder}/small/x.npz')),
    Case('main @text --config.data.dir={folder}/small/x --config.data.local_dir={folder}/small/x',
         r'small/x.* is full', 1, around=small_disk),
    Case('predict @features --output {folder}/v.npz "a b"', r'v\.npz.*is there already',
         before=write('v.npz', b'features')),
    Case('predict @export --output {folder}/v.stablehlo', r'v\.npz.*is there already',
         before=write('v.npz', b'features')),
    Case(_RUN, r'run.*config\.json is missing: put it back',
         before=lambda folder: (folder / 'run' / 'config.json').unlink()),
    *(Case(line, says) for line, says in {
        'main @synthetic --workdir=/proc/1/run': '--workdir=/proc/1/run',
        f'main @synthetic --workdir={_HF}': 'hf_pretraining.*--workdir',
        'main @synthetic --workdir={folder}/notes': r'notes.*important\.txt.*--workdir',
        'main @synthetic --workdir={folder}/text.txt/run': r'--workdir=.*text\.txt',
        'main @text --config.data.dir=/proc/1/cache': r'config\.data\.dir',
        'convert {folder}/run /proc/1/new --to tf1': '/proc/1/new',
        'convert {folder}/none {folder}/new --to tf1': 'none does not exist',
        'convert {folder}/run {folder}/cola --to huggingface': 'cola is there already',
        'predict @features --output {folder}/notes a': 'notes',
        f'predict @export --output {_HF}/model.safetensors':
            r'model\.safetensors.*is there already',
        'report {folder}/run --output {folder}/notes/important.txt':
            r'important\.txt is there already',
        'report {folder}/notes --output {folder}/new.html': 'notes.*run directory',
        'evaluate {folder}/cola --workdir=/proc/1/e': '--workdir=/proc/1/e',
        'evaluate {folder}/cola {folder}/notes': 'notes',
        'evaluate {folder}/cola --workdir={folder}/run': 'is a run',
        'evaluate {folder}/cola --workdir={folder}/notes': 'notes.*--workdir',
        'sweep @sweep --workdir={folder}/run': 'run.*--workdir',
        'bench --json={folder}/notes': '--json=.*notes',
        f'bench --json={_HF}/config.json': 'is there already',
        'preflight @synthetic --topology=v5e:2x2 --json={folder}/notes/important.txt':
            r'important\.txt is there already',
        f'glue_submission {_HF}/model.safetensors --fill-missing': 'there already',
    }.items()),
]


@pytest.fixture(scope='module')
def things(tmp_path_factory):
    folder = tmp_path_factory.mktemp('things')
    make(folder)
    return folder


@pytest.mark.parametrize(
    'case', [*CONFIGS, *INPUTS, *HAND_EDITED, *OUTPUTS],
    ids=lambda case: (case.line if isinstance(case.line, str) else ' '.join(case.line))[:99])
def test_a_bad_call_is_refused_in_one_line_and_changes_no_file(case, things, tmp_path):
    folder = tmp_path / 'all'
    shutil.copytree(things, folder, symlinks=True)
    case.before(folder)
    before = contents(folder)
    with case.around(folder):
        answer = open_command(case.line, folder, things, stdin=case.stdin, seconds=60)
    assert not answer.harm, answer.out + answer.err
    assert answer.status == case.status, answer.out + answer.err
    assert re.search(case.says, answer.lines[0]), answer.lines[0]
    after = contents(folder)
    changed = [name for name, digest in before.items() if after.get(name) != digest]
    assert not changed, changed


def test_damage_is_found_or_does_no_harm(things, tmp_path):
    folder = tmp_path / 'things'
    shutil.copytree(things, folder)
    convert_run(folder)
    names = [name for name, target in TARGETS.items() if 'resumed' not in name]
    outcomes = fuzz(range(48), 0, folder, tmp_path / 'case', names)
    assert {'same result', 'refused'} <= harmless(outcomes)


def test_careless_tables_and_flags_are_read_alike_or_refused(tmp_path):
    assert harmless(careless(range(40), 1, tmp_path)) == {'read', 'refused'}


def harmless(outcomes):
    found = set()
    for number, group, outcome, printed in outcomes:
        assert not outcome.startswith('HARM'), f'{number} {group}: {outcome}\n{printed}'
        found.add(outcome)
    return found
