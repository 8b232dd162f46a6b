"""Texts in windows: any hosts make the same rows, all text is used evenly, and no more is read."""

import collections
import gc
import weakref
from concurrent import futures

import numpy as np
import pytest

from bert_jax.rows import packed_examples
from bert_jax.rows.blocks import Block
from bert_jax.rows.examples import Mixture
from bert_jax.rows.packed_examples import PackedExamples
from bert_jax.rows.pairs import RowOptions
from bert_jax.rows.store import TokenStore, held_out_limit
from bert_jax.rows.text_rows import Split, StoredText
from bert_jax.rows.windows import Lanes, WindowedExamples, num_lanes
from tests.conftest import wait_until
from tests.refusals import refused
from tests.rows.block_stores import write_store
from tests.rows.stores import (
    FIRST,
    assert_same,
    change_last_byte,
    check_batch,
    digest,
    make_examples,
    random_store,
    restored,
    vocab,
)

NUM_BLOCKS = 60
BATCH = 48
SHUFFLE = 24  # blocks
LANES = 6
OPTIONS = RowOptions(max_seq_length=64, max_predictions_per_seq=10)


def _blocks(seed, num_blocks=NUM_BLOCKS):
    """Blocks of unequal sizes, in which every token has an id of its own."""
    rng = np.random.default_rng(seed)
    first_id = FIRST
    for _ in range(num_blocks):
        documents = rng.integers(1, 25, rng.integers(10, 30))
        sentences = rng.integers(1, 21, documents.sum())
        num_tokens = int(sentences.sum())
        tokens = np.arange(first_id, first_id + num_tokens, dtype=np.uint32)
        first_id += num_tokens
        hashes = rng.integers(0, 2**64, len(documents), np.uint64)
        yield Block(tokens, sentences.astype(np.uint32), documents.astype(np.uint32), hashes)


@pytest.fixture(scope='module')
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp('stores') / 'a'
    return write_store(folder, _blocks(0), 1 << 20, left_out=range(40, 55))


def _windowed(store, seed=3, options=OPTIONS, held_out=0.0, lanes=LANES):
    return WindowedExamples(
        store, held_out, options, vocab(store.manifest['vocab_size']), seed,
        shuffle_blocks=SHUFFLE, lanes=lanes)


def _lanes(store, **options):
    return Lanes(_windowed(store, **options), BATCH, LANES)


def _batch_of_hosts(open_examples, step, num_hosts):
    """A batch, each host's share made by examples of its own."""
    rows_a_host = BATCH // num_hosts
    shares = []
    for host in range(num_hosts):
        local = np.arange(host * rows_a_host, (host + 1) * rows_a_host)
        shares.append(open_examples().rows(step * BATCH + local))
    return {name: np.concatenate([share[name] for share in shares]) for name in shares[0]}


def _mixture(store):
    whole = make_examples(random_store(60))
    return Lanes(Mixture([_windowed(store), whole], (3, 1), 5, LANES), BATCH, LANES)


def _packed(store):
    return PackedExamples(_lanes(store), BATCH, BATCH)


@pytest.mark.slow
@pytest.mark.parametrize('make', [_lanes, _mixture, _packed])
@pytest.mark.parametrize(('step', 'num_hosts'), [(0, 2), (3, 8), (900_000, 16)])
def test_any_number_of_hosts_makes_the_same_batch(store, make, step, num_hosts, monkeypatch):
    monkeypatch.setattr(packed_examples, '_SAMPLED_PAIRS', 256)
    whole = _batch_of_hosts(lambda: make(store), step, 1)
    split = _batch_of_hosts(lambda: make(store), step, num_hosts)
    assert_same(split, whole)


def test_rows_of_a_mesh_that_splits_a_host_s_share(store):
    rows = np.array([0, 1, 2, 3, 24, 25, 26, 27])  # as `sharding.local_rows` may give them
    whole = _lanes(store).rows(5 * BATCH + np.arange(BATCH))
    share = _lanes(store).rows(5 * BATCH + rows)
    assert_same(share, {name: values[rows] for name, values in whole.items()})


def test_steps_in_order_and_each_from_a_fresh_start_are_the_same(store):
    examples = _lanes(store)
    for step in range(0, 120, 17):
        row_ids = step * BATCH + np.arange(BATCH)
        assert_same(examples.rows(row_ids), _lanes(store).rows(row_ids))


