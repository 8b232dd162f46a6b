"""Files of a text that cannot be read: they are all named, or set aside; the others are used."""

import gzip
import json

import pytest

from bert_jax.corpus import store_building, tokenize
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
    # The last step, made again, still knows them.
    (store.path / 'manifest.json').unlink()
    with refused('2 files of'):
        build(open_source(text), tmp_path)


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
