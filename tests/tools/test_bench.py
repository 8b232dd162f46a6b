"""The benchmarks count right and fail readably. How fast they say it is, is not tested."""

import json
import os
import subprocess
import sys

import pytest

from bert_jax.text.vocab import SPECIAL_TOKENS, write_vocab
from bert_jax.tools import bench
from tests.conftest import ROOT
from tests.tiny_runs import WORDS, documents

pytestmark = pytest.mark.slow

# tiny: 2 layers of 128. Eight rows: one a virtual device.
TINY = [
    '--only=step', '--model=tiny', '--batch_size=8', '--seq=16', '--predictions=3',
    '--vocab_size=200', '--steps=2', '--warmup=1', '--repeats=2',
]

def test_step_benchmark_without_tensorflow(tmp_path):
    program = (
        'import sys\n'
        'sys.modules |= dict.fromkeys(["tensorflow", "tensorflow_text", "tensorflow_datasets"])\n'
        'from bert_jax.tools import bench\n'
        'bench.main(["bench", *sys.argv[1:]])\n'
    )
    subprocess.run(
        [sys.executable, '-c', program, *TINY, '--seed=3', '--json=figures.json'], cwd=tmp_path,
        env=os.environ | {'PYTHONPATH': str(ROOT)}, check=True, timeout=600)
    whole = json.loads((tmp_path / 'figures.json').read_text())
    assert whole['seed'] == 3 and {'hardware', 'versions', 'date'} <= set(whole)
    (step,) = whole['results']
    for f in step['figures']:
        assert 0 < f['min'] <= f['median'] <= f['max']
    settings = step['settings']
    assert settings['tokens_per_step'] == 8 * 16
    assert len(settings['losses']) == 4  # first call, warm-up, two measurements
    ours, tokens, flops = (
        next(f['values'] for f in step['figures'] if f['name'].startswith(name))
        for name in ('tiny, float32', 'tokens', 'model FLOPs'))
    assert len(ours) == 2 and tokens == pytest.approx([16 * rate for rate in ours])
    assert flops == pytest.approx([settings['flops_per_sequence'] * rate / 1e9 for rate in ours])


def test_store_and_rows(tmp_path):
    pytest.importorskip('tensorflow_text')
    (tmp_path / 'text.txt').write_text(documents(50))
    write_vocab(tmp_path / 'vocab.txt', [*SPECIAL_TOKENS, *WORDS, '.'])
    path = tmp_path / 'figures.json'
    bench.main(['bench', '--only=rows,store', f'--text={tmp_path}/text.txt',
                f'--vocab_file={tmp_path}/vocab.txt', '--repeats=2',
                '--rows_seconds=0.1', '--rows_batch_size=4', '--seq=16', '--predictions=3',
                f'--json={path}'])
    store, rows = json.loads(path.read_text())['results']
    assert store['settings']['num_documents'] == 50
    (megabytes, tokens, memory) = (figure['values'] for figure in store['figures'])
    assert [t / m for t, m in zip(tokens, megabytes, strict=True)] == pytest.approx(
        [store['settings']['num_tokens'] / store['settings']['text_bytes'] * 1e6] * 2)
    assert memory[0] > 0.1 and len(rows['figures'][0]['values']) == 2
