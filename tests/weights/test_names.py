"""Names of parameters and of model fields, in every format and both directions."""

import dataclasses
import json
import math
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import linen as nn

from bert_jax.completion import complete
from bert_jax.config import default_config, model_fields
from bert_jax.config.bert_config import COMPUTATION, OPTIONS, BertConfig
from bert_jax.foreign import load_weights
from bert_jax.foreign.families import family_to_write
from bert_jax.foreign.families.bert import BERT
from bert_jax.foreign.tf1 import config_to_write
from bert_jax.heads import part_of
from bert_jax.heads.pretraining import Pretraining
from bert_jax.heads.replaced_tokens import DISCRIMINATOR, ReplacedTokens
from bert_jax.heads.tensors import Tensor
from bert_jax.model.layers import ModelConfig
from bert_jax.run.description import describe_run
from bert_jax.run.model import read_description, write_run
from bert_jax.run.resume_checks import check_resumable
from bert_jax.runtime.checksum import check_digest
from bert_jax.runtime.errors import InputError
from bert_jax.weights import parameters
from bert_jax.weights.parameters import sizes_of, tensors, to_tree
from bert_jax.weights.warm_start import place
from tests.foreign.run_model import RECORDED, assert_same_params
from tests.refusals import refused

# No two sizes are the same, so that a swap of dims shows.
MODEL = {'num_layers': 11, 'num_heads': 3, 'hidden_size': 12, 'intermediate_size': 5,
         'vocab_size': 130, 'max_position_embeddings': 7, 'type_vocab_size': 2}


@pytest.fixture(scope='module')
def params():
    """Every parameter of the table; no two of all their numbers are equal."""
    made = {}
    first = 0
    for tensor in tensors(MODEL):
        shape = tensor.shape(sizes_of(MODEL, num_labels=6))
        made[tensor.name] = first + np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
        first += made[tensor.name].size
    return made


def in_bert(tensor):
    """The form in files of transformers' BERT, of whatever class."""
    return BERT.forms_in_any(BERT.architectures[0])(tensor)


@pytest.mark.parametrize('form_of', [Tensor.in_tf1, in_bert])
def test_every_array_comes_back_from_files(params, form_of):
    sizes = sizes_of(MODEL, num_labels=6)
    held = [tensor for tensor in tensors(MODEL) if form_of(tensor) is not None]
    lacking = {part_of(tensor.name) for tensor in tensors(MODEL)} - {
        part_of(tensor.name) for tensor in held}
    assert lacking <= {DISCRIMINATOR}
    params = {tensor.name: params[tensor.name] for tensor in held}
    files = parameters.from_params(form_of, params, MODEL)
    assert all(x.flags.c_contiguous for x in files.values())
    num_files = 0
    back = {}
    for tensor in held:
        form = form_of(tensor)
        arrays = [files[name] for name in form.names]
        assert {x.shape for x in arrays} == {tensor.shape_in(form, sizes)}
        num_files += len(arrays)
        back[tensor.name] = tensor.from_files(form, arrays, sizes)
    assert len(files) == num_files
    assert_same_params(params, back)


def test_the_tree_is_the_one_of_the_model(params):
    config = ModelConfig(**MODEL)
    tree = to_tree(params, config.padded_vocab_size)
    for padded in (tree['bert']['embeddings']['word_embeddings'],
                   tree['cls']['predictions']['output_bias']):
        assert len(padded) == 256 and not padded[130:].any()
    assert_same_params(params, parameters.from_tree(tree, 130))
    del tree['classifier'], tree['cls']['squad']
    discriminator = tree.pop('discriminator_predictions')
    assert jax.tree.map(np.shape, tree) == shapes_of(Pretraining(config))
    of_head = shapes_of(ReplacedTokens(config))
    assert jax.tree.map(np.shape, discriminator) == of_head['discriminator_predictions']


def shapes_of(head):
    """The shape of each parameter of a head, as a tree."""
    made = nn.meta.unbox(jax.eval_shape(head.init, jax.random.key(0)))
    return jax.tree.map(lambda x: x.shape, made)


SIZES = vars(BertConfig(
    vocab_size=40, num_layers=2, hidden_size=128, num_heads=2, intermediate_size=16))


def another(option):
    """A valid value other than the default."""
    if isinstance(option.allowed, tuple):
        return next(value for value in option.allowed if value != option.default)
    if option.name == 'first_position':
        return 1  # there are few positions in the models here
    return 128 if option.type is int else 0.25


SPELLINGS = {
    'huggingface': BERT.spellings,
    'tf1': {option.name: option.tf1 for option in OPTIONS if option.tf1 is not None},
    'bert_jax': parameters.IN_RUN,
}


@pytest.mark.parametrize('format, name', [
    (format, name) for format, spellings in SPELLINGS.items() for name in spellings])
