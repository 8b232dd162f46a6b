"""From sources to rows: a tiny corpus end to end, and what is refused."""

import contextlib
import dataclasses
import types

import numpy as np
import pytest

pytest.importorskip('tensorflow_text')

import tensorflow as tf

from bert_jax.completion import complete
from bert_jax.config import default_config
from bert_jax.corpus import store_parts, tokenize
from bert_jax.rows.examples import pretrain_spec
from bert_jax.rows.masking import MaskingRates
from bert_jax.runtime.errors import InputError
from bert_jax.tasks import pretrain, pretrain_data
from bert_jax.tasks.pretrain_data import SyntheticData
from bert_jax.text.kinds import load_tokenizer
from bert_jax.text.letters import letter_tokens
from bert_jax.text.switches import read_switches
from tests.corpus.test_records import make_example
from tests.opening import text_data
from tests.refusals import refused
from tests.rows.stores import assert_same, check_batch, restored

S, P = 32, 5
SLOTS = 'config.data.max_predictions_per_seq'
GRAM = 10  # tokens; random texts share no run of this length by chance


def _text(letters, num_documents, seed):
    rng = np.random.default_rng(seed)
    letters = np.array(list(letters))

    def sentence():
        words = [''.join(rng.choice(letters, rng.integers(2, 9))) for _ in range(8)]
        return ' '.join(words).capitalize() + '.'

    documents = []
    for _ in range(num_documents):
        num_sentences = rng.integers(2, 7)
        documents.append(' '.join(sentence() for _ in range(num_sentences)))
    return '\n\n'.join(documents)


def _write_records(path, values):
    """Records that have one value each, in all their features."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for value in values:
            same = types.SimpleNamespace(
                integers=lambda low, high, size, value=value: np.full(size, value))
            writer.write(make_example(same, S, P).SerializeToString())


@pytest.fixture(scope='module', autouse=True)
def _plain_text():
    """Text without TensorFlow: the same ids, without a graph for each tokenizer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenize, 'has_tensorflow', lambda: False)
        yield


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp('data')
    (path / 'a.txt').write_text(_text('abcdefghijklm', 80, 0))
    (path / 'b.txt').write_text(_text('nopqrstuvwxyz', 60, 1))
    _write_records(path / 'c.tfrecord', range(10))
    return path


def _open(folder, *sources, seed=0, eval_source='', **fields):
    """The text of sources, each a file in the folder or (file, weight), with fields of `data`."""
    weighted = []
    for source in sources:
        name, weight = source if isinstance(source, tuple) else (source, 1.0)
        weighted.append((f'{folder}/{name}', weight))
    config = default_config('pretrain')
    config.seed = seed
    config.model.max_position_embeddings = 64
    config.model.first_position = 0
    config.data.update({
        'source': weighted, 'held_out': 0.2, 'vocab_size': 300, 'dir': str(folder / 'cache'),
        'lowercase': False, **fields})
    if eval_source:
        config.data.eval_source = f'{folder}/{eval_source}'
    return text_data(config)


@pytest.fixture(scope='module')
def vocab_file(folder):
    return str(_open(folder, 'a.txt').vocab_path)


def _segments(batch):
    """The tokens of each segment, with labels put back, without special tokens."""
    for row, segments, mask in zip(
            restored(batch), batch['segment_ids'], batch['sequence_ids'], strict=True):
        length = int(mask.sum())
        second = int(segments[:length].argmax()) or length
        yield row[1:second - 1].tolist()
        if second < length:
            yield row[second:length - 1].tolist()


def _grams(sequences):
    grams = set()
    for tokens in sequences:
        for begin in range(len(tokens) - GRAM + 1):
            grams.add(tuple(tokens[begin : begin + GRAM]))
    return grams


def _corpus_grams(data, path):
    """The n-grams of each document."""
    tokenizer = load_tokenizer(data.vocab_path, True)
    documents = path.read_text().split('\n\n')
    return [_grams([tokenizer.encode(document)]) for document in documents]


def _frozen(examples):
    return examples.rows(np.arange(examples.num_frozen), frozen=True)


