"""Stores and vocabularies for several hosts: made together, once, and checked."""

import contextlib
import dataclasses
import os
import platform
import random
import threading
import types
from concurrent import futures

import pytest

from bert_jax.corpus import sharing, store_building, tokenize
from bert_jax.corpus.sharing import (
    Mixing,
    Places,
    local_store,
    open_prepared,
    open_texts,
    share_store,
    share_vocabulary,
    vocabulary_of,
)
from bert_jax.corpus.sources import SOURCES, SourceKind, TextSpec
from bert_jax.corpus.store_building import Slice
from bert_jax.corpus.trainers import Wanted
from bert_jax.corpus.wordpiece_training import train_wordpiece
from bert_jax.runtime import files, hosts, shared_folders
from bert_jax.runtime.errors import InputError
from bert_jax.text.kinds import load_tokenizer
from tests.corpus.test_store_building import TOKENIZER, _random_texts, content
from tests.refusals import refused
from tests.rows.stores import change_last_byte


@pytest.fixture(autouse=True)
def _without_tensorflow(monkeypatch):
    """Starts quicker, and gives the same ids."""
    monkeypatch.setattr(tokenize, 'has_tensorflow', lambda: False)


@pytest.fixture(scope='module')
def text(tmp_path_factory):
    """A text of five files."""
    folder = tmp_path_factory.mktemp('corpus')
    for number in range(5):
        (folder / f'{number}.txt').write_text('\n\n'.join(_random_texts(20, seed=number)))
    return TextSpec(f'{folder}/*.txt')


@pytest.fixture
def vocab_file(tmp_path):
    """A vocabulary with switches beside it."""
    folder = tmp_path / 'vocabulary'
    folder.mkdir()
    (folder / 'vocab.txt').write_text('\n'.join(TOKENIZER.vocab.tokens) + '\n')
    (folder / 'tokenizer_config.json').write_text('{"strip_accents": false}')
    return folder / 'vocab.txt'


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
        return self.exchange(name, None if self.index else make())[0]

    def run(self, work):
        """The results of `work(index)` on all hosts; if one fails, all end."""
        def begin(index):
            self._here.index = index
            try:
                return work(index)
            except Exception:
                self._barrier.abort()
                raise

        with futures.ThreadPoolExecutor(self._count) as pool:
            running = [pool.submit(begin, index) for index in range(self._count)]
        for host in running:
            if not isinstance(host.exception(), (type(None), threading.BrokenBarrierError)):
                raise host.exception()
        return [host.result() for host in running]


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


def _open(text, shared, local, **options):
    return share_store(text, TOKENIZER, Places.choose(str(shared), str(local)), **options)


@pytest.mark.parametrize('count', [1, 2])
def test_processes_on_one_machine_have_one_store(tmp_path, text, run_hosts, count):
    def start(i):
        store = _open(text, tmp_path / 'shared', tmp_path / 'local')
        return local_store(store, Places.choose(str(tmp_path / 'shared'), str(tmp_path / 'local')))

    stores = run_hosts(count, start, machines=False)
    assert {store.path.parent.parent for store in stores} == {tmp_path / 'shared'}
    assert not (tmp_path / 'local').exists()


@pytest.fixture
def builders(monkeypatch):
    """Which shares each of the hosts that build a store makes, in the order in which they begin."""
    found = []
    make_shares = store_building.make_shares

    def make(build, which=store_building.WHOLE, *arguments):
        found.append((hosts.index(), which))
        make_shares(build, which, *arguments)

    monkeypatch.setattr(store_building, 'make_shares', make)
    return found


def test_hosts_with_the_text_build_one_store_together(
        tmp_path, text, run_hosts, monkeypatch, folder, builders):
    expected = content(_open(text, tmp_path / 'alone', tmp_path / 'alone').path)
    builders.clear()
    monkeypatch.setattr(store_building, '_SHARE_BYTES', 1)
    stores = run_hosts(3, lambda i: _open(text, folder / 'shared', tmp_path / f'local-{i}'))
    assert sorted(builders) == [(host, Slice(host, 3)) for host in range(3)]
    published = folder / 'shared' / 'stores' / stores[0].fingerprint
    assert [store.path for store in stores] == [published] * 3
    together = content(stores[0].path)
    assert len([name for name in together if name.endswith('.npz')]) == 5
    assert together['left_out.bin'] == expected['left_out.bin']
    assert stores[0].token_counts().tolist() == stores[2].token_counts().tolist()


