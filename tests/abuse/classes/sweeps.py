"""Sweeps, and the claims on their runs, that are not what a sweep left."""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from bert_jax.config.fields import FIELDS
from bert_jax.runtime import folder_lock
from bert_jax.runtime.files import as_path
from bert_jax.tools.sweep.folder import Sweep
from bert_jax.tools.sweep.members import grid_members, member_config, read_sweep
from bert_jax.tools.sweep.report import report
from tests.abuse.classes.case import NASTY, WORDS_OF_FLAGS, Case, write
from tests.conftest import ROOT

_VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, 2**31, 2**63, 10**30, 1e300, float('nan'), float('inf'), '', 'x', '1',
    '../x', '\x00', '\x1b[31m', 'a\nb', [], {}, [1], {'a': 1})
_CONFIG = f'{ROOT}/configs/tiny_pretrain.py'


def _claim(rng: random.Random) -> Any:
    """What a claim may hold: that of a process that is or was here, or of another machine."""
    content: Any = folder_lock.new_claim() | rng.choice((
        {}, {'machine': 'x'}, {'pid': 1}, {'pid': 2**22 - 1}, {'started': 'x'},
        {'host': '\x1b[31m'}))
    for _ in range(rng.choice((0, 0, 1, 2))):
        content[rng.choice((*content, 'x'))] = rng.choice(_VALUES)
    return rng.choice((content, content, content, *_VALUES))


def _spoil_place(rng: random.Random, path: Path, content: Any) -> str:
    how = rng.choice(('json', 'json', 'json', 'bytes', 'folder', 'dangling', 'loop', 'empty',
                      'fifo'))
    path.parent.mkdir(parents=True, exist_ok=True)
    if how == 'json':
        write(path, json.dumps(content))
    elif how == 'bytes':
        write(path, rng.choice((b'\xff\xfe', b'{', b'[' * 99_999, bytes(3000), b'{"a": 1}{"a": 1}',
                                b'NaN')))
    elif how == 'folder':
        path.mkdir()
    elif how == 'dangling':
        path.symlink_to('nowhere')
    elif how == 'loop':
        path.symlink_to(path.name)
    elif how == 'fifo':
        os.mkfifo(path)
    else:
        path.touch()
    return f'{path.name} {how} {content!r:.200}'


def _of_lease(rng: random.Random, folder: Path) -> tuple[str, Callable[[], object]]:
    number = rng.choice(('1', '7', '99999999999999999999', '007', '-1', '0', 'x', '', '1.tmp', '１',
                         '1e3'))
    done = _spoil_place(rng, folder / 'new' / f'.claim-{number}', _claim(rng))

    def act() -> None:
        with mock.patch.object(folder_lock, 'SECONDS', 1.0):
            print(folder_lock.holder(folder / 'new'))
            with folder_lock.claimed(folder / 'new', 'run') as claim:
                print('taken', claim.lost)

    return done, act


def _of_folder(rng: random.Random, folder: Path) -> tuple[str, Callable[[], object]]:
    """A sweep's folder with results that are none."""
    members = grid_members(['seed=1,2'], 0)
    top = folder / 'new'
    write(top / 'sweep.json', {'config': _CONFIG, 'settings': []})
    for member in members:
        write(top / 'runs' / member.name / 'sweep_result.json',
              {'metric': 'eval/f1', 'eval/f1': 0.5, 'host': 'vm'})
        write(top / 'runs' / member.name / 'goodput.json', {'seconds': {'step': 3.0}, 'at': 5.0})
    name = rng.choice(('sweep.json', 'runs/seed=1/sweep_result.json',
                       'runs/seed=2/sweep_failed.json', 'runs/seed=1/goodput.json', 'winner',
                       'table.md', 'results.json', 'runs'))
    path = top / name
    content = {rng.choice(('metric', 'eval/f1', 'host', 'time', 'config', 'settings', 'seconds',
                           'at', 'x')): rng.choice(_VALUES)}
    if path.is_file():
        content = json.loads(path.read_text()) | content
        path.unlink()
    done = name
    if not path.is_dir():
        done = _spoil_place(rng, path, rng.choice((content, content, rng.choice(_VALUES))))
    write(top / rng.choice(('x', 'runs/x', '.hidden', 'a\x1b[31m')), '')

    def act() -> None:
        sweep = Sweep(as_path(top), _CONFIG, [], members)
        sweep.open(_CONFIG, [])
        sweep.unfinished()
        report(sweep)

    return done, act


def _of_grid(rng: random.Random, folder: Path) -> tuple[str, Callable[[], object]]:
    """A grid with odd fields and values, or a file that defines one."""
    fields = (*sorted(FIELDS), *NASTY[:5], 'seed', 'seed', 'optimizer.learning_rate', '')
    words = (*WORDS_OF_FLAGS, *NASTY, '1', '2')
    grid = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        field = rng.choice(fields)
        values = ','.join(rng.choices(words, k=rng.choice((1, 2, 3))))
        grid.append(rng.choice((f'{field}={values}', field, f'{field}=', f'={values}',
                                f'{field}={values}=1')))
    named = _CONFIG
    if rng.random() < 0.4:
        named = str(folder / 'new' / 's.py')
        text = rng.choice((
            f'CONFIG = {_CONFIG!r}\nGRID = {grid!r}\n', f'CONFIG = 3\nGRID = {grid!r}\n',
            f'CONFIG = "s.py"\nGRID = {grid!r}\n',
            f'CONFIG = "{folder}/new"\nGRID = ()\n', 'CONFIG = None\nGRID = None\n',
            f'GRID = {grid!r}\n', f'CONFIG = "x"\nGRID = {grid[0]!r}\n',
            'CONFIG = "\\0"\nGRID = ("seed=1",)\n', 'import sys; sys.exit(0)\n',
            'CONFIG = GRID = "a"\n',
            'CONFIG = "a"\nGRID = [3]\n', 'CONFIG = ["a"]\nGRID = {}\n'))
        encoded = text.encode('utf-8', 'surrogateescape')
        write(folder / 'new' / 's.py', encoded.decode('utf-8', 'replace'))

    def act() -> None:
        config, read = read_sweep(named, grid)
        for member in grid_members(read, rng.choice((0, 2))):
            member_config(config, [], member)
            (folder / 'new' / member.name).mkdir(parents=True)

    return f'{named} {grid!r:.400}', act


def draw(rng: random.Random, folder: Path, things: Path) -> Case:
    """A claim, a folder of results or a grid that is odd."""
    (folder / 'new').mkdir()
    done, act = rng.choice((_of_lease, _of_lease, _of_folder, _of_grid, _of_grid))(rng, folder)
    return Case(done=done, act=act)
