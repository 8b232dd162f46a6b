"""Forks of a process that has used jax: its threads are not in them, so jax would wait for ever."""

import functools
import os

from bert_jax.runtime.errors import InputError


def check_no_fork(what: object) -> None:
    """Call it before jax computes; the process that calls it first is the one that may.

    What a process computes with jax without calling this is not known here.

    Args:
      what: computes, for the message.

    Raises:
      InputError: this process is a fork of the one that called it first.
    """
    if os.getpid() != _user_of_jax():
        raise InputError(
            f'{what}: this process, {os.getpid()}, is a fork of {_user_of_jax()}, which has used '
            'jax, and jax cannot compute in a fork: load the model in a process of '
            "multiprocessing's 'spawn', or before anything else in each process")


@functools.cache
def _user_of_jax() -> int:
    return os.getpid()
