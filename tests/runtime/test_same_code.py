"""What is compared between hosts, and how they are told apart (real hosts: train/test_session)."""

import json
import sys
import types

import jax
import pytest

from bert_jax.runtime import provenance, same_code
from bert_jax.runtime.errors import InputError, named_hosts
from tests.conftest import ROOT


def test_files_packages_and_settings_are_compared():
    code = same_code._code_here()
    files = [name for name in code if name.startswith('bert_jax/')]
    assert len(files) == len(list((ROOT / 'bert_jax').rglob('*.py')))
    assert code['jaxlib'] == jax.lib.__version__
    assert {'numpy', 'flax', 'optax', 'Python', 'jax_enable_x64', 'XLA_FLAGS'} < set(code)


def test_config_files_are_compared_and_installed_modules_are_not(tmp_path, monkeypatch):
    (tmp_path / 'mine.py').write_text('a = 1\n')
    for name, file in (('config_file_1', tmp_path / 'mine.py'), ('other', json.__file__)):
        module = types.ModuleType(name)
        module.__file__ = str(file)
        monkeypatch.setitem(sys.modules, name, module)
    before = provenance.own_files()
    shown = f'{tmp_path.name}/mine.py'
    assert shown in before and not [name for name in before if 'json/' in name]
    (tmp_path / 'mine.py').write_text('a = 2\n')
    assert provenance.own_files()[shown] != before[shown]


@pytest.mark.parametrize('changes, line', [
    pytest.param({}, '', id='the same'),
    pytest.param({'bert_jax/a.py': '0'}, 'bert_jax/a.py', id='a file'),
    pytest.param({'bert_jax/a.py': None}, 'bert_jax/a.py is missing', id='one less'),
    pytest.param({'bert_jax/c.py': '0'}, 'bert_jax/c.py is only there', id='one more'),
    pytest.param({'jaxlib': '0.8.0'}, 'jaxlib 0.8.0 instead of 0.9.0', id='a version'),
    pytest.param({'own: configs/x.py': '0'}, 'configs/x.py', id='a config file'),
    pytest.param({'own: configs/x.py': None}, '', id='what only one has imported'),
    pytest.param({f'bert_jax/{name}.py': '0' for name in 'abcdef'},
                 'bert_jax/a.py, bert_jax/b.py, bert_jax/c.py is only there, '
                 'bert_jax/d.py is only there and 2 more', id='many'),
])
def test_a_host_says_in_what_it_differs(changes, line):
    theirs = {'bert_jax/a.py': '1', 'bert_jax/b.py': '1', 'jaxlib': '0.9.0',
              'own: configs/x.py': '1'}
    ours = {name: value for name, value in {**theirs, **changes}.items() if value is not None}
    assert same_code._differences(theirs, ours) == line


@pytest.mark.parametrize('flags, differs', [
    ('--xla_b=1 --xla_a=2', False), ('--xla_a=2 --xla_b=1 --xla_dump_to=/tmp/1', False),
    ('--xla_a=2', True), ('', True)])
def test_flags_of_the_compiler_are_compared_but_for_those_of_a_host(monkeypatch, flags, differs):
    monkeypatch.setenv('XLA_FLAGS', '--xla_a=2 --xla_b=1')
    on_first = same_code._settings()
    monkeypatch.setenv('XLA_FLAGS', flags)
    assert (same_code._settings() != on_first) == differs


def test_hosts_that_differ_in_the_same_way_are_named_together(monkeypatch):
    monkeypatch.setattr(same_code.hosts, 'count', lambda: 5)
    monkeypatch.setattr(same_code.hosts, 'share', lambda name, make: make())
    monkeypatch.setattr(same_code.hosts, 'exchange', lambda *_: ['', 'a.py', 'b.py', 'a.py', ''])
    with pytest.raises(InputError, match=r'\(hosts 1, 3: a.py; host 2: b.py\)'):
        same_code.check_same_code()


@pytest.mark.parametrize('numbers, text', [
    ([3], 'host 3'), ([7, 3], 'hosts 3, 7'), ([0, 1], 'hosts 0, 1'),
    ([0, 1, 2, 5], 'hosts 0-2, 5')])
def test_hosts_are_named_in_short(numbers, text):
    assert named_hosts(numbers) == text
