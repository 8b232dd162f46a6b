"""What another value of a field means for a run."""

import pytest

from bert_jax.config.fields import FIELDS, field_of


@pytest.mark.parametrize(('name', 'role'), [
    ('model.num_layers', 'model'),
    ('data.masking', 'data'),
    ('optimizer.learning_rate', 'training'),
    ('train.steps', 'result'),
    ('mesh.fsdp', 'compute'),
    ('data.dir', 'place'),
    ('train.log_every', 'logging'),
    ('phases.2.steps', 'result'),
    ('identity.content of mine.txt', 'data'),
    ('guessing.accuracy', 'derived'),
    ('model.of_another_version', 'model'),
    ('train.of_another_version', 'result'),
])
def test_every_entry_of_a_description_has_a_role(name, role):
    assert field_of(name).role_of('pretrain') == role


@pytest.mark.parametrize(('task', 'role'), [
    ('pretrain', 'logging'), ('synthetic', 'logging'), ('rte', 'result'),
    ('of_a_config_file', 'result'),
])
def test_evaluations_decide_the_result_where_the_best_is_chosen(task, role):
    assert FIELDS['train.eval_every'].role_of(task) == role


@pytest.mark.parametrize(('name', 'is_silent'), [
    ('data.dir', True), ('train.log_every', True),  # by their roles
    ('data.vocab_file', True), ('mesh.tensor', True), ('identity.vocabulary', True),
    ('data.source', False), ('model.remat', False), ('identity.content', False),
])
def test_changes_that_a_resumed_run_does_not_mention(name, is_silent):
    assert field_of(name).is_silent('pretrain') == is_silent


def test_runs_that_share_a_compiled_step_differ_in_its_arguments():
    shared = [path for path, field in FIELDS.items() if field.step_argument]
    assert shared == ['seed', 'optimizer.learning_rate']
