"""Stores and vocabularies for several hosts: made once, copied, checked."""

import contextlib
import os
import platform
import shutil
import threading
import types
from concurrent import futures

import pytest

pytest.importorskip('tensorflow_text')

from bert_jax.data import corpus as corpus_module
from bert_jax.data import sharing, store_building
from bert_jax.data.corpus import open_source
from bert_jax.data.sharing import Places, copy_store, open_texts, share_store, share_vocabulary
from bert_jax.data.store import TokenStore
from bert_jax.runtime import files, hosts
from bert_jax.text.trainers import Wanted
from tests.data.stores import change_last_byte
from tests.data.test_store import TOKENIZER, _random_texts, build
from tests.refusals import refused


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
    """(source, its store)."""
    folder = tmp_path_factory.mktemp('corpus')
    (folder / 'a.txt').write_text('\n\n'.join(_random_texts(20)))
    source = open_source(f'{folder}/a.txt')
    return source, build(source, folder)


class Hosts:
    """Hosts that are threads, and what they exchange."""

    def __init__(self, count):
        self._here = threading.local()
        self._barrier = threading.Barrier(count, timeout=60)
        self._posted = [None] * count
        self._count = count

    @property
    def index(self):
        return self._here.index

    def state(self):
        return types.SimpleNamespace(process_id=self.index, num_processes=self._count)

    def exchange(self, name, value):
        self._posted[self.index] = value
        self._barrier.wait()
        values = list(self._posted)
        self._barrier.wait()
        return values

    def share(self, name, make):
        try:
            return self.exchange(name, None if self.index else make())[0]
        except Exception:
            self._barrier.abort()
            raise

    def run(self, work):
        """The results of `work(index)` on all hosts."""
        def begin(index):
            self._here.index = index
            return work(index)

        with futures.ThreadPoolExecutor(self._count) as pool:
            return list(pool.map(begin, range(self._count)))


@pytest.fixture
def run_hosts(monkeypatch):
    """Runs `work(index)` on `count` hosts, as on one or several `machines`."""
    def run(count, work, machines=True):
        threads = Hosts(count)
        with monkeypatch.context() as patch:
            patch.setattr(hosts, 'state', threads.state)
            patch.setattr(hosts, 'share', threads.share)
            patch.setattr(hosts, 'exchange', threads.exchange)
            patch.setattr(platform, 'node', lambda: str(threads.index if machines else 0))
            return threads.run(work)

    return run


def _content(folder):
    return {path.name: path.read_bytes() for path in files.as_path(folder).iterdir()}


def _open(corpus, shared, local):
    return share_store(corpus[0], TOKENIZER, Places.choose(str(shared), str(local)))


@pytest.mark.parametrize('count', [1, 2])
def test_processes_on_one_machine_have_one_copy(tmp_path, corpus, run_hosts, count):
    stores = run_hosts(
        count, lambda i: _open(corpus, tmp_path / 'shared', tmp_path / 'local'), machines=False)
    assert {store.path.parent.parent for store in stores} == {tmp_path / 'shared'}
    assert not (tmp_path / 'local').exists()


def test_hosts_copy_what_the_first_one_made(tmp_path, corpus, run_hosts, folder):
    stores = run_hosts(3, lambda i: _open(corpus, folder / 'shared', tmp_path / f'local-{i}'))
    expected = _content(folder / 'shared' / 'stores' / stores[0].fingerprint)
    assert len(expected) == 6
    for i, store in enumerate(stores):
        assert store.path.parent.parent == tmp_path / f'local-{i}'
        assert _content(store.path) == expected


def test_nothing_is_copied_a_second_time(tmp_path, corpus, run_hosts, monkeypatch, folder):
    def start(i):
        return _open(corpus, folder / 'shared', tmp_path / f'local-{i}')

    run_hosts(3, start)
    monkeypatch.setattr(sharing, 'copy_store', None)
    run_hosts(3, start)


def test_a_new_host_takes_what_is_published(tmp_path, corpus, run_hosts, monkeypatch, folder):
    first, *_ = run_hosts(3, lambda i: _open(corpus, folder / 'shared', tmp_path / f'local-{i}'))
    monkeypatch.setattr(store_building, 'build_store', None)
    for store in run_hosts(2, lambda i: _open(corpus, folder / 'shared', tmp_path / f'new-{i}')):
        assert _content(store.path) == _content(first.path)


def test_a_data_dir_that_hosts_do_not_share_is_refused(tmp_path, corpus, run_hosts, monkeypatch):
    monkeypatch.setattr(sharing, '_PATIENCE_SECONDS', 0.0)
    with refused('data.dir', 'host 1 does not see', 'gs://'):
        run_hosts(2, lambda i: _open(corpus, tmp_path / f'shared-{i}', tmp_path / f'local-{i}'))


