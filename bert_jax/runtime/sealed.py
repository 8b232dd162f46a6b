"""JSON objects that say whether they are what was written: a digest of the rest goes with them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from bert_jax.runtime.errors import InputError

_SEAL = 'digest'


def sealed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """An object as it is to be written, with the digest of what it says."""
    return {**fields, _SEAL: _digest(fields)}


def unsealed(found: Mapping[str, Any], where: object) -> dict[str, Any]:
    """What a sealed object says. One without a seal is older, or somebody has taken it off.

    Raises:
      InputError: it says something else than was written.
    """
    fields = dict(found)
    said = fields.pop(_SEAL, None)
    if said is not None and said != _digest(fields):
        raise InputError(
            f'{where} is not what was written (its "{_SEAL}" is of another content): put it back '
            f'as it was, or take its line "{_SEAL}" out if it was changed on purpose'
        )
    return fields


def _digest(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:32]
