"""A train step computes the same on any mesh and with any number of accumulation steps."""

import collections
import dataclasses
import math
import re
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax.heads.pretraining import Pretraining
from bert_jax.model.layers import ModelConfig
from bert_jax.rows.examples import SyntheticExamples
from bert_jax.runtime.errors import FaultyChip
from bert_jax.sharding import Layout, to_global
from bert_jax.step import step as steps
from bert_jax.step.optimizers import OptimizerOptions, make_optimizer
from bert_jax.step.schedules import ScheduleSegment, make_schedule
from bert_jax.watch.verify import make_verify
from tests.tiny_models import assert_close, drawn_params, drawn_state, fixed_step
from tests.train.toy import Toy, batch, mesh, sgd_step

BATCH_SIZE = 16
LENGTH = 16
NUM_SLOTS = 6
NUM_STEPS = 5


def bert_batches(mesh):
    """Batches on a mesh, whose rows have different numbers of tokens and predictions."""
    examples = SyntheticExamples(
        vocab_size=300, max_seq_length=LENGTH, max_predictions_per_seq=NUM_SLOTS)
    rng = np.random.default_rng(0)
    for step in range(NUM_STEPS):
        rows = examples.rows(np.arange(step * BATCH_SIZE, (step + 1) * BATCH_SIZE))
        used_slots = rng.integers(0, NUM_SLOTS + 1, (BATCH_SIZE, 1))
        lengths = rng.integers(8, LENGTH + 1, (BATCH_SIZE, 1))
        rows['masked_lm_weights'] = (np.arange(NUM_SLOTS) < used_slots).astype(np.float32)
        rows['sequence_ids'] = (np.arange(LENGTH) < lengths).astype(np.int32)
        rows['example_weights'][-3:] = 0
        yield to_global(mesh, rows, BATCH_SIZE, range(BATCH_SIZE))


@dataclasses.dataclass
class BertRun:
    """Five steps of a small BERT with dropout on a mesh.

    Attributes:
      axes: sizes of the mesh's axes.
      hlo: the compiled step.
      params: parameters after the last step.
      metrics: of each step.
      layout_stayed: for each array of the state after each step, whether it is sharded as before.
    """

    axes: tuple[int, int, int]
    hlo: str
    params: Any
    metrics: list[Any]
    layout_stayed: list[bool]


def small_bert(mesh):
    return Pretraining(ModelConfig(
        vocab_size=300,
        num_layers=1,
        hidden_size=32,
        num_heads=4,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
        hidden_dropout=0.2,
        attention_dropout=0.2,
        pooler_norm=True,
        pooler_dropout=0.1,
        layout=Layout(mesh),
    ))


def run_bert(axes, accumulation_steps):
    on = mesh(*axes)
    head = small_bert(on)
    schedule = make_schedule([ScheduleSegment(0, 20, 1e-3, 2)])
    optimizer = make_optimizer(
        OptimizerOptions('bert_adamw'), schedule, steps.parameters_of(head))
    step = fixed_step(
        head, optimizer, schedule, on, seed=3, clip_norm=1.0,
        accumulation_steps=accumulation_steps)
    state = drawn_state(head, optimizer, on, scale=0.1)
    batches = list(bert_batches(on))
    # So small that the logits are computed in 1, 2 or 3 parts, depending on the rows of a device.
    with mock.patch('bert_jax.heads.pretraining.CHUNK_BYTES_ON_CPU', 60_000):
        compiled = step.lower(state, batches[0]).compile({'xla_backend_optimization_level': 0})

    abstract = steps.abstract_state(head, optimizer, on)
    shardings = jax.tree.map(lambda x: x.sharding, abstract)
    all_metrics = []
    layout_stayed = []
    for rows in batches:
        state, metrics = compiled(state, rows)
        all_metrics.append(jax.device_get(metrics))
        layout_stayed += jax.tree.leaves(jax.tree.map(is_sharded_as, state, shardings))
        state = jax.device_put(state, shardings)
    return BertRun(axes, compiled.as_text(), state.params, all_metrics, layout_stayed)


def is_sharded_as(x, sharding):
    return x.sharding.is_equivalent_to(sharding, x.ndim)


@pytest.fixture(scope='module')
def alone():
    """The run on one device, without accumulation."""
    return run_bert((1, 1, 1), 1)