@pytest.mark.parametrize('machines', [False, True])
def test_who_builds(tmp_path, text, run_hosts, monkeypatch, builders, machines):
    """A host without the text waits, and so do further processes of a machine."""
    source_if_here = TextSpec.source_if_here
    monkeypatch.setattr(
        TextSpec, 'source_if_here',
        lambda self: None if hosts.index() == 1 else source_if_here(self))
    stores = run_hosts(3, lambda i: _open(text, tmp_path / 'shared', tmp_path / str(i)), machines)
    expected = [(0, Slice(0, 2)), (2, Slice(1, 2))] if machines else [(0, Slice(0, 1))]
    assert sorted(builders) == expected
    assert len(stores[1].index) == 1


@pytest.mark.parametrize('other', ['pair', 'hf:datasets/a/b', 'wikipedia:en', 'tfds:c4'])
def test_what_could_be_a_download_is_opened_by_the_first_host_only(run_hosts, monkeypatch, other):
    opened = []

    def open_on_this_host(spec):
        opened.append(hosts.index())
        raise InputError('it is not here')

    for prefix, kind in SOURCES.items():
        monkeypatch.setitem(SOURCES, prefix, dataclasses.replace(kind, open=open_on_this_host))
    run_hosts(2, lambda i: hosts.first() or TextSpec(other).source_if_here())
    assert opened == ([1] if other == 'pair' else [])


@pytest.mark.slow
def test_hosts_copy_a_small_store(tmp_path, text, run_hosts, folder, vocab_file):
    places = [Places(folder / 'shared', files.as_path(tmp_path / f'local-{i}')) for i in range(3)]
    tokenizer = load_tokenizer(vocab_file, True)

    def start(i):
        return local_store(share_store(text, tokenizer, places[i], vocab_file), places[i])

    stores = run_hosts(3, start)
    expected = content(folder / 'shared' / 'stores' / stores[0].fingerprint)
    expected = {name: value for name, value in expected.items() if not name.endswith('.npz')}
    assert {'manifest.json', 'vocabulary/vocab.txt'} <= expected.keys()
    for i, store in enumerate(stores):
        assert store.path.parent.parent == places[i].local
        assert content(store.path) == expected


def test_nothing_is_built_or_copied_a_second_time(
        tmp_path, text, run_hosts, monkeypatch, folder, builders):
    def start(i):
        places = Places(folder / 'shared', files.as_path(tmp_path / f'local-{i}'))
        return local_store(share_store(text, TOKENIZER, places), places)

    run_hosts(3, start)
    builders.clear()
    monkeypatch.setattr(sharing, '_copy', None)
    run_hosts(3, start)
    assert not builders


def test_what_a_killed_builder_has_left_in_a_finished_store_is_removed(tmp_path, text):
    store = _open(text, tmp_path, tmp_path)
    expected = content(store.path)
    for name in ('.claim-1', '.share-1-of-2-claim-3', 'part-00000.done', 'part-00000.claim'):
        (store.path / name).write_text('')
    _open(text, tmp_path, tmp_path)
    assert content(store.path) == expected


def test_a_data_dir_that_hosts_do_not_share_is_refused(tmp_path, text, run_hosts, monkeypatch):
    def start(i):
        return _open(text, tmp_path / f'shared-{i}', tmp_path / f'local-{i}')

    monkeypatch.setattr(shared_folders, '_PATIENCE_SECONDS', 0.0)
    with refused('data.dir', 'host 1 does not see', 'gs://'):
        run_hosts(2, start)
    # The first host has a store already.
    store = _open(text, tmp_path / 'shared-0', tmp_path / 'local-0')
    with refused('data.dir', 'host 1 does not see', 'gs://'):
        run_hosts(2, start)
    assert {path.name for path in store.path.parent.parent.iterdir()} == {'shares', 'stores'}


def test_a_local_folder_in_a_bucket_is_refused(tmp_path):
    with refused('data.local_dir=gs://b is in a bucket'):
        Places.choose(str(tmp_path), 'gs://b')


