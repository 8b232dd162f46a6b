"""ALBERT (Lan et al., 2020): layers share parameters, and embeddings are narrower than layers."""

from collections.abc import Mapping
from typing import Any

from bert_jax.config.bert_config import SIZE, Spelling
from bert_jax.foreign.families.bert import ONLY, SPELLINGS
from bert_jax.foreign.families.family import Architecture, Family, value_in
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path

_LAYER = 'albert.encoder.albert_layer_groups.{i}.albert_layers.0'
_TABLE = 'albert.embeddings.{}_embeddings.weight'
_POOLER = {'bert/pooler/dense': 'albert.pooler'}
_PREDICTIONS = {
    'cls/predictions/transform/dense': 'predictions.dense',
    'cls/predictions/transform/LayerNorm': 'predictions.LayerNorm',
    'cls/predictions/output_bias': 'predictions.bias',
}
_CLASSIFIER = {'classifier': 'classifier'}
_ONE_LAYER = {'num_hidden_groups': 1, 'inner_group_num': 1}


def _options_of(config: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """The size of the embeddings.

    Raises:
      InputError: it is that of the layers. Even then transformers has a projection between the two,
        which models here do not have.
    """
    size = value_in(config, 'embedding_size', SIZE, where)
    if size == config['hidden_size']:
        raise InputError(f'{where}: embedding_size={size} cannot be read: of ALBERT models, only '
                         'those with another hidden_size can')
    return {'embedding_size': size}


def _fields_of(model: Mapping[str, Any]) -> dict[str, Any]:
    """The size of the embeddings, and the fields that are the same in all models."""
    return _ONE_LAYER | {'embedding_size': model['embedding_size'] or model['hidden_size']}


ALBERT = Family(
    name='ALBERT',
    model_types={'albert': 'Albert'},
    prefix='albert.',
    modules={
        'bert/embeddings/word_embeddings': _TABLE.format('word'),
        'bert/embeddings/position_embeddings': _TABLE.format('position'),
        'bert/embeddings/token_type_embeddings': _TABLE.format('token_type'),
        'bert/embeddings/LayerNorm': 'albert.embeddings.LayerNorm',
        'bert/embeddings_project': 'albert.encoder.embedding_hidden_mapping_in',
        'bert/encoder/layer_{i}/attention/self/qkv': tuple(
            f'{_LAYER}.attention.{part}' for part in ('query', 'key', 'value')),
        'bert/encoder/layer_{i}/attention/output/dense': f'{_LAYER}.attention.dense',
        'bert/encoder/layer_{i}/attention/output/LayerNorm': f'{_LAYER}.attention.LayerNorm',
        'bert/encoder/layer_{i}/intermediate/dense': f'{_LAYER}.ffn',
        'bert/encoder/layer_{i}/output/dense': f'{_LAYER}.ffn_output',
        'bert/encoder/layer_{i}/output/LayerNorm': f'{_LAYER}.full_layer_layer_norm',
    },
    architectures=(
        # Its sentence-order head is left out: `cls/seq_relationship` predicts another label.
        Architecture('ForPreTraining', ('pretraining',), _POOLER | _PREDICTIONS),
        Architecture('ForMaskedLM', ('pretraining',), _PREDICTIONS),
        Architecture(
            'ForSequenceClassification', ('classification', 'regression', 'multi_label'),
            _POOLER | _CLASSIFIER),
        Architecture('ForMultipleChoice', ('multiple_choice',), _POOLER | _CLASSIFIER),
        Architecture('ForTokenClassification', ('token_classification',), _CLASSIFIER),
        Architecture('ForQuestionAnswering', ('question_answering',), {'cls/squad': 'qa_outputs'}),
        Architecture('Model', ('',), _POOLER),
    ),
    tied={
        'predictions.decoder.weight': 'bert/embeddings/word_embeddings',
        'predictions.decoder.bias': 'cls/predictions/output_bias',
    },
    spellings={**SPELLINGS, 'classifier_dropout': Spelling('classifier_dropout_prob')},
    options={'shared_layers': True},
    only={**ONLY, **_ONE_LAYER},
    defaults={
        'attention_probs_dropout_prob': 0.0,
        'classifier_dropout_prob': 0.1,
        'embedding_size': 128,
        'hidden_act': 'gelu_new',
        'hidden_dropout_prob': 0.0,
    },
    token_ids={'bos_token_id': 'cls_id', 'eos_token_id': 'sep_id'},
    options_of=_options_of,
    fields_of=_fields_of,
)
