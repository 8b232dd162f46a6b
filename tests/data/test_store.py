"""Token store: what is in it, that it survives being killed, and that held-out text is held out."""

import errno
import fcntl
import itertools
import json
import mmap
import os
import pickle
import resource
import subprocess
import sys
import time
from concurrent import futures

import numpy as np
import pytest

pytest.importorskip('tensorflow_text')

from bert_jax.data import store, store_build, store_worker
from bert_jax.data.corpus import Document, Unit, open_source
from bert_jax.data.processes import process_pool
from bert_jax.data.store import TokenStore
from bert_jax.data.store_build import build_store
from bert_jax.runtime.errors import InputError
from bert_jax.text.vocab import SPECIAL_TOKENS, Vocab
from bert_jax.text.wordpiece import WordPieceTokenizer

pytestmark = pytest.mark.slow
LETTERS = 'abcdefghijklmnopqrstuvwxyz'


def _tokenizer(*more):
    pieces = [*SPECIAL_TOKENS, *LETTERS, *('##' + c for c in LETTERS), '.', *more]
    return WordPieceTokenizer(Vocab.from_tokens(pieces), True)


class _Source:
    """Documents in memory, two units; may fail before some document, as a killed build would."""

    spec = 'memory'
    takes_all_cores = False

    def __init__(self, documents, fail_at=None):
        half = len(documents) // 2
        self._parts = {'a': documents[:half], 'b': documents[half:]}
        self._fail_at = fail_at
        self._read = itertools.count()

    def fingerprint(self):
        return 'memory'

    def units(self):
        return [Unit('a', 0), Unit('b', 1000)]

    def read(self, unit):
        for text in self._parts[unit.name]:
            if next(self._read) == self._fail_at:
                raise KeyError('killed')
            yield Document(text.encode(), True)


def _random_texts(n, seed=0):
    rng = np.random.default_rng(seed)
    return [
        '\n'.join(
            ' '.join(''.join(rng.choice(list(LETTERS), 3)) for _ in range(rng.integers(1, 6)))
            for _ in range(rng.integers(1, 5))
        )
        for _ in range(n)
    ]


def _sentences(store, document):
    start, end = store.document_offsets[document:document + 2]
    bounds = store.sentence_offsets[start:end + 1]
    return [store.tokens[a:b].tolist() for a, b in itertools.pairwise(bounds)]


def _bytes(store):
    return {path.name: path.read_bytes() for path in store.path.glob('*.bin')}


def test_holds_what_the_tokenizer_says(tmp_path):
    tokenizer = _tokenizer()
    texts = ['Ab cd. Ef.\n\n  \nGh', 'x', ' \u200b \n', 'Ab cd. Ef.\nGh', '…\nz']
    store = build_store(_Source(texts), tokenizer, tmp_path, progress=False)
    expected = [
        [tokenizer.encode(line) for line in lines]
        for lines in (['ab cd.', 'ef.', 'gh'], ['x'], ['ab cd.', 'ef.', 'gh'], ['…', 'z'])
    ]
    assert [_sentences(store, d) for d in range(4)] == expected
    assert store.documents.tolist() == [0, 1, 3]  # the third repeats the first
    assert store.tokens.dtype == np.uint16
    assert store.manifest['num_documents'] == 4
    assert store.manifest['num_duplicates'] == 1
    assert store.manifest['vocab_size'] == len(tokenizer.vocab)
    names = {store.fingerprint, store.fingerprint + '.lock'}
    assert set(os.listdir(tmp_path / 'stores')) == names


def test_lines_are_not_split(tmp_path):
    path = tmp_path / 'a.txt'
    path.write_text('Ab. Cd.\nEf.\n\nGh.\n')
    tokenizer = _tokenizer()
    store = build_store(open_source(f'lines:{path}'), tokenizer, tmp_path, progress=False)
    assert _sentences(store, 0) == [tokenizer.encode('ab. cd.'), tokenizer.encode('ef.')]
    split = build_store(open_source(str(path)), tokenizer, tmp_path, progress=False)
    assert len(_sentences(split, 0)) == 3
    assert split.fingerprint != store.fingerprint


