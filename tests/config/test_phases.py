"""What phases leave out is filled in; their steps add up; schedules follow them."""

import re

import numpy as np
import pytest

from bert_jax.config.phases import phases, prediction_slots
from bert_jax.rows.masking import num_to_predict
from bert_jax.runtime.errors import InputError
from bert_jax.train.program import schedule_segments
from bert_jax.validation import validate
from tests.configs import changed


@pytest.mark.parametrize(('given', 'total', 'counts'), [
    ((), 7, [7]),
    (({'steps': 900_000}, {'steps': 100_000}), 0, [900_000, 100_000]),
    (({'steps': 900_000}, {'steps': 100_000}), 100, [90, 10]),
    (({'steps': 900_000}, {'steps': 100_000}), 4, [3, 1]),  # every phase keeps a step
    (({'steps': 1}, {'steps': 1}, {'steps': 98}), 5, [1, 1, 3]),
    (({'steps': '90%'}, {'steps': '10%'}), 1000, [900, 100]),
    (({'steps': 10}, {}), 30, [10, 20]),  # the rest
    (({'steps': '2 epochs', 'batch_size': 100}, {'steps': 5}), 0, [20, 5]),
])
def test_phases_add_up_to_the_steps_of_the_run(given, total, counts):
    config = changed({'phases': given, 'train.steps': total})
    found = phases(config, num_examples=1000)
    assert [phase['steps'] for phase in found] == counts


def test_a_phase_takes_what_it_leaves_out_from_train_and_data():
    with_own_rate = {'steps': 20, 'max_seq_length': 200, 'learning_rate': 0.5, 'warmup': '10%'}
    config = changed({
        'train.batch_size': 64, 'data.max_seq_length': 96, 'data.max_predictions_per_seq': 14,
        'train.steps': 0, 'phases': ({'steps': 5}, with_own_rate)})
    one, two = phases(config)
    assert one == {
        'steps': 5, 'batch_size': 64, 'max_seq_length': 96, 'packed_rows': 0,
        'max_predictions_per_seq': 14, 'learning_rate': None, 'warmup': None}
    assert two == one | with_own_rate | {'warmup': 2}


slots_by_length_and_rate = pytest.mark.parametrize(('length', 'rate', 'slots'), [
    (128, 0.15, 20), (512, 0.15, 77), (32, 0.15, 5), (20, 0.15, 3), (128, 0.4, 52), (128, 0.0, 1),
    (16, 1.0, 14)])


@slots_by_length_and_rate
def test_slots_follow_from_length_and_rate(length, rate, slots):
    assert prediction_slots(length, rate) == slots
    lengths = np.arange(4, length + 1)
    num_masked = num_to_predict(lengths, rate, length - 2)
    assert (num_masked <= slots).all(), 'they are never too few'


@slots_by_length_and_rate
def test_a_phase_has_the_slots_of_its_own_length_and_rate_unless_it_states_them(
    length, rate, slots
):
    config = changed({'data.max_seq_length': 64, 'data.masked_lm_prob': 0.4, 'phases': (
        {'steps': 5},
        {'steps': 5, 'max_seq_length': length, 'masked_lm_prob': rate},
        {'steps': 5, 'max_predictions_per_seq': 7})})
    assert [phase['max_predictions_per_seq'] for phase in phases(config)] == [26, slots, 7]


@pytest.mark.parametrize(('parts', 'segments'), [
    (({'steps': 90}, {'steps': 10}), [(0, 100, 1.0, 20)]),  # one schedule spans the phases
    (({'steps': 90, 'learning_rate': 2.0}, {'steps': 10, 'learning_rate': 3.0, 'warmup': 4}),
     [(0, 90, 2.0, 18), (90, 10, 3.0, 4)]),
    (({'steps': 50}, {'steps': 40, 'learning_rate': 2.0}, {'steps': 10}),
     [(0, 50, 1.0, 10), (50, 50, 2.0, 8)]),  # its own schedule starts with a phase and goes on
])
def test_schedule_segments_follow_the_phases(parts, segments):
    config = changed({'phases': parts, 'train.steps': 0, 'optimizer.learning_rate': 1.0,
                      'optimizer.warmup': '20%'})
    found = schedule_segments(config, phases(config))
    assert [(s.start, s.steps, s.learning_rate, s.warmup) for s in found] == segments
    config.optimizer.decay_from = '75%'
    found = schedule_segments(config, phases(config))
    assert [s.decay_from for s in found] == [round(0.75 * steps) for _, steps, *_ in segments]


def test_a_phase_with_its_own_schedule_says_where_that_decays():
    config = changed({'train.steps': 0, 'optimizer.decay_from': '100%', 'phases': (
        {'steps': 90},
        {'steps': 30, 'learning_rate': 2.0, 'warmup': 0},
        {'steps': 20, 'learning_rate': 2.0, 'warmup': 0, 'decay_from': 'start'},
        {'steps': 10, 'learning_rate': 1.0, 'warmup': 2, 'decay_from': '50%'})})
    validate(config)
    found = schedule_segments(config, phases(config))
    assert [s.decay_from for s in found] == [90, 30, 0, 5]


def test_an_option_that_is_none_is_not_stated():
    options = {'rotary_base': None, 'masked_lm_prob': None, 'decay_from': None, 'causal': True}
    config = changed({'phases': ({'steps': 9} | options,), 'train.steps': 0})
    (phase,) = phases(config)
    assert options.keys() & phase.keys() == {'causal'}
    assert phase['max_predictions_per_seq'] == 20


@pytest.mark.parametrize(('phase', 'words'), [
    ({'rotary_base': 9e3}, 'config.phases[0].rotary_base=9000.0 has no effect with config.model.p'),
    ({'rotary_base': 0}, 'config.phases[0].rotary_base=0 must be a number above 0'),
    ({'decay_from': 'peak'}, 'config.phases[0].decay_from is used only where'),
    ({'warmup': 3}, 'config.phases[0].warmup is used only where'),
    ({'learning_rate': 1.0, 'decay_from': 'end'}, "config.phases[0].decay_from='end' is not a"),
])
def test_what_a_phase_cannot_have(phase, words):
    config = changed({'phases': ({'steps': 9} | phase,), 'train.steps': 0})
    with pytest.raises(InputError, match=re.escape(words)):
        validate(config)
