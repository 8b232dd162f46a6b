"""Lines of a pipe, of which it is known whether more are there."""

import os

import pytest

from bert_jax.predict.inputs import Lines, SingleText
from bert_jax.runtime.arriving import PAUSE, LiveFile


@pytest.fixture
def pipe():
    """(To read, to write) of a pipe."""
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)


def test_lines_and_whether_they_are_there(pipe):
    reading, writing = pipe
    live = LiveFile(reading)
    assert not live.has_line(0.0)
    os.write(writing, b'one\ntw')
    assert live.has_line(0.0) and live.readline(100) == b'one\n'
    assert not live.has_line(0.01)  # a part of a line is none
    os.write(writing, b'o\n\n' + b'x' * 300)
    os.close(writing)
    lines = [live.readline(100) for _ in range(7)]
    assert lines == [b'two\n', b'\n', *[b'x' * 100] * 3, b'', b'']
    assert live.has_line(9.0)  # the end counts


def test_a_pipe_that_pauses(pipe, monkeypatch):
    """A pause comes once, and reading goes on where it was."""
    reading, writing = pipe
    os.write(writing, b'a\nb')
    with open(reading, closefd=False) as stdin:
        monkeypatch.setattr('sys.stdin', stdin)
        texts = iter(Lines(None, wait=0.01).texts(SingleText()))
        assert next(texts) == 'a' and next(texts) is PAUSE
        os.write(writing, b'c\nd')
        assert next(texts) == 'bc' and next(texts) is PAUSE
        os.close(writing)
        assert list(texts) == ['d']
