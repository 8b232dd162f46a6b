"""Objects in buckets are read in few requests, ahead of the reader, and never as two versions."""

import gzip
import random
import types

import pytest

from bert_jax.corpus.sources import open_source
from bert_jax.runtime import buckets, files
from bert_jax.runtime.errors import DamagedFile, InputError

RANGE = 1000


@pytest.fixture(autouse=True)
def small_ranges(monkeypatch):
    monkeypatch.setattr(buckets, '_RANGE_BYTES', RANGE)
    monkeypatch.setattr(buckets, '_BUFFER_BYTES', 64)


@pytest.fixture
def gets(bucket, bucket_server):
    """The number of GETs of content since the last call."""
    return lambda: sum('/download/' in asked for asked in bucket_server.take_requests(bucket))


def content_of(size):
    return random.Random(size).randbytes(size)


def put(bucket, size):
    files.write_whole(f'{bucket}/x', content_of(size))
    return f'{bucket}/x'


@pytest.mark.parametrize(('size', 'num_gets'), [
    (0, 1), (1, 1), (RANGE - 1, 1), (RANGE, 1), (RANGE + 1, 2), (20 * RANGE, 20)])
def test_a_file_takes_a_request_for_each_range_and_nothing_else(
    bucket, bucket_server, size, num_gets
):
    path = put(bucket, size)
    bucket_server.take_requests(bucket)
    assert b''.join(files.read_blocks(path, 300)) == content_of(size)
    found = bucket_server.take_requests(bucket)
    assert len(found) == num_gets
    assert all('/download/' in request for request in found)


def test_the_start_of_an_object_costs_little_more_than_itself(bucket, bucket_server, gets):
    path = put(bucket, 100 * RANGE)
    gets()
    with files.open_stream(path) as file:
        assert file.read(RANGE // 2) == content_of(100 * RANGE)[: RANGE // 2]
    assert gets() == 1
    with files.open_stream(path) as file:
        file.read(10 * RANGE)
    assert 10 <= gets() <= 10 + buckets._RANGES_AHEAD


def test_ranges_are_requested_at_the_same_time(bucket, bucket_server, monkeypatch):
    path = put(bucket, 40 * RANGE)
    monkeypatch.setattr(bucket_server, 'delay', 0.05)
    monkeypatch.setattr(bucket_server, 'most_waiting', 0)
    assert b''.join(files.read_blocks(path, RANGE)) == content_of(40 * RANGE)
    assert bucket_server.most_waiting >= 3


def test_bytes_are_those_of_the_object_wherever_they_are_read(bucket):
    path = put(bucket, 30 * RANGE + 17)
    content = content_of(30 * RANGE + 17)
    rng = random.Random(0)
    with files.open_stream(path) as file:
        assert file.seek(0, 2) == len(content)
        for _ in range(300):
            at = rng.choice([rng.randrange(len(content)), file.tell(), len(content) - 5])
            size = rng.choice([1, 100, RANGE, 5 * RANGE])
            file.seek(at)
            assert file.read(size) == content[at : at + size]
            assert len(file.raw._ranges) <= buckets._RANGES_KEPT


@pytest.mark.parametrize(('begin', 'end'), [(0, 1), (999, 1001), (1000, 2500), (2500, None)])
def test_a_part_of_an_object_is_read(folder, begin, end):
    files.write_whole(folder / 'x', content_of(7 * RANGE))
    blocks = files.read_blocks(folder / 'x', 300, begin, end)
    assert b''.join(blocks) == content_of(7 * RANGE)[begin:end]


def replace(bucket_server, path):
    files.write_whole(path, bytes(40 * RANGE))


def delete(bucket_server, path):
    buckets.file_system().rm_file(path)


def shorten(bucket_server, path):
    files.write_whole(path, b'x')


@pytest.mark.parametrize('change', [replace, delete, shorten])
def test_an_object_that_changes_while_it_is_read_is_refused(bucket, bucket_server, change):
    path = put(bucket, 40 * RANGE)
    blocks = files.read_blocks(path, RANGE)
    next(blocks)
    change(bucket_server, path)
    with pytest.raises(
            InputError, match=f'^{path} cannot be read .it was replaced or deleted') as error:
        list(blocks)
    assert not isinstance(error.value, DamagedFile)


def test_an_answer_that_is_cut_short_is_refused(bucket, monkeypatch):
    path = put(bucket, 5 * RANGE)
    call = buckets.file_system().call

    def cut(*arguments, **options):
        headers, content = call(*arguments, **options)
        return headers, content[:-1]

    monkeypatch.setattr(buckets.file_system(), 'call', cut)
    with pytest.raises(InputError, match=f'^{path} cannot be read .*copy it again') as error:
        list(files.read_blocks(path, RANGE))
    assert not isinstance(error.value, DamagedFile)


def test_no_such_object(bucket):
    with pytest.raises(InputError, match=f'^{bucket}/none cannot be read .*: check the path'):
        list(files.read_blocks(f'{bucket}/none', RANGE))


def test_a_request_that_fails_is_made_again(bucket, bucket_name, bucket_server, monkeypatch):
    import gcsfs.retry

    async def at_once(seconds):
        pass

    monkeypatch.setattr(gcsfs.retry, 'asyncio', types.SimpleNamespace(sleep=at_once))
    path = put(bucket, 10 * RANGE)
    bucket_server.lost += [
        f'/b/{bucket_name}/{what}' for what in ('', '.*generation=', '.*generation=')]
    assert b''.join(files.read_blocks(path, RANGE)) == content_of(10 * RANGE)
    assert not bucket_server.lost


def test_tables_and_compressed_text_are_read_in_ranges(bucket, tmp_path):
    pyarrow = pytest.importorskip('pyarrow', reason='Parquet needs it')
    from pyarrow import parquet

    texts = [f'Text {index}.' for index in range(5000)]
    table = pyarrow.table({'id': range(len(texts)), 'text': texts})
    parquet.write_table(table, tmp_path / 'a.parquet', row_group_size=700)
    (tmp_path / 'b.txt.gz').write_bytes(gzip.compress('\n\n'.join(texts).encode()))
    for name in ('a.parquet', 'b.txt.gz'):
        files.upload(tmp_path / name, f'{bucket}/{name}')
        assert files.find(f'{bucket}/{name}')[0].size > 5 * RANGE
        source = open_source(f'{bucket}/{name}')
        documents = [document for unit in source.units for document in source.read(unit)]
        assert [document.text.decode() for document in documents] == texts
