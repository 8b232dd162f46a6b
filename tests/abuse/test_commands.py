"""Careless and hostile inputs to every command: none does harm, each is refused in one line.

Broken config files, settings without a meaning; texts, tables, vocabularies and weights that are
not what they should be; files that an editor or a disk has changed; outputs where nothing can be
written, or that would overwrite other files. Files that were there before are there afterwards,
byte for byte. Readers have tests of their own: tests/test_validation.py,
tests/corpus/test_corpus_sources.py, tests/rows/test_tables.py, tests/foreign/test_refused.py,
tests/predict/test_cli.py.
"""

import contextlib
import json
import os
import re
import shutil
import struct
import subprocess

import pytest

from tests.abuse.campaign import here
from tests.abuse.classes import foreign
from tests.abuse.commands import contents, copy_again, make, open_command
from tests.abuse.fuzz import TARGETS, convert_run, fuzz
from tests.conftest import ROOT
from tests.numpy_kernels import kernels_of_numpy  # noqa: F401
from tests.tiny_runs import WORDS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('kernels_of_numpy')]


@pytest.fixture(scope='module')
def things(tmp_path_factory, kernels_of_numpy):  # noqa: F811
    folder = tmp_path_factory.mktemp('things')
    make(folder)
    return folder


class Sandbox:
    """A copy of `things`, in which a test may change files before a command has to refuse them."""

    def __init__(self, things, folder):
        self.folder = folder
        self._things = things

    def write(self, name, content):
        """Writes a file; `content` is text or bytes."""
        data = content if isinstance(content, bytes) else content.encode()
        (self.folder / name).write_bytes(data)

    def change(self, pattern, changed):
        """Changes the files that match: `changed` takes and gives bytes."""
        paths = [path for path in self.folder.glob(pattern) if path.is_file()]
        assert paths, pattern
        for path in paths:
            path.write_bytes(changed(path.read_bytes()))

    def refuses(self, call, says, status=2, stdin=b''):
        """Checks that a command refuses a call in one line and changes no file.

        Args:
          call: as for `open_command`.
          says: a pattern that the line has to match.
          status: the exit status.
          stdin: bytes of the command's standard input.
        """
        before = contents(self.folder)
        answer = open_command(call, self.folder, self._things, stdin=stdin)
        assert not answer.harm, answer.out + answer.err
        assert answer.status == status, answer.out + answer.err
        assert re.search(says, answer.lines[0]), answer.lines[0]
        after = contents(self.folder)
        changed = [name for name, digest in before.items() if after.get(name) != digest]
        assert not changed, changed


@pytest.fixture
def sandbox(things):
    folder = things.with_name('sandbox')
    copy_again(things, folder)
    return Sandbox(things, folder)


# What an editor or a disk does to a file.

def with_fields(**fields):
    """Sets fields of a JSON file and drops its digest, so that the values are checked."""
    def changed(data):
        content = json.loads(data) | fields
        content.pop('digest', None)
        return json.dumps(content).encode()
    return changed


def with_value(pattern, new):
    """Replaces a value and keeps the digest, as damage on a disk would."""
    def changed(data):
        result = re.sub(pattern, new, data)
        assert result != data, data
        return result
    return changed


def without_last_lines(data):
    return b'\n'.join(data.split(b'\n')[:-7]) + b'\n'


def emptied(data):
    return b''


def nested_too_deep(data):
    return b'[' * 100000


def replaced(new):
    return lambda data: new


# Config files and flags.

CONFIG = 'from bert_jax.config import default_config\ndef get_config():\n    c = default_config()\n'


