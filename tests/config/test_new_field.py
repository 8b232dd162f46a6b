"""A setting is a row of the table of fields, and a field of its reader's options."""

import dataclasses

import pytest

from bert_jax import validation
from bert_jax.config import default_config, fields, options_of
from bert_jax.config.fields import FIELDS, Field, field_of
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.schema import Range
from bert_jax.step.optimizers import OptimizerOptions
from tests.configs import changed
from tests.refusals import refused


@pytest.fixture
def reader(monkeypatch):
    """The options with a new field, which are what validation and the reader of a section know."""
    # In config/fields.py, with its comment:
    monkeypatch.setitem(FIELDS, 'optimizer.least_rate', Field(0.0, Range(0, 1), 'training'))

    # And beside the code that reads it, where `OptimizerOptions` is:
    @dataclasses.dataclass(frozen=True)
    class Options(OptimizerOptions):
        least_rate: float = FIELDS['optimizer.least_rate'].default

        def __post_init__(self):
            super().__post_init__()
            if self.least_rate and self.name == 'lion':
                raise InputError('config.optimizer.least_rate is not for lion')

    monkeypatch.setitem(validation.READERS, 'optimizer', (Options,))
    return Options


def test_it_has_a_default_and_a_role(reader):
    assert default_config().optimizer.least_rate == reader().least_rate == 0.0
    assert field_of('optimizer.least_rate').role in fields.CHANGES_RESULT


def test_its_reader_has_the_value_of_the_config(reader):
    config = changed({'optimizer.least_rate': 0.25, 'optimizer.eps': 1e-8})
    validation.validate(config)
    options = options_of(reader, config.optimizer)
    assert (options.least_rate, options.eps) == (0.25, 1e-8)


@pytest.mark.parametrize(('values', 'message'), [
    ({'optimizer.least_rate': 2.0}, 'config.optimizer.least_rate=2.0 must be a number from 0 to 1'),
    ({'optimizer.least_rate': 0.5, 'optimizer.name': 'lion'}, 'least_rate is not for lion'),
], ids=['by its row', 'by its reader'])
def test_what_it_cannot_be_is_refused(reader, values, message):
    with refused(message):
        validation.validate(changed(values))


def test_options_need_not_have_all_fields_of_a_section():
    config = default_config()
    assert 'warmup' in config.optimizer
    assert options_of(OptimizerOptions, config.optimizer, b1=0.5) == OptimizerOptions(b1=0.5)
