"""Pre-training: the rows of each step, and what its gates read from the text."""

import math
import random
from collections import Counter

import numpy as np
import pytest

from bert_jax.config import complete, default_config
from bert_jax.config.phases import batches_of
from bert_jax.runtime.errors import InputError
from bert_jax.tasks.pretrain import PretrainTask, read_curve
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


def open_task(**fields):
    c = default_config('synthetic')
    c.model.name, c.model.vocab_size = 'tiny', CONFIG.vocab_size
    c.train.update(fields)
    return PretrainTask(complete(c))


def rows(task, number, first_step=0):
    """input_ids of the steps of a phase, from one on."""
    phase = task.phase(task.objective(CONFIG), None, PHASES, number, one_device())
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


@pytest.mark.parametrize(('step', 'skipped', 'named'), [
    (250, (), 'row 996 of epoch 0 to row 999 of epoch 0; '),
    (250, (250,), 'row 2,400 of epoch 0 to row 2,403 of epoch 0; '),  # in its place
    (550, (), 'row 2,196 of epoch 0 to row 2,199 of epoch 0; '),  # the next phase has other rows
])
def test_a_spike_names_the_rows_of_its_step(step, skipped, named):
    task = open_task(skip_steps=skipped)
    phases = [{**phase, 'steps': 300} for phase in PHASES]
    gates = task.gates(task.objective(CONFIG), phases, fresh=False, settled=10**6)
    usual = [{'loss': 2.0, 'grad_norm': 1.0}] * 200
    (alarm,) = gates.trained(step, [*usual, {'loss': 9.0, 'grad_norm': 1.0}], {})
    assert f': {named}config.train.skip_steps=({step},)' in alarm.line


@pytest.mark.parametrize(('content', 'words'), [
    (None, 'no accuracies'), ('{"step": 1, "train/loss": 2}\n', 'no accuracies'),
    ('[]\n{"step": 1}\n', 'line 1'),
])
def test_a_reference_without_a_curve_is_refused(content, words, tmp_path):
    if content is not None:
        (tmp_path / 'metrics.jsonl').write_text(content)
    with pytest.raises(InputError, match=words):
        read_curve(str(tmp_path))


WORDS = [a + b + c for a in 'bdfgk' for b in 'aeiou' for c in 'lmnrst']


def test_gates_know_the_chance_the_frequencies_and_the_repeats_of_a_run(tmp_path):
    rng = random.Random(0)
    documents = [[' '.join(rng.choices(WORDS, k=12)) for _ in range(6)] for _ in range(60)]
    documents += [rng.sample(lines, k=len(lines)) for lines in documents[:30]]  # none is equal
    (tmp_path / 'text.txt').write_text('\n\n'.join('\n'.join(lines) for lines in documents))
    (tmp_path / 'vocab.txt').write_text(
        '\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *WORDS]))
    c = default_config('pretrain')
    c.model.name, c.data.source = 'tiny', f'lines:{tmp_path}/text.txt'
    c.data.vocab_file, c.data.dir = str(tmp_path / 'vocab.txt'), str(tmp_path)
    task = PretrainTask(complete(c))
    chance = math.log(CONFIG.vocab_size) + math.log(2)
    counts = Counter(word for lines in documents for line in lines for word in line.split())
    shares = [count / counts.total() for count in counts.values()]
    by_frequency = -sum(share * math.log(share) for share in shares)

    def gates(fresh):
        return task.gates(task.objective(CONFIG), PHASES, fresh=fresh, settled=3)

    def alarms(gates, step, loss, mlm_loss=0.0):
        found = gates.trained(
            step, [{'loss': loss, 'grad_norm': 1.0}], {'mlm_loss': mlm_loss} if mlm_loss else {})
        return {alarm.name: alarm for alarm in found}

    first = alarms(gates(True), 1, chance + 0.4)
    assert set(first) == {'repeats'} and first['repeats'].value == pytest.approx(1 / 3, abs=0.02)
    assert set(alarms(gates(True), 1, chance + 0.6)) == {'repeats', 'first_loss'}
    run = gates(False)
    assert not alarms(run, 1, chance + 0.6)
    assert not alarms(run, 2, chance, by_frequency), 'it has not settled'
    assert not alarms(run, 3, chance, by_frequency - 0.2)
    alarm = alarms(run, 4, chance, by_frequency)['plateau']
    assert f'frequency has {by_frequency:.2f}:' in alarm.line
