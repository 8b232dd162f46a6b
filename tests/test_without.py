"""What a start does not load."""

import importlib.util
import subprocess
import sys

import pytest

from bert_jax.without import without
from tests.conftest import ROOT


def test_a_package_is_hidden_and_comes_back():
    assert 'wave' not in sys.modules
    with without('wave'), pytest.raises(ImportError):
        import wave
    import wave

    with without('wave'):
        import wave as loaded
    assert loaded is wave is sys.modules['wave']


@pytest.mark.parametrize('package, code, after', [
    ('torch', """
from pathlib import Path
from bert_jax.train.report import Report
report = Report(Path(sys.argv[1]), True, 0)
report.write(1, {'train/loss': 1.0})
report.close()
""", ''),
    # Whoever asks TensorFlow for Keras still gets it.
    ('keras', 'from bert_jax.data.pipeline import tf', 'tf.keras.layers.Dense'),
])
def test_a_run_does_not_load_what_it_does_not_use(tmp_path, package, code, after):
    assert importlib.util.find_spec(package) or pytest.skip(f'{package} is not installed')
    code = f'import sys\n{code}\nassert {package!r} not in sys.modules\n{after}'
    subprocess.run([sys.executable, '-c', code, str(tmp_path)], check=True, cwd=ROOT)
