"""Every field of the one list comes back from every format, or is refused by name."""

import dataclasses
import json
from pathlib import Path

import pytest

from bert_jax.config import complete, default_config, model_fields
from bert_jax.config.bert_config import COMPUTATION, OPTIONS, BertConfig
from bert_jax.config.validation import validate
from bert_jax.runtime.checksum import check_digest
from bert_jax.runtime.errors import InputError
from bert_jax.train.run_directory import check_run_directory, describe_run
from bert_jax.weights import load_weights
from bert_jax.weights.names import read_model, write_model
from bert_jax.weights.run_directory import read_description, write_run
from bert_jax.weights.warm_start import place

RECORDED = Path(__file__).parents[1] / 'fixtures' / 'huggingface'
MODEL = vars(BertConfig(
    vocab_size=40, num_layers=2, hidden_size=128, num_heads=2, intermediate_size=16))


def another(option):
    """A good value that is not the default."""
    if isinstance(option.kind, tuple):
        return next(value for value in option.kind if value != option.default)
    return 128 if option.type is int else 0.25


def test_the_list_is_the_dataclass():
    assert [o.name for o in OPTIONS] == [f.name for f in dataclasses.fields(BertConfig)]
    for option in OPTIONS:
        assert not option.fault(another(option))
        assert option.default is None or not option.fault(option.default)
        assert option.fault('no such value') and option.fault(None)


@pytest.mark.parametrize('form', ['huggingface', 'tf1', 'bert_jax'])
@pytest.mark.parametrize('option', OPTIONS, ids=lambda option: option.name)
def test_a_field_comes_back_from_every_format(option, form):
    model = MODEL | {option.name: another(option)}
    if option.said(form) is None:  # see the next test
        return
    said, notes = write_model(model, form, 'a model')
    assert read_model(json.loads(json.dumps(said)), form, Path('config.json')) == model
    assert any(option.name in note for note in notes) == bool(
        form == 'tf1' and option.tf1 and option.tf1.ours)


@pytest.mark.parametrize('form', ['huggingface', 'tf1'])
def test_what_a_format_cannot_say_is_refused_by_name(form):
    plain, _ = write_model(MODEL, form, 'runs/a')
    assert 'causal' not in plain
    with pytest.raises(InputError, match="^runs/a has causal=True, which .*config.json cannot say"):
        write_model(MODEL | {'causal': True}, form, 'runs/a')
    said, notes = write_model(MODEL | {'causal': True}, 'bert_jax', 'runs/a')
    assert said['causal'] is True and notes == []
    assert read_model(said, 'bert_jax', Path('config.json'))['causal'] is True
    assert read_model(plain, form, Path('config.json'))['causal'] is False  # as older files are


def test_every_field_comes_back_from_a_run_directory(tmp_path):
    weights = load_weights(RECORDED / 'base')
    free = {o.name: another(o) for o in OPTIONS if o.role != 'shape'}
    changed = dataclasses.replace(weights, model=weights.model | free)
    assert write_run(tmp_path / 'run', changed) == []
    assert load_weights(tmp_path / 'run').model == changed.model
    assert read_description(tmp_path / 'run').model == changed.model


def test_a_field_of_a_newer_version_is_refused_by_name(tmp_path):
    write_run(tmp_path / 'run', load_weights(RECORDED / 'base'))
    config_file = tmp_path / 'run' / 'config.json'
    said = check_digest(json.loads(config_file.read_text()), config_file)
    said['model'] |= {name: choices[-1] for name, choices in COMPUTATION.items()}
    config_file.write_text(json.dumps(said))
    load_weights(tmp_path / 'run')
    said['model']['quantum'] = 'maybe'
    config_file.write_text(json.dumps(said))
    for read in (load_weights, read_description):
        with pytest.raises(InputError, match="config.json: model.quantum='maybe' is unknown"):
            read(tmp_path / 'run')


@pytest.mark.parametrize('option', OPTIONS, ids=lambda option: option.name)
def test_a_field_can_be_set_and_is_checked(option):
    given = default_config()
    given.train.steps = 10
    given.model.num_heads = 1
    given.model[option.name] = another(option)
    validate(given)
    assert model_fields(complete(given), 40)[option.name] == another(option)
    if option.type is not bool:  # of which any will do
        given.model[option.name] = option.type(-1)
        with pytest.raises(InputError, match=f'config.model.{option.name}='):
            validate(given)


def test_a_checkpoint_decides_what_is_left_empty():
    weights = load_weights(RECORDED / 'base')
    free = {o.name: another(o) for o in OPTIONS if o.role != 'shape'}
    published = dataclasses.replace(weights, model=weights.model | free)
    given = default_config()
    given.model.name = ''
    found = complete(given, published).model
    for option in OPTIONS:
        if option.name != 'vocab_size':
            expected = published.model if option.role != 'trains' else default_config().model
            assert found[option.name] == expected[option.name], option.name


@pytest.mark.parametrize('option', OPTIONS, ids=lambda option: option.name)
def test_a_warm_start_says_what_the_same_parameters_compute(option):
    weights = load_weights(RECORDED / 'base')
    shapes = {name: x.shape for name, x in weights.params.items()}
    there = weights.model[option.name]
    others = [another(option), option.default]
    ours = next(value for value in others if value not in (None, there))
    notes = place(weights, shapes, model=weights.model | {option.name: ours}).notes
    expected = (f'{option.name} is {there} there and {ours} here',)
    assert notes == (expected if option.role == 'computes' else ())


@pytest.mark.parametrize('option', OPTIONS, ids=lambda option: option.name)
def test_a_run_that_is_older_than_a_field_has_its_default(option, tmp_path):
    """Of a newer run it would be another model, and the run does not go on with it."""
    (tmp_path / 'checkpoints' / '5').mkdir(parents=True)
    older = {name: x for name, x in MODEL.items() if name != option.name}
    resolved = {'task': 'pretrain', 'model': MODEL | {option.name: option.default}}
    describe_run(tmp_path, resolved | {'model': older}, None)
    check_run_directory(tmp_path, resolved, None, comparable=False)
    with pytest.raises(InputError, match=f'holds a run with model.{option.name}='):
        newer = resolved | {'model': MODEL | {option.name: another(option)}}
        check_run_directory(tmp_path, newer, None, comparable=False)
