"""The paper's tables: the parts that they share, running a chain of parts, the written table."""

import json
import re
import statistics
from types import SimpleNamespace
from unittest import mock

import pytest
from scipy import stats

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path
from bert_jax.runtime.stopping import Guard
from bert_jax.text.vocab import SPECIAL_TOKENS, write_vocab
from bert_jax.tools import sweep
from bert_jax.tools.paper.__main__ import main
from bert_jax.tools.paper.cells import differences, is_guessing, make_cell, mean_of_columns
from bert_jax.tools.paper.plan import Plan
from bert_jax.tools.paper.tables import COLUMNS, TABLES, TASKS
from tests.conftest import ROOT, run_python, xla_flags
from tests.tiny_runs import WORDS, documents, write_cola

pytestmark = pytest.mark.slow


def plan(name, root, *columns, **more):
    return Plan(TABLES[name], **{'scale': 'tiny', 'root': as_path(root), 'data': 'data',
                                 'restarts': 1, 'only': columns} | more)


def titles(parts):
    return [part.title for part in parts]


def paths(parts):
    return {part.sweep.path for part in parts}


@pytest.mark.parametrize('name', TABLES)
def test_a_table_names_known_tasks_and_columns(name):
    table = TABLES[name]
    for column in (*table.columns, *table.tiny):
        assert COLUMNS[column].task in ('', *TASKS)
    for row in table.rows:
        assert {*row.figures, *row.dev, *row.only} <= set(table.columns)
    for scale in ('tiny', 'paper'):
        assert plan(name, 'runs', scale=scale).rows and plan(name, 'runs', scale=scale).columns


def test_equal_parts_are_shared_and_others_are_not(tmp_path):
    five = plan('5', tmp_path, 'mrpc').parts()
    assert titles(five) == [
        'pre-training base', 'mrpc from Base, seed 0', 'pre-training no_nsp',
        'mrpc from No NSP, seed 0', 'pre-training ltr', 'mrpc from LTR & No NSP, seed 0',
        'mrpc from + BiLSTM, seed 0', 'mrpc from not pre-trained, seed 0',
    ]
    assert len(paths(five)) == 8
    (bilstm, scratch), ltr = five[-2:], five[4].sweep
    assert bilstm.resolved.init_checkpoint == str(ltr.run(ltr.members[0]))
    assert bilstm.resolved.model.bilstm and bilstm.start.part.sweep.path == ltr.path
    assert scratch.resolved.model.num_layers == 2 and not scratch.resolved.init_checkpoint
    assert paths(five) & paths(plan('8', tmp_path, 'mrpc').parts()) == paths(five[:2])
    six = plan('6', tmp_path, 'mrpc').parts()  # where Base has another name
    assert titles(six[:2]) == ['pre-training 2/128/2', 'mrpc from 3/768/12 (here 2/128/2), seed 0']
    assert paths(six[:2]) == paths(five[:2])
    # More seeds and rates are more members of the same parts; other settings are other parts.
    more = plan('5', tmp_path, 'mrpc', seeds=2, restarts=2).parts()
    assert paths(five) < paths(more) and len(more[0].sweep.members) == 2
    (untrained,) = (part for part in more if 'not pre-trained' in part.title)
    assert len(set(untrained.sweep.members)) == 2 * 2 * 2, 'no member occurs twice'
    # If this digest changes, existing parts are not found: add a new config field to the fields
    # in part_names.py that were added later.
    assert plan('loo', tmp_path, 'ppl').parts()[0].sweep.path.name == 'pretrain-ed5b285de762'
    moved = plan('5', tmp_path / 'x', 'mrpc').parts()
    assert [part.sweep.path.name for part in moved] == [part.sweep.path.name for part in five]


