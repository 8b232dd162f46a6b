"""Careless and hostile inputs at every command: none does harm, each is answered in one line.

`CASES` is the table: a command, what it is given, the exit status, what its one line says. Files
that were there before are there afterwards, byte for byte.
"""

from __future__ import annotations

import shlex
import shutil

import pytest

from tests.abuse import configs, files_of_others, hand_edited, inputs, numbers, outputs
from tests.abuse.commands import Case, alarm, check, contents, open_command
from tests.abuse.things import expand

pytestmark = pytest.mark.slow

CASES: list[Case] = [
    *files_of_others.CASES, *numbers.CASES, *configs.CASES, *inputs.CASES, *hand_edited.CASES,
    *outputs.CASES,
]


@pytest.mark.parametrize('case', CASES, ids=lambda case: f'{case.command}-{case.name}')
def test_an_abuse_is_answered(case, things, tmp_path):
    folder = tmp_path / 'all'
    shutil.copytree(things, folder, symlinks=True)
    case.before(folder)
    before = contents(folder)
    args = shlex.split(case.args) if isinstance(case.args, str) else list(case.args)
    if case.command in ('main', 'sweep', 'paper', 'evaluate') and 'workdir' not in ' '.join(args):
        args.append('--workdir={folder}/new')
    with case.around(folder), alarm(60):
        answer = open_command(case.command, *expand(args, folder, things), stdin=case.stdin)
    check(answer, case.status, case.says)
    after = contents(folder)
    changed = [name for name, digest in before.items() if after.get(name) != digest]
    assert not changed, changed
