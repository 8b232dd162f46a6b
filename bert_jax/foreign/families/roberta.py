"""RoBERTa (Liu et al., 2019), with XLM-R and CamemBERT, which are the same model."""

from collections.abc import Mapping
from typing import Any

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
from bert_jax.runtime.schema import count

# For families whose heads are RoBERTa's.
MASKED_LM = Architecture(
    'ForMaskedLM', ('pretraining',), {
        'cls/predictions/transform/dense': 'lm_head.dense',
        'cls/predictions/transform/LayerNorm': 'lm_head.layer_norm',
        'cls/predictions/output_bias': 'lm_head.bias'},
    misfit=only_with(hidden_act=EXACT_GELU))  # the head always has erf gelu
SEQUENCE_CLASSIFICATION = Architecture(
    'ForSequenceClassification', ('classification', 'regression', 'multi_label'),
    {'bert/pooler/dense': 'classifier.dense', 'classifier': 'classifier.out_proj'})
TIED = {
    'lm_head.decoder.weight': 'bert/embeddings/word_embeddings',
    'lm_head.decoder.bias': 'cls/predictions/output_bias',
}

_POOLER = {'bert/pooler/dense': 'roberta.pooler.dense'}
_CLASSIFIER = {'classifier': 'classifier'}
_IDS = count(2**24, least=-1)  # -1: of no token


def _options_of(config: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """The row of the position table that the first token gets, and the rates of dropout."""
    options = classifier_dropout(config, where)
    options['pooler_dropout'] = options['classifier_dropout']
    # A token's row is the number of tokens before it, plus the id of padding, plus 1.
    options['first_position'] = value_in(config, 'pad_token_id', _IDS, where) + 1
    return options


def _fields_of(model: Mapping[str, Any]) -> dict[str, Any]:
    """The id of padding, from which transformers counts the positions."""
    return {'pad_token_id': model['first_position'] - 1}


ROBERTA = Family(
    name='RoBERTa',
    model_types={'roberta': 'Roberta', 'xlm-roberta': 'XLMRoberta', 'camembert': 'Camembert'},
    prefix='roberta.',
    modules=layers_of_bert('roberta.'),
    architectures=(
        MASKED_LM,
        SEQUENCE_CLASSIFICATION,
        Architecture('ForMultipleChoice', ('multiple_choice',), _POOLER | _CLASSIFIER),
        Architecture('ForTokenClassification', ('token_classification',), _CLASSIFIER),
        Architecture('ForQuestionAnswering', ('question_answering',), {'cls/squad': 'qa_outputs'}),
        Architecture('Model', ('',), _POOLER),
    ),
    tied=TIED,
    spellings=SPELLINGS,
    only=ONLY,
    defaults={**DEFAULTS, 'pad_token_id': 1},
    token_ids={'bos_token_id': 'cls_id', 'eos_token_id': 'sep_id'},
    options_of=_options_of,
    fields_of=_fields_of,
)
