"""Each value of a config by its field's row, and those of the phases by the rows they stand for."""

from typing import Any

from ml_collections import ConfigDict

from bert_jax.config.durations import check_decay_from, check_duration, parse_trace
from bert_jax.config.fields import FIELDS, flat_fields
from bert_jax.config.phases import PHASE_FIELDS, check_skip_steps
from bert_jax.runtime.errors import InputError
from bert_jax.runtime.files import check_scheme
from bert_jax.runtime.schema import Allowed, why_not_allowed

_NEVER_NONE = ('steps', 'decay')  # no weights determine fields of these kinds


def check_values(config: ConfigDict) -> None:
    """Checks that each field has a value which its row allows, whatever the others have.

    Raises:
      InputError: one has not.
    """
    for path, value in flat_fields(config).items():
        allowed = FIELDS[path].allowed
        if value is not None or allowed in _NEVER_NONE:  # else `init_checkpoint` determines it
            _check_value(path, value, allowed)
    for i, phase in enumerate(config.phases):
        for name, value in phase.items():
            if value is not None or name == 'steps':
                _check_value(f'phases[{i}].{name}', value, FIELDS[PHASE_FIELDS[name]].allowed)


def _check_value(path: str, value: Any, allowed: Allowed | str) -> None:
    """Checks a value against its field's `allowed`."""
    if not isinstance(allowed, str):
        why = why_not_allowed(value, allowed)
        if why:
            raise InputError(f'config.{path}={value!r} {why}')
    elif allowed == 'duration':
        check_duration(path, value)
    elif allowed == 'decay':
        check_decay_from(path, value)
    elif allowed == 'trace':
        parse_trace(value, path)
    elif allowed == 'steps':
        check_skip_steps(value)
    elif allowed in ('text', 'path'):
        if not isinstance(value, str) or '\0' in value:
            raise InputError(f'config.{path}={value!r} must be a text')
        if allowed == 'path':
            check_scheme(value, f'config.{path}=')
