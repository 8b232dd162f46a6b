"""Packing: every unit appears once, in a row with room for it, with all its features."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bert_jax.data import packing
from bert_jax.data.examples import Mixture, SyntheticExamples
from bert_jax.data.packed_examples import PackedExamples
from bert_jax.data.pairs import Sequences, joined, make_sequences
from bert_jax.runtime.errors import InputError
from tests.data.stores import assert_same, check_batch, make_examples, random_store, truncated


def made_units(lengths, choices=1):
    """Units of random ids, from sequences of the given lengths, `choices` of them per unit."""
    rng = np.random.default_rng(0)
    lengths = np.asarray(lengths, np.int64)
    n, total = len(lengths) // choices, int(lengths.sum())
    return packing.Units(
        Sequences(
            rng.integers(1, 1000, total).astype(np.int32), np.cumsum([0, *lengths]),
            np.maximum(lengths // 2, 1)),
        choices,
        labels={'labels': rng.integers(0, 9, n).astype(np.int32)},
        positions={'start_positions': rng.integers(0, 2, n).astype(np.int32)},
        tokens={'token_labels': rng.integers(0, 9, total).astype(np.int32)},
    )


def steps_of(lengths, units, row_lengths=(64, 128), shards=1, token_cost=lambda s: 1.0):
    return packing.plan_steps(
        lengths, units, row_lengths=row_lengths, shards=shards, token_cost=token_cost)


@settings(deadline=None)
@given(st.lists(st.integers(1, 64), min_size=1, max_size=80))
def test_pack_whole_packs_a_set_as_pack_packs_one_group(lengths):
    rows = packing.pack_whole(np.array(lengths), 64)
    np.testing.assert_array_equal(rows, packing.pack(np.array([lengths]), 64)[0])
    assert set(rows) == set(range(rows.max() + 1))


def check_batches(units, plan, steps):
    """Asserts that units have all their features; the units of these steps, sorted."""
    seen, s, c = [], units.sequences, units.choices
    for step in steps:
        batch = packing.packed_batch(units, plan, step, np.arange(plan.num_rows[step]))
        for row, slot in zip(*np.nonzero(batch['unit_weights']), strict=True):
            here = {name: x[row] for name, x in batch.items()}
            unit = int(here['unit_index'][slot])
            seen.append(unit)
            assert here['labels'][slot] == units.labels['labels'][unit]
            start = here['start_positions'][slot] - here['cls_positions'][slot * c]
            assert start == units.positions['start_positions'][unit]
            for i in range(c):
                sequence, number = unit * c + i, slot * c + i
                tokens, position = (
                    slice(*s.offsets[sequence:sequence + 2]), np.arange(s.lengths[sequence]))
                at = np.flatnonzero(here['sequence_ids'] == number + 1)
                np.testing.assert_array_equal(at, here['cls_positions'][number] + position)
                for name, expected in (
                    ('input_ids', s.ids[tokens]), ('position_ids', position),
                    ('token_labels', units.tokens['token_labels'][tokens]),
                    ('segment_ids', position >= s.first_lengths[sequence]),
                ):
                    np.testing.assert_array_equal(here[name][at], expected)
        assert not batch['input_ids'][batch['sequence_ids'] == 0].any()
    return sorted(seen)


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
    for step, here in enumerate(order):
        assert check_batches(units, plan, [step]) == sorted(here)
        whole = packing.packed_batch(units, plan, step, np.arange(plan.num_rows[step]))
        for host in range(2):
            half = packing.packed_batch(units, plan, step, np.arange(host, plan.num_rows[step], 2))
            assert_same(half, {name: x[host::2] for name, x in whole.items()})


@settings(deadline=None)
@given(st.lists(st.integers(2, 60), min_size=1, max_size=60), st.integers(1, 5), st.integers(0, 2),
       st.sampled_from([1, 2]))
def test_one_pass_holds_every_unit_once(lengths, rows_a_step, more, choices):
    units = made_units([length for length in lengths for _ in range(choices)], choices)
    rows = packing.pack_whole(units.lengths, 128)
    plan = packing.plan_once(
        units.lengths, rows, row_length=128, rows_a_step=rows_a_step,
        units_a_row=int(np.bincount(rows).max()) + more)
    assert plan.shapes == [(rows_a_step, 128)]
    assert len(plan.units) == -(-len(set(rows)) // rows_a_step)
    steps = range(len(plan.units))
    assert check_batches(units, plan, steps) == list(range(len(units)))
    collected = {}
    for step in steps:  # outputs come back in the order of the units
        batch = packing.packed_batch(units, plan, step, np.arange(rows_a_step))
        packing.unpack(units, plan, step, {
            'ids': batch['input_ids'], 'labels': batch['labels']}, collected)
    np.testing.assert_array_equal(collected['ids'], units.sequences.ids)
    np.testing.assert_array_equal(collected['labels'], units.labels['labels'])


@pytest.mark.parametrize('mean,deviation', [(11, 4.5), (53, 19), (28, 15)])
def test_padding_stays_low_over_four_shapes(mean, deviation):
    """Lengths like those of CoLA, MRPC and STS-B; 32 units a step."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.normal(mean, deviation, 32 * 200), 5, 128).astype(np.int64)
    plan = steps_of(
        lengths, np.arange(len(lengths)).reshape(-1, 32), range(32, 513, 16),
        token_cost=lambda s: 24 * 384 + 4 * s)
    assert len(plan.shapes) <= 4
    assert plan.padding < 0.12
    assert lengths.sum() > 0.98 * 256 * (packing.pack_whole(lengths, 256).max() + 1)  # as one group


