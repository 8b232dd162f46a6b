"""Packing: every unit appears once, in a row with room for it, with all its features."""

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bert_jax.config.choices import MASKINGS
from bert_jax.config.phases import prediction_slots
from bert_jax.rows import packing
from bert_jax.rows.examples import Mixture, SyntheticExamples
from bert_jax.rows.packed_examples import PackedExamples
from bert_jax.rows.sequences import Sequences, joined, make_sequences
from bert_jax.runtime.errors import InputError
from bert_jax.text.frames import berts_frame
from tests.rows.stores import assert_same, check_batch, make_examples, random_store, truncated


def made_units(lengths, choices=1):
    """Units of random ids, from sequences of the given lengths, `choices` of them per unit."""
    rng = np.random.default_rng(0)
    lengths = np.asarray(lengths, np.int64)
    num_units = len(lengths) // choices
    num_tokens = int(lengths.sum())
    sequences = Sequences.of_segments(
        ids=rng.integers(1, 1000, num_tokens).astype(np.int32),
        offsets=np.cumsum([0, *lengths]),
        first_lengths=np.maximum(lengths // 2, 1))
    return packing.Units(
        sequences,
        choices,
        labels={'labels': rng.integers(0, 9, num_units).astype(np.int32)},
        positions={'start_positions': rng.integers(0, 2, num_units).astype(np.int32)},
        tokens={'token_labels': rng.integers(0, 9, num_tokens).astype(np.int32)},
    )


def steps_of(lengths, units, row_lengths=(64, 128), shards=1, token_cost=lambda row_length: 1.0):
    return packing.Planner(shards, token_cost).steps(lengths, units, row_lengths)


@settings(deadline=None)
@given(st.lists(st.integers(0, 64), min_size=1, max_size=80).filter(any))
def test_a_set_is_packed_as_one_group_among_others(lengths):
    (rows,) = packing.pack(np.array([lengths]), 64)
    for of_group in packing.pack(np.array([lengths, lengths]), 64):
        np.testing.assert_array_equal(rows, of_group)
    assert set(rows[rows >= 0]) == set(range(rows.max() + 1))
    assert ((rows < 0) == (np.array(lengths) == 0)).all()


def check_batches(units, plan, steps):
    """Asserts that units have all their features; the units of these steps, sorted."""
    seen = []
    for step in steps:
        batch = packing.packed_batch(units, plan, step, np.arange(plan.num_rows[step]))
        for number, index_in_row in zip(*np.nonzero(batch['unit_weights']), strict=True):
            row = {name: values[number] for name, values in batch.items()}
            seen.append(check_unit(units, row, index_in_row))
        assert not batch['input_ids'][batch['sequence_ids'] == 0].any()
    return sorted(seen)


def check_unit(units, row, index_in_row):
    """Asserts that a row holds all features of one of its units; the unit."""
    unit = int(row['unit_index'][index_in_row])
    assert row['labels'][index_in_row] == units.labels['labels'][unit]
    first_cls = row['cls_positions'][index_in_row * units.choices]
    start = row['start_positions'][index_in_row] - first_cls
    assert start == units.positions['start_positions'][unit]
    for choice in range(units.choices):
        check_sequence(
            units, row, sequence=unit * units.choices + choice,
            index_in_row=index_in_row * units.choices + choice)
    return unit


def check_sequence(units, row, sequence, index_in_row):
    """Asserts that a row holds all tokens of one of its sequences, and what belongs to them."""
    sequences = units.sequences
    tokens = slice(*sequences.offsets[sequence : sequence + 2])
    position = np.arange(sequences.lengths[sequence])
    columns = np.flatnonzero(row['sequence_ids'] == index_in_row + 1)
    np.testing.assert_array_equal(columns, row['cls_positions'][index_in_row] + position)
    np.testing.assert_array_equal(row['input_ids'][columns], sequences.ids[tokens])
    np.testing.assert_array_equal(row['position_ids'][columns], position)
    np.testing.assert_array_equal(
        row['token_labels'][columns], units.tokens['token_labels'][tokens])
    np.testing.assert_array_equal(
        row['segment_ids'][columns], position >= sequences.first_lengths[sequence])


@settings(deadline=None)
@given(
    st.lists(st.integers(2, 30), min_size=24, max_size=24), st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2]),
)
def test_batches_hold_exactly_their_units(lengths, choices, shards):
    units = made_units(lengths, choices)
    order = np.random.default_rng(1).permutation(len(units)).reshape(-1, 3)
    plan = steps_of(units.lengths, order, shards=shards)
    assert (plan.num_rows % shards == 0).all()
    for step, expected in enumerate(order):
        assert check_batches(units, plan, [step]) == sorted(expected)
        rows = np.arange(plan.num_rows[step])
        whole = packing.packed_batch(units, plan, step, rows)
        for host in range(2):
            half = packing.packed_batch(units, plan, step, rows[host::2])
            assert_same(half, {name: values[host::2] for name, values in whole.items()})


