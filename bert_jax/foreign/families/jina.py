"""jina-embeddings-v3 (Sturua et al., 2024): XLM-R with rotary positions."""

from collections.abc import Mapping
from typing import Any

from bert_jax.foreign.families.bert import DEFAULTS, SPELLINGS, classifier_dropout
from bert_jax.foreign.families.eurobert import kernels_of_llama
from bert_jax.foreign.families.family import Architecture, Family
from bert_jax.foreign.families.roberta import MASKED_LM, SEQUENCE_CLASSIFICATION, TIED
from bert_jax.foreign.families.rotary_fields import check_head_dim, fields_of_rotary, rotary_in
from bert_jax.runtime.files import Path

_LAYER = 'roberta.encoder.layers.{i}'
# The rotary base where config.json has none, in transformers and in their makers' code.
_BASE, _BASE_OF_MAKERS = 20_000.0, 10_000.0
_TABLES = {
    'bert/embeddings/word_embeddings': 'roberta.embeddings.word_embeddings.weight',
    'bert/embeddings/token_type_embeddings': 'roberta.embeddings.token_type_embeddings.weight',
}


def _options_of(config: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """The rotary positions, and the rates of dropout.

    Raises:
      InputError: the positions turn only some of a head's dims, or are scaled.
    """
    options = classifier_dropout(config, where)
    options['pooler_dropout'] = options['classifier_dropout']
    check_head_dim(config, where, field='rotary_emb_dim')
    base = _BASE_OF_MAKERS if config.get('model_type') == 'xlm-roberta' else _BASE
    return {**options, **rotary_in({'rope_theta': base, **config}, where)}


JINA = Family(
    name='jina-embeddings-v3',
    model_types={'jina_embeddings_v3': 'JinaEmbeddingsV3'},
    prefix='roberta.',
    modules={
        **_TABLES,
        'bert/embeddings/LayerNorm': 'roberta.emb_ln',
        'bert/encoder/layer_{i}/attention/self/qkv': f'{_LAYER}.mixer.Wqkv',
        'bert/encoder/layer_{i}/attention/output/dense': f'{_LAYER}.mixer.out_proj',
        'bert/encoder/layer_{i}/attention/output/LayerNorm': f'{_LAYER}.norm1',
        'bert/encoder/layer_{i}/intermediate/dense': f'{_LAYER}.mlp.fc1',
        'bert/encoder/layer_{i}/output/dense': f'{_LAYER}.mlp.fc2',
        'bert/encoder/layer_{i}/output/LayerNorm': f'{_LAYER}.norm2',
    },
    architectures=(
        MASKED_LM,
        SEQUENCE_CLASSIFICATION,
        Architecture(
            'ForTokenClassification', ('token_classification',), {'classifier': 'classifier'}),
        Architecture('ForQuestionAnswering', ('question_answering',), {'cls/squad': 'qa_outputs'}),
        Architecture('Model', ('',), {'bert/pooler/dense': 'roberta.pooler.dense'}),
    ),
    tied=TIED,
    spellings=SPELLINGS,
    options={'positions': 'rotary'},
    # The last two are fields of the makers' own code.
    only={
        'is_decoder': False,
        'add_cross_attention': False,
        'rotary_emb_interleaved': False,
        'rotary_emb_scale_base': None,
    },
    defaults={
        **DEFAULTS,
        'type_vocab_size': 1,
        'layer_norm_eps': 1e-5,
        'max_position_embeddings': 8194,
    },
    old_fields={'rotary_emb_base': 'rope_theta'},
    token_ids={'bos_token_id': 'cls_id', 'eos_token_id': 'sep_id'},
    options_of=_options_of,
    fields_of=fields_of_rotary,
    kernels_in_memory={
        **_TABLES,
        **kernels_of_llama('roberta.'),
        'bert/encoder/layer_{i}/intermediate/dense': 'roberta.layers.{i}.mlp.fc1',
        'bert/encoder/layer_{i}/output/dense': 'roberta.layers.{i}.mlp.fc2',
    },
)
