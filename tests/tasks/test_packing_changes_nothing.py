"""Packing changes no score, loss or gradient, in fine-tuning and in pre-training."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh

from bert_jax.heads.classification import Classification, MultiLabel, MultipleChoice, Regression
from bert_jax.heads.pretraining import Pretraining
from bert_jax.heads.retrieval import Retrieval
from bert_jax.heads.tokens import QuestionAnswering, Tagging
from bert_jax.model.layers import ModelConfig
from bert_jax.rows.packed_examples import PackedExamples
from bert_jax.rows.packing import Plan, Planner, Units, packed_batch, unpack
from bert_jax.rows.sequences import Sequences
from bert_jax.sharding import MESH_AXES, Layout, make_mesh, to_global
from bert_jax.step.step import TrainState, abstract_state
from tests.rows.stores import make_examples, random_store
from tests.tiny_models import assert_close, fixed_step, jit, random_like

pytestmark = pytest.mark.slow

CONFIG = ModelConfig(
    vocab_size=100, num_layers=1, hidden_size=32, num_heads=4, intermediate_size=64,
    max_position_embeddings=64, initializer_range=0.2,
)

COLUMNS = (32, 16, 8)

TASKS = {
    'label': Classification(CONFIG, 3),
    'score': Regression(CONFIG),
    'labels': MultiLabel(CONFIG, 3),
    'choice': MultipleChoice(CONFIG, 4),
    'span': QuestionAnswering(CONFIG),
    'tag': Tagging(CONFIG, 3),
    'pair': Retrieval(CONFIG, columns=COLUMNS),  # its examples are compared with each other
    'pretraining': Pretraining(CONFIG),
}
LABELLED = [kind for kind in TASKS if kind != 'pretraining']


def units_of(kind):
    """24 units of random tokens, with the labels that the task is trained on."""
    rng = np.random.default_rng(0)
    choices = {'choice': 4, 'pair': 2}.get(kind, 1)
    lengths = rng.integers(4, 30, 24 * choices)
    total, ends = int(lengths.sum()), rng.integers(0, lengths)
    sequences = Sequences.of_segments(
        rng.integers(0, 100, total).astype(np.int32), np.concatenate([[0], np.cumsum(lengths)]),
        np.maximum(lengths // 2, 1),
    )
    labels = {
        'score': rng.random(24).astype(np.float32),
        'labels': rng.integers(0, 2, (24, 3)).astype(np.float32),
    }.get(kind, rng.integers(0, 3, 24).astype(np.int32))
    if kind == 'span':
        return Units(sequences, positions={'start_positions': ends // 2, 'end_positions': ends})
    if kind == 'tag':
        return Units(sequences, tokens={
            'token_labels': rng.integers(0, 3, total).astype(np.int32),
            'token_weights': rng.integers(0, 2, total).astype(np.float32),
        })
    if kind == 'pair':
        return Units(sequences, choices, labels={
            'text_ids': rng.integers(0, 20, (24, 2)).astype(np.int32)})  # many are equal
    return Units(sequences, choices, labels={'labels': labels})


def one_device():
    return Mesh(np.array(jax.devices()[:1]).reshape(1, 1, 1), MESH_AXES)


def plan_of(units, row_length, shards=1):
    """All units, packed into rows of a step."""
    planner = Planner(shards, token_cost=lambda s: 1.0)
    return planner.steps(units.lengths, np.arange(len(units))[None], [row_length])


def whole_batch(units, plan):
    return packed_batch(units, plan, 0, np.arange(plan.num_rows[0]))


def plans_of_one_shape(units):
    """(plan of a unit a row, plan of packed rows), with places that stay empty in both."""
    together = plan_of(units, row_length=64)
    alone = dataclasses.replace(
        Plan.row_each(units.lengths, np.arange(len(units))[None]),
        row_length=together.row_length, units_a_row=together.units_a_row)
    return alone, dataclasses.replace(together, num_rows=alone.num_rows)


@functools.cache
def pretraining_batches():
    """(a batch of an example a row, the same packed)."""
    store = random_store(80, most_sentences=6, most_tokens=12)
    store.tokens %= CONFIG.vocab_size
    examples = make_examples(store, random_rate=0.0)
    return examples.rows(40 + np.arange(40)), PackedExamples(examples, 40, 32).rows(
        32 + np.arange(32))


@functools.cache
def packed_rows(kind):
    """A packed batch, of a multiple of 8 rows."""
    if kind == 'pretraining':
        return pretraining_batches()[1]
    return whole_batch(units_of(kind), plan_of(units_of(kind), row_length=64, shards=8))


@functools.cache
def params_of(kind):
    return random_like(jax.eval_shape(TASKS[kind].init, jax.random.key(0)), scale=0.2)


@dataclasses.dataclass
class Computed:
    """What a task computes of a batch, as NumPy arrays.

    Attributes:
      loss: of all examples.
      sums: for metrics.
      grads: of the loss.
      outputs: in the shapes of the batch.
    """

    loss: np.ndarray
    sums: dict[str, np.ndarray]
    grads: Any
    outputs: dict[str, np.ndarray]

    def outputs_of_units(self, units, plan):
        """In the order of the units: [n, ...] by unit and [T, ...] by token."""
        outputs = {}
        for name, x in self.outputs.items():
            of_tokens = x.shape[1] == plan.row_length
            # A pair has several outputs.
            outputs[name] = x if of_tokens else x.reshape(len(x), plan.units_a_row, -1)
        collected = {}
        unpack(units, plan, 0, outputs, collected)
        return collected


def computed(kind, batches):
    """What a task computes of each batch."""
    task = TASKS[kind]

    @jit
    def compute(params, batch):
        gradient = jax.value_and_grad(
            lambda params: task.loss(params, batch, task.totals(batch), None), has_aux=True)
        return gradient(params), task.outputs(params, batch)

    found = []
    for batch in batches:
        ((loss, sums), grads), outputs = jax.device_get(compute(params_of(kind), batch))
        found.append(Computed(loss, sums, grads, outputs))
    return found


@functools.cache
def computed_of_units(kind):
    """What a task computes of units in a row each, and of packed ones, and the plans of these."""
    units = units_of(kind)
    plans = plans_of_one_shape(units)
    batches = [whole_batch(units, plan) for plan in plans]
    assert [batch['sequence_ids'].max() > units.choices for batch in batches] == [False, True]
    assert all((batch['unit_weights'] == 0).any() for batch in batches)
    return computed(kind, batches), plans


def assert_equal_losses(kind, alone, together):
    found, expected = (
        (x.loss, TASKS[kind].score(x.sums), x.grads) for x in (together, alone))
    assert_close(found, expected, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize('kind', LABELLED)
def test_loss_gradients_and_outputs_are_those_of_one_example_a_row(kind):
    (alone, together), plans = computed_of_units(kind)
    assert_equal_losses(kind, alone, together)
    expected, found = (
        x.outputs_of_units(units_of(kind), plan)
        for x, plan in zip((alone, together), plans, strict=True))
    assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for x in expected.values():
        assert np.issubdtype(x.dtype, np.floating), 'an ensemble averages outputs'


def test_loss_and_gradients_of_pretraining_are_those_of_one_example_a_row():
    assert packed_rows('pretraining')['sequence_ids'].max() > 1
    assert_equal_losses('pretraining', *computed('pretraining', pretraining_batches()))


@pytest.mark.parametrize('kind, parts', [('pair', 2), ('pretraining', 2)])
def test_a_step_with_dropout_is_the_same_on_eight_devices_and_on_one(kind, parts):
    rows = packed_rows(kind)
    num_rows, results = len(rows['input_ids']), []
    axes = (4, 2, 1) if kind == 'pretraining' else (2, 2, 2)
    for mesh, parts_here in ((make_mesh(*axes), parts), (one_device(), 1)):
        task = dataclasses.replace(
            TASKS[kind], config=dataclasses.replace(CONFIG, layout=Layout(mesh)))
        optimizer = optax.sgd(0.1)
        step = fixed_step(
            task, optimizer, lambda count: jnp.float32(0.1), mesh, seed=0, clip_norm=1.0,
            accumulation_steps=parts_here)
        batch = to_global(mesh, rows, num_rows, range(num_rows))
        shardings = jax.tree.map(lambda x: x.sharding, abstract_state(task, optimizer, mesh))
        state, metrics = step(jax.device_put(
            TrainState(np.int32(0), params_of(kind), optimizer.init(params_of(kind))), shardings),
            batch)
        results.append(jax.device_get((metrics, state.params)))
    jax.tree.map(lambda *x: np.testing.assert_allclose(*x, rtol=2e-5, atol=1e-6), *results)


def test_examples_are_compared_with_all_others_that_differ_and_no_empty_places():
    task, units = TASKS['pair'], units_of('pair')
    (_, together), (_, plan) = computed_of_units('pair')
    x = together.outputs_of_units(units, plan)['logits'].astype(np.float64).reshape(24, 2, -1)
    first, second = units.labels['text_ids'].T
    # A document of an equal query is an answer, wherever it stands.
    is_answer = (first[:, None] == first) @ (second[:, None] == second)
    is_own = np.eye(len(units), dtype=bool)
    is_rival = ~(is_answer | (first[:, None] == second)) | is_own
    assert 0 < np.mean(~is_rival) < 0.5
    expected = []
    for num_columns in COLUMNS:
        part = x[..., :num_columns]
        part = part / np.linalg.norm(part, axis=-1, keepdims=True)
        scores = part[:, 0] @ part[:, 1].T / task.temperature
        sums_of_rivals = np.where(is_rival, np.exp(scores), 0.0).sum(axis=1)
        expected.append(np.log(sums_of_rivals) - np.diag(scores))
    np.testing.assert_allclose(together.loss, np.mean(expected), rtol=1e-4)
    assert together.sums['units'] == len(units) == len(expected[0])
