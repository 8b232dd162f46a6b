"""The alarms: each warns about its fault in a run, and none warns about a good run."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bert_jax.watch.alarms import MEANINGS, Alarms

VOCAB_SIZE = 8000
BY_FREQUENCY = 7.0  # loss of guessing by frequency
CHANCE = math.log(VOCAB_SIZE) + math.log(2)
LOG_EVERY = 20
EVAL_EVERY = 100


def good(step):
    """Metrics of a step of a run that learns."""
    noise = math.sin(step) / 20
    mlm_loss = 5.0 + 4.0 * math.exp(-step / 100) + noise
    return {
        'loss': CHANCE if step == 1 else mlm_loss + 0.6,
        'grad_norm': 1.5 + noise,
        'mlm_loss': mlm_loss,
        'mlm_accuracy': 0.4 * (1 - math.exp(-step / 300)),
        'nsp_accuracy': 0.7 + noise,
    }


def good_except_at(wrong_step, **metrics):
    """A run that learns, with other metrics at one step."""
    def measured(step):
        if step == wrong_step:
            return good(step) | metrics
        return good(step)
    return measured


def good_until(wrong_step, **metrics):
    """A run that learns, with other metrics from a step on."""
    def measured(step):
        if step >= wrong_step:
            return good(step) | metrics
        return good(step)
    return measured


def guessing(step):
    """Metrics of a step of a run that guesses by frequency, as with the labels of other rows."""
    return good(step) | {'mlm_loss': BY_FREQUENCY + 0.05, 'mlm_accuracy': 0.06}


def constant(loss, accuracy):
    """A run of a left-to-right model whose metrics stay the same."""
    def measured(step):
        return {'loss': loss, 'grad_norm': 1.5, 'lm_loss': loss, 'lm_accuracy': accuracy}
    return measured


def mean_metrics(steps):
    return {name: float(np.mean([step[name] for step in steps])) for name in steps[0]}


def alarms_of(measured, *, chance=CHANCE, **options):
    """[(name, step)] of the alarms in a run of 1,000 steps.

    Args:
      measured: metrics by step.
      chance, options: of `Alarms`.
    """
    watch = Alarms(chance=chance, by_frequency=BY_FREQUENCY, settled=200, **options)
    alarms = []
    for end in range(LOG_EVERY, 1000 + 1, LOG_EVERY):
        steps = [measured(step) for step in range(end - LOG_EVERY + 1, end + 1)]
        alarms += watch.trained(end, steps, mean_metrics(steps))
        if end % EVAL_EVERY == 0:
            alarms += watch.measured('eval', end, measured(end))
    return names_and_steps(alarms)


def names_and_steps(alarms):
    assert {alarm.name for alarm in alarms} <= MEANINGS.keys()
    return [(alarm.name, alarm.step) for alarm in alarms]


@dataclasses.dataclass
class GateCase:
    """A run, and the (name, step) of its alarms."""

    measured: Callable[[int], dict[str, float]]
    alarms: list[tuple[str, int]]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


FROM_OTHER_WEIGHTS = {'chance': None}
CASES = {
    'good': GateCase(good, []),
    'a first loss above chance': GateCase(
        good_except_at(1, loss=CHANCE + 3), [('first_loss', 1)]),
    'a first loss of parameters that are not fresh': GateCase(
        good_except_at(1, loss=1.0), [], FROM_OTHER_WEIGHTS),
    'guessing by frequency': GateCase(guessing, [('plateau', 200)]),
    'guessing by frequency after a causal phase': GateCase(
        guessing, [('plateau', 600)], {'masked_from': 400}),
    'rows that reveal the masked words': GateCase(
        good_until(41, mlm_accuracy=0.97), [('leak', 60), ('leak', 100)]),
    'one large gradient': GateCase(
        good_except_at(333, grad_norm=40.0), [('gradient_spike', 333)]),
    'one large loss': GateCase(good_except_at(333, loss=9.0), [('loss_spike', 333)]),
    'too early for spikes': GateCase(good_except_at(10, grad_norm=40.0, loss=20.0), []),
    'a new phase is no spike': GateCase(
        good_until(501, loss=6.5, grad_norm=9.0), [], {'phases': [501]}),
    'many repeated sentences': GateCase(good, [('repeats', 1)], {'repeated': 0.34}),
    'few repeated sentences': GateCase(good, [], {'repeated': 0.1}),
    'left to right, guessing by frequency': GateCase(
        constant(BY_FREQUENCY, accuracy=0.06), [('plateau', 200)], FROM_OTHER_WEIGHTS),
    'left to right, words are revealed': GateCase(
        constant(1.0, accuracy=0.97), [('leak', 20), ('leak', 100)], FROM_OTHER_WEIGHTS),
}


@pytest.mark.parametrize('case', CASES.values(), ids=CASES)
def test_each_gate_warns_about_its_fault_alone(case):
    assert alarms_of(case.measured, **case.options) == case.alarms


def test_a_lasting_fault_is_reported_again_only_after_it_has_ended():
    def measured(step):
        if step <= 300 or 600 < step <= 700:
            return guessing(step)
        return good(step)

    plateaus = [step for name, step in alarms_of(measured) if name == 'plateau']
    assert plateaus == [200, 620]


def test_held_out_rows_without_a_leak_do_not_end_the_leak_of_training_rows():
    watch = Alarms()
    alarms = []
    for step in range(100, 500, 100):
        alarms += watch.trained(step, [], {'mlm_accuracy': 0.99})
        alarms += watch.measured('eval', step, {'mlm_accuracy': 0.1})
    assert names_and_steps(alarms) == [('leak', 100)]


def spiky_steps():
    """Metrics of steps 1 to 40, whose gradient is large at step 36 and larger at step 31."""
    steps = [{'loss': 5.0, 'grad_norm': 1.0} for _ in range(40)]
    steps[30]['grad_norm'] = 9.0
    steps[35]['grad_norm'] = 8.0
    return steps


def test_only_the_worst_spike_of_a_log_line_is_reported():
    (alarm,) = Alarms().trained(40, spiky_steps(), {})
    assert alarm.name == 'gradient_spike'
    assert alarm.step == 31
    assert alarm.value == 9.0


def test_a_spike_says_how_to_skip_it():
    (alarm,) = Alarms().trained(40, spiky_steps(), {})
    assert 'config.train.skip_steps=(31,)' in alarm.line
