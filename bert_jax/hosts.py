"""What the processes of one run tell each other beside the computation on their devices.

It goes through the key-value store of jax's coordination service, which every run of several
processes has: no device takes part, so it works before the first step, while a device waits for a
neighbour, and when a host fails. All hosts call these functions in the same order. In a run of one
process they answer at once.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax

from bert_jax.errors import InputError

_calls = itertools.count()


def _state() -> Any:
    from jax._src import distributed  # no public name reaches the service's store

    return distributed.global_state


def index() -> int:
    """This process's number; known from `connect` on, before any device is touched."""
    return _state().process_id or 0


def count() -> int:
    """How many processes the run has."""
    return _state().num_processes or 1


def first() -> bool:
    """Whether this is the process that writes and prints for all."""
    return index() == 0


def connect() -> None:
    """Joins the other processes of the run, where there are any."""
    if 'JAX_NUM_PROCESSES' in os.environ:
        jax.distributed.initialize(
            num_processes=int(os.environ['JAX_NUM_PROCESSES']),
            process_id=int(os.environ['JAX_PROCESS_ID']),
        )


def share(name: str, make: Callable[[], str]) -> str:
    """What `make` returns on the first host, on all of them; the others wait, however long."""
    if count() == 1:
        return make()
    key = f'bert_jax/{next(_calls)}/{name}'
    if not first():
        return _get(key)
    value = make()
    _state().client.key_value_set(key, value)
    return value


def exchange(name: str, value: str) -> list[str]:
    """Every host's (short) value, in order."""
    if count() == 1:
        return [value]
    key = f'bert_jax/{next(_calls)}/{name}'
    _state().client.key_value_set(f'{key}/{index()}', value)
    return json.loads(share(
        name, lambda: json.dumps([_get(f'{key}/{i}') for i in range(count())])
    ))


def barrier(name: str) -> None:
    """Waits until every host is here."""
    exchange(name, '')


def agree(what: str, values: Mapping[str, Any]) -> None:
    """Compares what must be equal on all hosts.

    Args:
      what: is compared, for the message.
      values: by name, plain values as JSON has them.

    Raises:
      InputError: on every host alike, naming the first host that differs from host 0, and how.
    """
    if count() == 1:
        return
    theirs = json.loads(share(what, lambda: json.dumps(values)))
    ours = json.loads(json.dumps(values))
    differing = [name for name in sorted(set(ours) | set(theirs))
                 if ours.get(name) != theirs.get(name)]
    found = '; '.join(
        f'{name} is {theirs.get(name)!r} on host 0 and {ours.get(name)!r} on host {index()}'
        for name in differing[:3]
    )
    lines = [line for line in exchange(what, found) if line]
    if lines:
        raise InputError(f'{what} must be the same on all hosts: {lines[0]}')


def _get(key: str) -> str:
    """The value of a key, waited for in short turns, so that signals are heard meanwhile."""
    while True:
        try:
            return _state().client.blocking_key_value_get(key, 1000)
        except Exception as error:
            if 'DEADLINE_EXCEEDED' not in str(error):
                raise


def say(line: str) -> None:
    """Prints on the first host only."""
    if first():
        print(line, flush=True)


def warn(line: str) -> None:
    """Prints to standard error, from whichever host it comes."""
    where = f'host {index()}: ' if count() > 1 else ''
    print(f'warning: {where}{line}', file=sys.stderr, flush=True)
