"""Durations in steps, epochs, examples or percent, and ranges of steps."""

import pytest

from bert_jax.config.durations import parse_duration, parse_trace
from bert_jax.runtime.errors import InputError


@pytest.mark.parametrize(('value', 'steps'), [
    (1000, 1000), ('1_000', 1000), ('1e6', 1_000_000), ('1 step', 1), (0, 0), ('28.43%', 569),
    ('0.01%', 0), (' 10 % ', 200), ('3 epochs', 94), ('0.5 epochs', 16), ('0.001 epochs', 1),
    ('1 epoch', 31), ('64 examples', 2), ('65 examples', 3),
])
def test_a_duration_is_a_number_of_steps(value, steps):
    assert parse_duration(value, 'x', batch_size=32, num_examples=1000, total=2000) == steps


@pytest.mark.parametrize('value', [
    'soon', '', '-5', -5, 1.5, '1.5 steps', True, None, 'epochs', '1 000', '3 parsecs'])
def test_what_is_no_duration_is_refused_with_its_field(value):
    with pytest.raises(InputError, match=r'config\.train\.steps='):
        parse_duration(value, 'train.steps', batch_size=32, num_examples=1000, total=2000)


def test_percent_are_refused_where_there_is_no_total():
    with pytest.raises(InputError, match=r'config\.train\.steps='):
        parse_duration('10%', 'train.steps', batch_size=32, num_examples=1000, total=None)


def test_epochs_are_refused_where_the_number_of_examples_is_not_known():
    with pytest.raises(InputError, match=r'config\.train\.steps='):
        parse_duration('3 epochs', 'train.steps', batch_size=32, num_examples=None, total=2000)


def test_a_trace_has_steps_and_hosts():
    assert parse_trace('', 'x') is None
    assert parse_trace('7..7', 'x', 7) == ((7, 7), (0,))
    trace = parse_trace('100..110@0,12', 'x', 105)
    assert trace.steps == (100, 110)
    assert trace.hosts == (0, 12)


def test_a_trace_begins_within_the_run():
    with pytest.raises(InputError, match="config.x='8..9': the run has 7 steps"):
        parse_trace('8..9', 'x', 7)
