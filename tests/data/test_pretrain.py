"""Pre-training rows from a token store: what is in a row, which rows an epoch has, and purity.

In these stores every token has an id of its own, `FIRST` + its place, so that a row (with its
labels put back) says where in the store each of its tokens stands.
"""

import collections
import dataclasses
import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.data.examples import check_batch
from bert_jax.data.masking import MaskingRates
from bert_jax.data.pretrain import PretrainExamples, Recipe, SpecialIds
from bert_jax.runtime.errors import InputError

CLS, SEP, MASK, FIRST = 1, 2, 3, 4


@dataclasses.dataclass
class _Store:
    tokens: np.ndarray
    sentence_offsets: np.ndarray
    document_offsets: np.ndarray

    def __post_init__(self):
        starts = self.sentence_offsets[self.document_offsets]
        self.document_of = np.repeat(np.arange(len(starts) - 1), np.diff(starts))  # of each token


def _store(documents):
    """From the lengths of each document's sentences."""
    lengths = np.concatenate(documents)
    return _Store(
        np.arange(lengths.sum(), dtype=np.uint32) + FIRST,
        np.concatenate([[0], np.cumsum(lengths)]),
        np.concatenate([[0], np.cumsum([len(d) for d in documents])]),
    )


def _random_store(num_documents, seed=0, most_sentences=25, most_tokens=20):
    rng = np.random.default_rng(seed)
    return _store([
        rng.integers(1, most_tokens + 1, rng.integers(1, most_sentences + 1))
        for _ in range(num_documents)
    ])


def _examples(store, documents=None, seed=3, **recipe):
    size = len(store.tokens) + FIRST
    recipe = Recipe(**{'max_seq_length': 64, 'max_predictions_per_seq': 10, **recipe})
    special = SpecialIds(size, CLS, SEP, MASK, np.zeros(size, bool))
    if documents is None:
        documents = np.arange(len(store.document_offsets) - 1)
    return PretrainExamples(store, documents, recipe, special, seed)


def _restored(batch):
    ids = batch['input_ids'].copy()
    rows, slots = np.nonzero(batch['masked_lm_weights'])
    ids[rows, batch['masked_lm_positions'][rows, slots]] = batch['masked_lm_ids'][rows, slots]
    return ids


Pair = collections.namedtuple('Pair', 'a b label')  # ranges of places in the store


def _span(ids):
    """Asserts that ids stand in the store one after the other."""
    assert (np.diff(ids) == 1).all() and ids[0] >= FIRST
    return range(int(ids[0]) - FIRST, int(ids[-1]) - FIRST + 1)


def _pairs(batch):
    pairs = []
    for ids, label in zip(_restored(batch), batch['next_sentence_labels'].tolist(), strict=True):
        first, last = np.flatnonzero(ids == SEP)
        pairs.append(Pair(_span(ids[1:first]), _span(ids[first + 1:last]), label))
    return pairs


def _epoch(examples, epoch=0):
    return examples.rows(np.arange(examples.num_examples) + epoch * examples.num_examples)


def _counted(batch, *names):
    """The rows as a multiset."""
    names = names or tuple(sorted(batch))
    return collections.Counter(
        b''.join(np.ascontiguousarray(batch[name][i]).tobytes() for name in names)
        for i in range(len(batch['input_ids']))
    )


def _assert_same(batch, other):
    assert set(batch) == set(other)
    for name in batch:
        np.testing.assert_array_equal(batch[name], other[name], err_msg=name)


@pytest.fixture(scope='module')
def corpus():
    return _random_store(120)


def test_rows_are_cls_a_sep_b_sep(corpus):
    examples = _examples(corpus)
    batch = _epoch(examples)
    check_batch(examples.spec, batch)
    for i, (a, b, _) in enumerate(_pairs(batch)):
        ids, rest = batch['input_ids'][i], 64 - len(a) - len(b) - 3
        special = [CLS, *[0] * len(a), SEP, *[0] * len(b), SEP, *[0] * rest]
        assert [t * (t == s) for t, s in zip(ids.tolist(), special, strict=True)] == special
        assert batch['sequence_ids'][i].tolist() == [1] * (64 - rest) + [0] * rest
        assert batch['segment_ids'][i].tolist() == (
            [0] * (len(a) + 2) + [1] * (len(b) + 1) + [0] * rest)
        wanted = min(10, max(1, round((64 - rest) * 0.15)))
        assert batch['masked_lm_weights'][i].sum() == wanted
    assert (batch['example_weights'] == 1).all()


