"""Hosts meet before jax connects them: threads as hosts, and ports as their faults."""

import concurrent.futures
import contextlib
import socket

import pytest

from bert_jax.runtime import joining
from bert_jax.runtime.errors import InputError, Unavailable
from bert_jax.runtime.joining import Cluster, elapsed, meet
from tests.conftest import wait_until


@pytest.fixture
def lines(monkeypatch):
    """What the hosts print; all that they wait for takes a moment."""
    for name, seconds in (('LINE', 0.1), ('_POLL', 0.02), ('_PORT', 0.1), ('_ANSWER', 0.1),
                          ('_HEAD_START', 0.0)):
        monkeypatch.setattr(joining, f'{name}_SECONDS', seconds)
    told = []
    monkeypatch.setattr(joining, 'tell', told.append)
    return told


@pytest.fixture
def address(monkeypatch, lines):
    """A free one."""
    monkeypatch.delenv('JAX_COORDINATOR_BIND_ADDRESS', raising=False)
    with socket.create_server(('127.0.0.1', 0)) as server:
        port = server.getsockname()[1]
    return f'127.0.0.1:{port}'


def test_a_line_about_hosts_comes_after_a_minute_and_then_every_minute(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(joining.time, 'monotonic', lambda: now[0])
    waiting = joining.Waiting(limit=3600)
    said = []
    for now[0] in (1000, 1059, 1060, 1061, 1119, 1120):
        said.append(waiting.line('host 1'))
    assert said == ['', '', 'waiting for host 1, 1 min', '', '', 'waiting for host 1, 2 min']


def start(address, hosts, count, limit=20.0):
    """Lets these hosts of so many meet, in threads; returns their futures."""
    threads = concurrent.futures.ThreadPoolExecutor(len(hosts))
    return [threads.submit(meet, Cluster(address, count, host), limit) for host in hosts]


def faults(futures):
    """What each of the hosts raises."""
    return [future.exception(timeout=20) for future in futures]


def test_hosts_meet_in_any_order_and_say_who_is_missing(address, lines):
    early = start(address, [2], 4)
    wait_until(lambda: f'waiting for host 0 of 4 at {address} (Connection refused), 0 s' in lines)
    early += start(address, [0, 1], 4)
    wait_until(lambda: lines.count('waiting for host 3 of 4, 0 s') >= 3)  # each says it
    assert not any(future.done() for future in early)
    assert faults(early + start(address, [3], 4)) == [None] * 4


def test_a_host_that_goes_is_missing_again(address, lines):
    first, = start(address, [0], 3)
    wait_until(lambda: can_connect(address))
    with socket.create_connection(joining._split(address)) as connection:
        connection.sendall(b'{"host": [1, 3]}\n')
        wait_until(lambda: lines and lines[-1].startswith('waiting for host 2 of 3, '))
    wait_until(lambda: lines[-1].startswith('waiting for hosts 1, 2 of 3, '))
    assert faults([first, *start(address, [1, 2], 3)]) == [None] * 3


def can_connect(address):
    with contextlib.suppress(OSError), socket.create_connection(joining._split(address)):
        return True
    return False


def test_hosts_that_do_not_come_are_named_on_all(address):
    told = faults(start(address, [0, 1], 5, limit=0.3))
    assert {type(fault) for fault in told} == {Unavailable}
    message = ('hosts 2-4 of 5 did not come within 0 s: look at their logs, and start all of them '
               'again (BERT_JAX_JOIN_SECONDS is the limit)')
    assert [str(fault) for fault in told] == [message, message]


@pytest.mark.parametrize('answer, reason', [
    pytest.param(None, 'Connection refused', id='nobody'),
    pytest.param(b'', 'what answers there is not host 0 of this run', id='somebody who is silent'),
    pytest.param(b'\0\0\x18\4\n', 'what answers there is not host 0 of this run',
                 id='another program'),
])
def test_host_0_that_is_not_reached_is_named_with_the_reason(address, answer, reason):
    with contextlib.ExitStack() as stack:
        if answer is not None:
            server = stack.enter_context(socket.create_server(joining._split(address)))
            stack.enter_context(answering(server, answer))
        fault, = faults(start(address, [1], 2, limit=0.3))
    assert isinstance(fault, Unavailable)
    assert str(fault).startswith(
        f'host 1 did not reach host 0 of 2 at {address} within 0 s ({reason}): ')


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


def test_a_port_in_use_is_waited_for_and_then_named(address, lines):
    with socket.create_server(joining._split(address)):
        fault, = faults(start(address, [0], 2))
    assert isinstance(fault, Unavailable)
    port = address.partition(':')[2]
    assert str(fault).startswith(f'port {port} of host 0 is in use by another program')
    assert len(lines) == 1 and f'for port {port} of this machine' in lines[0]


@pytest.mark.parametrize('others, message', [
    pytest.param([(2, 4)], 'host 2 was started as one of 4 hosts, host 0 as one of 3',
                 id='of another number'),
    pytest.param([(1, 3), (1, 3)], 'another process has come as host 1 of this run', id='twice'),
])
def test_hosts_that_do_not_fit_together_are_refused(address, others, message):
    first, = start(address, [0], 3, limit=0.3)
    told = faults([start(address, [host], count)[0] for host, count in others])
    refused = [fault for fault in told if isinstance(fault, InputError)]
    assert len(refused) == 1 and message in str(refused[0])
    first.exception(timeout=20)


@pytest.mark.parametrize('seconds, text', [
    (0.2, '0 s'), (45, '45 s'), (60, '1 min'), (3599, '1 h 0 min'), (12_000, '3 h 20 min')])
def test_times_are_told_in_their_unit(seconds, text):
    assert elapsed(seconds) == text
