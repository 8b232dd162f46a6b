"""Shares that an earlier store has: taken where their files, rules and tokenizer are the same."""

import errno
import functools
import gzip
import json
import tempfile
from pathlib import Path

import pytest

from bert_jax.corpus import earlier_shares, store_building, text_batches, tokenize
from bert_jax.corpus.document_facts import NearDuplicates
from bert_jax.corpus.source import Unit
from bert_jax.corpus.sources import open_source
from bert_jax.runtime import files
from tests.corpus.test_store_building import TOKENIZER, _random_texts, _tokenizer, build, content
from tests.refusals import refused


@pytest.fixture(autouse=True)
def _quickly(monkeypatch):
    """Without TensorFlow; each file is a share, in parts of four documents."""
    monkeypatch.setattr(tokenize, 'has_tensorflow', lambda: False)
    monkeypatch.setattr(store_building, '_SHARE_BYTES', 1)
    monkeypatch.setattr(store_building, '_PART_BYTES', 1)
    monkeypatch.setattr(text_batches, '_BATCH_DOCUMENTS', 4)


@functools.cache
def compressed(seed):
    """Ten documents."""
    return gzip.compress('\n\n'.join(_random_texts(10, seed)).encode(), mtime=0)


def write(folder, name, seed):
    """A file of a text."""
    folder.mkdir(exist_ok=True)
    files.write_whole(folder / f'{name}.txt.gz', compressed(seed))


def text_in(folder):
    """A pattern of eight files, written into a folder."""
    for number in range(8):
        write(folder / 'text', number, number)
    return f'{folder}/text/*.gz'


def rewrite(folder):
    """Gives the fourth of them another content."""
    write(folder / 'text', 3, 30)


@pytest.fixture
def text(tmp_path):
    """A pattern of eight files on a disk."""
    return text_in(files.as_path(tmp_path))


@functools.cache
def files_of_first_build():
    """The content of all files, by path, that a build of the text leaves in its folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = files.as_path(name)
        build(open_source(text_in(folder)), folder)
        return {path.relative_to(name): path.read_bytes() for path in Path(name).rglob('*')
                if path.is_file() and path.parent.name != 'text'}


def place_earlier_store(folder):
    """Places the store of the text in a folder; returns its path."""
    for path, data in files_of_first_build().items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    (store,) = (folder / 'stores').iterdir()
    return files.as_path(store)


@functools.cache
def made_afresh(texts):
    """The content of a store that is made of nothing but files, (name, bytes) each."""
    with tempfile.TemporaryDirectory() as name:
        folder = files.as_path(name)
        (folder / 'text').mkdir()
        for file, data in texts:
            (folder / 'text' / file).write_bytes(data)
        return content_anywhere(build(open_source(f'{name}/text/*'), folder))


def content_anywhere(store):
    """The content of a store's files but for the place of its text."""
    found = content(store.path)
    found['manifest.json'] = json.loads(found['manifest.json']) | {'source': ''}
    return found


def is_as_made_afresh(store, folder):
    """Whether a store is that of the text in a folder as it is now."""
    paths = sorted(files.children(folder / 'text'))
    return content_anywhere(store) == made_afresh(tuple(
        (path.name, path.read_bytes()) for path in paths))


@pytest.fixture
def read(monkeypatch):
    """The names of the files of which text was read."""
    files_of_first_build()  # of which nothing is noted
    found = []
    batches = store_building.text_batches

    def noting(source, indices, done):
        found.extend(source.units[i].name.rpartition('/')[2].partition('.')[0] for i in indices)
        return batches(source, indices, done)

    monkeypatch.setattr(store_building, 'text_batches', noting)
    return found


