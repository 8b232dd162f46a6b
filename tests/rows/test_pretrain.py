"""Pre-training rows from a token store: what is in a row, and which rows an epoch has."""

import collections
import dataclasses
import itertools
import random
from typing import NamedTuple

import numpy as np
import pytest

from bert_jax.rows import pairs as pairs_lib
from bert_jax.rows.pairs import RowOptions
from bert_jax.rows.text_rows import WholeTextRows
from tests.refusals import refused
from tests.rows import stores

WIDTH = 64  # of rows, unless a test says otherwise


class Pair(NamedTuple):
    """A row, as ranges of tokens of the store."""

    a: range
    b: range
    label: int

    @property
    def own_tokens(self):
        """The tokens that are from the chunk's document: A, and B unless it is random."""
        return [*self.a] if self.label else [*self.a, *self.b]


def _span(ids):
    """The token indices of these ids in the store; asserts that they are consecutive."""
    assert (np.diff(ids) == 1).all()
    assert ids[0] >= stores.FIRST
    return range(int(ids[0]) - stores.FIRST, int(ids[-1]) - stores.FIRST + 1)


def _pairs(batch):
    pairs = []
    labels = batch['next_sentence_labels'].tolist()
    for ids, label in zip(stores.restored(batch), labels, strict=True):
        first, last = np.flatnonzero(ids == stores.SEP)
        pairs.append(Pair(_span(ids[1:first]), _span(ids[first + 1:last]), label))
    return pairs


def _epoch(examples, epoch=0):
    return examples.rows(np.arange(examples.num_examples) + epoch * examples.num_examples)


def _counted(batch):
    """The rows as a multiset."""
    rows = collections.Counter()
    for i in range(len(batch['input_ids'])):
        features = [np.ascontiguousarray(batch[name][i]) for name in sorted(batch)]
        rows[b''.join(feature.tobytes() for feature in features)] += 1
    return rows


@pytest.fixture(scope='module')
def corpus():
    return stores.random_store(120)


def test_rows_are_cls_a_sep_b_sep_and_padding(corpus):
    examples = stores.make_examples(corpus)
    batch = _epoch(examples)
    stores.check_batch(examples.spec, batch)
    for i, (a, b, _) in enumerate(_pairs(batch)):
        length = len(a) + len(b) + 3
        padding = [0] * (WIDTH - length)
        ids = batch['input_ids'][i]
        assert ids[0] == stores.CLS
        assert ids[[len(a) + 1, length - 1]].tolist() == [stores.SEP, stores.SEP]
        assert ids[length:].tolist() == padding
        assert batch['sequence_ids'][i].tolist() == [1] * length + padding
        segments = [0] * (len(a) + 2) + [1] * (len(b) + 1)
        assert batch['segment_ids'][i].tolist() == segments + padding
        num_masked = min(10, max(1, round(length * 0.15)))
        assert batch['masked_lm_weights'][i].sum() == num_masked
    assert (batch['example_weights'] == 1).all()


def test_labels_tell_whether_b_follows_a_or_is_from_another_document(corpus):
    pairs = _pairs(_epoch(stores.make_examples(corpus)))
    assert {pair.label for pair in pairs} == {0, 1}
    for a, b, label in pairs:
        [own] = set(corpus.document_of[list(a)].tolist())
        [other] = set(corpus.document_of[list(b)].tolist())
        assert (own != other) == label
        is_full = len(a) + len(b) + 3 == WIDTH
        if not label:
            assert b.start == a.stop or (b.start > a.stop and is_full), 'full rows are truncated'


def test_pairs_tile_every_document_each_epoch():
    # With sentences of one token, pairs have exactly the target length, and nothing is truncated.
    rng = np.random.default_rng(1)
    store = stores.make_store([np.ones(n, int) for n in rng.integers(1, 90, 60)])
    used = []
    for pair in _pairs(_epoch(stores.make_examples(store, max_seq_length=16, short_seq_prob=0.3))):
        used += pair.own_tokens
    assert sorted(used) == list(range(len(store.tokens)))


@pytest.mark.parametrize('width', [16, 64])
@pytest.mark.parametrize(('next_sentence', 'least'), [(True, 0.999), (False, 0.95)])
def test_all_tokens_of_long_sentences_are_in_rows_of_five_epochs(width, next_sentence, least):
    store = stores.make_store([[1500], [4, 900, 3], [70] * 15, [1500], [33, 2, 800]])

    def epochs(split):
        examples = stores.make_examples(
            store, max_seq_length=width, next_sentence=next_sentence, split_long_sentences=split)
        return examples.rows(np.arange(5 * examples.num_examples))

    def seen(batch):
        """The share of the store's tokens that are in the rows."""
        ids = stores.restored(batch)
        return len(np.unique(ids[ids >= stores.FIRST])) / len(store.tokens)

    batch = epochs(split=True)
    assert seen(batch) > least
    assert batch['next_sentence_labels'].mean() == pytest.approx(0.5 * next_sentence, abs=0.08)
    assert seen(epochs(split=False)) < 0.5  # the original's rule


