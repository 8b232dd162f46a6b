"""UltraBERT: EuroBERT's layers, some of them local, and heads of its own."""

from collections.abc import Mapping
from typing import Any

from bert_jax.config.bert_config import BASE, SIZE, Spelling
from bert_jax.foreign.families.eurobert import (
    ONLY,
    OPTIONS,
    SPELLINGS,
    UNTIED,
    fields_of_heads,
    heads_in,
    kernels_of_llama,
    layers_of_llama,
    misfit_of_tied,
)
from bert_jax.foreign.families.family import Architecture, Family, value_in
from bert_jax.foreign.families.rotary_fields import base_of
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path

_CLASSIFIER = {'classifier': 'classifier'}
_GLOBAL = 'full_attention'
_LOCAL = 'sliding_attention'
_EVERY = 3  # without a list in config.json, the last of each three layers is global
_REACH = 128  # tokens on each side that a local layer sees, if config.json does not say


def _options_of(config: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """The heads of keys and values, the layers' kinds and rotary bases, the masked-LM head's size.

    Raises:
      InputError: the kinds of layers do not repeat regularly, or a field cannot be read.
    """
    options = heads_in(config, where)
    size = value_in(config, 'prediction_head_size', SIZE, where)
    if size != config['hidden_size']:
        options['masked_lm_size'] = size
    kinds, reach = _kinds_and_reach(config, where)
    if _LOCAL in kinds:
        options['local_attention'] = 2 * reach
        options['first_global'], options['global_every'] = _period(kinds, where)
    parameters = config.get('rope_parameters') or _old_bases(config, kinds, where)
    if not isinstance(parameters, dict):
        raise InputError(f'{where}: rope_parameters={parameters!r} does not have an object for '
                         'each kind of layers: download it again')
    if parameters and not {_GLOBAL, _LOCAL} & parameters.keys():
        raise InputError(f'{where}: rope_parameters={parameters!r} cannot be read: it must have an '
                         f'object for {_GLOBAL} and one for {_LOCAL}')
    for option, kind in (('rotary_base', _GLOBAL), ('local_rotary_base', _LOCAL)):
        options[option] = base_of(parameters.get(kind, {}), config, where, old_field=kind)
    return options


def _kinds_and_reach(config: Mapping[str, Any], where: Path) -> tuple[list[str], int]:
    """(The kind of each layer, how many tokens on each side a local layer sees).

    Older files have `attention_windows` instead: the second for each layer, 0 for a global one.
    """
    num_layers = config['num_hidden_layers']
    reach = value_in(config, 'sliding_window', SIZE, where)
    kinds = config.get('layer_types')
    windows = config.get('attention_windows')
    if windows is not None:
        sizes = {window for window in windows if window} if isinstance(windows, list) else set()
        if not isinstance(windows, list) or len(windows) != num_layers or len(sizes) > 1:
            raise InputError(f'{where}: attention_windows={windows!r} cannot be read: it must list '
                             'the same window for all layers that have one')
        reach = max(sizes, default=reach)
        if kinds is None:
            kinds = [_LOCAL if window else _GLOBAL for window in windows]
    if kinds is None:
        kinds = _layer_types(num_layers, _EVERY - 1, _EVERY)
    if not isinstance(kinds, list) or len(kinds) != num_layers or {*kinds} - {_LOCAL, _GLOBAL}:
        raise InputError(f'{where}: layer_types cannot be read: it must list {_LOCAL} or {_GLOBAL} '
                         'for each layer')
    return kinds, reach


def _period(kinds: list[str], where: Path) -> tuple[int, int]:
    """`first_global` and `global_every` with which layers are of these kinds.

    Raises:
      InputError: there are none, as the global layers are not at equal distances.
    """
    num_layers = len(kinds)
    numbers = [i for i, kind in enumerate(kinds) if kind == _GLOBAL]
    if not numbers:
        return num_layers, num_layers + 1
    first = numbers[0]
    period = numbers[1] - first if len(numbers) > 1 else num_layers
    for every in (_EVERY, period):
        if first < every and kinds == _layer_types(num_layers, first, every):
            return first, every
    raise InputError(f'{where}: layer_types cannot be read: one layer of each so many must be '
                     f'{_GLOBAL}, and the others {_LOCAL}')


def _layer_types(num_layers: int, first_global: int, global_every: int) -> list[str]:
    """The kind of each layer."""
    return [_LOCAL if (i - first_global) % global_every else _GLOBAL for i in range(num_layers)]


def _old_bases(config: Mapping[str, Any], kinds: list[str], where: Path) -> dict[str, Any]:
    """`rope_parameters` from `rope_theta`, which lists a base for each layer in older files."""
    bases = config.get('rope_theta')
    if bases is None:
        return {}
    if not isinstance(bases, list) or len(bases) != len(kinds) or any(
            base not in BASE for base in bases):
        raise InputError(f'{where}: rope_theta={bases!r} cannot be read: it must list a number for '
                         'each layer')
    by_kind: dict[str, Any] = {}
    for kind, base in zip(kinds, bases, strict=True):
        if by_kind.setdefault(kind, {'rope_theta': base}) != {'rope_theta': base}:
            raise InputError(f'{where}: rope_theta={bases!r} cannot be read: layers of one kind '
                             'must have one number')
    return by_kind


def _fields_of(model: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `_options_of`, and those that are the same in all models."""
    window = model['local_attention']
    kinds = [_GLOBAL] * model['num_layers']
    if window:
        kinds = _layer_types(model['num_layers'], model['first_global'], model['global_every'])
    bases = {_GLOBAL: model['rotary_base'], _LOCAL: model['local_rotary_base']}
    return {
        **ONLY,
        **UNTIED,
        **fields_of_heads(model),
        'layer_types': kinds,
        'sliding_window': window // 2 or _REACH,
        'prediction_head_size': model['masked_lm_size'] or model['hidden_size'],
        'rope_parameters': {
            kind: {'rope_type': 'default', 'rope_theta': base} for kind, base in bases.items()},
    }


ULTRABERT = Family(
    name='UltraBERT',
    model_types={'ultrabert': 'Ultrabert'},
    prefix='ultrabert.',
    modules=layers_of_llama('ultrabert.'),
    architectures=(
        Architecture('ForMaskedLM', ('pretraining',), {
            'cls/predictions/transform/first': 'head.linear1',
            'cls/predictions/transform/second': 'head.linear2',
            'cls/predictions/output_embeddings': 'cls.weight'}, misfit_of_tied),
        Architecture(
            'ForSequenceClassification', ('classification', 'regression', 'multi_label'),
            _CLASSIFIER),
        Architecture('ForTokenClassification', ('token_classification',), _CLASSIFIER),
        Architecture('ForQuestionAnswering', ('question_answering',), {'cls/squad': 'qa_outputs'}),
        Architecture('Model', ('',), {}),
    ),
    tied={},
    spellings={
        **SPELLINGS,
        'classifier_dropout': Spelling('classifier_dropout'),
        'pooling': Spelling('classifier_pooling', {'cls': 'cls', 'mean': 'mean'}),
    },
    options={**OPTIONS, 'pooler': False, 'masked_lm_head': 'two_layers'},
    only={**ONLY, 'rope_scaling': None},
    defaults={
        'attention_dropout': 0.0,
        'classifier_dropout': 0.0,
        'classifier_pooling': 'cls',
        'hidden_act': 'silu',
        'max_position_embeddings': 32_768,
        'prediction_head_size': 768,
        'rms_norm_eps': 1e-6,
        'sliding_window': _REACH,
        _GLOBAL: 2_560_000.0,  # the rotary bases, if nothing states them
        _LOCAL: 10_000.0,
    },
    token_ids={'bos_token_id': 'cls_id', 'eos_token_id': 'sep_id', 'pad_token_id': 'pad_id'},
    options_of=_options_of,
    fields_of=_fields_of,
    also_named={'head.decoder.': 'cls.'},
    kernels_in_memory={
        'bert/embeddings/word_embeddings': 'model.embed_tokens.weight',
        **kernels_of_llama('model.'),
    },
    prefix_in_memory='model.',
)
