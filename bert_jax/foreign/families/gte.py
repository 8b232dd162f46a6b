"""GTE's encoders (Zhang et al., 2024): rotary positions and gated layers.

Their makers' own code (`model_type` `new`) has the same names of tensors, but for their beginning.
"""

from collections.abc import Mapping
from typing import Any

from bert_jax.config.bert_config import BASE, Spelling
from bert_jax.foreign.families.bert import (
    DEFAULTS,
    EXACT_GELU,
    SPELLINGS,
    classifier_dropout,
)
from bert_jax.foreign.families.eurobert import kernels_of_llama
from bert_jax.foreign.families.family import Architecture, Family, only_with, value_in
from bert_jax.foreign.families.rotary_fields import fields_of_rotary, rotary_in
from bert_jax.runtime.files import Path

_LAYER = 'gte.encoder.layer.{i}'
# The rotary base where config.json has none, in transformers and in their makers' code.
_BASE, _BASE_OF_MAKERS = 160_000.0, 10_000.0
_TABLES = {
    'bert/embeddings/word_embeddings': 'gte.embeddings.word_embeddings.weight',
    'bert/embeddings/token_type_embeddings': 'gte.embeddings.token_type_embeddings.weight',
}
_POOLER = {'bert/pooler/dense': 'gte.pooler.dense'}
_CLASSIFIER = {'classifier': 'classifier'}


def _options_of(config: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """The rotary positions, and the rate of dropout before the classifier."""
    base = _BASE_OF_MAKERS if config.get('model_type') == 'new' else _BASE
    fields = _without_ntk({'rope_theta': base, **config}, where)
    return {**classifier_dropout(config, where), **rotary_in(fields, where)}


def _without_ntk(config: Mapping[str, Any], where: Path) -> Mapping[str, Any]:
    """The fields, with linear scaling in place of the 'ntk' of `new`, which computes the same.

    There, 'ntk' multiplies the base by the factor s, and divides the angle of all D dims by
    s^(2 / D).
    """
    scaling = config.get('rope_scaling')
    if not isinstance(scaling, dict) or scaling.get('type') != 'ntk' or scaling.get('mixed_b'):
        return config
    factor = value_in(scaling, 'factor', BASE, where)
    base = value_in(config, 'rope_theta', BASE, where)
    head_dim = config['hidden_size'] / config['num_attention_heads']
    return {**config, 'rope_theta': base * factor, 'rope_scaling': {
        'type': 'linear', 'factor': factor ** (2 / head_dim)}}


GTE = Family(
    name='GTE',
    model_types={'gte': 'Gte', 'new': 'New'},
    prefix='gte.',
    modules={
        **_TABLES,
        'bert/embeddings/LayerNorm': 'gte.embeddings.LayerNorm',
        'bert/encoder/layer_{i}/attention/self/qkv': f'{_LAYER}.attention.qkv_proj',
        'bert/encoder/layer_{i}/attention/output/dense': f'{_LAYER}.attention.o_proj',
        'bert/encoder/layer_{i}/attention/output/LayerNorm': f'{_LAYER}.attn_ln',
        'bert/encoder/layer_{i}/intermediate/dense': f'{_LAYER}.mlp.up_gate_proj',
        'bert/encoder/layer_{i}/output/dense': f'{_LAYER}.mlp.down_proj',
        'bert/encoder/layer_{i}/output/LayerNorm': f'{_LAYER}.mlp_ln',
    },
    swapped=('bert/encoder/layer_{i}/intermediate/dense',),
    architectures=(
        Architecture('ForMaskedLM', ('pretraining',), {
            'cls/predictions/transform/dense': 'lm_head.dense',
            'cls/predictions/transform/LayerNorm': 'lm_head.norm',
            'cls/predictions/output_bias': 'lm_head.decoder.bias'},
            misfit=only_with(hidden_act=EXACT_GELU)),  # the head always has erf gelu
        Architecture(
            'ForSequenceClassification', ('classification', 'regression', 'multi_label'),
            _POOLER | _CLASSIFIER),
        Architecture('ForTokenClassification', ('token_classification',), _CLASSIFIER),
        Architecture('Model', ('',), {}),
    ),
    tied={'lm_head.decoder.weight': 'bert/embeddings/word_embeddings'},
    spellings={
        **SPELLINGS,
        'type_vocab_size': Spelling('type_vocab_size'),
    },
    options={'positions': 'rotary', 'gated': True, 'layer_biases': 'not_intermediate'},
    # Fields that only the makers' own code (`new`) has.
    only={
        'layer_norm_type': 'layer_norm',
        'logn_attention_scale': False,
        'pack_qkv': True,
        'position_embedding_type': 'rope',
    },
    defaults={
        **DEFAULTS,
        'attention_probs_dropout_prob': 0.0,
        'type_vocab_size': 1,
        'max_position_embeddings': 8192,
    },
    options_of=_options_of,
    fields_of=fields_of_rotary,
    also_named={'lm_head.layer_norm.': 'lm_head.norm.', 'new.': 'gte.'},
    kernels_in_memory={**_TABLES, **kernels_of_llama('gte.')},
)
