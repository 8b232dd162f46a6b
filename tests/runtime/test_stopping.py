"""Hosts stop together and fail together: small processes that poll as the training loop does."""

import concurrent.futures
import os
import re
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from tests.programs import python

pytestmark = pytest.mark.slow

LOCAL_HOSTS = Path(__file__).resolve().parents[2] / 'launch' / 'local_hosts.sh'

# Each host prints its process id, then runs a body, such as `STEPS`, where host 0 is slow. Its
# limits are so long that no busy machine misses them; what needs a short one sets it when all are
# ready.
HOST = """
import os, signal, sys, time
from bert_jax.runtime import connecting, hosts, stopping, host_failures
from bert_jax.runtime.errors import Stopped
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests under nohup would ignore it
host_failures.SILENCE_SECONDS = host_failures.STILL_SECONDS = 600.0
stopping._PATIENCE_SECONDS = stopping._UNANSWERED_SECONDS = 600.0
stopping._TURN_SECONDS = 0.1
connecting.connect()
guard = stopping.Guard()
guard.start()
def tell(*words):  # in one piece: several hosts write at once
    os.write(2, (' '.join(map(str, words)) + '\\n').encode())
tell('pid', hosts.index(), os.getpid())
{body}
"""
STEPS = """
def all_have_reported_a_step():  # to host 0
    reports = guard.reports().values()
    return not hosts.first() or reports and all(report.step is not None for report in reports)
step = 0
has_told = False
while step < 10_000:
    step += 1
    time.sleep(0.01 if hosts.index() else 0.05)
    if guard.should_stop(step):
        tell('stopped at', step)
        guard.fail('', 143)
    if step >= 5 and not has_told and all_have_reported_a_step():
        has_told = True
        tell('training')
"""


