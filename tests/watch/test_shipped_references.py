"""The shipped references are of the shipped recipes, and runs here agree with them."""

import json
from pathlib import Path

import pytest

from bert_jax.completion import complete
from bert_jax.config.fields import flat_fields
from bert_jax.config.phases import phases
from bert_jax.runtime.errors import Stopped
from bert_jax.tools.report.against import against
from bert_jax.tools.report.runs import RunRecords
from bert_jax.train.describing import resolve
from bert_jax.watch.reference import Comparison, compared_fields, read_reference
from tests.configs import load
from tests.conftest import ROOT
from tests.in_process import run
from tests.numpy_kernels import kernels_of_numpy  # noqa: F401
from tests.tiny_runs import first_devices

SHIPPED = sorted(path.stem for path in (ROOT / 'bert_jax' / 'watch' / 'references').iterdir())
# What a config leaves to its data or its weights.
LEFT_TO_DATA = ('identity', 'model.vocab_size')


def fields_of_recipe(reference):
    """The fields of the recipe that a reference is of, as a run of it has them."""
    recipe = reference.name
    if recipe == 'synthetic':
        recipe = 'tiny_pretrain'
    config = load(f'{recipe}.py')
    config.task = reference.fields['task']
    config = complete(config)
    description = resolve(config, phases(config), vocab_size=8000)
    return compared_fields(flat_fields(json.loads(json.dumps(description))))


def test_references_are_shipped():
    assert {'quickstart', 'synthetic', 'tiny_pretrain'} <= set(SHIPPED)


@pytest.mark.parametrize('name', SHIPPED)
def test_a_reference_is_of_the_recipe_as_it_is(name):
    """If it fails because a recipe has changed, its reference has to be made anew."""
    reference = read_reference(name)
    assert len(reference.seeds) == 3
    fields = fields_of_recipe(reference)
    comparison = Comparison(reference, fields)
    changed = [change.name for change in comparison.changes]
    assert [field for field in changed if not field.startswith(LEFT_TO_DATA)] == []


def stopped_run(workdir, *flags):
    """The records of a run of the synthetic recipe, stopped after 3 of 2,500 steps.

    It is on two devices, where the reference's runs were on one.
    """
    def two_devices():
        return first_devices(2)

    with pytest.raises(Stopped):
        run('tiny_pretrain.py', '--config.task=synthetic', *flags, workdir=workdir, stop_at=3,
            devices=two_devices)
    return RunRecords(Path(workdir), 'run')


@pytest.mark.slow
@pytest.mark.usefixtures('kernels_of_numpy')
def test_a_run_on_another_mesh_agrees_with_the_reference(tmp_path):
    here = stopped_run(tmp_path / 'run', '--config.train.reference=synthetic')
    compared = against(here, read_reference('synthetic'))
    assert not compared.leaves, compared.lines
    assert 'same data' in compared.lines
    assert not any('gate/reference' in record for record in here.records)


@pytest.mark.slow
@pytest.mark.usefixtures('kernels_of_numpy')
def test_a_run_on_another_mesh_at_another_rate_leaves_it_in_the_rate_alone(tmp_path):
    here = stopped_run(
        tmp_path / 'run', '--config.train.reference=synthetic',
        '--config.optimizer.learning_rate=1.1e-3')
    compared = against(here, read_reference('synthetic'))
    assert compared.lines[1:3] == [
        'same data', 'step 2: learning rate 4.4e-06, reference 4e-06: '
                     'optimizer.learning_rate=0.0011, reference 0.001']
    warned = [record['step'] for record in here.records if 'gate/reference' in record]
    assert warned == [2]
