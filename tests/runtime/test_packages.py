"""Packages that are missing, or that a run does not use."""

import importlib.util
import sys

import pytest

from bert_jax.runtime.errors import InputError
from bert_jax.runtime.packages import loading_tensorflow
from tests.conftest import run_python


def test_missing_tensorflow_is_refused_with_a_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, 'tensorflow_text', None)  # importing it fails
    told = r'^reading needs tensorflow_text, which is not installed: .* --no-deps .*text==2'
    with pytest.raises(InputError, match=told), loading_tensorflow('reading'):
        import tensorflow_text  # noqa: F401


def test_any_other_missing_module_is_raised_unchanged():
    with pytest.raises(ModuleNotFoundError, match='no_such_module'), loading_tensorflow('reading'):
        import no_such_module  # noqa: F401


@pytest.mark.parametrize('package, code, after', [
    ('torch', """
from pathlib import Path
from bert_jax.train.loggers import tensorboard
logger = tensorboard(Path(sys.argv[1]), 0)
logger.write(1, {'train/loss': 1.0})
logger.close()
""", ''),
    # Code that asks TensorFlow for Keras still gets it.
    ('keras', """
from bert_jax.runtime.packages import loading_tensorflow
with loading_tensorflow('reading'):
    import tensorflow as tf
    import bert_jax.data.records
    import bert_jax.data.tokenize
""", 'tf.keras.layers.Dense'),
])
def test_a_run_does_not_load_what_it_does_not_use(tmp_path, package, code, after):
    assert importlib.util.find_spec(package) or pytest.skip(f'{package} is not installed')
    code = f'import sys\n{code}\nassert {package!r} not in sys.modules\n{after}'
    ended = run_python('-c', code, tmp_path)
    assert ended.returncode == 0, ended.stderr


def test_without_a_tpu_none_is_looked_for(monkeypatch):
    """libtpu, where it is installed, would print errors."""
    code = 'from bert_jax.runtime import hosts; import jax; jax.devices()'
    monkeypatch.delenv('JAX_PLATFORMS')
    ended = run_python('-c', code)
    assert ended.returncode == 0 and 'TPU' not in ended.stderr, ended.stderr
