"""What a command says of its input when it refuses it."""

import contextlib

import pytest

from bert_jax.runtime.errors import InputError


@contextlib.contextmanager
def refused(*words, match=None):
    """Asserts that the block raises an InputError of one line, with these words, matching."""
    with pytest.raises(InputError, match=match) as error:
        yield
    message = str(error.value)
    assert '\n' not in message and all(str(word) in message for word in words), message
