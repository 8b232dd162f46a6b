"""A process for each of the programs that a benchmark compares.

One works, with all cores, while the others wait for their next line of input.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


class Worker:
    """A process that runs the benchmark's own script with `--worker=NAME` after its arguments.

    Attributes:
      preparation: seconds until it was ready.
    """

    def __init__(self, name: str, folder: str, *arguments: str):
        """Starts the process and waits until it is ready.

        Args:
          name: 'ours' or 'peer'.
          folder: receives what it writes to standard error.
          arguments: further arguments of the script.
        """
        environment = os.environ | {
            'PYTHONPATH': str(ROOT), 'JAX_PLATFORMS': 'cpu', 'HF_HUB_OFFLINE': '1',
            'TRANSFORMERS_VERBOSITY': 'error', 'HF_HUB_DISABLE_PROGRESS_BARS': '1',
            'GLIBC_TUNABLES': 'glibc.malloc.hugetlb=1'}  # for both; docs/sources.md
        self._log = Path(folder, f'{name}.txt')
        with self._log.open('w') as errors:
            self._process = subprocess.Popen(
                [sys.executable, *sys.argv, f'--worker={name}', *arguments],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                env=environment)
        self.preparation: float = self._answer()

    def __call__(self, line: str = '') -> Any:
        """The process's answer to a line."""
        assert self._process.stdin
        self._process.stdin.write(line + '\n')
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f'a program ended:\n{self._log.read_text()[-2000:]}')
        return json.loads(line)

    def end(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def serve(name: str, prepare: Callable[[], Callable[[str], Any]]) -> None:
    """Runs in the process: answers each line of standard input with a line of JSON.

    Args:
      name: 'ours' or 'peer'.
      prepare: returns the function that computes an answer from a line.
    """
    started = time.perf_counter()
    out = os.fdopen(os.dup(1), 'w')  # what libraries print goes to standard error
    os.dup2(2, 1)
    answer = prepare()
    print(json.dumps(time.perf_counter() - started), file=out, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(line.strip())), file=out, flush=True)
