"""Layers change their arrangement between two starts of a run, and training goes on."""

import jax
import numpy as np
import pytest
from toy import mesh

from bert_jax.data.examples import SyntheticExamples
from bert_jax.heads.pretraining import Pretraining
from bert_jax.model.layers import ModelConfig
from bert_jax.train.checkpoint import Checkpoints
from bert_jax.train.optimizers import ScheduleSegment, make_optimizer, make_schedule
from bert_jax.train.step import abstract_state, make_train_step, parameters_of
from bert_jax.weights.formats import from_tree

pytestmark = pytest.mark.slow

SCHEDULE = make_schedule([ScheduleSegment(0, 10, 1e-2, 0)])
ROWS = SyntheticExamples(vocab_size=300, max_seq_length=16, max_predictions_per_seq=3)


def task(scan):
    return Pretraining(ModelConfig(
        vocab_size=300, num_layers=2, hidden_size=32, num_heads=2, intermediate_size=48,
        max_position_embeddings=16, scan_layers=scan,
    ))


ADAM = make_optimizer(
    'bert_adamw', SCHEDULE, parameters_of(task(False)) | parameters_of(task(True)),
    weight_decay=0.01, b1=0.9, b2=0.999, eps=1e-6)


def filled(abstract, scale=1.0):
    """A state of random numbers."""
    return jax.tree.map(lambda x: jax.device_put(
        (scale * np.random.default_rng(x.size).random(x.shape)).astype(x.dtype), x.sharding
    ), abstract)


def passed_on(folder, state, abstract):
    """The state, saved and restored as `abstract` says."""
    checkpoints = Checkpoints(folder, 1)
    checkpoints.save(5, state)
    checkpoints.close()
    checkpoints = Checkpoints(folder, 1)
    found = checkpoints.restore(abstract)
    checkpoints.close()
    return found


def numbers(state):
    """Everything in a state by names that know no arrangement."""
    trees = {'params': state.params, 'mu': state.opt_state[0].mu, 'nu': state.opt_state[0].nu}
    return {
        (part, name): x for part, tree in trees.items()
        for name, x in from_tree(jax.device_get(tree), 300).items()
    }


@pytest.mark.parametrize('scan', [False, True])
def test_every_number_finds_its_place_on_another_mesh(tmp_path, scan):
    before = abstract_state(task(not scan), ADAM, mesh())
    state = filled(before)
    target = abstract_state(task(scan), ADAM, mesh(2, 2, 2))
    found = passed_on(tmp_path, state, target)
    expected = numbers(state)
    assert numbers(found).keys() == expected.keys()
    for name, x in numbers(found).items():
        np.testing.assert_array_equal(x, expected[name], err_msg=str(name))
    for x, like in zip(jax.tree.leaves(found), jax.tree.leaves(target), strict=True):
        assert x.sharding.is_equivalent_to(like.sharding, x.ndim) and x.shape == like.shape


def test_a_run_that_goes_on_scanned_ends_like_one_that_did_not(tmp_path):
    def step_of(task):
        step = make_train_step(task, ADAM, SCHEDULE, mesh(), seed=0, clip_norm=1.0)
        lowered = step.lower(abstract_state(task, ADAM, mesh()), ROWS.rows(np.arange(4)))
        # Half of the time that compiling takes; the programs run for moments.
        return lowered.compile({'xla_backend_optimization_level': 0,
                                'xla_llvm_disable_expensive_passes': True})

    def trained(step, state, numbers):
        for number in numbers:
            state, _ = step(state, ROWS.rows(np.arange(4) + 4 * number))
        return state

    plain, switched = task(False), task(True)
    plain_step = step_of(plain)
    half = trained(plain_step, filled(abstract_state(plain, ADAM, mesh()), 0.05), range(2))
    restored = passed_on(tmp_path, half, abstract_state(switched, ADAM, mesh()))
    expected = numbers(trained(plain_step, half, range(2, 4)))
    for name, x in numbers(trained(step_of(switched), restored, range(2, 4))).items():
        np.testing.assert_allclose(x, expected[name], rtol=2e-4, atol=2e-6, err_msg=str(name))