def test_which_parts_a_setting_changes(tmp_path):
    found = plan(
        '5', tmp_path, 'mrpc', 'ner', data='there',
        finetune=('train.batch_size=8', 'ner:train.steps=9', 'train.steps=2 epochs')).parts()
    mrpc, ner = (next(part.resolved for part in found if part.title.startswith(task))
                 for task in ('mrpc', 'ner'))
    assert (mrpc.train.batch_size, mrpc.train.steps) == (8, '2 epochs')
    assert mrpc.data.source == 'there/glue' and ner.data.source == 'there/conll2003'
    _, tuned = plan('loo', tmp_path, 'stsb', scale='between', finetune=(
        'stsb:optimizer.learning_rate=1e-4,3e-5', 'ner:optimizer.learning_rate=1')).parts()[:2]
    assert [dict(member.settings) for member in tuned.sweep.members] == [
        {'optimizer.learning_rate': rate, 'seed': '0'} for rate in ('1e-4', '3e-5')]
    assert tuned.start.part.sweep.config.endswith('efficient_pretrain.py:five,between')
    steps = plan('c1', tmp_path, 'mrpc').parts()
    assert steps[1].resolved.init_checkpoint.endswith('/runs/seed=0/checkpoints/490')
    given = {'weights': {'base': 'bert'}, 'seeds': 3}
    assert titles(plan('1', tmp_path, 'mrpc', **given).parts())[:2] == [
        'mrpc from BERT-Base, seed 0', 'pre-training 4/256/4']
    with pytest.raises(InputError, match='--weights base=...: the row .* needs its pre-training'):
        plan('c1', tmp_path, 'mrpc', **given).parts()


def finish(sweep, member, metric='eval/f1', **scores):
    sweep.run(member).mkdir(parents=True, exist_ok=True)
    sweep.finish(member, metric, {name.replace('_', '/', 1): x for name, x in scores.items()})


@pytest.fixture
def quick(monkeypatch, tmp_path_factory):
    """Replaces training: a member finishes at once, with a score that depends on its model.

    `before(sweep, member)` is called first; if it returns anything but None, that ends the work.
    """
    data = tmp_path_factory.mktemp('data')
    for name in ('glue/MRPC', 'squad', 'conll2003'):
        (data / name).mkdir(parents=True)
    monkeypatch.chdir(data)  # the default of --data
    state = SimpleNamespace(trained=[], before=lambda sweep, member: None)

    def work(sweep, should_stop):
        for member in sweep.unfinished():
            sweep.run(member).mkdir(parents=True, exist_ok=True)
            if (ended := state.before(sweep, member)) is not None:
                return ended
            state.trained.append((sweep.path.name, member.name))
            (sweep.run(member) / 'goodput.json').write_text('{"seconds": {"step": 3600.0}}')
            (sweep.run(member) / 'config.json').write_text(json.dumps(
                {'guessing': {'accuracy': 0.5, 'f1': 0.9, 'mlm_perplexity': 9.0}}))
            score = 0.6 if 'ltr' in sweep.config or 'bilstm' in ' '.join(sweep.overrides) else 0.7
            score += 0.1 * ('3e-4' in member.name) + 0.02 * ('seed=1' in member.name)
            finish(sweep, member, eval_f1=score, eval_accuracy=score / 2, eval_mlm_perplexity=9.0)
        return True

    monkeypatch.setattr(sweep, 'work', work)
    monkeypatch.setattr(Guard, 'start', lambda self: None)
    monkeypatch.setattr('time.sleep', lambda seconds: None)
    return state