def test_wide_vocabulary(tmp_path):
    tokenizer = _tokenizer(*(f'[unused{i}]' for i in range(70_000)), 'last')
    store = build_store(_Source(['a last', 'b']), tokenizer, tmp_path, progress=False)
    assert store.tokens.dtype == np.uint32
    assert store.tokens[1] == len(tokenizer.vocab) - 1 > 65_535


@pytest.mark.parametrize('fail_at', [3, 39])
def test_killed_build_goes_on(tmp_path, monkeypatch, fail_at):
    monkeypatch.setattr(store_worker, '_BATCH_DOCUMENTS', 4)
    monkeypatch.setattr(store_worker, '_JOURNAL_SECONDS', 0.0)
    texts, tokenizer = _random_texts(40), _tokenizer()
    whole = build_store(_Source(texts), tokenizer, tmp_path / 'whole', progress=False)
    with pytest.raises(KeyError):
        build_store(_Source(texts, fail_at), tokenizer, tmp_path, progress=False)
    assert not (tmp_path / 'stores' / whole.fingerprint).exists()
    building = tmp_path / 'stores' / f'{whole.fingerprint}.building'
    part = building / 'units-0-2'
    if fail_at > 8:
        assert json.loads((part / 'journal.json').read_text())['documents'] > 0
        with open(part / 'tokens.bin', 'ab') as file:  # written, but not in the journal
            file.write(b'junk')
    resumed = build_store(_Source(texts), tokenizer, tmp_path, progress=False)
    assert _bytes(resumed) == _bytes(whole)


def test_bytes_do_not_depend_on_processes_and_pieces(tmp_path, monkeypatch):
    files = [tmp_path / f'{i}.txt' for i in range(6)]
    for i, path in enumerate(files):
        path.write_text('\n\n'.join(_random_texts(30, seed=i)))
    source, tokenizer = open_source(f'{tmp_path}/*.txt'), _tokenizer()
    whole = build_store(source, tokenizer, tmp_path / 'whole', progress=False)
    monkeypatch.setattr(store_build, '_PART_BYTES', 1)
    parts = build_store(source, tokenizer, tmp_path / 'parts', progress=False)
    assert _bytes(parts) == _bytes(whole)
    monkeypatch.setattr(store, 'PIECE_BYTES', mmap.PAGESIZE)
    workers = build_store(source, tokenizer, tmp_path / 'workers', False, num_processes=2)
    for name in ('tokens', 'sentence_offsets', 'document_offsets', 'document_hashes', 'documents'):
        assert getattr(workers, name).tobytes() == getattr(whole, name).tobytes()
    sizes = {path.name: path.stat().length for path in workers.path.glob('*.bin')}
    assert sizes['tokens-00000.bin'] == mmap.PAGESIZE and 'tokens-00001.bin' in sizes
    assert max(sizes.values()) == mmap.PAGESIZE
    joined = b''.join((workers.path / name).read_bytes() for name in sorted(sizes)
                      if name.startswith('tokens'))
    assert joined == _bytes(whole)['tokens-00000.bin']


class _FailsThere:
    """Cannot be read by the process that it is sent to."""

    def __reduce__(self):
        return open, ('/no such file',)


def test_faults_of_a_process_come_through(tmp_path):
    with process_pool(1) as pool, pytest.raises(FileNotFoundError, match='/no such file'):
        job = pickle.dumps((_FailsThere(), None, 1))
        pool.submit(store_build.build_part, job, store.Part(0, 1, str(tmp_path / 'p'))).result()


def test_resumed_build_skips_what_is_done(tmp_path, monkeypatch):
    monkeypatch.setattr(store_worker, '_BATCH_DOCUMENTS', 1)
    monkeypatch.setattr(store_worker, '_JOURNAL_SECONDS', 0.0)
    texts, tokenizer = _random_texts(40), _tokenizer()
    with pytest.raises(KeyError):
        build_store(_Source(texts, 39), tokenizer, tmp_path, progress=False)
    other = texts[:20] + ['never read'] * 20  # the second unit differs, and most of it is done
    store = build_store(_Source(other), tokenizer, tmp_path, progress=False)
    assert _sentences(store, 20) == [tokenizer.encode(line) for line in texts[20].split('\n')]


