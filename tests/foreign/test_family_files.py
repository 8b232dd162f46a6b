"""Families without transformers: names and shapes in files, there and back, what is refused."""

import dataclasses
import functools
import json
import shutil

import jax
import numpy as np
import pytest
from flax import linen as nn
from safetensors.numpy import load_file, save_file

from bert_jax.config.bert_config import OPTIONS, BertConfig
from bert_jax.foreign import load_weights
from bert_jax.foreign.families import FAMILIES, family_to_write
from bert_jax.foreign.families.gte import GTE
from bert_jax.foreign.families.jina import JINA
from bert_jax.foreign.families.modernbert import MODERNBERT
from bert_jax.foreign.families.nomic_bert import NOMIC_BERT
from bert_jax.foreign.families.ultrabert import ULTRABERT
from bert_jax.foreign.huggingface import write_huggingface
from bert_jax.foreign.tf1 import config_to_write
from bert_jax.heads import HEADS, part_of
from bert_jax.model.layers import ModelConfig
from bert_jax.run.model import write_run
from bert_jax.runtime.errors import InputError
from bert_jax.weights.parameters import Weights, from_tree, sizes_of, tensors
from tests.conftest import check_golden
from tests.foreign.run_model import RECORDED, assert_same, assert_same_params
from tests.refusals import refused

# No two sizes are the same, so that a swap of dims shows.
SIZES = {
    'vocab_size': 40, 'num_layers': 2, 'hidden_size': 12, 'num_heads': 3, 'intermediate_size': 10,
    'max_position_embeddings': 9, 'layer_norm_eps': 1e-5, 'hidden_act': 'gelu_erf'}
MODERN = {
    'type_vocab_size': 0, 'positions': 'rotary', 'pre_norm': True, 'gated': True, 'biases': False,
    'pooler_act': 'gelu_erf', 'pooler_norm': True, 'pools_tokens': True}
LLAMA = {
    'type_vocab_size': 0, 'embedding_norm': False, 'positions': 'rotary', 'pre_norm': True,
    'norm': 'rms', 'gated': True, 'layer_biases': 'none', 'hidden_act': 'silu',
    'masked_lm_head': 'linear', 'hidden_dropout': 0.0, 'classifier_dropout': 0.0}
# A model of each family, by the options that are not those of the paper's BERT.
MODELS = {
    'BERT': SIZES,
    # The vocabulary has [PAD] with id 0, and positions count from the next.
    'RoBERTa': SIZES | {'first_position': 1, 'type_vocab_size': 1, 'pooler_dropout': 0.1},
    'DistilBERT': SIZES | {
        'type_vocab_size': 0, 'pooler_act': 'relu', 'layer_norm_eps': 1e-12},
    'ELECTRA': SIZES | {
        'pooler_act': 'gelu_erf', 'embedding_size': 7, 'pooler_dropout': 0.1},
    'ModernBERT': SIZES | MODERN | {
        'local_attention': 8, 'rotary_base': 160_000.0, 'pooling': 'mean'},
    'jina-embeddings-v3': SIZES | {
        'positions': 'rotary', 'rotary_base': 700.0, 'pooler_dropout': 0.1},
    'NomicBERT': SIZES | {
        'positions': 'rotary', 'gated': True, 'layer_biases': 'none', 'hidden_act': 'silu'},
    'GTE': SIZES | {
        'positions': 'rotary', 'gated': True, 'layer_biases': 'not_intermediate',
        'rotary_base': 700.0, 'rotary_factor': 2.5, 'type_vocab_size': 0},
    'EuroBERT': SIZES | LLAMA | {'pooler_act': 'gelu_erf', 'pooling': 'late', 'num_kv_heads': 1},
    'MPNet': SIZES | {
        'type_vocab_size': 0, 'first_position': 2, 'relative_positions': True,
        'pooler_dropout': 0.1},
    'ALBERT': SIZES | {'shared_layers': True, 'embedding_size': 7, 'hidden_act': 'gelu_tanh'},
    'UltraBERT': SIZES | LLAMA | {
        'pooler': False, 'masked_lm_head': 'two_layers', 'masked_lm_size': 14,
        'local_attention': 8, 'first_global': 2, 'rotary_base': 900.0},
}
CASES = [
    (family, architecture, head)
    for family in FAMILIES for architecture in family.architectures for head in architecture.heads]


def names_of(case):
    family, architecture, head = case
    return f'{family.class_name(architecture)}-{head}'


