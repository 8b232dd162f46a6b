import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.data.packing import pack
from bert_jax.data.pairs import Sequences
from bert_jax.tasks.packing import Units, pack_whole, packed_batch, plan_once, plan_steps, unpack


def flat_cost(row_length):
    return 1.0


def made_units(lengths, choices=1, seed=0):
    """Sequences of random ids with the given lengths; `choices` of them a unit."""
    rng = np.random.default_rng(seed)
    lengths = np.asarray(lengths, np.int64)
    n = len(lengths) // choices
    total = int(lengths.sum())
    sequences = Sequences(
        rng.integers(1, 1000, total).astype(np.int32),
        np.concatenate([[0], np.cumsum(lengths)]),
        np.maximum(lengths // 2, 1),
    )
    return Units(
        sequences, choices,
        labels={'labels': rng.integers(0, 9, n).astype(np.int32)},
        positions={'start_positions': rng.integers(0, 2, n).astype(np.int32)},
        tokens={'token_labels': rng.integers(0, 9, total).astype(np.int32)},
    )


@given(
    st.lists(st.lists(st.integers(0, 20), min_size=12, max_size=12), min_size=1, max_size=4),
    st.integers(20, 45),
)
def test_no_row_overflows_and_every_unit_has_one(lengths, row_length):
    lengths = np.array(lengths)
    rows = pack(lengths, row_length)
    assert ((rows >= 0) == (lengths > 0)).all()
    for group_rows, group in zip(rows, lengths, strict=True):
        used = np.bincount(group_rows[group > 0], weights=group[group > 0])
        assert (used <= row_length).all()
        assert (used > 0).all(), 'rows are numbered without gaps'


def test_best_fit_fills_rows_to_the_brim():
    rows = pack(np.array([[60, 40, 50, 50, 70, 30]]), 100)
    assert rows.max() == 2
    assert rows[0, 0] == rows[0, 1] and rows[0, 2] == rows[0, 3] and rows[0, 4] == rows[0, 5]


def check_batches(units, plan, steps):
    """Every unit of the plan appears once, with all that belongs to it."""
    seen = []
    s = units.sequences
    for step in steps:
        num_rows = int(plan.num_rows[step])
        batch = packed_batch(units, plan, step, np.arange(num_rows))
        for row, slot in zip(*np.nonzero(batch['unit_weights']), strict=True):
            unit = int(batch['unit_index'][row, slot])
            seen.append(unit)
            assert batch['labels'][row, slot] == units.labels['labels'][unit]
            start_of_unit = batch['cls_positions'][row, slot * units.choices]
            assert (batch['start_positions'][row, slot] - start_of_unit
                    == units.positions['start_positions'][unit])
            for c in range(units.choices):
                number = slot * units.choices + c
                begin, end = s.offsets[unit * units.choices + c : unit * units.choices + c + 2]
                cls = batch['cls_positions'][row, number]
                at = np.flatnonzero(batch['sequence_ids'][row] == number + 1)
                np.testing.assert_array_equal(at, np.arange(cls, cls + end - begin))
                np.testing.assert_array_equal(batch['input_ids'][row, at], s.ids[begin:end])
                np.testing.assert_array_equal(batch['position_ids'][row, at], np.arange(len(at)))
                np.testing.assert_array_equal(
                    batch['token_labels'][row, at], units.tokens['token_labels'][begin:end])
                first = s.first_lengths[unit * units.choices + c]
                np.testing.assert_array_equal(
                    batch['segment_ids'][row, at], np.arange(len(at)) >= first)
        real = batch['sequence_ids'] > 0
        assert not batch['input_ids'][~real].any()
    return seen


@settings(deadline=None)
@given(
    st.lists(st.integers(2, 30), min_size=24, max_size=24), st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2]),
)
def test_batches_hold_exactly_their_units(lengths, choices, shards):
    units = made_units(lengths, choices)
    order = np.random.default_rng(1).permutation(len(units)).reshape(-1, 3)
    plan = plan_steps(
        units.lengths, order, row_lengths=(64, 128), shards=shards, token_cost=flat_cost)
    assert (plan.num_rows % shards == 0).all()
    for step in range(len(order)):
        assert sorted(check_batches(units, plan, [step])) == sorted(order[step])


