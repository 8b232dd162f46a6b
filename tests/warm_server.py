"""The process whose forks are the programs of tests/warm_python.py.

    python tests/warm_server.py ADDRESS OWNER

It has imported what programs import, and neither computed nor opened a device. A program that finds
bert_jax elsewhere than in this repository imports it there. When the process OWNER ends, so does
it, and removes the folder of its address.
"""

import array
import atexit
import contextlib
import dataclasses
import gc
import importlib
import importlib.machinery
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import sys
import threading
import types
from typing import Any, NoReturn

_IMPORTED = (
    'multiprocessing.spawn',  # it keeps this process's executable, for pools
    'absl.logging', 'ml_collections', 'numpy', 'jax', 'jax.numpy', 'flax.linen', 'optax',
    'orbax.checkpoint', 'tensorboardX', 'matplotlib.figure', 'matplotlib.backends.backend_agg',
    'tokenizers', 'pyarrow.parquet', 'httpx', 'jax.experimental.mesh_utils',
    'jax.experimental.multihost_utils', 'jax.experimental.pallas.tpu', 'scipy.special',
    'safetensors.numpy', 'ml_collections.config_flags', 'sentencepiece', 'pytest', 'optuna',
    'sqlalchemy',
)
# Modules of this repository, with those that they import: what runs and other commands begin with.
# None keeps the time of its import, as `bert_jax.runtime.process` does.
OWN = (
    'bert_jax.config.command_line', 'bert_jax.heads', 'bert_jax.tasks.opening',
    'bert_jax.corpus.preparing', 'bert_jax.completion', 'bert_jax.validation',
    'bert_jax.train.describing', 'bert_jax.train.compiling', 'bert_jax.train.watchers',
)
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Variables that are read when Python or a package is imported; but those of hosts are read later,
# and the streams of a fork always have a buffer.
_READ_EARLY = ('PYTHON', 'JAX', 'TF_', 'LD_', 'GLIBC', 'OMP_', 'OPENBLAS', 'MKL_', 'MPL')
_READ_LATE = (
    'JAX_COORDINATOR', 'JAX_NUM_PROCESSES', 'JAX_PROCESS_ID', 'TF_NUM_', 'PYTHONPATH',
    'PYTHONUNBUFFERED')


@dataclasses.dataclass
class _Program:
    """What a client asks for."""

    arguments: list[str]
    folder: str
    environment: dict[str, str]
    streams: list[int]  # the numbers of those that are open
    ignored: list[int]  # signals
    files: list[int]  # the streams' file descriptors in this process


def warm_up() -> None:
    """Imports packages, as `bert_jax.runtime.packages` does: without Keras and banners."""
    banner = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    sys.modules['keras'] = None  # type: ignore[assignment]
    with contextlib.suppress(ImportError):
        importlib.import_module('tensorflow')
    del sys.modules['keras']
    for name in _IMPORTED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    os.dup2(banner, 2)
    os.close(banner)
    os.close(nowhere)


def _import_own() -> None:
    """Imports modules of this repository."""
    here = sys.path[0]
    sys.path[0] = _ROOT
    for name in OWN:
        importlib.import_module(name)
    with contextlib.suppress(ImportError):  # where TF-Text is installed; its own would load Keras
        importlib.import_module('bert_jax.corpus.tokenize_tensorflow')
    sys.path[0] = here


