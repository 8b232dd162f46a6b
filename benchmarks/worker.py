"""Processes of the programs that a benchmark compares, and what these take.

Both programs have the environment of the command that starts them, GLIBC_TUNABLES included, but not
its cache of compiled programs.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Finished(NamedTuple):
    """What a command printed and took.

    Attributes:
      output: standard output.
      seconds: by the clock.
      cpu_seconds: of all its threads, and of the processes that it waited for.
      peak_memory: bytes of the largest of these processes.
    """

    output: str
    seconds: float
    cpu_seconds: float
    peak_memory: int

    def costs(self) -> dict[str, float]:
        """What it took, as a measurement of the page."""
        costs = self._asdict()
        del costs['output']
        return costs


def environment() -> dict[str, str]:
    """Of both programs: on CPUs, without the hub, and without programs that others compiled."""
    inherited = dict(os.environ)
    inherited.pop('JAX_COMPILATION_CACHE_DIR', None)
    return inherited | {
        'PYTHONPATH': str(ROOT), 'JAX_PLATFORMS': 'cpu', 'HF_HUB_OFFLINE': '1',
        'TRANSFORMERS_VERBOSITY': 'error', 'HF_HUB_DISABLE_PROGRESS_BARS': '1'}


def run(command: Sequence[str], until: str = '') -> Finished:
    """Runs a command to its end, or until a line of its output holds `until`.

    Raises:
      SystemExit: it fails, or ends without that line.
    """
    started = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment())
    assert process.stdout
    lines = []
    for line in process.stdout:
        lines.append(line)
        if until and until in line:
            process.kill()
            break
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.stdout.close()
    process.returncode = os.waitstatus_to_exitcode(status)
    is_done = until in ''.join(lines[-1:]) if until else process.returncode == 0
    if not is_done:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{''.join(lines)}")
    return Finished(
        ''.join(lines), seconds, usage.ru_utime + usage.ru_stime, 1024 * usage.ru_maxrss)


class Worker:
    """A process that does its work once for each call, and waits in between.

    It is `python -m MODULE --program=NAME ...`, whose main is `serve`.
    """

    def __init__(self, folder: str, module: str, name: str, *arguments: str):
        """Starts the process and waits until it is ready.

        Args:
          folder: receives what it writes to standard error.
          module: of this folder.
          name: of the program.
          arguments: further ones of the module.
        """
        self._log = Path(folder, f'{name}.txt')
        with self._log.open('w') as errors:
            self._process = subprocess.Popen(
                [sys.executable, '-m', f'benchmarks.{module}', f'--program={name}', *arguments],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                cwd=ROOT, env=environment())
        self._answer()

    def __call__(self) -> dict[str, float]:
        """What the work took: `seconds`, `peak_memory`, and what else the program says."""
        assert self._process.stdin
        self._process.stdin.write('\n')
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f'a program ended:\n{self._log.read_text()[-2000:]}')
        return json.loads(line)

    def __enter__(self) -> 'Worker':
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def serve(prepare: Callable[[], Callable[[], dict[str, float]]]) -> None:
    """Runs in the process: answers each line of standard input with a line of JSON.

    Args:
      prepare: returns the function that does the work, and says what it took.
    """
    out = os.fdopen(os.dup(1), 'w')  # what libraries print goes to standard error
    os.dup2(2, 1)
    work = prepare()
    print('{}', file=out, flush=True)
    for _ in sys.stdin:
        result = work() | {'peak_memory': peak_memory()}
        print(json.dumps(result), file=out, flush=True)


def peak_memory() -> int:
    """The most bytes that this process has used since it started its program."""
    for line in Path('/proc/self/status').read_text().splitlines():
        name, _, value = line.partition(':')
        if name == 'VmHWM':
            return 1024 * int(value.split()[0])
    raise AssertionError('no VmHWM in /proc/self/status')


def make_parser(doc: str | None, programs: Sequence[str]) -> argparse.ArgumentParser:
    """With `--program`, which `Worker` sets."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--program', required=True, choices=programs)
    return parser