@settings(deadline=None)
@given(st.lists(st.integers(1, 64), min_size=1, max_size=80))
def test_a_whole_set_is_packed_as_one_group(lengths):
    lengths = np.array(lengths)
    rows = pack_whole(lengths, 64)
    np.testing.assert_array_equal(rows, pack(lengths[None], 64)[0])
    assert set(rows) == set(range(rows.max() + 1))


@settings(deadline=None)
@given(st.lists(st.integers(2, 60), min_size=1, max_size=60), st.integers(1, 5), st.integers(0, 2))
def test_one_pass_holds_every_unit_once(lengths, rows_a_step, more):
    units = made_units(lengths)
    rows = pack_whole(units.lengths, 64)
    plan = plan_once(
        units.lengths, rows, row_length=64, rows_a_step=rows_a_step,
        units_a_row=int(np.bincount(rows).max()) + more)
    assert plan.shapes == [(rows_a_step, 64)]
    assert len(plan.units) == -(-len(set(rows)) // rows_a_step)
    seen = check_batches(units, plan, range(len(plan.units)))
    assert sorted(seen) == list(range(len(units)))


def test_hosts_share_a_step():
    units = made_units(np.random.default_rng(0).integers(2, 60, 64))
    plan = plan_steps(
        units.lengths, np.arange(64)[None], row_lengths=(64,), shards=4, token_cost=flat_cost)
    rows = int(plan.num_rows[0])
    whole = packed_batch(units, plan, 0, np.arange(rows))
    halves = [packed_batch(units, plan, 0, part)
              for part in (range(rows // 2), range(rows // 2, rows))]
    for name, x in whole.items():
        np.testing.assert_array_equal(x, np.concatenate([half[name] for half in halves]))


@pytest.mark.parametrize('mean,deviation', [(11, 4.5), (53, 19), (28, 15)])
def test_padding_stays_low_over_four_shapes(mean, deviation):
    """Lengths as of CoLA, MRPC and STS-B; 32 units a step."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.normal(mean, deviation, 32 * 200), 5, 128).astype(np.int64)
    plan = plan_steps(
        lengths, np.arange(len(lengths)).reshape(-1, 32), row_lengths=range(32, 513, 16),
        shards=1, token_cost=lambda s: 24 * 384 + 4 * s)
    assert len(plan.shapes) <= 4
    assert plan.padding < 0.12
    assert lengths.sum() > 0.98 * 256 * (pack_whole(lengths, 256).max() + 1)  # in any order


@pytest.mark.parametrize('choices', [1, 4])
def test_outputs_come_back_in_the_order_of_the_units(choices):
    units = made_units(np.random.default_rng(0).integers(2, 30, 120), choices)
    plan = plan_once(
        units.lengths, pack_whole(units.lengths, 128), row_length=128, rows_a_step=3,
        units_a_row=64)
    collected = {}
    for step in range(len(plan.units)):
        batch = packed_batch(units, plan, step, range(int(plan.num_rows[step])))
        unpack(units, plan, step, {
            'ids': batch['input_ids'], 'labels': batch['labels']}, collected)
    np.testing.assert_array_equal(collected['ids'], units.sequences.ids)
    np.testing.assert_array_equal(collected['labels'], units.labels['labels'])


def test_rows_of_very_different_steps_are_split_evenly():
    """Past 200 different numbers of rows they are rounded: to numbers that the shards divide."""
    steps, most = 420, 1700
    units = np.full((steps, most), -1)
    for i in range(steps):
        units[i, : 4 * (i + 1)] = np.arange(4 * (i + 1))
    plan = plan_steps(
        np.full(most, 30), units, row_lengths=[32], shards=4, token_cost=lambda length: 1.0)
    assert (plan.num_rows % 4 == 0).all()
    assert (plan.num_rows > plan.rows.max(axis=1)).all()