@pytest.mark.parametrize('content, says', [
    pytest.param('', 'get_config', id='empty'),
    pytest.param(b'\xff\xfe\x00', 'Python', id='no text'),
    pytest.param('def get_config(:\n', 'line 1', id='no Python'),
    pytest.param('import nothing_of_this_name\n', r'line 1.*nothing_of_this_name', id='no module'),
    pytest.param('def get_config():\n    return 1 / 0\n', r'line 2.*division', id='it raises'),
    pytest.param('def get_config():\n    return {}\n', 'default_config', id='no config'),
    pytest.param(CONFIG + '    c.optimizer.learning_rte = 1\n    return c\n', 'learning_rte',
                 id='no field'),
    pytest.param('import sys\nsys.exit(0)\n', 'line 2', id='it exits'),
    pytest.param('def get_config():\n    return get_config()\n', 'recursion', id='it recurs'),
    pytest.param('#' * (1 << 20) + '\n', 'more than 1 MiB', id='it is large'),
])
def test_a_broken_config_file(sandbox, content, says):
    sandbox.write('c.py', content)
    sandbox.refuses('main --config={folder}/c.py', rf'(config\.|c\.py.*){says}')


def test_a_pipe_in_the_place_of_a_config_or_a_cache_does_not_hang(sandbox):
    os.mkfifo(sandbox.folder / 'c.py')
    for command in ('main', 'sweep --restarts=1'):
        sandbox.refuses(f'{command} --config={{folder}}/c.py', 'a named pipe')
    (vocabulary,) = (sandbox.folder / 'cache' / 'vocabularies').glob('*.txt')
    vocabulary.unlink()
    os.mkfifo(vocabulary)
    sandbox.refuses('main @text', 'vocabularies/.*is a named pipe')


@pytest.mark.parametrize('file, says', [
    ('configs/tiny_pretrian.py', r'tiny_pretrian\.py: No such .*tiny_pretrain'),
    ('configs', 'configs.*directory'),
    ('configs/glue.py:nope', "'nope'"),
    ('{folder}/hf_pretraining/model.safetensors', r'model\.safetensors.*Python'),
    ('configs/glue.py:ax', r'configs/glue\.py:ax has no training set'),
    ('configs/glue.py:rte', 'init_checkpoint'),
])
def test_a_name_that_is_no_config_to_train_with(sandbox, file, says):
    sandbox.refuses(f'main --config={file}', says)


# tests/test_validation.py has all ranges.
@pytest.mark.parametrize('setting, says', [
    ('optimizer.name=apply_updates', 'name.*apply_updates'),
    ('optimizer.name=', 'name'),
    ('optimizer.arguments=b1=open("x")', 'arguments.*b1=open'),
    ('optimizer.lr=1', 'lr is not a field'),
    ('data.packing=perhaps', 'packing'),
    ('train.steps=1e400 steps', 'steps'),
    ('train.steps=1e15 steps', 'steps.*1e15'),
    ('train.steps=many', 'steps.*many'),
    ('train.batch_size=100000000', 'batch_size.*1000'),
    ('train.profile=9..8', r'profile.*9\.\.8'),
    ('train=3', 'train'),
    ('task=3', 'task'),
    ('seed=99999999999999999999', 'seed'),
    ('task=pretran', "did you mean 'pretrain'"),
    ('phases=None', 'phases'),
    ('train.steps={}', r'config\.train\.steps without a value'),
    ('data={}', 'config.data is not a field'),
    ('train.profile=1..2@9', 'there is no host 9'),
    ('regression.metrics=pearson', 'is a field of other tasks, which this config does not have'),
    ('phases={"steps": 3}', 'phases'),
    ('phases=({"steps": [2]},)', r'phases\[0\]\.steps'),
    ('phases=({"steps": 2, "learning_rate": 1e400},)', r'phases\[0\]\.learning_rate'),
])
def test_a_setting_without_a_meaning(sandbox, setting, says):
    sandbox.refuses(('main', '@synthetic', f'--config.{setting}'), says)


@pytest.mark.parametrize('call, says', [
    ('main @glue --config.data.held_out=0.5', 'held_out.*has no effect'),
    ('main @csv --config.data.held_out=0.5 --config.data.eval_source=x', 'would change'),
    ("main @glue --config.phases='({\"steps\": 1},)'", 'phases'),
    ('main --config=configs/squad.py --config.init_checkpoint={folder}/run '
     '--config.squad.doc_stride=0', 'doc_stride'),
])
def test_a_setting_that_does_not_suit_the_task(sandbox, call, says):
    sandbox.refuses(call, says)


