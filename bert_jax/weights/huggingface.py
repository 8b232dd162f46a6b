"""Hugging Face folders: `config.json`, `model.safetensors` or shards with an index, `vocab.txt`."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from bert_jax.heads import HEADS, Part, part_of
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, as_path
from bert_jax.weights.description import Weights
from bert_jax.weights.folder import new_folder, write_json
from bert_jax.weights.model_card import model_card
from bert_jax.weights.model_fields import read_model, write_model
from bert_jax.weights.names import tensors
from bert_jax.weights.reading import (
    INFERENCE,
    check_labels,
    find_head,
    read_inference,
    read_json,
    take_params,
)
from bert_jax.weights.tensor_files import StoredTensor, open_tensors, write_tensors
from bert_jax.weights.tokenizer_files import read_tokenizer, write_tokenizer


def read_huggingface(named: str | os.PathLike[str]) -> Weights:
    """A folder written by `save_pretrained` or downloaded: any BERT, base or with a head.

    Raises:
      InputError: something is missing, damaged, contradictory, or no BERT.
    """
    folder = as_path(named)
    config_file = folder / 'config.json'
    config = read_json(config_file, 'a Hugging Face folder holds config.json and model.safetensors')
    if not isinstance(config.get('architectures') or [], list):
        raise InputError(f"{config_file}: architectures={config['architectures']!r} is no list")
    model = read_model(_whole(config), 'huggingface', config_file)
    _refuse_variants(config, config_file)
    with contextlib.ExitStack() as stack:
        where, stored = open_tensors(folder, stack)
        found = _our_spelling(stored)
        params, unused = take_params(
            'huggingface', {name: tensor.shape for name, tensor in found.items()},
            lambda name: found[name].read(), model, str(where), config_file,
        )
        unused = _drop_tied(unused, found, params)
    architecture = str((config.get('architectures') or [''])[0])
    head = find_head(
        params, _head_of(architecture),
        f"{config_file}: architectures says {architecture or 'nothing'}",
    )
    problem = config.get('problem_type')
    if head == 'classification' and problem == HEADS['regression'].problem_type:
        raise InputError(
            f"{config_file}: problem_type is 'regression' with "
            f"{len(params['classifier/bias'])} outputs: one is what can be read"
        )
    if problem == HEADS['multi_label'].problem_type and 'classifier/bias' in params:
        head = 'multi_label'
    labels: tuple[str, ...] = ()
    if HEADS[head].labelled:
        labels = _labels(config, len(params['classifier/bias']), config_file)
    vocab_file, lowercase = read_tokenizer(folder, model['vocab_size'])
    return Weights(
        params, model, head, labels, vocab_file, lowercase, unused,
        f'Hugging Face folder {folder}' + (f' ({architecture})' if architecture else ''),
        read_inference(config, INFERENCE, config_file),
    )


def _whole(config: Mapping[str, Any]) -> dict[str, Any]:
    """With what its code takes where a config is silent, if that is not what ours takes."""
    said = {key: value for key, value in config.items() if value is not None}
    return {'hidden_act': 'gelu', 'classifier_dropout': said.get('hidden_dropout_prob')} | said


def _refuse_variants(config: Mapping[str, Any], where: Path) -> None:
    """Models that look like BERT and compute something else."""
    plain: Mapping[str, tuple[Any, ...]] = {
        'model_type': ('bert', None), 'position_embedding_type': ('absolute', None),
        'is_decoder': (False, None), 'add_cross_attention': (False, None),
    }
    for field, values in plain.items():
        if config.get(field) not in values:
            raise InputError(
                f'{where}: {field}={config[field]!r} is not the BERT of the paper, for which '
                f'{field}={values[0]!r}; only that can be read'
            )


def _our_spelling(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """By the table's names: base models have no `bert.`, old ones gamma and beta.

    Buffers that are no parameters (`position_ids`) are left out.
    """
    base = not any(key.startswith('bert.') for key in stored)
    found = {}
    for key, tensor in stored.items():
        if key.endswith('.position_ids'):
            continue
        name = re.sub(r'LayerNorm\.gamma$', 'LayerNorm.weight', key)
        name = re.sub(r'LayerNorm\.beta$', 'LayerNorm.bias', name)
        if base and name.startswith(('embeddings.', 'encoder.', 'pooler.')):
            name = 'bert.' + name
        found[name] = tensor
    if 'cls.predictions.decoder.bias' in found:
        found.setdefault('cls.predictions.bias', found['cls.predictions.decoder.bias'])
    return found


def _drop_tied(
    unused: tuple[str, ...], found: Mapping[str, StoredTensor], params: Mapping[str, np.ndarray]
) -> tuple[str, ...]:
    """`unused` without copies of what is tied, which must be copies."""
    tied = {
        'cls.predictions.decoder.weight': 'bert/embeddings/word_embeddings',
        'cls.predictions.decoder.bias': 'cls/predictions/output_bias',
    }
    for name in set(unused) & set(tied):
        if not np.array_equal(found[name].read(), params[tied[name]]):
            raise InputError(
                f'{found[name].path}: {name} is not equal to {tied[name]}: a model whose output '
                'layer is not tied to its embeddings cannot be read'
            )
    return tuple(name for name in unused if name not in tied)


def _labels(config: Mapping[str, Any], num_labels: int, where: Path) -> tuple[str, ...]:
    named = config.get('id2label')
    if named is None:
        return tuple(f'LABEL_{i}' for i in range(num_labels))
    try:
        by_id = {int(i): str(label) for i, label in named.items()}
    except (AttributeError, ValueError):
        raise InputError(f'{where}: id2label is no mapping of ids to labels') from None
    if sorted(by_id) != list(range(num_labels)):
        raise InputError(
            f'{where}: id2label names {len(by_id)} labels ({sorted(by_id)[:4]} ...), the '
            f'classifier has {num_labels}: it must name 0 to {num_labels - 1}'
        )
    return check_labels(tuple(by_id[i] for i in range(num_labels)), num_labels, where)


def write_huggingface(folder: str | os.PathLike[str], weights: Weights) -> list[str]:
    """A folder that `from_pretrained` of the class for the head loads, tokenizer included.

    Returns:
      What is to be known about it, a line each.

    Raises:
      InputError: it cannot be written, holds something already, or the weights lack a part of
        their head.
    """
    architecture, parts, notes = _class_of(weights)
    model, _ = write_model(weights.model, 'huggingface', weights.source)
    files: dict[str, np.ndarray] = {}
    left_out = set()
    for tensor in tensors(weights.model):
        if tensor.name not in weights.params:
            continue
        part = part_of(tensor.name)
        if part and part not in parts:
            left_out.add(part.prefix.rstrip('/'))
            continue
        arrays = tensor.to_files('huggingface', weights.params[tensor.name])
        for name, x in zip(tensor.file_names('huggingface'), arrays, strict=True):
            # The encoder by itself goes without the prefix.
            files[name.removeprefix('bert.') if architecture == 'BertModel' else name] = x
    if left_out:
        notes.append(f"left out: {', '.join(sorted(left_out))} ({architecture} has none)")
    with new_folder(as_path(folder)) as beside:
        write_tensors(beside, files)
        write_json(beside / 'config.json', _config(weights, architecture, model))
        (beside / 'README.md').write_text(model_card(weights, architecture), encoding='utf-8')
        notes += write_tokenizer(beside, weights)
    return notes


def _head_of(architecture: str) -> str:
    """The first head whose models are of that class."""
    return next((head.name for head in HEADS.values() if architecture in head.classes), '')


def _class_of(weights: Weights) -> tuple[str, tuple[Part, ...], list[str]]:
    classes = HEADS[weights.head].classes
    for name, parts in classes.items():
        if all(weights.has(part.prefix) for part in parts):
            return name, parts, []
    name, parts = next(iter(classes.items()))
    if name == 'BertModel':
        return name, parts, ['there is no pooler: load it with add_pooling_layer=False']
    missing = next(part.prefix for part in parts if not weights.has(part.prefix))
    raise InputError(f'{weights.source} has no {missing.rstrip("/")}, which {name} needs')


def _config(weights: Weights, architecture: str, model: dict[str, Any]) -> dict[str, Any]:
    config = {
        'architectures': [architecture], 'model_type': 'bert', 'dtype': 'float32',
        'pad_token_id': 0, **model,
    }
    head = HEADS[weights.head]
    if head.problem_type or head.labelled:
        labels = weights.labels or ('LABEL_0',)
        config['id2label'] = {str(i): label for i, label in enumerate(labels)}
        config['label2id'] = {label: i for i, label in enumerate(labels)}
    if head.problem_type:
        config['problem_type'] = head.problem_type
    if weights.inference:
        config[INFERENCE] = dict(weights.inference)
    return config
