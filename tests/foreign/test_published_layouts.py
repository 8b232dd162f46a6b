"""Folders as the makers of the newer families published them, for code of their own.

Their config.json has other fields than transformers writes, and some tensors have other names.
"""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bert_jax.convert import main as convert
from bert_jax.foreign import load_weights, with_adapter
from bert_jax.foreign.families import FAMILIES
from bert_jax.foreign.huggingface import write_huggingface
from bert_jax.kernels.rotary import phases
from tests.foreign.run_model import assert_same_params
from tests.foreign.test_family_files import SIZES, random_weights
from tests.refusals import refused

SIZES_OF_BERT = {
    'vocab_size': SIZES['vocab_size'], 'num_hidden_layers': SIZES['num_layers'],
    'hidden_size': SIZES['hidden_size'], 'num_attention_heads': SIZES['num_heads'],
    'intermediate_size': SIZES['intermediate_size'],
    'max_position_embeddings': SIZES['max_position_embeddings']}
# As in the config.json of nomic-embed-text-v1.5, of nomic-bert-2048 but for the class.
NOMIC = {
    'activation_function': 'swiglu', 'attn_pdrop': 0.1, 'auto_map': {
        'AutoModel': 'nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel'},
    'bos_token_id': None, 'causal': False, 'dense_seq_output': True, 'embd_pdrop': 0.1,
    'eos_token_id': None, 'fused_bias_fc': True, 'fused_dropout_add_ln': True,
    'initializer_range': 0.02, 'layer_norm_epsilon': 1e-5, 'max_trained_positions': 2048,
    'mlp_fc1_bias': False, 'mlp_fc2_bias': False, 'model_type': 'nomic_bert', 'n_embd': 12,
    'n_head': 3, 'n_inner': 10, 'n_layer': 2, 'n_positions': 9, 'pad_vocab_size_multiple': 64,
    'parallel_block': False, 'parallel_block_tied_norm': False, 'prenorm': False,
    'qkv_proj_bias': False, 'reorder_and_upcast_attn': False, 'resid_pdrop': 0.1,
    'rotary_emb_base': 10_000, 'rotary_emb_fraction': 1.0, 'rotary_emb_interleaved': False,
    'rotary_emb_scale_base': None, 'rotary_scaling_factor': None,
    'scale_attn_by_inverse_layer_idx': False, 'scale_attn_weights': True,
    'summary_activation': None, 'summary_first_dropout': 0.1, 'summary_proj_to_labels': True,
    'summary_type': 'cls_index', 'summary_use_proj': True, 'torch_dtype': 'float32',
    'transformers_version': '4.37.2', 'type_vocab_size': 2, 'use_cache': True,
    'use_flash_attn': True, 'use_rms_norm': False, 'use_xentropy': True, 'vocab_size': 40}
# gte-multilingual-base, gte-base-en-v1.5 and their rerankers.
GTE = {
    **SIZES_OF_BERT, 'attention_probs_dropout_prob': 0.1, 'auto_map': {
        'AutoConfig': 'Alibaba-NLP/new-impl--configuration.NewConfig'},
    'classifier_dropout': 0.1, 'hidden_act': 'gelu', 'hidden_dropout_prob': 0.1,
    'initializer_range': 0.02, 'layer_norm_eps': 1e-5, 'layer_norm_type': 'layer_norm',
    'logn_attention_clip1': False, 'logn_attention_scale': False, 'model_type': 'new',
    'pack_qkv': True, 'pad_token_id': 0, 'position_embedding_type': 'rope',
    'rope_scaling': {'factor': 8.0, 'type': 'ntk'}, 'rope_theta': 20_000,
    'torch_dtype': 'float16', 'transformers_version': '4.39.1', 'type_vocab_size': 0,
    'unpad_inputs': False, 'use_memory_efficient_attention': False}
# snowflake-arctic-embed-m-v2.0.
SNOWFLAKE = {**GTE, 'model_type': 'gte', 'rope_scaling': None, 'rope_theta': 160_000,
             'unpad_inputs': 'true', 'use_memory_efficient_attention': 'true'}
EUROBERT = {
    **SIZES_OF_BERT, 'attention_bias': False, 'attention_dropout': 0.1, 'auto_map': {
        'AutoModelForMaskedLM': 'modeling_eurobert.EuroBertForMaskedLM'},
    'bos_token': '<|begin_of_text|>', 'bos_token_id': 0, 'clf_pooling': 'late',
    'eos_token': '<|end_of_text|>', 'eos_token_id': 1, 'head_dim': 4, 'hidden_act': 'silu',
    'hidden_dropout': 0.0, 'initializer_range': 0.02, 'mask_token': '<|mask|>',
    'mask_token_id': 3, 'mlp_bias': False, 'model_type': 'eurobert', 'num_key_value_heads': 1,
    'pad_token': '<|end_of_text|>', 'pad_token_id': 1, 'pretraining_tp': 1, 'rms_norm_eps': 1e-5,
    'rope_scaling': None, 'rope_theta': 10_000, 'tie_word_embeddings': False,
    'torch_dtype': 'bfloat16', 'transformers_version': '4.40.0.dev0', 'use_cache': False}
