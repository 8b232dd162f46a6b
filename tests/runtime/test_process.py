"""What is not installed is told in one line, and what is not used is not loaded."""

import importlib.util
import subprocess
import sys

import pytest
from gcsfs.retry import HttpError

from bert_jax.runtime.errors import InputError, Unavailable
from bert_jax.runtime.files import as_path
from bert_jax.runtime.process import answer, huge_pages_note, loading_tensorflow, without
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


@pytest.mark.parametrize('fault, status, words', [
    (OSError('Forbidden: b/x/o\nrefused'), 1, 'a bucket refuses or is away (Forbidden: b/x/o)'),
    (HttpError({'code': 503, 'message': 'later'}), 1, 'is away (later, 503)'),
    (ValueError('UNAVAILABLE: Error writing "x/manifest"'), 1, 'goes on from its last checkpoint'),
    (Unavailable('gs://x cannot be reached'), 1, 'gs://x cannot be reached'),
    (ValueError('7 is no rate'), 1, 'this may be a fault of bert_jax'),
    (InputError('no such file'), 2, 'no such file'),
])
def test_an_error_is_one_line_and_a_status(tmp_path, fault, status, words):
    line, found = answer(fault, log_folder=as_path(tmp_path))
    assert found == status and words in line and '\n' not in line


@pytest.mark.parametrize('command', ['main', 'tools.prepare', 'tools.preflight', 'tools.sweep'])
def test_a_command_without_its_requirements(command):
    code = (f'import runpy, sys; sys.modules["ml_collections"] = None; '
            f'runpy.run_module("bert_jax.{command}", run_name="__main__")')
    process = subprocess.run([sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 1
    assert process.stderr.startswith('error: ml_collections is not installed: python -m pip ')
    assert process.stderr.count('\n') == 1


def test_a_package_is_hidden_and_comes_back(tmp_path, monkeypatch):
    (tmp_path / 'of_no_use.py').write_text('loaded = True\n')
    monkeypatch.syspath_prepend(tmp_path)
    with without('of_no_use'), pytest.raises(ImportError):
        importlib.import_module('of_no_use')
    with without('of_no_use', empty=True):
        assert not hasattr(importlib.import_module('of_no_use'), 'loaded')
    module = importlib.import_module('of_no_use')
    assert module.loaded
    with without('of_no_use'), without('of_no_use', empty=True):  # it is loaded: too late
        assert importlib.import_module('of_no_use') is module
    del sys.modules['of_no_use']


@pytest.mark.parametrize('package, code, after', [
    ('torch', """
from pathlib import Path
from bert_jax.train.report import Report
report = Report(Path(sys.argv[1]), True, 0)
report.write(1, {'train/loss': 1.0})
report.close()
""", ''),
    # Whoever asks TensorFlow for Keras still gets it.
    ('keras', """
from bert_jax.runtime.process import loading_tensorflow
with loading_tensorflow('reading'):
    import tensorflow as tf
    import bert_jax.data.pipeline
    import bert_jax.data.tokenize
""", 'tf.keras.layers.Dense'),
])
def test_a_run_does_not_load_what_it_does_not_use(tmp_path, package, code, after):
    assert importlib.util.find_spec(package) or pytest.skip(f'{package} is not installed')
    code = f'import sys\n{code}\nassert {package!r} not in sys.modules\n{after}'
    subprocess.run([sys.executable, '-c', code, str(tmp_path)], check=True, cwd=ROOT)