def _seen(data, epochs):
    """(n-grams of the training rows of the first `epochs` epochs, n-grams of the held-out rows)."""
    training = data.training(S, P)
    rows = training.rows(np.arange(epochs * training.num_examples))
    return _grams(_segments(rows)), _grams(_segments(_frozen(data.held_out(S, P))))


def test_a_document_is_in_training_rows_or_in_held_out_rows(folder):
    data = _open(folder, 'a.txt')
    assert 250 < data.vocab_size <= 300
    assert data.vocab_size == len(load_tokenizer(data.vocab_path, True).vocab)
    seen, tested = _seen(data, 4)
    assert seen
    assert tested
    assert not seen & tested
    num_tested = 0
    for grams in _corpus_grams(data, folder / 'a.txt'):
        in_training = bool(grams & seen)
        in_test = bool(grams & tested)
        assert in_training != in_test
        num_tested += in_test
    assert 6 <= num_tested <= 28  # about a fifth


def test_runs_of_other_seeds_are_judged_on_the_same_rows(folder):
    data = _open(folder, 'a.txt')
    other = _open(folder, 'a.txt', seed=9)
    assert_same(_frozen(other.held_out(S, P)), _frozen(data.held_out(S, P)))
    rows = data.training(S, P).rows(np.arange(50))
    others = other.training(S, P).rows(np.arange(50))
    assert not np.array_equal(rows['input_ids'], others['input_ids'])


def test_the_same_documents_in_two_sources_do_not_leak(folder, vocab_file):
    text = (folder / 'a.txt').read_text()
    (folder / 'again.txt').write_text(_text('abcdefghijklm', 50, 7) + '\n\n' + text)
    seen, tested = _seen(_open(folder, 'a.txt', 'again.txt', vocab_file=vocab_file), 2)
    assert not seen & tested


def test_with_an_eval_source_all_of_the_source_is_trained_on(folder):
    vocab_file = str(_open(folder, ('a.txt', 1.0), ('b.txt', 1.0)).vocab_path)
    data = _open(folder, 'a.txt', eval_source='b.txt', vocab_file=vocab_file)
    seen, tested = _seen(data, 3)
    assert all(grams & seen for grams in _corpus_grams(data, folder / 'a.txt'))  # all of it
    assert not tested & seen
    assert tested & set().union(*_corpus_grams(data, folder / 'b.txt'))


@pytest.mark.parametrize('which', [slice(None), slice(1), slice(3, 9), slice(0)])
def test_evaluated_documents_that_are_trained_on_are_counted(folder, vocab_file, which, capsys):
    shared = (folder / 'a.txt').read_text().split('\n\n')[which]
    new = _text('abcdefghijklm', 5, 9).split('\n\n')
    (folder / 'judged.txt').write_text('\n\n'.join([*new, *shared]))
    _open(folder, 'a.txt', eval_source='judged.txt', vocab_file=vocab_file)
    warned = [line for line in capsys.readouterr().out.splitlines() if 'trained on' in line]
    if not shared:
        assert not warned
        return
    [line] = warned
    assert f'warning: {len(shared)} of the {len(shared) + 5} documents of config.data.eval' in line
    assert f'are in {folder}/a.txt ({len(shared)}) too, and are trained on' in line
    # A source of many blocks, of which only the hashes are read.
    store = _open(folder, 'a.txt', vocab_file=vocab_file).texts[f'{folder}/a.txt'].store
    window = store.window(np.arange(len(store.index)))
    expected = np.unique(window.document_hashes[window.documents])
    np.testing.assert_array_equal(store.used_hashes(), expected)


def test_evaluated_records_that_are_trained_on_are_counted(folder, vocab_file, capsys):
    _write_records(folder / 'judged.tfrecord', [3, 77, 4, 78])
    _open(folder, 'c.tfrecord', 'a.txt', eval_source='judged.tfrecord', vocab_file=vocab_file)
    said = capsys.readouterr().out
    assert 'warning: 2 of the 4 records of config.data.eval_source=' in said
    assert f'are in {folder}/c.tfrecord (2) too' in said


