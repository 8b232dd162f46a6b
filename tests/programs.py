"""Programs in processes of their own that start in a tenth of a second (tests/warm_python.py).

What a program imports, and when, is tested with `run_python` of tests/conftest.py.
"""

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time

from tests.conftest import ROOT
from tests.warm_python import SERVER


@functools.cache
def python() -> tuple[str, ...]:
    """The words in the place of `python` in a command; starts what its processes are forks of."""
    if sys.platform != 'linux':  # elsewhere a fork may lack what a library has opened
        return (sys.executable,)
    folder = tempfile.mkdtemp(prefix='bert_jax_warm_')
    address = f'{folder}/server'
    server = subprocess.Popen(
        [sys.executable, ROOT / 'tests' / 'warm_server.py', address], stdin=subprocess.PIPE,
        cwd=ROOT)
    owner = os.getpid()

    def end() -> None:
        if os.getpid() == owner:  # and not a fork
            server.kill()
            server.wait()
            shutil.rmtree(folder)

    atexit.register(end)
    while not os.path.exists(address):  # some seconds, which no program's limit counts
        assert server.poll() is None
        time.sleep(0.02)
    os.environ[SERVER] = address
    return (sys.executable, '-I', '-S', str(ROOT / 'tests' / 'warm_python.py'))


def run_program(*arguments: object, stdin: str = '', **environment: str):
    """Runs Python as `tests.conftest.run_python` does."""
    command = [*python(), *map(str, arguments)]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, input=stdin, capture_output=True,
        encoding='utf-8', timeout=900)
