"""Runs any command in this process, and makes the files that abuse tests run it on."""

import contextlib
import dataclasses
import hashlib
import io
import os
import re
import runpy
import shlex
import shutil
import signal
import stat
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from bert_jax.runtime import connecting
from bert_jax.runtime.stopping import Guard
from bert_jax.watch.metrics_log import MetricsLog
from tests.conftest import ROOT
from tests.shared_steps import shared_steps
from tests.tiny_runs import TINY, documents, one_device, write_cola

# Compiles faster.
_WITHOUT_DROPOUT = ('--config.model.hidden_dropout=0', '--config.model.attention_dropout=0')
_TINY = (
    *TINY, *_WITHOUT_DROPOUT, '--config.train.steps=4', '--config.train.save_every=2',
    '--config.train.log_every=1', '--config.train.max_eval_examples=16',
    # A learning rate that does not depend on the number of steps.
    '--config.optimizer.warmup=0', '--config.optimizer.decay_power=0',
)
_CACHE = ('--config.data.dir={folder}/cache', '--config.data.local_dir={folder}/cache')
_TUNE = (
    '--config.init_checkpoint={folder}/run', '--config.data.max_seq_length=16', *_WITHOUT_DROPOUT,
    *_CACHE)
_LARGE = 64 << 20  # bytes
_FOLDER = 'a folder'
_DIGESTS: dict[str, tuple[str, tuple[int, ...]]] = {}  # of files that stay, with their versions
_TOP = ('main', 'convert', 'evaluate', 'predict')  # commands that are no tools
MACROS = {
    '@text': (*_TINY, '--config.data.source={folder}/text.txt', *_CACHE),
    '@synthetic': (*_TINY, '--config.task=synthetic', *_CACHE),
    '@glue': ('--config=configs/glue.py:cola', '--config.data.source={folder}/glue',
              '--config.train.batch_size=8', '--config.train.steps=2',
              '--config.train.eval_every=1', '--config.data.packing=False', *_TUNE),
    '@csv': ('--config=configs/classification.py', '--config.data.source={folder}/t.csv',
             '--config.data.eval_source={folder}/t.csv', *_TUNE),
    '@sweep': ('--config=configs/tiny_pretrain.py', '--restarts=1'),
    '@features': ('features', '--model', '{folder}/hf_pretraining'),
    '@export': ('export', '--model', '{folder}/hf_pretraining'),
}


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a command printed, its exit status and, as `lines`, the errors that it named."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith('error:')]

    @property
    def harm(self) -> str:
        """What no command may do, or '': a traceback, NaN, an error that is not one line."""
        if re.search('Traceback|may be a fault of bert_jax', self.out + self.err):
            return 'traceback'
        out_of_quotes = re.sub(r'"(\\.|[^"\\])*"|\'(\\.|[^\'\\])*\'', '', self.out)
        if re.search(r'\b(NaN|nan|Infinity)\b', out_of_quotes):
            return 'NaN'
        if self.status == 3 and 'have no result)' in self.err.splitlines()[-1]:
            return ''  # of `predict`: some texts
        if self.status and (self.status not in (1, 2) or len(self.lines) != 1):
            return f'status {self.status}, {len(self.lines)} lines'
        return ''


def open_command(
    line: str | tuple[str, ...], folder: Path, things: Path | None = None, stdin: bytes = b'',
    seconds: int = 600, place: Path = ROOT,
) -> Answer:
    """Runs a command as `python -m` does, but in this process and on one device.

    Args:
      line: the command and its arguments; @NAME stands for a row of `MACROS`, {folder} and {things}
        for these paths. A command with a --workdir gets {folder}/new unless one is named.
      folder: what the command may read and write, a copy of `things`.
      things: what it may read as it was before the case.
      stdin: bytes of its standard input.
      seconds: after which it is interrupted.
      place: its working directory.
    """
    command, *args = arguments(line, folder, things)
    status = None
    err = io.StringIO()
    out = io.StringIO()
    out.reconfigure = lambda **_: None  # type: ignore[attr-defined]
    with contextlib.ExitStack() as stack:
        stack.enter_context(one_device())
        stack.enter_context(shared_steps())
        # A process that runs many tests joins no other hosts, and keeps its own signal handlers.
        stack.enter_context(mock.patch.object(connecting, 'connect', lambda: None))
        stack.enter_context(mock.patch.object(Guard, 'start', lambda self: None))
        stack.enter_context(mock.patch.object(sys, 'stdin', io.TextIOWrapper(io.BytesIO(stdin))))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        stack.enter_context(contextlib.chdir(place))
        stack.enter_context(_alarm(seconds))
        try:
            start(command, *args)
        except SystemExit as ended:
            status = ended.code
        except (Exception, KeyboardInterrupt):
            err.write(traceback.format_exc())
            status = 1
    return Answer(status or 0, out.getvalue(), err.getvalue())