def test_a_field_comes_back_from_every_format(format, name):
    option = next(option for option in OPTIONS if option.name == name)
    model = SIZES | {name: another(option)}
    said = parameters.spelled(model, SPELLINGS[format])
    back = parameters.read_model(
        json.loads(json.dumps(said)), SPELLINGS[format], Path('config.json'))
    assert back == model


@pytest.mark.parametrize('name', [option.name for option in OPTIONS if option.tf1])
def test_the_original_has_some_fields_fixed(name):
    """They are written under keys of this project, with a note."""
    option = next(option for option in OPTIONS if option.name == name)
    weights = load_weights(RECORDED / 'base')
    for value in (option.default, another(option)):
        changed = dataclasses.replace(weights, model=SIZES | {name: value})
        _, notes = config_to_write(changed)
        is_noted = any(name in note for note in notes)
        assert is_noted == (option.tf1.ours and value != option.default)


@pytest.mark.parametrize('write', [config_to_write, family_to_write])
def test_what_a_format_cannot_say_is_refused_by_name(write):
    weights = dataclasses.replace(load_weights(RECORDED / 'base'), source='runs/a')
    write(weights)
    causal = dataclasses.replace(weights, model=weights.model | {'causal': True})
    with refused('causal=True', 'config.json', match='^runs/a has '):
        write(causal)


def of_another_model():
    """Weights with other values in all fields that do not shape the parameters.

    But for `rotary_factor`: there is a table of positions.
    """
    weights = load_weights(RECORDED / 'base')
    free = {option.name: another(option) for option in OPTIONS
            if option.effect != 'shape' and option.name != 'rotary_factor'}
    return dataclasses.replace(weights, model=weights.model | free)


def test_every_field_comes_back_from_a_run_directory(tmp_path):
    changed = of_another_model()
    assert write_run(tmp_path / 'run', changed) == []
    config_file = tmp_path / 'run' / 'config.json'  # fields of `COMPUTATION` are not read
    said = check_digest(json.loads(config_file.read_text()), config_file)
    said['model'] |= {name: choices[-1] for name, choices in COMPUTATION.items()}
    config_file.write_text(json.dumps(said))
    assert load_weights(tmp_path / 'run').model == changed.model
    assert read_description(tmp_path / 'run').model == changed.model


def test_a_head_that_only_a_file_of_the_run_defines_is_no_mistake(tmp_path):
    write_run(tmp_path, load_weights(RECORDED / 'base'))
    file = tmp_path / 'config.json'
    config = json.loads(file.read_text()) | {'head': 'of_my_own'}
    config.pop('digest', None)
    file.write_text(json.dumps(config | {'config_file': {'name': 'mine.py', 'digest': '0' * 32}}))
    assert load_weights(tmp_path).head == ''
    assert load_weights(tmp_path, own_head=True).head == 'of_my_own'
    file.write_text(json.dumps(config))
    with refused("head='of_my_own' is unknown"):
        load_weights(tmp_path)


@pytest.mark.parametrize('lowercase', [True, False])
def test_whether_text_is_lowercased_comes_back_from_a_run_directory(lowercase, tmp_path):
    weights = dataclasses.replace(load_weights(RECORDED / 'base'), lowercase=lowercase)
    write_run(tmp_path / 'run', weights)
    assert load_weights(tmp_path / 'run').lowercase is lowercase


@pytest.mark.parametrize('option', OPTIONS, ids=lambda option: option.name)
def test_a_field_can_be_set(option):
    given = default_config()
    given.model[option.name] = another(option)
    assert model_fields(complete(given), 40)[option.name] == another(option)


def test_a_checkpoint_decides_what_is_left_empty():
    given, published = default_config(), of_another_model()
    given.model.name = ''
    found = complete(given, published).model
    for option in OPTIONS:
        if option.name != 'vocab_size':
            expected = published.model if option.effect != 'trains' else default_config().model
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
    assert notes == (expected if option.effect == 'computes' else ())


@pytest.mark.parametrize('option', OPTIONS, ids=lambda option: option.name)
def test_a_run_that_is_older_than_a_field_has_its_default(option, tmp_path):
    """Any other value would be another model: the run is not resumed with it."""
    (tmp_path / 'checkpoints' / '5').mkdir(parents=True)
    older = {name: x for name, x in SIZES.items() if name != option.name}
    resolved = {'task': 'pretrain', 'model': SIZES | {option.name: option.default}}
    describe_run(tmp_path, resolved | {'model': older}, None)
    check_resumable(tmp_path, resolved, None, comparable=False)
    with pytest.raises(InputError, match=f'holds a run with model.{option.name}='):
        newer = resolved | {'model': SIZES | {option.name: another(option)}}
        check_resumable(tmp_path, newer, None, comparable=False)
