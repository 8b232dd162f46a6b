"""A sweep in a bucket: its study, where nothing can be appended, and its plots in the report."""

from types import SimpleNamespace

import pytest

from bert_jax.runtime.files import as_path
from bert_jax.tools.report import page
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


@pytest.mark.slow
def test_the_report_has_the_plots_of_a_sweep_in_a_bucket(bucket):
    path = as_path(f'{bucket}/sweep')
    (path / 'sweep.json').write_text('{}')
    (path / 'plots' / 'history.png').write_bytes(b'png')
    run = SimpleNamespace(folder=path / 'runs' / 'a')
    assert page._sweep([SimpleNamespace(runs=[run])]).count('<img src="data:image/png') == 1
