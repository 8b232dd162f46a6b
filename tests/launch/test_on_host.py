"""Whether a process id that launch/on_host.sh noted is still that of its run."""

import os
import subprocess

import pytest

from tests.conftest import ROOT

WAIT = ['bash', '-c', 'read line']


@pytest.fixture
def home(tmp_path):
    """A home directory with a space."""
    state = tmp_path / 'my home' / '.bert_jax'
    state.mkdir(parents=True)
    return state.parent


@pytest.fixture
def noted(home):
    """A function that starts a program, which waits, and notes its process id as that of a run."""
    started = []

    def start(*command):
        process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        started.append(process)
        (home / '.bert_jax' / 'pid').write_text(f'{process.pid}\n')
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def on_host(verb, home):
    ended = subprocess.run(
        [ROOT / 'launch' / 'on_host.sh', verb], env={'PATH': '/usr/bin:/bin', 'HOME': str(home)},
        capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, '')
    return ended.stdout.strip()


def test_a_run_is_running_and_then_lost_if_it_is_killed(home, noted):
    run = noted(*WAIT, 'a folder/launch/on_host.sh', 'supervise')
    assert on_host('status', home) == 'running'
    run.kill()
    os.waitid(os.P_PID, run.pid, os.WEXITED | os.WNOWAIT)  # nobody has asked yet how it ended
    assert on_host('status', home) == 'lost'
    run.wait()
    assert on_host('status', home) == 'lost'


def test_another_program_with_the_process_id_of_a_run_is_left_alone(home, noted):
    """As after a reboot."""
    other = noted(*WAIT)
    assert on_host('status', home) == 'lost'
    on_host('stop', home)
    assert other.poll() is None
    assert on_host('status', home) == 'stopped'


def test_a_run_is_stopped(home, noted):
    run = noted(*WAIT, 'launch/on_host.sh', 'supervise')
    on_host('stop', home)
    assert run.wait(60) < 0