def test_label_tells_what_b_is(corpus):
    examples = _examples(corpus)
    room, pairs = 61, _pairs(_epoch(examples))
    for a, b, label in pairs:
        [own], [other] = ({*corpus.document_of[list(span)].tolist()} for span in (a, b))
        if label == 0:
            assert own == other and b.start >= a.stop
            if len(a) + len(b) < room:  # nothing was cut away
                assert b.start == a.stop
        else:
            assert own != other
        assert len(a) + len(b) <= room
    assert {label for *_, label in pairs} == {0, 1}


def test_pairs_tile_every_document_each_epoch():
    # Sentences of one token: pairs have exactly the target's length, and nothing is cut.
    rng = np.random.default_rng(1)
    store = _store([np.ones(n, int) for n in rng.integers(1, 90, 60)])
    examples = _examples(store, max_seq_length=16, short_seq_prob=0.3)
    pairs = _pairs(_epoch(examples))
    used = [token for a, b, label in pairs for token in (*a, *(() if label else b))]
    assert sorted(used) == list(range(len(store.tokens)))


@pytest.mark.parametrize('probability', [0.0, 0.5, 1.0])
def test_share_of_random_next(probability):
    store = _store([np.ones(n, int) for n in [200] * 60])
    labels = np.array([p.label for p in _pairs(_epoch(_examples(
        store, max_seq_length=13, random_next_prob=probability, short_seq_prob=0)))])
    # A put-back sentence at a document's end is alone in its chunk and always gets a random next.
    assert labels.mean() == pytest.approx(probability, abs=0.035)


def test_one_sentence_always_gets_a_random_next():
    store = _store([[5], [6], [7]])
    assert all(p.label == 1 for p in _pairs(_epoch(_examples(store, random_next_prob=0.0))))


def test_a_and_the_target_take_every_length():
    store = _store([np.ones(5, int)] * 2000)
    batch = _epoch(_examples(store, max_seq_length=8, short_seq_prob=0, random_next_prob=0))
    lengths = np.bincount([len(a) for a, *_ in _pairs(batch)])
    assert lengths[0] == 0 and lengths[1:] / 2000 == pytest.approx([0.25] * 4, abs=0.04)
    batch = _epoch(_examples(store, max_seq_length=8, short_seq_prob=1, random_next_prob=0))
    targets = collections.Counter(
        len(a) + len(b) for a, b, _ in _pairs(batch) if a.start % 5 == 0)  # of a document's first
    assert set(targets) == {2, 3, 4, 5}
    assert [n / 2000 for n in targets.values()] == pytest.approx([0.25] * 4, abs=0.04)


def test_share_of_short_documents():
    store = _store([np.ones(100, int)] * 1500)
    longest = np.zeros(1500, int)
    for a, b, label in _pairs(_epoch(_examples(store, max_seq_length=23))):
        if not label:
            document = store.document_of[a.start]
            longest[document] = max(longest[document], len(a) + len(b))
    # Targets of short ones are 2 to 20, and one of the 19 is the full length.
    assert (longest < 20).mean() == pytest.approx(0.1 * 18 / 19, abs=0.025)
    assert 2 in longest


def test_random_next_comes_from_anywhere_else():
    store = _store([np.ones(40, int)] * 5)
    examples = _examples(store, max_seq_length=13)
    pairs = [p for e in range(160) for p in _pairs(_epoch(examples, e)) if p.label]
    own, other = (store.document_of[[p[i].start for p in pairs]] for i in (0, 1))
    counts = np.bincount(own * 5 + other, minlength=25).reshape(5, 5)
    shares = counts / counts.sum(axis=1, keepdims=True)
    assert shares == pytest.approx((1 - np.eye(5)) / 4, abs=0.05)
    starts = np.bincount([p.b.start % 40 for p in pairs], minlength=40)
    assert starts.min() > 0.5 * starts.mean()  # the last sentence is among them


def _truncated(a, b, room):
    """How many tokens google-research/bert leaves of each."""
    while a + b > room:
        a, b = (a - 1, b) if a > b else (a, b - 1)
    return a, b


