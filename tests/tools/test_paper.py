"""The paper's tables: their parts and what they share, the chain, its table, what it refuses."""

import json
import random
from unittest import mock

import numpy as np
import pytest

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import as_path
from bert_jax.tools import paper
from bert_jax.tools.paper import (
    cell_of,
    mean_of_columns,
    order_of_rows,
    pretraining_flops,
    write_table,
)
from bert_jax.tools.paper_tables import (
    COLUMNS,
    TABLES,
    TASKS,
    Options,
    columns_of,
    parts_of,
    rows_of,
)
from bert_jax.train.report import Report
from tests.conftest import ROOT
from tests.tools.test_sweep import few_devices

pytestmark = pytest.mark.slow


def options(root, **more):
    return Options(**{'tiny': True, 'root': as_path(root), 'data': 'data', 'restarts': 1} | more)


def titles(parts):
    return [part.title for part in parts]


def row_of(title, text):
    return next(line for line in text.splitlines() if line.startswith(f'| {title} |'))


@pytest.mark.parametrize('name', TABLES)
def test_a_table_is_made_of_what_there_is(name):
    table = TABLES[name]
    for column in (*table.columns, *table.tiny):
        assert COLUMNS[column].task in ('', *TASKS)
    for row in table.rows:
        assert set(row.figures) <= set(table.columns) and set(row.only) <= set(table.columns)
        assert len({row.title for row in table.rows}) == len(table.rows)
    for tiny in (True, False):
        where = options('runs', tiny=tiny)
        assert rows_of(table, where) and columns_of(table, where)


def test_equal_parts_are_shared_and_others_are_not(tmp_path):
    where = options(tmp_path, columns=('mrpc',))
    five = parts_of(TABLES['5'], where)
    assert titles(five) == [
        'pre-training base', 'mrpc from Base, seed 0', 'pre-training no_nsp',
        'mrpc from No NSP, seed 0', 'pre-training ltr', 'mrpc from LTR & No NSP, seed 0',
        'mrpc from + BiLSTM, seed 0', 'mrpc from not pre-trained, seed 0',
    ]
    assert len({part.path for part in five}) == 8
    bilstm, scratch = five[-2:]
    assert bilstm.resolved.model.bilstm and bilstm.start == five[4].folder.run(five[4].members[0])
    assert scratch.resolved.model.num_layers == 2 and not scratch.resolved.init_checkpoint
    eight = parts_of(TABLES['8'], where)
    assert {part.path for part in five} & {part.path for part in eight} == {
        five[0].path, five[1].path}
    six = parts_of(TABLES['6'], where)  # where Base has another name
    assert six[0].title == 'pre-training 2/128/2' and six[:2] != five[:2]
    assert six[1].title == 'mrpc from 3/768/12 (here 2/128/2), seed 0', 'what was run is said'
    assert [part.path for part in six[:2]] == [part.path for part in five[:2]]
    # More seeds and rates are more members of the same parts; other settings are other parts.
    more = parts_of(TABLES['5'], options(tmp_path, columns=('mrpc',), seeds=2, restarts=2))
    assert more[0].path == five[0].path and len(more[0].members) == 2
    assert {part.path for part in five} < {part.path for part in more}
    (untrained,) = (part for part in more if 'not pre-trained' in part.title)
    assert len({member.without() for member in untrained.members}) == 2 * 2 * 2, 'none twice'
    other = parts_of(TABLES['5'], options(
        tmp_path, columns=('mrpc',), pretrain=('train.steps=7',)))
    assert not {part.path for part in five[:-1]} & {part.path for part in other}
    moved = parts_of(TABLES['5'], options(tmp_path / 'x', columns=('mrpc',)))
    assert [part.path.name for part in moved] == [part.path.name for part in five]


