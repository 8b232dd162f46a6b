"""A sample of the cases of `fuzz`, of those that cost little, and of `careless`."""

import shutil

import pytest

from tests.abuse import careless
from tests.abuse.fuzz import TARGETS, Fuzz, convert_run, shared_programs

pytestmark = pytest.mark.slow

_CASES = 48


def test_damage_is_found_or_does_no_harm(things, tmp_path):
    folder = tmp_path / 'things'
    shutil.copytree(things, folder)
    convert_run(folder)
    fuzz = Fuzz(folder, tmp_path / 'case', [
        target for target in TARGETS
        if target.command in ('convert', 'predict') or target.name == 'store'])
    came = []
    with shared_programs():
        for number in range(_CASES):
            target, damage, outcome, answer = fuzz.case(0, number)
            assert not outcome.startswith('HARM'), f'{target.name}: {damage}: {outcome} {answer}'
            came.append(outcome)
    assert {'same result', 'refused'} <= set(came)


def test_careless_tables_and_flags_have_one_answer():
    came = []
    for number, outcome, said in careless.run(40, seed=1):
        assert not outcome.startswith('HARM'), f'{number}: {outcome}\n{said}'
        came.append(outcome)
    assert {'read', 'refused'} == set(came)
