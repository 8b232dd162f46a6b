"""What all readers do: JSON, tensors of the shapes that they ask for, the head."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bert_jax.heads import HEADS, PARTS, POOLER, part_of
from bert_jax.heads.tensors import Format
from bert_jax.runtime.checksum import is_finite
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path
from bert_jax.weights.names import sizes_of, tensors

# The key of `Weights.inference` in the config files of other programs.
INFERENCE = 'bert_jax_inference'


def read_json(path: Path, wanted_for: str) -> dict[str, Any]:
    """A JSON object.

    Raises:
      InputError: it is missing, or something else.
    """
    try:
        value = json.loads(path.read_text(encoding='utf-8'))
    except FileNotFoundError:
        raise InputError(f'{path} is missing: {wanted_for}') from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f'{path} cannot be read as JSON ({error}): {wanted_for}') from None
    if not isinstance(value, dict):
        raise InputError(f'{path} holds no JSON object: {wanted_for}')
    return value


def read_inference(config: Mapping[str, Any], key: str, where: Path) -> dict[str, Any]:
    """`Weights.inference`; InputError where it is no JSON object."""
    said = config.get(key) or {}
    if not isinstance(said, dict):
        raise InputError(f'{where}: {key}={said!r} is no JSON object')
    return said


def take_params(
    form: Format,
    shapes: Mapping[str, tuple[int, ...]],
    read: Callable[[str], np.ndarray],
    model: Mapping[str, Any],
    where: str,
    config_file: Path,
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Our parameters out of the tensors of a file, one at a time, after all shapes are checked.

    Args:
      form: what the tensors are called.
      shapes: of all tensors in the file, by name.
      read: gives a tensor.
      model: `Weights.model`.
      where: the file, for messages.
      config_file: likewise.

    Returns:
      (`Weights.params`, names of tensors that were not taken).

    Raises:
      InputError: a tensor is missing, its shape is not what the config says, or a number in it is
        not finite.
    """
    _check_layers(form, shapes, model, where, config_file)
    table = tensors(model)
    found = {part for part in PARTS for tensor in part.tensors
             if any(name in shapes for name in tensor.file_names(form))}
    wanted = [tensor for tensor in table if part_of(tensor.name) in (None, *found)]
    classifier = next(t for t in table if t.name == 'classifier/bias').file_names(form)[0]
    sizes = sizes_of(model, shapes.get(classifier, (0,))[0])
    for tensor in wanted:
        expected = tensor.file_shape(form, sizes)
        for name in tensor.file_names(form):
            if name not in shapes:
                raise InputError(f'{where} has no tensor {name}: it is not the whole of a model')
            if tuple(shapes[name]) != expected:
                raise InputError(
                    f'{where}: {name} is {list(shapes[name])}, and by {config_file.name} it is '
                    f'{list(expected)}: put the {config_file.name} beside it that belongs to it'
                )
    params = {}
    used: set[str] = set()
    for tensor in wanted:
        names = tensor.file_names(form)
        stored = [read(name) for name in names]
        for name, x in zip(names, stored, strict=True):
            check_finite(name, x, where)
        params[tensor.name] = tensor.from_files(form, stored, sizes)
        used.update(names)
    return params, tuple(sorted(set(shapes) - used))


def check_finite(name: str, x: np.ndarray, where: object) -> None:
    """Refuses a tensor with NaN or infinity: of it everything would be NaN."""
    if not is_finite(x):
        raise InputError(
            f'{where}: {name} holds NaN or infinity, so nothing can be computed with it: take '
            'weights from before they diverged, or copy them again'
        )


def _check_layers(
    form: Format, shapes: Mapping[str, Any], model: Mapping[str, Any], where: str,
    config_file: Path,
) -> None:
    first = next(t for t in tensors(model) if t.name.startswith('bert/encoder/layer_0/'))
    before, _, after = first.file_names(form)[0].partition('0')
    num_found = 0
    while f'{before}{num_found}{after}' in shapes:
        num_found += 1
    if num_found != model['num_layers']:
        raise InputError(
            f'{where} has {num_found} layers, and by {config_file.name} there are '
            f"{model['num_layers']}: put the {config_file.name} beside it that belongs to it"
        )


def find_head(params: Mapping[str, Any], hint: str, said_by: str) -> str:
    """`Weights.head`.

    Args:
      params: by our names.
      hint: the head that the config names, or ''.
      said_by: how the config says so, for messages.

    Raises:
      InputError: the parameters have not the head that the config names.
    """
    def has(head: str) -> bool:
        return any(part_of(name) in HEADS[head].own for name in params)

    pooled = any(part_of(name) is POOLER for name in params)
    if hint and not has(hint):
        raise InputError(
            f'{said_by}, but there is no tensor of such a head: the config contradicts the weights'
        )
    head = hint
    if not head and has('question_answering'):
        head = 'question_answering'
    elif not head and has('classification'):
        head = 'classification' if pooled else 'token_classification'
    elif not head and has('pretraining'):
        head = 'pretraining'
    if head == 'classification' and len(params['classifier/bias']) == 1:
        head = 'regression'
    if not pooled and (HEADS[head].pooled or 'cls/seq_relationship/kernel' in params):
        raise InputError(f'{said_by}, whose head needs a pooler, and there is none')
    return head


def check_head(name: Any, where: Path, any_head: bool = False) -> str:
    """`name`, refused where it is no head that weights can have; any that there is, if so."""
    if name not in HEADS:
        raise InputError(
            f"{where}: head={name!r} is unknown: {', '.join(filter(None, HEADS))}"
        )
    if not (any_head or HEADS[name].portable):
        raise InputError(
            f'{where}: {HEADS[name].title} stays in its run: it can be trained, scored by '
            'bert_jax.evaluate and used by bert_jax.predict, not carried to another'
        )
    return str(name)


def check_labels(labels: tuple[str, ...], num_labels: int, where: Path) -> tuple[str, ...]:
    """`labels`, refused where they are not one different name for each output."""
    if len(labels) != num_labels or len(set(labels)) != num_labels:
        raise InputError(
            f'{where}: labels {list(labels)} for {num_labels} outputs of the classifier: there '
            'must be as many, each once'
        )
    return labels
