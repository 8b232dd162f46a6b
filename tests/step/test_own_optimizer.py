"""An optimizer is one row of a table: its name, settings, checks and FLOPs come from there."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bert_jax.config import options_of
from bert_jax.config.choices import DECAYS
from bert_jax.heads.pretraining import Pretraining
from bert_jax.model.layers import ModelConfig, Parameter
from bert_jax.step.optimizers import OWN_OPTIMIZERS, Optimizer, OptimizerOptions, make_optimizer
from bert_jax.step.schedules import ScheduleSegment, make_schedule
from bert_jax.tasks.pretrain import step_flops
from bert_jax.validation import validate
from tests.configs import changed
from tests.refusals import refused


def sign_of_mean(trained, b1, threshold):
    """Moves each weight by the sign of its mean gradient, if that is above the threshold."""
    def signs(updates, params):
        del params
        return {name: jnp.where(abs(x) > threshold, jnp.sign(x), 0) for name, x in updates.items()}

    return [optax.ema(b1, debias=False), optax.stateless(signs), trained.weight_decay]


@pytest.fixture(autouse=True)
def added(monkeypatch):
    monkeypatch.setitem(OWN_OPTIMIZERS, 'sign', Optimizer(
        sign_of_mean, fields=('b1',), settings={'threshold': 0.5}, flops=lambda model: 7.0))


def test_its_settings_are_those_of_the_config():
    config = changed({
        'optimizer.name': 'sign', 'optimizer.b1': 0.0, 'optimizer.weight_decay': 0.1,
        'optimizer.arguments': 'threshold=2'})
    validate(config)
    options = options_of(OptimizerOptions, config.optimizer)
    parameters = {('kernel',): Parameter(None, (None,))}
    optimizer = make_optimizer(options, lambda step: 0.5, parameters)
    weights = {'kernel': jnp.ones(3)}
    gradients = {'kernel': jnp.array([-3.0, 1.0, 3.0])}
    updates, _ = optimizer.update(gradients, optimizer.init(weights), weights)
    np.testing.assert_allclose(updates['kernel'], -0.5 * np.array([-1 + 0.1, 0.1, 1 + 0.1]))


@pytest.mark.parametrize(('fields', 'message'), [
    ({'arguments': 'treshold=1'}, "sign has no 'treshold': did you mean 'threshold'"),
    ({'arguments': 'threshold="high"'}, "threshold='high' cannot be, sign has 0.5"),
    ({'arguments': 'b1=0.5'}, "no effect with config.optimizer.name='sign': it reads optimizer.b1"),
    ({'eps': 1e-8}, "config.optimizer.eps=1e-08 has no effect with config.optimizer.name='sign'"),
])
def test_what_it_does_not_have_is_refused(fields, message):
    values = {f'optimizer.{name}': value for name, value in fields.items()}
    with refused(message):
        validate(changed({'optimizer.name': 'sign', **values}))


def test_its_flops_are_counted():
    head = Pretraining(ModelConfig(
        vocab_size=64, num_layers=1, hidden_size=16, num_heads=2, intermediate_size=32,
        max_position_embeddings=8))
    phase = {
        'max_seq_length': 8, 'max_predictions_per_seq': 2, 'packed_rows': 0, 'batch_size': 4}
    assert step_flops(head, phase, 'sign') == step_flops(head, phase) + 7


@pytest.mark.parametrize('decay', DECAYS)
def test_every_decay_that_a_config_can_name_has_a_formula(decay):
    schedule = make_schedule([ScheduleSegment(0, 10, 1.0, 2)], decay=decay)
    assert 0 <= schedule(9) < schedule(3) <= 1
