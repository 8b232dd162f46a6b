"""Pre-training rows from a token store: what is in a row, and which rows an epoch has."""

import collections
import itertools
import random

import numpy as np
import pytest

from bert_jax.data import chunks
from bert_jax.data.pretrain import PretrainExamples
from bert_jax.data.recipe import Recipe
from tests.data import stores
from tests.refusals import refused

Pair = collections.namedtuple('Pair', 'a b label')  # a and b: ranges of token indices in the store


def _span(ids):
    """The token indices of these ids in the store; asserts that they are consecutive."""
    assert (np.diff(ids) == 1).all() and ids[0] >= stores.FIRST
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
    return collections.Counter(
        b''.join(np.ascontiguousarray(batch[name][i]).tobytes() for name in sorted(batch))
        for i in range(len(batch['input_ids'])))


@pytest.fixture(scope='module')
def corpus():
    return stores.random_store(120)


def test_rows_are_cls_a_sep_b_sep_and_labels_tell_what_b_is(corpus):
    examples = stores.make_examples(corpus)
    batch = _epoch(examples)
    stores.check_batch(examples.spec, batch)
    for i, (a, b, label) in enumerate(_pairs(batch)):
        ids, rest = batch['input_ids'][i], 61 - len(a) - len(b)
        special = [stores.CLS, *[0] * len(a), stores.SEP, *[0] * len(b), stores.SEP, *[0] * rest]
        assert [t * (t == s) for t, s in zip(ids.tolist(), special, strict=True)] == special
        assert batch['sequence_ids'][i].tolist() == [1] * (64 - rest) + [0] * rest
        assert batch['segment_ids'][i].tolist() == (
            [0] * (len(a) + 2) + [1] * (len(b) + 1) + [0] * rest)
        wanted = min(10, max(1, round((64 - rest) * 0.15)))
        assert batch['masked_lm_weights'][i].sum() == wanted
        [own], [other] = ({*corpus.document_of[list(span)].tolist()} for span in (a, b))
        assert (own != other) == label
        if not label:
            assert b.start == a.stop or (b.start > a.stop and not rest)  # truncated: a full row
    assert (batch['example_weights'] == 1).all()
    assert set(batch['next_sentence_labels'].tolist()) == {0, 1}


def test_pairs_tile_every_document_each_epoch():
    # With sentences of one token, pairs have exactly the target length, and nothing is truncated.
    rng = np.random.default_rng(1)
    store = stores.make_store([np.ones(n, int) for n in rng.integers(1, 90, 60)])
    pairs = _pairs(_epoch(stores.make_examples(store, max_seq_length=16, short_seq_prob=0.3)))
    used = [token for a, b, label in pairs for token in (*a, *(() if label else b))]
    assert sorted(used) == list(range(len(store.tokens)))


@pytest.mark.parametrize('width', [16, 64])
@pytest.mark.parametrize(('next_sentence', 'least'), [(True, 0.999), (False, 0.95)])
def test_all_tokens_of_long_sentences_are_in_rows_of_five_epochs(width, next_sentence, least):
    store = stores.make_store([[1500], [4, 900, 3], [70] * 15, [1500], [33, 2, 800]])

    def seen(split):
        examples = stores.make_examples(
            store, max_seq_length=width, next_sentence=next_sentence, split_long_sentences=split)
        batch = examples.rows(np.arange(5 * examples.num_examples))
        ids = stores.restored(batch)
        return len(np.unique(ids[ids >= stores.FIRST])) / len(store.tokens), batch

    share, batch = seen(True)
    assert share > least
    assert seen(False)[0] < 0.5  # the original's rule
    assert batch['next_sentence_labels'].mean() == pytest.approx(0.5 * next_sentence, abs=0.08)


def test_a_random_b_comes_from_any_place_in_any_other_document():
    store = stores.make_store([np.ones(40, int)] * 5)
    examples = stores.make_examples(store, max_seq_length=13)
    pairs = [p for e in range(160) for p in _pairs(_epoch(examples, e)) if p.label]
    own, other = (store.document_of[[p[i].start for p in pairs]] for i in (0, 1))
    counts = np.bincount(own * 5 + other, minlength=25).reshape(5, 5)
    shares = counts / counts.sum(axis=1, keepdims=True)
    assert shares == pytest.approx((1 - np.eye(5)) / 4, abs=0.05)
    starts = np.bincount([p.b.start % 40 for p in pairs], minlength=40)
    assert starts.min() > 0.5 * starts.mean()  # also at the last sentence


