"""The config: a ConfigDict with the default of every field of `config.fields`.

A config file under `configs/` changes fields of `default_config()` and returns it; the command line
changes single fields (`--config.train.steps=1000`). `validation.validate` runs before anything is
built. Below `experiment.py` no function takes this object: they take keyword arguments.

Durations (`train.steps`, `train.eval_every`, `train.save_every`, `train.verify_every`,
`train.log_every`, `optimizer.warmup`, a phase's `steps`) are a number of steps, or a string with
a unit:
`'10%'` (of all steps), `'3 epochs'` or `'100000 examples'`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

try:
    from ml_collections import ConfigDict, config_dict
except ModuleNotFoundError:  # a repository without its requirements: no command can run
    sys.exit('error: ml_collections is not installed: python -m pip install .  (in the repository)')

from bert_jax.config.bert_config import OPTIONS
from bert_jax.config.fields import DURATION, FIELDS, SECTIONS, TASK_FIELDS, Field, task_fields
from bert_jax.runtime.errors import InputError, nearest

# Table 1 of the paper (base, large), the sizes of its Table 6, and the 24 miniatures that
# google-research/bert released in March 2020 (every L with every H, heads of 64, except that the
# release names its four best known tiny, mini, small and medium).
_MINIATURES = {
    f'L-{layers}_H-{hidden}_A-{hidden // 64}': (layers, hidden, hidden // 64)
    for layers in (2, 4, 6, 8, 10, 12)
    for hidden in (128, 256, 512, 768)
}
MODEL_SIZES: Mapping[str, tuple[int, int, int]] = {
    'tiny': (2, 128, 2),
    'mini': (4, 256, 4),
    'small': (4, 512, 8),
    'medium': (8, 512, 8),
    'base': (12, 768, 12),
    'large': (24, 1024, 16),
    **_MINIATURES,
    'L-3_H-768_A-12': (3, 768, 12),
    'L-6_H-768_A-3': (6, 768, 3),
    'L-12_H-1024_A-16': (12, 1024, 16),
    'L-24_H-1024_A-16': (24, 1024, 16),
}

# Model fields that a checkpoint determines: those of MODEL_SIZES, which have no default, and others
# with their default without a checkpoint.
_DECIDED = tuple(o for o in OPTIONS if o.role != 'trains' and o.name != 'vocab_size')
_SIZES = tuple(o.name for o in _DECIDED if o.default is None)
_NUMERICS = {o.name: o.default for o in _DECIDED if o.default is not None}
# A table that may be cut or extended with fresh rows, and a layer that fine-tuning may add.
_RESIZED = ('max_position_embeddings', 'bilstm')


def default_config(task: str = 'pretrain') -> ConfigDict:
    """The default of every field (`config.fields`).

    Args:
      task: its name, which `validation.validate` checks; some tasks add a section of fields.
    """
    c = ConfigDict()
    for path, field in FIELDS.items():
        section, _, name = path.rpartition('.')
        if section and section not in c:
            c[section] = ConfigDict()
        (c[section] if section else c)[name] = _default(path, field)
    c.task = task
    add_section(c, task)
    return c.lock()


def finetuning_config(task: str) -> ConfigDict:
    """The base of fine-tuning recipes (paper section 4.1): 3 epochs, batch 32, 5e-5, scored and
    saved after each epoch. The size is that of `init_checkpoint`."""
    c = default_config(task)
    c.model.name = ''
    c.train.update(steps='3 epochs', batch_size=32, eval_every='1 epoch', save_every='1 epoch',
                   log_every=50)
    c.optimizer.update(learning_rate=5e-5, warmup='10%')
    return c


def _default(path: str, field: Field) -> Any:
    """A default for ConfigDict, which fixes the type of other values."""
    if field.default is None:
        types = {f'model.{o.name}': o.type for o in OPTIONS}
        return config_dict.placeholder(types.get(path, bool))
    if field.allowed == DURATION or path == 'data.source':  # numbers and texts, texts and lists
        return config_dict.FieldReference(field.default, field_type=object)
    return field.default


def add_section(config: ConfigDict, task: str) -> None:
    """Adds the section of a task, with its defaults, if it has one."""
    if section := task_fields(task).section:
        config[section] = ConfigDict({
            name: field.default for name, field in SECTIONS[section].items()})


def fields(config: ConfigDict, prefix: str = '') -> list[str]:
    """Dotted paths of all fields, in order of definition."""
    paths: list[str] = []
    for key in config:
        path = f'{prefix}{key}'
        value = config[key]
        paths += fields(value, path + '.') if isinstance(value, ConfigDict) else [path]
    return paths


def data_config_of(values: Mapping[str, Any]) -> ConfigDict:
    """A config with a run's task and data settings; the model is left to a checkpoint.

    Args:
      values: the fields of the run's `config.json`, by dotted name.
    """
    config = default_config(values['task'])
    config.model.name = ''
    sections = set(config) - set(default_config())  # the task's own
    known = set(fields(config))
    with config.unlocked():
        config.update_from_flattened_dict({
            name: value for name, value in values.items()
            if name in known and name.partition('.')[0] in ('data', *sections)
        })
    return config


def all_fields() -> list[str]:
    """Dotted paths of all fields, with the sections of all tasks."""
    config = default_config()
    paths = fields(config)
    with config.unlocked():
        for task in TASK_FIELDS:
            add_section(config, task)
    return paths + [path for path in fields(config) if path not in paths]


def model_fields(config: ConfigDict, vocab_size: int) -> dict[str, Any]:
    """The fields of `BertConfig` from a completed config and the vocabulary's size."""
    stated = {option.name: config.model[option.name] for option in OPTIONS}
    return stated | model_sizes(config) | {'vocab_size': config.model.vocab_size or vocab_size}