def random_weights(family, architecture, head):
    """Weights with the parameters of a class, no two numbers of which are the same."""
    model = vars(BertConfig(**MODELS[family.name]))
    num_labels = 1 if head in ('regression', 'multiple_choice') else 5
    rng = np.random.default_rng(0)
    params = {}
    for tensor in tensors(model):
        if part_of(tensor.name) in (None, *architecture.parts):
            shape = tensor.shape(sizes_of(model, num_labels))
            params[tensor.name] = rng.standard_normal(shape).astype(np.float32)
    labels = ()
    if head in ('classification', 'multi_label', 'token_classification'):
        labels = tuple('edcba')
    vocab_file = RECORDED / 'base' / 'vocab.txt'
    if family.name == 'MPNet':  # the first position is behind the id of padding, which is not 0
        vocab_file = None
    return Weights(
        params=params, model=model, head=head, labels=labels, vocab_file=vocab_file,
        lowercase=True, unused=(), source='a model')


@functools.cache
def made_by_the_model(family, head, num_labels):
    """Shapes of the parameters, by name, that the model of a family makes with a head."""
    config = ModelConfig(**vars(BertConfig(**MODELS[family])))
    made = HEADS[head](config, num_labels)

    def init(key):
        return from_tree(nn.meta.unbox(made.init(key)), config.vocab_size)

    return jax.eval_shape(init, jax.random.key(0))


@pytest.mark.parametrize(
    'case', [case for case in CASES if case[2] == case[1].heads[0]], ids=names_of)
def test_the_parameters_of_the_table_are_those_of_the_model(case):
    """By names and shapes, those of embeddings and layers all, those of the head at least."""
    weights = random_weights(*case)
    family, architecture, head = case
    found = dict(made_by_the_model(family.name, head or 'classification', weights.num_labels))
    for name, x in weights.params.items():
        assert found.pop(name).shape == x.shape, name
    assert all(part_of(name) not in (None, *architecture.parts) for name in found)


def is_new(case):
    """Whether it is the first of its family, or with its head."""
    before = CASES[:CASES.index(case)]
    return all(case[0] is not other[0] for other in before) or all(
        case[2] != other[2] for other in before)


@pytest.mark.parametrize('case', CASES, ids=names_of)
def test_a_run_becomes_a_folder_and_a_run_again(case, tmp_path):
    """A run has all parameters and options in the same way, so each family and head once."""
    weights = made = random_weights(*case)
    if is_new(case):
        write_run(tmp_path / 'run', made)
        weights = load_weights(tmp_path / 'run')
        assert_same(weights, made)
    write_huggingface(tmp_path / 'hf', weights)
    family, architecture, _ = case
    config_file = tmp_path / 'hf' / 'config.json'
    config = json.loads(config_file.read_text())
    assert config['model_type'] == family.model_type
    assert config['architectures'] == [family.class_name(architecture)]
    again = load_weights(tmp_path / 'hf')
    assert again.unused == ()
    assert_same(again, made)

    # A span head of ModernBERT has the tensors of a classifier with two labels.
    if names_of(case) != 'ModernBertForQuestionAnswering-question_answering':
        config['architectures'] = ['AClassOfTheirOwn']
        config_file.write_text(json.dumps(config))
        check_same_by_tensors(tmp_path / 'hf', case, made)


def check_same_by_tensors(folder, case, made):
    """Without the name of a class, the head is found by the tensors.

    Where several heads have the same, it is one of them.
    """
    family, _, head = case
    again = load_weights(folder)
    alike = {head, 'regression' if head == 'multiple_choice' else head}
    if head == 'token_classification' and family.name in ('ModernBERT', 'UltraBERT'):
        alike = {'classification'}
    assert again.head in alike
    assert_same_params(again.params, made.params)


def test_names_and_shapes_in_the_files_of_each_family(tmp_path):
    """All of the encoder's class, and what other classes have beside them."""
    lines = []
    for family in FAMILIES:
        shown = set()
        for architecture in reversed(family.architectures):
            weights = random_weights(family, architecture, architecture.heads[0])
            folder = tmp_path / family.class_name(architecture)
            write_huggingface(folder, weights)
            lines.append(family.class_name(architecture))
            for name, x in sorted(load_file(folder / 'model.safetensors').items()):
                if name not in shown:
                    lines.append(f'  {name} {list(x.shape)}')
                if architecture.name == 'Model':
                    shown.add(family.prefix + name)
    check_golden('families.txt', lines)


@pytest.mark.parametrize('family', FAMILIES, ids=lambda family: family.name)
def test_each_model_is_written_as_its_own_family(family):
    weights = random_weights(family, family.architectures[0], family.architectures[0].heads[0])
    assert family_to_write(weights) is family


def changed(name, **options):
    """Weights of a family's model with other options."""
    family = next(family for family in FAMILIES if family.name == name)
    weights = random_weights(family, family.architectures[-1], '')
    return dataclasses.replace(weights, model=weights.model | options)


