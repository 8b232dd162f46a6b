"""From sources to rows: a tiny corpus end to end, and what is refused."""

import dataclasses
import types

import numpy as np
import pytest

pytest.importorskip('tensorflow_text')

import tensorflow as tf

from bert_jax.config import default_config
from bert_jax.data.examples import pretrain_spec
from bert_jax.data.masking import MaskingRates
from bert_jax.tasks.pretrain_data import SyntheticData, TextData
from bert_jax.text import load_tokenizer, read_switches
from tests.data.stores import assert_same, check_batch, restored
from tests.data.test_records import make_example
from tests.refusals import refused

S, P = 32, 5
SLOTS = 'config.data.max_predictions_per_seq'
GRAM = 10  # tokens; random texts share no run of this length by chance


def _text(letters, num_documents, seed):
    rng = np.random.default_rng(seed)
    letters = np.array(list(letters))

    def sentence():
        words = (''.join(rng.choice(letters, rng.integers(2, 9))) for _ in range(8))
        return ' '.join(words).capitalize() + '.'

    return '\n\n'.join(
        ' '.join(sentence() for _ in range(rng.integers(2, 7))) for _ in range(num_documents))


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp('data')
    (path / 'a.txt').write_text(_text('abcdefghijklm', 80, 0))
    (path / 'b.txt').write_text(_text('nopqrstuvwxyz', 60, 1))
    with tf.io.TFRecordWriter(str(path / 'c.tfrecord')) as writer:
        for i in range(10):  # record i has the value i in all features
            same = types.SimpleNamespace(integers=lambda low, high, size, i=i: np.full(size, i))
            writer.write(make_example(same, S, P).SerializeToString())
    return path


def _open(folder, *sources, **changes):
    pairs = [source if isinstance(source, tuple) else (source, 1.0) for source in sources]
    c = default_config('pretrain')
    c.seed = changes.pop('seed', 0)
    c.model.max_position_embeddings = 64
    c.data.update({'held_out': 0.2, 'vocab_size': 300, 'dir': str(folder / 'cache'), **changes,
                   'source': [(f'{folder}/{name}', weight) for name, weight in pairs]})
    if c.data.eval_source:
        c.data.eval_source = f'{folder}/{c.data.eval_source}'
    return TextData(c)


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
    return {tuple(s[i:i + GRAM]) for s in sequences for i in range(len(s) - GRAM + 1)}


def _corpus_grams(data, path):
    """The n-grams of each document."""
    tokenizer = load_tokenizer(data.vocab_path, True)
    return [_grams([tokenizer.encode(d)]) for d in path.read_text().split('\n\n')]


def _frozen(examples):
    return examples.rows(np.arange(examples.num_frozen), frozen=True)


def _seen(data, epochs):
    """(n-grams of the training rows of the first `epochs` epochs, n-grams of the held-out rows)."""
    training = data.training(S, P)
    rows = training.rows(np.arange(epochs * training.num_examples))
    return _grams(_segments(rows)), _grams(_segments(_frozen(data.held_out(S, P))))


def test_held_out_text_is_in_no_training_row(folder):
    data = _open(folder, 'a.txt')
    assert 250 < data.vocab_size == len(load_tokenizer(data.vocab_path, True).vocab) <= 300
    seen, tested = _seen(data, 4)
    documents = _corpus_grams(data, folder / 'a.txt')
    in_training = [bool(grams & seen) for grams in documents]
    in_test = [bool(grams & tested) for grams in documents]
    assert not seen & tested and seen and tested
    assert all(a != b for a, b in zip(in_training, in_test, strict=True))  # each is on one side
    assert 6 <= sum(in_test) <= 28  # about a fifth
    # Other runs are judged on the same rows.
    other = _open(folder, 'a.txt', seed=9)
    assert_same(_frozen(other.held_out(S, P)), _frozen(data.held_out(S, P)))
    rows, others = (x.training(S, P).rows(np.arange(50))['input_ids'] for x in (data, other))
    assert not np.array_equal(rows, others)


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
    assert not tested & seen and tested & set().union(*_corpus_grams(data, folder / 'b.txt'))


