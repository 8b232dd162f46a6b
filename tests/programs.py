"""Programs in processes of their own that start in a tenth of a second (tests/warm_python.py).

What a program imports, and when, is tested with `run_python` of tests/conftest.py.
"""

import atexit
import contextlib
import functools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.conftest import ROOT
from tests.warm_python import SERVER

# The server's: the first test that starts a program may have changed its own, and the programs of
# others, with other settings, would be real Pythons.
_ENVIRONMENT = dict(os.environ)
# Seconds until programs go without a server: who was to start it may have been killed.
_LONGEST_START = 180.0


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