@pytest.mark.parametrize('name, options, says', [
    ('BERT', {'causal': True}, 'causal=True'),
    # As wide as the tables of an ALBERT whose config.json does not say how wide they are.
    ('BERT', {'causal': True, 'hidden_size': 128, 'num_heads': 2}, 'causal=True'),
    ('ALBERT', {'causal': True}, 'causal=True'),
    ('BERT', {'type_vocab_size': 0}, 'BERT, RoBERTa: type_vocab_size=0'),
    ('jina-embeddings-v3', {'type_vocab_size': 0}, 'type_vocab_size=0'),
    ('NomicBERT', {'type_vocab_size': 0}, 'type_vocab_size=0; '),
    ('GTE', {'biases': False, 'layer_biases': 'all'}, 'biases=False'),
    ('EuroBERT', {'norm': 'layer'}, "norm='layer'"),
    ('ALBERT', {'type_vocab_size': 0}, 'type_vocab_size=0'),
    ('ModernBERT', {'rotary_factor': 2.0}, 'rotary_factor=2.0'),
    ('RoBERTa', {'layer_norm_eps': 1e-5, 'causal': True}, 'causal=True'),
    ('DistilBERT', {'layer_norm_eps': 1e-5}, 'layer_norm_eps=1e-05'),
    ('ELECTRA', {'embedding_size': 7, 'pooler_act': 'tanh'}, "pooler_act='tanh'"),
    ('ModernBERT', {'gated': False}, 'gated=False'),
], ids=str)
def test_options_of_no_family_are_refused_by_name(name, options, says):
    with refused(f'{name}: {says}' if name != 'BERT' else says, '--to bert_jax', match='^a model'):
        family_to_write(changed(name, **options))


@pytest.mark.parametrize('name, options, says', [
    ('RoBERTa', {'hidden_act': 'gelu_tanh'}, "hidden_act='gelu_pytorch_tanh' with a pre"),
    ('ELECTRA', {'hidden_act': 'gelu_tanh'}, "hidden_act='gelu_pytorch_tanh' with a pre"),
    ('GTE', {'hidden_act': 'silu'}, "hidden_act='silu' with a pre"),
    ('ModernBERT', {'pooler_act': 'gelu_tanh'}, "classifier_activation='gelu_pytorch_tanh'"),
])
def test_what_only_one_class_cannot_hold_is_refused_for_its_head_alone(name, options, says):
    family = next(family for family in FAMILIES if family.name == name)
    assert family_to_write(changed(name, **options)) is family
    masked_lm = next(x for x in family.architectures if x.name == 'ForMaskedLM')
    weights = random_weights(family, masked_lm, 'pretraining')
    weights = dataclasses.replace(weights, model=weights.model | options)
    with refused(name, says, '--to bert_jax'):
        family_to_write(weights)


# There, RoBERTa's classifier has one rate of dropout for both of its dense layers.
@pytest.mark.parametrize('name, options, note', [
    ('RoBERTa', {'pooler_dropout': 0.1}, []),
    ('RoBERTa', {'pooler_dropout': 0.0}, [
        'pooler_dropout=0.0 has no field in the config.json of RoBERTa: training there goes on '
        'with another value']),
    ('BERT', {'initializer': 'by_depth'}, [
        "initializer='by_depth' has no field in the config.json of BERT: training there goes on "
        'with another value']),
], ids=str)
def test_how_a_model_is_trained_may_be_lost_with_a_note(name, options, note, tmp_path):
    notes = write_huggingface(tmp_path / 'hf', changed(name, **options))
    assert [line for line in notes if 'has no field' in line] == note


@pytest.mark.parametrize('name, says', [
    ('RoBERTa', 'first_position=1'),
    ('DistilBERT', 'type_vocab_size=0'),
    ('ELECTRA', 'embedding_size=7'),
    ('ModernBERT', 'type_vocab_size=0'),
    ('NomicBERT', "positions='rotary'"),
])
def test_tf1_is_refused_what_it_cannot_hold(name, says):
    with refused(f'a model has {says}', 'bert_config.json', '--to bert_jax'):
        config_to_write(changed(name))


