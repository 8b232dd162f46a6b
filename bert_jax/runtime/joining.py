"""How the processes of a run meet before jax connects them.

jax waits for all of them without a word, and if one does not come, it aborts the others. So they
meet here first: host 0 listens at the address at which jax's coordination service will be, the
others connect and say which host they are, and all print who is missing. When all are there, host 0
stops listening, and jax takes the port.

A message is a JSON object on a line, with one entry. The others send `host`, `[NUMBER, COUNT]`.
Host 0 answers `welcome`, sends the lines that it prints as `say`, and ends with `go`, with the
message of an InputError as `refused`, or with that of an Unavailable as `late`.
"""

import contextlib
import dataclasses
import errno
import json
import math
import os
import selectors
import socket
import time
from collections.abc import Iterator
from typing import Any

from bert_jax.runtime.errors import InputError, Unavailable, first_line, named_hosts, tell

LINE_SECONDS = 60.0  # between two lines of a process that waits
_POLL_SECONDS = 0.5  # between two looks of a process that waits
_PORT_SECONDS = 30.0  # that another program gets to leave the port, perhaps a run that ends
_ANSWER_SECONDS = 10.0  # that host 0 gets to answer
_HEAD_START_SECONDS = 0.3  # that jax's service gets before others connect to it
_LONGEST_MESSAGE = 4096  # bytes


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The processes of a run, and which of them this one is.

    Attributes:
      address: of host 0, `NAME:PORT`.
      count: how many there are.
      index: of this one.
    """

    address: str
    count: int
    index: int


class Waiting:
    """How long this process has waited, with a line a minute about it."""

    def __init__(self, limit: float):
        """Begins to wait, for at most `limit` seconds."""
        self._began = time.monotonic()
        self._next_line = self._began + LINE_SECONDS
        self.limit = limit

    def is_over(self, grace: float = 0.0) -> bool:
        """Whether the limit has passed, and `grace` seconds more."""
        return time.monotonic() - self._began > self.limit + grace

    def line(self, what: str) -> str:
        """A line about the hosts that are waited for, if it is time for one; else ''."""
        now = time.monotonic()
        if now < self._next_line:
            return ''
        self._next_line = now + LINE_SECONDS
        return f'waiting for {what}, {elapsed(now - self._began)}'


def elapsed(seconds: float) -> str:
    """Seconds as '45 s', '2 min' or '3 h 20 min'."""
    if seconds < 59.5:
        return f'{seconds:.0f} s'
    hours, minutes = divmod(round(seconds / 60), 60)
    return f'{hours} h {minutes} min' if hours else f'{minutes} min'


def find_cluster(
    num_processes: int | None, process_id: int | None, limit: float
) -> Cluster | None:
    """The cluster that jax finds; None if there is none, so that this process is alone.

    Args:
      num_processes, process_id: where the environment gives them.
      limit: how many seconds to wait for the name of host 0, which appears when it is started.

    Raises:
      InputError: the address of host 0 or the number of this process cannot be right.
      Unavailable: the name of host 0 has not appeared.
    """
    from jax._src.clusters import ClusterEnv  # jax has no public name for it

    waiting = Waiting(limit)
    while True:
        try:
            address, count, index, _ = ClusterEnv.auto_detect_unset_distributed_params(
                os.environ.get('JAX_COORDINATOR_ADDRESS'), num_processes, process_id, (), None,
                int(min(limit, LINE_SECONDS)))
            break
        except RuntimeError as error:
            if 'coordinator address' not in str(error):
                raise
            name = str(error).rpartition(' ')[2]
            if waiting.is_over():
                raise Unavailable(
                    f'{name}, the name of host 0, was not found within {elapsed(limit)}: look '
                    'whether its pod was started') from None
            tell_if_any(waiting.line(f'host 0, whose name {name} is not known yet'))
    if address is None:
        return None
    if count is None or index is None:
        raise InputError(f'jax finds host 0 at {address}, and not which process this is: set '
                         'JAX_NUM_PROCESSES and JAX_PROCESS_ID')
    if not 0 <= index < count:
        raise InputError(f'this process is number {index} of {count} (JAX_PROCESS_ID, '
                         f'JAX_NUM_PROCESSES): they are numbered from 0 to {count - 1}')
    _split(address)
    return Cluster(address, count, index)


def tell_if_any(line: str) -> None:
    """Prints a line on standard error, unless it is empty."""
    if line:
        tell(line)


def meet(cluster: Cluster, limit: float) -> None:
    """Waits until all processes of the cluster are there; they all call it.

    Raises:
      InputError: they do not fit together, on all of them.
      Unavailable: some did not come within so many seconds, or host 0 was not reached.
    """
    if cluster.index == 0:
        with _listen(cluster.address, min(limit, _PORT_SECONDS)) as listener:
            _Reception(cluster, listener, Waiting(limit)).receive_all()
    else:
        _Visit(cluster, limit).wait()
        time.sleep(_HEAD_START_SECONDS)


def _split(address: str, variable: str = 'JAX_COORDINATOR_ADDRESS') -> tuple[str, int]:
    """The name and the port of an address, which an environment variable may have given."""
    name, _, port = address.rpartition(':')
    if not name or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise InputError(f'{variable}={address!r} in the environment is not NAME:PORT')
    return name.strip('[]'), int(port)


def _listen(address: str, limit: float) -> socket.socket:
    """A socket that listens where jax's coordination service will.

    Raises:
      Unavailable: it cannot, as where another program does.
    """
    _, port = _split(address)
    bind_address = os.environ.get('JAX_COORDINATOR_BIND_ADDRESS') or f'[::]:{port}'
    waiting = Waiting(limit)
    has_told = False
    while True:
        try:
            return _server(*_split(bind_address, 'JAX_COORDINATOR_BIND_ADDRESS'))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise Unavailable(
                    f'host 0 cannot listen at {bind_address} ({error.strerror}): look at '
                    'JAX_COORDINATOR_ADDRESS and JAX_COORDINATOR_BIND_ADDRESS') from None
            if waiting.is_over():
                raise Unavailable(
                    f'port {port} of host 0 is in use by another program, perhaps another run '
                    f'(host 0 is at {address}): end that, or give another port') from None
        if not has_told:
            has_told = True
            tell(f'waiting up to {limit:.0f} s for port {port} of this machine, which '
                 'another program uses')
        time.sleep(_POLL_SECONDS)


def _server(name: str, port: int) -> socket.socket:
    if name != '::':
        family = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((name, port), family=family)
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(('', port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(('', port))


class _Messages:
    """A connection as messages, of which some may have arrived in part."""

    def __init__(self, connection: socket.socket):
        self.connection = connection
        self._read = b''

    def send(self, **message: Any) -> None:
        """Sends a message; if the other is gone, the next `receive` says so."""
        with contextlib.suppress(OSError):
            self.connection.sendall(json.dumps(message).encode() + b'\n')

    def receive(self) -> list[dict[str, Any]] | None:
        """The messages that have arrived; None if the other is gone, or speaks something else."""
        try:
            content = self.connection.recv(_LONGEST_MESSAGE)
        except TimeoutError:
            return []
        except OSError:
            return None
        *lines, self._read = (self._read + content).split(b'\n')
        if not content or len(self._read) > _LONGEST_MESSAGE:
            return None
        try:
            messages = [json.loads(line) for line in lines]
        except ValueError:
            return None
        return messages if all(isinstance(message, dict) for message in messages) else None


class _Reception:
    """Host 0, which receives the others."""

    def __init__(self, cluster: Cluster, listener: socket.socket, waiting: Waiting):
        self._cluster = cluster
        self._listener = listener
        self._waiting = waiting
        self._selector = selectors.DefaultSelector()
        self._here: dict[int, _Messages] = {}

    def receive_all(self) -> None:
        """Waits until all are there, and lets them go on.

        Raises:
          InputError: two of them do not fit together.
          Unavailable: some have not come within the limit.
        """
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        try:
            while self._missing():
                self._receive()
                self._tell_who_is_missing()
            self._tell_all(go=True)
        except InputError as error:
            self._tell_all(refused=str(error))
            raise
        except Unavailable as error:
            self._tell_all(late=str(error))
            raise
        finally:
            for key in list(self._selector.get_map().values()):
                if key.data is not None:
                    key.data.connection.close()
            self._selector.close()

    def _missing(self) -> list[int]:
        return [host for host in range(1, self._cluster.count) if host not in self._here]

    def _receive(self) -> None:
        """Handles what arrives, for which it waits a moment."""
        for key, _ in self._selector.select(_POLL_SECONDS):
            if key.data is None:
                connection, _ = self._listener.accept()
                connection.settimeout(1.0)
                self._selector.register(connection, selectors.EVENT_READ, _Messages(connection))
                continue
            guest = key.data
            messages = guest.receive()
            if messages is None and guest.connection.fileno() >= 0:
                self._forget(guest)
            for message in messages or ():
                self._greet(guest, message.get('host'))

    def _forget(self, guest: _Messages) -> None:
        """Takes note that a host is gone; it may come again."""
        self._selector.unregister(guest.connection)
        guest.connection.close()
        self._here = {host: other for host, other in self._here.items() if other is not guest}

    def _greet(self, guest: _Messages, introduction: Any) -> None:
        """Takes note that a host is there.

        Raises:
          InputError: it is of a run with another number of hosts.
        """
        if not (isinstance(introduction, list) and len(introduction) == 2):
            return
        host, count = introduction
        if count != self._cluster.count:
            fault = (f'host {host} was started as one of {count} hosts, host 0 as one of '
                     f'{self._cluster.count}: give all the same JAX_NUM_PROCESSES')
            guest.send(refused=fault)
            raise InputError(fault)
        before = self._here.get(host)
        if before is not None:
            before.send(refused=f'another process has come as host {host} of this run: give each '
                                'its own JAX_PROCESS_ID')
            self._forget(before)
        self._here[host] = guest
        guest.send(welcome=True)

    def _tell_who_is_missing(self) -> None:
        """Prints which hosts are missing, if it is time for another line.

        Raises:
          Unavailable: it is too late.
        """
        missing = self._missing()
        if not missing:
            return
        who = f'{named_hosts(missing)} of {self._cluster.count}'
        if self._waiting.is_over():
            raise Unavailable(
                f'{who} did not come within {elapsed(self._waiting.limit)}: look at their logs, '
                'and start all of them again (BERT_JAX_JOIN_SECONDS is the limit)')
        line = self._waiting.line(who)
        if line:
            tell(line)
            self._tell_all(say=line)

    def _tell_all(self, **message: Any) -> None:
        for guest in self._here.values():
            guest.send(**message)


class _Visit:
    """Another host, which visits host 0."""

    def __init__(self, cluster: Cluster, limit: float):
        self._cluster = cluster
        self._waiting = Waiting(limit)
        self._reason = ''  # why host 0 is not reached

    def wait(self) -> None:
        """Waits until host 0 says that all are there.

        Raises:
          InputError: host 0 refuses this one.
          Unavailable: it is not reached, or says that others have not come.
        """
        while True:
            with contextlib.suppress(OSError), self._connected() as host_0:
                if self._converse(host_0):
                    return
            self._check_limit()
            address = f'host 0 of {self._cluster.count} at {self._cluster.address}'
            tell_if_any(self._waiting.line(f'{address} ({self._reason})'))
            time.sleep(_POLL_SECONDS)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[_Messages]:
        """A connection to host 0."""
        try:
            connection = socket.create_connection(_split(self._cluster.address), timeout=5.0)
        except OSError as error:
            self._reason = error.strerror or first_line(error)
            raise
        with connection:
            connection.settimeout(_POLL_SECONDS)
            yield _Messages(connection)

    def _converse(self, host_0: _Messages) -> bool:
        """Whether host 0 says that all are there; False if it is gone, or was not host 0."""
        self._reason = 'what answers there is not host 0 of this run'
        host_0.send(host=[self._cluster.index, self._cluster.count])
        deadline = time.monotonic() + _ANSWER_SECONDS
        while True:
            messages = host_0.receive()
            if messages is None:
                return False
            for message in messages:
                if 'refused' in message:
                    raise InputError(str(message['refused']))
                if 'late' in message:
                    raise Unavailable(str(message['late']))
                if 'go' in message:
                    return True
                if 'welcome' in message:
                    self._reason = 'it is gone'
                    deadline = math.inf
                    self._waiting = Waiting(self._waiting.limit)  # host 0 ends all before
                tell_if_any(str(message.get('say', '')))
            if time.monotonic() > deadline:
                return False
            self._check_limit(grace=LINE_SECONDS)

    def _check_limit(self, grace: float = 0.0) -> None:
        """Raises Unavailable when host 0 was not reached for too long."""
        if self._waiting.is_over(grace):
            raise Unavailable(
                f'host {self._cluster.index} did not reach host 0 of {self._cluster.count} at '
                f'{self._cluster.address} within {elapsed(self._waiting.limit)} ({self._reason}): '
                'look at its log and at JAX_COORDINATOR_ADDRESS')
