"""The benchmark counts right. The speed that it reports is not tested."""

import json

import pytest

from tests.conftest import run_python

pytestmark = pytest.mark.slow

# tiny: 2 layers, hidden size 128. Eight rows: one for each virtual device.
TINY = [
    '--model=tiny', '--batch_size=8', '--seq=16', '--predictions=3',
    '--vocab_size=200', '--steps=2', '--warmup=1', '--repeats=2',
]

def test_step_benchmark_without_tensorflow(tmp_path):
    program = (
        'import sys\n'
        'sys.modules |= dict.fromkeys(["tensorflow", "tensorflow_text", "tensorflow_datasets"])\n'
        'from bert_jax.tools import bench\n'
        'bench.main(["bench", *sys.argv[1:]])\n')
    process = run_python('-c', program, *TINY, '--seed=3', f'--json={tmp_path}/figures.json')
    assert process.returncode == 0, process.stderr
    whole = json.loads((tmp_path / 'figures.json').read_text())
    assert {'hardware', 'versions', 'date'} <= set(whole)
    (step,) = whole['results']
    for f in step['figures']:
        assert 0 < f['min'] <= f['median'] <= f['max']
    settings = step['settings']
    assert settings['seed'] == 3
    assert settings['tokens_per_step'] == 8 * 16
    assert len(settings['losses']) == 4  # first call, warm-up, two measurements
    ours, tokens, flops = (
        next(f['values'] for f in step['figures'] if f['name'].startswith(name))
        for name in ('tiny, float32', 'tokens', 'model FLOPs'))
    assert len(ours) == 2 and tokens == pytest.approx([16 * rate for rate in ours])
    assert flops == pytest.approx([settings['flops_per_sequence'] * rate / 1e9 for rate in ours])