# The family of a folder, changes of its config.json, and what the message says.
REFUSED = [
    ('BERT', {'model_type': 'gpt2'}, ["model_type='gpt2'", 'bert, roberta, xlm-roberta']),
    ('BERT', {'model_type': 'modernbert-decoder'}, ["model_type='modernbert-decoder'"]),
    ('BERT', {'position_embedding_type': 'relative_key'}, ['relative_key', 'BERT', 'absolute']),
    ('BERT', {'per_layer_config': {'1': {'layer_norm_eps': 0.1}}}, ['per_layer_config', 'all']),
    ('RoBERTa', {'is_decoder': True}, ['is_decoder=True', 'RoBERTa']),
    ('RoBERTa', {'pad_token_id': '1'}, ["pad_token_id='1'", 'whole number']),
    ('RoBERTa', {'pad_token_id': 8}, ['first_position=9', 'max_position_embeddings=9']),
    ('RoBERTa', {'hidden_act': 'gelu_new'}, ["hidden_act='gelu_new'", 'RobertaForMaskedLM']),
    ('ELECTRA', {'hidden_act': 'gelu_fast'}, ["hidden_act='gelu_fast'", 'ElectraForMaskedLM']),
    ('RoBERTa', {'type_vocab_size': 0}, ['type_vocab_size=0']),
    ('RoBERTa', {'model_type': 'bert'}, ['is of BERT', 'is of RoBERTa', "model_type 'roberta'"]),
    ('RoBERTa', {'model_type': None}, ['is of BERT', 'is of RoBERTa']),
    ('ELECTRA', {'model_type': 'roberta'}, ['is of RoBERTa', 'is of ELECTRA']),
    ('ModernBERT', {'model_type': 'bert'}, ['is of BERT', 'is of ModernBERT']),
    ('DistilBERT', {'n_heads': 5}, ['n_heads=5', 'dim=12']),
    ('DistilBERT', {'num_attention_heads': 6}, ['num_attention_heads=6 and n_heads=3', 'both']),
    ('DistilBERT', {'dim': None}, ['has no dim', 'DistilBERT']),
    ('DistilBERT', {'model_type': 'electra'}, ['has no num_hidden_layers', 'ELECTRA']),
    ('DistilBERT', {'activation': 'quick_gelu'}, ["activation='quick_gelu'"]),
    ('ELECTRA', {'embedding_size': 0}, ['embedding_size=0']),
    ('ALBERT', {'embedding_size': 12}, ['embedding_size=12', 'ALBERT', 'hidden_size']),
    ('ALBERT', {'num_hidden_groups': 2}, ['num_hidden_groups=2', 'ALBERT']),
    ('ALBERT', {'inner_group_num': 2}, ['inner_group_num=2']),
    ('ModernBERT', {'decoder_bias': 'no'}, ["decoder_bias='no'"]),
    ('ModernBERT', {'classifier_activation': 'mish'}, ["classifier_activation='mish'"]),
    ('ModernBERT', {'classifier_activation': 'gelu_new'}, ["hidden_activation='gelu'"]),
    ('ModernBERT', {'hidden_activation': 'gelu_10'}, ["hidden_activation='gelu_10'"]),
    ('ModernBERT', {'head_dim': 8}, ['head_dim=8', 'hidden_size=12 / num_attention_heads=3']),
    ('ModernBERT', {'head_dim': {}}, ['head_dim={}']),
    ('ModernBERT', {'layer_types': ['sliding_attention', 'full_attention']}, ['layer_types']),
    ('ModernBERT', {'layer_types': 3}, ['layer_types']),
    ('ModernBERT', {'layer_types': ['full_attention', None]}, ['layer_types']),
    ('ModernBERT', {'local_attention': 0}, ['local_attention=0', 'from 1']),
    ('ModernBERT', {'norm_bias': 'false'}, ["norm_bias='false'"]),
    ('ModernBERT', {'rope_scaling': {'rope_type': 'yarn'}}, ['rope_scaling', 'yarn']),
    ('ModernBERT', {'global_attn_every_n_layers': 0}, ['global_attn_every_n_layers=0']),
    ('ModernBERT', {'local_attention': 'all'}, ["local_attention='all'"]),
    ('ModernBERT', {'rope_parameters': {'full_attention': {'rope_type': 'yarn'}}}, ['yarn']),
    ('ModernBERT', {'rope_parameters': {'full_attention': {'rope_theta': -1}}}, ['rope_theta=-1']),
    ('ModernBERT', {'rope_parameters': {'rope_theta': 5.0}}, ['rope_theta', 'full_attention']),
    ('ModernBERT', {'rope_parameters': 'default'}, ["rope_parameters='default'"]),
    ('ModernBERT', {'global_rope_theta': 0, 'rope_parameters': None}, ['global_rope_theta=0']),
    ('ModernBERT', {'num_attention_heads': 4}, ["positions='rotary'", '3']),
    ('ModernBERT', {'classifier_pooling': 'max'}, ["classifier_pooling='max'"]),
    ('jina-embeddings-v3', {'rope_parameters': {'rope_type': 'linear'}}, ['factor=None']),
    ('jina-embeddings-v3', {'rope_parameters': {'rope_type': 'yarn'}}, ['yarn', 'default']),
    ('jina-embeddings-v3', {'rope_parameters': {'partial_rotary_factor': 0.5}}, ['factor=0.5']),
    ('jina-embeddings-v3', {'rope_parameters': ['default']}, ["['default']"]),
    ('jina-embeddings-v3', {'rope_scaling': {'type': 'ntk'}}, ['rope_scaling', 'ntk']),
    ('jina-embeddings-v3', {'rotary_emb_interleaved': True}, ['rotary_emb_interleaved=True']),
    ('jina-embeddings-v3', {'rotary_emb_scale_base': 512}, ['rotary_emb_scale_base=512']),
    ('jina-embeddings-v3', {'rotary_emb_dim': 2}, ['rotary_emb_dim=2', 'num_attention_heads=3']),
    ('jina-embeddings-v3', {'head_dim': 8}, ['head_dim=8']),
    ('jina-embeddings-v3', {'partial_rotary_factor': 0.5}, ['json: partial_rotary_factor=0.5']),
    ('jina-embeddings-v3', {'model_type': 'roberta'}, ['is of RoBERTa', 'is of jina']),
    ('NomicBERT', {'head_dim': 5}, ['head_dim=5', 'num_attention_heads=3']),
    ('NomicBERT', {'rotary_scaling_factor': 2}, ['rotary_scaling_factor=2', 'NomicBERT']),
    ('NomicBERT', {'rotary_head_dim': True}, ['rotary_head_dim=True']),
    ('NomicBERT', {'rotary_emb_scale_base': 512}, ['rotary_emb_scale_base=512']),
    ('NomicBERT', {'qkv_proj_bias': True}, ['qkv_proj_bias=True']),
    ('NomicBERT', {'hidden_act': 'mish'}, ["hidden_act='mish'", 'silu']),
    ('GTE', {'hidden_act': 'silu'}, ["hidden_act='silu'", 'GteForMaskedLM']),
    ('GTE', {'model_type': 'new', 'pack_qkv': False}, ['pack_qkv=False', 'GTE']),
    ('GTE', {'head_dim': 8}, ['head_dim=8']),
    ('GTE', {'position_embedding_type': 'absolute'}, ['absolute', 'rope']),
    ('GTE', {'logn_attention_scale': True}, ['logn_attention_scale=True']),
    ('GTE', {'rope_scaling': {'type': 'ntk'}, 'rope_theta': 5.0}, ['factor=None']),
    ('GTE', {'rope_scaling': {'type': 'ntk', 'factor': 2, 'mixed_b': 0.6}}, ['ntk']),
    ('EuroBERT', {'tie_word_embeddings': True}, ['tie_word_embeddings=True', 'EuroBertForM']),
    ('EuroBERT', {'attention_bias': True}, ['attention_bias=True']),
    ('EuroBERT', {'num_key_value_heads': 2}, ['num_kv_heads=2', 'num_heads=3']),
    ('EuroBERT', {'num_key_value_heads': '1'}, ["num_key_value_heads='1'"]),
    ('EuroBERT', {'head_dim': 8}, ['head_dim=8']),
    ('EuroBERT', {'classifier_pooling': 'last'}, ["classifier_pooling='last'", 'late']),
    ('EuroBERT', {'rope_parameters': {'rope_type': 'llama3'}}, ['llama3']),
    ('EuroBERT', {'rope_parameters': {'type': 'dynamic', 'factor': 4.0}}, ["type='dynamic'"]),
    ('UltraBERT', {'rope_parameters': {'rope_theta': 5.0}}, ['rope_theta', 'full_attention']),
    ('MPNet', {'relative_attention_num_buckets': 16}, ['relative_attention_num_buckets=16']),
    ('UltraBERT', {'layer_types': ['full_attention']}, ['layer_types', 'each layer']),
    ('UltraBERT', {'layer_types': None, 'attention_windows': [3, 4]}, ['attention_windows=[3, 4]']),
    ('UltraBERT', {'head_dim': 8}, ['head_dim=8']),
    ('UltraBERT', {'prediction_head_size': 0}, ['prediction_head_size=0']),
    ('UltraBERT', {'classifier_pooling': 'late'}, ["classifier_pooling='late'"]),
    ('UltraBERT', {'rope_parameters': None, 'rope_theta': 5}, ['rope_theta=5', 'each layer']),
    ('ModernBERT', {'architectures': ['ModernBertForQuestionAnswering']}, ['no tensor of such']),
]


