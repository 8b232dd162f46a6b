"""The engine: sets and streams of units, against transformers' recordings and unit by unit."""

import jax
import numpy as np
import pytest

from bert_jax.data.packing import Units
from bert_jax.data.pairs import Sequences
from bert_jax.inference import engine
from bert_jax.inference.engine import Engine
from bert_jax.model.encoder import Pooler
from bert_jax.predict.commands import Model
from bert_jax.sharding import make_mesh
from tests.predict import tiny


def units_of(ids, first_lengths, **more):
    offsets = np.concatenate([[0], np.cumsum([len(x) for x in ids])])
    return Units(Sequences(np.concatenate(ids).astype(np.int32), offsets,
                           np.array(first_lengths)), **more)


def recorded_units(arrays, position=None):
    """Units of the recorded rows without padding; a mask of their tokens among the recorded."""
    ids, mask, types = (
        arrays[name].reshape(-1, arrays[name].shape[-1])
        for name in ('input_ids', 'attention_mask', 'token_type_ids'))
    lengths = mask.sum(1)
    rows = [row[:n] for row, n in zip(ids, lengths, strict=True)]
    more = {} if position is None else {
        'positions': {'masked_positions': np.full(len(rows), position)},
        'labels': {'targets': ids[:, position].astype(np.int32)}}
    first = [n - kind[:n].sum() for kind, n in zip(types, lengths, strict=True)]
    return units_of(rows, first, **more), mask.reshape(-1) > 0


def run(model, units, function, *arguments):
    """Outputs of a function of `engine`."""
    function = engine.bound(function, model.config, *arguments)
    return model.engine.outputs(function, model.device_params, units)


def assert_close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize('name', ['base', 'base_bfloat16'])
def test_hidden_states_and_pooled_vectors_of_transformers(name):
    model, arrays = tiny.recorded(name)
    units, real = recorded_units(arrays)
    states = run(model, units, engine.hidden_states, (-1, -2))['values']
    hidden = arrays['last_hidden_state']
    assert_close(states[:, 0], hidden.reshape(-1, hidden.shape[-1])[real])
    cls = run(model, units, engine.vectors, -1, 'cls', 0)['vectors']
    pooled = Pooler(model.config).apply({'params': model.params['bert']['pooler']}, cls)
    assert_close(pooled, arrays['pooler_output'])
    for pool, expected in (('mean', np.mean), ('max', np.max)):
        found = run(model, units, engine.vectors, -1, pool, 0)['vectors']
        parts = np.split(states[:, 0], units.sequences.offsets[1:-1])
        assert_close(found, [expected(part, axis=0) for part in parts])


@pytest.mark.parametrize(('name', 'output'), [
    ('masked_lm', 'logits'), ('pretraining', 'prediction_logits')])
