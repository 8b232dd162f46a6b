"""Every config file resolves to its golden form, and is what its name and docstring say.

tests/golden/defaults.txt has the defaults of all fields, <config>.txt what a config makes of them.
UPDATE_GOLDEN=1 writes them anew.
"""

import functools

import pytest

from bert_jax.completion import complete
from bert_jax.config.fields import flat_fields
from bert_jax.config.phases import phases
from bert_jax.runtime.errors import InputError
from bert_jax.tasks.pretrain import too_few_slots
from bert_jax.tools.preflight.measure import without_data
from bert_jax.train import describing
from bert_jax.train.program import schedule_segments
from bert_jax.validation import validate
from tests.configs import changed, load
from tests.conftest import ROOT, check_golden
from tests.opening import open_task

# Config files, and arguments that they take, after a colon.
NAMES = [
    *(path.stem for path in sorted((ROOT / 'configs').glob('*.py'))),
    'large_pretrain:lamb',
    'modern_pretrain:large',
    'modern_pretrain:tiny',
    'modern_pretrain:mini',
    'modern_pretrain:eurobert',
    'modern_pretrain:eurobert-tiny',
    'dna_pretrain:letters',
    'glue:stsb',
    'retrieval:stsb',
    'retrieval:tiny',
    'reranking:tiny',
    'squad:v2',
    'conll:documents',
    'conll:features',
    'ablations:ltr,tiny',
    'efficient_pretrain:muon,tiny',
    'electra_pretrain:base',
    'electra_pretrain:tiny',
]
PRETRAINING_NAMES = [
    *(name for name in NAMES if 'pretrain' in name),
    'quickstart',
    'tiny_wikipedia',
    'ablations',
    'efficient_pretrain:masking',
    'efficient_pretrain:masking,tiny',
    'efficient_pretrain:falling',
    'efficient_pretrain:falling,tiny',
    'efficient_pretrain:lengths',
    'efficient_pretrain:lengths,tiny',
    'efficient_pretrain:all',
    'efficient_pretrain:all,tiny',
]
EFFICIENT_RECIPES = [
    'none', 'masking', 'dropout', 'rate', 'muon', 'lengths', 'ramp', 'clipping', 'no_nsp',
    'causal', 'all', 'five', 'five-muon', 'muon+rate/4', 'five/4@1e-3',
]
all_scales = pytest.mark.parametrize('scale', ['', ',tiny', ',between', ',mini'])


def load_with_size(name):
    """The config of a name; BERT-Base where the size is that of a checkpoint, which is not read."""
    config = load(name)
    if not config.model.name:
        config.model.name = 'base'
    return config


def lines_of(config, parts):
    resolved = flat_fields(describing.resolve(config, parts, config.data.vocab_size))
    return sorted(f'{name} = {value!r}' for name, value in resolved.items())


@functools.cache
def default_lines():
    return lines_of(complete(changed({'train.steps': 1})), [])


@pytest.mark.parametrize('name', NAMES)
def test_a_config_file_is_valid_and_resolves_to_its_golden_form(name):
    config = load_with_size(name)
    validate(config)
    config = complete(config)
    validate(config, num_devices=8)
    parts = phases(config, num_examples=100_000)
    lines = sorted(set(lines_of(config, parts)) - set(default_lines()))
    lines += [repr(segment) for segment in schedule_segments(config, parts)]
    check_golden(f"{name.replace(':', '_')}.txt", lines)


@pytest.mark.parametrize('name', [name for name in NAMES if not load(name).model.name])
def test_a_config_without_a_size_needs_a_checkpoint(name):
    config = load(name)
    config.init_checkpoint = ''
    with pytest.raises(InputError, match='init_checkpoint'):
        validate(config)


@pytest.mark.parametrize('name', NAMES)
def test_a_debug_run_of_a_config_has_three_steps_or_one_for_each_phase(name):
    config = load_with_size(name)
    config.debug = True
    parts = phases(complete(config), num_examples=100)
    assert sum(part['steps'] for part in parts) == max(3, len(config.phases))


def test_defaults_are_golden():
    """A new field changes only this file: those of configs hold only what they change."""
    check_golden('defaults.txt', default_lines())


