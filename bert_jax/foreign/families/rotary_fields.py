"""How config.json states the base of rotary positions, and the dims of heads that they turn."""

from collections.abc import Mapping
from typing import Any

from bert_jax.config.bert_config import BASE
from bert_jax.foreign.families.family import value_in
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import Path


def base_in(config: Mapping[str, Any], where: Path, *, old_field: str = 'rope_theta') -> float:
    """The base that `rope_parameters` of transformers 5 has, or else the field of version 4.

    Raises:
      InputError: the positions are scaled, or turn only some of a head's dims.
    """
    return base_of(config.get('rope_parameters') or {}, config, where, old_field=old_field)


def base_of(
    parameters: object, config: Mapping[str, Any], where: Path, *, old_field: str
) -> float:
    """As `base_in`, from the object of one kind of layers.

    Args:
      parameters: `rope_parameters`, or what it has for that kind.
      config: the fields of config.json.
      where: the file, for messages.
      old_field: of `config`, where `parameters` has no base.
    """
    if not isinstance(parameters, dict):
        raise InputError(f'{where}: rope_parameters has {parameters!r} where an object belongs: '
                         'download it again')
    key_of_type = 'rope_type' if 'rope_type' in parameters else 'type'  # as older files have it
    for key, readable in ((key_of_type, 'default'), ('partial_rotary_factor', 1.0)):
        value = parameters.get(key, readable)
        if value != readable:
            raise InputError(f'{where}: {key}={value!r} cannot be read: only models with '
                             f'{readable!r} can')
    if 'rope_theta' in parameters:
        return float(value_in(parameters, 'rope_theta', BASE, where))
    return float(value_in(config, old_field, BASE, where))


def check_head_dim(config: Mapping[str, Any], where: Path) -> None:
    """Raises InputError if heads have another size than `hidden_size` divided by their number."""
    head_dim = config.get('head_dim')
    heads = config['num_attention_heads']
    if head_dim is not None and head_dim * heads != config['hidden_size']:
        raise InputError(f'{where}: head_dim={head_dim!r} cannot be read: only models with '
                         f"hidden_size={config['hidden_size']} / num_attention_heads={heads} can")


def fields_of_base(base: float) -> dict[str, Any]:
    """`rope_parameters` for a base that all layers have."""
    return {'rope_parameters': {'rope_type': 'default', 'rope_theta': base}}
