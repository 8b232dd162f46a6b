"""Documents of a store that are left out by what was noted of them, however it was built."""

import numpy as np
import pytest

from bert_jax.config.filtering import FilterOptions
from bert_jax.corpus import near_duplicates, store_building, store_parts, tokenize
from bert_jax.corpus.document_facts import document_facts
from bert_jax.corpus.sources import open_source
from bert_jax.corpus.store_parts import Notes
from bert_jax.text.vocab import SPECIAL_TOKENS, Vocab
from bert_jax.text.wordpiece import WordPieceTokenizer
from tests.corpus.store_worker import work_without_tensorflow
from tests.corpus.test_store_building import build, content, kill_at, small_parts, whole  # noqa: F401
from tests.refusals import refused

NUM_DOCUMENTS = 24
NEAR_COPY, EXACT_COPY = NUM_DOCUMENTS, NUM_DOCUMENTS + 1
HOLDS, HOLDS_TOO, COPY_OF_HOLDER = NUM_DOCUMENTS + 2, NUM_DOCUMENTS + 3, NUM_DOCUMENTS + 4
NEAR = {NEAR_COPY}
EXACT = {EXACT_COPY, COPY_OF_HOLDER}
CONTAMINATED = {HOLDS, HOLDS_TOO}  # but for the exact copy
WORDS = [f'{first}{second}' for first in 'abcdefghij' for second in 'klmnopqrst']
TOKENIZER = WordPieceTokenizer(Vocab.from_tokens([*SPECIAL_TOKENS, *WORDS]), lowercase=True)


def _document(seed, num_words=200):
    return ' '.join(np.random.default_rng(seed).choice(WORDS, num_words))


EVALUATION_TEXTS = [_document(seed, 20) for seed in (1000, 1001, 1002)]


def _texts():
    """Different documents, and behind them copies and some that hold evaluation texts."""
    texts = [_document(seed) for seed in range(NUM_DOCUMENTS)]
    holder = f'{_document(100)} {EVALUATION_TEXTS[0]} {_document(101)}'
    return [
        *texts, f'{texts[3]} {WORDS[0]}', texts[5], holder,
        f'{EVALUATION_TEXTS[0]} {_document(102)} {EVALUATION_TEXTS[2]}', holder]


@pytest.fixture(autouse=True)
def _without_tensorflow(monkeypatch):
    """Starts quicker, and gives the same ids."""
    monkeypatch.setattr(tokenize, 'has_tensorflow', lambda: False)


@pytest.fixture(name='evaluation_file')
def _evaluation_file(tmp_path):
    path = tmp_path / 'evaluation.txt'
    path.write_text('\n'.join(EVALUATION_TEXTS))
    return str(path)


@pytest.fixture(name='all_facts')
def _all_facts(evaluation_file):
    return document_facts(FilterOptions(0.8, evaluation_file, True), TOKENIZER)


def _left_out(store):
    used = whole(store).documents.tolist()
    return set(range(store.manifest['num_documents'])) - set(used)


@pytest.mark.parametrize(('threshold', 'is_looking', 'is_removing', 'expected'), [
    pytest.param(0.0, False, False, EXACT, id='off'),
    pytest.param(0.8, False, False, EXACT | NEAR, id='near-duplicates'),
    pytest.param(0.0, True, False, EXACT, id='contamination is counted'),
    pytest.param(0.0, True, True, EXACT | CONTAMINATED, id='contamination is removed'),
    pytest.param(0.8, True, True, EXACT | NEAR | CONTAMINATED, id='all'),
])
@pytest.mark.usefixtures('small_parts')
def test_which_documents_are_left_out(
        tmp_path, evaluation_file, threshold, is_looking, is_removing, expected):
    options = FilterOptions(threshold, evaluation_file if is_looking else '', is_removing)
    facts = document_facts(options, TOKENIZER)
    store = build(_texts(), tmp_path, TOKENIZER, facts=facts)
    manifest = store.manifest
    assert len(manifest['parts']) > 5
    assert _left_out(store) == expected
    assert manifest['num_duplicates'] == 2
    assert manifest.get('num_near_duplicates') == (1 if threshold else None)
    assert manifest.get('num_contaminated') == (2 if is_looking else None)
    assert manifest.get('leaves_out_contaminated') == (is_removing if is_looking else None)
    found = {'name': evaluation_file, 'num_texts': 3, 'num_found': 2, 'num_documents': 3}
    assert manifest.get('contamination') == ([found] if is_looking else None)


def test_documents_are_counted_for_one_reason_only(tmp_path, evaluation_file):
    facts = document_facts(FilterOptions(0.8, evaluation_file, True), TOKENIZER)
    long = ' '.join([_document(0), EVALUATION_TEXTS[0]])
    store = build([long, long, f'{long} ak', 'ak'], tmp_path, TOKENIZER, facts=facts)
    counts = [store.manifest[f'num_{reason}'] for reason in (
        'duplicates', 'near_duplicates', 'contaminated')]
    assert counts == [1, 1, 1]
    assert whole(store).documents.tolist() == [3]


def test_parts_change_nothing_of_what_is_left_out(tmp_path, monkeypatch, all_facts):
    stores = [build(_texts(), tmp_path / 'one', TOKENIZER, facts=all_facts)]
    monkeypatch.setattr(store_building, '_SHARE_BYTES', 1)
    monkeypatch.setattr(store_building, '_PART_BYTES', 1)
    monkeypatch.setattr(store_parts, 'BLOCK_TOKENS', 20)
    stores.append(build(_texts(), tmp_path / 'more', TOKENIZER, facts=all_facts))
    assert [len(store.manifest['parts']) for store in stores] == [1, 2]
    assert _left_out(stores[0]) == _left_out(stores[1]) != EXACT
    assert stores[0].manifest['contamination'] == stores[1].manifest['contamination']


