"""A train step computes the same on any mesh and with any number of accumulation steps."""

import collections
import functools
import math
import re
import types
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from toy import Toy, batch, mesh, sgd_step

from bert_jax.data.examples import SyntheticExamples
from bert_jax.heads.pretraining import Pretraining
from bert_jax.model.layers import ModelConfig
from bert_jax.runtime.errors import Diverged
from bert_jax.sharding import Layout, to_global
from bert_jax.train import step as steps
from bert_jax.train.optimizers import ScheduleSegment, make_optimizer, make_schedule
from bert_jax.train.verify import make_verify
from tests.tiny_models import fixed_step

pytestmark = pytest.mark.slow

BATCH, STEPS = 16, 5


def bert_batches():
    """Rows with different numbers of tokens and predictions."""
    examples = SyntheticExamples(vocab_size=300, max_seq_length=16, max_predictions_per_seq=6)
    rng = np.random.default_rng(0)
    for step in range(STEPS):
        rows = examples.rows(np.arange(step * BATCH, (step + 1) * BATCH))
        slots, length = rng.integers(0, 7, (BATCH, 1)), rng.integers(8, 17, (BATCH, 1))
        rows['masked_lm_weights'] = (np.arange(6) < slots).astype(np.float32)
        rows['sequence_ids'] = (np.arange(16) < length).astype(np.int32)
        rows['example_weights'][-3:] = 0
        yield rows


def run_of(axes, parts):
    """Five steps of a small BERT with dropout on a mesh."""
    on = mesh(*axes)
    task = Pretraining(ModelConfig(
        vocab_size=300, num_layers=2, hidden_size=32, num_heads=4, intermediate_size=64,
        max_position_embeddings=16, hidden_dropout=0.2, attention_dropout=0.2, layout=Layout(on)))
    schedule = make_schedule([ScheduleSegment(0, 20, 1e-3, 2)])
    optimizer = make_optimizer('bert_adamw', schedule, steps.parameters_of(task), weight_decay=0.01,
                               b1=0.9, b2=0.999, eps=1e-6)
    step = fixed_step(
        task, optimizer, schedule, on, seed=3, clip_norm=1.0, accumulation_steps=parts)
    shardings = jax.tree.map(lambda x: x.sharding, steps.abstract_state(task, optimizer, on))
    state = steps.make_init(task, optimizer, on)(0)
    run = types.SimpleNamespace(axes=axes, initial=jax.device_get(state.params), metrics=[])
    batches = [to_global(on, rows, BATCH, range(BATCH)) for rows in bert_batches()]
    # So small that the logits are computed in 1, 2 or 3 parts, depending on the rows of a device.
    with mock.patch('bert_jax.heads.pretraining.CHUNK_BYTES_ON_CPU', 60_000):
        compiled = step.lower(state, batches[0]).compile({'xla_backend_optimization_level': 0})
    run.hlo = compiled.as_text()
    for rows in batches:
        state, metrics = compiled(state, rows)
        run.metrics.append(jax.device_get(metrics))
        stayed = jax.tree.map(
            lambda x, to: x.sharding.is_equivalent_to(to, x.ndim), state, shardings)
        run.stayed = jax.tree.leaves(stayed)
        state = jax.device_put(state, shardings)
    run.params = state.params
    return run


@pytest.fixture(scope='module')
def alone():
    return run_of((1, 1, 1), 1)


@pytest.fixture(scope='module', params=[
    ((8, 1, 1), 2), ((2, 2, 2), 2), ((2, 4, 1), 1), ((4, 1, 2), 4),
], ids=lambda p: '{}x{}x{} in {}'.format(*p[0], p[1]))
def other(request):
    return run_of(*request.param)


def assert_close(found, expected, **tolerance):
    jax.tree.map(functools.partial(np.testing.assert_allclose, **tolerance), found, expected)


def test_any_mesh_and_any_number_of_parts_train_alike_with_dropout_on(alone, other):
    assert_close(other.metrics, alone.metrics, rtol=2e-5)
    assert_close(other.initial, alone.initial, atol=2e-7)
    # Adam divides by the gradient's size: where that is near 0, rounding shows in updates of 1e-3.
    ours, theirs = jax.device_get((other.params, alone.params))
    assert_close(ours, theirs, atol=1e-4)
    errors = jax.tree.map(lambda x, y: np.abs(x - y).mean(), ours, theirs)
    assert max(jax.tree.leaves(errors)) < 2e-6


