"""Hosts stop together and fail together: small processes that poll as the training loop does."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

LOCAL_HOSTS = Path(__file__).resolve().parents[2] / 'launch' / 'local_hosts.sh'

# Each host prints its process id, then runs a body, such as `STEPS`, where host 0 is slow.
HOST = """
import os, signal, sys, time
from bert_jax.runtime import hosts, stopping, verdict
from bert_jax.runtime.errors import Stopped
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests under nohup would ignore it
verdict.SILENCE_SECONDS = 4.0
verdict.STILL_SECONDS = 3.0
hosts.connect()
guard = stopping.Guard()
guard.start()
def tell(*words):  # in one piece: several hosts write at once
    os.write(2, (' '.join(map(str, words)) + '\\n').encode())
tell('pid', hosts.index(), os.getpid())
{body}
"""
STEPS = """
step = 0
while step < 10_000:
    step += 1
    time.sleep(0.01 if hosts.index() else 0.05)
    if guard.should_stop(step):
        tell('stopped at', step)
        guard.fail('', 143)
    if step == 5:
        tell('training')
"""


class Hosts:
    """Processes that run a body as the hosts of one run."""

    def __init__(self, count, body):
        self.process = subprocess.Popen(
            [LOCAL_HOSTS, str(count), sys.executable, '-c', HOST.format(body=body)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=LOCAL_HOSTS.parents[1],
            env=os.environ | {'JAX_PLATFORMS': 'cpu', 'LOCAL_HOSTS_GRACE': '20'},
        )
        self.count = count
        self.lines = []  # of standard error, so far
        self.pids = {}
        for words in self._lines_of_all('pid'):
            index, pid = words
            self.pids[int(index)] = int(pid)

    def _lines_of_all(self, first_word):
        """The words that each host prints after a first word; waits until all have printed it."""
        found = self._words_after(first_word)
        while len(found) < self.count:
            line = self.process.stderr.readline()
            assert line or self.process.poll() is None, 'a host did not start'
            # Kept, because a fast host may be ahead of the word that is waited for.
            self.lines.append(line)
            found = self._words_after(first_word)
        return found

    def _words_after(self, first_word):
        found = []
        for words in map(str.split, self.lines):
            if first_word in words:
                found.append(words[words.index(first_word) + 1:])
        return found

    def wait_until_all_train(self):
        self._lines_of_all('training')

    def end(self):
        """(exit status, what they printed to standard error)."""
        # Not by `communicate`, which loses what `readline` has read ahead.
        limit = threading.Timer(60, self.process.terminate)
        limit.start()
        errors = self.process.stderr.read()
        limit.cancel()
        return self.process.wait(), errors


@pytest.mark.parametrize('host, number', [(0, signal.SIGTERM), (2, signal.SIGHUP)])
def test_a_signal_to_one_host_stops_all_at_the_same_step(host, number):
    run = Hosts(3, STEPS)
    run.wait_until_all_train()
    os.kill(run.pids[host], number)
    status, errors = run.end()
    assert status == 143
    steps = [line.split()[-1] for line in errors.splitlines() if 'stopped at' in line]
    assert len(steps) == 3 and len(set(steps)) == 1, errors


def test_a_host_that_fails_ends_the_others_with_its_message_and_status():
    run = Hosts(3, """
if hosts.index() == 1:
    guard.fail('the disk is full', 2)
time.sleep(60)
""")
    started = time.monotonic()
    status, errors = run.end()
    assert time.monotonic() - started < 20
    assert status == 2
    assert errors.count('error: host 1: the disk is full') == 2


def test_a_host_that_dies_ends_the_others():
    run = Hosts(3, STEPS)
    run.wait_until_all_train()
    time.sleep(1.5)  # until its reports say so
    os.kill(run.pids[1], signal.SIGKILL)
    started = time.monotonic()
    _, errors = run.end()
    assert time.monotonic() - started < 20
    assert len(re.findall(r'error: host 1: has not been heard of for \d+ seconds', errors)) == 2


WAITS = """
from bert_jax.runtime.files import as_path
guard.watch(lambda: 'step', as_path({folder!r}))
def waits_for_ever():
    time.sleep(60)
