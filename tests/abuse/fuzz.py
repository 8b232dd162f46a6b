"""Damage on a disk, at random: what is read of it is the same, or one line says why it is not.

    python -m tests.abuse.fuzz --cases=2000 --seed=0

A case copies a run, a token store or published weights, damages one of the files, and opens it
through a command. The answer is the one that the undamaged copy gives, bit for bit (the damage did
not matter, or an older checkpoint was taken, which a line says), or an error in one line. Anything
else is harm: another result, NaN, a traceback, a hang, another file changed. A case is a function
of the seed and its number; `--only=N` runs one again and shows its output.

Config and vocabulary of published weights have no checksum in any format: what leaves another valid
model there is counted by itself, as nobody could tell.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import functools
import hashlib
import random
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np

from tests.abuse.commands import Answer, alarm, contents, open_command
from tests.abuse.damage import damage
from tests.abuse.things import expand, make
from tests.tiny_runs import saved

_HANGS = 60  # seconds


@dataclasses.dataclass(frozen=True)
class Target:
    """What is damaged, and how it is opened.

    Attributes:
      name: of the group in the table.
      folder: whose files are damaged.
      command, args: as of `commands.Case`; {folder} is the case's.
      result: of a successful answer, what must be the same.
      writes: folders that the command may change.
      sealed: whether checksums cover config and vocabulary too.
    """

    name: str
    folder: str
    command: str
    args: str
    result: Callable[[Path, Answer], Any]
    writes: tuple[str, ...] = ()
    sealed: bool = True


def _said(folder: Path, answer: Answer) -> Any:
    return [line for line in answer.out.splitlines() if line.startswith(('{', 'result '))]


def _new(folder: Path, answer: Answer) -> Any:
    """What was written; a checkpoint by its arrays, whose files have random names."""
    new = folder / 'new'
    return (_arrays(new) if (new / 'checkpoints').exists() else contents(new)), _said(
        folder, answer)


def _trained(run: str) -> Callable[[Path, Answer], Any]:
    return lambda folder, answer: (_said(folder, answer), _arrays(folder / run))


def _arrays(run: Path) -> str:
    """A digest of what a run has saved last."""
    digest = hashlib.md5()
    for place, x in jax.tree_util.tree_leaves_with_path(saved(run)):
        digest.update(jax.tree_util.keystr(place).encode() + np.asarray(x).tobytes())
    return digest.hexdigest()


# A rate that does not depend on how many steps there will be.
_STEADY = '--config.optimizer.decay_power=0'
TARGETS = (
    Target('run, resumed', 'run', 'main',
           f'@text {_STEADY} --config.train.steps=6 --workdir={{folder}}/run',
           _trained('run'), ('run', 'cache/compiled')),
    Target('run, predicts', 'run', 'predict', 'fill-mask --model {folder}/run "a [MASK] b"', _said),
    Target('run, converted', 'run', 'convert', '{folder}/run {folder}/new --to huggingface', _new),
    Target('fine-tuned run, resumed', 'cola', 'main',
           '@glue --config.train.steps=4 --workdir={folder}/cola', _trained('cola'),
           ('cola', 'cache/compiled')),
    Target('fine-tuned run, evaluated', 'cola', 'evaluate', '{folder}/cola --workdir={folder}/new',
           _new),
    Target('fine-tuned run, predicts', 'cola', 'predict', 'classify --model {folder}/cola "a b"',
           _said),
    Target('store', 'cache', 'main', '@text --config.train.steps=1 --workdir={folder}/new',
           _trained('new'), ('cache/compiled',)),
    Target('Hugging Face folder', 'hf', 'convert', '{folder}/hf {folder}/new --to bert_jax', _new,
           sealed=False),
    Target('Hugging Face folder, features', 'hf', 'predict', 'features --model {folder}/hf "a b"',
           _said, sealed=False),
    Target('TF1 checkpoint', 'tf1', 'convert', '{folder}/tf1 {folder}/new --to huggingface', _new,
           sealed=False),
    Target('converted run', 'converted', 'convert',
           '{folder}/converted {folder}/new --to huggingface', _new),
)


def make_all(folder: Path) -> None:
    """What is damaged, of runs that say of where they lie that it is `folder`."""
    make(folder)
    shutil.rmtree(folder / 'run')  # another in its place, whose schedule has no end
    answer = open_command('main', *expand(['@text', _STEADY, f'--workdir={folder}/run'], folder))
    assert answer.status == 0, answer.err
    convert_run(folder)


def convert_run(folder: Path) -> None:
    """`run` as other formats have it."""
    shutil.rmtree(folder / 'cache' / 'compiled', ignore_errors=True)
    for source, target, form in (
            ('run', 'hf', 'huggingface'), ('run', 'tf1', 'tf1'), ('run', 'converted', 'bert_jax')):
        answer = open_command('convert', f'{folder}/{source}', f'{folder}/{target}', '--to', form)
        assert answer.status == 0, answer.err


@contextlib.contextmanager
def shared_programs() -> Iterator[None]:
    """What is compiled for one case serves all, and no curves are drawn."""
    from bert_jax.train import experiment
    from bert_jax.train.report import Report

    programs: dict[str, Any] = {}
    build = experiment.build_program

    def shared(config: Any, mesh: Any, task: Any) -> Any:
        key = config.to_json_best_effort()
        if key not in programs:
            programs[key] = build(config, mesh, task)
        return programs[key]

    with mock.patch.object(experiment, 'build_program', shared), \
            mock.patch.object(Report, 'draw', lambda self: None):
        yield


class Fuzz:
    """Cases of things that are there, each in a copy of them."""

    def __init__(self, things: Path, folder: Path, targets: Sequence[Target] = TARGETS):
        self._things, self._folder, self._targets = things, folder, targets
        self._expected = functools.cache(self._expect)

    def _copy(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.copytree(self._things, self._folder, symlinks=True)

    def _open(self, target: Target, seconds: int = _HANGS) -> Answer:
        args = expand(shlex.split(target.args), self._folder)
        with alarm(seconds):
            return open_command(target.command, *args)

    def _expect(self, target: Target) -> Any:
        self._copy()
        answer = self._open(target, 10 * _HANGS)  # it compiles
        assert answer.status == 0, answer.err
        return target.result(self._folder, answer)

    def case(self, seed: int, number: int) -> tuple[Target, str, str, Answer]:
        """(what was damaged, how, what came of it, what was said)."""
        rng = random.Random(f'{seed} {number}')
        target = self._targets[number % len(self._targets)]
        expected = self._expected(target)
        self._copy()
        name, how = damage(rng, self._folder / target.folder)
        before = contents(self._folder)
        answer = self._open(target)
        return target, f'{how} {name}', self._judge(target, name, answer, before, expected), answer

    def _judge(
        self, target: Target, name: str, answer: Answer, before: dict[str, str], expected: Any
    ) -> str:
        everything = answer.out + answer.err
        if 'Traceback' in everything or 'may be a fault of bert_jax' in everything:
            return 'HARM: traceback'
        if re.search(r'\b(NaN|nan|Infinity)\b', answer.out):
            return 'HARM: NaN'
        after = contents(self._folder)
        damaged = '/'.join([target.folder, *name.split('/')[:2]])  # a checkpoint is as a whole

        def is_written(path: str) -> bool:
            kept = '/checkpoints/' in path and path in after and not path.startswith(damaged)
            return path.startswith(target.writes) and not kept

        changed = [path for path, digest in before.items()
                   if after.get(path) != digest and not is_written(path)]
        if changed:
            return f'HARM: changed {changed[0]}'
        if answer.status:
            return ('refused' if answer.status in (1, 2) and len(answer.lines) == 1 else
                    f'HARM: status {answer.status}, {len(answer.lines)} lines')
        if target.result(self._folder, answer) != expected:
            if not target.sealed and name.endswith(('.json', '.txt')):
                return 'another model'
            return 'HARM: another result'
        return 'older checkpoint' if 'moved to' in everything else 'same result'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--cases', type=int, default=2000)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--only', type=int, help='the number of one case')
    args = parser.parse_args()
    found: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    with tempfile.TemporaryDirectory() as named, shared_programs():
        things, folder = Path(named) / 'things', Path(named) / 'case'
        folder.mkdir()  # runs name paths: they are made where cases lie
        make_all(folder)
        folder.rename(things)
        fuzz = Fuzz(things, folder)
        for number in range(args.cases) if args.only is None else [args.only]:
            started = time.monotonic()
            target, damage, came, answer = fuzz.case(args.seed, number)
            found[target.name][came.partition(':')[0]] += 1
            line = (answer.err.strip().splitlines() or [''])[-1].replace(named, '')
            print(f'{number} {target.name}: {damage}: {came} '
                  f'({time.monotonic() - started:.2f} s) {line[:300]}', flush=True)
            if args.only is not None or came.startswith('HARM'):
                print(answer.out[-2000:], answer.err[-4000:])
    for name, counts in found.items():
        print(name, dict(counts))
    return any(counts['HARM'] for counts in found.values())


if __name__ == '__main__':
    sys.exit(main())