def test_added_words_make_another_store(folder):
    plain = _open(folder, 'a.txt')
    word = (folder / 'a.txt').read_text().split()[1]
    (folder / 'words.txt').write_text(f'{word}\nzzz\n')
    data = _open(folder, 'a.txt', add_tokens=str(folder / 'words.txt'))
    vocab = load_tokenizer(data.vocab_path, True).vocab
    assert data.vocab_size == len(vocab) == plain.vocab_size  # there were [unused] slots
    assert {word, 'zzz'} <= set(vocab.tokens) and word not in plain.vocab_path.read_text().split()
    (store,) = data.stores.values()
    assert vocab.index[word] in store.tokens


def test_accents_are_kept_where_asked_and_the_folder_says_so(folder, capsys):
    words = ('किताब', 'पढ़ी', 'कुत्ता', 'शाम', 'मौसम', 'दोस्त')
    rng = np.random.default_rng(0)
    (folder / 'hindi.txt').write_text('\n\n'.join(
        ' '.join(f'{" ".join(rng.choice(words, 6))}।' for _ in range(4)) for _ in range(40)))
    stripped = _open(folder, 'hindi.txt', lowercase=True)
    assert '% of the characters of the text are vowels' in capsys.readouterr().out
    kept = _open(folder, 'hindi.txt', lowercase=True, strip_accents=False)
    assert 'of the characters' not in capsys.readouterr().out
    for data, word in ((stripped, 'कतता'), (kept, 'कुत्ता')):
        tokenizer = load_tokenizer(data.vocab_path, True)  # which reads the folder's switches
        assert ''.join(tokenizer.tokenize('कुत्ता')).replace('##', '') == word
        assert data.vocab_size == len(tokenizer.vocab)
    # The vocabulary of a run has its switch beside it; the field overrides it.
    named = str(kept.vocab_path)
    again, other = (
        _open(folder, 'hindi.txt', lowercase=True, vocab_file=named, strip_accents=value)
        for value in (None, True))
    assert again.stores.keys() == kept.stores.keys() and again.identity() == kept.identity()
    assert read_switches(other.vocab_path).strip_accents and other.identity() != kept.identity()
    with refused('config.data.strip_accents=True', 'x.model', 'leave it empty'):
        _open(folder, 'hindi.txt', vocab_file=str(folder / 'x.model'), strip_accents=True)


def test_mix_power_multiplies_weights_by_a_power_of_the_sizes(folder):
    data = _open(folder, 'a.txt', ('b.txt', 3.0), mix_power=0.7)
    a, b = (len(store.tokens) ** 0.7 for store in data.stores.values())
    vocab = load_tokenizer(data.vocab_path, True).vocab
    side = np.array([  # -1: of a, 1: of b
        0 if token[0] == '[' else 1 if max(token) > 'm' else -1 for token in vocab.tokens])
    for weight, source in ((3, ()), (9, zip(data.stores, (1.0, 9.0)))):  # the second: a phase's
        ids = data.training(S, P, source=tuple(source)).rows(np.arange(1000))['input_ids']
        share = (side[ids].sum(axis=1) > 0).mean()
        assert share == pytest.approx(weight * b / (a + weight * b), abs=0.02)


def test_records_and_text_can_be_mixed(folder, vocab_file):
    data = _open(folder, ('a.txt', 3.0), 'c.tfrecord', vocab_file=vocab_file)
    batch = data.training(S, 8).rows(np.arange(1000))  # more slots than the records have
    check_batch(pretrain_spec(S, 8), batch)
    ours = (batch['input_ids'] == batch['input_ids'][:, :1]).all(axis=1)
    assert np.bincount(batch['input_ids'][ours, 0]).tolist() == [25] * 10
    assert data.held_out(S, P).num_frozen > 0  # from the text
    judged = _open(folder, 'a.txt', eval_source='c.tfrecord', vocab_file=vocab_file)
    assert _frozen(judged.held_out(S, P))['input_ids'][:, 0].tolist() == list(range(10))


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


def test_refused_lengths_and_evaluations(folder, vocab_file):
    records = _open(folder, 'c.tfrecord', vocab_file=vocab_file)
    assert records.training(S, P).num_examples == 10
    for attempt, word in (
        (lambda: records.training(64, P), f'max_seq_length=64: set that to {S}'),
        (lambda: records.training(S, 2), f'2 slots of a row: set {SLOTS}={P}'),
        (lambda: records.held_out(S, P), 'eval_source'),
        (lambda: _open(folder, 'a.txt', held_out=0.0).held_out(S, P), 'held_out=0'),
    ):
        with refused(word):
            attempt()


