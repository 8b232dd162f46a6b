"""Configs that cannot work are refused in one line, with the field and the value."""

import math

import pytest

from bert_jax.completion import complete
from bert_jax.config import default_config
from bert_jax.config.fields import FIELDS, SECTIONS
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.schema import Range
from bert_jax.validation import check_used, check_vocabulary, validate
from tests.configs import changed
from tests.refusals import refused

NUM_DEVICES = 8


def check_refused(values, message):
    """Asserts that the default config with other values is refused on eight devices."""
    with refused(message):
        validate(changed(values), num_devices=NUM_DEVICES)


def default_with(path):
    """The completed default config of a task that has a field."""
    section = path.partition('.')[0]
    task = 'pretrain'
    if section in SECTIONS:
        task = 'squad_v1' if section == 'squad' else section
    config = default_config(task)
    config.train.steps = 1000
    return complete(config)


@pytest.mark.parametrize(
    'path', [path for path, field in FIELDS.items() if isinstance(field.allowed, Range)])
def test_a_field_takes_its_default_and_nothing_out_of_its_range(path):
    allowed = FIELDS[path].allowed
    config = default_with(path)
    validate(config)
    wrong = [allowed.least - 1, allowed.most * 2 + 1, *allowed.without]
    if allowed.whole:
        wrong = [int(value) for value in wrong]
    else:
        wrong = [float(value) for value in (*wrong, math.nan, math.inf, -math.inf)]
    for value in wrong:
        with config.unlocked():
            config.update_from_flattened_dict({path: value})
        with pytest.raises(InputError, match=f'config.{path}={value!r} must be '):
            validate(config)


@pytest.mark.parametrize(('values', 'message'), [
    ({'model.name': 'larg'}, "config.model.name='larg' is unknown: did you mean 'large'?"),
    ({'train.loggers': 'wandb,tensorbord'}, "'tensorbord' is unknown: did you mean 'tensorboard'?"),
    ({'train.reference': 'quick'}, "there is no reference 'quick': did you mean 'quickstart'?"),
    ({'optimizer.decay_from': 'end'}, "config.optimizer.decay_from='end' is not a duration"),
    ({'optimizer.warmup': '1 epoch'}, 'config.optimizer.warmup'),
    ({'optimizer.name': 'lion', 'optimizer.b1': 0.5}, 'config.optimizer.b1=0.5 has no effect'),
    ({'train.skip_steps': None}, 'config.train.skip_steps=None must be a tuple of different'),
    ({'train.skip_steps': (3, 3)}, 'config.train.skip_steps=(3, 3) must be a tuple of different'),
    ({'data.mask_rate': 0.95}, 'config.data.mask_rate=0.95 and config.data.random_rate=0.1 add up'),
    ({'data.near_duplicates': 0.99}, 'config.data.near_duplicates=0.99 must be a number from 0 to'),
    ({'data.near_duplicates': 0.3}, 'near_duplicates=0.3 must be 0, or from 0.5 to 0.95'),
    ({'data.near_duplicates': -0.8}, 'config.data.near_duplicates=-0.8'),
    ({'data.decontaminate': 'a.csv,s3://b/c.csv'}, 'config.data.decontaminate=s3://b/c.csv'),
    ({'data.decontaminate': 'a\0b'}, 'must be a text'),
    ({'data.remove_contaminated': True}, 'remove_contaminated=True has no effect without eval'),
], ids=str)
def test_a_value_that_its_field_cannot_have(values, message):
    check_refused(values, message)


@pytest.mark.parametrize(('values', 'message'), [
    ({'model.type_vocab_size': 1}, 'config.model.type_vocab_size=1 has no segment type'),
    ({'model.type_vocab_size': 0}, 'config.model.type_vocab_size=0 has no segment type'),
    ({'model.pooling': 'mean'}, "config.model.pooling='mean' is for downstream tasks"),
    ({'model.num_heads': 5}, 'config.model.num_heads=5 does not divide hidden_size=768'),
    ({'data.max_seq_length': 1024}, 'config.data.max_seq_length=1024 is longer than the position'),
    ({'data.max_seq_length': 600}, 'max_position_embeddings=512: set it to 512 or less'),
    ({'model.first_position': 385}, 'position_embeddings=512 without the 385 rows before'),
    ({'model.first_position': 512}, 'config.model.first_position=512 leaves none of the rows'),
    ({'model.first_position': 2, 'model.positions': 'rotary'}, 'first_position=2 is a row of a'),
    ({'model.num_heads': 256, 'model.positions': 'rotary'}, 'pairs of dims, and a head has 3'),
    ({'data.max_predictions_per_seq': 127}, 'from 1 to max_seq_length - 2 = 126'),
], ids=str)
def test_a_model_that_cannot_have_these_rows(values, message):
    check_refused(values, message)


