"""A sample of the cases of `fuzz`, of those that cost little, and of `careless`."""

import shutil

import pytest

from tests.abuse import careless
from tests.abuse.fuzz import TARGETS, convert_run, run

pytestmark = pytest.mark.slow


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
