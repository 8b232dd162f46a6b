"""How config.json states rotary positions, and the head dims that they rotate."""

from collections.abc import Mapping
from typing import Any

from bert_jax.config.bert_config import BASE
from bert_jax.foreign.families.family import value_in
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path


def rotary_in(config: Mapping[str, Any], where: Path) -> dict[str, float]:
    """`rotary_base` and `rotary_factor`, from the fields of transformers 5 or of version 4.

    Version 4 has `rope_scaling` and `rope_theta`. If a file has `rope_parameters`, too,
    `rope_scaling` counts, as in transformers 5.

    Raises:
      InputError: the positions are scaled by length, or turn only some of a head's dims, or heads
        have a size of their own.
    """
    field = 'rope_scaling' if config.get('rope_scaling') else 'rope_parameters'
    parameters = config.get(field) or {}
    factor = 1.0
    if isinstance(parameters, dict) and parameters.get(_key_of_type(parameters)) == 'linear':
        factor = float(value_in(parameters, 'factor', BASE, where))
        parameters = {**parameters, _key_of_type(parameters): 'default'}
    base = base_of(parameters, config, where, old_field='rope_theta', field=field)
    return {'rotary_base': base, 'rotary_factor': factor}


def _key_of_type(parameters: Mapping[str, Any]) -> str:
    """The name of the field with the kind of positions; older files have another name."""
    return 'rope_type' if 'rope_type' in parameters else 'type'


def base_of(
    parameters: object, config: Mapping[str, Any], where: Path, *, old_field: str,
    field: str = 'rope_parameters',
) -> float:
    """The base of the rotary positions of one kind of layers.

    Args:
      parameters: `rope_parameters`, or what it has for that kind.
      config: the fields of config.json.
      where: the file, for messages.
      old_field: of `config`, where `parameters` has no base.
      field: that `parameters` is of.

    Raises:
      InputError: the positions are scaled, or turn only some of a head's dims, or heads have a size
        of their own.
    """
    if not isinstance(parameters, dict):
        raise InputError(f'{where}: {field} has {parameters!r} where an object belongs: '
                         'download it again')
    check_head_dim(config, where)
    fraction = 'partial_rotary_factor'
    for place, fields, key, readable in (
            (f'{field}: ', parameters, _key_of_type(parameters), 'default'),
            (f'{field}: ', parameters, fraction, 1.0),
            ('', config, fraction, 1.0)):
        value = fields.get(key, readable)
        if value != readable:
            raise InputError(f'{where}: {place}{key}={value!r} cannot be read: only models with '
                             f'{readable!r} can')
    if 'rope_theta' in parameters:
        return float(value_in(parameters, 'rope_theta', BASE, where))
    return float(value_in(config, old_field, BASE, where))


def check_head_dim(
    config: Mapping[str, Any], where: Path, *, field: str = 'head_dim'
) -> None:
    """Raises InputError if a field is not `hidden_size` divided by the number of heads."""
    head_dim = config.get(field)
    heads = config['num_attention_heads']
    if head_dim is not None and head_dim != config['hidden_size'] / heads:
        raise InputError(f'{where}: {field}={head_dim!r} cannot be read: only models with '
                         f"hidden_size={config['hidden_size']} / num_attention_heads={heads} can")


def fields_of_rotary(model: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_parameters`, where all layers have the same rotary positions."""
    parameters = {'rope_type': 'default', 'rope_theta': model['rotary_base']}
    if model['rotary_factor'] != 1:
        parameters |= {'rope_type': 'linear', 'factor': model['rotary_factor']}
    return {'rope_parameters': parameters}
