"""Goodput over restarts, and the warning that a run has become slower, with clocks of our own."""

import json

import pytest

from bert_jax.train.report import Goodput, Pace


class Clock:
    def __init__(self, now=0.0):
        self.now = now

    def __call__(self):
        return self.now


def spend(goodput, **seconds):
    for cause, amount in seconds.items():
        goodput.enter(cause)
        goodput.clock.now += amount
    goodput.enter('step')


def test_seconds_go_to_the_cause_of_their_time():
    clock = Clock(110.0)
    goodput = Goodput('', False, 0, 100.0, clock)  # ten seconds since the process began
    spend(goodput, compile=5, step=20, data=3, evaluation=2)
    with goodput.during('save'):
        clock.now += 4
    clock.now += 6  # again steps, as before the save
    assert goodput.now() == {'step': 26, 'start': 10, 'compile': 5, 'data': 3, 'evaluation': 2,
                             'save': 4, 'profile': 0, 'lost': 0}
    assert goodput.metrics()['train/goodput'] == 26 / 50
    assert goodput.metrics()['time/data'] == 3
    assert goodput.line() == ('goodput 52.0% of 0:50 (start 20.0%, compile 10.0%, data 6.0%, '
                              'evaluation 4.0%, save 8.0%)')


def test_steps_that_a_kill_undid_are_lost_however_often(tmp_path):
    clock = Clock(10.0)
    first = Goodput(tmp_path, True, 0, 0.0, clock)  # start 10
    spend(first, step=100)
    first.mark(1000)
    spend(first, step=50)
    first.mark(1500)
    spend(first, step=30)
    first.write()  # at 190; killed

    clock.now = 250.0
    second = Goodput(tmp_path, True, 1500, 240.0, clock)  # start 10, after 50 away
    spend(second)
    assert second.now()['step'] == 150 and second.now()['lost'] == 30
    spend(second, step=7)
    second.write()  # at 257; killed before it saved

    clock.now = 300.0
    third = Goodput(tmp_path, True, 1000, 300.0, clock)  # the newest checkpoint was damaged
    assert third.now() == {'step': 100, 'start': 20, 'compile': 0, 'data': 0, 'evaluation': 0,
                           'save': 0, 'profile': 0, 'lost': 87}
    assert third.line() == 'goodput 48.3% of 3:27 (start 9.7%, lost 42.0%); 1:33 not running'

    fourth = Goodput(tmp_path, True, 0, 300.0, clock)  # no checkpoint is left
    assert fourth.now()['step'] == 0 and fourth.now()['lost'] == 187


def test_the_file_is_not_written_all_the_time(tmp_path):
    clock = Clock()
    goodput = Goodput(tmp_path, True, 0, 0.0, clock)
    written = set()
    for _ in range(100):
        clock.now += 0.25
        goodput.metrics()
        if (tmp_path / 'goodput.json').exists():
            written.add(json.loads((tmp_path / 'goodput.json').read_text())['at'])
    assert 20 <= len(written) <= 25


@pytest.mark.parametrize('content', [
    '', '{"seconds": {', 'null', '{}', '{"seconds": 3}',
    '{"seconds": {"step": null}, "away": 0, "at": 0, "marks": {}}',
    '{"seconds": {}, "away": 0, "at": NaN, "marks": {}}',
    '{"seconds": {}, "away": 0, "at": 0, "marks": 3.5}',
    '{"seconds": {}, "away": 0, "at": 0, "marks": {"x": 1}}',
])
def test_a_damaged_file_does_not_stop_a_run(tmp_path, content):
    (tmp_path / 'goodput.json').write_text(content)
    goodput = Goodput(tmp_path, True, 10, 0.0, Clock(5.0))
    assert sum(goodput.now().values()) == 5
    goodput.write()
    assert json.loads((tmp_path / 'goodput.json').read_text())['seconds']['start'] == 5


def test_other_hosts_write_nothing(tmp_path):
    goodput = Goodput(tmp_path, False, 0, 0.0, Clock(5.0))
    goodput.mark(3)
    assert not list(tmp_path.iterdir())


def paces(*parts):
    """Warnings by minute, of a line a minute: parts of (minutes, seconds a step, waiting)."""
    clock = Clock()
    pace = Pace(clock)
    warnings, minute = {}, 0
    for minutes, seconds, waiting in parts:
        for _ in range(minutes):
            minute += 1
            clock.now += 60
            said = pace.add(minute * 100, 100, 100 * seconds, 100 * seconds * waiting)
            if said:
                warnings[minute] = said
    return warnings


@pytest.mark.parametrize('parts', [
    [(600, 1.0, 0.0)],
    [(1, 5.0, 0.0), (600, 1.0, 0.0)],  # the first line is a warm-up
    [(30, 2.0, 0.0), (5, 9.0, 0.0), (60, 2.0, 0.0), (600, 1.0, 0.0)],  # faster than its first hour
    [(90, 1.0, 0.0), (1, 1.5, 0.0), (200, 1.0, 0.0)],  # a hiccup of a minute
    [(90, 1.0, 0.0), (200, 1.05, 0.0)],
    [(50, 1.0, 0.0), (10, 3.0, 0.0)],  # within the first hour
])
def test_no_warning_at_a_steady_pace(parts):
    assert not paces(*parts)


def test_a_run_slower_than_its_first_hour_says_so_once_an_hour():
    warnings = paces((90, 1.0, 0.01), (150, 1.25, 0.2))
    first, second, third = sorted(warnings)
    assert 90 < first <= 100 and (second, third) == (first + 60, first + 120)
    said = warnings[second]
    assert said.startswith('warning: a step takes 1.25 s, in the first hour it took 1 s: '
                           '25% slower since ')
    assert '(step 9,000)' in said  # the last good one
    assert said.endswith('waiting for data is 20% of it, and was 1%')


def test_it_warns_again_when_it_was_well_in_between():
    warnings = paces((90, 1.0, 0.0), (20, 2.0, 0.0), (60, 1.0, 0.0), (20, 2.0, 0.0))
    assert len(warnings) == 2
    assert '(step 17,000)' in warnings[max(warnings)]
