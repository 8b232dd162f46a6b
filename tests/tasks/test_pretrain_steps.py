"""Pre-training: the rows of each step, and what its gates read from the text."""

import math

import numpy as np
import pytest

from bert_jax.config import default_config
from bert_jax.config.phases import batches_of
from bert_jax.tasks.pretrain import PretrainTask
from bert_jax.validation import complete
from tests.tasks.test_packing_changes_nothing import CONFIG, one_device

PHASES = [{'steps': steps, 'batch_size': 4, 'max_seq_length': 16, 'max_predictions_per_seq': 3,
           'packed_rows': 0} for steps in (6, 5)]


@pytest.mark.parametrize('phases', [  # (steps, batch size, length)
    [(10, 4, 32), (10, 4, 64)], [(10, 4, 32), (10, 4, 32)], [(10, 4, 32), (5, 8, 64), (3, 16, 32)],
    [(10, 4, 32), (3, 16, 32), (1, 10, 32)], [(3, 16, 32), (9, 5, 32), (4, 7, 32)],
])
@pytest.mark.parametrize('skip_steps', [(), (3,), (12, 2, 1, 13, 11)])
def test_no_two_steps_of_a_length_have_a_row_in_common(phases, skip_steps):
    phases = [dict(zip(('steps', 'batch_size', 'max_seq_length'), phase)) for phase in phases]
    seen = {32: [], 64: []}
    for number, phase in enumerate(phases):
        batches = [batch + i for batch, count in batches_of(phases, number, skip_steps)
                   for i in range(count)]
        assert len(batches) == phase['steps']
        size = phase['batch_size']
        seen[phase['max_seq_length']] += [
            row for batch in batches for row in range(batch * size, (batch + 1) * size)]
        begin, _ = next(batches_of(phases, number))
        before = sum(other['steps'] for other in phases[:number])
        assert all(batch == begin + step or before + step + 1 in skip_steps
                   for step, batch in enumerate(batches))
    for rows in seen.values():
        assert len(set(rows)) == len(rows)
    assert seen[32][0] == 0 or 1 in skip_steps


def open_task(phases=(), **fields):
    c = default_config('synthetic')
    c.model.name, c.model.vocab_size = 'tiny', CONFIG.vocab_size
    c.phases = tuple(phases)
    c.train.update(fields)
    return PretrainTask(complete(c))


def rows(task, number, first_step=0):
    """input_ids of each step of a phase, from `first_step` on."""
    phase = task.phase(task.make_head(CONFIG), None, PHASES, number, one_device())
    return [np.asarray(batch['input_ids']) for batch in phase.batches(first_step)]


def test_a_skipped_step_has_other_rows_and_all_others_keep_theirs():
    plain, skipping = open_task(), open_task(skip_steps=(3, 9))  # the third of each phase
    for number in (0, 1):
        as_before, skipped = rows(plain, number), rows(skipping, number)
        assert [np.array_equal(*both) for both in zip(as_before, skipped, strict=True)] == [
            i != 2 for i in range(len(as_before))]
        assert not any(np.array_equal(skipped[2], x) for x in as_before)
        for begun in (2, 3):  # a run that resumes there
            np.testing.assert_array_equal(skipped[begun:], rows(skipping, number, begun))


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
        task.phase(task.make_head(CONFIG), None, phases, number, one_device())
    said = capsys.readouterr().out
    assert bool(said) == bool(words) and all(word in said for word in words)


@pytest.mark.parametrize('causal', [False, True])
@pytest.mark.parametrize(('fresh', 'above', 'names'), [
    (True, 0.4, []), (True, 0.6, ['first_loss']), (False, 0.6, [])])
def test_a_first_loss_worse_than_guessing_warns_if_all_is_fresh(fresh, above, names, causal):
    task, phases = open_task(), [PHASES[0] | {'causal': causal}, PHASES[1]]
    gates = task.make_gates(task.make_head(CONFIG), phases, fresh=fresh, settled=3)
    loss = math.log(CONFIG.vocab_size) + (0 if causal else math.log(2)) + above
    alarms = gates.trained(1, [{'loss': loss, 'grad_norm': 1.0}], {})
    assert [alarm.name for alarm in alarms] == names
