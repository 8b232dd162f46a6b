"""What is not installed is told in one line."""

import subprocess
import sys

import pytest

from bert_jax.errors import InputError
from bert_jax.process import huge_pages_note, loading_tensorflow
from tests.conftest import ROOT


def test_tensorflow_that_is_missing_is_told_with_its_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, 'tensorflow_text', None)  # importing it fails
    told = r'^reading needs tensorflow_text, which is not installed: .* --no-deps .*text==2'
    with pytest.raises(InputError, match=told), loading_tensorflow('reading'):
        import tensorflow_text  # noqa: F401


@pytest.mark.skipif(sys.platform != 'linux', reason='of the C library of Linux')
@pytest.mark.parametrize('settled', [False, True])
def test_huge_pages_are_mentioned_where_nobody_has_chosen(settled, monkeypatch):
    if settled:
        monkeypatch.setenv('GLIBC_TUNABLES', '')
    else:
        monkeypatch.delenv('GLIBC_TUNABLES', raising=False)
    assert ('glibc.malloc.hugetlb=1' in huge_pages_note()) != settled


def test_another_missing_module_is_a_fault_of_ours():
    with pytest.raises(ModuleNotFoundError, match='no_such_module'), loading_tensorflow('reading'):
        import no_such_module  # noqa: F401


@pytest.mark.parametrize('door', ['main', 'tools.prepare', 'tools.preflight', 'tools.sweep'])
def test_a_door_without_its_requirements(door):
    code = (f'import runpy, sys; sys.modules["ml_collections"] = None; '
            f'runpy.run_module("bert_jax.{door}", run_name="__main__")')
    process = subprocess.run([sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 1
    assert process.stderr.startswith('error: ml_collections is not installed: python -m pip ')
    assert process.stderr.count('\n') == 1