def test_a_random_b_comes_from_any_place_in_any_other_document():
    store = stores.make_store([np.ones(40, int)] * 5)
    examples = stores.make_examples(store, max_seq_length=13)
    pairs = []
    for epoch in range(160):
        pairs += [pair for pair in _pairs(_epoch(examples, epoch)) if pair.label]
    own = store.document_of[[pair.a.start for pair in pairs]]
    other = store.document_of[[pair.b.start for pair in pairs]]
    counts = np.bincount(own * 5 + other, minlength=25).reshape(5, 5)
    shares = counts / counts.sum(axis=1, keepdims=True)
    assert shares == pytest.approx((1 - np.eye(5)) / 4, abs=0.05)
    starts = np.bincount([pair.b.start % 40 for pair in pairs], minlength=40)
    assert starts.min() > 0.5 * starts.mean()  # also at the last sentence


def test_an_epoch_is_a_shuffle_of_its_chunks(corpus):
    examples = stores.make_examples(corpus)
    epoch = _epoch(examples)
    frozen = examples.rows(np.arange(examples.num_frozen), frozen=True)
    assert _counted(epoch) == _counted(frozen)
    assert max(_counted(epoch).values()) == 1
    assert not np.array_equal(epoch['input_ids'], frozen['input_ids'])


def test_later_epochs_leave_out_or_repeat_a_few_chunks(corpus):
    examples = stores.make_examples(corpus)
    for epoch in range(1, 6):
        times = _counted(_epoch(examples, epoch)).values()
        assert max(times) <= 2
        assert sum(count - 1 for count in times) < 0.06 * examples.num_examples


@pytest.mark.parametrize(('seed', 'epoch'), [
    pytest.param(3, 1, id='another epoch'), pytest.param(4, 0, id='another seed')])
def test_each_epoch_and_seed_has_pairs_and_masks_of_its_own(corpus, seed, epoch):
    batch = _epoch(stores.make_examples(corpus, seed=3))
    other = _epoch(stores.make_examples(corpus, seed=seed), epoch)
    assert not _counted(batch).keys() & _counted(other).keys()
    pairs = set(_pairs(batch))
    assert len(pairs & set(_pairs(other))) < 0.2 * len(pairs)


def test_with_num_maskings_the_rows_of_epochs_repeat_in_another_order(corpus):
    examples = stores.make_examples(corpus, num_maskings=3)
    epochs = [_epoch(examples, epoch) for epoch in range(7)]
    # The first `num_maskings` epochs are the same as without it.
    stores.assert_same(epochs[1], _epoch(stores.make_examples(corpus), 1))
    for first, second in itertools.combinations(range(7), 2):
        common = _counted(epochs[first]) & _counted(epochs[second])
        share = common.total() / examples.num_examples
        if (second - first) % 3 == 0:
            assert share > 0.9
        else:
            assert share == 0
    assert _counted(epochs[0]) == _counted(epochs[3])
    assert not np.array_equal(epochs[0]['input_ids'], epochs[3]['input_ids'])  # in another order


def test_without_next_sentence(corpus):
    examples = stores.make_examples(corpus, next_sentence=False)
    batch = _epoch(examples)
    stores.check_batch(examples.spec, batch)
    assert not batch['segment_ids'].any()
    assert not batch['next_sentence_labels'].any()
    for ids, sequence_ids in zip(stores.restored(batch), batch['sequence_ids'], strict=True):
        [end] = np.flatnonzero(ids == stores.SEP)
        assert ids[0] == stores.CLS
        assert sequence_ids.sum() == end + 1
        assert not ids[end + 1:].any()
        assert len(np.unique(corpus.document_of[list(_span(ids[1:end]))])) == 1
    assert batch['sequence_ids'].sum(axis=1).max() == WIDTH


@pytest.mark.parametrize(('documents', 'options', 'words'), [
    ([[3, 4]], {}, ['1 document', 'blank lines', 'config.data.next_sentence=False']),
    ([[3, 4], [5]], {'min_sentences': 2}, ['1 document', 'at least 2 sentence']),
    ([[3], [4]], {'min_sentences': 2, 'next_sentence': False}, ['0 document', 'more text']),
])
def test_too_few_documents(documents, options, words):
    with refused(*words):
        stores.make_examples(stores.make_store(documents), **options)