# Fields that only some classes of transformers read: of which class, what they are, and the words
# with which a class that does read them is refused ('' where they change nothing of it).
OF_SOME_CLASSES = [
    ('BERT', 'ForTokenClassification', {'problem_type': 'multi_label_classification'}, ''),
    ('BERT', 'ForTokenClassification', {'problem_type': 'regression'}, ''),
    ('BERT', 'ForMultipleChoice', {'problem_type': 'multi_label_classification'}, ''),
    ('DistilBERT', 'ForTokenClassification', {'problem_type': 'multi_label_classification'}, ''),
    ('ModernBERT', 'ForTokenClassification', {'problem_type': 'multi_label_classification'}, ''),
    ('ELECTRA', 'ForMultipleChoice', {'problem_type': 'regression'}, ''),
    ('DistilBERT', 'ForMaskedLM', {'num_attention_heads': 3, 'hidden_size': None}, ''),
    ('BERT', 'ForQuestionAnswering', {'problem_type': 'multi_label_classification'}, ''),
    ('RoBERTa', 'ForSequenceClassification', {'hidden_act': 'gelu_new'}, ''),
    ('ELECTRA', 'ForPreTraining', {'hidden_act': 'gelu_fast'}, ''),
    ('ELECTRA', 'ForMaskedLM', {'hidden_act': 'gelu_python'}, ''),
    ('ELECTRA', 'ForMaskedLM', {'summary_type': 'mean'}, ''),
    ('ELECTRA', 'ForSequenceClassification', {'summary_activation': 'tanh'}, ''),
    ('ELECTRA', 'ForMultipleChoice', {'summary_type': 'last'}, "summary_type='last'"),
    ('ELECTRA', 'ForMultipleChoice', {'summary_use_proj': False}, 'summary_use_proj=False'),
    ('ELECTRA', 'ForMultipleChoice', {'summary_activation': 'tanh'}, "summary_activation='tanh'"),
    ('ELECTRA', 'ForMultipleChoice', {'summary_activation': None}, 'summary_activation=None'),
    ('ELECTRA', 'ForSequenceClassification', {'summary_activation': None}, ''),
    ('ModernBERT', 'Model', {'classifier_activation': 'mish', 'head_dim': 4}, ''),
    ('ModernBERT', 'Model', {'classifier_bias': True}, ''),
    ('EuroBERT', 'ForSequenceClassification', {'tie_word_embeddings': True}, ''),
    ('UltraBERT', 'ForTokenClassification', {'tie_word_embeddings': True}, ''),
    ('UltraBERT', 'ForMaskedLM', {'tie_word_embeddings': True}, 'tie_word_embeddings=True'),
    ('ModernBERT', 'ForTokenClassification', {'classifier_activation': 'tanh'}, ''),
    ('ModernBERT', 'ForQuestionAnswering', {'classifier_activation': 'mish'}, 'mish'),
    ('ModernBERT', 'ForMaskedLM', {'classifier_activation': 'tanh'}, 'tanh'),
]