for step in range(1, 40):
    time.sleep(0.05)
    guard.should_stop(step)
    if step == 30 - 10 * hosts.index():
        waits_for_ever()
"""


@pytest.mark.parametrize('count', [1, 3])
def test_a_run_that_hangs_ends_with_the_stacks_of_all_hosts(tmp_path, count):
    status, errors = Hosts(count, WAITS.format(folder=str(tmp_path))).end()
    assert status == 1
    last = 30 - 10 * (count - 1)
    line = f'error: host {count - 1}: at step {last} no step was finished for'
    assert errors.count(line) == count
    for host in range(count):
        stacks = (tmp_path / f'stacks-{host}.txt').read_text()
        assert 'in waits_for_ever' in stacks and 'in _watch' in stacks


EVALUATES = """
from bert_jax.runtime.files import as_path
guard.watch(lambda: 'evaluation', as_path({folder!r}))
for step in range(1, 10):
    guard.should_stop(step)
time.sleep(5)
guard.finish()
"""


def test_a_long_evaluation_is_not_a_hang(tmp_path):
    status, errors = Hosts(2, EVALUATES.format(folder=str(tmp_path))).end()
    assert status == 0, errors
    assert not list(tmp_path.iterdir())


PLANS = """
import concurrent.futures
from bert_jax.runtime.files import as_path
from bert_jax.runtime.long_work import long_work
guard.watch(lambda: {cause!r} if hosts.index() == 0 else 'step', as_path({folder!r}))
def plan(begin):
    time.sleep(6 if hosts.index() == 0 else 0)
    return begin + 3
pool = concurrent.futures.ThreadPoolExecutor(1)
for step in range(1, 30):
    time.sleep(0.01)
    guard.should_stop(step)
    if step == 20:
        planned = pool.submit({function}, 4).result()
        hosts.barrier('the step after the plan')  # where devices would wait for each other
        tell('planned', planned)
guard.finish()
"""


@pytest.mark.parametrize(('count', 'function', 'cause', 'is_hang'), [
    pytest.param(1, 'long_work()(plan)', 'data', False, id='marked'),
    pytest.param(3, 'long_work()(plan)', 'data', False, id='marked, of one of three hosts'),
    pytest.param(1, 'plan', 'data', True, id='not marked'),
    pytest.param(1, 'long_work()(plan)', 'step', True, id='marked, but devices are waited for'),
])
def test_a_slow_plan_is_not_a_hang(tmp_path, count, function, cause, is_hang):
    body = PLANS.format(folder=str(tmp_path), function=function, cause=cause)
    status, errors = Hosts(count, body).end()
    assert status == int(is_hang), errors
    assert errors.count('planned 7') == (0 if is_hang else count)
    assert ('no step was finished for' in errors) == is_hang
    assert len(list(tmp_path.iterdir())) == (count if is_hang else 0)


def test_a_signal_before_the_first_step_ends_all_at_once():
    run = Hosts(2, 'hosts.share("store", lambda: time.sleep(60))')
    time.sleep(0.5)
    os.kill(run.pids[0], signal.SIGTERM)
    started = time.monotonic()
    _, errors = run.end()
    assert time.monotonic() - started < 20
    assert 'stopped before the first step' in errors


def test_a_signal_whose_exception_is_lost_before_the_first_step_stops_after_it():
    status, errors = Hosts(1, """
try:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
except Stopped:  # which a garbage collector's callback could swallow
    tell('stops after step 1:', guard.should_stop(1))
""").end()
    assert status == 0
    assert 'stops after step 1: True' in errors


def test_hosts_compare_settings_and_each_names_the_difference():
    body = """
from bert_jax.runtime.errors import InputError
tell('all', hosts.exchange('names', f'host {hosts.index()}'))
hosts.agree('the run', {'seed': 1})
try:
    hosts.agree('the run', {'seed': 1, 'text': 'abc' if hosts.index() < 2 else 'xyz'})
except InputError as error:
    tell('told:', error)
guard.finish()
"""
    status, errors = Hosts(3, body).end()
    assert status == 0
    assert errors.count("all ['host 0', 'host 1', 'host 2']") == 3
    assert errors.count("the run must be the same on all hosts: text is 'abc' on host 0 and "
                        "'xyz' on host 2") == 3
