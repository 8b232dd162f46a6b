"""Token store: what is in it, that it survives being killed, and that held-out text is held out."""

import fcntl
import functools
import itertools
import mmap
import os
import time
from concurrent import futures

import numpy as np
import pytest

pytest.importorskip('tensorflow_text')

from bert_jax.data import store_building, text_batches
from bert_jax.data.corpus import open_source
from bert_jax.data.source import Document, Source, Unit
from bert_jax.data.store import TokenStore
from bert_jax.text.vocab import SPECIAL_TOKENS, Vocab
from bert_jax.text.wordpiece import WordPieceTokenizer
from tests.data.stores import change_last_byte
from tests.refusals import refused

pytestmark = pytest.mark.slow
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


def _sentences(store, document):
    start, end = store.document_offsets[document:document + 2]
    bounds = store.sentence_offsets[start:end + 1]
    return [store.tokens[a:b].tolist() for a, b in itertools.pairwise(bounds)]


def _bytes(store):
    return {path.name: path.read_bytes() for path in store.path.glob('*.bin')}


TEXTS = ['Ab cd. Ef.\n\n  \nGh', 'x', ' \u200b \n', 'Ab cd. Ef.\nGh', '…\nz']


def test_holds_what_the_tokenizer_says(tmp_path):
    store = build(TEXTS, tmp_path)
    for document, text in enumerate(('ab cd. ef. gh', 'x', 'ab cd. ef. gh', '… z')):
        assert sum(_sentences(store, document), []) == TOKENIZER.encode(text)
    assert [len(_sentences(store, document)) for document in range(4)] == [3, 1, 3, 2]
    assert store.documents.tolist() == [0, 1, 3]  # the third repeats the first
    assert store.tokens.dtype == np.uint16


def test_the_manifest_counts_what_a_store_holds(tmp_path):
    store = build(TEXTS, tmp_path)
    assert store.manifest['num_documents'] == 4
    assert store.manifest['num_duplicates'] == 1
    assert store.manifest['vocab_size'] == len(TOKENIZER.vocab)
    assert sorted(os.listdir(store.path.parent)) == [store.path.name, store.path.name + '.lock']


def test_a_finished_store_is_opened_without_reading_the_text(tmp_path):
    store = build(TEXTS, tmp_path)
    assert _bytes(build(_source(TEXTS, fail_at=0), tmp_path)) == _bytes(store)


def test_each_tokenizer_has_a_store_of_its_own(tmp_path):
    store = build(TEXTS, tmp_path)
    assert build(TEXTS, tmp_path, _tokenizer('abc')).fingerprint != store.fingerprint


def test_lines_are_not_split(tmp_path):
    path = tmp_path / 'a.txt'
    path.write_text('Ab. Cd.\nEf.\n\nGh.\n')
    store = build(open_source(f'lines:{path}'), tmp_path)
    assert _sentences(store, 0) == [TOKENIZER.encode('ab. cd.'), TOKENIZER.encode('ef.')]
    split = build(open_source(str(path)), tmp_path)
    assert len(_sentences(split, 0)) == 3
    assert split.fingerprint != store.fingerprint


def test_wide_vocabulary(tmp_path):
    tokenizer = _tokenizer(*(f'[unused{i}]' for i in range(70_000)), 'last')
    store = build(['a last', 'b'], tmp_path, tokenizer)
    assert store.tokens.dtype == np.uint32
    assert store.tokens[1] == len(tokenizer.vocab) - 1 > 65_535


def _append_junk(building):
    path = building / 'tokens-00000.bin'
    path.write_bytes(path.read_bytes() + b'junk')


def _lose_tokens(building):
    os.truncate(building / 'tokens-00000.bin', 10)


def _damage_journal(building):
    (building / 'journal.json').write_text('{')


@pytest.mark.parametrize(('fail_at', 'num_processes', 'damage'), [
    pytest.param(39, 1, _append_junk, id='more was written than the journal says'),
    pytest.param(30, 1, _lose_tokens, id='less is there, as after a loss of power'),
    pytest.param(30, 1, _damage_journal, id='damaged journal'),
    pytest.param(30, 2, None, id='in two processes'),
])
def test_a_killed_build_resumes(tmp_path, monkeypatch, fail_at, num_processes, damage):
    monkeypatch.setattr(text_batches, '_BATCH_DOCUMENTS', 4)
    monkeypatch.setattr(store_building, '_JOURNAL_SECONDS', 0.0)
    monkeypatch.setattr(store_building, '_PART_BYTES', 1)
    texts = _random_texts(40)
    whole = build(texts, tmp_path / 'whole')
    with pytest.raises(KeyError):
        build(_source(texts, fail_at), tmp_path)
    final = tmp_path / 'stores' / whole.fingerprint
    assert not final.exists()
    if damage is not None:
        damage(final.with_suffix('.building'))
    assert _bytes(build(texts, tmp_path, num_processes=num_processes)) == _bytes(whole)