@pytest.mark.parametrize('name, kind, changes, says', OF_SOME_CLASSES, ids=str)
def test_a_field_counts_for_the_classes_that_read_it(name, kind, changes, says, tmp_path):
    """What transformers computes with it is compared in test_families.py."""
    family = next(family for family in FAMILIES if family.name == name)
    architecture = next(x for x in family.architectures if x.name == kind)
    made = random_weights(family, architecture, architecture.heads[0])
    write_huggingface(tmp_path / 'hf', made)
    path = tmp_path / 'hf' / 'config.json'
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    if says:
        with refused(says, 'config.json', kind):
            load_weights(tmp_path / 'hf')
        return
    found = load_weights(tmp_path / 'hf')
    assert found.head == made.head
    for name, x in made.params.items():
        np.testing.assert_array_equal(found.params[name], x)
    write_huggingface(tmp_path / 'again', found)
    assert_same(load_weights(tmp_path / 'again'), found)


def test_an_untied_output_layer_counts_for_masked_lm_alone(tmp_path):
    """A classifier may have what is left of one in its files."""
    family = FAMILIES[0]
    for kind in ('ForSequenceClassification', 'ForMaskedLM'):
        architecture = next(x for x in family.architectures if x.name == kind)
        folder = tmp_path / kind
        write_huggingface(folder, random_weights(family, architecture, architecture.heads[0]))
        path = folder / 'model.safetensors'
        save_file(load_file(path) | {
            'cls.predictions.decoder.weight': np.ones((40, 12), np.float32)}, path)
    found = load_weights(tmp_path / 'ForSequenceClassification')
    assert found.unused == ('cls.predictions.decoder.weight',)
    with refused('decoder.weight is not equal', 'not tied'):
        load_weights(tmp_path / 'ForMaskedLM')


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
    """A good folder of each family, with a masked-LM head."""
    folder = tmp_path_factory.mktemp('families')
    for family in FAMILIES:
        architecture = next(x for x in family.architectures if x.name == 'ForMaskedLM')
        write_huggingface(folder / family.name, random_weights(family, architecture, 'pretraining'))
    return folder