def test_a_local_folder_in_a_bucket_is_refused(tmp_path):
    with refused('data.local_dir=gs://b is in a bucket'):
        Places.choose(str(tmp_path), 'gs://b')


@pytest.mark.parametrize(('other', 'differs'), [
    pytest.param('One.', False, id='the same'),
    pytest.param('One and more.', True, id='different'),
    pytest.param(None, False, id='none'),
])
def test_hosts_compare_their_text(tmp_path, run_hosts, monkeypatch, other, differs):
    for i, content in enumerate(('One.', other)):
        (tmp_path / str(i)).mkdir()
        if content is not None:
            (tmp_path / str(i) / 'a.txt').write_text(content)

    def open_on_this_host(spec, *_):
        return open_source(f'{tmp_path}/{hosts.index()}/{spec}')

    monkeypatch.setattr(corpus_module, 'open_source', open_on_this_host)
    message = 'the text must be the same on all hosts: a.txt'
    with refused(message) if differs else contextlib.nullcontext():
        first, _ = run_hosts(2, lambda i: open_texts(['a.txt'], '', 'text'))
        assert first['a.txt'] is not None


def test_an_interrupted_copy_resumes_with_the_files_that_are_not_whole(tmp_path, corpus):
    store = corpus[1]
    target = files.as_path(tmp_path / 'copy')
    copy_store(store.path, target)
    (target / 'manifest.json').unlink()
    (target / 'tokens-00000.bin').unlink()
    change_last_byte(target / 'documents-00000.bin')
    with refused('not a finished token store'):
        TokenStore.open(target)
    whole = (target / 'sentence_offsets-00000.bin').stat().mtime
    copy_store(store.path, target)
    assert (target / 'sentence_offsets-00000.bin').stat().mtime == whole  # not copied again
    assert _content(target) == _content(store.path)


@pytest.mark.parametrize('damage', [change_last_byte, os.unlink])
def test_a_damaged_published_store_is_refused_by_name(tmp_path, corpus, damage):
    published = files.as_path(tmp_path / 'published')
    shutil.copytree(corpus[1].path, published)
    damage(published / 'sentence_offsets-00000.bin')
    target = files.as_path(tmp_path / 'copy')
    with refused('sentence_offsets-00000.bin is damaged', published):
        copy_store(published, target)
    assert not (target / 'manifest.json').exists()


def test_vocabulary_is_trained_once(tmp_path, corpus, run_hosts, monkeypatch):
    def start(i):
        places = Places.choose(str(tmp_path / 'shared'), str(tmp_path / f'local-{i}'))
        return share_vocabulary([corpus[0]], Wanted('wordpiece', 120, True), places)

    paths = run_hosts(2, start)
    assert [path.parent.parent for path in paths] == [tmp_path / 'local-0', tmp_path / 'local-1']
    [published] = (tmp_path / 'shared' / 'vocabularies').glob('*.txt')
    assert len({path.read_bytes() for path in [*paths, published]}) == 1
    assert len(published.read_text().splitlines()) == 120
    monkeypatch.setattr(sharing, '_trained_vocabulary', None)
    assert run_hosts(2, start) == paths
    published.write_text('\n'.join(published.read_text().split('\n')[:-7]) + '\n')
    with refused('is damaged', published):
        run_hosts(2, start)


def test_a_restart_asks_a_bucket_for_its_listing_only(bucket, bucket_server, tmp_path):
    for i in range(40):
        files.write_whole(f'{bucket}/text/{i}.txt', f'Words of file {i}.\n\nMore of them.\n')
    places = Places(files.as_path(f'{bucket}/data'), files.as_path(tmp_path))
    counts = []
    for _ in range(2):
        bucket_server.requests.clear()
        share_store(open_source(f'{bucket}/text/*.txt'), TOKENIZER, places)
        counts.append(len(bucket_server.requests))
    assert counts[1] < 10 < 40 < counts[0]


@pytest.mark.parametrize('kind, noted', [('nfs4', True), ('ext4', False)])
def test_a_local_folder_on_a_network_disk_is_named(monkeypatch, tmp_path, capsys, kind, noted):
    mounts = tmp_path / 'mounts'
    mounts.write_text(f'/dev/sda / ext4 rw 0 0\nserver:/x {tmp_path} {kind} rw 0 0\n')
    real = open
    monkeypatch.setattr('builtins.open', lambda path, *args, **kwargs: real(
        mounts if path == '/proc/self/mounts' else path, *args, **kwargs))
    monkeypatch.setattr(hosts, 'exchange', lambda name, value: [value, 'another machine'])
    Places.choose(str(tmp_path / 'shared'), str(tmp_path / 'local'))
    assert (f'is on a network disk ({kind})' in capsys.readouterr().out) == noted