@pytest.mark.parametrize('call, says', [
    ('main --workdir={folder}/new', '--config is missing'),
    ('main @synthetic --wrkdir={folder}/new', 'wrkdir'),
    ('main @synthetic --workdir={folder}/new please', "'please'"),
    ('sweep @sweep --restarts=-1', '--restarts: -1 is less than 0'),
    ('sweep @sweep --chips=-1', '--chips: -1 is less than 0'),
    ('sweep @sweep --restarts=1000000', '--restarts=1000000 is above 10,000'),
    ('sweep @sweep --storage=x', "--storage='x'... is not the URL of a database"),
    ('sweep @sweep --storage=nosuch://a', 'write sqlite:///FILE or postgresql://'),
    ('sweep @sweep --storage=sqlite://', 'a database in memory is lost'),
    ('sweep @sweep --prune=asha', "--prune: invalid choice: 'asha'"),
    ('sweep @sweep --prune=median --config.train.eval_every=0', 'config.train.eval_every is 0'),
    ('sweep @sweep --restarts=2 --prune=hyperband', 'take --prune=median'),
    ('sweep @sweep --search train.batch_size=8,16 --sampler=grid', '--sampler: invalid choice'),
    ('sweep @sweep --search train.batch_size=8,16 --trials=0', '--trials: 0 is less than 1'),
    ('sweep @sweep --search train.batch_size=16..8', 'the first number must be below the second'),
    ('sweep @sweep --search train.batch_size=0..8', '--search train.batch_size=0'),
    ('sweep @sweep --search train.batch_size=8,16 --grid seed=1,2', '--grid beside --search'),
    ('evaluate {folder}/cola --config.data.eval_source x.csv', 'write --config.data.eval_source=x'),
    ('main @synthetic --workdir=hf:a/b', '--workdir=hf:a/b names the Hugging Face hub'),
    (('convert', '{folder}/run', '{folder}/\udcff', '--to', 'tf1'), 'no name in UTF-8'),
    (('predict', 'features', '--model', '', 'a'), 'the name of the model is empty'),
    ('convert {folder}/run\0 {folder}/new --to tf1', 'holds a NUL'),
    ('bench --stpes=3', 'stpes'),
    ('bench --seq=16 --predictions=15', '--predictions=15'),
    ('prepare @text --config.data.source={folder}/none.txt', r'none\.txt'),
    ('look @text --vocab_sizes=8k', '--vocab_sizes=8k'),
    ('look @text --config.data.source={folder}/none.txt', r'none\.txt'),
    ('look @glue', "'cola' trains no vocabulary"),
    ('look {folder}/run --stores', 'run holds no token stores: name a config.data.dir'),
    ('look {folder}/cache --stores --delete', 'unrecognized arguments: --delete'),
    ('prepare @glue', "'cola' reads its data at every start"),
    ('preflight @synthetic --topology=v5e', 'v5e:16x16'),
    ('preflight @synthetic --topology=v5e:32x32', 'at most 16'),
    ('preflight @synthetic --topology=v4:4x4', '3 dims'),
    ('preflight @synthetic --topology=v5e:2x2 --price=cheap', '--price=cheap'),
    ('preflight @synthetic --topology=v5e:2x2 --price=nan', '--price=nan'),
    ('preflight @synthetic --topology=v5e:2x2 --programs=a --save_programs=b', 'one of the two'),
    ('preflight @text', 'name slices of TPUs, counted in chips'),
    ("preflight @text --topology=v5e:4x4 --config.train.steps='3 epochs'", 'write steps'),
    ('preflight @glue --topology=v5e:4x4 --config.data.source={folder}/none', 'none'),
    ('paper mine --rows=glue.py:mrpc', 'glue.py:mrpc is a config of mrpc'),
    ('paper mine', "'mine'.*--rows=FILE:NAME"),
    ('paper 5 --columns=mrcp', 'columns=mrcp is unknown'),
    ('paper 5 --pretrain train.stepz=3', r'train\.stepz'),
    ('paper 5 --seeds=0', '--seeds: 0 is less than 1'),
    ('paper 5 --finetune mprc:train.steps=7', r"mprc is unknown: did you mean 'mrpc'\?"),
    ('paper 5 --weights bse=x', 'at the scale tiny: --weights=bse is unknown'),
    ('paper 7 --data=there', 'there/conll2003 does not exist'),
    ('report {folder}/run {folder}/run --output={folder}/new.html', 'run is named twice'),
    ('report {folder}/run --output={folder}/new.html --text="the [MASK] cat"', r'text.*\[MASK'),
    ('paper superglue --model a --model a', 'names a model twice'),
    ('mine --model {folder}/run --input {folder}/none.csv --output {folder}/new.csv', 'jsonl'),
    ('mine --model {folder}/run --input {folder}/none.csv --output {folder}/new.jsonl',
     'none.csv'),
    ('mine --model {folder}/run --input x.csv --output {folder}/new.jsonl --negatives=0',
     '--negatives: 0 is less than 1'),
    ('glue_submission {folder}/new.zip', 'name the directories of runs'),
    ('glue_submission {folder}/new.zip {folder}/none', 'no folder .*none'),
])
def test_a_wrong_flag_or_argument(sandbox, call, says):
    sandbox.refuses(call, says)