@pytest.mark.parametrize('name, changes, says', REFUSED, ids=str)
def test_a_config_that_cannot_be_read_is_refused_in_one_line(
        name, changes, says, folders, tmp_path):
    folder = shutil.copytree(folders / name, tmp_path / 'model')
    load_weights(folder)
    config = json.loads((folder / 'config.json').read_text())
    (folder / 'config.json').write_text(json.dumps({**config, **changes}))
    with refused(*says, match='config.json'):
        load_weights(folder)


@pytest.mark.parametrize('family', FAMILIES, ids=lambda family: family.name)
def test_a_folder_of_an_encoder_may_name_another_class(family, tmp_path, capsys):
    architecture = next(x for x in family.architectures if x.name == 'Model')
    made = random_weights(family, architecture, '')
    write_huggingface(tmp_path / 'hf', made)
    path = tmp_path / 'hf' / 'config.json'
    named = {'architectures': [family.class_name(architecture).replace('Model', 'ForMaskedLM')]}
    path.write_text(json.dumps(json.loads(path.read_text()) | named))
    found = load_weights(tmp_path / 'hf')
    assert found.head == ''
    assert_same_params(found.params, made.params)
    assert 'it is read as an encoder' in capsys.readouterr().err


@pytest.mark.parametrize('tied, said', [(False, True), (True, False)])
def test_an_output_layer_of_its_own_that_is_missing_is_said(
        tied, said, folders, tmp_path, capsys):
    folder = shutil.copytree(folders / 'BERT', tmp_path / 'model')
    config = json.loads((folder / 'config.json').read_text())
    (folder / 'config.json').write_text(json.dumps({**config, 'tie_word_embeddings': tied}))
    load_weights(folder)
    assert ('hold no cls.predictions.decoder.weight' in capsys.readouterr().err) == said


@pytest.mark.parametrize('name, is_said', [('ModernBERT', True), ('BERT', False)])
def test_a_last_hidden_state_before_the_last_norm_is_said_to_be_behind_it(
        name, is_said, folders, tmp_path, capsys):
    folder = shutil.copytree(folders / name, tmp_path / 'model')
    path = folder / 'config.json'
    config = json.loads(path.read_text()) | {'tie_last_hidden_states': False}
    path.write_text(json.dumps(config))
    load_weights(folder)
    assert ('tie_last_hidden_states is false' in capsys.readouterr().err) == is_said


def test_positions_that_others_would_count_otherwise_are_refused(tmp_path):
    weights = changed('RoBERTa', first_position=2)
    with refused('first_position=2', '[PAD] with id 0', 'vocab.txt', '--to bert_jax'):
        write_huggingface(tmp_path / 'hf', weights)
    write_huggingface(tmp_path / 'hf', dataclasses.replace(weights, vocab_file=None))


def test_a_classifier_without_its_dense_layer_is_refused(tmp_path):
    """A tagger of ModernBERT has one, and nothing in its config says so."""
    family = MODERNBERT
    architecture = family.architecture('ModernBertForTokenClassification')
    weights = random_weights(family, architecture, 'token_classification')
    write_huggingface(tmp_path / 'hf', weights)
    path = tmp_path / 'hf' / 'model.safetensors'
    save_file({name: x for name, x in load_file(path).items() if 'head' not in name}, path)
    with refused('ModernBertForTokenClassification', 'there is none'):
        load_weights(tmp_path / 'hf')


@pytest.mark.parametrize('every', [1, 2, 3, 4, 7])
@pytest.mark.parametrize('version', [4, 5])
def test_which_layers_are_global_by_either_version(every, version, folders, tmp_path):
    """transformers 4 has a number, transformers 5 a list; a file may have both."""
    family = MODERNBERT
    kinds = ['sliding_attention' if i % every else 'full_attention' for i in range(5)]
    config = json.loads((folders / 'ModernBERT' / 'config.json').read_text())
    config |= {'num_hidden_layers': 5, 'layer_types': kinds, 'global_attn_every_n_layers': every}
    del config['global_attn_every_n_layers' if version == 5 else 'layer_types']
    model = BertConfig(**family.model_of(config, tmp_path))
    found = ['sliding_attention' if model.of_layer(i).local_attention else 'full_attention'
             for i in range(5)]
    assert found == kinds


def test_rotary_bases_by_either_version(folders, tmp_path):
    family = MODERNBERT
    config = json.loads((folders / 'ModernBERT' / 'config.json').read_text())
    new = {'full_attention': {'rope_theta': 7.0, 'rope_type': 'default'}}
    old = {'global_rope_theta': 5.0, 'local_rope_theta': 3.0}
    for rope_parameters, expected in ((None, (5.0, 3.0)), (new, (7.0, 3.0))):
        model = family.model_of({**config, **old, 'rope_parameters': rope_parameters}, tmp_path)
        assert (model['rotary_base'], model['local_rotary_base']) == expected