@pytest.mark.parametrize(('other', 'differs', 'who_builds'), [
    pytest.param('One.', False, [0, 1], id='the same'),
    pytest.param('Two.', False, [0], id='as long'),
    pytest.param('One and more.', True, [], id='different'),
    pytest.param(None, False, [0], id='none'),
])
def test_hosts_compare_their_text(
        tmp_path, run_hosts, monkeypatch, builders, other, differs, who_builds):
    for i, written in enumerate(('One.', other)):
        (tmp_path / str(i)).mkdir()
        if written is not None:
            (tmp_path / str(i) / 'a.txt').write_text(written)

    files_told = SOURCES[''].open

    def open_on_this_host(spec):
        return files_told(TextSpec(f'{tmp_path}/{hosts.index()}/{spec.name}'))

    monkeypatch.setitem(SOURCES, '', SourceKind(open_on_this_host))

    def start(i):
        text = TextSpec('a.txt')
        open_texts([text])
        return _open(text, tmp_path / 'shared', tmp_path / f'local-{i}')

    message = 'the text must be the same on all hosts: a.txt'
    with refused(message) if differs else contextlib.nullcontext():
        stores = run_hosts(2, start)
        assert stores[0].num_tokens == stores[1].num_tokens
    assert sorted(host for host, _ in builders) == who_builds


def test_only_the_first_host_opens_its_text_at_once(run_hosts, monkeypatch):
    opened = []

    def open_on_this_host(spec):
        opened.append(hosts.index())
        return spec

    monkeypatch.setitem(SOURCES, '', SourceKind(open_on_this_host))
    run_hosts(3, lambda i: open_texts([TextSpec('a.txt')]))
    assert opened == [0]


@pytest.fixture
def shared(tmp_path, text, vocab_file):
    """A store that keeps its vocabulary, and the folders of a host that lacks it."""
    places = Places(files.as_path(tmp_path / 'shared'), files.as_path(tmp_path / 'local'))
    tokenizer = load_tokenizer(vocab_file, True)
    return share_store(text, tokenizer, places, vocab_file), places


def test_an_interrupted_copy_resumes_with_the_files_that_are_not_whole(shared):
    store, places = shared
    target = local_store(store, places).path
    expected = content(target)
    (target / 'manifest.json').unlink()
    (target / 'left_out.bin').unlink()
    os.truncate(target / 'index.bin', 3)
    (target / '.part-00000-000.blocks.0123.tmp').write_bytes(b'left by a killed copy')
    whole = (target / 'part-00000-000.blocks').stat().mtime
    local_store(store, places)
    assert (target / 'part-00000-000.blocks').stat().mtime == whole  # not copied again
    assert content(target) == expected


@pytest.mark.parametrize('damage', [lambda path: os.truncate(path, 9), os.unlink])
def test_a_damaged_store_is_not_copied(shared, damage):
    store, places = shared
    damage(store.path / 'part-00000-000.blocks')
    with refused('part-00000-000.blocks is missing or cut short', store.path):
        local_store(store, places)
    assert not list(places.local.glob('stores/*/manifest.json'))


def test_a_prepared_store_is_opened_without_its_text(shared):
    store, _ = shared
    vocab_file = vocabulary_of(str(store.path))
    tokenizer = load_tokenizer(vocab_file, True)
    assert tokenizer.switches.strip_accents is False
    assert open_prepared(str(store.path), tokenizer).fingerprint == store.fingerprint
    with refused('made with another vocabulary', store.path):
        open_prepared(str(store.path), TOKENIZER)


def test_a_vocabulary_in_a_bucket_is_copied_to_this_machine(tmp_path, text, bucket, vocab_file):
    places = Places(files.as_path(bucket) / 'data', files.as_path(tmp_path))
    store = share_store(text, load_tokenizer(vocab_file, True), places, vocab_file)
    copy = vocabulary_of(str(store.path))
    assert not files.in_bucket(copy)
    assert load_tokenizer(copy, True).switches.strip_accents is False


def _lose_the_manifest(store):
    os.unlink(store.path / 'manifest.json')


def _damage_the_vocabulary(store):
    change_last_byte(store.path / 'vocabulary' / 'vocab.txt')


@pytest.mark.parametrize(('damage', 'words'), [
    pytest.param(_lose_the_manifest, 'is no finished token store', id='unfinished'),
    pytest.param(_damage_the_vocabulary, 'vocab.txt is damaged', id='damaged'),
])
def test_a_vocabulary_that_cannot_be_had_is_refused(shared, damage, words):
    store, _ = shared
    damage(store)
    with refused(words, store.path):
        vocabulary_of(str(store.path))


