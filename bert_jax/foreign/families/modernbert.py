"""ModernBERT (Warner et al., 2024), with Ettin and mmBERT, which are the same model."""

from collections.abc import Mapping
from typing import Any

from bert_jax.config.bert_config import DEPTH, SIZE, Spelling
from bert_jax.foreign.families.bert import ACTS
from bert_jax.foreign.families.family import (
    Architecture,
    Family,
    Misfit,
    only_with,
    value_in,
)
from bert_jax.foreign.families.rotary_fields import base_of
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path

_LAYER = 'model.layers.{i}'
_HEAD = {'bert/pooler/dense': 'head.dense', 'bert/pooler/LayerNorm': 'head.norm'}
_CLASSIFIER = {'classifier': 'classifier'}
# Activations of the head's dense layer, which may be another than that of the layers.
_HEAD_ACTS = {**ACTS, 'tanh': 'tanh'}
_BIASES = ('attention_bias', 'mlp_bias', 'norm_bias', 'classifier_bias')
_GLOBAL = 'full_attention'
_LOCAL = 'sliding_attention'
_WINDOW = 128


def _options_of(config: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """Biases, the layers' kinds and their rotary bases, and the head's activation.

    A model with only some of the biases has all here, and zeros for those that it lacks.

    Raises:
      InputError: the kinds have no period, or a kind of rotary positions is not one that can be
        read.
    """
    biases = [value_in(config, field, (False, True), where) for field in _BIASES]
    value_in(config, 'decoder_bias', (False, True), where)
    head_act = config['classifier_activation']
    if head_act not in _HEAD_ACTS:  # the encoder's class, which alone may have it, has no head
        head_act = config['hidden_activation']
    options = {
        'biases': any(biases),
        'pooler_act': _HEAD_ACTS[head_act],
        'rotary_base': _rotary_base(config, _GLOBAL, 'global_rope_theta', where),
        'local_rotary_base': _rotary_base(config, _LOCAL, 'local_rope_theta', where),
    }
    global_every = _global_every(config, where)
    if global_every > 1:
        options['global_every'] = global_every
        options['local_attention'] = _window(config, where)
    return options


def _window(config: Mapping[str, Any], where: Path) -> int:
    """The tokens of a local layer's window: twice `sliding_window`, or else `local_attention`."""
    if 'sliding_window' in config:
        return 2 * int(value_in(config, 'sliding_window', SIZE, where))
    return int(value_in(config, 'local_attention', SIZE, where))


def _global_every(config: Mapping[str, Any], where: Path) -> int:
    """How many layers there are to each global one; 1: all are global.

    transformers 5 lists the layers' kinds, version 4 has the number.

    Raises:
      InputError: there is no such number.
    """
    stated: int = value_in(config, 'global_attn_every_n_layers', DEPTH, where)
    if 'layer_types' not in config:
        return stated
    num_layers = config['num_hidden_layers']
    kinds = config['layer_types']
    period = num_layers
    if isinstance(kinds, list) and _GLOBAL in kinds[1:]:
        period = kinds.index(_GLOBAL, 1)
    for every in (stated, period):
        if kinds == _layer_types(num_layers, every):
            return every
    raise InputError(f'{where}: layer_types cannot be read: one layer of each so many must be '
                     f'{_GLOBAL}, the first with it, and the others {_LOCAL}')


def _layer_types(num_layers: int, global_every: int) -> list[str]:
    """The kind of each layer."""
    return [_LOCAL if i % global_every else _GLOBAL for i in range(num_layers)]


def _rotary_base(
    config: Mapping[str, Any], kind: str, old_field: str, where: Path
) -> float:
    """The base of a kind of layers, by the names of transformers 5 or 4.

    Raises:
      InputError: the positions are scaled.
    """
    parameters = config.get('rope_parameters', {})
    if not isinstance(parameters, dict):
        raise InputError(f'{where}: rope_parameters={parameters!r} does not have an object for '
                         'each kind of layers: download it again')
    if parameters and not {_GLOBAL, _LOCAL} & parameters.keys():
        raise InputError(f'{where}: rope_parameters={parameters!r:.100} cannot be read: it must '
                         f'have an object for {_GLOBAL} and one for {_LOCAL}')
    return base_of(parameters.get(kind, {}), config, where, old_field=old_field)


def _fields_of(model: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `_options_of`, by the names of transformers 4 and 5."""
    window = model['local_attention']
    global_every = model['global_every'] if window else 1
    bases = {_GLOBAL: model['rotary_base'], _LOCAL: model['local_rotary_base']}
    fields = {
        'layer_types': _layer_types(model['num_layers'], global_every),
        'global_attn_every_n_layers': global_every,
        'local_attention': window or _WINDOW,
        'rope_parameters': {
            kind: {'rope_type': 'default', 'rope_theta': base} for kind, base in bases.items()},
        'global_rope_theta': bases[_GLOBAL],
        'local_rope_theta': bases[_LOCAL],
        'embedding_dropout': model['hidden_dropout'],
    }
    words = [word for word, act in _HEAD_ACTS.items() if act == model['pooler_act']]
    fields['classifier_activation'] = words[0]
    return fields | dict.fromkeys(_BIASES, model['biases'])


def _masked_lm_misfit(config: Mapping[str, Any]) -> Misfit | None:
    """ModernBERT's head has an activation of its own; our head has the activation of the layers."""
    act = config['hidden_activation']
    head_act = config['classifier_activation']
    if _HEAD_ACTS.get(head_act) == ACTS[act]:
        return None
    return Misfit(f'classifier_activation={head_act!r}', f'that of hidden_activation={act!r}')


_classifier_misfit = only_with(classifier_activation=tuple(_HEAD_ACTS))


MODERNBERT = Family(
    name='ModernBERT',
    model_types={'modernbert': 'ModernBert'},
    prefix='model.',
    modules={
        'bert/embeddings/word_embeddings': 'model.embeddings.tok_embeddings.weight',
        'bert/embeddings/LayerNorm': 'model.embeddings.norm',
        'bert/encoder/layer_{i}/attention/LayerNorm': f'{_LAYER}.attn_norm',
        'bert/encoder/layer_{i}/attention/self/qkv': f'{_LAYER}.attn.Wqkv',
        'bert/encoder/layer_{i}/attention/output/dense': f'{_LAYER}.attn.Wo',
        'bert/encoder/layer_{i}/intermediate/LayerNorm': f'{_LAYER}.mlp_norm',
        'bert/encoder/layer_{i}/intermediate/dense': f'{_LAYER}.mlp.Wi',
        'bert/encoder/layer_{i}/output/dense': f'{_LAYER}.mlp.Wo',
        'bert/LayerNorm': 'model.final_norm',
    },
    architectures=(
        Architecture('ForMaskedLM', ('pretraining',), {
            'cls/predictions/transform/dense': 'head.dense',
            'cls/predictions/transform/LayerNorm': 'head.norm',
            'cls/predictions/output_bias': 'decoder.bias'}, _masked_lm_misfit),
        Architecture(
            'ForSequenceClassification', ('classification', 'regression', 'multi_label'),
            _HEAD | _CLASSIFIER, _classifier_misfit),
        Architecture(
            'ForMultipleChoice', ('multiple_choice',), _HEAD | _CLASSIFIER, _classifier_misfit),
        Architecture(
            'ForTokenClassification', ('token_classification',), _HEAD | _CLASSIFIER,
            _classifier_misfit),
        Architecture(
            'ForQuestionAnswering', ('question_answering',), {**_HEAD, 'cls/squad': 'classifier'},
            _classifier_misfit),
        Architecture('Model', ('',), {}),
    ),
    tied={'decoder.weight': 'bert/embeddings/word_embeddings'},
    spellings={
        'vocab_size': Spelling('vocab_size'),
        'num_layers': Spelling('num_hidden_layers'),
        'hidden_size': Spelling('hidden_size'),
        'num_heads': Spelling('num_attention_heads'),
        'intermediate_size': Spelling('intermediate_size'),
        'max_position_embeddings': Spelling('max_position_embeddings'),
        'hidden_act': Spelling('hidden_activation', ACTS),
        'layer_norm_eps': Spelling('norm_eps'),
        'initializer_range': Spelling('initializer_range'),
        'hidden_dropout': Spelling('mlp_dropout'),
        'attention_dropout': Spelling('attention_dropout'),
        'classifier_dropout': Spelling('classifier_dropout'),
        'pooling': Spelling('classifier_pooling', {'cls': 'cls', 'mean': 'mean'}),
    },
    options={
        'type_vocab_size': 0,
        'positions': 'rotary',
        'pre_norm': True,
        'gated': True,
        'pooler_norm': True,
        'pools_tokens': True,
    },
    only={'rope_scaling': None},
    defaults={
        **dict.fromkeys(_BIASES, False),
        'decoder_bias': True,
        'hidden_activation': 'gelu',
        'max_position_embeddings': 8192,
        'norm_eps': 1e-5,
        'mlp_dropout': 0.0,
        'attention_dropout': 0.0,
        'classifier_dropout': 0.0,
        'classifier_activation': 'gelu',
        'global_attn_every_n_layers': 3,
        'local_attention': _WINDOW,
        'global_rope_theta': 160_000.0,
        'local_rope_theta': 10_000.0,
    },
    token_ids={
        'pad_token_id': 'pad_id',
        'bos_token_id': 'cls_id',
        'eos_token_id': 'sep_id',
        'cls_token_id': 'cls_id',
        'sep_token_id': 'sep_id',
    },
    options_of=_options_of,
    fields_of=_fields_of,
    zeros_in={
        'attention_bias': ('.attn.Wqkv', '.attn.Wo'),
        'mlp_bias': ('.mlp.Wi', '.mlp.Wo'),
        'norm_bias': ('norm',),
        'classifier_bias': ('head.dense',),
        'decoder_bias': ('decoder',),
    },
)