def test_what_settings_reach(tmp_path):
    found = parts_of(TABLES['5'], options(
        tmp_path, columns=('mrpc', 'ner'), data='there',
        finetune=('train.batch_size=8', 'ner:train.steps=9', 'train.steps=2 epochs')))
    mrpc, ner = (next(part for part in found if part.task == task).resolved
                 for task in ('mrpc', 'ner'))
    assert (mrpc.train.batch_size, mrpc.train.steps) == (8, '2 epochs')
    assert mrpc.data.source == 'there/glue' and ner.data.source == 'there/conll2003'
    steps = parts_of(TABLES['c1'], options(tmp_path, columns=('mrpc',)))
    assert str(steps[1].start).endswith('/runs/seed=0/checkpoints/490')
    given = options(tmp_path, columns=('mrpc',), weights={'base': 'bert'}, seeds=3)
    assert titles(parts_of(TABLES['1'], given))[:2] == [
        'mrpc from BERT-Base, seed 0', 'pre-training 4/256/4']
    with pytest.raises(InputError, match="--weights base=...: the row .* needs its pre-training"):
        parts_of(TABLES['c1'], given)


class Quick:
    """In the place of a sweep's worker: results at once, in the order of the pre-trained models."""

    trained: list = []
    stop_after = 10**6
    broken = ''
    elsewhere: list = []  # configs that another machine is at, each for one look
    fails_there = False  # at its last look

    def __init__(self, config, overrides, folder, should_stop):
        self._config, self._overrides, self._folder = config, overrides, folder

    def work(self):
        busy = next((name for name in self.elsewhere if name in self._config), None)
        if busy is not None:
            self.elsewhere.remove(busy)
            if self.fails_there and not self.elsewhere:
                (member,) = self._folder.members
                self._folder.run(member).mkdir(parents=True)
                self._folder.fail(member)
            return True
        for member in self._folder.unfinished():
            if len(self.trained) >= self.stop_after:
                return False
            if self.broken and self.broken in self._config:
                raise InputError('config.data.source is not there')
            self.trained.append((self._folder.path.name, member.name))
            run = self._folder.run(member)
            (run / 'checkpoints' / '490').mkdir(parents=True)
            (run / 'vocab.txt').touch()
            (run / 'goodput.json').write_text('{"seconds": {"step": 1800.0, "start": 1800.0}}')
            ltr = 'ltr' in self._config or 'bilstm' in ' '.join(self._overrides)
            score = 0.6 if ltr else 0.7
            score += 0.1 * ('3e-4' in member.name) + 0.02 * ('seed=1' in member.name)
            self._folder.finish(member, 'eval/f1', {
                'eval/f1': score, 'eval/accuracy': score / 2, 'eval/mlm_perplexity': 9.0})
        return True


@pytest.fixture
def quick(monkeypatch, tmp_path_factory):
    data = tmp_path_factory.mktemp('data')
    for name in ('glue/MRPC', 'squad', 'conll2003'):
        (data / name).mkdir(parents=True)
    monkeypatch.chdir(data)  # the default of --data
    monkeypatch.setattr(paper, 'Worker', Quick)
    monkeypatch.setattr(
        paper, 'Guard', lambda: mock.Mock(should_stop=lambda step: False))
    monkeypatch.setattr(paper, '_WAIT_SECONDS', 0)
    for name, value in (
            ('trained', []), ('stop_after', 10**6), ('broken', ''), ('elsewhere', []),
            ('fails_there', False)):
        monkeypatch.setattr(Quick, name, value)
    return Quick


def test_a_table_is_run_stopped_continued_and_written(tmp_path, quick, capsys):
    command = ['5', f'--workdir={tmp_path}', '--columns=mrpc,ppl', '--seeds=1', '--restarts=2']
    quick.stop_after = 4
    assert paper.main(command) == 143
    assert '[2/8]' in capsys.readouterr().out
    quick.stop_after = 10**6
    assert paper.main([*command, '--list']) == 0
    listed = capsys.readouterr().out
    assert 'mrpc from Base, seed 0: 1 of 4 runs left' in listed
    assert '19 of 23 runs left in 8 parts' in listed
    assert paper.main(command) == 0
    out = capsys.readouterr().out
    assert len(quick.trained) == len(set(quick.trained)) == 3 + 5 * 4, 'nothing twice'
    record = json.loads((tmp_path / 'table5.json').read_text())
    base = record['cells']['mrpc']['Base']
    assert base['settings'] == {'optimizer.learning_rate': '3e-4'} and base['runs'] == 2
    assert base['values'] == pytest.approx([40, 41]) and base['mean'] == pytest.approx(40.5)
    assert base['paper'] == 86.7 and base['deviation'] == pytest.approx(0.5 ** 0.5)
    assert record['cells']['ppl']['Base']['mean'] == 9.0
    assert record['hours'] == 23 and record['runs'] == {'finished': 23, 'all': 23}
    text = (tmp_path / 'table5.md').read_text()
    assert text.strip() in out and f'written: {tmp_path}/table5.md, .json and .png' in out
    assert '| Base | 2.5e+13 | 40.50 ± 0.71 n=2 (86.7) | 9.00 n=1 |' in text
    assert '| not pre-trained |  | 40.50' in text
    assert (tmp_path / 'table5.png').stat().st_size > 1000
    assert paper.main(['8', *command[1:3], '--seeds=1', '--restarts=2']) == 0
    assert len(quick.trained) == 23 + 5 * (1 + 4), 'what table 5 has is there'


