"""Packing of sequences into rows: everything once, nothing mixed, little padding, few shapes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.predict.rows import Tokens, batch_sizes, choose_row_lengths, make_batches, pack


def tokens_of(lengths, seed=0):
    rng = np.random.default_rng(seed)
    return [
        Tokens(
            ids=rng.integers(1, 1000, n).astype(np.int32), first_length=int(rng.integers(1, n + 1)),
            positions=np.sort(rng.choice(n, int(rng.integers(0, n)), replace=False)),
            targets=np.zeros(0, np.int64),
        )
        for n in lengths
    ]


def with_targets(tokens):
    return [Tokens(t.ids, t.first_length, t.positions, t.ids[t.positions]) for t in tokens]


LENGTHS = st.lists(st.integers(2, 300), min_size=1, max_size=60)


@given(LENGTHS, st.sampled_from([(300,), (128, 384), (64, 128, 512)]))
def test_sequences_do_not_overlap(lengths, row_lengths):
    rows, begins, made = pack(np.array(lengths), row_lengths)
    taken = [np.zeros(n, int) for n in made]
    for row, begin, n in zip(rows, begins, lengths, strict=True):
        assert begin + n <= made[row]
        taken[row][begin : begin + n] += 1
    assert all(x.max() == 1 for x in taken), 'a place taken twice, or an empty row'
    assert sum(x.sum() for x in taken) == sum(lengths)
    assert set(made) <= set(row_lengths)


def test_best_fit_fills_rows():
    rows, begins, made = pack(np.array([60, 30, 100, 28, 38]), (128,))
    assert len(made) == 2
    assert rows.tolist() == [1, 1, 0, 0, 1]
    assert begins.tolist() == [0, 98, 0, 100, 60]


@settings(max_examples=40)
@given(LENGTHS, st.sampled_from([128, 1024]), st.integers(0, 5))
def test_batches_hold_every_sequence_as_it_is(lengths, tokens_per_batch, seed):
    sequences = with_targets(tokens_of(lengths, seed))
    batches = make_batches(sequences, (128, 384), tokens_per_batch)
    seen = []
    for batch in batches:
        flat = {name: x.reshape(-1) for name, x in batch.inputs.items()}
        numbers = flat['input_mask'] * len(flat['input_mask'])  # of sequences, distinct by row
        numbers += np.arange(len(numbers)) // batch.inputs['input_ids'].shape[1]
        at = 0
        padding = np.ones(len(numbers), bool)
        for owner, (i, start) in enumerate(zip(batch.members, batch.starts, strict=True), 1):
            tokens = sequences[i]
            n = len(tokens.ids)
            part = slice(start, start + n)
            np.testing.assert_array_equal(flat['input_ids'][part], tokens.ids)
            np.testing.assert_array_equal(flat['position_ids'][part], np.arange(n))
            np.testing.assert_array_equal(
                flat['segment_ids'][part], np.arange(n) >= tokens.first_length)
            assert flat['input_mask'][start] > 0
            # One number for a sequence, which no other of the row has.
            assert np.flatnonzero(numbers == numbers[start]).tolist() == list(range(*part.indices(
                len(numbers))))
            np.testing.assert_array_equal(batch.owners.reshape(-1)[part], owner)
            k = len(tokens.positions)
            np.testing.assert_array_equal(
                flat['input_ids'][batch.positions[at : at + k]], tokens.ids[tokens.positions])
            np.testing.assert_array_equal(batch.targets[at : at + k], tokens.targets)
            assert batch.counts[owner - 1] == k
            at += k
            padding[part] = False
            seen.append(i)
        assert all((x[padding] == 0).all() for x in (*flat.values(), batch.owners.reshape(-1)))
        assert len(batch.positions) == len(batch.targets) == at
    assert sorted(seen) == list(range(len(sequences)))


@given(st.integers(0, 300), st.sampled_from([1, 2, 8, 16, 64]))
def test_batches_are_of_few_sizes_and_not_too_large(num_rows, largest):
    sizes = batch_sizes(num_rows, largest)
    assert set(sizes) <= {1, 8, largest}
    assert sum(sizes) >= num_rows
    assert sum(sizes) - num_rows < 8 or largest > 8 * 2
    if num_rows <= 2:
        assert sum(sizes) == num_rows
    if num_rows > 8 * largest:
        assert sum(sizes) <= 1.1 * num_rows


def padding(lengths, tokens_per_batch=1024, hidden_size=768):
    sequences = [Tokens(np.ones(n, np.int32), n, np.zeros(0, int), np.zeros(0, int))
                 for n in lengths]
    row_lengths = choose_row_lengths(np.array(lengths), hidden_size)
    batches = make_batches(sequences, row_lengths, tokens_per_batch)
    shapes = {batch.owners.shape for batch in batches}
    return 1 - sum(lengths) / sum(batch.owners.size for batch in batches), shapes


@pytest.mark.parametrize(('low', 'mean', 'sigma', 'high', 'num'), [
    (4, 14, 0.5, 80, 2000),  # captions and headlines
    (8, 50, 0.4, 128, 600),  # pairs of sentences
    (16, 150, 0.6, 512, 400),  # paragraphs
    (384, 384, 0.0, 384, 100),  # full windows
    (100, 100, 0.0, 100, 400),
], ids=['sentences', 'pairs', 'paragraphs', 'windows', 'equal'])
def test_padding_stays_under_five_percent(low, mean, sigma, high, num):
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(np.log(mean), sigma, num).clip(low, high).astype(int).tolist()
    share, shapes = padding(lengths)
    assert share < 0.05
    assert len(shapes) <= 4


def test_padding_of_real_sentences(shared_data):
    lines = (shared_data / 'glue' / 'STS-B' / 'dev.tsv').read_text(encoding='utf-8').split('\n')
    lengths = [len(text.split()) + 3 for line in lines[1:] if line
               for text in line.split('\t')[7:9]]
    share, shapes = padding(lengths)
    assert len(lengths) == 3000
    assert share < 0.05
    assert len(shapes) <= 4


def test_row_lengths_fit_what_they_are_chosen_for():
    assert choose_row_lengths(np.array([12, 9]), 768) == (64,)
    assert choose_row_lengths(np.array([12] * 100), 768)[0] == 128
    assert choose_row_lengths(np.array([700, 20]), 768)[-1] == 768
    # What is compiled already is taken where something else is hardly better ...
    lengths = np.array([100] * 96)
    best = choose_row_lengths(lengths, 768)
    assert choose_row_lengths(lengths, 768, used=[best, (64,)]) == best
    # ... and not where it is much worse, or too short.
    assert choose_row_lengths(lengths, 768, used=[(128,)]) == best != (128,)
    assert choose_row_lengths(np.array([300, 100]), 768, used=[(128,)])[-1] >= 300
