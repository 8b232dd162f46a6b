"""tools.report: the page of runs in every state, the board, and groups of seeds."""

import contextlib
import io
import json
import math
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from bert_jax.run.description import describe_run, read_config
from bert_jax.run.model import read_run, write_run
from bert_jax.runtime.errors import InputError
from bert_jax.tools.report.__main__ import main
from bert_jax.tools.report.comparison import compare, incomparable, intervals
from bert_jax.tools.report.examples import Examples
from bert_jax.tools.report.groups import grouped
from bert_jax.tools.report.page import page
from bert_jax.tools.report.runs import RunRecords
from bert_jax.watch.alarms import MEANINGS
from tests.conftest import ROOT
from tests.predict import tiny

PHASES = [
    {'steps': 4, 'batch_size': 2, 'max_seq_length': 8, 'max_predictions_per_seq': 2},
    {'steps': 4, 'batch_size': 1, 'max_seq_length': 16, 'max_predictions_per_seq': 4},
]


def records(steps):
    """A record of each step, with rows three quarters full, and an evaluation every two steps."""
    for step in range(1, steps + 1):
        tokens_per_row = 6 if step <= 4 else 12
        yield {
            'step': step,
            'train/loss': 9 - step,
            'train/mlm_accuracy': step / 10,
            'train/sequences_per_second': 10.0,
            'train/tokens_per_second': 10.0 * tokens_per_row,
            'train/data_wait': 0.5,
            'train/goodput': 0.25,
            'time/step': step,
            'time/data': step,
        }
        if step % 2 == 0:
            yield {'step': step, 'eval/mlm_accuracy': step / 20}
        if step in (3, 4):
            yield {'step': step, 'gate/loss_spike': 9.0}


def as_lines(entries):
    return ''.join(f'{json.dumps(entry)}\n' for entry in entries)


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    """A folder of three runs of one pre-training with weights, in different states.

    `whole` is finished; `killed` has another seed and no checkpoint yet; `bare` has no record yet.
    """
    folder = tmp_path_factory.mktemp('runs')
    weights = tiny.pretraining_weights(folder, num_layers=3)
    for name, steps, seed in (('whole', 8, 0), ('killed', 5, 1), ('bare', 0, 2)):
        run = folder / name
        write_run(run, weights)
        fields = read_config(run)
        fields |= {'task': 'pretrain', 'seed': seed, 'phases': PHASES, 'train': {'steps': 8},
                   'metric': 'mlm_accuracy'}
        describe_run(run, fields, None)
        incomplete_line = '{"ste'
        (run / 'metrics.jsonl').write_text(as_lines(records(steps)) + incomplete_line)
        if name != 'whole':
            (run / 'checkpoints' / '0').rename(folder / f'checkpoint of {name}')
    return folder


def write(folder, entries, **fields):
    """Writes a run directory with these config fields and metrics; returns its path."""
    folder.mkdir()
    describe_run(folder, fields, None)
    (folder / 'metrics.jsonl').write_text(as_lines(entries))
    return str(folder)


def sections_of(html):
    """The content of the page's sections, by their ids."""
    return dict(re.findall(r'<section id="(\w+)">\n(.*?)\n</section>', html, re.DOTALL))