def test_a_table_is_run_stopped_continued_and_written(tmp_path, quick, capsys):
    command = ['5', f'--workdir={tmp_path}', '--columns=mrpc,ppl', '--seeds=1', '--restarts=2']
    quick.before = lambda *_: None if len(quick.trained) < 4 else False
    assert main(command) == 143
    assert '[2/8]' in capsys.readouterr().out
    quick.before = lambda *_: None
    assert main([*command, '--list']) == 0
    assert '19 of 23 runs left in 8 parts' in capsys.readouterr().out
    assert main(command) == 0
    out = capsys.readouterr().out
    assert len(quick.trained) == len(set(quick.trained)) == 3 + 5 * 4, 'no run is trained twice'
    record = json.loads((tmp_path / 'table5.json').read_text())
    base = record['cells']['mrpc']['Base']
    assert base['settings'] == {'optimizer.learning_rate': '3e-4'} and base['runs'] == 2
    assert base['values'] == pytest.approx([40, 41]) and base['mean'] == pytest.approx(40.5)
    assert base['paper'] == 86.7 and base['deviation'] == pytest.approx(0.5 ** 0.5)
    assert record['cells']['ppl']['Base']['mean'] == 9.0
    assert record['hours'] == 23 and record['runs'] == {'finished': 23, 'all': 23}
    text = (tmp_path / 'table5.md').read_text()
    assert text.strip() in out
    assert '| Base | 2.5e+13 | 40.50 ± 0.71 n=2 (86.7) | 9.00 n=1 |' in text
    assert (tmp_path / 'table5.png').stat().st_size > 1000
    assert main(['8', *command[1:3], '--seeds=1', '--restarts=2']) == 0
    assert len(quick.trained) == 23 + 5 * (1 + 4), 'the parts of table 5 are reused'


def test_rows_of_ones_own_are_compared_with_the_first(tmp_path, quick):
    rows = 'ablations.py:base,tiny,efficient_pretrain.py:paper,tiny'
    command = ['mine', f'--rows={rows}', f'--workdir={tmp_path}', '--columns=mrpc,mrpc_f1,ppl',
               '--seeds=3']
    assert main(command) == 0
    record = json.loads((tmp_path / 'table_mine.json').read_text())
    assert record['rows'] == ['ablations.py:base,tiny', 'efficient_pretrain.py:paper,tiny',
                              'not pre-trained']
    assert set(record['parts'].values()) >= {f'pre-training {row}' for row in record['rows'][:2]}
    mean, accuracy, f1 = (
        record['cells'][one][rows[:22]]['values'] for one in ('mean', 'mrpc', 'mrpc_f1'))
    assert mean == pytest.approx([(a + f) / 2 for a, f in zip(accuracy, f1, strict=True)])
    assert record['guessing'] == {'mrpc': 50, 'mrpc_f1': 90, 'ppl': 9}
    assert '**Inconclusive: this table.' in (tmp_path / 'table_mine.md').read_text()


@pytest.mark.parametrize('runs, says', [
    ([(69.5, 70.6, 68.4), (68.4, 68.4, 68.4)], True),  # within the deviation of the seeds
    ([(69.5, 70.6, 68.4), (75.0, 74.0, 76.0)], False), ([(68.4,), (60.0,)], True),
    ([(68.4,), (68.5,)], False)])
def test_rows_that_score_like_guessing_are_inconclusive(runs, says):
    cells = [cell | sweep.summary(cell['values']) | {'guessing': 68.4}
             for cell in cells_of([None] * 2, runs).values()]
    assert is_guessing(COLUMNS['mrpc'], [*cells, {'paper': None}]) == says


@pytest.mark.parametrize('fails, why', [
    (mock.Mock(side_effect=InputError('config.data.source is not there')), 'source is not there'),
    (lambda sweep, member: sweep.fail(member) or True, 'see log.txt in ')])
def test_a_part_that_fails_leaves_the_others(tmp_path, quick, capsys, fails, why):
    command = ['5', f'--workdir={tmp_path}', '--columns=mrpc', '--seeds=1']
    quick.before = lambda *run: fails(*run) if 'no_nsp' in run[0].config else None
    assert main(command) == 1
    out = capsys.readouterr().out
    assert re.search(r'\| No NSP \|.* – \(86.5\)', out)
    assert re.search(r'\| Base \|.* 40.00 n=1 \(86.7\)', out)
    assert re.search(f'Failed: pre-training no_nsp: .*{why}', out)
    assert 'Failed: mrpc from No NSP, seed 0: pre-training no_nsp failed' in out
    quick.before = lambda *_: None
    assert main(command) == 0


