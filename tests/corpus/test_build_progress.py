"""What a build says of its progress: rates and times that are right though sizes are estimates."""

import pytest

from bert_jax.corpus import build_progress
from bert_jax.corpus.build_progress import Progress, Read, UnitsRead
from bert_jax.corpus.source import Unit
from bert_jax.runtime import pace

MB = 1_000_000


class Clock:
    """The time, which a test sets."""

    now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(pace, 'time', clock)
    return clock


@pytest.fixture
def lines(monkeypatch):
    found = []
    monkeypatch.setattr(build_progress, 'tell', found.append)
    return found


@pytest.mark.parametrize(('more', 'seconds', 'expected'), [
    pytest.param(Read(2 * MB), 2, ['3%'], id='too little is known'),
    pytest.param(Read(20 * MB), 10, ['21%', '2.0 MB/s', '40 s left'], id='within a unit'),
    pytest.param(Read(20 * MB, 21 * MB, 10 * MB), 10, ['10%', '2.0 MB/s', '2 min left'],
                 id='units hold twice what was estimated'),
    pytest.param(Read(20 * MB, 21 * MB, 42 * MB), 10, ['42%', '2.0 MB/s', '14 s left'],
                 id='units hold half of it'),
    pytest.param(Read(20 * MB, skipped=50 * MB), 10, ['42%', '2.0 MB/s', '14 s left'],
                 id='half was read before'),
    pytest.param(Read(119 * MB), 10, ['11.9 MB/s'], id='a unit is longer than was estimated'),
])
def test_the_time_left_follows_from_what_was_read_since_the_first_text(
        clock, lines, more, seconds, expected):
    progress = Progress(num_shares=4, num_bytes=100 * MB, reports=True)
    clock.now = 9.0  # TensorFlow is loaded
    progress.add(Read(MB))
    assert not lines
    clock.now += seconds
    progress.add_done()
    progress.add(more)
    assert lines == [', '.join(['token store: 1 of 4 shares done', *expected])]


def test_a_quiet_build_says_nothing(clock, lines):
    progress = Progress(1, MB, reports=False)
    clock.now = 99.0
    progress.add(Read(MB))
    assert not lines


def test_text_is_counted_to_the_units_that_are_read_to_their_end():
    notes = []
    units = [Unit(name, size) for name, size in (('a', 5), ('b', 50), ('c', 500), ('d', 5000))]
    read = UnitsRead(units, first=0, start=1, note=notes.append)
    for unit, num_bytes in ((1, 10), (1, 20), (3, 30), (3, 40)):
        read.add(unit, num_bytes)
    read.end(4)
    total = Read()
    for note in notes:
        total = total.plus(note)
    assert notes[0] == Read(skipped=5)
    assert total == Read(100, text_of_units=100, estimate_of_units=5550, skipped=5)
