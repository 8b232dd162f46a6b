"""A command line gives a config; what means nothing is refused with what may be meant."""

import pytest
from absl import flags

from bert_jax.config.command_line import Parser, parse_command
from bert_jax.config.phases import phases
from bert_jax.runtime.errors import InputError
from tests.conftest import ROOT


def parsed(name, override):
    """The config of `configs/NAME` after an override, as a command has it."""
    return parse_command(
        ['program', f'--config={ROOT}/configs/{name}', f'--config.{override}'], '')[0]


@pytest.mark.parametrize(('name', 'override', 'field', 'values'), [
    ('base_pretrain.py', 'train.batch_size=8', 'batch_size', [8, 8]),
    ('large_pretrain.py:lamb', 'phases[1].batch_size=64', 'batch_size', [65536, 64]),
    ('base_pretrain.py', 'phases[0].max_seq_length=64', 'max_seq_length', [64, 512]),
    ('tiny_pretrain.py', 'data.max_seq_length=32', 'max_seq_length', [32]),
    ('base_pretrain.py', 'phases=({"steps": 3},)', 'max_seq_length', [128]),
])
def test_an_override_reaches_phases_that_do_not_say_otherwise(name, override, field, values):
    assert [phase[field] for phase in phases(parsed(name, override))] == values


@pytest.mark.parametrize(('name', 'override', 'message'), [
    ('large_pretrain.py:lamb', 'train.batch_size=8', r"=8 .*'--config.phases\[0\].batch_size="),
    ('base_pretrain.py', 'data.max_seq_length=64', r"'--config.phases\[0\].max_seq_length="),
    ('large_pretrain.py:lamb', 'optimizer.learning_rate=1.0', 'their own learning_rate'),
])
def test_an_override_that_no_phase_would_take_is_refused(name, override, message):
    with pytest.raises(InputError, match=message):
        parsed(name, override)


@pytest.mark.parametrize(('name', 'message'), [
    ('base_pretrain.py', 'the phase does not say this'),
    ('tiny_pretrain.py', 'no such phase'),
])
def test_a_field_that_a_phase_does_not_have_is_refused(name, message):
    with pytest.raises(InputError, match=message):
        parsed(name, 'phases[0].batch_size=8')


@pytest.mark.parametrize(('wrong', 'hint'), [
    ('train.batchsize', "did you mean 'train.batch_size'"),
    ('learning_rate', "'optimizer.learning_rate'"),
    ('data.txt', "did you mean 'data.text'"),
    ('train.num_train_epochs', "--config.train.steps='3 epochs'"),  # of Hugging Face's Trainer
    ('train.frobnicate', '--help'),
])
def test_an_unknown_field_is_refused_with_the_one_that_may_be_meant(wrong, hint):
    with pytest.raises(InputError, match=hint):
        parsed('tiny_pretrain.py', f'{wrong}=8')


def test_a_field_without_the_word_config_is_refused_with_what_to_write():
    with pytest.raises(InputError, match='write --config.data.source=VALUE'):
        parse_command(['main', '--config=classification', '--data.source=a.csv'], '')


def test_a_value_of_another_type_is_refused_with_its_field():
    with pytest.raises(InputError, match='train.batch_size'):
        parsed('tiny_pretrain.py', 'train.batch_size=many')


@pytest.mark.parametrize(('name', 'message'), [
    ('none.py', 'configs/none.py'),
    ('efficient_pretrain.py:faster', 'faster is unknown: choose paper, none, all, five'),
    ('efficient_pretrain.py:five-ramp', 'five-ramp is unknown: choose paper, none'),
])
def test_a_config_that_does_not_exist_is_refused(name, message):
    with pytest.raises(InputError, match=message):
        parsed(name, 'seed=1')


def test_what_is_repeated_of_a_flag_moves_no_cursor_and_fills_no_screen(capsys):
    for word, shown in (('\x1b[31m', '\\x1b[31m'), ('x' * 9000, 'xxx ... xxx')):
        with pytest.raises(SystemExit, match='2'):
            Parser('tool', '').parse_args([word])
        said = capsys.readouterr().err
        assert shown in said and said.endswith(' (see tool --help)\n') and len(said) < 2000


def test_help_shows_a_config_and_its_fields(capsys):
    own_flags = flags.FlagValues()
    flags.DEFINE_string('topology', '', 'The chips.', flag_values=own_flags)
    with pytest.raises(SystemExit):
        parse_command(['program', '--config=classification', '--help'], 'What it does.', own_flags)
    shown = capsys.readouterr().out
    assert shown.startswith('What it does.\nYour own texts with labels')
    assert '  --topology  The chips.\n' in shown
    assert '  --config.data.held_out=0.1\n' in shown