def test_rows_have_their_features_and_the_tokens_of_the_text(store):
    batch = _lanes(store).rows(np.arange(4 * BATCH))
    check_batch(_lanes(store).spec, batch)
    last = max(int(store.block(number).tokens[-1]) for number in range(NUM_BLOCKS))
    tokens = restored(batch)[batch['sequence_ids'] > 0]
    assert tokens.min() >= FIRST - 3
    assert tokens.max() <= last


def _documents_seen(store, row_ids, **options):
    """How many tokens of each document are in first segments, by document number."""
    batch = _lanes(store, **options).rows(row_ids)
    is_first = (batch['sequence_ids'] > 0) & (batch['segment_ids'] == 0)
    tokens = restored(batch)[is_first]
    return collections.Counter(_document_of(store)[tokens[tokens >= FIRST] - FIRST].tolist())


def _document_of(store):
    """The document of each token."""
    lengths = []
    for number in range(NUM_BLOCKS):
        block = store.block(number)
        ends = np.cumsum(block.sentence_lengths)[np.cumsum(block.document_lengths) - 1]
        lengths.append(np.diff(ends, prepend=0).astype(np.int64))
    lengths = np.concatenate(lengths)
    return np.repeat(np.arange(len(lengths)), lengths)


def test_an_epoch_uses_all_documents_but_those_left_out(store):
    num_rows = _lanes(store).num_examples
    seen = _documents_seen(store, np.arange(num_rows))
    num_documents = store.manifest['num_documents']
    used = [number for number in range(num_documents) if not 40 <= number < 55]
    assert not set(seen) - set(used)
    # Not quite all: windows differ a little in how many pairs they give.
    assert len(seen) > 0.97 * len(used)


def test_no_window_is_favoured(store):
    """In ten epochs, the tokens of all blocks are about equally often in rows."""
    num_rows = _lanes(store).num_examples
    document_of = _document_of(store)
    block_of = np.searchsorted(store.first_document, np.arange(document_of[-1] + 1), 'right') - 1
    seen = np.zeros(NUM_BLOCKS)
    for document, count in _documents_seen(store, np.arange(10 * num_rows)).items():
        seen[block_of[document]] += count
    share = seen / store.index['num_tokens']
    usual = np.delete(share, block_of[40 : 55])  # the blocks with documents that are left out
    assert usual.std() / usual.mean() < 0.08


def test_held_out_documents_are_in_no_row(store):
    hashes = np.concatenate([store.block(n).document_hashes for n in range(NUM_BLOCKS)])
    held_out = np.flatnonzero(hashes < held_out_limit(0.2))
    num_rows = _lanes(store).num_examples
    seen = _documents_seen(store, np.arange(num_rows), held_out=0.2)
    assert len(held_out) > 100
    assert not set(held_out.tolist()) & set(seen)
    batch = _lanes(store, held_out=0.2).rows(np.arange(num_rows))
    tokens = restored(batch)[batch['sequence_ids'] > 0]
    documents = _document_of(store)[tokens[tokens >= FIRST] - FIRST]
    assert not np.isin(documents, held_out).any()  # in random next sentences neither


def test_epochs_and_seeds_differ_and_maskings_repeat(store):
    ten = RowOptions(max_seq_length=64, max_predictions_per_seq=10, num_maskings=2)
    examples = _windowed(store, options=ten)
    size = examples.num_examples

    def rows_of(epoch, examples=examples):
        batch = examples.rows(np.arange(epoch * size, (epoch + 1) * size))
        rows = np.concatenate([batch['input_ids'], batch['masked_lm_positions']], axis=1)
        return {row.tobytes() for row in rows}

    assert len(rows_of(0) & rows_of(1)) < 0.01 * size
    assert len(rows_of(0) & rows_of(2)) > 0.75 * size  # but for rows that are left out or repeated
    other = _windowed(store, options=ten, seed=4)
    assert len(rows_of(0) & rows_of(0, other)) < 0.01 * size
    same_rows = np.arange(100)
    assert digest(examples.rows(same_rows)) != digest(examples.rows(2 * size + same_rows))


