"""Paths that a user names may be in a bucket: read as from a disk, and written whole."""

import functools
import gzip
import threading

import numpy as np
import pytest

from bert_jax.convert import main as convert
from bert_jax.corpus.sources import open_source
from bert_jax.foreign import load_weights
from bert_jax.loading import load
from bert_jax.predict.__main__ import main as predict
from bert_jax.rows.squad_reader import read_squad
from bert_jax.rows.table import find_file
from bert_jax.runtime import buckets, files
from bert_jax.runtime.errors import InputError
from bert_jax.tasks.glue import read_glue
from bert_jax.tasks.tagging import read_tagged
from tests.conftest import RECORDED
from tests.tasks.files import put

FILES = {
    'glue/CoLA/train.tsv': 'gj04\t1\t\tOur friends came.\ngj04\t0\t*\tThey drank dry it.\n',
    'conll/eng.train.gz': gzip.compress(b'EU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\n'),
    'squad/train.json': {'version': '1.1', 'data': [{'title': 'A', 'paragraphs': [{
        'context': 'John was born.', 'qas': [{
            'id': 'a', 'question': 'Who?', 'answers': [{'text': 'John', 'answer_start': 0}]}],
    }]}]},
    'wiki/A/a.txt': 'One. Two.\nThree.\n\nNew.\n',
    'wiki/A/b.txt.gz': gzip.compress(b'Zipped.\n\nAnother.\n' * 9),
    'wiki/c.jsonl': '{"text": "Rows."}\n',
    'wiki/log': 'not text',
}


def copy(folder, target):
    for path in sorted(folder.rglob('*')):
        if path.is_file():
            files.upload(path, target / str(path.relative_to(folder)))
    return target


@pytest.fixture(scope='module')
def places(bucket_server, tmp_path_factory):
    """(folder, its copy in a bucket) with `FILES`."""
    folder = tmp_path_factory.mktemp('files')
    for name, content in FILES.items():
        put(folder, name, content)
    return folder, copy(folder, files.as_path(bucket_server.make_bucket('files')) / 'data')


def documents(spec):
    source = open_source(spec)
    return [document for unit in source.units for document in source.read(unit)]


@pytest.mark.parametrize(('read', 'where'), [
    (functools.partial(read_glue, 'cola', split='train'), 'glue'),
    (lambda folder: read_tagged(find_file(folder, ['eng.train', 'train.txt'])), 'conll'),
    (functools.partial(read_squad, version='v1', training=True), 'squad/train.json'),
    (documents, 'wiki/A/a.txt'),
    (documents, 'wiki/**/*.txt*'),
    (documents, 'wiki/*.jsonl'),
], ids=lambda x: x if isinstance(x, str) else '')
def test_data_is_read_as_from_a_disk(places, read, where):
    here, there = (repr(read(f'{place}/{where}')) for place in places)
    assert here.replace(str(places[0]), '') == there.replace(str(places[1]), '')
    assert len(here) > 20


def test_a_server_that_says_nothing_is_asked_again(
        bucket, bucket_name, bucket_server, monkeypatch):
    monkeypatch.setattr(buckets, '_SILENCE_SECONDS', 0.3)
    files.write_whole(f'{bucket}/x', b'content')
    monkeypatch.setitem(bucket_server.faults, f'/download/.*/b/{bucket_name}/', -60)
    patience = threading.Timer(0.5, bucket_server.faults.clear)
    patience.start()
    with files.open_stream(f'{bucket}/x') as file:
        assert file.read() == b'content'
    monkeypatch.undo()
    buckets.file_system()


def test_a_half_uploaded_model_is_refused(bucket, bucket_server, monkeypatch):
    def upload(local, path):
        if path.name == 'config.json':
            raise OSError('the machine was taken away')
        files.upload(local, path)

    monkeypatch.setattr('bert_jax.runtime.new_folder.upload', upload)
    source, target = RECORDED / 'base', f'{bucket}/half'
    with pytest.raises(SystemExit):
        convert([str(source), target, '--to', 'huggingface'])
    assert bucket_server.names(f'{target}/model.safetensors')
    with pytest.raises(InputError, match=f'{target}/config.json is missing'):
        load_weights(target)


def test_predictions_from_a_model_into_a_bucket(bucket, monkeypatch):
    model = copy(RECORDED / 'base', files.as_path(bucket) / 'base')
    monkeypatch.setattr('sys.argv', [
        'predict', 'features', f'--model={model}', '--pool=mean',
        f'--output={bucket}/out/vectors.npz', 'at', 'b c d'])
    predict()
    found = np.load(files.local_copy(f'{bucket}/out/vectors.npz'))
    np.testing.assert_array_equal(
        found['vectors'], load(RECORDED / 'base').vectors(['at', 'b c d'], pool='mean'))