def test_a_store_without_a_vocabulary_is_told(tmp_path, text):
    store = _open(text, tmp_path / 'shared', tmp_path / 'local')
    with refused('keeps no vocabulary', 'data.vocab_file'):
        vocabulary_of(str(store.path))


@pytest.mark.parametrize('written', ['', 'only a part'])
def test_a_vocabulary_that_was_half_written_is_written_again(
        tmp_path, text, vocab_file, written):
    tokenizer = load_tokenizer(vocab_file, True)
    name = store_building.store_fingerprint(text.source, tokenizer)
    kept = tmp_path / 'shared' / 'stores' / name / 'vocabulary'
    kept.mkdir(parents=True)
    (kept / 'vocab.txt').write_text(written or vocab_file.read_text())
    places = Places.choose(str(tmp_path / 'shared'), str(tmp_path / 'local'))
    store = share_store(text, tokenizer, places, vocab_file)
    assert open_prepared(
        str(store.path), load_tokenizer(vocabulary_of(str(store.path)), True)) is not None


def test_vocabulary_is_trained_once(tmp_path, text, run_hosts, monkeypatch):
    def start(i):
        places = Places.choose(str(tmp_path / 'shared'), str(tmp_path / f'local-{i}'))
        return share_vocabulary([text], Wanted('wordpiece', 120, True), places)

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


@dataclasses.dataclass(frozen=True)
class Mixed:
    """Two texts are mixed.

    Attributes:
      sizes: of the texts, in documents.
      weights: of the texts.
      power: of their sizes.
      times: how often each is in the text that the vocabulary is made of.
    """

    sizes: tuple[int, int]
    weights: tuple[float, float]
    times: tuple[int, int]
    power: float = 0.0


@pytest.mark.parametrize('case', [
    Mixed((20, 20), (1, 1), times=(1, 1)),
    Mixed((20, 20), (3, 1), times=(3, 1)),
    Mixed((20, 20), (2, 10), times=(1, 5)),
    Mixed((10, 40), (1, 1), times=(4, 1)),
    Mixed((10, 40), (1, 1), power=1, times=(1, 1)),
    Mixed((10, 40), (1, 1), power=0.5, times=(2, 1)),
    Mixed((10, 40), (1, 2), power=1, times=(1, 2)),
], ids=str)
def test_a_vocabulary_of_a_mixture_has_its_shares(tmp_path, case):
    parts = []
    for name, size in zip('bq', case.sizes, strict=True):
        rng = random.Random(name)
        letters = 'bcdefghij' if name == 'b' else 'qrstuvwxy'
        words = [''.join(rng.choices(letters, k=6)) for _ in range(8 * size)]
        documents = [' '.join(words[8 * i : 8 * i + 8]) for i in range(size)]
        (tmp_path / f'{name}.txt').write_text('\n\n'.join(documents))
        parts.append(documents)
    texts = [TextSpec(f'{tmp_path}/{name}.txt') for name in 'bq']
    places = Places(files.as_path(tmp_path), files.as_path(tmp_path))
    wanted = Wanted('wordpiece', 150, True)
    path = share_vocabulary(texts, wanted, places, Mixing(case.weights, case.power))
    expected = train_wordpiece(
        [text for part, times in zip(parts, case.times, strict=True) for text in times * part],
        150, True)
    assert path.read_text().split('\n')[:-1] == expected
    other = share_vocabulary(texts, wanted, places, Mixing((1, 7), case.power))
    assert other.name.partition('-')[0] != path.name.partition('-')[0]


def test_the_name_of_a_vocabulary_of_one_text_stays(text):
    before = [text.source.fingerprint(), 120, True, 1]
    found = sharing._settings_of([text.source], Wanted('wordpiece', 120, True), Mixing((3,), 0.5))
    assert found == before


def test_a_restart_asks_a_bucket_for_its_listing_only(bucket, bucket_server, tmp_path):
    for i in range(40):
        files.write_whole(f'{bucket}/text/{i}.txt', f'Words of file {i}.\n\nMore of them.\n')
    places = Places(files.as_path(f'{bucket}/data'), files.as_path(tmp_path))
    counts = []
    for _ in range(2):
        bucket_server.take_requests(bucket)
        share_store(TextSpec(f'{bucket}/text/*.txt'), TOKENIZER, places)
        counts.append(len(bucket_server.take_requests(bucket)))
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
