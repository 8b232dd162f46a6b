"""Every config file resolves to its golden form; values that cannot work are refused in one line.

tests/golden/defaults.txt has the defaults of all fields, <config>.txt what a config makes of them.
UPDATE_GOLDEN=1 writes them anew.
"""

import functools
import math

import jax
import numpy as np
import pytest
from flax import linen as nn

from bert_jax.config import default_config, model_sizes
from bert_jax.config.bert_config import Range
from bert_jax.config.command_line import config_file, load_config, parse_command
from bert_jax.config.durations import parse_duration, parse_trace
from bert_jax.config.fields import FIELDS, SECTIONS, flat_fields
from bert_jax.config.phases import phases, prediction_slots
from bert_jax.data.masking import num_to_predict
from bert_jax.heads.pretraining import Pretraining
from bert_jax.model.layers import ModelConfig
from bert_jax.runtime.errors import InputError
from bert_jax.tasks.pretrain import run_flops, too_few_slots
from bert_jax.tools.preflight.measure import without_data
from bert_jax.train import experiment
from bert_jax.train.program import schedule_segments
from bert_jax.validation import check_vocabulary, complete, validate
from tests.conftest import ROOT, check_golden
from tests.refusals import refused

# Config files, and arguments that they take, after a colon.
NAMES = [
    *(path.stem for path in sorted((ROOT / 'configs').glob('*.py'))), 'large_pretrain:lamb',
    'glue:stsb', 'squad:v2', 'conll:documents', 'conll:features', 'ablations:ltr,tiny',
    'efficient_pretrain:muon,tiny',
]


def load(name):
    """The config of `configs/<stem>.py:<argument>`."""
    return load_config(config_file(name))


def changed(values):
    """The default config, with 1,000 steps, with fields changed."""
    config = default_config()
    config.train.steps = 1000
    config.update_from_flattened_dict(values)
    return config


@pytest.mark.parametrize('name', NAMES)
def test_every_config_file_is_valid_and_resolves_to_its_golden_form(name):
    config = load(name)
    if not config.model.name:  # the model is that of a checkpoint
        published, config.init_checkpoint = config.init_checkpoint, ''
        with pytest.raises(InputError, match='init_checkpoint'):
            validate(config)
        config.model.name, config.init_checkpoint = 'base', published
    validate(config)
    config.debug = True
    debug = phases(complete(config), num_examples=100)
    assert sum(part['steps'] for part in debug) == max(3, len(config.phases))
    config.debug = False
    config = complete(config)
    validate(config, num_devices=8)
    parts = phases(config, num_examples=100_000)
    lines = sorted(set(lines_of(config, parts)) - set(default_lines()))
    lines += [repr(segment) for segment in schedule_segments(config, parts)]
    check_golden(f"{name.replace(':', '_')}.txt", lines)


def lines_of(config, parts):
    resolved = flat_fields(experiment.resolve(config, parts, config.data.vocab_size))
    return sorted(f'{name} = {value!r}' for name, value in resolved.items())


@functools.cache
def default_lines():
    return lines_of(complete(changed({'train.steps': 1})), [])


def test_defaults_are_golden():
    """A new field changes only this file: those of configs hold only what they change."""
    check_golden('defaults.txt', default_lines())


@pytest.mark.parametrize(('name', 'expected'), [
    ('base', {}), ('no_nsp', {'data.next_sentence': False}),
    ('ltr', {'data.next_sentence': False, 'model.causal': True}),
    ('3/768/12', {'model.num_layers': 3, 'model.hidden_size': 768, 'model.num_heads': 12}),
    ('4/256/4', {'model.num_layers': 4, 'model.hidden_size': 256, 'model.num_heads': 4}),
    ('80/10/10', {}), ('80/0/20', {'data.random_rate': 0.2}),
    ('0/20/80', {'data.mask_rate': 0.0, 'data.random_rate': 0.8}),
    ('spans', {'data.masking': 'spans'}), ('ngrams', {'data.masking': 'ngrams'}),
])
@pytest.mark.parametrize('scale', ['', ',tiny'])
def test_an_ablation_is_base_but_for_one_thing(name, expected, scale):
    config = load(f'ablations:{name}{scale}')
    base = flat_fields(load(f'ablations:base{scale}'))
    different = {path: x for path, x in flat_fields(config).items() if x != base[path]}
    if scale and 'model.hidden_size' in expected:  # initializer_range follows the width
        width = expected['model.hidden_size']
        expected = expected | {
            'model.initializer_range': pytest.approx(0.02 * (768 / width) ** 0.5, rel=0.03)}
    assert different == expected
    validate(config)