def test_a_table_by_a_process_for_every_chip(tmp_path, quick, monkeypatch, capsys):
    command = ['5', f'--workdir={tmp_path}', '--columns=mrpc', '--seeds=1', '--chips=2']

    def supervise(module, argv, workers, per_worker, should_stop):
        assert (module, argv, workers, per_worker) == ('bert_jax.tools.paper', command, 3, 2)
        assert paper.main([*argv, '--worker=1']) == 0
        assert 'written: ' not in capsys.readouterr().out, 'the table is the first process\'s'
        return 0

    monkeypatch.setattr(paper, 'num_workers', lambda chips: 3)
    monkeypatch.setattr(paper, 'as_worker', lambda worker, workers: None)
    monkeypatch.setattr(paper, 'supervise', supervise)
    assert paper.main(command) == 0
    assert quick.trained and 'written: ' in capsys.readouterr().out


def test_a_table_may_have_the_mean_of_its_columns(tmp_path, quick, capsys):
    command = ['efficient', f'--workdir={tmp_path}', '--columns=mrpc,mrpc_f1', '--seeds=2']
    assert paper.main(command) == 0
    record = json.loads((tmp_path / 'figure_efficient.json').read_text())
    accuracy, f1, mean = (
        record['cells'][name]['Muon']['values'] for name in ('mrpc', 'mrpc_f1', 'mean'))
    assert mean == pytest.approx([(a + f) / 2 for a, f in zip(accuracy, f1, strict=True)])
    assert len(mean) == 2 == record['cells']['mean']['Muon']['runs']
    flops = record['flops']
    assert flops['Muon, a quarter'] == pytest.approx(flops["the paper's recipe"] / 4, rel=0.01)
    assert '| | FLOPs | MRPC | MRPC F1 | mean |' in capsys.readouterr().out


def test_a_part_that_fails_leaves_the_others(tmp_path, quick, capsys):
    quick.broken = 'no_nsp'
    assert paper.main(['5', f'--workdir={tmp_path}', '--columns=mrpc', '--seeds=1']) == 1
    found = capsys.readouterr()
    assert 'error: pre-training no_nsp: config.data.source is not there' in found.err
    assert ' | – (86.5) |' in row_of('No NSP', found.out)
    assert ' | 40.00 n=1 (86.7) |' in row_of('Base', found.out)
    assert 'Failed: mrpc from No NSP, seed 0: pre-training no_nsp failed' in found.out
    quick.broken = ''
    assert paper.main(['5', f'--workdir={tmp_path}', '--columns=mrpc', '--seeds=1']) == 0


def test_what_another_machine_is_at_holds_up_only_what_needs_it(tmp_path, quick, capsys):
    quick.elsewhere = ['ablations.py:base', 'ablations.py:base']
    assert paper.main(['5', f'--workdir={tmp_path}', '--columns=mrpc', '--seeds=1']) == 0
    kinds = [folder.partition('-')[0] for folder, _ in quick.trained]
    assert kinds[:2] == ['pretrain', 'mrpc'], 'another row is pre-trained and fine-tuned meanwhile'
    assert len(quick.trained) == len(set(quick.trained)) == 3 + 5 * 2
    assert capsys.readouterr().out.count('pre-training base: 1 runs') == 1


def test_what_fails_on_another_machine_is_not_waited_for(tmp_path, quick, capsys):
    quick.elsewhere, quick.fails_there = ['ablations.py:base'], True
    assert paper.main(['5', f'--workdir={tmp_path}', '--columns=mrpc', '--seeds=1']) == 1
    out = capsys.readouterr().out
    assert 'Failed: pre-training base: see log.txt' in out
    assert ' | – (86.7) |' in row_of('Base', out)
    assert 'Failed: mrpc from Base, seed 0' in out
    assert ' | 40.00 n=1 (86.5)' in row_of('No NSP', out)


