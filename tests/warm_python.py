"""Stands in for `python` where tests start programs: a fork of a process that has imported jax.

    python -I -S tests/warm_python.py -m bert_jax.main --config=...

The fork (tests/warm_server.py) has this process's arguments, folder, environment and standard
streams, and Python runs `-m MODULE` or `-c CODE` in it as always, but it need not import jax,
TensorFlow and their like, which takes longer than most of these programs. What the fork starts with
`sys.executable` is another such fork. This process passes signals on and ends as the fork ends; if
it is killed, so is the fork. Without a server, or with other settings of Python or jax than the
server's, it becomes a real Python.
"""

import array
import contextlib
import json
import os
import signal
import socket
import sys

SERVER = 'BERT_JAX_TESTS_SERVER'  # the environment variable with the server's address
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT)


def main() -> None:
    """Runs the program in a fork; ends with its status or by its signal."""
    arrived: list[int] = []
    child = 0

    def pass_on(number: int, _: object) -> None:
        if child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)
        else:
            arrived.append(number)

    ignored = [number for number in _PASSED_ON if signal.getsignal(number) == signal.SIG_IGN]
    for number in _PASSED_ON:
        if number not in ignored:
            signal.signal(number, pass_on)
    connection = _ask(ignored)
    answer = connection.recv(4)
    child = int.from_bytes(answer, 'big')
    if not child:  # the server was refused or is gone
        for number in _PASSED_ON:
            if number not in ignored:
                signal.signal(number, signal.SIG_DFL)
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
    for number in arrived:
        pass_on(number, None)
    status = int.from_bytes(connection.recv(4), 'big')
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(OSError):  # of SIGKILL
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


def _ask(ignored: list[int]) -> socket.socket:
    """A connection to the server, which has been asked for a fork that ignores these signals."""
    streams = [number for number in (0, 1, 2) if _is_open(number)]
    connection = socket.socket(socket.AF_UNIX)
    message = json.dumps({
        'arguments': sys.argv[1:], 'folder': os.getcwd(), 'environment': dict(os.environ),
        'streams': streams, 'ignored': ignored}).encode()
    with contextlib.suppress(KeyError, OSError):
        connection.connect(os.environ[SERVER])
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', streams))
        connection.sendmsg([len(message).to_bytes(4, 'big')], [rights])
        connection.sendall(message)
        return connection
    closed, connection = socket.socketpair()
    closed.close()
    return connection


def _is_open(stream: int) -> bool:
    try:
        os.fstat(stream)
    except OSError:
        return False
    return True


if __name__ == '__main__':
    main()
