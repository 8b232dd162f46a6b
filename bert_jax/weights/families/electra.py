"""ELECTRA (Clark et al., 2020): discriminators and generators."""

from collections.abc import Mapping
from typing import Any

from bert_jax.config.bert_config import SIZE, Spelling
from bert_jax.runtime.files import Path
from bert_jax.weights.families.bert import (
    DEFAULTS,
    ONLY,
    SPELLINGS,
    classifier_dropout,
    layers_of_bert,
)
from bert_jax.weights.families.family import Architecture, Family, value_in

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
            'cls/predictions/output_bias': 'generator_lm_head.bias'}),
        Architecture(
            'ForSequenceClassification', ('classification', 'regression', 'multi_label'),
            {'bert/pooler/dense': 'classifier.dense', 'classifier': 'classifier.out_proj'}),
        Architecture(
            'ForMultipleChoice', ('multiple_choice',),
            {'bert/pooler/dense': 'sequence_summary.summary', **_CLASSIFIER}),
        Architecture('ForTokenClassification', ('token_classification',), _CLASSIFIER),
        Architecture('ForQuestionAnswering', ('question_answering',), {'cls/squad': 'qa_outputs'}),
        Architecture('Model', ('',), {}),
    ),
    tied={'generator_lm_head.weight': 'bert/embeddings/word_embeddings'},
    # The generator's head always has the exact gelu.
    spellings={**SPELLINGS, 'hidden_act': Spelling('hidden_act', {'gelu': 'gelu_erf'})},
    options={'pooler_act': 'gelu_erf'},
    only={
        **ONLY,
        'summary_type': 'first',
        'summary_use_proj': True,
        'summary_activation': 'gelu',
    },
    defaults={**DEFAULTS, 'embedding_size': 128},
    options_of=_options_of,
    fields_of=_fields_of,
)
