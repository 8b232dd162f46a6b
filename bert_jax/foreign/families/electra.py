"""ELECTRA (Clark et al., 2020): discriminators and generators."""

from collections.abc import Mapping
from typing import Any

from bert_jax.config.bert_config import SIZE
from bert_jax.foreign.families.bert import (
    DEFAULTS,
    EXACT_GELU,
    ONLY,
    SPELLINGS,
    classifier_dropout,
    layers_of_bert,
)
from bert_jax.foreign.families.family import Architecture, Family, only_with, value_in
from bert_jax.runtime.files import Path

_CLASSIFIER = {'classifier': 'classifier'}


def _options_of(config: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """The size of the embeddings, and the rates of dropout."""
    options = classifier_dropout(config, where)
    options['pooler_dropout'] = options['classifier_dropout']
    embedding_size = value_in(config, 'embedding_size', SIZE, where)
    if embedding_size != config['hidden_size']:
        options['embedding_size'] = embedding_size
    return options


def _fields_of(model: Mapping[str, Any]) -> dict[str, Any]:
    """The size of the embeddings."""
    return {'embedding_size': model['embedding_size'] or model['hidden_size']}


ELECTRA = Family(
    name='ELECTRA',
    model_types={'electra': 'Electra'},
    prefix='electra.',
    modules={
        **layers_of_bert('electra.'),
        'bert/embeddings_project': 'electra.embeddings_project',
    },
    architectures=(
        Architecture('ForPreTraining', ('replaced_tokens',), {
            'discriminator_predictions/dense': 'discriminator_predictions.dense',
            'discriminator_predictions/dense_prediction':
                'discriminator_predictions.dense_prediction'}),
        Architecture('ForMaskedLM', ('pretraining',), {
            'cls/predictions/transform/dense': 'generator_predictions.dense',
            'cls/predictions/transform/LayerNorm': 'generator_predictions.LayerNorm',
            'cls/predictions/output_bias': 'generator_lm_head.bias'},
            misfit=only_with(hidden_act=EXACT_GELU)),  # the head always has erf gelu
        Architecture(
            'ForSequenceClassification', ('classification', 'regression', 'multi_label'),
            {'bert/pooler/dense': 'classifier.dense', 'classifier': 'classifier.out_proj'}),
        Architecture(
            'ForMultipleChoice', ('multiple_choice',),
            {'bert/pooler/dense': 'sequence_summary.summary', **_CLASSIFIER},
            misfit=only_with(
                summary_type=('first',), summary_use_proj=(True,), summary_activation=EXACT_GELU)),
        Architecture('ForTokenClassification', ('token_classification',), _CLASSIFIER),
        Architecture('ForQuestionAnswering', ('question_answering',), {'cls/squad': 'qa_outputs'}),
        Architecture('Model', ('',), {}),
    ),
    tied={'generator_lm_head.weight': 'bert/embeddings/word_embeddings'},
    spellings=SPELLINGS,
    options={'pooler_act': 'gelu_erf'},
    only=ONLY,
    defaults={**DEFAULTS, 'embedding_size': 128},
    options_of=_options_of,
    fields_of=_fields_of,
)
