"""Whose waiting, steps and saves take longest, by what the hosts report."""

from unittest import mock

import pytest

from bert_jax.runtime.host_failures import HostState
from bert_jax.train.step_log import log_line
from bert_jax.watch.goodput import Goodput
from bert_jax.watch.slowest import SlowestHosts


class Hosts:
    """Three hosts, of which this is the first, and what they report."""

    def __init__(self, workdir=''):
        self.goodput = Goodput(workdir, bool(workdir), 0, 0.0, mock.Mock(return_value=0.0))
        self.reports = {}
        self.slowest = SlowestHosts(lambda: self.reports, self.goodput)
        for host in (1, 2):
            self.report(host, 0)
        self.slowest.begin()

    def spend(self, **seconds):
        """Lets this host spend time on causes."""
        for cause, spent in seconds.items():
            self.goodput.enter(cause)
            self.goodput.clock.return_value += spent
            self.goodput.enter('step')

    def report(self, host, at_step, **seconds):
        """A report of another host: its step, and its seconds since it started."""
        beat = self.reports[host].beat + 1 if host in self.reports else 0
        self.reports = {**self.reports, host: HostState(beat=beat, step=at_step, seconds=seconds)}


@pytest.fixture
def run():
    return Hosts()


def test_the_slowest_of_all_hosts_is_named(run):
    run.spend(data=0.1, step=9.9)
    run.report(1, 10, data=6.0, step=4.0)
    run.report(2, 10, data=0.2, step=8.8, save=3.0)
    assert run.slowest.compare(10) == {
        'data_wait': 0.6, 'data_wait_host': 1, 'step_seconds': 1.0, 'step_seconds_host': 0,
        'save_seconds': 3.0, 'save_seconds_host': 2}


def test_times_are_those_since_the_last_comparison(run):
    run.report(1, 10, data=6.0, step=4.0)
    run.report(2, 10, data=0.0, step=10.0)
    run.spend(step=10)
    run.slowest.compare(10)
    run.report(1, 20, data=6.0, step=14.0)
    run.report(2, 20, data=1.0, step=19.0)
    run.spend(step=10)
    found = run.slowest.compare(10)
    assert (found['data_wait'], found['data_wait_host']) == (0.1, 2)


def test_a_host_without_a_new_report_counts_as_it_was_and_its_time_only_once(run):
    run.report(1, 10, data=6.0, step=4.0)
    run.spend(step=10)
    run.slowest.compare(10)
    run.spend(step=0.1)
    assert run.slowest.compare(1)['data_wait_host'] == 1
    assert run.goodput.now()['data'] == 6.0


def test_goodput_counts_what_is_less_than_a_second_too(run):
    run.report(1, 10, data=0.5, step=9.5)
    run.spend(step=10)
    run.slowest.compare(10)
    assert run.goodput.now()['data'] == 0.5


def test_goodput_counts_what_this_host_waits_for_others_in_its_steps_as_their_cause(tmp_path):
    run = Hosts(str(tmp_path))
    run.spend(data=1, step=39)
    run.report(1, 10, data=20.0, step=20.0)
    run.report(2, 10, data=0.0, step=30.0, save=10.0)
    run.slowest.compare(10)
    times = run.goodput.now()
    assert (times['data'], times['save'], times['step']) == (20.0, 10.0, 10.0)
    assert run.goodput.line() == (
        'goodput 25.0% of 0:40 (data 50.0% (host 1), save 25.0% (host 2))')
    run.goodput.write()
    assert Goodput(tmp_path, True, 0, 50.0, lambda: 50.0).now()['data'] == 20.0


def test_one_host_is_not_compared():
    goodput = Goodput('', False, 0, 0.0, lambda: 1.0)
    for reports in (None, dict):
        slowest = SlowestHosts(reports, goodput)
        slowest.begin()
        assert slowest.compare(10) == {}
    assert goodput.line() == 'goodput 0.0% of 0:01 (start 100.0%)'


@pytest.mark.parametrize('measured, shown', [
    pytest.param({}, 'wait 60%  eta', id='one host'),
    pytest.param({'data_wait_host': 1, 'step_seconds_host': 0},
                 'wait 60% (host 1)  step 0.5 s (host 0)  eta', id='several'),
    pytest.param({'data_wait_host': 1, 'step_seconds_host': 0, 'save_seconds': 3.25,
                  'save_seconds_host': 2},
                 'wait 60% (host 1)  step 0.5 s (host 0)  save 3.2 s (host 2)  eta', id='a save'),
])
def test_the_log_line_names_them(measured, shown):
    metrics = {
        'loss': 1.0, 'learning_rate': 0.1, 'sequences_per_second': 1.0, 'tokens_per_second': 1.0,
        'data_wait': 0.6, 'step_seconds': 0.5, **measured}
    assert shown in log_line(mock.Mock(shown={}), metrics, 10)


def test_the_line_of_the_first_step_names_no_host():
    metrics = {'loss': 1.0, 'learning_rate': 0.1, 'step_seconds': 0.5, 'step_seconds_host': 1}
    assert log_line(mock.Mock(shown={}), metrics, 10) == 'loss 1.0000  lr 1.00e-01'
