"""Damage on a disk, at random: what is read of it is the same, or one line says why it is not.

A case copies a run, a token store or published weights, damages one of the files, and opens it
through a command. The answer is the one that the undamaged copy gives, bit for bit (the damage did
not matter, or an older checkpoint was taken, which a line says), or an error in one line. Anything
else is harm: another result, NaN, a traceback, a hang, another file changed.

Config and vocabulary of published weights have no checksum in any format: what leaves another valid
model there is counted by itself, as nobody could tell.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import hashlib
import json
import random
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np

from tests.abuse.commands import Answer, alarm, contents, expand, make, open_command
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


TARGETS = (
    Target('run, resumed', 'run', 'main',
           '@text --config.train.steps=6 --workdir={folder}/run',
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


def convert_run(folder: Path) -> None:
    """`run` as other formats have it."""
    shutil.rmtree(folder / 'cache' / 'compiled', ignore_errors=True)
    for source, target, form in (
            ('run', 'hf', 'huggingface'), ('run', 'tf1', 'tf1'), ('run', 'converted', 'bert_jax')):
        answer = open_command('convert', f'{folder}/{source}', f'{folder}/{target}', '--to', form)
        assert answer.status == 0, answer.err


def _flipped(rng: random.Random, data: bytearray, _: list[Path]) -> bytes:
    for _ in range(rng.choice((1, 1, 1, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


def _cut(rng: random.Random, data: bytearray, _: list[Path]) -> bytes:
    return data[:rng.randrange(len(data))]


def _overwritten(rng: random.Random, data: bytearray, _: list[Path]) -> bytes:
    """Zeros, as a disk leaves them, or other bytes."""
    start = rng.randrange(len(data))
    end = rng.choice((len(data), min(len(data), start + rng.randint(1, 4096))))
    data[start:end] = rng.choice((bytes(end - start), rng.randbytes(end - start)))
    return data


def _swapped(rng: random.Random, data: bytearray, others: list[Path]) -> bytes:
    return rng.choice(others).read_bytes()


_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 7, 0.3, 1e-3, 10**9, 10**30, 1e300, '', 'x', '3', [], {}, [1],
    {'a': 1}, float('nan'), '../..')


def _replaced(rng: random.Random, data: bytearray, _: list[Path]) -> bytes:
    """One value of a JSON file, or of a line of one."""
    lines = data.split(b'\n') if b'\n{' in data else [data]
    number = rng.randrange(len([line for line in lines if line.strip()]))
    tree = {'': json.loads(lines[number])}
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key, value in (node.items() if isinstance(node, dict) else enumerate(node)):
            places.append((node, key))
            if isinstance(value, (dict, list)):
                walk(value)

    walk(tree)
    node, key = rng.choice(places)
    value = node[key]
    if rng.random() < 0.1 and isinstance(node, dict) and node is not tree:
        del node[key]
    elif isinstance(value, (int, float)) and rng.random() < 0.5:
        node[key] = value * 2 + 1
    else:
        node[key] = rng.choice(_VALUES)
    lines[number] = json.dumps(tree.get('')).encode()
    return b'\n'.join(lines)


def _damage(rng: random.Random, folder: Path) -> tuple[str, str]:
    """Damages one file; (its path in the folder, how)."""
    paths = sorted(p for p in folder.rglob('*') if p.is_file() and p.stat().st_size
                   and not p.name.startswith('events.out.') and p.suffix not in ('.png', '.lock'))
    # Files are as likely as folders are: a checkpoint has many that are small.
    by_kind = collections.defaultdict(list)
    for path in paths:
        by_kind[re.sub(r'[0-9a-f]{16,}|\d+', '#', str(path.relative_to(folder)))].append(path)
    path = rng.choice(by_kind[rng.choice(sorted(by_kind))])
    before = path.read_bytes()
    kinds: list[Callable[..., bytes]] = [_flipped, _cut, _overwritten, _overwritten, _swapped]
    with contextlib.suppress(ValueError):
        lines = before.splitlines() if b'\n{' in before else [before]
        if all(isinstance(json.loads(line), (dict, list)) for line in lines):
            kinds += [_replaced] * 2
    kind = rng.choice(kinds)
    after = before
    while after == before:
        after = bytes(kind(rng, bytearray(before), [p for p in paths if p != path]))
    path.unlink()
    path.write_bytes(after)
    return str(path.relative_to(folder)), kind.__name__[1:]


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


def _judge(
    target: Target, name: str, answer: Answer, before: dict[str, str], expected: Any, folder: Path
) -> str:
    everything = answer.out + answer.err
    if 'Traceback' in everything or 'may be a fault of bert_jax' in everything:
        return 'HARM: traceback'
    if re.search(r'\b(NaN|nan|Infinity)\b', answer.out):
        return 'HARM: NaN'
    after = contents(folder)
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
    if target.result(folder, answer) != expected:
        if not target.sealed and name.endswith(('.json', '.txt')):
            return 'another model'
        return 'HARM: another result'
    return 'older checkpoint' if 'moved to' in everything else 'same result'


def run(
    numbers: Iterable[int], seed: int, things: Path, folder: Path,
    targets: Sequence[Target] = TARGETS,
) -> Iterator[tuple[int, str, str, str]]:
    """(number, target, what came of it, what was damaged and printed), in copies of `things`."""
    def opened(target: Target, seconds: int) -> Answer:
        with alarm(seconds):
            return open_command(target.command, *expand(shlex.split(target.args), folder))

    def copy() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(things, folder, symlinks=True)

    @functools.cache
    def expected(target: Target) -> Any:
        copy()
        answer = opened(target, 10 * _HANGS)  # it compiles
        assert answer.status == 0, answer.err
        return target.result(folder, answer)

    with shared_programs():
        for number in numbers:
            rng = random.Random(f'{seed} {number}')
            target = targets[number % len(targets)]
            wanted = expected(target)
            copy()
            name, how = _damage(rng, folder / target.folder)
            before = contents(folder)
            answer = opened(target, _HANGS)
            outcome = _judge(target, name, answer, before, wanted, folder)
            yield number, target.name, outcome, f'{how} {name}\n{answer.out}\n{answer.err}'


def run_all(numbers: Iterable[int], seed: int) -> Iterator[tuple[int, str, str, str]]:
    """The same of everything, made anew."""
    with tempfile.TemporaryDirectory() as named:
        things, folder = Path(named) / 'things', Path(named) / 'case'
        folder.mkdir()  # runs name paths: they are made where cases lie
        with shared_programs():
            make(folder)
            convert_run(folder)
        folder.rename(things)
        yield from run(numbers, seed, things, folder)