@settings(deadline=None, max_examples=50)
@given(st.integers(8, 40), st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=2,
                                    max_size=12), st.integers(0, 1000))
def test_the_longer_segment_is_truncated(width, sentences, seed):
    room = width - 3
    sentences = [(min(a, room - 1), b) for a, b in sentences]  # both go into one chunk
    store = _store(sentences)
    batch = _epoch(_examples(
        store, seed=seed, max_seq_length=width, random_next_prob=0.0, short_seq_prob=0.0))
    pairs = _pairs(batch)
    assert len(pairs) == len(sentences) and not any(p.label for p in pairs)
    for a, b, _ in pairs:
        assert (len(a), len(b)) == _truncated(*sentences[store.document_of[a.start]], room)


def test_truncation_takes_from_both_ends():
    store = _store([(19, 41)] * 3000)  # 10 tokens of each are kept
    pairs = _pairs(_epoch(_examples(
        store, max_seq_length=23, short_seq_prob=0, random_next_prob=0)))
    assert all(len(a) == len(b) == 10 for a, b, _ in pairs)
    for place, begin, cut in ((0, 0, 9), (1, 19, 31)):
        front = np.array([pair[place].start % 60 - begin for pair in pairs])
        assert front.min() >= 0 and front.max() <= cut
        assert front.mean() == pytest.approx(cut / 2, abs=4.5 * np.sqrt(cut / 4 / 3000))
        assert front.var() == pytest.approx(cut / 4, rel=0.12)


def test_rows_depend_on_their_number_alone(corpus):
    examples = _examples(corpus)
    n = examples.num_examples
    ids = np.arange(3 * n - 20, 3 * n + 20)  # over the end of an epoch
    for epoch in range(3):
        examples.rows(np.array([epoch * n]))
    whole = examples.rows(ids)
    check_batch(examples.spec, whole)
    _assert_same(_examples(corpus).rows(ids), whole)  # a fresh start, in the middle
    examples.rows(np.arange(5 * n, 5 * n + 3))  # something else in between
    for part in (slice(0, 1), slice(7, 31), slice(20, 20 + 17, 4), slice(39, 40)):
        _assert_same(examples.rows(ids[part]), {k: v[part] for k, v in whole.items()})
    mixed = np.random.default_rng(0).permutation(20)
    _assert_same(examples.rows(ids[mixed]), {k: v[mixed] for k, v in whole.items()})


def test_an_epoch_is_a_shuffle_of_its_chunks(corpus):
    examples = _examples(corpus)
    epoch, frozen = _epoch(examples), examples.frozen_rows(np.arange(examples.num_frozen))
    assert _counted(epoch) == _counted(frozen) and max(_counted(epoch).values()) == 1
    assert not np.array_equal(epoch['input_ids'], frozen['input_ids'])
    # Later epochs have a few chunks more or fewer: then the last are left out, or the first come
    # again.
    for e in range(1, 6):
        times = _counted(_epoch(examples, e)).values()
        assert max(times) <= 2 and sum(t - 1 for t in times) < 0.06 * examples.num_examples


def test_epochs_differ_in_masks_and_pairs(corpus):
    examples = _examples(corpus)
    first, second = _epoch(examples), _epoch(examples, 1)
    assert not _counted(first).keys() & _counted(second).keys()
    pairs = [set(map(str, _pairs(batch))) for batch in (first, second)]
    assert len(pairs[0] & pairs[1]) < 0.2 * len(pairs[0])
    other_seed = _epoch(_examples(corpus, seed=4))
    assert not _counted(first).keys() & _counted(other_seed).keys()


def test_fixed_maskings_come_again(corpus):
    examples = _examples(corpus, num_maskings=3)
    epochs = [_epoch(examples, e) for e in range(7)]
    _assert_same(epochs[1], _epoch(_examples(corpus), 1))  # within the first k nothing differs
    for a, b in itertools.combinations(range(7), 2):
        common = (_counted(epochs[a]) & _counted(epochs[b])).total() / examples.num_examples
        assert common > 0.9 if (b - a) % 3 == 0 else common == 0
    assert _counted(epochs[0]) == _counted(epochs[3])
    assert not np.array_equal(epochs[0]['input_ids'], epochs[3]['input_ids'])  # in another order