def model_sizes(config: ConfigDict) -> dict[str, int]:
    """num_layers, hidden_size, num_heads, intermediate_size of `model`, named or overridden."""
    m = config.model
    given = (m.num_layers, m.hidden_size, m.num_heads, m.intermediate_size)
    if not m.name and None not in given:
        return dict(zip(_SIZES, given, strict=True))
    name = m.name.lower()
    name = name.removeprefix('bert-').removeprefix('bert_').removeprefix('uncased_')
    known = {key.lower(): value for key, value in MODEL_SIZES.items()}
    if name not in known:
        raise InputError(
            f'config.model.name={m.name!r} is unknown: {nearest(m.name, list(MODEL_SIZES))}'
        )
    layers, hidden, heads = known[name]
    hidden = hidden if m.hidden_size is None else m.hidden_size
    return {
        'num_layers': layers if m.num_layers is None else m.num_layers,
        'hidden_size': hidden,
        'num_heads': heads if m.num_heads is None else m.num_heads,
        'intermediate_size': 4 * hidden if m.intermediate_size is None else m.intermediate_size,
    }


def complete(config: ConfigDict, published: Any = None) -> ConfigDict:
    """A copy with the fields filled in that `init_checkpoint` determines.

    Args:
      config: a whole config.
      published: the weights of `init_checkpoint`, or None without one.

    Raises:
      InputError: the config contradicts the weights, or nothing determines the size.
    """
    c = ConfigDict(config.copy_and_resolve_references())
    c.unlock()
    if published is None:
        if not c.model.name and None in (c.model[size] for size in _SIZES):
            raise InputError(
                'config.model.name is empty, which means the size of config.init_checkpoint: set '
                "one of them, such as --config.init_checkpoint=DIR or --config.model.name='base'"
            )
        for field, value in _NUMERICS.items():
            if c.model[field] is None:
                c.model[field] = value
        c.data.lowercase = c.data.lowercase is not False
        return c.lock()
    if c.model.name:
        c.model.update(model_sizes(c))
    for option in _DECIDED:
        theirs, ours = published.model[option.name], c.model[option.name]
        if ours is None:
            c.model[option.name] = theirs
        elif option.role == 'shape' and ours != theirs and option.name not in _RESIZED:
            raise InputError(
                f'config.model.{option.name}={ours}'
                + (f' (of config.model.name={c.model.name!r})' if c.model.name else '')
                + f', but {published.source} has {theirs}: leave '
                + ('config.model.name empty' if option.name in _SIZES else 'it out')
                + " to take the checkpoint's"
            )
    if c.data.lowercase is None:
        c.data.lowercase = published.lowercase
    if not c.data.vocab_file and published.vocab_file is not None:
        c.data.vocab_file = str(published.vocab_file)
    return c.lock()


def is_complete(config: ConfigDict) -> bool:
    """Whether all fields of the model are known without `init_checkpoint`."""
    needed = _NUMERICS if config.model.name else (*_SIZES, *_NUMERICS)
    return all(config.model[field] is not None for field in needed)


def get_field(config: ConfigDict, path: str) -> Any:
    """The value at a dotted path."""
    value: Any = config
    for part in path.split('.'):
        value = value[part]
    return value
