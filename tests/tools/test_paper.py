"""The command of the paper's tables: running, stopping and resuming parts, the written files."""

import contextlib
import json
import re
import subprocess
from unittest import mock

import pytest

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.stopping import Guard
from bert_jax.text.vocab import SPECIAL_TOKENS
from bert_jax.text.vocab_files import write_vocab
from bert_jax.tools.paper.__main__ import main
from bert_jax.tools.sweep import training as sweep_training
from tests.conftest import ROOT, wait_until, xla_flags
from tests.programs import python, run_program
from tests.tiny_runs import WORDS, documents, write_cola
from tests.tools.paper_plans import finish

pytestmark = pytest.mark.slow


class QuickWork:
    """Stands in for a sweep's `work`: a run ends at once, with a score that depends on its model.

    Attributes:
      trained: the (folder of the part, name) of each run, in order.
      interrupt: called before each run; if it returns anything but None, the work ends with that.
    """

    def __init__(self):
        self.trained = []
        self.interrupt = lambda sweep, member: None

    def __call__(self, sweep, should_stop):
        for member in sweep.unfinished():
            sweep.run(member).mkdir(parents=True, exist_ok=True)
            ended = self.interrupt(sweep, member)
            if ended is not None:
                return ended
            self.trained.append((sweep.path.name, member.name))
            self.train(sweep, member)
        return True

    def train(self, sweep, member):
        run = sweep.run(member)
        guessing = {'accuracy': 0.5, 'f1': 0.9, 'mlm_perplexity': 9.0}
        (run / 'goodput.json').write_text(json.dumps({'seconds': {'step': 3600.0}}))
        (run / 'config.json').write_text(json.dumps({'guessing': guessing}))
        score = 0.7
        if 'ltr' in sweep.config or 'bilstm' in ' '.join(sweep.overrides):
            score = 0.6
        if '3e-4' in member.name:
            score += 0.1
        if 'seed=1' in member.name:
            score += 0.02
        finish(sweep, member, eval_f1=score, eval_accuracy=score / 2, eval_mlm_perplexity=9.0)

    def never_interrupt(self):
        self.interrupt = lambda sweep, member: None

    def check_no_run_was_trained_twice(self):
        assert len(self.trained) == len(set(self.trained))


@contextlib.contextmanager
def quick_work(data):
    """Replaces training by `QuickWork`, in a folder that gets data for --data."""
    for name in ('glue/MRPC', 'squad', 'conll2003'):
        (data / name).mkdir(parents=True)
    work = QuickWork()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(data)  # the default of --data
        patch.setattr(sweep_training, 'work', work)
        patch.setattr(Guard, 'start', lambda self: None)
        patch.setattr(sweep_training, 'WAIT_SECONDS', 0.0)
        yield work


@pytest.fixture
def quick(tmp_path_factory):
    with quick_work(tmp_path_factory.mktemp('data')) as work:
        yield work


def command_for(table, folder, columns):
    """The arguments of a small table: one seed of pre-training and two of each fine-tuning."""
    return [table, f'--workdir={folder}', f'--columns={columns}', '--seeds=1', '--restarts=2']


NUM_PRETRAININGS = 3
NUM_FINE_TUNINGS = 5 * 4  # rows, by two rates and two restarts
NUM_RUNS = NUM_PRETRAININGS + NUM_FINE_TUNINGS


def test_a_stopped_table_continues_where_it_stopped(tmp_path, quick, capsys):
    command = command_for('5', tmp_path, 'mrpc,ppl')

    def stop_after_four_runs(sweep, member):
        return None if len(quick.trained) < 4 else False

    quick.interrupt = stop_after_four_runs
    assert main(command) == 143
    assert '[2/8]' in capsys.readouterr().out
    quick.never_interrupt()
    assert main([*command, '--list']) == 0
    assert '19 of 23 runs left in 8 parts' in capsys.readouterr().out
    assert main(command) == 0
    quick.check_no_run_was_trained_twice()
    assert len(quick.trained) == NUM_RUNS