@pytest.mark.parametrize('scale', ['', ',tiny', ',between', ',mini'])
def test_an_efficient_recipe_has_half_the_flops(scale):
    def flops(name):
        config = load(name + scale)
        validate(config)
        return run_flops(without_data(config))

    whole = flops('efficient_pretrain:paper')
    assert scale or whole == flops('ablations:base')
    for name in ('none', 'masking', 'dropout', 'rate', 'muon', 'lengths', 'ramp', 'clipping',
                 'no_nsp', 'causal', 'all', 'five', 'five-muon', 'muon+rate/4', 'five/4@1e-3'):
        share = 4 if '/4' in name else 2
        assert flops(f'efficient_pretrain:{name}') == pytest.approx(whole / share, rel=0.01), name
    assert flops('efficient_pretrain:none/1') == whole
    five, four = (flat_fields(load(f'efficient_pretrain:{name}@1e-3{scale}'))
                  for name in ('five', 'five-dropout'))
    assert {name for name in five if five[name] != four[name]} == {
        'model.hidden_dropout', 'model.attention_dropout'}
    assert five['optimizer.learning_rate'] == four['optimizer.learning_rate'] == 1e-3


@pytest.mark.parametrize(
    'path', [path for path, field in FIELDS.items() if isinstance(field.allowed, Range)])
def test_a_field_takes_its_default_and_nothing_out_of_its_range(path):
    section, allowed = path.partition('.')[0], FIELDS[path].allowed
    config = default_config(
        {'squad': 'squad_v1'}.get(section, section) if section in SECTIONS else 'pretrain')
    config.train.steps = 1000
    validated = complete(config)
    validate(validated)
    kind = int if allowed.whole else float
    wrong = [allowed.least - 1, allowed.most * 2 + 1]
    wrong += [] if allowed.whole else [math.nan, math.inf, -math.inf]
    wrong += allowed.without
    for value in map(kind, wrong):
        with validated.unlocked():
            validated.update_from_flattened_dict({path: value})
        with pytest.raises(InputError, match=f'config.{path}={value!r} must be '):
            validate(validated)


@pytest.mark.parametrize('values, message', [  # with eight devices
    ({'model.name': 'larg'}, "config.model.name='larg' is unknown: did you mean 'large'?"),
    ({'train.loggers': 'wandb,tensorbord'}, "'tensorbord' is unknown: did you mean 'tensorboard'?"),
    ({'optimizer.name': 'lion', 'optimizer.b1': 0.5}, 'config.optimizer.b1=0.5 has no effect'),
    ({'model.type_vocab_size': 1}, 'config.model.type_vocab_size=1 has no segment type'),
    ({'model.num_heads': 5}, 'config.model.num_heads=5 does not divide config.model.hidden_size'),
    ({'data.max_seq_length': 1024}, 'config.data.max_seq_length=1024 is longer than the position'),
    ({'phases': ({'steps': 5}, {'steps': 5, 'max_seq_length': 513})}, 'config.phases[1].max_seq_'),
    ({'data.max_predictions_per_seq': 127}, 'from 1 to max_seq_length - 2 = 126'),
    ({'data.mask_rate': 0.95}, 'config.data.mask_rate=0.95 and config.data.random_rate=0.1 add up'),
    ({'train.batch_size': 100}, 'config.train.batch_size=100 cannot be split over data x fsdp = 8'),
    ({'train.accumulation_steps': 3}, 'config.train.accumulation_steps=3 does not divide'),
    ({'train.accumulation_steps': 64}, 'in 64 parts: the nearest above is 512'),
    ({'train.packed_rows': 264}, 'config.train.packed_rows=264 are more than the sequences'),
    ({'train.packed_rows': 16, 'train.accumulation_steps': 32}, 'divide config.train.packed_rows'),
    ({'mesh.data': 3}, 'config.mesh data=3 x fsdp=-1 x tensor=1 does not fit 8 devices'),
    ({'mesh.tensor': 8}, 'config.mesh.tensor=8 does not divide config.model.num_heads=12'),
    ({'train.steps': 0}, 'config.train.steps is not set'),
    ({'phases': ({}, {}), 'train.steps': 10}, 'config.phases[0].steps is not set'),
    ({'phases': ({'steps': 5}, {'steps': 5}), 'train.steps': 1}, 'config.train.steps=1 is less'),
    ({'phases': ({'steps': 5, 'warmup': 2},)}, 'config.phases[0].warmup is used only where'),
    ({'phases': ({'steps': 5, 'learning_rate': 1.0, 'warmup': '2 feet'},)}, 'is not a duration'),
    ({'train.skip_steps': (3, 3)}, 'config.train.skip_steps=(3, 3) must be a tuple of different'),
    ({'optimizer.warmup': '1 epoch'}, 'config.optimizer.warmup'),
    ({'optimizer.decay_from': 'end'}, "config.optimizer.decay_from='end' is not a duration"),
    ({'phases': ({'steps': 5, 'masked_lm_prob': 2},)}, 'config.phases[0].masked_lm_prob=2 '),
    ({'phases': ({'steps': 5, 'causal': 'yes'},)}, 'phases[0].causal'),
], ids=str)
def test_a_value_that_cannot_work_is_refused_in_one_line_with_its_field(values, message):
    with refused(message):
        validate(changed(values), num_devices=8)


