"""Kills commands that write: what they leave is whole or not there, and the next start is right.

Each case copies a folder of things, starts a command of `tests.abuse.writers` on it in a fork, and
gives it a signal: mostly SIGKILL, else SIGTERM, SIGHUP or SIGINT, of which it must make an orderly
end unless it has done nothing yet. Half of the signals come at a random moment. The others come
just before a random change of the disk (a file opened for writing, fsync, rename, link, removal,
new folder), which the fork notices by itself: most commands write only in their last moments.

Then everything that was left is made two days old, and the command runs again, unchanged. All that
is now in the folder must be what an undisturbed command makes there: no file more, none less, none
with other content, but for times, logs and pictures; of checkpoints, the arrays must be the same.
"""

import contextlib
import gzip
import hashlib
import json
import mmap
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import urllib.request
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from bert_jax.corpus.tokenize_plain import COMMON, safe_codepoints
from tests.abuse.commands import arguments, contents, start
from tests.abuse.forked import Ended, Strike, run_forked, warm_up
from tests.abuse.fuzz import result_of
from tests.abuse.outcome import Outcome
from tests.abuse.writers import WRITERS, Writer, make_things
from tests.conftest import xla_flags
from tests.stand_in_hub import serving

_SECONDS = 900.0  # of a command that is not killed, on a busy machine
_SHARE_AGAIN = 0.5  # of the first start's time that one with compiled programs takes, about
_OLD = 2 * 86_400  # seconds, after which what was left by killed processes is removed
_ORDERLY = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_SIGNALS = (signal.SIGKILL,) * 12 + _ORDERLY
_CHANGES = ('os.rename', 'os.link', 'os.symlink', 'os.remove', 'os.mkdir', 'os.rmdir')
_WRITING = os.O_WRONLY | os.O_RDWR
# Files that differ from run to run: looked for, but not into.
# (Exported and compiled programs hold the lines that called, which here are not the same.)
_UNLIKE = re.compile(r'goodput\.json|log\.txt|table.*\.md|.+\.(png|lock|stablehlo|gz)')
_ZSTD = b'\x28\xb5\x2f\xfd'  # what jax compresses with, where that is installed
# Fields that do: times, what a resumed run reads from its own folder, and a digest of all.
_VARYING = re.compile(
    r'time/.+|train/.+_per_second|train/(data_wait|step_seconds|save_seconds).*|train/goodput|'
    'seconds|hours|date|results|time|made|vocab_file|init_saved|digest')


_ARRAYS: dict[str, str] = {}  # by the digests of their files: reading them takes seconds


class _Moment(NamedTuple):
    """A signal, and when it comes: before a change of the disk (from 1), or after some seconds."""

    number: int
    change: int = 0
    seconds: float = 0.0


class _Undisturbed(NamedTuple):
    """What an undisturbed command makes and prints, its seconds, and its changes of the disk."""

    made: dict[str, str]
    printed: list[str]
    seconds: float
    changes: int


class _Changes:
    """Counts the changes of the disk below a folder by a process, and strikes before one of them.

    Attributes:
      memory: has the count; a process and its fork share it.
    """

    def __init__(self, folder: Path, moment: _Moment | None):
        self.memory = mmap.mmap(-1, 8)
        self._folder = str(folder)
        self._moment = moment
        self._process = 0

    def watch(self) -> None:
        """From now on counts the changes by this process, not those of its forks."""
        self._process = os.getpid()
        flush = os.fsync

        def fsync(file: int) -> None:
            self._count()
            flush(file)

        os.fsync = fsync
        sys.addaudithook(self._hear)

    @property
    def count(self) -> int:
        return int.from_bytes(self.memory[:8], 'little')

    def _hear(self, event: str, args: Any) -> None:
        """Python's hook of audited events, which are about to happen."""
        is_change = event in _CHANGES
        if event == 'open':
            is_change = isinstance(args[2], int) and bool(args[2] & _WRITING)
        if is_change and isinstance(args[0], str | bytes | os.PathLike):
            name = os.fsdecode(args[0])
            is_ours = name.startswith(self._folder) and f'{self._folder}/compiled' not in name
            if is_ours or not os.path.isabs(name):
                self._count()

    def _count(self) -> None:
        if os.getpid() != self._process:
            return
        self.memory[:8] = (self.count + 1).to_bytes(8, 'little')
        if self._moment and self.count == self._moment.change:
            os.kill(self._process, self._moment.number)