class Hosts:
    """Processes that run a body as the hosts of one run."""

    def __init__(self, count, body):
        self.process = subprocess.Popen(
            [LOCAL_HOSTS, str(count), *python(), '-c', HOST.format(body=body)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=LOCAL_HOSTS.parents[1],
            env=os.environ | {'JAX_PLATFORMS': 'cpu', 'LOCAL_HOSTS_GRACE': '120'},
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

    def end(self, killed=()):
        """(Exit status, what they printed to standard error); none is killed but those."""
        # Not by `communicate`, which loses what `readline` has read ahead.
        limit = threading.Timer(300, self.process.terminate)
        limit.start()
        errors = self.process.stderr.read()
        limit.cancel()
        were_killed = re.findall(r'host (\d+) was ended by signal 9', errors)
        assert set(map(int, were_killed)) <= set(killed), errors
        return self.process.wait(), errors


EVALUATION = """
guard.should_stop(1)
tell('training')
batch = 0
while not guard.should_stop(1):  # the evaluation after the step has no end
    batch += 1
    time.sleep(0.01 if hosts.index() else 0.05)
tell('stopped at', batch)
guard.fail('', 143)
"""

# Host 0 waits after the second step; the others wait for it, or are in a step that needs it. The
# data come at a number of looks after the verdict that all must stop, or never.
DATA = """
guard.should_stop(1)
guard.should_stop(2)
tell('training')
looks = 0
while not guard.should_leave(looks == {looks}):
    if looks == {looks}:
        the_third_step()
    time.sleep(0.01)
    looks += guard._verdict.must_stop
tell('stopped at', 2)
guard.fail('', 143)
"""
NEVER = DATA.format(looks=-1)
ONE_STEPS = """
def the_third_step():
    hosts.barrier('which devices would wait for each other in')
    step = 3
    while not guard.should_stop(step):
        step += 1
        time.sleep(0.01)
    tell('stopped at', step)
    guard.fail('', 143)
if hosts.index() == 1:
    guard.should_stop(1)
    guard.should_stop(2)
    tell('training')
    the_third_step()
""" + DATA.format(looks=50)


@pytest.mark.parametrize('host, number, body', [
    pytest.param(0, signal.SIGTERM, NEVER, id='data that never comes'),
    pytest.param(1, signal.SIGTERM, ONE_STEPS, id='data, for a host in a step'),
    pytest.param(0, signal.SIGTERM, STEPS, id='step'),
    pytest.param(2, signal.SIGHUP, EVALUATION, id='batch of an evaluation'),
])
def test_a_signal_to_one_host_stops_all_at_the_same_place(host, number, body):
    run = Hosts(3, body)
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
time.sleep(600)
""")
    status, errors = run.end()
    assert status == 2
    assert errors.count('error: host 1: the disk is full') == 2


# After SIGUSR1, host 0 finds that minutes have passed whenever it hears of host 2.
MINUTES_PASS = """
judge = host_failures.Judge.judge
begin = []
def judge_later(self, reports, now, folder=None):
    minutes = 4 * (reports[2].beat - begin[0]) if begin else 0
    return judge(self, reports, now + 60 * minutes, folder)
host_failures.Judge.judge = judge_later
signal.signal(signal.SIGUSR1, lambda *_: begin.append(guard.reports()[2].beat))
"""


def test_a_host_that_dies_ends_the_others():
    run = Hosts(3, MINUTES_PASS + STEPS)
    run.wait_until_all_train()
    os.kill(run.pids[1], signal.SIGKILL)
    os.kill(run.pids[0], signal.SIGUSR1)
    _, errors = run.end(killed=[1])
    assert len(re.findall(r'error: host 1: has not been heard of for \d+ seconds', errors)) == 2


SHORT_PATIENCE = """
signal.signal(signal.SIGUSR1, lambda *_: setattr(stopping, '_UNANSWERED_SECONDS', 1.0))
"""


def test_a_first_host_that_stands_still_is_named():
    run = Hosts(2, SHORT_PATIENCE + STEPS)
    run.wait_until_all_train()
    os.kill(run.pids[0], signal.SIGSTOP)
    os.kill(run.pids[1], signal.SIGUSR1)
    line = ''
    while 'has not answered' not in line:
        line = run.process.stderr.readline()
        assert line, 'the hosts ended without the line'
    os.kill(run.pids[0], signal.SIGKILL)
    status, _ = run.end(killed=[0])
    assert line == 'error: host 0 has not answered for 1 seconds\n'
    assert status in (1, 137)  # of host 1, or of host 0, whichever is seen to end first


WAITS = """
from bert_jax.runtime.files import as_path
cause = {cause!r} if hosts.index() == 1 else 'step'
guard.watch(lambda: cause, as_path({folder!r}))
def waits_for_ever():
    guard.should_stop(10)
    while any(report.step != 10 for report in guard.reports().values()):
        time.sleep(0.05)
    host_failures.STILL_SECONDS = 0.5
    time.sleep(600)
for step in range(1, 10):
    time.sleep(0.02)
    guard.should_stop(step)
waits_for_ever()
"""
EVALUATES = """
from bert_jax.runtime.files import as_path
guard.watch(lambda: 'evaluation', as_path({folder!r}))
host_failures.STILL_SECONDS = 0.5
for step in range(1, 10):
    guard.should_stop(step)
time.sleep(1.5)
guard.finish()
"""
PLANS = """
import concurrent.futures
from bert_jax.runtime.files import as_path
from bert_jax.runtime.long_work import long_work
guard.watch(lambda: {cause!r} if hosts.index() == 0 else 'step', as_path({folder!r}))
def plan(begin):
    if hosts.first():
        host_failures.STILL_SECONDS = 0.5
        time.sleep({seconds})
        host_failures.STILL_SECONDS = 600.0
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
MARKED = {'function': 'long_work()(plan)', 'cause': 'data', 'seconds': 1.5}
# Hosts that nobody disturbs: their number, and what they do.
ALONE = {
    'hangs alone': (1, WAITS, {'cause': 'step'}),
    'hangs, and one waits for data': (3, WAITS, {'cause': 'data'}),
    'evaluates': (2, EVALUATES, {}),
    'plans, marked': (1, PLANS, MARKED),
    'plans, marked, on one of three': (3, PLANS, MARKED),
    'plans, not marked': (1, PLANS, MARKED | {'function': 'plan', 'seconds': 600}),
    'plans, marked, but devices are waited for': (
        1, PLANS, MARKED | {'cause': 'step', 'seconds': 600}),
}


@pytest.fixture(scope='module', autouse=True)
def begun_first(request):
    """Starts the hosts of `ended` before the first test, if one that asks for them is to run."""
    names = {name for item in request.session.items if item.path == request.path
             for name in item.fixturenames}
    if 'ended' in names:
        request.getfixturevalue('ended')


@pytest.fixture(scope='module')
def ended(tmp_path_factory):
    """By a name of `ALONE`, the future (number of hosts, folder, exit status, standard error).

    Three run at once, and beside the other tests here: they do little but wait.
    """
    def run(count, body, words):
        folder = tmp_path_factory.mktemp('alone')
        status, errors = Hosts(count, body.format(folder=str(folder), **words)).end()
        return count, folder, status, errors

    pool = concurrent.futures.ThreadPoolExecutor(3)
    yield {name: pool.submit(run, *hosts) for name, hosts in ALONE.items()}
    pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize('name, words', [
    ('hangs alone', ['error: host 0: at step 10 no', 'host 0 in a step after step 10']),
    ('hangs, and one waits for data', [
        'error: host 1: at step 10 no', 'host 1 waiting for data after step']),
])
def test_a_run_that_hangs_ends_with_the_stacks_of_all_hosts(ended, name, words):
    count, folder, status, errors = ended[name].result()
    assert status == 1
    for word in words:
        assert errors.count(word) == count, errors
    for host in range(count):
        stacks = (folder / f'stacks-{host}.txt').read_text()
        assert 'in waits_for_ever' in stacks and 'in _watch' in stacks


def test_a_long_evaluation_is_not_a_hang(ended):
    _, folder, status, errors = ended['evaluates'].result()
    assert status == 0, errors
    assert not list(folder.iterdir())


@pytest.mark.parametrize('name, is_hang', [
    ('plans, marked', False),
    ('plans, marked, on one of three', False),
    ('plans, not marked', True),
    ('plans, marked, but devices are waited for', True),
])
def test_a_slow_plan_is_not_a_hang(ended, name, is_hang):
    count, folder, status, errors = ended[name].result()
    assert status == int(is_hang), errors
    assert errors.count('planned 7') == (0 if is_hang else count)
    assert ('no step was finished for' in errors) == is_hang
    assert len(list(folder.iterdir())) == (count if is_hang else 0)


def test_a_signal_before_the_first_step_ends_all():
    run = Hosts(2, """
stopping._PATIENCE_SECONDS = 0.5
tell('training')
hosts.share('store', lambda: time.sleep(600))
""")
    run.wait_until_all_train()
    os.kill(run.pids[0], signal.SIGTERM)
    _, errors = run.end()
    assert 'stopped before the first step' in errors


def test_a_signal_whose_exception_is_lost_before_the_first_step_stops_after_it():
    status, errors = Hosts(1, """
try:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(600)
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