BATCH = 48


@pytest.fixture(scope='module')
def examples():
    """Examples from short documents: a pair fills about half a row."""
    return make_examples(random_store(150, most_sentences=6, most_tokens=12), short_seq_prob=0.3)


def pairs_of(batch):
    """The pairs of rows, sorted, each as (ids, segments, [(position, label)], is_random)."""
    pairs = []
    labels, positions = batch['next_sentence_labels'], batch['masked_lm_positions']
    for r, numbers in enumerate(batch['sequence_ids']):
        used = batch['masked_lm_weights'][r] == 1
        assert (np.diff(positions[r, used]) > 0).all() and not used[used.sum():].any()
        assert (numbers[positions[r, used]] > 0).all()  # every used slot belongs to a pair
        for k in range(numbers.max()):
            here = np.flatnonzero(numbers == k + 1)
            mine = used & np.isin(positions[r], here)
            pairs.append((
                batch['input_ids'][r, here].tolist(), batch['segment_ids'][r, here].tolist(),
                list(zip((positions[r, mine] - here[0]).tolist(),
                         batch['masked_lm_ids'][r, mine].tolist(), strict=True)),
                int(labels[r] if labels.ndim == 1 else labels[r, k]),
            ))
            if 'cls_positions' in batch:
                assert (np.diff(here) == 1).all() and here[0] == batch['cls_positions'][r, k]
                assert (batch['position_ids'][r, here] == np.arange(len(here))).all()
        assert np.sum(batch['example_weights'][r]) == numbers.max()
    return sorted(pairs)


@pytest.mark.parametrize(('batch_size', 'num_rows', 'step', 'mixed'), [
    (BATCH, 40, 0, False), (BATCH, 40, 40, False), (BATCH, 46, 1, True),
    (3000, 2800, 1, False),  # packed in groups
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
    assert_same(packed.rows(step * num_rows + share), {k: x[share] for k, x in batch.items()})


def test_too_few_packed_rows_are_refused_with_a_number_that_is_enough(examples):
    with pytest.raises(InputError, match='packed_rows=8 are too few: the 48 sequences') as error:
        PackedExamples(examples, BATCH, 8)
    enough = int(str(error.value).split('Set it to ')[1].split()[0])
    assert 8 < enough < BATCH
    PackedExamples(examples, BATCH, enough)
    full = SyntheticExamples(vocab_size=50, max_seq_length=16, max_predictions_per_seq=2)
    with pytest.raises(InputError, match='Set it to 0 for'):
        PackedExamples(full, 8, 7)


CLS, SEP = 101, 102
texts = st.lists(st.integers(1000, 2000), max_size=12)


@settings(deadline=None)
@given(st.lists(st.tuples(texts, texts), max_size=6), st.integers(3, 20), st.booleans(),
       st.sampled_from([np.uint16, np.int32, np.int64]))
@example([([], [])], 3, False, np.int32)
def test_sequences_of_pairs_and_single_texts(pairs, max_length, single, dtype):
    a, b = ((ids.astype(dtype), counts.astype(np.int32)) for ids, counts in (
        joined([pair[i] for pair in pairs]) for i in (0, 1)))
    sequences = make_sequences(
        a, None if single else b, max_length=max_length, cls_id=CLS, sep_id=SEP)
    want = []
    for a, b in pairs:
        if single:
            want.append(([CLS, *a[:max_length - 2], SEP], min(len(a) + 2, max_length)))
            continue
        a_kept, b_kept = truncated(len(a), len(b), max_length - 3)
        want.append(([CLS, *a[:a_kept], SEP, *b[:b_kept], SEP], a_kept + 2))
    parts = np.split(sequences.ids, sequences.offsets[1:-1]) if len(sequences) else []
    assert [part.tolist() for part in parts] == [ids for ids, _ in want]
    assert sequences.first_lengths.tolist() == [first for _, first in want]
    assert (sequences.ids.dtype, sequences.offsets.dtype) == (np.int32, np.int64)
    assert sequences.lengths.tolist() == [len(ids) for ids, _ in want]
