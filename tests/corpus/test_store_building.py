"""Token stores that are built: what is in them, and that it does not depend on who built them."""

import functools
import gzip
import json
import os
import random
import re
import time
import types
from concurrent import futures

import numpy as np
import pytest

from bert_jax.corpus import (
    exact_duplicates,
    store_building,
    store_parts,
    text_batches,
    tokenize,
)
from bert_jax.corpus.source import Document, Source, Unit
from bert_jax.corpus.sources import open_source
from bert_jax.rows.store import TokenStore, file_sizes
from bert_jax.runtime import files, folder_lock
from bert_jax.text.vocab import SPECIAL_TOKENS, Vocab
from bert_jax.text.wordpiece import WordPieceTokenizer
from tests.corpus.store_worker import work_without_tensorflow
from tests.refusals import refused

LETTERS = 'abcdefghijklmnopqrstuvwxyz'


def _tokenizer(*more):
    pieces = [*SPECIAL_TOKENS, *LETTERS, *('##' + c for c in LETTERS), '.', *more]
    return WordPieceTokenizer(Vocab.from_tokens(pieces), True)


TOKENIZER = _tokenizer()


def _read(documents, fail_at, unit):
    half = len(documents) // 2
    start, end = (0, half) if unit.name == 'a' else (half, len(documents))
    for i in range(start, end):
        if i == fail_at:
            raise KeyError('killed')
        yield Document(documents[i].encode(), True)


def _source(documents, fail_at=None):
    """Documents in memory, two units; may fail before some document, as a killed build would."""
    return Source(
        'memory',
        [Unit('a', 1), Unit('b', 1000)],
        read=functools.partial(_read, documents, fail_at),
        fingerprint=functools.partial(str, 'memory'))


def _random_texts(num_documents, seed=0):
    rng = np.random.default_rng(seed)

    def line():
        words = [''.join(rng.choice(list(LETTERS), 3)) for _ in range(rng.integers(1, 6))]
        return ' '.join(words)

    documents = []
    for _ in range(num_documents):
        lines = [line() for _ in range(rng.integers(1, 5))]
        documents.append('\n'.join(lines))
    return documents


def build(source, folder, tokenizer=TOKENIZER, progress=False, **options):
    """The store of a source, or of documents in memory."""
    source = _source(source) if isinstance(source, list) else source
    return store_building.build_store(source, tokenizer, folder, progress, **options)


def whole(store):
    """All documents of a store."""
    return store.window(np.arange(len(store.index)))


def _sentences(text, document):
    start, end = text.document_offsets[document:document + 2]
    bounds = text.sentence_offsets[start:end + 1]
    return [line.tolist() for line in np.split(text.tokens[bounds[0]:bounds[-1]],
                                               bounds[1:-1] - bounds[0])]


def content(folder):
    """The bytes of all files of a store, by name; on a disk or in a bucket."""
    found = {}
    for place in (folder, folder / 'vocabulary'):
        for path in files.children(place):
            if path.name != 'vocabulary':
                found[str(path).removeprefix(f'{folder}/')] = path.read_bytes()
    return found


@pytest.fixture(autouse=True)
def _without_tensorflow(monkeypatch):
    """Starts quicker, and gives the same ids (see test_tokenize_plain)."""
    monkeypatch.setattr(tokenize, 'has_tensorflow', lambda: False)


@pytest.fixture
def small_parts(monkeypatch):
    """Batches of four documents, each of which is a part, in blocks of about 20 tokens."""
    monkeypatch.setattr(text_batches, '_BATCH_DOCUMENTS', 4)
    monkeypatch.setattr(store_building, '_SHARE_BYTES', 1)
    monkeypatch.setattr(store_building, '_PART_BYTES', 1)
    monkeypatch.setattr(store_parts, 'BLOCK_TOKENS', 20)


TEXTS = ['Ab cd. Ef.\n\n  \nGh', 'x', ' \u200b \n', 'Ab cd. Ef.\nGh', '…\nz']


