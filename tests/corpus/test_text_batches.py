"""Batches of documents: all of them in order, across units, and from any place on."""

import functools
import random
import threading

import pytest

from bert_jax.corpus import text_batches as text_batches_module
from bert_jax.corpus.source import Document, Source, Unit
from bert_jax.corpus.sources import open_source, sample_texts
from bert_jax.corpus.text_batches import read_ahead, text_batches
from bert_jax.runtime import buckets, files
from bert_jax.runtime.errors import InputError


def read(contents, unit):
    """The documents of the unit whose name is an index of `contents`; raises what is an error."""
    for document in contents[int(unit.name)]:
        if isinstance(document, Exception):
            raise document
        yield document


def source_of(contents, num_bytes=None):
    """A source with a list of documents a unit; `num_bytes`: said of each instead of its size."""
    units = []
    for index, documents in enumerate(contents):
        size = sum(len(document.text) for document in documents if isinstance(document, Document))
        units.append(Unit(str(index), size if num_bytes is None else num_bytes))
    return Source('memory', units, functools.partial(read, contents), str)


def random_contents(seed, num_units=30):
    """Documents of units, of which some are empty, long or of lines."""
    rng = random.Random(seed)
    contents = []
    for _ in range(num_units):
        split = rng.random() < 0.8
        documents = []
        for _ in range(rng.choice([0, 0, 1, 1, 2, 30])):
            text = rng.randbytes(rng.choice([1, 10, 500])).hex().encode()
            documents.append(Document(text, split))
        contents.append(documents)
    return contents


def documents_of(batches):
    return [Document(text, batch.split) for batch in batches for text in batch.texts]


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(text_batches_module, '_BATCH_BYTES', 2000)
    monkeypatch.setattr(text_batches_module, '_BATCH_DOCUMENTS', 7)
    monkeypatch.setattr(text_batches_module, '_SMALL_BYTES', 3000)
    monkeypatch.setattr(text_batches_module, '_BYTES_AHEAD', 20_000)


@pytest.mark.parametrize('num_bytes', [None, 0, 1, 10_000], ids=str)
@pytest.mark.parametrize('seed', range(3))
def test_what_follows_any_batch_follows_from_its_place(small, seed, num_bytes):
    contents = random_contents(seed)
    source = source_of(contents, num_bytes)
    first, last = 3, 27
    expected = [document for documents in contents[first:last] for document in documents]
    batches = list(text_batches(source, range(first, last)))
    assert documents_of(batches) == expected
    num_documents = 0
    for batch in batches:
        num_documents += len(batch.texts)
        rest = text_batches(source, range(batch.note.unit, last), batch.note.done)
        assert documents_of(rest) == expected[num_documents:]
        assert batch.note.num_bytes == sum(map(len, batch.texts))


def test_a_batch_ends_when_it_is_full_and_only_then(small):
    contents = [[Document(b'x' * 100, True)] for _ in range(24)]
    contents += [[Document(b'x' * 1500, True)] for _ in range(4)]
    contents += [[Document(b'one\ntwo', False)], [Document(b'three', True)]]
    batches = list(text_batches(source_of(contents), range(len(contents))))
    sizes = [(len(batch.texts), batch.note.num_bytes) for batch in batches]
    assert sizes == [(7, 700)] * 3 + [(5, 3300), (2, 3000), (1, 7), (1, 5)]


def test_no_text(small):
    assert list(text_batches(source_of([[], [], []]), range(3))) == []


@pytest.mark.parametrize('num_bytes', [None, 10_000], ids=['read ahead', 'in its turn'])
def test_an_error_comes_in_the_place_of_its_document(small, num_bytes):
    contents = [[Document(b'a', True)] * 9, [Document(b'b', True)] * 9, [Document(b'c', True)]]
    contents[1][7] = InputError('unreadable')
    batches = text_batches(source_of(contents, num_bytes), range(3))
    found = [next(batches), next(batches)]
    assert documents_of(found) == contents[0] + contents[1][:5]
    with pytest.raises(InputError, match='unreadable'):
        next(batches)