def start(command: str, *args: str) -> None:
    """Runs `python -m bert_jax.COMMAND ARGUMENTS` in this process, and ends as that does."""
    package = 'bert_jax' if command in _TOP else 'bert_jax.tools'
    # runpy warns if the module of the command has been imported before.
    with (warnings.catch_warnings(action='ignore', category=RuntimeWarning),
          mock.patch.object(sys, 'argv', [command, *args])):
        runpy.run_module(f'{package}.{command}', run_name='__main__', alter_sys=True)


def arguments(
    line: str | tuple[str, ...], folder: Path, things: Path | None = None
) -> tuple[str, ...]:
    """The command and its arguments of a line as `open_command` takes it.

    Configs of the repository are named from its root, so that the command can run anywhere.
    """
    command, *words = shlex.split(line) if isinstance(line, str) else line
    if command in ('main', 'sweep', 'paper', 'evaluate') and 'workdir' not in ' '.join(words):
        words.append('--workdir={folder}/new')
    args = []
    for word in words:
        for part in MACROS.get(word, (word,)):
            part = part.replace('{folder}', str(folder)).replace('{things}', str(things))
            args.append(re.sub('^--config=configs/', f'--config={ROOT}/configs/', part))
    return (command, *args)


@contextlib.contextmanager
def _alarm(seconds: int) -> Iterator[None]:
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
    """Digests of the files below a folder, of large ones size and time; where its links point."""
    return {name: what for name, what in _below(folder).items() if what != _FOLDER}


def copy_again(things: Path, folder: Path) -> None:
    """Makes a folder a copy of another; of an earlier copy, only what has changed is made anew."""
    wanted = _below(things)
    found = _below(folder)
    changed = {name for name in wanted.keys() | found.keys()
               if found.get(name) != wanted.get(name)}
    for name in sorted(changed & found.keys(), reverse=True):  # folders after what is in them
        if found[name] == _FOLDER:
            (folder / name).rmdir()
        else:
            (folder / name).unlink()
    folder.mkdir(exist_ok=True)
    for name in sorted(changed & wanted.keys()):
        if wanted[name] == _FOLDER:
            (folder / name).mkdir()
        else:
            shutil.copy2(things / name, folder / name, follow_symlinks=False)


def _below(folder: Path) -> dict[str, str]:
    """What is below a folder, by name: as `contents` describes it, or `_FOLDER`."""
    found = {}
    prefix = f'{folder}/'
    for parent, folders, names in os.walk(folder):
        for name in folders + names:
            path = f'{parent}/{name}'
            found[path.removeprefix(prefix)] = _description(path)
    return found


def _description(path: str) -> str:
    """A description of what is at a path: see `_below`."""
    state = os.lstat(path)
    if stat.S_ISLNK(state.st_mode):
        return os.readlink(path)
    if stat.S_ISDIR(state.st_mode):
        return _FOLDER
    if not stat.S_ISREG(state.st_mode):
        return 'special'
    if state.st_size > _LARGE:
        return f'{state.st_size} {state.st_mtime_ns}'
    version = (state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
    if _DIGESTS.get(path, ('', ()))[1] != version:
        digest = hashlib.md5(Path(path).read_bytes()).hexdigest()
        if time.time_ns() < state.st_ctime_ns + 1e9:
            return digest  # a change within the same tick of the clock would not be noticed
        _DIGESTS[path] = digest, version
    return _DIGESTS[path][0]


def make(folder: Path) -> None:
    """Makes text.txt, run, cola (a fine-tuned run), cache, glue, hf_NAME and notes."""
    (folder / 'text.txt').write_text(documents(40))
    write_cola(folder / 'glue')
    with mock.patch.object(MetricsLog, 'draw'):
        for line in ('main @text --workdir={folder}/run', 'main @glue --workdir={folder}/cola'):
            answer = open_command(line, folder)
            assert answer.status == 0, answer.err
    for name in ('pretraining', 'classification', 'question_answering'):
        shutil.copytree(ROOT / 'tests/fixtures/huggingface' / name, folder / f'hf_{name}')
    (folder / 'notes').mkdir()
    (folder / 'notes' / 'important.txt').write_text('not to be lost\n')