def test_a_table_is_written_with_its_record(tmp_path, quick, capsys):
    assert main(command_for('5', tmp_path, 'mrpc,ppl')) == 0
    text = (tmp_path / 'table5.md').read_text()
    assert text.strip() in capsys.readouterr().out
    assert '| Base | 2.4e+13 | 40.50 ± 0.71 n=2 (86.7) | 9.00 n=1 |' in text
    assert (tmp_path / 'table5.png').stat().st_size > 1000
    record = json.loads((tmp_path / 'table5.json').read_text())
    base = record['cells']['mrpc']['Base']
    assert base['settings'] == {'optimizer.learning_rate': '3e-4'}
    assert base['runs'] == 2
    assert base['values'] == pytest.approx([40, 41])
    assert base['mean'] == pytest.approx(40.5)
    assert base['deviation'] == pytest.approx(0.5 ** 0.5)
    assert base['paper'] == 86.7
    assert record['cells']['ppl']['Base']['mean'] == 9.0
    assert record['hours'] == NUM_RUNS  # each takes one
    assert record['runs'] == {'finished': NUM_RUNS, 'all': NUM_RUNS}


@pytest.fixture
def any_model_is_there(monkeypatch):
    monkeypatch.setattr(
        'bert_jax.tools.paper.__main__.check_is_there', lambda path: None)


@pytest.mark.usefixtures('any_model_is_there')
def test_models_are_the_rows_of_a_table(tmp_path, quick):
    """Each over a grid of three rates and three seeds, on data of the hub; the second is worse."""
    command = ['superglue', '--model', 'one', '--model', 'two', f'--workdir={tmp_path}',
               '--columns=cb,cb_f1']
    train = quick.train

    def train_two_worse(sweep, member):
        config = ' '.join(sweep.overrides)
        assert 'data.source' not in config
        train(sweep, member)
        score = 0.9 if 'init_checkpoint=one' in config else 0.5
        score += 0.01 * int(member.name[-1])
        finish(
            sweep, member, metric='eval/accuracy', eval_accuracy=score, eval_macro_f1=score)

    quick.train = train_two_worse
    assert main(command) == 0
    assert len(quick.trained) == 2 * 3 * 3
    record = json.loads((tmp_path / 'table_superglue.json').read_text())
    assert record['rows'] == ['one', 'two']
    cell = record['cells']['superglue_cb']['one']
    assert cell['values'] == pytest.approx([90, 91, 92])
    assert cell['interval'] == pytest.approx([91 - 2.484, 91 + 2.484], abs=1e-3)  # t of 2: 4.303
    value, low, high = record['differences']['superglue_cb']['two']
    assert (value, high < 0) == (pytest.approx(-40), True)
    assert '91.00 ± 1.00 n=3 (95 %: 88.52 to 93.48)' in (
        tmp_path / 'table_superglue.md').read_text()
    assert main(command) == 0
    quick.check_no_run_was_trained_twice()


@pytest.mark.parametrize(('line', 'words'), [
    ('5 --model one --columns=ppl', 'compares pre-trainings'),
    ('superglue --model one --model one', 'twice'),
    ('superglue --model one --columns=cb', 'one does not exist'),
    ('glue --model one', "TABLE 'glue' is unknown: choose from 1 (Table 1: GLUE), 2 (Table 2: SQ"),
])
def test_tables_that_models_cannot_be_rows_of(line, words, quick, capsys):
    with pytest.raises(SystemExit, match='2'):
        main(line.split())
    assert words in capsys.readouterr().err


def test_another_table_reuses_parts(tmp_path, quick):
    assert main(command_for('5', tmp_path, 'mrpc,ppl')) == 0
    assert main(command_for('8', tmp_path, 'mrpc,ppl')) == 0
    num_new_rows = 5  # all but Base
    assert len(quick.trained) == NUM_RUNS + num_new_rows * (1 + 4)


