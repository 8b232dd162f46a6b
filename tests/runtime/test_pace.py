"""Lines about a long work are not too many, and say how long it still takes."""

import types

import pytest

from bert_jax.runtime import pace as pace_lib
from bert_jax.runtime.pace import Pace


@pytest.fixture(name='clock')
def _clock(monkeypatch):
    """A clock that a test sets, in seconds."""
    clock = {'now': 100.0}
    monkeypatch.setattr(pace_lib, 'time', types.SimpleNamespace(monotonic=lambda: clock['now']))
    return clock


def test_a_line_is_due_so_many_seconds_after_the_last(clock):
    pace = Pace(every=10)
    due = []
    for now in (101, 109, 111, 119, 121, 140, 141):
        clock['now'] = now
        if pace.is_due():
            due.append(now)
    assert due == [111, 121, 140]


def test_the_time_left_follows_from_the_rate_since_the_work_is_measured(clock):
    pace = Pace(every=10)
    clock['now'] = 104
    assert pace.seconds_left(done=0.25, left=0.75) == 12
    pace.measure_from_now()
    clock['now'] = 105
    assert pace.seconds == 1
    assert pace.seconds_left(done=0.25, left=0.5) == 2
