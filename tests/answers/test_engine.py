"""The engine: sets and streams of units, against transformers' recordings and unit by unit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.answers import engine
from bert_jax.answers.engine import Engine
from bert_jax.model.encoder import Pooler
from bert_jax.predict.model import Model
from bert_jax.rows.packing import Units
from bert_jax.rows.sequences import Sequences
from bert_jax.sharding import make_mesh
from tests.predict import tiny


def units_of(ids, first_lengths, **more):
    offsets = np.concatenate([[0], np.cumsum([len(x) for x in ids])])
    sequences = Sequences.of_segments(
        np.concatenate(ids).astype(np.int32), offsets, np.array(first_lengths))
    return Units(sequences, **more)


def recorded_units(arrays, position=None):
    """Units of the recorded rows without padding; a mask of their tokens among the recorded.

    With a position, the token there is to be predicted.
    """
    ids = rows_of(arrays['input_ids'])
    mask = rows_of(arrays['attention_mask'])
    types = rows_of(arrays['token_type_ids'])
    lengths = mask.sum(1)
    first_lengths = lengths - (types * mask).sum(1)
    more = {}
    if position is not None:
        more['positions'] = {'masked_positions': np.full(len(ids), position)}
        more['labels'] = {'targets': ids[:, position].astype(np.int32)}
    without_padding = [row[:length] for row, length in zip(ids, lengths, strict=True)]
    return units_of(without_padding, first_lengths, **more), mask.reshape(-1) > 0


def rows_of(array):
    """Rows of tokens; the choices of a question are rows of their own."""
    return array.reshape(-1, array.shape[-1])


def run(model, units, function, *arguments):
    """Outputs of a function of `engine`."""
    function = engine.bound(function, model.config, *arguments)
    return model.engine.outputs(function, model.device_params, units)


def assert_close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize('name', ['base', 'base_bfloat16'])
def test_hidden_states_of_transformers(name):
    model, arrays = tiny.recorded(name)
    units, real = recorded_units(arrays)
    states = run(model, units, engine.hidden_states, (-1, -2))['values']
    assert_close(states[:, 0], rows_of(arrays['last_hidden_state'])[real])


@pytest.mark.parametrize('name', ['base', 'base_bfloat16'])
def test_vectors_of_cls_give_the_pooled_vectors_of_transformers(name):
    model, arrays = tiny.recorded(name)
    units, _ = recorded_units(arrays)
    cls = run(model, units, engine.vectors, -1, 'cls', 0)['vectors']
    pooled = Pooler(model.config).apply({'params': model.params['bert']['pooler']}, cls)
    assert_close(pooled, arrays['pooler_output'])


@pytest.mark.parametrize('name', ['base', 'base_bfloat16'])
@pytest.mark.parametrize('pool', ['mean', 'max'])
def test_vectors_are_means_or_maxima_of_hidden_states(name, pool):
    model, arrays = tiny.recorded(name)
    units, _ = recorded_units(arrays)
    states = run(model, units, engine.hidden_states, (-1,))['values'][:, 0]
    found = run(model, units, engine.vectors, -1, pool, 0)['vectors']
    of_units = np.split(states, units.sequences.offsets[1:-1])
    combine = {'mean': np.mean, 'max': np.max}[pool]
    assert_close(found, [combine(of_unit, axis=0) for of_unit in of_units])


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
        if not each[part]:
            return chunk, None
        return chunk, units_of(each[part], units.sequences.first_lengths[part])

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


def shape_of(params, batch):
    """A function that needs no model: rows, length and units a row of each unit's batch."""
    del params
    num_rows, row_length = batch['input_ids'].shape
    units_a_row = batch['cls_positions'].shape[1]
    shape = jnp.array([num_rows, row_length, units_a_row])
    return {'shape': jnp.broadcast_to(shape, (num_rows, units_a_row, 3))}


class PlannedSets:
    """Runs sets of units with some lengths in one engine, to see how they are planned."""

    def __init__(self):
        self.engine = small_engine(lambda row_length: 6 * 768 + row_length)

    def run(self, lengths):
        """(the shape of the set's steps, the number of steps)."""
        shares = []
        units = units_of([np.ones(length) for length in lengths], lengths)
        ((_, outputs),) = self.engine.stream(
            shape_of, None, [units], lambda units: (None, units), report=shares.append)
        (shape,) = {tuple(shape) for shape in outputs['shape'].tolist()}
        return shape, len(shares)


@pytest.mark.parametrize(('low', 'mean', 'sigma', 'high', 'num'), [
    (4, 14, 0.5, 80, 2000),  # captions and headlines
    (8, 50, 0.4, 128, 600),  # pairs of sentences
    (384, 384, 0.0, 384, 100),  # full windows
], ids=['sentences', 'pairs', 'windows'])
def test_padding_stays_low(low, mean, sigma, high, num):
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(np.log(mean), sigma, num).clip(low, high).astype(int)
    (num_rows, row_length, _), num_steps = PlannedSets().run(lengths)
    num_tokens = num_steps * num_rows * row_length
    assert 1 - lengths.sum() / num_tokens < 0.06


def many_sets():
    rng = np.random.default_rng(0)
    return [rng.lognormal(np.log(20), 0.5, int(n)).clip(4, 60).astype(int)
            for n in rng.integers(1000, 3000, 30)]


def test_few_shapes_serve_many_sets():
    sets = PlannedSets()
    assert len({sets.run(lengths)[0] for lengths in many_sets()}) <= 3


def test_a_small_set_and_one_with_a_long_unit_have_shapes_of_their_own():
    first_lengths, last_lengths, *_ = many_sets()
    sets = PlannedSets()
    first, small, other, long, last = (
        sets.run(lengths)[0] for lengths in (first_lengths, [12], [9], [400, 20], last_lengths))
    assert small[:2] == other[:2] == (1, 64)
    assert long[1] >= 400
    assert first[:2] == last[:2]