def test_the_vocabulary_must_split_over_the_tensor_axis():
    with pytest.raises(InputError, match='config.mesh.tensor=3 does not divide the 30,592 rows'):
        check_vocabulary(30522, 3)


@pytest.mark.parametrize('value, steps', [
    (1000, 1000), ('1_000', 1000), ('1e6', 1_000_000), ('1 step', 1), (0, 0), ('28.43%', 569),
    ('0.01%', 0), (' 10 % ', 200), ('3 epochs', 94), ('0.5 epochs', 16), ('0.001 epochs', 1),
    ('1 epoch', 31), ('64 examples', 2), ('65 examples', 3),
])
def test_durations(value, steps):
    assert parse_duration(value, 'x', batch_size=32, num_examples=1000, total=2000) == steps


def test_ranges_of_steps():
    assert parse_trace('', 'x') is None
    assert parse_trace('7..7', 'x', 7) == ((7, 7), (0,))
    assert parse_trace('100..110@0,12', 'x', 105) == ((100, 110), (0, 12))
    with pytest.raises(InputError, match="config.x='8..9': the run has 7 steps"):
        parse_trace('8..9', 'x', 7)


@pytest.mark.parametrize('value, known', [
    *((value, {}) for value in (
        'soon', '', '-5', -5, 1.5, '1.5 steps', True, None, 'epochs', '1 000', '3 parsecs')),
    ('10%', {'total': None}), ('3 epochs', {'num_examples': None}),
])
def test_what_is_no_duration_here_is_refused_with_its_field(value, known):
    with pytest.raises(InputError, match=r'config\.train\.steps='):
        parse_duration(value, 'train.steps', **{
            'batch_size': 32, 'num_examples': 1000, 'total': 2000, **known})


@pytest.mark.parametrize('given, total, counts', [
    ((), 7, [7]),
    (({'steps': 900_000}, {'steps': 100_000}), 0, [900_000, 100_000]),
    (({'steps': 900_000}, {'steps': 100_000}), 100, [90, 10]),
    (({'steps': 900_000}, {'steps': 100_000}), 4, [3, 1]),  # every phase keeps a step
    (({'steps': 1}, {'steps': 1}, {'steps': 98}), 5, [1, 1, 3]),
    (({'steps': '90%'}, {'steps': '10%'}), 1000, [900, 100]),
    (({'steps': 10}, {}), 30, [10, 20]),  # the rest
    (({'steps': '2 epochs', 'batch_size': 100}, {'steps': 5}), 0, [20, 5]),
])
def test_phases_add_up_to_the_steps_of_the_run(given, total, counts):
    config = changed({'phases': given, 'train.steps': total})
    found = phases(config, num_examples=1000)
    assert [phase['steps'] for phase in found] == counts