def test_holds_what_the_tokenizer_says(tmp_path):
    text = whole(build(TEXTS, tmp_path))
    for document, expected in enumerate(('ab cd. ef. gh', 'x', 'ab cd. ef. gh', '… z')):
        assert sum(_sentences(text, document), []) == TOKENIZER.encode(expected)
    assert [len(_sentences(text, document)) for document in range(4)] == [3, 1, 3, 2]
    assert text.documents.tolist() == [0, 1, 3]  # the third repeats the first
    assert text.tokens.dtype == np.uint16


def test_the_manifest_counts_what_a_store_holds(tmp_path):
    store = build(TEXTS, tmp_path)
    manifest = store.manifest
    assert manifest['num_documents'] == 4
    assert manifest['num_duplicates'] == 1
    assert manifest['num_sentences'] == 9
    assert manifest['num_blocks'] == len(store.index) == 1
    assert manifest['text_bytes'] == sum(len(text.encode()) for text in TEXTS)
    assert manifest['vocab_size'] == len(TOKENIZER.vocab)
    text = whole(store)
    assert manifest['num_tokens'] == len(text.tokens)
    counts = np.bincount(text.tokens, minlength=len(TOKENIZER.vocab))
    assert store.token_counts().tolist() == counts.tolist()


def test_a_finished_store_has_the_files_that_its_manifest_names_and_what_was_noted(
        tmp_path, small_parts):
    store = build(_random_texts(10), tmp_path)
    assert os.listdir(tmp_path / 'stores') == [store.path.name]
    notes = [f'{name}.npz' for name in store.manifest['parts']]
    expected = [*file_sizes(store.manifest), *notes, 'manifest.json']
    assert sorted(os.listdir(store.path)) == sorted(expected)


def test_a_finished_store_is_opened_without_reading_the_text(tmp_path):
    store = build(TEXTS, tmp_path)
    before = content(store.path)
    assert content(build(_source(TEXTS, fail_at=0), tmp_path).path) == before


def test_each_tokenizer_has_a_store_of_its_own(tmp_path):
    store = build(TEXTS, tmp_path)
    assert build(TEXTS, tmp_path, _tokenizer('abc')).fingerprint != store.fingerprint


def test_lines_are_not_split(tmp_path):
    path = tmp_path / 'a.txt'
    path.write_text('Ab. Cd.\nEf.\n\nGh.\n')
    store = build(open_source(f'lines:{path}'), tmp_path)
    assert _sentences(whole(store), 0) == [TOKENIZER.encode('ab. cd.'), TOKENIZER.encode('ef.')]
    split = build(open_source(str(path)), tmp_path)
    assert len(_sentences(whole(split), 0)) == 3
    assert split.fingerprint != store.fingerprint


def test_wide_vocabulary(tmp_path):
    tokenizer = _tokenizer(*(f'[unused{i}]' for i in range(70_000)), 'last')
    text = whole(build(['a last', 'b'], tmp_path, tokenizer))
    assert text.tokens.dtype == np.uint32
    assert text.tokens[1] == len(tokenizer.vocab) - 1 > 65_535


@pytest.mark.parametrize(('sizes', 'expected'), [
    pytest.param([5], [(0, 1, 100)], id='small'),
    pytest.param([120, 120, 120, 30], [(0, 2, 120), (2, 4, 150)], id='joined'),
    pytest.param([60, 510, 10], [(0, 2, 114), (2, 3, 100)], id='in several parts'),
    pytest.param([0, 0], [(0, 2, 100)], id='of unknown size'),
    pytest.param([], [], id='none'),
])
def test_shares_follow_from_the_units(monkeypatch, sizes, expected):
    monkeypatch.setattr(store_building, '_SHARE_BYTES', 200)
    monkeypatch.setattr(store_building, '_PART_BYTES', 100)
    shares = list(store_building.shares_of([Unit(str(size), size) for size in sizes]))
    assert [(share.first, share.last, share.part_bytes) for share in shares] == expected
    assert [share.number for share in shares] == list(range(len(expected)))