def _original_instances(documents, width, rng):
    """(tokens of A, of B, is random) as google-research/bert makes them, from sentence lengths."""
    room = width - 3
    for own, document in enumerate(documents):
        target = rng.randint(2, room) if rng.random() < 0.1 else room
        chunk = []
        i = 0
        while i < len(document):
            chunk.append(document[i])
            if i == len(document) - 1 or sum(chunk) >= target:
                a_end = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
                a = sum(chunk[:a_end])
                is_random = len(chunk) == 1 or rng.random() < 0.5
                if is_random:
                    b = _original_random_b(documents, own, target - a, rng)
                    i -= len(chunk) - a_end  # the sentences that B replaces are used again
                else:
                    b = sum(chunk[a_end:])
                yield (*stores.truncated(a, b, room), is_random)
                chunk = []
            i += 1


def _original_random_b(documents, own, wanted, rng):
    """The tokens of a B from another document (in ten tries), of `wanted` or a few more."""
    for _ in range(10):
        other = rng.randint(0, len(documents) - 1)
        if other != own:
            break
    start = rng.randint(0, len(documents[other]) - 1)
    tokens = 0
    for length in documents[other][start:]:
        tokens += length
        if tokens >= wanted:
            break
    return tokens


EPOCHS = 20


@pytest.fixture(scope='module')
def their_pairs(corpus):
    """(tokens of A, of B, is random) of the original's pairs of twenty epochs: [n, 3]."""
    lengths = np.diff(corpus.sentence_offsets)
    bounds = itertools.pairwise(corpus.document_offsets.tolist())
    documents = [lengths[first:last].tolist() for first, last in bounds]
    rng = random.Random(0)
    pairs = []
    for _ in range(EPOCHS):
        pairs += _original_instances(documents, WIDTH, rng)
    return np.array(pairs)


@pytest.fixture(scope='module')
def our_batches(corpus):
    """The rows of twenty epochs."""
    batches = []
    for seed in range(EPOCHS):
        examples = stores.make_examples(corpus, seed=seed)
        batches.append(examples.rows(np.arange(examples.num_frozen), frozen=True))
    return batches


def test_lengths_and_labels_of_pairs_are_distributed_as_the_original_s(their_pairs, our_batches):
    theirs = their_pairs
    ours = np.array([
        (len(a), len(b), label) for batch in our_batches for a, b, label in _pairs(batch)])
    assert len(ours) == pytest.approx(len(theirs), rel=0.02)
    assert ours.mean(axis=0) == pytest.approx(theirs.mean(axis=0), rel=0.03)  # A, B, random
    assert ours[:, :2].std(axis=0) == pytest.approx(theirs[:, :2].std(axis=0), rel=0.03)
    for label in (0, 1):
        of_ours = ours[ours[:, 2] == label, :2]
        of_theirs = theirs[theirs[:, 2] == label, :2]
        assert of_ours.mean(axis=0) == pytest.approx(of_theirs.mean(axis=0), rel=0.04)
        deciles = np.arange(0.1, 1, 0.1)
        our_deciles = np.quantile(of_ours, deciles, axis=0)
        assert our_deciles == pytest.approx(np.quantile(of_theirs, deciles, axis=0), abs=1.5)


def test_as_many_positions_are_masked_as_in_the_original(their_pairs, our_batches):
    num_rows = sum(len(batch['input_ids']) for batch in our_batches)
    num_masked = sum(batch['masked_lm_weights'].sum() for batch in our_batches)
    wanted = [min(10, max(1, round((a + b + 3) * 0.15))) for a, b, _ in their_pairs]
    assert num_masked / num_rows == pytest.approx(np.mean(wanted), rel=0.02)


@pytest.mark.parametrize(('documents', 'options', 'random_next', 'used'), [
    pytest.param([[1] * 400] * 30, {}, 0.5, 1.0, id='short sentences'),
    pytest.param([[20]] * 300, {}, 1.0, 1.0, id='one sentence a document: no neighbours'),
    pytest.param([[20]] * 300, {'next_sentence': False}, 0.0, 1.0, id='without pairs'),
    pytest.param([[1000]] * 60, {}, 0.5, 0.96, id='long sentences'),
    pytest.param(
        [[1000]] * 60, {'split_long_sentences': False}, 1.0, 0.03,
        id='long sentences not split: 30 of 1,000 tokens'),
    pytest.param([[1] * 400] * 30, {'random_next_prob': 0.1}, 0.1, 1.0, id='another rate'),
])
def test_counts_of_a_plan(documents, options, random_next, used):
    counts = stores.make_examples(stores.make_store(documents), **options).counts()
    assert counts.random_next == pytest.approx(random_next, abs=0.1)
    assert counts.used == pytest.approx(used, abs=0.02)
    assert counts.masked == counts.wanted == pytest.approx(0.15, abs=0.02)


