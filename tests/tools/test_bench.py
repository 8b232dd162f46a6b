"""The benchmark counts right. The speed that it reports is not tested."""

import json

import pytest

from tests.conftest import run_python, xla_flags

pytestmark = pytest.mark.slow

# tiny: 2 layers, hidden size 128. Eight rows: one for each virtual device.
TINY = [
    '--model=tiny', '--batch_size=8', '--seq=16', '--predictions=3',
    '--vocab_size=200', '--steps=2', '--warmup=1', '--repeats=2',
]
# Runs the command as if TensorFlow was not installed.
PROGRAM = """
import sys
sys.modules |= dict.fromkeys(['tensorflow', 'tensorflow_text', 'tensorflow_datasets'])
from bert_jax.tools import bench
bench.main(['bench', *sys.argv[1:]])
"""


def values_of(figures, name):
    """The values of the first figure whose name begins like this."""
    return next(figure['values'] for figure in figures if figure['name'].startswith(name))


def test_step_benchmark_without_tensorflow(tmp_path):
    path = tmp_path / 'figures.json'
    process = run_python('-c', PROGRAM, *TINY, '--seed=3', f'--json={path}',
                         XLA_FLAGS=xla_flags(2))
    assert process.returncode == 0, process.stderr
    whole = json.loads(path.read_text())
    assert {'hardware', 'versions', 'date'} <= set(whole)
    (step,) = whole['results']
    figures = step['figures']
    for figure in figures:
        assert 0 < figure['min'] <= figure['median'] <= figure['max']
    settings = step['settings']
    assert settings['seed'] == 3
    assert settings['tokens_per_step'] == 8 * 16
    assert len(settings['losses']) == 4  # first call, warm-up, two measurements
    rates = values_of(figures, 'tiny, float32')
    assert len(rates) == 2
    assert values_of(figures, 'tokens') == pytest.approx([16 * rate for rate in rates])
    gflops = settings['flops_per_sequence'] / 1e9
    assert values_of(figures, 'model FLOPs') == pytest.approx([gflops * rate for rate in rates])
