"""Pre-training: the rows of each step, and what its alarms read from the text."""

import math

import numpy as np
import pytest

from bert_jax.completion import complete
from bert_jax.config import default_config
from bert_jax.config.phases import batches_of
from bert_jax.rows.examples import SyntheticExamples
from bert_jax.tasks.pretrain import PhaseRows, PretrainTask
from bert_jax.tasks.pretrain_data import SyntheticData
from bert_jax.train.phase import PhaseSteps
from tests.tasks.test_packing_changes_nothing import CONFIG, one_device

PHASES = [{'steps': steps, 'batch_size': 4, 'max_seq_length': 16, 'max_predictions_per_seq': 3,
           'packed_rows': 0} for steps in (6, 5)]


def phase_of(steps, batch_size, max_seq_length):
    return {'steps': steps, 'batch_size': batch_size, 'max_seq_length': max_seq_length}


def numbers_of_batches(phases, number, skip_steps=()):
    """Of each step of a phase, the number of its batch among those of its size."""
    runs = batches_of(phases, number, skip_steps)
    return [batch for first, count in runs for batch in range(first, first + count)]


@pytest.mark.parametrize('phases', [
    [phase_of(10, 4, 32), phase_of(10, 4, 64)],
    [phase_of(10, 4, 32), phase_of(10, 4, 32)],
    [phase_of(10, 4, 32), phase_of(5, 8, 64), phase_of(3, 16, 32)],
    [phase_of(10, 4, 32), phase_of(3, 16, 32), phase_of(1, 10, 32)],
    [phase_of(3, 16, 32), phase_of(9, 5, 32), phase_of(4, 7, 32)],
])
@pytest.mark.parametrize('skip_steps', [(), (3,), (12, 2, 1, 13, 11)])
def test_no_two_steps_of_a_length_have_a_row_in_common(phases, skip_steps):
    seen = {32: [], 64: []}
    steps_before = 0
    for number, phase in enumerate(phases):
        batches = numbers_of_batches(phases, number, skip_steps)
        assert len(batches) == phase['steps']
        for batch in batches:
            first_row = batch * phase['batch_size']
            seen[phase['max_seq_length']] += range(first_row, first_row + phase['batch_size'])
        first_batch = numbers_of_batches(phases, number)[0]
        for i, batch in enumerate(batches):
            is_skipped = steps_before + i + 1 in skip_steps
            assert batch == first_batch + i or is_skipped
        steps_before += phase['steps']
    for rows in seen.values():
        assert len(set(rows)) == len(rows)
    assert seen[32][0] == 0 or 1 in skip_steps


def open_task(phases=(), **fields):
    config = default_config('synthetic')
    config.model.name = 'tiny'
    config.model.vocab_size = CONFIG.vocab_size
    config.phases = tuple(phases)
    config.train.update(fields)
    return PretrainTask(complete(config))


def rows(task, number, first_step=0):
    """input_ids of each step of a phase, from `first_step` on."""
    of_phase = task.rows(task.make_head(CONFIG), PHASES, number, one_device())
    return [np.asarray(batch['input_ids']) for batch in of_phase.batches(first_step)]


def test_a_skipped_step_has_other_rows_and_all_others_keep_theirs():
    plain = open_task()
    skipping = open_task(skip_steps=(3, 9))  # the third of each phase
    for number in (0, 1):
        as_before = rows(plain, number)
        skipped = rows(skipping, number)
        for i, (rows_before, rows_now) in enumerate(zip(as_before, skipped, strict=True)):
            assert np.array_equal(rows_before, rows_now) == (i != 2)
        assert not any(np.array_equal(skipped[2], x) for x in as_before)
        for begun in (2, 3):  # a run that resumes there
            np.testing.assert_array_equal(skipped[begun:], rows(skipping, number, begun))


class CountedRows:
    """Stands in for the compiled evaluation step and the head's scores: counts rows."""

    def score(self, totals):
        return totals

    def __call__(self, params, batch):
        return {'rows': np.asarray(batch['example_weights']).sum()}