@pytest.fixture(scope='module')
def own_table(tmp_path_factory):
    """The record and the Markdown of a table of two configs of one's own, with three seeds."""
    folder = tmp_path_factory.mktemp('own')
    rows = 'ablations.py:base,tiny,efficient_pretrain.py:paper,tiny'
    with quick_work(folder / 'data'):
        assert main(['mine', f'--rows={rows}', f'--workdir={folder}/tables',
                     '--columns=mrpc,mrpc_f1,ppl', '--seeds=3']) == 0
    record = json.loads((folder / 'tables' / 'table_mine.json').read_text())
    return record, (folder / 'tables' / 'table_mine.md').read_text()


def test_rows_of_ones_own_are_compared_with_no_pre_training(own_table):
    record, _ = own_table
    first, second = 'ablations.py:base,tiny', 'efficient_pretrain.py:paper,tiny'
    assert record['rows'] == [first, second, 'not pre-trained']
    assert set(record['parts'].values()) >= {f'pre-training {first}', f'pre-training {second}'}


def test_a_table_of_ones_own_has_the_mean_of_its_tasks(own_table):
    record, _ = own_table
    mean, accuracy, f1 = (
        record['cells'][column]['ablations.py:base,tiny']['values']
        for column in ('mean', 'mrpc', 'mrpc_f1'))
    assert mean == pytest.approx([(a + f) / 2 for a, f in zip(accuracy, f1, strict=True)])


def test_a_table_that_scores_like_guessing_is_inconclusive(own_table):
    record, text = own_table
    assert record['guessing'] == {'mrpc': 50, 'mrpc_f1': 90, 'ppl': 9}
    assert '**Inconclusive: this table.' in text


def raise_an_error(sweep, member):
    raise InputError('config.data.source is not there')


def fail_the_run(sweep, member):
    sweep.fail(member)
    return True


@pytest.mark.parametrize('fail, why', [
    pytest.param(raise_an_error, 'source is not there', id='bad config'),
    pytest.param(fail_the_run, 'see log.txt in ', id='failed run'),
])
def test_a_part_that_fails_leaves_the_others(tmp_path, quick, capsys, fail, why):
    command = ['5', f'--workdir={tmp_path}', '--columns=mrpc', '--seeds=1']

    def fail_without_nsp(sweep, member):
        return fail(sweep, member) if 'no_nsp' in sweep.config else None

    quick.interrupt = fail_without_nsp
    assert main(command) == 1
    out = capsys.readouterr().out
    assert re.search(r'\| No NSP \|.* – \(86.5\)', out)
    assert re.search(r'\| Base \|.* 40.00 n=1 \(86.7\)', out)
    assert re.search(f'Failed: pre-training no_nsp: .*{why}', out)
    assert 'Failed: mrpc from No NSP, seed 0: pre-training no_nsp failed' in out
    quick.never_interrupt()
    assert main(command) == 0


def test_a_part_on_another_machine_delays_only_those_that_need_it(tmp_path, quick, capsys):
    num_looks = 0

    def leave_base_to_others_twice(sweep, member):
        nonlocal num_looks
        if 'ablations.py:base' not in sweep.config or num_looks == 2:
            return None
        num_looks += 1
        return True

    quick.interrupt = leave_base_to_others_twice
    assert main(['5', '--columns=mrpc', '--seeds=1', f'--workdir={tmp_path}']) == 0
    tasks = [folder.partition('-')[0] for folder, _ in quick.trained]
    assert tasks[:2] == ['pretrain', 'mrpc'], 'another row is pre-trained and fine-tuned meanwhile'
    quick.check_no_run_was_trained_twice()
    assert len(quick.trained) == NUM_PRETRAININGS + 5 * 2
    assert capsys.readouterr().out.count('pre-training base: 1 runs') == 1


WORKER = """
import os, sys, time
from unittest import mock
from bert_jax.tools.paper.__main__ import main
from bert_jax.tools.sweep import training

def train(self, member, claim):
    log = open(self.sweep.run(member) / 'trained.txt', 'a', buffering=1)
    log.write(f'{os.getpid()} begins\\n')
    time.sleep(3600 if sys.argv[1] == 'hangs' else 0.05)
    log.write(f'{os.getpid()} ends\\n')
    self.sweep.finish(member, 'eval/accuracy', {'eval/accuracy': 0.5, 'eval/macro_f1': 0.5})

with (mock.patch('bert_jax.tools.paper.__main__.check_is_there'),
      mock.patch.multiple(training, WAIT_SECONDS=0.1),
      mock.patch.multiple(training._Worker, _train=train, _open_program=lambda *_: None)):
    sys.exit(main(sys.argv[2:]))
"""


