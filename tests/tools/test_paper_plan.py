"""The parts of the paper's tables: what they start from, and which tables share them."""

import pytest

from bert_jax.runtime.errors import InputError
from bert_jax.tools.paper.tables import COLUMNS, TABLES, TASKS
from tests.conftest import ROOT
from tests.tools.paper_plans import plan


def titles(parts):
    return [part.title for part in parts]


def folders(parts):
    return {part.sweep.path for part in parts}


def part_titled(parts, words):
    """The one part whose title has these words."""
    (part,) = (part for part in parts if words in part.title)
    return part


@pytest.mark.parametrize('name', TABLES)
def test_a_table_names_known_tasks_and_columns(name):
    table = TABLES[name]
    for column in (*table.columns, *table.tiny):
        assert COLUMNS[column].task in ('', *TASKS)
    for row in table.rows:
        assert {*row.figures, *row.dev, *row.only} <= set(table.columns)


@pytest.mark.parametrize('scale', ['tiny', 'paper'])
@pytest.mark.parametrize('name', TABLES)
def test_a_table_has_rows_and_columns_at_each_scale(name, scale):
    table = plan(name, 'runs', scale=scale)
    assert table.rows
    assert table.columns


def test_parts_come_row_by_row(tmp_path):
    parts = plan('5', tmp_path, 'mrpc').parts()
    assert titles(parts) == [
        'pre-training base',
        'mrpc from Base, seed 0',
        'pre-training no_nsp',
        'mrpc from No NSP, seed 0',
        'pre-training ltr',
        'mrpc from LTR & No NSP, seed 0',
        'mrpc from + BiLSTM, seed 0',
        'mrpc from not pre-trained, seed 0',
    ]
    assert len(folders(parts)) == 8


def test_a_fine_tuning_starts_from_the_pre_training_of_its_row(tmp_path):
    parts = plan('5', tmp_path, 'mrpc').parts()
    ltr = part_titled(parts, 'pre-training ltr').sweep
    bilstm = part_titled(parts, '+ BiLSTM')
    assert bilstm.resolved.init_checkpoint == str(ltr.run(ltr.members[0]))
    assert bilstm.resolved.model.bilstm
    assert bilstm.start.part.sweep.path == ltr.path


def test_a_row_from_scratch_has_the_model_of_its_pre_training(tmp_path):
    scratch = part_titled(plan('5', tmp_path, 'mrpc').parts(), 'not pre-trained').resolved
    assert scratch.model.num_layers == 2
    assert not scratch.init_checkpoint


def test_tables_share_equal_parts(tmp_path):
    five = plan('5', tmp_path, 'mrpc').parts()
    eight = plan('8', tmp_path, 'mrpc').parts()
    assert folders(five) & folders(eight) == folders(five[:2])


def test_tables_share_a_model_under_another_name(tmp_path):
    five = plan('5', tmp_path, 'mrpc').parts()
    six = plan('6', tmp_path, 'mrpc').parts()
    assert titles(six[:2]) == ['pre-training 2/128/2', 'mrpc from 3/768/12 (here 2/128/2), seed 0']
    assert folders(six[:2]) == folders(five[:2])


def test_more_seeds_and_rates_are_more_members_of_the_same_parts(tmp_path):
    few = plan('5', tmp_path, 'mrpc').parts()
    more = plan('5', tmp_path, 'mrpc', seeds=2, restarts=2).parts()
    assert folders(few) < folders(more)
    assert len(part_titled(more, 'pre-training base').sweep.members) == 2
    scratch = part_titled(more, 'not pre-trained')
    num_rates = 2
    assert len(set(scratch.sweep.members)) == num_rates * 2 * 2, 'no member occurs twice'


def test_the_digest_of_a_part_stays(tmp_path):
    """If it changes, existing parts are not found.

    A new config field belongs to the fields in part_names.py that were added later.
    """
    part = plan('loo', tmp_path, 'ppl').parts()[0]
    assert part.name == 'pretrain-ed5b285de762'


def test_a_moved_directory_has_the_same_parts(tmp_path):
    parts = plan('5', tmp_path, 'mrpc').parts()
    moved = plan('5', tmp_path / 'x', 'mrpc').parts()
    assert [part.name for part in moved] == [part.name for part in parts]


def test_settings_are_of_all_tasks_or_of_one(tmp_path):
    settings = ('train.batch_size=8', 'ner:train.steps=9', 'train.steps=2 epochs')
    parts = plan('5', tmp_path, 'mrpc', 'ner', finetune=settings).parts()
    mrpc = part_titled(parts, 'mrpc from Base').resolved
    assert mrpc.train.batch_size == 8
    assert mrpc.train.steps == '2 epochs'


def test_data_is_in_the_folders_of_the_tasks(tmp_path):
    parts = plan('5', tmp_path, 'mrpc', 'ner', data='there').parts()
    assert part_titled(parts, 'mrpc from Base').resolved.data.source == 'there/glue'
    assert part_titled(parts, 'ner from Base').resolved.data.source == 'there/conll2003'


def test_learning_rates_of_a_task_replace_its_grid(tmp_path):
    rates = ('stsb:optimizer.learning_rate=1e-4,3e-5', 'ner:optimizer.learning_rate=1')
    pretraining, tuned = plan('loo', tmp_path, 'stsb', scale='between', finetune=rates).parts()[:2]
    assert [dict(member.settings) for member in tuned.sweep.members] == [
        {'optimizer.learning_rate': '1e-4', 'seed': '0'},
        {'optimizer.learning_rate': '3e-5', 'seed': '0'}]
    assert pretraining.sweep.config.endswith('efficient_pretrain.py:five,between')
    assert tuned.start.part.sweep.path == pretraining.sweep.path


def test_a_share_of_the_steps_is_an_intermediate_checkpoint(tmp_path):
    first_share = plan('c1', tmp_path, 'mrpc').parts()[1].resolved
    assert first_share.init_checkpoint.endswith('/runs/seed=0/checkpoints/490')


def test_weights_that_are_given_replace_pre_training(tmp_path):
    """For users of a pod, who must pre-train with bert_jax.main."""
    given = f'{ROOT}/tests/fixtures/huggingface/pretraining'
    parts = plan('5', tmp_path, 'mrpc', weights={'base': given}).parts()
    pretrained = part_titled(parts, 'from Base').resolved
    assert pretrained.init_checkpoint == given
    scratch = part_titled(parts, 'not pre-trained').resolved
    assert not scratch.init_checkpoint
    assert scratch.model.hidden_size == 8
    assert scratch.data.vocab_file == f'{given}/vocab.txt'


def test_weights_that_are_given_have_one_seed(tmp_path):
    parts = plan('1', tmp_path, 'mrpc', weights={'base': 'bert'}, seeds=3).parts()
    assert titles(parts)[:2] == ['mrpc from BERT-Base, seed 0', 'pre-training 4/256/4']


def test_weights_cannot_replace_intermediate_checkpoints(tmp_path):
    c1 = plan('c1', tmp_path, 'mrpc', weights={'base': 'bert'}, seeds=3)
    with pytest.raises(InputError, match='--weights base=...: the row .* needs its pre-training'):
        c1.parts()


def test_flops_of_a_pre_training(tmp_path):
    assert plan('5', tmp_path).flops(TABLES['5'].rows[0]) > 1e13


@pytest.mark.parametrize('setting', ['train.steps=2 epochs', 'data.vocab_file=missing.txt'])
def test_flops_that_cannot_be_computed_are_left_out(tmp_path, setting):
    assert plan('5', tmp_path, pretrain=(setting,)).flops(TABLES['5'].rows[0]) is None