def test_a_file_that_changed_is_made_anew_and_no_other(folder, read, capsys):
    text = text_in(folder)
    build(open_source(text), folder)
    assert sorted(read) == list('01234567')
    read.clear()
    rewrite(folder)
    store = build(open_source(text), folder, progress=True)
    assert read == ['3']
    assert '7 of 8 shares taken from earlier stores' in capsys.readouterr().err
    assert is_as_made_afresh(store, folder)


@pytest.mark.parametrize(('change', 'expected'), [
    pytest.param(lambda folder: write(folder, '2a', 20), ['2a'], id='one more'),
    pytest.param(lambda folder: (folder / '1.txt.gz').unlink(), [], id='one less'),
    pytest.param(lambda folder: (folder / '1.txt.gz').rename(folder / '9.txt.gz'), [],
                 id='another order'),
])
def test_other_files_may_be_at_other_places(tmp_path, text, read, change, expected):
    place_earlier_store(tmp_path)
    change(tmp_path / 'text')
    store = build(open_source(text), tmp_path)
    assert read == expected
    assert is_as_made_afresh(store, tmp_path)


def test_shares_of_a_store_with_other_filters_are_taken(tmp_path, text, read):
    place_earlier_store(tmp_path)
    filters = [NearDuplicates(0.5)]
    store = build(open_source(text), tmp_path, facts=filters)
    assert not read
    fresh = build(open_source(text), tmp_path / 'fresh', facts=filters)
    assert content(store.path) == content(fresh.path)


def _another_tokenizer(monkeypatch, text):
    return open_source(text), _tokenizer('ab')


def _another_format(monkeypatch, text):
    return open_source(f'lines:{text}'), TOKENIZER


def _another_splitter(monkeypatch, text):
    monkeypatch.setattr(store_building, '_SPLITTER_VERSION', 99)
    return open_source(text), TOKENIZER


def _parts_of_another_size(monkeypatch, text):
    monkeypatch.setattr(store_building, '_PART_BYTES', 100_000)
    return open_source(f'{text[:-4]}[0-6].txt.gz'), TOKENIZER


@pytest.mark.parametrize('other', [
    _another_tokenizer, _another_format, _another_splitter, _parts_of_another_size])
def test_shares_that_were_made_by_other_rules_are_not_taken(
        tmp_path, text, read, monkeypatch, other):
    place_earlier_store(tmp_path)
    source, tokenizer = other(monkeypatch, text)
    store = build(source, tmp_path, tokenizer)
    assert len(read) == len(source.units)
    fresh = build(source, tmp_path / 'fresh', tokenizer)
    assert content(store.path) == content(fresh.path)


def _rot(path):
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)


def _cut(path):
    path.write_bytes(path.read_bytes()[:-9])


DAMAGES = {
    'a block': (lambda store: _rot(store / 'part-00005-001.blocks'), 'part-00005-001.blocks'),
    'a short file': (lambda store: _cut(store / 'part-00005-002.blocks'), 'part-00005-002.blocks'),
    'notes': (lambda store: _cut(store / 'part-00005-000.npz'), 'part-00005-000.npz'),
    'the list': (lambda store: _cut(earlier_shares.list_path(store)), '.json'),
    'a strange list': (lambda store: earlier_shares.list_path(store).write_text('{"a": 1}'),
                       '.json'),
    'gone notes': (lambda store: (store / 'part-00005-001.npz').unlink(), ''),
    'gone blocks': (lambda store: (store / 'part-00005-001.blocks').unlink(), ''),
    'a gone store': (lambda store: store.rmtree(), ''),
}


@pytest.mark.parametrize('damage', DAMAGES)
def test_what_is_damaged_is_named_and_made_anew(tmp_path, text, read, capsys, damage):
    earlier = place_earlier_store(tmp_path)
    harm, named = DAMAGES[damage]
    harm(earlier)
    rewrite(tmp_path)
    store = build(open_source(text), tmp_path)
    is_small = earlier.exists() and '.json' not in named
    assert sorted(read) == (['3', '5'] if is_small else list('01234567'))
    warned = capsys.readouterr().err
    assert named in warned and ('warning: ' in warned) == bool(named)
    assert is_as_made_afresh(store, tmp_path)