def test_added_words_make_another_store(folder):
    plain = _open(folder, 'a.txt')
    word = (folder / 'a.txt').read_text().split()[1]
    (folder / 'words.txt').write_text(f'{word}\nzzz\n')
    data = _open(folder, 'a.txt', add_tokens=str(folder / 'words.txt'))
    vocab = load_tokenizer(data.vocab_path, True).vocab
    assert data.vocab_size == len(vocab) == plain.vocab_size  # there were [unused] slots
    assert {word, 'zzz'} <= set(vocab.tokens)
    assert word not in plain.vocab_path.read_text().split()
    (text,) = data.texts.values()
    assert vocab.index[word] in text.store.first_tokens(1000)


WORD = 'कुत्ता'


@pytest.fixture(scope='module')
def hindi(folder):
    """The folder, with `hindi.txt`."""
    words = (WORD, 'किताब', 'पढ़ी', 'शाम', 'मौसम', 'दोस्त')
    rng = np.random.default_rng(0)
    documents = []
    for _ in range(40):
        sentences = [' '.join(rng.choice(words, 6)) + '।' for _ in range(4)]
        documents.append(' '.join(sentences))
    (folder / 'hindi.txt').write_text('\n\n'.join(documents))
    return folder


@pytest.mark.parametrize(('fields', 'tokenized', 'warned'), [
    pytest.param({}, 'कतता', True, id='stripped'),
    pytest.param({'strip_accents': False}, WORD, False, id='kept'),
])
def test_accents_are_kept_where_asked(hindi, capsys, fields, tokenized, warned):
    data = _open(hindi, 'hindi.txt', dir=str(hindi / f'cache-{warned}'), lowercase=True, **fields)
    said = capsys.readouterr().out
    assert ('of the characters' in said) == warned
    assert ('% of the characters of the text are vowels' in said) == warned
    tokenizer = load_tokenizer(data.vocab_path, True)  # which reads the folder's switches
    assert ''.join(tokenizer.tokenize(WORD)).replace('##', '') == tokenized
    assert data.vocab_size == len(tokenizer.vocab)


def test_the_switch_of_accents_stands_beside_the_vocabulary_and_the_field_overrides_it(hindi):
    kept = _open(hindi, 'hindi.txt', lowercase=True, strip_accents=False)
    named = str(kept.vocab_path)
    again = _open(hindi, 'hindi.txt', lowercase=True, vocab_file=named)
    assert again.texts.keys() == kept.texts.keys()
    assert again.identity() == kept.identity()
    other = _open(hindi, 'hindi.txt', lowercase=True, vocab_file=named, strip_accents=True)
    assert read_switches(other.vocab_path).strip_accents
    assert other.identity() != kept.identity()


def test_accents_of_a_tokenizer_with_rules_of_its_own_are_not_switched(hindi):
    vocab_file = hindi / 'x.letters'
    vocab_file.write_text('\n'.join(letter_tokens()))
    with refused('config.data.strip_accents=True', 'x.letters', 'leave it empty'):
        _open(hindi, 'hindi.txt', vocab_file=str(vocab_file), strip_accents=True)


def test_mix_power_multiplies_weights_by_a_power_of_the_sizes(folder):
    data = _open(folder, 'a.txt', ('b.txt', 3.0), mix_power=0.7)
    of_a, of_b = data.texts
    size_a, size_b = (text.store.num_tokens ** 0.7 for text in data.texts.values())

    def expected(weight):
        return weight * size_b / (size_a + weight * size_b)

    def share_of_b(**phase):
        """The share of rows that hold more tokens of b.txt's letters than of a.txt's."""
        vocab = load_tokenizer(data.vocab_path, True).vocab
        is_word = np.array([token[0] != '[' for token in vocab.tokens])
        is_b = np.array([max(token) > 'm' for token in vocab.tokens])
        sides = np.where(is_word, np.where(is_b, 1, -1), 0)
        ids = data.training(S, P, **phase).rows(np.arange(1000))['input_ids']
        return (sides[ids].sum(axis=1) > 0).mean()

    assert share_of_b(source=()) == pytest.approx(expected(3), abs=0.02)
    of_a_phase = ((of_a, 1.0), (of_b, 9.0))
    assert share_of_b(source=of_a_phase) == pytest.approx(expected(9), abs=0.02)


