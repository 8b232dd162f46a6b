"""Damages a file of a run, a token store or published weights, and opens it through a command.

The command must give the result of the undamaged copy, bit for bit (the damage did not matter, or
an older checkpoint was read, which a line reports), or an error in one line.

Config and vocabulary of published weights have no checksum in any format. Damage there that leaves
another valid model is counted separately, as no reader could notice it.
"""

import collections
import functools
import hashlib
import json
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import numpy as np

from bert_jax.watch.metrics_log import MetricsLog
from tests.abuse.commands import Answer, contents, copy_again, make, open_command
from tests.abuse.outcome import Outcome
from tests.tiny_runs import saved

_HANGS = 60  # seconds after which a command counts as hung


class Target(NamedTuple):
    """What is damaged and how it is opened; `made` is the folder that the command writes."""

    folder: str
    line: str
    made: str = 'new'


TARGETS = {
    'run, resumed': Target(
        'run', 'main @text --config.train.steps=6 --workdir={folder}/run', 'run'),
    'run, converted': Target('run', 'convert {folder}/run {folder}/new --to huggingface'),
    'fine-tuned run, resumed': Target(
        'cola', 'main @glue --config.train.steps=4 --workdir={folder}/cola', 'cola'),
    'fine-tuned run, evaluated': Target('cola', 'evaluate {folder}/cola'),
    'store': Target('cache', 'main @text --config.train.steps=1'),
    'Hugging Face folder': Target('hf', 'convert {folder}/hf {folder}/new --to bert_jax'),
    'TF1 checkpoint': Target('tf1', 'convert {folder}/tf1 {folder}/new --to huggingface'),
    'converted run': Target('own', 'convert {folder}/own {folder}/new --to huggingface'),
}


def convert_run(folder: Path) -> None:
    """Converts `run` to all formats, in the folders hf, tf1 and own."""
    for target, form in (('hf', 'huggingface'), ('tf1', 'tf1'), ('own', 'bert_jax')):
        answer = open_command(f'convert {{folder}}/run {{folder}}/{target} --to {form}', folder)
        assert answer.status == 0, answer.err


def _result(answer: Answer, made: Path) -> Any:
    """What was printed and written; checkpoints by their arrays, as file names are random."""
    printed = [line for line in answer.out.splitlines() if line.startswith(('{', 'result '))]
    if not (made / 'checkpoints').exists():
        return printed, contents(made)
    return printed, result_of(made)


def result_of(run: Path, part: str = 'checkpoints') -> str:
    """A digest of the arrays of a run's newest checkpoint, in one of its folders."""
    digest = hashlib.md5()
    for path, array in jax.tree_util.tree_leaves_with_path(saved(run, part)):
        digest.update(jax.tree_util.keystr(path).encode())
        digest.update(np.asarray(array).tobytes())
    return digest.hexdigest()


def overwrite(rng: random.Random, data: bytes) -> bytes:
    """Overwrites a part with zeros, as a failing disk does, or with random bytes."""
    start = rng.randrange(len(data))
    size = rng.choice((len(data), rng.randint(1, 4096)))
    size = min(size, len(data) - start)
    part = rng.choice((bytes(size), rng.randbytes(size)))
    return data[:start] + part + data[start + size:]


def flip(rng: random.Random, data: bytes) -> bytes:
    """Flips a bit."""
    place = rng.randrange(len(data))
    flipped = data[place] ^ 1 << rng.randrange(8)
    return data[:place] + bytes([flipped]) + data[place + 1:]


def cut(rng: random.Random, data: bytes) -> bytes:
    """Leaves out the end."""
    return data[: rng.randrange(len(data))]


_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 7, 0.3, 1e-3, 10**9, 10**30, 1e300, '', 'x', '3', [], {}, [1],
    {'a': 1}, float('nan'), '../..')


def _replace_value(rng: random.Random, data: bytes) -> bytes:
    """Replaces a value in JSON by another one; other files stay as they are."""
    places = list(re.finditer(rb'": ?("[^"]*"|[^][{}," \n]+)', data))
    if not places:
        return data
    place = rng.choice(places)
    value = json.dumps(rng.choice(_VALUES)).encode()
    return data[:place.start(1)] + value + data[place.end(1):]


_DAMAGES = {'flip': flip, 'cut': cut, 'overwrite': overwrite, 'replace': _replace_value}