@pytest.mark.parametrize(('name', 'expected'), [
    ('base', {}),
    ('no_nsp', {'data.next_sentence': False}),
    ('ltr', {'data.next_sentence': False, 'model.causal': True}),
    ('3/768/12', {'model.num_layers': 3, 'model.hidden_size': 768, 'model.num_heads': 12}),
    ('4/256/4', {'model.num_layers': 4, 'model.hidden_size': 256, 'model.num_heads': 4}),
    ('80/10/10', {}),
    ('80/0/20', {'data.random_rate': 0.2}),
    ('0/20/80', {'data.mask_rate': 0.0, 'data.random_rate': 0.8}),
    ('spans', {'data.masking': 'spans'}),
    ('ngrams', {'data.masking': 'ngrams'}),
])
@pytest.mark.parametrize('scale', ['', ',tiny'])
def test_an_ablation_is_base_but_for_one_thing(name, expected, scale):
    config = load(f'ablations:{name}{scale}')
    if scale and 'model.hidden_size' in expected:  # initializer_range follows the width
        width = expected['model.hidden_size']
        initializer_range = pytest.approx(0.02 * (768 / width) ** 0.5, rel=0.03)
        expected = {**expected, 'model.initializer_range': initializer_range}
    assert differences(f'ablations:base{scale}', f'ablations:{name}{scale}') == expected
    validate(config)


def differences(name, other):
    """The fields of another config that are not as in the first, with their values."""
    fields = flat_fields(load(name))
    return {path: value for path, value in flat_fields(load(other)).items()
            if value != fields[path]}


def flops(name):
    """FLOPs of the pre-training of a config."""
    config = load(name)
    validate(config)
    return open_task(without_data(config)).run_flops()


@all_scales
@pytest.mark.parametrize('recipe', EFFICIENT_RECIPES)
def test_an_efficient_recipe_has_a_share_of_the_flops(recipe, scale):
    whole = flops(f'efficient_pretrain:paper{scale}')
    share = 4 if '/4' in recipe else 2
    found = flops(f'efficient_pretrain:{recipe}{scale}')
    assert found == pytest.approx(whole / share, rel=0.02)


@all_scales
def test_the_papers_recipe_has_all_flops(scale):
    whole = flops(f'efficient_pretrain:paper{scale}')
    assert flops(f'efficient_pretrain:none/1{scale}') == whole


def test_the_papers_recipe_is_the_ablations_base():
    assert flops('efficient_pretrain:paper') == flops('ablations:base')


@all_scales
def test_a_recipe_without_an_ingredient_differs_in_that(scale):
    five = f'efficient_pretrain:five@1e-3{scale}'
    four = f'efficient_pretrain:five-dropout@1e-3{scale}'
    assert differences(five, four).keys() == {'model.hidden_dropout', 'model.attention_dropout'}
    assert load(five).optimizer.learning_rate == load(four).optimizer.learning_rate == 1e-3


@pytest.mark.parametrize(('length', 'slots', 'rate'), [
    (128, 20, 0.15), (512, 76, 0.15), (64, 10, 0.15),
])
def test_enough_slots_are_not_mentioned(length, slots, rate):
    assert not too_few_slots(length, slots, rate)


@pytest.mark.parametrize(('length', 'slots', 'rate', 'words'), [
    (128, 20, 0.4, ['=20 masks 15.6%', 'not 40.0%', '52 slots']),
    (512, 20, 0.15, ['=20 masks 3.9%', 'full row of 512', 'not 15.0%', '77 slots']),
])
def test_too_few_slots_are_said_with_the_rate_that_results(length, slots, rate, words):
    line = too_few_slots(length, slots, rate)
    assert all(word in line for word in words)


@pytest.mark.parametrize('name', PRETRAINING_NAMES)
def test_every_config_masks_what_it_asks_for(name):
    config = load(name)
    for phase in phases(config, num_examples=1000):
        rate = phase.get('masked_lm_prob', config.data.masked_lm_prob)
        assert not too_few_slots(phase['max_seq_length'], phase['max_predictions_per_seq'], rate)
