"""Which rows the steps of pre-training have: named, skipped, resumed."""

import numpy as np
import pytest

from bert_jax.config import complete, default_config
from bert_jax.errors import InputError
from bert_jax.tasks.pretrain import PretrainTask, batches_of, read_curve, stretches
from tests.tasks.test_packing_changes_nothing import CONFIG, one_device

PHASES = [{'steps': steps, 'batch_size': 4, 'max_seq_length': 16, 'max_predictions_per_seq': 3,
           'packed_rows': 0} for steps in (6, 5)]


@pytest.mark.parametrize(('first', 'skipped', 'expected'), [
    (0, [], [(0, 10)]),
    (4, [], [(4, 6)]),
    (0, [3], [(0, 3), (10, 1), (4, 6)]),
    (3, [3], [(10, 1), (4, 6)]),
    (4, [3], [(4, 6)]),
    (0, [0, 1, 9], [(10, 1), (11, 1), (2, 7), (12, 1)]),
    (5, [0, 7], [(5, 2), (11, 1), (8, 2)]),  # those that a resumed run has behind it count too
    (0, [10, 12], [(0, 10)]),  # of a later phase
])
def test_stretches(first, skipped, expected):
    assert list(stretches(first, 10, skipped, spare=10)) == expected


@pytest.mark.parametrize(('phases', 'expected'), [  # (steps, batch size, length)
    ([(10, 4, 32), (10, 4, 64)], [(0, 10), (0, 10)]),
    ([(10, 4, 32), (10, 4, 32)], [(0, 20), (10, 20)]),
    ([(10, 4, 32), (5, 8, 64), (3, 16, 32)], [(0, 24), (0, 5), (3, 6)]),  # 40 rows, then 48 to 95
    ([(10, 4, 32), (3, 16, 32), (1, 10, 32)], [(0, 28), (3, 7), (10, 11)]),
])
def test_phases_of_one_length_have_different_rows(phases, expected):
    phases = [dict(zip(('steps', 'batch_size', 'max_seq_length'), phase)) for phase in phases]
    assert [batches_of(phases, number) for number in range(len(phases))] == expected


def open_task(**fields):
    c = default_config('synthetic')
    c.model.name, c.model.vocab_size = 'tiny', CONFIG.vocab_size
    c.train.update(fields)
    return PretrainTask(complete(c))


def rows(task, number, first_step=0):
    """input_ids of the steps of a phase, from one on."""
    phase = task.phase(task.objective(CONFIG), None, PHASES, number, one_device(), on_host=True)
    return [batch['input_ids'] for batch in phase.batches(first_step)]


def test_a_skipped_step_has_other_rows_and_all_others_keep_theirs():
    plain, skipping = open_task(), open_task(skip_steps=(3, 9))  # the third of each phase
    before = []
    for number, count in ((0, 6), (1, 5)):
        as_before, skipped = rows(plain, number), rows(skipping, number)
        assert len(as_before) == len(skipped) == count
        before += as_before
        different = [i for i in range(count) if not np.array_equal(as_before[i], skipped[i])]
        assert different == [2]
        assert not any(np.array_equal(skipped[2], x) for x in as_before)
        for begun in (2, 3):  # a run that resumes there
            for one, other in zip(skipped[begun:], rows(skipping, number, begun), strict=True):
                np.testing.assert_array_equal(one, other)
    assert len(np.unique(np.concatenate(before), axis=0)) == 4 * 11, 'no row twice'


@pytest.mark.parametrize(('step', 'named'), [
    (1, 'row 0 of epoch 0 to row 3 of epoch 0; '),
    (2, 'row 44 of epoch 0 to row 47 of epoch 0; '),  # it is skipped, and these in its place
    (6, 'row 20 of epoch 0 to row 23 of epoch 0; '),
    (7, 'row 24 of epoch 0 to row 27 of epoch 0; '),  # the next phase has other rows
])
def test_the_rows_of_a_step_are_named(step, named):
    assert open_task(skip_steps=(2,))._rows_of(PHASES, step) == named


@pytest.mark.parametrize(('content', 'words'), [
    (None, 'no accuracies'), ('{"step": 1, "train/loss": 2}\n', 'no accuracies'),
    ('[]\n{"step": 1}\n', 'line 1'),
])
def test_a_reference_without_a_curve_is_refused(content, words, tmp_path):
    if content is not None:
        (tmp_path / 'metrics.jsonl').write_text(content)
    with pytest.raises(InputError, match=words):
        read_curve(str(tmp_path))