# Texts, tables and weights.

@pytest.mark.parametrize('pattern', ['gone', '*'])
def test_a_text_that_is_a_dangling_link(sandbox, pattern):
    (sandbox.folder / 'gone.txt').symlink_to('nowhere')
    sandbox.refuses(f'main @text --config.data.source={{folder}}/{pattern}.txt',
                    r'gone\.txt: No such file')


@pytest.mark.parametrize('source, says', [('3', 'source'), ('~nosuchuser/x.txt', '~nosuchuser')])
def test_a_source_of_text_that_is_none(sandbox, source, says):
    sandbox.refuses(f'main @text --config.data.source={source}', says)


def test_a_text_that_nests_too_deep(sandbox):
    sandbox.write('bad.jsonl', '[' * 100000 + '\n')
    sandbox.refuses('main @text --config.data.source=jsonl:{folder}/bad.jsonl',
                    r'bad\.jsonl begins with \[ and is no list')


def test_a_vocabulary_of_another_language(sandbox):
    chinese = [chr(0x4e00 + i) for i in range(99)]
    tokens = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *chinese]
    sandbox.write('v.txt', '\n'.join(tokens))
    sandbox.refuses('main @text --config.data.vocab_file={folder}/v.txt', r'\[UNK\]')


@pytest.mark.parametrize('rows, says', [
    pytest.param(',a\n,b\n', r't\.csv.*(empty|no text|unusable)', id='no text'),
    pytest.param('漢字漢字,a\n日本,b\n', r'\[UNK\]', id='another language'),
    pytest.param(f'{WORDS[0]},a\n', r't\.csv', id='one label'),
])
def test_a_table_from_which_nothing_can_be_learned(sandbox, rows, says):
    sandbox.write('t.csv', 'text,label\n' + rows * 50)
    sandbox.refuses('main @csv', says)


CONVERT = 'convert {folder}/hf_pretraining {folder}/new --to bert_jax'


@pytest.mark.parametrize('field, wrong', [
    ('layer_norm_eps', -1),
    ('hidden_dropout_prob', float('nan')),
    ('num_hidden_layers', 10**9),
    ('vocab_size', -3),
])
def test_published_weights_with_an_impossible_config(sandbox, field, wrong):
    sandbox.change('hf_pretraining/config.json', with_fields(**{field: wrong}))
    sandbox.refuses(CONVERT, rf'config\.json: {field}')


