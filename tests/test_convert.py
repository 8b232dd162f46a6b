"""The command that converts, as a user comes through it."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bert_jax.convert import main
from bert_jax.runtime.files import as_path, write_whole
from bert_jax.weights import load_weights
from tests.conftest import ROOT

RECORDED = Path(__file__).parent / 'fixtures' / 'huggingface'
WITHOUT_TENSORFLOW = """
import sys
sys.modules['tensorflow'] = None  # importing it fails
from bert_jax.convert import main
main(sys.argv[1:])
"""


def run(*args):
    return subprocess.run(
        [sys.executable, *map(str, args)], cwd=ROOT, capture_output=True, text=True, timeout=120,
        env=os.environ | {'XLA_FLAGS': ''},
    )


@pytest.mark.parametrize('form', ['huggingface', 'tf1', 'bert_jax'])
@pytest.mark.parametrize('place', ['disk', 'bucket'])
def test_there_and_back(form, place, tmp_path, request, capsys):
    if form == 'tf1':
        pytest.importorskip('tensorflow', reason='it writes TF1 checkpoints')
    wanted = load_weights(RECORDED / 'token_classification')
    folder = as_path(tmp_path if place == 'disk' else request.getfixturevalue('bucket'))
    source, target = folder / 'published', f'{folder}/models/out'
    source.mkdir()
    for path in (RECORDED / 'token_classification').iterdir():
        write_whole(source / path.name, path.read_bytes())
    main([str(source), target, '--to', form])
    printed = capsys.readouterr().out.splitlines()
    size = sum(x.size for x in wanted.params.values())
    assert printed[:5] == [
        f'read Hugging Face folder {source} (BertForTokenClassification)',
        '  2 layers, hidden size 8, 2 heads, vocabulary 40, gelu_erf',
        f'  {len(wanted.params)} tensors, {size:,} parameters',
        '  head: token_classification (O, B-PER, I-PER, B-LOC, I-LOC)',
        f'wrote {form}: {target}',
    ]
    assert all(line.startswith('note: ') for line in printed[5:])
    assert len(printed) == (6 if form == 'tf1' else 5)  # the form of its gelu
    found = load_weights(target)
    assert str(found.vocab_file).startswith(target) and found.labels == wanted.labels
    for name, x in wanted.params.items():
        np.testing.assert_array_equal(found.params[name], x, err_msg=name)
    with pytest.raises(SystemExit, match='2'):
        main([str(source), target, '--to', form])
    assert 'is there already' in capsys.readouterr().err


def test_without_tensorflow(tmp_path):
    """Only TF1 checkpoints need it."""
    source = RECORDED / 'pretraining'
    process = run('-c', WITHOUT_TENSORFLOW, source, tmp_path / 'run', '--to', 'bert_jax')
    assert process.returncode == 0, process.stderr
    process = run('-c', WITHOUT_TENSORFLOW, tmp_path / 'run', tmp_path / 'hf', '--to',
                  'huggingface')
    assert process.returncode == 0, process.stderr
    assert (tmp_path / 'hf' / 'model.safetensors').exists()
    process = run('-c', WITHOUT_TENSORFLOW, source, tmp_path / 'tf1', '--to', 'tf1')
    assert process.returncode == 2
    assert process.stderr.startswith(
        'error: writing a TF1 checkpoint needs tensorflow, which is not installed: python -m pip ')
    assert process.stderr.count('\n') == 1


@pytest.mark.parametrize('args, words', [
    (('nowhere', 'out', '--to', 'tf1'), 'nowhere does not exist'),
    ((RECORDED, 'out', '--to', 'bert_jax'), 'holds no model'),
])
def test_bad_input_is_one_line_and_status_2(tmp_path, capsys, monkeypatch, args, words):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main([str(arg) for arg in args])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith('error: ') and error.count('\n') == 1 and words in error
    assert list(tmp_path.iterdir()) == []
