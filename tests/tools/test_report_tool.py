"""tools.report: the page of runs in every state, the board, and groups of seeds."""

import json
import re

import numpy as np
import pytest
from scipy import stats

from bert_jax.tools import report
from bert_jax.tools.report import RunRecords
from bert_jax.train.gates import MEANINGS
from bert_jax.weights.run_directory import describe_run, read_config, write_run
from tests.conftest import ROOT
from tests.predict import tiny

PHASES = [{'steps': 4, 'batch_size': 2, 'max_seq_length': 8, 'max_predictions_per_seq': 2},
          {'steps': 4, 'batch_size': 1, 'max_seq_length': 16, 'max_predictions_per_seq': 4}]


def records(steps):
    """A record of each step, with rows three quarters full, and an evaluation every two steps."""
    for step in range(1, steps + 1):
        length = 6 if step <= 4 else 12
        yield {'step': step, 'train/loss': 9 - step, 'train/mlm_accuracy': step / 10,
               'train/sequences_per_second': 10.0, 'train/tokens_per_second': 10.0 * length,
               'train/data_wait': 0.5, 'train/goodput': 0.25, 'time/step': step, 'time/data': step}
        if step % 2 == 0:
            yield {'step': step, 'eval/mlm_accuracy': step / 20}
        if step in (3, 4):
            yield {'step': step, 'gate/loss_spike': 9.0}


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    """`whole`, a finished run; `killed`, with another seed and before its first checkpoint; `bare`,
    before its first record."""
    folder = tmp_path_factory.mktemp('runs')
    weights = tiny.pretraining_weights(folder)
    for name, steps, seed in (('whole', 8, 0), ('killed', 5, 1), ('bare', 0, 2)):
        run = folder / name
        write_run(run, weights)
        fields = {k: v for k, v in read_config(run).items() if k != 'digest'}
        fields |= {'task': 'pretrain', 'seed': seed, 'phases': PHASES, 'train': {'steps': 8},
                   'metric': 'mlm_accuracy'}
        describe_run(run, fields, None)
        (run / 'metrics.jsonl').write_text(
            ''.join(json.dumps(r) + '\n' for r in records(steps)) + '{"ste')
        if name != 'whole':
            (run / 'checkpoints' / '0').rename(folder / f'checkpoint of {name}')
    return folder


def write(folder, lines, **fields):
    """Writes a run directory with these config fields and lines of metrics; returns its path."""
    folder.mkdir()
    describe_run(folder, fields, None)
    (folder / 'metrics.jsonl').write_text('\n'.join(lines) + '\n')
    return str(folder)


def test_the_board(runs, tmp_path):
    """It has means with Student's intervals, of the settings with most runs, and published rows."""
    model, lines = read_config(runs / 'whole')['model'], list(map(json.dumps, records(8)))

    made = {'command': 'python -m bert_jax.main --config=configs/mine.py:five/4', 'commit': 'abc'}
    starts = [write(tmp_path / f'seed={seed}', lines, task='pretrain', seed=seed, phases=PHASES,
                    made=made, train={'steps': 8}, metric='mlm_accuracy', model=model,
                    head='pretraining') for seed in (0, 1)]
    tuned = [write(tmp_path / f'{seed} {rate}', ['{"step": 2, "eval/accuracy": 0.99}',
                                                 f'{{"step": 4, "eval/accuracy": {score}}}'],
                   task='sst2', metric='accuracy', train={'steps': 4}, init_checkpoint=starts[seed],
                   optimizer={'learning_rate': rate}, init_saved=seed)
             for seed, rate, score in ((0, 1e-3, 0.8), (1, 1e-3, 0.9), (1, 1e-4, 0.95))]
    report.main(['--board', *starts, *tuned, f'--output={tmp_path}/board.md'])
    text = (tmp_path / 'board.md').read_text()
    assert (ROOT / 'docs/board.md').read_text().startswith(text[:text.index('|')])
    head, _, ours, tiny_, _ = ([cell.strip() for cell in line.split('|')[1:-1]]
                               for line in text.splitlines() if line.startswith('|'))
    row = dict(zip(head, ours, strict=True))
    half = stats.t.interval(0.95, 1, 85, 5)[1] - 85  # a standard error of 10 / sqrt(2) / sqrt(2)
    assert row['sst2'] == row['mean'] == f'85.00 ± {half:.2f}'
    assert (row['recipe'], row['seeds'], row['commit']) == ('mine.py:five/4', '2', 'abc')
    assert row['repeated by'] == f"`{made['command']}`"
    flops = RunRecords(runs / 'whole', 'x').work_at(8)[1]
    assert float(row['FLOPs']) == pytest.approx(flops, rel=0.05)
    assert float(row['v5e chip-hours'][2:]) == pytest.approx(flops / 0.4 / 197e12 / 3600, rel=0.05)
    assert dict(zip(head, tiny_, strict=True))['sst2'] == '83.2'


