"""Every command in this process, as a careless hand opens it."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

from bert_jax.runtime import hosts
from bert_jax.runtime.stopping import Guard
from tests.conftest import ROOT
from tests.tiny_runs import one_device

MODULES = {
    'main': 'bert_jax.main', 'predict': 'bert_jax.predict.__main__', 'convert': 'bert_jax.convert',
    'evaluate': 'bert_jax.evaluate', 'sweep': 'bert_jax.tools.sweep',
    'submission': 'bert_jax.tools.glue_submission',
    'bench': 'bert_jax.tools.bench', 'prepare': 'bert_jax.tools.prepare',
    'preflight': 'bert_jax.tools.preflight', 'report': 'bert_jax.tools.report',
    'paper': 'bert_jax.tools.paper',
}
TAKES_PROGRAM_NAME = ('main', 'evaluate', 'bench', 'prepare', 'preflight')


@dataclasses.dataclass(frozen=True)
class Case:
    """What is done at a command, and how it must answer.

    Attributes:
      name: of the test.
      command: a key of MODULES.
      args: of the command line; {folder} is the case's own folder, @NAME an entry of `MACROS`. A
        run, sweep, table or evaluation goes to {folder}/new unless it names another --workdir.
      says: a pattern of what the one line holds.
      status: that it exits with.
      before: prepares the case's folder.
      stdin: what comes in.
      around: a context in which the command is opened, of the case's folder.
    """

    name: str
    command: str
    args: str | tuple[str, ...]
    says: str
    status: int = 2
    before: Callable[[Path], None] = lambda folder: None
    stdin: bytes = b''
    around: Callable[[Path], contextlib.AbstractContextManager] = contextlib.nullcontext


@dataclasses.dataclass(frozen=True)
class Answer:
    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith('error:')]


def open_command(command: str, *args: str, stdin: bytes = b'') -> Answer:
    """Runs a command as if it had been started with these arguments, on one device."""
    module = importlib.import_module(MODULES[command])
    out, err = io.StringIO(), io.StringIO()
    out.reconfigure = lambda **_: None  # type: ignore[attr-defined]
    with contextlib.ExitStack() as stack:
        stack.enter_context(one_device())
        # One process of many tests joins no others, and hears its own signals.
        stack.enter_context(mock.patch.object(hosts, 'connect', lambda: None))
        stack.enter_context(mock.patch.object(Guard, 'start', lambda self: None))
        stack.enter_context(mock.patch.object(sys, 'argv', [command, *args]))
        stack.enter_context(mock.patch.object(sys, 'stdin', io.TextIOWrapper(io.BytesIO(stdin))))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        stack.enter_context(contextlib.chdir(ROOT))
        try:
            if command == 'predict':
                status = module.main()
            else:
                names = [command] if command in TAKES_PROGRAM_NAME else []
                status = module.main([*names, *args])
        except SystemExit as ended:
            status = ended.code
        except (Exception, KeyboardInterrupt) as error:
            import traceback

            traceback.print_exception(error, file=err)
            status = 1
    return Answer(status or 0, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def alarm(seconds: int) -> Iterator[None]:
    """Ends what hangs."""
    def ring(number: int, frame: object) -> None:
        raise KeyboardInterrupt(f'nothing came in {seconds} s')

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def contents(folder: Path) -> dict[str, str]:
    """Digests of the files below a folder, and where its links point."""
    found = {}
    for root, _, names in os.walk(folder):
        for name in names:
            path = Path(root) / name
            found[str(path.relative_to(folder))] = (
                os.readlink(path) if path.is_symlink()
                else hashlib.md5(path.read_bytes()).hexdigest() if path.is_file() else 'special')
    return found


def check(answer: Answer, status: int, says: str) -> None:
    """One line that says it, no traceback, no NaN."""
    everything = answer.out + answer.err
    assert 'Traceback' not in everything, everything[-3000:]
    assert not re.search(r'\b(NaN|nan|Infinity)\b', answer.out), answer.out[-2000:]
    assert answer.status == status, everything[-3000:]
    if status:
        assert len(answer.lines) == 1, everything[-3000:]
        assert re.search(says, answer.lines[0]), answer.lines[0]
        assert 'may be a fault of bert_jax' not in answer.lines[0], answer.lines[0]