class Damage(NamedTuple):
    """What was done (a key of `_DAMAGES`, or swap) to a file, by its path in the folder."""

    name: str
    how: str


def _damage(rng: random.Random, folder: Path) -> Damage:
    """Damages one file of a folder."""
    paths = _files_to_damage(folder)
    # Draws a kind of file first, or most would be the many small files of checkpoints.
    by_kind = collections.defaultdict(list)
    for path in paths:
        name = str(path.relative_to(folder))
        by_kind[re.sub(r'[0-9a-f]{16,}|\d+', '#', name)].append(path)
    path = rng.choice(by_kind[rng.choice(sorted(by_kind))])
    before = path.read_bytes()
    after = before
    while after == before:
        how = rng.choice(('flip', 'cut', 'overwrite', 'overwrite', 'swap', 'replace', 'replace'))
        if how == 'swap':  # with the content of another file
            after = rng.choice(paths).read_bytes()
        else:
            after = _DAMAGES[how](rng, before)
    path.unlink()  # so that no other link to the file changes
    path.write_bytes(after)
    return Damage(str(path.relative_to(folder)), how)


def _files_to_damage(folder: Path) -> list[Path]:
    """The files with content, but those that nothing reads."""
    paths = []
    for path in sorted(folder.rglob('*')):
        is_unread = path.name.startswith('events.out.') or path.suffix in ('.png', '.lock')
        if path.is_file() and path.stat().st_size and not is_unread:
            paths.append(path)
    return paths


def _changed_file(
    target: Target, damaged: str, before: dict[str, str], after: dict[str, str]
) -> str:
    """A file that the command must not change and did, or ''.

    Args:
      target: what was opened.
      damaged: the damaged file; of a checkpoint, all of it may be moved.
      before: digests of all files before the command.
      after: those after it.
    """
    checkpoint = '/'.join([target.folder, *damaged.split('/')[:2]])
    for path, digest in before.items():
        is_sound_checkpoint = (
            '/checkpoints/' in path and path in after and not path.startswith(checkpoint))
        may_change = path.startswith(f'{target.made}/') and not is_sound_checkpoint
        if after.get(path) != digest and not may_change:
            return path
    return ''


def _judge(target: Target, damaged: str, answer: Answer, result: Any, expected: Any) -> str:
    """What a command that changed no other file made of the damage."""
    if answer.status:
        return 'refused'
    if result != expected:
        is_unchecked = target.folder in ('hf', 'tf1') and damaged.endswith(('.json', '.txt'))
        return 'another model' if is_unchecked else 'HARM: another result'
    if 'moved to' in answer.out + answer.err:
        return 'older checkpoint'
    return 'same result'


def fuzz(
    numbers: Iterable[int], seed: int, things: Path, folder: Path,
    names: Sequence[str] = tuple(TARGETS),
) -> Iterator[Outcome]:
    """For each number, damages a new copy of `things`, made in `folder`."""
    @functools.cache
    def expected(target: Target) -> Any:
        copy_again(things, folder)
        answer = open_command(target.line, folder)
        assert answer.status == 0, answer.err
        return _result(answer, folder / target.made)

    with mock.patch.object(MetricsLog, 'draw'):
        for number in numbers:
            rng = random.Random(f'{seed} {number}')
            group = names[number % len(names)]
            target = TARGETS[group]
            wanted = expected(target)
            copy_again(things, folder)
            damage = _damage(rng, folder / target.folder)
            before = contents(folder)
            answer = open_command(target.line, folder, seconds=_HANGS)
            changed = _changed_file(target, damage.name, before, contents(folder))
            if answer.harm:
                result = f'HARM: {answer.harm}'
            elif changed:
                result = f'HARM: changed {changed}'
            else:
                made = None if answer.status else _result(answer, folder / target.made)
                result = _judge(target, damage.name, answer, made, wanted)
            printed = f'{damage.how} {damage.name}\n{answer.out}\n{answer.err}'
            yield Outcome(number, group, result, printed)


def fuzz_all(numbers: Iterable[int], seed: int, folder: Path) -> Iterator[Outcome]:
    """`fuzz` of everything there is, made in `folder`."""
    (folder / 'case').mkdir()  # runs hold paths: they are made where the cases are
    make(folder / 'case')
    convert_run(folder / 'case')
    (folder / 'case').rename(folder / 'things')
    yield from fuzz(numbers, seed, folder / 'things', folder / 'case')
