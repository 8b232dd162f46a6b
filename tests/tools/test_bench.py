"""The benchmarks count right and fail readably. How fast they say it is, is not tested."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax.runtime.errors import InputError
from bert_jax.tools import bench
from bert_jax.tools.bench import Figure, Result, run_peer, table

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
# tiny: 2 layers of 128. Eight rows: one a virtual device.
TINY = [
    '--only=step', '--model=tiny', '--batch_size=8', '--seq=16', '--predictions=3',
    '--vocab_size=200', '--steps=2', '--warmup=1', '--repeats=2',
]
FLOPS = 3 * (
    16 * (24 * 128**2 + 4 * 16 * 128)  # the first layer, at all 16 tokens
    + 16 * 6 * 128**2 + 4 * (18 * 128**2 + 4 * 16 * 128)  # the last: q, k, v, then [CLS] and three
    + 3 * (2 * 128**2 + 2 * 128 * 200) + 2 * 128**2 + 4 * 128  # predictions, pooler, NSP
)
PEER = '''
import json, sys
print('loading')
print(json.dumps({'sequences_per_second': 2.0, 'arguments': sys.argv[1:]}))
'''


def values(result: dict, name: str) -> list[float]:
    return next(f['values'] for f in result['figures'] if f['name'].startswith(name))


@pytest.fixture
def peer(tmp_path) -> str:
    path = tmp_path / 'peer.py'
    path.write_text(PEER)
    return f'--peer={sys.executable} {path}'


def test_step_benchmark(tmp_path, peer, capsys):
    path = tmp_path / 'figures.json'
    bench.main(['bench', *TINY, peer, '--seed=3', f'--json={path}'])
    out = capsys.readouterr().out

    whole = json.loads(path.read_text())
    assert whole['seed'] == 3 and whole['date'].endswith('+00:00')
    assert set(whole['hardware']) == {'cpu', 'cores', 'device_kind', 'num_devices'}
    assert {'python', 'jax', 'jaxlib'} <= set(whole['versions'])
    (step,) = whole['results']
    assert step['benchmark'] == 'step'
    for figure in step['figures']:
        assert set(figure) == {'name', 'unit', 'median', 'min', 'max', 'values'}
        assert 0 < figure['min'] <= figure['median'] <= figure['max']

    settings = step['settings']
    assert settings['flops_per_sequence'] == FLOPS
    assert settings['tokens_per_step'] == 8 * 16
    assert settings['dtype'] == 'float32' and settings['layers'] == 2
    assert len(settings['losses']) == 4  # first call, warm-up, two measurements
    ours = values(step, 'tiny')
    assert len(ours) == 2
    assert values(step, 'tokens') == pytest.approx([16 * rate for rate in ours])
    assert values(step, 'model FLOPs') == pytest.approx([FLOPS * rate / 1e9 for rate in ours])
    assert values(step, 'ours / peer') == pytest.approx([rate / 2 for rate in ours])
    assert {'--layers=2', '--hidden=128', '--heads=2', '--vocab_size=200', '--batch_size=8',
            '--seq=16', '--predictions=3', '--dtype=float32', '--steps=2', '--warmup=1',
            } == set(settings['peer']['arguments'])

    turns = [line.split()[1] for line in out.splitlines() if ' of 2: ' in line]
    assert turns == ['run', 'peer', 'peer', 'run']
    assert out.splitlines()[-1].split()[:4] == ['step', 'ours', '/', 'peer']


def test_without_tensorflow_the_step_still_runs(tmp_path):
    program = (
        'import sys\n'
        'for name in ("tensorflow", "tensorflow_text", "tensorflow_datasets"):\n'
        '    sys.modules[name] = None\n'  # importing it fails
        'from bert_jax.tools import bench\n'
        'bench.main(["bench", *sys.argv[1:]])\n'
    )
    process = subprocess.run(
        [sys.executable, '-c', program, *TINY[1:], '--repeats=1', '--json=figures.json'],
        cwd=tmp_path, env=os.environ | {'PYTHONPATH': str(ROOT), 'XLA_FLAGS': ''},
        capture_output=True, text=True, timeout=600,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.startswith('TensorFlow is not installed: left out first_step, store')
    whole = json.loads((tmp_path / 'figures.json').read_text())
    assert [result['benchmark'] for result in whole['results']] == ['step']


@pytest.mark.parametrize('arguments, words', [
    (['--steps=0'], '--steps'),
    (['--stpes=3'], 'stpes'),
    (['--only=steps'], "did you mean 'step'?"),
    (['--dtype=float16'], 'bfloat16'),
    (['--only=rows', '--peer=true'], '--peer'),
    (['base'], 'unrecognized arguments: base'),
    (['--json=/no/such/folder/x.json'], 'folder'),
    (['--seq=16', '--predictions=15'], '--predictions=15'),
    (['--only=step', '--model=bse'], "did you mean 'base'?"),
    (['--only=step', '--batch_size=9'], 'batch_size=9'),
    (['--only=store', '--text=/no/such/*.txt'], '/no/such/*.txt'),
])
def test_bad_input_gets_one_line(arguments, words, capsys):
    with pytest.raises(SystemExit) as exit_:
        bench.main(['bench', *arguments])
    assert exit_.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith('error: ') and words in line


@pytest.mark.parametrize('body, words', [
    ('print(1)', 'JSON'),
    ('import no_such_package', 'no_such_package'),
])
def test_a_peer_that_fails_says_why(body, words, tmp_path):
    path = tmp_path / 'peer.py'
    path.write_text(body)
    with pytest.raises(InputError, match=words) as error:
        run_peer(f'{sys.executable} {path}', {'steps': 1})
    assert '\n' not in str(error.value)


def test_help(capsys):
    with pytest.raises(SystemExit) as exit_:
        bench.main(['bench', '--help'])
    out = capsys.readouterr().out
    assert exit_.value.code == 0 and '--rows_seconds' in out
    assert 'python -m bert_jax.tools.bench' in out


def test_table():
    text = table([
        Result('step', {}, [Figure('speed', [3.0, 1.0, 2.0], 'x/s')]),
        Result('rows', {}, [Figure('rows', [123456.7], 'rows/s')]),
    ])
    assert text.splitlines()[2].split() == ['step', 'speed', '2', '1', '-', '3', 'x/s']
    assert text.splitlines()[3].split() == ['rows', 'rows', '123,457', 'rows/s']