def test_in_a_bucket_too_what_is_gone_or_damaged_is_made_anew(bucket, read):
    folder = files.as_path(bucket)
    text = text_in(folder)
    earlier = build(open_source(text), folder)
    (earlier.path / 'part-00005-001.blocks').unlink()
    (earlier.path / 'part-00006-000.npz').unlink()
    _rot(earlier.path / 'part-00007-000.blocks')
    read.clear()
    rewrite(folder)
    store = build(open_source(text), folder)
    assert sorted(read) == ['3', '5', '6', '7']
    assert is_as_made_afresh(store, folder)


@pytest.mark.parametrize('ending', ['.npz', '.blocks'])
def test_what_cannot_be_read_is_named_and_made_anew(
        tmp_path, text, read, monkeypatch, capsys, ending):
    earlier = place_earlier_store(tmp_path)
    name = f'part-00005-000{ending}'

    def refusing(opens, path, *more):
        if path == earlier / name:
            raise PermissionError(errno.EACCES, 'Permission denied', str(path))
        return opens(path, *more)

    for place, opens in ((files, 'open_plain'), (earlier_shares.Notes, 'open')):
        monkeypatch.setattr(place, opens, functools.partial(refusing, getattr(place, opens)))
    rewrite(tmp_path)
    store = build(open_source(text), tmp_path)
    assert read == ['3', '5']
    assert f'{name} cannot be read (Permission denied)' in capsys.readouterr().err
    assert is_as_made_afresh(store, tmp_path)


def test_a_full_disk_is_no_fault_of_the_earlier_store(tmp_path, text, read, monkeypatch):
    place_earlier_store(tmp_path)

    def full(path, notes):
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr(store_building, 'write_notes', full)
    rewrite(tmp_path)
    with pytest.raises(OSError, match='No space left'):
        build(open_source(text), tmp_path)
    assert not read


def test_a_repaired_file_is_made_and_the_others_are_taken(tmp_path, text, read):
    _cut(tmp_path / 'text' / '3.txt.gz')
    with refused('3.txt.gz is cut short'):
        build(open_source(text), tmp_path)
    read.clear()
    write(tmp_path / 'text', '3', seed=3)
    store = build(open_source(text), tmp_path)
    assert read == ['3']
    assert is_as_made_afresh(store, tmp_path)


def test_a_file_that_ended_the_build_is_made_and_what_was_done_is_taken(tmp_path, text, read):
    bad = tmp_path / 'text' / '4a.csv'
    bad.write_text('words\na b\n')
    pattern = f'{tmp_path}/text/*'
    with refused('4a.csv', 'has no column'):
        build(open_source(pattern), tmp_path)
    assert read == ['0', '1', '2', '3', '4', '4a']
    read.clear()
    bad.write_text('text\na b\n')
    store = build(open_source(pattern), tmp_path)
    assert read == ['4a', '5', '6', '7']
    assert is_as_made_afresh(store, tmp_path)


def test_a_share_with_a_file_that_was_set_aside_is_read_again(tmp_path, text, read):
    _cut(tmp_path / 'text' / '3.txt.gz')
    build(open_source(text), tmp_path, max_bad_files=1)
    read.clear()
    write(tmp_path / 'text', '4', seed=40)
    store = build(open_source(text), tmp_path, max_bad_files=1)
    assert read == ['3', '4']
    assert list(store.manifest['bad_files']) == [f'{tmp_path}/text/3.txt.gz']


@pytest.mark.parametrize('change', [
    rewrite, lambda folder: (folder / 'text' / '3.txt.gz').unlink()])
