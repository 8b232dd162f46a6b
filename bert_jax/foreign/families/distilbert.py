"""DistilBERT (Sanh et al., 2019): no segment types, and a dense layer with relu as its pooler."""

from collections.abc import Mapping
from typing import Any

from bert_jax.config.bert_config import Spelling
from bert_jax.foreign.families.bert import ACTS
from bert_jax.foreign.families.family import Architecture, Family
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path

_LAYER = 'distilbert.transformer.layer.{i}'
_CLASSIFIER = {'classifier': 'classifier'}
_POOLER = {'bert/pooler/dense': 'pre_classifier'}
# BERT's names of fields, which transformers reads in place of DistilBERT's if both are there.
_OF_BERT = {
    'hidden_size': 'dim', 'num_attention_heads': 'n_heads', 'num_hidden_layers': 'n_layers'}


def _options_of(config: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """No options; raises InputError if a field contradicts the one that transformers prefers."""
    for of_bert, field in _OF_BERT.items():
        if config.get(of_bert, config[field]) != config[field]:
            raise InputError(f'{where}: {of_bert}={config[of_bert]!r} and {field}='
                             f'{config[field]!r} are one field: give both the right value')
    return {}


DISTILBERT = Family(
    name='DistilBERT',
    model_types={'distilbert': 'DistilBert'},
    prefix='distilbert.',
    modules={
        'bert/embeddings/word_embeddings': 'distilbert.embeddings.word_embeddings.weight',
        'bert/embeddings/position_embeddings': 'distilbert.embeddings.position_embeddings.weight',
        'bert/embeddings/LayerNorm': 'distilbert.embeddings.LayerNorm',
        'bert/encoder/layer_{i}/attention/self/qkv': (
            f'{_LAYER}.attention.q_lin', f'{_LAYER}.attention.k_lin', f'{_LAYER}.attention.v_lin'),
        'bert/encoder/layer_{i}/attention/output/dense': f'{_LAYER}.attention.out_lin',
        'bert/encoder/layer_{i}/attention/output/LayerNorm': f'{_LAYER}.sa_layer_norm',
        'bert/encoder/layer_{i}/intermediate/dense': f'{_LAYER}.ffn.lin1',
        'bert/encoder/layer_{i}/output/dense': f'{_LAYER}.ffn.lin2',
        'bert/encoder/layer_{i}/output/LayerNorm': f'{_LAYER}.output_layer_norm',
    },
    architectures=(
        Architecture('ForMaskedLM', ('pretraining',), {
            'cls/predictions/transform/dense': 'vocab_transform',
            'cls/predictions/transform/LayerNorm': 'vocab_layer_norm',
            'cls/predictions/output_bias': 'vocab_projector.bias'}),
        Architecture(
            'ForSequenceClassification', ('classification', 'regression', 'multi_label'),
            _POOLER | _CLASSIFIER),
        Architecture('ForMultipleChoice', ('multiple_choice',), _POOLER | _CLASSIFIER),
        Architecture('ForTokenClassification', ('token_classification',), _CLASSIFIER),
        Architecture('ForQuestionAnswering', ('question_answering',), {'cls/squad': 'qa_outputs'}),
        Architecture('Model', ('',), {}),
    ),
    tied={'vocab_projector.weight': 'bert/embeddings/word_embeddings'},
    spellings={
        'vocab_size': Spelling('vocab_size'),
        'num_layers': Spelling('n_layers'),
        'hidden_size': Spelling('dim'),
        'num_heads': Spelling('n_heads'),
        'intermediate_size': Spelling('hidden_dim'),
        'max_position_embeddings': Spelling('max_position_embeddings'),
        'hidden_act': Spelling('activation', ACTS),
        'initializer_range': Spelling('initializer_range'),
        'hidden_dropout': Spelling('dropout'),
        'attention_dropout': Spelling('attention_dropout'),
        'classifier_dropout': Spelling('seq_classif_dropout'),
    },
    options={'type_vocab_size': 0, 'pooler_act': 'relu'},
    defaults={'activation': 'gelu', 'seq_classif_dropout': 0.2},
    options_of=_options_of,
)
