"""Files of a text that cannot be read: they are all named, or set aside; the others are used."""

import bz2
import errno
import gzip
import io
import json
import sys

import pytest

from bert_jax.corpus import store_building, tokenize
from bert_jax.corpus.bad_files import BadFiles, read_bad_files
from bert_jax.corpus.sharing import Places, share_store
from bert_jax.corpus.sources import TextSpec, open_source
from bert_jax.runtime import files
from tests.corpus.test_store_building import TOKENIZER, _random_texts, build, content, whole
from tests.refusals import refused


@pytest.fixture(autouse=True)
def _quickly(monkeypatch):
    """Without TensorFlow; and each file is a share."""
    monkeypatch.setattr(tokenize, 'has_tensorflow', lambda: False)
    monkeypatch.setattr(store_building, '_SHARE_BYTES', 1)


@pytest.fixture
def text(tmp_path):
    """A pattern of five files: the second is cut short, the fourth is no UTF-8."""
    for number in range(5):
        lines = '\n\n'.join(_random_texts(10, seed=number))
        (tmp_path / f'{number}.txt.gz').write_bytes(gzip.compress(lines.encode()))
    (tmp_path / '1.txt.gz').write_bytes((tmp_path / '1.txt.gz').read_bytes()[:-30])
    (tmp_path / '3.txt.gz').write_bytes(gzip.compress(b'\xff'))
    return f'{tmp_path}/*.gz'


def test_all_bad_files_are_named_when_the_good_shares_are_done(tmp_path, text):
    with refused('2 files of', '1.txt.gz is cut short', '3.txt.gz is not text in UTF-8',
                 'config.data.max_bad_files=2'):
        build(open_source(text), tmp_path)
    [folder] = (tmp_path / 'stores').iterdir()
    done = sorted(path.name for path in folder.iterdir() if path.suffix == '.done')
    assert done == ['part-00000.done', 'part-00002.done', 'part-00004.done']
    # Of those that failed nothing is left, because a disk may have been the cause.
    assert not list(folder.glob('part-00001*')) and not list(folder.glob('part-00003*'))


def test_so_many_bad_files_are_set_aside_and_named_in_the_manifest(tmp_path, text):
    store = build(open_source(text), tmp_path, max_bad_files=2)
    assert list(store.manifest['bad_files']) == [f'{tmp_path}/1.txt.gz', f'{tmp_path}/3.txt.gz']
    assert len(whole(store).documents) == 30
    # The same bytes as where the same command was begun without them being allowed.
    with refused('2 files of'):
        build(open_source(text), tmp_path / 'later', max_bad_files=1)
    later = build(open_source(text), tmp_path / 'later', max_bad_files=2)
    assert content(later.path) == content(store.path)


