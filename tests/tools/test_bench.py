"""The benchmarks count right and fail readably. How fast they say it is, is not tested."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax.text.vocab import SPECIAL_TOKENS, write_vocab
from bert_jax.tools import bench

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
# tiny: 2 layers of 128. Eight rows: one a virtual device.
TINY = [
    '--only=step', '--model=tiny', '--batch_size=8', '--seq=16', '--predictions=3',
    '--vocab_size=200', '--steps=2', '--warmup=1', '--repeats=2',
]

def values(result: dict, name: str) -> list[float]:
    return next(f['values'] for f in result['figures'] if f['name'].startswith(name))


def test_step_benchmark_without_tensorflow(tmp_path):
    program = (
        'import sys\n'
        'for name in ("tensorflow", "tensorflow_text", "tensorflow_datasets"):\n'
        '    sys.modules[name] = None\n'  # importing it fails
        'from bert_jax.tools import bench\n'
        'bench.main(["bench", *sys.argv[1:]])\n'
    )
    process = subprocess.run(
        [sys.executable, '-c', program, *TINY, '--seed=3', '--json=figures.json'],
        cwd=tmp_path, env=os.environ | {'PYTHONPATH': str(ROOT)}, capture_output=True, text=True,
        timeout=600,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines()[-1].split()[:4] == ['step', 'compilation', 'and', 'first']
    whole = json.loads((tmp_path / 'figures.json').read_text())
    assert whole['seed'] == 3 and whole['date'].endswith('+00:00')
    assert set(whole['hardware']) == {'cpu', 'cores', 'device_kind', 'num_devices'}
    assert {'python', 'jax', 'jaxlib'} <= set(whole['versions'])
    (step,) = whole['results']
    for f in step['figures']:
        assert 0 < f['min'] <= f['median'] <= f['max']
    settings = step['settings']
    assert settings['tokens_per_step'] == 8 * 16
    assert len(settings['losses']) == 4  # first call, warm-up, two measurements
    ours = values(step, 'tiny, float32')
    assert len(ours) == 2
    assert values(step, 'tokens') == pytest.approx([16 * rate for rate in ours])
    assert values(step, 'model FLOPs') == pytest.approx(
        [settings['flops_per_sequence'] * rate / 1e9 for rate in ours])


def test_store_and_rows(tmp_path, capsys):
    pytest.importorskip('tensorflow_text')
    texts = [f'The town {chr(97 + i % 26)} is old. A king of {i} lived in it.' for i in range(50)]
    (tmp_path / 'text.txt').write_text('\n\n'.join(texts))
    words = ['the', 'town', 'is', 'old', '.', 'a', 'king', 'of', 'lived', 'in', 'it']
    write_vocab(tmp_path / 'vocab.txt', [*SPECIAL_TOKENS, *words])
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
    assert 'masked rows of 16, batch 4' in capsys.readouterr().out
