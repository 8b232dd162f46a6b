"""Checks of the message with which bad input is refused."""

import contextlib

import pytest

from bert_jax.runtime.errors import InputError


@contextlib.contextmanager
def refused(*words, match=None):
    """Asserts that the block raises a one-line InputError with all `words`, matching `match`."""
    with pytest.raises(InputError, match=match) as error:
        yield
    message = str(error.value)
    assert '\n' not in message and all(str(word) in message for word in words), message