def test_an_epoch_is_a_shuffle_of_its_chunks(corpus):
    examples = stores.make_examples(corpus)
    epoch, frozen = _epoch(examples), examples.rows(np.arange(examples.num_frozen), frozen=True)
    assert _counted(epoch) == _counted(frozen) and max(_counted(epoch).values()) == 1
    assert not np.array_equal(epoch['input_ids'], frozen['input_ids'])
    # Later epochs have a few chunks more or fewer: then some are left out, or some are repeated.
    for e in range(1, 6):
        times = _counted(_epoch(examples, e)).values()
        assert max(times) <= 2 and sum(t - 1 for t in times) < 0.06 * examples.num_examples
    # Each epoch has pairs and masks of its own, and so has each seed.
    for other in (_epoch(examples, 1), _epoch(stores.make_examples(corpus, seed=4))):
        assert not _counted(epoch).keys() & _counted(other).keys()
        pairs = [set(map(str, _pairs(batch))) for batch in (epoch, other)]
        assert len(pairs[0] & pairs[1]) < 0.2 * len(pairs[0])


def test_with_num_maskings_the_rows_of_epochs_repeat_in_another_order(corpus):
    examples = stores.make_examples(corpus, num_maskings=3)
    epochs = [_epoch(examples, e) for e in range(7)]
    # The first `num_maskings` epochs are the same as without it.
    stores.assert_same(epochs[1], _epoch(stores.make_examples(corpus), 1))
    for a, b in itertools.combinations(range(7), 2):
        common = (_counted(epochs[a]) & _counted(epochs[b])).total() / examples.num_examples
        assert common > 0.9 if (b - a) % 3 == 0 else common == 0
    assert _counted(epochs[0]) == _counted(epochs[3])
    assert not np.array_equal(epochs[0]['input_ids'], epochs[3]['input_ids'])  # in another order


def test_without_next_sentence(corpus):
    examples = stores.make_examples(corpus, next_sentence=False)
    batch = _epoch(examples)
    stores.check_batch(examples.spec, batch)
    assert not batch['segment_ids'].any() and not batch['next_sentence_labels'].any()
    for ids, mask in zip(stores.restored(batch), batch['sequence_ids'], strict=True):
        [end] = np.flatnonzero(ids == stores.SEP)
        assert ids[0] == stores.CLS and mask.sum() == end + 1 and not ids[end + 1:].any()
        assert len({*corpus.document_of[list(_span(ids[1:end]))].tolist()}) == 1
    assert batch['sequence_ids'].sum(axis=1).max() == 64


@pytest.mark.parametrize(('documents', 'recipe', 'words'), [
    ([[3, 4]], {}, ['1 document', 'blank lines', 'config.data.next_sentence=False']),
    ([[3, 4], [5]], {'min_sentences': 2}, ['1 document', 'at least 2 sentence']),
    ([[3], [4]], {'min_sentences': 2, 'next_sentence': False}, ['0 document', 'more text']),
])
def test_too_few_documents(documents, recipe, words):
    with refused(*words):
        stores.make_examples(stores.make_store(documents), **recipe)


def _original_instances(documents, width, rng):
    """(tokens of A, of B, is random) as google-research/bert makes them, from sentence lengths."""
    room = width - 3
    for own, document in enumerate(documents):
        target = rng.randint(2, room) if rng.random() < 0.1 else room
        chunk, i = [], 0
        while i < len(document):
            chunk.append(document[i])
            if i == len(document) - 1 or sum(chunk) >= target:
                a_end = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
                a, b, is_random = sum(chunk[:a_end]), 0, False
                if len(chunk) == 1 or rng.random() < 0.5:
                    is_random = True
                    for _ in range(10):
                        other = rng.randint(0, len(documents) - 1)
                        if other != own:
                            break
                    start = rng.randint(0, len(documents[other]) - 1)
                    for length in documents[other][start:]:
                        b += length
                        if b >= target - a:
                            break
                    i -= len(chunk) - a_end
                else:
                    b = sum(chunk[a_end:])
                yield (*stores.truncated(a, b, room), is_random)
                chunk = []
            i += 1


