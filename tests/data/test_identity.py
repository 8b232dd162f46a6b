"""Digests of files: of their content, and hashed once."""

import hashlib
import os
import time

import pytest

from bert_jax.data import store
from bert_jax.data.corpus import open_source
from bert_jax.runtime import files


@pytest.fixture(autouse=True)
def remembered(tmp_path, monkeypatch):
    path = tmp_path / 'cache' / 'digests.json'
    monkeypatch.setattr(store, '_REMEMBERED', str(path))
    return path


def _write(path, content, age=100.0):
    path.write_bytes(content)
    os.utime(path, (time.time() - age,) * 2)


def _md5(path):
    return hashlib.md5(path.read_bytes()).hexdigest()


def test_digest_is_of_the_content_and_hashed_once(tmp_path):
    paths = [tmp_path / 'a', tmp_path / 'b']
    for path in paths:
        _write(path, path.name.encode() * 10_000_000)
    expected = [_md5(path) for path in paths]
    assert store.digests(paths) == expected
    assert store.digests(paths[::-1]) == expected[::-1]
    state = os.stat(paths[0])
    paths[0].write_bytes(b'x' * 10_000_000)
    os.utime(paths[0], ns=(state.st_atime_ns, state.st_mtime_ns))
    assert store.digests(paths) == expected  # nothing but the content differs: it is not read
    _write(paths[0], b'x' * 10_000_000, age=50)
    assert store.digests(paths) == [_md5(paths[0]), expected[1]] != expected


def test_a_file_of_this_moment_is_not_remembered(tmp_path):
    for content in (b'1', b'2'):
        _write(tmp_path / 'a', content, age=0)  # perhaps within one step of the disk's clock
        assert store.digests([tmp_path / 'a']) == [_md5(tmp_path / 'a')]


@pytest.mark.parametrize('content', ['', '{', '[1]', '{"/a": 1}', '{"/a": [1, 2]}', '\x00'])
def test_a_damaged_memory_is_forgotten(tmp_path, remembered, content):
    remembered.parent.mkdir()
    remembered.write_text(content)
    _write(tmp_path / 'a', b'1')
    for _ in range(2):
        assert store.digests([tmp_path / 'a']) == [_md5(tmp_path / 'a')]
    with pytest.raises(FileNotFoundError):
        store.digests([tmp_path / 'none'])


def test_a_source_is_its_content(tmp_path):
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
    first = open_source(f'{tmp_path}/there/a.txt')
    assert open_source(f'lines:{tmp_path}/there/a.txt').fingerprint() != first.fingerprint()


def test_objects_in_a_bucket_have_the_same_identity(tmp_path, bucket):
    _write(tmp_path / 'a.txt', b'One.\n')
    files.write_whole(f'{bucket}/a.txt', b'One.\n')
    assert store.digests([f'{bucket}/a.txt']) == store.digests([tmp_path / 'a.txt'])
