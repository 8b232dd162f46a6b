"""Models and data sets by name, from a stand-in for the Hugging Face hub on loopback."""

import contextlib
import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub import errors

from bert_jax.foreign import load_weights
from bert_jax.runtime.errors import InputError, Unavailable
from bert_jax.runtime.hub import (
    _check_all_parts,
    _check_content,
    _download_one_by_one,
    _explained,
    _Repository,
)
from tests.foreign.run_model import RECORDED, assert_same
from tests.programs import run_program
from tests.stand_in_hub import COMMIT, Hub, serving
from tests.tasks.opened import parquet

FOLDER = RECORDED / 'pretraining'
FLAX = RECORDED.parent / 'flax' / 'FlaxBertForPreTraining'


def files_of(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(scope='module')
def hub(tmp_path_factory):
    """The environment of the stand-in, with a model and data sets."""
    files = [*itertools.chain(*SPLITS.values()), 'sst2/cut.parquet', 'README.md']
    Hub.repositories = {
        'ORG/bert': files_of(FOLDER) | {'flax_model.msgpack': b'not downloaded'},
        'ORG/flax': files_of(FLAX),
        'ORG/tasks': {
            'config.json': b'{}', 'flax_model.msgpack': b'not downloaded',
            'query/adapter_config.json': b'{"r": 4}'},
        'datasets/ORG/glue': {file: file.encode() for file in files},
        'datasets/ORG/csv': {'train.csv': b'text'}}
    with serving(str(tmp_path_factory.mktemp('cache'))) as environment:
        yield environment


def ask(hub, *names, program=None, **environment):
    """Each name's folder, files or error, asked for in a new process; or what `program` prints."""
    process = run_program('-c', program or ASK, *names, **hub | environment)
    assert process.returncode == 0, process.stderr
    return list(map(json.loads, process.stdout.splitlines()))


ASK = """
import json, sys, time
from bert_jax.runtime import errors, hub
time.sleep = lambda seconds: None  # for which the client waits between attempts
for name in sys.argv[1:]:
    try:
        read = hub.parquet_files if 'datasets/' in name else hub.model_folder
        print(json.dumps(read(name)))
    except (errors.InputError, errors.Unavailable) as error:
        print(json.dumps(f'{type(error).__name__}: {error}'))
"""


SPLITS = {
    'ORG/glue/mrpc/train': ['mrpc/train-00000-of-00002.parquet',
                            'mrpc/train-00001-of-00002.parquet'],
    'ORG/glue/mrpc/test': ['mrpc/test.parquet'],
    'ORG/glue/mrpc/t*st.parquet': ['mrpc/test.parquet'],
    'ORG/glue/rte': ['rte/train/0000.parquet'],
    'ORG/glue@refs/convert/parquet/rte/train': ['rte/train/0000.parquet'],
    f'ORG/glue@{COMMIT}/rte/train/': ['rte/train/0000.parquet'],
}


def test_a_name_gives_the_files_that_it_names_and_again_from_the_cache(hub):
    names = ['hf:ORG/bert', f'hf:ORG/bert@{COMMIT}', 'hf:ORG/flax',
             *(f'hf:datasets/{name}' for name in SPLITS)]
    for environment in ({}, {'HF_HUB_OFFLINE': '1'}):
        folder, again, flax_folder, *found = ask(hub, *names, **environment)
        assert_same(load_weights(folder), load_weights(FOLDER))
        assert folder == again
        assert not (Path(folder) / 'flax_model.msgpack').exists()
        assert_same(load_weights(flax_folder), load_weights(FLAX))
        for files, wanted in zip(found, SPLITS.values(), strict=True):
            assert [file.partition(f'{COMMIT}/')[2] for file in files] == wanted
            assert [Path(x).read_bytes() for x in files] == [x.encode() for x in wanted]
    # Nothing is read of a data set that is not wholly in the cache.
    assert 'InputError: hf:datasets/ORG/glue/sst2: it is not in the cache, or not all' in ask(
        hub, 'hf:datasets/ORG/glue/sst2', HF_HUB_OFFLINE='1')[0]


def test_a_folder_of_a_repository_is_downloaded_alone(hub):
    folder, = ask(hub, f'hf:ORG/tasks/query@{COMMIT}')
    assert files_of(Path(folder)) == {'adapter_config.json': b'{"r": 4}'}
    assert [path.name for path in Path(folder).parent.iterdir()] == ['query']


@pytest.mark.slow
def test_a_hub_that_is_down_or_unreachable_leaves_what_the_cache_has(hub, monkeypatch):
    names = ['hf:ORG/bert', 'hf:datasets/ORG/glue/mrpc/test']
    before = ask(hub, *names)
    monkeypatch.setattr(Hub, 'down', True)
    for environment in ({}, {'HF_ENDPOINT': 'http://127.0.0.1:9'}):
        *cached, other = ask(hub, *names, 'hf:ORG/other', **environment)
        assert cached == before
        assert other.startswith('InputError: hf:ORG/other: it is not in the cache, or not all of')


FAULTS = {
    'hf:ORG/bret': 'InputError: hf:ORG/bret: the hub has no such model (the cache has ORG/bert); '
                   'for a private one log in',
    'hf:ORG/bert@v2': 'it has no such revision',
    'hf:ORG/gated': 'it is gated: accept its terms on its page, and log in',
    'hf:a/b c': 'write hf:ORG/NAME',
    'hf:ORG/bret/query': 'InputError: hf:ORG/bret/query: the hub has no such model',
    'hf:datasets/ORG/none/train': 'the hub has no such dataset',
    'hf:datasets/glue': 'write hf:datasets/ORG/NAME/PATH',
    'hf:datasets/ORG/glue': 'name one of mrpc/test, mrpc/train, rte/train, sst2/cut',
    'hf:datasets/ORG/glue/mprc/train': 'no Parquet file has this path; name one of',
    'hf:datasets/ORG/glue/mrpc': 'several splits have this path',
    'hf:datasets/ORG/csv/train': 'name one of none; what the hub made',
    'hf:datasets/ORG/glue/sst2': 'Unavailable: hf:datasets/ORG/glue/sst2: the transfer failed',
}


def test_a_wrong_name_or_a_failed_transfer_is_told_in_one_line(hub):
    ask(hub, 'hf:ORG/bert')
    for found, words in zip(ask(hub, *FAULTS), FAULTS.values(), strict=True):
        assert words in found and '\n' not in found
    with pytest.raises(InputError, match='of the Hugging Face hub: hf:ORG/bert-base-uncased'):
        load_weights('bert-base-uncased')


GLUE = """
import json
from bert_jax.tasks.glue import read_glue
x = read_glue('mnli', 'hf:datasets/nyu-mll/glue', 'dev_matched')
print(json.dumps([x.texts, x.labels.tolist(), x.ids]))
"""


def test_glue_has_the_hub_s_columns_labels_and_ids(hub, tmp_path):
    file = parquet(tmp_path / 'x', premise=['A', 'B', 'C'], hypothesis=['D', 'E', 'F'],
                   label=[0, 1, 2], idx=[7, 8, 9])  # entailment, neutral, contradiction
    Hub.repositories['datasets/nyu-mll/glue'] = {
        'mnli/validation_matched-00000-of-00001.parquet': Path(file).read_bytes()}
    assert ask(hub, program=GLUE) == [[[[*'ABC'], [*'DEF']], [1, 2, 0], [*'789']]]


WIKIPEDIA = """
import json, sys
from bert_jax.corpus.sources import open_source
from bert_jax.runtime import errors
try:
    source = open_source('wikipedia:en', sys.argv[1])
    texts = [document.text.decode() for unit in source.units for document in source.read(unit)]
    print(json.dumps([len(source.units), texts, source.fingerprint()]))
except (errors.InputError, errors.Unavailable) as error:
    print(json.dumps(f'{type(error).__name__}: {error}'))
"""


@pytest.fixture
def wikipedia(hub, tmp_path):
    """A stand-in with Wikipedia of four articles in two files; gives a function that reads it."""
    files = [parquet(tmp_path / f'{i}', id=[str(i), f'{i}b'], url=['u', 'v'], title=['T', 'U'],
                     text=[f'Article {i} ' + 'of some length ' * 999, f'Another {i}'])
             for i in range(2)]
    Hub.repositories['datasets/wikimedia/wikipedia'] = {
        f'20231101.en/train-0000{i}-of-00002.parquet': Path(file).read_bytes()
        for i, file in enumerate(files)} | {'20231101.de/train-00000-of-00001.parquet': b'another'}
    Hub.asked.clear()

    def read(program=WIKIPEDIA, **environment):
        """(what the program printed, what it said on the way)."""
        process = run_program('-c', program, tmp_path / 'tfds',
                              **hub | {'HF_HOME': str(tmp_path / 'home')} | environment)
        assert process.returncode == 0, process.stderr
        return json.loads(process.stdout), process.stderr.splitlines()

    return read


def test_wikipedia_is_downloaded_once_and_what_it_takes_is_said_first(wikipedia, tmp_path):
    (units, texts, digest), said = wikipedia()
    assert units == 2 and [text[:9] for text in texts] == [
        'Article 0', 'Another 0', 'Article 1', 'Another 1']
    assert 'downloading 2 files, 0.0 MB, into ' + str(tmp_path / 'home') in said[0]
    assert '2 of 2, 0.0 MB' in said[1] and '0.0 min left' in said[1] and len(said) == 2
    assert {file for file, _ in Hub.asked} == {
        f'20231101.en/train-0000{i}-of-00002.parquet' for i in range(2)}
    Hub.asked.clear()
    for environment in ({}, {'HF_HUB_OFFLINE': '1'}):
        assert wikipedia(**environment) == ([units, texts, digest], [])
    assert not Hub.asked


def test_a_download_that_was_cut_goes_on(wikipedia):
    Hub.cut_once.add('train-00001-of-00002.parquet')
    found, said = wikipedia()
    if isinstance(found, str):  # the client gave up, instead of asking for the rest itself
        assert found.startswith('Unavailable: ') and 'the same command goes on with it' in found
        found, said = wikipedia()
        assert 'downloading 1 file,' in said[0]
    assert found[0] == 2 and len(found[1]) == 4
    files = [file.partition('train-')[2] for file, _ in Hub.asked]
    assert files == ['00000-of-00002.parquet', *['00001-of-00002.parquet'] * 2]


@pytest.mark.slow
def test_wikipedia_that_cannot_be_had_is_refused_in_one_line(wikipedia):
    found, said = wikipedia(HF_ENDPOINT='http://127.0.0.1:9')
    assert found.startswith("InputError: data source 'wikipedia:en': ") and not said
    assert 'the hub cannot be reached' in found and "'wikidump:FILE.xml.bz2'" in found
    assert 'config.data.tfds_dir' in found and '\n' not in found
    full = WIKIPEDIA.replace('try:', 'import shutil\nshutil.disk_usage = lambda _: '
                             'shutil._ntuple_diskusage(9, 9, 1)\ntry:', 1)
    found, _ = wikipedia(full)
    assert 'set HF_HOME to a folder on another disk' in found and not Hub.asked


def test_a_file_that_arrives_damaged_is_deleted(wikipedia):
    name = '20231101.en/train-00001-of-00002.parquet'
    files = Hub.repositories['datasets/wikimedia/wikipedia']
    right = files[name]
    wrong = WIKIPEDIA.replace('try:', """
import huggingface_hub as hub
info = hub.HfApi.dataset_info
def changed(*args, **kwargs):
    result = info(*args, **kwargs)
    result.siblings[1].lfs.sha256 = '0' * 64
    return result
hub.HfApi.dataset_info = changed
try:""", 1)
    found, _ = wikipedia(wrong)
    assert found.startswith('Unavailable: ') and 'arrived damaged' in found
    assert files[name] == right
    (units, *_), said = wikipedia()
    assert units == 2 and 'downloading 1 file,' in said[0]


@pytest.mark.parametrize('kept_as', ['a link to the content', 'a copy'])
def test_of_a_damaged_file_nothing_is_left(kept_as, tmp_path):
    path = content = tmp_path / 'model.safetensors'
    if kept_as == 'a link to the content':
        content = tmp_path / 'content'
        path.symlink_to(content)
    content.write_bytes(b'damaged')
    file = SimpleNamespace(rfilename=path.name, lfs=SimpleNamespace(sha256='0' * 64))
    with pytest.raises(Unavailable, match='model.safetensors arrived damaged and was deleted'):
        _check_content(path, file, _Repository(named='hf:ORG/x', name='ORG/x'))
    assert not list(tmp_path.iterdir())


def test_the_files_and_bytes_that_have_come_are_said(monkeypatch, capsys):
    monkeypatch.setattr('bert_jax.runtime.hub._REPORT_SECONDS', 0.0)
    files = [SimpleNamespace(rfilename=name, size=size, lfs=None)
             for name, size in (('a', 2_000_000), ('b', 3_000_000))]
    library = SimpleNamespace(hf_hub_download=lambda *args, **fields: 'a path')
    _download_one_by_one(library, _Repository(named='hf:ORG/x', name='ORG/x'), COMMIT, files)
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith('hf:ORG/x: 1 of 2, 2.0 MB, ')
    assert last.startswith('hf:ORG/x: 2 of 2, 5.0 MB, ')


@pytest.mark.parametrize('files, fault', [
    pytest.param(['x-00000-of-00002.parquet', 'x-00001-of-00002.parquet'], '', id='all'),
    pytest.param(['x-00001-of-00002.parquet'], 'hf:x: the cache has 1 of its 2 files, and ',
                 id='one of two'),
    pytest.param(['x/0000.parquet'], '', id='no number'),
])
def test_a_split_of_which_parts_are_missing_is_refused(files, fault):
    repository = _Repository(named='hf:x', name='x', kind='dataset')
    expected = pytest.raises(InputError, match=fault) if fault else contextlib.nullcontext()
    with expected:
        _check_all_parts(repository, files)


def convert(hub, source, target, **environment):
    return run_program('-m', 'bert_jax.convert', source, target, '--to', 'huggingface',
                       **hub | environment)


@pytest.mark.slow
def test_a_model_is_published_with_its_card(hub, tmp_path):
    refused = convert(hub, 'hf:ORG/bert', 'hf:ORG/new')
    assert refused.returncode == 2 and 'log in with a token that may' in refused.stderr
    published = convert(hub, 'hf:ORG/bert', 'hf:ORG/new', HF_TOKEN='may write')
    assert published.returncode == 0, published.stderr
    for name, content in Hub.repositories['ORG/new'].items():
        (tmp_path / name).write_bytes(content)
    assert_same(load_weights(tmp_path), load_weights(FOLDER))
    card = (tmp_path / 'README.md').read_text()
    assert 'Written by bert_jax' in card and hub['HF_HOME'] not in card
    again = convert(hub, 'hf:ORG/bert', 'hf:ORG/new', HF_TOKEN='may write')
    assert again.returncode == 2 and 'hf:ORG/new is published already' in again.stderr
    over = run_program('-m', 'bert_jax.convert', 'hf:ORG/bert', 'hf:ORG/new', '--to', 'huggingface',
                       '--overwrite', **hub | {'HF_TOKEN': 'may write'})
    assert over.returncode == 0, over.stderr


@pytest.mark.parametrize('switch, value, said', [
    ('HF_HUB_OFFLINE', '1', 'HF_HUB_OFFLINE=1 forbids asking the hub: unset HF_HUB_OFFLINE'),
    ('TRANSFORMERS_OFFLINE', 'yes', 'TRANSFORMERS_OFFLINE=yes forbids asking'),
    ('HF_HUB_OFFLINE', '0', 'the hub cannot be reached: check the network'),
])
def test_what_keeps_the_hub_from_being_asked_is_named(switch, value, said, monkeypatch):
    monkeypatch.delenv('HF_HUB_OFFLINE')
    monkeypatch.setenv(switch, value)
    with pytest.raises(InputError, match=f'it is not in the cache, or not all of it, and {said}'):
        raise _explained(errors.OfflineModeIsEnabled(), huggingface_hub, _Repository(
            named='hf:ORG/none', name='ORG/none'))
