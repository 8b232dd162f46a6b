"""What is kept in a folder of stores, and what of it is removed when asked for."""

import json
import os

import pytest

from bert_jax.corpus import earlier_shares, kept_stores, store_building, tokenize
from bert_jax.corpus.kept_stores import kept_stores as stores_in
from bert_jax.corpus.sources import open_source
from bert_jax.runtime import files, folder_lock
from bert_jax.tools import look
from tests.corpus.test_store_building import _random_texts, _tokenizer, build, content
from tests.refusals import refused


@pytest.fixture(autouse=True)
def _quickly(monkeypatch):
    """Without TensorFlow; each file is a share, and a day is over at once."""
    monkeypatch.setattr(tokenize, 'has_tensorflow', lambda: False)
    monkeypatch.setattr(store_building, '_SHARE_BYTES', 1)
    monkeypatch.setattr(store_building, 'DAY_SECONDS', -10.0)


@pytest.fixture
def source(tmp_path):
    """A text of two files."""
    for number in range(2):
        (tmp_path / f'{number}.txt').write_text('\n\n'.join(_random_texts(5, number)))
    return open_source(f'{tmp_path}/?.txt')


@pytest.fixture
def finished(folder, source):
    """A finished store, which stays."""
    return build(source, folder)


@pytest.fixture
def begun(folder, source, finished):
    """A store of the same text with another tokenizer, of which a share is done."""
    opened = store_building.open_build(source, _tokenizer('abc'), folder, False)
    store_building.make_shares(opened, store_building.Slice(0, 2))
    return opened


def look_at(folder, *flags):
    look.main(['look', str(folder), '--stores', *flags])


def test_stores_are_listed_and_what_is_left_is_counted(
        folder, source, finished, begun, capsys, monkeypatch):
    look_at(folder)
    said = capsys.readouterr().out
    [line] = [line for line in said.splitlines() if ' finished ' in line]
    assert line.split()[0] == finished.path.name and line.endswith(source.spec)
    assert 'unfinished, 1 share done, nobody at work for 0 h' in said
    assert '1 store unfinished, and nobody at work on for a day' in said
    monkeypatch.setattr(store_building, 'DAY_SECONDS', 86_400)
    look_at(folder)
    assert 'for a day' not in capsys.readouterr().out
    assert [store.path for store in stores_in(folder)] == sorted([finished.path, begun.folder])


def test_what_is_left_is_removed_and_nothing_else(folder, finished, begun, capsys):
    expected = content(finished.path)
    lists = folder / earlier_shares.FOLDER
    files.write_whole(lists / 'gone.json', '{}')
    look_at(folder)
    assert 'gone.json lists the shares of a store that is gone' in capsys.readouterr().out
    look_at(folder, '--remove')
    said = capsys.readouterr().out
    assert f'removed: {begun.folder}\n' in said and 'gone.json' in said
    assert [store.path for store in stores_in(folder)] == [finished.path]
    assert content(finished.path) == expected
    assert files.children(lists) == [earlier_shares.list_path(finished.path)]
    assert [path.name for path in files.children(folder / 'stores')] == [finished.path.name]


@pytest.mark.parametrize('at_work', [
    store_building.alone_at_work,
    lambda build: store_building.at_work_on(build, store_building.Slice(1, 2))])
def test_what_a_process_is_at_work_on_stays(folder, begun, capsys, monkeypatch, at_work):
    [left] = [store for store in stores_in(folder) if store.is_left]
    with at_work(begun):
        assert not kept_stores.remove(left)  # as of a process that was suspended for a day
        monkeypatch.setattr(store_building, 'DAY_SECONDS', 86_400)
        look_at(folder, '--remove')
        said = capsys.readouterr().out
        assert 'is at work' in said and 'removed' not in said
        assert not kept_stores.remove(left)  # it was left, and then a process began
    store_building.make_shares(begun)
    store_building.finish(begun)
    assert not kept_stores.remove(left)


def claim_of_a_killed_process(store, piece, machine):
    """Leaves a claim on a store."""
    content = folder_lock.new_claim() | {'machine': machine, 'started': 'before'}
    files.write_whole(store / f'.{piece}claim-1', json.dumps(content))


def test_what_was_killed_elsewhere_is_at_work_for_a_day(
        folder, source, begun, capsys, monkeypatch):
    for piece in ('', 'share-0-of-2-'):
        claim_of_a_killed_process(begun.folder, piece, 'another')
    other = store_building.open_build(source, _tokenizer('ab'), folder, False)
    for days, is_named in ((86_400, True), (-10.0, False)):
        monkeypatch.setattr(store_building, 'DAY_SECONDS', days)
        look_at(folder)
        assert ('is at work' in capsys.readouterr().out) == is_named
        with store_building.alone_at_work(other):
            assert ('prepares another text' in capsys.readouterr().err) == is_named
    look_at(folder, '--remove')
    assert f'removed: {begun.folder}\n' in capsys.readouterr().out
    assert not files.children(begun.folder)


def test_a_store_is_claimed_until_all_of_it_is_gone(begun, monkeypatch):
    claim_of_a_killed_process(begun.folder, 'share-0-of-2-', folder_lock.new_claim()['machine'])
    earlier_shares.keep_list(begun.folder, {})
    [left] = [store for store in stores_in(begun.folder.parent.parent) if store.is_left]
    release = folder_lock.Claim.release
    then = []

    def looking(claim):
        then.append(list(files.sizes(begun.folder)))
        assert not earlier_shares.list_path(begun.folder).exists()
        release(claim)

    monkeypatch.setattr(folder_lock.Claim, 'release', looking)
    assert kept_stores.remove(left)
    assert then[0] == (['.claim-1'] if files.in_bucket(begun.folder) else [])
    assert not files.sizes(begun.folder)


def test_who_lost_the_claim_removes_nothing_more(begun, monkeypatch):
    [left] = [store for store in stores_in(begun.folder.parent.parent) if store.is_left]

    def taken_now(folder):
        files.write_whole(folder / '.claim-2', '{}')
        return False

    monkeypatch.setattr(kept_stores, '_is_at_work_on_a_piece', taken_now)
    before = set(files.sizes(begun.folder))
    with refused('taken by another process'):
        kept_stores.remove(left)
    assert before <= set(files.sizes(begun.folder))


def test_what_a_removal_that_was_killed_has_left_goes_with_the_next(source, tmp_path):
    finished = build(source, files.as_path(tmp_path))
    half = finished.path.with_name(f'.another.{16 * "0"}.tmp')
    half.mkdir()
    (half / 'part-00000-000.blocks').write_text('')
    look_at(tmp_path, '--remove')
    assert half.exists()  # it may be another process's
    os.utime(half, (0, 0))
    look_at(tmp_path, '--remove')
    assert list(half.parent.iterdir()) == [finished.path]


def test_a_folder_without_stores_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        look_at(tmp_path)
    assert ended.value.code == 2
    assert 'holds no token stores' in capsys.readouterr().err