def _keep_programs(folder: Path | str) -> None:
    """Keeps all compiled programs, in a folder or ('') where commands do it by themselves.

    Compilation takes most of the time of a tiny run.
    """
    jax.config.update('jax_compilation_cache_dir', str(folder) or None)
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)


def _hide_tensorflow() -> None:
    """Lets TensorFlow seem not to be installed: it takes seconds to start."""
    sys.modules.update(tensorflow=None, tensorflow_text=None)  # type: ignore[arg-type]


def _run(writer: Writer, folder: Path, moment: _Moment | None = None, hub: str = '') -> Ended:
    """Runs a command on a folder, perhaps until a moment; its `seconds` are its own."""
    return _run_counting(writer, folder, moment, hub)[0]


def _run_counting(
    writer: Writer, folder: Path, moment: _Moment | None = None, hub: str = ''
) -> tuple[Ended, int]:
    """(How a command ended, how often it has changed the disk)."""
    changes = _Changes(folder, moment)

    def act() -> None:
        tempfile.tempdir = None  # is read from the environment again
        _keep_programs('' if writer.is_cold else folder / 'compiled')
        if not writer.needs_tensorflow:
            _hide_tensorflow()
        writer.before()
        changes.watch()
        start(*arguments(writer.line, folder))

    environment = {'HOME': str(folder / 'home'), 'TMPDIR': str(folder / 'tmp'),
                   'XLA_FLAGS': xla_flags(1)}
    if hub:
        environment |= {'HF_ENDPOINT': hub, 'HF_HOME': str(folder / 'home' / 'hub'),
                        'HF_HUB_OFFLINE': '0', 'HF_HUB_DISABLE_XET': '1', 'HF_TOKEN': 'may write',
                        'HF_HUB_DISABLE_TELEMETRY': '1'}
    strike = None
    if moment and not moment.change:
        strike = Strike(moment.number, moment.seconds)
    ended = run_forked(act, seconds=_SECONDS, environment=environment, strike=strike)
    return ended, changes.count


def _made(folder: Path, with_temporary: bool) -> dict[str, str]:
    """What is in a folder: the digest of each file, or what of it is the same in every run."""
    found: dict[str, str] = {}
    for root, folders, names in os.walk(folder):
        within = Path(root).relative_to(folder)
        if 'compiled' in within.parts:
            found |= _half_programs(folder, within, names)
            continue
        if within.parts[:1] == ('tmp',) and not with_temporary:
            folders.clear()
            continue
        if within.name in ('checkpoints', 'best'):
            strange = [name for name in (*folders, *names) if not name.isdecimal()]
            found[f'{within}/'] = f'{strange} {_arrays_of(folder / within)}'
            folders.clear()
            continue
        if within.parts and within.name != 'tmp':
            found[f'{within}/'] = ''
        for name in names:
            if not name.startswith('events.out.'):
                found[str(within / name)] = _content(folder / within / name)
        for name in folders:
            if (folder / within / name).is_symlink():
                found[str(within / name)] = os.readlink(folder / within / name)
    return found


def _half_programs(folder: Path, within: Path, names: Sequence[str]) -> dict[str, str]:
    """The compiled programs that are kept in a folder and not whole."""
    found = {}
    for name in names:
        data = (folder / within / name).read_bytes()
        try:
            if not data.startswith(_ZSTD):
                zlib.decompress(data)
        except zlib.error:
            found[str(within / name)] = 'half'
    return found


