"""Every command in this process, as a careless hand opens it, and what it finds on a disk."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
import io
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

from bert_jax.runtime import hosts
from bert_jax.runtime.stopping import Guard
from tests.conftest import ROOT
from tests.tiny_runs import documents, one_device, write_cola

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
      line: the command, a key of MODULES, and its arguments; {folder} is the case's own folder,
        {things} what it is a copy of, @NAME an entry of `MACROS`.
      says: a pattern of what the one line holds.
      status: that it exits with.
      before: prepares the case's folder.
      stdin: what comes in.
      around: a context in which the command is opened, of the case's folder.
    """

    line: str | tuple[str, ...]
    says: str
    status: int = 2
    before: Callable[[Path], object] = lambda folder: None
    stdin: bytes = b''
    around: Callable[[Path], contextlib.AbstractContextManager] = contextlib.nullcontext

    @property
    def words(self) -> list[str]:
        return shlex.split(self.line) if isinstance(self.line, str) else list(self.line)


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


_TINY = (
    '--config=configs/tiny_pretrain.py', '--config.model.hidden_size=16',
    '--config.model.num_heads=2', '--config.model.num_layers=1', '--config.data.vocab_size=300',
    '--config.data.max_seq_length=16', '--config.data.max_predictions_per_seq=2',
    '--config.data.held_out=0.2', '--config.train.batch_size=8', '--config.train.steps=4',
    '--config.train.eval_batch_size=8', '--config.train.eval_every=0',
    '--config.train.save_every=2', '--config.train.log_every=1',
    '--config.train.max_eval_examples=8',
    # A rate that does not depend on how many steps there will be.
    '--config.optimizer.warmup=0', '--config.optimizer.decay_power=0',
    '--config.data.dir={folder}/cache', '--config.data.local_dir={folder}/cache',
)
MACROS = {
    '@text': (*_TINY, '--config.data.source={folder}/text.txt'),
    '@synthetic': (*_TINY, '--config.task=synthetic'),
    '@glue': (
        '--config=configs/glue.py:cola', '--config.init_checkpoint={folder}/run',
        '--config.data.source={folder}/glue', '--config.data.max_seq_length=16',
        '--config.train.batch_size=8', '--config.train.steps=2', '--config.train.eval_every=1',
        '--config.data.packing=False', '--config.data.dir={folder}/cache',
        '--config.data.local_dir={folder}/cache',
    ),
    '@csv': (
        '--config=configs/classification.py', '--config.init_checkpoint={folder}/run',
        '--config.data.source={folder}/t.csv', '--config.data.eval_source={folder}/t.csv',
        '--config.data.dir={folder}/cache', '--config.data.max_seq_length=16',
    ),
    '@sweep': ('--config=configs/tiny_pretrain.py', '--restarts=1'),
    '@features': ('features', '--model', '{folder}/hf_pretraining'),
    '@export': ('export', '--model', '{folder}/hf_pretraining'),
}


def expand(args: list[str], folder: Path, things: Path | None = None) -> list[str]:
    """With macros written out, {folder} filled in and {things}, what the folder is a copy of."""
    whole = [part for arg in args for part in MACROS.get(arg, (arg,))]
    return [part.replace('{folder}', str(folder)).replace('{things}', str(things))
            for part in whole]


def make(folder: Path) -> None:
    """Writes everything: text.txt, run, cola (a fine-tuned run), glue, hf_NAME, notes."""
    (folder / 'text.txt').write_text(documents(40))
    write_cola(folder / 'glue')
    for run, words in (('run', '@text'), ('cola', '@glue')):
        answer = open_command('main', *expand([words], folder), f'--workdir={folder}/{run}')
        assert answer.status == 0, answer.err
    for name in ('pretraining', 'classification', 'question_answering'):
        shutil.copytree(ROOT / 'tests/fixtures/huggingface' / name, folder / f'hf_{name}')
    (folder / 'notes').mkdir()
    (folder / 'notes' / 'important.txt').write_text('not to be lost\n')