def test_published_weights_that_are_damaged(sandbox):
    too_long_header = struct.pack('<Q', 1 << 60) + b'{}'
    sandbox.write('hf_pretraining/model.safetensors', too_long_header)
    sandbox.refuses(CONVERT, 'model.safetensors')


def test_published_weights_whose_config_nests_too_deep(sandbox):
    sandbox.change('hf_pretraining/config.json', nested_too_deep)
    sandbox.refuses(CONVERT, 'config.json')


@pytest.mark.parametrize('call, says', [
    ('predict features --model {folder}/notes a', 'notes.*no model'),
    (('predict', 'features', '--model', '{folder}/hf_pretraining', 'a \udce4'), 'UTF-8'),
    ('predict @features --normalize "a b"', 'add --pool'),
    ('predict @features --windows=mean "a b"', 'add --pool'),
    ('predict @features --input {folder}/notes', 'notes'),
])
def test_a_prediction_that_cannot_be_made(sandbox, call, says):
    sandbox.refuses(call, says)


@pytest.mark.parametrize('stdin, says', [
    pytest.param(b'{"question": "\\ud800", "context": "a b"}\n', 'UTF-8|surrogate', id='no text'),
    pytest.param(b'{"question": ' + b'[' * 100000 + b'\n', 'line 1', id='nested too deep'),
])
def test_standard_input_that_cannot_be_read(sandbox, stdin, says):
    sandbox.refuses('predict answer --model {folder}/hf_question_answering', says, stdin=stdin)


# Files of this project that an editor or a disk has changed.

RESUME = 'main @text --workdir={folder}/run --config.train.steps=6'
PREDICT = 'predict fill-mask --model {folder}/run "a [MASK]"'
RUN_CONFIG = r'config\.json|holds a run with'


@pytest.mark.parametrize('call', [
    pytest.param(RESUME, id='resumed'), pytest.param(PREDICT, id='predicted with')])
@pytest.mark.parametrize('changed', [
    emptied,
    pytest.param(replaced(b'[]'), id='a list'),
    nested_too_deep,
    pytest.param(replaced(b'\xff\0'), id='no text'),
    pytest.param(with_fields(model=3), id='model is a number'),
    pytest.param(with_fields(model={}), id='model is empty'),
    pytest.param(with_value(rb'"hidden_size": 32', b'"hidden_size": 16'), id='another width'),
    pytest.param(with_value(rb'"layer_norm_eps": [-0-9e.]+', b'"layer_norm_eps": -1'),
                 id='an impossible value'),
])
def test_the_config_of_a_run_that_was_changed(sandbox, call, changed):
    sandbox.change('run/config.json', changed)
    sandbox.refuses(call, RUN_CONFIG)


def test_a_run_whose_task_was_changed_is_not_resumed(sandbox):
    sandbox.change('run/config.json', with_fields(task=3))
    sandbox.refuses(RESUME, RUN_CONFIG)


def test_a_run_whose_data_were_changed_predicts_nothing(sandbox):
    sandbox.change('run/config.json', with_fields(data=3))
    sandbox.refuses(PREDICT, r'config\.json')


def test_a_run_whose_config_is_missing(sandbox):
    (sandbox.folder / 'run' / 'config.json').unlink()
    sandbox.refuses(RESUME, r'run.*config\.json is missing: put it back')


def test_a_run_whose_records_were_changed(sandbox):
    wrong = b'{"step": 1, "train/loss": "x"}\n'
    sandbox.change('run/metrics.jsonl', lambda data: wrong + data)
    sandbox.refuses(RESUME, r'metrics\.jsonl')


@pytest.mark.parametrize('call', [
    RESUME, 'convert {folder}/run {folder}/new --to huggingface'])
def test_a_run_whose_vocabulary_was_cut(sandbox, call):
    sandbox.change('run/vocab.txt', without_last_lines)
    sandbox.refuses(call, 'vocab')