def test_resumed_build_skips_what_is_done(tmp_path, monkeypatch):
    monkeypatch.setattr(text_batches, '_BATCH_DOCUMENTS', 1)
    monkeypatch.setattr(store_building, '_JOURNAL_SECONDS', 0.0)
    texts = _random_texts(40)
    with pytest.raises(KeyError):
        build(_source(texts, 39), tmp_path)
    # Most of the second unit is stored already, so its changed text is not read.
    resumed = build(texts[:20] + ['never read'] * 20, tmp_path)
    assert _sentences(resumed, 20) == [TOKENIZER.encode(line) for line in texts[20].split('\n')]


def test_bytes_do_not_depend_on_processes_and_pieces(tmp_path, monkeypatch):
    for i in range(6):
        (tmp_path / f'{i}.txt').write_text('\n\n'.join(_random_texts(30, seed=i)))
    source = open_source(f'{tmp_path}/*.txt')
    whole = build(source, tmp_path / 'whole')
    monkeypatch.setattr(store_building, '_PART_BYTES', 1)
    assert _bytes(build(source, tmp_path / 'parts', num_processes=2)) == _bytes(whole)
    monkeypatch.setattr(store_building, 'PIECE_BYTES', mmap.PAGESIZE)
    pieces = build(source, tmp_path / 'pieces')
    for name in ('tokens', 'sentence_offsets', 'document_offsets', 'document_hashes', 'documents'):
        assert getattr(pieces, name).tobytes() == getattr(whole, name).tobytes()
    content = _bytes(pieces)
    assert len(content['tokens-00000.bin']) == max(map(len, content.values())) == mmap.PAGESIZE
    joined = b''.join(content[name] for name in sorted(content) if name.startswith('tokens'))
    assert joined == _bytes(whole)['tokens-00000.bin']


@pytest.mark.parametrize(('name', 'damage', 'word'), [
    ('manifest.json', os.unlink, 'not a finished token store'),
    ('manifest.json', lambda path: path.write_text('{'), 'damaged'),
    ('manifest.json', lambda path: path.write_text('{"format_version": 0}'), 'version 0'),
    ('tokens-00000.bin', lambda path: os.truncate(path, 2), 'tokens-00000.bin is missing or has'),
    ('tokens-00000.bin', change_last_byte, 'tokens-00000.bin is damaged'),
])
def test_damaged_store_is_not_opened(tmp_path, name, damage, word):
    store = build(['a b', 'c'], tmp_path)
    damage(store.path / name)
    with refused(word, store.path):
        TokenStore.open(store.path)
    with refused(word, store.path):
        build(['a b', 'c'], tmp_path)


def test_source_without_text(tmp_path):
    with refused('holds no text'):
        build([' ', '\n'], tmp_path)


def test_a_source_that_changes_during_the_build_is_refused(tmp_path):
    source = _source(['a', 'b'])
    source.fingerprint = iter('xyz').__next__  # different at each call
    with refused('changed while'):
        build(source, tmp_path)
    assert not list(tmp_path.glob('stores/*.building'))


def test_a_build_waits_while_another_process_has_the_lock(tmp_path):
    source = _source(['a', 'b'])
    path = tmp_path / 'stores' / f'{store_building.store_fingerprint(source, TOKENIZER)}.lock'
    path.parent.mkdir()
    with futures.ThreadPoolExecutor(1) as pool, open(path, 'w') as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        building = pool.submit(build, source, tmp_path)
        time.sleep(0.5)
        assert not building.done() and os.listdir(path.parent) == [path.name]
        fcntl.flock(file, fcntl.LOCK_UN)
        assert len(building.result().documents) == 2


def test_held_out_documents_share_no_text(tmp_path):
    texts = _random_texts(300)
    store = build(texts + texts[::-1], tmp_path)
    train, held_out = store.split_held_out(0.2)
    assert 30 < len(held_out) < 90
    assert sorted([*train, *held_out]) == store.documents.tolist()

    def content(documents):
        return {str(_sentences(store, d)) for d in documents}

    assert not content(train) & content(held_out)
    # Other documents around them, in another order, do not change a document's side.
    other = build(_random_texts(100, seed=1) + texts[::-1], tmp_path / 'other')
    other_held = {str(_sentences(other, d)) for d in other.split_held_out(0.2)[1]}
    assert content(held_out) <= other_held


@pytest.mark.parametrize(('fraction', 'num_training', 'num_held_out'), [
    (0.0, 8, 0), (1e-9, 6, 2), (1.0, 2, 6)])
def test_held_out_bounds(tmp_path, fraction, num_training, num_held_out):
    store = build([letter * 5 for letter in LETTERS[:8]], tmp_path)
    training, held_out = store.split_held_out(fraction)
    assert len(training) == num_training
    assert len(held_out) == num_held_out


def test_too_few_documents_to_hold_some_out(tmp_path):
    store = build(['a', 'b', 'c'], tmp_path)
    with refused('3 different documents'):
        store.split_held_out(0.1)