@pytest.mark.parametrize(('fields', 'held_out', 'scored'), [
    pytest.param({}, 700, 700, id='few are all scored'),
    pytest.param({}, 70_000, 65_536, id='of many a sample'),
    pytest.param({'max_eval_examples': 100}, 700, 100, id='bounded'),
    pytest.param({'max_eval_examples': 0}, 70_000, 70_000, id='no bound'),
])
def test_an_evaluation_scores_a_bounded_number_of_rows(
    fields, held_out, scored, monkeypatch, capsys
):
    task = open_task(eval_batch_size=2048, **fields)
    rows_of_text = SyntheticExamples(CONFIG.vocab_size, 8, 1, num_examples=held_out)
    monkeypatch.setattr(task.data, 'held_out', lambda *_, **__: rows_of_text)
    counted = CountedRows()
    rows = PhaseRows(task, task._config, PHASES, 0, one_device(), 0.0)
    assert rows.scores(PhaseSteps(counted, None, counted), {}) == {'rows': scored}
    is_said = f'evaluated on {scored:,} of {held_out:,} held-out rows' in capsys.readouterr().out
    assert is_said == (scored < held_out)


@pytest.mark.parametrize(('changed', 'words'), [
    ({}, []), ({'max_predictions_per_seq': 1}, ['phases[1].max_predictions_per_seq=1', '6.2%']),
    ({'max_predictions_per_seq': 1, 'causal': True}, []),  # nothing is masked
    ({'masked_lm_prob': 0.4}, ['phases[1].max_predictions_per_seq=3', '18.8%', '40.0%', '7 slots']),
])
def test_a_phase_with_too_few_slots_warns_before_the_run(changed, words, capsys):
    phases = [PHASES[0], PHASES[1] | changed]
    task = open_task(phases)
    task.data.masks_by_rate = True  # as text is
    for number in (0, 1):
        task.rows(task.make_head(CONFIG), phases, number, one_device())
    said = capsys.readouterr().out
    assert bool(said) == bool(words) and all(word in said for word in words)


@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize(('fresh', 'above', 'names'), [
    (True, 0.4, []), (True, 0.6, ['first_loss']), (False, 0.6, [])])
def test_a_first_loss_worse_than_guessing_warns_if_all_is_fresh(fresh, above, names, causal):
    task, phases = open_task(), [PHASES[0] | {'causal': causal}, PHASES[1]]
    alarms = task.make_alarms(task.make_head(CONFIG), phases, fresh=fresh, settled=3)
    loss = math.log(CONFIG.vocab_size) + (0 if causal else math.log(2)) + above
    alarms = alarms.trained(1, [{'loss': loss, 'grad_norm': 1.0}], {})
    assert [alarm.name for alarm in alarms] == names


@pytest.mark.parametrize(('causal', 'warns_at'), [
    ([None, None], 3), ([False, False], 3), ([True, None], 9), ([None, True], 14)])
def test_a_plateau_is_looked_for_after_the_last_phase_without_masks(causal, warns_at, monkeypatch):
    task = open_task()
    monkeypatch.setattr(task.data, 'frequency_loss', lambda: 7.0)
    phases = [dict(phase) for phase in PHASES]  # of 6 and 5 steps
    for phase, value in zip(phases, causal, strict=True):
        if value is not None:
            phase['causal'] = value
    alarms = task.make_alarms(task.make_head(CONFIG), phases, fresh=False, settled=3)
    steps = [step for step in range(1, 20) if alarms.trained(step, [], {'mlm_loss': 7.0})]
    assert steps == [warns_at]


@pytest.mark.parametrize(('rate', 'masked_here', 'causal', 'is_also_standard'), [
    pytest.param(0.4, True, False, True, id='another rate'),
    pytest.param(0.15, True, False, False, id='the rate of BERT'),
    pytest.param(0.4, False, False, False, id='records, which come masked'),
    pytest.param(0.4, True, True, False, id='nothing is masked'),
])
def test_other_masks_are_also_evaluated_as_bert_does(
    rate, masked_here, causal, is_also_standard, monkeypatch
):
    monkeypatch.setattr(SyntheticData, 'masks_held_out', masked_here)
    config = default_config('synthetic')
    config.model.update(name='tiny', vocab_size=CONFIG.vocab_size, causal=causal)
    config.data.update(masked_lm_prob=rate, next_sentence=False)
    task = PretrainTask(complete(config))
    assert bool(task.standard_masking) == is_also_standard
    assert task.metric.startswith('standard_') == is_also_standard


@pytest.mark.parametrize(('begins', 'names'), [(61, []), (55, ['loss_spike'])])
def test_another_loss_from_the_first_step_of_a_phase_on_is_no_spike(begins, names):
    task, phases = open_task(), [phase | {'steps': 60} for phase in PHASES]
    alarms = task.make_alarms(task.make_head(CONFIG), phases, fresh=False, settled=200)
    steps = [{'loss': 9.0 if step >= begins else 5.0, 'grad_norm': 1.0} for step in range(1, 121)]
    assert [alarm.name for alarm in alarms.trained(120, steps, {})] == names