def test_a_run_whose_vocabulary_has_another_order(sandbox):
    def reversed_words(data):
        lines = data.removesuffix(b'\n').split(b'\n')
        specials, words = lines[:5], lines[5:]
        return b'\n'.join(specials + words[::-1]) + b'\n'

    sandbox.change('run/vocab.txt', reversed_words)
    sandbox.refuses(PREDICT, 'vocab')


def test_a_run_whose_text_was_changed(sandbox):
    sandbox.change('text.txt', lambda data: data.upper() + b'\n\nA text of more words.')
    sandbox.refuses(RESUME, r'holds a run with (another vocab|model\.vocab)')


def test_a_run_whose_checkpoints_are_gone(sandbox):
    checkpoints = sandbox.folder / 'run' / 'checkpoints'
    shutil.rmtree(checkpoints)
    checkpoints.mkdir()
    sandbox.refuses(PREDICT, 'no checkpoint')


@pytest.mark.parametrize('changed', [
    emptied,
    pytest.param(replaced(b'{}'), id='no metric'),
    pytest.param(with_value(rb'": [-0-9.e]+', b'": 0.875'), id='another value'),
])
def test_a_run_whose_best_metrics_were_changed(sandbox, changed):
    sandbox.change('cola/best/*/metrics/metrics', changed)
    sandbox.refuses('main @glue --config.init_checkpoint={things}/run '
                    '--config.data.dir={things}/cache --workdir={folder}/cola', 'cola/best')


def test_a_vocabulary_in_the_cache_that_was_cut(sandbox):
    sandbox.change('cache/vocabularies/*.txt', without_last_lines)
    sandbox.refuses('main @text', 'vocabularies/.*damaged')


@pytest.mark.parametrize('changed', [
    pytest.param(with_fields(format_version=99), id='another version'),
    pytest.param(with_fields(num_tokens=10**12), id='another length'),
    nested_too_deep,
    pytest.param(with_fields(files={'../x': {'bytes': 3, 'md5': 'x'}}), id='a file elsewhere'),
])
def test_a_token_store_whose_manifest_was_changed(sandbox, changed):
    sandbox.change('cache/stores/*/manifest.json', changed)
    sandbox.refuses('main @text', 'manifest|format version')


SWEEP = 'sweep --config=configs/tiny_pretrain.py --workdir={folder}/s'


def test_a_sweep_with_another_config(sandbox):
    begun = sandbox.folder / 's' / 'runs' / 'seed=9'
    begun.mkdir(parents=True)
    (begun / 'config.json').write_text('{}')
    sandbox.write('s/sweep.json', '{"config": 3}')
    sandbox.refuses(f'{SWEEP} --restarts=1', r'sweep\.json: config=3 must be a text')


@pytest.mark.parametrize('result', ['', '[]', '{"metric": "eval/f1", "eval/f1": NaN}'])
def test_a_sweep_whose_results_were_changed(sandbox, result):
    finished = sandbox.folder / 's' / 'runs' / 'seed=1'
    finished.mkdir(parents=True)
    config = json.dumps(f'{ROOT}/configs/tiny_pretrain.py')
    sandbox.write('s/sweep.json', f'{{"config": {config}, "settings": []}}')
    (finished / 'sweep_result.json').write_text(result)
    sandbox.refuses(f'{SWEEP} --grid seed=1', r'sweep_result\.json')


# Outputs. Even root can create nothing in /proc/1. Files that the command did not write are kept.

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


@pytest.mark.parametrize('call', [
    'convert {folder}/run {folder}/small/x --to huggingface',
    'convert {folder}/run {folder}/small/x --to tf1',
    'convert {folder}/run {folder}/small/x --to bert_jax',
    'main @text --workdir={folder}/small/x',
    'predict @export --output {folder}/small/x',
    'predict @features --input {folder}/text.txt --output {folder}/small/x.npz',
])
def test_a_disk_that_is_full(sandbox, call):
    with small_disk(sandbox.folder):
        sandbox.refuses(call, r'small/x(\.npz|/checkpoints)? is full', status=1)