def test_a_phase_takes_what_it_leaves_out_from_train_and_data():
    config = changed({
        'train.batch_size': 64, 'data.max_seq_length': 96, 'data.max_predictions_per_seq': 14,
        'train.steps': 0, 'phases': ({'steps': 5}, {'steps': 20, 'max_seq_length': 200,
                                                    'learning_rate': 0.5, 'warmup': '10%'}),
    })
    one, two = phases(config)
    assert one == {'steps': 5, 'batch_size': 64, 'max_seq_length': 96, 'packed_rows': 0,
                   'max_predictions_per_seq': 14, 'learning_rate': None, 'warmup': None}
    assert two == one | {'steps': 20, 'max_seq_length': 200, 'learning_rate': 0.5, 'warmup': 2}


@pytest.mark.parametrize('length, rate, slots', [
    (128, 0.15, 20), (512, 0.15, 77), (32, 0.15, 5), (20, 0.15, 3), (128, 0.4, 52), (128, 0.0, 1),
    (16, 1.0, 14)])
def test_slots_follow_from_length_and_rate(length, rate, slots):
    assert prediction_slots(length, rate) == slots
    lengths = np.arange(4, length + 1)
    assert (num_to_predict(lengths, rate, length - 2) <= slots).all()  # they are never too few
    config = changed({'data.max_seq_length': 64, 'data.masked_lm_prob': 0.4, 'phases': (
        {'steps': 5}, {'steps': 5, 'max_seq_length': length, 'masked_lm_prob': rate},
        {'steps': 5, 'max_predictions_per_seq': 7})})
    assert [phase['max_predictions_per_seq'] for phase in phases(config)] == [26, slots, 7]


@pytest.mark.parametrize('length, slots, rate, words', [
    (128, 20, 0.15, []), (512, 76, 0.15, []), (64, 10, 0.15, []),
    (128, 20, 0.4, ['=20 masks 15.6%', 'not 40.0%', '52 slots']),
    (512, 20, 0.15, ['=20 masks 3.9%', 'full row of 512', 'not 15.0%', '77 slots']),
])
def test_too_few_slots_are_said_with_the_rate_that_results(length, slots, rate, words):
    line = too_few_slots(length, slots, rate)
    assert bool(line) == bool(words) and all(word in line for word in words)


@pytest.mark.parametrize('name', [
    *(name for name in NAMES if 'pretrain' in name), 'quickstart', 'tiny_wikipedia', 'ablations',
    *(f'efficient_pretrain:{name}{scale}' for name in ('masking', 'falling', 'lengths', 'all')
      for scale in ('', ',tiny'))])
def test_every_config_masks_what_it_asks_for(name):
    config = load(name)
    for phase in phases(config, num_examples=1000):
        rate = phase.get('masked_lm_prob', config.data.masked_lm_prob)
        assert not too_few_slots(phase['max_seq_length'], phase['max_predictions_per_seq'], rate)


@pytest.mark.parametrize('parts, segments', [
    (({'steps': 90}, {'steps': 10}), [(0, 100, 1.0, 20)]),  # one schedule spans the phases
    (({'steps': 90, 'learning_rate': 2.0}, {'steps': 10, 'learning_rate': 3.0, 'warmup': 4}),
     [(0, 90, 2.0, 18), (90, 10, 3.0, 4)]),
    (({'steps': 50}, {'steps': 40, 'learning_rate': 2.0}, {'steps': 10}),
     [(0, 50, 1.0, 10), (50, 50, 2.0, 8)]),  # its own schedule starts with a phase and goes on
])
def test_schedule_segments_follow_the_phases(parts, segments):
    config = changed({'phases': parts, 'train.steps': 0, 'optimizer.learning_rate': 1.0,
                      'optimizer.warmup': '20%'})
    found = schedule_segments(config, phases(config))
    assert [(s.start, s.steps, s.learning_rate, s.warmup) for s in found] == segments
    config.optimizer.decay_from = '75%'
    found = schedule_segments(config, phases(config))
    assert [s.decay_from for s in found] == [round(0.75 * steps) for _, steps, *_ in segments]


