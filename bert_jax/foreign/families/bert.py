"""BERT (Devlin et al., 2018) as transformers has it."""

from collections.abc import Mapping
from typing import Any

from bert_jax.config.bert_config import SIZE, Spelling
from bert_jax.foreign.families.family import Architecture, Family, Names
from bert_jax.runtime.files import Path

_POOLER = {'bert/pooler/dense': 'bert.pooler.dense'}
_PREDICTIONS = {
    'cls/predictions/transform/dense': 'cls.predictions.transform.dense',
    'cls/predictions/transform/LayerNorm': 'cls.predictions.transform.LayerNorm',
    'cls/predictions/output_bias': 'cls.predictions.bias',
}
_SEQ_RELATIONSHIP = {'cls/seq_relationship': 'cls.seq_relationship'}
_CLASSIFIER = {'classifier': 'classifier'}
# Activations of layers. Two of transformers' names for gelu mean the exact one, and five its tanh
# form; `quick_gelu` and `gelu_10` are other functions.
ACTS = {
    'gelu': 'gelu_erf',
    'gelu_python': 'gelu_erf',
    'gelu_pytorch_tanh': 'gelu_tanh',
    'gelu_python_tanh': 'gelu_tanh',
    'gelu_accurate': 'gelu_tanh',
    'gelu_new': 'gelu_tanh',
    'gelu_fast': 'gelu_tanh',
    'relu': 'relu',
    'silu': 'silu',
    'swish': 'silu',
}
EXACT_GELU = tuple(word for word, act in ACTS.items() if act == 'gelu_erf')
# Fields of config.json that most families share.
SPELLINGS = {
    'vocab_size': Spelling('vocab_size'),
    'num_layers': Spelling('num_hidden_layers'),
    'hidden_size': Spelling('hidden_size'),
    'num_heads': Spelling('num_attention_heads'),
    'intermediate_size': Spelling('intermediate_size'),
    'max_position_embeddings': Spelling('max_position_embeddings'),
    'type_vocab_size': Spelling('type_vocab_size', allowed=SIZE),
    'hidden_act': Spelling('hidden_act', ACTS),
    'layer_norm_eps': Spelling('layer_norm_eps'),
    'initializer_range': Spelling('initializer_range'),
    'hidden_dropout': Spelling('hidden_dropout_prob'),
    'attention_dropout': Spelling('attention_probs_dropout_prob'),
    'classifier_dropout': Spelling('classifier_dropout'),
}
# Fields of most families that change what transformers computes, with the value that can be read.
ONLY = {
    'position_embedding_type': 'absolute',
    'is_decoder': False,
    'add_cross_attention': False,
}
DEFAULTS = {'hidden_act': 'gelu', 'hidden_dropout_prob': 0.1}


def layers_of_bert(prefix: str) -> Names:
    """The names of embeddings and layers in models that name them as BERT does, after a prefix."""
    layer = prefix + 'encoder.layer.{i}'
    return {
        'bert/embeddings/word_embeddings': f'{prefix}embeddings.word_embeddings.weight',
        'bert/embeddings/position_embeddings': f'{prefix}embeddings.position_embeddings.weight',
        'bert/embeddings/token_type_embeddings':
            f'{prefix}embeddings.token_type_embeddings.weight',
        'bert/embeddings/LayerNorm': f'{prefix}embeddings.LayerNorm',
        'bert/encoder/layer_{i}/attention/self/qkv': (
            f'{layer}.attention.self.query',
            f'{layer}.attention.self.key',
            f'{layer}.attention.self.value'),
        'bert/encoder/layer_{i}/attention/output/dense': f'{layer}.attention.output.dense',
        'bert/encoder/layer_{i}/attention/output/LayerNorm':
            f'{layer}.attention.output.LayerNorm',
        'bert/encoder/layer_{i}/intermediate/dense': f'{layer}.intermediate.dense',
        'bert/encoder/layer_{i}/output/dense': f'{layer}.output.dense',
        'bert/encoder/layer_{i}/output/LayerNorm': f'{layer}.output.LayerNorm',
    }


def classifier_dropout(config: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """The dropout rate before the classifier; if none is stated, the rate of the layers."""
    rate = config.get('classifier_dropout', config['hidden_dropout_prob'])
    return {'classifier_dropout': rate}


BERT = Family(
    name='BERT',
    model_types={'bert': 'Bert'},
    prefix='bert.',
    modules=layers_of_bert('bert.'),
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
    only=ONLY,
    defaults=DEFAULTS,
    options_of=classifier_dropout,
)