def test_a_step_returns_the_state_in_the_layout_that_it_came_in(other):
    """Otherwise, the next call would compile the step again."""
    words = other.params['bert']['embeddings']['word_embeddings']
    assert words.addressable_shards[0].data.shape == (384 // 8, 32)
    kernel = other.params['bert']['encoder']['layer_0']['attention']['self']['qkv']['kernel']
    assert kernel.addressable_shards[0].data.size == kernel.size // 8
    assert all(other.stayed)


COLLECTIVE = re.compile(
    r'= (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(')


def test_a_step_reduces_each_gradient_once_however_often_a_parameter_is_used(other):
    """The word embeddings are used twice, and accumulation loops over parts of the batch."""
    data, fsdp, tensor = other.axes
    if tensor > 1:
        pytest.skip('it adds up activations in every layer')
    in_loops, entry = other.hlo.split('\nENTRY ')
    assert not COLLECTIVE.search(in_loops)
    moved = collections.Counter()
    for arrays, kind in COLLECTIVE.findall(entry):
        for dims in re.findall(r'\w+\[([\d,]+)\]', arrays):  # not scalars: losses, norms, counts
            moved[kind] += math.prod(map(int, dims.split(',')))
    expected = collections.Counter()
    for x in jax.tree.leaves(other.params):
        left = x.size
        for axis, size in (('fsdp', fsdp), ('data', data)):  # one after the other
            if size > 1 and axis in jax.tree.leaves(tuple(x.sharding.spec)):
                left //= size
                expected['reduce-scatter'] += left
        if left > x.size // 8:
            expected['all-reduce'] += left
        if left < x.size:
            expected['all-gather'] += x.size
    # A parameter split at two dims is gathered in two steps.
    gathered = expected.pop('all-gather')
    assert gathered <= moved.pop('all-gather') <= 1.5 * gathered
    assert moved == expected


def toy_run(batches=(0, 1, 2), **options):
    """(state, metrics by step) of the toy task on one device."""
    optimizer, step = sgd_step(mesh(), **options)
    state, all_metrics = steps.make_init(Toy(), optimizer, mesh())(0), []
    for i in batches:
        state, metrics = step(state, batch(i))
        all_metrics.append(jax.device_get(metrics))
    return jax.device_get(state), all_metrics


@pytest.mark.parametrize('frozen', [(), {('dense', 'bias')}])
@pytest.mark.parametrize('clip_norm', [0.0, 0.5, 1e6])
def test_the_global_norm_and_clipping_leave_out_frozen_parameters(clip_norm, frozen):
    state, metrics = toy_run([0], optimizer=optax.sgd(1.0), clip_norm=clip_norm, frozen=frozen)
    assert bool(frozen) != state.params['dense']['bias'].any()
    step = jax.tree.map(np.subtract, toy_run([])[0].params, state.params)
    length = np.sqrt(sum(np.sum(np.square(x)) for x in jax.tree.leaves(step)))
    norm = metrics[0]['grad_norm']
    assert norm > 0.6
    np.testing.assert_allclose(length, min(norm, clip_norm) if clip_norm else norm, rtol=1e-5)


def test_dropout_follows_the_seed_and_the_step():
    def losses(seed):
        return [float(m['loss']) for m in toy_run([0, 0, 0], rate=0.0, seed=seed)[1]]

    one = losses(0)
    assert losses(0) == one
    assert len({*one, *losses(1)}) == 6


def test_the_state_is_donated_and_counts_its_steps():
    optimizer, step = sgd_step(mesh(8))
    state = steps.make_init(Toy(), optimizer, mesh(8))(0)
    after, _ = step(state, to_global(mesh(8), batch(0), 8, range(8)))
    assert after.step == 1
    assert all(x.is_deleted() for x in jax.tree.leaves((state.params, state.opt_state)))


def test_evaluation_uses_no_dropout_and_gives_sums():
    rows, params = batch(0), toy_run([])[0].params
    sums = steps.make_eval_step(Toy(), mesh(8))(params, to_global(mesh(8), rows, 8, range(8)))
    error = rows['x'] @ params['dense']['kernel'] + params['dense']['bias'] - rows['y']
    expected = ((error**2).mean(-1) * rows['weights']).sum()
    np.testing.assert_allclose(sums['squares'], expected, rtol=1e-5)
    assert sums['rows'] == rows['weights'].sum()


class Broken(Toy):
    """A task whose loss is a little off on device 5."""

    def loss(self, params, batch, totals, rows_Bx2):
        loss, sums = super().loss(params, batch, totals, rows_Bx2)
        index = jax.lax.axis_index('data') * jax.lax.axis_size('fsdp') + jax.lax.axis_index('fsdp')
        return loss * jnp.where(index == 5, 1.0 + 2e-7, 1.0), sums


@pytest.mark.parametrize('axes', [(8, 1, 1), (4, 2, 1), (2, 4, 1), (4, 1, 2)])
@pytest.mark.parametrize('parts', [1, 2])
def test_devices_agree_with_their_neighbours_to_the_bit(axes, parts):
    on = mesh(*axes)
    state = steps.make_init(Toy(), optax.sgd(0.1), on)(0)
    rows = to_global(on, batch(0, size=32), 32, range(32))
    checksums = make_verify(Toy(), on, seed=0, accumulation_steps=parts)(state, rows)
    assert len(set(checksums[0].tolist())) == axes[0] * axes[1], 'each has its own rows'


@pytest.mark.parametrize('axes', [(8, 1, 1), (4, 2, 1)])
def test_a_device_that_computes_wrongly_is_named(axes):
    on = mesh(*axes)
    state = steps.make_init(Toy(), optax.sgd(0.1), on)(0)
    rows, broken = to_global(on, batch(0, size=32), 32, range(32)), on.devices.flatten()[5]
    with pytest.raises(Diverged, match=f'step 1: gradients .* neighbours: {broken} of host 0 comp'):
        make_verify(Broken(), on, seed=0)(state, rows)
