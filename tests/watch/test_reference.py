"""References: bands over seeds, and where a run leaves them."""

import json
import math

import numpy as np
import pytest
from scipy import stats

from bert_jax.runtime.errors import InputError
from bert_jax.watch.reference import Comparison, Reference, read_reference
from bert_jax.watch.step_fingerprints import BATCH, GRADIENT, LEARNING_RATE, LOSS, is_checked
from bert_jax.watch.step_fingerprints import steps_since_check as since

STEPS = [step for step in range(1, 101) if is_checked(step)]
FIELDS = {
    'task': 'pretrain', 'data.source': 'a.txt', 'data.vocab_file': 'a/vocab.txt',
    'optimizer.learning_rate': 1e-3, 'model.hidden_size': 128,
    'identity.vocabulary': '1f', 'identity.content of a.txt': '2e', 'phases.1.batch_size': 32}


def record_of(seed, step, **changed):
    """The record of a checked step of a run as the reference has it, with other values."""
    rng = np.random.default_rng((seed, step))
    values = {
        'batch': 1000 * seed + step, 'learning_rate': 1e-5 * step,
        'loss': 9 - step / 50 + 0.01 * rng.standard_normal(), 'grad_norm': 1 + rng.random() / 10,
        'steps': since(step)}
    return {f'check/{name}': value for name, value in (values | changed).items()}


@pytest.fixture
def reference():
    values = {}
    for name in (BATCH, LEARNING_RATE, LOSS, GRADIENT):
        values[name] = [[record_of(seed, step)[name] for step in STEPS] for seed in range(3)]
    return Reference('tiny', FIELDS, [0, 1, 2], STEPS, values)


def departures(reference, fields, seed=0, **changed_from_30):
    """(Step, what, line) of each departure of a run whose values are others from step 30 on."""
    comparison = Comparison(reference, FIELDS | fields | {'seed': seed})
    found = []
    for step in STEPS:
        changed = {}
        if step >= 30:
            changed = {name: change(step) for name, change in changed_from_30.items()}
        found += comparison.departures(step, record_of(seed, step, **changed))
    return found


@pytest.mark.parametrize('seed', [0, 2, 5])
def test_a_run_of_any_seed_stays_within_the_band(reference, seed):
    assert departures(reference, {}, seed) == []


def test_another_batch_is_named_with_the_settings_of_the_data(reference):
    fields = {'identity.vocabulary': '3c', 'identity.content of a.txt': '4d',
              'data.vocab_file': 'b.txt', 'model.hidden_size': 64}
    found, = departures(reference, fields, batch=lambda step: 7)
    assert (found.step, found.name) == (30, BATCH)
    assert found.line == (
        "step 30: the batch differs: data.vocab_file='b.txt', reference 'a/vocab.txt'; "
        'another vocabulary (compare data.vocab_file)')


def test_another_text_is_named_and_a_loss_of_other_rows(reference):
    fields = {'identity.content of a.txt': '4d', 'optimizer.learning_rate': 1e-2}
    found = departures(reference, fields, batch=lambda step: 7, loss=lambda step: 5.0)
    lines = [departure.line for departure in found]
    assert lines[0] == 'step 30: the batch differs: differing content of a.txt'
    assert lines[1].startswith('step 30: loss 5, reference ')
    assert lines[1].endswith(' (of other rows)')


def test_another_learning_rate_is_named_with_the_settings_of_the_optimizer(reference):
    fields = {'optimizer.learning_rate': 1.1e-3, 'data.source': 'b.txt'}
    found, = departures(reference, fields, learning_rate=lambda step: 1.1e-5 * step)
    assert found.line == ('step 30: learning rate 0.00033, reference 0.0003: '
                          'optimizer.learning_rate=0.0011, reference 0.001')


@pytest.mark.parametrize('name', ['loss', 'grad_norm'])
def test_a_loss_or_gradient_outside_of_the_band_is_named_once(reference, name):
    found, = departures(reference, {}, **{name: lambda step: 9.7})
    assert found.step == 30
    assert ', reference ' in found.line and ' +- ' in found.line
    assert found.line.endswith(', and no setting that it depends on')


