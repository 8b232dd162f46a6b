"""The gates: each warns about its fault in a run, and none warns about a good run."""

import math

import numpy as np
import pytest

from bert_jax.train.gates import MEANINGS, Gates

VOCAB, BY_FREQUENCY = 8000, 7.0
CHANCE = math.log(VOCAB) + math.log(2)


def good(step):
    """Metrics of a step of a run that learns."""
    noise = math.sin(step) / 20
    mlm = 5.0 + 4.0 * math.exp(-step / 100) + noise
    return {'loss': CHANCE if step == 1 else mlm + 0.6, 'grad_norm': 1.5 + noise, 'mlm_loss': mlm,
            'mlm_accuracy': 0.4 * (1 - math.exp(-step / 300)), 'nsp_accuracy': 0.7 + noise}


def said(measured, last=1000, chance=CHANCE, **more):
    """[(name, step)] of what the gates say; a log line every 20 steps, an evaluation every 100."""
    gates = Gates(chance=chance, by_frequency=BY_FREQUENCY, settled=200, **more)
    alarms = []
    for end in range(20, last + 1, 20):
        steps = [measured(step) for step in range(end - 19, end + 1)]
        means = {name: float(np.mean([s[name] for s in steps])) for name in steps[0]}
        alarms += gates.trained(end, steps, means)
        if end % 100 == 0:
            alarms += gates.measured('eval', end, measured(end))
    assert {alarm.name for alarm in alarms} <= MEANINGS.keys()
    return [(alarm.name, alarm.step) for alarm in alarms]


def at(wrong, **changed):
    """A good run, except at step `wrong`, or if that is negative, from step -`wrong` on."""
    return lambda step: good(step) | (
        changed if step == wrong or wrong < 0 and step >= -wrong else {})


def guessing(step):
    return good(step) | {'mlm_loss': BY_FREQUENCY + 0.05, 'mlm_accuracy': 0.06}


def constant(loss, accuracy):
    """Metrics of a left-to-right model that stay the same."""
    return lambda step: {'loss': loss, 'grad_norm': 1.5, 'lm_loss': loss, 'lm_accuracy': accuracy}


@pytest.mark.parametrize(('measured', 'more', 'expected'), [
    (good, {}, []),
    (at(1, loss=CHANCE + 3), {}, [('first_loss', 1)]),
    (at(1, loss=1.0), {'chance': None}, []),  # not the first step of fresh parameters
    (guessing, {}, [('plateau', 200)]),  # as with the labels of other rows
    (guessing, {'masked_from': 400}, [('plateau', 600)]),
    # As with rows that reveal the masked words.
    (at(-41, mlm_accuracy=0.97), {}, [('leak', 60), ('leak', 100)]),
    (at(333, grad_norm=40.0), {}, [('gradient_spike', 333)]),
    (at(333, loss=9.0), {}, [('loss_spike', 333)]),
    (at(10, grad_norm=40.0, loss=20.0), {}, []),  # too early for spikes
    (at(-501, loss=6.5, grad_norm=9.0), {'phases': [501]}, []),  # a new phase is no spike
    (good, {'repeated': 0.34}, [('repeats', 1)]), (good, {'repeated': 0.1}, []),
    (constant(BY_FREQUENCY, 0.06), {'chance': None}, [('plateau', 200)]),
    (constant(1.0, 0.97), {'chance': None}, [('leak', 20), ('leak', 100)]),
])
def test_each_gate_warns_about_its_fault_alone(measured, more, expected):
    assert said(measured, **more) == expected


def test_a_lasting_fault_is_reported_again_only_after_it_has_ended():
    def measured(step):
        return guessing(step) if step <= 300 or 600 < step <= 700 else good(step)

    assert [step for name, step in said(measured) if name == 'plateau'] == [200, 620]


def test_held_out_rows_without_a_leak_do_not_end_the_leak_of_training_rows():
    gates = Gates()
    alarms = [alarm for step in range(100, 500, 100) for alarm in (
        *gates.trained(step, [], {'mlm_accuracy': 0.99}),
        *gates.measured('eval', step, {'mlm_accuracy': 0.1}))]
    assert [(alarm.name, alarm.step) for alarm in alarms] == [('leak', 100)]


def test_a_spike_says_how_to_skip_it():
    gates = Gates()
    steps = [{'loss': 5.0, 'grad_norm': 1.0 if step != 31 else 9.0} for step in range(1, 41)]
    steps[35]['grad_norm'] = 8.0  # only the worst spike of a log line is reported
    (alarm,) = gates.trained(40, steps, {})
    assert (alarm.name, alarm.step, alarm.value) == ('gradient_spike', 31, 9.0)
    assert 'config.train.skip_steps=(31,)' in alarm.line
