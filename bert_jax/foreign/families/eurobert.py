"""EuroBERT (Boizard et al., 2025): RMSNorm, SwiGLU, grouped queries, an untied output layer."""

from collections.abc import Mapping
from typing import Any

from bert_jax.config.bert_config import SIZE, Spelling
from bert_jax.foreign.families.bert import ACTS
from bert_jax.foreign.families.family import (
    Architecture,
    Family,
    Names,
    only_with,
    value_in,
)
from bert_jax.foreign.families.rotary_fields import fields_of_rotary, rotary_in
from bert_jax.runtime.files import Path

_CLASSIFIER = {'classifier': 'classifier'}
SPELLINGS = {
    'vocab_size': Spelling('vocab_size'),
    'num_layers': Spelling('num_hidden_layers'),
    'hidden_size': Spelling('hidden_size'),
    'num_heads': Spelling('num_attention_heads'),
    'intermediate_size': Spelling('intermediate_size'),
    'max_position_embeddings': Spelling('max_position_embeddings'),
    'hidden_act': Spelling('hidden_act', ACTS),
    'layer_norm_eps': Spelling('rms_norm_eps'),
    'initializer_range': Spelling('initializer_range'),
    'attention_dropout': Spelling('attention_dropout'),
}
OPTIONS = {
    'type_vocab_size': 0,
    'embedding_norm': False,
    'positions': 'rotary',
    'pre_norm': True,
    'norm': 'rms',
    'gated': True,
    'layer_biases': 'none',
    'hidden_dropout': 0.0,
}
ONLY = {
    'attention_bias': False,
    'mlp_bias': False,
}
UNTIED = {'tie_word_embeddings': False}
# The output layer is one of its own, so that files of tied ones lack it.
misfit_of_tied = only_with(tie_word_embeddings=(False,))


def kernels_of_llama(prefix: str) -> Names:
    """The names of the layers' matrices in models that name them as Llama does, after a prefix."""
    layer = prefix + 'layers.{i}'
    query, key, value = (f'{layer}.self_attn.{part}_proj' for part in 'qkv')
    return {
        'bert/encoder/layer_{i}/attention/self/qkv': (query, key, value),
        'bert/encoder/layer_{i}/attention/self/query': query,
        'bert/encoder/layer_{i}/attention/self/key_value': (key, value),
        'bert/encoder/layer_{i}/attention/output/dense': f'{layer}.self_attn.o_proj',
        'bert/encoder/layer_{i}/intermediate/dense': (
            f'{layer}.mlp.gate_proj', f'{layer}.mlp.up_proj'),
        'bert/encoder/layer_{i}/output/dense': f'{layer}.mlp.down_proj',
    }


def layers_of_llama(prefix: str) -> Names:
    """The names of embeddings and layers in models that name them as Llama does."""
    layer = prefix + 'layers.{i}'
    return {
        'bert/embeddings/word_embeddings': f'{prefix}embed_tokens.weight',
        'bert/encoder/layer_{i}/attention/LayerNorm': f'{layer}.input_layernorm',
        'bert/encoder/layer_{i}/intermediate/LayerNorm': f'{layer}.post_attention_layernorm',
        'bert/LayerNorm': f'{prefix}norm',
        **kernels_of_llama(prefix),
    }


def heads_in(config: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """The number of heads of keys and values, if it is not that of queries.

    Raises:
      InputError: it is none.
    """
    if config.get('num_key_value_heads') is None:
        return {}
    num = value_in(config, 'num_key_value_heads', SIZE, where)
    return {} if num == config['num_attention_heads'] else {'num_kv_heads': num}


def fields_of_heads(model: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that `heads_in` reads."""
    return {
        'num_key_value_heads': model['num_kv_heads'] or model['num_heads'],
        'head_dim': model['hidden_size'] // model['num_heads'],
    }


def _options_of(config: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """The heads of keys and values, and the rotary positions."""
    return {**heads_in(config, where), **rotary_in(config, where)}


def _fields_of(model: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `_options_of`, and those that are the same in all models."""
    return {**ONLY, **UNTIED, **fields_of_heads(model), **fields_of_rotary(model)}


EUROBERT = Family(
    name='EuroBERT',
    model_types={'eurobert': 'EuroBert'},
    prefix='model.',
    modules=layers_of_llama('model.'),
    architectures=(
        Architecture('ForMaskedLM', ('pretraining',), {
            'cls/predictions/output_embeddings': 'lm_head.weight'}, misfit_of_tied),
        Architecture(
            'ForSequenceClassification', ('classification', 'regression', 'multi_label'),
            {'bert/pooler/dense': 'dense', **_CLASSIFIER}),
        Architecture('ForTokenClassification', ('token_classification',), _CLASSIFIER),
        Architecture('Model', ('',), {}),
    ),
    tied={},
    spellings={
        **SPELLINGS,
        'pooling': Spelling('classifier_pooling', {'late': 'late', 'mean': 'mean', 'bos': 'cls'}),
    },
    options={
        **OPTIONS, 'pooler_act': 'gelu_erf', 'masked_lm_head': 'linear', 'classifier_dropout': 0.0},
    only=ONLY,
    old_fields={'clf_pooling': 'classifier_pooling'},
    defaults={
        'attention_dropout': 0.0,
        'classifier_pooling': 'late',
        'hidden_act': 'silu',
        'max_position_embeddings': 8192,
        'rms_norm_eps': 1e-5,
        'rope_theta': 10_000.0,
    },
    token_ids={
        'bos_token_id': 'cls_id',
        'eos_token_id': 'sep_id',
        'pad_token_id': 'pad_id',
        'mask_token_id': 'mask_id',
    },
    options_of=_options_of,
    fields_of=_fields_of,
)
