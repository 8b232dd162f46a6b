"""MPNet (Song et al., 2020): RoBERTa with relative positions besides the position table."""

from collections.abc import Mapping
from typing import Any

from bert_jax.foreign.families.bert import DEFAULTS, SPELLINGS
from bert_jax.foreign.families.family import Architecture, Family
from bert_jax.foreign.families.roberta import MASKED_LM, SEQUENCE_CLASSIFICATION, TIED
from bert_jax.runtime.files import Path

_LAYER = 'mpnet.encoder.layer.{i}'
_POOLER = {'bert/pooler/dense': 'mpnet.pooler.dense'}
_CLASSIFIER = {'classifier': 'classifier'}
_PAD_ID = 1  # positions are counted from it plus 1, whatever `pad_token_id` says


def _options_of(config: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """The rates of dropout."""
    rate = config['hidden_dropout_prob']
    return {'classifier_dropout': rate, 'pooler_dropout': rate}


def _fields_of(model: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are the same in all models."""
    return {'pad_token_id': _PAD_ID, 'relative_attention_num_buckets': 32}


MPNET = Family(
    name='MPNet',
    model_types={'mpnet': 'MPNet'},
    prefix='mpnet.',
    modules={
        'bert/embeddings/word_embeddings': 'mpnet.embeddings.word_embeddings.weight',
        'bert/embeddings/position_embeddings': 'mpnet.embeddings.position_embeddings.weight',
        'bert/embeddings/LayerNorm': 'mpnet.embeddings.LayerNorm',
        'bert/relative_positions': 'mpnet.encoder.relative_attention_bias.weight',
        'bert/encoder/layer_{i}/attention/self/qkv': tuple(
            f'{_LAYER}.attention.attn.{part}' for part in 'qkv'),
        'bert/encoder/layer_{i}/attention/output/dense': f'{_LAYER}.attention.attn.o',
        'bert/encoder/layer_{i}/attention/output/LayerNorm': f'{_LAYER}.attention.LayerNorm',
        'bert/encoder/layer_{i}/intermediate/dense': f'{_LAYER}.intermediate.dense',
        'bert/encoder/layer_{i}/output/dense': f'{_LAYER}.output.dense',
        'bert/encoder/layer_{i}/output/LayerNorm': f'{_LAYER}.output.LayerNorm',
    },
    architectures=(
        MASKED_LM,
        SEQUENCE_CLASSIFICATION,
        Architecture('ForMultipleChoice', ('multiple_choice',), _POOLER | _CLASSIFIER),
        Architecture('ForTokenClassification', ('token_classification',), _CLASSIFIER),
        Architecture('ForQuestionAnswering', ('question_answering',), {'cls/squad': 'qa_outputs'}),
        Architecture('Model', ('',), _POOLER),
    ),
    tied=TIED,
    spellings={
        name: spelling for name, spelling in SPELLINGS.items()
        if name not in ('type_vocab_size', 'classifier_dropout')
    },
    options={
        'type_vocab_size': 0, 'first_position': _PAD_ID + 1, 'relative_positions': True},
    only={'relative_attention_num_buckets': 32},
    defaults=DEFAULTS,
    token_ids={'bos_token_id': 'cls_id', 'eos_token_id': 'sep_id'},
    options_of=_options_of,
    fields_of=_fields_of,
)
