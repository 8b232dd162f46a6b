"""The switches of a vocab.txt's tokenizer, which stand beside it as Hugging Face writes them."""

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path, as_path, write_whole
from bert_jax.text.added import fields_of
from bert_jax.text.settings import SETTINGS_FILE, VOCABULARY_FILE, read_settings
from bert_jax.text.wordpiece import ORIGINAL, Switches


def read_switches(vocab_file: str | os.PathLike[str]) -> Switches:
    """The switches that stand beside a vocab.txt; where none do, the original's.

    So a vocabulary keeps its switches in a Hugging Face folder and in a run directory alike.

    Raises:
      InputError: a file is not a JSON object, or a switch has a wrong type.
    """
    path = as_path(vocab_file)
    if path.name != VOCABULARY_FILE:
        return ORIGINAL
    settings = read_settings(path.parent)
    return dataclasses.replace(
        switches_of(settings.fields, settings.source), added_tokens=settings.added_tokens)


def switches_of(fields: Mapping[str, Any], source: object) -> Switches:
    """The switches among the fields of a tokenizer_config.json; those it lacks are the original's.

    Without added tokens, which other files name too.

    Raises:
      InputError: one has a wrong type; the message names the file as `source`.
    """
    values: dict[str, Any] = {}
    for field in dataclasses.fields(Switches):
        if field.name != 'added_tokens':
            values[field.name] = fields.get(field.name, field.default)
    for name, value in values.items():
        if not _is_allowed(name, value):
            raise InputError(f'{source}: {name}={value!r} is not a value that it can have')
    values['never_split'] = tuple(values['never_split'] or ())
    values['split_special_tokens'] = bool(values['split_special_tokens'])
    values['truncation_side'] = values['truncation_side'] or ORIGINAL.truncation_side
    return Switches(**values)


def _is_allowed(switch: str, value: Any) -> bool:
    """Whether a switch can have a value."""
    if switch == 'never_split':
        words = value or ()
        return isinstance(words, list | tuple) and all(isinstance(word, str) for word in words)
    if switch == 'truncation_side':
        return value in (None, 'left', 'right')
    if switch in ('strip_accents', 'split_special_tokens') and value is None:
        return True
    return isinstance(value, bool)


def write_switches(folder: Path, switches: Switches) -> None:
    """Writes the switches beside the vocab.txt of a folder; the original's need no file."""
    if switches == ORIGINAL:
        (folder / SETTINGS_FILE).unlink(missing_ok=True)
    else:
        write_whole(folder / SETTINGS_FILE, settings_content(switches))


def settings_content(switches: Switches) -> str:
    """The tokenizer_config.json that has these switches."""
    fields = dataclasses.asdict(dataclasses.replace(switches, added_tokens=()))
    del fields['added_tokens']
    for name in ('truncation_side', 'split_special_tokens'):  # older versions do not know them
        if fields[name] == getattr(ORIGINAL, name):
            del fields[name]
    return json.dumps(fields | fields_of(switches.added_tokens)) + '\n'
