"""Careless and hostile inputs at every command: none does harm, each is answered in one line.

`CASES` is the table: a command, what it is given, the exit status, what its one line says. Files
that were there before are there afterwards, byte for byte.
"""

from __future__ import annotations

import shutil

import pytest

from tests.abuse import careless
from tests.abuse.cases import CASES
from tests.abuse.commands import alarm, check, contents, expand, make, open_command
from tests.abuse.fuzz import TARGETS, convert_run, run

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def things(tmp_path_factory):
    folder = tmp_path_factory.mktemp('things')
    make(folder)
    return folder


@pytest.mark.parametrize('case', CASES, ids=lambda case: ' '.join(case.words)[:99])
def test_an_abuse_is_answered(case, things, tmp_path):
    folder = tmp_path / 'all'
    shutil.copytree(things, folder, symlinks=True)
    case.before(folder)
    before = contents(folder)
    command, *args = case.words
    if command in ('main', 'sweep', 'paper', 'evaluate') and 'workdir' not in ' '.join(args):
        args.append('--workdir={folder}/new')
    with case.around(folder), alarm(60):
        answer = open_command(command, *expand(args, folder, things), stdin=case.stdin)
    check(answer, case.status, case.says)
    after = contents(folder)
    changed = [name for name, digest in before.items() if after.get(name) != digest]
    assert not changed, changed


def test_damage_is_found_or_does_no_harm(things, tmp_path):
    folder = tmp_path / 'things'
    shutil.copytree(things, folder)
    convert_run(folder)
    targets = [target for target in TARGETS
               if target.command in ('convert', 'predict') or target.name == 'store']
    outcomes = run(range(48), 0, folder, tmp_path / 'case', targets)
    assert {'same result', 'refused'} <= harmless(outcomes)


def test_careless_tables_and_flags_have_one_answer():
    assert harmless(careless.run(range(40), 1)) == {'read', 'refused'}


def harmless(outcomes):
    found = set()
    for number, group, outcome, printed in outcomes:
        assert not outcome.startswith('HARM'), f'{number} {group}: {outcome}\n{printed}'
        found.add(outcome)
    return found
