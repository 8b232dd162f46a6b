"""A pre-training with a head of one's own: what follows from the head, and its fields."""

import dataclasses
import math
from unittest import mock

import jax
import pytest

from bert_jax.completion import complete
from bert_jax.config import default_config
from bert_jax.config.fields import field_of, pretraining_kind
from bert_jax.heads.base import Head
from bert_jax.heads.pretraining import Pretraining
from bert_jax.model.layers import ModelConfig
from bert_jax.runtime.errors import InputError
from bert_jax.sharding import make_mesh
from bert_jax.tasks.opening import TASKS, add_pretraining
from bert_jax.tasks.pretrain import step_flops
from bert_jax.tools.preflight.measure import without_data
from bert_jax.validation import check_used, validate
from tests.opening import open_task

PHASE = {
    'steps': 10, 'max_seq_length': 32, 'max_predictions_per_seq': 5, 'batch_size': 8,
    'packed_rows': 0, 'learning_rate': None, 'warmup': None}


@dataclasses.dataclass(frozen=True)
class Twice(Pretraining):
    """Both losses, twice."""

    name = 'twice'
    metric = 'nsp_accuracy'
    left_to_right = False

    def loss_of_chance(self):
        return 2 * super().loss_of_chance()

    def flops(self, *args):
        return 2 * super().flops(*args)


@pytest.fixture(autouse=True)
def tasks():
    with mock.patch.dict(TASKS):
        add_pretraining('twice', Twice)
        yield


def config_of(task, **model):
    config = default_config(task)
    config.model.update(name='tiny', vocab_size=100, **model)
    config.train.steps = 10
    config.data.max_seq_length = 32
    return config


@pytest.mark.parametrize(('task', 'kind'), [
    ('pretrain', 'pretrain'), ('synthetic', 'synthetic'), ('pretrain_twice', 'pretrain'),
    ('synthetic_a_b', 'synthetic'), ('pretraining', ''), ('rte', ''), ('titles_pretrain', '')])
def test_a_pretraining_is_known_by_its_name(task, kind):
    assert pretraining_kind(task) == kind


def test_its_config_is_that_of_pretraining():
    config = config_of('pretrain_twice')
    config.data.masked_lm_prob = 0.3
    config.phases = ({'steps': 5, 'max_seq_length': 32},)
    validate(config)
    check_used(config)
    for name in ('data.held_out', 'seed', 'train.steps'):
        for of_task in ('default_of', 'role_of', 'is_silent'):
            field = field_of(name)
            assert getattr(field, of_task)('pretrain_twice') == getattr(field, of_task)('pretrain')
    config.data.label = 'x'
    with pytest.raises(InputError, match='data.label'):
        check_used(config)


def test_metric_chance_and_flops_are_those_of_the_head():
    of_bert = open_task(complete(config_of('synthetic')))
    of_head = open_task(complete(config_of('synthetic_twice')))
    assert (of_head.head, of_head.metric) == ('twice', 'nsp_accuracy')
    assert of_head.with_seed(7).head == 'twice'
    model = ModelConfig(
        vocab_size=100, num_layers=2, hidden_size=32, num_heads=2, intermediate_size=64)
    bert, head = of_bert.make_head(model), of_head.make_head(model)
    assert isinstance(head, Twice)
    assert step_flops(head, PHASE) == 2 * step_flops(bert, PHASE)
    assert of_head.run_flops() == 2 * of_bert.run_flops()
    flops = of_bert.rows(bert, [PHASE], 0, mesh_of_one()).flops_per_sequence
    assert of_head.rows(head, [PHASE], 0, mesh_of_one()).flops_per_sequence == 2 * flops

    def alarms(loss):
        alarms = of_head.make_alarms(head, [PHASE], fresh=True, settled=3)
        return [alarm.name for alarm in alarms.trained(1, [{'loss': loss, 'grad_norm': 1.0}], {})]

    chance = math.log(100) + math.log(2)
    assert alarms(2 * chance) == []
    assert alarms(chance) == ['first_loss']


def mesh_of_one():
    return make_mesh(1, 1, 1, jax.devices()[:1])


def test_a_head_that_says_nothing_about_chance_is_not_compared_with_it():
    config = ModelConfig(
        vocab_size=100, num_layers=2, hidden_size=32, num_heads=2, intermediate_size=64)
    head = Head(config)
    task = open_task(complete(config_of('synthetic')))
    alarms = task.make_alarms(head, [PHASE], fresh=True, settled=3)
    assert alarms.trained(1, [{'loss': 100.0, 'grad_norm': 1.0}], {}) == []
    assert head.flops(32, 5) == 32 * head.token_flops(32)


def test_preflight_compiles_the_head_on_random_tokens():
    assert without_data(config_of('pretrain_twice')).task == 'synthetic_twice'
    assert without_data(config_of('pretrain')).task == 'synthetic'


@pytest.mark.parametrize('where', ['model', 'phase'])
def test_a_head_without_a_loss_from_left_to_right_refuses_to_read_so(where):
    config = config_of('synthetic_twice', causal=where == 'model')
    config.data.next_sentence = False
    if where == 'phase':
        config.phases = ({'steps': 5, 'causal': True},)
    with pytest.raises(InputError, match="'synthetic_twice' has no loss"):
        open_task(complete(config))