def test_a_part_on_another_machine_delays_only_those_that_need_it(tmp_path, quick, capsys):
    looks = [True, True]
    quick.before = lambda sweep, _: (
        looks.pop() if looks and 'ablations.py:base' in sweep.config else None)
    assert main(['5', '--columns=mrpc', '--seeds=1', f'--workdir={tmp_path}']) == 0
    kinds = [folder.partition('-')[0] for folder, _ in quick.trained]
    assert kinds[:2] == ['pretrain', 'mrpc'], 'another row is pre-trained and fine-tuned meanwhile'
    assert len(quick.trained) == len(set(quick.trained)) == 3 + 5 * 2
    assert capsys.readouterr().out.count('pre-training base: 1 runs') == 1


def test_columns_of_a_task_share_the_chosen_settings_and_have_the_last_evaluation(tmp_path):
    ours = plan('5', tmp_path, 'mrpc', 'mrpc_f1', seeds=2)
    row = ours.rows[0]
    scores = {  # (rate, seed): F1 and accuracy of the best and of the last evaluation
        ('1e-3', 0): [(0.81, 0.68), (0.80, 0.70)], ('1e-3', 1): [(0.82, 0.70), (0.70, 0.66)],
        ('3e-4', 0): [(0.95, 0.90), (0.90, 0.90)],
    }

    def cells():
        for seed, part in enumerate(ours.parts_of(row, 'mrpc')):
            for member in part.sweep.members:
                rate = dict(member.settings)['optimizer.learning_rate']
                if found := scores.get((rate, seed)):
                    (f1, accuracy), (last_f1, last_accuracy) = found
                    finish(part.sweep, member, eval_f1=f1, eval_accuracy=accuracy, last_f1=last_f1,
                           last_accuracy=last_accuracy)
        return [make_cell(ours, row, column) for column in ours.columns]

    accuracy, f1 = cells()
    assert accuracy['settings'] == {'optimizer.learning_rate': '1e-3'}, 'the other rate has one run'
    assert accuracy['values'] == pytest.approx([70, 66]) and accuracy['seeds'] == [0, 1]
    assert f1['values'] == pytest.approx([80, 70])
    scores['3e-4', 1] = [(0.7, 0.2), (0.7, 0.2)]  # a better F1 and a worse accuracy
    accuracy, f1 = cells()
    assert accuracy['settings'] == f1['settings'] == {'optimizer.learning_rate': '3e-4'}
    assert accuracy['values'] == pytest.approx([90, 20]) and f1['values'] == pytest.approx([90, 70])


@pytest.mark.parametrize(('title', 'seeds'), [('Base', [0, 0, 0]), ('not pre-trained', [0, 1, 2])])
def test_restarts_of_one_model_are_no_seeds_of_pre_training(title, seeds, tmp_path):
    ours = plan('5', tmp_path, 'mrpc', restarts=3)
    (row,) = (row for row in ours.rows if row.title == title)
    (part,) = ours.parts_of(row, 'mrpc')
    for member in part.sweep.members:
        finish(part.sweep, member, eval_f1=0.8, eval_accuracy=0.7)
    assert make_cell(ours, row, 'mrpc')['seeds'] == seeds
    before = ours.pretraining('base').sweep
    finish(before, before.members[0], 'eval/mlm_accuracy', eval_mlm_accuracy=0.2,
           eval_mlm_perplexity=9.0)
    found = make_cell(ours, row, 'ppl')
    assert found is None if row.scratch else found['values'] == [9.0]


def test_a_mean_of_columns_is_of_the_seeds_that_all_of_them_have():
    def column(*pairs):
        values, seeds = zip(*pairs)
        return {'a': {'values': list(values), 'seeds': list(seeds)}, 'b': {'paper': None}}

    found = mean_of_columns([column((1, 0), (3, 0), (5, 1), (100, 2)), column((10, 1), (20, 0))])
    assert found['a']['values'] == [11.0, 7.5] and found['a']['runs'] == 2
    assert 'mean' not in found['b']
    assert 'mean' not in mean_of_columns([column((1, 0)), column((1, 1))])['a']
    assert 'mean' not in mean_of_columns([column((1, 0)), {}])['a']