def test_lost_file_ends_are_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(store_worker, '_BATCH_DOCUMENTS', 4)
    monkeypatch.setattr(store_worker, '_JOURNAL_SECONDS', 0.0)
    texts, tokenizer = _random_texts(40), _tokenizer()
    with pytest.raises(KeyError):
        build_store(_Source(texts, 30), tokenizer, tmp_path, progress=False)
    [part] = (tmp_path / 'stores').glob('*.building/units-0-2')
    os.truncate(part / 'tokens.bin', 10)
    store = build_store(_Source(texts), tokenizer, tmp_path, progress=False)
    whole = build_store(_Source(texts), tokenizer, tmp_path / 'whole', progress=False)
    assert _bytes(store) == _bytes(whole)


def test_opens_at_once(tmp_path):
    texts, tokenizer = _random_texts(10), _tokenizer()
    first = build_store(_Source(texts), tokenizer, tmp_path, progress=False)
    again = build_store(_Source(texts, fail_at=0), tokenizer, tmp_path, progress=False)
    assert _bytes(first) == _bytes(again)
    other = build_store(_Source(texts), _tokenizer('abc'), tmp_path, progress=False)
    assert other.fingerprint != first.fingerprint


def _flip_a_byte(path):
    data = bytearray((path / 'tokens-00000.bin').read_bytes())
    data[2] ^= 1
    (path / 'tokens-00000.bin').write_bytes(data)


@pytest.mark.parametrize(('damage', 'word'), [
    (lambda path: (path / 'manifest.json').unlink(), 'not a finished token store'),
    (lambda path: (path / 'manifest.json').write_text('{'), 'damaged'),
    (lambda path: os.truncate(path / 'tokens-00000.bin', 10), 'tokens-00000.bin has 10 bytes'),
    (lambda path: (path / 'documents-00000.bin').unlink(), 'missing'),
    (_flip_a_byte, 'tokens-00000.bin is damaged'),
    (lambda path: (path / 'manifest.json').write_text('{"format_version": 0}'), 'version 0'),
])
def test_damaged_store_is_not_opened(tmp_path, damage, word):
    tokenizer = _tokenizer()
    store = build_store(_Source(['a b', 'c']), tokenizer, tmp_path, progress=False)
    damage(store.path)
    for open_it in (lambda: TokenStore.open(store.path),
                    lambda: build_store(_Source(['a b', 'c']), tokenizer, tmp_path)):
        with pytest.raises(InputError, match=word) as error:
            open_it()
        assert str(store.path) in str(error.value) and '\n' not in str(error.value)


def test_faults_of_the_source_come_through(tmp_path):
    path = tmp_path / 'a.txt'
    path.write_bytes(b'Fine.\n\nNot \xff fine.\n')
    with pytest.raises(InputError, match='byte 11 is 0xff'):
        build_store(open_source(str(path)), _tokenizer(), tmp_path, progress=False)
    with pytest.raises(InputError, match='holds no text'):
        build_store(_Source([' ', '\n']), _tokenizer(), tmp_path, progress=False)


def test_source_that_changes_meanwhile(tmp_path):
    path = tmp_path / 'a.txt'
    path.write_text('Fine.\n')
    source = open_source(str(path))
    read = source.read

    def read_and_change(unit):
        yield from read(unit)
        path.write_text('Fine. More.\n')

    source.read = read_and_change
    with pytest.raises(InputError, match='changed while'):
        build_store(source, _tokenizer(), tmp_path, progress=False)
    source.read = read
    assert build_store(source, _tokenizer(), tmp_path, progress=False).manifest['num_tokens'] > 4


def test_one_builds_and_the_other_waits(tmp_path):
    source, tokenizer = _Source(['a', 'b']), _tokenizer()
    path = tmp_path / 'stores' / f'{store_build.store_fingerprint(source, tokenizer)}.lock'
    path.parent.mkdir()
    with futures.ThreadPoolExecutor(1) as pool, open(path, 'w') as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        building = pool.submit(build_store, source, tokenizer, tmp_path, False)
        time.sleep(0.5)
        assert not building.done() and os.listdir(path.parent) == [path.name]
        fcntl.flock(file, fcntl.LOCK_UN)
        assert len(building.result().documents) == 2


