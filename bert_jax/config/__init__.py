"""The config: a ConfigDict with the default of every field of `config.fields`.

A config file under `configs/` changes fields of `default_config()` and returns it; the command line
changes single fields (`--config.train.steps=1000`). `validation.validate` runs before anything is
built. Below `tasks/` no function takes this object: they take keyword arguments.

Durations (`train.steps`, `train.eval_every`, `train.save_every`, `train.verify_every`,
`train.log_every`, `optimizer.warmup`, a phase's `steps`) are a number of steps, or a string with
a unit: `'10%'` (of all steps), `'3 epochs'` or `'100000 examples'`.
"""

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

try:
    from ml_collections import ConfigDict, config_dict
except ModuleNotFoundError:  # requirements are not installed, so no command can run
    sys.exit('error: ml_collections is not installed: python -m pip install .  (in the repository)')

from bert_jax.config.bert_config import OPTIONS
from bert_jax.config.fields import FIELDS, SECTIONS, Field, flat_fields, section_of
from bert_jax.runtime.errors import InputError, nearest

# Layers, width and heads: Table 1 of the paper (base, large), and the names that
# google-research/bert's release of March 2020 gives to four of its 24 miniatures. Any other size
# has a name too, such as L-8_H-512_A-8.
MODEL_SIZES: Mapping[str, tuple[int, int, int]] = {
    'tiny': (2, 128, 2),
    'mini': (4, 256, 4),
    'small': (4, 512, 8),
    'medium': (8, 512, 8),
    'base': (12, 768, 12),
    'large': (24, 1024, 16),
}
_SPELLED_SIZE = re.compile('l-([1-9][0-9]*)_h-([1-9][0-9]*)_a-([1-9][0-9]*)')
# What fine-tuning starts from: the paper's BERT-Base, by its names on the Hugging Face hub.
UNCASED = 'hf:google-bert/bert-base-uncased'
CASED = 'hf:google-bert/bert-base-cased'
SIZES = ('num_layers', 'hidden_size', 'num_heads', 'intermediate_size')  # have no default
# Model options that a checkpoint determines.
DECIDED = tuple(
    option for option in OPTIONS if option.effect != 'trains' and option.name != 'vocab_size')
_Options = TypeVar('_Options')
_TYPES_OF_OPTIONS = {f'model.{option.name}': option.type for option in OPTIONS}


def default_config(task: str = 'pretrain') -> ConfigDict:
    """The default of every field (`config.fields`).

    Args:
      task: name of the task, which only `validation.validate` checks. Some tasks have a section of
        fields of their own.
    """
    tree: dict[str, Any] = {}
    for path, field in FIELDS.items():
        section, _, name = path.rpartition('.')
        if section in SECTIONS and section != section_of(task):
            continue
        value = _default_value(path, field, task)
        if section:
            tree.setdefault(section, {})[name] = value
        else:
            tree[name] = value
    tree['task'] = task
    return ConfigDict(tree).lock()


def _default_value(path: str, field: Field, task: str) -> Any:
    """The default of a field, as a ConfigDict holds a value of its type or of any."""
    default = field.default_of(task)
    if default is None:
        usual = str if field.allowed == 'text' else bool
        return config_dict.placeholder(_TYPES_OF_OPTIONS.get(path, usual))
    if field.allowed == 'duration' or path == 'data.source':  # its type may change
        return config_dict.FieldReference(default, field_type=object)
    return default


def finetuning_config(task: str, init_checkpoint: str = UNCASED) -> ConfigDict:
    """The base of fine-tuning recipes (paper section 4.1): 3 epochs, batch 32, 5e-5.

    A run is scored and saved after each epoch. The size is that of `init_checkpoint`, a published
    BERT-Base.
    """
    config = default_config(task)
    config.init_checkpoint = init_checkpoint
    config.model.name = ''
    config.train.steps = '3 epochs'
    config.train.batch_size = 32
    config.train.eval_every = '1 epoch'
    config.train.save_every = '1 epoch'
    config.train.log_every = 50
    config.optimizer.learning_rate = 5e-5
    config.optimizer.warmup = '10%'
    return config


def data_config_of(values: Mapping[str, Any]) -> ConfigDict:
    """A config with a run's task and data settings; the model is left to a checkpoint.

    Args:
      values: the fields of the run's `config.json`, by dotted name.
    """
    task = values['task']
    config = default_config(task)
    config.model.name = ''
    sections = ('data.', f'{section_of(task)}.')
    recorded = {}
    for path in flat_fields(config):
        if path.startswith(sections) and path in values:
            recorded[path] = FIELDS[path].as_now(values[path])
    with config.unlocked():
        config.update_from_flattened_dict(recorded)
    return config


def options_of(
    reader: Callable[..., _Options], section: ConfigDict, **stated: Any
) -> _Options:
    """The options of the code that reads a section.

    Args:
      reader: a dataclass whose fields have the names of the section's, or a function of such; it
        may lack some of them.
      section: such as `config.optimizer`; it may lack fields of the reader.
      **stated: values instead of the section's.

    Raises:
      InputError: the reader refuses a value.
    """
    names = inspect.signature(reader).parameters
    values = {name: section[name] for name in names if name in section}
    return reader(**{**values, **stated})


def model_fields(config: ConfigDict, vocab_size: int) -> dict[str, Any]:
    """The fields of `BertConfig` from a completed config and the vocabulary's size."""
    stated = {option.name: config.model[option.name] for option in OPTIONS}
    return stated | model_sizes(config) | {'vocab_size': config.model.vocab_size or vocab_size}


def model_sizes(config: ConfigDict) -> dict[str, int]:
    """num_layers, hidden_size, num_heads and intermediate_size of `model`, named or overridden.

    Raises:
      InputError: `model.name` is unknown.
    """
    model = config.model
    given = {size: model[size] for size in SIZES if model[size] is not None}
    if not model.name and len(given) == len(SIZES):
        return given
    num_layers, hidden_size, num_heads = size_named(model.name)
    intermediate_size = 4 * given.get('hidden_size', hidden_size)
    sizes = (num_layers, hidden_size, num_heads, intermediate_size)
    return dict(zip(SIZES, sizes, strict=True)) | given


def size_named(model_name: str, field: str = 'config.model.name') -> tuple[int, ...]:
    """Layers, width and heads of a name, with or without what releases write before it.

    Args:
      model_name: as in `MODEL_SIZES`, or spelled like L-12_H-768_A-12.
      field: what messages call it.

    Raises:
      InputError: there is no such name.
    """
    name = re.sub('^(bert[-_])?(uncased_)?', '', model_name.lower())
    spelled = _SPELLED_SIZE.fullmatch(name)
    if spelled is not None:
        return tuple(map(int, spelled.groups()))
    if name in MODEL_SIZES:
        return MODEL_SIZES[name]
    known = [*MODEL_SIZES, 'L-12_H-768_A-12']
    raise InputError(f'{field}={model_name!r} is unknown: {nearest(model_name, known)}')