@pytest.mark.parametrize('setting', ['train.steps=2 epochs', 'data.vocab_file=missing.txt'])
def test_flops_that_cannot_be_computed_are_left_out(tmp_path, setting):
    base = TABLES['5'].rows[0]
    assert plan('5', tmp_path).flops(base) > 1e13
    assert plan('5', tmp_path, pretrain=(setting,)).flops(base) is None


def cells_of(paper, runs):
    return {str(i): {'paper': paper[i], 'values': list(values), 'seeds': list(range(len(values)))}
            for i, values in enumerate(runs)}


def test_differences_to_the_first_row_have_intervals():
    """For two rows these are Student's t intervals."""
    runs = [(49, 51, 50.5), (39, 41, 40)]
    cells = cells_of([None] * 2, runs)
    found = differences(cells | {'one run': {'values': [9], 'seeds': [0]}, 'no run': {}})
    interval = stats.ttest_ind(*runs[::-1]).confidence_interval()
    assert found == {'1': pytest.approx((statistics.fmean(runs[1]) - statistics.fmean(runs[0]),
                                         interval.low, interval.high), rel=1e-3)}
    assert not differences(cells_of([None] * 2, [(49,), (39, 41)])), 'no deviation is known'
    # Five restarts of each of three models are three runs, not fifteen.
    several = {'values': [x for x in runs[0] for _ in range(5)], 'seeds': sorted([0, 1, 2] * 5)}
    assert differences(cells | {'0': cells['0'] | several}) == found


def test_weights_that_are_given_replace_pre_training(tmp_path):
    """For users of a pod, who must pre-train with bert_jax.main."""
    given = f'{ROOT}/tests/fixtures/huggingface/pretraining'
    parts = plan('5', tmp_path, 'mrpc', weights={'base': given}).parts()
    scratch, pretrained = (next(part.resolved for part in parts if row in part.title)
                           for row in ('not pre-trained', 'Base'))
    assert pretrained.init_checkpoint == given and not scratch.init_checkpoint
    assert scratch.model.hidden_size == 8 and scratch.data.vocab_file == f'{given}/vocab.txt'


def test_a_chain_of_real_runs(tmp_path):
    """Table 3's one row is pre-trained, then fine-tuned on a file in CoLA's format, by two
    processes, one of which waits."""
    write_vocab(tmp_path / 'vocab.txt', [*SPECIAL_TOKENS, *WORDS])
    (tmp_path / 'text.txt').write_text(documents(60))
    write_cola(tmp_path / 'glue', train=32, dev=16)
    both = [f'data.dir={tmp_path}/cache', 'train.batch_size=8', 'train.steps=4',
            'train.eval_every=0', 'train.save_every=0']
    command = [
        '3', f'--workdir={tmp_path}/paper', f'--data={tmp_path}', '--columns=cola', '--seeds=1',
        *(f'--pretrain={setting}' for setting in (
            *both, f'data.source={tmp_path}/text.txt', f'data.vocab_file={tmp_path}/vocab.txt',
            *(f'phases[{i}].{field}' for i in range(2)
              for field in ('max_seq_length=16', 'max_predictions_per_seq=3')),
            'data.held_out=0.2', 'train.eval_batch_size=8',
            'model.num_layers=1', 'model.hidden_size=16', 'model.num_heads=2')),
        *(f'--finetune={setting}' for setting in (
            *both, 'data.max_seq_length=16', 'data.packing=False', 'optimizer.learning_rate=1e-3')),
    ]
    process = run_python('-m', 'bert_jax.tools.paper', '--chips=1', *command,
                         XLA_FLAGS=xla_flags(2))
    assert process.stdout.count('written: ') == 1, process.stderr  # the first process's
    record = json.loads((tmp_path / 'paper' / 'table3.json').read_text())
    (cell,) = record['cells']['cola'].values()
    assert cell['runs'] == 1 and record['hardware'] and record['hours'] > 0
    log = next(tmp_path.glob('paper/parts/cola-*/runs/*/log.txt')).read_text()
    assert 'pretrain-' in log, 'it starts from the pre-training'
    with mock.patch.object(sweep, 'work', side_effect=AssertionError('all is there')), (
            mock.patch.object(Guard, 'start')):
        assert main(command) == 0