@pytest.fixture(scope='module')
def board(runs, tmp_path_factory):
    """A board of a recipe with two seeds, each of which was fine-tuned: its text and rows."""
    folder = tmp_path_factory.mktemp('board')
    command = 'python -m bert_jax.main --config=configs/mine.py:five/4'
    pretrained = [
        write(folder / f'seed={seed}', records(8), task='pretrain', seed=seed, phases=PHASES,
              made={'command': command, 'commit': 'abc'}, train={'steps': 8},
              metric='mlm_accuracy', model=read_config(runs / 'whole')['model'],
              head='pretraining')
        for seed in (0, 1)]

    def fine_tuned(seed, rate, score):
        entries = [{'step': 2, 'eval/accuracy': 0.99}, {'step': 4, 'eval/accuracy': score}]
        return write(folder / f'{seed} {rate}', entries, task='sst2', metric='accuracy',
                     train={'steps': 4}, init_checkpoint=pretrained[seed],
                     optimizer={'learning_rate': rate}, init_saved=seed)

    tuned = [fine_tuned(seed=0, rate=1e-3, score=0.8), fine_tuned(seed=1, rate=1e-3, score=0.9),
             fine_tuned(seed=1, rate=1e-4, score=0.95)]
    main(['--board', *pretrained, *tuned, f'--output={folder}/board.md'])
    text = (folder / 'board.md').read_text()
    table = [line for line in text.splitlines() if line.startswith('|')]
    heading, _, *rows = ([cell.strip() for cell in line.split('|')[1:-1]] for line in table)
    ours, published, _ = (dict(zip(heading, row, strict=True)) for row in rows)
    return SimpleNamespace(text=text, command=command, ours=ours, published=published)


def test_the_board_begins_like_the_one_in_the_docs(board):
    explanation = board.text[:board.text.index('|')]
    assert (ROOT / 'docs/board.md').read_text().startswith(explanation)


def test_the_board_says_how_a_recipe_was_made(board):
    assert board.ours['recipe'] == 'mine.py:five/4'
    assert board.ours['seeds'] == '2'
    assert board.ours['commit'] == 'abc'
    assert board.ours['repeated by'] == f'`{board.command}`'


def test_the_board_has_intervals_of_the_settings_with_most_runs(board):
    standard_error = 5  # a deviation of 10 / sqrt(2), of two runs
    half = stats.t.interval(0.95, 1, 85, standard_error)[1] - 85
    assert board.ours['sst2'] == board.ours['mean'] == f'85.00 ± {half:.2f}'


def test_the_board_has_the_cost_of_a_recipe(board, runs):
    flops, hours = board.ours['FLOPs'], board.ours['v5e chip-hours']
    expected = RunRecords(runs / 'whole', 'x').work_at(8)[1]
    assert float(flops) == pytest.approx(expected, rel=0.05)
    assert hours.startswith('≈ ')
    assert float(hours[2:]) == pytest.approx(expected / 0.4 / 197e12 / 3600, rel=0.05)


def test_the_board_has_published_rows(board):
    assert board.published['sst2'] == '83.2'


@pytest.fixture(scope='module')
def written_page(runs):
    """The page of all runs: its HTML, the data that it draws, and what the command prints."""
    folders = [str(runs / name) for name in ('whole', 'killed', 'bare')]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        main([*folders, f'--output={runs}/page.html', '--text=the <i>cat</i> sees a bird.'])
    html = (runs / 'page.html').read_text()
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html)
    return SimpleNamespace(html=html, data=json.loads(data), printed=printed.getvalue())


def test_the_command_says_how_far_each_run_is(written_page):
    printed = written_page.printed
    assert 'whole: finished: 8 steps in 0:16\n' in printed
    assert 'killed: step 5 of 8 in 0:10, stopped' in printed
    assert 'bare: step 0 of 8, stopped' in printed


def test_the_page_loads_nothing_and_escapes_texts(written_page):
    html = written_page.html
    assert not re.search(r'(src|href)="(?!#)|url\(|@import', html)
    assert set(re.findall(r'https?://[^\'"]*', html)) == {'http://www.w3.org/2000/svg'}
    assert '&lt;i&gt;' in html and '<i>' not in html


def test_the_page_draws_curves(written_page):
    data = written_page.data
    assert data['runs'] == ['whole', 'killed', 'bare']
    accuracy = data['charts'][1]
    assert [(series['run'], series['held_out']) for series in accuracy['series']] == [
        (0, False), (0, True), (1, False), (1, True)]
    ((steps, tokens, flops, length),) = data['phases'][0]
    assert (steps, tokens, length) == (4, 48, 16)
    assert flops > 0