def test_files_that_keep_one_process_at_work_for_long_are_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(store_building, '_LARGE_UNIT_BYTES', 1000)
    for name, num_bytes in (('a.gz', 5000), ('b.gz', 90_000), ('c.txt', 900)):
        pack = gzip.compress if name.endswith('.gz') else bytes
        rng = random.Random(name)
        lines = ' '.join(rng.choices(LETTERS, k=num_bytes // 2)).encode()
        (tmp_path / name).write_bytes(pack(lines))
    build(open_source(f'{tmp_path}/*'), tmp_path / 'data', progress=True)
    said = capsys.readouterr().err
    assert re.search(r'/b\.gz \(and 1 other\), of about 0\.0 GB of text, is read by one', said)
    build(open_source(f'{tmp_path}/c.txt'), tmp_path / 'data', progress=True)
    assert 'is read by one' not in capsys.readouterr().err


@pytest.mark.parametrize('block_tokens', [1, 20, 33, 100_000])
def test_blocks_hold_whole_documents_and_about_equally_many_tokens(
        tmp_path, monkeypatch, block_tokens):
    monkeypatch.setattr(store_parts, 'BLOCK_TOKENS', block_tokens)
    monkeypatch.setattr(text_batches, '_BATCH_DOCUMENTS', 7)
    texts = _random_texts(60)
    store = build(texts, tmp_path)
    text = whole(store)
    assert len(text.document_hashes) == 60
    for document in (0, 30, 59):
        lines = [TOKENIZER.encode(line) for line in texts[document].split('\n')]
        assert _sentences(text, document) == lines
    num_tokens = store.index['num_tokens']
    longest = np.diff(text.sentence_offsets[text.document_offsets]).max()
    assert (num_tokens[:-1] >= block_tokens).all()
    assert (num_tokens[:-1] < block_tokens + longest).all()
    if len(num_tokens) > 1:
        assert block_tokens / 2 <= num_tokens[-1] < 1.5 * block_tokens + longest


@pytest.fixture
def kill_at(monkeypatch):
    """Makes the next build fail where it would note its n-th part: `kill_at(n)`."""
    write_notes = store_building.write_notes

    def arrange(number):
        left = iter(range(number, -1, -1))

        def write(path, notes):
            if next(left) == 0:
                monkeypatch.setattr(store_building, 'write_notes', write_notes)
                raise KeyError('killed')
            write_notes(path, notes)

        monkeypatch.setattr(store_building, 'write_notes', write)

    return arrange


def _append_junk(folder):
    (folder / '.part-00001-003.blocks.0123.tmp').write_bytes(b'junk')
    for share in (0, 1):  # either may be built first
        if not (folder / f'part-0000{share}-004.npz').exists():
            (folder / f'part-0000{share}-004.blocks').write_bytes(b'junk')
    (folder / 'journal.json').write_text('{')


def _leave_claims(folder):
    """As a killed process of this machine does."""
    claim = folder_lock.new_claim() | {'pid': 2**22 + 1}
    (folder / '.claim-3').write_text(json.dumps(claim))


def _leave_old_claims(folder):
    """As a killed process of an older version did, by which processes divided the work."""
    for piece in ('part-00000', 'part-00001', 'finish'):
        claim = folder_lock.new_claim() | {'pid': 2**22 + 1}
        (folder / f'{piece}.claim').write_text(json.dumps(claim))


def _leave_a_broken_claim(folder):
    (folder / '.claim-1').write_text('')


def _leave_nothing_more(folder):
    pass


@pytest.mark.parametrize('part', [0, 1, 4, 5, 9])
@pytest.mark.parametrize('leave', [
    pytest.param(_append_junk, id='junk'),
    pytest.param(_leave_claims, id='claims'),
    pytest.param(_leave_old_claims, id='claims of an older version'),
    pytest.param(_leave_a_broken_claim, id='a broken claim'),
    pytest.param(_leave_nothing_more, id='nothing more'),
])
def test_a_killed_build_resumes(tmp_path, monkeypatch, small_parts, kill_at, part, leave):
    monkeypatch.setattr(folder_lock, 'SECONDS', 0.2)
    texts = _random_texts(40)
    expected = content(build(texts, tmp_path / 'whole').path)
    kill_at(part)
    with pytest.raises(KeyError):
        build(texts, tmp_path)
    [folder] = (tmp_path / 'stores').iterdir()
    assert len(list(folder.glob('*.npz'))) == part
    assert not (folder / 'manifest.json').exists()
    leave(folder)
    found = content(build(texts, tmp_path).path)
    found.pop('journal.json', None)
    assert found == expected


def test_a_resumed_build_reads_only_what_it_lacks(tmp_path, small_parts, kill_at):
    texts = _random_texts(40)
    kill_at(9)
    with pytest.raises(KeyError):
        build(texts, tmp_path)
    # Four of five parts of the share that is read last are stored, so their text is not read.
    [folder] = (tmp_path / 'stores').iterdir()
    [lacking] = [share for share in (0, 1) if not (folder / f'part-0000{share}-004.npz').exists()]
    changed = list(texts)
    changed[20 * lacking : 20 * lacking + 16] = ['never read'] * 16
    resumed = whole(build(changed, tmp_path))
    for document in range(40):
        lines = [TOKENIZER.encode(line) for line in texts[document].split('\n')]
        assert _sentences(resumed, document) == lines


def test_a_process_pool_resumes_a_killed_build(tmp_path, monkeypatch, small_parts, kill_at):
    monkeypatch.setattr(store_building, '_work', work_without_tensorflow)
    texts = _random_texts(40)
    expected = whole(build(texts, tmp_path / 'whole'))
    kill_at(7)
    with pytest.raises(KeyError):
        build(texts, tmp_path)
    # The processes make larger parts: the patches of this test are not theirs.
    text = whole(build(texts, tmp_path, num_processes=2))
    assert text.tokens.tobytes() == expected.tokens.tobytes()
    assert text.document_hashes.tobytes() == expected.document_hashes.tobytes()


def test_bytes_do_not_depend_on_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(store_building, '_work', work_without_tensorflow)
    monkeypatch.setattr(store_building, '_SHARE_BYTES', 1)
    monkeypatch.setattr(store_building, '_PART_BYTES', 1)
    for i in range(6):
        (tmp_path / f'{i}.txt').write_text('\n\n'.join(_random_texts(30, seed=i)))
    source = open_source(f'{tmp_path}/*.txt')
    alone = build(source, tmp_path / 'alone')
    together = build(source, tmp_path / 'together', num_processes=2)
    assert content(together.path) == content(alone.path)
    assert len(alone.manifest['parts']) == 6


def test_tokens_do_not_depend_on_parts(tmp_path, monkeypatch):
    texts = _random_texts(40) * 2
    one = whole(build(texts, tmp_path / 'one'))
    monkeypatch.setattr(text_batches, '_BATCH_DOCUMENTS', 3)
    monkeypatch.setattr(store_building, '_SHARE_BYTES', 1)
    monkeypatch.setattr(store_building, '_PART_BYTES', 1)
    many = build(texts, tmp_path / 'many')
    assert len(many.manifest['parts']) == 2 * 14
    for name in ('tokens', 'sentence_offsets', 'document_offsets', 'document_hashes', 'documents'):
        assert getattr(whole(many), name).tobytes() == getattr(one, name).tobytes()
    assert len(one.documents) == 40


@pytest.mark.parametrize(('name', 'damage', 'word'), [
    ('manifest.json', lambda path: path.write_text('{'), 'damaged'),
    ('manifest.json', lambda path: path.write_text('{"format_version": 0}'), 'version 0'),
    ('index.bin', lambda path: os.truncate(path, 2), 'index.bin is damaged'),
    ('left_out.bin', os.unlink, 'left_out.bin is missing'),
])
def test_damaged_store_is_not_opened(tmp_path, name, damage, word):
    store = build(['a b', 'c'], tmp_path)
    damage(store.path / name)
    with refused(word, store.path):
        TokenStore.open(store.path)
    with refused(word, store.path):
        build(['a b', 'c'], tmp_path)


def test_without_its_manifest_a_store_is_finished_again(tmp_path, small_parts):
    store = build(_random_texts(20), tmp_path)
    expected = content(store.path)
    os.unlink(store.path / 'manifest.json')
    os.unlink(store.path / 'index.bin')
    build(_source(_random_texts(20), fail_at=0), tmp_path)  # without reading the text
    assert content(store.path) == expected


def _change_a_hash(path):
    name = b'document_hashes.npy'
    notes = bytearray(path.read_bytes())
    notes[notes.index(name) + 160] ^= 1
    path.write_bytes(notes)


@pytest.mark.parametrize(('ending', 'damage', 'word'), [
    pytest.param('.npz', _change_a_hash, 'npz is damaged', id='notes'),
    pytest.param('.npz', lambda path: os.truncate(path, 9), 'npz is damaged', id='short notes'),
    pytest.param('.blocks', lambda path: os.truncate(path, 9), 'another size', id='short blocks'),
    pytest.param('.blocks', os.unlink, 'is missing', id='no blocks'),
])
def test_a_damaged_part_is_refused_by_name(tmp_path, small_parts, ending, damage, word):
    texts = _random_texts(20)
    store = build(texts, tmp_path)
    expected = content(store.path)
    os.unlink(store.path / 'manifest.json')
    damaged = store.path / f'part-00000-001{ending}'
    damage(damaged)
    with refused(word, 'part-00000-001'):
        build(texts, tmp_path)
    # The remedy of the message.
    os.unlink(store.path / 'part-00000-001.npz')
    build(texts, tmp_path)
    assert content(store.path) == expected


def test_source_without_text(tmp_path):
    with refused('holds no text'):
        build([' ', '\n'], tmp_path)


def test_a_part_may_be_without_text(tmp_path, small_parts):
    texts = [' '] * 8 + ['a b', 'c'] + [' '] * 4 + ['a d'] * 2 + [' '] * 8
    text = whole(build(texts, tmp_path))
    assert [_sentences(text, document) for document in range(4)] == [
        [TOKENIZER.encode(words)] for words in ('a b', 'c', 'a d', 'a d')]
    assert text.documents.tolist() == [0, 1, 2]


def test_a_source_that_changes_during_the_build_is_refused(tmp_path):
    source = _source(['a', 'b'])
    source.fingerprint = iter('xyz').__next__  # different at each call
    with refused('changed while'):
        build(source, tmp_path)
    assert not list(tmp_path.glob('stores/*/part-*'))


def test_a_build_waits_for_another_and_takes_over_when_it_is_silent(
        tmp_path, monkeypatch, small_parts, capsys):
    source = _source(_random_texts(8))
    folder = tmp_path / 'stores' / store_building.store_fingerprint(source, TOKENIZER)
    folder.mkdir(parents=True)
    claim = folder / '.claim-1'
    content_of_claim = folder_lock.new_claim() | {'machine': 'another', 'host': 'far'}
    claim.write_text(json.dumps(content_of_claim))
    now = [0]

    def sleep(seconds):
        """Lets a second pass, in which the other is at work or, after the hundredth, silent."""
        now[0] += 1
        if now[0] <= 100:
            claim.write_text(json.dumps(content_of_claim | {'beat': now[0]}))

    clock = types.SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(folder_lock, 'time', clock)
    assert len(whole(build(source, tmp_path)).documents) == 8
    assert now[0] == pytest.approx(100 + folder_lock.SECONDS, abs=2)
    assert re.search(r'process \d+ on far is at work on this token store', capsys.readouterr().err)


def test_another_build_in_the_same_folder_is_told(tmp_path, capsys):
    other = tmp_path / 'stores' / 'another'
    other.mkdir(parents=True)
    with folder_lock.claimed(other, 'token store'):
        build(TEXTS, tmp_path)
    assert f'prepares another text, or this one with other settings, in {other}' in (
        capsys.readouterr().err)
    build(['a'], tmp_path, _tokenizer('abc'))
    assert not capsys.readouterr().err


@pytest.fixture
def opened(tmp_path):
    """A store that is to be built."""
    return store_building.open_build(_source(TEXTS), TOKENIZER, tmp_path, False)


HALF = store_building.Slice(1, 2)


@pytest.mark.parametrize(('first', 'second', 'says'), [
    pytest.param(lambda build: store_building.at_work_on(build, HALF),
                 lambda build: store_building.at_work_on(build, HALF), 'share-1-of-2', id='same'),
    pytest.param(store_building.alone_at_work,
                 lambda build: store_building.at_work_on(build, HALF), 'this token store (',
                 id='a slice beside the plain command'),
    pytest.param(lambda build: store_building.at_work_on(build, HALF),
                 store_building.alone_at_work, 'share-1-of-2',
                 id='the plain command beside a slice'),
])
def test_who_would_make_the_same_shares_says_who_does_and_waits(
        tmp_path, opened, capsys, first, second, says):
    events = []

    def come():
        with second(opened):
            events.append('second')

    with futures.ThreadPoolExecutor(1) as pool:
        with first(opened):
            coming = pool.submit(come)
            while 'waiting until it has ended' not in (said := capsys.readouterr().err):
                assert not coming.done()
                time.sleep(0.05)
            events.append('first')
        coming.result(60)
    assert re.search(rf'process {os.getpid()} on .* is at work on this', said) and says in said
    assert events == ['first', 'second']
    assert not [path for path in opened.folder.iterdir() if 'claim' in path.name]


@pytest.mark.parametrize('at_work', [
    store_building.alone_at_work, lambda build: store_building.at_work_on(build, HALF)])
def test_a_store_that_is_removed_meanwhile_is_begun_anew(folder, tmp_path, at_work):
    vocab_file = tmp_path / 'vocab.txt'
    vocab_file.write_text('\n'.join(TOKENIZER.vocab.tokens))
    opened = store_building.open_build(_source(TEXTS), TOKENIZER, folder, False, vocab_file)
    expected = files.children(opened.folder / 'vocabulary')
    assert expected
    opened.folder.rmtree()
    with at_work(opened):
        assert files.children(opened.folder / 'vocabulary') == expected


def test_other_slices_do_not_wait_and_others_are_told(opened, capsys):
    with store_building.at_work_on(opened, HALF):
        with store_building.at_work_on(opened, store_building.Slice(0, 2)):
            assert not capsys.readouterr().err
        other = store_building.open_build(
            _source(TEXTS), _tokenizer('abc'), opened.folder.parent.parent, False)
        with store_building.alone_at_work(other):
            assert f'with other settings, in {opened.folder}' in capsys.readouterr().err


@pytest.mark.parametrize('count', [1, 2, 3])
def test_slices_that_are_made_apart_give_the_same_bytes(tmp_path, small_parts, count):
    texts = _random_texts(40)
    expected = content(build(texts, tmp_path / 'alone').path)
    opened = store_building.open_build(_source(texts), TOKENIZER, tmp_path / 'apart', False)
    assert len(opened.shares) == 2
    for number in reversed(range(count)):
        if number < len(opened.shares):
            lacking = [share for share in (0, 1) if share % count <= number]
            with refused('are not done', f'number {", ".join(map(str, lacking))})'):
                store_building.finish(opened)
        store_building.make_shares(opened, store_building.Slice(number, count))
    store_building.finish(opened)
    assert content(opened.folder) == expected
    # One that comes later finds nothing to do.
    store_building.make_shares(opened, store_building.Slice(0, count))
    store_building.finish(opened)
    assert content(opened.folder) == expected


def _hashes_by_brute_force(hashes):
    seen = set()
    is_repeated = []
    for value in hashes.tolist():
        is_repeated.append(value in seen)
        seen.add(value)
    return is_repeated


@pytest.mark.parametrize('at_once', [1, 7, 64, 10**6])
@pytest.mark.parametrize('num_different', [1, 30, 10**6])
def test_of_repeated_hashes_all_but_the_first_are_found(monkeypatch, at_once, num_different):
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 2**64, num_different, np.uint64)[rng.integers(0, num_different, 200)]
    monkeypatch.setattr(exact_duplicates, '_HASHES_AT_ONCE', at_once)
    arrays = np.split(hashes, [0, 3, 3, 100, 199])
    found = exact_duplicates.repeated(lambda: iter(arrays), len(hashes))
    assert found.tolist() == _hashes_by_brute_force(hashes)


@pytest.mark.parametrize('at_once', [3, 10**6])
def test_the_number_of_passes_over_the_hashes_does_not_matter(
        tmp_path, monkeypatch, small_parts, at_once):
    texts = _random_texts(12)
    monkeypatch.setattr(exact_duplicates, '_HASHES_AT_ONCE', at_once)
    store = build(texts + texts[::-1], tmp_path)
    assert whole(store).documents.tolist() == list(range(12))
    assert store.manifest['num_duplicates'] == 12


@pytest.mark.parametrize('most_tokens', [1, 100, 10**6])
def test_the_held_out_file_has_the_used_documents_with_the_lowest_hashes(
        tmp_path, monkeypatch, small_parts, most_tokens):
    monkeypatch.setattr(store_parts, 'HELD_OUT_TOKENS', most_tokens)
    texts = _random_texts(60)
    store = build(texts + texts, tmp_path)
    text = whole(store)
    held_out = store.held_out()
    by_hash = np.argsort(text.document_hashes[:60])
    num_tokens = np.diff(text.sentence_offsets[text.document_offsets])[by_hash]
    num_kept = min(int(np.searchsorted(np.cumsum(num_tokens), most_tokens)) + 1, 60)
    expected = np.sort(by_hash[:num_kept])
    assert held_out.document_hashes.tolist() == text.document_hashes[expected].tolist()
    for place, document in enumerate(expected):
        assert _sentences(held_out, place) == _sentences(text, document)


@pytest.fixture
def counted(tmp_path, monkeypatch):
    """How often files of this test were synchronised, and folders listed."""
    calls = {'fsync': 0, 'scandir': 0}

    def counting(name, real, path_of):
        def call(place):
            calls[name] += os.fspath(path_of(place)).startswith(str(tmp_path))
            return real(place)
        return call

    def path_of_open(file):
        return os.readlink(f'/proc/self/fd/{file}')

    monkeypatch.setattr(os, 'fsync', counting('fsync', os.fsync, path_of_open))
    monkeypatch.setattr(files, 'sizes', counting('scandir', files.sizes, str))
    monkeypatch.setattr(files, 'children', counting('scandir', files.children, str))
    return calls


def test_the_work_of_a_build_is_proportional_to_its_parts(
        tmp_path, monkeypatch, small_parts, counted):
    monkeypatch.setattr(folder_lock, 'BEAT_SECONDS', 1000.0)  # each is an fsync
    needed = []
    for num_parts in (10, 100):
        counted.update(fsync=0, scandir=0)
        store = build(_random_texts(4 * num_parts), tmp_path / str(num_parts))
        assert len(store.manifest['parts']) == num_parts
        needed.append(dict(counted))
    few, many = needed
    assert many['scandir'] < 20 and few['scandir'] < 20
    assert many['fsync'] - few['fsync'] == 2 * 90  # blocks and notes


def test_held_out_documents_share_no_text(tmp_path):
    texts = _random_texts(300)
    text = whole(build(texts + texts[::-1], tmp_path))
    train, held_out = text.split_held_out(0.2, 2, 'memory')
    assert 30 < len(held_out) < 90
    assert sorted([*train, *held_out]) == text.documents.tolist()

    def words(documents):
        return {str(_sentences(text, d)) for d in documents}

    assert not words(train) & words(held_out)
    # Other documents around them, in another order, do not change a document's side.
    other = whole(build(_random_texts(100, seed=1) + texts[::-1], tmp_path / 'other'))
    other_held = {
        str(_sentences(other, d)) for d in other.split_held_out(0.2, 2, 'memory')[1]}
    assert words(held_out) <= other_held


@pytest.mark.parametrize(('fraction', 'num_training', 'num_held_out'), [
    (0.0, 8, 0), (1e-9, 6, 2), (1.0, 2, 6)])
def test_held_out_bounds(tmp_path, fraction, num_training, num_held_out):
    text = whole(build([letter * 5 for letter in LETTERS[:8]], tmp_path))
    training, held_out = text.split_held_out(fraction, 2, 'memory')
    assert len(training) == num_training
    assert len(held_out) == num_held_out


def test_too_few_documents_to_hold_some_out(tmp_path):
    text = whole(build(['a', 'b', 'c'], tmp_path))
    with refused('3 different documents'):
        text.split_held_out(0.1, 2, 'memory')