class CountingReader:
    """Documents of 1,000 bytes, ten a unit, and how many were read but not given on."""

    def __init__(self):
        self.num_read = 0
        self._lock = threading.Lock()

    def __call__(self, unit):
        for _ in range(10):
            with self._lock:
                self.num_read += 1
            yield Document(b'x' * 1000, True)


@pytest.mark.parametrize('said', [1, 10_000], ids=['wrong estimate', 'right estimate'])
def test_memory_is_bounded(small, monkeypatch, said):
    monkeypatch.setattr(text_batches_module, '_THREADS', 4)
    monkeypatch.setattr(text_batches_module, '_TINY_BYTES', 2000)
    reader = CountingReader()
    source = Source('memory', [Unit(str(index), said) for index in range(1000)], reader, str)
    num_taken = 0
    for documents in read_ahead(source, source.units, 10_000, head_bytes=3000):
        for _ in documents:
            num_taken += 1
            # Of each unit three documents: of two units, or, if all seem tiny, of nine tasks.
            assert reader.num_read - num_taken <= (3 * 16 * 9 if said == 1 else 3 * 3)
    assert num_taken == 10_000


def test_a_reader_with_processes_of_its_own_is_not_read_ahead(small):
    reader = CountingReader()
    source = Source('memory', [Unit(str(index), 1) for index in range(100)], reader, str,
                    takes_all_cores=True)
    documents = next(read_ahead(source, source.units))
    next(documents)
    assert reader.num_read == 1


@pytest.fixture
def tiny_objects(bucket):
    """(a pattern of 200 small objects in a bucket, their texts)."""
    texts = []
    for index in range(200):
        texts.append(f'Text number {index}.')
        files.write_whole(f'{bucket}/tiny/{index:03d}.txt', texts[-1])
    return f'{bucket}/tiny/*.txt', texts


@pytest.fixture
def most_in_flight(bucket, bucket_server, monkeypatch):
    """Tells how many requests for its content waited at the same time, at most, for 20 ms each."""
    monkeypatch.setattr(bucket_server, 'delay', 0.02)
    get = buckets._ObjectReader._get
    lock = threading.Lock()
    waiting = []
    most = [0]

    def counted(reader, number):
        if not reader._url.startswith(f'{bucket}/'):  # of a thread that another test has left
            return get(reader, number)
        with lock:
            waiting.append(number)
            most[0] = max(most[0], len(waiting))
        try:
            return get(reader, number)
        finally:
            waiting.pop()

    monkeypatch.setattr(buckets._ObjectReader, '_get', counted)
    return lambda: most[0]


def test_a_small_object_takes_one_request_and_many_are_made_at_a_time(
    tiny_objects, bucket_server, most_in_flight
):
    pattern, texts = tiny_objects
    source = open_source(pattern)
    bucket_server.take_requests(pattern)
    [batch] = text_batches(source, range(len(texts)))
    assert [text.decode() for text in batch.texts] == texts
    assert len(bucket_server.take_requests(pattern)) == len(texts)
    assert 4 <= most_in_flight() <= 32


def test_a_sample_takes_one_request_a_small_object_and_few_of_a_large_one(
    tiny_objects, bucket, bucket_server, monkeypatch
):
    pattern, texts = tiny_objects
    source = open_source(pattern)
    bucket_server.take_requests(pattern)
    assert list(sample_texts(source, 1 << 20)) == texts
    assert len(bucket_server.take_requests(pattern)) == len(texts)
    monkeypatch.setattr(buckets, '_RANGE_BYTES', 1000)
    for index in range(10):
        files.write_whole(f'{bucket}/large/{index}.txt', 'Some text.\n\n' * 10_000)
    monkeypatch.setattr('bert_jax.corpus.text_formats._BLOCK_BYTES', 500)
    source = open_source(f'{bucket}/large/*.txt')
    bucket_server.take_requests(bucket)
    assert len(list(sample_texts(source, 10_000))) == 1000
    assert len(bucket_server.take_requests(bucket)) <= 10 * 4