def test_what_rows_hold_and_lose_is_said_once_before_they_are_trained_on(folder, capsys):
    texts = _text('abcdefg', 90, 5).replace('. ', ' ').split('\n\n')
    (folder / 'rows.jsonl').write_text('\n'.join(f'{{"text": "{text}"}}' for text in texts))
    data = _open(folder, 'rows.jsonl')
    data.training(256, P)
    counted, *warnings = capsys.readouterr().out.splitlines()[-2:]
    assert 'rows.jsonl: ' in counted and ' of the tokens are in the rows of an epoch' in counted
    assert ' of a row is masked' in counted and ' have a random next sentence, ' in counted
    assert len(warnings) == 1 and warnings[0].startswith('warning: ')
    assert 'config.data.next_sentence=False' in warnings[0]
    data.held_out(256, P)
    assert not capsys.readouterr().out


def test_records_without_masks_are_counted(folder, vocab_file, capsys):
    with tf.io.TFRecordWriter(str(folder / 'maskless.tfrecord')) as writer:
        for value in (1, 0, 1, 0):  # of all features
            same = types.SimpleNamespace(integers=lambda low, high, size, i=value: np.full(size, i))
            writer.write(make_example(same, S, P).SerializeToString())
    _open(folder, 'maskless.tfrecord', vocab_file=vocab_file)
    assert '50.0% of the first 4 records' in capsys.readouterr().out


def test_synthetic_rows():
    data = SyntheticData(1000, 0)
    examples, held_out = data.training(S, P), data.held_out(S, P)
    batch = examples.rows(np.arange(examples.num_examples))
    check_batch(pretrain_spec(S, P), batch)
    assert_same(examples.rows(np.array([4100, 7])), {k: x[[4, 7]] for k, x in batch.items()})
    positions = batch['masked_lm_positions']
    assert (np.diff(positions) > 0).all() and positions.min() > 0 and positions.max() < S - 1
    assert batch['input_ids'].min() >= 0 and batch['input_ids'].max() < 1000
    rows = np.concatenate([batch['input_ids'], _frozen(held_out)['input_ids']])
    assert len(np.unique(rows, axis=0)) == 4096 + 256


def test_held_out_rows_of_other_masks_can_be_masked_as_bert_does(folder):
    """So that losses of runs with different masks can be compared."""
    standard = dataclasses.asdict(MaskingRates())
    theirs = _open(folder, 'a.txt', masking='words', masked_lm_prob=0.3, mask_rate=1.0)
    alike, usual = theirs.held_out(S, 2 * P, **standard), _open(folder, 'a.txt').held_out(S, P)
    ids = np.arange(usual.num_frozen)
    ours, bert = alike.rows(ids, frozen=True), usual.rows(ids, frozen=True)
    for name in ('input_ids', 'next_sentence_labels'):
        np.testing.assert_array_equal(ours[name], bert[name])
    assert (theirs.held_out(S, 2 * P).rows(ids, True)['input_ids'] != bert['input_ids']).any()


def test_a_phase_masks_and_mixes_as_it_states(folder):
    a, b = f'{folder}/a.txt', f'{folder}/b.txt'
    data, ids = _open(folder, 'a.txt', 'b.txt'), np.arange(1000)
    usual, more, mixed = (data.training(S, 2 * P, **of_phase).rows(ids) for of_phase in (
        {}, {'masked_lm_prob': 0.3}, {'source': ((b, 1.0), (a, 3.0)), 'phase': 2}))
    np.testing.assert_array_equal(restored(more), restored(usual))  # of the same pairs
    masked, usually = (batch['masked_lm_weights'].sum() for batch in (more, usual))
    assert masked / usually == pytest.approx(2, abs=0.1)
    of_a, of_b = (restored(data.training(S, P, source=((spec, 1.0),)).rows(ids)) for spec in (a, b))
    assert np.isin(restored(mixed), np.setdiff1d(of_b, of_a)).any(1).mean() == 0.25
