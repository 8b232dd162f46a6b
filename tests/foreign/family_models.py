"""Tiny random models of transformers, of every family and class, with inputs."""

import inspect

import numpy as np
import torch
import transformers

VOCAB_SIZE = 97
POSITIONS = 48
SIZES = {
    'vocab_size': VOCAB_SIZE,
    'hidden_size': 24,
    'num_hidden_layers': 2,
    'num_attention_heads': 3,
    'intermediate_size': 20,
    'max_position_embeddings': POSITIONS,
}
# The beginning of the classes' names, and the fields of their config beside SIZES. Where layers are
# of two kinds, there are enough of them for one to come back.
VARIANTS = {
    'bert': ('Bert', {'hidden_act': 'gelu_pytorch_tanh', 'layer_norm_eps': 1e-7}),
    'bert with one segment': ('Bert', {'type_vocab_size': 1}),
    'roberta': ('Roberta', {
        'pad_token_id': 1, 'type_vocab_size': 1, 'layer_norm_eps': 1e-5,
        'max_position_embeddings': POSITIONS + 2}),
    'xlm-roberta': ('XLMRoberta', {
        'pad_token_id': 1, 'type_vocab_size': 1, 'max_position_embeddings': POSITIONS + 2}),
    'camembert': ('Camembert', {
        'pad_token_id': 5, 'type_vocab_size': 1, 'max_position_embeddings': POSITIONS + 6}),
    'distilbert': ('DistilBert', {'hidden_dim': 20, 'seq_classif_dropout': 0.25}),
    'electra': ('Electra', {'embedding_size': 24}),
    'electra small': ('Electra', {'embedding_size': 16, 'layer_norm_eps': 1e-7}),
    'modernbert': ('ModernBert', {'local_attention': 8, 'num_hidden_layers': 4}),
    'modernbert of means': ('ModernBert', {
        'local_attention': 10, 'num_hidden_layers': 3, 'classifier_pooling': 'mean',
        'global_attn_every_n_layers': 2, 'norm_eps': 1e-6}),
    'modernbert with biases': ('ModernBert', {
        'attention_bias': True, 'mlp_bias': True, 'norm_bias': True,
        'classifier_bias': True, 'layer_types': ['full_attention'] * 2}),
    'modernbert with some biases': ('ModernBert', {
        'attention_bias': True, 'classifier_bias': True, 'decoder_bias': False,
        'classifier_activation': 'gelu_python'}),
    'modernbert of version 4': ('ModernBert', {
        'local_attention': 8, 'global_rope_theta': 5000.0, 'local_rope_theta': 900.0,
        'num_hidden_layers': 4}),
    'albert': ('Albert', {
        'embedding_size': 16, 'hidden_act': 'gelu_pytorch_tanh', 'layer_norm_eps': 1e-7}),
    'jina': ('JinaEmbeddingsV3', {
        'type_vocab_size': 2,
        'rope_parameters': {'rope_type': 'default', 'rope_theta': 700.0}}),
    'nomic': ('NomicBert', {}),
    'nomic of gelu': ('NomicBert', {'hidden_act': 'gelu_pytorch_tanh', 'type_vocab_size': 1}),
    'gte': ('Gte', {}),
    'gte without segments': ('Gte', {
        'type_vocab_size': 0, 'layer_norm_eps': 1e-6, 'rope_parameters': {
            'rope_type': 'linear', 'factor': 2.5, 'rope_theta': 700.0}}),
    'eurobert': ('EuroBert', {}),
    'eurobert of groups': ('EuroBert', {
        'num_attention_heads': 6, 'num_key_value_heads': 2, 'classifier_pooling': 'mean'}),
    'eurobert of the first token': ('EuroBert', {
        'num_key_value_heads': 1, 'hidden_size': 30, 'classifier_pooling': 'bos',
        'rope_parameters': {'rope_type': 'default', 'rope_theta': 250_000.0}}),
    'mpnet': ('MPNet', {'pad_token_id': 1, 'max_position_embeddings': POSITIONS + 2}),
    'ultrabert': ('Ultrabert', {
        'sliding_window': 3, 'prediction_head_size': 24, 'num_hidden_layers': 4}),
    'ultrabert of means': ('Ultrabert', {
        'num_attention_heads': 6, 'num_key_value_heads': 3, 'classifier_pooling': 'mean',
        'prediction_head_size': 10, 'sliding_window': 4, 'rms_norm_eps': 1e-5,
        'num_hidden_layers': 3,
        'layer_types': ['full_attention', 'sliding_attention', 'full_attention']}),
}
CLASSES = (
    'Model', 'ForMaskedLM', 'ForSequenceClassification', 'ForMultipleChoice',
    'ForTokenClassification', 'ForQuestionAnswering')