def test_the_page_has_warnings_settings_and_a_summary(written_page):
    sections = sections_of(written_page.html)
    assert sections['gates'].count('<li>') == 2 and MEANINGS['loss_spike'] in sections['gates']
    assert re.findall(r'<th scope="row">(.*?)</th>', sections['settings']) == ['seed']
    assert '<b>not comparable</b>: step 5 of 8' in sections['short']


def test_the_page_has_examples_of_the_runs_with_weights(written_page):
    attention = written_page.data['attention']
    assert (attention[0]['layers'], attention[0]['heads']) == (3, 4)
    assert attention[2] is None
    tokens = attention[0]['tokens']
    assert tokens[0] == '[CLS]' and tokens[-2:] == ['.', '[SEP]']
    assert written_page.html.count('<span class="guess') > 10
    assert 'class="guess true"' in written_page.html


def test_a_run_that_was_pruned_before_it_began_is_left_out(runs, tmp_path, capsys):
    never = tmp_path / 'never'
    never.mkdir()
    (never / 'sweep_pruned.json').write_text('{}')
    assert main([str(runs / 'bare'), str(never), f'--output={tmp_path}/a.html']) == 0
    shown = capsys.readouterr()
    assert f'{never}: its sweep pruned it before it began; left out' in shown.err
    assert 'never' not in shown.out
    with pytest.raises(SystemExit) as ended:
        main([str(never), f'--output={tmp_path}/b.html'])
    assert ended.value.code == 2
    assert 'none of the runs has begun' in capsys.readouterr().err


@pytest.mark.parametrize('files, why', [
    ((), 'checkpoints/ holds none'),
    (('sweep_pruned.json',), 'its sweep ended it early; see sweep_pruned.json'),
    (('sweep_pruned.json', 'sweep_result.json'), 'its sweep deleted them'),
])
def test_a_run_without_checkpoints_says_why(files, why, runs, tmp_path):
    run = shutil.copytree(runs / 'bare', tmp_path / 'run')
    for name in files:
        (run / name).write_text('{}')
    with pytest.raises(InputError, match=why):
        read_run(run)


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
    forward += s * 4 * h * h + (p + 1) * (4 * h * h + 4 * h * i + 4 * s * h)
    forward += p * (2 * h * h + 2 * h * v) + 2 * h * h + 4 * h
    assert a_step[0] == pytest.approx(2 * 3 * forward)


def test_scores_are_of_the_last_evaluation(runs):
    assert RunRecords(runs / 'whole', 'whole').scores == {'step': 8, 'mlm_accuracy': 0.4}


def test_recorded_values_that_are_not_finite_are_left_out(tmp_path):
    write(tmp_path / 'run', [
        {'step': 1, 'train/loss': math.nan, 'time/step': 2.0},
        {'step': 8, 'eval/accuracy': 0.5, 'eval/loss': math.inf, 'eval/f1': -math.inf}], task='rte')
    run = RunRecords(tmp_path / 'run', 'run')
    assert run.records == [{'step': 1, 'time/step': 2.0}, {'step': 8, 'eval/accuracy': 0.5}]
    assert run.scores == {'step': 8, 'accuracy': 0.5}


def test_a_group_without_a_score_of_its_metric_is_not_compared(tmp_path):
    for seed, name in enumerate(('accuracy', 'loss')):
        write(tmp_path / name, [{'step': 8, f'eval/{name}': 0.5}], task='rte', seed=seed,
              metric='accuracy', train={'steps': 8})
    groups = [*grouped([RunRecords(tmp_path / 'accuracy', 'a')]),
              *grouped([RunRecords(tmp_path / 'loss', 'b')])]
    assert [found.why_not for found in compare(groups)] == ['', 'no score eval/accuracy']
    assert [found.why_not for found in compare(groups[::-1])] == ['no score eval/accuracy'] * 2