@pytest.mark.slow
def test_bytes_do_not_depend_on_processes(tmp_path, monkeypatch, all_facts):
    monkeypatch.setattr(store_building, '_work', work_without_tensorflow)
    monkeypatch.setattr(store_building, '_SHARE_BYTES', 1)
    texts = _texts()
    for number, begin in enumerate((0, 10, 20)):
        (tmp_path / f'{number}.text').write_text('\n\n'.join(texts[begin:][:10]))
    source = open_source(f'{tmp_path}/*.text')
    alone = build(source, tmp_path / 'alone', TOKENIZER, facts=all_facts)
    together = build(
        source, tmp_path / 'together', TOKENIZER, facts=all_facts, num_processes=2)
    assert content(together.path) == content(alone.path)
    assert _left_out(alone) == EXACT | NEAR | CONTAMINATED
    assert len(alone.manifest['parts']) == 3


@pytest.mark.parametrize('part', [0, 3, 7])
@pytest.mark.usefixtures('small_parts')
def test_a_killed_build_resumes(tmp_path, kill_at, evaluation_file, all_facts, part):  # noqa: F811
    expected = content(build(_texts(), tmp_path / 'whole', TOKENIZER, facts=all_facts).path)
    kill_at(part)
    with pytest.raises(KeyError):
        build(_texts(), tmp_path, TOKENIZER, facts=all_facts)
    again = document_facts(FilterOptions(0.8, evaluation_file, True), TOKENIZER)
    assert content(build(_texts(), tmp_path, TOKENIZER, facts=again).path) == expected


@pytest.mark.usefixtures('small_parts')
def test_a_finished_store_is_opened_without_reading_the_evaluation_files(
        tmp_path, monkeypatch, evaluation_file, all_facts):
    store = build(_texts(), tmp_path, TOKENIZER, facts=all_facts)
    monkeypatch.delattr('bert_jax.corpus.contamination.Evaluated.open')
    again = document_facts(FilterOptions(0.8, evaluation_file, True), TOKENIZER)
    assert build(_texts(), tmp_path, TOKENIZER, facts=again).path == store.path


def test_a_share_without_text_has_notes_too(tmp_path, monkeypatch, all_facts):
    monkeypatch.setattr(store_building, '_SHARE_BYTES', 1)
    store = build([' ', ' ', *_texts()[:2]], tmp_path, TOKENIZER, facts=all_facts)
    assert len(store.manifest['parts']) == 2
    assert whole(store).documents.tolist() == [0, 1]


def _fingerprint(*fields):
    facts = document_facts(FilterOptions(*fields), TOKENIZER)
    source = open_source(__file__)
    return store_building.store_fingerprint(source, TOKENIZER, facts)


def test_the_name_of_a_store_follows_what_is_left_out(tmp_path, monkeypatch, evaluation_file):
    other_file = tmp_path / 'other.txt'
    other_file.write_text(EVALUATION_TEXTS[0])
    different = [
        (0.0, '', False), (0.8, '', False), (0.9, '', False), (0.0, evaluation_file, False),
        (0.0, evaluation_file, True), (0.8, evaluation_file, True), (0.0, str(other_file), True)]
    names = [_fingerprint(*fields) for fields in different]
    assert len(set(names)) == len(names)
    source = open_source(__file__)
    assert names[0] == store_building.store_fingerprint(source, TOKENIZER)
    other_file.write_text(EVALUATION_TEXTS[1])
    monkeypatch.setattr(near_duplicates, 'VERSION', 99)
    later = [_fingerprint(*fields) for fields in different]
    is_same = [name == before for name, before in zip(later, names, strict=True)]
    assert is_same == [True, False, False, True, True, False, False]


def test_evaluation_files_that_change_during_a_build_are_refused(
        tmp_path, monkeypatch, evaluation_file, all_facts):
    write_notes = store_building.write_notes

    def write(*arguments):
        write_notes(*arguments)
        with open(evaluation_file, 'a') as file:
            file.write('\nmore')

    monkeypatch.setattr(store_building, 'write_notes', write)
    with refused('changed while it was read: start again'):
        build(_texts(), tmp_path, TOKENIZER, facts=all_facts)


@pytest.mark.parametrize('rows', [slice(0, 0), slice(0, 7), slice(2, 5), slice(7, 7)])
def test_a_stretch_of_a_note(tmp_path, rows):
    values = np.arange(7, dtype=np.uint64) << np.uint64(40)
    path = tmp_path / 'a.npz'
    store_parts.write_notes(path, {'before': np.zeros(3), 'values': values, 'after': np.zeros(9)})
    assert Notes(path, path).read_rows('values', rows).tolist() == values[rows].tolist()


def test_a_damaged_note_is_named(tmp_path):
    path = tmp_path / 'a.npz'
    store_parts.write_notes(path, {'values': np.zeros(7)})
    with refused(f'{path} is damaged'):
        Notes(path, path).read_rows('others', slice(0, 7))
    whole_file = path.read_bytes()
    path.write_bytes(whole_file.replace(b'NUMPY', b'NOMPY'))
    with refused(f'{path} is damaged'):
        Notes(path, path).read_rows('values', slice(0, 7))