def test_records_and_text_can_be_mixed(folder, vocab_file):
    data = _open(folder, ('a.txt', 3.0), 'c.tfrecord', vocab_file=vocab_file)
    batch = data.training(S, 8).rows(np.arange(1000))  # more slots than the records have
    check_batch(pretrain_spec(S, 8), batch)
    ours = (batch['input_ids'] == batch['input_ids'][:, :1]).all(axis=1)
    assert np.bincount(batch['input_ids'][ours, 0]).tolist() == [25] * 10
    assert data.held_out(S, P).num_frozen > 0  # from the text
    assert data.masks_held_out
    judged = _open(folder, 'a.txt', eval_source='c.tfrecord', vocab_file=vocab_file)
    assert _frozen(judged.held_out(S, P))['input_ids'][:, 0].tolist() == list(range(10))
    assert not judged.masks_held_out  # records come masked


@pytest.mark.parametrize(('sources', 'changes', 'words'), [
    (['c.tfrecord'], {}, ['vocab_file', 'vocab.txt']),
    (['a.txt'], {'eval_source': 'c.tfrecord'}, ['vocab_file', 'vocab.txt']),
    (['a.txt'], {'vocab_file': 'missing.txt'}, ['missing.txt']),
    (['a.txt', 'c.tfrecord'], {'add_tokens': 'words.txt'}, ['c.tfrecord', 'data.add_tokens']),
    (['a.txt'], {'add_tokens': 'none.txt'}, ['none.txt', 'data.add_tokens']),
    (['a.txt'], {'eval_source': 'none.txt'}, ['none.txt']),
])
def test_unusable_sources_and_vocabularies_are_refused_at_once(folder, sources, changes, words):
    with refused(*words):
        _open(folder, *sources, **changes)


def test_records_have_the_lengths_that_they_were_written_with(folder, vocab_file):
    records = _open(folder, 'c.tfrecord', vocab_file=vocab_file)
    assert records.training(S, P).num_examples == 10
    with refused(f'max_seq_length=64: set that to {S}'):
        records.training(64, P)
    with refused(f'2 slots of a row: set {SLOTS}={P}'):
        records.training(S, 2)


def test_evaluation_needs_held_out_text(folder, vocab_file):
    records = _open(folder, 'c.tfrecord', vocab_file=vocab_file)
    with refused('eval_source'):
        records.held_out(S, P)
    with refused('held_out=0'):
        _open(folder, 'a.txt', held_out=0.0).held_out(S, P)


def test_a_run_with_nothing_to_evaluate_on_is_refused_when_it_opens_its_data(
    folder, monkeypatch
):
    data = _open(folder, 'a.txt', held_out=0.0)
    monkeypatch.setattr(pretrain, 'TextData', lambda config, prepared: data)
    monkeypatch.setattr(pretrain, 'prepared_text', lambda config: None)
    with refused('config.data.held_out=0 leaves nothing to evaluate on'):
        pretrain.PretrainTask(default_config('pretrain'))


def test_what_rows_hold_and_lose_is_said_once_before_they_are_trained_on(folder, capsys):
    texts = _text('abcdefg', 90, 5).replace('. ', ' ').split('\n\n')
    (folder / 'rows.jsonl').write_text('\n'.join(f'{{"text": "{text}"}}' for text in texts))
    data = _open(folder, 'rows.jsonl')
    data.training(256, P)
    counted, *warnings = capsys.readouterr().out.splitlines()[-2:]
    assert 'rows.jsonl: ' in counted
    assert ' of the tokens are in the rows of an epoch' in counted
    assert ' of a row is masked' in counted
    assert ' have a random next sentence, ' in counted
    [warning] = warnings
    assert warning.startswith('warning: ')
    assert 'config.data.next_sentence=False' in warning
    data.held_out(256, P)
    assert not capsys.readouterr().out