def groups_of_intervals(folder, task, intervals, *, best=None):
    """The groups of runs of a task with these intervals of evaluation, each with its own seed.

    With `best`, each run has the weights of that step.
    """
    for seed, every in enumerate(intervals):
        run = folder / str(seed)
        write(run, [{'step': 8, 'eval/accuracy': 0.5}], task=task, seed=seed,
              metric='accuracy', train={'steps': 8, 'eval_every': every, 'save_every': every})
        if best is not None:
            (run / 'best' / str(best)).mkdir(parents=True)
    return grouped(RunRecords(folder / str(seed), str(seed)) for seed in range(len(intervals)))


@pytest.mark.parametrize('best', [8, None])
def test_runs_that_choose_among_other_evaluations_are_no_seeds_of_one_group(best, tmp_path):
    """Even if the best weights are not there any more."""
    groups = groups_of_intervals(tmp_path, 'rte', (4, 4, 2), best=best)
    assert [len(group.runs) for group in groups] == [2, 1]
    assert 'train.eval_every' in groups[0].settings()


def test_pretraining_does_not_depend_on_how_often_it_is_evaluated(tmp_path):
    (group,) = groups_of_intervals(tmp_path, 'pretrain', (4, 4, 2))
    assert len(group.runs) == 3
    assert 'train.eval_every' not in group.settings()


@pytest.mark.parametrize(('section', 'name', 'is_one_group'), [
    ('data', 'dir', True), ('train', 'log_every', True), ('made', 'command', True),
    ('model', 'dtype', False), ('optimizer', 'b1', False), ('data', 'masking', False),
    # The same seed computed in another way is no other seed.
    ('mesh', 'fsdp', False), ('model', 'remat', False),
])
def test_only_settings_tell_groups_apart(section, name, is_one_group, tmp_path):
    for value in (1, 2):
        fields = {'train': {'steps': 8}}
        fields.setdefault(section, {})[name] = value
        write(tmp_path / str(value), [{'step': 8, 'eval/mlm_accuracy': 0.5}], task='pretrain',
              metric='mlm_accuracy', **fields)
    groups = grouped(RunRecords(tmp_path / str(value), str(value)) for value in (1, 2))
    assert (len(groups) == 1) == is_one_group


@pytest.fixture
def two_groups(tmp_path):
    """Groups of two and of three seeds of models that differ in width."""
    scores = {'base-0': 0.31, 'base-1': 0.35, 'wide-0': 0.42, 'wide-1': 0.41, 'wide-2': 0.46}
    for name, score in scores.items():
        width = 64 if name.startswith('wide') else 32
        write(tmp_path / name, [{'step': 8, 'eval/mlm_accuracy': score}],
              task='pretrain', metric='mlm_accuracy', seed=int(name[-1]), train={'steps': 8},
              data={'masking': 'pieces'}, model={'hidden_size': width})
    return grouped(RunRecords(tmp_path / name, name) for name in scores)


def test_runs_that_differ_in_their_seed_form_a_group(two_groups):
    assert [(group.name, len(group.runs)) for group in two_groups] == [('base', 2), ('wide', 3)]


def test_two_groups_have_the_interval_of_student(two_groups):
    base, wide = (group.scores('mlm_accuracy') for group in two_groups)
    low, high = stats.ttest_ind(wide, base).confidence_interval()
    assert intervals([base, wide])[1] == pytest.approx((high - low) / 2)
    html = page(two_groups, [Examples()] * 2, '')
    row_of_wide = sections_of(html)['short'].split('<tr>')[-1]
    (difference,) = re.findall(r'<td><b>(.*?)</td>', row_of_wide)
    assert difference == f'+0.1000, better</b> ({low:+.4f} to {high:+.4f})'


def test_scores_under_other_masks_cannot_be_compared(two_groups):
    first, other = (group.runs[0] for group in two_groups)
    assert incomparable(other, first) == ''
    other.fields['data.masking'] = 'spans'
    assert incomparable(other, first) == 'its held-out rows have another data.masking'
    other.metric = 'standard_mlm_accuracy'
    assert incomparable(other, first) == ''