def test_of_two_machines_with_a_table_of_models_one_is_killed_and_every_run_is_trained_once(
        tmp_path):
    command = ['superglue', '--model=one', '--model=two', f'--workdir={tmp_path}',
               '--columns=superglue_cb,superglue_cb_f1', '--restarts=2']

    def start(kind):
        return subprocess.Popen(
            [*python(), '-c', WORKER, kind, *command], cwd=ROOT, stdout=subprocess.DEVNULL)

    def lines():
        logs = tmp_path.glob('parts/*/runs/*/trained.txt')
        return [line.split() for path in logs for line in path.read_text().splitlines()]

    killed = start('hangs')
    wait_until(lambda: len(lines()) == 1)
    other = start('ends')
    wait_until(lambda: 'ends' in [what for _, what in lines()])
    killed.kill()
    killed.wait()
    assert other.wait(timeout=240) == 0
    begun = [pid for pid, what in lines() if what == 'begins']
    num_runs = 2 * 3 * 2
    assert len(lines()) - len(begun) == num_runs and len(begun) == num_runs + 1
    record = json.loads((tmp_path / 'table_superglue.json').read_text())
    assert record['runs'] == {'finished': num_runs, 'all': num_runs}
    assert start('hangs').wait(timeout=240) == 0, 'nothing is trained again'
    assert len(lines()) == 2 * num_runs + 1


def test_a_chain_of_real_runs(tmp_path):
    """Two processes, of which one waits, pre-train and fine-tune table 3's one row.

    It is fine-tuned on a file in CoLA's format.
    """
    write_vocab(tmp_path / 'vocab.txt', [*SPECIAL_TOKENS, *WORDS])
    (tmp_path / 'text.txt').write_text(documents(60))
    write_cola(tmp_path / 'glue', train=32, dev=16)
    settings_of_all = [
        f'data.dir={tmp_path}/cache', 'train.batch_size=8', 'train.steps=4', 'train.eval_every=0',
        'train.save_every=0', 'model.hidden_dropout=0', 'model.attention_dropout=0']
    pretrain = [
        *settings_of_all, f'data.source={tmp_path}/text.txt',
        f'data.vocab_file={tmp_path}/vocab.txt', 'data.held_out=0.2', 'train.eval_batch_size=8',
        'phases[0].max_seq_length=16', 'phases[0].max_predictions_per_seq=3',
        'phases[1].max_seq_length=16', 'phases[1].max_predictions_per_seq=3',
        'model.num_layers=1', 'model.hidden_size=16', 'model.num_heads=2']
    finetune = [
        *settings_of_all, 'data.max_seq_length=16', 'data.packing=False',
        'optimizer.learning_rate=1e-3']
    command = [
        '3', f'--workdir={tmp_path}/paper', f'--data={tmp_path}', '--columns=cola', '--seeds=1',
        *(f'--pretrain={setting}' for setting in pretrain),
        *(f'--finetune={setting}' for setting in finetune)]
    process = run_program('-m', 'tests.tools.quickly', 'paper', '--chips=1', *command,
                          XLA_FLAGS=xla_flags(2))
    assert process.stdout.count('written: ') == 1, process.stderr  # the first process's
    record = json.loads((tmp_path / 'paper' / 'table3.json').read_text())
    (cell,) = record['cells']['cola'].values()
    assert cell['runs'] == 1 and record['hardware'] and record['hours'] > 0
    log = next(tmp_path.glob('paper/parts/cola-*/runs/*/log.txt')).read_text()
    assert 'pretrain-' in log, 'it starts from the pre-training'
    with mock.patch.object(sweep_training, 'work', side_effect=AssertionError('all is there')), (
            mock.patch.object(Guard, 'start')):
        assert main(command) == 0