JINA = {
    **SIZES_OF_BERT, 'architectures': ['XLMRobertaLoRA'], 'attention_probs_dropout_prob': 0.1,
    'auto_map': {
        'AutoModel': 'jinaai/xlm-roberta-flash-implementation--modeling_lora.XLMRobertaLoRA'},
    'bos_token_id': 0, 'classifier_dropout': None, 'emb_pooler': None, 'eos_token_id': 2,
    'hidden_act': 'gelu', 'hidden_dropout_prob': 0.1, 'initializer_range': 0.02,
    'layer_norm_eps': 1e-5, 'load_trained_adapters': True, 'lora_adaptations': [
        'retrieval.query', 'retrieval.passage', 'separation', 'classification', 'text-matching'],
    'lora_alpha': 1, 'lora_dropout_p': 0.0, 'lora_main_params_trainable': False, 'lora_rank': 4,
    'matryoshka_dimensions': [32, 64], 'model_type': 'xlm-roberta', 'output_past': True,
    'pad_token_id': 1, 'position_embedding_type': 'rotary', 'rotary_emb_base': 700.0,
    'task_instructions': {'retrieval.query': 'Represent the query: '}, 'torch_dtype': 'bfloat16',
    'transformers_version': '4.30.2', 'truncate_dim': None, 'type_vocab_size': 2,
    'use_cache': True, 'use_flash_attn': True, 'use_reentrant': False}

# Of each: the family and the class of a model here, and the fields, the class and the beginning of
# the tensors' names that its makers have.
LAYOUTS = {
    'nomic-embed-text-v1.5': ('NomicBERT', 'Model', NOMIC, 'NomicBertModel', ''),
    'nomic-bert-2048': ('NomicBERT', 'ForMaskedLM', NOMIC, 'NomicBertForPreTraining', 'bert.'),
    'gte-multilingual-base': ('GTE', 'Model', GTE, 'NewModel', ''),
    'gte-multilingual-mlm-base': ('GTE', 'ForMaskedLM', GTE, 'NewForMaskedLM', 'new.'),
    'gte-multilingual-reranker-base': (
        'GTE', 'ForSequenceClassification', GTE, 'NewForSequenceClassification', 'new.'),
    'snowflake-arctic-embed-m-v2.0': ('GTE', 'Model', SNOWFLAKE, 'GteModel', ''),
    'EuroBERT-210m': ('EuroBERT', 'ForMaskedLM', EUROBERT, 'EuroBertForMaskedLM', 'model.'),
}


def published(name, folder):
    """Writes a folder of a layout; returns the weights that are in it."""
    family_name, kind, fields, class_name, begin = LAYOUTS[name]
    family = next(family for family in FAMILIES if family.name == family_name)
    architecture = next(x for x in family.architectures if x.name == kind)
    weights = random_weights(family, architecture, architecture.heads[0])
    write_huggingface(folder, weights)
    tensors = {}
    for file_name, x in load_file(folder / 'model.safetensors').items():
        if file_name.startswith(family.prefix):
            file_name = begin + file_name.removeprefix(family.prefix)
        tensors[file_name] = x
    if name == 'nomic-bert-2048':
        for module in ('cls.predictions', 'cls.predictions.transform.dense'):
            tensors[f'{module}.bias'][:] = 0
            del tensors[f'{module}.bias']
        for bias in ('cls/predictions/output_bias', 'cls/predictions/transform/dense/bias'):
            weights.params[bias][:] = 0
    save_file(tensors, folder / 'model.safetensors')
    (folder / 'config.json').write_text(json.dumps({**fields, 'architectures': [class_name]}))
    return weights


@pytest.mark.parametrize('name', LAYOUTS)
def test_a_published_layout_is_read_and_written_as_transformers_has_it(name, tmp_path):
    made = published(name, tmp_path / 'published')
    found = load_weights(tmp_path / 'published')
    assert (found.head, found.unused) == (made.head, ())
    assert_same_params(found.params, made.params)
    options = {**made.model, **ROTARY.get(name, {}), 'classifier_dropout': 0.1}
    differing = {
        option for option, value in found.model.items() if value != options[option]}
    assert differing <= {'classifier_dropout'}
    write_huggingface(tmp_path / 'again', found)
    again = load_weights(tmp_path / 'again')
    assert_same_params(again.params, made.params)
    assert again.model == found.model


NTK = {'rotary_base': 8 * 20_000.0, 'rotary_factor': 8 ** (2 / 4)}
ROTARY = {
    'gte-multilingual-base': NTK,
    'gte-multilingual-mlm-base': NTK,
    'gte-multilingual-reranker-base': NTK,
    'snowflake-arctic-embed-m-v2.0': {'rotary_base': 160_000.0, 'rotary_factor': 1.0},
}