def test_counts_are_those_of_the_rows_of_the_first_epoch(corpus):
    examples = stores.make_examples(corpus)
    counts = examples.counts()
    batch = examples.rows(np.arange(examples.num_frozen), frozen=True)
    assert counts.rows == examples.num_frozen
    assert counts.random_next == pytest.approx(batch['next_sentence_labels'].mean())
    num_tokens = batch['sequence_ids'].sum()
    assert counts.masked == pytest.approx(batch['masked_lm_weights'].sum() / num_tokens)
    own = set()
    for pair in _pairs(batch):
        own.update(pair.own_tokens)
    assert counts.used == pytest.approx(len(own) / len(corpus.tokens))


@pytest.mark.parametrize('cutting', [
    pytest.param({}, id='the defaults: so few documents are all cut at once'),
    pytest.param(
        {'MIN_BATCH_DOCUMENTS': 0, 'MAX_REST_SENTENCES': 0, '_BLOCK': 7},
        id='pass by pass to the end, in blocks'),
    pytest.param(
        {'MIN_BATCH_DOCUMENTS': 11, 'MAX_REST_SENTENCES': 300, '_BLOCK': 5}, id='both'),
])
@pytest.mark.parametrize(('options', 'digest'), [
    ({}, 'bff0bc295e46dc4a'),
    ({'num_maskings': 2, 'min_sentences': 3}, 'f52beabfbdfb1d02'),
    ({'next_sentence': False, 'max_seq_length': 512}, 'f685377875822039'),
])
def test_rows_are_as_recorded_however_planned(monkeypatch, cutting, options, digest):
    """A run that resumes with a later version must get the rows that it began with."""
    for name, value in cutting.items():
        monkeypatch.setattr(pairs_lib, name, value)
    rng = np.random.default_rng(0)  # documents of one to a few hundred short sentences
    num_sentences = np.maximum(1, rng.lognormal(2.5, 1.5, 90)).astype(int)
    num_tokens = rng.integers(1, 30, num_sentences.sum())
    store = stores.Store(
        tokens=np.arange(num_tokens.sum(), dtype=np.uint32) % 4000 + 200,
        sentence_offsets=np.cumsum([0, *num_tokens]),
        document_offsets=np.cumsum([0, *num_sentences]))
    examples = WholeTextRows(
        store,
        np.flatnonzero(np.arange(90) % 3),  # every third document is not used
        RowOptions(**{'max_seq_length': 64, 'max_predictions_per_seq': 10, **options}),
        stores.vocab(5000, cls_id=101, sep_id=102, mask_id=103),
        seed=3)
    batch = examples.rows(np.arange(2 * examples.num_examples + 9))
    frozen = examples.rows(np.arange(examples.num_frozen), frozen=True)
    assert stores.digest(batch, frozen) == digest


@pytest.mark.parametrize('next_sentence', [True, False])
def test_rows_are_framed_by_the_vocabulary(next_sentence):
    """Two separators between A and B and a padding id that is not 0, as in RoBERTa."""
    store = stores.random_store(30)
    plain = stores.vocab(len(store.tokens) + stores.FIRST)
    options = RowOptions(max_seq_length=64, max_predictions_per_seq=10, next_sentence=next_sentence)
    vocab = dataclasses.replace(plain, num_separators=2, pad_id=3, mask_id=0)
    examples = WholeTextRows(store, np.arange(30), options, vocab, seed=3)
    lengths, _ = examples.sizes(np.arange(50))
    batch = examples.rows(np.arange(50))
    for row, length in enumerate(lengths):
        ids = batch['input_ids'][row]
        used = batch['masked_lm_weights'][row] > 0
        ids[batch['masked_lm_positions'][row][used]] = batch['masked_lm_ids'][row][used]
        assert (ids[length:] == vocab.pad_id).all()
        assert batch['sequence_ids'][row].tolist() == [1] * length + [0] * (64 - length)
        assert ids[0] == stores.CLS and ids[length - 1] == stores.SEP
        separators = np.flatnonzero(ids[: length - 1] == stores.SEP)
        b_begin = np.flatnonzero(batch['segment_ids'][row])
        if next_sentence:
            assert separators.tolist() == [b_begin[0] - 2, b_begin[0] - 1]
            # A and B are whole runs of the store.
            assert (np.diff(ids[b_begin[:-1]]) == 1).all()
            assert (np.diff(ids[1:separators[0]]) == 1).all()
        else:
            assert not len(separators) and not len(b_begin)
            assert (np.diff(ids[1:length - 1]) == 1).all()
    assert (batch['masked_lm_ids'] != stores.SEP).all()