def test_frozen_rows_stay(corpus):
    examples = _examples(corpus)
    ids = np.arange(examples.num_frozen)
    before = examples.frozen_rows(ids)
    check_batch(examples.spec, before)
    _epoch(examples, 3)
    _assert_same(examples.frozen_rows(ids), before)
    _assert_same(examples.frozen_rows(ids[11:30]), {k: v[11:30] for k, v in before.items()})


def test_rows_know_the_document_that_they_are_from(corpus):
    examples = _examples(corpus)
    ids = np.arange(3 * examples.num_examples // 2)[::-7]  # of two epochs
    starts = [pair.a[0] for pair in _pairs(examples.rows(ids))]
    assert examples.documents(ids).tolist() == corpus.document_of[starts].tolist()


def test_only_the_named_documents_are_read(corpus):
    documents = np.arange(3, 120, 4)
    for a, b, _ in _pairs(_epoch(_examples(corpus, documents), 2)):
        assert set(corpus.document_of[[a.start, b.start]] % 4) == {3}


def test_documents_of_few_sentences_are_left_out(corpus):
    sizes = np.diff(corpus.document_offsets)
    used = {
        int(corpus.document_of[i])
        for a, b, _ in _pairs(_epoch(_examples(corpus, min_sentences=8))) for i in (a[0], b[0])
    }
    assert used == set(np.flatnonzero(sizes >= 8).tolist()) != set(range(120))


def test_without_next_sentence(corpus):
    examples = _examples(corpus, next_sentence=False)
    batch = _epoch(examples)
    check_batch(examples.spec, batch)
    assert not batch['segment_ids'].any() and not batch['next_sentence_labels'].any()
    for ids, mask in zip(_restored(batch), batch['sequence_ids'], strict=True):
        [end] = np.flatnonzero(ids == SEP)
        assert ids[0] == CLS and mask.sum() == end + 1 and not ids[end + 1:].any()
        assert len({*corpus.document_of[list(_span(ids[1:end]))].tolist()}) == 1
    assert batch['sequence_ids'].sum(axis=1).max() == 64
    # One document is enough, and nothing of it is left out.
    store = _store([np.ones(100, int)])
    batch = _epoch(_examples(store, next_sentence=False, short_seq_prob=0, max_seq_length=12))
    tokens = _restored(batch)
    assert sorted(tokens[tokens >= FIRST]) == store.tokens.tolist()


@pytest.mark.parametrize(('documents', 'recipe', 'words'), [
    ([[3, 4]], {}, ['1 document', 'blank lines', 'config.data.next_sentence=False']),
    ([[3, 4], [5]], {'min_sentences': 2}, ['1 document', 'at least 2 sentence']),
    ([[3], [4]], {'min_sentences': 2, 'next_sentence': False}, ['0 document', 'more text']),
])
def test_too_few_documents(documents, recipe, words):
    with pytest.raises(InputError) as error:
        _examples(_store(documents), **recipe)
    assert '\n' not in str(error.value) and all(word in str(error.value) for word in words)


def test_many_predictions_in_a_short_row():
    examples = _examples(
        _store([[3, 4]] * 3), max_seq_length=12, max_predictions_per_seq=20,
        masking=MaskingRates(masked_lm_prob=1.0))
    batch = _epoch(examples)
    check_batch(examples.spec, batch)
    lengths = batch['sequence_ids'].sum(axis=1)
    assert (batch['masked_lm_weights'].sum(axis=1) == lengths - 3).all()


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
                yield (*_truncated(a, b, room), is_random)
                chunk = []
            i += 1


def test_statistics_are_those_of_the_original(corpus):
    bounds = itertools.pairwise(corpus.document_offsets.tolist())
    lengths = np.diff(corpus.sentence_offsets)
    documents = [lengths[first:last].tolist() for first, last in bounds]
    epochs, rng = 20, random.Random(0)
    theirs = np.array([x for _ in range(epochs) for x in _original_instances(documents, 64, rng)])
    examples = [_examples(corpus, seed=seed) for seed in range(epochs)]
    batches = [each.frozen_rows(np.arange(each.num_frozen)) for each in examples]
    ours = np.array([
        (len(a), len(b), label) for batch in batches for a, b, label in _pairs(batch)])
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