def test_scaled_positions_of_gte_are_those_of_its_makers_code(tmp_path):
    """The formula of their class for 'ntk', which scales at every length."""
    published('gte-multilingual-base', tmp_path / 'gte')
    model = load_weights(tmp_path / 'gte').model
    dims = 4  # of a head
    frequencies = (8 * 20_000.0) ** -(np.arange(0, dims, 2) / dims) / 8 ** (2 / dims)
    expected = np.arange(500)[:, None] * frequencies
    found = np.asarray(
        phases(np.arange(500), dims, model['rotary_base'], model['rotary_factor']), np.float64)
    found *= 2 * np.pi / 2**32
    np.testing.assert_allclose(np.exp(1j * found), np.exp(1j * expected), atol=1e-6)


@pytest.fixture
def jina(tmp_path):
    """(A folder as jina-embeddings-v3 is published, its tensors, the weights without adapters)."""
    family = next(family for family in FAMILIES if family.name == 'jina-embeddings-v3')
    architecture = next(x for x in family.architectures if x.name == 'Model')
    weights = random_weights(family, architecture, '')
    folder = tmp_path / 'jina'
    write_huggingface(folder, weights)
    rng = np.random.default_rng(0)
    tensors = {}
    for name, x in load_file(folder / 'model.safetensors').items():
        module = 'roberta.' + name.removesuffix('.weight')
        if x.ndim == 1:
            tensors['roberta.' + name] = x
            continue
        begin = f'{module}.parametrizations.weight'
        of_a, of_b = (4, x.shape[1]), (x.shape[0], 4)
        if 'embeddings' in name:
            of_a, of_b = of_b, of_a
        tensors[f'{begin}.original'] = x
        tensors[f'{begin}.0.lora_A'] = rng.standard_normal((5, *of_a)).astype(np.float32)
        tensors[f'{begin}.0.lora_B'] = rng.standard_normal((5, *of_b)).astype(np.float32)
    save_file(tensors, folder / 'model.safetensors')
    (folder / 'config.json').write_text(json.dumps(JINA))
    return folder, tensors, weights


def test_jinas_adapters_are_chosen_by_name(jina, tmp_path, capsys):
    """There is no class of transformers with them: what is expected is the published formula."""
    folder, tensors, weights = jina
    base = load_weights(folder)
    note = capsys.readouterr().err
    assert 'names the adapters retrieval.query, retrieval.passage' in note
    assert 'predict and convert add one with --adapter=NAME' in note
    assert_same_params(base.params, weights.params)
    assert base.unused == ()
    assert base.model | {'pooler_dropout': 0.1} == weights.model
    for number, task in enumerate(JINA['lora_adaptations']):
        found = with_adapter(base, task)
        for name, module in (
                ('bert/embeddings/word_embeddings', 'roberta.embeddings.word_embeddings'),
                ('bert/encoder/layer_1/output/dense/kernel', 'roberta.encoder.layers.1.mlp.fc2'),
                ('bert/encoder/layer_0/attention/self/qkv/kernel',
                 'roberta.encoder.layers.0.mixer.Wqkv')):
            original, a, b = (tensors[f'{module}.parametrizations.weight.{leaf}'] for leaf in (
                'original', '0.lora_A', '0.lora_B'))
            product = a[number] @ b[number] if 'embeddings' in name else b[number] @ a[number]
            expected = original + product / 4  # lora_alpha / lora_rank
            if not name.endswith('embeddings'):
                expected = expected.T
            np.testing.assert_allclose(
                found.params[name].reshape(expected.shape), expected, rtol=0, atol=1e-5)
        name = 'bert/embeddings/LayerNorm/scale'
        np.testing.assert_array_equal(found.params[name], base.params[name])
    convert([str(folder), str(tmp_path / 'one'), '--to', 'huggingface', '--adapter', task])
    again = load_weights(tmp_path / 'one')
    assert_same_params(again.params, found.params)
    assert not again.tasks


def test_adapters_that_are_not_there_are_refused(jina):
    folder, tensors, _ = jina
    base = load_weights(folder)
    with refused("no adapter 'query'", 'retrieval.query, retrieval.passage'):
        with_adapter(base, 'query')
    a = 'roberta.encoder.layers.0.mlp.fc1.parametrizations.weight.0.lora_A'
    for changed, says in (
            ({a: tensors[a][:, :2]}, [a, 'lora_rank=4']),
            ({name: x for name, x in tensors.items() if name != a}, ['has no', a])):
        save_file({**tensors, **changed} if len(changed) == 1 else changed,
                  folder / 'model.safetensors')
        with refused(*says):
            with_adapter(base, 'separation')
    plain = {
        name.replace('.parametrizations.weight.original', '.weight'): x
        for name, x in tensors.items() if 'lora_' not in name}
    save_file(plain, folder / 'model.safetensors')
    with refused('lora_adaptations', 'hold no adapter'):
        with_adapter(load_weights(folder), 'separation')