def test_masked_lm_of_transformers(name, output):
    model, arrays = tiny.recorded(name)
    units, _ = recorded_units(arrays, 3)
    log_probs = np.asarray(jax.nn.log_softmax(arrays[output][:, 3]))
    top = run(model, units, engine.masked_lm_top, 40)
    assert (np.sort(top['ids'], axis=1) == np.arange(40)).all()
    assert (np.diff(top['probabilities'], axis=1) <= 0).all()
    np.testing.assert_allclose(
        top['probabilities'], np.take_along_axis(np.exp(log_probs), top['ids'], axis=1),
        rtol=1e-4, atol=1e-6)
    found = run(model, units, engine.masked_lm_log_probability)
    expected = np.take_along_axis(log_probs, units.labels['targets'][:, None], axis=1)[:, 0]
    np.testing.assert_allclose(found['log_probability'], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(('name', 'names'), [
    ('pretraining', {'logits': 'seq_relationship_logits'}),
    ('classification', {'logits': 'logits'}),
    ('regression', {'logits': 'logits'}),
    ('multiple_choice', {'logits': 'logits'}),
    ('token_classification', {'logits': 'logits'}),
    ('question_answering', {'start_logits': 'start_logits', 'end_logits': 'end_logits'}),
])
def test_heads_of_transformers(name, names):
    model, arrays = tiny.recorded(name)
    units, real = recorded_units(arrays)
    outputs = run(model, units, engine.next_sentence) if name == 'pretraining' else (
        model.engine.outputs(model.head.outputs, model.device_params, units))
    assert set(outputs) == set(names)
    for ours, theirs in names.items():
        found, expected = outputs[ours], arrays[theirs]
        if len(found) == len(units):
            assert_close(found, expected.reshape(found.shape))
        else:
            assert_close(found, expected.reshape(len(real), *found.shape[1:])[real])


@pytest.fixture(scope='module')
def weights(tmp_path_factory):
    return tiny.pretraining_weights(tmp_path_factory.mktemp('tiny'))


@pytest.fixture(scope='module')
def model(weights):
    return Model(weights, devices=jax.devices()[:1])


@pytest.fixture(scope='module')
def units():
    rng = np.random.default_rng(1)
    lengths = np.concatenate([rng.integers(2, 20, 150), rng.integers(20, 49, 30)])
    rng.shuffle(lengths)
    ids = [rng.integers(0, len(tiny.VOCAB), n) for n in lengths]
    return units_of(ids, rng.integers(1, lengths + 1))


def test_eight_devices_give_what_one_gives(model, weights, units):
    many = Model(weights, devices=jax.devices()[:8])
    x, y = (run(m, units, engine.vectors, -1, 'mean', 0)['vectors'] for m in (many, model))
    np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


def lengths_of(params, batch):
    """A function that needs no model: the number of tokens of each unit, and the input_ids."""
    del params
    numbers = np.arange(1, batch['cls_positions'].shape[1] + 1)
    own = batch['sequence_ids'][:, None] == numbers[None, :, None]
    return {'lengths': own.sum(-1), 'ids': batch['input_ids']}


def small_engine(token_cost=lambda row_length: 1.0):
    return Engine(make_mesh(1, 1, 1, jax.devices()[:1]), token_cost=token_cost)


def test_a_stream_keeps_chunks_in_order(units):
    """Chunks of any size, some without units; outputs come with their chunk."""
    bounds = [0, 0, 40, 41, 41, 120, 180, 180]
    chunks = list(zip(bounds[:-1], bounds[1:], strict=True))
    each = np.split(units.sequences.ids, units.sequences.offsets[1:-1])

    def prepare(chunk):
        part = slice(*chunk)
        return chunk, units_of(each[part], units.sequences.first_lengths[part]) if each[part] else (
            None)

    found = list(small_engine().stream(lengths_of, None, chunks, prepare))
    assert [made for made, _ in found] == chunks
    for (begin, end), outputs in found:
        if begin == end:
            assert outputs == {}
            continue
        np.testing.assert_array_equal(outputs['lengths'], units.lengths[begin:end])
        a, b = units.sequences.offsets[[begin, end]]
        np.testing.assert_array_equal(outputs['ids'], units.sequences.ids[a:b])


def test_an_exception_in_a_stream_is_raised_where_the_stream_is_read(units):
    def prepare(chunk):
        if chunk == 2:
            raise RuntimeError('chunk two')
        return chunk, units

    stream = small_engine().stream(lengths_of, None, range(9), prepare)
    with pytest.raises(RuntimeError, match='chunk two'):
        list(stream)


def plans(*lengths):
    """One engine's plans of sets of units with these lengths, set after set."""
    runs = small_engine(lambda s: 6 * 768 + s)
    return [runs._plan(lengths_of, units_of([np.ones(n) for n in x], x)) for x in lengths]


@pytest.mark.parametrize(('low', 'mean', 'sigma', 'high', 'num'), [
    (4, 14, 0.5, 80, 2000),  # captions and headlines
    (8, 50, 0.4, 128, 600),  # pairs of sentences
    (384, 384, 0.0, 384, 100),  # full windows
], ids=['sentences', 'pairs', 'windows'])
def test_padding_stays_low(low, mean, sigma, high, num):
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(np.log(mean), sigma, num).clip(low, high).astype(int)
    assert plans(lengths)[0].padding < 0.06


def test_few_shapes_serve_many_sets():
    rng = np.random.default_rng(0)
    sets = [rng.lognormal(np.log(20), 0.5, int(n)).clip(4, 60).astype(int)
            for n in rng.integers(1000, 3000, 30)]
    found = [(plan.shapes, plan.units_a_row) for plan in plans(*sets)]
    assert len(set(map(str, found))) <= 3
    # A small set has shapes of its own, as does one with a unit too long for the others.
    first, small, other, long, last = plans(sets[0], [12], [9], [400, 20], sets[1])
    assert small.shapes == other.shapes == [(1, 64)] and long.row_length >= 400
    assert first.shapes == last.shapes
