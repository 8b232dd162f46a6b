"""The config: a ConfigDict with the default of every field of `config.fields`.

A config file under `configs/` changes fields of `default_config()` and returns it; the command line
changes single fields (`--config.train.steps=1000`). `validation.validate` runs before anything is
built. Below `tasks/` no function takes this object: they take keyword arguments.

Durations (`train.steps`, `train.eval_every`, `train.save_every`, `train.verify_every`,
`train.log_every`, `optimizer.warmup`, a phase's `steps`) are a number of steps, or a string with
a unit: `'10%'` (of all steps), `'3 epochs'` or `'100000 examples'`.
"""

import re
import sys
from collections.abc import Mapping
from typing import Any

try:
    from ml_collections import ConfigDict, config_dict
except ModuleNotFoundError:  # requirements are not installed, so no command can run
    sys.exit('error: ml_collections is not installed: python -m pip install .  (in the repository)')

from bert_jax.config.bert_config import OPTIONS
from bert_jax.config.fields import FIELDS, SECTIONS, flat_fields, section_of
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
# What fine-tuning starts from: the paper's BERT-Base, by its names on the Hugging Face hub.
UNCASED, CASED = 'hf:google-bert/bert-base-uncased', 'hf:google-bert/bert-base-cased'
SIZES = ('num_layers', 'hidden_size', 'num_heads', 'intermediate_size')  # have no default
# Model options that a checkpoint determines.
DECIDED = tuple(o for o in OPTIONS if o.effect != 'trains' and o.name != 'vocab_size')


def default_config(task: str = 'pretrain') -> ConfigDict:
    """The default of every field (`config.fields`).

    Args:
      task: name of the task, which only `validation.validate` checks. Some tasks have a section of
        fields of their own.
    """
    tree: dict[str, Any] = {}
    types = {f'model.{o.name}': o.type for o in OPTIONS}
    for path, field in FIELDS.items():
        section, _, name = path.rpartition('.')
        if section in SECTIONS and section != section_of(task):
            continue
        default: Any = field.default_of(task)
        if default is None:
            default = config_dict.placeholder(types.get(path, bool))
        elif field.allowed == 'duration' or path == 'data.source':  # its type may change
            default = config_dict.FieldReference(default, field_type=object)
        (tree.setdefault(section, {}) if section else tree)[name] = default
    return ConfigDict(tree | {'task': task}).lock()


def finetuning_config(task: str, init_checkpoint: str = UNCASED) -> ConfigDict:
    """The base of fine-tuning recipes (paper section 4.1): 3 epochs, batch 32, 5e-5.

    A run is scored and saved after each epoch. The size is that of `init_checkpoint`, a published
    BERT-Base.
    """
    c = default_config(task)
    c.init_checkpoint = init_checkpoint
    c.model.name = ''
    c.train.update(steps='3 epochs', batch_size=32, eval_every='1 epoch', save_every='1 epoch',
                   log_every=50)
    c.optimizer.update(learning_rate=5e-5, warmup='10%')
    return c


def data_config_of(values: Mapping[str, Any]) -> ConfigDict:
    """A config with a run's task and data settings; the model is left to a checkpoint.

    Args:
      values: the fields of the run's `config.json`, by dotted name.
    """
    config = default_config(values['task'])
    config.model.name = ''
    kept = ('data.', f"{section_of(values['task'])}.")
    with config.unlocked():
        config.update_from_flattened_dict({
            path: values[path] for path in flat_fields(config)
            if path in values and path.startswith(kept)})
    return config


def model_fields(config: ConfigDict, vocab_size: int) -> dict[str, Any]:
    """The fields of `BertConfig` from a completed config and the vocabulary's size."""
    stated = {option.name: config.model[option.name] for option in OPTIONS}
    return stated | model_sizes(config) | {'vocab_size': config.model.vocab_size or vocab_size}


def model_sizes(config: ConfigDict) -> dict[str, int]:
    """num_layers, hidden_size, num_heads and intermediate_size of `model`, named or overridden.

    Raises:
      InputError: `model.name` is unknown.
    """
    m = config.model
    given = {size: m[size] for size in SIZES if m[size] is not None}
    if not m.name and len(given) == len(SIZES):
        return given
    name = re.sub('^(bert[-_])?(uncased_)?', '', m.name.lower())
    if spelled := re.fullmatch('l-([1-9][0-9]*)_h-([1-9][0-9]*)_a-([1-9][0-9]*)', name):
        layers, hidden, heads = map(int, spelled.groups())
    elif name in MODEL_SIZES:
        layers, hidden, heads = MODEL_SIZES[name]
    else:
        raise InputError(f'config.model.name={m.name!r} is unknown: '
                         + nearest(m.name, [*MODEL_SIZES, 'L-12_H-768_A-12']))
    sizes = (layers, hidden, heads, 4 * given.get('hidden_size', hidden))
    return dict(zip(SIZES, sizes, strict=True)) | given
