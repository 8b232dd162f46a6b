"""Names that config files of users may still have: they mean what the new ones do."""

import importlib

import pytest

from bert_jax.heads.base import Head
from bert_jax.moved import accept_old_names, new_names
from bert_jax.tasks import opening


@pytest.mark.parametrize('old', ['bert_jax.tasks.squad_reader', 'bert_jax.tasks.squad_answers'])
def test_a_module_that_has_moved_is_found_by_its_old_name(old):
    accept_old_names()
    assert importlib.import_module(old) is importlib.import_module(new_names()[old])


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
