"""Checks of the message with which bad input is refused."""

import contextlib

import pytest

from bert_jax.runtime.errors import InputError


@contextlib.contextmanager
def refused(*words, match=None):
    """Asserts that the block raises an InputError of one line.

    Args:
      words: what its message says.
      match: a regular expression that is found in it.
    """
    with pytest.raises(InputError, match=match) as error:
        yield
    message = str(error.value)
    assert '\n' not in message, message
    for word in words:
        assert str(word) in message, message
