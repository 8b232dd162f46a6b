"""Overrides on the command line reach the run, or are refused in one line."""

from pathlib import Path

import pytest
from absl import flags

from bert_jax.config.command_line import define_config, parse_flags
from bert_jax.config.phases import phases
from bert_jax.runtime.errors import InputError

CONFIGS = Path(__file__).resolve().parent.parent / 'configs'


def parsed(name, *overrides):
    """The config of `configs/NAME` after overrides, as a command has it."""
    values = flags.FlagValues()
    argv = ['program', f'--config={CONFIGS / name}', *(f'--config.{o}' for o in overrides)]
    define_config(values, argv)
    parse_flags(argv, values)
    return values.config


@pytest.mark.parametrize('name, override, field, values', [
    ('base_pretrain.py', 'train.batch_size=8', 'batch_size', [8, 8]),
    ('large_pretrain.py', 'train.batch_size=8', 'batch_size', [8, 8]),
    ('large_pretrain.py:lamb', 'phases[1].batch_size=64', 'batch_size', [65536, 64]),
    ('base_pretrain.py', 'phases[0].max_seq_length=64', 'max_seq_length', [64, 512]),
    ('tiny_pretrain.py', 'data.max_seq_length=32', 'max_seq_length', [32]),
    ('base_pretrain.py', 'phases=({"steps": 3},)', 'max_seq_length', [128]),
])
def test_an_override_reaches_every_phase_that_does_not_say_otherwise(
    name, override, field, values
):
    assert [phase[field] for phase in phases(parsed(name, override))] == values


@pytest.mark.parametrize('name, override, message', [
    ('large_pretrain.py:lamb', 'train.batch_size=8', r"=8 .*'--config.phases\[0\].batch_size="),
    ('base_pretrain.py', 'data.max_seq_length=64', r"'--config.phases\[0\].max_seq_length="),
    ('base_pretrain.py', 'data.max_predictions_per_seq=9', 'their own max_predictions_per_seq'),
    ('large_pretrain.py:lamb', 'optimizer.learning_rate=1.0', 'their own learning_rate'),
    ('large_pretrain.py:lamb', 'optimizer.warmup=10', 'their own warmup'),
    ('base_pretrain.py', 'phases[0].batch_size=8', 'the phase does not say this'),
    ('tiny_pretrain.py', 'phases[0].batch_size=8', 'no such phase'),
    ('tiny_pretrain.py', 'train.batchsize=8', "did you mean 'train.batch_size'"),
    ('tiny_pretrain.py', 'train.batch_size=many', 'train.batch_size'),
    ('none.py', 'train.batch_size=8', 'configs/none.py'),
])
def test_an_override_that_nothing_would_use_is_refused(name, override, message):
    with pytest.raises(InputError, match=message):
        parsed(name, override)
