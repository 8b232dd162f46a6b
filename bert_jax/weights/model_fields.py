"""The model in the config file of a format: `Weights.model` from it, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bert_jax.config.bert_config import OPTIONS, Format
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path

_TITLES: Mapping[Format, str] = {
    'huggingface': "a Hugging Face folder's config.json", 'tf1': 'a bert_config.json',
}


def read_model(config: Mapping[str, Any], form: Format, where: Path) -> dict[str, Any]:
    """`Weights.model` from a config file.

    Args:
      config: what the file says.
      form: which words it uses.
      where: the file, for messages.

    Raises:
      InputError: a field is missing or cannot be.
    """
    model: dict[str, Any] = {}
    for option in OPTIONS:
        said = option.said(form)
        value = config.get(said.key) if said else None
        if said is None or (value is None and option.default is not None):
            model[option.name] = option.default
            continue
        if value is None:
            raise InputError(f'{where} does not say {said.key}: it is no config of a BERT')
        if said.values and str(value) not in said.values:
            raise InputError(
                f"{where}: {said.key}={value!r} is not one that can be read: "
                f"{', '.join(said.values)}"
            )
        value = said.values[str(value)] if said.values else value
        if fault := option.fault(value):
            raise InputError(f'{where}: {said.key}={value!r} must be {fault}')
        model[option.name] = option.type(value)
    heads, hidden = model['num_heads'], model['hidden_size']
    if hidden % heads:
        said_heads = next(o.said(form) for o in OPTIONS if o.name == 'num_heads')
        raise InputError(
            f'{where}: {said_heads.key if said_heads else ""}={heads} does not divide '
            f'hidden_size={hidden}'
        )
    return model


def write_model(
    model: Mapping[str, Any], form: Format, source: str
) -> tuple[dict[str, Any], list[str]]:
    """(what a config file says of `Weights.model`, what is to be known about it, a line each).

    Args:
      model: every field.
      form: which words the file uses.
      source: of the weights, for messages.

    Raises:
      InputError: the format cannot say a field, so the model would be read as another.
    """
    config, notes = {}, []
    for option in OPTIONS:
        value, said = model[option.name], option.said(form)
        if said is None and value != option.default:
            raise InputError(
                f'{source} has {option.name}={value!r}, which {_TITLES[form]} cannot say: it '
                f'would be read as {option.default!r}, another model; --to bert_jax keeps it'
            )
        if said is None or (said.ours and value == option.default):
            continue
        if said.ours:
            notes.append(
                f"{option.name} is {value}: the original's code has {option.default} fixed"
            )
        words = (word for word, meant in said.values.items() if meant == value)
        config[said.key] = next(words, value)
    return config, notes
