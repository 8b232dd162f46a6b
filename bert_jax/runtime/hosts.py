"""Host-side messages between the processes of a run.

They go through the key-value store of jax's coordination service. No device takes part, so they
work before the first step, while a device waits for a neighbour, and when a host fails. All hosts
call these functions in the same order; with a single process they return at once. `connecting.py`
joins the hosts, `stopping.py` makes them stop and fail together.
"""

import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from bert_jax.runtime import accelerators
from bert_jax.runtime.errors import InputError, show

T = TypeVar('T')

_calls = itertools.count()

accelerators.skip_absent_tpu()  # here, because every command imports this file before it starts jax


def state() -> Any:
    """This process's handle on jax's coordination service."""
    from jax._src import distributed  # no public name reaches the service's store

    return distributed.global_state


def index() -> int:
    """This process's index, once hosts have joined. It does not initialise the devices."""
    return state().process_id or 0


def count() -> int:
    """The number of processes of the run."""
    return state().num_processes or 1


def first() -> bool:
    """Whether this is the process that writes and prints for all."""
    return index() == 0


def share(name: str, make: Callable[[], str]) -> str:
    """Broadcasts the result of `make` from the first host; the others wait without a timeout."""
    if count() == 1:
        return make()
    key = f'bert_jax/{next(_calls)}/{name}'
    if not first():
        return _get(key)
    value = make()
    state().client.key_value_set(key, value)
    return value


def share_json(name: str, make: Callable[[], T]) -> T:
    """As `share`, of a value that JSON can hold; a tuple arrives as a list."""
    return json.loads(share(name, lambda: json.dumps(make())))


def exchange(name: str, value: str) -> list[str]:
    """The (short) values of all hosts, in the order of their indices."""
    if count() == 1:
        return [value]
    key = f'bert_jax/{next(_calls)}/{name}'
    state().client.key_value_set(f'{key}/{index()}', value)
    return share_json(name, lambda: [_get(f'{key}/{host}') for host in range(count())])


def barrier(name: str) -> None:
    """Waits until every host is here."""
    exchange(name, '')


def agree(what: str, values: Mapping[str, Any]) -> None:
    """Checks that values are equal on all hosts.

    Args:
      what: name of the values, for the message.
      values: by name; values that JSON can hold.

    Raises:
      InputError: on all hosts, with the first host that differs from host 0 and its differences.
    """
    if count() == 1:
        return
    theirs = share_json(what, lambda: values)
    ours = json.loads(json.dumps(values))
    differences = []
    for name in sorted(set(ours) | set(theirs)):
        on_first, here = theirs.get(name), ours.get(name)
        if here != on_first:
            differences.append(
                f'{name} is {on_first!r} on host 0 and {here!r} on host {index()}')
    for line in exchange(what, '; '.join(differences[:3])):
        if line:
            raise InputError(f'{what} must be the same on all hosts: {line}')


def _get(key: str) -> str:
    """Waits for the value of a key, with a short timeout so that Python can handle signals."""
    while True:
        try:
            return state().client.blocking_key_value_get(key, 1000)
        except Exception as error:
            if 'DEADLINE_EXCEEDED' not in str(error):
                raise


def say(line: str) -> None:
    """Prints a line on standard output, at once, on the first host only; see `errors.show`."""
    if first():
        show(line)