@pytest.mark.parametrize('values, sizes', [
    ({'name': 'base'}, (12, 768, 12, 3072)), ({'name': 'BERT-Large'}, (24, 1024, 16, 4096)),
    ({'name': 'uncased_L-4_H-512_A-8'}, (4, 512, 8, 2048)),
    ({'name': 'L-6_H-768_A-3'}, (6, 768, 3, 3072)),  # of the paper's Table 6
    ({'name': 'tiny', 'hidden_size': 64, 'num_layers': 5}, (5, 64, 2, 256)),
])
def test_models_by_name_whose_sizes_may_be_overridden(values, sizes):
    found = model_sizes(changed({f'model.{name}': value for name, value in values.items()}))
    assert tuple(found.values()) == sizes


@pytest.mark.parametrize('name, count', [  # with both heads, as google-research/bert counts
    ('tiny', 4_433_468), ('base', 110_106_428), ('large', 336_226_108),
])
def test_number_of_parameters(name, count):
    sizes = model_sizes(changed({'model.name': name}))
    config = ModelConfig(vocab_size=30522, **sizes)
    shapes = nn.meta.unbox(jax.eval_shape(Pretraining(config).init, jax.random.key(0)))
    padding = (config.padded_vocab_size - 30522) * (config.hidden_size + 1)
    assert sum(x.size for x in jax.tree.leaves(shapes)) - padding == count


@pytest.mark.parametrize('name', ['', 'base'])
def test_one_field_may_be_set_where_a_checkpoint_gives_the_others(name):
    values = {'model.name': name, 'init_checkpoint': 'bert'}
    validate(changed({**values, 'model.hidden_act': 'gelu_erf'}))
    with pytest.raises(InputError, match='hidden_act'):
        validate(changed({**values, 'model.hidden_act': 'relu'}))


def parsed(name, override):
    """The config of `configs/NAME` after an override, as a command has it."""
    return parse_command(
        ['program', f'--config={ROOT}/configs/{name}', f'--config.{override}'], '')[0]


@pytest.mark.parametrize('name, override, field, values', [
    ('base_pretrain.py', 'train.batch_size=8', 'batch_size', [8, 8]),
    ('large_pretrain.py:lamb', 'phases[1].batch_size=64', 'batch_size', [65536, 64]),
    ('base_pretrain.py', 'phases[0].max_seq_length=64', 'max_seq_length', [64, 512]),
    ('tiny_pretrain.py', 'data.max_seq_length=32', 'max_seq_length', [32]),
    ('base_pretrain.py', 'phases=({"steps": 3},)', 'max_seq_length', [128]),
])
def test_an_override_reaches_phases_that_do_not_say_otherwise(name, override, field, values):
    assert [phase[field] for phase in phases(parsed(name, override))] == values


@pytest.mark.parametrize('name, override, message', [
    ('large_pretrain.py:lamb', 'train.batch_size=8', r"=8 .*'--config.phases\[0\].batch_size="),
    ('base_pretrain.py', 'data.max_seq_length=64', r"'--config.phases\[0\].max_seq_length="),
    ('large_pretrain.py:lamb', 'optimizer.learning_rate=1.0', 'their own learning_rate'),
    ('base_pretrain.py', 'phases[0].batch_size=8', 'the phase does not say this'),
    ('tiny_pretrain.py', 'phases[0].batch_size=8', 'no such phase'),
    *(('tiny_pretrain.py', f'{wrong}=8', meant) for wrong, meant in {
        'train.batchsize': "did you mean 'train.batch_size'", 'train.frobnicate': '--help',
        'learning_rate': "'optimizer.learning_rate'", 'data.txt': "did you mean 'data.text'",
        'train.num_train_epochs': "--config.train.steps='3 epochs'"}.items()),
    ('tiny_pretrain.py', 'train.batch_size=many', 'train.batch_size'),
    ('none.py', 'seed=1', 'configs/none.py'),
    ('efficient_pretrain.py:faster', 'seed=1', 'faster is unknown: choose paper, none, all, five'),
    ('efficient_pretrain.py:five-ramp', 'seed=1', 'five-ramp is unknown: choose paper, none'),
])
def test_a_command_line_that_means_nothing_is_refused(name, override, message):
    with pytest.raises(InputError, match=message):
        parsed(name, override)


def test_help_shows_a_config_and_its_fields(capsys):
    with pytest.raises(SystemExit):
        parse_command(['program', '--config=classification', '--help'], 'What it does.')
    shown = capsys.readouterr().out
    assert shown.startswith('What it does.\nYour own texts with labels')
    assert '  --config.data.held_out=0.1\n' in shown