@pytest.fixture(scope='module', params=[
    pytest.param(((4, 1, 2), 4), id='4x1x2 in 4'),
    pytest.param(((4, 2, 1), 2), id='4x2x1 in 2'),
])
def other(request):
    """The run on a mesh of eight devices, with a number of accumulation steps."""
    axes, accumulation_steps = request.param
    return run_bert(axes, accumulation_steps)


def test_any_mesh_starts_alike():
    def initial(axes):
        on = mesh(*axes)
        return jax.device_get(steps.make_init(small_bert(on), optax.sgd(0.1), on)(0).params)

    assert_close(initial((2, 2, 2)), initial((1, 1, 1)), atol=2e-7)


def test_any_mesh_and_any_number_of_parts_train_alike_with_dropout_on(alone, other):
    assert_close(other.metrics, alone.metrics, rtol=2e-5)
    # Adam divides by the gradient's size: where that is near 0, rounding shows in updates of 1e-3.
    found = jax.device_get(other.params)
    expected = jax.device_get(alone.params)
    assert_close(found, expected, atol=1e-4)
    errors = jax.tree.map(lambda x, y: np.abs(x - y).mean(), found, expected)
    assert max(jax.tree.leaves(errors)) < 2e-6


def test_each_device_has_an_eighth_of_a_table_and_of_a_matrix(other):
    words = other.params['bert']['embeddings']['word_embeddings']
    assert words.addressable_shards[0].data.shape == (384 // 8, 32)
    kernel = other.params['bert']['encoder']['layer_0']['attention']['self']['qkv']['kernel']
    assert kernel.addressable_shards[0].data.size == kernel.size // 8


def test_a_step_returns_the_state_in_the_layout_that_it_came_in(other):
    """Otherwise, the next call would compile the step again."""
    assert all(other.layout_stayed)


COLLECTIVE = re.compile(
    r'= (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(')
ARRAY_DIMS = re.compile(r'\w+\[([\d,]+)\]')  # not those of scalars: losses, norms, counts


def moved_elements(hlo):
    """The number of elements that each kind of collective operation of a program yields."""
    moved = collections.Counter()
    for arrays, kind in COLLECTIVE.findall(hlo):
        for dims in ARRAY_DIMS.findall(arrays):
            moved[kind] += math.prod(map(int, dims.split(',')))
    return moved


def reduced_once(params, *, data, fsdp):
    """`moved_elements` of a program that reduces the gradient of each parameter once."""
    moved = collections.Counter()
    for x in jax.tree.leaves(params):
        split_axes = jax.tree.leaves(tuple(x.sharding.spec))
        left = x.size
        for axis, size in (('fsdp', fsdp), ('data', data)):  # one after the other
            if size > 1 and axis in split_axes:
                left //= size
                moved['reduce-scatter'] += left
        if left > x.size // 8:
            moved['all-reduce'] += left
        if left < x.size:
            moved['all-gather'] += x.size
    return moved


def test_a_step_reduces_each_gradient_once_however_often_a_parameter_is_used(other):
    """The word embeddings are used twice, and accumulation loops over parts of the batch."""
    data, fsdp, tensor = other.axes
    if tensor > 1:
        pytest.skip('it adds up activations in every layer')
    in_loops, entry = other.hlo.split('\nENTRY ')
    assert not COLLECTIVE.search(in_loops)
    moved = moved_elements(entry)
    expected = reduced_once(other.params, data=data, fsdp=fsdp)
    # A parameter split at two dims is gathered in two steps.
    gathered = expected.pop('all-gather')
    assert gathered <= moved.pop('all-gather') <= 1.5 * gathered
    assert moved == expected


def toy_state(optimizer, on):
    """The state of the toy task before the first step."""
    return drawn_state(Toy(), optimizer, on, scale=1.0)


def run_toy(batches=(0, 1, 2), **options):
    """(state, metrics of each step) of the toy task on one device.

    Args:
      batches: index of the batch of each step.
      options: of `sgd_step`.
    """
    optimizer, step = sgd_step(mesh(), **options)
    state = toy_state(optimizer, mesh())
    all_metrics = []
    for index in batches:
        state, metrics = step(state, batch(index))
        all_metrics.append(jax.device_get(metrics))
    return jax.device_get(state), all_metrics


def initial_toy():
    """Parameters of the toy task before the first step."""
    return jax.device_get(drawn_params(Toy(), scale=1.0))


@pytest.mark.parametrize('frozen', [
    pytest.param((), id='all trained'),
    pytest.param({('dense', 'bias')}, id='bias frozen'),
])
@pytest.mark.parametrize('clip_norm', [0.0, 0.5, 1e6])
def test_the_global_norm_and_clipping_leave_out_frozen_parameters(clip_norm, frozen):
    state, (metrics,) = run_toy(
        [0], optimizer=optax.sgd(1.0), clip_norm=clip_norm, frozen=frozen)
    update = jax.tree.map(np.subtract, initial_toy(), state.params)
    assert update['dense']['bias'].any() == (not frozen)
    squares = [np.sum(np.square(x)) for x in jax.tree.leaves(update)]
    norm = metrics['grad_norm']
    assert norm > 0.6
    expected = min(norm, clip_norm) if clip_norm else norm
    np.testing.assert_allclose(np.sqrt(sum(squares)), expected, rtol=1e-5)


def losses_of_one_batch(seed):
    """Losses of three steps on the same rows and with the same parameters."""
    _, all_metrics = run_toy([0, 0, 0], rate=0.0, seed=seed)
    return [float(metrics['loss']) for metrics in all_metrics]


def test_dropout_follows_the_seed_and_the_step():
    losses = losses_of_one_batch(seed=0)
    assert losses_of_one_batch(seed=0) == losses
    assert len({*losses, *losses_of_one_batch(seed=1)}) == 6


def test_the_state_is_donated_and_counts_its_steps():
    optimizer, step = sgd_step(mesh(8))
    state = toy_state(optimizer, mesh(8))
    after, _ = step(state, to_global(mesh(8), batch(0), 8, range(8)))
    assert after.step == 1
    assert all(x.is_deleted() for x in jax.tree.leaves((state.params, state.opt_state)))


def test_evaluation_uses_no_dropout_and_gives_sums():
    rows = batch(0)
    params = initial_toy()
    evaluate = steps.make_eval_step(Toy(), mesh(8))
    sums = evaluate(params, to_global(mesh(8), rows, 8, range(8)))
    error = rows['x'] @ params['dense']['kernel'] + params['dense']['bias'] - rows['y']
    expected = ((error**2).mean(-1) * rows['weights']).sum()
    np.testing.assert_allclose(sums['squares'], expected, rtol=1e-5)
    assert sums['rows'] == rows['weights'].sum()


class Broken(Toy):
    """A task whose loss is a little off on device 5."""

    def loss(self, params, batch, totals, dropout_keys_Bx2):
        loss, sums = super().loss(params, batch, totals, dropout_keys_Bx2)
        axis_index = jax.lax.axis_index
        device = axis_index('data') * jax.lax.axis_size('fsdp') + axis_index('fsdp')
        return loss * jnp.where(device == 5, 1.0 + 2e-7, 1.0), sums


def verified(task, on, accumulation_steps=1):
    """The checksums of devices that compute the first step of a task and compare it."""
    state = toy_state(optax.sgd(0.1), on)
    rows = to_global(on, batch(0, size=32), 32, range(32))
    verify = make_verify(task, on, seed=0, accumulation_steps=accumulation_steps)
    return verify(state, rows)


@pytest.mark.parametrize('axes, accumulation_steps', [
    ((8, 1, 1), 1), ((4, 2, 1), 2), ((4, 1, 2), 1)], ids=str)
def test_devices_agree_with_their_neighbours_to_the_bit(axes, accumulation_steps):
    checksums = verified(Toy(), mesh(*axes), accumulation_steps)
    num_different = len(set(checksums[0].tolist()))
    assert num_different == axes[0] * axes[1], 'each has its own rows'


@pytest.mark.parametrize('axes', [(8, 1, 1), (4, 2, 1)], ids=str)
def test_a_device_that_computes_wrongly_is_named(axes):
    on = mesh(*axes)
    broken = on.devices.flatten()[5]
    with pytest.raises(FaultyChip, match=f'neighbours: {broken} of host 0 computes wrongly'):
        verified(Broken(), on)
