"""The fields in which two descriptions of a run differ, whatever version wrote them."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_jax.config.bert_config import OPTIONS
from bert_jax.config.fields import FIELDS, field_of, flat_fields
from bert_jax.config.phases import PHASE_FIELDS, PHASE_OPTIONS

# Values of fields that did not exist when a run was made.
_DEFAULTS = {path: field.default for path, field in FIELDS.items()}
_DEFAULTS |= {f'model.{option.name}': option.default for option in OPTIONS}
# What runs did before there was such a field, where its default is something else.
_BEFORE_FIELDS = {'mesh.message_dtype': 'float32'}


@dataclasses.dataclass(frozen=True)
class Change:
    """A field of a run that has another value when the run is to resume.

    Attributes:
      name: dotted.
      before: the value that the run has in its `config.json`, or else what runs without the field
        did, mostly the default.
      now: the value that it would resume with; None: there is none.
      is_recorded: whether it is known what the run did; older ones lack some fields.
    """

    name: str
    before: Any
    now: Any
    is_recorded: bool


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """The fields in which two descriptions of a run differ, by name.

    Fields that only the old one has do not exist any more. They do not matter, unless they shaped
    the model.

    Args:
      old: the fields of a run's `config.json`, by dotted name.
      new: what it would contain now.
    """
    changes = []
    for name in sorted(old.keys() | new.keys()):
        before = old.get(name, _BEFORE_FIELDS.get(name, _DEFAULTS.get(name)))
        if name not in new and not (name.startswith('model.') and before):
            continue
        now = new.get(name)
        field = field_of(name)
        if field.as_now(before) != field.as_now(now):
            changes.append(Change(name, before, now, name in old or name in _BEFORE_FIELDS))
    return changes


def number_phases(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields, with the list of phases replaced by the fields of each phase, numbered from 1.

    Fields that a phase does not state have the values of the run.
    """
    unstated = {}
    for name in PHASE_OPTIONS:
        if name != 'source':
            path = PHASE_FIELDS[name]
            unstated[name] = fields.get(path, _DEFAULTS.get(path))
    numbered = dict(fields)
    for number, phase in enumerate(numbered.pop('phases', ()), 1):
        numbered |= flat_fields(unstated | phase, f'phases.{number}.')
    return numbered