def _write_stand_in(path: str) -> None:
    """Writes a program that stands in for `python`: so what forks start are forks, too."""
    with open(path, 'w') as file:
        client = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'warm_python.py')
        file.write(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{client}" "$@"\n')
    os.chmod(path, 0o755)


def _settings(environment: dict[str, str]) -> dict[str, str]:
    """The variables that a fork must have in common with this process."""
    found = {}
    for name, value in environment.items():
        if name.startswith(_READ_EARLY) and not name.startswith(_READ_LATE):
            found[name] = value
    return found


def _receive(connection: socket.socket) -> _Program:
    size, ancillary, _, _ = connection.recvmsg(4, socket.CMSG_SPACE(3 * 4))
    files = array.array('i')
    for _, _, data in ancillary:
        files.frombytes(data)
    left = int.from_bytes(size, 'big')
    content = connection.recv(left, socket.MSG_WAITALL)
    return _Program(**json.loads(content), files=list(files))


class _Server:
    """Forks for each client, and tells it how its fork ended."""

    def __init__(self, address: str, owner: int):
        self._owner = os.pidfd_open(owner)  # becomes readable when it has ended
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen(64)
        self._ended, writing = socket.socketpair()  # becomes readable when a fork has ended
        for end in (self._ended, writing):
            end.setblocking(False)
        self._writing = writing
        self._clients: dict[int, socket.socket] = {}  # by process id of their forks
        self._selector = selectors.DefaultSelector()

    def run(self) -> _Program | None:
        """Serves; returns the program in the fork that is to run it, or None at the end."""
        signal.set_wakeup_fd(self._writing.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        settings = _settings(dict(os.environ))
        for file in (self._listener, self._ended, self._owner):
            self._selector.register(file, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj == self._owner:
                    return None
                if key.fileobj is self._ended:
                    self._ended.recv(4096)
                elif key.fileobj is self._listener:
                    program = self._fork(settings)
                    if program:
                        return program
                else:
                    self._end_fork_of(key.fileobj)
            self._tell_clients()

    def _fork(self, settings: dict[str, str]) -> _Program | None:
        """Forks for the next client, if it has these settings; returns in the fork."""
        connection, _ = self._listener.accept()
        program = _receive(connection)
        if _settings(program.environment) == settings:
            child = os.fork()
            if not child:
                self._leave(connection)
                return program
            self._clients[child] = connection
            self._selector.register(connection, selectors.EVENT_READ, child)
            with contextlib.suppress(OSError):
                connection.sendall(child.to_bytes(4, 'big'))
        else:
            connection.close()
        for file in program.files:
            os.close(file)
        return None

    def _leave(self, connection: socket.socket) -> None:
        """Closes in a fork what is the server's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        os.close(self._owner)
        for end in (self._listener, self._ended, self._writing, connection,
                    *self._clients.values()):
            end.close()

    def _end_fork_of(self, connection: Any) -> None:
        """Kills the fork of a client that was killed."""
        child = self._selector.unregister(connection).data
        if child in self._clients:
            os.kill(child, signal.SIGKILL)

    def _tell_clients(self) -> None:
        """Tells clients how their forks ended."""
        while self._clients:
            child, status = os.waitpid(-1, os.WNOHANG)
            if not child:
                return
            connection = self._clients.pop(child)
            with contextlib.suppress(KeyError):  # its client was killed
                self._selector.unregister(connection)
            with contextlib.suppress(OSError):
                connection.sendall(status.to_bytes(4, 'big'))
            connection.close()


def _become(program: _Program) -> None:
    """Makes this fork the process that a client asks for."""
    os.setsid()
    for number in range(3):
        os.close(number)
    for number, file in zip(program.streams, program.files, strict=True):
        os.dup2(file, number)
        os.close(file)
    for number, name, mode in ((0, 'stdin', 'r'), (1, 'stdout', 'w'), (2, 'stderr', 'w')):
        stream = None
        if number in program.streams:
            errors = 'backslashreplace' if name == 'stderr' else getattr(sys, name).errors
            stream = open(  # noqa: SIM115
                number, mode, encoding=getattr(sys, name).encoding, errors=errors, closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f'__{name}__', stream)
    for signal_number in program.ignored:
        signal.signal(signal_number, signal.SIG_IGN)
    os.environ.clear()
    os.environ.update(program.environment)
    os.chdir(program.folder)


def _forget_other_code() -> None:
    """Forgets the modules of this repository, if the program finds bert_jax elsewhere."""
    found = importlib.machinery.PathFinder.find_spec('bert_jax')
    if found is None or found.origin != sys.modules['bert_jax'].__file__:
        for name in list(sys.modules):
            if name.partition('.')[0] == 'bert_jax':
                del sys.modules[name]


def _run(arguments: list[str]) -> None:
    """What Python does with `-m MODULE` or `-c CODE` and the arguments behind it."""
    kind, what = arguments[:2]
    sys.orig_argv = [sys.executable, *arguments]
    sys.argv = [kind, *arguments[2:]]
    sys.modules['__main__'] = types.ModuleType('__main__')
    places = os.environ.get('PYTHONPATH', '').split(os.pathsep)
    sys.path[1:1] = [place for place in places if place and place not in sys.path]
    if kind == '-m':
        sys.path[0] = os.getcwd()
        _forget_other_code()
        runpy._run_module_as_main(what)  # type: ignore[attr-defined]
    else:
        assert kind == '-c', arguments
        sys.path[0] = ''
        _forget_other_code()
        exec(compile(what, '<string>', 'exec'), sys.modules['__main__'].__dict__)


def _run_to_the_end(arguments: list[str]) -> NoReturn:
    """Runs a program and ends this fork with its status.

    Unlike in Python, modules and objects that live until then are left to the system, files that
    are still open with them: to take them down costs more than many a program, for the memory is
    shared until it is touched. So what fails there is found in real Pythons only (test_wheel.py).
    What ends with a traceback, and what cannot be flushed, is Python's own affair.
    """
    status = 0
    try:
        _run(arguments)
    except SystemExit as ended:
        if not isinstance(ended.code, (int, types.NoneType)):
            raise
        status = ended.code or 0
    threading._shutdown()
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            if stream is not None:
                stream.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == '__main__':
    gc.disable()
    warm_up()
    _import_own()
    gc.freeze()
    gc.enable()
    address, owner = sys.argv[1:]
    stand_in = os.path.join(os.path.dirname(address), 'python')
    _write_stand_in(stand_in)
    server = _Server(address, int(owner))
    asked = server.run()
    if asked is None:
        shutil.rmtree(os.path.dirname(address))
    else:
        del server
        _become(asked)
        sys.executable = stand_in
        # As in tests/conftest.py.
        os.fsync = lambda file: os.fstat(file if isinstance(file, int) else file.fileno())
        _run_to_the_end(asked.arguments)
