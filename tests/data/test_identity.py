"""Digests of files: of their content, and hashed once."""

import hashlib
import os
import time

import pytest

from bert_jax.data import store
from bert_jax.data.corpus import open_source


@pytest.fixture
def remembered(tmp_path, monkeypatch):
    path = tmp_path / 'cache' / 'digests.json'
    monkeypatch.setattr(store, '_REMEMBERED', str(path))
    return path


@pytest.fixture
def hashed(monkeypatch):
    """The files that were read."""
    names = []
    of_file = store._of_file

    def count(name, check):
        names.append(os.path.basename(name))
        return of_file(name, check)

    monkeypatch.setattr(store, '_of_file', count)
    return names


def _write(path, content, age=100.0):
    path.write_bytes(content)
    os.utime(path, (time.time() - age,) * 2)


def test_digest_is_of_the_content_and_hashed_once(tmp_path, remembered, hashed):
    paths = [tmp_path / 'a', tmp_path / 'b']
    for path in paths:
        _write(path, path.name.encode() * 10_000_000)
    expected = [hashlib.md5(path.read_bytes()).hexdigest() for path in paths]
    assert store.digests(paths) == expected
    assert store.digests(paths[::-1]) == expected[::-1]
    assert sorted(hashed) == ['a', 'b']
    _write(paths[0], b'x' * 10_000_000, age=50)  # the size is the same
    assert store.digests(paths) == [hashlib.md5(paths[0].read_bytes()).hexdigest(), expected[1]]
    assert sorted(hashed) == ['a', 'a', 'b']


def test_a_file_of_this_moment_is_not_remembered(tmp_path, remembered, hashed):
    _write(tmp_path / 'a', b'1', age=0)
    store.digests([tmp_path / 'a'])
    _write(tmp_path / 'a', b'2', age=0)  # perhaps within one step of the disk's clock
    assert store.digests([tmp_path / 'a']) == [hashlib.md5(b'2').hexdigest()]
    assert hashed == ['a', 'a']


@pytest.mark.parametrize('content', ['', '{', '[1]', '{"/a": 1}', '{"/a": [1, 2]}', '\x00'])
def test_a_damaged_memory_is_forgotten(tmp_path, remembered, content):
    remembered.parent.mkdir()
    remembered.write_text(content)
    _write(tmp_path / 'a', b'1')
    for _ in range(2):
        assert store.digests([tmp_path / 'a']) == [hashlib.md5(b'1').hexdigest()]


def test_missing_files_are_an_error(tmp_path, remembered):
    with pytest.raises(FileNotFoundError):
        store.digests([tmp_path / 'none'])


def test_a_source_is_its_content(tmp_path, remembered):
    for folder in ('here', 'there'):
        (tmp_path / folder).mkdir()
        _write(tmp_path / folder / 'a.txt', b'One.\n', age=len(folder))
        _write(tmp_path / folder / 'b.txt', b'Two.\n')

    def fingerprint(folder):
        return open_source(f'{tmp_path}/{folder}/*').fingerprint()

    assert fingerprint('here') == fingerprint('there')
    _write(tmp_path / 'there' / 'b.txt', b'Too.\n')
    assert fingerprint('here') != fingerprint('there')
    _write(tmp_path / 'there' / 'b.txt', b'One.\n')  # the same files in another order
    _write(tmp_path / 'there' / 'a.txt', b'Two.\n')
    assert fingerprint('here') != fingerprint('there')
    (tmp_path / 'here' / 'a.txt').rename(tmp_path / 'here' / 'a.jsonl')  # is read otherwise
    assert len({fingerprint('here'), fingerprint('there')}) == 2


def test_objects_in_a_bucket_have_the_same_identity(tmp_path, remembered, bucket):
    from bert_jax.runtime import files

    _write(tmp_path / 'a.txt', b'One.\n')
    files.write_whole(f'{bucket}/a.txt', b'One.\n')
    assert store.digests([f'{bucket}/a.txt']) == store.digests([tmp_path / 'a.txt'])
