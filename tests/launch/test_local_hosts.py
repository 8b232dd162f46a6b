"""launch/local_hosts.sh, with small shell commands as hosts."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT, wait_until

SCRIPT = ROOT / 'launch' / 'local_hosts.sh'


def _start(hosts, command, **environment):
    return subprocess.Popen(
        [SCRIPT, str(hosts), 'bash', '-c', command], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env=os.environ | environment,
        # If a shell runs the tests in the background, they ignore SIGINT, and so would the script.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def _wait_for_the_end_of(pids):
    wait_until(lambda: not any(Path(f'/proc/{pid}').exists() for pid in pids), seconds=60)


def test_hosts_are_told_of_each_other_and_standard_output_is_the_first_hosts():
    told = 'echo $JAX_PROCESS_ID $JAX_NUM_PROCESSES $JAX_COORDINATOR_ADDRESS $XLA_FLAGS'
    process = _start(3, told, XLA_FLAGS='--mine')
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0
    index, count, address, flags = output.split()
    assert (index, count, flags) == ('0', '3', '--mine')
    host, _, port = address.partition(':')
    assert host == '127.0.0.1' and 1024 < int(port) < 32768
    assert sorted(errors.splitlines()) == [f'{i} 3 {address} --mine' for i in (1, 2)]


@pytest.mark.parametrize('command, status', [
    pytest.param('exit 0', 0, id='none fails'),
    pytest.param('exit $((JAX_PROCESS_ID == 1 ? 2 : 0))', 2, id='host 1 fails'),
    pytest.param('sleep $((3 * (1 - JAX_PROCESS_ID))); exit $((3 + JAX_PROCESS_ID))', 4,
                 id='host 1 is first'),
])
def test_exit_status_is_that_of_the_host_that_failed_first(command, status):
    process = _start(2, command)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == status
    assert errors == ''


def test_a_host_that_a_signal_ended_is_named():
    process = _start(2, '[ $JAX_PROCESS_ID = 0 ] || kill -9 $$')
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 137
    assert errors == 'local_hosts: host 1 was ended by signal 9\n'


def test_a_failure_ends_the_others_after_a_grace():
    process = _start(2, 'echo $$ >&2; [ $JAX_PROCESS_ID = 1 ] && exit 5; trap "" TERM; sleep 100',
                     LOCAL_HOSTS_GRACE='1')
    started = time.monotonic()
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 5
    assert 0.5 < time.monotonic() - started < 60
    *pids, said = sorted(errors.splitlines())
    assert said == 'local_hosts: host 0 was ended by signal 9'
    assert len(pids) == 2
    _wait_for_the_end_of(pids)


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_every_host_and_the_script_waits_for_them(number):
    process = _start(2, 'trap "sleep 0.3; echo saved $JAX_PROCESS_ID; exit 143" TERM; '
                        'echo ready >&2; while true; do sleep 0.05; done')
    assert [process.stderr.readline() for _ in range(2)] == ['ready\n'] * 2
    process.send_signal(number)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 143
    assert (output, errors) == ('saved 0\n', 'saved 1\n')


def test_hosts_end_with_a_script_that_is_killed():
    if subprocess.run('setpriv --pdeathsig KILL true', shell=True, capture_output=True).returncode:
        pytest.skip('setpriv is not here, or cannot set the signal')
    process = _start(2, 'echo $$ >&2; exec sleep 100')
    pids = [int(process.stderr.readline()) for _ in range(2)]
    process.kill()
    process.wait(timeout=120)
    _wait_for_the_end_of(pids)


@pytest.mark.parametrize('arguments', [[], ['2'], ['0', 'true'], ['two', 'true']])
def test_a_wrong_call_prints_the_usage(arguments):
    process = subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, timeout=120)
    assert process.returncode == 2
    assert process.stderr.startswith('usage: ') and process.stderr.count('\n') == 1


def test_arguments_reach_the_command_as_they_are():
    process = subprocess.run([SCRIPT, '1', 'printf', '%s|', 'a b', "c'd", '*'],
                             capture_output=True, text=True, timeout=120)
    assert process.stdout == "a b|c'd|*|"