def test_rows_of_another_seed_and_means_that_lack_steps_are_not_compared(reference):
    assert departures(reference, {}, seed=5, batch=lambda step: 7) == []
    assert departures(reference, {}, loss=lambda step: 5.0, grad_norm=lambda step: 5.0,
                      steps=lambda step: since(step) - 1) == []


def test_the_band_has_the_freedom_of_all_steps_and_seeds():
    of_step = [9.0, 9.2, 9.4]  # of three seeds, the same at four steps
    values = {LOSS: [[value] * 4 for value in of_step]}
    band = Reference('', {}, [0, 1, 2], [1, 2, 3, 4], values).band(1, LOSS)
    quantile = stats.t.ppf(1 - 0.001 / 2, df=4 * 2)
    width = quantile * np.std(of_step, ddof=1) * math.sqrt(1 + 1 / 3)
    assert band.holds(9.2 + 0.999 * width) and not band.holds(9.2 + 1.001 * width)


def test_the_band_is_the_interval_that_the_next_seed_leaves_once_in_a_thousand():
    rng = np.random.default_rng(0)
    left = 0
    for _ in range(2000):
        losses = 7 + 0.1 * rng.standard_normal((4, 9))
        values = dict.fromkeys((BATCH, LEARNING_RATE, GRADIENT, LOSS), losses[:3].tolist())
        band = Reference('', {}, [0, 1, 2], list(range(1, 10)), values).band(1, LOSS)
        assert math.isclose(band.mean, losses[:3, 0].mean())
        left += not band.holds(losses[3, 0])
    assert left <= 8  # 2 are expected; more than 8 have a chance of 2e-4


def test_a_run_of_another_task_is_refused_and_a_kind_of_pretraining_is_not(reference):
    with pytest.raises(InputError, match="the task 'tagging', the reference tiny 'pretrain'"):
        Comparison(reference, FIELDS | {'task': 'tagging', 'seed': 0})
    assert Comparison(reference, FIELDS | {'task': 'pretrain_mine', 'seed': 0}).has_same_rows


def test_rows_of_labelled_examples_may_be_of_another_mesh(reference):
    tagging = FIELDS | {'task': 'tagging', 'seed': 0}
    labelled = Reference('tags', tagging, [0, 1, 2], STEPS, reference.values)
    (found,) = Comparison(labelled, tagging).departures(1, record_of(0, 1, batch=7))
    assert found.line == ('step 1: the batch differs: another mesh or train.accumulation_steps, '
                          'for which labelled examples are packed')


def test_a_training_run_is_warned_in_one_line(reference):
    comparison = Comparison(reference, FIELDS | {'seed': 1})
    assert comparison.alarms(1, record_of(1, 1)) == []
    alarm, = comparison.alarms(2, record_of(1, 2, batch=7))
    assert alarm.name == 'reference' and alarm.value == 7
    assert alarm.line.startswith('the run leaves its reference tiny: step 2: the batch differs')


def test_an_unknown_or_damaged_reference_is_an_error(tmp_path):
    with pytest.raises(InputError, match='no reference .tiny_pretrian.: did you mean'):
        read_reference('tiny_pretrian')
    with pytest.raises(InputError, match='is missing: tools.report --reference makes it'):
        read_reference(str(tmp_path / 'none.json'))
    file = tmp_path / 'other.json'
    good = {'fields': FIELDS, 'seeds': [0, 1], 'steps': [1]}
    good |= dict.fromkeys((BATCH, LEARNING_RATE, LOSS, GRADIENT), [[1], [1.5]])
    file.write_text(json.dumps(good))
    assert read_reference(str(file)).at(1, LOSS) == [1, 1.5]
    for content in (
            {}, good | {LOSS: [[1]]}, good | {LOSS: [[1], ['1']]}, good | {'seeds': 'ab'},
            good | {'steps': ['1']}, good | {'fields': {}}):
        file.write_text(json.dumps(content))
        with pytest.raises(InputError, match='other.json is not a reference'):
            read_reference(str(file))
