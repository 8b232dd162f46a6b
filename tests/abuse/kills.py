"""Kills commands that write: what they leave is whole or not there, and the next start is right.

Each case kills a command at a random moment and looks at what it made. Then the command runs again,
to its end, and must make what an undisturbed one makes.
"""

import contextlib
import random
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.abuse.commands import arguments, contents, make
from tests.abuse.forked import Ended, run_command, run_forked, warm_up
from tests.abuse.fuzz import TARGETS, Target, result_of
from tests.abuse.outcome import Outcome

_SECONDS = 900.0  # of a command that is not killed, on a busy machine
_COMMANDS = {
    'to Hugging Face': Target('run', 'convert {folder}/run {folder}/new --to huggingface'),
    'to TF1': Target('run', 'convert {folder}/run {folder}/new --to tf1'),
    'to a run': Target('run', 'convert {folder}/run {folder}/new --to bert_jax'),
    'evaluation': Target('cola', 'evaluate {folder}/cola --workdir={folder}/new'),
    'vectors': Target(
        'run', 'predict features --model {folder}/run --input {folder}/text.txt '
        '--output {folder}/new.npz', 'new.npz'),
    'page': Target('run', 'report {folder}/run --output={folder}/new.html', 'new.html'),
    'training': TARGETS['run, resumed'],
    'fine-tuning': TARGETS['fine-tuned run, resumed'],
}
# Those that refuse to write where something is already.
_ONCE = ('to Hugging Face', 'to TF1', 'to a run', 'vectors', 'page')


def _made(made: Path) -> str:
    """What a command has made, as text; '' where there is nothing."""
    if made.is_file():
        return str(made.stat().st_size and contents(made.parent)[made.name])
    if not (made / 'checkpoints').exists():
        return str(sorted(contents(made).items())) if made.exists() else ''
    # Checkpoints are read in a fork: this process opens no device, or its forks could not.
    return run_forked(lambda: print(result_of(made)), seconds=_SECONDS).answer.out


def _run(target: Target, folder: Path, seconds: float = _SECONDS) -> Ended:
    return run_command(arguments(target.line, folder), seconds=seconds)


class _Expected:
    """What undisturbed commands make, and how long they take; each runs once, when it is needed."""

    def __init__(self, things: Path, folder: Path):
        self._things = things
        self._folder = folder
        self._known: dict[str, tuple[str, float]] = {}

    def of(self, name: str) -> tuple[str, float]:
        """(What a command of this name makes, its seconds)."""
        if name not in self._known:
            target = _COMMANDS[name]
            _copy(self._things, self._folder)
            ended = _run(target, self._folder)
            assert ended.answer.status == 0, ended.answer.err
            self._known[name] = (_made(self._folder / target.made), ended.seconds)
        return self._known[name]


def _copy(things: Path, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(things, folder, symlinks=True)


def _case(name: str, share: float, expected: _Expected, folder: Path) -> tuple[str, str]:
    """(What came of a command that was killed after a share of its time, what was printed)."""
    target = _COMMANDS[name]
    whole, seconds = expected.of(name)
    first = _run(target, folder, share * seconds)
    printed = f'killed after {share:.0%} of {seconds:.1f} s\n{first.answer.err}'
    if first.answer.status == 0:
        return 'it was quicker', printed
    left = _made(folder / target.made)
    is_run = target.made == target.folder  # its checkpoints come one by one
    if left not in ('', whole) and not is_run and name in _ONCE:
        return 'HARM: half of it was left', f'{printed}\n{left}'
    if left == whole and name in _ONCE:
        return 'whole', printed
    again = _run(target, folder)
    printed += f'\n{again.answer.err}'
    if again.answer.status or again.harm:
        return f'HARM: not started again: {again.answer.status} {again.harm}', printed
    if _made(folder / target.made) != whole:
        return 'HARM: another result', printed
    return 'whole after another start', printed


def kills(numbers: Iterable[int], seed: int, folder: Path) -> Iterator[Outcome]:
    """For each number, kills a command that writes, in a new copy of what it reads."""
    warm_up()
    case = folder / 'case'
    case.mkdir()  # runs hold paths: they are made where the cases are
    made = run_forked(lambda: make(case), seconds=_SECONDS)
    assert made.answer.status == 0, made.answer.err
    things = folder / 'things'
    case.rename(things)
    expected = _Expected(things, case)
    names = list(_COMMANDS)
    for number in numbers:
        rng = random.Random(f'{seed} {number}')
        name = names[number % len(names)]
        share = rng.uniform(0.1, 1.0)
        expected.of(name)
        _copy(things, case)
        result, printed = _case(name, share, expected, case)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(case)
        yield Outcome(number, name, result, printed)