def planned_once(units, rows_a_step, more=0):
    """A plan of one pass; a row has places for `more` units than the fullest holds."""
    (rows,) = packing.pack(units.lengths[None], 128)
    shape = packing.Shape(rows_a_step, 128, int(np.bincount(rows).max()) + more)
    return rows, shape, packing.Plan.of_rows(units.lengths, rows, shape)


_passes = given(
    lengths=st.lists(st.integers(2, 60), min_size=1, max_size=60),
    rows_a_step=st.integers(1, 5),
    more=st.integers(0, 2),
    choices=st.sampled_from([1, 2]),
)


@settings(deadline=None)
@_passes
def test_one_pass_holds_every_unit_once(lengths, rows_a_step, more, choices):
    units = made_units(np.repeat(lengths, choices), choices)
    rows, shape, plan = planned_once(units, rows_a_step, more)
    assert plan.shapes == [shape]
    assert len(plan.units) == -(-len(set(rows)) // rows_a_step)
    assert check_batches(units, plan, range(len(plan.units))) == list(range(len(units)))


@settings(deadline=None)
@_passes
def test_outputs_come_back_in_the_order_of_the_units(lengths, rows_a_step, more, choices):
    units = made_units(np.repeat(lengths, choices), choices)
    _, _, plan = planned_once(units, rows_a_step, more)
    collected = {}
    for step in range(len(plan.units)):
        batch = packing.packed_batch(units, plan, step, np.arange(rows_a_step))
        outputs = {'ids': batch['input_ids'], 'labels': batch['labels']}
        packing.unpack(units, plan, step, outputs, collected)
    np.testing.assert_array_equal(collected['ids'], units.sequences.ids)
    np.testing.assert_array_equal(collected['labels'], units.labels['labels'])


def plans_by_length(lengths, cost_of_a_key):
    planner = packing.Planner(1, lambda row_length: 1000.0 + cost_of_a_key * row_length)
    return planner.by_length(np.array(lengths), 1024, frozenset())


@settings(deadline=None)
@given(st.lists(st.integers(2, 700), min_size=1, max_size=60), st.sampled_from([0.0, 10.0]))
@example([50] * 200 + [300], 10.0)
def test_plans_by_length_hold_every_unit_once(lengths, cost_of_a_key):
    units = made_units(lengths)
    seen = []
    for plan in plans_by_length(lengths, cost_of_a_key):
        assert 0 <= plan.padding < 1
        seen += check_batches(units, plan, range(len(plan.units)))
    assert sorted(seen) == list(range(len(units)))


@pytest.mark.parametrize(('cost_of_a_key', 'row_lengths'), [(0.0, {512}), (10.0, {512, 64})])
def test_few_long_units_do_not_make_all_rows_long_where_that_costs(cost_of_a_key, row_lengths):
    plans = plans_by_length([20] * 2000 + [450], cost_of_a_key)
    assert {plan.row_length for plan in plans} == row_lengths
    assert plans[0].tokens > 450  # short ones fill up the row of the long one


@pytest.mark.parametrize('mean,deviation', [(11, 4.5), (53, 19), (28, 15)])
def test_padding_stays_low_over_four_shapes(mean, deviation):
    """Lengths like those of CoLA, MRPC and STS-B; 32 units a step."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.normal(mean, deviation, 32 * 200), 5, 128).astype(np.int64)
    plan = steps_of(
        lengths, np.arange(len(lengths)).reshape(-1, 32), range(32, 513, 16),
        token_cost=lambda row_length: 24 * 384 + 4 * row_length)
    assert len(plan.shapes) <= 4
    assert plan.padding < 0.12
    as_one_group = packing.pack(lengths[None], 256)
    assert lengths.sum() > 0.98 * 256 * (as_one_group.max() + 1)


BATCH = 48


@pytest.fixture(scope='module')
def examples():
    """Examples from short documents: a pair fills about half a row."""
    return make_examples(random_store(150, most_sentences=6, most_tokens=12), short_seq_prob=0.3)


class Pair(NamedTuple):
    """A pair in a row; places are counted from its [CLS]."""

    ids: list
    segments: list
    labels: list  # (place, piece) of each masked position
    is_random: int


def pairs_of(batch):
    """The pairs of all rows, sorted; asserts that rows hold nothing else."""
    pairs = []
    for number in range(len(batch['input_ids'])):
        row = {name: values[number] for name, values in batch.items()}
        pairs += pairs_of_row(row)
    return sorted(pairs)


def pairs_of_row(row):
    used = row['masked_lm_weights'] == 1
    positions = row['masked_lm_positions'][used]
    assert (np.diff(positions) > 0).all()
    assert not used[used.sum():].any()
    assert (row['sequence_ids'][positions] > 0).all(), 'every used slot belongs to a pair'
    num_pairs = row['sequence_ids'].max()
    assert np.sum(row['example_weights']) == num_pairs
    next_sentence_labels = np.atleast_1d(row['next_sentence_labels'])
    pairs = []
    for index_in_row in range(num_pairs):
        columns = np.flatnonzero(row['sequence_ids'] == index_in_row + 1)
        if 'cls_positions' in row:
            assert (np.diff(columns) == 1).all()
            assert columns[0] == row['cls_positions'][index_in_row]
            assert (row['position_ids'][columns] == np.arange(len(columns))).all()
        own = np.isin(positions, columns)
        places = (positions[own] - columns[0]).tolist()
        pieces = row['masked_lm_ids'][used][own].tolist()
        pairs.append(Pair(
            row['input_ids'][columns].tolist(),
            row['segment_ids'][columns].tolist(),
            list(zip(places, pieces, strict=True)),
            int(next_sentence_labels[index_in_row])))
    return pairs


@pytest.mark.parametrize(('batch_size', 'num_rows', 'step', 'mixed'), [
    pytest.param(BATCH, 40, 0, False, id='first step'),
    pytest.param(BATCH, 40, 40, False, id='later step'),
    pytest.param(BATCH, 46, 1, True, id='mixture'),
    pytest.param(3000, 2800, 1, False, id='packed in groups'),
])
def test_packing_keeps_the_pairs_of_a_step(examples, batch_size, num_rows, step, mixed):
    if mixed:
        other = make_examples(random_store(40, seed=1), seed=9)
        examples = Mixture([examples, other], [2.0, 1.0], 0)
    packed = PackedExamples(examples, batch_size, num_rows)
    batch = packed.rows(step * num_rows + np.arange(num_rows))
    check_batch(packed.spec, batch)
    assert pairs_of(batch) == pairs_of(examples.rows(step * batch_size + np.arange(batch_size)))
    assert (batch['sequence_ids'].max(axis=1) > 1).any()  # some rows hold several pairs
    share = np.arange(num_rows // 3, num_rows, 7)  # the rows of one host
    part = packed.rows(step * num_rows + share)
    assert_same(part, {name: values[share] for name, values in batch.items()})


def test_too_few_packed_rows_are_refused_with_numbers_that_are_enough(examples):
    with pytest.raises(InputError, match='packed_rows=8 are too few: .* the 48 seq') as error:
        PackedExamples(examples, BATCH, 8)
    enough = int(str(error.value).split('Set it to ')[1].split()[0])
    assert 8 < enough < BATCH
    PackedExamples(examples, BATCH, enough)
    fitting = int(str(error.value).split()[-1])
    assert PackedExamples(examples, fitting, 8).left_out < 0.1
    full = SyntheticExamples(vocab_size=50, max_seq_length=16, max_predictions_per_seq=2)
    with pytest.raises(InputError, match='Set it to 0 for'):
        PackedExamples(full, 8, 7)


def long_examples(row_length, masking='pieces'):
    """Examples of documents of a few tokens to several rows."""
    store = random_store(400, most_sentences=40, most_tokens=30)
    return make_examples(
        store, max_seq_length=row_length, max_predictions_per_seq=prediction_slots(row_length, 0.3),
        masked_lm_prob=0.3, next_sentence=False, short_seq_prob=0.0, masking=masking)


def test_pairs_that_have_no_room_are_left_out_and_the_rows_are_full():
    examples = long_examples(256)
    packed = PackedExamples(examples, 180, 120)
    assert 0.02 < packed.left_out < 0.1
    assert packed.filled > 0.97
    assert f'{packed.left_out:.1%} of their tokens have no room' in packed.summary()
    before = pairs_of(examples.rows(180 * 3 + np.arange(180)))
    batch = packed.rows(120 * 3 + np.arange(120))
    found = pairs_of(batch)
    assert len(found) < len(before)
    assert all(pair in before for pair in found), 'the others are whole'
    kept = np.array([len(pair.ids) for pair in found])
    every = np.array([len(pair.ids) for pair in before])
    assert kept.sum() == (batch['sequence_ids'] > 0).sum() > 0.97 * 120 * 256
    assert kept.mean() == pytest.approx(every.mean(), rel=0.1), 'long and short ones alike'


def test_rows_that_are_not_full_say_what_would_fill_them():
    packed = PackedExamples(long_examples(256), 150, 150)
    assert packed.left_out == 0
    assert packed.filled < 0.9
    fitting = int(packed.summary().split('a batch of ')[1].split()[0])
    assert PackedExamples(long_examples(256), fitting, 150).filled > 0.95


@pytest.mark.parametrize('masking', MASKINGS)
def test_long_packed_rows_hold_the_same_pairs_with_their_share_of_masks(masking):
    """Short pairs are made in narrower rows than long ones."""
    examples = long_examples(1024, masking)
    packed = PackedExamples(examples, 60, 60)
    assert packed.left_out == 0
    batch = packed.rows(60 + np.arange(60))
    check_batch(packed.spec, batch)
    before = examples.rows(60 + np.arange(60))
    assert pairs_of(batch) == pairs_of(before)
    lengths = (before['sequence_ids'] > 0).sum(axis=1)
    assert lengths.min() < 256 < 512 < lengths.max(), 'several widths'
    num_masked = (batch['masked_lm_weights'] > 0).sum()
    assert num_masked == pytest.approx(0.3 * lengths.sum(), rel=0.02)


CLS, SEP = 101, 102
texts = st.lists(st.integers(1000, 2000), max_size=12)


def expected_sequence(a, b, max_length):
    """(ids, tokens of segment 0) of a pair, or of a single text where `b` is None."""
    if b is None:
        first = [CLS, *a[:max_length - 2], SEP]
        return first, len(first)
    a_kept, b_kept = truncated(len(a), len(b), max_length - 3)
    first = [CLS, *a[:a_kept], SEP]
    return [*first, *b[:b_kept], SEP], len(first)


@settings(deadline=None)
@given(st.lists(st.tuples(texts, texts), max_size=6), st.integers(3, 20), st.booleans(),
       st.sampled_from([np.uint16, np.int32, np.int64]))
@example([([], [])], 3, False, np.int32)
def test_sequences_of_pairs_and_single_texts(pairs, max_length, single, dtype):
    if single:
        pairs = [(a, None) for a, _ in pairs]

    def tokens(some_texts):
        ids, counts = joined(some_texts)
        return ids.astype(dtype), counts.astype(np.int32)

    sequences = make_sequences(
        tokens([a for a, _ in pairs]),
        None if single else tokens([b for _, b in pairs]),
        max_length=max_length, frame=berts_frame(CLS, SEP))
    expected = [expected_sequence(a, b, max_length) for a, b in pairs]
    found = np.split(sequences.ids, sequences.offsets[1:-1]) if len(sequences) else []
    assert [ids.tolist() for ids in found] == [ids for ids, _ in expected]
    assert sequences.first_lengths.tolist() == [first for _, first in expected]
    assert sequences.ids.dtype == np.int32
    assert sequences.offsets.dtype == np.int64
    assert sequences.lengths.tolist() == [len(ids) for ids, _ in expected]