def test_of_a_text_that_changed_while_it_was_read_nothing_is_listed(folder, change):
    text = text_in(folder)
    opened = store_building.open_build(open_source(text), TOKENIZER, folder, False)
    store_building.make_shares(opened)
    earlier_shares.keep_list(opened.folder, {'key': (0, 0)})  # of a fault before
    change(folder)
    with refused('changed while it was read'):
        store_building.finish(opened)
    assert not earlier_shares.list_path(opened.folder).exists()


def test_a_file_that_is_added_meanwhile_is_not_of_the_text(folder):
    text = text_in(folder)
    opened = store_building.open_build(open_source(text), TOKENIZER, folder, False)
    store_building.make_shares(opened)
    write(folder / 'text', 8, 8)
    store_building.finish(opened)
    assert len(json.loads(earlier_shares.list_path(opened.folder).read_text())) == 8


def test_a_build_that_is_killed_while_it_takes_a_share_goes_on(
        tmp_path, text, read, monkeypatch):
    place_earlier_store(tmp_path)
    rewrite(tmp_path)
    opened = store_building.open_build(open_source(text), TOKENIZER, tmp_path, False)
    written = []
    write_notes = store_building.write_notes

    def write(path, notes):
        if len(written) == 7:
            raise KeyError('killed')
        written.append(path)
        write_notes(path, notes)

    with monkeypatch.context() as patch:
        patch.setattr(store_building, 'write_notes', write)
        with pytest.raises(KeyError):
            store_building.make_shares(opened)
    read.clear()
    store = build(open_source(text), tmp_path)
    assert read == ['3']
    assert is_as_made_afresh(store, tmp_path)


# How a text is divided.

def _units(contents):
    return [Unit(content, 10) for content in contents]


@pytest.mark.parametrize('place', [0, 17, 99])
def test_a_file_that_changes_moves_no_boundary_of_others(monkeypatch, place):
    monkeypatch.setattr(store_building, '_SHARE_BYTES', 50)

    def ends(contents):
        shares = list(store_building.shares_of(_units(contents), contents))
        assert [share.first for share in shares[1:]] == [share.last for share in shares[:-1]]
        return {share.last for share in shares}

    contents = [f'content {i}' for i in range(100)]
    before = ends(contents)
    assert 10 < len(before) < 30  # 1,000 bytes in shares of about 50
    for change in range(20):
        after = ends([*contents[:place], f'other {change}', *contents[place + 1:]])
        assert before ^ after <= {place + 1}


def test_what_has_the_bytes_of_a_share_is_one(monkeypatch):
    monkeypatch.setattr(store_building, '_SHARE_BYTES', 10)
    contents = [f'content {i}' for i in range(50)]
    by_content = list(store_building.shares_of(_units(contents), contents))
    assert by_content == list(store_building.shares_of(_units(contents)))
    assert len(by_content) == 50


@pytest.mark.parametrize('state', ['begun', 'finished', 'none'])
def test_a_store_whose_shares_are_by_size_stays(tmp_path, text, monkeypatch, state):
    monkeypatch.setattr(store_building, '_SHARE_BYTES', 3000)
    source = open_source(text)
    by_size = store_building.store_fingerprint(source, TOKENIZER)
    options = {'name': by_size, 'progress': False}
    expected = store_building.open_build(source, TOKENIZER, tmp_path / 'expected', **options)
    store_building.make_shares(expected)
    store_building.finish(expected)
    earlier = store_building.open_build(source, TOKENIZER, tmp_path, **options)
    assert len(earlier.shares) > 1
    if state != 'none':
        store_building.make_shares(earlier, store_building.Slice(0, 2))
    if state == 'finished':
        store_building.make_shares(earlier)
        store_building.finish(earlier)
    store = build(source, tmp_path)
    if state == 'none':
        assert store.fingerprint == store_building.store_fingerprint(
            source, TOKENIZER, by_content=True) != by_size
        assert json.loads(earlier_shares.list_path(store.path).read_text())
    else:
        assert content(store.path) == content(expected.folder)