@pytest.mark.parametrize('fields, window', [
    ({'local_attention': 10}, 10),
    # transformers makes `local_attention` of it.
    ({'local_attention': 10, 'sliding_window': 3}, 6),
    ({'local_attention': 10, 'sliding_window': None}, 10),
], ids=str)
def test_the_window_of_modernbert_by_either_name(fields, window, folders, tmp_path):
    config = json.loads((folders / 'ModernBERT' / 'config.json').read_text())
    assert MODERNBERT.model_of(config | fields, tmp_path)['local_attention'] == window


@pytest.mark.parametrize('family, model_type, base', [
    (GTE, 'gte', 160_000.0), (GTE, 'new', 10_000.0),
    (JINA, 'jina_embeddings_v3', 20_000.0), (JINA, 'xlm-roberta', 10_000.0)])
def test_a_rotary_base_that_is_absent_is_that_of_the_code_for_the_type(
        family, model_type, base, folders, tmp_path):
    config = json.loads((folders / family.name / 'config.json').read_text())
    del config['rope_parameters']
    model = family.model_of(config | {'model_type': model_type}, tmp_path)
    assert model['rotary_base'] == base


def test_nomic_bert_by_its_older_names(folders, tmp_path):
    folder = shutil.copytree(folders / 'NomicBERT', tmp_path / 'model')
    config = json.loads((folder / 'config.json').read_text())
    for old, new in NOMIC_BERT.old_fields.items():
        if new in config:
            config[old] = config.pop(new)
    config['rotary_emb_base'] = config.pop('rope_parameters')['rope_theta']
    del config['hidden_act']
    config |= {
        'activation_function': 'swiglu', 'prenorm': False, 'qkv_proj_bias': False,
        'rotary_emb_fraction': 1.0, 'rotary_scaling_factor': None}
    (folder / 'config.json').write_text(json.dumps(config))
    assert_same(load_weights(folder), load_weights(folders / 'NomicBERT'))


@pytest.mark.parametrize('fields, model', [
    ({'layer_types': ['sliding_attention', 'sliding_attention']}, (10, 2, 3)),
    ({'layer_types': ['full_attention', 'full_attention']}, (0, 0, 3)),
    ({'layer_types': ['full_attention', 'sliding_attention']}, (10, 0, 3)),
    ({'attention_windows': [4, None]}, (8, 1, 3)),
    ({'attention_windows': [4, None], 'layer_types': [
        'full_attention', 'sliding_attention']}, (8, 0, 3)),
    ({}, (10, 2, 3)),
], ids=str)
def test_which_layers_of_ultrabert_are_global(fields, model, folders, tmp_path):
    config = json.loads((folders / 'UltraBERT' / 'config.json').read_text())
    del config['layer_types'], config['rope_parameters']
    config |= {'sliding_window': 5, 'rope_theta': [7.0, 7.0], **fields}
    found = ULTRABERT.model_of(config, tmp_path)
    assert tuple(
        found[name] for name in ('local_attention', 'first_global', 'global_every')) == model
    layer = BertConfig(**found).of_layer(0)
    assert layer.rotary_base == 7.0


@pytest.mark.parametrize('model_type, class_name', [
    ('xlm-roberta', 'XLMRobertaForMaskedLM'), ('camembert', 'CamembertForMaskedLM')])
def test_models_that_are_roberta_by_another_name(model_type, class_name, folders, tmp_path):
    folder = shutil.copytree(folders / 'RoBERTa', tmp_path / 'model')
    config = json.loads((folder / 'config.json').read_text())
    config |= {'model_type': model_type, 'architectures': [class_name]}
    (folder / 'config.json').write_text(json.dumps(config))
    assert_same(load_weights(folder), load_weights(folders / 'RoBERTa'))


def test_every_option_is_held_by_some_family():
    """But those of the ablations, which only this project has."""
    said = set()
    for family in FAMILIES:
        model = vars(BertConfig(**MODELS[family.name]))
        options = family.options_of({**family.defaults, **family.config_of(model)}, 'config.json')
        said |= {*family.spellings, *family.options, *options}
    matters = {option.name for option in OPTIONS if option.effect != 'trains'}
    assert matters - said == {'causal', 'bilstm'}


def test_a_file_without_model_type_is_of_bert():
    config = json.loads((RECORDED / 'base' / 'config.json').read_text())
    del config['model_type']
    with pytest.raises(InputError, match='has no vocab_size'):
        FAMILIES[0].model_of({}, 'config.json')
