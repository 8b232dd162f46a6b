"""Sweeps without training: the order of finished runs, and what is said of a bad grid."""

import json

import pytest

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path
from bert_jax.tools.sweep.folder import Sweep
from bert_jax.tools.sweep.members import grid_members, member_config
from bert_jax.tools.sweep.report import report

DIVERGED = {'eval/accuracy': 0.5, 'eval/loss': 320.7}
GOOD = {'eval/accuracy': 0.5, 'eval/loss': 0.703}


def finished(folder, metric, results, losses=()):
    """A sweep whose runs, one a rate, have ended with these results."""
    rates = ','.join(str(10.0**-number) for number in range(len(results)))
    members = grid_members([f'optimizer.learning_rate={rates}'], 0)
    sweep = Sweep(as_path(folder), 'glue.py:cola', [], members)
    for number, (member, result) in enumerate(zip(members, results, strict=True)):
        (sweep.run(member) / 'best').mkdir(parents=True)
        if losses:
            record = {'step': 5, 'train/loss': losses[number]}
            (sweep.run(member) / 'metrics.jsonl').write_text(json.dumps(record) + '\n')
        sweep.finish(member, metric, result)
    return sweep


@pytest.mark.parametrize('results, losses, winner', [
    ([DIVERGED, GOOD], (), 1),
    ([GOOD, DIVERGED], (), 0),
    ([GOOD, {**DIVERGED, 'eval/accuracy': 0.6}], (), 1),
    ([{'eval/accuracy': 0.5}, GOOD], (), 1),
    ([{'eval/accuracy': 0.5}, {'eval/accuracy': 0.5}], (900.0, 0.2), 1),
    ([{'eval/loss': 0.1}, {'eval/accuracy': 0.0, 'eval/loss': 0.9}], (), 1),
    ([{'eval/loss': 0.9}, {'eval/loss': 0.1}], (), 1),
])
def test_the_winner_of_a_tie_has_the_lowest_loss(results, losses, winner, tmp_path, capsys):
    sweep = finished(tmp_path, 'eval/accuracy', results, losses)
    best = sweep.run(sweep.members[winner])
    other = sweep.run(sweep.members[1 - winner])
    assert (tmp_path / 'winner').resolve() == best
    assert (best / 'best').exists() and not (other / 'best').exists()
    assert report(sweep) == 0
    shown = capsys.readouterr().out
    content = (tmp_path / 'results.json').read_text()
    assert 'NaN' not in content and 'Infinity' not in content
    is_tie = len({result.get('eval/accuracy') for result in results}) == 1
    assert ('2 runs have this eval/accuracy: the lowest loss decides' in shown) == is_tie
    assert len(json.loads(content)['tied']) == 2 * is_tie


def test_accuracies_under_masking_are_told_apart_by_their_own_loss(tmp_path):
    results = [{'eval/mlm_accuracy': 0.1, 'eval/mlm_loss': loss} for loss in (7.0, 6.0, 8.0)]
    sweep = finished(tmp_path, 'eval/mlm_accuracy', results)
    assert [sweep.members.index(member) for member in sweep.results()] == [1, 0, 2]


@pytest.mark.parametrize('grid, said', [
    ('train.batch_size=8,many', '--grid train.batch_size=many: .*train.batch_size'),
    ('train.batch_size=8,0', '--grid train.batch_size=0: train.batch_size=0 must be'),
    ('data.masking=words', '--grid data.masking=words: data.masking=.words. has no effect'),
    ('optimizer.decay=steep', '--grid optimizer.decay=steep: optimizer.decay=.steep. is unknown'),
])
def test_a_bad_value_of_the_grid_is_said_to_be_there(grid, said):
    with pytest.raises(InputError, match=said) as error:
        for member in grid_members([grid], 2):
            member_config('classification', [], member)
    assert '--config' not in str(error.value)


def test_a_bad_value_beside_the_grid_is_not_said_to_be_there():
    (member,) = grid_members(['train.batch_size=8'], 0)
    with pytest.raises(InputError, match='^config.optimizer.decay=.steep.'):
        member_config('classification', ['--config.optimizer.decay=steep'], member)
