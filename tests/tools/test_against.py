"""tools.report --against and --reference: what they say of runs, and their exit status."""

import contextlib
import io
import json

import numpy as np
import pytest

from bert_jax.run.description import describe_run
from bert_jax.tools.report.__main__ import main
from bert_jax.watch.step_fingerprints import is_checked, steps_since_check

STEPS = [step for step in range(1, 31) if is_checked(step)]


def write_run(folder, seed=0, rate=1e-3, vocabulary='1f', source='a.txt', resumed_at=0):
    """Writes the directory of a run of 30 steps; returns its path."""
    folder.mkdir()
    fields = {
        'task': 'pretrain', 'seed': seed, 'train': {'steps': 30}, 'data': {'source': source},
        'optimizer': {'learning_rate': rate}, 'identity': {'vocabulary': vocabulary}}
    describe_run(folder, fields, None)
    lines = [json.dumps({'step': 30, 'train/loss': 8.0})]
    for step in STEPS:
        rng = np.random.default_rng((seed, step))
        lines.append(json.dumps({
            'step': step, 'check/batch': float(1000 * seed + step + 7 * (vocabulary != '1f')),
            'check/learning_rate': rate * step, 'check/loss': 8 + 0.01 * rng.random(),
            'check/grad_norm': 2 + 0.1 * rng.random(),
            'check/steps': float(steps_since_check(step) - (step == resumed_at))}))
    (folder / 'metrics.jsonl').write_text('\n'.join(lines) + '\n')
    return str(folder)


def report(*arguments):
    """(Exit status, what it said) of the command."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            status = main(list(map(str, arguments)))
        except SystemExit as error:
            status = error.code
    return status, said.getvalue()


@pytest.fixture(scope='module')
def reference(tmp_path_factory):
    """The file of a reference of three seeds."""
    folder = tmp_path_factory.mktemp('reference')
    runs = [write_run(folder / f'seed{seed}', seed) for seed in range(3)]
    status, said = report(*runs, '--reference', f'--output={folder}/tiny.json')
    assert status == 0, said
    return folder / 'tiny.json'


def test_a_run_that_agrees(reference, tmp_path):
    status, said = report(write_run(tmp_path / 'run', 1), f'--against={reference}')
    assert status == 0
    first, same, loss = said.splitlines()
    assert first.startswith('run, seed 1: 12 checked steps, up to step 30, compared with ')
    assert same == 'same data'
    assert loss.startswith('loss 8.00') and ' at step 30, reference 8.00' in loss
    assert ' +- 0.0' in loss and '; its seed 1: 8.00' in loss
    assert loss.endswith(', all losses within 0')


def test_a_run_of_another_seed_has_no_rows_to_compare(reference, tmp_path):
    status, said = report(write_run(tmp_path / 'run', 9), f'--against={reference}')
    assert status == 0
    assert 'seed 9 is none of the reference, so its rows are others: not compared' in said
    assert 'same data' not in said and 'loss 8.00' in said


@pytest.mark.parametrize('changed, line', [
    ({'vocabulary': '3c'},
     'step 1: the batch differs: another vocabulary (compare data.vocab_file)'),
    ({'rate': 1.1e-3}, 'step 1: learning rate 0.0011, reference 0.001: '
                       'optimizer.learning_rate=0.0011, reference 0.001'),
])
def test_a_run_that_leaves(reference, tmp_path, changed, line):
    good = write_run(tmp_path / 'good')
    status, said = report(good, write_run(tmp_path / 'run', **changed), f'--against={reference}')
    assert status == 1
    assert line in said.splitlines()
    assert ('same data\n' + line in said) == ('rate' in changed)


def test_the_loss_is_of_the_last_step_without_a_resume_before(reference, tmp_path):
    resumed = write_run(tmp_path / 'run', resumed_at=30)
    status, said = report(resumed, f'--against={reference}')
    assert status == 0 and ' at step 20, reference ' in said


def test_runs_of_a_reference_differ_in_their_seed_alone(tmp_path):
    one = write_run(tmp_path / 'one')
    cases = [
        ([one], 'the runs have the seeds 0: a reference needs two or more'),
        ([one, write_run(tmp_path / 'same')], 'the runs have the seeds 0, 0'),
        ([one, write_run(tmp_path / 'text', seed=1, source='b.txt')], 'differ in data.source'),
        ([one, write_run(tmp_path / 'resumed', seed=1, resumed_at=20)],
         'resumed from a step that is not checked, before step 20'),
    ]
    for runs, message in cases:
        status, said = report(*runs, '--reference', f'--output={tmp_path}/new.json')
        assert (status, message in said) == (2, True), said
        assert not (tmp_path / 'new.json').exists()


def test_what_cannot_be_compared(reference, tmp_path):
    run = write_run(tmp_path / 'run')
    old = write_run(tmp_path / 'old')
    (tmp_path / 'old' / 'metrics.jsonl').write_text('{"step": 30, "train/loss": 8.0}\n')
    damaged = write_run(tmp_path / 'damaged')
    (tmp_path / 'damaged' / 'metrics.jsonl').write_text('{"step": 30, "check/batch": 8.0}\n')
    cases = [
        ([damaged, f'--against={reference}'],
         'the record of step 30 has check/batch, but no check/learning_rate'),
        ([run], 'give either --output or --against'),
        ([run, '--against=tiny', '--output=page.html'], 'give either --output or --against'),
        ([run, '--against=tyni'], "there is no reference 'tyni'"),
        ([old, f'--against={reference}'], 'has no records of checked steps'),
    ]
    for arguments, message in cases:
        status, said = report(*arguments)
        assert (status, message in said) == (2, True), said
