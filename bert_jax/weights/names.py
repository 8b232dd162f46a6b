"""Names of parameters and of model fields: here, in TensorFlow 1 and in Hugging Face files.

One table for both directions. Parameter names are those of a model with unrolled layers
(`bert/encoder/layer_0/...`) and an unpadded vocabulary; `to_tree` and `from_tree` convert between
them and the parameters that the model takes (scanned or unrolled, vocabulary padded).

    The dims' letters are those of `heads.base`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_jax.config.bert_config import OPTIONS, Format
from bert_jax.heads import PARTS
from bert_jax.heads.base import Tensor
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path

_TITLES: Mapping[Format, str] = {
    'huggingface': "a Hugging Face folder's config.json", 'tf1': 'a bert_config.json',
}
_HF_LAYER = 'bert.encoder.layer.{i}.'
_LAYER = 'bert/encoder/layer_{i}/'

_EMBEDDINGS = (
    Tensor('bert/embeddings/word_embeddings', 'bert/embeddings/word_embeddings',
           'bert.embeddings.word_embeddings.weight', 'V,H'),
    Tensor('bert/embeddings/position_embeddings', 'bert/embeddings/position_embeddings',
           'bert.embeddings.position_embeddings.weight', 'P,H'),
    Tensor('bert/embeddings/token_type_embeddings', 'bert/embeddings/token_type_embeddings',
           'bert.embeddings.token_type_embeddings.weight', 'T,H'),
    Tensor('bert/embeddings/LayerNorm/scale', 'bert/embeddings/LayerNorm/gamma',
           'bert.embeddings.LayerNorm.weight', 'H'),
    Tensor('bert/embeddings/LayerNorm/bias', 'bert/embeddings/LayerNorm/beta',
           'bert.embeddings.LayerNorm.bias', 'H'),
)
_LAYERS = (
    Tensor(_LAYER + 'attention/self/qkv/kernel', _LAYER + 'attention/self/{part}/kernel',
           _HF_LAYER + 'attention.self.{part}.weight', 'H,3ND'),
    Tensor(_LAYER + 'attention/self/qkv/bias', _LAYER + 'attention/self/{part}/bias',
           _HF_LAYER + 'attention.self.{part}.bias', '3ND'),
    Tensor(_LAYER + 'attention/output/dense/kernel', _LAYER + 'attention/output/dense/kernel',
           _HF_LAYER + 'attention.output.dense.weight', 'ND,H'),
    Tensor(_LAYER + 'attention/output/dense/bias', _LAYER + 'attention/output/dense/bias',
           _HF_LAYER + 'attention.output.dense.bias', 'H'),
    Tensor(_LAYER + 'attention/output/LayerNorm/scale', _LAYER + 'attention/output/LayerNorm/gamma',
           _HF_LAYER + 'attention.output.LayerNorm.weight', 'H'),
    Tensor(_LAYER + 'attention/output/LayerNorm/bias', _LAYER + 'attention/output/LayerNorm/beta',
           _HF_LAYER + 'attention.output.LayerNorm.bias', 'H'),
    Tensor(_LAYER + 'intermediate/dense/kernel', _LAYER + 'intermediate/dense/kernel',
           _HF_LAYER + 'intermediate.dense.weight', 'H,I'),
    Tensor(_LAYER + 'intermediate/dense/bias', _LAYER + 'intermediate/dense/bias',
           _HF_LAYER + 'intermediate.dense.bias', 'I'),
    Tensor(_LAYER + 'output/dense/kernel', _LAYER + 'output/dense/kernel',
           _HF_LAYER + 'output.dense.weight', 'I,H'),
    Tensor(_LAYER + 'output/dense/bias', _LAYER + 'output/dense/bias',
           _HF_LAYER + 'output.dense.bias', 'H'),
    Tensor(_LAYER + 'output/LayerNorm/scale', _LAYER + 'output/LayerNorm/gamma',
           _HF_LAYER + 'output.LayerNorm.weight', 'H'),
    Tensor(_LAYER + 'output/LayerNorm/bias', _LAYER + 'output/LayerNorm/beta',
           _HF_LAYER + 'output.LayerNorm.bias', 'H'),
)
# Of a model with `bilstm`, which no other format knows.
_BILSTM = tuple(Tensor(name, name, name, dims) for name, dims in (
    ('bilstm/kernel', 'H,24U'), ('bilstm/recurrent_kernel', '2U,4U'), ('bilstm/bias', '24U'),
))
# Arrays with a row for each token of the vocabulary, which the model pads.
VOCABULARY_ROWS = ('bert/embeddings/word_embeddings', 'cls/predictions/output_bias')


def tensors(model: Mapping[str, Any]) -> list[Tensor]:
    """All parameters that a model can have, whatever its head, from `Weights.model`."""
    layers = [
        Tensor(*(field.replace('{i}', str(i)) for field in tensor))
        for i in range(model['num_layers']) for tensor in _LAYERS
    ]
    bilstm = _BILSTM if model.get('bilstm') else ()
    return [*_EMBEDDINGS, *layers, *bilstm, *(tensor for part in PARTS for tensor in part.tensors)]


def sizes_of(model: Mapping[str, Any], num_labels: int = 0) -> dict[str, int]:
    """The size of each dim, by letter, from the fields of `Weights.model`."""
    return {
        'V': model['vocab_size'], 'P': model['max_position_embeddings'],
        'T': model['type_vocab_size'], 'H': model['hidden_size'], 'I': model['intermediate_size'],
        'N': model['num_heads'], 'D': model['hidden_size'] // model['num_heads'],
        'U': model['hidden_size'] // 2, 'L': num_labels,
    }


def to_tree(
    params: Mapping[str, np.ndarray], *, padded_vocab_size: int | None, scan_layers: bool
) -> dict[str, Any]:
    """Parameters as the model takes them: nested dicts.

    Args:
      params: arrays by name, unrolled and unpadded, as in `Weights.params`.
      padded_vocab_size: rows of the word table, filled up with zeros; None: as they are.
      scan_layers: whether layers are stacked along a leading axis under `bert/encoder/layer`.
    """
    flat: dict[str, np.ndarray] = {}
    layers: dict[str, dict[int, np.ndarray]] = {}
    for name, x in params.items():
        if name in VOCABULARY_ROWS and padded_vocab_size is not None:
            x = np.pad(x, [(0, padded_vocab_size - len(x))] + [(0, 0)] * (x.ndim - 1))
        match = re.fullmatch(r'bert/encoder/layer_([0-9]+)/(.*)', name)
        if match and scan_layers:
            layers.setdefault(f'bert/encoder/layer/{match[2]}', {})[int(match[1])] = x
        else:
            flat[name] = x
    for name, by_layer in layers.items():
        flat[name] = np.stack([by_layer[i] for i in range(len(by_layer))])
    tree: dict[str, Any] = {}
    for name, x in flat.items():
        *folders, leaf = name.split('/')
        at = tree
        for folder in folders:
            at = at.setdefault(folder, {})
        at[leaf] = x
    return tree


def from_tree(tree: Mapping[str, Any], vocab_size: int) -> dict[str, np.ndarray]:
    """Parameters by name, unrolled and without padding rows; inverse of `to_tree`.

    Nothing is copied: the arrays are views where they are parts.
    """
    params: dict[str, np.ndarray] = {}
    for name, x in flat_tree(tree).items():
        if name in VOCABULARY_ROWS:
            x = x[:vocab_size]
        if name.startswith('bert/encoder/layer/'):
            rest = name.removeprefix('bert/encoder/layer/')
            params |= {f'bert/encoder/layer_{i}/{rest}': x[i] for i in range(x.shape[0])}
        else:
            params[name] = x
    return params


def tree_shapes(tree: Mapping[str, Any], vocab_size: int) -> dict[str, tuple[int, ...]]:
    """Shapes by name, unrolled and unpadded, of a tree of anything that has a `shape`."""
    def stand_ins(at: Any) -> Any:
        if isinstance(at, Mapping):
            return {key: stand_ins(value) for key, value in at.items()}
        return np.broadcast_to(np.float32(0), at.shape)  # takes no memory

    return {name: x.shape for name, x in from_tree(stand_ins(tree), vocab_size).items()}


def flat_tree(tree: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
    """Leaves of nested dicts by their path, 'bert/pooler/dense/kernel'."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        inner = isinstance(value, Mapping)
        flat |= flat_tree(value, f'{prefix}{key}/') if inner else {prefix + key: value}
    return flat


