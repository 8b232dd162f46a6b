"""NomicBERT (Nussbaum et al., 2024): rotary positions, gated layers, and no biases in them."""

from collections.abc import Mapping
from typing import Any

from bert_jax.foreign.families.bert import DEFAULTS, SPELLINGS, classifier_dropout
from bert_jax.foreign.families.eurobert import kernels_of_llama
from bert_jax.foreign.families.family import Architecture, Family
from bert_jax.foreign.families.rotary_fields import fields_of_rotary, rotary_in
from bert_jax.runtime.files import Path

_LAYER = 'nomic_bert.encoder.layers.{i}'
_TABLES = {
    'bert/embeddings/word_embeddings': 'nomic_bert.embeddings.word_embeddings.weight',
    'bert/embeddings/token_type_embeddings': 'nomic_bert.embeddings.token_type_embeddings.weight',
}
_POOLER = {'bert/pooler/dense': 'nomic_bert.pooler.dense'}
_CLASSIFIER = {'classifier': 'classifier'}


def _options_of(config: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """The rotary positions, and the rate of dropout before the classifier."""
    return {**classifier_dropout(config, where), **rotary_in(config, where)}


NOMIC_BERT = Family(
    name='NomicBERT',
    model_types={'nomic_bert': 'NomicBert'},
    prefix='nomic_bert.',
    modules={
        **_TABLES,
        'bert/embeddings/LayerNorm': 'nomic_bert.emb_ln',
        'bert/encoder/layer_{i}/attention/self/qkv': f'{_LAYER}.attn.Wqkv',
        'bert/encoder/layer_{i}/attention/output/dense': f'{_LAYER}.attn.out_proj',
        'bert/encoder/layer_{i}/attention/output/LayerNorm': f'{_LAYER}.norm1',
        'bert/encoder/layer_{i}/intermediate/dense': (f'{_LAYER}.mlp.fc12', f'{_LAYER}.mlp.fc11'),
        'bert/encoder/layer_{i}/output/dense': f'{_LAYER}.mlp.fc2',
        'bert/encoder/layer_{i}/output/LayerNorm': f'{_LAYER}.norm2',
    },
    architectures=(
        Architecture('ForMaskedLM', ('pretraining',), {
            'cls/predictions/transform/dense': 'cls.predictions.transform.dense',
            'cls/predictions/transform/LayerNorm': 'cls.predictions.transform.layer_norm',
            'cls/predictions/output_bias': 'cls.predictions.bias'}),
        Architecture(
            'ForSequenceClassification', ('classification', 'regression', 'multi_label'),
            _POOLER | _CLASSIFIER),
        Architecture('ForTokenClassification', ('token_classification',), _CLASSIFIER),
        Architecture('Model', ('',), {}),
    ),
    tied={
        'cls.predictions.decoder.weight': 'bert/embeddings/word_embeddings',
        'cls.predictions.decoder.bias': 'cls/predictions/output_bias',
    },
    spellings=SPELLINGS,
    options={'positions': 'rotary', 'gated': True, 'layer_biases': 'none'},
    # Most of these fields are only in the files of version 1.5 and before; transformers lacks them.
    only={
        'activation_function': 'swiglu',
        'causal': False,
        'mlp_fc1_bias': False,
        'mlp_fc2_bias': False,
        'parallel_block': False,
        'prenorm': False,
        'qkv_proj_bias': False,
        'rotary_emb_fraction': 1.0,
        'rotary_emb_interleaved': False,
        'rotary_emb_scale_base': None,
        'rotary_head_dim': False,
        'rotary_scaling_factor': None,
        'use_rms_norm': False,
    },
    old_fields={
        'attn_pdrop': 'attention_probs_dropout_prob',
        'layer_norm_epsilon': 'layer_norm_eps',
        'n_embd': 'hidden_size',
        'n_head': 'num_attention_heads',
        'n_inner': 'intermediate_size',
        'n_layer': 'num_hidden_layers',
        'n_positions': 'max_position_embeddings',
        'resid_pdrop': 'hidden_dropout_prob',
        'rotary_emb_base': 'rope_theta',
    },
    defaults={
        **DEFAULTS,
        'hidden_act': 'silu',
        'hidden_dropout_prob': 0.0,
        'attention_probs_dropout_prob': 0.0,
        'max_position_embeddings': 2048,
        'rope_theta': 1000.0,
    },
    options_of=_options_of,
    fields_of=fields_of_rotary,
    # As the code of its makers has them: there, the masked-LM head has no biases either.
    also_named={'bert.': 'nomic_bert.'},
    zeros_in={'mlp_fc1_bias': ('cls.predictions.transform.dense', 'cls.predictions')},
    kernels_in_memory={**_TABLES, **kernels_of_llama('nomic_bert.')},
)