def _arrays_of(checkpoints: Path) -> str:
    """A digest of the newest checkpoint of a folder; '' if it has none."""
    if not any(checkpoints.iterdir()):
        return ''
    files = str(sorted(contents(checkpoints).items()))
    if files not in _ARRAYS:
        def read() -> None:
            print(result_of(checkpoints.parent, checkpoints.name))

        # In a fork: this process opens no device, or its forks could not.
        _ARRAYS[files] = run_forked(read, seconds=_SECONDS).answer.out
    return _ARRAYS[files]


def _content(path: Path) -> str:
    """What is the same in a file whenever a command makes it; a digest of other files."""
    if path.is_symlink():
        return os.readlink(path)
    if _UNLIKE.fullmatch(path.name) or 'digests' in path.parts:
        return ''
    data = path.read_bytes()
    if path.name == 'metrics.jsonl':
        records = [json.loads(line) for line in data.splitlines()]
        return str([_same_fields(record) for record in records])
    if path.suffix == '.json':
        return str(_same_fields(json.loads(data)))
    return hashlib.md5(data).hexdigest()


def _same_fields(value: Any) -> Any:
    """A value of JSON without the fields that differ from run to run."""
    if isinstance(value, list):
        return [_same_fields(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    kept = {}
    for key, entry in value.items():
        if not _VARYING.fullmatch(key):
            kept[key] = _same_fields(entry)
    return kept


def _printed(ended: Ended) -> list[str]:
    """The lines that programs read."""
    return [line for line in ended.answer.out.splitlines() if line.startswith(('{', 'result '))]


def _torn(folder: Path) -> str:
    """A file that is not whole and has its own name, or ''."""
    for path in folder.rglob('*'):
        is_of_library = {'compiled', 'checkpoints', 'best'} & set(path.parts)
        if '.tmp' in str(path) or is_of_library or not path.is_file():
            continue
        try:
            if path.suffix == '.json':
                json.loads(path.read_bytes())
            elif path.suffix in ('.npz', '.zip'):
                zipfile.ZipFile(path).testzip()
            elif path.suffix == '.gz':
                gzip.decompress(path.read_bytes())
        except (ValueError, EOFError, zipfile.BadZipFile, gzip.BadGzipFile):
            return str(path.relative_to(folder))
    return ''


def _leftovers(folder: Path) -> list[str]:
    """Temporary files and folders below a folder."""
    found = []
    for path in folder.rglob('*'):
        is_temporary = path.name.endswith('.tmp') or path.parent == folder / 'tmp'
        if is_temporary or '.orbax-checkpoint-tmp' in path.name:
            found.append(str(path.relative_to(folder)))
    return found


def _differences(found: dict[str, str], expected: dict[str, str]) -> str:
    """The names of what differs, or ''."""
    names = []
    for name in sorted(found.keys() | expected.keys()):
        if found.get(name) != expected.get(name):
            kind = 'more' if name not in expected else 'less' if name not in found else 'other'
            names.append(f'{kind}: {name}')
            if kind == 'other':
                shared = len(os.path.commonprefix([found[name], expected[name]]))
                start = max(0, shared - 60)
                names.append(f'{found[name][start:shared + 60]!r}, not '
                             f'{expected[name][start:shared + 60]!r}')
    return ', '.join(names[:8])


@contextlib.contextmanager
def _hub(writer: Writer) -> Iterator[str]:
    """The address of a stand-in of the hub, in a process of its own; '' if none is needed."""
    if not writer.on_hub:
        yield ''
        return
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        with serving('') as environment:
            os.write(writing, environment['HF_ENDPOINT'].encode())
            time.sleep(_SECONDS)
        os._exit(0)
    try:
        yield os.read(reading, 1000).decode()
    finally:
        os.close(reading)
        os.close(writing)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _on_hub(address: str) -> dict[str, str]:
    """The files of ORG/new on the stand-in of the hub; none without one."""
    if not address:
        return {}
    try:
        with urllib.request.urlopen(f'{address}/api/models/ORG/new/tree/main') as answer:
            return {f"hub/{file['path']}": file['oid'] for file in json.loads(answer.read())}
    except urllib.error.HTTPError:
        return {}


def _copy(things: Path, folder: Path, writer: Writer) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(things, folder, symlinks=True)
    if writer.is_cold:
        shutil.rmtree(folder / 'home' / '.cache' / 'bert_jax', ignore_errors=True)


class _Expected:
    """What undisturbed commands make; each runs when it is needed."""

    def __init__(self, things: Path, folder: Path):
        self._things = things
        self._folder = folder
        self._known: dict[str, _Undisturbed] = {}

    def of(self, name: str) -> _Undisturbed:
        """What the command of this name makes where nothing disturbs it."""
        if name not in self._known:
            self._known[name] = self._run(WRITERS[name])
        return self._known[name]

    def _run(self, writer: Writer) -> _Undisturbed:
        _copy(self._things, self._folder, writer)
        with _hub(writer) as hub:
            ended, changes = _run_counting(writer, self._folder, hub=hub)
            assert ended.answer.status == 0, ended.answer
            made = _made(self._folder, with_temporary=True) | _on_hub(hub)
        seconds = ended.seconds
        if not writer.is_cold:  # later starts find the programs that this one compiles
            shutil.copytree(
                self._folder / 'compiled', self._things / 'compiled', dirs_exist_ok=True)
            seconds *= _SHARE_AGAIN
        return _Undisturbed(made, _printed(ended), seconds, changes)


def _wrong_end(writer: Writer, number: int, first: Ended, folder: Path) -> str:
    """What is wrong with the end of a command that got a signal that can be caught, or ''."""
    wanted = 143
    if number == signal.SIGINT and not writer.is_guarded:
        wanted = 130
    if first.answer.status != wanted:
        return f'status {first.answer.status} after {signal.Signals(number).name}'
    if 'Traceback' in first.answer.err or len(first.answer.lines) > 1:
        return f'not one line after {signal.Signals(number).name}'
    stopped = re.search('stopped at step (.+); the state is saved', first.answer.err)
    if stopped and not any(folder.rglob(f'checkpoints/{stopped[1]}')):
        return f'step {stopped[1]} is not saved'
    return ''


@contextlib.contextmanager
def _partners(writer: Writer, folder: Path) -> Iterator[None]:
    """Other processes of the same command, which must end well after the block."""
    children = []
    for _ in range(writer.partners):
        child = os.fork()
        if not child:
            ended = _run(writer, folder)
            sys.stderr.write(ended.answer.err if ended.answer.status else '')
            os._exit(abs(ended.answer.status))
        children.append(child)
    yield
    for child in children:
        _, status = os.waitpid(child, 0)
        assert status == 0, f'the other process ended with {status}'


def _case(
    writer: Writer, moment: _Moment, expected: _Undisturbed, folder: Path, hub: str
) -> tuple[str, str]:
    """(What came of a command that got a signal at a moment, what was printed)."""
    with _partners(writer, folder):
        first, changes = _run_counting(writer, folder, moment, hub)
    printed = f'{first.answer.status} {first.answer.out}\n{first.answer.err}'
    if first.answer.status == 0:
        return 'it was quicker', printed
    is_kill = moment.number == signal.SIGKILL
    # A signal may come before the command is ready to make an orderly end of it.
    is_unbegun = first.answer.status == -moment.number and not (changes or first.answer.out)
    wrong = ''
    if not (is_kill or is_unbegun):
        wrong = _wrong_end(writer, moment.number, first, folder)
    if wrong:
        return f'HARM: {wrong}', printed
    if not is_kill and not writer.partners and _leftovers(folder):
        return f'HARM: left {_leftovers(folder)}', printed
    if _torn(folder):
        return f'HARM: torn {_torn(folder)}', printed
    is_there = bool(writer.once and (folder / writer.once).exists() or _on_hub(hub))
    if not is_there:
        _make_old(folder)
        again = _run(writer, folder, hub=hub)
        printed += f'\n{again.answer.out}\n{again.answer.err}'
        if again.answer.status or again.harm:
            return f'HARM: not started again: {again.answer.status} {again.harm}', printed
        if _printed(again) != expected.printed:
            return 'HARM: other lines', printed
    # What a killed process has left in the folder of temporary files is the system's to remove.
    found = _made(folder, with_temporary=not is_kill) | _on_hub(hub)
    if not is_there:
        differences = _differences(found, expected.made)
    else:
        differences = _differences(_without_leftovers(found), expected.made)
    if differences:
        return f'HARM: {differences}', printed
    return 'whole' if is_there else 'whole after another start', printed


def _without_leftovers(found: dict[str, str]) -> dict[str, str]:
    """What is found in a folder but temporary files."""
    return {name: content for name, content in found.items() if '.tmp' not in name}


def _make_old(folder: Path) -> None:
    """Lets it seem that the files that a process has left are two days old."""
    for name in _leftovers(folder):
        old = time.time() - _OLD
        os.utime(folder / name, (old, old), follow_symlinks=False)


def _schedule() -> list[str]:
    """The names of commands in the order in which they are killed, over and over."""
    most = max(writer.times for writer in WRITERS.values())
    names: list[str] = []
    for turn in range(most):
        names += [name for name, writer in WRITERS.items() if writer.times > turn]
    return names


def _make(folder: Path) -> None:
    """Makes the things that commands read, with folders for home, temporary files and programs."""
    for place in ('home', 'tmp', 'compiled'):
        (folder / place).mkdir(parents=True)

    def make() -> None:
        os.environ.update(HOME=str(folder / 'home'), TMPDIR=str(folder / 'tmp'))
        tempfile.tempdir = None
        _hide_tensorflow()
        _keep_programs(folder / 'compiled')
        make_things(folder)

    made = run_forked(make, seconds=_SECONDS)
    assert made.answer.status == 0, made.answer.err


def kills(numbers: Iterable[int], seed: int, folder: Path) -> Iterator[Outcome]:
    """For each number, kills a command that writes, in a new copy of what it reads.

    Args:
      numbers: of the cases.
      seed: of the cases.
      folder: for their files; things that are there are used again.
    """
    warm_up()
    os.environ['TOKENIZERS_PARALLELISM'] = 'false'  # its threads would be missing in forks
    safe_codepoints(True, None, True, COMMON)  # is remembered
    things = folder / 'things'
    case = folder / 'case'
    if not things.exists():
        _make(case)  # runs hold paths: they are made where the cases are
        case.rename(things)
    expected = _Expected(things, case)
    names = _schedule()
    for number in numbers:
        rng = random.Random(f'{seed} {number}')
        name = names[number % len(names)]
        moment = _Moment(rng.choice(_SIGNALS))
        try:
            result, printed = _try(name, moment, rng, expected, things, case)
        except AssertionError as error:
            result, printed = f'HARM: {error}', ''
        yield Outcome(number, f'{name}, {signal.Signals(moment.number).name}', result, printed)


def _try(
    name: str, moment: _Moment, rng: random.Random, expected: _Expected, things: Path, folder: Path
) -> tuple[str, str]:
    """Chooses when a signal comes; (what came of it, what was printed)."""
    writer = WRITERS[name]
    whole = expected.of(name)
    if rng.random() < 0.5:
        own_changes = whole.changes // (1 + writer.partners)
        moment = moment._replace(change=rng.randint(1, max(own_changes, 1)))
    else:
        moment = moment._replace(seconds=rng.uniform(0.1, 1.0) * whole.seconds)
    _copy(things, folder, writer)
    with _hub(writer) as hub:
        result, printed = _case(writer, moment, whole, folder, hub)
    when = f'{moment.seconds:.1f} of {whole.seconds:.1f} s'
    if moment.change:
        when = f'before change {moment.change} of {whole.changes}'
    return f'{result} ({when})', printed
