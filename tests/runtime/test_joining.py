"""Hosts meet before jax connects them: threads as hosts, and ports as their faults."""

import concurrent.futures
import contextlib
import re
import socket
import threading
import time

import pytest

from bert_jax.runtime import joining
from bert_jax.runtime.errors import InputError, Unavailable
from bert_jax.runtime.joining import Cluster, elapsed, meet
from tests.conftest import wait_until

LONG = 1e9  # seconds, which pass in no test


class Clock:
    """The time of all hosts, which passes when a test lets it."""

    now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        time.sleep(0.01)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(joining, 'time', clock)
    return clock


@pytest.fixture
def lines(monkeypatch, clock):
    """The lines that hosts print, each with the host's thread."""
    monkeypatch.setattr(joining, '_POLL_SECONDS', 0.02)
    monkeypatch.setattr(joining, '_ANSWER_SECONDS', LONG)
    told = []
    monkeypatch.setattr(
        joining, 'tell', lambda line: told.append((threading.get_ident(), line)))
    return told


@pytest.fixture
def wait_for_line(clock, lines):
    """Lets minutes pass until so many of the hosts have printed new lines like a pattern."""
    def wait(pattern, num_hosts=1):
        begin = len(lines)

        def are_there():
            clock.now += joining.LINE_SECONDS
            threads = {
                thread for thread, line in lines[begin:] if re.fullmatch(pattern, line)}
            return len(threads) >= num_hosts

        wait_until(are_there)

    return wait


@pytest.fixture
def address(monkeypatch, lines):
    """A free one."""
    monkeypatch.delenv('JAX_COORDINATOR_BIND_ADDRESS', raising=False)
    with socket.create_server(('127.0.0.1', 0)) as server:
        port = server.getsockname()[1]
    return f'127.0.0.1:{port}'


def test_a_line_about_hosts_comes_after_a_minute_and_then_every_minute(clock):
    clock.now = 1000
    waiting = joining.Waiting(limit=3600)
    said = []
    for clock.now in (1000, 1059, 1060, 1061, 1119, 1120):
        said.append(waiting.line('host 1'))
    assert said == ['', '', 'waiting for host 1, 1 min', '', '', 'waiting for host 1, 2 min']


def start(address, hosts, count, limit=LONG):
    """Lets these hosts of so many meet, in threads; returns their futures."""
    threads = concurrent.futures.ThreadPoolExecutor(len(hosts))
    return [threads.submit(meet, Cluster(address, count, host), limit) for host in hosts]


def faults(futures):
    """What each of the hosts raises."""
    return [future.exception(timeout=300) for future in futures]


def test_hosts_meet_in_any_order_and_say_who_is_missing(address, wait_for_line):
    early = start(address, [2], 4)
    wait_for_line(rf'waiting for host 0 of 4 at {address} \(Connection refused\), .* min')
    early += start(address, [0, 1], 4)
    wait_for_line('waiting for host 3 of 4, .* min', num_hosts=3)
    assert not any(future.done() for future in early)
    assert faults(early + start(address, [3], 4)) == [None] * 4


def test_a_host_that_goes_is_missing_again(address, wait_for_line):
    first, = start(address, [0], 3)
    wait_until(lambda: can_connect(address))
    with socket.create_connection(joining._split(address)) as connection:
        connection.sendall(b'{"host": [1, 3]}\n')
        wait_for_line('waiting for host 2 of 3, .*')
    wait_for_line('waiting for hosts 1, 2 of 3, .*')
    assert faults([first, *start(address, [1, 2], 3)]) == [None] * 3


def can_connect(address):
    with contextlib.suppress(OSError), socket.create_connection(joining._split(address)):
        return True
    return False


def test_hosts_that_do_not_come_are_named_on_all(address, clock, wait_for_line):
    limit = 3600.0 * 1000
    hosts = start(address, [0], 5, limit) + start(address, [1], 5)
    wait_for_line('waiting for hosts 2-4 of 5, .*', num_hosts=2)
    clock.now += limit
    told = faults(hosts)
    assert {type(fault) for fault in told} == {Unavailable}
    message = ('hosts 2-4 of 5 did not come within 1000 h 0 min: look at their logs, and start all '
               'of them again (BERT_JAX_JOIN_SECONDS is the limit)')
    assert [str(fault) for fault in told] == [message, message]


@pytest.mark.parametrize('answer, reason', [
    pytest.param(None, 'Connection refused', id='nobody'),
    pytest.param(b'', 'what answers there is not host 0 of this run', id='somebody who is silent'),
    pytest.param(b'\0\0\x18\4\n', 'what answers there is not host 0 of this run',
                 id='another program'),
])
def test_host_0_that_is_not_reached_is_named_with_the_reason(
        address, wait_for_line, clock, monkeypatch, answer, reason):
    monkeypatch.setattr(joining, '_ANSWER_SECONDS', 10.0)
    limit = 3600.0 * 1000
    with contextlib.ExitStack() as stack:
        if answer is not None:
            server = stack.enter_context(socket.create_server(joining._split(address)))
            stack.enter_context(answering(server, answer))
        future, = start(address, [1], 2, limit)
        wait_for_line(rf'waiting for host 0 of 2 at {address} \({reason}\), .*')
        clock.now += limit
        fault, = faults([future])
    assert isinstance(fault, Unavailable)
    assert str(fault).startswith(
        f'host 1 did not reach host 0 of 2 at {address} within 1000 h 0 min ({reason}): ')


@contextlib.contextmanager
def answering(server, answer):
    """Answers all connections to a socket with some bytes."""
    def serve():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                connections.append(connection)
                connection.sendall(answer)

    connections = []
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        thread.submit(serve)
        yield
        server.shutdown(socket.SHUT_RDWR)


def test_a_port_in_use_is_waited_for_and_then_named(address, lines, clock):
    with socket.create_server(joining._split(address)):
        future, = start(address, [0], 2)
        wait_until(lambda: lines)
        clock.now += 31
        fault, = faults([future])
    assert isinstance(fault, Unavailable)
    port = address.partition(':')[2]
    assert str(fault).startswith(f'port {port} of host 0 is in use by another program')
    assert len(lines) == 1 and f'up to 30 s for port {port} of this machine' in lines[0][1]


@pytest.mark.parametrize('others, message', [
    pytest.param([(2, 4)], 'host 2 was started as one of 4 hosts, host 0 as one of 3',
                 id='of another number'),
    pytest.param([(1, 3), (1, 3)], 'another process has come as host 1 of this run', id='twice'),
])
def test_hosts_that_do_not_fit_together_are_refused(address, clock, others, message):
    hosts = start(address, [0], 3)
    for host, count in others:
        hosts += start(address, [host], count)
    wait_until(lambda: any(future.done() for future in hosts))
    clock.now += 2 * LONG
    refused = [fault for fault in faults(hosts[1:]) if isinstance(fault, InputError)]
    assert len(refused) == 1 and message in str(refused[0])
    faults(hosts[:1])


@pytest.mark.parametrize('seconds, text', [
    (0.2, '0 s'), (45, '45 s'), (60, '1 min'), (3599, '1 h 0 min'), (12_000, '3 h 20 min')])
def test_times_are_told_in_their_unit(seconds, text):
    assert elapsed(seconds) == text