# Classes that only these variants have.
MORE_CLASSES = {
    'bert': ('ForPreTraining', 'ForNextSentencePrediction'),
    'albert': ('ForPreTraining',),
    'electra': ('ForPreTraining',),
    'electra small': ('ForPreTraining',),
}
# Those of CLASSES that transformers lacks for these beginnings of names.
LACKING = {
    'JinaEmbeddingsV3': ('ForMultipleChoice',),
    'NomicBert': ('ForMultipleChoice', 'ForQuestionAnswering'),
    'Gte': ('ForMultipleChoice', 'ForQuestionAnswering'),
    'EuroBert': ('ForMultipleChoice', 'ForQuestionAnswering'),
    'Ultrabert': ('ForMultipleChoice',),
}


def classes_of(variant):
    """The classes of a variant."""
    begin, _ = VARIANTS[variant]
    return (
        *(kind for kind in CLASSES if kind not in LACKING.get(begin, ())),
        *MORE_CLASSES.get(variant, ()))


def every_model():
    """(Variant, class) of all models."""
    return [(name, kind) for name in VARIANTS for kind in classes_of(name)]


def random_model(variant, kind, seed=0, scale=0.2, **fields):
    """A model of a class, such as 'ForMaskedLM', with parameters that are all drawn at random."""
    begin, of_variant = VARIANTS[variant]
    torch.manual_seed(seed)
    given = {**SIZES, 'pad_token_id': 0, 'classifier_dropout': 0.25, **of_variant, **fields}
    if begin == 'DistilBert':
        del given['classifier_dropout'], given['intermediate_size']
    if begin in ('EuroBert', 'MPNet', 'Albert'):
        del given['classifier_dropout']
    if begin == 'EuroBert':
        given |= {'mask_token_id': 3}
    if begin in ('ModernBert', 'EuroBert'):
        given |= dict.fromkeys(
            ('bos_token_id', 'eos_token_id', 'cls_token_id', 'sep_token_id'), 2)
    if kind in ('ForSequenceClassification', 'ForTokenClassification'):
        given['id2label'] = {0: 'a', 1: 'b', 2: 'c'}
        given['label2id'] = {'a': 0, 'b': 1, 'c': 2}
    if kind == 'ForSequenceClassification':
        given['problem_type'] = 'single_label_classification'
    config = getattr(transformers, f'{begin}Config')(**given)
    model = getattr(transformers, begin + kind)(config).eval()
    with torch.no_grad():
        for name, x in model.named_parameters():
            x.normal_(0.0, scale)
            if 'norm' in name.lower() and name.endswith('weight'):
                x.add_(1.0)
    return model


def random_inputs(model, length, seed=0):
    """Padded rows [3, length], or [2, 3, length] of choices; padding has its own id."""
    rng = np.random.default_rng(seed)
    config = model.config
    shape = (3, length)
    if type(model).__name__.endswith('ForMultipleChoice'):
        shape = (2, 3, length)
    ids = rng.integers(6, config.vocab_size, shape)
    mask = np.ones(shape, np.int64)
    mask[..., 0, length // 2 :] = 0
    mask[..., 2, length - 3 :] = 0
    types = np.zeros(shape, np.int64)
    if getattr(config, 'type_vocab_size', 1) > 1:
        types[..., length // 3 :] = 1
    return {
        'input_ids': np.where(mask == 1, ids, config.pad_token_id),
        'attention_mask': mask,
        'token_type_ids': types,
    }


def no_dropout(variant):
    """The fields of a config that turn dropout off."""
    begin, _ = VARIANTS[variant]
    names = ('hidden_dropout_prob', 'attention_probs_dropout_prob', 'classifier_dropout')
    if begin == 'DistilBert':
        names = ('dropout', 'attention_dropout', 'seq_classif_dropout')
    if begin in ('ModernBert', 'Ultrabert'):
        names = ('classifier_dropout',)
    if begin == 'Albert':
        names = (*names[:2], 'classifier_dropout_prob')
    if begin == 'EuroBert':
        names = ()
    return dict.fromkeys(names, 0.0)


def arguments_of(model, inputs):
    """Arguments of a model; one without segments is given none."""
    arguments = {name: torch.tensor(x) for name, x in inputs.items()}
    if 'token_type_ids' not in inspect.signature(model.forward).parameters:
        del arguments['token_type_ids']
    return arguments


def outputs_of(model, inputs):
    """Outputs by name."""
    with torch.no_grad():
        found = model(**arguments_of(model, inputs))
    return {name: x.numpy() for name, x in found.items() if hasattr(x, 'numpy')}