def read_model(config: Mapping[str, Any], form: Format, where: Path) -> dict[str, Any]:
    """`Weights.model` from a config file.

    Args:
      config: the JSON object in the file.
      form: which words it uses.
      where: the file, for messages.

    Raises:
      InputError: a field is missing or cannot be.
    """
    model: dict[str, Any] = {}
    for option in OPTIONS:
        spelling = option.spelling(form)
        value = config.get(spelling.key) if spelling else None
        if spelling is None or (value is None and option.default is not None):
            model[option.name] = option.default
            continue
        if value is None:
            raise InputError(f'{where} has no {spelling.key}: it is no config of a BERT')
        if spelling.values and str(value) not in spelling.values:
            raise InputError(
                f"{where}: {spelling.key}={value!r} is not one that can be read: "
                f"{', '.join(spelling.values)}"
            )
        value = spelling.values[str(value)] if spelling.values else value
        if fault := option.fault(value):
            raise InputError(f'{where}: {spelling.key}={value!r} must be {fault}')
        model[option.name] = option.type(value)
    heads, hidden = model['num_heads'], model['hidden_size']
    if hidden % heads:
        heads_spelling = next(o.spelling(form) for o in OPTIONS if o.name == 'num_heads')
        raise InputError(
            f'{where}: {heads_spelling.key if heads_spelling else ""}={heads} does not divide '
            f'hidden_size={hidden}'
        )
    return model


def write_model(
    model: Mapping[str, Any], form: Format, source: str
) -> tuple[dict[str, Any], list[str]]:
    """(the fields of a config file for `Weights.model`, notes for the user).

    Args:
      model: every field.
      form: which words the file uses.
      source: of the weights, for messages.

    Raises:
      InputError: the format has no key for a field, so the model would be read as another.
    """
    config, notes = {}, []
    for option in OPTIONS:
        value, spelling = model[option.name], option.spelling(form)
        if spelling is None and value != option.default:
            raise InputError(
                f'{source} has {option.name}={value!r}, which {_TITLES[form]} cannot say: it '
                f'would be read as {option.default!r}, another model; --to bert_jax keeps it'
            )
        if spelling is None or (spelling.ours and value == option.default):
            continue
        if spelling.ours:
            notes.append(
                f"{option.name} is {value}: the original's code has {option.default} fixed"
            )
        words = (word for word, meant in spelling.values.items() if meant == value)
        config[spelling.key] = next(words, value)
    return config, notes