def test_a_last_step_that_is_made_again_still_knows_them(tmp_path, text, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(store_building, 'tidy', lambda folder: None)
        store = build(open_source(text), tmp_path, max_bad_files=2)
    (store.path / 'manifest.json').unlink()
    (store.path / 'faults.json').write_text('{}')  # of a pipeline
    again = build(open_source(text), tmp_path, max_bad_files=2)
    assert len(again.manifest['bad_files']) == 2
    # A finished store has nothing of its building.
    assert not [path for path in again.path.iterdir() if path.name.endswith(('.bad', '.done'))]
    assert not (again.path / 'faults.json').exists()


def test_without_bad_files_the_manifest_says_nothing_of_them(tmp_path):
    (tmp_path / 'a.txt').write_text('a b')
    store = build(open_source(f'{tmp_path}/a.txt'), tmp_path, max_bad_files=3)
    assert 'bad_files' not in json.loads((store.path / 'manifest.json').read_text())


def test_a_store_without_some_files_is_opened_where_they_may_be_bad(tmp_path, text):
    places = Places(files.as_path(tmp_path), files.as_path(tmp_path))
    share_store(TextSpec(text), TOKENIZER, places, max_bad_files=2)
    with refused('could not be read of 2 files', '1.txt.gz', 'max_bad_files=2'):
        share_store(TextSpec(text), TOKENIZER, places)


def test_what_stands_before_a_bad_place_is_used(tmp_path, monkeypatch):
    monkeypatch.setattr('bert_jax.corpus.text_formats._BLOCK_BYTES', 1000)
    good = '\n\n'.join(['a b', 'c d'] * 500)
    (tmp_path / 'a.txt.gz').write_bytes(gzip.compress(good.encode() + b'\n\n\xff'))
    store = build(open_source(f'{tmp_path}/a.txt.gz'), tmp_path, max_bad_files=1)
    assert 900 < store.manifest['num_documents'] <= 1000


def test_a_share_that_is_resumed_behind_a_bad_file_still_knows_it(tmp_path, text, monkeypatch):
    monkeypatch.setattr(store_building, '_SHARE_BYTES', 1 << 30)
    monkeypatch.setattr(store_building, '_PART_BYTES', 1)
    monkeypatch.setattr('bert_jax.corpus.text_batches._BATCH_DOCUMENTS', 10)
    expected = content(build(open_source(text), tmp_path / 'whole', max_bad_files=2).path)
    opened = store_building.open_build(
        open_source(text), TOKENIZER, tmp_path, False, max_bad_files=2)
    store_building.make_shares(opened)
    (opened.folder / 'part-00000.done').unlink()
    (opened.folder / 'part-00000-002.npz').unlink()  # the last
    store_building.make_shares(opened)
    store_building.finish(opened)
    assert content(opened.folder) == expected


# What is wrong with one file, and what would be with all.

ROW = json.dumps({'text': 'a b'})


def _parquet_of(texts):
    pyarrow = pytest.importorskip('pyarrow', reason='needs the extra [tables]')
    from pyarrow import parquet

    file = io.BytesIO()
    parquet.write_table(pyarrow.table({'text': texts}), file)
    return file.getvalue()


@pytest.mark.parametrize(('name', 'damaged'), [
    ('cut.txt.gz', lambda: gzip.compress(b'a b')[:-3]),
    ('rot.txt.bz2', lambda: b'BZh91AY&SY' + bytes(500)),
    ('rot.txt.gz', lambda: gzip.compress(b'a b')[:10] + bytes(99)),
    ('other.txt', lambda: gzip.compress(b'a b')),
    ('latin.csv', lambda: b'text\n\xff\n'),
    ('open.csv', lambda: b'text\n"a b\n'),
    ('line.jsonl', lambda: f'{ROW}\n{{"tex\n'.encode()),
    ('lacking.jsonl', lambda: f'{{"id": 1}}\n{ROW}\n'.encode()),
    ('list.json', lambda: b'[{"tex'),
    ('x.fasta', lambda: b'>one\n>two\nACGT\n'),
    ('doc', lambda: b'<doc id="1">\na b\n'),
    ('foot.parquet', lambda: b'PAR1' + bytes(99)),
    ('page.parquet', lambda: b'PAR1' + b'\xff' * 20 + _parquet_of(['a b'])[24:]),
])
def test_a_damaged_file_is_set_aside(tmp_path, name, damaged):
    if name.endswith('.parquet'):
        pytest.importorskip('pyarrow', reason='needs the extra [tables]')
    (tmp_path / 'texts').mkdir()
    (tmp_path / 'texts' / 'good.txt').write_text('b a')
    (tmp_path / 'texts' / name).write_bytes(damaged())
    store = build(open_source(f'{tmp_path}/texts/*'), tmp_path, max_bad_files=1)
    assert list(store.manifest['bad_files']) == [f'{tmp_path}/texts/{name}']


class _Failing(io.FileIO):
    """A file on a disk that fails after the first bytes."""

    def readinto(self, buffer):
        if self.tell():
            raise OSError(errno.EIO, 'Input/output error')
        return super().readinto(memoryview(buffer)[:64])


@pytest.mark.parametrize('ending', ['txt', 'txt.gz', 'txt.bz2', 'parquet'])
def test_a_disk_that_fails_ends_the_build_which_then_goes_on(tmp_path, monkeypatch, ending):
    for number in range(3):
        texts = _random_texts(30, seed=number)
        lines = '\n\n'.join(texts).encode()
        pack = {'txt.gz': gzip.compress, 'txt.bz2': bz2.compress}.get(ending, bytes)
        made = _parquet_of(texts) if ending == 'parquet' else pack(lines)
        (tmp_path / f'{number}.{ending}').write_bytes(made)
    pattern = f'{tmp_path}/*.{ending}'
    expected = content(build(open_source(pattern), tmp_path / 'undisturbed').path)
    opened = files._open

    def failing(path):
        is_bad = path.endswith(f'1.{ending}')
        return io.BufferedReader(_Failing(path), 64) if is_bad else opened(path)

    for max_bad_files in (0, 3):
        with monkeypatch.context() as patch:
            patch.setattr(files, '_open', failing)
            with refused(f'1.{ending} cannot be read (Input/output error)'):
                build(open_source(pattern), tmp_path, max_bad_files=max_bad_files)
        [folder] = (tmp_path / 'stores').iterdir()
        assert (folder / 'part-00000.done').exists()
        assert not list(folder.glob('*.bad'))
    assert content(build(open_source(pattern), tmp_path, max_bad_files=3).path) == expected


@pytest.mark.parametrize(('name', 'text', 'says'), [
    ('a.csv', 'words\na b\n', "has no column 'text' in its header"),
    ('a.jsonl', '{"words": "a b"}\n' * 3, "has no column 'text' in any row"),
    ('a.parquet', 'PAR1', 'Parquet needs pyarrow, which is not installed'),
])
def test_a_wrong_config_or_installation_ends_the_build(tmp_path, monkeypatch, name, text, says):
    monkeypatch.setitem(sys.modules, 'pyarrow', None)
    (tmp_path / name).write_text(text)
    with refused(name, says):
        build(open_source(f'{tmp_path}/{name}'), tmp_path, max_bad_files=1)
    assert not list(tmp_path.glob('stores/*/*.bad'))


# Several processes at the same store.

@pytest.mark.parametrize('is_before', [True, False], ids=['before', 'behind'])
def test_a_store_that_another_process_finishes_meanwhile_is_left_alone(
    tmp_path, text, monkeypatch, is_before
):
    expected = content(build(open_source(text), tmp_path / 'whole', max_bad_files=2).path)
    mine, other = (store_building.open_build(
        open_source(text), TOKENIZER, tmp_path, False, max_bad_files=most) for most in (0, 2))
    store_building.make_shares(mine)
    read = store_building.bad_files.read_bad_files
    turns = iter([store_building.finish])

    def slowly(path):
        finish = next(turns, None)
        if finish and is_before:
            finish(other)
        found = read(path)
        if finish and not is_before:
            finish(other)
        return found

    monkeypatch.setattr(store_building.bad_files, 'read_bad_files', slowly)
    store_building.finish(mine)
    assert content(mine.folder) == expected


def test_processes_that_make_the_same_share_keep_each_others_bad_files(tmp_path):
    path = files.as_path(tmp_path) / 'part-00000.bad'
    one, other = BadFiles(path), BadFiles(path)
    one.note('a', 'a is bad')
    other.note('b', 'b is bad')
    assert read_bad_files(path) == {'a': 'a is bad', 'b': 'b is bad'}
    path.write_text('{"b": "b is bad"}')  # of one that read it before the other wrote
    one.keep()
    assert read_bad_files(path) == {'a': 'a is bad', 'b': 'b is bad'}