def test_statistics_are_those_of_the_original(corpus):
    bounds = itertools.pairwise(corpus.document_offsets.tolist())
    lengths = np.diff(corpus.sentence_offsets)
    documents = [lengths[first:last].tolist() for first, last in bounds]
    epochs, rng = 20, random.Random(0)
    theirs = np.array([x for _ in range(epochs) for x in _original_instances(documents, 64, rng)])
    examples = [stores.make_examples(corpus, seed=seed) for seed in range(epochs)]
    batches = [each.rows(np.arange(each.num_frozen), frozen=True) for each in examples]
    ours = np.array([(len(a), len(b), label) for batch in batches for a, b, label in _pairs(batch)])
    assert len(ours) == pytest.approx(len(theirs), rel=0.02)
    assert ours.mean(axis=0) == pytest.approx(theirs.mean(axis=0), rel=0.03)  # A, B, random
    assert ours[:, :2].std(axis=0) == pytest.approx(theirs[:, :2].std(axis=0), rel=0.03)
    for label in (0, 1):
        mine, other = ours[ours[:, 2] == label], theirs[theirs[:, 2] == label]
        assert mine.mean(axis=0)[:2] == pytest.approx(other.mean(axis=0)[:2], rel=0.04)
        for column in (0, 1):
            deciles = [np.quantile(x[:, column], np.arange(0.1, 1, 0.1)) for x in (mine, other)]
            assert deciles[0] == pytest.approx(deciles[1], abs=1.5)
    masked = sum(batch['masked_lm_weights'].sum() for batch in batches) / len(ours)
    wanted = np.mean([min(10, max(1, round((a + b + 3) * 0.15))) for a, b, _ in theirs])
    assert masked == pytest.approx(wanted, rel=0.02)


@pytest.mark.parametrize(('documents', 'recipe', 'random_next', 'used'), [
    ([[1] * 400] * 30, {}, 0.5, 1.0),
    ([[20]] * 300, {}, 1.0, 1.0),  # one sentence a document: no pairs of neighbours
    ([[20]] * 300, {'next_sentence': False}, 0.0, 1.0),
    ([[1000]] * 60, {}, 0.5, 0.96),
    ([[1000]] * 60, {'split_long_sentences': False}, 1.0, 0.03),  # 30 of 1,000 tokens
    ([[1] * 400] * 30, {'random_next_prob': 0.1}, 0.1, 1.0),
])
def test_counts_of_a_plan(documents, recipe, random_next, used):
    counts = stores.make_examples(stores.make_store(documents), **recipe).counts()
    assert counts.random_next == pytest.approx(random_next, abs=0.1)
    assert counts.used == pytest.approx(used, abs=0.02)
    assert counts.masked == counts.wanted == pytest.approx(0.15, abs=0.02)


def test_counts_are_those_of_the_rows_of_the_first_epoch(corpus):
    examples = stores.make_examples(corpus)
    counts, batch = examples.counts(), examples.rows(np.arange(examples.num_frozen), frozen=True)
    assert counts.rows == examples.num_frozen
    assert counts.random_next == pytest.approx(batch['next_sentence_labels'].mean())
    assert counts.masked == pytest.approx(
        batch['masked_lm_weights'].sum() / batch['sequence_ids'].sum())
    own = np.unique([i for a, b, label in _pairs(batch) for i in (*a, *(() if label else b))])
    assert counts.used == pytest.approx(len(own) / len(corpus.tokens))


@pytest.mark.parametrize('cutting', [
    pytest.param({}, id='the defaults: so few documents are all cut at once'),
    pytest.param(
        {'MIN_BATCH_DOCUMENTS': 0, 'MAX_REST_SENTENCES': 0, '_BLOCK': 7},
        id='pass by pass to the end, in blocks'),
    pytest.param(
        {'MIN_BATCH_DOCUMENTS': 11, 'MAX_REST_SENTENCES': 300, '_BLOCK': 5}, id='both'),
])
@pytest.mark.parametrize(('recipe', 'digest'), [
    ({}, 'bff0bc295e46dc4a'),
    ({'num_maskings': 2, 'min_sentences': 3}, 'f52beabfbdfb1d02'),
    ({'next_sentence': False, 'max_seq_length': 512}, 'f685377875822039'),
])
def test_rows_are_as_recorded_however_planned(monkeypatch, cutting, recipe, digest):
    """A run that resumes with a later version must get the rows that it began with."""
    for name, value in cutting.items():
        monkeypatch.setattr(chunks, name, value)
    rng = np.random.default_rng(0)  # documents of one to a few hundred short sentences
    num_sentences = np.maximum(1, rng.lognormal(2.5, 1.5, 90)).astype(int)
    num_tokens = rng.integers(1, 30, num_sentences.sum())
    store = stores.Store(
        tokens=np.arange(num_tokens.sum(), dtype=np.uint32) % 4000 + 200,
        sentence_offsets=np.cumsum([0, *num_tokens]),
        document_offsets=np.cumsum([0, *num_sentences]))
    examples = PretrainExamples(
        store,
        np.flatnonzero(np.arange(90) % 3),  # every third document is not used
        Recipe(**{'max_seq_length': 64, 'max_predictions_per_seq': 10, **recipe}),
        stores.vocab(5000, cls_id=101, sep_id=102, mask_id=103),
        seed=3)
    batch = examples.rows(np.arange(2 * examples.num_examples + 9))
    frozen = examples.rows(np.arange(examples.num_frozen), frozen=True)
    assert stores.digest(batch, frozen) == digest