def test_records_without_masks_are_counted(folder, vocab_file, capsys):
    _write_records(folder / 'maskless.tfrecord', [1, 0, 1, 0])
    _open(folder, 'maskless.tfrecord', vocab_file=vocab_file)
    assert '50.0% of the first 4 records' in capsys.readouterr().out


def test_synthetic_rows():
    data = SyntheticData(1000, 0)
    examples = data.training(S, P)
    batch = examples.rows(np.arange(examples.num_examples))
    check_batch(pretrain_spec(S, P), batch)
    repeated = examples.rows(np.array([4100, 7]))
    assert_same(repeated, {name: values[[4, 7]] for name, values in batch.items()})
    positions = batch['masked_lm_positions']
    assert (np.diff(positions) > 0).all()
    assert positions.min() > 0
    assert positions.max() < S - 1
    assert batch['input_ids'].min() >= 0
    assert batch['input_ids'].max() < 1000
    held_out = _frozen(data.held_out(S, P))
    rows = np.concatenate([batch['input_ids'], held_out['input_ids']])
    assert len(np.unique(rows, axis=0)) == 4096 + 256


def test_held_out_rows_of_other_masks_can_be_masked_as_bert_does(folder):
    """So that losses of runs with different masks can be compared."""
    bert = _frozen(_open(folder, 'a.txt').held_out(S, P))
    theirs = _open(folder, 'a.txt', masking='words', masked_lm_prob=0.3, mask_rate=1.0,
                   random_rate=0.0)
    standard = dataclasses.asdict(MaskingRates())
    alike = _frozen(theirs.held_out(S, 2 * P, **standard))
    for name in ('input_ids', 'next_sentence_labels'):
        np.testing.assert_array_equal(alike[name], bert[name])
    otherwise = _frozen(theirs.held_out(S, 2 * P))
    assert (otherwise['input_ids'] != bert['input_ids']).any()


def test_a_phase_masks_as_it_states(folder):
    data = _open(folder, 'a.txt', 'b.txt')
    usual = data.training(S, 2 * P).rows(np.arange(1000))
    more = data.training(S, 2 * P, masked_lm_prob=0.3).rows(np.arange(1000))
    np.testing.assert_array_equal(restored(more), restored(usual))  # of the same pairs
    ratio = more['masked_lm_weights'].sum() / usual['masked_lm_weights'].sum()
    assert ratio == pytest.approx(2, abs=0.1)


def test_a_phase_mixes_as_it_states(folder):
    data = _open(folder, 'a.txt', 'b.txt')
    a = f'{folder}/a.txt'
    b = f'{folder}/b.txt'

    def ids(*sources, **phase):
        return restored(data.training(S, P, source=sources, **phase).rows(np.arange(1000)))

    mixed = ids((b, 1.0), (a, 3.0), phase=2)
    only_in_b = np.setdiff1d(ids((b, 1.0)), ids((a, 1.0)))
    # Of some rows all the pieces that are only in b are masked.
    assert 0.245 <= np.isin(mixed, only_in_b).any(axis=1).mean() <= 0.25


def test_near_duplicates_are_left_out_of_what_is_trained_on_only(folder):
    of_both = _open(folder, 'a.txt', 'b.txt').vocab_path
    fields = {'vocab_file': str(of_both), 'eval_source': 'b.txt'}
    as_they_are = _open(folder, 'a.txt', **fields).texts
    without = _open(folder, 'a.txt', near_duplicates=0.9, **fields).texts
    names = [f'{folder}/a.txt', f'{folder}/b.txt']
    is_same = [without[name].store.path == as_they_are[name].store.path for name in names]
    assert is_same == [False, True]
    assert 'num_near_duplicates' in without[names[0]].store.manifest


@pytest.fixture(scope='module')
def moved_text(tmp_path_factory):
    """(folder, the data of a text there that has been moved away)."""
    folder = tmp_path_factory.mktemp('moved')
    (folder / 'a.txt').write_text(_text('abcdefghijklm', 80, 0))
    data = _open(folder, 'a.txt')
    (folder / 'a.txt').unlink()
    return folder, data