def test_a_row_and_task_have_one_choice_of_settings_and_the_last_evaluation(tmp_path):
    where = options(tmp_path, columns=('mrpc', 'mrpc_f1'), seeds=2)
    table, row = TABLES['5'], TABLES['5'].rows[0]
    parts = [part for part in parts_of(table, where) if part.title.startswith('mrpc from Base')]
    scores = {  # (rate, seed): F1 and accuracy of the best and of the last evaluation
        ('1e-3', 0): [(0.81, 0.68), (0.80, 0.70)], ('1e-3', 1): [(0.82, 0.70), (0.70, 0.66)],
        ('3e-4', 0): [(0.95, 0.90), (0.90, 0.90)],
    }

    def finish():
        for seed, part in enumerate(parts):
            for member in part.members:
                found = scores.get((dict(member.without('seed'))['optimizer.learning_rate'], seed))
                if found is None:
                    continue
                part.folder.run(member).mkdir(parents=True, exist_ok=True)
                part.folder.finish(member, 'eval/f1', {
                    f'{kind}/{name}': value for kind, values in zip(('eval', 'last'), found)
                    for name, value in zip(('f1', 'accuracy'), values)})

    finish()
    accuracy, f1 = (cell_of(row, column, table, where) for column in ('mrpc', 'mrpc_f1'))
    assert accuracy['settings'] == {'optimizer.learning_rate': '1e-3'}, 'the other has one run'
    assert accuracy['values'] == pytest.approx([70, 66]) and accuracy['seeds'] == [0, 1]
    assert f1['values'] == pytest.approx([80, 70])
    scores['3e-4', 1] = [(0.7, 0.2), (0.7, 0.2)]  # a better F1 and a worse accuracy
    finish()
    accuracy, f1 = (cell_of(row, column, table, where) for column in ('mrpc', 'mrpc_f1'))
    assert accuracy['settings'] == f1['settings'] == {'optimizer.learning_rate': '3e-4'}
    assert accuracy['values'] == pytest.approx([90, 20]) and f1['values'] == pytest.approx([90, 70])


@pytest.mark.parametrize(('title', 'seeds'), [('Base', [0, 0, 0]), ('not pre-trained', [0, 1, 2])])
def test_restarts_of_one_model_are_no_seeds_of_pre_training(title, seeds, tmp_path):
    where = options(tmp_path, columns=('mrpc',), restarts=3)
    table = TABLES['5']
    (row,) = (row for row in table.rows if row.title == title)
    (part,) = (part for part in parts_of(table, where) if f'mrpc from {title}' in part.title)
    for member in part.members:
        part.folder.run(member).mkdir(parents=True)
        part.folder.finish(member, 'eval/f1', {'eval/f1': 0.8, 'eval/accuracy': 0.7})
    assert cell_of(row, 'mrpc', table, where)['seeds'] == seeds
    before = [part for part in parts_of(table, where) if part.title == 'pre-training base'][0]
    (member,) = before.members
    before.folder.run(member).mkdir(parents=True)
    before.folder.finish(member, 'eval/mlm_accuracy', {
        'eval/mlm_accuracy': 0.2, 'eval/mlm_perplexity': 9.0})
    found = cell_of(row, 'ppl', table, where)
    assert found is None if row.scratch else found['values'] == [9.0]


def test_figures_of_test_sets_stand_beside_those_of_dev_sets(tmp_path):
    where = options(tmp_path, tiny=False, columns=('qqp',))
    for part in parts_of(TABLES['1'], where):
        for member in part.members if part.task else ():
            part.folder.run(member).mkdir(parents=True)
            part.folder.finish(member, 'eval/f1', {'eval/f1': 0.8})
    text, _ = write_table('1', where, {}, draw=False)
    assert row_of('BERT-Base', text).endswith('| 80.00 n=1 (71.2; dev 87) |')
    assert row_of('BERT-Large', text).endswith('| 80.00 n=1 (72.1) |')


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
def test_flops_that_nothing_can_tell_are_left_out(tmp_path, setting):
    assert pretraining_flops(TABLES['5'].rows[0], options(tmp_path)) > 1e13
    assert pretraining_flops(TABLES['5'].rows[0], options(tmp_path, pretrain=(setting,))) is None


