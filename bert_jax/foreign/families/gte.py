"""GTE's encoders (Zhang et al., 2024): rotary positions and gated layers."""

from collections.abc import Mapping
from typing import Any

from bert_jax.config.bert_config import Spelling
from bert_jax.foreign.families.bert import (
    DEFAULTS,
    EXACT_GELU,
    GELU_OR_SILU,
    SPELLINGS,
    classifier_dropout,
)
from bert_jax.foreign.families.eurobert import kernels_of_llama
from bert_jax.foreign.families.family import Architecture, Family, only_with
from bert_jax.foreign.families.rotary_fields import base_in, fields_of_base
from bert_jax.runtime.files import Path

_LAYER = 'gte.encoder.layer.{i}'
_POOLER = {'bert/pooler/dense': 'gte.pooler.dense'}
_CLASSIFIER = {'classifier': 'classifier'}


def _options_of(config: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """The rotary base, and the rate of dropout before the classifier."""
    return {**classifier_dropout(config, where), 'rotary_base': base_in(config, where)}


def _fields_of(model: Mapping[str, Any]) -> dict[str, Any]:
    """The rotary base."""
    return fields_of_base(model['rotary_base'])


GTE = Family(
    name='GTE',
    model_types={'gte': 'Gte'},
    prefix='gte.',
    modules={
        'bert/embeddings/word_embeddings': 'gte.embeddings.word_embeddings.weight',
        'bert/embeddings/token_type_embeddings': 'gte.embeddings.token_type_embeddings.weight',
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
            misfit=only_with(hidden_act=EXACT_GELU)),  # in its head, whatever the layers have
        Architecture(
            'ForSequenceClassification', ('classification', 'regression', 'multi_label'),
            _POOLER | _CLASSIFIER),
        Architecture('ForTokenClassification', ('token_classification',), _CLASSIFIER),
        Architecture('Model', ('',), {}),
    ),
    tied={'lm_head.decoder.weight': 'bert/embeddings/word_embeddings'},
    spellings={
        **SPELLINGS,
        'hidden_act': Spelling('hidden_act', GELU_OR_SILU),
        'type_vocab_size': Spelling('type_vocab_size'),
    },
    options={'positions': 'rotary', 'gated': True, 'layer_biases': 'not_intermediate'},
    only={'rope_scaling': None},
    defaults={
        **DEFAULTS,
        'attention_probs_dropout_prob': 0.0,
        'type_vocab_size': 1,
        'max_position_embeddings': 8192,
        'rope_theta': 160_000.0,
    },
    options_of=_options_of,
    fields_of=_fields_of,
    also_named={'lm_head.layer_norm.': 'lm_head.norm.'},
    kernels_in_memory=kernels_of_llama('gte.'),
)
