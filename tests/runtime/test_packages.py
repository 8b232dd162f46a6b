"""Packages that are missing, or that a run does not use."""

import importlib.metadata
import importlib.util
import os
import re
import sys
from pathlib import Path

import pytest

import bert_jax
from bert_jax.runtime.errors import InputError, install
from bert_jax.runtime.packages import loading_tensorflow, quiet_stderr
from tests.conftest import run_python
from tests.programs import python, run_program


def test_missing_tensorflow_is_refused_with_a_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, 'tensorflow_text', None)  # importing it fails
    told = r'^reading needs tensorflow_text, which is not installed: .* --no-deps .*text==2'
    with pytest.raises(InputError, match=told), loading_tensorflow('reading'):
        import tensorflow_text  # noqa: F401


def test_what_a_library_says_is_discarded_and_what_follows_is_not(capfd):
    with quiet_stderr():
        os.write(2, b'banner')
    os.write(2, b'said')
    assert capfd.readouterr().err == 'said'


def test_a_fork_of_these_tests_can_read_text_with_tensorflow():
    pytest.importorskip('tensorflow_text')
    process = run_program('-c', 'import tensorflow_text')
    assert process.returncode == 0, process.stderr[-500:]


@pytest.mark.parametrize('unbuffered', ['', '1'])
def test_programs_of_these_tests_are_forks_that_have_imported_jax(unbuffered):
    if not hasattr(os, 'pidfd_open'):
        pytest.skip('only Linux has a server of forks')
    assert len(python()) > 1
    process = run_program(
        '-c', 'import sys; print("jax" in sys.modules)', PYTHONUNBUFFERED=unbuffered)
    assert process.stdout == 'True\n', process.stderr[-500:]


@pytest.mark.parametrize('code, status, output, error', [
    pytest.param('print("said")', 0, 'said\n', '', id='prints'),
    pytest.param('import sys; print("said"); sys.exit(3)', 3, 'said\n', '', id='status'),
    pytest.param('import sys; sys.exit("why")', 1, '', 'why\n', id='message'),
    pytest.param('raise KeyError(7)', 1, '', 'KeyError: 7\n', id='exception'),
    pytest.param('import atexit; atexit.register(print, "last")', 0, 'last\n', '', id='at exit'),
    pytest.param('import threading; threading.Timer(0.1, print, ["late"]).start()', 0, 'late\n', '',
                 id='thread'),
    pytest.param('import sys; print("said"); sys.stdout = open("/dev/null", "w")', 0, 'said\n', '',
                 id='output elsewhere'),
    pytest.param('import os; os.fsync(99)', 1, '', 'OSError: [Errno 9] Bad file descriptor\n',
                 id='no file'),
])
def test_programs_of_these_tests_end_with_pythons_output_and_status(code, status, output, error):
    process = run_program('-c', code)
    assert (process.returncode, process.stdout) == (status, output)
    assert process.stderr.endswith(error) and bool(process.stderr) == bool(error)


@pytest.mark.parametrize('extra, package, command', [
    ('onnx', '', "python -m pip install 'bert_jax[onnx]'"),
    ('', '', 'python -m pip install bert_jax'),
    ('', 'wandb', 'python -m pip install wandb bert_jax'),
])
def test_a_remedy_keeps_the_versions_of_this_package(extra, package, command, monkeypatch):
    """By its extra, or by its own name beside another's; where it is not installed, by its path."""
    monkeypatch.setattr(importlib.metadata, 'version', lambda name: '0.2.0')
    assert install(extra, package) == command
    monkeypatch.undo()
    monkeypatch.setattr(importlib.metadata, 'distribution', not_installed)
    path = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    ending = f"{path}[{extra}]'" if extra else f"{path}'"
    assert install(extra, package).endswith(ending)


def not_installed(name):
    raise importlib.metadata.PackageNotFoundError(name)


def test_no_remedy_names_a_bare_package():
    """Its newest version may take back what this package needs."""
    for path in Path(bert_jax.__file__).parent.rglob('*.py'):
        for command in re.findall(r'pip install[^\n]*', path.read_text()):
            packages = command.removeprefix('pip install')
            is_ours = not re.match(r" '?\w", packages)
            assert is_ours or 'bert_jax' in packages, (path, command)


def test_any_other_missing_module_is_raised_unchanged():
    with pytest.raises(ModuleNotFoundError, match='no_such_module'), loading_tensorflow('reading'):
        import no_such_module  # noqa: F401


# In one process, which takes seconds to start.
WITHOUT_TORCH = """
import sys
from pathlib import Path
from bert_jax.runtime.packages import loading_tensorflow
from bert_jax.watch.loggers import LoggedRun, tensorboard

folder = Path(sys.argv[1])
logger = tensorboard(LoggedRun(folder, folder, 0, {}))
logger.write(1, {'train/loss': 1.0})
logger.close()
assert 'torch' not in sys.modules
"""
WITHOUT_KERAS = """
with loading_tensorflow('reading'):
    import tensorflow as tf
    import bert_jax.corpus.records
    import bert_jax.corpus.tokenize_tensorflow
assert 'keras' not in sys.modules
tf.keras.layers.Dense  # code that asks TensorFlow for it still gets it
"""


@pytest.mark.slow
def test_a_run_does_not_load_what_it_does_not_use(tmp_path):
    has_text = importlib.util.find_spec('tensorflow_text')  # not imported: it would load Keras
    ended = run_python('-c', WITHOUT_TORCH + (WITHOUT_KERAS if has_text else ''), tmp_path)
    assert ended.returncode == 0, ended.stderr


def test_without_a_tpu_none_is_looked_for(monkeypatch):
    """libtpu, where it is installed, would print errors."""
    code = 'from bert_jax.runtime import hosts; import jax; jax.devices()'
    monkeypatch.delenv('JAX_PLATFORMS')
    ended = run_python('-c', code)
    assert ended.returncode == 0 and 'TPU' not in ended.stderr, ended.stderr