def test_a_disk_for_data_that_is_full(sandbox):
    with small_disk(sandbox.folder):
        sandbox.refuses(
            'main @text --config.data.dir={folder}/small/x '
            '--config.data.local_dir={folder}/small/x', r'small/x.* is full', status=1)


@pytest.mark.parametrize('call', [
    'predict @features --output {folder}/v.npz "a b"',
    'predict @export --output {folder}/v.stablehlo',
])
def test_an_output_that_is_there_already(sandbox, call):
    sandbox.write('v.npz', b'features')
    sandbox.refuses(call, r'v\.npz.*is there already')


HUGGINGFACE = '{folder}/hf_pretraining'


@pytest.mark.parametrize('call, says', [
    ('main @synthetic --workdir=/proc/1/run', '--workdir=/proc/1/run'),
    (f'main @synthetic --workdir={HUGGINGFACE}', 'hf_pretraining.*--workdir'),
    ('main @synthetic --workdir={folder}/notes', r'notes.*important\.txt.*--workdir'),
    ('main @synthetic --workdir={folder}/text.txt/run', r'--workdir=.*text\.txt'),
    ('main @text --config.data.dir=/proc/1/cache', r'config\.data\.dir'),
    ('convert {folder}/run /proc/1/new --to tf1', '/proc/1/new'),
    ('convert {folder}/none {folder}/new --to tf1', 'none does not exist'),
    ('convert {folder}/run {folder}/new --to tf1 --card=card.md', 'only --to huggingface'),
    ('convert {folder}/run {folder}/cola --to huggingface', 'cola is there already'),
    ('predict @features --output {folder}/notes a', 'notes'),
    (f'predict @export --output {HUGGINGFACE}/model.safetensors',
     r'model\.safetensors.*is there already'),
    ('report {folder}/run --output {folder}/notes/important.txt',
     r'important\.txt is there already'),
    ('report {folder}/notes --output {folder}/new.html', 'notes.*run directory'),
    ('evaluate {folder}/cola --workdir=/proc/1/e', '--workdir=/proc/1/e'),
    ('evaluate {folder}/cola {folder}/notes', 'notes'),
    ('evaluate {folder}/cola --workdir={folder}/run', 'is a run'),
    ('evaluate {folder}/cola --workdir={folder}/notes', 'notes.*--workdir'),
    ('sweep @sweep --workdir={folder}/run', 'run.*--workdir'),
    ('bench --json={folder}/notes', '--json=.*notes'),
    (f'bench --json={HUGGINGFACE}/config.json', 'is there already'),
    ('preflight @synthetic --topology=v5e:2x2 --json={folder}/notes/important.txt',
     r'important\.txt is there already'),
    (f'glue_submission {HUGGINGFACE}/model.safetensors --fill-missing', 'there already'),
])
def test_a_place_that_cannot_be_written_or_holds_something_else(sandbox, call, says):
    sandbox.refuses(call, says)


# Random damage and mistakes.

def test_damage_is_found_or_does_no_harm(things, tmp_path):
    folder = tmp_path / 'things'
    shutil.copytree(things, folder)
    convert_run(folder)
    names = [name for name in TARGETS if 'resumed' not in name]
    outcomes = fuzz(range(48), 0, folder, tmp_path / 'case', names)
    assert {'same result', 'refused'} <= harmless(outcomes)


@pytest.mark.parametrize('group, count', [
    ('foreign JSON', 40), ('tables', 20), ('data sets', 20), ('archives', 8), ('sweeps', 12),
    ('scripts', 8)])
def test_careless_and_hostile_cases_are_answered_or_refused(things, tmp_path, group, count):
    if not (things / 'json').exists():
        foreign.make(things / 'json')
    outcomes = here(group, range(count), 0, tmp_path / 'case', things)
    assert 'read' in harmless(outcomes)


def harmless(outcomes):
    """The results of cases, none of which is harm."""
    found = set()
    for case in outcomes:
        words = f'{case.number} {case.group}: {case.result}\n{case.printed}'
        assert not case.result.startswith('HARM'), words
        found.add(case.result)
    return found
