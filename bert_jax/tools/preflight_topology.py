"""Slices of TPUs that need not exist, for their compiler."""

from __future__ import annotations

import importlib.util
import re
from typing import Any

from bert_jax.runtime.errors import InputError

_DIMS = {'v4': 3, 'v5p': 3, 'v5e': 2, 'v6e': 2}
_LONGEST = {'v4': 16, 'v5p': 24, 'v5e': 16, 'v6e': 16}  # dim of a pod: beyond, libtpu aborts


def open_topology(name: str) -> list[Any]:
    """The devices of a slice that need not exist, for the compiler alone.

    Raises:
      InputError: there is no such slice, or no libtpu.
    """
    match = re.fullmatch(r'(\w+):([1-9]\d*(?:x[1-9]\d*)*)', name)
    chip = match[1] if match else ''
    if match is None or chip not in _DIMS:
        raise InputError(
            f'--topology={name!r} is not a slice: write one of {", ".join(_DIMS)} and its shape in '
            'chips, such as v5e:16x16 or v4:4x4x4'
        )
    shape = [int(dim) for dim in match[2].split('x')]
    if len(shape) != _DIMS[chip] or max(shape) > _LONGEST[chip]:
        raise InputError(
            f'--topology={name!r}: a slice of {chip} has {_DIMS[chip]} dims of at most '
            f'{_LONGEST[chip]} chips'
        )
    if importlib.util.find_spec('libtpu') is None:
        raise InputError(
            "libtpu is not installed: pip install '.[tpu]', or the libtpu of your jax"
        )
    from jax.experimental import topologies

    from bert_jax.runtime.process import quiet_stderr

    options: dict[str, Any] = {}
    if chip in ('v4', 'v5p'):
        options['chip_config_name'] = 'megacore'  # one device a chip, as jax has it there
    if max(shape) == 1:
        options['chips_per_host_bounds'] = (1, 1, 1)
    try:
        with quiet_stderr():  # it misses the environment of a TPU VM
            topology = topologies.get_topology_desc(
                platform='tpu', topology_name=name, **options
            )
    except Exception as error:  # of many types
        raise InputError(f'--topology={name!r}: {error}') from error
    return list(topology.devices)