def test_the_page(runs, capsys):
    names = ['whole', 'killed', 'bare']
    report.main([*(str(runs / name) for name in names), f'--output={runs}/page.html',
                 '--text=the <i>cat</i> sees a bird.'])
    page = (runs / 'page.html').read_text()
    said = capsys.readouterr().out
    assert 'whole: finished: 8 steps in 0:16\n' in said
    assert 'killed: step 5 of 8 in 0:10, stopped' in said and 'bare: step 0 of 8, stopped' in said
    # The page loads nothing from a network, and texts are escaped.
    assert not re.search(r'(src|href)="(?!#)|url\(|@import', page)
    assert set(re.findall(r'https?://[^\'"]*', page)) == {'http://www.w3.org/2000/svg'}
    assert '&lt;i&gt;' in page and '<i>' not in page
    (data,) = map(json.loads, re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', page))
    assert data['runs'] == names
    accuracy = data['charts'][1]
    assert [(s['run'], s['held_out']) for s in accuracy['series']] == [
        (0, False), (0, True), (1, False), (1, True)]
    assert data['phases'][0] == [[4, 48, pytest.approx(data['phases'][0][0][2]), 16]]
    section = {name: page.split(f'id="{name}"')[1].split('</section>')[0]
               for name in ('gates', 'settings', 'short')}
    assert section['gates'].count('<li>') == 2 and MEANINGS['loss_spike'] in section['gates']
    assert re.findall(r'<th scope="row">(.*?)</th>', section['settings']) == ['seed']
    assert '<b>not comparable</b>: step 5 of 8' in section['short']
    # Attention in the sentence, for the runs that have weights.
    heads = data['attention'][0]
    assert (heads['layers'], heads['heads']) == (3, 4) and data['attention'][2] is None
    tokens = heads['tokens']
    assert tokens[0] == '[CLS]' and tokens[-2:] == ['.', '[SEP]']
    assert page.count('<span class="guess') > 10 and 'class="guess true"' in page


def test_the_work_so_far(runs):
    run = RunRecords(runs / 'whole', 'whole')
    points = np.array(run.curves()['train/loss'])
    # Rows of 8 and of 16 tokens, three quarters of them full.
    np.testing.assert_allclose(points[:, 1], [12, 24, 36, 48, 60, 72, 84, 96])
    a_step = np.diff(points[:, 2], prepend=0)
    assert len(set(np.round(a_step[:4]))) == 1 and len(set(np.round(a_step[4:]))) == 1
    # By hand (docstring of `train_flops`): two layers whole, the third at [CLS] and two positions.
    h, i, s, p, v = 32, 64, 8, 2, 20
    forward = 2 * s * (8 * h * h + 4 * h * i + 4 * s * h)
    forward += s * 6 * h * h + (p + 1) * (2 * h * h + 4 * h * i + 4 * s * h)
    forward += p * (2 * h * h + 2 * h * v) + 2 * h * h + 4 * h
    assert a_step[0] == pytest.approx(2 * 3 * forward)
    assert run.scores == {'step': 8, 'mlm_accuracy': 0.4}


@pytest.mark.parametrize(('keeps_best', 'sizes'), [(True, [2, 1]), (False, [3])])
def test_runs_that_choose_among_other_evaluations_are_no_seeds_of_one_group(
    keeps_best, sizes, tmp_path
):
    for seed, every in enumerate((4, 4, 2)):
        write(tmp_path / str(seed), ['{"step": 8, "eval/accuracy": 0.5}'], task='rte', seed=seed,
              metric='accuracy', train={'steps': 8, 'eval_every': every, 'save_every': every})
        if keeps_best:
            (tmp_path / str(seed) / 'best' / '8').mkdir(parents=True)
    groups = report.grouped(RunRecords(tmp_path / str(seed), str(seed)) for seed in range(3))
    assert [len(group.runs) for group in groups] == sizes
    assert ('train.eval_every' in groups[0].settings()) == keeps_best


def test_groups_of_seeds_and_how_far_they_are_apart(runs, tmp_path):
    scores = {'base-0': 0.31, 'base-1': 0.35, 'wide-0': 0.42, 'wide-1': 0.41, 'wide-2': 0.46}
    for name, score in scores.items():
        write(tmp_path / name, [json.dumps({'step': 8, 'eval/mlm_accuracy': score})],
              task='pretrain', metric='mlm_accuracy', seed=int(name[-1]), train={'steps': 8},
              data={'masking': 'pieces'},
              model={'hidden_size': 64 if name.startswith('wide') else 32})
    groups = report.grouped(RunRecords(tmp_path / name, name) for name in scores)
    assert [(group.name, len(group.runs)) for group in groups] == [('base', 2), ('wide', 3)]
    ours, theirs = (group.scores('mlm_accuracy') for group in reversed(groups))
    low, high = stats.ttest_ind(ours, theirs).confidence_interval()
    assert report.intervals([theirs, ours])[1] == pytest.approx((high - low) / 2)
    (text,) = re.findall(r'<b>(.*?)</td>', report._in_short(groups, {}).split('base')[-1])
    assert text == f'+0.1000, better</b> ({low:+.4f} to {high:+.4f})'
    other, first = groups[1].runs[0], groups[0].runs[0]
    assert report.incomparable(other, first) == ''
    other.fields['data.masking'] = 'spans'  # other masks: scores are not comparable
    assert report.incomparable(other, first) == 'its held-out rows have another data.masking'
    other.metric = 'standard_mlm_accuracy'
    assert report.incomparable(other, first) == ''