def _prepared_config(folder, source, **fields):
    config = default_config('pretrain')
    config.model.max_position_embeddings = 64
    config.model.name = 'tiny'
    config.data.update({
        'source': source, 'held_out': 0.2, 'dir': str(folder / 'other'),
        'local_dir': str(folder / 'other'), **fields})
    return complete(config)


def test_a_prepared_store_is_a_source_without_its_text(moved_text):
    folder, data = moved_text
    [text] = data.texts.values()
    config = _prepared_config(folder, f'store:{text.store.path}')
    assert config.data.lowercase is False  # as the store says
    prepared = text_data(config)
    assert prepared.vocab_size == data.vocab_size
    row_ids = np.arange(300)
    assert_same(prepared.training(S, P).rows(row_ids), data.training(S, P).rows(row_ids))
    assert_same(_frozen(prepared.held_out(S, P)), _frozen(data.held_out(S, P)))


def test_a_prepared_store_of_another_vocabulary_is_refused(moved_text, vocab_file):
    folder, data = moved_text
    [text] = data.texts.values()
    with refused(str(text.store.path), 'another vocabulary', 'config.data.vocab_file'):
        text_data(_prepared_config(
            folder, f'store:{text.store.path}', vocab_file=vocab_file, lowercase=True))


def test_a_source_that_is_no_prepared_store_is_refused(moved_text):
    folder, _ = moved_text
    with refused(f'{folder}/nothing', 'manifest.json'):
        text_data(_prepared_config(folder, f'store:{folder}/nothing'))


def test_a_text_of_more_blocks_is_read_in_windows(folder, monkeypatch):
    monkeypatch.setattr(store_parts, 'BLOCK_TOKENS', 200)
    fields = dict(dir=str(folder / 'small_blocks'))
    whole = _open(folder, 'a.txt', 'b.txt', **fields)
    windows = _open(folder, 'a.txt', 'b.txt', shuffle_blocks=16, **fields)
    assert all(text.is_whole for text in whole.texts.values())
    assert not any(text.is_whole for text in windows.texts.values())
    assert windows.training(S, P, batch_size=48).lanes == 4
    seen, tested = _seen(windows, 3)
    seen_whole, tested_whole = _seen(whole, 3)
    assert not seen & tested
    assert len(seen) > 0.8 * len(seen_whole)
    assert tested == tested_whole  # all that are held out fit the sample


def test_windows_of_hosts_are_the_windows_of_one(folder, monkeypatch):
    monkeypatch.setattr(store_parts, 'BLOCK_TOKENS', 200)
    fields = dict(dir=str(folder / 'small_blocks'), shuffle_blocks=16)
    rows = np.arange(900_000 * 48, 900_000 * 48 + 48)
    whole = _open(folder, 'a.txt', ('b.txt', 2.0), **fields).training(S, P, batch_size=48)
    batch = whole.rows(rows)
    for begin in range(0, 48, 12):
        host = _open(folder, 'a.txt', ('b.txt', 2.0), **fields).training(S, P, batch_size=48)
        share = {name: values[begin : begin + 12] for name, values in batch.items()}
        assert_same(host.rows(rows[begin : begin + 12]), share)


@pytest.mark.parametrize(('next_sentence', 'num_held_out', 'is_refused'), [
    (True, 1, True), (True, 2, False), (False, 0, True), (False, 1, False)])
def test_too_few_held_out_documents_are_refused(
    monkeypatch, next_sentence, num_held_out, is_refused
):
    """A pair that is no neighbour takes a second document."""
    text = types.SimpleNamespace(is_whole=False, num_held_out=num_held_out)
    monkeypatch.setattr(pretrain_data, 'StoredText', lambda *arguments: text)
    data = {'held_out': 0.1, 'eval_source': '', 'shuffle_blocks': 1, 'next_sentence': next_sentence}
    rows = types.SimpleNamespace(
        _config=types.SimpleNamespace(data=types.SimpleNamespace(**data)),
        _tokenizer=types.SimpleNamespace(vocab=None))
    expected = contextlib.nullcontext()
    if is_refused:
        expected = pytest.raises(InputError, match=rf'holds out {num_held_out} document.*of wiki')
    with expected:
        assert pretrain_data.TextData._text(rows, 'wiki', None) is text
