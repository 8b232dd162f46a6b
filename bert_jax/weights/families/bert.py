"""BERT (Devlin et al., 2018) as transformers has it."""

from collections.abc import Mapping
from typing import Any

from bert_jax.config.bert_config import SIZE, Spelling
from bert_jax.runtime.files import Path
from bert_jax.weights.families.family import Architecture, Family

_LAYER = 'bert.encoder.layer.{i}'
_POOLER = {'bert/pooler/dense': 'bert.pooler.dense'}
_PREDICTIONS = {
    'cls/predictions/transform/dense': 'cls.predictions.transform.dense',
    'cls/predictions/transform/LayerNorm': 'cls.predictions.transform.LayerNorm',
    'cls/predictions/output_bias': 'cls.predictions.bias',
}
_SEQ_RELATIONSHIP = {'cls/seq_relationship': 'cls.seq_relationship'}
_CLASSIFIER = {'classifier': 'classifier'}
# transformers' tanh variants all compute the same function.
GELU = {
    'gelu': 'gelu_erf',
    'gelu_python': 'gelu_erf',
    'gelu_pytorch_tanh': 'gelu_tanh',
    'gelu_new': 'gelu_tanh',
    'gelu_fast': 'gelu_tanh',
}
# Fields of config.json that most families share.
SPELLINGS = {
    'vocab_size': Spelling('vocab_size'),
    'num_layers': Spelling('num_hidden_layers'),
    'hidden_size': Spelling('hidden_size'),
    'num_heads': Spelling('num_attention_heads'),
    'intermediate_size': Spelling('intermediate_size'),
    'max_position_embeddings': Spelling('max_position_embeddings'),
    'type_vocab_size': Spelling('type_vocab_size', allowed=SIZE),
    'hidden_act': Spelling('hidden_act', GELU),
    'layer_norm_eps': Spelling('layer_norm_eps'),
    'initializer_range': Spelling('initializer_range'),
    'hidden_dropout': Spelling('hidden_dropout_prob'),
    'attention_dropout': Spelling('attention_probs_dropout_prob'),
    'classifier_dropout': Spelling('classifier_dropout'),
}


def _classifier_dropout(config: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """The rate before the classifier, which is that of the layers where none is stated."""
    rate = config.get('classifier_dropout', config.get('hidden_dropout_prob'))
    return {} if rate is None else {'classifier_dropout': rate}


BERT = Family(
    name='BERT',
    model_types={'bert': 'Bert'},
    prefix='bert.',
    modules={
        'bert/embeddings/word_embeddings': 'bert.embeddings.word_embeddings.weight',
        'bert/embeddings/position_embeddings': 'bert.embeddings.position_embeddings.weight',
        'bert/embeddings/token_type_embeddings': 'bert.embeddings.token_type_embeddings.weight',
        'bert/embeddings/LayerNorm': 'bert.embeddings.LayerNorm',
        'bert/encoder/layer_{i}/attention/self/qkv': (
            f'{_LAYER}.attention.self.query',
            f'{_LAYER}.attention.self.key',
            f'{_LAYER}.attention.self.value'),
        'bert/encoder/layer_{i}/attention/output/dense': f'{_LAYER}.attention.output.dense',
        'bert/encoder/layer_{i}/attention/output/LayerNorm':
            f'{_LAYER}.attention.output.LayerNorm',
        'bert/encoder/layer_{i}/intermediate/dense': f'{_LAYER}.intermediate.dense',
        'bert/encoder/layer_{i}/output/dense': f'{_LAYER}.output.dense',
        'bert/encoder/layer_{i}/output/LayerNorm': f'{_LAYER}.output.LayerNorm',
    },
    architectures=(
        Architecture(
            'ForPreTraining', ('pretraining',), _POOLER | _PREDICTIONS | _SEQ_RELATIONSHIP),
        Architecture('ForMaskedLM', ('pretraining',), _PREDICTIONS),
        Architecture('ForNextSentencePrediction', ('pretraining',), _POOLER | _SEQ_RELATIONSHIP),
        Architecture(
            'ForSequenceClassification', ('classification', 'regression', 'multi_label'),
            _POOLER | _CLASSIFIER),
        Architecture('ForMultipleChoice', ('multiple_choice',), _POOLER | _CLASSIFIER),
        Architecture('ForTokenClassification', ('token_classification',), _CLASSIFIER),
        Architecture('ForQuestionAnswering', ('question_answering',), {'cls/squad': 'qa_outputs'}),
        Architecture('Model', ('',), _POOLER),
    ),
    tied={
        'cls.predictions.decoder.weight': 'bert/embeddings/word_embeddings',
        'cls.predictions.decoder.bias': 'cls/predictions/output_bias',
    },
    spellings=SPELLINGS,
    only={
        'position_embedding_type': 'absolute',
        'is_decoder': False,
        'add_cross_attention': False,
    },
    defaults={'hidden_act': 'gelu'},
    options_of=_classifier_dropout,
)