def test_full_disk(tmp_path, monkeypatch):
    texts, tokenizer = _random_texts(10), _tokenizer()

    def fsync(_):
        raise OSError(errno.ENOSPC, 'No space left on device')

    with monkeypatch.context() as patch:
        patch.setattr(os, 'fsync', fsync)
        with pytest.raises(InputError, match='no space left') as error:
            build_store(_Source(texts), tokenizer, tmp_path, progress=False)
    assert str(tmp_path) in str(error.value)
    build_store(_Source(texts), tokenizer, tmp_path, progress=False)


def test_no_directory_to_write_to(tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(InputError, match='data.dir'):
        build_store(_Source(['a']), _tokenizer(), tmp_path / 'file', progress=False)


def test_held_out_documents_share_no_text(tmp_path):
    texts = _random_texts(300)
    tokenizer = _tokenizer()
    doubled = texts + texts[::-1]
    store = build_store(_Source(doubled), tokenizer, tmp_path, progress=False)
    train, held_out = store.split_held_out(0.2)
    assert 30 < len(held_out) < 90
    assert sorted([*train, *held_out]) == store.documents.tolist()

    def content(documents):
        return {str(_sentences(store, d)) for d in documents}

    assert not content(train) & content(held_out)
    # Other documents around them, in another order, do not change a document's side.
    shuffled = _random_texts(100, seed=1) + texts[::-1]
    other = build_store(_Source(shuffled), tokenizer, tmp_path / 'other', progress=False)
    other_held = {str(_sentences(other, d)) for d in other.split_held_out(0.2)[1]}
    assert content(held_out) <= other_held


@pytest.mark.parametrize(('fraction', 'sizes'), [(0.0, (8, 0)), (1e-9, (6, 2)), (1.0, (2, 6))])
def test_held_out_bounds(tmp_path, fraction, sizes):
    texts = [letter * 5 for letter in LETTERS[:8]]
    store = build_store(_Source(texts), _tokenizer(), tmp_path, progress=False)
    assert tuple(map(len, store.split_held_out(fraction))) == sizes


def test_too_few_documents_to_hold_out(tmp_path):
    store = build_store(_Source(['a', 'b', 'c']), _tokenizer(), tmp_path, progress=False)
    with pytest.raises(InputError, match='3 different documents'):
        store.split_held_out(0.1)


def test_opening_needs_no_tensorflow():
    code = 'import sys, bert_jax.data.store; assert "tensorflow" not in sys.modules'
    subprocess.run([sys.executable, '-c', code], check=True)


@pytest.mark.skipif(sys.platform != 'linux', reason='malloc of glibc')
def test_large_buffers_keep_their_pages(tmp_path):
    # TensorFlow has ways of reading from Python that change malloc for the whole process, such that
    # every buffer of a later training is mapped anew.
    build_store(_Source(['a b', 'c']), _tokenizer(), tmp_path, progress=False)

    def page_faults():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(8):
            b'x' * (24 << 20)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    page_faults()  # malloc learns that such sizes are wanted
    page_faults()
    assert page_faults() < 1000  # of 49,152 pages


def test_progress_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(time, 'monotonic', itertools.count(0, 20).__next__)
    monkeypatch.setattr(store_worker, '_BATCH_DOCUMENTS', 10)
    build_store(_Source(_random_texts(40)), _tokenizer(), tmp_path)
    err = capsys.readouterr().err
    assert '% of' in err and 'MB/s' in err and '40 documents' in err


def test_wikipedia(tmp_path, shared_data):
    tokenizer = WordPieceTokenizer.from_file(
        str(shared_data / 'vocab' / 'bert-base-uncased-vocab.txt'), True)
    source = open_source(str(shared_data / 'wikipedia_en_2015' / 'wiki-09.txt.gz'))
    store = build_store(source, tokenizer, tmp_path, progress=False)
    assert store.manifest['num_tokens'] > 3_000_000
    unit = source.units()[0]
    first = next(source.read(unit)).text.decode().split('\n')[0]
    ids = tokenizer.encode(first)
    assert store.tokens[:len(ids)].tolist() == ids
