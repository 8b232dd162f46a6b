"""The study of a sweep in a bucket, where nothing can be appended."""

import pytest

from bert_jax.runtime.files import as_path
from bert_jax.tools.sweep.folder import Sweep
from bert_jax.tools.sweep.members import grid_members
from bert_jax.tools.sweep.study import SweepStudy


@pytest.mark.slow
def test_two_processes_share_a_study_in_a_bucket(bucket):
    path = as_path(f'{bucket}/sweep')
    members = grid_members(['optimizer.learning_rate=1e-3,1e-2'], 0)
    sweep = Sweep(path, 'glue.py:cola', [], members)
    sweep.open('glue.py:cola', [])
    first, second = SweepStudy(sweep), SweepStudy(sweep)
    assert {first.ask(), second.ask()} == {member.settings for member in members}
    assert first.ask() is None
    for member in members:
        sweep.finish(member, 'eval/accuracy', {'eval/accuracy': 0.5})
    assert second.is_over()
    assert [trial.value for trial in first.optuna.trials] == [0.5, 0.5]