def cells_of(paper, runs):
    return {str(i): {'paper': paper[i], 'values': list(values), 'seeds': list(range(len(values)))}
            for i, values in enumerate(runs)}


def test_pairs_of_rows_are_in_the_papers_order_or_not():
    cells = cells_of([80, 70, 60, 60, 75, None],
                     [(49, 51), (39, 41), (60, 61), (60, 60.5), (42,), (1, 3)])
    cells['no run'] = {'paper': 90}
    assert order_of_rows(cells) == {
        'same': 1, 'opposite': 4, 'undecided': 0,
        'pairs_opposite': ['0 / 2', '0 / 3', '1 / 2', '1 / 3']}
    assert order_of_rows(cells_of([80], [(49, 51)])) is None
    assert order_of_rows(cells_of([80, 70], [(50,), (40,)])) is None, 'no deviation is known'
    # Five restarts of each of two models are two runs, not ten.
    cells = cells_of([80, 70], [(43, 41.5), (39, 41)])
    several = {'0': cells['0'] | {'values': [43.0] * 5 + [41.5] * 5, 'seeds': [0] * 5 + [1] * 5}}
    assert order_of_rows(cells | several) == order_of_rows(cells)


def test_equal_rows_are_seldom_said_to_differ():
    """Two standard errors of two rows alone would find a difference in every second table."""
    rng = np.random.default_rng(0)
    false = np.mean([
        order_of_rows(cells_of(range(4), rng.normal(size=(4, 2))))['undecided'] < 6
        for _ in range(60)])
    assert false <= 0.08


def test_weights_that_are_given_have_rows_without_pre_training(tmp_path):
    """What a user of a pod must do, who pre-trains by bert_jax.main."""
    given = str(ROOT / 'tests' / 'fixtures' / 'huggingface' / 'pretraining')
    where = options(tmp_path, columns=('mrpc',), weights={'base': given})
    parts = {part.title: part for part in parts_of(TABLES['5'], where)}
    scratch = parts['mrpc from not pre-trained, seed 0'].resolved
    pretrained = parts['mrpc from Base, seed 0'].resolved
    assert pretrained.init_checkpoint == given and not scratch.init_checkpoint
    assert scratch.model.hidden_size == 8 and scratch.data.vocab_file == f'{given}/vocab.txt'


def test_a_chain_of_real_runs(tmp_path, monkeypatch, capsys):
    """Table 3 has one row: it is pre-trained, and fine-tuned from that on a file of CoLA's form."""
    monkeypatch.setattr(paper, 'Guard', lambda: mock.Mock(should_stop=lambda step: False))
    words = [a + b + c for a in 'bdfgk' for b in 'aeiou' for c in 'lmnrst']
    rng = random.Random(1)
    (tmp_path / 'vocab.txt').write_text(
        '\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *words]))
    (tmp_path / 'text.txt').write_text('\n\n'.join(
        '\n'.join(' '.join(rng.choices(words, k=8)) + '.' for _ in range(6)) for _ in range(60)))
    (tmp_path / 'glue' / 'CoLA').mkdir(parents=True)
    for split, count in (('train', 32), ('dev', 16)):
        (tmp_path / 'glue' / 'CoLA' / f'{split}.tsv').write_text(''.join(
            f"x\t{i % 2}\t\t{' '.join(rng.choices(words, k=5))}\n" for i in range(count)))
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
    with mock.patch.object(Report, 'draw'), few_devices(1):
        assert paper.main(command) == 0
    record = json.loads((tmp_path / 'paper' / 'table3.json').read_text())
    (cell,) = record['cells']['cola'].values()
    assert -100 <= cell['mean'] <= 100 and cell['runs'] == 1
    assert record['hardware'] and record['hours'] > 0
    log = next(tmp_path.glob('paper/parts/cola-*/runs/*/log.txt')).read_text()
    assert 'pretrain-' in log, 'it starts from the part before'
    capsys.readouterr()
    with mock.patch.object(paper, 'Worker', side_effect=AssertionError('all is there')), \
            mock.patch.object(paper, '_draw'):
        assert paper.main(command) == 0
