"""Programs in processes of their own that start in a tenth of a second (tests/warm_python.py).

What a program imports, and when, is tested with `run_python` of tests/conftest.py.
"""

import atexit
import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.conftest import ROOT
from tests.warm_python import SERVER

# The server's: the first test that starts a program may have changed its own, and the programs of
# others, with other settings, would be real Pythons.
_ENVIRONMENT = dict(os.environ)
# Seconds until programs go without a server: who was to start it may have been killed.
_LONGEST_START = 180.0
# Runs modules one after another, which share what they compute with, and says which one prints.
_IN_ONE_PROCESS = """
import json, runpy, sys
from bert_jax.runtime import connecting
from bert_jax.step import step
from bert_jax.watch import metrics_log
from tests.numpy_kernels import make_init_with_constants
from tests.shared_steps import shared_steps
connecting.connect = lambda: None  # jax lets a process join others only once
step.make_init = make_init_with_constants
with shared_steps():
    for module, *arguments in json.load(sys.stdin):
        print('###', module, *arguments, flush=True)
        sys.argv = [module, *arguments]
        try:
            runpy.run_module(module, run_name='__main__', alter_sys=True)
        except SystemExit as ended:
            if ended.code:
                sys.exit(ended.code)
        if module == 'bert_jax.main':
            metrics_log.curves = lambda *_: None  # of the first run alone: they take a second
"""


@functools.cache
def python() -> tuple[str, ...]:
    """The words in the place of `python` in a command; starts what its processes are forks of.

    All workers of pytest have one such server, which the first that needs it starts.
    """
    owner = os.environ['BERT_JAX_TESTS']
    try:
        os.close(os.pidfd_open(int(owner)))
    except (AttributeError, OSError):  # only Linux: elsewhere a fork may lack what libraries opened
        return (sys.executable,)
    address = Path(tempfile.gettempdir(), f'bert_jax_warm_{owner}', 'server')
    server = None
    with contextlib.suppress(FileExistsError):
        address.parent.mkdir(mode=0o700)
        server = subprocess.Popen(
            [sys.executable, ROOT / 'tests' / 'warm_server.py', address, owner], cwd=ROOT,
            env=_ENVIRONMENT, stdin=subprocess.DEVNULL)
        atexit.register(server.poll)  # keeps it
    end = time.monotonic() + _LONGEST_START
    while not address.exists():  # some seconds, which no program's limit counts
        if time.monotonic() > end or server and server.poll() is not None:
            return (sys.executable,)
        time.sleep(0.02)
    os.environ[SERVER] = str(address)
    return (sys.executable, '-I', '-S', str(ROOT / 'tests' / 'warm_python.py'))


def run_program(*arguments: object, stdin: str = '', **environment: str):
    """Runs Python as `tests.conftest.run_python` does."""
    command = [*python(), *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, input=stdin, capture_output=True,
        encoding='utf-8', timeout=900)


def run_modules(commands: list[list[str]], folder: Path, environment: Mapping[str, str]):
    """Runs commands, each a module and its arguments, in one process; what each printed.

    Their models begin with kernels that NumPy has drawn, and only the first run draws curves.
    """
    process = subprocess.run(
        [*python(), '-c', _IN_ONE_PROCESS], cwd=folder, input=json.dumps(commands),
        env=os.environ | environment | {
            'PYTHONPATH': os.pathsep.join([str(ROOT), os.environ.get('PYTHONPATH', '')])},
        capture_output=True, encoding='utf-8', timeout=900)
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-4000:]
    return process.stdout.split('### ')[1:]