def test_an_adapter_in_pre_training_is_refused_whether_or_not_there_are_weights():
    config = changed({'adapter.rank': 8})
    validate(config, num_devices=NUM_DEVICES)  # does not ask for weights
    with refused("config.adapter.rank=8 has no effect with config.task='pretrain'"):
        check_used(config)


def test_weights_without_segments_can_only_do_without_pairs():
    config = complete(changed({'model.type_vocab_size': 1})).unlock()
    config.init_checkpoint = 'DIR'
    with refused(match='set config.data.next_sentence=False$'):
        validate(config, num_devices=NUM_DEVICES)


@pytest.mark.parametrize(('values', 'message'), [
    ({'train.batch_size': 100}, 'config.train.batch_size=100 cannot be split over data x fsdp = 8'),
    ({'train.accumulation_steps': 3}, 'config.train.accumulation_steps=3 does not divide'),
    ({'train.accumulation_steps': 64}, 'in 64 parts: the nearest above is 512'),
    ({'train.packed_rows': 264}, 'config.train.packed_rows=264 are more than the sequences'),
    ({'train.packed_rows': 16, 'train.accumulation_steps': 32}, 'divide config.train.packed_rows'),
    ({'mesh.data': 3}, 'config.mesh data=3 x fsdp=-1 x tensor=1 does not fit 8 devices'),
    ({'mesh.tensor': 8}, 'config.mesh.tensor=8 does not divide config.model.num_heads=12'),
    ({'model.num_kv_heads': 2, 'mesh.tensor': 4},
     'config.mesh.tensor=4 does not divide config.model.num_kv_heads=2'),
], ids=str)
def test_a_batch_or_model_that_cannot_be_split(values, message):
    check_refused(values, message)


@pytest.mark.parametrize(('values', 'message'), [
    ({'train.steps': 0}, 'config.train.steps is not set'),
    ({'phases': ({}, {}), 'train.steps': 10}, 'config.phases[0].steps is not set'),
    ({'phases': ({'steps': 5}, {'steps': 5}), 'train.steps': 1}, 'config.train.steps=1 is less'),
    ({'phases': ({'steps': 5}, {'steps': 5, 'max_seq_length': 513})}, 'config.phases[1].max_seq_'),
    ({'phases': ({'steps': 5, 'warmup': 2},)}, 'config.phases[0].warmup is used only where'),
    ({'phases': ({'steps': 5, 'learning_rate': 1.0, 'warmup': '2 feet'},)}, 'is not a duration'),
    ({'phases': ({'steps': 5, 'masked_lm_prob': 2},)}, 'config.phases[0].masked_lm_prob=2 '),
    ({'phases': ({'steps': 5, 'causal': 'yes'},)}, 'phases[0].causal'),
], ids=str)
def test_phases_that_cannot_be_run(values, message):
    check_refused(values, message)


def test_a_file_to_score_that_cannot_be_read_is_refused_before_the_data_are():
    config = default_config('classification')
    config.data.source = 'train.csv'
    config.init_checkpoint = 'bert'
    config.data.eval_source = 's3://bucket/dev.csv'
    with refused('config.data.eval_source=s3://bucket/dev.csv: name a local path'):
        validate(config)
    config.data.eval_source = 'dev.csv'
    validate(config)


def test_the_vocabulary_must_split_over_the_tensor_axis():
    with pytest.raises(InputError, match='config.mesh.tensor=3 does not divide the 30,592 rows'):
        check_vocabulary(30522, 3)


@pytest.mark.parametrize('name', ['', 'base'])
def test_one_field_may_be_set_where_a_checkpoint_gives_the_others(name):
    values = {'model.name': name, 'init_checkpoint': 'bert'}
    validate(changed({**values, 'model.hidden_act': 'gelu_erf'}))
    with pytest.raises(InputError, match='hidden_act'):
        validate(changed({**values, 'model.hidden_act': 'elu'}))