def test_a_host_reads_the_blocks_of_its_lanes_only(store, monkeypatch):
    examples = _lanes(store)
    read = []
    of_class = TokenStore.block
    monkeypatch.setattr(
        TokenStore, 'block', lambda self, number: read.append(number) or of_class(self, number))
    examples.rows(900_000 * BATCH + np.arange(BATCH // LANES))  # one lane
    windows = -(-NUM_BLOCKS // SHUFFLE)
    assert len(read) <= 2 * -(-NUM_BLOCKS // (windows * LANES))  # its window, perhaps the next


@pytest.mark.parametrize(('shuffle_blocks', 'batch_size', 'expected'), [
    (1024, 256, 32), (1024, 4096, 32), (1024, 250, 25), (1024, 251, 1), (100, 256, 16),
    (10, 256, 2), (3, 256, 1), (1, 256, 1), (1024, 1, 1),
])
def test_lanes_share_a_batch_equally(shuffle_blocks, batch_size, expected):
    assert num_lanes(shuffle_blocks, batch_size) == expected


def test_a_text_in_one_window_is_shuffled_as_a_whole(store):
    num_tokens = store.num_tokens
    options = dict(vocab=vocab(num_tokens + FIRST), split=Split(0.2, 2))
    whole = StoredText('a', store, shuffle_blocks=NUM_BLOCKS, **options)
    in_windows = StoredText('a', store, shuffle_blocks=NUM_BLOCKS - 1, **options)
    assert whole.is_whole
    assert not in_windows.is_whole
    window = store.window(range(NUM_BLOCKS))
    documents, _ = window.split_held_out(0.2, 2, 'a')
    expected = make_examples(
        window, documents, seed=7, max_seq_length=64, max_predictions_per_seq=10)
    row_ids = np.arange(0, 3 * expected.num_examples, 17)
    assert_same(whole.training(OPTIONS, 7, lanes=1).rows(row_ids), expected.rows(row_ids))


def test_a_damaged_block_is_refused_when_it_is_read(tmp_path):
    store = write_store(tmp_path / 'b', _blocks(1, 3), 1 << 20)
    change_last_byte(tmp_path / 'b' / 'part-00000-000.blocks')
    assert TokenStore.open(tmp_path / 'b').block(0).tokens[0] == FIRST
    with refused(match='part-00000-000.blocks: the block at byte .* is damaged'):
        store.window([0, 1, 2])


def test_bounds_of_rows_are_exact_for_a_trillion_tokens(store):
    examples = _windowed(store, lanes=1)
    examples._expected_pairs = np.full(NUM_BLOCKS, 2**53)  # of all blocks, as many as 1.9 million
    examples._rows_a_lane = 2**33
    bounds = examples._layout(0).row_bounds
    assert (np.diff(bounds) > 0).all()
    assert bounds[0, -1] == 2**33


def test_windows_are_opened_once_in_order_and_closed(store, monkeypatch):
    """Two threads that make calls in turn, of several widths each, open no window twice."""
    opened = []
    open_window = WindowedExamples._open_window
    monkeypatch.setattr(
        WindowedExamples, '_open_window',
        lambda self, key: opened.append(key) or open_window(self, key))
    examples = _lanes(store)
    for step in range(1, 120):
        examples.sizes(step * BATCH + np.arange(BATCH))
        for begin in (0, 16, 32):  # the step before
            examples.rows((step - 1) * BATCH + np.arange(begin, begin + 16))
    assert len(opened) <= len(set(opened)) + LANES  # each lane begins amid a window
    inner = examples._examples
    assert len(inner._open) <= 3 * LANES
    examples.forget()
    assert not inner._open


def test_examples_are_freed_without_the_collector(store):
    examples = _windowed(store)
    examples.rows(np.arange(10))
    futures.wait(examples._open.values())
    freed = weakref.ref(examples)
    gc.disable()
    try:
        del examples
        wait_until(lambda: freed() is None, seconds=60)  # threads let go of it, too
    finally:
        gc.enable()


def test_a_window_of_too_few_documents_says_what_to_raise(tmp_path):
    one_document = [
        block._replace(
            document_lengths=np.array([len(block.sentence_lengths)], np.uint32),
            document_hashes=block.document_hashes[:1])
        for block in _blocks(2, 12)]
    store = write_store(tmp_path / 'c', one_document, 1 << 20)
    examples = WindowedExamples(
        store, 0.0, OPTIONS, vocab(1 << 20), 0, shuffle_blocks=1, lanes=1)
    with refused('1 block of', 'config.data.shuffle_blocks'):
        examples.rows(np.arange(5))
