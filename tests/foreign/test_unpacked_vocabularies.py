"""Vocabularies that are unpacked into the cache: what somebody changed there does not count."""

import json
import shutil

import pytest

from bert_jax.foreign.tokenizer_files import fast_tokenizer, read_tokenizer
from bert_jax.text.kinds import load_tokenizer
from tests.foreign.run_model import RECORDED

TEXT = 'the cat sat on [X]'


@pytest.fixture(params=['plain', 'with added tokens', 'byte-level'])
def model(request, tmp_path, monkeypatch):
    """A folder without a vocab.txt; the cache is in tmp_path."""
    monkeypatch.setenv('HOME', str(tmp_path))
    folder = tmp_path / 'model'
    folder.mkdir()
    if request.param == 'byte-level':
        pieces = ['<s>', '<pad>', '</s>', '<unk>', '<mask>', *'thecasonX[]', 'Ġ', 'th']
        (folder / 'vocab.json').write_text(json.dumps({x: i for i, x in enumerate(pieces)}))
        (folder / 'merges.txt').write_text('#version: 0.2\nt h\n')
        return folder
    shutil.copy(RECORDED / 'base' / 'vocab.txt', folder)
    content = fast_tokenizer(load_tokenizer(folder / 'vocab.txt', lowercase=True))
    if request.param == 'with added tokens':
        content['added_tokens'].append(content['added_tokens'][0] | {
            'id': len(content['model']['vocab']), 'content': '[X]', 'special': False})
    (folder / 'vocab.txt').unlink()
    (folder / 'tokenizer.json').write_text(json.dumps(content))
    return folder


def files(tmp_path):
    kept = tmp_path / '.cache' / 'bert_jax' / 'vocabularies'
    return [path for path in sorted(kept.rglob('*')) if path.is_file()]


def ids(model):
    vocab_file, lowercase = read_tokenizer(model, 10**5)
    return load_tokenizer(vocab_file, lowercase).encode(TEXT)


def turned_round(content):
    return content[::-1]


@pytest.mark.parametrize('change', [turned_round, lambda content: b''], ids=['edited', 'cut'])
def test_a_changed_file_is_made_again(model, tmp_path, change, capsys):
    expected = ids(model)
    kept = {path: path.read_bytes() for path in files(tmp_path)}
    assert kept
    for path, content in kept.items():
        path.write_bytes(change(content) or b'{}')
    capsys.readouterr()
    assert ids(model) == expected
    said = capsys.readouterr().err
    for path, content in kept.items():
        assert path.read_bytes() == content
        assert f'note: {path} was changed since it was made: it is made again' in said
    assert ids(model) == expected
    assert 'made again' not in capsys.readouterr().err


def test_a_file_that_is_put_beside_them_is_removed(model, tmp_path, capsys):
    expected = ids(model)
    folder = files(tmp_path)[-1].parent
    beside = folder / 'added_tokens.json'
    beside.write_text(json.dumps({'cat': 7}))
    assert ids(model) == expected
    if folder.name != 'vocabularies':  # where none counts
        assert not beside.exists()
        assert f'note: {beside} does not belong there' in capsys.readouterr().err
