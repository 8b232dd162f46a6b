"""Names that config files of users may still have: they mean what the new ones do."""

import importlib

import numpy as np
import pytest

from bert_jax.config.command_line import config_file, load_config
from bert_jax.heads.base import Head
from bert_jax.moved import accept_old_names, new_names
from bert_jax.rows import pairs
from bert_jax.tasks import opening


@pytest.mark.parametrize('old', ['bert_jax.tasks.squad_reader', 'bert_jax.tasks.squad_answers'])
def test_a_module_that_has_moved_is_found_by_its_old_name(old):
    accept_old_names()
    assert importlib.import_module(old) is importlib.import_module(new_names()[old])


@pytest.mark.parametrize(('old', 'new'), [
    ('bert_jax.rows.pairs.make_sequences', 'bert_jax.rows.sequences.make_sequences'),
    ('bert_jax.rows.chunks.split_sentences', 'bert_jax.rows.pairs.cut_long_sentences'),
    ('bert_jax.rows.recipe.Counts', 'bert_jax.rows.pairs.RowStatistics'),
    ('bert_jax.rows.pretrain.PretrainExamples', 'bert_jax.rows.text_rows.WholeTextRows'),
    ('bert_jax.data.pairs.Sequences', 'bert_jax.rows.sequences.Sequences'),
    ('bert_jax.model.dropout.dropout_rows', 'bert_jax.kernels.dropout.dropout_keys'),
    ('bert_jax.kernels.dropout.rows_of', 'bert_jax.kernels.dropout.keys_from_content'),
    ('bert_jax.kernels.dropout.rows_of_another', 'bert_jax.kernels.dropout.keys_of_further_model'),
])
def test_a_name_that_has_moved_is_found_where_it_was(old, new):
    accept_old_names()
    assert named(old) is named(new)


def test_functions_that_became_methods_are_called_as_before():
    accept_old_names()
    pretrain = importlib.import_module('bert_jax.rows.pretrain')
    packing = importlib.import_module('bert_jax.rows.packing')
    assert pretrain.planned_epoch(12, pairs.RowOptions(num_maskings=10)) == 2
    lengths = np.array([3, 5, 2, 4])
    rows = packing.pack_whole(lengths, 8)
    assert rows.tolist() == [0, 0, 1, 1]
    plan = packing.plan_once(lengths, rows, row_length=8, rows_a_step=2, units_a_row=2)
    assert (plan.tokens, plan.shapes) == (14, [packing.Shape(2, 8, 2)])
    plan = packing.plan_steps(
        lengths, np.arange(4)[None], row_lengths=[8], shards=1, token_cost=lambda length: 1.0)
    assert plan.rows.tolist() == [[0, 0, 1, 1]]


def test_a_name_that_no_module_has_is_none_of_the_old_one():
    with pytest.raises(ImportError):
        from bert_jax.rows.pairs import no_such_name  # noqa: F401


def named(name):
    module, _, attribute = name.rpartition('.')
    return getattr(importlib.import_module(module), attribute)


def test_a_config_that_is_another_now_is_said(capsys):
    found = config_file('configs/boolq.py')
    assert (found, load_config(found).task) == (config_file('superglue:boolq'), 'superglue_boolq')
    assert capsys.readouterr().err == (
        'note: configs/boolq.py is configs/superglue.py:boolq now\n')


def test_a_task_is_added_by_the_old_name_of_their_list():
    assert opening.OPENERS is opening.TASKS


def test_a_head_that_calls_its_loss_by_the_old_name_is_obeyed(capsys):
    class Old(Head):
        compares = True

    class Inherited(Old):
        pass

    class Changed(Old):
        loss_spans_batch = False

    assert Old.loss_spans_batch and Inherited.loss_spans_batch
    assert not Changed.loss_spans_batch and not Head.loss_spans_batch
    first, _ = capsys.readouterr().err.splitlines()
    assert first == 'note: the head Old sets compares, which is loss_spans_batch now'
