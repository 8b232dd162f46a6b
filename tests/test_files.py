"""Paths on a disk and in a bucket behave the same."""

import pytest

from bert_jax import files


@pytest.fixture(params=['disk', 'bucket'])
def folder(request, tmp_path):
    if request.param == 'disk':
        return files.as_path(tmp_path)
    return files.as_path(request.getfixturevalue('bucket')) / 'folder'


def test_write_whole_replaces_and_leaves_nothing_beside(folder):
    files.write_whole(folder / 'a.txt', 'Größe\n')
    files.write_whole(folder / 'a.txt', b'twice')
    assert (folder / 'a.txt').read_bytes() == b'twice'
    assert [path.name for path in folder.iterdir()] == ['a.txt']


def test_a_listing_shows_what_another_process_wrote(bucket, bucket_server):
    folder = files.as_path(bucket) / 'folder'
    files.write_whole(folder / 'a', '')
    assert [path.name for path in folder.iterdir()] == ['a']
    # Not through gcsfs, which would know of it.
    bucket_server.storage.objects[bucket.removeprefix('gs://')]['folder/b'] = (
        bucket_server.storage.objects[bucket.removeprefix('gs://')]['folder/a']
        | {'name': 'folder/b'})
    assert sorted(path.name for path in folder.glob('*')) == ['a', 'b']
    assert (folder / 'b').exists()
