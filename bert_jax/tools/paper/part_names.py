"""The folder names of a table's parts: digests of what the results of a part depend on.

Tables share parts by these names, and a new version of this program finds the parts of an old one.
"""

import json
from typing import Any

from bert_jax.completion import complete
from bert_jax.config import ConfigDict, model_sizes
from bert_jax.config.fields import FIELDS, LABELLED, field_of, flat_fields, pretraining_kind
from bert_jax.runtime.files import Path
from bert_jax.runtime.hashing import digest

# Fields that tell no parts apart, besides places and logging: the runs of a part have their own
# seeds, sizes stand for the model's name, a table takes the last evaluation, and any mesh will do.
_NOT_HASHED = ('seed', 'model.name', 'train.eval_every', 'mesh.')
# Fields added after parts were made, with the value that fits those. They are left out of the
# digest at that value, where `init_checkpoint` determines them, and where the task does not read
# them, so that the old parts are found.
_ADDED_LATER = {
    'adapter.kind': 'lora',
    'adapter.rank': 0,
    'adapter.alpha': 16.0,
    'adapter.dropout': 0.0,
    'adapter.targets': 'query,value',
    'optimizer.average': 0,
    'optimizer.frozen': '',
    'debug': False,
    'data.split_long_sentences': False,
    'data.strip_accents': None,
    'data.tokenizer': 'wordpiece',
    'data.shuffle_blocks': 1024,
    'data.near_duplicates': 0.0,
    'data.decontaminate': '',
    'data.remove_contaminated': False,
    'data.truncation': '',
    'data.token_types': '',
    'model.embedding_size': 0,
    'model.positions': 'table',
    'model.first_position': 0,
    'model.pre_norm': False,
    'model.gated': False,
    'model.biases': True,
    'model.shared_layers': False,
    'model.layer_biases': 'all',
    'model.num_kv_heads': 0,
    'model.embedding_norm': True,
    'model.norm': 'layer',
    'model.first_global': 0,
    'model.relative_positions': False,
    'model.masked_lm_head': 'bert',
    'model.masked_lm_size': 0,
    'model.pooler': True,
    'model.local_attention': 0,
    'model.global_every': 3,
    'model.rotary_base': 10_000.0,
    'model.local_rotary_base': 10_000.0,
    'model.rotary_factor': 1.0,
    'model.pooling': 'cls',
    'model.pooler_act': 'tanh',
    'model.pooler_norm': False,
    'model.pools_tokens': False,
    'model.pooler_dropout': 0.0,
    'model.initializer': 'normal',
}
_NUM_PREDICTIONS = 'data.max_predictions_per_seq'
_EARLIER_NUM_PREDICTIONS = 20  # the default when parts were made
_PATHS = ('init_checkpoint', 'data.vocab_file')


def part_name(resolved: ConfigDict, root: Path) -> str:
    """The folder name of the part whose runs have this config.

    Args:
      resolved: the config, without the settings in which the runs of the part differ.
      root: the directory of the tables. Paths below it are taken relative to it, so that the
        directory may be moved.
    """
    values = _with_old_defaults(resolved, _all_fields(resolved))
    hashed: dict[str, Any] = {}
    for name, value in values.items():
        if _is_hashed(name, value, resolved.task):
            hashed[name] = value
    for name in _PATHS:
        hashed[name] = str(hashed[name]).removeprefix(f'{root}/')
    text = json.dumps(hashed, sort_keys=True)
    return f'{resolved.task}-{digest(text.encode())[:12]}'


def _all_fields(resolved: ConfigDict) -> dict[str, Any]:
    """The values of all fields by dotted name; those of the model in full, if it starts anew."""
    values = flat_fields(json.loads(resolved.to_json_best_effort()))
    if resolved.init_checkpoint:
        return values
    completed = complete(resolved)
    model = {**completed.model, **model_sizes(completed)}
    for name, value in model.items():
        values[f'model.{name}'] = value
    return values


def _with_old_defaults(resolved: ConfigDict, values: dict[str, Any]) -> dict[str, Any]:
    """The values, with the defaults that fields without effect had when parts were made."""
    values = dict(values)
    task = resolved.task
    if _all_phases_say_num_predictions(resolved) or not pretraining_kind(task):
        values[_NUM_PREDICTIONS] = values[_NUM_PREDICTIONS] or _EARLIER_NUM_PREDICTIONS
    for name in ('data.text', 'data.label'):
        if values[name] is None:
            values[name], *_ = FIELDS[name].formerly
    if not pretraining_kind(task):  # no task of the tables holds rows out of its training set
        values['data.held_out'] = FIELDS['data.held_out'].default
    return values


def _all_phases_say_num_predictions(resolved: ConfigDict) -> bool:
    """Whether there are phases, each with its own number of predictions."""
    for phase in resolved.phases:
        if 'max_predictions_per_seq' not in phase:
            return False
    return bool(resolved.phases)


def _is_hashed(name: str, value: Any, task: str) -> bool:
    """Whether the value of a field is part of the digest."""
    if name.startswith(_NOT_HASHED) or field_of(name).role_of(task) in ('place', 'logging'):
        return False
    if name not in _ADDED_LATER:
        return True
    readers = FIELDS[name].read_by
    is_read = not readers or task in readers or (readers == LABELLED and not pretraining_kind(task))
    return is_read and value not in (None, _ADDED_LATER[name])
